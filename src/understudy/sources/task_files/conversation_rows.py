"""Read a recorded conversation as a task: its first messages are the request, its calls are gold.

    {"prompt": [{"role": "system", …}, {"role": "user", …}, {"role": "assistant", "tool_calls": […]}, …]}
    {"task_id": "a", "conversation": [{"from": "human", "value": "…"}, …], "success": true}

The conversation is in `traj`, `messages`, `conversations`, `conversation`, or `prompt`, of the row or of `extra_info`,
there also in `original_conversation`. Other fields are those of call rows (`call_rows`).

    request     the system message, and all that the user says
    gold        the recorded calls with their results; calls that failed and thoughts are left out
    answer      the text after the last call
    required    the writes; if the calls only read, facts of the answer that results state (`told_facts`); if there
                are none, a successful call of each tool that looks something up

Lists of names of tools, such as `expected_tools`, are compared with the recorded calls and add none. Without a
conversation they are refused, because a call needs arguments.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from pydantic_core import from_json

from understudy.core.items import InvalidField, RowError
from understudy.core.messages import Message, ToolCall, order_tool_results
from understudy.sources.outcomes import OUTCOME_COLUMNS, RowOutcome, find_outcome
from understudy.sources.row_messages import ROLES, WireMessage, find_system, normalize_messages, read_weight
from understudy.sources.sharegpt import messages_from_sharegpt
from understudy.sources.task_files.call_matching import NO_ANSWER, NO_FACTS
from understudy.sources.task_files.call_rows import field_of, parts_of, read_call_row
from understudy.sources.task_files.inferred_tools import looks_up, only_reads
from understudy.sources.task_files.task_row import TaskRow, decode, decode_columns, result_text, to_call
from understudy.sources.task_files.told_facts import choose_facts, is_final, without_questions

CONVERSATION_COLUMNS = ("traj", "messages", "conversations", "conversation", "prompt")
NAME_COLUMNS = ("tool_sequence", "actions", "expected_tools", "extracted_tool_sequence", "likely_tools")
"""Columns that may list tools by name."""
OTHER_TOOLS_NOTE = "the tools listed by name are not those of the recorded calls, which are taken"
EARLIER_REPLIES_NOTE = "a text of the assistant that another of its messages follows is left out"
FAILED_CALLS_NOTE = "calls that failed when they were recorded are left out"
SHORTER_ANSWER_NOTE = "the gold answer is shorter than the recorded one, which asks something or lists too many numbers"
UNCOMPARED_ANSWER_NOTE = "only calls are compared, because no result states a number or an identifier of the answer"
_INNER_COLUMNS = (*CONVERSATION_COLUMNS, "original_conversation")
_PREFERENCE_COLUMNS = frozenset({"chosen", "rejected", "completion"})
_WRAPPERS, _CALL_LABELS = {"content", "result", "output"}, {"tool_call_id", "name", "role"}
_FAILURE = re.compile(
    r"\s*(?:\N{CROSS MARK}|traceback\b|[\w.]*(?:error|exception):|error (?:\w+ing|in)\b|failed(?::(?!\s*\d)| to\b))",
    re.IGNORECASE,
)
_FAILED_STATUS = ("error", "failed", "failure")
_STATUS_KEYS = {"status", "message", "reason", "detail", "details", "code", "data"}
"""Keys of an object whose status is that of the call, not of what it looked up, such as a payment that failed."""


def is_conversation_row(row: Mapping[str, Any]) -> bool:
    """Return whether the gold calls of a row are those of a recorded conversation, or only names of tools."""
    row = decode_columns(row)
    parts = _all_parts(row)
    if row.keys() & _PREFERENCE_COLUMNS or any(_lists_calls(part) for part in parts):
        return False
    if find_conversation(row) is not None:
        return True
    return any(column != "expected_tools" and _names(part.get(column)) for part in parts for column in NAME_COLUMNS)


def read_conversation_row(row: Mapping[str, Any], identity: str) -> TaskRow:
    """Return the task of a row. `identity` is the id of a task without one."""
    row = decode_columns(row)
    require_success(row)
    read_weight(row, True, "")
    found = find_conversation(row)
    if found is None:
        column = next(name for part in _all_parts(row) for name in NAME_COLUMNS if _names(part.get(name)))
        problem = "it has names of tools without arguments, which are no gold calls; give calls as {name, arguments}"
        raise InvalidField(column, f"{problem}, or the recorded conversation as messages", "only names")
    messages, is_complete = read_messages(*found)
    calls, failed = _gold_calls(messages)
    system = next((message.content for message in messages if message.role == "system"), "") or find_system(row)[0]
    request = "\n".join(message.content for message in messages if message.role == "user")
    text = _last_text(messages)
    answer = text if is_final(text, request) else without_questions(text, request)
    columns = {column: value for column, value in row.items() if column not in (*CONVERSATION_COLUMNS, "results")}
    columns["prompt"] = [{"role": "system", "content": system}, {"role": "user", "content": request}]
    columns["actions"] = _actions(calls)
    ungraded, lookups = None, ()
    if not field_of(parts_of(row), "outputs") and all(only_reads(action["name"]) for action in columns["actions"]):
        columns["outputs"], answer = choose_facts(calls, text, request, answer)
        if not columns["outputs"]:
            lookups = tuple(dict.fromkeys(action["name"] for action in columns["actions"] if looks_up(action["name"])))
            ungraded = _untold(text)
    task_row = read_call_row(columns, identity)
    task_row = replace(task_row, task=task_row.task.replace(must_call=lookups))
    notes = {
        FAILED_CALLS_NOTE: failed,
        EARLIER_REPLIES_NOTE: not is_complete,
        OTHER_TOOLS_NOTE: _differs(row, messages),
        SHORTER_ANSWER_NOTE: answer != text,
        UNCOMPARED_ANSWER_NOTE: bool(lookups),
    }
    return replace(
        _with_answer(task_row, answer),
        ungraded=ungraded,
        notes=(*task_row.notes, *(note for note, applies in notes.items() if applies)),
    )


def find_conversation(row: Mapping[str, Any]) -> tuple[str, list[Any]] | None:
    """Return the recorded conversation of a decoded row, with its field; None if there is none.

    A `prompt` is one only if it has replies of the assistant, as it is otherwise the beginning of one.
    """
    info = row.get("extra_info")
    places = [(name, row.get(name)) for name in CONVERSATION_COLUMNS]
    if isinstance(info, dict):
        places += [(f"extra_info.{name}", info.get(name)) for name in _INNER_COLUMNS]
    for name, value in places:
        value = decode(value)
        turns = value.get("messages") if isinstance(value, dict) else value
        if is_message_list(turns) and ("prompt" not in name or _has_calls(turns)):
            return name, turns
    return None


def is_message_list(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Return whether a value is a list of messages or of ShareGPT's turns."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(e, dict) and e.keys() & {"role", "from"} for e in value)
    )


def require_success(row: Mapping[str, Any]) -> None:
    """Raise InvalidField if a row says that its conversation failed: by its first outcome (`find_outcome`)."""
    for column in OUTCOME_COLUMNS:
        outcome = _outcome_of(column, row.get(column))
        if outcome is None:
            continue
        if not outcome.is_success(min_reward=1.0):
            problem = f"it is {row[column]!r:.50}: the recorded conversation failed, so its calls are no gold calls"
            raise InvalidField(column, problem, "failed episode")
        return


def _outcome_of(column: str, value: Any) -> RowOutcome | None:
    """Return the outcome that a column gives; None for a null, or another value, such as a topic as the label."""
    try:
        return None if value is None else find_outcome({column: value})
    except InvalidField:
        return None


def read_messages(field: str, turns: Sequence[Any]) -> tuple[list[Message], bool]:
    """Return the messages of a recorded conversation, without thoughts, and whether these are all of its texts.

    Raise InvalidField for a message of another form.
    """
    given = messages_from_sharegpt(turns)
    kept = _without_earlier_replies(given)
    wire = normalize_messages(kept, allow_empty_replies=True)
    messages = [_to_message(each, f"{field}.{number}") for number, each in enumerate(wire)]
    return _with_distinct_call_ids(order_tool_results(messages)), len(kept) == len(given)


def _with_distinct_call_ids(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with an id of its own for each call, because some endpoints use ids again in each reply."""
    found, ids = list[Message](), dict[str, list[str]]()
    for number, message in enumerate(messages):
        own = dict[str, list[str]]()
        for place, call in enumerate(message.tool_calls):
            own.setdefault(call.id, []).append(f"{number}_{place}")
        queues = {name: iter(listed) for name, listed in own.items()}
        ids |= own
        if own:
            calls = tuple(call.replace(id=next(queues[call.id])) for call in message.tool_calls)
            message = message.replace(tool_calls=calls)
        elif message.role == "tool" and ids.get(message.tool_call_id):
            message = message.replace(tool_call_id=ids[message.tool_call_id].pop(0))
        found.append(message)
    return found


