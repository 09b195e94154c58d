"""Tests of batches: collation, shared prefixes, microbatch plans, the split across ranks and the packed layout."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.algorithms.batch import (
    MICROBATCH_OVERHEAD,
    Batch,
    SharedPrefix,
    collate,
    count_distinct_tokens,
    partition_by_prefix,
    plan_microbatches,
    split_across_ranks,
)
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.local.packing import FlatRows, PlainTree

CPU = torch.device("cpu")

hypothesis_settings = settings(deadline=None, derandomize=True)
REPLY = Message(role="assistant", content="x")


def episode(*turns: tuple[Sequence[int], Sequence[int]], reward: float = 0.0) -> Trajectory:
    """An episode of (prompt, reply) turns; the log-probability of token i is -i."""
    trajectory = Trajectory("t", score=Score(reward=reward))
    for prompt, reply in turns:
        trajectory.observe([], prompt)
        trajectory.act(REPLY, reply, [-float(i) for i in reply])
    return trajectory


def batch_of(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    return collate([episode(row) for row in rows])


def test_collate_pads_on_the_right() -> None:
    batch = collate([episode(([1, 2], [3]), ([4], [5, 6]), reward=0.5), episode(([7], [8]), reward=1.0)], pad_id=9)
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 9, 9, 9]]
    assert batch.mask.int().tolist() == [[0, 0, 1, 0, 1, 1], [0, 1, 0, 0, 0, 0]]
    assert batch.logprobs.tolist() == [[0, 0, -3, 0, -5, -6], [0, -8, 0, 0, 0, 0]]
    assert batch.lengths.tolist() == [6, 2]
    assert batch.rewards.tolist() == [0.5, 1.0]
    assert batch.group_ids.tolist() == [0, 1]
    assert (len(batch), batch.temperature) == (2, 1.0)
    assert collate([episode(([1], [2]))] * 3, [4, 4, 5], temperature=0.5).group_ids.tolist() == [4, 4, 5]


def test_batch_from_rows_fills_logprobs_and_rewards_with_zero() -> None:
    batch = Batch.from_rows([[1, 2, 3], [4, 5]], [[False, True, True], [False, True]], temperature=0.5)
    assert batch.tokens.tolist() == [[1, 2, 3], [4, 5, 0]]
    assert batch.mask.int().tolist() == [[0, 1, 1], [0, 1, 0]]
    assert batch.logprobs.tolist() == [[0.0] * 3] * 2
    assert batch.rewards.tolist() == [0.0, 0.0]
    assert (batch.lengths.tolist(), batch.group_ids.tolist(), batch.temperature) == ([3, 2], [0, 1], 0.5)
    with pytest.raises(ValueError, match="mask"):
        Batch.from_rows([[1, 2, 3]], [[False, True]])


def test_collate_rejects_an_episode_without_score() -> None:
    with pytest.raises(ValueError, match="score"):
        collate([Trajectory("t")])


def test_select_indexes_every_tensor() -> None:
    batch = batch_of([([1, 2], [3]), ([4], [5]), ([6], [7, 8])])
    batch = batch.replace(advantages=batch.logprobs + 1, ref_logprobs=batch.logprobs - 1)
    part = batch.select([2, 0])
    assert part.tokens.tolist() == [[6, 7, 8], [1, 2, 3]]
    assert part.group_ids.tolist() == [2, 0]
    for name in ("mask", "logprobs", "advantages", "ref_logprobs", "lengths", "rewards"):
        assert torch.equal(getattr(part, name), getattr(batch, name)[[2, 0]])
    assert torch.equal(batch.select(torch.tensor([2, 0])).tokens, part.tokens)


sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=9)


def saved_tokens(parts: Sequence[SharedPrefix]) -> int:
    return sum(part.prefix_length * (len(part.rows) - 1) for part in parts)


@hypothesis_settings
@given(sequences, st.data())
def test_prefix_partition_covers_each_row_once_with_equal_prefixes(rows: list[list[int]], data: st.DataObject) -> None:
    limits = [data.draw(st.integers(0, len(row))) for row in rows]
    parts = partition_by_prefix(rows, limits)
    assert sorted(row for part in parts for row in part.rows) == list(range(len(rows)))
    for part in parts:
        assert len({tuple(rows[i][: part.prefix_length]) for i in part.rows}) == 1
        assert all(part.prefix_length <= limits[i] for i in part.rows)
        assert len(part.rows) > 1 or part.prefix_length == 0


def common_prefix_length(rows: Sequence[Sequence[int]]) -> int:
    columns = zip(*rows, strict=False)
    return next((i for i, column in enumerate(columns) if len(set(column)) > 1), min(map(len, rows)))


def max_saved_tokens(rows: Sequence[Sequence[int]]) -> int:
    """Return the most tokens saved by recursively splitting sorted rows where neighbours share the shortest prefix."""
    whole = common_prefix_length(rows) * (len(rows) - 1)
    if len(rows) == 1:
        return 0
    cut = min(range(1, len(rows)), key=lambda i: common_prefix_length(rows[i - 1 : i + 1]))
    return max(whole, max_saved_tokens(rows[:cut]) + max_saved_tokens(rows[cut:]))


@hypothesis_settings
@given(sequences.filter(bool))
def test_prefix_partition_saves_the_most_tokens(rows: list[list[int]]) -> None:
    found = saved_tokens(partition_by_prefix(rows, [len(row) for row in rows]))
    assert found == max_saved_tokens(sorted(rows))
    assert found >= max(0, common_prefix_length(rows) * (len(rows) - 1))


def test_prefix_partition_matches_hand_computed_groups() -> None:
    rows = [[1, 1, 1, 2], [3, 4], [1, 1, 1, 5], [3, 5], [1, 1, 1, 2], [6]]
    found = {tuple(sorted(part.rows)): part.prefix_length for part in partition_by_prefix(rows, [3] * 6)}
    assert found == {(0, 2, 4): 3, (1, 3): 1, (5,): 0}
    assert partition_by_prefix([], []) == []


def test_prefix_partition_handles_3000_equal_rows() -> None:
    (part,) = partition_by_prefix([[1, 2, 3]] * 3000, [2] * 3000)
    assert (len(part.rows), part.prefix_length) == (3000, 2)


row = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=12), st.lists(st.integers(0, 1), min_size=0, max_size=12)
)
rows_of_a_batch = st.lists(row, min_size=1, max_size=10)


def computed_tokens(batch: Batch, rows: Sequence[int]) -> int:
    """Return how many tokens of the rows are computed: the nodes of their prefix tree."""
    texts = [batch.tokens[r, : batch.lengths[r]].tolist() for r in rows]
    return len({tuple(text[: i + 1]) for text in texts for i in range(len(text))})


def min_cost(batch: Batch, rows: Sequence[int], budget: int) -> int:
    """Return the lowest cost of splitting the rows in this order, with the overhead of each microbatch."""
    if not rows:
        return 0
    heads = [i for i in range(1, len(rows) + 1) if i == 1 or computed_tokens(batch, rows[:i]) <= budget]
    return min(
        computed_tokens(batch, rows[:i]) + MICROBATCH_OVERHEAD + min_cost(batch, rows[i:], budget) for i in heads
    )


@hypothesis_settings
@given(rows_of_a_batch, st.integers(1, 60))
def test_microbatch_plan_covers_each_row_once_within_the_budget(
    rows: list[tuple[list[int], list[int]]], budget: int
) -> None:
    batch = batch_of(rows)
    microbatches = plan_microbatches(batch, budget)
    assert sorted(r for rows in microbatches for r in rows) == list(range(len(rows)))
    assert all(computed_tokens(batch, rows) <= budget or len(rows) == 1 for rows in microbatches)
    assert count_distinct_tokens(batch) == computed_tokens(batch, range(len(rows)))


@settings(hypothesis_settings, max_examples=50)
@given(st.lists(row, min_size=1, max_size=6), st.integers(1, 60))
def test_microbatch_plan_has_the_lowest_cost(rows: list[tuple[list[int], list[int]]], budget: int) -> None:
    batch = batch_of(rows)
    microbatches = plan_microbatches(batch, budget)
    found = sum(computed_tokens(batch, chosen) + MICROBATCH_OVERHEAD for chosen in microbatches)
    assert found == min_cost(batch, [r for chosen in microbatches for r in chosen], budget)


@settings(hypothesis_settings, max_examples=50)
@given(st.lists(row, max_size=6), st.integers(1, 4))
def test_split_across_ranks_minimizes_the_largest_share(rows: list[tuple[list[int], list[int]]], count: int) -> None:
    batch = batch_of(rows)
    found = split_across_ranks(batch, count)
    order = [row for share in found for row in share]
    assert len(found) == count
    assert sorted(order) == list(range(len(rows)))
    cuts = itertools.combinations_with_replacement(range(len(rows) + 1), count - 1)
    ways = [[order[i:j] for i, j in itertools.pairwise((0, *cut, len(rows)))] for cut in cuts]
    assert max(computed_tokens(batch, share) for share in found) == min(
        max(computed_tokens(batch, s) for s in way) for way in ways
    )


@hypothesis_settings
@given(rows_of_a_batch, st.integers(1, 60))
def test_tree_holds_each_token_once(rows: list[tuple[list[int], list[int]]], budget: int) -> None:
    batch = batch_of(rows)
    for chosen in plan_microbatches(batch, budget):
        tree = PlainTree(batch, chosen, CPU)
        assert tree.tokens.shape == tree.positions.shape == (1, computed_tokens(batch, chosen))
        covered = []
        for r, places in zip(chosen, tree.places, strict=True):
            where = places[: batch.lengths[r]]
            covered.append(where)
            assert torch.equal(tree.tokens[0, where], batch.tokens[r, : batch.lengths[r]])
            assert torch.equal(tree.positions[0, where], torch.arange(len(where)))
        assert torch.cat(covered).unique().tolist() == list(range(tree.num_tokens))


@hypothesis_settings
@given(rows_of_a_batch)
def test_tokens_of_a_tree_see_the_previous_tokens_of_their_rows(rows: list[tuple[list[int], list[int]]]) -> None:
    batch = batch_of(rows)
    (chosen,) = plan_microbatches(batch, 1000)
    flat = FlatRows(batch, chosen)
    token = torch.arange(len(flat.tokens))
    seen = (token <= token[:, None]) & (token[:, None] < flat.subtree_end)
    for places in flat.places:
        for i, place in enumerate(places.tolist()):
            assert seen[place].nonzero()[:, 0].tolist() == places[: i + 1].tolist()


def test_tree_computes_shared_prefixes_once() -> None:
    prompt = list(range(50))
    batch = batch_of([(prompt, [1, 2, i]) for i in range(8)] + [([99, *prompt], [1])])
    (chosen,) = plan_microbatches(batch, 1000)
    assert PlainTree(batch, chosen, CPU).num_tokens == 50 + 2 + 8 + 52, "replies that begin alike too"
    assert len(plan_microbatches(batch, 60)) > 1


def test_tree_computes_equal_rows_once() -> None:
    batch = batch_of([([1, 2], [3, 4]), ([1, 2], [3, 4]), ([1, 2], [3])])
    (chosen,) = plan_microbatches(batch, 4)
    assert PlainTree(batch, chosen, CPU).tokens.tolist() == [[1, 2, 3, 4]]
