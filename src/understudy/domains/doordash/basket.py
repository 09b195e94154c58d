"""Basket: what a customer wants to buy, in words, as a sum, and as the call that orders it."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from understudy.domains.doordash.state import Choice, Restaurant, cost_of
from understudy.domains.doordash.wants import kind, payment_names
from understudy.domains.drafts import call
from understudy.messages import Message


@dataclass(frozen=True)
class Basket:
    """Dishes of one restaurant, and how they are paid."""

    restaurant: str
    place: Restaurant
    choices: tuple[Choice, ...]
    payment: str
    member: bool
    """Whether delivery is free."""
    tip: str = ""
    code: str = ""
    off: Decimal = Decimal("0.00")
    """What the promotion of the code takes off."""

    @property
    def prices(self) -> list[Decimal]:
        """Of each line."""
        return [c.quantity * cost_of(self.place.menu[c.item], c.options) for c in self.choices]

    @property
    def food(self) -> Decimal:
        """What the dishes come to."""
        return sum(self.prices, Decimal("0.00"))

    @property
    def total(self) -> Decimal:
        """All that is to be paid."""
        return sum(self._added, Decimal("0.00")) - self.off

    @property
    def sum(self) -> str:
        """The total as an expression; empty if there is nothing to calculate."""
        added = " + ".join(map(str, self._added))
        return f"{added} - {self.off}" if self.off else added if "+" in added else ""

    @property
    def names(self) -> tuple[str, ...]:
        """What a proposal has to name."""
        extras = filter(None, (self.tip, self.code))
        return (*(choice.item for choice in self.choices), self.restaurant, payment_names(self.payment), *extras)

    @property
    def proposal(self) -> str:
        """What a perfect agent proposes."""
        extras = f" with a tip of {self.tip}" * bool(self.tip) + f" and the code {self.code}" * bool(self.code)
        payment = "" if self.payment == "credit" else f" {self.payment}"
        paid = f"paid with your {kind(self.payment)}{payment}"
        return f"order {self.listed} from {self.restaurant} for {self.total:.2f}{extras}, {paid}"

    @property
    def listed(self) -> str:
        """The dishes in words."""
        return " and ".join(worded(choice) for choice in self.choices)

    @property
    def has_alcohol(self) -> bool:
        """Whether age matters."""
        return any(self.place.menu[choice.item].alcohol for choice in self.choices)

    def order(self) -> Message:
        """The call that places it."""
        items = [choice.model_dump(mode="json", exclude_defaults=True) for choice in self.choices]
        extras: dict[str, Any] = {"tip": float(self.tip)} if self.tip else {}
        extras |= {"promotion": self.code} if self.code else {}
        return call("place_order", restaurant=self.restaurant, items=items, payment=self.payment, **extras)

    @property
    def _added(self) -> list[Decimal]:
        fee = Decimal(0) if self.member else self.place.delivery_fee
        return [*self.prices, *(amount for amount in (fee, Decimal(self.tip or 0)) if amount)]


def worded(choice: Choice) -> str:
    """A choice in words, like 2x Margherita (large)."""
    count = f"{choice.quantity}x " if choice.quantity > 1 else ""
    return f"{count}{choice.item}" + (f" ({', '.join(choice.options)})" if choice.options else "")
