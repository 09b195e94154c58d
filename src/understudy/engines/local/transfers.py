"""Copies between host and device. On a GPU a copy in either direction may wait until the GPU has done its work."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device. Pinned memory is copied to a GPU in turn with its work, so the host does not wait
    (torch's tutorial "A guide on good usage of non_blocking and pin_memory()")."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_host(vectors: Sequence[Tensor]) -> list[Tensor]:
    """Copy vectors of one dtype on one device to the CPU, with a single copy."""
    if not vectors:
        return []
    return list(torch.split(torch.cat([*vectors]).cpu(), [len(vector) for vector in vectors]))


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest dtype of real numbers on a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def read_numbers(*vectors: Tensor) -> list[list[float]]:
    """Return the numbers of vectors on one device, of any dtype up to 64 bits, with a single copy to the host."""
    if all(vector.is_cpu for vector in vectors):
        return [vector.tolist() for vector in vectors]
    wide = widest_float(vectors[0].device)
    numbers = iter(torch.cat([vector.detach().to(wide) for vector in vectors]).tolist())
    return [list(itertools.islice(numbers, len(vector))) for vector in vectors]
