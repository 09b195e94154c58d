"""Rows with a question as examples of a `ToolDataset`: {question, answer}, {prompt, answer}, {prompt} and verl's rows.

verl, "Prepare Data for Post-Training": `prompt` is a list of messages, `reward_model.ground_truth` the answer. TRL,
"Reward Functions": its examples name the answer `solution` or `ground_truth`.
"""

from collections.abc import Mapping
from typing import Any

from understudy.core.items import InvalidField
from understudy.core.records import Record
from understudy.core.tasks import DIFFICULTIES, Split
from understudy.sources.row_messages import find_system, normalize_tools
from understudy.sources.task_files.task_row import TaskRow, calls_of, decode, messages_of, split_of_row
from understudy.sources.tool_dataset import ToolExample

QUESTION_COLUMNS = ("question", "prompt")
_CONTINUATION_COLUMNS = {"completion", "chosen", "rejected", "messages", "conversations"}
"""Columns of rows of conversations, which have no question for a reward function."""


class PromptRow(Record, extra="allow", ser_json_inf_nan="null"):
    """A row with a question, with all its columns."""

    split: Split


def is_prompt_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a question."""
    columns = {name for name, value in row.items() if value is not None}
    return bool(columns & {*QUESTION_COLUMNS}) and not columns & _CONTINUATION_COLUMNS


def read_prompt_row(row: Mapping[str, Any], identity: str) -> TaskRow:
    """Return the task of a row, with its example. The task's domain is the first part of `identity`."""
    example = to_tool_example(row)
    task = example.to_task(identity.partition("/")[0], example.split or "train")
    return TaskRow(task, example.split, content=example)


def to_tool_example(row: Mapping[str, Any]) -> ToolExample:
    """Return the example of a row. Raise `InvalidField` if its prompt or its `gold_calls` cannot be read.

    `answer` is the first of the row's `answer`, `reward_model.ground_truth`, `ground_truth` and `solution`: text, a
    number, or the first item of a list of such, else "". `domain_policy` is the system message of the prompt, or the
    row's `domain_policy` or `system`. `id`, `split`, `family` and `difficulty` are the row's, if it has them and they
    are such values. So are `gold_calls`: a list of {name, arguments} or of OpenAI's calls, or JSON text of one. `info`
    is the whole row.
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
        difficulty=next((each for each in DIFFICULTIES if each == row.get("difficulty")), "easy"),
        info=dict(row),
    )


def listed_tools(row: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that a row lists: as descriptions, or as verl's `extra_info.tools_kwargs`."""
    info = row.get("extra_info")
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


def _answer(row: Mapping[str, Any]) -> str:
    graded = row.get("reward_model")
    graded_answer = graded.get("ground_truth") if isinstance(graded, dict) else None
    columns = [row.get("answer"), graded_answer, row.get("ground_truth"), row.get("solution")]
    answer = next((value for value in columns if value is not None), None)
    if isinstance(answer, list) and answer:
        answer = answer[0]
    is_text = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    return str(answer) if is_text else ""
