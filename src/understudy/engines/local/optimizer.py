"""AdamW on float32 master weights under weights of any precision.

A gradient moves to its master's float32 sum as soon as it is whole, so that micro-batches add up without rounding and
no second set of gradients is held.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from understudy.engines.local.config import Optimizer


class MasterAdamW:
    """Owns the masters, their gradients and the moments of `parameters`."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: Optimizer) -> None:
        self._config = config
        self._parameters = dict(parameters)
        self.masters = {name: p.detach().float().clone() for name, p in self._parameters.items()}
        for name, parameter in self._parameters.items():
            self.masters[name].grad = torch.zeros_like(self.masters[name])
            parameter.register_post_accumulate_grad_hook(self._collector(self.masters[name]))  # type: ignore[no-untyped-call]
        self.change = 0.0
        """How far the last step moved the weights as the model has them: the norm of that over theirs."""
        self.reset()

    def reset(self) -> None:
        """Forget the moments."""
        self._adam = torch.optim.AdamW(
            list(self.masters.values()),
            betas=(self._config.beta1, self._config.beta2),
            weight_decay=self._config.weight_decay,
            fused=True,
        )

    def step(self, learning_rate: float) -> float:
        """Move the weights by the gradients summed up since the last step; returns their norm before clipping."""
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        norm = nn.utils.clip_grad_norm_(self.masters.values(), self._config.max_grad_norm).item()
        self._adam.step()
        for master in self.masters.values():
            assert master.grad is not None  # set in __init__, never dropped
            master.grad.zero_()
        self.change = self.publish()
        return norm

    @torch.no_grad()
    def publish(self) -> float:
        """Write the masters into the model; returns the norm of what that changed over the norm of all.

        Weights of low precision stay as they are where a step is smaller than their rounding: then it is 0.
        """
        moved, size = [], []
        for name, parameter in self._parameters.items():
            new = self.masters[name].to(parameter.dtype)
            moved.append(torch.linalg.vector_norm(new - parameter, dtype=torch.float32))
            size.append(torch.linalg.vector_norm(new, dtype=torch.float32))
            parameter.copy_(new)
        change, whole = (float(torch.linalg.vector_norm(torch.stack(norms))) for norms in (moved, size))
        return change / whole if whole else change

    def state(self) -> dict[str, Tensor]:
        """Masters and moments, as flat named tensors."""
        tensors = {f"master.{name}": master for name, master in self.masters.items()}
        for name, master in self.masters.items():
            for key, value in self._adam.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = value
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`. Tensors of other parameters are a ValueError, and change nothing."""
        theirs = {key: value.shape for key, value in tensors.items() if key.startswith("master.")}
        ours = {f"master.{name}": master.shape for name, master in self.masters.items()}
        if theirs != ours:
            differing = min(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))
            raise ValueError(f"{differing} is {theirs.get(differing)} there and {ours.get(differing)} here")
        self.reset()
        for name, master in self.masters.items():
            master.copy_(tensors[f"master.{name}"])
            state: dict[str, Any] = {
                key: tensors[f"{key}.{name}"].to(master.device, copy=True)
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{key}.{name}" in tensors
            }
            if state:
                self._adam.state[master] = state
        self.publish()

    @staticmethod
    def _collector(master: Tensor) -> Any:
        def collect(parameter: Tensor) -> None:
            assert master.grad is not None
            assert parameter.grad is not None
            master.grad += parameter.grad
            parameter.grad = None

        return collect
