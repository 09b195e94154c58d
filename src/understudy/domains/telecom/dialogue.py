"""The user's profile and the gold turns of telecom tasks."""

from collections.abc import Iterator, Sequence

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.dialogue import gold_turns_of_goals
from understudy.domains.authoring.identification import IdentificationMode
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_text
from understudy.domains.telecom.task_builder import Caller, FaultMention, LineMention, TelecomTaskBuilder

_NUMBER = ("your number", "phone number", "telephone number")
_NAME, _BIRTH = ("your name", "full name", "first name", "last name"), ("birth", "born")


def build_user_profile(builder: TelecomTaskBuilder, caller: Caller) -> UserProfile:
    """Return the customer's profile."""
    name, born = builder.customer.name, f"{builder.customer.birth_date}"
    known = (
        builder.phrase("no_own_number", name=name, born=born)
        if caller.identification == "other"
        else builder.phrase("own_number", number=caller.number)
    )
    facts = (
        Fact(text=known, keywords=_NUMBER, in_opening=caller.identification == "opened"),
        Fact(text=builder.phrase("name", name=name), keywords=_NAME),
        Fact(text=builder.phrase("born", born=born), keywords=_BIRTH),
    )
    return UserProfile(name, "a customer of a mobile operator", facts)


def generate_gold_turns(builder: TelecomTaskBuilder, caller: Caller, goals: Sequence[GoalSpec]) -> Iterator[Message]:
    """Yield the gold turns: ask for what is missing, find the customer, and settle each request in order."""
    named_number = _number_in_opening(goals[0].mention)
    yield from _asks("opened" if named_number else caller.identification, goals[0].mention)
    if caller.identification == "other" and not named_number:
        yield gold_call(
            "find_customer_by_name", name=builder.customer.name, birth_date=f"{builder.customer.birth_date}"
        )
    else:
        yield gold_call("find_customer", number=named_number or caller.number)
    yield from gold_turns_of_goals(goals)
    if isinstance(goals[-1].mention, FaultMention) and goals[-1].mention.repaired:
        yield gold_text("I am glad it works now.")


_PLACE = "which city or country are you in right now"


def _number_in_opening(about: object) -> str:
    """Return the number of the line if the first message tells it. It identifies the customer too."""
    if isinstance(about, LineMention):
        return about.wrong_number or (about.number if about.knowledge == "told" else "")
    return ""


def _asks(identification: IdentificationMode, about: object) -> Iterator[Message]:
    """Ask one question for everything that is missing."""
    questions = ["what is your phone number"] if identification != "opened" else []
    line = about.line if isinstance(about, FaultMention) else about
    if isinstance(line, LineMention) and line.knowledge in ("asked", "vague"):
        questions.append("which line is it")
    if isinstance(about, FaultMention) and about.asks_location:
        questions.append(_PLACE)
    if questions:
        *others, last = questions
        text = f"{', '.join(others)}, and {last}?" if others else f"{last}?"
        yield gold_text(text[0].upper() + text[1:])
