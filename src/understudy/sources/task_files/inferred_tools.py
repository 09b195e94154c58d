"""Infer tools from recorded calls: JSON schemas, and which tools only read.

An argument has the types of its recorded values, and is required if every call of the tool has it. A text argument has
an enum only if that gives nothing away: at least `MIN_ENUM_VALUES` recorded values, two to `MAX_ENUM_CHOICES`
distinct ones, each recorded at least `MIN_ENUM_REPEATS` times, in lower case, without digits and not longer than
`MAX_ENUM_CHARACTERS`. So no ids, names and addresses are listed.

A tool only reads if the first word of its name is one of `READ_WORDS`, or if it runs Python; all other tools write. The
name of the server is no part of it: `polygon_get_news` of the server `polygon` begins with "get". In files that do not
name the server, a name with a word of `READ_WORDS`, and none of `WRITE_WORDS` before it, reads: `fmp_get_quote`.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from understudy.core.messages import ToolCall, ToolSpec

# fmt: off
READ_WORDS = frozenset((
    "analyze", "authenticate", "calc", "calculate", "check", "compare", "compute", "count", "describe",
    "download", "estimate", "evaluate", "extract", "fetch", "filter", "find", "get", "identify", "inspect",
    "is", "list", "load", "look", "lookup", "preview", "query", "quote", "read", "retrieve", "scrape", "search",
    "show", "summarize", "think", "track", "validate", "verify", "view",
))
# fmt: on
"""First words of the names of tools that only read."""
# fmt: off
WRITE_WORDS = frozenset((
    "accept", "activate", "add", "adjust", "apply", "approve", "archive", "assign", "book", "buy", "call", "cancel",
    "change", "charge", "claim", "clear", "close", "confirm", "create", "deactivate", "delete", "disable",
    "dispatch", "draft", "edit", "email", "enable", "enroll", "exchange", "execute", "export", "file", "forward",
    "generate", "grant", "import", "insert", "install", "invite", "issue", "log", "make", "mark", "merge", "message",
    "modify", "move", "notify", "open", "order", "pause", "pay", "place", "post", "process", "publish", "purchase",
    "put", "record", "redeem", "refill", "refund", "register", "reject", "remove", "rename", "renew", "replace",
    "reply", "report", "request", "reschedule", "reserve", "reset", "restart", "resume", "return", "revoke", "run",
    "save", "schedule", "sell", "send", "set", "share", "ship", "start", "stop", "store", "submit", "subscribe",
    "suspend", "swap", "sync", "terminate", "transfer", "undo", "unsubscribe", "update", "upgrade", "upload", "void",
    "withdraw", "write",
))
# fmt: on
"""Words of the names of tools that write, after which words such as "list" and "search" are nouns."""
HANDOVER_WORDS = frozenset(("transfer", "escalate", "handoff"))
"""First words of the names of tools that hand the user over to a person. Their arguments are free text, so only the
call counts."""
COMPUTING_WORDS = frozenset(("think", "calculate", "calc", "compute"))
"""First words of the names of reading tools that look nothing up."""
MIN_ENUM_VALUES = 20
MAX_ENUM_CHOICES = 6
MIN_ENUM_REPEATS = 3
MAX_ENUM_CHARACTERS = 40
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SPECIFIC = re.compile(r"\d|[A-Z]|[^\w\s-]")
_WRITES_ALTHOUGH = frozenset((("check", "in"), ("check", "out")))
_JSON_TYPES = {
    type(None): "null",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}


def infer_tools(calls: Iterable[ToolCall]) -> tuple[ToolSpec, ...]:
    """Return the tools that the calls use, in the order of their first call."""
    arguments: dict[str, list[dict[str, Any]]] = {}
    for call in calls:
        arguments.setdefault(call.name, []).append(call.arguments)
    return tuple(
        ToolSpec(name=name, description=_description(name), parameters=_object_schema(seen))
        for name, seen in arguments.items()
    )


def with_bare_names(specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools with the part of `server.tool` after the server as another name, if no other tool has it.

    A tool of an MCP server may be called by that name too.
    """
    counts = Counter(spec.name.rpartition(".")[2] for spec in specs)
    pairs = ((spec, spec.name.rpartition(".")[2]) for spec in specs)
    return tuple(
        spec.replace(name_aliases=(*spec.name_aliases, bare)) if bare != spec.name and counts[bare] == 1 else spec
        for spec, bare in pairs
    )


def only_reads(name: str) -> bool:
    """Return whether a tool only reads, by its name. The module docstring has the rule."""
    words = _words(name)
    if tuple(words[:2]) in _WRITES_ALTHOUGH:
        return False
    if words and (words[0] in READ_WORDS or "python" in words):
        return True
    before = list(itertools.takewhile(lambda word: word not in READ_WORDS, words))
    return len(before) < len(words) and WRITE_WORDS.isdisjoint(before)


def looks_up(name: str) -> bool:
    """Return whether a tool reads something that the agent cannot know, by its name."""
    words = _words(name)
    return only_reads(name) and words[0] not in COMPUTING_WORDS and "python" not in words


def hands_over(name: str) -> bool:
    """Return whether a tool hands the user over to a person, by its name."""
    return not HANDOVER_WORDS.isdisjoint(_words(name)[:1])


def _words(name: str) -> list[str]:
    """Return the lower-case words of a tool's name, without the name of its server."""
    server, _, tool = name.rpartition(".")
    words, of_server = ([word.lower() for word in _WORD.findall(text)] for text in (tool, server))
    return words[len(of_server) :] if of_server and words[: len(of_server)] == of_server else words


def _description(name: str) -> str:
    text = " ".join(_words(name)).capitalize() or name
    return f"{text}. {'Reads only.' if only_reads(name) else 'Makes a change.'}"


def _object_schema(objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, list[Any]] = defaultdict(list)
    for each in objects:
        for key, value in each.items():
            if value is not None:
                values[key].append(value)
    required = [key for key, seen in values.items() if len(seen) == len(objects)]
    schema = {"type": "object", "properties": {key: _schema(seen) for key, seen in values.items()}}
    return {**schema, "required": required} if required else schema


def _schema(values: Sequence[Any]) -> dict[str, Any]:
    types = list(dict.fromkeys(_JSON_TYPES[type(value)] for value in values))
    if set(types) == {"integer", "number"}:
        types = ["number"]
    if len(types) != 1:
        return {"type": types} if types else {}
    match types[0]:
        case "object":
            return _object_schema(values)
        case "array":
            items = [item for value in values for item in value]
            return {"type": "array", "items": _schema(items)} if items else {"type": "array"}
        case "string":
            choices = _enum(values)
            return {"type": "string", "enum": choices} if choices else {"type": "string"}
    return {"type": types[0]}


def _enum(values: Sequence[str]) -> list[str]:
    counts = Counter(values)
    safe = (
        len(values) >= MIN_ENUM_VALUES
        and 2 <= len(counts) <= MAX_ENUM_CHOICES
        and min(counts.values()) >= MIN_ENUM_REPEATS
        and not any(len(value) > MAX_ENUM_CHARACTERS or _SPECIFIC.search(value) for value in counts)
    )
    return sorted(counts) if safe else []
