"""Outcome: all that an evaluation came to, as a table, as Markdown, and as the JSON that comparisons and pages read.

Beside the rows of `results` (floor, oracle, agent) it has pass^k and pass@k by k, why episodes failed, the tasks that
were failed most, the noise of identical evaluations, and what was spent.
"""

import io
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from rich.console import Console

from understudy import results
from understudy.errors import ConfigError
from understudy.evaluation import Evaluation, TaskResult
from understudy.failures.causes import MEANING, Failure
from understudy.noise import Noise
from understudy.records import Record
from understudy.results import Cells, interval
from understudy.tasks import DIFFICULTIES

FILE = "evaluation.json"
HARDEST = 10
"""Tasks that are shown as the hardest."""
EXAMPLE = 160
"""Characters of a failure's evidence in a table."""
_BOTH: tuple[Literal["hat", "at"], ...] = ("hat", "at")


class Named(Record):
    """An evaluation and what it is called."""

    name: str
    evaluation: Evaluation


class Outcome(Record):
    """What an evaluation came to."""

    rows: tuple[Named, ...]
    """Floor, oracle, and the agent as often as it was evaluated."""
    failures: tuple[Failure, ...] = ()
    """Of the agent's episodes; all evaluations of it together."""
    noise: Noise | None = None

    @property
    def agents(self) -> list[Named]:
        """The rows that are neither floor nor oracle."""
        return [row for row in self.rows if row.evaluation.kind == "agent"]

    @property
    def scored(self) -> bool:
        """Whether an episode of the agent has a result: the machinery did not fail all."""
        results = (result for row in self.agents for result in row.evaluation.results)
        return any(reward is not None for result in results for reward in result.rewards)

    @property
    def pairs(self) -> list[results.Row]:
        """The rows as `results` takes them."""
        return [(row.name, row.evaluation) for row in self.rows]


def as_text(outcome: Outcome) -> str:
    """Everything for a terminal."""
    return "\n".join(filter(None, [results.as_text(outcome.pairs), _drawn(_tables(outcome)), *_sentences(outcome)]))


def table_of_causes(failures: Sequence[Failure], title: str) -> str:
    """Why episodes failed, for a terminal."""
    return _drawn({title: _why(failures)})


def markdown(outcome: Outcome) -> str:
    """Everything as Markdown."""
    sections = [results.markdown(outcome.pairs)]
    for title, cells in _tables(outcome).items():
        sections.append("\n".join([f"**{title}**", "", *results.lines_of(cells), ""]))
    return "\n".join([*sections, *_sentences(outcome)]).rstrip() + "\n"


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything as plain values. `rows` are those of `results.as_json`, each with its `groups`."""
    plain = results.as_json(outcome.pairs)
    for line, row in zip(plain["rows"], outcome.rows, strict=True):
        line["groups"] = [results.finite(_group(row.evaluation, fields)) for fields in _kinds(row.evaluation)]
    return plain | {
        "failures": [failure.model_dump(mode="json") for failure in outcome.failures],
        "causes": [{"who": who, "what": what, "failures": n} for who, what, n in causes(outcome.failures)],
        "hardest": [{"task": task, "failures": failed, "episodes": of} for task, failed, of in hardest(outcome)],
        "noise": outcome.noise.model_dump(mode="json") if outcome.noise else None,
    }


def read(path: Path) -> Outcome:
    """The outcome in a folder or a file of `as_json`, or of one evaluation alone, as runs keep them.

    Of a run it is its last evaluation, under the name of the run and what was evaluated, such as `runs/a (trained)`.
    """
    run = (path / "config.toml").is_file()
    file = _last(path) if run else path / FILE if path.is_dir() else path
    name = f"{path} ({file.stem.partition(' ')[2]})" if run else file.stem
    try:
        found = json.loads(file.read_bytes())
    except OSError as e:
        raise ConfigError(f"there is no evaluation at {path}: {_why_not(path)}") from e
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{file} is no JSON: {e}") from e
    try:
        return _read(found, name)
    except (ValidationError, KeyError, TypeError) as e:
        raise ConfigError(
            f"{file} holds no evaluation ({type(e).__name__}); give what eval --out or --json wrote"
        ) from e


def causes(failures: Sequence[Failure]) -> list[tuple[str, str, int]]:
    """Who and what the causes are, and of how many failures; the most frequent first."""
    counted = Counter(failure.cause.what for failure in failures)
    return [
        (MEANING[what][0], what, count) for what, count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    ]


def hardest(outcome: Outcome) -> list[tuple[str, int, int]]:
    """The tasks with the most failures: id, failures, and of how many episodes."""
    tried = defaultdict[str, list[bool]](list)
    for row in outcome.agents:
        for result in row.evaluation.results:
            tried[result.task] += [success for success in result.successes if success is not None]
    failed = [(task, each.count(False), len(each)) for task, each in tried.items() if not all(each)]
    return sorted(failed, key=lambda task: (-task[1] / task[2], -task[1], task[0]))[:HARDEST]


def _drawn(tables: Mapping[str, Cells]) -> str:
    console = Console(width=max(100, shutil.get_terminal_size().columns), file=io.StringIO())
    with console.capture() as capture:
        for title, cells in tables.items():
            console.print(results.table(title, cells))
    return capture.get().rstrip()


def _read(found: Any, name: str) -> Outcome:
    if "rows" not in found:
        return Outcome(rows=(Named(name=name, evaluation=Evaluation.model_validate(found)),))
    rows = tuple(Named.model_validate({"name": row["name"], "evaluation": row["evaluation"]}) for row in found["rows"])
    failures = tuple(Failure.model_validate(failure) for failure in found.get("failures", ()))
    noise = Noise.model_validate(found["noise"]) if found.get("noise") else None
    return Outcome(rows=rows, failures=failures, noise=noise)


def _last(run: Path) -> Path:
    """The file of a run's last evaluation on the tasks that are held out."""
    files = sorted((run / "evaluations").glob("*.json"))
    if not files:
        raise ConfigError(
            f"{run} is a run without an evaluation yet; go on with it by: understudy train --resume {run}"
        )
    return files[-1]


