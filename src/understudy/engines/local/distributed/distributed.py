"""TorchProcessGroup: several processes that communicate through torch.distributed.

Objects and CPU tensors go through gloo over the loopback interface, GPU tensors through NCCL.
"""

import contextlib
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout

from understudy.core.errors import ConfigError, RolloutError
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.process_group import RANK_VARIABLES, ProcessGroup, RankInfo

T = TypeVar("T")
FAILURE_GRACE_SECONDS = 10.0
"""Seconds to wait after a rank is lost, so that the launcher can report its error and end the others first."""
_TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)


class TorchProcessGroup(ProcessGroup):
    """A group of processes on one machine."""

    def __init__(self, rank_info: RankInfo) -> None:
        """Wait until all processes have joined, at most as long as `collective_timeout` allows by default."""
        self._timeout = LocalEngineConfig().collective_timeout
        self.rank, self.world_size, self._rank_info = rank_info.rank, rank_info.world_size, rank_info
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with self.detect_lost_ranks():
            dist.init_process_group(
                backend,
                rank=rank_info.rank,
                world_size=rank_info.world_size,
                timeout=timedelta(seconds=self._timeout),
            )
        for name in RANK_VARIABLES:  # subprocesses, such as vLLM, must not join the group
            os.environ.pop(name, None)

    def all_gather(self, value: T) -> list[T]:
        """See `ProcessGroup.all_gather`."""
        values: list[T | None] = [None] * self.world_size
        with self.detect_lost_ranks():
            dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def all_reduce_(self, tensors: Iterable[Tensor]) -> None:
        """See `ProcessGroup.all_reduce_`."""
        with self.detect_lost_ranks():
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                assert work is not None
                work.wait()

    def set_timeout(self, seconds: float) -> None:
        """See `ProcessGroup.set_timeout`."""
        self._timeout = seconds
        _set_pg_timeout(timedelta(seconds=seconds))

    def close(self) -> None:
        """Leave the group, at the end of a run or after an error. This does not wait for the other processes."""
        dist.destroy_process_group()

    @contextlib.contextmanager
    def detect_lost_ranks(self) -> Iterator[None]:
        """See `ProcessGroup.detect_lost_ranks`. If another process has ended, wait before raising, since the launcher
        knows that process's own error."""
        try:
            yield
        except RuntimeError as e:  # gloo has no error class
            if not isinstance(e, dist.DistError) and "gloo" not in str(e):
                raise
            if _TIMED_OUT.search(str(e)):
                raise RolloutError(
                    f"{self._rank_info}: another process has not answered for {self._timeout:g} s "
                    "(engine.collective_timeout); see what it waits for, or raise the limit, and resume the run",
                    "engine",
                ) from e
            time.sleep(FAILURE_GRACE_SECONDS)
            raise RolloutError(f"{self._rank_info}: another process has ended; see its error", "engine") from e


def sum_across_ranks(process_group: ProcessGroup, sums: Mapping[str, float]) -> dict[str, float]:
    """Return the sums over all ranks, by name."""
    totals: dict[str, float] = defaultdict(float)
    for part in process_group.all_gather(dict(sums)):
        for name, value in part.items():
            totals[name] += value
    return dict(totals)


def validate_same_weights(process_group: ProcessGroup, fingerprint: str) -> None:
    """Raise RolloutError if the fingerprints of the ranks' weights differ."""
    if len(set(fingerprints := process_group.all_gather(fingerprint))) > 1:
        raise RolloutError(f"the weights differ between processes: fingerprints {', '.join(fingerprints)}", "engine")


def validate_devices(process_group: ProcessGroup, device: torch.device) -> None:
    """Raise ConfigError if the processes use different kinds of devices, or share a device that supports one process
    only.
    """
    if process_group.world_size == 1:
        return
    kinds = process_group.all_gather(device.type)
    if len(set(kinds)) > 1:
        raise ConfigError(
            f"only {kinds.count('cuda')} of {process_group.world_size} processes have a GPU; "
            "start at most one process per GPU, or set engine.device=cpu"
        )
    if device.type == "mps":
        raise ConfigError("engine.device = 'mps' supports one process; start only one, or set engine.device=cpu")
