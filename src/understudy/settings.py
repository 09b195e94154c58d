"""Settings: typed records out of TOML and `key=value`, every key checked, and back into documented TOML.

    config = load(TrainConfig, "my.toml", ["algorithm.group_size=16", "slice.families=cancel,return"])

Defaults, then the file, then the overrides.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_origin

from pydantic import ValidationError

from understudy.algorithms.presets import laid_over, row
from understudy.errors import ConfigError, nearest
from understudy.records import Record

C = TypeVar("C", bound=Record)


def presets() -> list[str]:
    """The names of the configs that ship with the package."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load(kind: type[C], source: str | Path = "default", overrides: Sequence[str] = ()) -> C:
    """The config in a TOML file, or in the preset of that name, with `a.b=value` overrides."""
    text = _read(source)
    return parse(kind, text, overrides, where=str(source))


def parse(kind: type[C], text: str, overrides: Sequence[str] = (), where: str = "config") -> C:
    """The config in a TOML text, with `a.b=value` overrides; errors in the text name `where`."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{where}: not TOML: {e}") from e
    _check_keys(kind, values, kind, where)
    values = laid_over(values, _chosen_row(overrides))
    for override in overrides:
        _override(kind, values, override)
    try:
        return kind.model_validate(values)
    except ValidationError as e:
        raise ConfigError(_explain(e)) from e


def dump(config: Record) -> str:
    """The config as TOML, documented, that `parse` reads back to an equal record."""
    return "\n".join(_lines(config, ())).lstrip() + "\n"


def differences(one: Record, other: Record) -> list[str]:
    """The dotted keys whose values differ, each with both values."""
    here, there = dict(_leaves(one)), dict(_leaves(other))
    keys = [*here, *(k for k in there if k not in here)]
    return [f"{k}: {here.get(k)!r} and {there.get(k)!r}" for k in keys if here.get(k) != there.get(k)]


def preset_text(name: str) -> str:
    """A preset as it ships."""
    return (_folder() / f"{name}.toml").read_text(encoding="utf-8")


def _folder() -> Path:
    return Path(str(resources.files("understudy"))) / "presets"


def _read(source: str | Path) -> str:
    path = Path(source)
    if str(source) in presets():
        return preset_text(str(source))
    if path.suffix != ".toml" and not path.exists():
        raise ConfigError(f"unknown preset {nearest(str(source), presets())}, or the path of a .toml file")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"config {source}: {e}") from e


def _check_keys(kind: type[Record], values: Mapping[str, Any], root: type[Record], where: str, path: str = "") -> None:
    for key, value in values.items():
        inner = _record(_has(kind, key, root, where, path), key)
        if inner and not isinstance(value, dict):
            raise ConfigError(f"{where}: {path}{key} is a section, not a value")
        if inner:
            _check_keys(inner, value, root, where, f"{path}{key}.")


def _has(kind: type[C], key: str, root: type[Record], where: str, path: str) -> type[C]:
    """`kind`, if it has this field; else a `ConfigError` with the nearest one, or a namesake in another section."""
    if key in kind.model_fields:
        return kind
    own = sorted(f"{path}{field}" for field in kind.model_fields)
    text = nearest(f"{path}{key}", own)
    if namesakes := [name for name in _paths(root) if name.rpartition(".")[2] == key]:
        text = f"{path + key!r}; did you mean {namesakes[0]!r}? allowed: {', '.join(own)}"
    raise ConfigError(f"{where}: unknown key {text}")


def _paths(kind: type[Record], path: str = "") -> Iterator[str]:
    for key in kind.model_fields:
        inner = _record(kind, key)
        yield from _paths(inner, f"{path}{key}.") if inner else (path + key,)


def _record(kind: type[Record], key: str) -> type[Record] | None:
    """The record that a field holds, if it holds one."""
    annotation = kind.model_fields[key].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Record) else None


def _is_mapping(kind: type[Record], key: str) -> bool:
    """Whether a field holds keys of its own choice."""
    return get_origin(kind.model_fields[key].annotation) is dict


def _override(kind: type[Record], values: dict[str, Any], override: str) -> None:
    """Set one `a.b=value` in nested values."""
    name, equals, text = override.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or not key:
        raise ConfigError(f"override {override!r} is not of the form key=value, such as seed=1 or limits.max_turns=20")
    root, path = kind, ""
    for place, section in enumerate(sections):
        inner = _record(_has(kind, section, root, override, path), section)
        if inner is None and _is_mapping(kind, section):
            values.setdefault(section, {})[".".join([*sections[place + 1 :], key])] = _value(Any, text.strip())
            return
        if inner is None:
            raise ConfigError(f"override {override!r}: {path}{section} is a value, not a section")
        kind, path, values = inner, f"{path}{section}.", values.setdefault(section, {})
    if inner := _record(_has(kind, key, root, override, path), key):
        hint = f"; did you mean {path}{key}.preset={text.strip()}?" if "preset" in inner.model_fields else ""
        raise ConfigError(f"override {override!r}: {path}{key} is a section, not a value{hint}")
    values[key] = _value(kind.model_fields[key].annotation, text.strip())


def _chosen_row(overrides: Sequence[str]) -> dict[str, Any]:
    """The row of `algorithm.preset=NAME`: chosen after the file was written, it goes before what the file says."""
    pairs = [override.partition("=") for override in overrides]
    names = [value.strip() for key, _, value in pairs if key.strip() == "algorithm.preset"]
    return {"algorithm": row(names[-1])} if names and names[-1] else {}


def _value(annotation: Any, text: str) -> Any:
    """An override's value: TOML where it is that, plain text else; `a,b` is a list where one is wanted."""
    if annotation is str:
        return text
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    if get_origin(annotation) in (tuple, list) and not isinstance(value, list):
        return [part.strip() for part in str(value).split(",") if part.strip()]
    return value


def _explain(error: ValidationError) -> str:
    """The first of pydantic's complaints in one line: path, value, what is allowed."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        return f"{path}: unknown value {nearest(str(first['input']), allowed)}"
    reason = first["msg"].replace("Input should be", "it should be", 1)
    return f"{path} = {first['input']!r}: {reason}"


def _leaves(config: Record | Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items() if isinstance(config, Mapping) else config:
        inner = isinstance(value, Record | Mapping)
        yield from _leaves(value, f"{path}{key}.") if inner else ((path + key, value),)


def _lines(config: Record, path: tuple[str, ...]) -> Iterator[str]:
    """Plain values first, then a table for each record. TOML has no null: a key without a value is a comment."""
    for key, value in config:
        if not isinstance(value, Record):
            yield from _comment(type(config).model_fields[key].description)
            yield f"# {key} =" if value is None else f"{key} = {_toml(value)}"
    for key, value in config:
        if isinstance(value, Record):
            yield f"\n[{'.'.join((*path, key))}]"
            yield from _comment(type(config).model_fields[key].description)
            yield from _lines(value, (*path, key))


def _comment(text: str | None) -> list[str]:
    return [f"# {line.strip()}" for line in (text or "").splitlines()]


def _toml(value: Any) -> str:
    """One value in TOML. JSON's strings are TOML's, but for the character DEL."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, frozenset):
        return _toml(sorted(value))
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)
