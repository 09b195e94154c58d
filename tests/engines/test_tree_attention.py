"""Tests of attention over a tree of tokens, with flex_attention's eager implementation on the CPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from support.cpu_kernels import needs_kernels
from understudy.algorithms.batch import Batch, plan_microbatches
from understudy.core.errors import ConfigError
from understudy.engines.local import (
    packing,
    scoring,
    tree_attention,
)
from understudy.engines.local.attention import AttentionShape, AttentionSpec
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.cpu import kernels
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.packing import FlatRows, GpuTree, PlainTree, pack_rows
from understudy.engines.local.token_logprobs import token_logprobs
from understudy.engines.local.tree_attention import BLOCK, attend_tree, tree_mask
from understudy.engines.models import make_tiny_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _backward_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the eager implementation as it is. It has gradients on a CPU too, but torch offers them only on GPUs."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def tree_of_rows(seed: int, lengths: Sequence[int] = (150, 60, 40)) -> list[list[int]]:
    """Return rows of a tree: a prompt, three branches of it, three of each of those, and a row without relatives.

    Lengths differ by a few tokens, so that branches do not begin at the bounds of blocks. One row ends at a branch.
    """
    draw = torch.Generator().manual_seed(seed)

    def text(length: int) -> list[int]:
        return torch.randint(1, 200, (length + int(torch.randint(0, 9, (), generator=draw)),), generator=draw).tolist()

    prompt, rows = text(lengths[0]), [text(lengths[2])]
    for _ in range(3):
        branch = prompt + text(lengths[1])
        rows += [branch + text(lengths[2]) for _ in range(3)]
    return [*rows, branch]


def batch_of(rows: Sequence[Sequence[int]]) -> Batch:
    """Return a batch whose rows are trained from the fifth token on, with random advantages."""
    batch = Batch.from_rows(rows, [[i >= 5 for i in range(len(row))] for row in rows], temperature=0.8)
    draw = torch.Generator().manual_seed(len(rows))
    return batch.replace(advantages=torch.randn(batch.tokens.shape, generator=draw) * batch.mask)


def ancestors(layout: GpuTree, batch: Batch, rows: Sequence[int]) -> Tensor:
    """Return which flat tokens each one sees [N, N], from the places of each row. Padding sees itself."""
    seen = torch.eye(layout.tokens.shape[1], dtype=torch.bool)
    for places, row in zip(layout.places, rows, strict=True):
        path = places[: batch.lengths[row]]
        for i, place in enumerate(path):
            seen[place, path[: i + 1]] = True
    return seen


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, seen: Tensor, positions: Tensor, spec: AttentionSpec
) -> Tensor:
    """Return attention by the formula. Tokens see those of `seen` within their window or chunk."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    distance, chunks = positions[:, None] - positions, positions // (spec.chunk or len(seen))
    seen = seen & (distance < (spec.window or len(seen))) & (chunks[:, None] == chunks)
    scores = spec.scale * torch.einsum("mhd,nhd->hmn", q, k)
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    every = torch.cat([scores.masked_fill(~seen, -torch.inf), sinks[:, None, None].expand(-1, len(seen), 1)], -1)
    return torch.einsum("hmn,nhd->mhd", every.softmax(-1)[..., : len(seen)], v)


SPECS = [
    AttentionSpec(0.25),
    AttentionSpec(0.4, window=40),
    AttentionSpec(0.4, window=2),
    AttentionSpec(0.4, chunk=50),
    AttentionSpec(0.25, softcap=0.7),
    AttentionSpec(0.25, softcap=0.7, window=130),
]


