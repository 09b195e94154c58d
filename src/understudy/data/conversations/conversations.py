"""Read the rows of files and folders as training conversations. `shapes` lists the shapes of rows that are recognised.

Messages with images and unknown roles are errors, and so are replies that are not trained on, except in demonstrations.
Failed episodes (`sources.outcomes`) are left out of demonstrations and counted. Episodes with an outcome are labeled
examples too, and a success and a failure that begin alike are a pair.
"""

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import InvalidField, Item, RowError, row_error_from_validation
from understudy.core.messages import ToolSpec
from understudy.data.conversations.examples import (
    Demonstration,
    LabeledExample,
    PreferencePair,
    prompt_messages,
    undescribed_tools,
)
from understudy.data.conversations.outcomes import ReadingNotes
from understudy.data.conversations.shapes import (
    USES,
    RowShape,
    Use,
    find_shape,
    is_recorded,
    unused_columns,
    with_system_message,
)
from understudy.data.writer import open_output, validate_output_path
from understudy.sources.dataset_files import DATASET_SUFFIXES, has_data_files, list_left_out_files, read_dataset
from understudy.sources.outcomes import OUTCOME_COLUMNS, find_outcome
from understudy.sources.row_messages import (
    Row,
    WireMessage,
    normalize_messages,
    normalize_tools,
    read_weight,
    without_padding,
)
from understudy.sources.task_files.rows import match_kind

TrainingExample = Demonstration | PreferencePair | LabeledExample
"""A training conversation of any kind."""
ExampleT = TypeVar("ExampleT", bound=TrainingExample)
ProgressTracker = Callable[[Iterable[Any], str], Iterable[Any]]

KINDS: Mapping[Use, type[TrainingExample]] = {"sft": Demonstration, "dpo": PreferencePair, "kto": LabeledExample}
_MEDIA_COLUMNS = ("images", "image", "videos", "video", "audios", "audio")
_MAX_REPORTED = 20


def is_conversation_input(path: Path) -> bool:
    """Return whether a path names rows of conversations, rather than of tasks. The first row decides.

    A row that holds both, such as a task and its recorded solution, is a conversation.
    """
    is_file = path.is_file() and path.suffix in DATASET_SUFFIXES
    if not is_file and not (path.is_dir() and has_data_files(path)):
        return False
    first = next((item.value for item in read_dataset(path) if isinstance(item, Item)), None)
    kind = match_kind(first) if isinstance(first, dict) else None
    return is_recorded(first) or (isinstance(first, dict) and (kind is None or kind.is_conversation))


def read_conversations(
    path: Path,
    use: Use | None = None,
    min_reward: float | None = None,
    notes: ReadingNotes | None = None,
    tools: Sequence[ToolSpec] = (),
) -> Iterator[Item[TrainingExample] | RowError]:
    """Yield the rows of a file or folder, each as the record of its shape, or all as the record of one use.

    A row that is not recognised is a `RowError` with its location and reason. What is left out is counted in `notes`.
    `tools` are those of rows that describe none. `sources.outcomes` explains `min_reward`. Raise ConfigError if nothing
    is left.
    """
    notes = ReadingNotes() if notes is None else notes
    episodes, is_empty = list[Item[LabeledExample]](), True
    notes.left_out_files = list_left_out_files(path)
    for item in read_dataset(path):
        found = _to_example(item, use, min_reward, notes, tools)
        if use == "dpo" and isinstance(found, Item) and isinstance(found.value, LabeledExample):
            episodes.append(Item(found.location, found.value))
        elif found is not None:
            is_empty = False
            yield found
    for pair in _pair_episodes(episodes, notes):
        is_empty = False
        yield pair
    if is_empty:
        why = "; ".join(notes.lines("a smaller min_reward")) or "it has no episodes"
        hint = "; preferences.kind=kto (`data convert`: --to kto) needs no pairs" if use == "dpo" else ""
        raise ConfigError(f"{path} has nothing for {USES[use or 'sft']}: {why}{hint}")


def read_examples(
    path: Path, kind: type[ExampleT], min_reward: float | None = None, notes: ReadingNotes | None = None
) -> Iterator[Item[ExampleT] | RowError]:
    """Yield the rows of a file or folder as records of one kind. A row of another kind is a `RowError`."""
    use = next(use for use, each in KINDS.items() if each is kind)
    yield from read_conversations(path, use, min_reward, notes)  # type: ignore[misc]  # narrowed by its use


def valid_examples(items: Iterable[Item[ExampleT] | RowError], path: Path) -> Iterator[Item[ExampleT]]:
    """Yield the examples of a file. Raise TaskError at the first invalid row."""
    for item in items:
        if isinstance(item, RowError):
            hint = f"`understudy data convert {path} NEW.jsonl --skip-invalid` leaves such rows out"
            raise TaskError(f"{item}; {hint}")
        yield item


def convert_conversations(
    source: Path,
    out: Path,
    skip_invalid: bool,
    resume: bool,
    track: ProgressTracker,
    report: Callable[[RowError], None],
    use: Use | None = None,
    min_reward: float | None = None,
    tools: Sequence[ToolSpec] = (),
) -> tuple[int, int, ReadingNotes]:
    """Write the conversations of a file in our form. Return the number of written and of invalid rows, and notes.

    All rows must be of one kind. The first invalid rows are reported. Raise TaskError and write nothing if a row is
    invalid, unless `skip_invalid` is set.
    """
    validate_output_path(out, resume)
    notes, kinds = ReadingNotes(), Counter[str]()
    for item in read_conversations(source, use, min_reward, notes, tools):
        kinds[type(item if isinstance(item, RowError) else item.value).__name__] += 1
    bad = kinds.pop(RowError.__name__, 0)
    errors = (item for item in read_conversations(source, use, min_reward) if isinstance(item, RowError))
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
        for item in track(read_conversations(source, use, min_reward, tools=tools), "writing"):
            if isinstance(item, Item):
                made.write(item.value)
    return kinds.total(), bad, notes


