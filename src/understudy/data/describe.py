"""What a set of tasks holds: lengths, tools, families, difficulties, duplicates, and what leaks between its splits."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import Field

from understudy.check import substance
from understudy.data.items import Bad, Item
from understudy.data.similar import Similar, said_words
from understudy.data.verify import Domains
from understudy.formats import ChatFormat
from understudy.messages import Message
from understudy.records import Record
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
    """A task that is a near-duplicate of an earlier one of another split."""

    task: str
    split: Split
    of: str
    of_split: Split


class Description(Record):
    """What a set of tasks holds."""

    tasks: int
    bad: int = 0
    """Items that are no tasks; not counted in anything else."""
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
    leaked: tuple[Leak, ...] = Field(default=(), max_length=NAMED)
    """The first of them."""


Measure = Callable[[Task], dict[str, int]]


def describe(items: Iterable[Item[Task] | Bad], measure: Measure = lambda task: {}) -> Description:
    """Look at all items once. `measure` gives further lengths of a task."""
    counts = {name: Counter[str]() for name in ("splits", "families", "difficulties", "tools")}
    lengths, similar, owners = dict[str, Counter[int]](), Similar(), list[tuple[str, Split]]()
    ids, substances, found = set[str](), set[int](), Counter[str]()
    leaked: list[Leak] = []
    for item in items:
        if isinstance(item, Bad):
            found["bad"] += 1
            continue
        task = item.value
        for name, value in (*_lengths(task).items(), *measure(task).items()):
            lengths.setdefault(name, Counter())[value] += 1
        counts["splits"][task.split] += 1
        counts["families"][task.family] += 1
        counts["difficulties"][task.difficulty] += 1
        counts["tools"].update(call.name for call in task.actions)
        found["same_ids"] += _again(ids, task.id)
        found["duplicates"] += _again(substances, hash(substance(task)))
        near = similar.add(task)
        owners.append((task.id, task.split))
        found["near_duplicates"] += bool(near)
        other = next((owners[n] for n in near if owners[n][1] != task.split), None)
        if other is not None:
            found["leaks"] += 1
            leaked += [Leak(task=task.id, split=task.split, of=other[0], of_split=other[1])][: NAMED - len(leaked)]
    spread = {name: _spread(counter) for name, counter in lengths.items()}
    ordered = {name: dict(counter.most_common()) for name, counter in counts.items()}
    return Description(tasks=len(owners), lengths=spread, leaked=tuple(leaked), **ordered, **found)


def token_lengths(format: ChatFormat, domains: Domains) -> Measure:
    """Tokens of each task in a model's format; those of domains that are not at hand have no policy and no tools."""

    def measure(task: Task) -> dict[str, int]:
        domain = domains.find(task.domain)
        policy = [Message(role="system", content=domain.policy)] if domain else []
        opening = Message(role="user", content=task.scenario.opening)
        prompt = format.encode([*policy, opening], domain.specs if domain else (), ())
        gold = [message for message in task.gold if message.role == "assistant"]
        return {"prompt tokens": len(prompt), "gold tokens": sum(len(format.render(message)) for message in gold)}

    return measure


def as_text(description: Description) -> str:
    """The description for a terminal."""
    d = description
    head = f"{d.tasks} tasks" + (f", and {d.bad} bad" if d.bad else "")
    spread = [f"{'':<14}{'mean':>8}{'min':>7}{'median':>8}{'p90':>7}{'max':>7}"] if d.lengths else []
    for name, s in d.lengths.items():
        spread.append(f"{name:<14}{s.mean:>8.1f}{s.min:>7}{s.median:>8}{s.p90:>7}{s.max:>7}")
    listed = [
        f"{name:<14}" + ", ".join(f"{key} {count}" for key, count in getattr(d, name).items())
        for name in ("splits", "families", "difficulties", "tools")
    ]
    same = f"{d.same_ids} used ids, {d.duplicates} duplicates, {d.near_duplicates} near-duplicates, {d.leaks} leaks"
    leaks = [f"leak: {leak.task} ({leak.split}) is like {leak.of} ({leak.of_split})" for leak in d.leaked]
    return "\n".join([head, *spread, *listed, f"{'alike':<14}{same}", *leaks])


def _lengths(task: Task) -> dict[str, int]:
    turns = sum(message.role == "assistant" for message in task.gold)
    return {"user words": len(said_words(task)), "gold turns": turns, "gold calls": len(task.actions)}


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
