"""Shared parts of the requests about orders.

`grantable` says whether the policy allows the request. The first message does not reveal it; only reading the
order does.
"""

from typing import Protocol

from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.retail.state import Order, Status
from understudy.domains.retail.task_builder import RetailTaskBuilder

_PAYMENT_KINDS = {"card": "credit card", "gift": "gift card", "paypal": "PayPal account"}


class RetailGoalFactory(Protocol):
    """A function that draws one request about an order."""

    def __call__(
        self, builder: RetailTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
    ) -> GoalSpec:
        """Draw a request. With `easy`, the first message states everything about it."""


def status_variants(status: Status) -> str:
    """Return the accepted forms of a status."""
    return "cancelled|canceled" if status == "cancelled" else status


def payment_kind(payment_id: str) -> str:
    """Return the kind of a payment in words, such as "credit card"."""
    return _PAYMENT_KINDS[payment_id.partition("_")[0]]
