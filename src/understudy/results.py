"""The result table: agents side by side, with the do-nothing floor, the gold oracle, and how sure each number is.

rows = [("do nothing", floor), ("gold", oracle), ("base", base), ("warm start", warm), ("trained", trained)]
for table in tables(rows): console.print(table)
print(verdict(rows))
"""

import io
import json
import math
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy.evaluation import Evaluation, TaskResult
from understudy.run import Run
from understudy.statistics import Rate, difference, sentence
from understudy.tasks import DIFFICULTIES

Row = tuple[str, Evaluation]
UNTRAINED = "On domains that were not trained on"
Cells = list[list[str]]


def as_text(rows: Sequence[Row]) -> str:
    """Both tables and the verdict as plain text."""
    console = Console(width=max(100, shutil.get_terminal_size().columns), file=io.StringIO())
    with console.capture() as capture:
        console.print(*tables(rows), sep="\n")
    usage = [f"{name}, {who}: {used}" for name, row in rows for who, used in row.usage.items()]
    return "\n".join([capture.get(), *usage, verdict(rows)])


def tables(rows: Sequence[Row]) -> list[Table]:
    """For a terminal: success with its interval and gain, then success by family and difficulty."""
    titles = {"Success on held-out tasks": _successes(rows), "By family and difficulty": _groups(rows)}
    return [table(title, cells) for title, cells in titles.items()]


def markdown(rows: Sequence[Row]) -> str:
    """The same as Markdown, with the verdict."""
    return "\n".join([*lines_of(_successes(rows)), "", verdict(rows), "", *lines_of(_groups(rows)), ""])


def summary(tables: Mapping[str, Sequence[Row]]) -> str:
    """The results of a run as text: on held-out tasks, and on domains that were not trained on where there are any."""
    own, others = as_text(tables["evaluations"]), tables.get("tests")
    return f"{own}\n\n{UNTRAINED}\n{as_text(others)}" if others else own


def keep(run: Run, tables: Mapping[str, Sequence[Row]]) -> None:
    """Write result.json and result.md into a run's folder."""
    own, others = tables["evaluations"], tables.get("tests")
    values = as_json(own) | ({"tests": as_json(others)} if others else {})
    run.write("result.json", json.dumps(values, indent=1) + "\n")
    run.write("result.md", markdown(own) + (f"\n## {UNTRAINED}\n\n{markdown(others)}" if others else ""))


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The same as plain values, with every task's rewards."""
    plain: dict[str, Any] = finite({"verdict": verdict(rows), "rows": [_row(rows, i) for i in range(len(rows))]})
    return plain


def finite(value: Any) -> Any:
    """Plain values without NaN, which is no JSON: the mean of no task is null."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def verdict(rows: Sequence[Row]) -> str:
    """One plain sentence: is the last agent's gain over the one before it larger than the noise?"""
    agents = [row for row in rows if row[1].kind == "agent"]
    if len(agents) < 2:
        rate = agents[0][1].success if agents else None
        return (
            f"{agents[0][0]} succeeds on {interval(rate)} of {rate.tasks} tasks." if rate else "No agent was evaluated."
        )
    (old, before), (new, after) = agents[-2:]
    return sentence(gain(after, before), new, old)


def gain(new: Evaluation, old: Evaluation) -> Rate:
    """The paired difference in success: task by task, over the trials that both have."""
    pairs = _pairs(new, old)
    return difference([after for after, _ in pairs], [before for _, before in pairs])


def gains(new: Evaluation, old: Evaluation) -> list[float]:
    """The difference of each task that both have."""
    return [after - before for after, before in _pairs(new, old)]


def _pairs(new: Evaluation, old: Evaluation) -> list[tuple[float, float]]:
    """Each task's share of successes in both."""
    before = {result.task: result.successes for result in old.results}
    shared = [list(_shared(result.successes, before.get(result.task, ()))) for result in new.results]
    return [(sum(a for a, _ in pair) / len(pair), sum(b for _, b in pair) / len(pair)) for pair in shared if pair]


