"""The processes of one machine that work on the same run.

All processes run the same program on the same inputs. Each does its share of the work, and they exchange results. A
single process is a group of size one. Several processes are started with torchrun's environment variables, which
accelerate sets too.
"""

import os
from collections.abc import Iterable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from understudy.core.errors import ConfigError

T = TypeVar("T")
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
_OTHERS = {
    "ACCELERATE_USE_DEEPSPEED": "understudy does not use DeepSpeed",
    "ACCELERATE_USE_FSDP": "understudy does not use accelerate's FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "understudy does not use Megatron-LM",
}
_PRECISION = "ACCELERATE_MIXED_PRECISION"


class ProcessGroup:
    """A single process. `engines.local.distributed.distributed.TorchProcessGroup` is a group of several."""

    rank = 0
    world_size = 1

    def shard(self, items: Sequence[T]) -> Sequence[T]:
        """Return this process's share of `items`: every `world_size`-th one, which spreads long and short items."""
        return items[self.rank :: self.world_size]

    def all_gather(self, value: T) -> list[T]:
        """Return `value` of every process, by rank. All processes must call this."""
        return [value]

    def all_gather_shards(self, share: Sequence[T]) -> list[T]:
        """Return the results of all processes in the order of the original items, given this process's `share` of
        them."""
        parts = self.all_gather(share)
        return [parts[i % self.world_size][i // self.world_size] for i in range(sum(map(len, parts)))]

    def all_reduce_(self, tensors: Iterable[Any]) -> None:
        """Sum each tensor over all processes, in place. All processes must call this."""

    def set_timeout(self, seconds: float) -> None:
        """Limit the time that this process waits for the others in each of the methods above."""

    def detect_lost_ranks(self) -> AbstractContextManager[None]:
        """Raise RolloutError in the block if another process ends, or does not answer in time, while this one waits
        for it."""
        return nullcontext()

    def close(self) -> None:
        """Leave the group, at the end of a run or after an error. This does not wait for the other processes."""


SINGLE_PROCESS = ProcessGroup()


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Rank of this process and size of its group."""

    rank: int = 0
    world_size: int = 1

    def __str__(self) -> str:
        return f"process {self.rank + 1} of {self.world_size}"


def init_rank(environment: MutableMapping[str, str] = os.environ) -> RankInfo:
    """Return this process's rank. In a group, also limit the process to its own GPU.

    Call this before torch is imported. Raise ConfigError if the environment describes an unsupported group.
    """
    _validate_accelerate_config(environment)
    if "RANK" not in environment or environment.get("WORLD_SIZE", "1") == "1":
        return RankInfo()
    try:
        rank, local, size, here = (int(environment[name]) for name in RANK_VARIABLES[:4])
    except (KeyError, ValueError) as e:
        raise ConfigError(
            f"RANK is set, but {', '.join(RANK_VARIABLES[:4])} are not all integers; start several processes with "
            "understudy train --num-processes N or accelerate launch"
        ) from e
    if here != size:
        raise ConfigError(
            f"WORLD_SIZE is {size} and LOCAL_WORLD_SIZE is {here}; only one machine is supported, see docs/gpus.md"
        )
    environment[VISIBLE_DEVICES_VARIABLE] = _gpu(local, environment.get(VISIBLE_DEVICES_VARIABLE))
    return RankInfo(rank, size)


def _gpu(local: int, visible: str | None) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES for a process with this local rank. Machines without a GPU ignore it."""
    if not visible:
        return str(local) if visible is None else visible
    gpus = visible.split(",")
    if local >= len(gpus):
        raise ConfigError(
            f"{VISIBLE_DEVICES_VARIABLE}={visible} names {len(gpus)} GPUs, too few for process {local + 1}; "
            "start fewer processes"
        )
    return gpus[local]


def _validate_accelerate_config(environment: MutableMapping[str, str]) -> None:
    """Raise ConfigError for settings of accelerate that have no effect here."""
    for name, why in _OTHERS.items():
        if environment.get(name, "").lower() == "true":
            raise ConfigError(
                f"{name} is set, but {why}; remove it from accelerate's config and set engine.sharding=fsdp"
            )
    if (wanted := environment.get(_PRECISION, "no")) not in ("no", ""):
        raise ConfigError(
            f"{_PRECISION}={wanted} has no effect; remove it from accelerate's config and set engine.dtype"
        )
