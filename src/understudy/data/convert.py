"""Convert: tasks from one form to another, in one file or in parts, in two streaming passes.

The first pass checks every task and, for parts, groups them; the second writes. So nothing is written when a task is
refused, unless the sound rest is wanted; and which part a task goes to is known before its first row is written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from understudy.data.items import Bad, Item
from understudy.data.parts import Groups, deal
from understudy.data.rows import to_row
from understudy.data.source import Source
from understudy.data.verify import Domains, checked
from understudy.data.write import Format, output, refuse_existing
from understudy.errors import ConfigError, TaskError
from understudy.records import Record
from understudy.tasks import SPLITS, Split, Task

Watch = Callable[[Iterable[Item[Task] | Bad], str], Iterable[Item[Task] | Bad]]
"""Passes items through and shows how far they are; the text says what is being done."""

Encode = Callable[[Task], Record]


@dataclass(frozen=True)
class Target:
    """What is written where."""

    out: Path
    encode: Encode
    format: Format
    parts: tuple[Split, ...] = ()
    """The files of the folder `out`; empty where `out` is one file."""
    resume: bool = False


@dataclass
class Survey:
    """What the first pass has found."""

    good: int = 0
    refused: set[int] = field(default_factory=set)
    """The places of refused items in the stream."""


def survey(
    items: Iterable[Item[Task] | Bad], groups: Groups | None = None, report: Callable[[Bad], None] = lambda bad: None
) -> Survey:
    """Look at all items: the good ones go into `groups`, the bad ones are reported."""
    found = Survey()
    for number, item in enumerate(items):
        if isinstance(item, Bad):
            found.refused.add(number)
            report(item)
            continue
        found.good += 1
        if groups is not None:
            groups.add(item.value)
    return found


def convert(
    source: Source,
    target: Target,
    domains: Domains,
    *,
    groups: Groups | None = None,
    ratios: Sequence[float] = (),
    seed: int = 0,
    keep_going: bool = False,
    watch: Watch = lambda items, what: items,
    report: Callable[[Bad], None] = lambda bad: None,
) -> tuple[dict[str, int], int]:
    """Write a source's tasks to the target; the count of each part, and of the tasks that were refused.

    With `groups`, tasks are dealt to the target's parts in `ratios` and say so in their `split`; without, they go where
    their `split` says. Refused tasks are reported; unless `keep_going` they are a `TaskError`, and nothing is written.
    """
    refuse_existing(target.out, target.resume)
    found = survey(watch(checked(source.items(), domains), "checking"), groups, report)
    if found.refused and not keep_going:
        some = f"{len(found.refused)} of {found.good + len(found.refused)}"
        raise TaskError(f"{source.name}: {some} tasks are refused, so nothing is written; see --keep-going")
    if not found.good:
        raise TaskError(f"{source.name} holds no task to write")
    dealt = deal(groups, ratios, seed) if groups is not None else None
    good = _good(watch(source.items(), "writing"), found.refused)
    with output(target.out, parts=target.parts, format=target.format, resume=target.resume) as made:
        for number, task in enumerate(good):
            kept = task if dealt is None else task.replace(split=target.parts[dealt[number]])
            made.write(target.encode(kept), kept.split if target.parts else "")
    return made.counts, len(found.refused)


def rows_encoder(domains: Domains, policy: str = "") -> Encode:
    """From a task to its row; `policy` is what agents of a domain that is not at hand are told."""

    def encode(task: Task) -> Record:
        domain = domains.find(task.domain)
        if domain is None and not policy:
            raise ConfigError(f"the policy of {task.domain!r} is not known, which a row's prompt has to tell; --policy")
        return to_row(task, domain.policy if domain else policy, domains.reference(task.domain))

    return encode


def parts_for(count: int) -> tuple[Split, ...]:
    """The names of `count` parts."""
    if not 2 <= count <= len(SPLITS):
        raise ConfigError(f"{count} ratios: two (train, validation) or three (and test) are needed")
    return SPLITS[:count]


def _good(items: Iterable[Item[Task] | Bad], refused: set[int]) -> Iterator[Task]:
    for number, item in enumerate(items):
        if isinstance(item, Item) and number not in refused:
            yield item.value
