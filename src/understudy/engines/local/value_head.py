"""A critic that shares the policy's layers: a linear head on the last hidden states."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from understudy.algorithms import losses
from understudy.algorithms.batch import LossOutput
from understudy.algorithms.config import CriticConfig
from understudy.engines.local.config import OptimizerConfig
from understudy.engines.local.optimizer import MasterAdamW

STATE_PREFIX = "critic."


class ValueHead:
    """A float32 head, zero at first, with its own optimizer and its own gradient clipping.

    The product with the hidden state is divided by its width D (Yang & Hu 2022, arXiv:2203.03466), so that one learning
    rate works for models of every width.
    """

    def __init__(self, width: int, device: torch.device, options: CriticConfig, optimizer: OptimizerConfig) -> None:
        self._options = options
        self._weight, self._bias = (nn.Parameter(torch.zeros(n, device=device)) for n in (width, 1))
        self._optimizer = MasterAdamW({"weight": self._weight, "bias": self._bias}, optimizer)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return values [M] of hidden states [M, D]."""
        return hidden.float() @ self._weight / len(self._weight) + self._bias

    def loss(self, hidden: Tensor, indices: Tensor, old_values: Tensor, returns: Tensor, weights: Tensor) -> LossOutput:
        """Return the value loss at the states `hidden[indices]`.

        The layers below receive `vf_coef` times its gradient.
        """
        share = self._options.vf_coef
        below = hidden.detach() + share * (hidden - hidden.detach()) if share else hidden.detach()
        values = self.forward(below)[indices]
        every = torch.ones_like(values, dtype=torch.bool)
        return losses.value_loss(values, old_values, returns, weights, every, self._options.value_clip)

    @property
    def unreduced_gradients(self) -> list[Tensor]:
        """Gradients accumulated since the last step, not yet summed over ranks."""
        return self._optimizer.unreduced_gradients()

    def step(self) -> Tensor:
        """Take a step with the accumulated gradients. Return their norm before clipping, on their device."""
        return self._optimizer.step(self._options.learning_rate)

    def state_dict(self) -> dict[str, Tensor]:
        """Return weights and moments as flat named tensors."""
        return {STATE_PREFIX + key: value for key, value in self._optimizer.state_dict().items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` returned, ignoring other tensors. Raise ValueError if tensors of this shape are
        missing."""
        names = [name for name in tensors if name.startswith(STATE_PREFIX)]
        self._optimizer.load_state_dict({name.removeprefix(STATE_PREFIX): tensors[name] for name in names})
