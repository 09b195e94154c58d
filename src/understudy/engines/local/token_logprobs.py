"""Log-probabilities of tokens from hidden states, without storing [N, V] logits.

Logits exist for one chunk of positions at a time. The backward pass computes them again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from understudy.engines.local.cpu import kernels

LOGIT_CHUNK = 512
"""Positions of a chunk, at most."""
CHUNK_LOGITS = 1 << 25
"""Logits of a chunk, at most: 64 MiB in bfloat16."""


def logit_chunk(vocabulary: int) -> int:
    """Return the positions of a chunk of logits [n, V]: fewer for a large vocabulary."""
    return max(1, min(LOGIT_CHUNK, CHUNK_LOGITS // vocabulary))


def token_logprobs(
    hidden: Tensor,
    lm_head: Tensor,
    targets: Tensor,
    temperature: float,
    rows: Tensor | None = None,
    tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [M] of `targets` [M] at `temperature` and entropies [M]. Entropies have no gradient.

    `hidden` [M, D] are the hidden states before the targets, `lm_head` [V, D] the output weights. `rows` [K, D] equal
    those of `tokens` [K] in `lm_head`, and get the gradient of these alone.
    """
    return TokenLogprobsFunction.apply(hidden, lm_head, targets, temperature, rows, tokens)  # type: ignore[no-any-return, no-untyped-call]


def token_logprobs_of(
    logits: Callable[[Tensor], Tensor], vocabulary: int, hidden: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the same as `token_logprobs` for a model whose logits [M, V] are any function of hidden states [M, D].

    Such a function may scale or cap them, as Gemma 2 and Cohere do, or add a bias.
    """

    def part(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = (logits(x).float() / temperature).log_softmax(-1)
        entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
        return logprobs.gather(-1, y[:, None])[:, 0], entropy

    size = logit_chunk(vocabulary)
    pairs = zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    found = [checkpoint(part, x, y, use_reentrant=False) if torch.is_grad_enabled() else part(x, y) for x, y in pairs]
    logprobs, entropy = (torch.cat(x) for x in zip(*found, strict=True))
    return logprobs, entropy


class _ChunkLogits:
    """The logits of one chunk of hidden states [M, D] after the other, in the same memory.

    glibc would give each chunk new memory: the hole that a freed tensor leaves is a few bytes too small for one of the
    same size, because tensors are aligned.
    """

    def __init__(self, hidden: Tensor, head: Tensor) -> None:
        size = logit_chunk(len(head))
        self._hidden, self._head = hidden, head
        self._logits = hidden.new_empty(min(size, len(hidden)), len(head))
        self.parts = [slice(start, min(start + size, len(hidden))) for start in range(0, len(hidden), size)]

    def __call__(self, part: slice) -> Tensor:
        """Return the logits [n, V] of a chunk, and overwrite those of the chunk before."""
        return torch.mm(self._hidden[part], self._head.T, out=self._logits[: part.stop - part.start])


class TokenLogprobsFunction(torch.autograd.Function):
    """Autograd function of `token_logprobs`."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        targets: Tensor,
        temperature: float,
        rows: Tensor | None,
        tokens: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.temperature, ctx.tokens = temperature, tokens
        chunks = _ChunkLogits(hidden, head)
        parts = [kernels.logits_to_logprobs(chunks(part), targets[part], temperature) for part in chunks.parts]
        logprobs, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, head, targets, logprobs)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        hidden, head, targets, logprobs = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        tokens = ctx.tokens if ctx.needs_input_grad[4] else None
        grad_rows = None if tokens is None else head.new_zeros(len(tokens), head.shape[1], dtype=torch.float32)
        chunks = _ChunkLogits(hidden, head)
        for part in chunks.parts:
            logits = chunks(part)
            kernels.logits_to_logprobs_backward_(logits, targets[part], grads[0][part], ctx.temperature, logprobs[part])
            grad_hidden[part] = logits @ head
            if grad_head is not None:
                grad_head += logits.T @ hidden[part]
            if grad_rows is not None:
                grad_rows += logits[:, tokens].T @ hidden[part]
        # The sum over chunks is in float32: in bfloat16, each addition would round it.
        grads_of_weights = [None if grad is None else grad.to(head.dtype) for grad in (grad_head, grad_rows)]
        return grad_hidden, grads_of_weights[0], None, None, grads_of_weights[1], None
