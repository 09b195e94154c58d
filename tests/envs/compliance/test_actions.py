"""Tests of the words with which texts name actions and tools."""

import pytest

from understudy.envs.compliance.actions import may_mean_tool, means_tool, names_action


@pytest.mark.parametrize(
    ("root", "word", "named"),
    [
        ("cancel", "cancellation", True),
        ("refund", "reimbursed", True),
        ("refund", "cancelled", False),
        ("add", "adding", True),
        ("add", "address", False),
        ("ship", "address", True),
        ("chang", "sets", True),
        ("chang", "setting", False),
    ],
)
def test_a_word_names_the_actions_of_its_synonyms(root: str, word: str, named: bool) -> None:
    assert names_action(root, ["the", word]) == named


@pytest.mark.parametrize(
    ("tool", "text", "may_mean", "means"),
    [
        ("cancel_order", "i will cancel it", True, True),
        ("cancel_order", "i will suspend it", False, False),
        ("exchange_items", "i will swap them", True, True),
        ("suspend_line", "i will remove it", True, False),
        ("zap_lamp", "i will zap it", True, True),
        ("zap_lamp", "it is a lamp", True, False),
    ],
)
def test_a_text_means_a_tool_if_it_names_what_the_tool_does(tool: str, text: str, may_mean: bool, means: bool) -> None:
    assert (may_mean_tool(tool, text), means_tool(tool, text)) == (may_mean, means)
