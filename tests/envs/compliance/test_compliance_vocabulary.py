"""Tests of the words of acts, and of the acts that texts assert."""

import pytest

from understudy.envs.compliance.acts import find_acts
from understudy.envs.compliance.vocabulary import act_groups, is_past_form, means_tool


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("cancel", "cancellation", True),
        ("refund", "reimbursed", True),
        ("refund", "cancelled", False),
        ("zap", "zapped", True),
        ("notified", "notifying", True),
    ],
)
def test_words_of_one_act_share_a_group(one: str, other: str, same: bool) -> None:
    assert bool(act_groups(one) & act_groups(other)) == same


@pytest.mark.parametrize(("word", "is_past"), [("sent", True), ("waived", True), ("need", False), ("order", False)])
def test_past_forms(word: str, is_past: bool) -> None:
    assert is_past_form(word) == is_past


@pytest.mark.parametrize(
    ("tool", "text", "means"),
    [
        ("cancel_order", "i will cancel it", True),
        ("cancel_order", "i will suspend it", False),
        ("exchange_items", "i will swap them", True),
        ("zap_lamp", "i will zap it", True),
        ("zap_lamp", "it is a vase", False),
    ],
)
def test_a_text_means_a_tool_if_it_names_what_the_tool_does(tool: str, text: str, means: bool) -> None:
    assert means_tool(tool, text) == means


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("your fee has been waived.", ["waived", "fee"]),
        ("i have notified the bank.", ["notified"]),
        ("my colleague has enrolled you in it.", ["enrolled", "handover"]),
        ("a voucher is in your inbox.", ["voucher"]),
        ("if you do not agree, i will close your account.", ["close"]),
        ("i cannot refund it.", []),
        ("orders can be cancelled.", []),
        ("shall i cancel it?", []),
        ("please reset your phone.", []),
        ("if you like, i will cancel it.", []),
        ("refunds are not possible.", []),
        ("i have checked it and found nothing.", []),
    ],
)
def test_asserted_acts(text: str, words: list[str]) -> None:
    assert sorted(act.word for act in find_acts(text, proposed=False)) == sorted(words)