def _to_message(wire: WireMessage, field: str) -> Message:
    calls = wire.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidField(f"{field}.tool_calls", "it must be a list of calls")
    try:
        made = tuple(to_call(call, number, str(call.get("id") or "")) for number, call in enumerate(calls))
    except InvalidField as e:
        raise InvalidField(f"{field}.tool_calls{e.field.removeprefix('actions')}", e.problem) from e
    if wire.get("role") not in ROLES:
        raise InvalidField(f"{field}.role", f"it is {wire.get('role')!r:.50}; it must be one of {', '.join(ROLES)}")
    content, call_id = result_text(wire.get("content") or ""), str(wire.get("tool_call_id") or "")
    return Message(role=wire.get("role"), content=content, tool_calls=made, tool_call_id=call_id)


def _without_earlier_replies(turns: Sequence[WireMessage]) -> list[WireMessage]:
    """Return messages without those of the assistant that call nothing and that another reply follows directly."""
    kept = list[WireMessage]()
    for role, neighbours in itertools.groupby(turns, key=lambda turn: turn.get("role")):
        run = list(neighbours)
        if role == "assistant":
            replies = [_readable_reply(turn) for turn in run]
            last = max(
                (n for n, reply in enumerate(replies) if reply.get("content") or reply.get("tool_calls")), default=0
            )
            run = [
                t for n, t in enumerate(run) if n >= last or replies[n].get("tool_calls") or not replies[n]["content"]
            ]
        kept += run
    return kept


