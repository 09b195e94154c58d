"""A dataset of placeholders for SkyRL's data loader, because our rollout chooses the tasks itself.

Each placeholder has the number of a slot. A slot stands for one group of episodes.
"""

from typing import Any

from understudy.runs.config import TrainConfig

MAX_REPLACEMENT_FACTOR = 30
"""Slots for each group of a run if SkyRL replaces groups without a limit. Also the default of `max_sample_batches`."""


def max_groups(config: TrainConfig, trainer: Any) -> int:
    """Return the maximum number of groups that a run may play, including replaced ones. Each has one slot.

    `trainer` is that section of SkyRL's config.
    """
    dynamic, overlap = trainer.algorithm.dynamic_sampling, trainer.fully_async
    batches = 1
    if dynamic.type:
        batches = dynamic.max_sample_batches if dynamic.max_sample_batches > 0 else MAX_REPLACEMENT_FACTOR
    elif overlap.enabled and overlap.sample_full_batch:
        batches = MAX_REPLACEMENT_FACTOR
    return config.steps * config.algorithm.groups_per_batch * batches


def placeholder_row(slot: int) -> dict[str, Any]:
    """Return the row of a slot, with the keys of a row of SkyRL's `PromptDataset`."""
    prompt = [{"role": "user", "content": f"slot {slot}"}]
    return {"prompt": prompt, "env_class": "understudy", "env_extras": {"slot": slot}, "uid": str(slot)}


class PlaceholderDataset:
    """A replacement of SkyRL's `PromptDataset` whose rows are placeholders.

    `__getitem__` ignores its index, because SkyRL's loader shuffles the indices. It returns slot 0 first, then slot 1,
    and so on. A task far ahead in the stream is available only after all tasks before it.
    """

    def __init__(self, count: int) -> None:
        self._count, self._dealt = count, 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> dict[str, Any]:
        if not 0 <= place < self._count:
            raise IndexError(f"index {place} is out of range for {self._count} slots")
        self._dealt += 1
        return placeholder_row(self._dealt - 1)

    def collate_fn(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows unchanged."""
        return items
