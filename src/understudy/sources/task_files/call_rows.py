"""Read rows that have an instruction, actions and outputs, and no world behind them.

    {"data_source": "tau_bench", "env_class": "tau_bench", "prompt": […], "user_strategy": "llm",
     "reward_spec": {"ground_truth": {"actions": [{"name": "cancel_order", "kwargs": {…}}], "outputs": ["$12"]}},
     "extra_info": {"domain": "retail", "instruction": "…", "complexity": 2}}

A field may stand in the row itself, in `reward_spec.ground_truth`, in `reward_model.ground_truth` or in `extra_info`,
as a value or as JSON text; the first of these wins. `ground_truth` may also be the list of actions.

    actions         or `ground_truth_actions`: {name, kwargs} with any of `ARGUMENT_KEYS`, or OpenAI's {function: {name,
                    arguments}}; `result` (or `output`, `observation`) is what the tool returned. A text to the user
                    (`respond`) is left out
    outputs         or `ground_truth_outputs`: the facts that the agent must tell
    results         what the tools returned, one for each action, if the actions do not hold it
    instruction     what the user wants; without it, the user's first message in `prompt`
    domain          else the last part of `data_source`
    user_strategy   scripted, llm, react, verify or reflection: `Scenario.user_kind`
    tools           OpenAI tools or MCP tools; without them, tools are inferred
    split           train, validation (val, dev) or test
    complexity      1 to 3, or a word: the difficulty
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from jsonschema import Draft202012Validator, SchemaError

from understudy.core.errors import did_you_mean
from understudy.core.items import InvalidField
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Scenario, Task, UserKind
from understudy.sources.row_messages import ARGUMENT_KEYS, TOOL_COLUMNS, find_system, normalize_tool
from understudy.sources.task_files.call_matching import with_answer
from understudy.sources.task_files.task_row import (
    MAX_SHOWN,
    RESULT_KEYS,
    TaskRow,
    action_name,
    complexity_note,
    decode,
    decode_columns,
    difficulty_of,
    left_out_keys,
    prompt_notes,
    prompt_texts,
    refuse_near_misses,
    result_text,
    split_of,
    to_call,
)

ROW_COLUMNS = frozenset(
    (
        "id",
        "task_id",
        "split",
        "tools",
        "results",
        "user_strategy",
        "prompt",
        "data_source",
        "env_class",
        "extra_info",
        "reward_spec",
        "reward_model",
    )
)
"""Columns that tasks of tau-bench do not have."""
_ALIASES = {
    "actions": ("actions", "ground_truth_actions"),
    "outputs": ("outputs", "ground_truth_outputs"),
    "tools": TOOL_COLUMNS,
}
"""Names of fields that have more than one."""
RESPOND_ACTION = "respond"
"""The action in tau-bench's data that means a text to the user."""
_FIELDS = ("actions", "outputs", "instruction", "user_strategy", "complexity", "tools", "split", "domain")
"""Fields of which a near name is an error if the field itself is missing."""
_KNOWN_KEYS = ROW_COLUMNS | {*_FIELDS} | {name for names in _ALIASES.values() for name in names}


