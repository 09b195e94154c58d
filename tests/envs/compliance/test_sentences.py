"""Tests of clauses and of the normal form of texts."""

import pytest

from understudy.envs.compliance.sentences import normalize_text, quote, split_clauses, split_sentences


def test_normal_form_has_one_spelling() -> None:
    assert normalize_text("  Dr. Shaw\N{RIGHT SINGLE QUOTATION MARK}s  office.\n\n Bye ") == "dr shaw's office.\nbye"
    assert quote("a\n  b " + "c" * 300) == "a b " + "c" * 196


def test_sentences_end_at_semicolons_and_lines_but_not_in_numbers() -> None:
    assert split_sentences("it is 31.25; yes. no\nbye") == ["it is 31.25;", "yes.", "no", "bye"]


def test_long_sentence_is_cut_at_spaces() -> None:
    text = "word " * 500 + "w" * 2500
    parts = split_sentences(text)
    assert "".join(parts) == text
    assert [len(part) for part in parts] == [999, 995, 505, 1000, 1000, 501]


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("i will never cancel w1, reason: illness", ["i will never cancel w1, reason", " illness"]),
        ("i won't change it, i will cancel w1", ["i won't change it", " i will cancel w1"]),
        ("i cannot change it but cancel w1", ["i cannot change it ", " cancel w1"]),
        ("there is no problem (w1 is new)", ["there is __________ ", "w1 is new", ""]),
    ],
)
def test_clauses_without_words_that_look_like_negations(text: str, clauses: list[str]) -> None:
    assert list(split_clauses(text)) == clauses
