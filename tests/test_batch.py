"""Batches: what is collated, which prefixes are shared, and how rows are cut into micro-batches and laid out."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from understudy.batch import Batch, Shared, collate, computed_tokens, plan, shared_prefixes  # noqa: E402
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


@generated
@given(st.lists(row, max_size=12), st.integers(1, 60))
def test_a_plan_holds_every_row_once_within_its_budget(rows: list[tuple[list[int], list[int]]], budget: int) -> None:
    batch = batch_of(rows)
    lengths = batch.lengths.tolist()
    microbatches = plan(batch, budget)
    assert sorted(r for pieces in microbatches for p in pieces for r in p.rows) == list(range(len(rows)))
    for pieces in microbatches:
        computed = sum(computed_tokens(piece, lengths) for piece in pieces)
        assert computed <= budget or sum(len(p.rows) for p in pieces) == 1
        for piece in pieces:
            for r in piece.rows:
                assert not batch.mask[r, : piece.prefix].any(), "trained tokens are a row's own"
                assert piece.prefix < lengths[r], "and no row is without tokens of its own"
                assert torch.equal(batch.tokens[r, : piece.prefix], batch.tokens[piece.rows[0], : piece.prefix])


@generated
@given(st.lists(row, min_size=1, max_size=12), st.integers(1, 60), st.sampled_from([1, 2, 3]))
def test_a_packing_lays_down_every_token_once_and_pads_little(
    rows: list[tuple[list[int], list[int]]], budget: int, fold: int
) -> None:
    batch = batch_of(rows)
    lengths = batch.lengths.tolist()
    for pieces in plan(batch, budget):
        packing = Packing(batch, pieces, fold, torch.device("cpu"))
        assert packing.tokens.shape == (1, sum(computed_tokens(p, lengths) for p in pieces))
        for r in (r for p in pieces for r in p.rows):
            where = packing.flat_positions(r, torch.arange(lengths[r]))
            assert torch.equal(packing.tokens[0, where], batch.tokens[r, : lengths[r]])
            assert torch.equal(packing.positions[0, where], torch.arange(lengths[r]))
        covered = [torch.arange(piece.start, piece.start + piece.length) for piece in packing.pieces]
        for block in (block for piece in packing.pieces for block in piece.blocks):
            assert (~block.valid).sum() <= 0.1 * block.valid.numel()
            assert block.limits.shape == (len(block.valid), fold * block.valid.shape[1])
            covered.append(block.index[block.valid])
        assert torch.cat(covered).sort().values.tolist() == list(range(packing.tokens.shape[1]))


def test_a_prompt_that_a_group_shares_is_computed_once() -> None:
    prompt = list(range(50))
    batch = batch_of([(prompt, [1, 2, i]) for i in range(8)] + [([99, *prompt], [1])])
    (pieces,) = plan(batch, 1000)
    assert sum(computed_tokens(p, batch.lengths.tolist()) for p in pieces) == 50 + 8 * 3 + 52
    assert len(plan(batch, 60)) > 1


def test_blocks_by_hand() -> None:
    """Own lengths within a tenth of the longest stand in one block."""
    prefix = [1] * 20
    batch = batch_of([(prefix, [i] * length) for i, length in enumerate((100, 89, 90, 95, 81, 80, 10))])
    ((shared,),) = plan(batch, 10_000)
    (piece,) = Packing(batch, [shared], 1, torch.device("cpu")).pieces
    lengths = [block.valid.sum(1).tolist() for block in piece.blocks]
    assert lengths == [[100, 95, 90], [89, 81], [80], [10]]
    assert piece.length == 20
