"""Copies between host and device. On a GPU a copy in either direction may wait until the GPU has done its work."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device. Pinned memory is copied to a GPU in turn with its work, so the host does not wait
    (torch's tutorial "A guide on good usage of non_blocking and pin_memory()")."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
