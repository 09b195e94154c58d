"""Typed settings: load a record from TOML and `key=value` overrides, and write a record as TOML with comments.

Every key is checked.

    config = load_toml(EnvironmentConfig, "notes.toml", ["limits.max_turns=20"])

Defaults come first, then the file, then the overrides.

A field may hold:
- a nested record;
- a table of records, such as `dict[str, EndpointConfig]`, with one section `[endpoints.NAME]` for each;
- one of several record types that differ in their field `kind`. A section without a `kind` is of the first type.

A config type may have a class variable `other_names`, the `OtherNames` that users of other libraries write for its
keys.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from understudy.core.errors import ConfigError, did_you_mean, no_such_path
from understudy.core.records import Record
from understudy.core.secrets import MASK, is_secret_name, mask_secrets, validate_no_secrets

C = TypeVar("C", bound=Record)
MAX_DEPTH = 32
"""Largest nesting depth of a TOML text."""
_TOO_LARGE = 2**63
_MAX_SHOWN = 200
"""The largest number of characters of a value that an error text shows."""
NO_VALUES: Mapping[str, Any] = {}
_RANGE = re.compile(r"\d+\s*(-|\.\.+|:)\s*\d+")
_TABLE_NAME = "NAME"
"""Stands for the name of an entry of a table of records in a dotted key."""


@dataclass(frozen=True)
class OtherNames:
    """Names of other libraries, and what they mean here.

    A name that ends in a dot stands for all names that begin with it.
    """

    keys: Mapping[str, Sequence[str]]
    """Name -> the keys that it may mean."""
    reasons: Mapping[str, str]
    """Name without a key -> which key is nearest, or why there is none."""
    converted: Collection[str]
    """Names that are replaced by other settings before they are looked up."""
    sections: Mapping[str, Collection[str]]
    """Dotted section -> its names that mean the same without the section."""

    def without_section(self, name: str) -> str:
        """Return a name of a known section without that section, and other names unchanged."""
        section, _, word = name.rpartition(".")
        return word if word in self.sections.get(section, ()) else name

    def find_keys(self, name: str) -> Sequence[str]:
        """Return the keys that a name may mean; none if it is unknown."""
        if name in self.keys:
            return self.keys[name]
        starts = [start for start in self.keys if start.endswith(".") and name.startswith(start)]
        return [key + name.removeprefix(start) for start in starts for key in self.keys[start]]

    def find_reason(self, name: str) -> str:
        """Return why a name has no key, or a similar name of its section; an empty text if neither is known."""
        for known in (name, name.replace("-", "_"), self.without_section(name)):
            if known in self.reasons:
                return self.reasons[known]
        section, _, last = name.rpartition(".")
        if close := difflib.get_close_matches(last, self.sections.get(section, ()), 1, cutoff=0.85):
            return f"did you mean {section}.{close[0]}?"
        starts = [start for start in self.reasons if start.endswith(".") and name.startswith(start)]
        return self.reasons[max(starts, key=len)] if starts else ""


_NO_OTHER_NAMES = OtherNames({}, {}, (), {})


def load_toml(config_type: type[C], path: str | Path, overrides: Sequence[str] = ()) -> C:
    """Load a record from a TOML file, with `a.b=value` overrides. Raise ConfigError for a wrong file, key or value."""
    return parse_toml(config_type, read_text(path), overrides, source=str(path))


def parse_toml(
    config_type: type[C],
    text: str,
    overrides: Sequence[str] = (),
    source: str = "config",
    layers: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> C:
    """Parse a record from a TOML text, with `a.b=value` overrides.

    `source` names the text in errors. `layers` are further values, each with its source: a layer overrides the text
    and the layers before it, and `overrides` override all. A layer or an override that changes a section's `kind` drops
    the section's keys that the new kind does not have; overrides of a `kind` are applied before the others. Raise
    ConfigError for invalid TOML, an unknown key, a wrong value or a secret in plain text.
    """
    values: dict[str, Any] = {}
    for name, layer in [(source, parse_values(text, source)), *layers]:
        _check_keys(_Section(config_type, config_type, name), _with_kinds(config_type, layer, values))
        values = merge_nested(_without_replaced_kinds(config_type, values, layer), layer)
    _apply(config_type, values, overrides)
    validate_no_secrets(values, source)  # before the values, because the error for a wrong value quotes it
    return _validated(config_type, values)


def parse_overrides(config_type: type[C], overrides: Sequence[str], values: Mapping[str, Any] = NO_VALUES) -> C:
    """Parse a record that is not stored from `a.b=value` overrides of `values`. It may hold a secret.

    Raise ConfigError for an unknown key or a wrong value.
    """
    found = dict(values)
    _apply(config_type, found, overrides)
    return _validated(config_type, found)


def _apply(config_type: type[Record], values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set overrides in nested values."""
    for override in sorted(overrides, key=lambda each: not _sets_kind(config_type, each)):
        _override(_Section(config_type, config_type, f"override {shown_setting(override)}"), values, override)


