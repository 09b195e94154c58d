"""A critic that shares its layers with the policy: a linear head on the model's last hidden states."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from understudy.algorithms import losses
from understudy.algorithms.losses import Outcome
from understudy.algorithms.options import Critic
from understudy.engines.local.config import Optimizer
from understudy.engines.local.optimizer import MasterAdamW

PREFIX = "critic."


class ValueHead:
    """In float32, zero at first, with an optimizer of its own; the gradient's norm is clipped apart from the model's.

    The product with the hidden state is over its width D (Yang & Hu 2022, arXiv:2203.03466), so that one learning rate
    means the same for models of every width.
    """

    def __init__(self, width: int, device: torch.device, options: Critic, optimizer: Optimizer) -> None:
        self._options = options
        self._weight, self._bias = (nn.Parameter(torch.zeros(n, device=device)) for n in (width, 1))
        self._optimizer = MasterAdamW({"weight": self._weight, "bias": self._bias}, optimizer)

    def values(self, hidden: Tensor) -> Tensor:
        """Values [M] of hidden states [M, D]."""
        return hidden.float() @ self._weight / len(self._weight) + self._bias

    def loss(self, hidden: Tensor, which: Tensor, old: Tensor, returns: Tensor, weights: Tensor) -> Outcome:
        """The value loss of the states `hidden[which]`; those that weigh nothing are no steps.

        Into the layers below goes `coefficient` times its gradient.
        """
        share = self._options.coefficient
        below = hidden.detach() + share * (hidden - hidden.detach()) if share else hidden.detach()
        return losses.value_loss(self.values(below)[which], old, returns, weights, weights > 0, self._options.clip)

    def update(self) -> float:
        """Move the head by the gradients summed up since the last step; returns their norm before clipping."""
        return self._optimizer.step(self._options.learning_rate)

    def state(self) -> dict[str, Tensor]:
        """Weights and moments, as flat named tensors."""
        return {PREFIX + key: value for key, value in self._optimizer.state().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`; other tensors are left alone. A ValueError where there are none of this shape."""
        own = {key.removeprefix(PREFIX): value for key, value in tensors.items() if key.startswith(PREFIX)}
        self._optimizer.restore(own)
