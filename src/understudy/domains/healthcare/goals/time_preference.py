"""The time that a caller wants, and the gold turns that find a free one."""

from dataclasses import dataclass

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.request import VAGUE_SHARE
from understudy.domains.authoring.task_builder import capitalize_sentences
from understudy.domains.healthcare.clinic_calendar import (
    SLOT_TIMES,
    datetime_variants,
    draw_spoken_day,
    draw_spoken_time,
    half_hour_slots,
)
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.gold import gold_call, gold_text

_CUES = ("which day", "what day", "which time", "what time", "when", "which date", "what date", "another time")


@dataclass(frozen=True)
class TimePreference:
    """A wanted time and the turns that find it."""

    time: str
    """The final day and time."""
    opening_phrase: str
    """The first wanted time in the caller's words."""
    vague: bool
    """Whether the caller says it only when asked."""
    facts: tuple[Fact, ...]
    question_turns: tuple[Message, ...]
    """The agent's question for the time, if needed."""
    lookup_turns: tuple[Message, ...]
    """The lookups and offers before the proposal."""
    fallback: str = ""
    """What the caller adds to the request if the first time is taken."""

    @property
    def gold_turns(self) -> tuple[Message, ...]:
        """The gold turns before the proposal."""
        return self.question_turns + self.lookup_turns

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a proposal must contain."""
        return datetime_variants(self.time)


def draw_time_preference(b: HealthcareTaskBuilder, doctor: str, minutes: int, easy: bool) -> TimePreference:
    """Draw a free time, or unless `easy` sometimes a taken one and another one on the same day."""
    time = b.draw_time(doctor, minutes)
    vague, taken = not easy and b.draw_bool(VAGUE_SHARE), not easy and b.draw_bool(0.3)
    said, (day, start) = draw_spoken_datetime(b, time, easy), time.split()
    wanted = capitalize_sentences(b.phrase("when_wanted", when=said))
    facts = [Fact(text=wanted, keywords=_CUES, in_opening=not vague)]
    b.set_slots_free(doctor, time, minutes, not taken)
    asks = (gold_text("Which day and time would you like?"),) if vague else ()
    reads = [gold_call("get_slots", doctor=doctor, date=day)]
    if not taken:
        return TimePreference(time, said, vague, tuple(facts), asks, tuple(reads))
    slots = set(half_hour_slots(start, minutes))
    others = ((time, set(half_hour_slots(time, minutes))) for time in SLOT_TIMES)
    other = b.rng.choice([time for time, halves in others if halves <= set(SLOT_TIMES) - slots])
    b.set_slots_free(doctor, f"{day} {other}", minutes, True)
    spoken = draw_spoken_time(b.phrases.rng, other)
    reads.append(gold_text(f"{start} on {day} is not available, but {other} is. Which time would you like?"))
    facts.append(Fact(text=b.phrase("other_time", time=spoken), keywords=_CUES))
    fallback = b.phrase("fallback", time=spoken)
    return TimePreference(f"{day} {other}", said, vague, tuple(facts), asks, tuple(reads), fallback)


def draw_spoken_datetime(b: HealthcareTaskBuilder, time: str, easy: bool) -> str:
    """Return a day and time in the caller's words."""
    day, start = time.split()
    if easy:
        return f"{day} at {start}"
    return f"{draw_spoken_day(b.phrases.rng, day)} at {draw_spoken_time(b.phrases.rng, start)}"
