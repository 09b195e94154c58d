"""Rows with a question as examples of a `ToolDataset`: {question, answer}, {prompt, answer}, {prompt} and verl's rows.

verl, "Prepare Data for Post-Training": `prompt` is a list of messages, `reward_model.ground_truth` the answer.
"""

from collections.abc import Mapping
from typing import Any

from understudy.core.items import Item, RowError
from understudy.core.tasks import SPLITS
from understudy.envs.domains.tool_dataset import ToolExample

QUESTION_COLUMNS = ("question", "prompt")
_CONTINUATION_COLUMNS = {"completion", "chosen", "rejected", "messages", "conversations"}
"""Columns of rows of conversations, which have no question for a reward function."""


def is_prompt_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a question."""
    columns = {name for name, value in row.items() if value is not None}
    return bool(columns & {*QUESTION_COLUMNS}) and not columns & _CONTINUATION_COLUMNS


def to_tool_example(item: Item[Mapping[str, Any]]) -> Item[ToolExample] | RowError:
    """Return the example of a row.

    `answer` is the row's answer or ground truth if it is text or a number, else "". `domain_policy` is the system
    message of the prompt, `id` the row's `id` if it has one, and `info` the whole row.
    """
    row = item.value
    name = next((column for column in QUESTION_COLUMNS if row.get(column) is not None), "prompt")
    messages = _messages(row.get(name))
    if [role for role, _ in messages] not in (["user"], ["system", "user"]):
        problem = "one text of the user is needed, after at most one system message"
        return RowError(item.location, name, problem)
    identity, split = row.get("id", ""), row.get("split")
    example = ToolExample(
        prompt=messages[-1][1],
        domain_policy=messages[0][1] if len(messages) > 1 else "",
        answer=_answer(row),
        id=str(identity) if isinstance(identity, str | int) else "",
        split=next((each for each in SPLITS if each == split), None),
        info=dict(row),
    )
    return Item(item.location, example)


def _messages(prompt: Any) -> list[tuple[str, str]]:
    """Return the roles and texts of a prompt; nothing if it is neither text nor messages with texts."""
    if isinstance(prompt, str):
        return [("user", prompt)]
    found = (
        [(each.get("role"), each.get("content")) for each in prompt if isinstance(each, dict)]
        if isinstance(prompt, list)
        else []
    )
    return [(str(role), text) for role, text in found if isinstance(text, str)]


def _answer(row: Mapping[str, Any]) -> str:
    graded = row.get("reward_model")
    answer = row.get("answer", graded.get("ground_truth") if isinstance(graded, dict) else None)
    is_text = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    return str(answer) if is_text else ""
