"""A customer's ways to pay: cards that are never empty, and gift cards or certificates with a balance."""

from collections.abc import Mapping
from decimal import Decimal

from understudy.domains.money import Money
from understudy.errors import ToolError
from understudy.records import Record


class Payment(Record):
    """A way to pay; its id says which kind it is: card_41, paypal_7, gift_23."""

    balance: Money | None = None
    """What a gift card still holds."""


def balance(payments: Mapping[str, Payment], payment_id: str) -> Decimal | None:
    """What a way to pay holds, None where nothing limits it. One that the customer does not have is a `ToolError`."""
    if payment_id not in payments:
        raise ToolError(f"the customer has no payment {payment_id!r}; they have {', '.join(payments)}")
    return payments[payment_id].balance


def charged(payments: Mapping[str, Payment], payment_id: str, amount: Decimal) -> dict[str, Payment]:
    """The ways to pay after a charge; a negative amount is paid back. Too small a balance is a `ToolError`."""
    held = balance(payments, payment_id)
    if held is None:
        return dict(payments)
    if held < amount:
        raise ToolError(f"{payment_id} holds {held}, less than {amount}")
    return {**payments, payment_id: payments[payment_id].replace(balance=held - amount)}
