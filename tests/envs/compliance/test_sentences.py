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
    ("text", "negated"),
    [
        ("i will never cancel w1, reason: ordered by mistake", [True, True, True]),
        ("i won't change it, i will cancel w1", [True, False]),
        ("i cannot change it but cancel w1", [True, False]),
        ("i will not cancel it until you confirm", [False]),
    ],
)
def test_clause_without_a_verb_is_negated_like_the_one_before(text: str, negated: list[bool]) -> None:
    assert [denies for _, denies in split_clauses(text)] == negated
