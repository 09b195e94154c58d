"""Tests of causal attention and of the grouping of prefill rows by length."""

import pytest
import torch
from torch import Tensor

from support.cpu_kernels import needs_kernels
from understudy.engines.local.attention import AttentionSpec
from understudy.engines.local.cpu import kernels, tree
from understudy.engines.local.cpu.tree import QUERIES_AT_ONCE, causal_attention
from understudy.engines.local.sampling.layouts import SlotGroup, split_by_length

SIZES = [
    (1, 1),
    (5, 5),
    (QUERIES_AT_ONCE, QUERIES_AT_ONCE),
    (QUERIES_AT_ONCE + 1, QUERIES_AT_ONCE + 1),
    (3, 300),
    (QUERIES_AT_ONCE + 7, 300),
    (300, 300),
]
"""Pairs of the number of queries and the total number of tokens."""
SPEC = AttentionSpec(0.3)


def random_inputs(queries: int, tokens: int, dtype: "torch.dtype") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, keys, values and an output gradient, with six query heads over two key heads."""
    draw = torch.Generator().manual_seed(queries)
    shapes = (queries, 6, 32), (tokens, 2, 32), (tokens, 2, 32), (queries, 6, 32)
    q, k, v, grad = (torch.randn(shape, generator=draw).to(dtype) for shape in shapes)
    return q, k, v, grad


def reference_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention computed by the formula."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    hidden = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q)).logical_not()
    scores = torch.einsum("mhd,phd->hmp", q, k) * SPEC.scale
    return torch.einsum("hmp,phd->mhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize(("queries", "tokens"), SIZES)
@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("bfloat16", 0.03)])
@pytest.mark.parametrize("way", ["formula", pytest.param("kernels", marks=needs_kernels)])
def test_causal_attention_and_gradients_match_the_formula(
    queries: int, tokens: int, dtype: str, close: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "formula":
        monkeypatch.setattr(kernels, "fits_tree_attention", lambda *_: False)
    *inputs, grad = random_inputs(queries, tokens, getattr(torch, dtype))
    inputs = [x.requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    wanted = reference_attention(*exact)
    found = causal_attention(*inputs, SPEC)
    assert (found.double() - wanted).abs().max() < close
    gradients = torch.autograd.grad(found, inputs, grad), torch.autograd.grad(wanted, exact, grad.double())
    for mine, theirs in zip(*gradients, strict=True):
        assert mine.shape == theirs.shape
        assert (mine.double() - theirs).abs().max() < close * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("queries", [5, 300])
def test_causal_attention_of_torch_matches_the_formula(queries: int) -> None:
    """It is used on GPUs."""
    q, k, v, _ = random_inputs(queries, 300, torch.float32)
    assert (tree._causal_attention_of_torch(q, k, v, SPEC.scale) - reference_attention(q, k, v)).abs().max() < 1e-5


def test_causal_attention_ignores_later_tokens() -> None:
    q, k, v, _ = random_inputs(300, 300, torch.bfloat16)
    before = causal_attention(q, k, v, SPEC)
    k[200:], v[200:] = 9.0, -9.0
    assert torch.equal(causal_attention(q, k, v, SPEC)[:200], before[:200])


def test_prefill_rows_are_grouped_by_similar_length() -> None:
    def spans(start: int, stop: int, *lengths: int) -> list[tuple[int, int]]:
        return [(part.start, part.stop) for part in split_by_length(SlotGroup(None, start, stop), lengths)]

    assert spans(0, 3, 100, 90, 70) == [(0, 3)]
    assert spans(0, 4, 100, 69, 60, 5) == [(0, 1), (1, 3), (3, 4)]
    assert spans(1, 3, 7, 100, 100, 100) == [(1, 3)]  # the other rows have other prefixes
    assert spans(0, 3, 5, 100, 5) == [(0, 1), (1, 2), (2, 3)]  # an unsorted order gives more parts
