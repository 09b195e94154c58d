"""ToolCatalog: the tools of one or more servers, by the names that an agent uses.

A tool can be called by `server.tool`. It can also be called by its own name if no other visible tool has it, and by its
aliases.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from jsonschema import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from mcp.types import Tool
from referencing import Registry
from referencing.exceptions import Unresolvable

from understudy.core.errors import ConfigError, RolloutError, TaskError, ToolError, did_you_mean
from understudy.core.messages import ToolSpec
from understudy.envs.schemas import schema_difference, schema_error
from understudy.sources.mcp.config import MCPServerConfig
from understudy.sources.mcp.tool_result import Sanitizer, map_texts, sanitize_text

MAX_TOOLS = 1000
"""The largest number of tools of a server."""
MAX_NAME_CHARACTERS = 128
"""The longest name of a tool, in characters: that of the protocol's specification."""
MAX_TOOLS_CHARACTERS = 1_000_000
"""The longest descriptions and schemas of all tools of a server, in characters."""
_VALUES = ("const", "enum", "default", "examples")
"""Keywords of JSON Schema whose values are no schemas."""
T = TypeVar("T")
ToolNaming = Literal["flat", "server.tool"]
ServerTools = Mapping[str, Sequence[ToolSpec]]
"""The tools of each server, by server name. The tools have the server's own names."""
Aliases = Mapping[str, str | Mapping[str, str]]
"""Other names of tools, and of arguments by tool. See `MCPEnvironmentConfig.aliases`."""
ALIASES_KEY = "understudy/aliases"
"""Key in a tool's `_meta` under which the servers of understudy list aliases of arguments."""
NAME_ALIASES_KEY = "understudy/name_aliases"
"""Key in a tool's `_meta` under which the servers of understudy list aliases of the tool."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One tool of one server."""

    server: str
    tool: str
    spec: ToolSpec
    """The specification with the name that the agent sees."""
    validator: Validator
    aliases: tuple[str, ...] = ()
    """Other names of the tool: aliases of its own, and of its server."""

    @property
    def full_name(self) -> str:
        """The name with the server."""
        return f"{self.server}.{self.tool}"

    def validate_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raise `ToolError` if the arguments do not match the tool's schema."""
        try:
            error = schema_error(self.validator, arguments)
        except Unresolvable as e:
            raise RolloutError(
                f"the schema of {self.server}.{self.tool} refers to something that does not exist: {e}", "mcp"
            ) from e
        if error:
            takes = ", ".join(self._parameters())
            name = self.spec.name
            raise ToolError(f"bad arguments for {name}: {error}; it takes ({takes})", "invalid_arguments")

    def _parameters(self) -> Iterable[str]:
        required = self.spec.parameters.get("required", ())
        return (name if name in required else f"[{name}]" for name in self.spec.parameters.get("properties", {}))


