"""AdamW on float32 master weights for model weights of any dtype.

A gradient is added to its master's float32 sum as soon as it is complete. So microbatches add up without rounding, and
no second set of gradients is stored. `load_master_weights` reads only the masters of a checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from understudy.engines.local.config import OptimizerConfig
from understudy.engines.local.cpu import kernels
from understudy.engines.local.transfers import widest_float

if TYPE_CHECKING:
    from understudy.engines.local.distributed.fsdp import FSDPShards

MASTER_PREFIX = "master."
"""Prefix of the names of master weights in `MasterAdamW.state_dict`."""


class MasterAdamW:
    """Masters, gradients and moments of `parameters`. With FSDP, this process's shards of them."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        config: OptimizerConfig,
        shards: "FSDPShards | None" = None,
        rate_factors: Mapping[str, float] | None = None,
    ) -> None:
        """`rate_factors` multiply the learning rate of parameters; it is 1 for those that have none."""
        self._config, self._shards, self._rate_factors = config, shards, rate_factors or {}
        self._parameters = dict(parameters)
        self.masters = {name: local_tensor(p.detach()).float().clone() for name, p in self._parameters.items()}
        for name, parameter in self._parameters.items():
            self.masters[name].grad = torch.zeros_like(self.masters[name])
            parameter.register_post_accumulate_grad_hook(self._collector(self.masters[name]))  # type: ignore[no-untyped-call]
        self.relative_change = torch.zeros(())
        """Norm of the last step's change of the model's weights, relative to the norm of the weights."""
        self.reset_moments()

    def reset_moments(self) -> None:
        """Reset the moments."""
        groups: dict[float, list[Tensor]] = {}
        for name, master in self.masters.items():
            groups.setdefault(self._rate_factors.get(name, 1.0), []).append(master)
        self._adam = torch.optim.AdamW(
            [{"params": masters, "factor": factor} for factor, masters in groups.items()],
            betas=(self._config.beta1, self._config.beta2),
            eps=self._config.eps,
            weight_decay=self._config.weight_decay,
            fused=True,
        )

    def step(self, learning_rate: float) -> Tensor:
        """Take a step with the accumulated gradients. Return their norm before clipping, on their device.

        If the norm is not finite, the gradients are dropped, and masters and moments stay as they are.
        """
        for group in self._adam.param_groups:
            group["lr"] = learning_rate * group["factor"]
        gradients = dict(self._gradients())
        norm = self._norm({name: torch.linalg.vector_norm(gradient) for name, gradient in gradients.items()})
        nn.utils.clip_grads_with_norm_(self.masters.values(), self._config.max_grad_norm, norm)
        self._adam.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]  # the fused step reads it
        self._adam.step()
        for gradient in gradients.values():
            gradient.zero_()
        self.relative_change = self.copy_to_model()
        return norm

    def unreduced_gradients(self) -> list[Tensor]:
        """The accumulated gradients that are not yet summed over ranks. FSDP sums those of sharded parameters
        itself."""
        shards = self._shards
        return [gradient for name, gradient in self._gradients() if not (shards and shards.is_sharded(name))]

    def fingerprint(self) -> str:
        """Return a number that is equal on ranks with equal master weights.

        Sharded weights are left out: each rank has another shard of them.
        """
        shards = self._shards
        sums = [
            m.sum(dtype=torch.float64) for name, m in self.masters.items() if not (shards and shards.is_sharded(name))
        ]
        return float(torch.stack(sums).sum()).hex() if sums else ""

    @torch.no_grad()
    def copy_to_model(self) -> Tensor:
        """Copy the masters to the model. Return the norm of the change relative to the norm of the weights.

        Low-precision weights do not change if the step is smaller than their rounding. Then the result is 0.
        """
        moved, size = {}, {}
        for name, parameter in self._parameters.items():
            moved[name], size[name] = kernels.copy_rounded_(local_tensor(parameter), self.masters[name])
        change, whole = (norm.to(widest_float(norm.device)) for norm in (self._norm(moved), self._norm(size)))
        return torch.where(whole != 0, change / whole, change)

    def state_dict(self) -> dict[str, Tensor]:
        """Return masters and moments, unsharded, as flat named tensors."""
        tensors = {}
        for name, master in self.masters.items():
            for key, value in {"master": master, **self._adam.state.get(master, {})}.items():
                tensors[f"{key}.{name}"] = self._shards.gather(name, value) if self._shards else value
        return tensors

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` returned. Raise ValueError, without changes, if the tensors belong to other
        parameters."""
        _validate_shapes({key: tensor.shape for key, tensor in tensors.items()}, self._parameters)
        self.reset_moments()
        for name, master in self.masters.items():
            master.copy_(self._part(name, tensors[MASTER_PREFIX + name]))
            state: dict[str, Any] = {
                key: self._part(name, tensors[f"{key}.{name}"]).to(master.device, copy=True)
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{key}.{name}" in tensors
            }
            if state:
                self._adam.state[master] = state
        self.copy_to_model()

    def _part(self, name: str, whole: Tensor) -> Tensor:
        return self._shards.shard(name, whole) if self._shards else whole

    def _gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, master in self.masters.items():
            assert master.grad is not None  # set in __init__
            yield name, master.grad

    def _norm(self, norms: Mapping[str, Tensor]) -> Tensor:
        """Return the global norm from the norms of the parameters."""
        return (
            self._shards.global_norm(norms)
            if self._shards
            else torch.linalg.vector_norm(torch.stack([*norms.values()]))
        )

    @staticmethod
    def _collector(master: Tensor) -> Any:
        def collect(parameter: Tensor) -> None:
            assert master.grad is not None
            assert parameter.grad is not None
            kernels.add_widened_(master.grad, local_tensor(parameter.grad))
            parameter.grad = None

        return collect


@torch.no_grad()
def load_master_weights(file: Any, parameters: Mapping[str, nn.Parameter], shards: "FSDPShards | None" = None) -> None:
    """Copy the master weights of an open safetensors file to a model, one at a time, without the moments.

    The parameters then equal those after `MasterAdamW.load_state_dict`, but no optimizer is needed. Raise ValueError,
    without changes, if the masters belong to other parameters.
    """
    _validate_shapes({key: file.get_slice(key).get_shape() for key in file.keys()}, parameters)  # noqa: SIM118
    for name, parameter in parameters.items():
        master = file.get_tensor(MASTER_PREFIX + name)
        local_tensor(parameter).copy_(shards.shard(name, master) if shards else master)


def _validate_shapes(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ValueError if the tensors of a state, with these shapes, do not belong to these parameters."""
    stored = {key: tuple(shape) for key, shape in shapes.items() if key.startswith(MASTER_PREFIX)}
    expected = {MASTER_PREFIX + name: tuple(parameter.shape) for name, parameter in parameters.items()}
    if stored != expected:
        differing = min(key for key in stored.keys() | expected.keys() if stored.get(key) != expected.get(key))
        raise ValueError(f"shape of {differing}: {stored.get(differing)}, expected {expected.get(differing)}")


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, or the tensor itself without FSDP."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the unsharded tensor. With FSDP, all processes must call this."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
