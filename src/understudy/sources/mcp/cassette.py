"""Cassette: recorded answers of an environment's MCP servers in one file, to replay episodes without the servers.

The file is JSON lines: the tools of the servers, and the answers of each task. The key of an answer is the task, the
tool, the arguments, and the earlier calls of the same server that may have changed its state (those not in
`read_only_tools`). A replay can therefore make calls in a different order than the recording, if each call was
recorded in the same state of its server. Answers are stored as a model sees them: sanitized, truncated and without
secrets.

A task without an answer of its own gets the one that another task got to the same calls. So new tasks can be played on
the answers of earlier ones.

Recording only appends. The lines of an episode are written when it ends. If two lines have the same key, the later one
counts.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from understudy.core.errors import TaskError
from understudy.core.files import append_bytes
from understudy.core.messages import ToolSpec
from understudy.core.records import Record
from understudy.sources.mcp.tool_result import ToolResult

EMPTY_HISTORY = ""
"""The history of a server whose state is unchanged."""


class RecordedCall(Record):
    """One recorded answer."""

    task: str
    server: str
    history: str
    """A digest of the earlier calls that may have changed the server's state."""
    tool: str
    arguments: dict[str, Any]
    result: ToolResult


class RecordedTools(Record):
    """The tools of the servers."""

    tools: dict[str, tuple[ToolSpec, ...]]


_LINE: TypeAdapter[RecordedCall | RecordedTools] = TypeAdapter(RecordedCall | RecordedTools)


def history_digest(after: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the digest of the history `after` with one more call.

    This digest is also the key of the answer to that call.
    """
    call = json.dumps([after, tool, arguments], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(call.encode(errors="surrogatepass")).hexdigest()[:16]


class Cassette:
    """The lines of one file. Raise `TaskError` with the line number for a damaged line.

    `servers` are the names of the environment's servers. An only server is found under any name, because its name is by
    default that of the TOML file.
    """

    def __init__(self, path: Path, servers: Collection[str] = ()) -> None:
        self.path = path
        self._only_server = next(iter(servers)) if len(servers) == 1 else ""
        self._server_tools: RecordedTools | None = None
        self._answers: dict[tuple[str, str, str], RecordedCall] = {}
        self._any_answers: dict[tuple[str, str], RecordedCall] = {}
        if path.is_file():
            for number, line in enumerate(path.read_bytes().splitlines(), 1):
                self._load(line, number)

    @property
    def server_tools(self) -> dict[str, tuple[ToolSpec, ...]] | None:
        """Return the recorded tools by server, or None if there is no recording."""
        return self._server_tools.tools if self._server_tools else None

    def record_server_tools(self, server_tools: Mapping[str, tuple[ToolSpec, ...]]) -> None:
        """Record the tools of the servers in place of earlier ones."""
        self.add(RecordedTools(tools=dict(server_tools)))

    def task(self, identity: str) -> "TaskCassette":
        """Return a `TaskCassette` with the answers of one task. Each episode needs a new one."""
        return TaskCassette(self, identity)

    def find(self, task: str, server: str, after: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult | None:
        """Return the recorded answer, else the one that another task got, or None."""
        digest = history_digest(after, tool, arguments)
        found = self._answers.get((task, server, digest)) or self._any_answers.get((server, digest))
        return found.result if found else None

    def add(self, *lines: RecordedCall | RecordedTools) -> None:
        """Append the lines that are new."""
        new = [line for line in lines if self._keep(line)]
        if new:
            text = "".join(f"{line.model_dump_json(exclude_defaults=True)}\n" for line in new)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_bytes(self.path, text.encode())

    def _load(self, line: bytes, number: int) -> None:
        try:
            self._keep(self._with_server_name(_LINE.validate_json(line)))
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            raise TaskError(f"{self.path}:{number}: invalid recorded answer: {first['msg']}; record it again") from e

    def _with_server_name(self, line: RecordedCall | RecordedTools) -> RecordedCall | RecordedTools:
        """Return a line under the environment's name of its only server."""
        if not self._only_server:
            return line
        if isinstance(line, RecordedCall):
            return line.replace(server=self._only_server)
        if len(line.tools) != 1:
            return line
        (specs,) = line.tools.values()
        return RecordedTools(tools={self._only_server: specs})

    def _keep(self, line: RecordedCall | RecordedTools) -> bool:
        """Store a line in memory. Return whether it is new."""
        if isinstance(line, RecordedTools):
            new, self._server_tools = line != self._server_tools, line
            return new
        key = (line.task, line.server, history_digest(line.history, line.tool, line.arguments))
        new, self._answers[key] = line != self._answers.get(key), line
        self._any_answers[key[1:]] = line
        return new


class TaskCassette:
    """The answers of one task: recorded ones, and those of the current episode."""

    def __init__(self, cassette: Cassette, task: str) -> None:
        self.path = cassette.path
        self._cassette, self._task = cassette, task
        self._made: list[RecordedCall] = []

    def find(self, server: str, after: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult | None:
        """Return the recorded answer, or None."""
        return self._cassette.find(self._task, server, after, tool, arguments)

    def record(self, server: str, after: str, tool: str, arguments: Mapping[str, Any], reply: ToolResult) -> None:
        """Add an answer."""
        self._made.append(
            RecordedCall(
                task=self._task, server=server, history=after, tool=tool, arguments=dict(arguments), result=reply
            )
        )

    def save(self) -> None:
        """Append the episode's answers to the file."""
        made, self._made = self._made, []
        self._cassette.add(*made)
