"""Tests of log-probabilities computed for a chunk of tokens at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from support.cpu_kernels import needs_kernels
from understudy.engines.local.cpu import kernels
from understudy.engines.local.token_logprobs import LOGIT_CHUNK, logit_chunk, token_logprobs

WIDTH, VOCABULARY = 8, 300


class LargestTensor(TorchDispatchMode):
    """Records the size in bytes of the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(x, Tensor):
                self.num_bytes = max(self.num_bytes, x.untyped_storage().nbytes())
        return made


def random_inputs(tokens: int, dtype: Any) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, WIDTH, generator=draw).to(dtype).requires_grad_()
    head = torch.randn(VOCABULARY, WIDTH, generator=draw).to(dtype).requires_grad_()
    return hidden, head, torch.randint(0, VOCABULARY, (tokens,), generator=draw)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("tokens", [1, LOGIT_CHUNK, 2 * LOGIT_CHUNK + 3])
def test_logprobs_entropies_and_gradients_match_the_formula(
    tokens: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.setattr(kernels, "kernels_accept", lambda *_: False)
    hidden, head, targets = random_inputs(tokens, torch.float32)
    exact = [x.detach().double().requires_grad_() for x in (hidden, head)]
    weights = torch.linspace(-1, 1, tokens)
    logprobs, entropies = token_logprobs(hidden, head, targets, 0.7)
    every = (exact[0] @ exact[1].T / 0.7).log_softmax(-1)
    wanted = every.gather(-1, targets[:, None])[:, 0]
    assert (logprobs - wanted).abs().max() < 1e-4
    assert (entropies + (every.exp() * every).sum(-1)).abs().max() < 1e-4
    assert not entropies.requires_grad
    mine = torch.autograd.grad((weights * logprobs).sum(), (hidden, head))
    theirs = torch.autograd.grad((weights.double() * wanted).sum(), exact)
    for one, other in zip(mine, theirs, strict=True):
        assert (one - other).abs().max() < 1e-4 * other.abs().max()


@needs_kernels
def test_logprobs_from_a_packed_bfloat16_head_are_those_of_float32() -> None:
    hidden, head, targets = random_inputs(2 * LOGIT_CHUNK + 3, torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in (hidden, head)]
    wanted = (exact[0] @ exact[1].T / 0.7).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    packed = kernels.pack_weights_(None, head)
    logprobs, _ = token_logprobs(hidden, head, targets, 0.7, packed=packed)
    assert (logprobs - wanted).abs().max() < 1e-4
    assert (token_logprobs(hidden, head, targets, 0.7)[0] - wanted).abs().max() > 1e-2
    mine = torch.autograd.grad(logprobs.sum(), (hidden, head))
    for one, other in zip(mine, torch.autograd.grad(wanted.sum(), exact), strict=True):
        assert one.dtype is torch.bfloat16
        assert (one - other).abs().max() < 2**-7 * other.abs().max()


def test_gradient_of_a_bfloat16_head_does_not_depend_on_the_number_of_chunks() -> None:
    """It has one rounding for each chunk and one of the sum. A sum in bfloat16 is farther off."""
    hidden, head, _ = random_inputs(48 * LOGIT_CHUNK, torch.bfloat16)
    targets = torch.zeros(len(hidden), dtype=torch.int64)  # so that most terms of the first row have one sign
    hidden = hidden.detach() + 2
    exact = head.detach().double().requires_grad_()
    (hidden.double() @ exact.T).log_softmax(-1)[:, 0].sum().backward()
    token_logprobs(hidden, head, targets, 1.0)[0].sum().backward()
    assert exact.grad is not None
    assert head.grad is not None
    assert head.grad.dtype is torch.bfloat16
    assert (head.grad - exact.grad).abs().max() < 2**-8 * exact.grad.abs().max()


@pytest.mark.parametrize("chunks", [1, 4, 16])
def test_logits_are_made_for_one_chunk_at_a_time(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernels, as on a GPU: float32 logits of a chunk are the largest tensor, forward and backward."""
    monkeypatch.setattr(kernels, "kernels_accept", lambda *_: False)
    hidden, head, targets = random_inputs(chunks * LOGIT_CHUNK, torch.bfloat16)
    with LargestTensor() as largest:
        token_logprobs(hidden, head, targets, 1.0)[0].sum().backward()
    assert largest.num_bytes == 4 * LOGIT_CHUNK * VOCABULARY


def test_chunks_of_a_large_vocabulary_have_fewer_positions() -> None:
    assert logit_chunk(50_000) == LOGIT_CHUNK
    assert logit_chunk(151_936) == 220
    assert logit_chunk(1 << 30) == 1
