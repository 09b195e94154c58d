"""Statistics of a set of tasks: lengths, tools, families, evidence, duplicates, and leaks between splits."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import Field

from understudy.core.errors import TaskError
from understudy.core.event_loop import BACKGROUND_LOOP
from understudy.core.items import Item, RowError
from understudy.core.messages import Message
from understudy.core.records import Record
from understudy.core.tasks import Split, Task
from understudy.data.checks.evidence import Evidence, play_evidence
from understudy.data.task_input import find_named_source
from understudy.envs.task_source import TaskSource
from understudy.formats import ChatFormat
from understudy.sources.task_files.near_duplicates import NearDuplicateIndex, semantic_key, user_words

MAX_LEAKS = 20
"""The largest number of leaks that are listed."""


class LengthStats(Record):
    """The distribution of a length over tasks."""

    mean: float
    min: int
    median: int
    p90: int
    max: int
    counts: dict[int, int]
    """Number of tasks by length."""


class TaskLeak(Record):
    """A task that shares something with an earlier task of another split."""

    shared: str
    """"words or calls" for a near-duplicate, or the table and key of a row."""
    task: str
    split: Split
    other_task: str
    other_split: Split


class EvidenceStats(Record):
    """What gold reads and writes in the tasks of a family; means over the tasks that were played."""

    tasks: int
    """Number of tasks whose gold was played."""
    reads: float
    """Calls that change nothing."""
    needed_reads: float
    """Reads that are needed; see `data.checks.evidence`."""
    writes: float
    """Calls that change something."""
    reads_per_write: float | None
    """Reads divided by writes; None if there are no writes."""
    words: float
    """Words in the results of the reads."""
    tokens: float | None = None
    """Tokens in the results of the reads, if tokens were counted."""


class DatasetStats(Record):
    """Statistics of a set of tasks."""

    tasks: int
    num_invalid: int = 0
    """Number of invalid items. No other statistic includes them."""
    first_error: str = ""
    """Location of the first invalid item, and why it is invalid."""
    splits: dict[str, int] = {}
    families: dict[str, int] = {}
    difficulties: dict[str, int] = {}
    tools: dict[str, int] = {}
    """Number of gold calls by tool."""
    lengths: dict[str, LengthStats] = {}
    """Words of the user, gold turns and gold calls; with a format, tokens of the prompt and of the gold turns."""
    evidence: dict[str, EvidenceStats] = {}
    """What gold reads and writes, by family. Only of tasks that can be played."""
    duplicate_ids: int = 0
    """Number of tasks with the id of an earlier task."""
    duplicates: int = 0
    """Number of tasks that differ from an earlier one only in wording."""
    near_duplicates: int = 0
    """Number of near-duplicates of an earlier task. They include all `duplicates`."""
    leaks: int = 0
    """Number of near-duplicates of a task in another split."""
    shared_rows: int = 0
    """Number of rows that tasks of several splits use, in tables that splits should not share.

    Known domains only.
    """
    leak_examples: tuple[TaskLeak, ...] = Field(default=(), max_length=MAX_LEAKS)
    """The first leaks: near-duplicates and shared rows."""


LengthMeasure = Callable[[Task], dict[str, int]]
EvidenceMeasure = Callable[[Task], Evidence | None]
TokenCounter = Callable[[str], int]


def compute_stats(
    items: Iterable[Item[Task] | RowError],
    sources: dict[str, TaskSource],
    measure: LengthMeasure = lambda task: {},
    evidence: EvidenceMeasure = lambda task: None,
    count_tokens: TokenCounter | None = None,
) -> DatasetStats:
    """Compute the statistics in one pass. `measure` returns further lengths of a task, `evidence` what gold reads."""
    counts = {name: Counter[str]() for name in ("splits", "families", "difficulties", "tools")}
    lengths, found, leaks = dict[str, Counter[int]](), Counter[str](), _Leaks(sources)
    ids, substances, first_error = set[str](), set[int](), ""
    read = dict[str, _EvidenceSums]()
    for item in items:
        if isinstance(item, RowError):
            found["num_invalid"] += 1
            first_error = first_error or str(item)
            continue
        task = item.value
        for name, value in (*_lengths(task).items(), *measure(task).items()):
            lengths.setdefault(name, Counter())[value] += 1
        counts["splits"][task.split] += 1
        counts["families"][task.family] += 1
        counts["difficulties"][task.difficulty] += 1
        counts["tools"].update(call.name for call in task.gold_calls)
        if seen := evidence(task):
            read.setdefault(task.family, _EvidenceSums()).add(seen, count_tokens)
        found["tasks"] += 1
        found["duplicate_ids"] += _again(ids, task.id)
        found["duplicates"] += _again(substances, hash(semantic_key(task)))
        found.update(leaks.add(task))
    spread = {name: _spread(counter) for name, counter in lengths.items()}
    ordered = {name: dict(counter.most_common()) for name, counter in counts.items()}
    by_family = {family: sums.means() for family, sums in read.items()}
    named = {"lengths": spread, "evidence": by_family, "leak_examples": tuple(leaks.named), "first_error": first_error}
    return DatasetStats(**named, **ordered, **{"tasks": 0, **found})


class _EvidenceSums:
    """Sums over the tasks of a family."""

    def __init__(self) -> None:
        self._sums = Counter[str]()
        self._tokens: int | None = None

    def add(self, seen: Evidence, count_tokens: TokenCounter | None) -> None:
        """Add one task."""
        self._sums.update(tasks=1, reads=seen.reads, needed=seen.needed_reads, writes=seen.writes, words=seen.words)
        if count_tokens is not None:
            self._tokens = (self._tokens or 0) + sum(map(count_tokens, seen.read_results))

    def means(self) -> EvidenceStats:
        """Return the means."""
        sums, tasks = self._sums, self._sums["tasks"]
        return EvidenceStats(
            tasks=tasks,
            reads=sums["reads"] / tasks,
            needed_reads=sums["needed"] / tasks,
            writes=sums["writes"] / tasks,
            reads_per_write=sums["reads"] / sums["writes"] if sums["writes"] else None,
            words=sums["words"] / tasks,
            tokens=None if self._tokens is None else self._tokens / tasks,
        )


class _Leaks:
    """Finds near-duplicates, and what tasks of different splits share."""

    def __init__(self, sources: dict[str, TaskSource]) -> None:
        self.named: list[TaskLeak] = []
        self._sources, self._similar = sources, NearDuplicateIndex()
        self._tasks: list[tuple[str, Split]] = []
        self._owners: dict[tuple[str, ...], tuple[str, Split]] = {}
        self._shared: set[tuple[str, ...]] = set()

    def add(self, task: Task) -> dict[str, int]:
        """Add a task. Return what it adds to the counts."""
        near = self._similar.add(task)
        self._tasks.append((task.id, task.split))
        other = next((self._tasks[n] for n in near if self._tasks[n][1] != task.split), None)
        if other is not None:
            self._name("words or calls", task, other)
        return {"near_duplicates": bool(near), "leaks": other is not None, "shared_rows": self._rows(task)}

    def _rows(self, task: Task) -> int:
        """Return how many rows this task shares with an earlier task of another split, for the first time."""
        source, before = find_named_source(self._sources, task.domain), len(self._shared)
        for table, key in source.split_row_keys(task) if source else ():
            row = (task.domain, table, key)
            owner = self._owners.setdefault(row, (task.id, task.split))
            if owner[1] != task.split and row not in self._shared:
                self._shared.add(row)
                self._name(f"{table} {key}", task, owner)
        return len(self._shared) - before

    def _name(self, what: str, task: Task, of: tuple[str, Split]) -> None:
        if len(self.named) < MAX_LEAKS:
            self.named.append(
                TaskLeak(shared=what, task=task.id, split=task.split, other_task=of[0], other_split=of[1])
            )


def measure_evidence(sources: dict[str, TaskSource]) -> EvidenceMeasure:
    """Return a measure that plays gold. It returns None for tasks of unknown domains and for gold that fails."""

    def measure(task: Task) -> Evidence | None:
        source = find_named_source(sources, task.domain)
        try:
            return BACKGROUND_LOOP.run(play_evidence(source, task)) if source else None
        except TaskError:
            return None

    return measure


def count_result_tokens(format: ChatFormat) -> TokenCounter:
    """Return a counter of the tokens of a text in a model's format."""

    def tokens(text: str) -> int:
        return len(format.encode_reply(Message(role="assistant", content=text)))

    empty = tokens("")
    return lambda text: tokens(text) - empty