def _validated(config_type: type[C], values: Mapping[str, Any]) -> C:
    try:
        return config_type.model_validate(values)
    except ValidationError as e:
        raise ConfigError(_explain(config_type, e)) from e


def parse_values(text: str, source: str) -> dict[str, Any]:
    """Return the values of a TOML text. Raise ConfigError, which names `source`, if it is invalid."""
    try:
        return loads_toml(text)
    except ValueError as e:
        hint = '; a text needs quotes, as in model = "tiny"' if "Invalid value" in str(e) else ""
        raise ConfigError(f"{source}: not TOML: {e}{hint}") from e


def loads_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text.

    Raise ValueError if it is not TOML, is nested more than `MAX_DEPTH` deep, or has an integer of more than 64 bits,
    which TOML does not have.
    """
    try:
        values = tomllib.loads(text.removeprefix("\ufeff"))  # a byte order mark, which some editors write
        _check_values(values)
    except RecursionError as e:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from e
    return values


def _check_values(value: Any, depth: int = 0) -> None:
    if isinstance(value, int) and not -_TOO_LARGE <= value < _TOO_LARGE:
        raise ValueError("an integer has more than 64 bits")
    if not isinstance(value, dict | list):
        return
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    for inner in value.values() if isinstance(value, dict) else value:
        _check_values(inner, depth + 1)


def merge_nested(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings; where both set a key, `above` wins."""
    both = {key: value for key, value in above.items() if isinstance(value, Mapping) and key in below}
    return {**below, **above, **{key: merge_nested(below[key], value) for key, value in both.items()}}


def dump_toml(config: Record) -> str:
    """Return the config as TOML with a comment for every field. `parse_toml` reads it back to an equal record.

    Raise ConfigError if a value holds a secret in plain text, because the text is stored or shown.
    """
    validate_no_secrets(config.model_dump(), "config")
    return "\n".join(_lines(config, ())).lstrip() + "\n"


def dump_section(config: Record, name: str) -> str:
    """Return one section of a config as TOML, with the sections in it, such as `algorithm` or `engine.lora`.

    Raise ConfigError if there is no such section.
    """
    section: Any = config
    for part in name.split("."):
        section = section.get(part) if isinstance(section, Mapping) else getattr(section, part, None)
    if not isinstance(section, Record):
        sections = [line[1:-1] for line in dump_toml(config).splitlines() if line.startswith("[")]
        raise ConfigError(f"no section {did_you_mean(name, sections)}")
    return f"[{name}]\n" + "\n".join(_lines(section, tuple(name.split(".")))) + "\n"


def config_differences(left: Record, right: Record) -> list[str]:
    """Return the dotted keys whose values differ, each with both values."""
    left_values, right_values = dict(flatten_config(left)), dict(flatten_config(right))
    return [
        f"{key}: {left_values.get(key)!r} and {right_values.get(key)!r}"
        for key in left_values | right_values
        if left_values.get(key) != right_values.get(key)
    ]


def missing_keys(config: Record, values: Mapping[str, Any], path: str = "") -> list[str]:
    """Return the dotted keys that have a value in the config but are not in the nested `values` of a TOML text."""
    found = []
    for key, value in config:
        given = values.get(key)
        if isinstance(value, Record) and given is not None:
            found += missing_keys(value, given, f"{path}{key}.")
        elif value is not None and given is None:
            found.append(path + key)
    return found


def matching_keys(config_type: type[Record], name: str) -> list[str]:
    """Return the dotted keys that a short name or another library's name may mean, such as `group_size`."""
    others = other_names(config_type)
    if keys := others.find_keys(name):
        return list(dict.fromkeys([*keys, *_matching_ends(config_type, name)]))
    name = others.without_section(name)
    return list(dict.fromkeys([*others.find_keys(name), *_matching_ends(config_type, name)]))


