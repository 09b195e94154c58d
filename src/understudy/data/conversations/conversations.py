"""Read the rows of files and folders as training conversations. `shapes` lists the shapes of rows that are recognised.

Replies that are not trained on, messages with images and unknown roles are not supported, and therefore errors.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from understudy.core.errors import TaskError
from understudy.core.items import InvalidField, Item, RowError, row_error_from_validation
from understudy.data.conversations.examples import Demonstration, LabeledExample, PreferencePair
from understudy.data.conversations.shapes import Use, find_shape
from understudy.data.writer import open_output, validate_output_path
from understudy.sources.dataset_files import DATASET_SUFFIXES, has_data_files, read_dataset
from understudy.sources.row_messages import Row, normalize_messages, normalize_tools
from understudy.sources.task_files.rows import match_kind

TrainingExample = Demonstration | PreferencePair | LabeledExample
"""A training conversation of any kind."""
ExampleT = TypeVar("ExampleT", bound=TrainingExample)
ProgressTracker = Callable[[Iterable[Any], str], Iterable[Any]]

_KINDS: Mapping[Use, type[TrainingExample]] = {"sft": Demonstration, "dpo": PreferencePair, "kto": LabeledExample}
_MAX_REPORTED = 20


def is_conversation_input(path: Path) -> bool:
    """Return whether a path names rows of conversations, rather than of tasks. The first row decides."""
    is_file = path.is_file() and path.suffix in DATASET_SUFFIXES
    if not is_file and not (path.is_dir() and has_data_files(path)):
        return False
    first = next((item.value for item in read_dataset(path) if isinstance(item, Item)), None)
    kind = match_kind(first) if isinstance(first, dict) else None
    return isinstance(first, dict) and (kind is None or kind.is_conversation)


def read_conversations(path: Path) -> Iterator[Item[TrainingExample] | RowError]:
    """Yield the rows of a file or folder. A row that is not recognised is a `RowError` with its location and reason."""
    return (_to_example(item, tuple(_KINDS)) for item in read_dataset(path))


def read_examples(path: Path, kind: type[ExampleT]) -> Iterator[Item[ExampleT] | RowError]:
    """Yield the rows of a file or folder as records of one kind. A row of another kind is a `RowError`."""
    uses = tuple(use for use, each in _KINDS.items() if each is kind)
    for item in read_dataset(path):
        yield _to_example(item, uses)  # type: ignore[misc]  # narrowed by its use


def convert_conversations(
    source: Path,
    out: Path,
    skip_invalid: bool,
    resume: bool,
    track: ProgressTracker,
    report: Callable[[RowError], None],
) -> tuple[int, int]:
    """Write the conversations of a file in our form. Return the number of written and of invalid rows.

    All rows must be of one kind. The first invalid rows are reported. Raise TaskError and write nothing if a row is
    invalid, unless `skip_invalid` is set.
    """
    validate_output_path(out, resume)
    kinds = Counter(
        type(item if isinstance(item, RowError) else item.value).__name__ for item in read_conversations(source)
    )
    bad = kinds.pop(RowError.__name__, 0)
    errors = (item for item in read_conversations(source) if isinstance(item, RowError))
    for error in itertools.islice(errors, min(bad, _MAX_REPORTED)):
        report(error)
    if bad and not skip_invalid:
        raise TaskError(
            f"{source}: {bad} of {bad + kinds.total()} conversations are invalid; --skip-invalid leaves them out"
        )
    if len(kinds) != 1:
        raise TaskError(
            f"{source} holds {' and '.join(sorted(kinds)) or 'no conversation'}; "
            "a file must hold conversations of exactly one kind"
        )
    with open_output(out, resume=resume) as made:
        for item in track(read_conversations(source), "writing"):
            if isinstance(item, Item):
                made.write(item.value)
    return kinds.total(), bad


def _to_example(item: Item[Any] | RowError, uses: Sequence[Use]) -> Item[TrainingExample] | RowError:
    """Convert a row to the record of its shape. A row without one of these uses is a RowError."""
    if isinstance(item, RowError):
        return item
    try:
        shape, row = find_shape(item.value, uses)
        kind = next(_KINDS[use] for use in shape.uses if use in _KINDS)
        parts = shape.split(row)
        if not parts.continuations:
            raise InvalidField("answer", "a text or a number is needed")
        # only a rejected continuation or an undesirable episode may have empty replies
        conversations = [
            normalize_messages([*parts.prompt, *end], allow_empty_replies=number > 0 or row.get("label") is False)
            for number, end in enumerate(parts.continuations)
        ]
        fields: dict[str, Any] = {"task": _task_id(row), "tools": normalize_tools(row)}
        if kind is PreferencePair:
            fields |= {"chosen": conversations[0], "rejected": conversations[1]}
        else:
            fields |= {"messages": conversations[0]} | ({"label": row["label"]} if kind is LabeledExample else {})
        return Item(item.location, kind.model_validate(fields))
    except InvalidField as e:
        return RowError(item.location, e.field, e.problem)
    except ValidationError as e:
        return row_error_from_validation(item.location, e)


def _task_id(row: Row) -> str:
    task = row.get("task")
    return task if isinstance(task, str) else ""
