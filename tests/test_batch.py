"""Batches: what is collated, which prefixes are shared, and how rows are cut into micro-batches and laid out."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from understudy.batch import MICROBATCH, Batch, Shared, collate, plan, shared_prefixes, shares  # noqa: E402
from understudy.engines.local.packing import Packing  # noqa: E402
from understudy.messages import Message  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402

generated = settings(deadline=None, derandomize=True)
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


# ---- collate and rows ----


def test_collate_pads_at_the_right() -> None:
    batch = collate([episode(([1, 2], [3]), ([4], [5, 6]), reward=0.5), episode(([7], [8]), reward=1.0)], pad=9)
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 9, 9, 9]]
    assert batch.mask.int().tolist() == [[0, 0, 1, 0, 1, 1], [0, 1, 0, 0, 0, 0]]
    assert batch.logprobs.tolist() == [[0, 0, -3, 0, -5, -6], [0, -8, 0, 0, 0, 0]]
    assert batch.lengths.tolist() == [6, 2]
    assert batch.rewards.tolist() == [0.5, 1.0]
    assert batch.group.tolist() == [0, 1]
    assert (len(batch), batch.temperature) == (2, 1.0)
    assert collate([episode(([1], [2]))] * 3, [4, 4, 5], temperature=0.5).group.tolist() == [4, 4, 5]


def test_an_episode_without_a_score_cannot_be_trained_on() -> None:
    with pytest.raises(ValueError, match="has no score"):
        collate([Trajectory("t")])


def test_rows_take_every_tensor_along() -> None:
    batch = batch_of([([1, 2], [3]), ([4], [5]), ([6], [7, 8])])
    batch = batch.with_(advantages=batch.logprobs + 1, ref_logprobs=batch.logprobs - 1)
    part = batch.rows([2, 0])
    assert part.tokens.tolist() == [[6, 7, 8], [1, 2, 3]]
    assert part.group.tolist() == [2, 0]
    for name in ("mask", "logprobs", "advantages", "ref_logprobs", "lengths", "rewards"):
        assert torch.equal(getattr(part, name), getattr(batch, name)[[2, 0]])
    assert torch.equal(batch.rows(torch.tensor([2, 0])).tokens, part.tokens)


# ---- shared prefixes ----

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=9)


def saving(parts: Sequence[Shared]) -> int:
    return sum(part.prefix * (len(part.rows) - 1) for part in parts)


@generated
@given(sequences, st.data())
def test_shared_prefixes_are_a_partition_and_really_shared(rows: list[list[int]], data: st.DataObject) -> None:
    limits = [data.draw(st.integers(0, len(row))) for row in rows]
    parts = shared_prefixes(rows, limits)
    assert sorted(row for part in parts for row in part.rows) == list(range(len(rows)))
    for part in parts:
        assert len({tuple(rows[i][: part.prefix]) for i in part.rows}) == 1
        assert all(part.prefix <= limits[i] for i in part.rows)
        assert len(part.rows) > 1 or part.prefix == 0


def common(rows: Sequence[Sequence[int]]) -> int:
    columns = zip(*rows, strict=False)
    return next((i for i, column in enumerate(columns) if len(set(column)) > 1), min(map(len, rows)))


def best(rows: Sequence[Sequence[int]]) -> int:
    """What cutting sorted rows where neighbours share least can save: its definition."""
    whole = common(rows) * (len(rows) - 1)
    if len(rows) == 1:
        return 0
    cut = min(range(1, len(rows)), key=lambda i: common(rows[i - 1 : i + 1]))
    return max(whole, best(rows[:cut]) + best(rows[cut:]))


@generated
@given(sequences.filter(bool))
def test_sharing_saves_what_it_can_and_no_less_than_all_or_nothing(rows: list[list[int]]) -> None:
    found = saving(shared_prefixes(rows, [len(row) for row in rows]))
    assert found == best(sorted(rows))
    assert found >= max(0, common(rows) * (len(rows) - 1))


def test_prefixes_by_hand() -> None:
    rows = [[1, 1, 1, 2], [3, 4], [1, 1, 1, 5], [3, 5], [1, 1, 1, 2], [6]]
    found = {tuple(sorted(part.rows)): part.prefix for part in shared_prefixes(rows, [3] * 6)}
    assert found == {(0, 2, 4): 3, (1, 3): 1, (5,): 0}
    assert shared_prefixes([], []) == []


def test_as_many_may_be_alike_as_there_are() -> None:
    (part,) = shared_prefixes([[1, 2, 3]] * 3000, [2] * 3000)
    assert (len(part.rows), part.prefix) == (3000, 2)


# ---- plan and packing ----

row = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=12), st.lists(st.integers(0, 1), min_size=0, max_size=12)
)
rows_of_a_batch = st.lists(row, min_size=1, max_size=10)


def computed(batch: Batch, rows: Sequence[int]) -> int:
    """How many tokens differ, or follow what differs: the nodes of the tree that the rows make."""
    texts = [batch.tokens[r, : batch.lengths[r]].tolist() for r in rows]
    return len({tuple(text[: i + 1]) for text in texts for i in range(len(text))})


def cheapest(batch: Batch, rows: Sequence[int], budget: int) -> int:
    """What the best cut of sorted rows computes, a micro-batch's own price included: its definition."""
    if not rows:
        return 0
    heads = [i for i in range(1, len(rows) + 1) if i == 1 or computed(batch, rows[:i]) <= budget]
    return min(computed(batch, rows[:i]) + MICROBATCH + cheapest(batch, rows[i:], budget) for i in heads)


