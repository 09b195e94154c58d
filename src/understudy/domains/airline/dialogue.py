"""The user's profile and the gold turns of airline tasks."""

from collections.abc import Iterator, Sequence

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.airline.task_builder import AirlineTaskBuilder, ReservationMention
from understudy.domains.authoring.dialogue import QUESTION_WORDS, gold_turns_of_goals
from understudy.domains.authoring.identification import IdentificationMode
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec, TaskBuilder, gold_call, gold_text


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


def build_customer_profile(
    builder: TaskBuilder, identification: IdentificationMode, name: str, email: str, zip_code: str, role: str
) -> UserProfile:
    """Return the profile of a customer: name, role and what identifies them."""
    known = (
        builder.phrase("no_email", name=name, zip=zip_code)
        if identification == "other"
        else builder.phrase("email", email=email)
    )
    facts = (
        Fact(text=known, keywords=QUESTION_WORDS["email"], in_opening=identification == "opened"),
        Fact(text=builder.phrase("name", name=name), keywords=QUESTION_WORDS["name"]),
        Fact(text=builder.phrase("zip", zip=zip_code), keywords=QUESTION_WORDS["zip"]),
    )
    return UserProfile(name, role, facts)


def identification_questions(identification: IdentificationMode, what: str = "") -> Iterator[Message]:
    """Yield the gold agent's first question, if any: for the email, for `what`, or for both."""
    if identification != "opened" and what:
        yield gold_text(f"What are your email and your {what}?")
    elif identification != "opened" or what:
        yield gold_text(f"What is your {what or 'email'}?")
