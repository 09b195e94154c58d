"""Summarize runs of one config with several seeds as Markdown: success, paired gains, families and cost.

    for seed in 0 1 2; do understudy train seed=$seed --out runs/seed$seed; done
    python benchmarks/seeds.py runs/seed0 runs/seed1 runs/seed2

A gain compares a run with its own SFT checkpoint, task by task, with a 95% interval over tasks. The last row treats
all runs as trials of one run. Its interval shows the variance over tasks, and the rows above it the variance over
seeds.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from understudy.evaluation.reports.files import read_run_report
from understudy.evaluation.reports.markdown import render_markdown_table
from understudy.evaluation.reports.report import format_rate
from understudy.evaluation.reports.tables import TableCells
from understudy.evaluation.result import EvalResult, merge_results, success_gain
from understudy.runs.run import read_metrics, read_run_config

STAGES = ("base", "sft", "rl")


def stages(folder: Path) -> dict[str, EvalResult]:
    """Return the last evaluation of each stage of a run. Exit if one is missing."""
    results = read_run_report(folder).held_out.results
    if missing := [stage for stage in STAGES if stage not in results]:
        raise SystemExit(f"{folder} has no evaluation of {' and '.join(missing)}; wait until the run has finished")
    return results


def successes(found: Sequence[dict[str, EvalResult]], names: Sequence[str]) -> TableCells:
    """Return the table of the success of each run's stages and its gain by RL. The last row treats all runs as trials
    of one.
    """
    played = {tuple(tuple(result.task for result in run[stage].task_results) for stage in STAGES) for run in found}
    if len(played) > 1:  # the base model may have played fewer tasks (`eval.base_tasks`)
        raise SystemExit("the runs were evaluated on different tasks; give runs of one config, with different seeds")
    rows = [
        [
            name,
            *(format_rate(run[stage].success_rate) for stage in STAGES),
            format_rate(success_gain(run["rl"], run["sft"]), True),
        ]
        for name, run in zip([*names, "mean"], [*found, whole(found)], strict=True)
    ]
    return [["", *STAGES, "rl - sft, paired"], *rows]


def whole(found: Sequence[dict[str, EvalResult]]) -> dict[str, EvalResult]:
    """Return the results of each stage of all runs together."""
    return {stage: merge_results([run[stage] for run in found]) for stage in STAGES}


def families(found: dict[str, EvalResult]) -> TableCells:
    """Return the table of success by family."""
    names = sorted({result.family for result in found["rl"].task_results})
    return [["", *STAGES], *([name, *(rate_of(found[stage], name) for stage in STAGES)] for name in names)]


def rate_of(evaluation: EvalResult, family: str) -> str:
    """Return the success on a family's tasks."""
    return f"{evaluation.success_rate_where(lambda result: result.family == family).mean:.2f}"


def cost(folder: Path) -> list[str]:
    """Return the table of costs: minutes of SFT and of RL, seconds per step of each, memory."""
    config, lines = read_run_config(folder), read_metrics(folder)
    seconds = [line["time/step_seconds"] for line in lines if "time/step_seconds" in line]
    parts = seconds[: config.steps_before_rl], seconds[config.steps_before_rl :]
    peak = max(line.get("time/peak_memory_gib", 0.0) for line in lines)
    means = [f"{sum(part) / 60:.1f} ({fmean(part):.0f} s per step)" for part in parts if part]
    return [*means, f"{peak:.2f}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders of one config, one for each seed")
    runs = parser.parse_args().runs
    evaluations = [stages(folder) for folder in runs]
    seeds = [f"seed {read_run_config(folder).seed}" for folder in runs]
    costs = [[name, *cost(folder)] for name, folder in zip(seeds, runs, strict=True)]
    head = ["", "minutes of SFT", "minutes of RL", "peak GiB"]
    for cells in (successes(evaluations, seeds), families(whole(evaluations)), [head, *costs]):
        print("\n".join(render_markdown_table(cells)), end="\n\n")
