"""Ranks: a crew of several processes, who talk through torch.distributed.

Values go by gloo, over the loopback interface; tensors on GPUs by NCCL.
"""

import contextlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from understudy.crew import VARIABLES, Crew, Place
from understudy.errors import ConfigError, RolloutError

T = TypeVar("T")
PATIENCE = timedelta(hours=1)
"""How long one waits for the others: they may still play their share of a step, or of an evaluation."""
MOURNING = 10.0
"""Seconds in which whoever started a crew ends it, and says why, when one of it is gone."""


class Ranks(Crew):
    """Processes of one machine, joined as long as this is open."""

    def __init__(self, place: Place) -> None:
        """Wait until all are there."""
        self.rank, self.size, self._place = place.rank, place.size, place
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with self.together():
            dist.init_process_group(backend, rank=place.rank, world_size=place.size, timeout=PATIENCE)
        for name in VARIABLES:  # what this process starts, such as vLLM, is of no crew
            os.environ.pop(name, None)

    def gather(self, value: T) -> list[T]:
        """See `Crew.gather`."""
        found: list[T | None] = [None] * self.size
        with self.together():
            dist.all_gather_object(found, value)
        return found  # type: ignore[return-value]

    def add_(self, tensors: Iterable[Tensor]) -> None:
        """See `Crew.add_`."""
        with self.together():
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                assert work is not None
                work.wait()

    def close(self) -> None:
        """Part, when all are done."""
        dist.destroy_process_group()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """See `Crew.together`. Who started a process that is gone knows more of it, and is let speak first."""
        try:
            yield
        except RuntimeError as e:  # gloo has no error of its own
            if not isinstance(e, dist.DistError) and "gloo" not in str(e):
                raise
            time.sleep(MOURNING)
            raise RolloutError(f"{self._place} lost the others: one has ended, and said why", "engine") from e


def totals(crew: Crew, sums: Mapping[str, float]) -> dict[str, float]:
    """The sums over a crew, by name."""
    found: dict[str, float] = defaultdict(float)
    for part in crew.gather(dict(sums)):
        for name, value in part.items():
            found[name] += value
    return dict(found)


def refuse_apart(crew: Crew, fingerprint: str) -> None:
    """A RolloutError where processes that must have the same weights do not."""
    if len(set(found := crew.gather(fingerprint))) > 1:
        raise RolloutError(f"the processes have come to different weights: sums {', '.join(found)}", "engine")


def agree_on_device(crew: Crew, device: torch.device) -> None:
    """A ConfigError where the processes of a crew compute on different kinds of devices, or on one that none shares."""
    if crew.size == 1:
        return
    kinds = crew.gather(device.type)
    if len(set(kinds)) > 1:
        raise ConfigError(
            f"{kinds.count('cuda')} of {crew.size} processes have a GPU: start no more processes than there are GPUs, "
            "or set engine.device=cpu"
        )
    if device.type == "mps":
        raise ConfigError(
            "engine.device = 'mps': it cannot be shared by processes; start one, or set engine.device=cpu"
        )