class ToolCatalog:
    """The tools of the servers, and which of them the agent sees."""

    def __init__(
        self,
        server_tools: ServerTools,
        servers: Mapping[str, MCPServerConfig],
        naming: ToolNaming = "flat",
        visible_tools: Sequence[str] = (),
        aliases: Aliases = MappingProxyType({}),
    ) -> None:
        """Only `visible_tools` are shown, if given. Tools that cannot be used are left out.

        Raise `RolloutError` if no tool of a server can be used. Raise `ConfigError` if two visible tools have one name,
        if `aliases` name an unknown tool or parameter, or if an alias of a tool is the name of another one.
        """
        self.server_tools = server_tools
        problems = {
            server: [_problem(spec, [other.name for other in specs[:i]]) for i, spec in enumerate(specs)]
            for server, specs in server_tools.items()
        }
        usable = {
            server: [spec for spec, problem in zip(specs, problems[server], strict=True) if not problem]
            for server, specs in server_tools.items()
        }
        names = _find_aliases(usable, servers, aliases)
        every = [
            _entry(server, spec, naming, names[server, spec.name], aliases)
            for server, specs in usable.items()
            for spec in specs
        ]
        self.notes: tuple[str, ...] = ()
        """What a user should know of the tools: which are left out and why, and what is not checked of arguments."""
        for server, specs in server_tools.items():
            allowed = [
                (spec, problem)
                for spec, problem in zip(specs, problems[server], strict=True)
                if is_allowed(servers[server], spec.name)
            ]
            notes = [note for spec, problem in allowed if (note := _note(server, spec, problem))]
            if allowed and all(problem for _, problem in allowed):
                raise RolloutError(f"the MCP server {server!r} has no tool that can be used: {notes[0]}", "mcp")
            self.notes += tuple(notes)
        shown = [entry for entry in every if is_allowed(servers[entry.server], entry.tool)]
        _validate_unique_names(shown)
        self.shown_entries = [entry for entry in shown if not visible_tools or entry.spec.name in visible_tools]
        """The visible tools, in the order of the servers and of their lists."""
        self._known = _named(self.shown_entries)
        self.all_entries = _named(every)
        """All tools by all of their names, visible or not."""
        self.validate_aliases(aliases)
        self.specs = tuple(entry.spec for entry in self.shown_entries)
        """What the agent is shown of the visible tools."""

    def get(self, name: str) -> CatalogEntry:
        """Return a visible tool by any of its names. Raise `ToolError` for any other name."""
        if name not in self._known:
            raise ToolError(f"unknown tool {did_you_mean(name, (spec.name for spec in self.specs))}", "unknown_tool")
        return self._known[name]

    def get_any(self, name: str) -> CatalogEntry:
        """Return a tool by any of its names, visible or not. Raise `TaskError` for an unknown name."""
        if name not in self.all_entries:
            text = f"no server has a tool {did_you_mean(name, self.all_entries)}"
            tool = repr(name.rpartition(".")[2])
            raise TaskError("; ".join((text, *(note for note in self.notes if tool in note))))
        return self.all_entries[name]

    def validate_aliases(self, aliases: Aliases) -> None:
        """Raise `ConfigError` if an alias names an unknown tool or parameter."""
        for tool, names in aliases.items():
            if isinstance(names, str):
                continue
            if tool not in self.all_entries:
                raise ConfigError(f"aliases.{tool}: no server has a tool {did_you_mean(tool, self.all_entries)}")
            parameters = _parameters(self.all_entries[tool].spec)
            for alias, parameter in names.items():
                if parameter not in parameters:
                    raise ConfigError(
                        f"aliases.{tool}.{alias}: the tool has no parameter {did_you_mean(parameter, parameters)}"
                    )

    def changed_tools(self, server: str, tools: Sequence[ToolSpec]) -> list[str]:
        """Describe each visible tool that a server has removed, or whose arguments it has changed.

        Descriptions, and the order of words and properties, do not change what a call does.
        """
        now = {spec.name: spec.parameters for spec in tools}
        mine = [entry for entry in self.shown_entries if entry.server == server]
        then = {spec.name: spec.parameters for spec in self.server_tools[server]}
        gone = [f"{entry.tool} is gone" for entry in mine if entry.tool not in now]
        both = [entry.tool for entry in mine if entry.tool in now and now[entry.tool] != then[entry.tool]]
        found = ((name, schema_difference(then[name], now[name])) for name in both)
        return gone + [f"{name}: {difference}" for name, difference in found if difference]


def sanitized_specs(server: str, tools: Iterable[Tool], clean: Sanitizer) -> tuple[ToolSpec, ...]:
    """Return the specifications of a server's tools, sanitized: nothing in them can be read as a turn or a call.

    Names stay as they are, because the server only knows these; `ToolCatalog` leaves out those that cannot be shown.
    Raise `RolloutError` if the tools are too many or too long for a prompt.
    """
    tools = tuple(tools)
    if len(tools) > MAX_TOOLS:
        raise RolloutError(
            f"the MCP server {server!r} has {len(tools)} tools; at most {MAX_TOOLS} can be shown to a model", "mcp"
        )
    specs = tuple(_spec(tool, clean) for tool in tools)
    size = sum(len(spec.description) + len(json.dumps(spec.parameters, ensure_ascii=False)) for spec in specs)
    if size > MAX_TOOLS_CHARACTERS:
        raise RolloutError(
            f"the descriptions and schemas of the tools of the MCP server {server!r} have {size:,} characters; at most "
            f"{MAX_TOOLS_CHARACTERS:,} can be shown to a model",
            "mcp",
        )
    return specs


