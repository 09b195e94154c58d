"""Read rows that have an instruction, actions and outputs, and no world behind them.

    {"data_source": "tau_bench", "env_class": "tau_bench", "prompt": […], "user_strategy": "llm",
     "reward_spec": {"ground_truth": {"actions": [{"name": "cancel_order", "kwargs": {…}}], "outputs": ["$12"]}},
     "extra_info": {"domain": "retail", "instruction": "…", "complexity": 2}}

A field may stand in the row itself, in `reward_spec.ground_truth`, in `reward_model.ground_truth` or in `extra_info`,
as a value or as JSON text; the first of these wins. `ground_truth` may also be the list of actions.

    actions         {name, kwargs | arguments | params}, or OpenAI's {function: {name, arguments}}; `result` (or
                    `output`, `observation`) is what the tool returned. A text to the user (`respond`) is left out
    outputs         the facts that the agent must tell
    results         what the tools returned, one for each action, if the actions do not hold it
    instruction     what the user wants; without it, the user's last message in `prompt`
    domain          else the last part of `data_source`
    user_strategy   scripted, llm, react, verify or reflection: `Scenario.user_kind`
    tools           OpenAI tools or MCP tools; without them, tools are inferred
    split           train, validation (val, dev) or test
    complexity      1 to 3, or a word: the difficulty
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from jsonschema import Draft202012Validator, SchemaError
from pydantic_core import from_json

from understudy.core.errors import did_you_mean
from understudy.core.items import Item, RowError
from understudy.core.json_values import parse_index, validate_json_value
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Difficulty, Scenario, Split, Task, UserKind
from understudy.sources.task_files.call_matching import CallTask, with_answer

ROW_COLUMNS = frozenset(
    (
        *("id", "task_id", "split", "tools", "results", "user_strategy"),
        *("prompt", "data_source", "env_class", "extra_info", "reward_spec", "reward_model"),
    )
)
"""Columns that tasks of tau-bench do not have."""
RESPOND_ACTION = "respond"
"""The action in tau-bench's data that means a text to the user."""
_SPLITS: Mapping[str, Split] = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "dev": "validation",
    "eval": "validation",
    "test": "test",
}
_DIFFICULTIES: Mapping[str, Difficulty] = {
    **dict.fromkeys(("1", "easy", "simple"), "easy"),
    **dict.fromkeys(("2", "medium", "moderate", "unknown"), "medium"),
    **dict.fromkeys(("3", "hard", "difficult", "complex"), "hard"),
}
_JSON_COLUMNS = ("prompt", "reward_spec", "reward_model", "extra_info", "actions", "outputs", "tools", "ground_truth")
_RESULT_KEYS = ("result", "output", "observation", "response")
_ARGUMENT_KEYS = ("kwargs", "arguments", "params", "parameters")
_TOO_LONG = 200


class _InvalidField(Exception):
    """A field of a row is wrong. The arguments are its name and the problem."""


def is_call_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has actions that this module reads."""
    parts = _parts(decode_columns(row))
    method = next((spec["method"] for spec in parts if "ground_truth" in spec and "method" in spec), "")
    return method != "task" and _field(parts, "actions") is not None


def read_call_row(
    item: Item[Mapping[str, Any]], identity: str, domain: str = ""
) -> Iterator[Item[CallTask] | RowError]:
    """Yield the task of a row. `identity` is the id of a task without one, `domain` the domain of one without it."""
    try:
        yield Item(item.location, _to_call_task(decode_columns(item.value), identity, domain))
    except _InvalidField as e:
        field, problem = e.args
        yield RowError(item.location, field, problem)


def decode_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose columns of JSON text are values, and whose nested objects have no nulls.

    Tables that were made with Arrow pad each object with the keys of all others, as nulls.
    """
    return {key: without_nulls(_decoded(value) if key in _JSON_COLUMNS else value) for key, value in row.items()}


