"""TaskRow: a task that was read from a row, and functions that read the fields of rows.

A reader of a row raises `InvalidField`, or pydantic's ValidationError. `read_one` makes a `RowError` of both.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from understudy.core.errors import did_you_mean
from understudy.core.items import InvalidField, Item, RowError, row_error_from_validation
from understudy.core.json_values import parse_index, validate_json_value
from understudy.core.messages import ToolCall, ToolSpec, join_text_parts
from understudy.core.tasks import Difficulty, Split, Task
from understudy.sources.dataset_files import SPLIT_NAMES
from understudy.sources.readers import without_nulls
from understudy.sources.row_messages import ARGUMENT_KEYS

MAX_SHOWN = 200
"""Most characters of a wrong value that an error shows."""
LATER_MESSAGES_NOTE = "messages of the prompt after the user's first are left out, as the row has gold calls besides"
_DIFFICULTIES: Mapping[str, Difficulty] = {
    **dict.fromkeys(("1", "easy", "simple"), "easy"),
    **dict.fromkeys(("2", "medium", "moderate", "unknown"), "medium"),
    **dict.fromkeys(("3", "hard", "difficult", "complex"), "hard"),
}
# fmt: off
_JSON_COLUMNS = (
    "prompt", "reward_spec", "reward_model", "extra_info", "actions", "outputs", "tools", "ground_truth", "info",
    "traj", "messages", "conversations", "conversation",
)
# fmt: on
RESULT_KEYS = ("result", "output", "observation", "response")
"""Names of what the tool returned, in a call that was recorded."""
_CALL_LABELS = frozenset(
    ("name", "function", "id", "type", "action_id", "requestor", "info", "compare_args", "tool_call_id", "index")
) | {*RESULT_KEYS}
"""Keys of a call that are read elsewhere, or that only name it."""
_SIMILARITY_OF_TYPOS = 0.8
"""Similarity of two names (difflib's ratio) of which one is probably a typo of the other."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task that was read from a row, and what belongs beside it."""

    task: Task
    """The task. Messages with the role tool in `task.gold` are the recorded results of the calls before them."""
    split: Split | None = None
    """The split that the row names; None if it names none."""
    domain_policy: str = ""
    """The task's system message; empty means that of the source that plays it."""
    tool_specs: tuple[ToolSpec, ...] = ()
    """The tools of the task's domain, if the row lists them."""
    source: str = ""
    """The reference of the source that plays the task, if the row has one. A reference is never opened: the source of
    the task's `domain` plays it, if the user allows that source."""
    notes: tuple[str, ...] = ()
    """What the task leaves out of its row. Equal notes of a file's rows are counted."""
    ungraded: RowError | None = None
    """Why there is no output, if the task is a recorded conversation that only reads."""
    content: Any = None
    """What some sources read in place of the task: a `CallSequence`, a `ToolExample` or a row of tau2-bench."""


def read_one(location: str, read: Callable[[], T]) -> Item[T] | RowError:
    """Return what `read` returns, or the field of the row that it finds wrong."""
    try:
        return Item(location, read())
    except InvalidField as e:
        return RowError(location, e.field, e.problem, e.kind)
    except ValidationError as e:
        return row_error_from_validation(location, e)


def decode_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose columns of JSON text are values, and whose nested objects have no nulls.

    Tables that were made with Arrow pad each object with the keys of all others, as nulls.
    """
    return {key: without_nulls(decode(value) if key in _JSON_COLUMNS else value) for key, value in row.items()}


def decode(value: Any) -> Any:
    """Return the value of JSON text that holds an object or a list; anything else unchanged."""
    if isinstance(value, str) and re.match(r"\s*[\[{]", value):
        try:
            return without_nulls(from_json(value))
        except ValueError:
            return value
    return value


def difficulty_of(complexity: object, calls: int) -> Difficulty:
    """Return the difficulty by a complexity such as 2 or "hard", or by the number of gold calls if it is unknown."""
    text = str(complexity).casefold()
    counted: Difficulty = "easy" if calls <= 2 else "medium" if calls <= 4 else "hard"
    return _DIFFICULTIES.get(text, "hard" if (parse_index(text) or 0) > 3 else counted)


def complexity_note(complexity: object) -> tuple[str, ...]:
    """Return a note if a complexity is given that `difficulty_of` does not know."""
    text = "" if complexity is None else str(complexity).casefold()
    if not text or text in _DIFFICULTIES or parse_index(text) is not None:
        return ()
    return (
        f"the complexity {complexity!r:.40} is unknown (1, 2, 3, easy, medium, hard), so the number of calls counts",
    )


def split_of(value: object) -> Split | None:
    """Return the split that a value names; None if it is empty. Raise `InvalidField` for an unknown name."""
    if value is None or value == "":
        return None
    if split := SPLIT_NAMES.get(str(value).strip().casefold()):
        return split
    raise InvalidField("split", f"{did_you_mean(str(value), SPLIT_NAMES)}; rename it, or leave it out for train")


def split_of_row(row: Mapping[str, Any]) -> Split | None:
    """Return the split that a row names in `split` or, as verl's rows, in `extra_info.split`; None if in neither."""
    info = decode(row.get("extra_info"))
    return split_of(row.get("split") or (info.get("split") if isinstance(info, dict) else None))


def refuse_near_misses(values: Mapping[str, Any], known: Collection[str], absent: Collection[str]) -> None:
    """Raise `InvalidField` if a key that is not `known` is probably one of `absent`."""
    for key in values:
        if key not in known and (close := get_close_matches(str(key).lower(), absent, 1, _SIMILARITY_OF_TYPOS)):
            raise InvalidField(str(key), f"this key is unknown; did you mean {close[0]!r}? rename it, or remove it")


def messages_of(prompt: Any) -> list[tuple[str, str]]:
    """Return the roles and texts of a prompt: a text, a list of messages, or an object with such a list."""
    if isinstance(prompt, str):
        return [("user", prompt)]
    if isinstance(prompt, dict):
        prompt = prompt.get("messages")
    listed = prompt if isinstance(prompt, list) else []
    found = ((each.get("role"), each.get("content", each.get("message"))) for each in listed if isinstance(each, dict))
    texts = (("system" if role == "developer" else str(role), join_text_parts(content)) for role, content in found)
    return [(role, text) for role, text in texts if isinstance(text, str)]


def prompt_texts(prompt: Any) -> tuple[str, str]:
    """Return the system message and the user's first message of a prompt; an empty text for one that is missing."""
    said = messages_of(prompt)
    system = next((text for role, text in said if role == "system"), "")
    return system, next((text for role, text in said if role == "user"), "")


def prompt_notes(prompt: Any) -> tuple[str, ...]:
    """Return a note if a prompt goes on after the user's first message."""
    roles = [role for role, _ in messages_of(prompt) if role != "system"]
    return (LATER_MESSAGES_NOTE,) if len(roles) > 1 else ()


def calls_of(actions: Any) -> tuple[ToolCall, ...]:
    """Return a row's list of calls in any form of `actions`, as a value or as JSON text.

    Raise `InvalidField` with the field `gold_calls` for anything else.
    """
    listed = decode(actions)
    if not isinstance(listed, list | tuple):
        problem = f"it is {listed!r:.{MAX_SHOWN}}; it must be a list of calls, each {{name, arguments}}"
        raise InvalidField("gold_calls", problem)
    try:
        return tuple(to_call(action, number) for number, action in enumerate(listed))
    except InvalidField as e:
        raise InvalidField("gold_calls", f"{e.field.removeprefix('actions.')}: {e.problem}") from e


def to_call(action: Any, number: int, call_id: str = "") -> ToolCall:
    """Return the call of an action, {name, arguments} or OpenAI's form, at its place in a list."""
    name = action_name(action)
    if not name:
        problem = f"{action!r:.{MAX_SHOWN}} has no name; write each call as {{name, arguments}}"
        raise InvalidField(f"actions.{number}", problem)
    return ToolCall(name=name, arguments=_arguments(action, number), id=call_id)


def action_name(action: Any) -> str:
    """Return the name of an action; empty if it has none."""
    found = action.get("name", _function(action).get("name")) if isinstance(action, dict) else None
    return found if isinstance(found, str) else ""


def result_text(value: Any) -> str:
    """Return a recorded result as a tool returns it: a text, or a value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _function(action: Mapping[str, Any]) -> Mapping[str, Any]:
    function = action.get("function")
    return function if isinstance(function, dict) else {}


def call_arguments(action: Mapping[str, Any], field: str, labels: Collection[str] = _CALL_LABELS) -> Any:
    """Return the arguments of a call in a row, under any of `ARGUMENT_KEYS`; an empty object if it has none.

    Raise `InvalidField` if it has two, or none but a key that may mean them: one near these names, or with an object.
    `labels` are its other keys.
    """
    given = [key for key in ARGUMENT_KEYS if action.get(key) is not None]
    if [key for key in given if decode(action[key]) != decode(action[given[0]])]:
        raise InvalidField(f"{field}.{given[1]}", f"the call has other arguments in {given[0]}; keep one of the two")
    if given:
        found = decode(action[given[0]])
        return {} if isinstance(found, str) and not found.strip() else found
    for key in action.keys() - labels:
        is_near = get_close_matches(str(key).lower(), ARGUMENT_KEYS, 1, _SIMILARITY_OF_TYPOS)
        if is_near or isinstance(decode(action[key]), dict):
            allowed = ", ".join(ARGUMENT_KEYS)
            raise InvalidField(f"{field}.{key}", f"this key is unknown; the arguments of a call are under {allowed}")
    return {}


def left_out_keys(actions: Iterable[Any], labels: Collection[str] = _CALL_LABELS) -> tuple[str, ...]:
    """Return a note if calls of a row have keys that are not read."""
    keys = dict.fromkeys(str(key) for action in actions if isinstance(action, dict) for key in action)
    unread = [key for key in keys if key not in labels and key not in ARGUMENT_KEYS]
    return (f"keys of calls are left out: {', '.join(unread[:5])}",) if unread else ()


def _arguments(action: Mapping[str, Any], number: int) -> dict[str, Any]:
    function = _function(action)
    found = call_arguments(action, f"actions.{number}")
    if not found and function:
        found = call_arguments(function, f"actions.{number}.function", {*_CALL_LABELS, "description", "strict"})
    try:
        validate_json_value(found)
        json.dumps(found, allow_nan=False)
    except (ValueError, TypeError) as e:
        raise InvalidField(f"actions.{number}.arguments", f"not JSON values: {e}") from e
    if not isinstance(found, dict):
        raise InvalidField(f"actions.{number}.arguments", f"{found!r:.{MAX_SHOWN}} is not an object")
    return {str(key): value for key, value in found.items()}
