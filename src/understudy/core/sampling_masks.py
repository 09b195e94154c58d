"""Sampling masks: the tokens among which each sampled token was drawn."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

SamplingMask = tuple[int, ...]
"""The ids among which a token was drawn, ascending. Empty if these were all ids, or if they were not recorded."""


def _group_equal(masks: Sequence[SamplingMask]) -> dict[str, Any]:
    sets: dict[SamplingMask, int] = {}
    index = [sets.setdefault(mask, len(sets)) for mask in masks]
    return {"sets": list(sets), "index": index}


def _ungroup(stored: Any) -> Any:
    if not isinstance(stored, dict):
        return stored
    sets, index = stored.get("sets"), stored.get("index")
    if not (isinstance(sets, list) and isinstance(index, list)):
        raise ValueError("sampling masks are a list of sets and an index")
    if any(not isinstance(i, int) or not 0 <= i < len(sets) for i in index):
        raise ValueError(f"an index of sampling masks is none of the {len(sets)} sets")
    return [sets[i] for i in index]


SamplingMasks = Annotated[list[SamplingMask], PlainSerializer(_group_equal), BeforeValidator(_ungroup)]
"""The masks of the sampled tokens of a sequence, in their order. JSON has each distinct mask once. The list is empty if
no mask was recorded."""