def _matching_ends(config_type: type[Record], name: str) -> Iterator[str]:
    return (path for path, _ in _paths(config_type) if f".{path}".endswith(f".{name}"))


def other_names(config_type: type[Record]) -> OtherNames:
    """Return the names of other libraries for the keys of a config type."""
    return getattr(config_type, "other_names", _NO_OTHER_NAMES)


def is_known_name(config_type: type[Record], name: str) -> bool:
    """Return whether a name means a key, or there is a reason why it means none."""
    is_known = bool(matching_keys(config_type, name) or other_names(config_type).find_reason(name))
    return is_known or is_other_name(config_type, name)


def is_other_name(config_type: type[Record], name: str) -> bool:
    """Return whether a name is another library's name for keys of the config, with `-` or `_`."""
    others, plain = other_names(config_type), name.replace("-", "_")
    word = others.without_section(plain)
    return bool(word != plain or others.find_keys(plain) or {plain, word} & {*others.converted})


def find_field(config_type: type[Record], name: str) -> tuple[str, FieldInfo | None]:
    """Return the dotted key that a name means, and its field; the name and None if it means none, or several.

    A name is a key, its end, or another library's name for it. It may have `-` for `_`.
    """
    if found := _walk(config_type, name) or _walk(config_type, other_names(config_type).without_section(name)):
        return found
    match matching_keys(config_type, name.replace("-", "_")):
        case [key] if f".{_TABLE_NAME}." not in key and (found := _walk(config_type, key)):
            return found
    return name, None


def _walk(config_type: type[Record], name: str) -> tuple[str, FieldInfo] | None:
    """Return a dotted key with `_` for `-`, except in the names of a table, and its field; None if it is no key."""
    records: tuple[type[Record], ...] = (config_type,)
    done: list[str] = []
    field = None
    parts = name.split(".")
    while parts:
        key = parts.pop(0).replace("-", "_")
        owner = next((record for record in records if key in record.model_fields), None)
        if owner is None:
            return None
        done, field, records = [*done, key], owner.model_fields[key], field_records(owner, key)
        if _is_mapping(owner, key):
            table = table_record(owner, key)
            num_names = 1 if table else len(parts)
            done, parts, records = [*done, *parts[:num_names]], parts[num_names:], (table,) if table else ()
    return (".".join(done), field) if field else None


def with_full_key(config_type: type[Record], override: str) -> str:
    """Return an override `name=value` with the full key, if the name can mean only one."""
    name, equals, value = override.partition("=")
    key, field = find_field(config_type, name.strip())
    return f"{key}{equals}{value}" if field else override