@pytest.mark.parametrize(
    ("way", "dtype", "dims", "close"),
    [
        ("flex_attention", "float32", (16, 24), 1e-5),
        ("formula", "float32", (16, 24), 1e-5),
        pytest.param("kernels", "float32", (16, 24), 1e-5, marks=needs_kernels),
        pytest.param("kernels", "bfloat16", (16, 24), 0.02, marks=needs_kernels),
        pytest.param("kernels", "bfloat16", (64, 96), 0.02, marks=needs_kernels),  # whole tiles of AMX
    ],
)
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_attention_and_gradients_match_the_formula(
    way: str,
    dtype: str,
    dims: tuple[int, int],
    close: float,
    spec: AttentionSpec,
    has_sinks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows and chunks end in prefixes that rows share, and within rows."""
    if way != "kernels":
        monkeypatch.setattr(kernels, "fits_tree_attention", lambda *_: False)
    batch = batch_of(tree_of_rows(0, (100, 30, 20)))
    (rows,) = plan_microbatches(batch, 10_000)
    layout: Any = GpuTree(batch, rows, CPU) if way == "flex_attention" else PlainTree(batch, rows, CPU)
    count, (dim, value_dim) = layout.tokens.shape[1], dims
    draw = torch.Generator().manual_seed(1)
    sizes = [(count, 6, dim), (count, 2, dim), (count, 2, value_dim), (6,)]
    inputs = [torch.randn(size, generator=draw).to(getattr(torch, dtype)).requires_grad_() for size in sizes]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    grad = torch.randn(count, 6, value_dim, generator=draw).to(getattr(torch, dtype))
    if not has_sinks:
        inputs, none = inputs[:3], torch.full((6,), -torch.inf, dtype=torch.float64)
        exact = exact[:3]
    found = layout.attend(0, *inputs[:3], spec._replace(sinks=inputs[3] if has_sinks else None))
    sinks = exact[3] if has_sinks else none
    wanted = dense_attention(*exact[:3], sinks, ancestors(layout, batch, rows), layout.positions[0], spec)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() < close
    mine, theirs = torch.autograd.grad(found, inputs, grad), torch.autograd.grad(wanted, exact, grad.double())
    for one, other in zip(mine, theirs, strict=True):
        assert (one - other).abs().max() < close * other.abs().max()


@pytest.mark.parametrize("seed", range(5))
def test_block_mask_lists_the_blocks_that_any_and_that_all_tokens_see(seed: int) -> None:
    batch = batch_of(tree_of_rows(seed, (40 * seed + 300, 200, 60)))
    (rows,) = plan_microbatches(batch, 10_000)
    layout = GpuTree(batch, rows, CPU)
    seen = ancestors(layout, batch, rows)
    mask = layout.mask(AttentionSpec(1.0))
    blocks = seen.view(len(seen) // BLOCK, BLOCK, -1, BLOCK)
    every, some = blocks.all(3).all(1), blocks.any(3).any(1)
    full, part = (
        {(q, int(k)) for q, n in enumerate(numbers[0, 0].tolist()) for k in columns[0, 0, q, :n]}
        for numbers, columns in (
            (mask.full_kv_num_blocks, mask.full_kv_indices),
            (mask.kv_num_blocks, mask.kv_indices),
        )
    )
    assert full == {(q, k) for q, k in every.nonzero().tolist()}
    assert part == {(q, k) for q, k in (some & ~every).nonzero().tolist()}
    assert full, "the prompt is longer than two blocks"
    assert not some.tril().equal(torch.ones_like(some).tril()), "branches do not see each other"
    for numbers, columns, by_key in (
        (mask.full_q_num_blocks, mask.full_q_indices, full),
        (mask.q_num_blocks, mask.q_indices, part),
    ):
        assert {(int(q), k) for k, n in enumerate(numbers[0, 0].tolist()) for q in columns[0, 0, k, :n]} == by_key
    for name, each in vars(mask).items():  # the kernels read the lists as they lie in memory
        assert not isinstance(each, Tensor) or each.is_contiguous(), name


def test_wrong_kernels_are_found_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = AttentionShape(6, 2, 16, 24, AttentionSpec(0.2, softcap=3.0, window=1000), True)
    tree_attention.validate_kernels(shape, torch.float32, CPU)

    def wrong_gradient_of_keys(q: Tensor, k: Tensor, v: Tensor, mask: Any, spec: AttentionSpec) -> Tensor:
        return attend_tree(q, 2 * k - k.detach(), v, mask, spec)

    monkeypatch.setattr(tree_attention, "attend_tree", wrong_gradient_of_keys)
    with pytest.raises(ConfigError, match=r"gradient of k 1\.0e"):
        tree_attention.validate_kernels(shape, torch.float32, CPU)


def test_mask_of_a_size_that_no_kernel_takes_is_refused() -> None:
    for size in (0, BLOCK, 2 * BLOCK + 1):
        with pytest.raises(ValueError, match=str(BLOCK)):
            tree_mask(torch.full((size,), size, dtype=torch.int32), torch.arange(size), AttentionSpec(1.0), CPU)


def test_subtree_of_a_token_ends_with_the_rows_that_contain_it() -> None:
    rows = [[1, 2, 3], [1, 2, 4, 5], [1, 6], [7, 8]]
    flat = FlatRows(batch_of(rows), range(4))
    assert flat.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert flat.subtree_end.tolist() == [6, 5, 3, 5, 5, 6, 8, 8]


def test_layout_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([[1, 2, 3]])
    assert isinstance(pack_rows(batch, [0], CPU), PlainTree)
    monkeypatch.setattr(packing, "GpuTree", lambda *arguments: arguments)
    gpu = torch.device("cuda")
    assert pack_rows(batch, [0], gpu) == (batch, [0], gpu)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("window", [0, 2])
def test_other_devices_have_all_tensors_of_the_layout(window: int) -> None:
    """The device `meta` stands for MPS: it computes nothing, and refuses operands of two devices."""
    meta = torch.device("meta")
    layout = pack_rows(batch_of([[1, 2, 3], [1, 2, 4, 5]]), [0, 1], meta)
    assert {layout.tokens.device, layout.positions.device} == {meta}
    q, k, v = (torch.empty(layout.num_tokens, 2, 8, device=meta, requires_grad=True) for _ in range(3))
    out = layout.attend(0, q, k, v, AttentionSpec(scale=1.0, window=window))
    out.sum().backward()
    assert (out.shape, q.grad is not None, out.device) == (q.shape, True, meta)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_logprobs_and_gradients_match_the_model_on_single_rows(
    architecture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(scoring, "pack_rows", GpuTree)
    folder = make_tiny_model(tmp_path, architecture=architecture)
    batch = batch_of(tree_of_rows(2, (60, 20, 15)))
    assert batch.advantages is not None
    engine = LocalEngine(folder, LocalEngineConfig(device="cpu", dtype="float32"))
    (rows,) = plan_microbatches(batch, 10_000)
    states = scoring.compute_states(engine._model, batch, rows)
    assert states.num_computed == len(FlatRows(batch, rows).tokens), "without padding"
    found = token_logprobs(states.hidden, engine._model.lm_head, states.targets, batch.temperature)[0]
    (states.gather(batch.advantages) * found[states.state_index]).sum().backward()

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    plain = torch.zeros(batch.tokens.shape)
    for row, length in enumerate(batch.lengths.tolist()):
        logits = model(batch.tokens[row : row + 1, :length]).logits[0, :-1] / batch.temperature
        one = logits.log_softmax(-1).gather(-1, batch.tokens[row, 1:length, None])[:, 0]
        (batch.advantages[row, 1:length] * one).sum().backward()
        plain[row, 1:length] = one.detach()
    mine = found.detach()[states.state_index]
    assert (mine - plain[states.rows, states.positions]).abs().max() < 1e-4
    gradients = dict(model.named_parameters())
    for name, master in engine._optimizer.masters.items():  # the optimizer takes the gradients of the parameters
        theirs = gradients[name].grad
        assert master.grad is not None
        assert theirs is not None
        assert (master.grad - theirs).abs().max() < 1e-4 * max(1.0, float(theirs.abs().max()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch.compile's
def test_kernel_is_compiled_once_for_all_lengths_and_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the first number of blocks is that of the heads, which torch.compile would take for the same size."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(tree_attention._eager, dynamic=True, fullgraph=True, backend=counter)
    monkeypatch.setattr(tree_attention, "_eager", compiled)
    for seed, blocks in enumerate((2, 5, 3, 4)):
        count = blocks * BLOCK
        end = torch.full((count,), count, dtype=torch.int32)
        end[100 + seed : count // 2] = count // 2
        q, k, v = (torch.randn(count, n, 16, requires_grad=True) for n in (4, 2, 2))
        spec = AttentionSpec(0.25, window=10 + seed)
        mask = tree_mask(end, torch.arange(count), spec, CPU)
        attend_tree(q, k, v, mask, spec).sum().backward()
        assert q.grad is not None
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                attend_tree(q.detach(), k.detach(), v.detach(), mask, spec)
    assert len(counter.graphs) <= 4
