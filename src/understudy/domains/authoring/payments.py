"""Payment methods of customers: cards without a limit, and gift cards or certificates with a balance."""

from collections.abc import Mapping
from decimal import Decimal

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.domains.authoring.money import Money

PAYMENT_KINDS: Mapping[str, str] = {
    "card": "credit card",
    "certificate": "travel certificate",
    "credit": "delivery credit",
    "gift": "gift card",
    "hsa": "HSA card",
    "paypal": "PayPal account",
}
"""The kinds of payment methods in words, by the first part of an id."""


class Payment(Record):
    """A payment method. Its id names the kind: card_41, paypal_7, gift_23."""

    balance: Money | None = None
    """The remaining balance of a gift card."""


def payment_kind(payment_id: str) -> str:
    """Return the kind of a payment method in words, such as "credit card" for card_41."""
    return PAYMENT_KINDS[payment_id.partition("_")[0]]


def get_balance(payments: Mapping[str, Payment], payment_id: str) -> Decimal | None:
    """Return the balance of a payment method, or None if it has none. Raise `ToolError` for an unknown one."""
    if payment_id not in payments:
        raise ToolError(f"the customer has no payment method {payment_id!r}; they have {', '.join(payments)}")
    return payments[payment_id].balance


def apply_charge(payments: Mapping[str, Payment], payment_id: str, amount: Decimal) -> dict[str, Payment]:
    """Return the payment methods after a charge (a refund if negative). Raise `ToolError` if the balance is too low."""
    held = get_balance(payments, payment_id)
    if held is None:
        return dict(payments)
    if held < amount:
        raise ToolError(f"the balance of {payment_id} is {held}, which is less than {amount}")
    return {**payments, payment_id: payments[payment_id].replace(balance=held - amount)}
