"""Reply: one completion of an endpoint, read from the wire and out of its text, and kept on disk."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from understudy.errors import ConfigError
from understudy.formats.base import settled
from understudy.formats.parse import parse, parsed
from understudy.messages import Message, ToolSpec, from_wire
from understudy.records import Record


class Reply(Record):
    """One completion."""

    message: Message
    finish: str = ""
    """As the endpoint says it: stop, length, tool_calls, content_filter."""
    refusal: str = ""
    """What the model says where it refuses to answer."""
    repairs: dict[str, int] = {}
    """Where calls are read out of text: what had to be repaired, by kind."""
    faults: dict[str, int] = {}
    """Calls in the text that cannot be read, by kind."""
    other_side: bool = False
    """The text went on to speak for others, and is cut there."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class NoCompletion(Exception):
    """What was answered is no completion. That may pass: proxies answer for endpoints that are starting or ending."""


def completion(content: bytes) -> Reply:
    """Read the body of a response; raises `NoCompletion`."""
    try:
        wire = json.loads(content)
        choice = wire["choices"][0]
        message, usage = choice["message"], wire.get("usage") or {}
        reply = Reply(
            message=from_wire({**message, "role": "assistant"}),
            finish=choice.get("finish_reason") or "",
            refusal=message.get("refusal") or "",
            prompt_tokens=usage.get("prompt_tokens") or 0,
            completion_tokens=usage.get("completion_tokens") or 0,
        )
        reply.model_dump_json()  # half a surrogate pair is a ValueError here, and later would be one on disk
        return reply
    except IndexError as e:
        raise NoCompletion("an answer without a choice") from e
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:  # not JSON, or not of that shape
        raise NoCompletion(f"an answer that is no completion ({type(e).__name__})") from e


def read_out(reply: Reply, tools: Sequence[ToolSpec], dialect: str) -> Reply:
    """The reply with the calls that stand in its text."""
    read = parsed(reply.message.content, dialect, tools)
    return reply.replace(
        message=settled(read, cut=reply.finish == "length"),
        repairs=dict(read.repairs),
        faults=dict(read.faults),
        other_side=read.other_side,
    )


def left_in_text(reply: Reply, tools: Sequence[ToolSpec]) -> Reply:
    """The reply of an endpoint that has no parser for its model; plain words and native calls stay as they are."""
    found = parse(reply.message.content, "", tools)
    if reply.message.tool_calls or not (found.calls or found.thought):
        return reply
    read = read_out(reply, tools, "")
    written = sum(not call.malformed for call in found.calls)
    return read.replace(repairs={**read.repairs, "dialect": written}) if written else read


def kept(entry: Path) -> Reply | None:
    """A kept reply; None where there is none, or a damaged one."""
    try:
        digest, _, text = entry.read_text(encoding="utf-8").partition("\n")
        return Reply.model_validate_json(text) if digest == _digest(text) else None
    except (OSError, UnicodeDecodeError, ValidationError):
        return None


def keep(entry: Path, reply: Reply) -> None:
    """Keep a reply, whole or not at all."""
    text = reply.model_dump_json()
    part = entry.with_suffix(f".{os.getpid()}.part")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(f"{_digest(text)}\n{text}", encoding="utf-8")
        os.replace(part, entry)
    except OSError as e:
        raise ConfigError(f"cannot write to the cache {entry.parent.parent}: {e.strerror}") from e


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
