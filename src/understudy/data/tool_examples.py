"""Rows with questions and answers as the examples of a `ToolDataset`, whose reward function scores them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from understudy.core.dataset_files import read_dataset
from understudy.core.items import Item, RowError, items_or_raise
from understudy.data.conversations.row_messages import InvalidRow, normalize_messages
from understudy.data.conversations.shapes import find_shape
from understudy.envs.domains.tool_dataset import ToolExample
from understudy.envs.task_files.prompt_rows import make_example


def load_tool_examples(path: str | Path) -> list[ToolExample]:
    """Return the rows of a file or folder as examples: {question, answer}, {prompt, answer} or rows of verl.

    `answer` is the row's answer or ground truth if it is text or a number, else "". `domain_policy` is the system
    message of the prompt, or the row's `domain_policy` or `system`. `id`, `split`, `family`, `difficulty` and
    `gold_calls` are the row's, if it has them and they are such values. `info` is the whole row. Raise TaskError at the
    first row that is not recognised, and ConfigError if the path names no data.
    """
    return [item.value for item in items_or_raise(read_tool_examples(Path(path).expanduser()))]


def read_tool_examples(path: Path) -> Iterator[Item[ToolExample] | RowError]:
    """Yield the rows of a file or folder as examples. A row that is not recognised is a `RowError`."""
    for item in read_dataset(path):
        if isinstance(item, RowError):
            yield item
            continue
        try:
            yield Item(item.location, _to_tool_example(item.value))
        except InvalidRow as e:
            yield RowError(item.location, e.field, str(e))


def _to_tool_example(value: Any) -> ToolExample:
    shape, row = find_shape(value, ("reward",))
    parts = shape.split(row)
    messages = normalize_messages(parts.prompt)
    roles = [message.get("role") for message in messages]
    if roles not in (["user"], ["system", "user"]) or not all(isinstance(each["content"], str) for each in messages):
        raise InvalidRow("prompt", "one text of the user is needed, after at most one system message")
    system = messages[0]["content"] if len(messages) > 1 else ""
    answer = parts.continuations[0][0]["content"] if parts.continuations else ""
    try:
        return make_example(value, messages[-1]["content"], system, answer)
    except ValueError as e:
        raise InvalidRow("gold_calls", str(e)) from e