def is_allowed(config: MCPServerConfig, tool: str) -> bool:
    """Return whether the settings allow a tool. An agent may not call the tool that resets the server."""
    is_reset = config.reset is not None and config.reset.tool == tool
    return not is_reset and matches_any(tool, config.allow) and not matches_any(tool, config.deny)


def matches_any(tool: str, patterns: Iterable[str]) -> bool:
    """Return whether a tool's name matches one of the patterns."""
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def unreadable_patterns(schema: Any) -> list[str]:
    """Return the regular expressions in a JSON Schema that Python does not read, such as `\\p{L}` of JavaScript."""
    return [pattern for pattern in _patterns(schema) if not _is_readable(pattern)]


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _patterns(item)
    if not isinstance(schema, Mapping):
        return
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    by_pattern = schema.get("patternProperties")
    yield from by_pattern if isinstance(by_pattern, Mapping) else ()
    for key, value in schema.items():
        yield from () if key in _VALUES else _patterns(value)


def _is_readable(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def without_unreadable_patterns(schema: Any) -> Any:
    """Return a JSON Schema without the patterns that Python does not read."""
    if isinstance(schema, list):
        return [without_unreadable_patterns(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {k: value if k in _VALUES else without_unreadable_patterns(value) for k, value in schema.items()}
    if isinstance(schema.get("pattern"), str) and not _is_readable(schema["pattern"]):
        del kept["pattern"]
    if isinstance(schema.get("patternProperties"), Mapping):
        # The pattern `^` matches every name, so that `additionalProperties` refuses none that might match.
        kept["patternProperties"] = {
            pattern if _is_readable(pattern) else "^": value if _is_readable(pattern) else True
            for pattern, value in kept["patternProperties"].items()
        }
    return kept


def _problem(spec: ToolSpec, earlier: Sequence[str]) -> str:
    """Return why a tool cannot be used, or nothing. `earlier` are the names of the tools before it."""
    plain = sanitize_text(spec.name)
    if plain != spec.name or not plain.strip() or "\n" in plain or len(plain) > MAX_NAME_CHARACTERS:
        return "its name cannot be shown to a model"
    if spec.name in earlier:
        return "the server lists another tool of this name"
    schema = without_unreadable_patterns(spec.parameters)
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return f"its schema is invalid: {sanitize_text(error.message)[:200]}"
    return ""


def _note(server: str, spec: ToolSpec, problem: str) -> str:
    """Return what a user should know of a tool, or nothing."""
    name = sanitize_text(repr(spec.name[:80]))
    if problem:
        return f"the tool {name} of the server {server!r} is left out: {problem}"
    return pattern_note("arguments", server, spec.name, spec.parameters)


def pattern_note(what: str, server: str, tool: str, schema: Any) -> str:
    """Return that values of a schema, such as the arguments of a tool, are not compared with a pattern, or nothing."""
    if not (patterns := unreadable_patterns(schema)):
        return ""
    name, shown = (sanitize_text(repr(text[:80])) for text in (tool, patterns[0]))
    return f"{what} of {name} of the server {server!r} are not compared with {shown}: Python cannot read it"


def _spec(tool: Tool, clean: Sanitizer) -> ToolSpec:
    about = clean(tool.description or tool.title or "")
    listed, names = (tool.meta or {}).get(ALIASES_KEY), (tool.meta or {}).get(NAME_ALIASES_KEY)
    aliases = {alias: name for alias, name in listed.items() if isinstance(name, str)} if type(listed) is dict else {}
    return ToolSpec(
        name=tool.name,
        description=about,
        parameters=map_texts(tool.input_schema, clean),
        aliases=aliases,
        name_aliases=tuple(name for name in names if isinstance(name, str)) if type(names) is list else (),
    )


def _find_aliases(
    server_tools: ServerTools, servers: Mapping[str, MCPServerConfig], aliases: Aliases
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the aliases of each tool, by its server and name.

    An alias that a server lists has no effect if it is a tool's name, or if two tools list it. Raise `ConfigError` for
    one in `aliases` that names no tool, or that is a name of another one.
    """
    tools = {(server, spec.name): spec for server, specs in server_tools.items() for spec in specs}
    prefixes = {server: (server, *servers[server].aliases) for server in server_tools}
    full_names = {f"{prefix}.{name}": (server, name) for server, name in tools for prefix in prefixes[server]}
    short_names = {name for _, name in tools}
    known = full_names | _unambiguous((tool[1], tool) for tool in tools)
    owners = _unambiguous((alias, tool) for tool, spec in tools.items() for alias in spec.name_aliases)
    owners = {alias: tool for alias, tool in owners.items() if alias not in short_names}
    for alias, name in aliases.items():
        if isinstance(name, str):
            if name not in known:
                raise ConfigError(f"aliases.{alias}: no server has a tool {did_you_mean(name, known)}")
            if alias in short_names or alias in full_names or owners.get(alias, known[name]) != known[name]:
                raise ConfigError(f"aliases.{alias}: this is a name of another tool than {name!r}; leave it out")
            owners[alias] = known[name]
    found = dict[tuple[str, str], tuple[str, ...]]()
    for server, name in tools:
        mine = [alias for alias, tool in owners.items() if tool == (server, name)]
        others = [f"{prefix}.{each}" for prefix in prefixes[server] for each in (name, *mine)]
        found[server, name] = tuple(dict.fromkeys([*mine, *others[1:]]))  # the first is the full name
    return found


def _unambiguous(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the names that stand for one thing only."""
    meanings: dict[str, set[T]] = {}
    for name, meaning in pairs:
        meanings.setdefault(name, set()).add(meaning)
    return {name: next(iter(found)) for name, found in meanings.items() if len(found) == 1}


def _parameters(spec: ToolSpec) -> Mapping[str, Any]:
    properties = spec.parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _effective_aliases(server: str, spec: ToolSpec, aliases: Aliases) -> dict[str, str]:
    """Return the aliases of a tool's arguments: for its parameters, under names that no parameter has."""
    parameters = _parameters(spec)
    configured = (aliases.get(name) for name in (spec.name, f"{server}.{spec.name}"))
    listed = dict(spec.aliases)
    for names in configured:
        listed |= names if isinstance(names, Mapping) else {}
    return {alias: name for alias, name in listed.items() if name in parameters and alias not in parameters}


def _entry(server: str, spec: ToolSpec, naming: ToolNaming, names: tuple[str, ...], aliases: Aliases) -> CatalogEntry:
    shown = spec.replace(aliases=_effective_aliases(server, spec, aliases), name_aliases=names)
    if naming == "server.tool":
        shown = shown.replace(name=f"{server}.{spec.name}")
    schema = without_unreadable_patterns(spec.parameters)
    return CatalogEntry(server, spec.name, shown, validator_for(schema)(schema, registry=Registry()), names)


def _validate_unique_names(entries: Sequence[CatalogEntry]) -> None:
    owners: dict[str, CatalogEntry] = {}
    for entry in entries:
        other = owners.setdefault(entry.spec.name, entry)
        if other is not entry:
            raise ConfigError(
                f"the servers {other.server!r} and {entry.server!r} both have a tool {entry.tool!r}: "
                f"set tool_naming = 'server.tool', or write deny = [{entry.tool!r}] under one of the servers"
            )


def _named(entries: Sequence[CatalogEntry]) -> dict[str, CatalogEntry]:
    """Index entries by all of their names. Short names that several entries share are left out."""
    full_names = {entry.full_name: entry for entry in entries}
    short_names = _unambiguous((entry.tool, entry.full_name) for entry in entries)
    aliases = {alias: entry for entry in entries for alias in entry.aliases}
    return aliases | {name: full_names[full] for name, full in short_names.items()} | full_names