def _to_example(
    item: Item[Any] | RowError,
    use: Use | None,
    min_reward: float | None,
    notes: ReadingNotes,
    tools: Sequence[ToolSpec],
) -> Item[TrainingExample] | RowError | None:
    """Convert a row to the record of its shape or use. Return None for a failed episode, which nothing should imitate.

    For pairs, an episode with an outcome becomes a labeled example.
    """
    if isinstance(item, RowError):
        return item
    try:
        return _read_row(item, use, min_reward, notes, tools)
    except InvalidField as e:
        return RowError(item.location, e.field, e.problem)
    except ValidationError as e:
        return row_error_from_validation(item.location, e)


def _read_row(
    item: Item[Any], use: Use | None, min_reward: float | None, notes: ReadingNotes, tools: Sequence[ToolSpec]
) -> Item[TrainingExample] | None:
    shape, row = _find_shape(item.value, use)
    outcome = None if "dpo" in shape.uses else find_outcome(row)
    chosen = shape.uses[0] if use is None else "kto" if use == "dpo" and outcome else use
    _refuse_unsupported(row)
    for name in unused_columns(item.value, shape):
        notes.unused.setdefault(name, item.location)
    is_success = outcome is None or outcome.is_success(min_reward)
    if outcome is not None:
        notes.num_episodes += 1
        if chosen == "sft" and not is_success:
            notes.failures[outcome.reason] += 1
            return None
    row = without_padding(row)
    columns = _conversation_columns(shape, row, is_failure=not is_success, is_demonstration=chosen == "sft")
    columns["tools"] = columns["tools"] or tuple(tools)
    kind = KINDS[chosen]
    if kind is LabeledExample:
        columns["label"] = is_success
    example = kind.model_validate(columns)
    for name in undescribed_tools(example):
        notes.undescribed.setdefault(name, item.location)
    return Item(item.location, example)


def _find_shape(value: Any, use: Use | None) -> tuple[RowShape, Row]:
    """Return the shape of a row, and its columns. The outcome of an episode makes it one for further uses."""
    try:
        return find_shape(value, tuple(KINDS) if use is None else (use,))
    except InvalidField:
        further: Mapping[Use | None, tuple[Use, ...]] = {"sft": ("kto",), "kto": ("sft",), "dpo": ("sft",)}
        with contextlib.suppress(InvalidField):
            shape, row = find_shape(value, further.get(use, ()))
            if row.keys() & {*OUTCOME_COLUMNS}:
                return shape, row
        raise


def _conversation_columns(shape: RowShape, row: Row, is_failure: bool, is_demonstration: bool) -> dict[str, Any]:
    """Return the conversation or the two conversations of a row, its task and its tools."""
    parts = shape.split(row)
    if not parts.continuations:
        raise InvalidField("answer", "a text or a number is needed")
    # only a rejected continuation or an undesirable episode may have empty replies
    conversations = [
        normalize_messages(
            with_system_message(row, [*parts.prompt, *end]),
            allow_empty_replies=number > 0 or is_failure,
            allow_weights=is_demonstration,
        )
        for number, end in enumerate(parts.continuations)
    ]
    if not is_failure:
        _require_results(conversations[0])
    columns: dict[str, Any] = {"task": _task_id(row), "tools": normalize_tools(row)}
    names = ("chosen", "rejected") if len(conversations) > 1 else ("messages",)
    return columns | dict(zip(names, conversations, strict=True))


def _require_results(messages: Sequence[WireMessage]) -> None:
    """Raise InvalidField if a call has no result although the conversation goes on."""
    waiting = 0
    for number, message in enumerate(messages):
        is_result = message.get("role") == "tool"
        waiting -= is_result
        if waiting > 0 and not is_result:
            raise InvalidField(f"messages.{number}", "it follows a call that has no result")
        if not is_result:
            calls = message.get("tool_calls")
            waiting = len(calls) if isinstance(calls, list | tuple) else bool(calls)


def _refuse_unsupported(row: Row) -> None:
    """Raise InvalidField for a row with files, or with a weight or a mask of what is trained on."""
    read_weight(row, True, "")
    if name := next((name for name in _MEDIA_COLUMNS if row.get(name)), ""):
        raise InvalidField(name, "conversations with images, videos or sounds are not supported, only texts")


def _pair_episodes(episodes: Iterable[Item[LabeledExample]], notes: ReadingNotes) -> Iterator[Item[TrainingExample]]:
    """Yield pairs of a success and a failure of a task that begin alike. No episode is used twice."""
    alike: dict[Hashable, tuple[list[Item[LabeledExample]], list[Item[LabeledExample]]]] = defaultdict(lambda: ([], []))
    for episode in episodes:
        beginning = [message.model_dump_json() for message in prompt_messages(episode.value.messages)]
        alike[episode.value.task, *beginning][not episode.value.label].append(episode)
    for wins, losses in alike.values():
        notes.unpaired += abs(len(wins) - len(losses))
        for better, worse in zip(wins, losses, strict=False):
            columns = {"chosen": better.value.messages, "rejected": worse.value.messages, "tools": better.value.tools}
            try:
                yield Item(better.location, PreferencePair(task=better.value.task, **columns))
            except ValidationError:  # they are the same
                notes.unpaired += 2


def _task_id(row: Row) -> str:
    task = row.get("task", row.get("task_id"))
    return str(task) if isinstance(task, str | int) and not isinstance(task, bool) else ""
