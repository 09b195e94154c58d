"""Open files of tasks as task sources: those that `domain` or the section `[data]` names."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from understudy.core.errors import ConfigError
from understudy.core.items import Item, RowError
from understudy.core.tasks import SPLITS, Split, Task, interleave_families
from understudy.envs.file_summary import FileSummary, count_refusals
from understudy.envs.task_source import TaskSource, list_sources
from understudy.sources.mixture import Mixture
from understudy.sources.references import load_reference
from understudy.sources.task_files.call_matching import NO_ANSWER, NO_FACTS, ONLY_READS, CallMatching
from understudy.sources.task_files.config import NO_DATA, DataConfig, RowConfig
from understudy.sources.task_files.files import RowFile, digest_row_files, list_row_files
from understudy.sources.task_files.rows import ReadRow, read_task_rows, without_trials
from understudy.sources.task_files.source import TaskFile
from understudy.sources.task_files.source_matching import SourceMatcher
from understudy.sources.task_files.splits import NearDuplicateGroups, assign_splits
from understudy.sources.task_files.task_row import TaskRow
from understudy.sources.tool_dataset import ToolExample

VALIDATION_SHARE = 0.1
"""Share of the training tasks that become validation tasks if there are no others."""


def open_data(base: TaskSource, data: DataConfig) -> TaskFile:
    """Return the source of a run whose files replace the splits `train` and `validation` of `base`, or one of them.

    If the training tasks are those of files, `base` only plays them, and a missing validation split is made of them.
    """
    given: dict[Split | None, Sequence[str]] = {}
    if data.train:
        given["train"] = data.train
    if data.validation:
        given["validation"] = data.validation
    names = [name for listed in given.values() for name in listed]
    return open_task_files(name_files(names), given, data, list_sources(base), None if data.train else base)


def open_task_file(name: str, data: DataConfig = NO_DATA, beside: Sequence[TaskSource] = ()) -> TaskFile:
    """Return the tasks of a file, a folder or a data set. See `open_task_files`."""
    return open_task_files(name_files([name]), {None: [name]}, data, beside)


def name_files(names: Sequence[str]) -> str:
    """Return the name of the tasks of files: the names of the files without folders and suffixes."""
    return "+".join(dict.fromkeys(Path(name.partition("#")[0]).stem for name in names))


def open_task_files(
    name: str,
    given: Mapping[Split | None, Sequence[str]],
    data: DataConfig = NO_DATA,
    beside: Sequence[TaskSource] = (),
    rest: TaskSource | None = None,
) -> TaskFile:
    """Return the tasks of files. The keys of `given` are the split of their tasks, None for that of their rows.

    Rows may also name the sources `beside`. With `rest`, the splits that are not given are those of this source. Raise
    `ConfigError` if a file is missing, or if no row has a task that can be played.
    """
    files = [(split, file) for split, names in given.items() for each in names for file in list_row_files(each)]
    read = read_files(name, files, data, beside)
    tasks = [item.value for item in read.items if isinstance(item, Item)]
    refused, refusals = count_refusals(item for item in read.items if isinstance(item, RowError))
    if not tasks:
        first = refusals[0] if refusals else "there are no rows"
        raise ConfigError(f"{name}: no row has a task that can be played; {first}")
    taken = [] if rest or data.validation else _choose_validation(tasks)
    tasks = [task.replace(split="validation") if task.id in taken else task for task in tasks]
    by_split = {split: [task for task in tasks if task.split == split] for split in SPLITS}
    # An evaluation plays the first tasks, and a file may list a large family first.
    by_split |= {split: interleave_families(by_split[split]) for split in SPLITS if split != "train"}
    taken_note = f"no row names validation tasks, so {len(taken)} training tasks are validation tasks"
    summary = FileSummary(
        name=name,
        digest=digest_row_files([file for _, file in files]),
        rows=read.kinds,
        played_by=dict(Counter(task.domain for task in tasks)),
        splits={split: len(listed) for split, listed in by_split.items() if listed},
        refused=refused,
        refusals=refusals,
        notes=(
            *((taken_note,) if taken else ()),
            *_no_gold_note(tasks),
            *_no_database_note(read.sources),
            *read.row_notes,
            *(() if data.require_reads else _only_reads_note(refused)),
        ),
        details=read.notes,
    )
    known = list_sources(rest) if rest else ()
    sources = [*((rest,) if rest else ()), *(source for source in read.sources if source not in known)]
    named = {split for split in given if split} if rest else {*SPLITS}
    kept = {split: listed for split, listed in by_split.items() if split in named}
    return TaskFile(name, Mixture(tuple(sources), (1.0,) * len(sources)), kept, summary, bool(taken))


@dataclass(frozen=True)
class ReadFiles:
    """The tasks of files, in the order of their rows."""

    items: Sequence[Item[Task] | RowError]
    """The task of each row as its source has it, or why it is refused."""
    kinds: dict[str, int]
    """Number of rows by kind."""
    sources: Sequence[TaskSource]
    """The sources that play the tasks."""
    notes: tuple[str, ...] = ()
    """What these sources say of themselves."""
    row_notes: tuple[str, ...] = ()
    """What tasks leave out of their rows, with numbers of rows."""


def read_files(
    name: str,
    files: Iterable[tuple[Split | None, RowFile]],
    data: RowConfig = NO_DATA,
    beside: Sequence[TaskSource] = (),
) -> ReadFiles:
    """Read the tasks of files, each with the split that the user gives to its tasks, or None. See `open_task_files`."""
    rows, labels = list[ReadRow](), list[_SplitLabels]()
    kinds = Counter[str]()
    for split, file in files:
        stem = Path(file.name).stem
        found = list(read_task_rows(file.rows(), stem))
        kinds.update(row.kind.name for row in found)
        read = _with_own_ids(without_trials(found, rows), rows, stem)
        rows += read
        labels += [_SplitLabels(split, file.split)] * len(read)
    matcher = SourceMatcher([*beside, *(load_reference(reference) for reference in data.sources)], data, name)
    items = [
        item
        if isinstance(item, RowError)
        else Item(item.location, item.value.task.replace(split=label.choose(item.value.split)))
        for item, label in zip(_without_repeated_ids(rows, matcher.assign(rows)), labels, strict=True)
    ]
    sources = list(matcher.used.values())
    notes = tuple(note for source in sources if isinstance(source, CallMatching) for note in source.notes())
    return ReadFiles(items, dict(kinds), sources, notes, _row_notes(rows, items, kinds.total() - len(rows)))


class _SplitLabels(NamedTuple):
    """What says which split a row's task belongs to, besides the row."""

    given: Split | None
    """The split that the config gives to the tasks of the file."""
    of_file: Split | None
    """The split in the name of the file."""

    def choose(self, of_row: Split | None) -> Split:
        """Return the split of a row that names `of_row`."""
        return self.given or of_row or self.of_file or "train"


