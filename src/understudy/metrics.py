"""How metrics are named: `space/name`, so that a tracker shows together what belongs together.

    generation/  episodes, turns, tokens, replies by kind, stops       train/   gradient, entropy, ratio, learning rate
    loss/  reward/                                                     timing/  seconds, tokens a second, memory
    eval/<domain>/  test/<domain>/  success_rate, average_reward, floor
    health/<check>  fault/<whose>  users/  judge/  certify/

Engines and phases say bare names; this is the one place that knows where they belong.
"""

from collections.abc import Mapping
from typing import TypeVar

FILE = "metrics.jsonl"
"""In a run's folder: one line a step."""
V = TypeVar("V")

SPACES = frozenset(
    "generation train loss reward eval test timing health fault users judge certify".split()  # noqa: SIM905
)
_NAMES = {
    "reward": "reward/average_reward",
    "success": "reward/success_rate",
    "episodes": "generation/episodes",
    "groups": "generation/groups",
    "equal_groups": "generation/equal_groups",
    "left_out": "generation/left_out",
    "turns": "generation/turns",
    "sampled_tokens": "generation/sampled_tokens",
    "episode_tokens": "generation/episode_tokens",
    "loss": "loss/total",
    "nll": "loss/nll",
    "seconds": "timing/step_seconds",
    "peak_memory_gib": "timing/peak_memory_gib",
}
_OF_GENERATION = ("replies", "stop")


def named(metrics: Mapping[str, V]) -> dict[str, V]:
    """The metrics under their full names; one that has its full name already, and `step`, keeps it."""
    return {name if name == "step" else full_name(name): value for name, value in metrics.items()}


def full_name(name: str) -> str:
    """Where a metric belongs: by the table, else by what its name says, else under `train/`."""
    space = name.partition("/")[0]
    if name in _NAMES:
        return _NAMES[name]
    if space in SPACES and space != name:
        return name
    if space in _OF_GENERATION:
        return f"generation/{name}"
    if name.endswith(("seconds", "_per_second")):
        return f"timing/{name}"
    if name.startswith("reward"):
        return f"reward/{name}"
    return f"loss/{name}" if name.endswith("loss") else f"train/{name}"
