"""Read conversations in any of these forms as the records of `examples`:

    ours      `messages`, or `chosen` and `rejected`, or `messages` and `label`
    ShareGPT  `conversations` of {from, value}, with `system` and `tools` beside them, as LLaMA-Factory reads it
    TRL       `messages`; `prompt` with `completion`, or with `chosen` and `rejected`; `label`
    OpenAI    `messages`; `input` with `preferred_output` and `non_preferred_output`

Tools may be a list or its JSON text. Other columns are ignored. Not supported, and therefore errors, are replies with
weight 0, messages in parts (images) and unknown roles.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from understudy.core.errors import TaskError
from understudy.core.items import Item, RowError, row_error_from_validation
from understudy.core.readers import SUFFIXES, read_rows
from understudy.data.conversations.examples import Demonstration, LabeledExample, PreferencePair
from understudy.data.writer import open_output, validate_output_path

TrainingExample = Demonstration | PreferencePair | LabeledExample
"""A training conversation of any kind."""
ProgressTracker = Callable[[Iterable[Any], str], Iterable[Any]]

RESULT_SEPARATOR = "\n</tool_response>\n<tool_response>\n"
"""Separates the results of several calls in one observation of ShareGPT."""
TOOL_CALL_START, TOOL_CALL_END = "<tool_call>", "</tool_call>"
"""Encloses the calls of a ShareGPT `function_call` that also has text."""

_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_CALLING, _ANSWERING = ("function_call", "function"), ("observation", "tool")
_PAIR = ("chosen", "rejected")
_ENDS = (*_PAIR, "completion", "messages")
_COLUMNS = {"conversations", "messages", "prompt", "chosen", "preferred_output"}
_OF_TASKS = {"scenario", "reward_spec", "instruction"}


class _InvalidRow(Exception):
    """Raised for a row that is not supported: the reason and the field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


def is_conversation(value: Any) -> bool:
    """Return whether a row is a conversation in any form, rather than a task."""
    return isinstance(value, dict) and bool(value.keys() & _COLUMNS) and not value.keys() & _OF_TASKS


def is_conversation_file(path: Path) -> bool:
    """Return whether the first value of a file is a conversation."""
    if not path.is_file() or path.suffix not in SUFFIXES:
        return False
    return is_conversation(next((item.value for item in read_rows(path) if isinstance(item, Item)), None))


def read_conversations(path: Path) -> Iterator[Item[TrainingExample] | RowError]:
    """Yield the rows of a file. An unsupported row is a `RowError` with its location and reason."""
    for item in read_rows(path):
        yield item if isinstance(item, RowError) else _conversation(item)


def read_sft_conversations(path: Path) -> Iterator[Item[Demonstration] | RowError]:
    """Yield the demonstrations of a file. A pair or labeled example is a `RowError`."""
    for item in read_conversations(path):
        if isinstance(item, RowError) or isinstance(item.value, Demonstration):
            yield item  # type: ignore[misc]  # narrowed by its value
        else:
            kind = "a pair of conversations" if isinstance(item.value, PreferencePair) else "a labeled example"
            yield RowError(item.location, "", f"it is {kind}; a demonstration (one conversation to imitate) is needed")


def convert_conversations(
    source: Path,
    out: Path,
    skip_invalid: bool,
    resume: bool,
    track: ProgressTracker,
    report: Callable[[RowError], None],
) -> tuple[int, int]:
    """Write the conversations of a file in our form. Return the number of written and of invalid rows.

    All rows must be of one kind. Raise TaskError and write nothing if a row is invalid, unless `skip_invalid` is set.
    """
    validate_output_path(out, resume)
    kinds = Counter(
        type(item if isinstance(item, RowError) else item.value).__name__ for item in read_conversations(source)
    )
    bad = kinds.pop(RowError.__name__, 0)
    for item in read_conversations(source) if bad else ():
        if isinstance(item, RowError):
            report(item)
    if bad and not skip_invalid:
        raise TaskError(
            f"{source}: {bad} of {bad + kinds.total()} conversations are invalid; --skip-invalid leaves them out"
        )
    if len(kinds) != 1:
        raise TaskError(
            f"{source} holds {' and '.join(sorted(kinds)) or 'no conversation'}; "
            "a file must hold conversations of exactly one kind"
        )
    with open_output(out, resume=resume) as made:
        for item in track(read_conversations(source), "writing"):
            if isinstance(item, Item):
                made.write(item.value)
    return kinds.total(), bad


