"""Tests of payment methods: cards have no balance, and balances are exact and never negative."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.core.errors import ToolError
from understudy.domains.authoring.payments import Payment, apply_charge, get_balance

CENTS = st.decimals(min_value=0, max_value=1000, places=2)


def test_a_card_has_no_balance() -> None:
    wallet = {"card_1": Payment(), "gift_2": Payment(balance=Decimal("5.00"))}
    assert (get_balance(wallet, "card_1"), get_balance(wallet, "gift_2")) == (None, Decimal("5.00"))
    assert apply_charge(wallet, "card_1", Decimal(10**6)) == wallet


@given(CENTS, CENTS)
def test_charge_is_taken_in_full_or_refused(held: Decimal, amount: Decimal) -> None:
    wallet = {"card_1": Payment(), "gift_2": Payment(balance=held)}
    if amount > held:
        with pytest.raises(ToolError, match=r"gift_2 is .*, which is less than"):
            apply_charge(wallet, "gift_2", amount)
    else:
        after = apply_charge(wallet, "gift_2", amount)
        assert get_balance(after, "gift_2") == held - amount
        assert apply_charge(after, "gift_2", -amount) == wallet, "paid back"
        assert wallet["gift_2"].balance == held, "the wallet itself is not changed"


def test_unknown_payment_is_refused_and_own_methods_are_listed() -> None:
    with pytest.raises(ToolError, match="no payment method 'gift_9'; they have card_1"):
        apply_charge({"card_1": Payment()}, "gift_9", Decimal(1))
