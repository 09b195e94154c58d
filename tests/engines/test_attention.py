"""Tests of chunked causal attention and of the grouping of prefill rows by length."""

import pytest
import torch
from torch import Tensor

from support.cpu_kernels import needs_kernels
from understudy.engines.local.attention import AttentionSpec
from understudy.engines.local.cpu import causal as module
from understudy.engines.local.cpu import kernels
from understudy.engines.local.cpu.causal import QUERY_CHUNK, causal_attention, causal_attention_backward
from understudy.engines.local.sampling.layouts import SlotGroup, split_by_length

SIZES = [
    (1, 1),
    (5, 5),
    (QUERY_CHUNK, QUERY_CHUNK),
    (QUERY_CHUNK + 1, QUERY_CHUNK + 1),
    (3, 300),
    (QUERY_CHUNK + 7, 300),
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
@pytest.mark.parametrize("way", ["whole", "strips", pytest.param("kernels", marks=needs_kernels)])
def test_causal_attention_and_gradients_match_the_formula(
    queries: int, tokens: int, dtype: str, close: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "kernels":
        monkeypatch.setattr(kernels, "fits_tree_attention", lambda *_: False)
    monkeypatch.setattr(module, "_in_strips", lambda *_: way == "strips")
    q, k, v, grad = random_inputs(queries, tokens, getattr(torch, dtype))
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = reference_attention(*exact)
    assert (causal_attention(q, k, v, SPEC).double() - wanted).abs().max() < close
    *found, _ = causal_attention_backward(grad, q, k, v, SPEC)
    for mine, theirs in zip(found, torch.autograd.grad(wanted, exact, grad.double()), strict=True):
        assert mine.shape == theirs.shape
        assert (mine.double() - theirs).abs().max() < close * max(1.0, float(theirs.abs().max()))


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
