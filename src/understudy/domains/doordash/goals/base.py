"""Shared parts of the requests about orders.

`grantable` says whether the policy allows the request. The first message does not reveal it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from understudy.core.messages import Message
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import GoalSpec, gold_text
from understudy.domains.doordash.state import Cuisine, Order, Status
from understudy.domains.doordash.task_builder import DoordashTaskBuilder


class DoordashGoalFactory(Protocol):
    """A function that draws one request."""

    def __call__(
        self, builder: DoordashTaskBuilder, order: Order, knowledge: Knowledge, grantable: bool, easy: bool
    ) -> GoalSpec:
        """Draw a request about `order`, if it is about one. With `easy`, the first message states everything."""


def add_refusal(
    builder: DoordashTaskBuilder,
    goal: GoalSpec,
    reads: Sequence[Message],
    reason: str,
    outputs: Sequence[str],
    easy: bool,
) -> GoalSpec:
    """Refuse a request for a reason. Some customers contest the refusal."""
    contests = not easy and builder.draw_bool(0.5)
    turns = (*reads, *[gold_text(reason)] * (1 + contests))
    return replace(goal, gold_turns=turns, outputs=tuple(outputs), contests_refusal=contests)


def add_status_refusal(
    builder: DoordashTaskBuilder, goal: GoalSpec, order: Order, statuses: Sequence[Status], action: str, easy: bool
) -> GoalSpec:
    """Refuse a request because of the status of the order."""
    status = builder.rng.choice(statuses)
    builder.set_status(order, status)
    return add_refusal(
        builder,
        goal,
        (),
        f"The status of order {order.id} is {status}, so I cannot {action}.",
        (status_variants(status),),
        easy,
    )


def status_variants(status: Status) -> str:
    """Return the accepted forms of a status."""
    return "cancelled|canceled" if status == "cancelled" else status


def hour_variants(hour: str) -> str:
    """Return the accepted forms of an hour like 15:00."""
    afternoon = int(hour[:2]) - 12
    return f"{hour}|{afternoon} pm|{afternoon}pm|{afternoon}:00 pm"


def payment_kind(payment: str) -> str:
    """Return the customers' words for a payment."""
    return KINDS[payment.partition("_")[0]]


def payment_variants(payment: str) -> str:
    """Return the accepted forms of a payment in a proposal."""
    short = {"card": "card", "paypal": "PayPal", "credit": "credit"}[payment.partition("_")[0]]
    return "|".join(dict.fromkeys((payment, payment_kind(payment), short)))


CUISINES: Mapping[Cuisine, str] = {"burgers": "burger", "indian": "Indian", "pizza": "pizza", "thai": "Thai"}
"""A cuisine as the word before "restaurant"."""
KINDS = {"card": "credit card", "paypal": "PayPal account", "credit": "delivery credit"}
