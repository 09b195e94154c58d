"""What one config came to with several seeds, as Markdown: success before and after, paired gains, families, the cost.

    for seed in 0 1 2; do understudy train seed=$seed --out runs/seed$seed; done
    python benchmarks/seeds.py runs/seed0 runs/seed1 runs/seed2

A gain is that of each run over its own warm start, task by task, with its 95% interval over tasks. The last row is the
mean over runs; its interval is over the means of each task's gains, so it says how far the tasks might have differed,
and the rows above it how far the seeds did.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from understudy.evaluate import Evaluation, TaskResult
from understudy.results import gain, interval
from understudy.run import read_config, read_metrics
from understudy.statistics import Rate, difference

STAGES = ("base model", "warm start", "trained")


def stages(folder: Path) -> dict[str, Evaluation]:
    """The last evaluation of each stage of a run."""
    files = sorted((folder / "evaluations").glob("*.json"))
    return {path.stem.partition(" ")[2]: Evaluation.model_validate_json(path.read_text("utf-8")) for path in files}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield from (f"| {' | '.join(cells)} |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *rows))


def successes(found: Sequence[dict[str, Evaluation]], names: Sequence[str]) -> Iterator[str]:
    """Success of each run's stages, and its gain by reinforcement."""
    rows = [
        [
            name,
            *(interval(run[stage].success) for stage in STAGES),
            interval(gain(run["trained"], run["warm start"]), True),
        ]
        for name, run in zip(names, found, strict=True)
    ]
    means = [f"{mean([run[stage].success.mean for run in found]):.3f}" for stage in STAGES]
    yield from table(
        ["", *STAGES, "trained over warm start, paired"], [*rows, ["mean", *means, interval(whole(found), True)]]
    )


def whole(found: Sequence[dict[str, Evaluation]]) -> Rate:
    """The mean gain of all runs, paired by task."""
    return difference(*([mean(task) for task in shares(found, stage)] for stage in ("trained", "warm start")))


def shares(found: Sequence[dict[str, Evaluation]], stage: str) -> Iterator[list[float]]:
    """For each task the share of successes in each run."""
    for results in zip(*(run[stage].results for run in found), strict=True):
        if len({result.task for result in results}) > 1:
            raise SystemExit(f"these runs were not evaluated on the same tasks: {', '.join(r.task for r in results)}")
        yield [mean([float(done or 0) for done in result.successes]) for result in results]


def families(found: Sequence[dict[str, Evaluation]]) -> Iterator[str]:
    """Success by family, over all runs."""
    rows = []
    for name in sorted({result.family for result in found[0]["trained"].results}):
        part = [{stage: run[stage].replace(results=of(run[stage], name)) for stage in STAGES} for run in found]
        rows.append([name, *(f"{mean([run[stage].success.mean for run in part]):.2f}" for stage in STAGES)])
    yield from table(["", *STAGES], rows)


def of(evaluation: Evaluation, family: str) -> tuple[TaskResult, ...]:
    """The results of one family's tasks."""
    return tuple(result for result in evaluation.results if result.family == family)


def mean(values: Sequence[float]) -> float:
    """Their mean."""
    return math.fsum(values) / len(values)


def cost(folder: Path) -> list[str]:
    """What a run took: minutes of imitation and of reinforcement, seconds of a step of each, memory."""
    config, lines = read_config(folder), read_metrics(folder)
    seconds = [line["timing/step_seconds"] for line in lines if "timing/step_seconds" in line]
    parts = seconds[: config.prior], seconds[config.prior :]
    peak = max(line.get("timing/peak_memory_gib", 0.0) for line in lines)
    means = [f"{math.fsum(part) / 60:.1f} ({mean(part):.0f} s a step)" for part in parts if part]
    return [*means, f"{peak:.2f}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    runs = parser.parse_args().runs
    kept = [stages(folder) for folder in runs]
    seeds = [f"seed {read_config(folder).seed}" for folder in runs]
    print("\n".join([*successes(kept, seeds), "", *families(kept), ""]))
    costs = [[name, *cost(folder)] for name, folder in zip(seeds, runs, strict=True)]
    print("\n".join(table(["", "minutes of imitation", "minutes of reinforcement", "GiB at most"], costs)))
