"""Crew: the processes of this machine that work on one run, each on its share of it.

All run the same program on the same values, in step, and tell each other what their shares came to. A process alone is
a crew of one. Who starts a crew says so by the environment variables of torchrun, which are accelerate's too.
"""

import os
from collections.abc import Iterable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from understudy.errors import ConfigError

T = TypeVar("T")
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
GPUS = "CUDA_VISIBLE_DEVICES"
_OTHERS = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed's optimizer is not the one that trains here",
    "ACCELERATE_USE_FSDP": "accelerate's FSDP wraps models for its own loop",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM's models are not those that are trained here",
}
_PRECISION = "ACCELERATE_MIXED_PRECISION"


class Crew:
    """One process alone; `engines.local.ranks.Ranks` are several."""

    rank = 0
    size = 1

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's share: every `size`-th item, so that long and short ones spread."""
        return items[self.rank :: self.size]

    def gather(self, value: T) -> list[T]:
        """What each process has for `value`, in order. All call this, or none."""
        return [value]

    def joined(self, share: Sequence[T]) -> list[T]:
        """What all have made of their shares, in the order of the items."""
        parts = self.gather(share)
        return [parts[i % self.size][i // self.size] for i in range(sum(map(len, parts)))]

    def add_(self, tensors: Iterable[Any]) -> None:
        """Put into each tensor, in place, the sum of what the processes have there. All call this, or none."""

    def together(self) -> AbstractContextManager[None]:
        """Something inside waits for the others; where one of them is gone, that is a RolloutError."""
        return nullcontext()

    def close(self) -> None:
        """Part, when all are done."""


ALONE = Crew()


@dataclass(frozen=True, slots=True)
class Place:
    """Which process of a crew this is."""

    rank: int = 0
    size: int = 1

    def __str__(self) -> str:
        return f"process {self.rank + 1} of {self.size}"


def take_place(environment: MutableMapping[str, str] = os.environ) -> Place:
    """This process's place. In a crew of several it has one GPU from here on: that of its number.

    To be called before torch is loaded. Raises ConfigError for what a crew cannot be.
    """
    _refuse_others(environment)
    if "RANK" not in environment or environment.get("WORLD_SIZE", "1") == "1":
        return Place()
    try:
        rank, local, size, here = (int(environment[name]) for name in VARIABLES[:4])
    except (KeyError, ValueError) as e:
        raise ConfigError(
            f"RANK is set, and of {', '.join(VARIABLES[:4])} not all are numbers; start several processes by "
            "understudy train --processes N, or by accelerate launch"
        ) from e
    if here != size:
        raise ConfigError(
            f"{size} processes on several machines; one machine is what can be trained on: docs/parallel.md"
        )
    environment[GPUS] = _gpu(local, environment.get(GPUS))
    return Place(rank, size)


def _gpu(local: int, visible: str | None) -> str:
    """What the process with this number sees of the GPUs in CUDA_VISIBLE_DEVICES; machines without any ignore it."""
    if not visible:
        return str(local) if visible is None else visible
    gpus = visible.split(",")
    if local >= len(gpus):
        raise ConfigError(f"{GPUS}={visible} names {len(gpus)} GPUs, too few for process {local + 1}")
    return gpus[local]


def _refuse_others(environment: MutableMapping[str, str]) -> None:
    """What accelerate is asked for and what nothing here would do is not passed over in silence."""
    for name, why in _OTHERS.items():
        if environment.get(name, "").lower() == "true":
            raise ConfigError(f"{name}: {why}; leave it out of accelerate's config, and set engine.sharding=fsdp")
    if (wanted := environment.get(_PRECISION, "no")) not in ("no", ""):
        raise ConfigError(
            f"{_PRECISION}={wanted}: leave it out of accelerate's config; engine.dtype says the precision"
        )