def _conversation(item: Item[Any]) -> Item[TrainingExample] | RowError:
    try:
        if not isinstance(item.value, dict):
            raise _InvalidRow("", "it is not an object")
        kind, fields = _fields(item.value)
        return Item(item.location, kind.model_validate(fields))
    except _InvalidRow as e:
        return RowError(item.location, e.field, str(e))
    except ValidationError as e:
        return row_error_from_validation(item.location, e)


def _fields(row: Mapping[str, Any]) -> tuple[type[TrainingExample], dict[str, Any]]:
    """Return the kind of a row, and its fields for the record of that kind."""
    begin, ends = _parts(row)
    fields: dict[str, Any] = {"task": row.get("task") or "", "tools": _tools(row)}
    if len(ends) == 2:
        chosen, rejected = (_to_api_messages([*begin, *end]) for end in ends)
        return PreferencePair, fields | {"chosen": chosen, "rejected": rejected}
    fields["messages"] = _to_api_messages([*begin, *(ends[0] if ends else [])])
    label = next((row[name] for name in ("label", "kto_tag") if name in row), None)
    return (Demonstration, fields) if label is None else (LabeledExample, fields | {"label": label})


def _parts(row: Mapping[str, Any]) -> tuple[list[Any], list[list[Any]]]:
    """Return the shared first messages of a row and its endings: none, one, or two with the better one first."""
    if "conversations" in row:
        begin, ends = _list(row, "conversations"), [row[name] for name in _ends(row, _PAIR)]
        if isinstance(row.get("system"), str) and row["system"]:
            begin = [{"from": "system", "value": row["system"]}, *begin]
        return [], [_from_sharegpt([*begin, end]) for end in ends] if ends else [_from_sharegpt(begin)]
    if "input" in row:
        return _list(row["input"], "messages"), [_list(row, f"{name}preferred_output") for name in ("", "non_")]
    names = _ends(row, _ENDS)
    ends = [_list(row, name) for name in names]
    whole = names and names != ["completion"]  # a text in `prompt` then only repeats the first user message
    begin = [] if "prompt" not in row or (whole and not isinstance(row["prompt"], list)) else _list(row, "prompt")
    return [] if ends and all(end[: len(begin)] == begin for end in ends) else begin, ends


