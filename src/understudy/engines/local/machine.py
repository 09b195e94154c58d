"""The machine as the engine sees it: what decides how much memory a run takes, and how much is in use."""

import os
import resource
import sys
from pathlib import Path

from understudy.engines.local.config import LocalConfig
from understudy.records import Record


class Machine(Record):
    """Where a config's model would live. Making one loads torch, and no model."""

    device: str
    item: int
    """Bytes of a number in the model's dtype."""
    fused: bool
    """Whether fused kernels stand in for transformers' modules."""
    packs: bool
    """Whether linear layers keep a second copy of their weights for sampling."""
    taken: int
    """Bytes of this process before there is a model; on a GPU those of the device that this process has."""
    total: int
    """Bytes of memory that there are in all."""


def find_machine(config: LocalConfig) -> Machine:
    """The machine that an engine of this config would run on. Raises ConfigError for a device that is not there."""
    from understudy.engines.local import compiled, fuse
    from understudy.engines.local.model import choose_device, choose_dtype

    if config.adapters:
        import peft  # noqa: F401  (it takes memory itself)

    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    on_cpu = device.type == "cpu"
    return Machine(
        device=device.type,
        item=dtype.itemsize,
        fused=on_cpu and compiled.available(dtype),
        packs=on_cpu and fuse.packs(dtype),
        taken=_in_use(device.type),
        total=_total(device.type),
    )


def peak_bytes(device: str) -> int:
    """The most memory that was in use at once: the process's on a CPU, this process's tensors on a GPU."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    most = _high_water() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _high_water() -> int:
    """KiB; 0 where Linux does not tell. (getrusage counts in what the process had before it became this program.)"""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _in_use(device: str) -> int:
    if device == "cuda":
        import torch

        return int(torch.cuda.memory_allocated())
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * resource.getpagesize() if pages.exists() else peak_bytes(device)


def _total(device: str) -> int:
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
