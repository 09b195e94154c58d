"""Guesses at what a reply goes on with: found where the same tokens stood before, and nowhere else."""

from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from understudy.engines.local import guesses
from understudy.engines.local.guesses import WORD, Replies, guess

SMALL = st.integers(0, 3)
LARGE = st.sampled_from([0, 1, 255, 256, 257, 65536, 16777216, 2**31])


def guessed(sequence: Sequence[int], count: int = 4, replies: Replies | None = None) -> list[int]:
    return guess(array(WORD, sequence), replies or Replies(), count)


def test_what_followed_the_same_tokens_is_guessed() -> None:
    assert guessed([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], 3) == [4, 5, 6]
    assert guessed([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], 0) == []


def test_the_latest_place_counts() -> None:
    assert guessed([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1) == [5]


def test_three_tokens_count_more_than_two() -> None:
    assert guessed([1, 2, 3, 4, 7, 2, 3, 8, 1, 2, 3], 1) == [4]
    assert guessed([7, 2, 3, 8, 1, 2, 3], 1) == [8]


def test_nothing_is_guessed_after_what_is_new() -> None:
    assert guessed([]) == []
    assert guessed([1]) == []
    assert guessed([1, 2, 3, 4, 5]) == []


def test_a_guess_is_the_ground_for_the_next_one() -> None:
    assert guessed([5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]


def test_other_replies_come_first() -> None:
    replies = Replies()
    replies.learn([1, 2, 3, 4, 5], 0)
    assert guessed([1, 2, 3, 9, 1, 2, 3], 2, replies) == [4, 5]
    replies.learn([1, 2, 3, 8], 3)
    assert guessed([1, 2, 3], 1, replies) == [8]


def test_only_what_is_new_is_learnt() -> None:
    replies = Replies()
    replies.learn([1, 2, 3, 4, 5], 4)
    assert guessed([1, 2, 3], 1, replies) == []
    assert guessed([2, 3, 4], 1, replies) == [5]


def test_memory_is_bounded() -> None:
    replies = Replies()
    for start in range(0, 2 * guesses.MOST_REMEMBERED, 1000):
        replies.learn(range(start, start + 1003), 3)
    assert len(replies._next) <= guesses.MOST_REMEMBERED + 1000


@given(st.lists(SMALL | LARGE, max_size=60), st.integers(1, 5))
def test_first_guesses_agree_with_a_plain_search(sequence: list[int], count: int) -> None:
    found = guessed(sequence, count)
    assert len(found) <= count
    assert found[:1] == plain(sequence)


def plain(sequence: Sequence[int]) -> list[int]:
    for order in (3, 2):
        order = min(order, len(sequence))
        tail = list(sequence[len(sequence) - order :])
        for start in range(len(sequence) - order - 1, -1, -1):
            if order and list(sequence[start : start + order]) == tail:
                return [sequence[start + order]]
    return []