def measure_tokens(format: ChatFormat, sources: dict[str, TaskSource]) -> LengthMeasure:
    """Return a measure of tokens in a model's format. Tasks of unknown domains have no policy and tools."""

    def measure(task: Task) -> dict[str, int]:
        source = find_named_source(sources, task.domain)
        policy = [Message(role="system", content=source.domain_policy)] if source and source.domain_policy else []
        opening = Message(role="user", content=task.scenario.opening)
        prompt = format.encode([*policy, opening], source.tool_specs if source else (), ())
        return {
            "prompt tokens": len(prompt),
            "gold tokens": sum(len(format.encode_reply(turn)) for turn in task.gold_turns),
        }

    return measure


def format_stats(description: DatasetStats) -> str:
    """Format the statistics for a terminal."""
    d = description
    head = f"{d.tasks} tasks" + (f", and {d.num_invalid} invalid; the first: {d.first_error}" if d.num_invalid else "")
    spread = [f"{'':<14}{'mean':>8}{'min':>7}{'median':>8}{'p90':>7}{'max':>7}"] if d.lengths else []
    for name, s in d.lengths.items():
        spread.append(f"{name:<14}{s.mean:>8.1f}{s.min:>7}{s.median:>8}{s.p90:>7}{s.max:>7}")
    if d.evidence:
        spread.append(
            f"{'evidence':<14}{'reads':>8}{'needed':>8}{'writes':>8}{'reads/write':>13}{'words':>8}"
            + (f"{'tokens':>8}" if any(e.tokens is not None for e in d.evidence.values()) else "")
        )
    for family, e in d.evidence.items():
        ratio = "-" if e.reads_per_write is None else f"{e.reads_per_write:.1f}"
        tokens = "" if e.tokens is None else f"{e.tokens:>8.0f}"
        spread.append(
            f"{family:<14}{e.reads:>8.1f}{e.needed_reads:>8.1f}{e.writes:>8.1f}{ratio:>13}{e.words:>8.0f}{tokens}"
        )
    listed = [
        f"{name:<14}" + ", ".join(f"{key} {count}" for key, count in getattr(d, name).items())
        for name in ("splits", "families", "difficulties", "tools")
    ]
    same = f"{d.duplicate_ids} repeated ids, {d.duplicates} duplicates, {d.near_duplicates} near-duplicates"
    across = f"{d.leaks} near-duplicates, {d.shared_rows} rows"
    leaks = [f"{k.task} ({k.split}) shares {k.shared} with {k.other_task} ({k.other_split})" for k in d.leak_examples]
    return "\n".join([head, *spread, *listed, f"{'alike':<14}{same}", f"{'in two splits':<14}{across}", *leaks])


def _lengths(task: Task) -> dict[str, int]:
    return {"user words": len(user_words(task)), "gold turns": len(task.gold_turns), "gold calls": len(task.gold_calls)}


def _again(seen: set[Any], key: Any) -> bool:
    known = key in seen
    seen.add(key)
    return known


def _spread(counter: Counter[int]) -> LengthStats:
    total = counter.total()
    ordered = sorted(counter.items())
    return LengthStats(
        mean=sum(length * count for length, count in ordered) / total,
        min=ordered[0][0],
        median=_quantile(ordered, total, 0.5),
        p90=_quantile(ordered, total, 0.9),
        max=ordered[-1][0],
        counts=dict(ordered),
    )


def _quantile(ordered: list[tuple[int, int]], total: int, share: float) -> int:
    """Return the quantile `share`: the smallest length that at least this share of the tasks does not exceed."""
    below = 0
    for length, count in ordered:
        below += count
        if below >= share * total:
            return length
    return ordered[-1][0]
