"""Draft: a task in the making, the user's side and the perfect agent's side by side."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from understudy.messages import Message, ToolCall
from understudy.tasks import Deed, Fact, Proof, Wish


@dataclass(frozen=True)
class Mention:
    """How the user calls the thing that a request is about, such as an order."""

    kind: str
    """Its placeholder in the words of a request: `order` for {order}."""
    said: str
    """In the opening."""
    known: str
    """Whenever the user speaks of it later."""
    facts: tuple[Fact, ...] = field(default=(), kw_only=True)
    """What the user tells of it when asked."""
    reads: tuple[Message, ...] = field(default=(), kw_only=True)
    """How a perfect agent finds it: what is read, and asked, until it is the right one."""


@dataclass(frozen=True)
class Want:
    """One request: what the user says, what a right proposal names, and the gold turns that settle it."""

    text: str
    """In the user's words; the mention's placeholder stands for the thing."""
    about: Mention | None = None
    turns: tuple[Message, ...] = ()
    kind: Literal["action", "number", "text"] = "action"
    names: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    deeds: tuple[Deed, ...] = ()
    """What the user does with tools of their own when the agent says so."""
    agrees: tuple[tuple[str, ...], ...] = ()
    """Steps on the way, each by what a right proposal of it names."""
    proof: Proof | None = None
    """How the user notices that the request is fulfilled."""
    contests: bool = False
    meant: str = ""
    """What the user wants after a change of mind; `text` is then only what is said first."""

    @property
    def first(self) -> str:
        """The request as the opening puts it."""
        return self._with(self.text, self.about.said if self.about else "")

    @property
    def later(self) -> str:
        """The request as it is put after the opening."""
        return self._with(self.text, self.about.known if self.about else "")

    def wish(self) -> Wish:
        """The request as the user pursues it."""
        says = self._with(self.meant, self.about.known if self.about else "") if self.meant else self.later
        facts = (*(self.about.facts if self.about else ()), *self.facts)
        return Wish(
            says=says,
            kind=self.kind,
            names=self.names,
            agrees=self.agrees,
            proof=self.proof,
            facts=facts,
            contests=self.contests,
        )

    def _with(self, text: str, mention: str) -> str:
        return sentence(text.replace(f"{{{self.about.kind}}}", mention) if self.about else text)


@dataclass
class Draft:
    """What is drawn for one task, and the setup that grows with it. Domains add their world and their user."""

    random: random.Random
    setup: dict[str, dict[str, Any]] = field(default_factory=dict, kw_only=True)

    def likely(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def pick(self, texts: Sequence[str], **words: str) -> str:
        """One of the texts, its placeholders filled."""
        text = self.random.choice(texts)
        for name, word in words.items():
            text = text.replace(f"{{{name}}}", word)
        return text

    def patch(self, table: str, key: str, **fields: Any) -> None:
        """Change the world before the episode; fields in JSON's types, merged as RFC 7386 says."""
        self.setup.setdefault(table, {}).setdefault(key, {}).update(fields)


def sentence(text: str) -> str:
    """The text with a capital at its start and after each full stop."""
    parts = [part[:1].upper() + part[1:] for part in text.split(". ")]
    return ". ".join(parts)


def call(tool: str, /, **arguments: Any) -> Message:
    """A gold call."""
    return Message(role="assistant", tool_calls=(ToolCall(name=tool, arguments=arguments),))


def say(text: str) -> Message:
    """A gold text."""
    return Message(role="assistant", content=text)


def propose(proposal: str) -> Message:
    """Say what will be done, and ask for the user's consent."""
    return say(f"I will {proposal}. Do you confirm?")


def change(proposal: str, do: Message, done: str) -> tuple[Message, ...]:
    """Propose, do, report."""
    return propose(proposal), do, say(f"Done. {done}")


def instruct(text: str, *deeds: Deed) -> tuple[Message, ...]:
    """Tell the user to do something with tools of their own, and what they then do."""
    return say(text), *(Message(role="user", tool_calls=(deed.call,)) for deed in deeds)
