"""Draft: a task in the making, the user's side and the perfect agent's side by side."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from understudy.domains.retail import phrases
from understudy.domains.retail.state import Line, Order, RetailState, Status, User
from understudy.messages import Message, ToolCall
from understudy.tasks import Fact, Wish

Identity = Literal["opened", "asked", "name"]
"""How the user is identified: by the email of the opening, by the email when asked, by name and zip."""

Knowledge = Literal["told", "asked", "described", "vague", "wrong"]
"""What the user says of the order: its number at once, its number when asked, an item in it at once, an item in it
when asked, or the number of another order first."""


@dataclass(frozen=True)
class Ref:
    """An order as the user and the agent call it. `item` is one item of it, which tells it from the user's others."""

    order: Order
    item: Line
    knows: Knowledge
    said: str
    """In the opening."""
    known: str
    """Whenever the user speaks of it later."""
    wrong: str = ""
    """Id of the other order that is named first."""

    @property
    def named(self) -> str:
        """As the agent calls it in a proposal: so that the user can tell it is the right one."""
        return f"order {self.order.id}" + ("" if self.by_number else f" with the {self.item.name}")

    @property
    def by_number(self) -> bool:
        """Whether the user knows the number."""
        return self.knows in ("told", "asked", "wrong")

    @property
    def names(self) -> tuple[str, ...]:
        """What a proposal has to name for the user to recognize the order."""
        return (self.order.id,) if self.by_number else (self.item.name,)


@dataclass(frozen=True)
class Want:
    """One request: what the user says, what a right proposal names, and the gold turns once its order has been read."""

    text: str
    """`{order}` stands for the order."""
    ref: Ref | None = None
    turns: tuple[Message, ...] = ()
    kind: Literal["action", "number", "text"] = "action"
    names: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    contests: bool = False
    meant: str = ""
    """What the user wants after a change of mind; `text` is then only what is said first."""

    def says(self, mention: str) -> str:
        """The request with the order called `mention`."""
        return sentence(self.text.replace("{order}", mention))

    def wish(self) -> Wish:
        """The request as the user pursues it."""
        known = self.ref.known if self.ref else ""
        says = sentence(self.meant.replace("{order}", known)) if self.meant else self.says(known)
        return Wish(says=says, kind=self.kind, names=self.names, facts=self.facts, contests=self.contests)


@dataclass(frozen=True)
class Talk:
    """A conversation: who is identified how, and what is wanted, in order."""

    identity: Identity
    wants: tuple[Want, ...]


@dataclass
class Draft:
    """What is drawn for one task, and the setup that grows with it."""

    random: random.Random
    world: RetailState
    email: str
    setup: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def user(self) -> User:
        """The customer."""
        return self.world.users[self.email]

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
        """Change the world before the episode."""
        self.setup.setdefault(table, {}).setdefault(key, {}).update(fields)

    def orders(self) -> list[Order]:
        """The customer's orders in random order."""
        own = [self.world.orders[key] for key in self.user.orders]
        return self.random.sample(own, len(own))

    def ref(self, order: Order, knows: Knowledge, itemized: bool = False) -> Ref:
        """The order with what the user knows of it; `itemized` when the request names the item anyway."""
        others = [key for key in self.user.orders if key != order.id]
        if knows == "wrong" and not others:
            knows = "asked"
        item, number = self.random.choice(order.items), f"order {order.id}"
        if knows == "wrong":
            wrong = self.random.choice(others)
            said = f"order {wrong}" if itemized else f"order {wrong} with the {item.name}"
            return Ref(order, item, knows, said, number, wrong)
        described = self.pick(phrases.SOMEWHERE if itemized else phrases.DESCRIBED, item=item.name)
        said = {"told": number, "described": described}.get(knows) or self.pick(phrases.VAGUE)
        return Ref(order, item, knows, said, number if knows in ("told", "asked") else described)

    def in_status(self, order: Order, status: Status) -> None:
        """Put an order in a status."""
        if order.status != status:
            self.patch("orders", order.id, status=status)

    def holds(self, payment_id: str, balance: str) -> None:
        """Put a balance on a gift card; other payments have none."""
        if self.user.payments[payment_id].balance is not None:
            self.patch("users", self.email, payments={payment_id: {"balance": balance}})


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
