"""When a visit is wanted: what the caller says of it, and how the agent finds a time that is free."""

from dataclasses import dataclass

from understudy.domains.days import any_day
from understudy.domains.drafts import call, say
from understudy.domains.healthcare.dates import TIMES, any_time, halves, spoken_day, spoken_time
from understudy.domains.healthcare.drafts import Draft
from understudy.messages import Message
from understudy.tasks import Fact

_CUES = ("which day", "what day", "which time", "what time", "when", "which date", "what date", "another time")


@dataclass(frozen=True)
class Wanted:
    """A time, and the way to it."""

    time: str
    """The day and time that it comes to."""
    said: str
    """What is asked for first, in the caller's words."""
    vague: bool
    """Whether the caller says it only when asked."""
    facts: tuple[Fact, ...]
    asks: tuple[Message, ...]
    """How the agent asks for it, where it has to."""
    looks: tuple[Message, ...]
    """What the agent looks up and offers before it proposes."""
    fallback: str = ""
    """What the caller adds to the request where the first time is taken."""

    @property
    def turns(self) -> tuple[Message, ...]:
        """All that comes before the proposal."""
        return self.asks + self.looks

    @property
    def names(self) -> tuple[str, ...]:
        """What a proposal has to name."""
        return any_day(self.time[:10]), any_time(self.time[11:])


def wanted(draft: Draft, doctor: str, minutes: int, easy: bool) -> Wanted:
    """Draw a time that is free; or, not as easy, one that is taken and another one on the same day."""
    time = draft.time(doctor, minutes)
    vague, taken = not easy and draft.likely(0.3), not easy and draft.likely(0.3)
    said, day, start = spoken(draft, time, easy), time[:10], time[11:]
    facts: tuple[Fact, ...] = (
        Fact(says=f"On {said}." if easy else f"{said[0].upper()}{said[1:]}.", cues=_CUES, opened=not vague),
    )
    draft.set_free(doctor, time, minutes, not taken)
    asks = (say("Which day and time do you want?"),) if vague else ()
    looks = call("get_slots", doctor=doctor, date=day)
    if not taken:
        return Wanted(time, said, vague, facts, asks, (looks,))
    other = draft.random.choice(
        [t for t in TIMES if _apart(t, start, minutes) and set(halves(t, minutes)) <= set(TIMES)]
    )
    draft.set_free(doctor, f"{day} {other}", minutes, True)
    words = spoken_time(draft.random, other)
    offer = say(f"{start} on {day} is not free, but {other} is. Which time do you want?")
    facts = (*facts, Fact(says=f"Then {words}.", cues=_CUES))
    fallback = f" If that is taken, {words} is fine too."
    return Wanted(f"{day} {other}", said, vague, facts, asks, (looks, offer), fallback)


def spoken(draft: Draft, time: str, easy: bool) -> str:
    """A day and time in the caller's words."""
    day, start = time.split()
    if easy:
        return f"{day} at {start}"
    return f"{spoken_day(draft.random, day)} at {spoken_time(draft.random, start)}"


def _apart(one: str, other: str, minutes: int) -> bool:
    return not set(halves(one, minutes)) & set(halves(other, minutes))
