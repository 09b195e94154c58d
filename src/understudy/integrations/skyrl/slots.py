"""Slots: what SkyRL's data loader deals out where tasks are chosen by ourselves. A slot is one group of a step."""

from typing import Any

from understudy.config import TrainConfig

MOST = 30
"""Slots for each group of a run where SkyRL replaces groups and no limit is set; SkyRL's for a step is the same."""


def slots_of(config: TrainConfig, trainer: Any) -> int:
    """How many slots a run may use up, those of replaced groups included, by `trainer` of SkyRL's config."""
    dynamic, overlap = trainer.algorithm.dynamic_sampling, trainer.fully_async
    batches = 1
    if dynamic.type:
        batches = dynamic.max_sample_batches if dynamic.max_sample_batches > 0 else MOST
    elif overlap.enabled and overlap.sample_full_batch:
        batches = MOST
    return config.steps * config.algorithm.tasks_per_step * batches


def row(slot: int) -> dict[str, Any]:
    """What SkyRL is dealt for a slot."""
    prompt = [{"role": "user", "content": f"slot {slot}"}]
    return {"prompt": prompt, "env_class": "understudy", "env_extras": {"slot": slot}, "uid": str(slot)}


class Slots:
    """See SkyRL's `PromptDataset`, whose place it takes: rows without a prompt of their own, dealt in order.

    The loader shuffles, always alike; a slot is not the place that it draws, since far ahead in the stream of tasks all
    before would have to be made first.
    """

    def __init__(self, count: int) -> None:
        self._count, self._dealt = count, 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> dict[str, Any]:
        if not 0 <= place < self._count:
            raise IndexError(f"there are {self._count} slots, and none is {place}")
        self._dealt += 1
        return row(self._dealt - 1)

    def collate_fn(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of a batch as they are."""
        return items
