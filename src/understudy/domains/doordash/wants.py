"""What requests share. Each is one function, in `changes`, `claims`, `purchases` or `questions`.

`ok` says whether the request can be granted. If not, the opening looks the same; only reading tells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from understudy.domains.callers import Knowledge
from understudy.domains.doordash.drafts import Draft
from understudy.domains.doordash.state import Cuisine, Order, Status
from understudy.domains.drafts import Want, say
from understudy.messages import Message


class MakeWant(Protocol):
    """Draws one request."""

    def __call__(self, draft: Draft, order: Order, knows: Knowledge, ok: bool, easy: bool) -> Want:
        """`order` is what it is about, if it is about one; `easy` leaves nothing about the request itself unsaid."""


def refused(
    draft: Draft, want: Want, reads: Sequence[Message], reason: str, outputs: Sequence[str], easy: bool
) -> Want:
    """The request that something forbids. Some customers contest the refusal."""
    contests = not easy and draft.likely(0.5)
    turns = (*reads, *[say(reason)] * (1 + contests))
    return replace(want, turns=turns, outputs=tuple(outputs), contests=contests)


def too_late(draft: Draft, want: Want, order: Order, statuses: Sequence[Status], action: str, easy: bool) -> Want:
    """The request on an order in a status that forbids it."""
    status = draft.random.choice(statuses)
    draft.in_status(order, status)
    return refused(
        draft, want, (), f"The status of order {order.id} is {status}, so I cannot {action}.", (said(status),), easy
    )


def said(status: Status) -> str:
    """A status in the ways that it can be told."""
    return "cancelled|canceled" if status == "cancelled" else status


def hour_said(hour: str) -> str:
    """An hour like 15:00 in the ways that it can be told."""
    afternoon = int(hour[:2]) - 12
    return f"{hour}|{afternoon} pm|{afternoon}pm|{afternoon}:00 pm"


def kind(payment: str) -> str:
    """What customers call a way to pay."""
    return KINDS[payment.partition("_")[0]]


def payment_names(payment: str) -> str:
    """What a proposal may call a way to pay."""
    short = {"card": "card", "paypal": "PayPal", "credit": "credit"}[payment.partition("_")[0]]
    return "|".join(dict.fromkeys((payment, kind(payment), short)))


CUISINES: Mapping[Cuisine, str] = {"burgers": "burger", "indian": "Indian", "pizza": "pizza", "thai": "Thai"}
"""As words before "restaurant"."""
KINDS = {"card": "credit card", "paypal": "PayPal account", "credit": "delivery credit"}
