"""Shards: a model's layers, and all that training keeps of them, divided among the processes of a crew.

By FSDP2 (torch's `fully_shard`; Zhao et al. 2023, arXiv:2304.11277). In an update a process has the weights of one
layer at a time, and its shard of the gradients. Between updates each has all weights, because it samples from them on
its own. Embeddings, output head and the last norm are not divided.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from understudy.crew import Crew
from understudy.engines.local.fuse import forget_packed


class Shards:
    """A body whose layers are divided, each parameter by its first axis."""

    def __init__(self, body: nn.Module, crew: Crew, device: torch.device) -> None:
        """Divides the layers in place; all processes have the same weights."""
        self._body, self._crew, self._device = body, crew, device
        mesh = init_device_mesh(device.type, (crew.size,))
        layers = [module for module in body.modules() if isinstance(module, GradientCheckpointingLayer)]
        inside = {parameter for layer in layers for parameter in layer.parameters()}
        for layer in layers:
            fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
        fully_shard(body, mesh=mesh, ignored_params={p for p in body.parameters() if p not in inside})
        self._layers = [module for module in body.modules() if isinstance(module, FSDPModule)]
        for layer in self._layers:
            layer.set_gradient_divide_factor(1.0)  # gradients are sums
            layer.set_force_sum_reduction_for_comms(True)
        self._divided: dict[str, DTensor] = {}

    def name(self, trained: Mapping[str, Tensor]) -> None:
        """The parameters that are trained, by the names that they have in what follows."""
        self._divided = {name: parameter for name, parameter in trained.items() if isinstance(parameter, DTensor)}

    def divides(self, name: str) -> bool:
        """Whether the parameter of this name is divided."""
        return name in self._divided

    def together(self) -> None:
        """Put whole weights in place, those of the shards as they are now. All call this, or none."""
        self.apart()
        for layer in self._layers:
            layer.set_reshard_after_forward(False, recurse=False)
            layer.unshard()
        forget_packed(self._body)

    def apart(self) -> None:
        """Let go of the whole weights: passes fetch those of a layer when they come to it."""
        for layer in self._layers:
            layer.reshard()
            layer.set_reshard_after_forward(True, recurse=False)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This process's shard of a tensor that has the shape of a parameter."""
        if not self.divides(name) or not whole.dim():
            return whole
        parts = whole.chunk(self._crew.size)
        return parts[self._crew.rank] if self._crew.rank < len(parts) else whole[:0]

    def whole(self, name: str, part: Tensor) -> Tensor:
        """The inverse of `part` for the first process, in the CPU's memory. All call this, or none."""
        if not self.divides(name) or not part.dim():
            return part
        parameter = self._divided[name]
        shape, stride = parameter.shape, parameter.stride()
        placed = DTensor.from_local(
            part, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=stride
        )
        whole = placed.full_tensor()
        return part if self._crew.rank else whole.cpu()

    def norm(self, norms: Mapping[str, Tensor]) -> Tensor:
        """The norm of all out of those of each parameter, or of this process's shard. All call this, or none."""
        parts, wholes = (torch.zeros(1, device=self._device) for _ in range(2))
        for name, norm in norms.items():
            (parts if self.divides(name) else wholes).add_(norm.square())
        self._crew.add_([parts])
        return (parts + wholes).sqrt()[0]
