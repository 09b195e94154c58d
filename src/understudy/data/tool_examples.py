"""Rows with questions and answers as the examples of a `ToolDataset`, whose reward function scores them."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from understudy.core.items import InvalidField, Item, RowError, describe_row, items_or_raise
from understudy.data.conversations.shapes import find_shape, list_shapes
from understudy.sources.dataset_files import read_dataset
from understudy.sources.task_files.prompt_rows import QUESTION_COLUMNS, is_prompt_row, to_tool_example
from understudy.sources.task_files.rows import match_kind
from understudy.sources.task_files.task_row import read_one
from understudy.sources.tool_dataset import ToolExample


def load_tool_examples(path: str | Path) -> list[ToolExample]:
    """Return the rows of a file or folder as examples: {question, answer}, {prompt, answer} or rows of verl.

    The answer may be missing. See `to_tool_example` for the other columns. Raise TaskError at the first row that is not
    recognised, and ConfigError if the path names no data.
    """
    return [item.value for item in items_or_raise(read_tool_examples(Path(os.path.expanduser(path))))]


def read_tool_examples(path: Path) -> Iterator[Item[ToolExample] | RowError]:
    """Yield the rows of a file or folder as examples. A row that is not recognised is a `RowError`."""
    for item in read_dataset(path):
        if isinstance(item, RowError):
            yield item
        elif isinstance(item.value, dict) and (is_prompt_row(item.value) or _lacks_question(item.value)):
            yield read_one(item.location, functools.partial(to_tool_example, item.value))
        else:
            yield RowError(item.location, *_explain(item.value))


def _lacks_question(row: dict[str, Any]) -> bool:
    """Return whether a row is one with a question that is null."""
    given = [row[name] for name in QUESTION_COLUMNS if name in row]
    return bool(given) and given.count(None) == len(given) and match_kind(row) is None


def _explain(row: object) -> tuple[str, str]:
    """Return the field and the problem of a row that has no question."""
    try:
        find_shape(row, ("reward",))
    except InvalidField as e:
        return e.field, e.problem
    return "", f"unknown shape {describe_row(row)}; {list_shapes(('reward',))}"
