"""Basket: a customer's purchase as words, as a sum, and as the call that orders it."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from understudy.core.messages import Message
from understudy.domains.authoring.payments import payment_kind
from understudy.domains.doordash.state import Choice, Restaurant, dish_price
from understudy.envs.gold import gold_call

_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


@dataclass(frozen=True)
class Basket:
    """Dishes of one restaurant, and their payment."""

    restaurant: str
    restaurant_data: Restaurant
    choices: tuple[Choice, ...]
    payment: str
    member: bool
    """Whether delivery is free."""
    tip: str = ""
    code: str = ""
    discount: Decimal = Decimal("0.00")
    """The discount of the promotion code."""

    @property
    def prices(self) -> list[Decimal]:
        """The prices of the lines."""
        return [c.quantity * dish_price(self.restaurant_data.menu[c.item], c.options) for c in self.choices]

    @property
    def food(self) -> Decimal:
        """The total price of the dishes."""
        return sum(self.prices, Decimal("0.00"))

    @property
    def total(self) -> Decimal:
        """The amount to be paid."""
        return sum(self._amounts, Decimal("0.00")) - self.discount

    @property
    def total_expression(self) -> str:
        """The total as an expression, or "" if there is nothing to calculate."""
        added = " + ".join(map(str, self._amounts))
        return f"{added} - {self.discount}" if self.discount else added if "+" in added else ""

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a proposal must contain."""
        dishes = (term for choice in self.choices for term in (choice_variants(choice), *choice.options))
        extras = filter(None, (self.tip, self.code))
        return (*dishes, self.restaurant, payment_variants(self.payment), *extras)

    @property
    def proposal(self) -> str:
        """The gold agent's proposal."""
        extras = f" with a tip of {self.tip}" * bool(self.tip) + f" and the code {self.code}" * bool(self.code)
        payment = "" if self.payment == "credit" else f" {self.payment}"
        paid = f"paid with your {payment_kind(self.payment)}{payment}"
        return f"order {self.description} from {self.restaurant} for {self.total:.2f}{extras}, {paid}"

    @property
    def description(self) -> str:
        """The dishes in words."""
        return " and ".join(format_choice(choice) for choice in self.choices)

    @property
    def has_alcohol(self) -> bool:
        """Whether it contains alcohol, so that the customer's age matters."""
        return any(self.restaurant_data.menu[choice.item].alcohol for choice in self.choices)

    def order_call(self) -> Message:
        """Return the gold call that places the order."""
        items = [choice.model_dump(mode="json", exclude_defaults=True) for choice in self.choices]
        extras: dict[str, Any] = {"tip": float(self.tip)} if self.tip else {}
        extras |= {"promotion": self.code} if self.code else {}
        return gold_call("place_order", restaurant=self.restaurant, items=items, payment=self.payment, **extras)

    @property
    def _amounts(self) -> list[Decimal]:
        fee = Decimal(0) if self.member else self.restaurant_data.delivery_fee
        return [*self.prices, *(amount for amount in (fee, Decimal(self.tip or 0)) if amount)]


def payment_variants(payment: str) -> str:
    """Return the accepted forms of a payment in a proposal."""
    short = {"card": "card", "paypal": "PayPal", "credit": "credit"}[payment.partition("_")[0]]
    return "|".join(dict.fromkeys((payment, payment_kind(payment), short)))


def choice_variants(choice: Choice) -> str:
    """Return the accepted forms of a dish and its quantity: its name, or such as "2x Margherita|two Margheritas"."""
    if choice.quantity == 1:
        return choice.item
    number, name = choice.quantity, choice.item
    counts = [f"{number}", f"{number}x", f"{number} x", _NUMBERS.get(number, f"{number}")]
    names = [name, *(f"{option} {name}" for option in choice.options)]
    before = [f"{count} {said}{plural}" for count in counts for said in names for plural in ("", "s")]
    listed = [name, f"{name} ({', '.join(choice.options)})"]
    behind = (f" x{number}", f" x {number}", f" (x{number}", f" ({number}x")
    after = [f"{said}{count}" for said in listed for count in behind]
    return "|".join((*before, *after))


def format_choice(choice: Choice) -> str:
    """Return a choice in words, like 2x Margherita (large)."""
    count = f"{choice.quantity}x " if choice.quantity > 1 else ""
    return f"{count}{choice.item}" + (f" ({', '.join(choice.options)})" if choice.options else "")
