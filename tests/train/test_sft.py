"""Tests of the order of demonstrations, and of the tokens with most of the loss."""

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from understudy.algorithms.batch import Batch
from understudy.train.phases.sft import DrawnOrder, dominant_losses, shuffled_epochs

STRATA = ["cancel"] * 8 + ["return"] * 4 + ["price"] * 12


def epochs(strata: list[str], seed: int, count: int) -> list[list[int]]:
    drawn = shuffled_epochs(strata, seed)
    return [list(itertools.islice(drawn, len(strata))) for _ in range(count)]


def test_each_epoch_has_every_index_once_in_an_order_of_its_own() -> None:
    found = epochs(STRATA, 0, 3)
    assert all(sorted(epoch) == list(range(len(STRATA))) for epoch in found)
    assert found[0] != found[1] != found[2]
    assert found == epochs(STRATA, 0, 3)
    assert found[0] != epochs(STRATA, 1, 1)[0]


@pytest.mark.parametrize("seed", range(5))
def test_batches_have_about_the_same_share_of_each_stratum(seed: int) -> None:
    (epoch,) = epochs(STRATA, seed, 1)
    for batch in (epoch[start : start + 6] for start in range(0, len(epoch), 6)):
        found = Counter(STRATA[index] for index in batch)
        assert all(abs(found[name] - 6 * STRATA.count(name) / len(STRATA)) <= 1 for name in set(STRATA))


def test_one_stratum_is_shuffled() -> None:
    orders = {tuple(epochs(["all"] * 4, seed, 1)[0]) for seed in range(200)}
    assert len(orders) == 24


def test_batches_follow_one_order_that_is_drawn_once_and_resumes() -> None:
    taken = list[int]()

    def draw() -> Iterator[int]:
        for index in shuffled_epochs(STRATA, 0):
            taken.append(index)
            yield index

    expected = list(itertools.islice(shuffled_epochs(STRATA, 0), 12 * 5))
    order = DrawnOrder(draw(), 5)
    assert [index for step in range(1, 13) for index in order.take_batch(step)] == expected == taken
    resumed = DrawnOrder(shuffled_epochs(STRATA, 0), 5)
    assert [resumed.take_batch(8), resumed.take_batch(9)] == [expected[35:40], expected[40:45]]


def test_tokens_with_half_of_the_loss_are_named_with_their_mean_loss() -> None:
    """Token 7 has 9 and 11 nats, and ten others have 0.1 each. Token 8 is in the prompt."""
    batch = Batch.from_rows([[8, 7, *range(10, 20), 7]], [[False] + [True] * 12])
    logprobs = torch.tensor([[torch.nan, -9.0, *[-0.1] * 10, -11.0]])
    assert dominant_losses(batch, logprobs) == pytest.approx({7: 10.0})
    assert dominant_losses(batch, torch.full((1, 13), -3.0)) == {}, "three of eleven tokens have less than half"
    assert dominant_losses(batch, torch.full((1, 13), -0.1).index_fill_(1, torch.tensor([1]), -1.9)) == {}
