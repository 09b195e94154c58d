"""Refunds: whether the results of writes agree with what a text says is paid back to the user."""

import re
from collections.abc import Sequence

from understudy.envs.compliance.calls import MadeCall
from understudy.envs.compliance.known_values import TOLERANCE
from understudy.envs.rewards import extract_numbers

_MONEY = r"\$?\d[\d,]{0,20}\.\d\d"
"""An amount of money. Its length is bounded, so that a long list of numbers is read in linear time."""
_AMOUNT = re.compile(rf"(?<![\w.-]){_MONEY}(?!\w)")


def is_refund_due(target: str, text: str, own: Sequence[MadeCall], calls: Sequence[MadeCall]) -> bool | None:
    """Return whether what a text says is refunded agrees with the results of writes.

    Return None if the results do not tell: they name no amount, or a larger one, of which the text may name a part.
    `own` are the writes that the text speaks of, `calls` those of the episode. A refund that the text settles with a
    charge agrees: "I will refund 34.00 and charge 49.00" if the result has a charge of 15.00.
    """
    shown = [call.refund for call in own if call.refund is not None]
    if len(shown) < len(own) or not shown:
        return None
    net, stated = sum(shown), extract_numbers(text)
    others = [call.refund for call in calls if call.refund is not None and call.refund > 0]
    amounts = {amount for match in _AMOUNT.finditer(target) for amount in extract_numbers(match[0].lstrip("$"))}
    if not amounts:
        return net > 0 or bool(others)
    due = {net, sum(others), *others}
    unexplained = [
        amount
        for amount in amounts
        if all(abs(amount - other) > TOLERANCE for other in due) and round(amount - net, 2) not in stated
    ]
    if not unexplained:
        return True
    return None if max(unexplained) < net else False
