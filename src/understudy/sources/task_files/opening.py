"""Open files of tasks as task sources: those that `domain` or the section `[data]` names."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.items import Item, RowError
from understudy.core.tasks import SPLITS, Split, Task, interleave_families
from understudy.envs.file_summary import FileSummary, count_refusals
from understudy.envs.task_source import TaskSource
from understudy.sources.mixture import Mixture
from understudy.sources.references import load_reference
from understudy.sources.task_files.call_matching import CALLS_SUFFIX, ONLY_READS, CallMatching, source_name
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


GivenFiles = Sequence[tuple[Split | None, str]]
"""Names of files, each with the split that the config gives to its tasks, or None."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of tasks."""

    name: str
    """The name of its tasks, which is the domain of rows that name none."""
    file: RowFile
    given_split: Split | None = None
    """The split that the config gives to its tasks."""

    def choose_split(self, of_row: Split | None) -> Split:
        """Return the split of a row that names the split `of_row`."""
        return self.given_split or of_row or self.file.split or "train"


@dataclass(frozen=True, slots=True)
class InputRow:
    """A row of a file, and its task."""

    file: InputFile
    kind: str
    domain: str
    """The domain that the row names; empty if it names none."""
    item: Item[Task] | RowError
    """The task as its source has it, or why it is refused."""
    notes: tuple[str, ...] = ()
    """What the task leaves out of the row."""


@dataclass(frozen=True)
class ReadFiles:
    """The tasks of files, in the order of their rows."""

    rows: Sequence[InputRow]
    sources: Sequence[TaskSource]
    """The sources that play the tasks."""
    notes: Sequence[Item[str]] = ()
    """Which sources look as if they should play rows, and cannot, each at the first such row."""
    trials: Sequence[tuple[str, str]] = ()
    """The name of the file and the kind of each row that is a further episode of an earlier row's task."""

    def count_kinds(self, name: str = "") -> dict[str, int]:
        """Return the number of rows by kind, of all files or of those called `name`."""
        rows = [*((row.file.name, row.kind) for row in self.rows), *self.trials]
        return dict(Counter(kind for file, kind in rows if name in ("", file)))


def name_files(names: Sequence[str]) -> str:
    """Return the name of the tasks of files: the names of the files without folders and suffixes."""
    return "+".join(dict.fromkeys(Path(name.partition("#")[0]).stem for name in names))


def open_task_files(
    given: Mapping[str, GivenFiles], data: DataConfig = NO_DATA, beside: Sequence[TaskSource] = ()
) -> list[TaskFile]:
    """Return the tasks of all files of a config, as one source for each name in `given`.

    All files are read together: one source compares the calls of a domain, and has the tools of all files. Rows may
    also name the sources `beside`. Without validation tasks, training tasks are taken. Raise `ConfigError` if a file is
    missing, or if none of the rows of a name has a task that can be played.
    """
    files, named = list[InputFile](), list[tuple[str, Sequence[RowFile]]]()
    for name, listed in given.items():
        for split, each in listed:
            named.append((each, list_row_files(each)))
            files += [InputFile(name, file, split) for file in named[-1][1]]
    read = read_files(files, data, beside)
    read_names = {row.file.file.name for row in read.rows}
    for each, of_name in named:  # a folder may have an empty file
        if all(file.name not in read_names and next(file.rows(), None) is None for file in of_name):
            raise ConfigError(f"{each} has no rows; add some, or leave the file out")
    tasks = [row.item.value for row in read.rows if isinstance(row.item, Item)]
    taken = set[str]() if data.validation else _choose_validation(tasks)
    return [_make_task_file(name, files, read, taken, data) for name in given]