def _why_not(path: Path) -> str:
    if (path / "episodes.jsonl").is_file():
        return f"it is not finished; go on with it by: understudy eval --resume {path}"
    return f"it has no {FILE}"


def _tables(outcome: Outcome) -> dict[str, Cells]:
    tables = {"pass^k and pass@k [95%]": _by_k(outcome)} if outcome.agents and _most_trials(outcome) > 1 else {}
    if outcome.failures:
        tables["Why episodes failed"] = _why(outcome.failures)
        tables["Hardest tasks"] = [
            ["", "failures", "episodes"],
            *([task, str(failed), str(of)] for task, failed, of in hardest(outcome)),
        ]
    return tables


def _sentences(outcome: Outcome) -> list[str]:
    judged = [failure for failure in outcome.failures if failure.judged]
    same = sum(failure.judged is not None and failure.judged.what == failure.cause.what for failure in judged)
    agreed = [f"The judge names the same cause for {same} of {len(judged)} failures."] if judged else []
    return agreed + ([str(outcome.noise)] if outcome.noise else [])


def _most_trials(outcome: Outcome) -> int:
    return max(row.evaluation.trials for row in outcome.agents)


def _by_k(outcome: Outcome) -> Cells:
    cells = [["k", *(f"{row.name} {sign}" for row in outcome.agents for sign in ("pass^k", "pass@k"))]]
    for k in range(1, _most_trials(outcome) + 1):
        both = (row.evaluation.passing(kind, k) for row in outcome.agents for kind in _BOTH)
        cells.append([str(k), *(interval(rate) for rate in both)])
    return cells


def _why(failures: Sequence[Failure]) -> Cells:
    cells = [["", "what", "failures", "share", "for example"]]
    for who, what, count in causes(failures):
        example = next(failure for failure in failures if failure.cause.what == what)
        cells.append([who, what, str(count), f"{count / len(failures):.0%}", example.cause.evidence[:EXAMPLE]])
    return cells


def _kinds(evaluation: Evaluation) -> Iterator[Mapping[str, str]]:
    """All tasks, then those of each domain, each family and each difficulty."""
    yield {}
    for domain in sorted({result.domain for result in evaluation.results}):
        own = [result for result in evaluation.results if result.domain == domain]
        yield {"domain": domain}
        yield from ({"domain": domain, "family": family} for family in sorted({result.family for result in own}))
        levels = [level for level in DIFFICULTIES if any(result.difficulty == level for result in own)]
        yield from ({"domain": domain, "difficulty": level} for level in levels)


def _group(evaluation: Evaluation, fields: Mapping[str, str]) -> dict[str, Any]:
    def kept(result: TaskResult) -> bool:
        return all(getattr(result, field) == value for field, value in fields.items())

    part = evaluation.replace(results=tuple(filter(kept, evaluation.results)))
    ks = range(1, evaluation.trials + 1)
    return {
        **fields,
        "tasks": len(part.results),
        "pass_hat_k": [part.passing("hat", k).model_dump() for k in ks],
        "pass_at_k": [part.passing("at", k).model_dump() for k in ks],
    }