def _ends(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return which of these columns a row has: none, one, or `chosen` and `rejected`.

    Other columns beside `chosen` and `rejected` are ignored. So are null columns, and text columns beside lists of
    messages. Raise `_InvalidRow` for any other combination.
    """
    there = [name for name in names if row.get(name) is not None]
    there = [name for name in there if isinstance(row[name], list | dict)] or there
    if set(_PAIR) <= set(there):
        return [*_PAIR]
    if len(there) > 1 or there in (["chosen"], ["rejected"]):
        allowed = [*(name for name in names if name not in _PAIR), "both chosen and rejected"]
        raise _InvalidRow(there[0], f"it has {' and '.join(there)}; allowed: {' or '.join(allowed)}")
    return there


def _list(row: Any, name: str) -> list[Any]:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, list):
        raise _InvalidRow(name, "a list of messages is needed")
    return value


def _tools(row: Mapping[str, Any]) -> list[Any]:
    inner = row["input"] if isinstance(row.get("input"), dict) else row
    tools = inner.get("tools") or []
    tools = _parsed(tools, "tools", "not JSON") if isinstance(tools, str) else tools
    if not isinstance(tools, list):
        raise _InvalidRow("tools", "a list of tools is needed")
    return [_tool(tool) for tool in tools]


def _tool(tool: Any) -> Any:
    """Return a tool without its wrapper and without `strict`, which no model sees."""
    function = tool.get("function", tool) if isinstance(tool, dict) else tool
    return {key: function[key] for key in function if key != "strict"} if isinstance(function, dict) else function


def _to_api_messages(messages: Sequence[Any]) -> list[Any]:
    """Return messages for `examples`, without null columns and weights."""
    cleaned = []
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _InvalidRow(f"messages.{number}", "it is not an object")
        if message.get("weight") == 0:
            raise _InvalidRow(f"messages.{number}.weight", "replies with weight 0 are not supported")
        beside = ("weight", "name")
        bare = {key: value for key, value in message.items() if value is not None and key not in beside}
        cleaned.append(bare if "content" in bare else bare | {"content": ""})
    return _with_call_ids(cleaned)


def _with_call_ids(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give ids to calls without ids, and to the results after them in order."""
    turn, asked, named = 0, list[str](), list[dict[str, Any]]()
    for message in messages:
        calls = message.get("tool_calls")
        if message.get("role") == "assistant":
            if isinstance(calls, list) and all(isinstance(call, dict) for call in calls):
                calls = [c if c.get("id") else c | {"id": f"call_{turn}_{i}"} for i, c in enumerate(calls)]
                message = message | {"tool_calls": calls}
                asked = [call["id"] for call in calls]
            turn += 1
        elif message.get("role") == "tool" and asked:
            message = {"tool_call_id": asked.pop(0)} | message
        named.append(message)
    return named


def _from_sharegpt(turns: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert ShareGPT turns to messages of the chat completions API."""
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        where = f"conversations.{number}"
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise _InvalidRow(where, "it is not an object with a string as value")
        tag, text = turn.get("from"), turn["value"]
        if tag in _CALLING:
            messages.append(_calling(text, where))
        elif tag in _ANSWERING:
            messages += _answers(text, messages[-1] if messages else {}, where)
        elif tag in _ROLES:
            messages.append({"role": _ROLES[tag], "content": text})
        else:
            allowed = ", ".join((*_ROLES, *_CALLING, *_ANSWERING))
            raise _InvalidRow(f"{where}.from", f"unknown tag {tag!r}; allowed: {allowed}")
    return messages


def _calling(text: str, where: str) -> dict[str, Any]:
    """Parse a `function_call`: JSON of one call or a list, or a text with that in a `<tool_call>`."""
    content, inner = "", text
    if not text.lstrip().startswith(("{", "[")) and TOOL_CALL_START in text and TOOL_CALL_END in text:
        content, _, inner = text.partition(TOOL_CALL_START)
        content, inner = content.removesuffix("\n"), inner.rpartition(TOOL_CALL_END)[0]
    calls = _parsed(inner, where, "a function_call that is not JSON")
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and call.keys() >= {"name", "arguments"} for call in calls):
        raise _InvalidRow(where, "a function_call without a name and arguments")
    wired = [{"function": {"name": call["name"], "arguments": call["arguments"]}} for call in calls]
    return {"role": "assistant", "content": content, "tool_calls": wired}


def _parsed(text: str, where: str, otherwise: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as e:
        raise _InvalidRow(where, f"{otherwise}: {e}") from e


def _answers(text: str, before: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Split an observation into one message for each earlier call."""
    count = len(before.get("tool_calls") or [])
    parts = text.split(RESULT_SEPARATOR) if count > 1 else [text]
    if len(parts) != max(1, count):
        raise _InvalidRow(where, f"an observation of {len(parts)} results after {count} calls")
    return [{"role": "tool", "content": part} for part in parts]
