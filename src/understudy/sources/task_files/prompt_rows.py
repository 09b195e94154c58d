"""Rows with a question as examples of a `ToolDataset`: {question, answer}, {prompt, answer}, {prompt} and verl's rows.

verl, "Prepare Data for Post-Training": `prompt` is a list of messages, `reward_model.ground_truth` the answer. TRL,
"Reward Functions": its examples name the answer `solution` or `ground_truth`. Rows of SkyRL-Gym have `reward_spec` in
place of `reward_model`. Both, and `extra_info`, may be JSON text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from understudy.core.items import InvalidField
from understudy.core.records import Record
from understudy.core.tasks import Split
from understudy.sources.row_messages import SYSTEM_COLUMNS, TOOL_COLUMNS, find_system, normalize_tools
from understudy.sources.task_files.task_row import (
    TaskRow,
    calls_of,
    decode,
    difficulty_of,
    messages_of,
    refuse_near_misses,
    split_of_row,
)
from understudy.sources.tool_dataset import ToolExample

QUESTION_COLUMNS = ("prompt", "question")
"""Columns with a question, the one that counts first: trainers show the model `prompt`, which may be made of the other.
"""
_CONTINUATION_COLUMNS = {"completion", "chosen", "rejected", "messages", "conversations"}
"""Columns of rows of conversations, which have no question for a reward function."""

_ANSWER_COLUMNS = ("answer", "ground_truth", "solution")
_GRADED_COLUMNS = ("reward_model", "reward_spec")
"""Columns with an object that has the answer as `ground_truth`: those of verl and of SkyRL-Gym."""
_READ_COLUMNS = {
    *(*QUESTION_COLUMNS, *_ANSWER_COLUMNS, *SYSTEM_COLUMNS, *TOOL_COLUMNS, "domain_policy", *_GRADED_COLUMNS),
    *("id", "split", "family", "difficulty", "gold_calls", "extra_info"),
    *("task_id", "uid", "index", "source", "data_source", "ability"),  # they only name a row
}
_OF_CONVERSATIONS = {"completion": "answer", "chosen": "answer"}
"""Columns of conversations that a row with a reward may mean as another one."""
_MEANT_COLUMNS: Mapping[str, str] = {
    **{name: name for name in (*_READ_COLUMNS, *_CONTINUATION_COLUMNS)},
    **dict.fromkeys(("problem", "query", "user_query", "instruction", "input", "inputs"), "question"),
    **dict.fromkeys(("solution", "target", "targets", "response", "expected_answer", "final_answer"), "answer"),
    **dict.fromkeys(("label", "labels", "output", "outputs", "gold_answer", "reference"), "answer"),
    **dict.fromkeys(("level", "complexity", "hardness"), "difficulty"),
}
"""Columns that a column of another name may mean, by that name in lower case."""


class PromptRow(Record, extra="allow", ser_json_inf_nan="null"):
    """A row with a question, with all its columns."""

    split: Split


def is_prompt_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a question."""
    columns = {name for name, value in row.items() if value is not None}
    return bool(columns & {*QUESTION_COLUMNS}) and not columns & _CONTINUATION_COLUMNS


def rename_hint(row: object) -> str:
    """Return which columns to rename so that a row has a question; empty if it has none under another name."""
    columns = [str(name) for name, value in row.items() if value is not None] if isinstance(row, Mapping) else []
    renamed = _meant_columns(columns)
    if not {*QUESTION_COLUMNS} & {*renamed.values()}:
        return ""
    two = {"instruction", "input"} <= {*columns}
    joined = ", and write instruction and input into one text of it" if two else ""
    return f"rename {_list_renamed(renamed)}{joined}"


def answer_rename_hint(row: Mapping[str, Any]) -> str:
    """Return which column to rename so that a row has an answer; empty if it has none under another name."""
    renamed = {name: meant for name, meant in _meant_columns([*row]).items() if meant in _ANSWER_COLUMNS}
    given = (name for name, value in row.items() if value is not None and renamed.get(name, name) != name)
    return next((f"rename the column {name} to {renamed[name]}" for name in given), "")


