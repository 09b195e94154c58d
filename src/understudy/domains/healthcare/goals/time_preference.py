"""The time that a caller wants, and the gold turns that find a free one."""

from dataclasses import dataclass

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.task_builder import capitalize_sentences, gold_call, gold_text
from understudy.domains.healthcare.clinic_calendar import (
    SLOT_TIMES,
    draw_spoken_day,
    draw_spoken_time,
    half_hour_slots,
    time_variants,
)
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.envs.dates import date_variants

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
        return date_variants(self.time[:10]), time_variants(self.time[11:])


def draw_time_preference(builder: HealthcareTaskBuilder, doctor: str, minutes: int, easy: bool) -> TimePreference:
    """Draw a free time, or unless `easy` sometimes a taken one and another one on the same day."""
    time = builder.draw_time(doctor, minutes)
    vague, taken = not easy and builder.draw_bool(0.3), not easy and builder.draw_bool(0.3)
    said, day, start = draw_spoken_datetime(builder, time, easy), time[:10], time[11:]
    facts: tuple[Fact, ...] = (
        Fact(
            text=capitalize_sentences(builder.phrase("when_wanted", when=said)),
            keywords=_CUES,
            in_opening=not vague,
        ),
    )
    builder.set_slots_free(doctor, time, minutes, not taken)
    asks = (gold_text("Which day and time would you like?"),) if vague else ()
    looks = gold_call("get_slots", doctor=doctor, date=day)
    if not taken:
        return TimePreference(time, said, vague, facts, asks, (looks,))
    other = builder.rng.choice(
        [t for t in SLOT_TIMES if _apart(t, start, minutes) and set(half_hour_slots(t, minutes)) <= set(SLOT_TIMES)]
    )
    builder.set_slots_free(doctor, f"{day} {other}", minutes, True)
    words = draw_spoken_time(builder.phrases.rng, other)
    offer = gold_text(f"{start} on {day} is not available, but {other} is. Which time would you like?")
    facts = (*facts, Fact(text=builder.phrase("other_time", time=words), keywords=_CUES))
    fallback = builder.phrase("fallback", time=words)
    return TimePreference(f"{day} {other}", said, vague, facts, asks, (looks, offer), fallback)


def draw_spoken_datetime(builder: HealthcareTaskBuilder, time: str, easy: bool) -> str:
    """Return a day and time in the caller's words."""
    day, start = time.split()
    if easy:
        return f"{day} at {start}"
    return f"{draw_spoken_day(builder.phrases.rng, day)} at {draw_spoken_time(builder.phrases.rng, start)}"


def _apart(one: str, other: str, minutes: int) -> bool:
    return not set(half_hour_slots(one, minutes)) & set(half_hour_slots(other, minutes))