def _make_task_file(
    name: str, files: Sequence[InputFile], read: ReadFiles, taken: Collection[str], data: DataConfig
) -> TaskFile:
    """Return the tasks of the files called `name`. Those of `taken` become validation tasks.

    With `data.validation`, tasks that only their rows call validation tasks are left out.
    """
    rows = [row for row in read.rows if row.file.name == name]
    found = [(row, row.item.value) for row in rows if isinstance(row.item, Item)]
    refused, refusals = count_refusals(row.item for row in rows if isinstance(row.item, RowError))
    if not found:
        first = refusals[0] if refusals else "there are no rows"
        raise ConfigError(f"{name}: no row has a task that can be played; {first}")
    tasks = [
        task.replace(split="validation") if task.id in taken else task
        for row, task in found
        if not (data.validation and task.split == "validation" and row.file.given_split is None)
    ]
    by_split = {split: [task for task in tasks if task.split == split] for split in SPLITS}
    # An evaluation plays the first tasks, and a file may list a large family first.
    by_split |= {split: interleave_families(by_split[split]) for split in SPLITS if split != "train"}
    played_by = Counter(task.domain for _, task in found)
    sources = tuple(source for source in read.sources if source.name in played_by)
    notes = [*_taken_notes(tasks, taken), *_no_gold_note(tasks), *_no_database_note(sources)]
    locations = {row.item.location for row in rows}
    notes += [note.value for note in read.notes if note.location in locations]
    notes += _row_notes([row for row, _ in found], sum(file == name for file, _ in read.trials))
    if not data.require_reads:
        notes += _only_reads_note(refused)
    if left_out := len(found) - len(tasks):
        notes.append(f"{left_out} validation tasks are left out, because data.validation has the validation tasks")
    row_domains: dict[str, set[str]] = {}
    for row, task in found:
        named = (row.domain or task.domain).removesuffix(CALLS_SUFFIX)
        row_domains.setdefault(named, set()).add(task.domain)
    summary = FileSummary(
        name=name,
        digest=digest_row_files([file.file for file in files if file.name == name]),
        rows=read.count_kinds(name),
        played_by=dict(played_by),
        splits={split: len(listed) for split, listed in by_split.items() if listed},
        refused=refused,
        refusals=refusals,
        notes=tuple(notes),
    )
    return TaskFile(name, Mixture(sources, (1.0,) * len(sources)), by_split, summary, bool(taken), row_domains)


def read_files(
    files: Iterable[InputFile],
    data: RowConfig = NO_DATA,
    beside: Sequence[TaskSource] = (),
    domains: Collection[str] = (),
) -> ReadFiles:
    """Read the tasks of files; if `domains` are given, only those of rows that name one of them.

    See `open_task_files`.
    """
    rows, places = list[ReadRow](), list[InputFile]()
    trials = Counter[tuple[str, str]]()
    for file in files:
        found = list(read_task_rows(file.file.rows(), Path(file.file.name).stem))
        kept_rows = without_trials(found, rows)
        trials.update((file.name, row.kind.name) for row in found)
        trials.subtract((file.name, row.kind.name) for row in kept_rows)
        read = _with_own_ids(kept_rows, rows, Path(file.file.name))
        rows += read
        places += [file] * len(read)
    if domains:
        kept = [*_select_domains(rows, places, domains)]
        rows, places = [rows[number] for number in kept], [places[number] for number in kept]
    named = [load_reference(reference) for reference in data.sources]
    matcher = SourceMatcher([*beside, *named], data)
    items = matcher.assign(rows, [file.name for file in places])
    notes = matcher.notes()
    if rows:
        start = rows[0].item.location
        unused = [each.name for each in named if each.name not in {*matcher.used, *matcher.misfits}]
        notes += [Item(start, f"data.sources: {name} plays none of the rows") for name in unused]
        if data.reward and not matcher.has_questions:
            notes.append(Item(start, f"data.reward = {data.reward}: no effect, since no row is a question"))
    placed = [
        InputRow(file, row.kind.name, row.domain, _with_split(item, file), _notes(row))
        for row, item, file in zip(rows, _without_repeated_ids(rows, items, places), places, strict=True)
    ]
    return ReadFiles(placed, list(matcher.used.values()), notes, list(trials.elements()))


def _notes(row: ReadRow) -> tuple[str, ...]:
    return row.item.value.notes if isinstance(row.item, Item) else ()


