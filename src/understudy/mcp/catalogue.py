"""Catalogue: the tools of some servers, by the names that an agent calls them by.

A tool is called `server.tool` or, where no two of the tools shown share it, by its own name alone; both are understood.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from jsonschema import SchemaError
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from mcp.types import Tool
from referencing import Registry
from referencing.exceptions import Unresolvable

from understudy.errors import ConfigError, RolloutError, ToolError, nearest
from understudy.mcp.reply import Clean, each_text, harmless
from understudy.mcp.settings import ServerConfig
from understudy.messages import ToolSpec

Names = Literal["flat", "server.tool"]
Offers = Mapping[str, Sequence[ToolSpec]]
"""What each server offers, by the server's name; the tools have the server's own names."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tool of one server."""

    server: str
    tool: str
    spec: ToolSpec
    """With the name that the agent is shown."""
    validator: Validator

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Arguments that the tool's schema refuses are a `ToolError`."""
        try:
            error = best_match(self.validator.iter_errors(arguments))
        except Unresolvable as e:
            raise RolloutError(
                f"the schema of {self.server}.{self.tool} refers to what is not there: {e}", "mcp"
            ) from e
        if error is not None:
            where = ".".join(map(str, error.absolute_path)) or "arguments"
            takes = ", ".join(self._parameters())
            name = self.spec.name
            raise ToolError(
                f"bad arguments for {name}: {where}: {error.message[:300]}; it takes ({takes})", "bad_arguments"
            )

    def _parameters(self) -> Iterable[str]:
        required = self.spec.parameters.get("required", ())
        return (name if name in required else f"[{name}]" for name in self.spec.parameters.get("properties", {}))


class Catalogue:
    """All tools that some servers offer, and those of them that an agent is shown."""

    def __init__(
        self, offers: Offers, servers: Mapping[str, ServerConfig], names: Names = "flat", only: Sequence[str] = ()
    ) -> None:
        """`only` narrows what is shown to these names. Two tools that are shown by one name are a `ConfigError`."""
        self.offers = offers
        every = [_entry(server, spec, names) for server, specs in offers.items() for spec in specs]
        shown = [entry for entry in every if allowed(servers[entry.server], entry.tool)]
        _refuse_doubles(shown)
        self._shown = [entry for entry in shown if not only or entry.spec.name in only]
        self._known = _named(self._shown)
        self.every = _named(every)
        """All tools by both of their names, shown or not."""
        self.specs = tuple(entry.spec for entry in self._shown)
        """The tools that an agent is shown, in the order of the servers and of their lists."""

    def find(self, name: str) -> Entry:
        """A tool that is shown; any other is a `ToolError`."""
        if name not in self._known:
            raise ToolError(f"unknown tool {nearest(name, (spec.name for spec in self.specs))}", "unknown_tool")
        return self._known[name]

    def find_any(self, name: str) -> Entry:
        """A tool, shown or not; an unknown one is a `ConfigError`."""
        if name not in self.every:
            raise ConfigError(f"no server has a tool {nearest(name, self.every)}")
        return self.every[name]

    def changes(self, server: str, tools: Sequence[ToolSpec]) -> list[str]:
        """Which of the tools shown a server no longer has as they were."""
        now = {spec.name: spec for spec in tools}
        then = {spec.name: spec for spec in self.offers[server]}
        mine = (entry.tool for entry in self._shown if entry.server == server)
        return [name for name in mine if now.get(name) != then[name]]


def specs_of(tools: Iterable[Tool], clean: Clean) -> tuple[ToolSpec, ...]:
    """What a model is told of a server's tools: nothing in it can be read as a turn or a call.

    A name that would have to be changed for that is a `RolloutError`: the server knows the tool by no other.
    """
    return tuple(_spec(tool, clean) for tool in tools)


def allowed(config: ServerConfig, tool: str) -> bool:
    """Whether agents may be shown a server's tool."""
    return matches(tool, config.allow) and not matches(tool, config.deny)


def matches(tool: str, patterns: Iterable[str]) -> bool:
    """Whether a tool's name is one of the patterns'."""
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def _spec(tool: Tool, clean: Clean) -> ToolSpec:
    plain = harmless(tool.name)
    if plain != tool.name or not plain.strip() or "\n" in plain:
        raise RolloutError(f"an MCP server has a tool whose name cannot be shown: {plain[:80]!r}", "mcp")
    about = clean(tool.description or tool.title or "")
    return ToolSpec(name=tool.name, description=about, parameters=each_text(tool.input_schema, clean))


def _entry(server: str, spec: ToolSpec, names: Names) -> Entry:
    shown = spec.replace(name=f"{server}.{spec.name}") if names == "server.tool" else spec
    kind = validator_for(spec.parameters)
    try:
        kind.check_schema(spec.parameters)
    except SchemaError as e:
        raise RolloutError(
            f"the MCP server {server!r} has a tool {spec.name!r} whose schema is none: {e.message}", "mcp"
        ) from e
    return Entry(server, spec.name, shown, kind(spec.parameters, registry=Registry()))


def _refuse_doubles(entries: Sequence[Entry]) -> None:
    owners: dict[str, Entry] = {}
    for entry in entries:
        other = owners.setdefault(entry.spec.name, entry)
        if other is not entry:
            raise ConfigError(
                f"the servers {other.server!r} and {entry.server!r} both have a tool {entry.tool!r}: "
                "say names = 'server.tool', or deny one of them"
            )


def _named(entries: Sequence[Entry]) -> dict[str, Entry]:
    """Entries by both of their names; a short one that several have is left out."""
    short: dict[str, list[Entry]] = {}
    for entry in entries:
        short.setdefault(entry.tool, []).append(entry)
    found = {name: same[0] for name, same in short.items() if len(same) == 1}
    return found | {f"{entry.server}.{entry.tool}": entry for entry in entries}
