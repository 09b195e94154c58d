"""AdamW on float32 master weights under weights of any precision.

A gradient moves to its master's float32 sum as soon as it is whole, so that micro-batches add up without rounding and
no second set of gradients is held. Whoever only reads a model takes the masters of a checkpoint without any of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from understudy.engines.local.config import Optimizer

if TYPE_CHECKING:
    from understudy.engines.local.sharded import Shards

MASTER = "master."
"""What the name of a parameter follows, in the name of its master in `MasterAdamW.state`."""


class MasterAdamW:
    """Owns the masters, their gradients and the moments of `parameters`; of those that are divided, this process's."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], config: Optimizer, shards: "Shards | None" = None
    ) -> None:
        self._config, self._shards = config, shards
        self._parameters = dict(parameters)
        self.masters = {name: own(p.detach()).float().clone() for name, p in self._parameters.items()}
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
        gradients = dict(self._gradients())
        norm = self._norm({name: torch.linalg.vector_norm(gradient) for name, gradient in gradients.items()})
        nn.utils.clip_grads_with_norm_(self.masters.values(), self._config.max_grad_norm, norm)
        self._adam.step()
        for gradient in gradients.values():
            gradient.zero_()
        self.change = self.publish()
        return norm.item()

    def summed_alone(self) -> list[Tensor]:
        """The gradients that hold what this process's passes came to; those of shards hold what all came to."""
        shards = self._shards
        return [gradient for name, gradient in self._gradients() if not (shards and shards.divides(name))]

    def fingerprint(self) -> str:
        """A number that is the same where masters are; of shards there is no second copy to compare with."""
        shards = self._shards
        kept = [m.sum(dtype=torch.float64) for name, m in self.masters.items() if not (shards and shards.divides(name))]
        return float(torch.stack(kept).sum()).hex() if kept else ""

    @torch.no_grad()
    def publish(self) -> float:
        """Write the masters into the model; returns the norm of what that changed over the norm of all.

        Weights of low precision stay as they are where a step is smaller than their rounding: then it is 0.
        """
        moved, size = {}, {}
        for name, parameter in self._parameters.items():
            old, new = own(parameter), self.masters[name].to(parameter.dtype)
            moved[name] = torch.linalg.vector_norm(new - old, dtype=torch.float32)
            size[name] = torch.linalg.vector_norm(new, dtype=torch.float32)
            old.copy_(new)
        change, whole = (float(self._norm(norms)) for norms in (moved, size))
        return change / whole if whole else change

    def state(self) -> dict[str, Tensor]:
        """Masters and moments, whole, as flat named tensors."""
        tensors = {}
        for name, master in self.masters.items():
            for key, value in {"master": master, **self._adam.state.get(master, {})}.items():
                tensors[f"{key}.{name}"] = self._shards.whole(name, value) if self._shards else value
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`. Tensors of other parameters are a ValueError, and change nothing."""
        _refuse_other({key: tensor.shape for key, tensor in tensors.items()}, self._parameters)
        self.reset()
        for name, master in self.masters.items():
            master.copy_(self._part(name, tensors[MASTER + name]))
            state: dict[str, Any] = {
                key: self._part(name, tensors[f"{key}.{name}"]).to(master.device, copy=True)
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{key}.{name}" in tensors
            }
            if state:
                self._adam.state[master] = state
        self.publish()

    def _part(self, name: str, whole: Tensor) -> Tensor:
        return self._shards.part(name, whole) if self._shards else whole

    def _gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, master in self.masters.items():
            assert master.grad is not None  # set in __init__, never dropped
            yield name, master.grad

    def _norm(self, norms: Mapping[str, Tensor]) -> Tensor:
        """The norm of all out of those of each parameter's."""
        return self._shards.norm(norms) if self._shards else torch.linalg.vector_norm(torch.stack([*norms.values()]))

    @staticmethod
    def _collector(master: Tensor) -> Any:
        def collect(parameter: Tensor) -> None:
            assert master.grad is not None
            assert parameter.grad is not None
            master.grad += own(parameter.grad)
            parameter.grad = None

        return collect


@torch.no_grad()
def take_masters(file: Any, parameters: Mapping[str, nn.Parameter], shards: "Shards | None" = None) -> None:
    """Write the masters in an open safetensors file into a model, one at a time; the moments are not read.

    Parameters are then what `MasterAdamW.restore` makes them. Masters of others are a ValueError, and change nothing.
    """
    _refuse_other({key: file.get_slice(key).get_shape() for key in file.keys()}, parameters)  # noqa: SIM118
    for name, parameter in parameters.items():
        master = file.get_tensor(MASTER + name)
        own(parameter).copy_(shards.part(name, master) if shards else master)


def _refuse_other(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, nn.Parameter]) -> None:
    """A ValueError where the tensors of a state, of these shapes, are not of these parameters."""
    theirs = {key: tuple(shape) for key, shape in shapes.items() if key.startswith(MASTER)}
    ours = {MASTER + name: tuple(parameter.shape) for name, parameter in parameters.items()}
    if theirs != ours:
        differing = min(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))
        raise ValueError(f"{differing} is {theirs.get(differing)} there and {ours.get(differing)} here")


def own(tensor: Tensor) -> Tensor:
    """What this process has of a tensor: its shard, where FSDP has divided it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor. Where FSDP has divided it, all processes call this, or none."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
