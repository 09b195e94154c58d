"""Tests of n-gram speculation: tokens are proposed from earlier occurrences of the last tokens."""

from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from understudy.engines.local.sampling import ngram_speculation
from understudy.engines.local.sampling.ngram_speculation import ARRAY_TYPECODE, NgramCache, propose_tokens

SMALL = st.integers(0, 3)
LARGE = st.sampled_from([0, 1, 255, 256, 257, 65536, 16777216, 2**31])


def propose(sequence: Sequence[int], count: int = 4, replies: NgramCache | None = None) -> list[int]:
    return propose_tokens(array(ARRAY_TYPECODE, sequence), replies or NgramCache(), count)


def test_tokens_after_an_earlier_match_are_proposed() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], 3) == [4, 5, 6]
    assert propose([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], 0) == []


def test_latest_match_is_preferred() -> None:
    assert propose([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1) == [5]


def test_three_token_match_is_preferred_to_two() -> None:
    assert propose([1, 2, 3, 4, 7, 2, 3, 8, 1, 2, 3], 1) == [4]
    assert propose([7, 2, 3, 8, 1, 2, 3], 1) == [8]


def test_nothing_is_proposed_without_a_match() -> None:
    assert propose([]) == []
    assert propose([1]) == []
    assert propose([1, 2, 3, 4, 5]) == []


def test_proposed_tokens_extend_the_match() -> None:
    assert propose([5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]


def test_matches_in_other_replies_are_preferred() -> None:
    replies = NgramCache()
    replies.add([1, 2, 3, 4, 5], 0)
    assert propose([1, 2, 3, 9, 1, 2, 3], 2, replies) == [4, 5]
    replies.add([1, 2, 3, 8], 3)
    assert propose([1, 2, 3], 1, replies) == [8]


def test_cache_adds_only_tokens_after_the_given_start() -> None:
    replies = NgramCache()
    replies.add([1, 2, 3, 4, 5], 4)
    assert propose([1, 2, 3], 1, replies) == []
    assert propose([2, 3, 4], 1, replies) == [5]


def test_ngram_cache_size_is_bounded() -> None:
    replies = NgramCache()
    for start in range(0, 2 * ngram_speculation.MAX_NGRAMS, 1000):
        replies.add(range(start, start + 1003), 3)
    assert len(replies._next) <= ngram_speculation.MAX_NGRAMS + 1000


@given(st.lists(SMALL | LARGE, max_size=60), st.integers(1, 5))
def test_first_proposal_matches_a_linear_search(sequence: list[int], count: int) -> None:
    found = propose(sequence, count)
    assert len(found) <= count
    assert found[:1] == reference_first_proposal(sequence)


def reference_first_proposal(sequence: Sequence[int]) -> list[int]:
    for order in (3, 2):
        order = min(order, len(sequence))
        tail = list(sequence[len(sequence) - order :])
        for start in range(len(sequence) - order - 1, -1, -1):
            if order and list(sequence[start : start + order]) == tail:
                return [sequence[start + order]]
    return []
