"""Device and memory of this machine, for memory planning, and the memory in use."""

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.records import Record
from understudy.engines.local.config import LocalEngineConfig

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with the memory limit of a container: of version 2 and 1 of control groups."""
GPU_MEMORY = MappingProxyType({"a100": 79 << 30, "h100": 79 << 30, "h200": 139 << 30})
"""Bytes that torch can use of GPUs of 80, 80 and 141 GB, rounded down. vLLM issue 27508 has 79.11 GiB for an H100."""


class Machine(Record):
    """Properties of the machine that determine the memory use of an engine.

    `detect_machine` creates it; that imports torch and loads no model.
    """

    device: str
    dtype_bytes: int
    """Bytes of a number in the model's dtype."""
    fused_kernels: bool
    """True if fused kernels replace transformers' modules."""
    packs_weights: bool
    """True if linear layers keep a second copy of their weights for sampling."""
    memory_used: int
    """Bytes in use by this process before a model is loaded. On a GPU: device memory used by this process."""
    memory_total: int
    """Total memory in bytes."""
    kernels_missing: str = ""
    """Why a CPU computes without the fused kernels. Empty if it has them, and for other devices."""

    @property
    def warnings(self) -> list[str]:
        """Lines that say why this machine is slower than it could be, and what to do."""
        if not self.kernels_missing:
            return []
        return [f"slower, without the fused kernels: {self.kernels_missing}"]


def detect_machine(config: LocalEngineConfig) -> Machine:
    """Return the machine that an engine with this config would use. Raise ConfigError if the device is not
    available."""
    from understudy.engines.local.cpu import fuse, kernel_library
    from understudy.engines.local.model import choose_device, choose_dtype

    if config.uses_lora:
        import peft  # noqa: F401  (its own memory counts as used)

    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    on_cpu = device.type == "cpu"
    return Machine(
        device=device.type,
        dtype_bytes=dtype.itemsize,
        fused_kernels=on_cpu and kernel_library.kernels_available(dtype),
        packs_weights=on_cpu and fuse.should_pack_weights(dtype),
        memory_used=_in_use(device.type),
        memory_total=_total(device.type),
        kernels_missing=kernel_library.kernels_unavailable_reason(dtype) if on_cpu else "",
    )


def planned_gpu(name: str, config: LocalEngineConfig) -> Machine:
    """Return a machine with a GPU of `GPU_MEMORY` that is not used yet. Raise ConfigError for another name."""
    if name not in GPU_MEMORY:
        raise ConfigError(f"unknown GPU {did_you_mean(name, GPU_MEMORY)}")
    if config.device not in ("auto", "cuda"):
        raise ConfigError(f"engine.device = {config.device!r}: a plan for a GPU needs cuda; leave it out")
    return Machine(
        device="cuda",
        dtype_bytes=4 if config.dtype == "float32" else 2,
        fused_kernels=False,
        packs_weights=False,
        memory_used=0,
        memory_total=GPU_MEMORY[name],
    )


def peak_memory_bytes(device: str) -> int:
    """Return the peak memory in bytes: of the process on a CPU, of this process's tensors on a GPU."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    most = _high_water() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _high_water() -> int:
    """Return the peak memory of this process in KiB, or 0 without /proc.

    Preferred to getrusage, which also counts memory from before exec.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _in_use(device: str) -> int:
    if device == "cuda":
        import torch

        return int(torch.cuda.memory_allocated())
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * resource.getpagesize() if pages.exists() else peak_memory_bytes(device)


def _total(device: str) -> int:
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[1])
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_cgroup_limits()])


def _cgroup_limits() -> Iterator[int]:
    """Yield the memory limits in bytes of the control group of this process, as in a container."""
    for path in CGROUP_LIMITS:
        with contextlib.suppress(OSError):
            text = path.read_text().strip()
            if text.isdigit():  # "max" sets no limit
                yield int(text)
