"""What is drawn for one retail task: the customer, and orders as the customer and the agent call them."""

from dataclasses import dataclass

from understudy.domains import drafts
from understudy.domains.callers import BY_NUMBER, Knowledge, search
from understudy.domains.drafts import call, say
from understudy.domains.retail import phrases
from understudy.domains.retail.state import Line, Order, RetailState, Status, User
from understudy.messages import Message
from understudy.tasks import Fact

_ASKED = ("which order", "what order", "order number", "order id", "number of", "which of", "order you")


@dataclass(frozen=True)
class Ref(drafts.Mention):
    """An order as the user and the agent call it. `item` is one item of it, which tells it from the user's others."""

    order: Order
    item: Line
    knows: Knowledge

    @property
    def named(self) -> str:
        """As the agent calls it in a proposal: so that the user can tell it is the right one."""
        return f"order {self.order.id}" + ("" if self.by_number else f" with the {self.item.name}")

    @property
    def by_number(self) -> bool:
        """Whether the user knows the number."""
        return self.knows in BY_NUMBER

    @property
    def names(self) -> tuple[str, ...]:
        """What a proposal has to name for the user to recognize the order."""
        return (self.order.id,) if self.by_number else (self.item.name,)


@dataclass
class Draft(drafts.Draft):
    """One task's draws."""

    world: RetailState
    email: str

    @property
    def user(self) -> User:
        """The customer."""
        return self.world.users[self.email]

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
        facts = (self._asked(order, item, knows),)
        if knows == "wrong":
            wrong = self.random.choice(others)
            said = f"order {wrong}" if itemized else f"order {wrong} with the {item.name}"
            doubt = (_read(wrong), say(f"Order {wrong} has no {item.name}. Which order is it?"))
            reads = search(_read, self.user.orders, order.id, knows, *doubt)
            return Ref("order", said, number, order, item, knows, facts=facts, reads=reads)
        described = self.pick(phrases.SOMEWHERE if itemized else phrases.DESCRIBED, item=item.name)
        said = {"told": number, "described": described}.get(knows) or self.pick(phrases.VAGUE)
        known = number if knows in ("told", "asked") else described
        reads = search(_read, self.user.orders, order.id, knows)
        return Ref("order", said, known, order, item, knows, facts=facts, reads=reads)

    def in_status(self, order: Order, status: Status) -> None:
        """Put an order in a status."""
        if order.status != status:
            self.patch("orders", order.id, status=status)

    def holds(self, payment_id: str, balance: str) -> None:
        """Put a balance on a gift card; other payments have none."""
        if self.user.payments[payment_id].balance is not None:
            self.patch("users", self.email, payments={payment_id: {"balance": balance}})

    def _asked(self, order: Order, item: Line, knows: Knowledge) -> Fact:
        """What the user says when asked for the order."""
        if knows in ("described", "vague"):
            return Fact(says=self.pick(phrases.NO_ORDER, item=item.name), cues=_ASKED)
        texts = phrases.MISTAKEN if knows == "wrong" else phrases.ORDER
        return Fact(says=self.pick(texts, id=order.id), cues=_ASKED, opened=knows == "told")


def _read(order_id: str) -> Message:
    return call("get_order", order_id=order_id)
