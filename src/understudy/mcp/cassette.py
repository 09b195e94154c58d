"""Cassette: what the servers have answered in the episodes of one task, to be played without them.

An answer is found by what was called, with which arguments, and after which calls of the same server that may have
changed something (those not in `reads`). So a cassette answers as the server did, as often as it is asked, in any order
that the recorded state allows. It holds what a model would have been shown: clean, cut, and without secrets.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from understudy.errors import TaskError
from understudy.mcp.reply import Reply
from understudy.messages import ToolSpec
from understudy.records import Record

_OFFERS = "tools"
BEGINNING = ""
"""The history of a server that nothing has changed yet."""


class Recorded(Record):
    """One answer."""

    server: str
    after: str
    """The server's history: a digest of the calls that may have changed something."""
    tool: str
    arguments: dict[str, Any]
    reply: Reply


class Listed(Record):
    """The tools that a server offers."""

    server: str
    offers: tuple[ToolSpec, ...]


def digest(after: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """The history after one more call; also what finds an answer."""
    call = json.dumps([after, tool, arguments], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(call.encode(errors="surrogatepass")).hexdigest()[:16]


class Cassette:
    """The answers of one file. A damaged line is a `TaskError` that names it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answers: dict[tuple[str, str], Recorded] = {}
        self._new = False
        if path.is_file():
            for number, line in enumerate(path.read_bytes().splitlines(), 1):
                self._load(line, number)

    def find(self, server: str, after: str, tool: str, arguments: Mapping[str, Any]) -> Reply | None:
        """The recorded answer."""
        found = self._answers.get((server, digest(after, tool, arguments)))
        return found.reply if found else None

    def record(self, server: str, after: str, tool: str, arguments: Mapping[str, Any], reply: Reply) -> None:
        """Keep an answer, in place of an earlier one to the same call."""
        made = Recorded(server=server, after=after, tool=tool, arguments=dict(arguments), reply=reply)
        self._answers[server, digest(after, tool, arguments)] = made
        self._new = True

    def save(self) -> None:
        """Write the file whole, if there is anything new."""
        if self._new:
            write_lines(self.path, [answer.model_dump_json(exclude_defaults=True) for answer in self._answers.values()])
            self._new = False

    def _load(self, line: bytes, number: int) -> None:
        try:
            answer = Recorded.model_validate_json(line)
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            raise TaskError(f"{self.path}:{number}: not a recorded answer: {first['msg']}; record it anew") from e
        self._answers[answer.server, digest(answer.after, answer.tool, answer.arguments)] = answer


def cassette_path(folder: Path, task: str) -> Path:
    """Where the cassette of a task is: its id as a file's name, with a digest where that changes it or is taken."""
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in task)[:80]
    other = plain != task or plain == _OFFERS
    changed = f"-{hashlib.sha256(task.encode()).hexdigest()[:8]}" if other else ""
    return folder / f"{plain}{changed}.jsonl"


def read_offers(folder: Path) -> dict[str, tuple[ToolSpec, ...]] | None:
    """The tools of the servers, as of the recording; None where there is none."""
    path = _offers(folder)
    if not path.is_file():
        return None
    lines = path.read_bytes().splitlines()
    try:
        return {listed.server: listed.offers for listed in map(Listed.model_validate_json, lines)}
    except ValidationError as e:
        raise TaskError(f"{path}: not a recorded list of tools; record it anew: {e.errors()[0]['msg']}") from e


def write_offers(folder: Path, offers: Mapping[str, tuple[ToolSpec, ...]]) -> None:
    """Keep the tools of the servers."""
    listed = (Listed(server=server, offers=specs) for server, specs in offers.items())
    write_lines(_offers(folder), [each.model_dump_json(exclude_defaults=True) for each in listed])


def write_lines(path: Path, lines: list[str]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(beside, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(beside)


def _offers(folder: Path) -> Path:
    return folder / f"{_OFFERS}.jsonl"
