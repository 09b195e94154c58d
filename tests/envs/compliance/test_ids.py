"""Tests of ids and other targets in texts."""

from understudy.envs.compliance.values import find_ids, id_form


def test_ids_have_letters_and_digits_and_phone_numbers_are_ids() -> None:
    text = "order w1 in room 12 for 31.25 on card_41, line 555-1234"
    assert find_ids(text) == ("w1", "card_41", "555-1234")


def test_ids_of_one_kind_have_one_form() -> None:
    assert [id_form(name) for name in ("w1", "w23", "card_41", "zh9yr9")] == ["w9", "w9", "card_9", "aa9aa9"]