def _with_split(item: Item[TaskRow] | RowError, file: InputFile) -> Item[Task] | RowError:
    if isinstance(item, RowError):
        return item
    return Item(item.location, item.value.task.replace(split=file.choose_split(item.value.split)))


def _select_domains(rows: Sequence[ReadRow], places: Sequence[InputFile], domains: Collection[str]) -> Iterator[int]:
    """Yield the numbers of the rows of some domains, and of rows that cannot be read. Raise ConfigError if a domain has
    no row.
    """
    known = {
        source_name(row.domain or file.name): row.domain or file.name
        for row, file in zip(rows, places, strict=True)
        if isinstance(row.item, Item)
    }
    chosen = {source_name(domain): domain for domain in domains}
    for wrong in chosen.keys() - known.keys():
        names = "+".join(dict.fromkeys(file.name for file in places))
        raise ConfigError(f"{names} has no domain {did_you_mean(chosen[wrong], known.values())}")
    for number, (row, file) in enumerate(zip(rows, places, strict=True)):
        if isinstance(row.item, RowError) or source_name(row.domain or file.name) in chosen:
            yield number


def _with_own_ids(rows: Sequence[ReadRow], earlier: Sequence[ReadRow], path: Path) -> list[ReadRow]:
    """Return the rows of a file. If one has the id of another row of an earlier file, all ids begin with its name.

    Ids that count the rows of a file begin anew in each file. A row that an earlier file has too keeps its id.
    """
    known = {row.given_id: row for row in earlier if row.given_id}
    repeated = [row.given_id in known and row.repeats(known[row.given_id]) for row in rows]
    others = [row.given_id for row, again in zip(rows, repeated, strict=True) if row.given_id and not again]
    if known.keys().isdisjoint(others):
        return list(rows)
    parts = path.with_suffix("").parts
    names = ("/".join(parts[-length:]) for length in range(1, len(parts) + 1))
    prefix = next((name for name in names if known.keys().isdisjoint(f"{name}/{id}" for id in others)), path.stem)
    return [
        row if again or not row.given_id else row.with_id(f"{prefix}/{row.given_id}")
        for row, again in zip(rows, repeated, strict=True)
    ]


def _without_repeated_ids(
    rows: Iterable[ReadRow], items: Iterable[Item[TaskRow] | RowError], files: Iterable[InputFile]
) -> Iterator[Item[TaskRow] | RowError]:
    """Yield the items of rows with a RowError in place of each task that the files of a name repeat."""
    locations: dict[tuple[str, str], str] = {}
    for row, item, file in zip(rows, items, files, strict=True):
        if isinstance(item, RowError):
            yield item
            continue
        key = file.name, item.value.task.id
        yield _repetition(row, item, locations[key]) if key in locations else item
        locations.setdefault(key, item.location)


def _repetition(row: ReadRow, item: Item[TaskRow], first: str) -> RowError:
    content = row.item.value.content if isinstance(row.item, Item) else None
    if isinstance(content, ToolExample) and not content.id:
        problem = f"it repeats the question {content.prompt!r:.60} of {first}; remove it, or give each row its own id"
        return RowError(item.location, "", problem, "duplicate")
    problem = f"{item.value.task.id!r} is also the id of {first}; give each row its own id"
    return RowError(item.location, "id", problem, "duplicate")


def _taken_notes(tasks: Sequence[Task], taken: Collection[str]) -> tuple[str, ...]:
    count = sum(task.id in taken for task in tasks)
    return (f"no row names validation tasks, so {count} training tasks are validation tasks",) if count else ()


def _row_notes(rows: Sequence[InputRow], trials: int) -> Iterator[str]:
    """Yield the number of further episodes, and what the tasks of how many rows leave out."""
    if trials:
        yield f"{trials} rows are further episodes of these tasks"
    for note, count in Counter(note for row in rows for note in row.notes).items():
        yield f"in {count} rows {note}"


def _only_reads_note(refused: Mapping[str, int]) -> tuple[str, ...]:
    """Return a note on the refused rows that `data.require_reads` may make tasks."""
    count = refused.get(ONLY_READS, 0)
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
