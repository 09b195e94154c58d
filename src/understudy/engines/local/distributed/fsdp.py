"""Shards a model's layers and their training state over the processes of a group.

Uses FSDP2 (torch's `fully_shard`; Zhao et al. 2023, arXiv:2304.11277). In an update a process holds the weights of one
layer at a time and its shard of the gradients. Between updates each process holds all weights, because it samples on
its own. Embeddings, output head and the last norm are not sharded.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from understudy.engines.local.cpu.fuse import invalidate_packed_weights
from understudy.engines.process_group import ProcessGroup


class FSDPShards:
    """A network body whose layers are sharded, each parameter along its first dimension."""

    def __init__(self, body: nn.Module, process_group: ProcessGroup, device: torch.device) -> None:
        """Shard the layers in place. All processes have the same weights."""
        self._body, self._process_group, self._device = body, process_group, device
        mesh = init_device_mesh(device.type, (process_group.world_size,))
        layers = [module for module in body.modules() if isinstance(module, GradientCheckpointingLayer)]
        inside = {parameter for layer in layers for parameter in layer.parameters()}
        for layer in layers:
            fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
        fully_shard(body, mesh=mesh, ignored_params={p for p in body.parameters() if p not in inside})
        self._layers = [module for module in body.modules() if isinstance(module, FSDPModule)]
        for layer in self._layers:
            layer.set_gradient_divide_factor(1.0)  # gradients are sums
            layer.set_force_sum_reduction_for_comms(True)
        self._sharded_parameters: dict[str, DTensor] = {}

    def register(self, trained: Mapping[str, Tensor]) -> None:
        """Set the trained parameters, by the names that the other methods use."""
        self._sharded_parameters = {
            name: parameter for name, parameter in trained.items() if isinstance(parameter, DTensor)
        }

    def is_sharded(self, name: str) -> bool:
        """Return True if the parameter of this name is sharded."""
        return name in self._sharded_parameters

    def unshard(self) -> None:
        """Gather the full weights from the current shards. All processes must call this."""
        self.reshard()
        for layer in self._layers:
            layer.set_reshard_after_forward(False, recurse=False)
            with self._process_group.detect_lost_ranks():
                layer.unshard()
        invalidate_packed_weights(self._body)

    def reshard(self) -> None:
        """Free the full weights. Forward passes then gather one layer at a time."""
        for layer in self._layers:
            layer.reshard()
            layer.set_reshard_after_forward(True, recurse=False)

    def shard(self, name: str, whole: Tensor) -> Tensor:
        """Return this process's shard of a tensor with the shape of a parameter."""
        if not self.is_sharded(name) or not whole.dim():
            return whole
        parts = whole.chunk(self._process_group.world_size)
        return parts[self._process_group.rank] if self._process_group.rank < len(parts) else whole[:0]

    def gather(self, name: str, part: Tensor) -> Tensor:
        """Return the full tensor in CPU memory on rank 0, given this process's shard. All processes must call this."""
        if not self.is_sharded(name) or not part.dim():
            return part
        parameter = self._sharded_parameters[name]
        shape, stride = parameter.shape, parameter.stride()
        placed = DTensor.from_local(
            part, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=stride
        )
        with self._process_group.detect_lost_ranks():
            whole = placed.full_tensor()
        return part if self._process_group.rank else whole.cpu()

    def global_norm(self, norms: Mapping[str, Tensor]) -> Tensor:
        """Return the global norm, given the norm of each parameter or of its local shard. All processes must call
        this."""
        parts, wholes = (torch.zeros(1, device=self._device) for _ in range(2))
        for name, norm in norms.items():
            (parts if self.is_sharded(name) else wholes).add_(norm.square())
        self._process_group.all_reduce_([parts])
        return (parts + wholes).sqrt()[0]
