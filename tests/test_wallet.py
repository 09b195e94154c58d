"""Ways to pay: cards are never empty, balances are exact and never below zero."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.domains.wallet import Payment, balance, charged
from understudy.errors import ToolError

CENTS = st.decimals(min_value=0, max_value=1000, places=2)


def test_a_card_has_no_balance() -> None:
    wallet = {"card_1": Payment(), "gift_2": Payment(balance=Decimal("5.00"))}
    assert (balance(wallet, "card_1"), balance(wallet, "gift_2")) == (None, Decimal("5.00"))
    assert charged(wallet, "card_1", Decimal(10**6)) == wallet


@given(CENTS, CENTS)
def test_a_charge_is_taken_whole_or_refused(held: Decimal, amount: Decimal) -> None:
    wallet = {"card_1": Payment(), "gift_2": Payment(balance=held)}
    if amount > held:
        with pytest.raises(ToolError, match=r"gift_2 holds .*, less than"):
            charged(wallet, "gift_2", amount)
    else:
        after = charged(wallet, "gift_2", amount)
        assert balance(after, "gift_2") == held - amount
        assert charged(after, "gift_2", -amount) == wallet, "paid back"
        assert wallet["gift_2"].balance == held, "the wallet itself is not changed"


def test_what_the_customer_does_not_have_is_refused_with_what_they_have() -> None:
    with pytest.raises(ToolError, match="no payment 'gift_9'; they have card_1"):
        charged({"card_1": Payment()}, "gift_9", Decimal(1))
