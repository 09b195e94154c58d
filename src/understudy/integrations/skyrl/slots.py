"""Slots: what SkyRL's data loader deals out where tasks are chosen by ourselves. A slot is one group of a step."""

from typing import Any


class Slots:
    """See SkyRL's `PromptDataset`, whose place it takes: rows without a prompt of their own."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> dict[str, Any]:
        if not 0 <= place < self._count:
            raise IndexError(f"there are {self._count} slots, and none is {place}")
        prompt = [{"role": "user", "content": f"slot {place}"}]
        return {"prompt": prompt, "env_class": "understudy", "env_extras": {"slot": place}, "uid": str(place)}

    def collate_fn(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of a batch as they are."""
        return items