def _readable_reply(turn: WireMessage) -> WireMessage:
    """Return a reply with its calls, or with its text if it is a call that cannot be read."""
    try:
        return normalize_messages([turn], allow_empty_replies=True)[0]
    except InvalidField:
        return turn


def _gold_calls(messages: Sequence[Message]) -> tuple[list[Message], bool]:
    """Return the successful calls, each with its result, and whether any call failed."""
    results = {message.tool_call_id: _plain(message.content) for message in messages if message.role == "tool"}
    calls = [call for message in messages for call in message.tool_calls]
    good = [call for call in calls if not _is_failure(results.get(call.id, ""))]
    gold = list[Message]()
    for call in good:
        gold.append(Message(role="assistant", tool_calls=(call,)))
        if call.id in results:
            gold.append(Message(role="tool", content=results[call.id], tool_call_id=call.id))
    return gold, len(good) < len(calls)


def _actions(calls: Sequence[Message]) -> list[dict[str, Any]]:
    """Return gold calls and their results as actions of a call row."""
    results = {message.tool_call_id: message.content for message in calls if message.role == "tool"}
    made = (call for message in calls for call in message.tool_calls)
    return [_action(call, results.get(call.id)) for call in made]


def _action(call: ToolCall, result: str | None) -> dict[str, Any]:
    action = {"name": call.name, "arguments": call.arguments}
    return action if result is None else {**action, "result": result}


def _plain(result: str) -> str:
    """Return what a tool returned, without objects that have nothing but it and the name of the call."""
    try:
        value = from_json(result)
    except ValueError:
        return result
    while isinstance(value, dict) and len(payload := value.keys() - _CALL_LABELS) == 1 and payload <= _WRAPPERS:
        value = value[payload.pop()]
    return result if value == from_json(result) else result_text(value)


def _is_failure(result: str) -> bool:
    if _FAILURE.match(result):
        return True
    value = decode(result)
    if isinstance(value, list):
        return bool(value) and all(map(_says_failure, value))
    return _says_failure(value)


def _says_failure(value: Any) -> bool:
    """Return whether an object that a tool returned says that the call failed."""
    if not isinstance(value, dict):
        return False
    if value.get("ok") is False or value.get("success") is False or value.get("isError") is True:
        return True
    has_failed_status = str(value.get("status")).casefold() in _FAILED_STATUS and value.keys() <= _STATUS_KEYS
    return has_failed_status or bool(value.get("error"))


def _last_text(messages: Sequence[Message]) -> str:
    """Return what the agent says after its last call."""
    after = max((place for place, message in enumerate(messages) if message.tool_calls), default=-1)
    texts = (message.content.strip() for message in messages[after + 1 :] if message.role == "assistant")
    return "\n".join(filter(None, texts))


def _untold(text: str) -> RowError:
    if not text:
        problem = "its calls only read, and it ends without a text that tells the user what they show"
        return RowError("", "gold", problem, NO_ANSWER)
    problem = "its calls only read, and no result of a lookup states a number or an identifier of its last text"
    return RowError("", "gold", problem, NO_FACTS)


def _with_answer(row: TaskRow, answer: str) -> TaskRow:
    gold = row.task.gold
    if not answer or not gold:
        return row
    return replace(row, task=row.task.replace(gold=(*gold[:-1], Message(role="assistant", content=answer))))


def _all_parts(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects that may hold the fields of a row, and the objects in its ground truth."""
    parts = parts_of(row)
    return [*parts, *(inner for part in parts[1:] for inner in part.values() if isinstance(inner, dict))]


def _lists_calls(part: Mapping[str, Any]) -> bool:
    listed = (decode(part.get(name)) for name in ("actions", "ground_truth_actions", "tool_sequence", "gold_calls"))
    return any(isinstance(value, list) and any(isinstance(each, dict) for each in value) for value in listed)


def _has_calls(turns: Sequence[Mapping[str, Any]]) -> bool:
    roles = {turn.get("role", turn.get("from")) for turn in turns}
    return bool(roles & {"tool", "observation", "function_call"}) or any(turn.get("tool_calls") for turn in turns)


def _names(value: Any) -> list[str]:
    value = decode(value)
    is_names = isinstance(value, list) and value and all(isinstance(each, str) for each in value)
    return list(value) if is_names else []


def _differs(row: Mapping[str, Any], messages: Sequence[Message]) -> bool:
    """Return whether a list of names of tools disagrees with the recorded calls."""
    called = {call.name for message in messages for call in message.tool_calls}
    listed: Iterator[list[str]] = (_names(part.get(column)) for part in _all_parts(row) for column in NAME_COLUMNS)
    return any(names and set(names) != called for names in listed)
