"""The random draws of one task: the customer, and orders as customer and agent refer to them."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring import task_builder
from understudy.domains.authoring.identification import NUMBER_KNOWN_LEVELS, entity_lookup
from understudy.domains.authoring.request import Draw
from understudy.domains.doordash.policy_rules import MAX_REFUNDS
from understudy.domains.doordash.state import Customer, DoordashState, Order, Status, format_time_ago
from understudy.domains.doordash.world import delivery_fields, draw_delivery, draw_minutes_ago, draw_status_fields
from understudy.envs.gold import gold_call, gold_text

_ASKED = ("which order", "what order", "order number", "order id", "number of", "which of", "order you")


@dataclass(frozen=True)
class DoordashOrderMention(task_builder.NumberedMention):
    """An order as customer and agent refer to it. `dish` distinguishes it from others of the same restaurant."""

    order: Order
    dish: str = ""

    @property
    def proposal_phrase(self) -> str:
        """The agent's words for the order in a proposal, by which the customer recognizes it."""
        mark = f" with the {self.dish}" if self.dish else f" from {self.order.restaurant}"
        return f"order {self.order.id}" + ("" if self.by_number else mark)

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a proposal must contain for the customer to recognize the order."""
        return (self.order.id,) if self.by_number else (self.dish or self.order.restaurant,)


@dataclass
class DoordashTaskBuilder(task_builder.TaskBuilder):
    """The random draws of one task."""

    grantable_share: ClassVar[float] = 0.7

    world: DoordashState
    email: str

    @property
    def customer(self) -> Customer:
        """The customer."""
        return self.world.customers[self.email]

    def identity(self) -> dict[str, str]:
        """Return what identifies the customer."""
        return {"email": self.email, "phone": self.customer.phone, "name": self.customer.name}

    def orders(self) -> list[Order]:
        """Return the customer's orders in random order."""
        own = [self.world.orders[key] for key in self.customer.orders]
        return self.rng.sample(own, len(own))

    def order_mention(self, draw: Draw[Order], itemized: bool = False) -> DoordashOrderMention:
        """Return the order as the customer refers to it. With `itemized`, the request names a dish itself."""
        order, knowledge = draw.entity, draw.knowledge
        own = [self.world.orders[key] for key in self.customer.orders]
        others = [other for other in own if other.restaurant != order.restaurant]
        if knowledge == "wrong" and not others:
            knowledge = "asked"
        same = [other.id for other in own if other.restaurant == order.restaurant]
        dish = self.rng.choice(order.items).name if not itemized and len(same) > 1 else ""
        described = self.phrase("with" if dish else "from", item=dish, restaurant=order.restaurant)
        known = described if knowledge in ("described", "vague") else f"order {order.id}"
        doubt: tuple[Message, ...] = ()
        if knowledge == "wrong":
            wrong, fact = self.rng.choice(others), self.phrase("mistaken", id=order.id)
            said = f"order {wrong.id} from {order.restaurant}"
            text = f"Order {wrong.id} is from {wrong.restaurant}, not from {order.restaurant}. Which order is it?"
            doubt = (gold_text(text),)
        elif knowledge in ("described", "vague"):
            said = described if knowledge == "described" else self.phrase("vague")
            fact = self.phrase("no_order", described=described)
        else:
            fact = self.phrase("order", id=order.id)
            said = known if knowledge == "told" else self.phrase("vague")
        return DoordashOrderMention(
            "order",
            said,
            known,
            order,
            "" if knowledge in NUMBER_KNOWN_LEVELS else dish,
            knowledge=knowledge,
            facts=(Fact(text=fact, keywords=_ASKED, in_opening=said == known),),
            lookup_turns=entity_lookup(_read, same, order.id, knowledge, *doubt),
        )

    def set_status(self, order: Order, status: Status) -> None:
        """Set the status of an order, with matching times."""
        if order.status != status:
            self._set(order, draw_status_fields(self.rng, status))

    def draw_minutes_ago(self, first: int, last: int) -> int:
        """Return the minutes since a time between noon and this evening, `first` to `last` days ago."""
        return draw_minutes_ago(self.rng, first, last)

    def set_delivered(self, order: Order, since: int | None = None, late: int | None = None) -> str:
        """Set an order to delivered, `since` minutes ago and `late` minutes after the promised time.

        Return the time of delivery.

        By default it came today or yesterday, between 8 minutes early and 12 late.
        """
        late = self.rng.randint(-8, 12) if late is None else late
        times = delivery_fields(self.draw_minutes_ago(0, 1) if since is None else since, late)
        self._set(order, {**draw_status_fields(self.rng, "delivered"), **times})
        return str(times["delivered"])

    def set_account(self, **fields: Any) -> None:
        """Change the customer's account before the episode."""
        self.patch("customers", self.email, **fields)

    def set_few_refunds(self) -> None:
        """Set the customer's recent refunds so that one more for each of their orders is allowed."""
        self.set_refunds(MAX_REFUNDS - len(self.customer.orders))

    def set_refunds(self, recent: int) -> None:
        """Set the number of the customer's refunds in the last 30 days, and add up to two older ones. Only the first
        call has an effect.
        """
        if "refunds" not in self.setup.get("customers", {}).get(self.email, {}):
            spans = [(31, 80)] * self.rng.randint(0, 2) + [(3, 29)] * recent
            self.set_account(refunds=sorted(format_time_ago(days=self.rng.randint(*span))[:10] for span in spans))

    def set_credit(self, amount: Decimal) -> None:
        """Set the customer's credit."""
        self.set_account(credit=f"{amount:.2f}")

    def _set(self, order: Order, times: dict[str, Any]) -> None:
        self.patch("orders", order.id, **times)
        if times["status"] == "picked up":
            self.patch("trips", order.id, **draw_delivery(self.rng, times["courier"]).model_dump(mode="json"))


def _read(order_id: str) -> Message:
    return gold_call("get_order", order_id=order_id)