def together(rounds: Sequence[Evaluation]) -> Evaluation:
    """Evaluations on the same tasks (reruns, seeds of a run) as the trials of one."""
    rewards = defaultdict[str, tuple[float | None, ...]](tuple)
    for result in (result for each in rounds for result in each.results):
        rewards[result.task] += result.rewards
    results = tuple(result.replace(rewards=rewards[result.task]) for result in rounds[0].results)
    return rounds[0].replace(trials=sum(each.trials for each in rounds), results=results)


def interval(rate: Rate, signed: bool = False) -> str:
    """A rate with its interval, as text."""
    sign = "+" if signed else ""
    return f"{rate.mean:{sign}.3f} [{rate.low:{sign}.3f}, {rate.high:{sign}.3f}]"


def _shared(new: Sequence[bool | None], old: Sequence[bool | None]) -> Iterator[tuple[bool, bool]]:
    for after, before in zip(new, old, strict=False):
        if after is not None and before is not None:
            yield after, before


def _gain_at(rows: Sequence[Row], place: int) -> Rate | None:
    """An agent's gain over the row before it, where that is an agent too."""
    if place == 0 or {rows[place][1].kind, rows[place - 1][1].kind} != {"agent"}:
        return None
    return gain(rows[place][1], rows[place - 1][1])


def _successes(rows: Sequence[Row]) -> Cells:
    trials = max((evaluation.trials for _, evaluation in rows), default=1)
    head = ["", "success [95%]", *(f"pass^{k}" for k in range(2, trials + 1)), "gain on the row before", "tasks"]
    faulty = any(evaluation.faults for _, evaluation in rows)
    cells = [head + ["faults"] * faulty]
    for place, (name, evaluation) in enumerate(rows):
        paired = _gain_at(rows, place)
        passes = [f"{evaluation.passed('hat', k):.3f}" if k <= evaluation.trials else "" for k in range(2, trials + 1)]
        line = [name, interval(evaluation.success), *passes, interval(paired, signed=True) if paired else ""]
        cells.append([*line, str(evaluation.success.tasks), *[str(sum(evaluation.faults.values()))] * faulty])
    return cells


def _groups(rows: Sequence[Row]) -> Cells:
    """A line for each family, of each domain where there are several, then for each difficulty; success by column."""
    results = rows[0][1].results if rows else ()
    domains = sorted({result.domain for result in results})
    levels = [level for level in DIFFICULTIES if any(result.difficulty == level for result in results)]
    cells = [["", "tasks", *(name for name, _ in rows)]]
    for domain in domains:
        families = sorted({result.family for result in results if result.domain == domain})
        if len(domains) > 1:
            cells.append(_group(rows, domain, {"domain": domain}))
            families = [family for family in families if len(families) > 1]
        head = "  " if len(domains) > 1 else ""
        cells += [_group(rows, f"{head}{family}", {"domain": domain, "family": family}) for family in families]
    return cells + [_group(rows, level, {"difficulty": level}) for level in levels]


def _group(rows: Sequence[Row], value: str, fields: Mapping[str, str]) -> list[str]:
    def kept(result: TaskResult) -> bool:
        return all(getattr(result, field) == value for field, value in fields.items())

    rates = [evaluation.among(kept) for _, evaluation in rows]
    return [value, str(rates[0].tasks), *(f"{rate.mean:.2f}" for rate in rates)]


def _row(rows: Sequence[Row], place: int) -> dict[str, Any]:
    name, evaluation = rows[place]
    paired = _gain_at(rows, place)
    return {
        "name": name,
        "success": evaluation.success.model_dump(),
        "pass_hat_k": [evaluation.passed("hat", k + 1) for k in range(evaluation.trials)],
        "pass_at_k": [evaluation.passed("at", k + 1) for k in range(evaluation.trials)],
        "gain": paired.model_dump() if paired else None,
        "evaluation": evaluation.model_dump(mode="json"),
    }


def table(title: str, cells: Cells) -> Table:
    """Cells, the first line of them the head, for a terminal."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(cells[0]):
        table.add_column(Text(name), justify="right" if place else "left")
    for line in cells[1:]:
        table.add_row(*map(Text, line))
    return table


def lines_of(cells: Cells) -> list[str]:
    """The same as lines of Markdown."""
    rule = ["---", *["---:"] * (len(cells[0]) - 1)]
    safe = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in line] for line in cells]
    return [f"| {' | '.join(line)} |" for line in (safe[0], rule, *safe[1:])]
