"""The user's profile and the gold turns of airline tasks."""

from collections.abc import Iterator, Sequence

from understudy.core.messages import Message
from understudy.domains.airline.task_builder import AirlineTaskBuilder, ReservationMention
from understudy.domains.authoring.identification import (
    IdentificationMode,
    build_customer_profile,
    gold_turns_of_goals,
    identification_questions,
)
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec, gold_call


def build_user_profile(builder: AirlineTaskBuilder, identification: IdentificationMode) -> UserProfile:
    """Return the customer's profile."""
    return build_customer_profile(
        builder, identification, builder.customer.name, builder.email, _zip(builder), "a customer of an airline"
    )


def generate_gold_turns(
    builder: AirlineTaskBuilder, identification: IdentificationMode, goals: Sequence[GoalSpec]
) -> Iterator[Message]:
    """Yield the gold turns: ask for what is missing, find the customer, and settle each request in order."""
    first = goals[0].mention
    unnamed = isinstance(first, ReservationMention) and first.knowledge in ("asked", "vague")
    yield from identification_questions(identification, "reservation code" if unnamed else "")
    if identification == "other":
        yield gold_call("find_customer_by_name", name=builder.customer.name, zip=_zip(builder))
    else:
        yield gold_call("find_customer", email=builder.email)
    yield from gold_turns_of_goals(goals)


def _zip(builder: AirlineTaskBuilder) -> str:
    return builder.customer.address.split()[-1]
