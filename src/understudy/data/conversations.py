"""Conversations out of files of any of these forms, as the records of `preferences`:

    ours           `messages`, or `chosen` and `rejected`, or `messages` and `wanted`
    ShareGPT       `conversations` of {from, value}, with `system` and `tools` beside them, as LLaMA-Factory reads it
    TRL            `messages`; `prompt` with `completion`, or with `chosen` and `rejected`; `label`
    OpenAI         `messages`; `input` with `preferred_output` and `non_preferred_output`

Tools may be a list or its JSON text. Columns that are none of these are not read. What a form says and ours cannot hold
is refused: replies with the weight 0, messages in parts (pictures), roles that nobody here has.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from understudy.data.items import Bad, Item, malformed
from understudy.data.preferences import Demonstration, Judged, Preference
from understudy.data.read import SUFFIXES, read
from understudy.data.write import output, refuse_existing
from understudy.errors import TaskError

Lesson = Demonstration | Preference | Judged
"""A conversation to learn from, of any kind."""
Watch = Callable[[Iterable[Any], str], Iterable[Any]]

JOIN = "\n</tool_response>\n<tool_response>\n"
"""What stands between the results of several calls in one observation of ShareGPT's."""
CALLS, CALLS_END = "<tool_call>", "</tool_call>"
"""What stands around the calls in a `function_call` of ShareGPT's that says something, too."""

_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_CALLING, _ANSWERING = ("function_call", "function"), ("observation", "tool")
_PAIR = ("chosen", "rejected")
_ENDS = (*_PAIR, "completion", "messages")
_COLUMNS = {"conversations", "messages", "prompt", "chosen", "preferred_output"}
_OF_TASKS = {"scenario", "reward_spec", "instruction"}


class _Misread(Exception):
    """Why a row cannot be held, and in which field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


def is_conversation(value: Any) -> bool:
    """Whether a row is a conversation of any form, and not a task."""
    return isinstance(value, dict) and bool(value.keys() & _COLUMNS) and not value.keys() & _OF_TASKS


def is_conversations(path: Path) -> bool:
    """Whether a file's first value is a conversation."""
    if not path.is_file() or path.suffix not in SUFFIXES:
        return False
    return is_conversation(next((item.value for item in read(path) if isinstance(item, Item)), None))


def conversations(path: Path) -> Iterator[Item[Lesson] | Bad]:
    """The rows of a file; one that cannot be held is a `Bad` that says where and why."""
    for item in read(path):
        yield item if isinstance(item, Bad) else _conversation(item)


def demonstrations(path: Path) -> Iterator[Item[Demonstration] | Bad]:
    """The rows of a file that are to be imitated; one that is a pair, or judged, is a `Bad`."""
    for item in conversations(path):
        if isinstance(item, Bad) or isinstance(item.value, Demonstration):
            yield item  # type: ignore[misc]  # narrowed by its value
        else:
            kind = "a pair of conversations" if isinstance(item.value, Preference) else "judged"
            yield Bad(item.where, "", f"it is {kind}, where one to imitate is needed")


def convert(
    source: Path, out: Path, keep_going: bool, resume: bool, watch: Watch, report: Callable[[Bad], None]
) -> tuple[int, int]:
    """Write a file's conversations in our form; how many, and how many cannot be held. All are of one kind.

    Those are reported; unless `keep_going` they are a `TaskError`, and nothing is written.
    """
    refuse_existing(out, resume)
    kinds = Counter(type(item if isinstance(item, Bad) else item.value).__name__ for item in conversations(source))
    bad = kinds.pop(Bad.__name__, 0)
    for item in conversations(source) if bad else ():
        if isinstance(item, Bad):
            report(item)
    if bad and not keep_going:
        raise TaskError(f"{source}: {bad} of {bad + kinds.total()} conversations are refused; see --keep-going")
    if len(kinds) != 1:
        raise TaskError(f"{source} holds {' and '.join(sorted(kinds)) or 'no conversation'}, where one kind is needed")
    with output(out, resume=resume) as made:
        for item in watch(conversations(source), "writing"):
            if isinstance(item, Item):
                made.write(item.value)
    return kinds.total(), bad


def _conversation(item: Item[Any]) -> Item[Lesson] | Bad:
    try:
        if not isinstance(item.value, dict):
            raise _Misread("", "it is not an object")
        kind, fields = _fields(item.value)
        return Item(item.where, kind.model_validate(fields))
    except _Misread as e:
        return Bad(item.where, e.field, str(e))
    except ValidationError as e:
        return malformed(item.where, e)


def _fields(row: Mapping[str, Any]) -> tuple[type[Lesson], dict[str, Any]]:
    """The kind of a row, and its fields as the record of that kind takes them."""
    begin, ends = _parts(row)
    fields: dict[str, Any] = {"task": row.get("task") or "", "tools": _tools(row)}
    if len(ends) == 2:
        chosen, rejected = (_wired([*begin, *end]) for end in ends)
        return Preference, fields | {"chosen": chosen, "rejected": rejected}
    fields["messages"] = _wired([*begin, *(ends[0] if ends else [])])
    judgement = next((row[name] for name in ("wanted", "label", "kto_tag") if name in row), None)
    return (Demonstration, fields) if judgement is None else (Judged, fields | {"wanted": judgement})


