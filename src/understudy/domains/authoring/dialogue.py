"""The dialogue around the requests: who the customer is, and the gold turns that find them and settle each request."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.identification import IdentificationMode
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec, NumberedMention, TaskBuilder
from understudy.envs.gold import gold_call, gold_text

BuilderT = TypeVar("BuilderT", bound=TaskBuilder)

QUESTION_WORDS: Mapping[str, tuple[str, ...]] = {
    "email": ("email", "e-mail"),
    "phone": ("phone", "telephone"),
    "name": ("your name", "full name", "first name", "last name"),
    "zip": ("zip", "postal code", "postcode"),
}
"""The words by which the user recognizes a question for what identifies them."""


@dataclass(frozen=True)
class CustomerDialogue(Generic[BuilderT]):
    """The profile and the gold turns of customers whom the agent finds by email, or by other data."""

    role: str
    """The user, such as "a customer of an online store"."""
    number: str
    """What the agent asks for if the first message does not identify the entity, such as "order number"."""
    identity: Callable[[BuilderT], Mapping[str, str]]
    """Returns what identifies the customer: `email` first, then other keys of `QUESTION_WORDS`. Each is also a list of
    phrases."""
    find_by_email: str = "find_customer"
    find_by_other: str = "find_customer_by_name"
    """The tools that find the customer."""
    other: tuple[str, ...] = ("name", "zip")
    """What a customer tells instead of the email: keys of `identity`, and the arguments of `find_by_other`."""
    no_email: str = "no_email"
    """The list of phrases that tell `other` instead of the email."""
    read_tools: tuple[str, ...] = ()
    """The first letters of the tools that gold calls only once with the same arguments."""

    def build_profile(self, builder: BuilderT, identification: IdentificationMode) -> UserProfile:
        """Return the profile of the customer: name, role and what identifies them."""
        identity = self.identity(builder)
        texts = {name: self.no_email if name == "email" and identification == "other" else name for name in identity}
        facts = (
            Fact(
                text=builder.phrase(text, **identity),
                keywords=QUESTION_WORDS[name],
                in_opening=name == "email" and identification == "opened",
            )
            for name, text in texts.items()
        )
        return UserProfile(identity["name"], self.role, tuple(facts))

    def generate_gold_turns(
        self, builder: BuilderT, identification: IdentificationMode, goals: Sequence[GoalSpec]
    ) -> Iterator[Message]:
        """Yield the gold turns: ask for what is missing, find the customer, and settle each request in order."""
        mention, identity = goals[0].mention, self.identity(builder)
        asked = ["email"] if identification != "opened" else []
        if isinstance(mention, NumberedMention) and mention.told_when_asked:
            asked.append(self.number)
        if asked:
            yield gold_text(f"What {'are' if asked[1:] else 'is'} your {' and your '.join(asked)}?")
        if identification == "other":
            yield gold_call(self.find_by_other, **{name: identity[name] for name in self.other})
        else:
            yield gold_call(self.find_by_email, email=identity["email"])
        yield from gold_turns_of_goals(goals, self.read_tools)


def gold_turns_of_goals(goals: Sequence[GoalSpec], read_tools: tuple[str, ...] = ()) -> Iterator[Message]:
    """Yield the gold turns of each request in order: its lookups, unless already made, and its own turns.

    Calls of tools whose name begins with one of `read_tools` are not repeated either.
    """
    read: list[Message] = []
    for goal in goals:
        for turn in goal.mention.lookup_turns if goal.mention else ():
            if turn not in read:
                yield turn
                read.append(turn)
        for turn in goal.gold_turns:
            reads = turn.tool_calls and turn.tool_calls[0].name.startswith(read_tools)
            if not reads or turn not in read:
                yield turn
            if reads:
                read.append(turn)
