"""What a set of tasks holds: lengths, tools, families, difficulties, duplicates, and what leaks between its splits."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import Field

from understudy.data.items import Bad, Item
from understudy.data.verify import Domains
from understudy.formats import ChatFormat
from understudy.messages import Message
from understudy.records import Record
from understudy.similar import Similar, said_words, without_wording
from understudy.tasks import Split, Task

NAMED = 20
"""How many leaks are named."""


class Lengths(Record):
    """How a length is spread over the tasks."""

    mean: float
    min: int
    median: int
    p90: int
    max: int
    counts: dict[int, int]
    """Tasks by length."""


class Leak(Record):
    """A task that shares something with an earlier one of another split."""

    what: str
    """"words or calls" of a near-duplicate, or the table and the key of a row."""
    task: str
    split: Split
    of: str
    of_split: Split


class Description(Record):
    """What a set of tasks holds."""

    tasks: int
    bad: int = 0
    """Items that are no tasks; not counted in anything else."""
    first_bad: str = ""
    """Where the first of them is, and what is wrong with it."""
    splits: dict[str, int] = {}
    families: dict[str, int] = {}
    difficulties: dict[str, int] = {}
    tools: dict[str, int] = {}
    """Gold calls by tool."""
    lengths: dict[str, Lengths] = {}
    """Words of the user, gold turns and gold calls; with a format, tokens of the prompt and of the gold turns."""
    same_ids: int = 0
    """Tasks whose id is that of an earlier one."""
    duplicates: int = 0
    """Tasks that differ from an earlier one in their wording alone."""
    near_duplicates: int = 0
    """Tasks that are near-duplicates of an earlier one, those included."""
    leaks: int = 0
    """Near-duplicates of a task in another split."""
    shared_rows: int = 0
    """Rows, of tables that splits should not share, that tasks of several splits are about; of domains at hand."""
    leaked: tuple[Leak, ...] = Field(default=(), max_length=NAMED)
    """The first of both."""


Measure = Callable[[Task], dict[str, int]]


def describe(items: Iterable[Item[Task] | Bad], domains: Domains, measure: Measure = lambda task: {}) -> Description:
    """Look at all items once. `measure` gives further lengths of a task."""
    counts = {name: Counter[str]() for name in ("splits", "families", "difficulties", "tools")}
    lengths, found, leaks = dict[str, Counter[int]](), Counter[str](), _Leaks(domains)
    ids, substances, first_bad = set[str](), set[int](), ""
    for item in items:
        if isinstance(item, Bad):
            found["bad"] += 1
            first_bad = first_bad or str(item)
            continue
        task = item.value
        for name, value in (*_lengths(task).items(), *measure(task).items()):
            lengths.setdefault(name, Counter())[value] += 1
        counts["splits"][task.split] += 1
        counts["families"][task.family] += 1
        counts["difficulties"][task.difficulty] += 1
        counts["tools"].update(call.name for call in task.actions)
        found["tasks"] += 1
        found["same_ids"] += _again(ids, task.id)
        found["duplicates"] += _again(substances, hash(without_wording(task)))
        found.update(leaks.add(task))
    spread = {name: _spread(counter) for name, counter in lengths.items()}
    ordered = {name: dict(counter.most_common()) for name, counter in counts.items()}
    named = {"lengths": spread, "leaked": tuple(leaks.named), "first_bad": first_bad}
    return Description(**named, **ordered, **{"tasks": 0, **found})


class _Leaks:
    """Near-duplicates, and what tasks of different splits share."""

    def __init__(self, domains: Domains) -> None:
        self.named: list[Leak] = []
        self._domains, self._similar = domains, Similar()
        self._tasks: list[tuple[str, Split]] = []
        self._owners: dict[tuple[str, ...], tuple[str, Split]] = {}
        self._shared: set[tuple[str, ...]] = set()

    def add(self, task: Task) -> dict[str, int]:
        """The next task; what it adds to the counts of a description."""
        near = self._similar.add(task)
        self._tasks.append((task.id, task.split))
        other = next((self._tasks[n] for n in near if self._tasks[n][1] != task.split), None)
        if other is not None:
            self._name("words or calls", task, other)
        return {"near_duplicates": bool(near), "leaks": other is not None, "shared_rows": self._rows(task)}

    def _rows(self, task: Task) -> int:
        """How many rows this task is the first to share."""
        domain, before = self._domains.find(task.domain), len(self._shared)
        for table, key in domain.rows(task) if domain else ():
            row = (task.domain, table, key)
            owner = self._owners.setdefault(row, (task.id, task.split))
            if owner[1] != task.split and row not in self._shared:
                self._shared.add(row)
                self._name(f"{table} {key}", task, owner)
        return len(self._shared) - before

    def _name(self, what: str, task: Task, of: tuple[str, Split]) -> None:
        if len(self.named) < NAMED:
            self.named.append(Leak(what=what, task=task.id, split=task.split, of=of[0], of_split=of[1]))


def token_lengths(format: ChatFormat, domains: Domains) -> Measure:
    """Tokens of each task in a model's format; those of domains that are not at hand have no policy and no tools."""

    def measure(task: Task) -> dict[str, int]:
        domain = domains.find(task.domain)
        policy = [Message(role="system", content=domain.policy)] if domain else []
        opening = Message(role="user", content=task.scenario.opening)
        prompt = format.encode([*policy, opening], domain.specs if domain else (), ())
        return {"prompt tokens": len(prompt), "gold tokens": sum(len(format.render(turn)) for turn in task.turns)}

    return measure


def as_text(description: Description) -> str:
    """The description for a terminal."""
    d = description
    head = f"{d.tasks} tasks" + (f", and {d.bad} bad, the first {d.first_bad}" if d.bad else "")
    spread = [f"{'':<14}{'mean':>8}{'min':>7}{'median':>8}{'p90':>7}{'max':>7}"] if d.lengths else []
    for name, s in d.lengths.items():
        spread.append(f"{name:<14}{s.mean:>8.1f}{s.min:>7}{s.median:>8}{s.p90:>7}{s.max:>7}")
    listed = [
        f"{name:<14}" + ", ".join(f"{key} {count}" for key, count in getattr(d, name).items())
        for name in ("splits", "families", "difficulties", "tools")
    ]
    same = f"{d.same_ids} used ids, {d.duplicates} duplicates, {d.near_duplicates} near-duplicates"
    across = f"{d.leaks} near-duplicates, {d.shared_rows} rows"
    leaks = [f"{k.task} ({k.split}) shares {k.what} with {k.of} ({k.of_split})" for k in d.leaked]
    return "\n".join([head, *spread, *listed, f"{'alike':<14}{same}", f"{'in two splits':<14}{across}", *leaks])


def _lengths(task: Task) -> dict[str, int]:
    return {"user words": len(said_words(task)), "gold turns": len(task.turns), "gold calls": len(task.actions)}


def _again(seen: set[Any], key: Any) -> bool:
    known = key in seen
    seen.add(key)
    return known


def _spread(counter: Counter[int]) -> Lengths:
    total = counter.total()
    ordered = sorted(counter.items())
    return Lengths(
        mean=sum(length * count for length, count in ordered) / total,
        min=ordered[0][0],
        median=_quantile(ordered, total, 0.5),
        p90=_quantile(ordered, total, 0.9),
        max=ordered[-1][0],
        counts=dict(ordered),
    )


def _quantile(ordered: list[tuple[int, int]], total: int, share: float) -> int:
    """The smallest length that at least this share of the tasks does not exceed."""
    below = 0
    for length, count in ordered:
        below += count
        if below >= share * total:
            return length
    return ordered[-1][0]
