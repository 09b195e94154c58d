"""YAML configs of other libraries, such as Hydra's. An error names the settings to give in their place."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.secrets import mask_secrets
from understudy.core.settings import read_text
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.conversions import find_translations

YAML_SUFFIXES = (".yaml", ".yml")


def explain_yaml(path: Path) -> str:
    """Return in one line the settings of a YAML config that understudy takes, and the names of the others."""
    start = f"{path}: a YAML config of another library; configs are TOML files, and further settings KEY=VALUE"
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return f"{start} (docs/migration.md has the keys)"
    try:
        values = _load(read_text(path))
    except (yaml.YAMLError, RecursionError) as e:
        return f"{start}; it cannot be read: {' '.join(str(e).split())}"
    translations = find_translations(TrainConfig, [*_settings(values, "")])
    taken = {each.partition("=")[0]: each for found in translations for each in found.settings if _is_valid(each)}
    if not taken:
        return f"{start} (docs/migration.md has the keys)"
    others = [
        found.given.partition("=")[0]
        for found in translations
        if found.reason or not all(map(_is_valid, found.settings))
    ]
    more = f"; not taken, and each says why if it is given as KEY=VALUE: {', '.join(others)}" if others else ""
    return f"{start}. Its settings are here: {mask_secrets(shlex.join(taken.values()))}{more}"


def _load(text: str) -> object:
    """Return the values of a YAML text. Raise YAMLError if it has aliases, which a few bytes can expand without end."""
    import yaml

    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
        raise yaml.YAMLError("aliases are not supported")
    return yaml.safe_load(text)


def _settings(values: object, path: str) -> Iterator[str]:
    """Yield the values of nested mappings as `name=value`, without those that are empty or refer to others."""
    for key, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict):
            yield from _settings(value, f"{path}{key}.")
        elif value is not None and "${" not in str(value):
            yield f"{path}{key}={value if isinstance(value, str) else json.dumps(value, default=str)}"


def _is_valid(setting: str) -> bool:
    try:
        parse_config("", [setting])
    except ConfigError:
        return False
    return True
