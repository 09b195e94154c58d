"""What is drawn for one task: the customer, and orders as the customer and the agent call them."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from understudy.domains import drafts
from understudy.domains.callers import Knowledge, search
from understudy.domains.doordash import phrases
from understudy.domains.doordash.pricing import REFUNDS
from understudy.domains.doordash.state import Customer, DoordashState, Order, Restaurant, Status, ago
from understudy.domains.doordash.world import delivered, draw_past, draw_times, draw_trip
from understudy.domains.drafts import call, say
from understudy.messages import Message
from understudy.tasks import Fact

_ASKED = ("which order", "what order", "order number", "order id", "number of", "which of", "order you")


@dataclass(frozen=True)
class Ref(drafts.Mention):
    """An order as the customer and the agent call it. `dish` tells it from others of the same restaurant, if any."""

    order: Order
    by_number: bool
    """Whether the customer knows the number."""
    asked: bool = False
    """Whether the customer tells which order it is only when asked."""
    dish: str = ""

    @property
    def named(self) -> str:
        """As the agent calls it in a proposal: so that the customer can tell it is the right one."""
        return f"order {self.order.id}" + ("" if self.by_number else self._mark)

    @property
    def names(self) -> tuple[str, ...]:
        """What a proposal has to name for the customer to recognize the order."""
        return (self.order.id,) if self.by_number else (self.dish or self.order.restaurant,)

    @property
    def _mark(self) -> str:
        return f" with the {self.dish}" if self.dish else f" from {self.order.restaurant}"


@dataclass
class Draft(drafts.Draft):
    """One task's draws."""

    world: DoordashState
    email: str

    @property
    def customer(self) -> Customer:
        """The customer."""
        return self.world.customers[self.email]

    def orders(self) -> list[Order]:
        """The customer's orders in random order."""
        own = [self.world.orders[key] for key in self.customer.orders]
        return self.random.sample(own, len(own))

    def restaurant(self, name: str) -> Restaurant:
        """A restaurant of the world."""
        return self.world.restaurants[name]

    def ref(self, order: Order, knows: Knowledge, itemized: bool = False) -> Ref:
        """The order with what the customer knows of it; `itemized` when the request names a dish of it anyway."""
        own = [self.world.orders[key] for key in self.customer.orders]
        others = [other for other in own if other.restaurant != order.restaurant]
        if knows == "wrong" and not others:
            knows = "asked"
        same = [other.id for other in own if other.restaurant == order.restaurant]
        twice = not itemized and len(same) > 1
        dish = self.random.choice(order.items).name if twice else ""
        described = self.pick(phrases.WITH if dish else phrases.FROM, item=dish, restaurant=order.restaurant)
        number = f"order {order.id}"
        if knows in ("described", "vague"):
            said = described if knows == "described" else self.pick(phrases.VAGUE)
            fact = self.pick(phrases.NO_ORDER, described=described)
            reads = search(_read, same, order.id, knows)
            return self._ref(order, said, described, fact, reads, by_number=False, asked=knows == "vague", dish=dish)
        if knows == "wrong":
            wrong, fact = self.random.choice(others), self.pick(phrases.MISTAKEN, id=order.id)
            said = f"order {wrong.id} from {order.restaurant}"
            doubt = say(f"Order {wrong.id} is from {wrong.restaurant}, not from {order.restaurant}. Which order is it?")
            return self._ref(order, said, number, fact, (doubt, _read(order.id)), by_number=True)
        fact, said = self.pick(phrases.ORDER, id=order.id), number if knows == "told" else self.pick(phrases.VAGUE)
        return self._ref(order, said, number, fact, (_read(order.id),), by_number=True, asked=knows == "asked")

    def in_status(self, order: Order, status: Status) -> None:
        """Put an order in a status, with times that fit it."""
        if order.status != status:
            self._set(order, draw_times(self.random, status))

    def past(self, first: int, last: int) -> int:
        """Minutes since a time between noon and this evening, from `first` to `last` days ago."""
        return draw_past(self.random, first, last)

    def came(self, order: Order, since: int | None = None, late: int | None = None) -> str:
        """Have an order delivered so many minutes ago, so many late; recently and about in time if not said. When."""
        late = self.random.randint(-8, 12) if late is None else late
        times = delivered(self.past(0, 1) if since is None else since, late)
        self._set(order, {**draw_times(self.random, "delivered"), **times})
        return str(times["delivered"])

    def account(self, **fields: Any) -> None:
        """Change the customer's account before the episode."""
        self.patch("customers", self.email, **fields)

    def few_refunds(self) -> None:
        """Give the customer so few recent refunds that one for each of their orders is left."""
        self.refunded(REFUNDS - len(self.customer.orders))

    def refunded(self, recent: int) -> None:
        """Give the customer so many refunds of the last 30 days, and perhaps older ones; once for a task."""
        if "refunds" not in self.setup.get("customers", {}).get(self.email, {}):
            spans = [(31, 80)] * self.random.randint(0, 2) + [(3, 29)] * recent
            self.account(refunds=sorted(ago(days=self.random.randint(*span))[:10] for span in spans))

    def credit(self, amount: Decimal) -> None:
        """Set the customer's credit."""
        self.account(credit=f"{amount:.2f}")

    def _set(self, order: Order, times: dict[str, Any]) -> None:
        self.patch("orders", order.id, **times)
        if times["status"] == "picked up":
            self.patch("trips", order.id, **draw_trip(self.random, times["courier"]).model_dump(mode="json"))

    def _ref(self, order: Order, said: str, known: str, fact: str, reads: tuple[Message, ...], **ref: Any) -> Ref:
        facts = (Fact(says=fact, cues=_ASKED, opened=said == known),)
        return Ref("order", said, known, order, facts=facts, reads=reads, **ref)


def _read(order_id: str) -> Message:
    return call("get_order", order_id=order_id)