def without_nulls(value: Any) -> Any:
    """Return a value whose objects have no nulls."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list | tuple) else value


def difficulty_of(complexity: object, calls: int) -> Difficulty:
    """Return the difficulty by a complexity such as 2 or "hard", or by the number of gold calls if it is unknown."""
    text = str(complexity).casefold()
    counted: Difficulty = "easy" if calls <= 2 else "medium" if calls <= 4 else "hard"
    return _DIFFICULTIES.get(text, "hard" if (parse_index(text) or 0) > 3 else counted)


def split_of(value: object) -> Split | None:
    """Return the split that a row names, or None."""
    return _SPLITS.get(value.casefold()) if isinstance(value, str) else None


def messages_of(prompt: Any) -> list[tuple[str, str]]:
    """Return the roles and texts of a prompt: a text, or a list of messages."""
    if isinstance(prompt, str):
        return [("user", prompt)]
    listed = prompt if isinstance(prompt, list) else []
    found = ((each.get("role"), each.get("content", each.get("message"))) for each in listed if isinstance(each, dict))
    return [(str(role), text) for role, text in found if isinstance(text, str)]


def calls_of(actions: Any) -> tuple[ToolCall, ...]:
    """Return a row's list of calls in any form of `actions`, as a value or as JSON text.

    Raise ValueError for anything else.
    """
    listed = _decoded(actions)
    if not isinstance(listed, list | tuple):
        raise ValueError(f"it is {listed!r:.{_TOO_LONG}}; it must be a list of calls, each {{name, arguments}}")
    try:
        return tuple(_call(action, number) for number, action in enumerate(listed))
    except _InvalidField as e:
        field, problem = e.args
        raise ValueError(f"{field.removeprefix('actions.')}: {problem}") from e


def _to_call_task(row: Mapping[str, Any], identity: str, default_domain: str) -> CallTask:
    parts, said = _parts(row), messages_of(row.get("prompt"))
    gold = tuple(_gold(_listed(parts, "actions"), _listed(parts, "results")))
    instruction = _text(parts, "instruction") or next((text for role, text in reversed(said) if role == "user"), "")
    if not instruction.strip():
        raise _InvalidField("instruction", "there is none, nor a user's message in prompt; one of them is needed")
    domain = _text(parts, "domain") or _text(parts, "data_source").rpartition("/")[2] or default_domain
    outputs = tuple(str(output).strip() for output in _listed(parts, "outputs") if str(output).strip())
    complexity, split = _field(parts, "complexity"), split_of(_field(parts, "split"))
    task_id = _text(parts, "task_id") or _text(parts, "id") or f"{domain}/{identity}".lstrip("/")
    task = Task(
        id=task_id,
        domain=domain,
        split=split or "train",
        difficulty=difficulty_of(complexity, sum(bool(message.tool_calls) for message in gold)),
        scenario=Scenario(instructions=instruction, opening=instruction, user_kind=_user_kind(parts)),
        gold=gold,
        outputs=outputs,
    )
    return CallTask(
        task=with_answer(task),
        has_split=split is not None,
        domain_policy=next((text for role, text in said if role == "system"), ""),
        tool_specs=tuple(map(_tool_spec, _listed(parts, "tools"))),
    )


def _parts(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects that may hold the fields of a row, in the order in which they count."""
    parts: list[Mapping[str, Any]] = [row]
    for name in ("reward_spec", "reward_model"):
        spec = row.get(name)
        if isinstance(spec, dict):
            truth = _decoded(spec.get("ground_truth"))
            is_list = isinstance(truth, list) and truth and all(_name(action) for action in truth)
            parts += [{"actions": truth}] if is_list else [truth] if isinstance(truth, dict) else []
            parts.append(spec)
    info = row.get("extra_info")
    return [*parts, info] if isinstance(info, dict) else parts


def _field(parts: Sequence[Mapping[str, Any]], name: str) -> Any:
    return next((part[name] for part in parts if part.get(name) is not None), None)