def column_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return notes on columns that only a reward function or a tool can read, and on unknown difficulties."""
    notes = list[str]()
    columns = {name for row in rows for name, value in row.items() if value is not None}
    if unread := sorted(columns - _READ_COLUMNS):
        given = columns & {*QUESTION_COLUMNS}, columns & {*_ANSWER_COLUMNS, *_GRADED_COLUMNS}
        taken = {*columns, *(QUESTION_COLUMNS if given[0] else ()), *(_ANSWER_COLUMNS if given[1] else ())}
        meant_columns = _meant_columns(unread) | {n: meant for n, meant in _OF_CONVERSATIONS.items() if n in unread}
        renamed = {name: meant for name, meant in meant_columns.items() if meant not in taken}
        hint = f"rename {_list_renamed(renamed)} if they mean the same; " if renamed else ""
        notes.append(f"{hint}columns that only example.info has: {', '.join(unread)}")
    objects = {name for row in rows for name, value in _answers(row).items() if isinstance(value, dict | bool)}
    if objects:
        notes.append(
            f"{', '.join(sorted(objects))} holds no text or number, so example.answer is empty; write one, or let the "
            "reward read example.info"
        )
    if lists := {
        name for row in rows for name, value in _answers(row).items() if isinstance(value, list) and value[1:]
    }:
        notes.append(f"{', '.join(sorted(lists))} holds lists: example.answer is the first item, example.info has all")
    difficulties = dict.fromkeys(str(row["difficulty"]) for row in rows if row.get("difficulty") is not None)
    if unknown := [each for each in difficulties if difficulty_of(each, 0) != difficulty_of(each, 9)]:
        shown = ", ".join(f"{each!r:.40}" for each in unknown[:3])
        notes.append(f"{len(unknown)} values of difficulty count as easy: {shown}; write easy, medium or hard")
    return notes


def _meant_columns(columns: Sequence[str]) -> dict[str, str]:
    """Return the known column that each unknown one may mean, each once."""
    found = dict[str, str]()
    for name in columns:
        meant = _MEANT_COLUMNS.get(name.strip().casefold().replace(" ", "_"), name)
        if meant not in (*columns, *found.values()):
            found[name] = meant
    return found


def _list_renamed(renamed: Mapping[str, str]) -> str:
    return ", ".join(f"{name} to {meant}" for name, meant in renamed.items())


def read_prompt_row(row: Mapping[str, Any], identity: str) -> TaskRow:
    """Return the task of a row, with its example. The task's domain is the first part of `identity`."""
    example = to_tool_example(row)
    task = example.to_task(identity.partition("/")[0], example.split or "train")
    return TaskRow(task, example.split, content=example)


def to_tool_example(row: Mapping[str, Any]) -> ToolExample:
    """Return the example of a row. Raise `InvalidField` if its prompt or its `gold_calls` cannot be read.

    `answer` is the first of the row's `answer`, `reward_model.ground_truth`, `reward_spec.ground_truth`, `ground_truth`
    and `solution`: text, a number, or the first item of a list of such, else "". `domain_policy` is the system message
    of the prompt, or the row's `domain_policy` or `system`. `id`, `split`, `family` and `difficulty` are the row's, if
    it has them and they are such values. So are `gold_calls`: a list of {name, arguments} or of OpenAI's calls, or JSON
    text of one. `info` is the whole row.
    """
    name = next((column for column in QUESTION_COLUMNS if row.get(column) is not None), "question")
    messages = messages_of(decode(row.get(name))) or messages_of(row.get(name))
    if not any(text.strip() for role, text in messages if role == "user"):
        raise InvalidField(name, "the row has no question; give it one, or remove the row", "no question")
    if [role for role, _ in messages] not in (["user"], ["system", "user"]):
        problem = (
            "one text of the user is needed, after at most one system message; write earlier messages, such as "
            "examples, into the system message"
        )
        raise InvalidField(name, problem)
    system = messages[0][1] if len(messages) > 1 else ""
    id = row.get("id")
    return ToolExample(
        prompt=messages[-1][1],
        domain_policy=system or _text(row, "domain_policy") or find_system(row)[0],
        answer=_answer(row),
        gold_calls=calls_of(row.get("gold_calls") or ()),
        id=str(id) if isinstance(id, str | int) and not isinstance(id, bool) else "",
        split=split_of_row(row),
        family=_text(row, "family") or "question",
        difficulty=difficulty_of(row.get("difficulty"), 0),
        info=dict(row),
    )


def listed_tools(row: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that a row lists: as descriptions, or as verl's `extra_info.tools_kwargs`."""
    info = decode(row.get("extra_info"))
    kwargs = info.get("tools_kwargs") if isinstance(info, dict) else None
    try:
        tools = normalize_tools(row)
    except InvalidField:  # a column that has the name of one with tools
        tools = []
    described = (tool["name"] for tool in tools if isinstance(tool, dict) and "name" in tool)
    return [*map(str, described), *(kwargs if isinstance(kwargs, dict) else ())]


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    return value if isinstance(value, str) else ""


def _answers(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers of a row by their columns, the one that counts first. Raise `InvalidField` for a near name."""
    columns = {"answer": row.get("answer")}
    for column in _GRADED_COLUMNS:
        graded = decode(row.get(column))
        inner = graded if isinstance(graded, dict) else {}
        refuse_near_misses(inner, ("ground_truth",), () if "ground_truth" in inner else ("ground_truth",))
        columns[f"{column}.ground_truth"] = inner.get("ground_truth")
    columns |= {name: row.get(name) for name in ("ground_truth", "solution")}
    return {name: value for name, value in columns.items() if value is not None}


def _answer(row: Mapping[str, Any]) -> str:
    answer = next(iter(_answers(row).values()), None)
    if isinstance(answer, list) and answer:
        answer = answer[0]
    is_text = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    return str(answer) if is_text else ""
