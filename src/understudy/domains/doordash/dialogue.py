"""The user's profile and the gold turns of delivery tasks."""

from collections.abc import Iterator, Sequence

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.identification import (
    IdentificationMode,
    gold_turns_of_goals,
    identification_questions,
)
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec, gold_call
from understudy.domains.doordash.task_builder import DoordashOrderMention, DoordashTaskBuilder

_EMAIL, _PHONE = ("email", "e-mail"), ("phone", "telephone")
_NAME = ("your name", "full name", "first name", "last name")


def build_user_profile(builder: DoordashTaskBuilder, identification: IdentificationMode) -> UserProfile:
    """Return the customer's profile."""
    name, phone = builder.customer.name, builder.customer.phone
    email = (
        builder.phrase("email_forgotten", phone=phone)
        if identification == "other"
        else builder.phrase("email", email=builder.email)
    )
    facts = (
        Fact(text=email, keywords=_EMAIL, in_opening=identification == "opened"),
        Fact(text=builder.phrase("phone", phone=phone), keywords=_PHONE),
        Fact(text=builder.phrase("name", name=name), keywords=_NAME),
    )
    return UserProfile(name, "a customer of a food delivery service", facts)


def generate_gold_turns(
    builder: DoordashTaskBuilder, identification: IdentificationMode, goals: Sequence[GoalSpec]
) -> Iterator[Message]:
    """Yield the gold turns: ask for what is missing, find the customer, and settle each request in order."""
    first = goals[0].mention
    yield from identification_questions(
        identification, "order number" if isinstance(first, DoordashOrderMention) and first.told_when_asked else ""
    )
    if identification == "other":
        yield gold_call("find_customer_by_phone", phone=builder.customer.phone)
    else:
        yield gold_call("find_customer", email=builder.email)
    yield from _each_read_once(gold_turns_of_goals(goals))


def _each_read_once(turns: Iterator[Message]) -> Iterator[Message]:
    """Yield the turns without repeated lookups."""
    seen: list[Message] = []
    for turn in turns:
        reads = turn.tool_calls and turn.tool_calls[0].name.startswith("get_")
        if not reads or turn not in seen:
            yield turn
        seen.append(turn)