def is_call_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has actions that this module reads."""
    return field_of(parts_of(decode_columns(row)), "actions") is not None


def read_call_row(row: Mapping[str, Any], identity: str) -> TaskRow:
    """Return the task of a row. `identity` is the id of a task without one."""
    row = decode_columns(row)
    parts = parts_of(row)
    absent = [name for name in _FIELDS if field_of(parts, name) is None]
    for part in parts:
        refuse_near_misses(part, _KNOWN_KEYS, absent)
    system, request = prompt_texts(row.get("prompt"))
    actions = _listed(parts, "actions")
    gold = tuple(_gold(actions, _listed(parts, "results")))
    instruction = _text(parts, "instruction") or request
    if not instruction.strip():
        raise InvalidField("instruction", "there is none, nor a user's message in prompt; one of them is needed")
    domain = _text(parts, "domain") or _text(parts, "data_source").rpartition("/")[2]
    outputs = tuple(str(output).strip() for output in _listed(parts, "outputs") if str(output).strip())
    complexity, split = field_of(parts, "complexity"), split_of(field_of(parts, "split"))
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
    return TaskRow(
        task=with_answer(task),
        split=split,
        domain_policy=system or find_system(row)[0],
        tool_specs=tuple(map(_tool_spec, _listed(parts, "tools"))),
        notes=(*prompt_notes(row.get("prompt")), *left_out_keys(actions), *complexity_note(complexity)),
    )


def parts_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects that may hold the fields of a row, in the order in which they count."""
    parts: list[Mapping[str, Any]] = [row]
    for name in ("reward_spec", "reward_model"):
        spec = row.get(name)
        if isinstance(spec, dict):
            truth = decode(spec.get("ground_truth"))
            is_list = isinstance(truth, list) and truth and all(map(_is_call, truth))
            parts += [{"actions": truth}] if is_list else [truth] if isinstance(truth, dict) else []
            parts.append(spec)
    return [*parts, *(row[name] for name in ("extra_info", "task_metadata") if isinstance(row.get(name), dict))]


def _is_call(value: Any) -> bool:
    """Return whether a value of a ground truth is a call, not another object with a name, such as {name, age}."""
    if not action_name(value):
        return False
    has_object = any(isinstance(decode(each), dict) for each in value.values())
    return has_object or value.keys() == {"name"} or bool(value.keys() & {*ARGUMENT_KEYS})


def field_of(parts: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Return the first value of a field in the parts of a row, or None."""
    names = _ALIASES.get(name, (name,))
    return next((part[each] for part in parts for each in names if part.get(each) is not None), None)


def _text(parts: Sequence[Mapping[str, Any]], name: str) -> str:
    value = field_of(parts, name)
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return "" if value is None else str(value)
    raise InvalidField(name, f"it is {value!r:.{MAX_SHOWN}}; it must be a text")


def _listed(parts: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    value = decode(field_of(parts, name))
    if value is None:
        return []
    if isinstance(value, str | int | float):
        return [value]
    if not isinstance(value, list):
        raise InvalidField(name, f"it is {value!r:.{MAX_SHOWN}}; it must be a list")
    return value


def _user_kind(parts: Sequence[Mapping[str, Any]]) -> UserKind | None:
    value, kinds = field_of(parts, "user_strategy"), get_args(UserKind)
    if value is None or value == "":
        return None
    found: UserKind | None = next((kind for kind in kinds if kind == str(value).casefold()), None)
    if found is None:
        raise InvalidField("user_strategy", did_you_mean(str(value), kinds))
    return found


def _gold(actions: Sequence[Any], results: Sequence[Any]) -> Iterator[Message]:
    """Yield each call, and its result if it is recorded: in the action, or at its place in a list of all results."""
    if results and len(results) != len(actions):
        raise InvalidField("results", f"there are {len(results)} for {len(actions)} actions; each action needs one")
    for number, action in enumerate(actions):
        if action_name(action) == RESPOND_ACTION:
            continue
        call_id = f"gold_{number}"
        yield Message(role="assistant", tool_calls=(to_call(action, number, call_id),))
        recorded = next((action[key] for key in RESULT_KEYS if key in action), results[number] if results else None)
        if recorded is not None:
            yield Message(role="tool", content=result_text(recorded), tool_call_id=call_id)


def _tool_spec(tool: Any) -> ToolSpec:
    spec = normalize_tool(decode(tool))
    name, schema = (spec.get("name"), spec["parameters"]) if isinstance(spec, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(schema, dict):
        raise InvalidField("tools", f"{tool!r:.{MAX_SHOWN}} has no name or no parameters")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as e:
        raise InvalidField("tools", f"the schema of {name} is invalid: {e.message:.{MAX_SHOWN}}") from e
    return ToolSpec(name=name, description=str(spec["description"]), parameters={"type": "object", **schema})
