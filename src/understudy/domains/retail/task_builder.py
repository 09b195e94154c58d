"""The random draws of one retail task: the customer, and orders as customer and agent refer to them."""

from dataclasses import dataclass

from understudy.core.messages import Message
from understudy.domains.authoring import task_builder
from understudy.domains.authoring.identification import entity_lookup
from understudy.domains.authoring.request import Draw
from understudy.domains.retail.state import Line, Order, RetailState, Status, User
from understudy.envs.gold import gold_call, gold_text

_ASKED = ("which order", "what order", "order number", "order id", "number of", "which of", "order you")


@dataclass(frozen=True)
class RetailOrderMention(task_builder.NumberedMention):
    """An order as user and agent refer to it. `item` is in none of the user's other orders."""

    order: Order
    item: Line

    @property
    def proposal_phrase(self) -> str:
        """The agent's words for the order in a proposal, by which the user recognizes it."""
        return f"order {self.order.id}" + ("" if self.by_number else f" with the {self.item.name}")

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a proposal must contain for the user to recognize the order."""
        return (self.order.id,) if self.by_number else (self.item.name,)


@dataclass
class RetailTaskBuilder(task_builder.TaskBuilder):
    """The random draws of one task."""

    world: RetailState
    email: str

    @property
    def user(self) -> User:
        """The customer."""
        return self.world.users[self.email]

    def identity(self) -> dict[str, str]:
        """Return what identifies the customer."""
        return {"email": self.email, "name": self.user.name, "zip": self.user.address.split()[-1]}

    def orders(self) -> list[Order]:
        """Return the customer's orders in random order."""
        own = [self.world.orders[key] for key in self.user.orders]
        return self.rng.sample(own, len(own))

    def order_mention(self, draw: Draw[Order], itemized: bool = False) -> RetailOrderMention:
        """Return the order as the user refers to it. `itemized`: the request names the item anyway."""
        order, knowledge = draw.entity, draw.knowledge
        others = [key for key in self.user.orders if key != order.id]
        if knowledge == "wrong" and not others:
            knowledge = "asked"
        item, number = self.rng.choice(order.items), f"order {order.id}"
        facts = (self.entity_fact(knowledge, _ASKED, "order", "no_order", id=order.id, item=item.name),)
        doubt: tuple[Message, ...] = ()
        if knowledge == "wrong":
            wrong = self.rng.choice(others)
            said, known = f"order {wrong}" if itemized else f"order {wrong} with the {item.name}", number
            doubt = (_read(wrong), gold_text(f"Order {wrong} has no {item.name}. Which order is it?"))
        else:
            described = self.phrase("vague_with_item" if itemized else "described", item=item.name)
            said = {"told": number, "described": described}.get(knowledge) or self.phrase("vague")
            known = number if knowledge in ("told", "asked") else described
        reads = entity_lookup(_read, self.user.orders, order.id, knowledge, *doubt)
        return RetailOrderMention(
            "order", said, known, order, item, knowledge=knowledge, facts=facts, lookup_turns=reads
        )

    def set_status(self, order: Order, status: Status) -> None:
        """Set the status of an order."""
        if order.status != status:
            self.patch("orders", order.id, status=status)

    def set_balance(self, payment_id: str, balance: str) -> None:
        """Set the balance of a gift card. Other payments have none."""
        if self.user.payments[payment_id].balance is not None:
            self.patch("users", self.email, payments={payment_id: {"balance": balance}})


def _read(order_id: str) -> Message:
    return gold_call("get_order", order_id=order_id)
