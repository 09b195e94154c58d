"""From hidden states to log-probabilities of chosen tokens, without ever holding [N, V] logits.

Logits live for one chunk of positions at a time; the backward pass computes them again.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.engines.local import kernels

CHUNK = 512  # positions: 512 x 50k logits in bf16 are 50 MB


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities [M] of `targets` [M] at `temperature`, with gradient, and entropies [M], without.

    `hidden` [M, D] are the states that predict them, `head` [V, D] the output weights.
    """
    return TokenLogprobs.apply(hidden, head, targets, temperature)  # type: ignore[no-any-return, no-untyped-call]


class TokenLogprobs(torch.autograd.Function):
    """See `token_logprobs`."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:  # noqa: D102
        ctx.temperature = temperature
        parts = [
            kernels.token_logprobs(F.linear(x, head), y, temperature)
            for x, y in zip(torch.split(hidden, CHUNK), torch.split(targets, CHUNK), strict=True)
        ]
        logprobs, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, head, targets, logprobs)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        hidden, head, targets, logprobs = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logits = F.linear(hidden[part], head)
            kernels.token_logprobs_backward_(logits, targets[part], grads[0][part], ctx.temperature, logprobs[part])
            grad_hidden[part] = logits @ head
            if grad_head is not None:
                grad_head += logits.T @ hidden[part]
        return grad_hidden, grad_head, None, None