def read_text(path: str | Path) -> str:
    """Return the text of a config file. Raise ConfigError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as e:
        raise ConfigError(no_such_path(str(path))) from e
    except OSError as e:
        raise ConfigError(f"config file {path} cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"config file {path} is not UTF-8 text: {e}") from e


@dataclass(frozen=True)
class _Section:
    """A section of a config: the record type at `path` in the config type `root`."""

    record: type[Record]
    root: type[Record]
    source: str
    """The file or the override, as error texts name it."""
    path: str = ""
    """Empty, or the dotted name of the section with a dot at the end."""
    kind: str = ""
    """The kind of the innermost enclosing section that has one, such as `engine.kind = 'local'`."""

    def check_key(self, key: str) -> None:
        """Raise ConfigError if the record has no such key.

        The error names the kind that has the key, or else the closest key.
        """
        if key in self.record.model_fields:
            return
        name, paths = self.path + key, list(_paths(self.root))
        kinds = dict.fromkeys(kind for path, kind in paths if f"{path}.".startswith(f"{name}.") and kind)
        if kinds and self.kind:
            owners = " or ".join(kinds)
            raise ConfigError(f"{self.source}: {self.kind} has no key {name!r}; only {owners} has it. Leave it out")
        own = sorted(self.path + field for field in self.record.model_fields)
        if reason := other_names(self.root).find_reason(name):
            raise ConfigError(f"{self.source}: unknown key {name!r}: {reason}")
        plain, end = name.replace("-", "_"), key.replace("-", "_")
        if meant := [*other_names(self.root).find_keys(plain)] or matching_keys(self.root, end):
            meant = [path for path in meant if path.startswith(self.path)] or meant
            raise ConfigError(f"{self.source}: unknown key {name!r}; did you mean {' or '.join(meant)}?")
        raise ConfigError(f"{self.source}: unknown key {did_you_mean(name, own)}")

    def enter(self, key: str, values: Mapping[str, Any]) -> "_Section | None":
        """Return the section of a key, or None if the key holds a plain value.

        `values` are the values of that section so far; their `kind` decides its record type.
        """
        records = field_records(self.record, key)
        if not records:
            return None
        path = f"{self.path}{key}"
        if len(records) == 1:
            return _Section(records[0], self.root, self.source, f"{path}.", self.kind)
        by_kind = {record_kind(record): record for record in records}
        kind = values.get("kind", next(iter(by_kind)))
        if not isinstance(kind, str) or kind not in by_kind:
            allowed = did_you_mean(_shortened(str(kind)), list(by_kind))
            raise ConfigError(f"{self.source}: {path}.kind: unknown value {allowed}")
        return _Section(by_kind[kind], self.root, self.source, f"{path}.", f"{path}.kind = {kind!r}")

    def check_value(self, key: str, value: Any) -> None:
        """Raise ConfigError for what is no number but pydantic would read as one: `true` as 1, and `0-1` as -1."""
        allowed = _members(self.record.model_fields[key].annotation)
        is_number = any(kind in allowed for kind in (int, float, Decimal)) and bool not in allowed
        if is_number and isinstance(value, bool):
            raise ConfigError(f"{self.source}: {self.path}{key} should be a number, not {_toml(value)}")
        if is_number and str not in allowed and isinstance(value, str) and _RANGE.fullmatch(value):
            hint = "; name each, such as seed=0,1" if key == "seed" else ""
            raise ConfigError(f"{self.source}: {self.path}{key} should be a number, not the range {value}{hint}")

    def enter_table(self, key: str, name: str) -> "_Section | None":
        """Return the section of one name of a table of records, or None if the key holds no such table."""
        record = table_record(self.record, key)
        return _Section(record, self.root, self.source, f"{self.path}{key}.{name}.", self.kind) if record else None


def field_records(record: type[Record], key: str) -> tuple[type[Record], ...]:
    """Return the record types that a field may hold: several if they differ in `kind`, none if it holds a value."""
    members = _members(record.model_fields[key].annotation)
    return tuple(each for each in members if isinstance(each, type) and issubclass(each, Record))


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the annotation alone, without what `Annotated` adds."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return tuple(get_args(member)[0] if get_origin(member) is Annotated else member for member in members)


def table_record(record: type[Record], key: str) -> type[Record] | None:
    """Return the record type of a table of records, or None if the field holds none."""
    annotation = record.model_fields[key].annotation
    value = get_args(annotation)[1] if get_origin(annotation) is dict else None
    return value if isinstance(value, type) and issubclass(value, Record) else None


def record_kind(record: type[Record]) -> str:
    """Return the kind of one of the records that differ in `kind`."""
    return str(record.model_fields["kind"].default)


def _check_keys(section: _Section, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        section.check_key(key)
        section.check_value(key, value)
        is_table = isinstance(value, dict)
        if field_records(section.record, key) and not is_table:
            raise ConfigError(f"{section.source}: {section.path}{key} is a section, not a value")
        if _is_mapping(section.record, key) and not is_table:
            raise ConfigError(f"{section.source}: {section.path}{key} is a table, not a value")
        if is_table and (inner := section.enter(key, value)):
            _check_keys(inner, value)
        for name, entry in value.items() if is_table else ():
            if inner := section.enter_table(key, name):
                if not isinstance(entry, dict):
                    path = inner.path[:-1]
                    raise ConfigError(f"{section.source}: {path} is a section, not a value; write [{path}]")
                _check_keys(inner, entry)


def _paths(record: type[Record], path: str = "", kind: str = "") -> Iterator[tuple[str, str]]:
    """Yield every dotted key, with the kind of the section that has it or ""."""
    for key in record.model_fields:
        records = field_records(record, key)
        for inner in records:
            of_kind = f"{path}{key}.kind = {record_kind(inner)!r}" if len(records) > 1 else kind
            yield from _paths(inner, f"{path}{key}.", of_kind)
        if table := table_record(record, key):
            yield from _paths(table, f"{path}{key}.{_TABLE_NAME}.", kind)
        elif not records:
            yield path + key, kind


def _is_mapping(record: type[Record], key: str) -> bool:
    """Return whether a field is a dict with free keys."""
    return get_origin(record.model_fields[key].annotation) is dict


def _sets_kind(record: type[Record], override: str) -> bool:
    """Return whether an override sets the `kind` that decides the record type of a section."""
    *sections, key = override.partition("=")[0].strip().split(".")
    records: tuple[type[Record], ...] = (record,)
    for section in sections:
        records = field_records(records[0], section) if section in records[0].model_fields else ()
        if not records:
            return False
    return key == "kind" and len(records) > 1


_UNSET = ("null", "None")
"""YAML's and Python's words for no value. They give a key its default again."""


def _override(section: _Section, values: dict[str, Any], override: str) -> None:
    """Set one `a.b=value` in the nested values."""
    name, equals, text = override.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or not key:
        raise ConfigError(
            f"override {shown_setting(override)} is not of the form key=value, such as seed=1 or limits.max_turns=20"
        )
    if _sets_kind(section.record, override):
        _set_kind(section, values, sections, text.strip())
        return
    while sections:
        part = sections.pop(0)
        section.check_key(part)
        inner = section.enter(part, values.get(part, {}))
        if inner is None and sections and (inner := section.enter_table(part, sections[0])):
            values, part = values.setdefault(part, {}), sections.pop(0)
        if inner is None and table_record(section.record, part):
            table = f"{section.path}{part}"
            raise ConfigError(
                f"override {shown_setting(override)}: {table} is a table of sections; set {table}.NAME.KEY=VALUE"
            )
        if inner is None and _is_mapping(section.record, part):
            _set_entry(section, values, part, f"{'.'.join([*sections, key])}={text}")
            return
        if inner is None:
            raise ConfigError(f"override {shown_setting(override)}: {section.path}{part} is a value, not a section")
        section, values = inner, values.setdefault(part, {})
    section.check_key(key)
    if records := field_records(section.record, key):
        path = f"{section.path}{key}"
        others = [f"{path}.preset"] if "preset" in records[0].model_fields else []
        others += [each for each in matching_keys(section.root, key) if each != path]
        keys = dict.fromkeys(f"{path}.{name}" for record in records for name in record.model_fields)
        hint = f"; did you mean {others[0]}={text.strip()}?" if others else f"; set one of its keys: {', '.join(keys)}"
        raise ConfigError(f"override {shown_setting(override)}: {path} is a section, not a value{hint}")
    if _is_mapping(section.record, key) and not text.strip().startswith("{"):
        _set_entry(section, values, key, text)
        return
    annotation = section.record.model_fields[key].annotation
    if text.strip() in _UNSET and not {str, type(None)} & {annotation, *get_args(annotation)}:
        values.pop(key, None)
        return
    values[key] = _value(annotation, text.strip())
    section.check_value(key, values[key])


def _set_entry(section: _Section, values: dict[str, Any], key: str, entry: str) -> None:
    """Set one `NAME=value` in a dict with free keys."""
    name, equals, text = entry.partition("=")
    path = f"{section.path}{key}"
    if not name or not equals or table_record(section.record, key):
        raise ConfigError(f"{section.source}: {path} is a table; set {path}.NAME=VALUE")
    is_text = get_args(section.record.model_fields[key].annotation)[1] is str
    values.setdefault(key, {})[name.strip()] = _value(str if is_text else Any, text.strip())


def shown_setting(override: str) -> str:
    """Return an override as errors quote it, without secrets."""
    name, equals, _ = override.partition("=")
    return repr(f"{name}={MASK}" if equals and is_secret_name(name) else mask_secrets(override))


def _set_kind(section: _Section, values: dict[str, Any], sections: Sequence[str], kind: str) -> None:
    """Set the `kind` of the section at the end of `sections`, and drop keys that the new kind does not have."""
    for part in sections[:-1]:
        section = section.enter(part, values.get(part, {})) or section
        values = values.setdefault(part, {})
    inner = section.enter(sections[-1], {"kind": kind})
    given = values.get(sections[-1], {})
    if inner:
        values[sections[-1]] = {**_known(inner.record, given), "kind": kind}


def _with_kinds(record: type[Record], values: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the `kind` that a section has in `below`, where the values give none."""
    found = dict(values)
    for key, value in values.items():
        kind = _section_of(below, key).get("kind")
        if isinstance(value, Mapping) and kind and _has_kinds(record, key):
            found[key] = {"kind": kind, **value}
    return found