def _with_own_ids(rows: Sequence[ReadRow], earlier: Sequence[ReadRow], stem: str) -> list[ReadRow]:
    """Return the rows of a file. If one has the id of another row of an earlier file, all ids begin with `stem`.

    Ids that count the rows of a file begin anew in each file. A row that an earlier file has too keeps its id.
    """
    known = {row.given_id: row for row in earlier if row.given_id}
    repeated = [row.given_id in known and row.repeats(known[row.given_id]) for row in rows]
    if all(again or row.given_id not in known for row, again in zip(rows, repeated, strict=True)):
        return list(rows)
    return [
        row if again or not row.given_id else row.with_id(f"{stem}/{row.given_id}")
        for row, again in zip(rows, repeated, strict=True)
    ]


def _without_repeated_ids(
    rows: Iterable[ReadRow], items: Iterable[Item[TaskRow] | RowError]
) -> Iterator[Item[TaskRow] | RowError]:
    """Yield the items of rows with a RowError in place of each repeated task."""
    locations: dict[str, str] = {}
    for row, item in zip(rows, items, strict=True):
        if isinstance(item, Item) and item.value.task.id in locations:
            yield _repetition(row, item, locations[item.value.task.id])
            continue
        if isinstance(item, Item):
            locations[item.value.task.id] = item.location
        yield item


def _repetition(row: ReadRow, item: Item[TaskRow], first: str) -> RowError:
    content = row.item.value.content if isinstance(row.item, Item) else None
    if isinstance(content, ToolExample) and not content.id:
        problem = f"it repeats the question of {first}; remove it, or give each row its own id"
        return RowError(item.location, "", problem, "duplicate")
    problem = f"{item.value.task.id!r} is also the id of {first}; give each row its own id"
    return RowError(item.location, "id", problem, "duplicate")


def _row_notes(rows: Sequence[ReadRow], items: Iterable[Item[Task] | RowError], repeated: int) -> tuple[str, ...]:
    """Return the notes of the rows with accepted tasks, with their numbers, and the number of repeated episodes."""
    accepted = [row.item for row, item in zip(rows, items, strict=True) if isinstance(item, Item)]
    counts = Counter(note for item in accepted if isinstance(item, Item) for note in item.value.notes)
    trials = (f"{repeated} rows are further episodes of these tasks",) if repeated else ()
    return (*trials, *(f"in {count} rows {note}" for note, count in counts.items()))


def _only_reads_note(refused: Mapping[str, int]) -> tuple[str, ...]:
    """Return a note on the refused rows that `data.require_reads` may make tasks."""
    count = sum(refused.get(kind, 0) for kind in (ONLY_READS, NO_ANSWER, NO_FACTS))
    return (f"{count} refused rows only look things up; data.require_reads=true requires that",) if count else ()


def _no_gold_note(tasks: Sequence[Task]) -> tuple[str, ...]:
    count = sum(not task.gold_turns for task in tasks)
    return (f"{count} of the tasks have no gold turns, so they cannot be demonstrations",) if count else ()


def _no_database_note(sources: Iterable[TaskSource]) -> tuple[str, ...]:
    found = [source for source in sources if isinstance(source, CallMatching)]
    names = ", ".join(source.name for source in found)
    listed = f"no database behind {names}: calls are compared with the gold calls, and nothing is executed"
    return (listed, *filter(None, (source.unshown_note() for source in found))) if found else ()


def _choose_validation(tasks: Sequence[Task]) -> set[str]:
    """Return the ids of training tasks to validate on; none if there are validation tasks.

    Near-duplicates stay together.
    """
    groups, training = NearDuplicateGroups(), [task for task in tasks if task.split == "train"]
    if len(training) < 2 or any(task.split == "validation" for task in tasks):
        return set()
    for task in training:
        groups.add(task)
    share = max(VALIDATION_SHARE, 1 / len(training))
    parts = assign_splits(groups, (1 - share, share), 0)
    return {task.id for task, part in zip(training, parts, strict=True) if part}
