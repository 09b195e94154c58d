"""Causal attention in strips, and which rows of a prefill are computed together."""

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from understudy.engines.local import causal as module  # noqa: E402
from understudy.engines.local.causal import STRIP, causal, causal_gradients  # noqa: E402
from understudy.engines.local.passes import Group, similar  # noqa: E402

SIZES = [(1, 1), (5, 5), (STRIP, STRIP), (STRIP + 1, STRIP + 1), (3, 300), (STRIP + 7, 300), (300, 300)]
"""Queries, and tokens in all."""
SCALE = 0.3


def drawn(queries: int, tokens: int, dtype: "torch.dtype") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and a gradient: six query heads over two key heads."""
    draw = torch.Generator().manual_seed(queries)
    shapes = (queries, 6, 32), (tokens, 2, 32), (tokens, 2, 32), (queries, 6, 32)
    q, k, v, grad = (torch.randn(shape, generator=draw).to(dtype) for shape in shapes)
    return q, k, v, grad


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """By the formula."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    hidden = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q)).logical_not()
    scores = torch.einsum("mhd,phd->hmp", q, k) * SCALE
    return torch.einsum("hmp,phd->mhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize(("queries", "tokens"), SIZES)
@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("bfloat16", 0.03)])
@pytest.mark.parametrize("strips", [True, False])
def test_each_query_sees_what_stands_before_it(
    queries: int, tokens: int, dtype: str, close: float, strips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_in_strips", lambda _: strips)
    q, k, v, grad = drawn(queries, tokens, getattr(torch, dtype))
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = plain(*exact)
    assert (causal(q, k, v, SCALE).double() - wanted).abs().max() < close
    found = causal_gradients(grad, q, k, v, SCALE)
    for mine, theirs in zip(found, torch.autograd.grad(wanted, exact, grad.double()), strict=True):
        assert mine.shape == theirs.shape
        assert (mine.double() - theirs).abs().max() < close * max(1.0, float(theirs.abs().max()))


def test_the_future_has_no_influence() -> None:
    q, k, v, _ = drawn(300, 300, torch.bfloat16)
    before = causal(q, k, v, SCALE)
    k[200:], v[200:] = 9.0, -9.0
    assert torch.equal(causal(q, k, v, SCALE)[:200], before[:200])


def test_rows_of_a_prefill_stand_with_those_of_their_length() -> None:
    def spans(start: int, stop: int, *lengths: int) -> list[tuple[int, int]]:
        return [(part.start, part.stop) for part in similar(Group(None, start, stop), lengths)]

    assert spans(0, 3, 100, 90, 70) == [(0, 3)]
    assert spans(0, 4, 100, 69, 60, 5) == [(0, 1), (1, 3), (3, 4)]
    assert spans(1, 3, 7, 100, 100, 100) == [(1, 3)]  # the others are of other prefixes
    assert spans(0, 3, 5, 100, 5) == [(0, 1), (1, 2), (2, 3)]  # in any order, only with more of them