def _without_replaced_kinds(record: type[Record], below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` without the keys that a section does not have in the kind that `above` gives it."""
    found = dict(below)
    for key, value in below.items():
        kind = _section_of(above, key).get("kind")
        for inner in field_records(record, key) if kind and _has_kinds(record, key) else ():
            if record_kind(inner) == kind:
                found[key] = _known(inner, value)
    return found


def _has_kinds(record: type[Record], key: str) -> bool:
    return key in record.model_fields and len(field_records(record, key)) > 1


def _section_of(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}


def _known(record: type[Record], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose keys the record has, also in nested records."""
    found = {key: value for key, value in values.items() if key in record.model_fields}
    for key, value in found.items():
        inner = field_records(record, key)
        if len(inner) == 1 and isinstance(value, Mapping):
            found[key] = _known(inner[0], value)
    return found


def _value(annotation: Any, text: str) -> Any:
    """Parse the value of an override:

    TOML if it is valid TOML, else plain text. `a,b` gives a list if the field is one.
    """
    if {*_members(annotation)} <= {str, Path, NoneType}:
        return text
    try:
        value = loads_toml(f"value = {text}")["value"]
    except ValueError:
        value = text
    if str in get_args(annotation) and get_origin(annotation) in (Union, UnionType) and not isinstance(value, list):
        return text
    if get_origin(annotation) in (tuple, list) and not isinstance(value, list):
        if text.startswith("[") and text.endswith("]"):  # a list without quotes, as in YAML
            value = text[1:-1]
        return [part.strip() for part in str(value).split(",") if part.strip()]
    return value


def _explain(config_type: type[Record], error: ValidationError) -> str:
    """Return the first validation error as one line: path, value and what is allowed."""
    first = error.errors(include_url=False)[0]
    path = ".".join(_without_kinds(config_type, first["loc"]))
    if first["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        return f"{path}: unknown value {did_you_mean(_shortened(str(first['input'])), allowed)}"
    reason = first["msg"].replace("Input should be", "it should be", 1)
    if first["type"] == "model_type":
        reason = f"it should be a section with keys, [{path}]"
    return f"{path} = {_shortened(repr(first['input']))}: {reason}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _without_kinds(record: type[Record], location: Sequence[int | str]) -> list[str]:
    """Return the keys of a validation error's location, without the kinds that pydantic adds."""
    if not location or location[0] not in record.model_fields:
        return [str(part) for part in location]
    key, *rest = str(location[0]), *location[1:]
    if table := table_record(record, key):
        return [key, *map(str, rest[:1]), *_without_kinds(table, rest[1:])]
    records = field_records(record, key)
    if not records:  # pydantic adds the members of a union of values
        return [key, *(str(part) for part in rest if isinstance(part, int))]
    if len(records) > 1 and rest:
        records = tuple(each for each in records if record_kind(each) == rest[0])
        rest = rest[1:]
    return [key, *_without_kinds(records[0], rest)]


def flatten_config(config: Record | Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a config by their dotted keys."""
    for key, value in config.items() if isinstance(config, Mapping) else config:
        inner = isinstance(value, Record | Mapping)
        yield from flatten_config(value, f"{path}{key}.") if inner else ((path + key, value),)


def _lines(config: Record, path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a record: plain values first, then a table for each nested record.

    TOML has no null, so a key without a value is a comment.
    """
    comments = {key: _comment(field.description) for key, field in type(config).model_fields.items()}
    for key, value in config:
        if not isinstance(value, Record) and not _is_table(value):
            yield from comments[key]
            yield f"# {key} =" if value is None else f"{key} = {_toml(value)}"
    for key, value in config:
        tables = {(*path, key, name): entry for name, entry in value.items()} if _is_table(value) else {}
        for place, entry in {(*path, key): value}.items() if isinstance(value, Record) else tables.items():
            yield f"\n[{'.'.join(place)}]"
            yield from comments[key]
            yield from _lines(entry, place)


def _is_table(value: object) -> bool:
    """Return whether a value is a non-empty table of records. An empty table is written as `{}`, not as a table."""
    return isinstance(value, Mapping) and bool(value) and all(isinstance(each, Record) for each in value.values())


def _comment(text: str | None) -> list[str]:
    return [f"# {line.strip()}" for line in (text or "").splitlines()]


def _toml(value: Any) -> str:
    """Return one value as TOML. JSON strings are TOML strings, except for the character DEL."""
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