@generated
@given(rows_of_a_batch, st.integers(1, 60))
def test_a_plan_holds_every_row_once_within_its_budget(rows: list[tuple[list[int], list[int]]], budget: int) -> None:
    batch = batch_of(rows)
    microbatches = plan(batch, budget)
    assert sorted(r for rows in microbatches for r in rows) == list(range(len(rows)))
    assert all(computed(batch, rows) <= budget or len(rows) == 1 for rows in microbatches)


@settings(generated, max_examples=50)
@given(st.lists(row, min_size=1, max_size=6), st.integers(1, 60))
def test_no_plan_computes_less(rows: list[tuple[list[int], list[int]]], budget: int) -> None:
    batch = batch_of(rows)
    microbatches = plan(batch, budget)
    found = sum(computed(batch, chosen) + MICROBATCH for chosen in microbatches)
    assert found == cheapest(batch, [r for chosen in microbatches for r in chosen], budget)


@settings(generated, max_examples=50)
@given(st.lists(row, max_size=6), st.integers(1, 4))
def test_no_shares_leave_less_to_the_largest(rows: list[tuple[list[int], list[int]]], count: int) -> None:
    batch = batch_of(rows)
    found = shares(batch, count)
    order = [row for share in found for row in share]
    assert len(found) == count
    assert sorted(order) == list(range(len(rows)))
    cuts = itertools.combinations_with_replacement(range(len(rows) + 1), count - 1)
    ways = [[order[i:j] for i, j in itertools.pairwise((0, *cut, len(rows)))] for cut in cuts]
    assert max(computed(batch, share) for share in found) == min(max(computed(batch, s) for s in way) for way in ways)


@generated
@given(rows_of_a_batch, st.integers(1, 60), st.sampled_from([1, 2, 3]))
def test_a_packing_lays_down_every_token_once_and_pads_little(
    rows: list[tuple[list[int], list[int]]], budget: int, fold: int
) -> None:
    batch = batch_of(rows)
    for chosen in plan(batch, budget):
        packing = Packing(batch, chosen, fold, torch.device("cpu"))
        assert packing.tokens.shape == packing.positions.shape == (1, computed(batch, chosen))
        for r, places in zip(chosen, packing.places, strict=True):
            where = places[: batch.lengths[r]]
            assert torch.equal(packing.tokens[0, where], batch.tokens[r, : batch.lengths[r]])
            assert torch.equal(packing.positions[0, where], torch.arange(len(where)))
        covered = [piece.prefix[piece.known :] for piece in packing.pieces]
        for block in (block for piece in packing.pieces for block in piece.blocks):
            assert (~block.valid).sum() <= 0.1 * block.valid.numel()
            assert block.limits.shape == (len(block.valid), fold * block.valid.shape[1])
            covered.append(block.index[block.valid])
        assert torch.cat(covered).sort().values.tolist() == list(range(packing.tokens.shape[1])), (
            "each is computed once"
        )


@generated
@given(rows_of_a_batch)
def test_every_token_sees_what_stands_before_it_in_its_row(rows: list[tuple[list[int], list[int]]]) -> None:
    batch = batch_of(rows)
    (chosen,) = plan(batch, 1000)
    packing = Packing(batch, chosen, 1, torch.device("cpu"))
    rows_places = [places[:n].tolist() for places, n in zip(packing.places, batch.lengths[chosen], strict=True)]
    before = {place: places[: i + 1] for places in rows_places for i, place in enumerate(places)}
    for piece in packing.pieces:
        for block in piece.blocks:
            for index, keys, limits in zip(block.index, block.keys, block.limits, strict=True):
                for place, limit in zip(index.tolist(), limits.tolist(), strict=True):
                    assert [*piece.prefix.tolist(), *keys[:limit].tolist()] == before[place]


def test_what_rows_begin_with_is_computed_once() -> None:
    prompt = list(range(50))
    batch = batch_of([(prompt, [1, 2, i]) for i in range(8)] + [([99, *prompt], [1])])
    (chosen,) = plan(batch, 1000)
    assert len(Packing(batch, chosen, 1, torch.device("cpu")).tokens[0]) == 50 + 2 + 8 + 52, (
        "replies that begin alike too"
    )
    assert len(plan(batch, 60)) > 1


def test_rows_that_are_alike_are_one() -> None:
    batch = batch_of([([1, 2], [3, 4]), ([1, 2], [3, 4]), ([1, 2], [3])])
    (chosen,) = plan(batch, 4)
    packing = Packing(batch, chosen, 1, torch.device("cpu"))
    assert packing.tokens.tolist() == [[1, 2, 3, 4]]


def test_blocks_by_hand() -> None:
    """Own lengths within a tenth of the longest stand in one block."""
    prefix = [1] * 20
    batch = batch_of([(prefix, [i + 2] * length) for i, length in enumerate((100, 89, 90, 95, 81, 80, 10))])
    (chosen,) = plan(batch, 10_000)
    (piece,) = Packing(batch, chosen, 1, torch.device("cpu")).pieces
    lengths = [block.valid.sum(1).tolist() for block in piece.blocks]
    assert lengths == [[100, 95, 90], [89, 81], [80], [10]]
    assert piece.prefix.tolist() == list(range(20))
