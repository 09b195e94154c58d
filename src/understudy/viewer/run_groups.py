"""Groups of runs for the page: runs whose configs differ only in their seeds."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError
from understudy.core.files import cached_until_changed
from understudy.core.settings import flatten_config
from understudy.runs.run import CONFIG_FILE, read_run_config

MAX_SETTINGS = 8
"""Largest number of settings that a group lists."""
_SEEDS = ("seed", "eval.seed")


def group_runs(runs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return the groups of runs, in order of their first runs.

    A group has a `name`, its `runs`, their `seeds`, and the `settings` that differ between the groups of several seeds,
    if there are several such groups, else between all groups, as `key=value`. A run whose config cannot be read is a
    group of its own.
    """
    configs = {key: _config(folder / CONFIG_FILE) for key, folder in runs.items()}
    same: dict[str, list[str]] = {}
    for key, config in configs.items():
        setting = repr(sorted((name, value) for name, value in config.items() if name not in _SEEDS)) if config else key
        same.setdefault(setting, []).append(key)
    parts = (part for keys in same.values() for part in _split_equal_seeds(keys, configs))
    groups = sorted(parts, key=lambda keys: [*runs].index(keys[0]))
    several = [keys for keys in groups if len(keys) > 1]
    firsts = [configs[keys[0]] for keys in (several if len(several) > 1 else groups)]
    differing = [
        name
        for name in dict.fromkeys(name for config in firsts for name in config)
        if name not in _SEEDS and len({config.get(name) for config in firsts if config}) > 1
    ]
    names = [_group_name(keys) for keys in groups]
    return [
        {
            "name": name if names.count(name) == 1 else f"{keys[0]} to {keys[-1]}",
            "runs": keys,
            "seeds": [configs[key].get("seed", "") for key in keys],
            "settings": [f"{name}={configs[keys[0]].get(name)}" for name in differing if configs[keys[0]]][
                :MAX_SETTINGS
            ],
        }
        for name, keys in zip(names, groups, strict=True)
    ]


def _split_equal_seeds(keys: list[str], configs: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    """Return the first run of each seed as one group, and every other run as its own. A group has several seeds."""
    firsts = {configs[key].get("seed"): key for key in reversed(keys)}
    group = [key for key in keys if firsts[configs[key].get("seed")] == key] if len(firsts) > 1 else []
    return [*([group] if group else []), *([key] for key in keys if key not in group)]


def _group_name(keys: Sequence[str]) -> str:
    """Return what the names of the runs have in common at their start, without the word before the seed."""
    if len(keys) == 1:
        return keys[0]
    common = "".join(letters[0] for letters in takewhile(lambda each: len({*each}) == 1, zip(*keys, strict=False)))
    return common.rstrip("-_. 0123456789").removesuffix("seed").rstrip("-_. ") or "runs"


@cached_until_changed(4096)
def _config(file: Path) -> Mapping[str, str]:
    """Return the values of a run's config as text by dotted key; {} if it cannot be read."""
    try:
        return {key: str(value) for key, value in flatten_config(read_run_config(file.parent))}
    except ConfigError:
        return {}
