"""Tests of ids and other targets in texts."""

import pytest

from understudy.envs.compliance.ids import ID, TARGET, id_form, may_be_same_kind


def test_ids_have_letters_and_digits_and_targets_may_be_whole_numbers() -> None:
    text = "order w1 in room 12 for 31.25 on card_41"
    assert ID.findall(text) == ["w1", "card_41"]
    assert TARGET.findall(text) == ["w1", "12", "card_41"]


def test_ids_of_one_kind_have_one_form() -> None:
    assert [id_form(name) for name in ("w1", "w23", "card_41", "zh9yr9")] == ["w9", "w9", "card_9", "aa9aa9"]


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [
        ("w1", "w23", True),
        ("card_1", "gift_2", True),
        ("555-1234", "555-4321", True),
        ("8", "40", True),
        ("8", "w8", False),
    ],
)
def test_targets_may_be_of_the_same_kind(name: str, value: str, same: bool) -> None:
    assert may_be_same_kind(name, value) == same