def _parts(row: Mapping[str, Any]) -> tuple[list[Any], list[list[Any]]]:
    """What a row begins with, and how it ends: in one way, in two (the better one first), or with that beginning."""
    if "conversations" in row:
        begin, ends = _list(row, "conversations"), [row[name] for name in _ends(row, _PAIR)]
        if isinstance(row.get("system"), str) and row["system"]:
            begin = [{"from": "system", "value": row["system"]}, *begin]
        told = [_told([*begin, end]) for end in ends] if ends else [_told(begin)]
        return [], told
    if "input" in row:
        return _list(row["input"], "messages"), [_list(row, f"{name}preferred_output") for name in ("", "non_")]
    names = _ends(row, _ENDS)
    ends = [_list(row, name) for name in names]
    whole = names and names != ["completion"]  # then a text as prompt is the user's words once more
    begin = [] if "prompt" not in row or (whole and not isinstance(row["prompt"], list)) else _list(row, "prompt")
    return [] if ends and all(end[: len(begin)] == begin for end in ends) else begin, ends


def _ends(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Which of these columns a row has: one, or a pair; beside a pair `messages` is one of the two, and not read.

    Texts beside conversations are not read either, and a column of nothing is a table's.
    """
    there = [name for name in names if row.get(name) is not None]
    there = [name for name in there if isinstance(row[name], list | dict)] or there
    if set(_PAIR) <= set(there):
        return [*_PAIR]
    if len(there) > 1 or there in (["chosen"], ["rejected"]):
        raise _Misread(there[0], f"it has {' and '.join(there)}; one is needed, or chosen and rejected")
    return there


def _list(row: Any, name: str) -> list[Any]:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, list):
        raise _Misread(name, "a list of messages is needed")
    return value


def _tools(row: Mapping[str, Any]) -> list[Any]:
    inner = row["input"] if isinstance(row.get("input"), dict) else row
    tools = inner.get("tools") or []
    tools = _parsed(tools, "tools", "not JSON") if isinstance(tools, str) else tools
    if not isinstance(tools, list):
        raise _Misread("tools", "a list of tools is needed")
    return [_tool(tool) for tool in tools]


def _tool(tool: Any) -> Any:
    """A tool without its wrapping, and without `strict`, which is for an endpoint and shown to no model."""
    function = tool.get("function", tool) if isinstance(tool, dict) else tool
    return {key: function[key] for key in function if key != "strict"} if isinstance(function, dict) else function


def _wired(messages: Sequence[Any]) -> list[Any]:
    """Messages as `preferences` reads them: without the columns that a table fills with nulls, and without weights."""
    kept = []
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _Misread(f"messages.{number}", "it is not an object")
        if message.get("weight") == 0:
            raise _Misread(f"messages.{number}.weight", "a reply that is not to be learned from cannot be held")
        beside = ("weight", "name")
        bare = {key: value for key, value in message.items() if value is not None and key not in beside}
        kept.append(bare if "content" in bare else bare | {"content": ""})
    return _identified(kept)


def _identified(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls without ids get those that an agent gives, and the results after them answer them in order."""
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


def _told(turns: Sequence[Any]) -> list[dict[str, Any]]:
    """ShareGPT's turns as messages of the chat completions API."""
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        where = f"conversations.{number}"
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise _Misread(where, "it is not an object with a text as value")
        tag, text = turn.get("from"), turn["value"]
        if tag in _CALLING:
            messages.append(_calling(text, where))
        elif tag in _ANSWERING:
            messages += _answers(text, messages[-1] if messages else {}, where)
        elif tag in _ROLES:
            messages.append({"role": _ROLES[tag], "content": text})
        else:
            allowed = ", ".join((*_ROLES, *_CALLING, *_ANSWERING))
            raise _Misread(f"{where}.from", f"unknown tag {tag!r}; allowed: {allowed}")
    return messages


def _calling(text: str, where: str) -> dict[str, Any]:
    """A `function_call`: JSON of one call or a list, or a text with that in a `<tool_call>`."""
    said, inner = "", text
    if not text.lstrip().startswith(("{", "[")) and CALLS in text and CALLS_END in text:
        said, _, inner = text.partition(CALLS)
        said, inner = said.removesuffix("\n"), inner.rpartition(CALLS_END)[0]
    calls = _parsed(inner, where, "a function_call that is not JSON")
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and call.keys() >= {"name", "arguments"} for call in calls):
        raise _Misread(where, "a function_call without a name and arguments")
    wired = [{"function": {"name": call["name"], "arguments": call["arguments"]}} for call in calls]
    return {"role": "assistant", "content": said, "tool_calls": wired}


def _parsed(text: str, where: str, otherwise: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as e:
        raise _Misread(where, f"{otherwise}: {e}") from e


def _answers(text: str, before: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """An observation: what the calls before it came to, each in a message of its own."""
    count = len(before.get("tool_calls") or [])
    parts = text.split(JOIN) if count > 1 else [text]
    if len(parts) != max(1, count):
        raise _Misread(where, f"an observation of {len(parts)} results after {count} calls")
    return [{"role": "tool", "content": part} for part in parts]
