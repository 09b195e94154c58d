"""The user's profile and the gold turns of retail tasks."""

from collections.abc import Iterator, Sequence

from understudy.core.messages import Message
from understudy.domains.authoring.identification import (
    IdentificationMode,
    build_customer_profile,
    gold_turns_of_goals,
    identification_questions,
)
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec, gold_call
from understudy.domains.retail.task_builder import RetailOrderMention, RetailTaskBuilder


def build_user_profile(builder: RetailTaskBuilder, identification: IdentificationMode) -> UserProfile:
    """Return the customer's profile."""
    return build_customer_profile(
        builder, identification, builder.user.name, builder.email, _zip(builder), "a customer of an online store"
    )


def generate_gold_turns(
    builder: RetailTaskBuilder, identification: IdentificationMode, goals: Sequence[GoalSpec]
) -> Iterator[Message]:
    """Yield the gold turns: ask for what is missing, find the customer, and settle each request in order."""
    first = goals[0].mention
    unnamed = isinstance(first, RetailOrderMention) and first.knowledge in ("asked", "vague")
    yield from identification_questions(identification, "order number" if unnamed else "")
    if identification == "other":
        yield gold_call("find_user_by_name", name=builder.user.name, zip=_zip(builder))
    else:
        yield gold_call("find_user", email=builder.email)
    yield from gold_turns_of_goals(goals)


def _zip(builder: RetailTaskBuilder) -> str:
    return builder.user.address.split()[-1]
