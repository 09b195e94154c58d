"""Money: exact decimals with two places."""

from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator

CENT = Decimal("0.01")

Money = Annotated[Decimal, AfterValidator(lambda amount: amount.quantize(CENT))]
"""Exact, with two places; "49.90" in JSON."""