def _text(parts: Sequence[Mapping[str, Any]], name: str) -> str:
    value = _field(parts, name)
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return "" if value is None else str(value)
    raise _InvalidField(name, f"it is {value!r:.{_TOO_LONG}}; it must be a text")


def _listed(parts: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    value = _decoded(_field(parts, name))
    if value is None:
        return []
    if isinstance(value, str | int | float):
        return [value]
    if not isinstance(value, list):
        raise _InvalidField(name, f"it is {value!r:.{_TOO_LONG}}; it must be a list")
    return value


def _user_kind(parts: Sequence[Mapping[str, Any]]) -> UserKind | None:
    value, kinds = _field(parts, "user_strategy"), get_args(UserKind)
    if value is None or value == "":
        return None
    found: UserKind | None = next((kind for kind in kinds if kind == str(value).casefold()), None)
    if found is None:
        raise _InvalidField("user_strategy", did_you_mean(str(value), kinds))
    return found


def _gold(actions: Sequence[Any], results: Sequence[Any]) -> Iterator[Message]:
    """Yield each call, and its result if it is recorded: in the action, or at its place in a list of all results."""
    if results and len(results) != len(actions):
        raise _InvalidField("results", f"there are {len(results)} for {len(actions)} actions; each action needs one")
    for number, action in enumerate(actions):
        if _name(action) == RESPOND_ACTION:
            continue
        call_id = f"gold_{number}"
        yield Message(role="assistant", tool_calls=(_call(action, number, call_id),))
        recorded = next((action[key] for key in _RESULT_KEYS if key in action), results[number] if results else None)
        if recorded is not None:
            yield Message(role="tool", content=result_text(recorded), tool_call_id=call_id)


def result_text(value: Any) -> str:
    """Return a recorded result as a tool returns it: a text, or a value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _call(action: Any, number: int, call_id: str = "") -> ToolCall:
    name = _name(action)
    if not name:
        problem = f"{action!r:.{_TOO_LONG}} has no name; write each call as {{name, arguments}}"
        raise _InvalidField(f"actions.{number}", problem)
    return ToolCall(name=name, arguments=_arguments(action, number), id=call_id)


def _name(action: Any) -> str:
    found = action.get("name", _function(action).get("name")) if isinstance(action, dict) else None
    return found if isinstance(found, str) else ""


def _function(action: Mapping[str, Any]) -> Mapping[str, Any]:
    function = action.get("function")
    return function if isinstance(function, dict) else {}


def _arguments(action: Mapping[str, Any], number: int) -> dict[str, Any]:
    places = [action[key] for key in _ARGUMENT_KEYS if key in action]
    found = _decoded(next(iter(places), _function(action).get("arguments", {})))
    try:
        validate_json_value(found)
        json.dumps(found, allow_nan=False)
    except (ValueError, TypeError) as e:
        raise _InvalidField(f"actions.{number}.arguments", f"not JSON values: {e}") from e
    if not isinstance(found, dict):
        raise _InvalidField(f"actions.{number}.arguments", f"{found!r:.{_TOO_LONG}} is not an object")
    return {str(key): value for key, value in found.items()}


def _tool_spec(tool: Any) -> ToolSpec:
    spec = tool.get("function", tool) if isinstance(tool, dict) else {}
    name, schema = spec.get("name"), spec.get("parameters", spec.get("inputSchema", spec.get("input_schema", {})))
    if not isinstance(name, str) or not isinstance(schema, dict):
        raise _InvalidField("tools", f"{tool!r:.{_TOO_LONG}} has no name or no parameters")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as e:
        raise _InvalidField("tools", f"the schema of {name} is invalid: {e.message:.{_TOO_LONG}}") from e
    return ToolSpec(name=name, description=str(spec.get("description", "")), parameters={"type": "object", **schema})


def _decoded(value: Any) -> Any:
    """Return the value of JSON text that holds an object or a list; anything else unchanged."""
    if isinstance(value, str) and re.match(r"\s*[\[{]", value):
        try:
            return without_nulls(from_json(value))
        except ValueError:
            return value
    return value
