"""Money: exact decimals with two places."""

from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import AfterValidator

CENT = Decimal("0.01")


def _cents(amount: Decimal) -> Decimal:
    try:
        return amount.quantize(CENT)
    except InvalidOperation as e:  # an ArithmeticError, which pydantic lets through
        raise ValueError("too large an amount") from e


Money = Annotated[Decimal, AfterValidator(_cents)]
"""Exact, with two places; "49.90" in JSON."""
