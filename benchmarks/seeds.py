"""What one config came to with several seeds, as Markdown: success before and after, paired gains, families, the cost.

    for seed in 0 1 2; do understudy train seed=$seed --out runs/seed$seed; done
    python benchmarks/seeds.py runs/seed0 runs/seed1 runs/seed2

A gain is that of each run over its own warm start, task by task, with its 95% interval over tasks. The last row is of
all runs, as trials of one: its interval says how far the tasks might have differed, the rows above how far seeds did.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from understudy.evaluation import Evaluation
from understudy.results import Cells, gain, interval, lines_of, together
from understudy.run import read_config, read_metrics

STAGES = ("base model", "warm start", "trained")


def stages(folder: Path) -> dict[str, Evaluation]:
    """The last evaluation of each stage of a run."""
    files = sorted((folder / "evaluations").glob("*.json"))
    return {path.stem.partition(" ")[2]: Evaluation.model_validate_json(path.read_text("utf-8")) for path in files}


def successes(found: Sequence[dict[str, Evaluation]], names: Sequence[str]) -> Cells:
    """Success of each run's stages, and its gain by reinforcement; in the last line, of all runs as trials of one."""
    if len({tuple(result.task for result in run[stage].results) for run in found for stage in STAGES}) > 1:
        raise SystemExit("these runs were not evaluated on the same tasks")
    rows = [
        [
            name,
            *(interval(run[stage].success) for stage in STAGES),
            interval(gain(run["trained"], run["warm start"]), True),
        ]
        for name, run in zip([*names, "mean"], [*found, whole(found)], strict=True)
    ]
    return [["", *STAGES, "trained over warm start, paired"], *rows]


def whole(found: Sequence[dict[str, Evaluation]]) -> dict[str, Evaluation]:
    """Each stage of all runs."""
    return {stage: together([run[stage] for run in found]) for stage in STAGES}


def families(found: dict[str, Evaluation]) -> Cells:
    """Success by family."""
    names = sorted({result.family for result in found["trained"].results})
    return [["", *STAGES], *([name, *(rate_of(found[stage], name) for stage in STAGES)] for name in names)]


def rate_of(evaluation: Evaluation, family: str) -> str:
    """Success on a family's tasks."""
    return f"{evaluation.among(lambda result: result.family == family).mean:.2f}"


def cost(folder: Path) -> list[str]:
    """What a run took: minutes of imitation and of reinforcement, seconds of a step of each, memory."""
    config, lines = read_config(folder), read_metrics(folder)
    seconds = [line["timing/step_seconds"] for line in lines if "timing/step_seconds" in line]
    parts = seconds[: config.prior], seconds[config.prior :]
    peak = max(line.get("timing/peak_memory_gib", 0.0) for line in lines)
    means = [f"{sum(part) / 60:.1f} ({fmean(part):.0f} s a step)" for part in parts if part]
    return [*means, f"{peak:.2f}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    runs = parser.parse_args().runs
    kept = [stages(folder) for folder in runs]
    seeds = [f"seed {read_config(folder).seed}" for folder in runs]
    costs = [[name, *cost(folder)] for name, folder in zip(seeds, runs, strict=True)]
    head = ["", "minutes of imitation", "minutes of reinforcement", "GiB at most"]
    for cells in (successes(kept, seeds), families(whole(kept)), [head, *costs]):
        print("\n".join(lines_of(cells)), end="\n\n")
