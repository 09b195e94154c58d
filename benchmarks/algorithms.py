"""Compare algorithms on a real model: each trains on as many episodes, from the same SFT checkpoints.

    python benchmarks/algorithms.py                                  # all algorithms, seeds 0, 1 and 2
    python benchmarks/algorithms.py rft grpo --seeds 0 --test        # some, on the test tasks

For each seed, the preset `retail_quick` is trained by SFT once. Each algorithm then trains the result by RL, on the
same training tasks in the same order, for as many steps as the preset. Then the held-out tasks are played with greedy
decoding. Gains are paired with the SFT checkpoint, task by task. The table has the seconds of the steps, and the gain
divided by their minutes.

An algorithm is a preset with the settings in `ALGORITHMS`. All sample groups of eight episodes, train on the best two
and the worst two of each in four minibatches (PPO: in four passes), and have the learning rates of `retail_quick`,
which were chosen for group_mean. `--learning-rate` gives another peak. An interrupted comparison continues where it
was. To use two cores well, run two processes with OMP_NUM_THREADS=1 and other seeds, and then one with all seeds, which
prints the table.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from understudy.core.settings import config_differences
from understudy.evaluation.reports.files import read_run_report
from understudy.evaluation.reports.markdown import render_markdown_table
from understudy.evaluation.reports.report import format_rate
from understudy.evaluation.result import EvalResult, merge_results, success_gain
from understudy.runs.config import load_config
from understudy.runs.run import read_metrics, read_run_config
from understudy.train.model_size import resolve_learning_rates

PRESET = "retail_quick"
MINIBATCHES = "algorithm.num_minibatches=4"
ALGORITHMS = {
    "preset": (),
    "turn": ("algorithm.advantage_estimator=turn",),
    **{name: (f"algorithm.preset={name}", MINIBATCHES) for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp", "rft")},
    **{name: (f"algorithm.preset={name}",) for name in ("dapo", "gspo", "cispo", "ppo")},
}
"""Name -> settings. All sample as many episodes a step; none replaces groups of equal rewards, which costs time."""
COMMON = ("algorithm.max_resampled_groups=0",)
MODEL = "exported"


def understudy(*words: object) -> None:
    """Run a command. Raise CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "understudy", *map(str, words)], check=True)


def train(run: Path, *settings: str) -> None:
    """Train and evaluate a run, unless that is done."""
    if run.exists():
        stored = read_run_config(run)
        wanted, _ = resolve_learning_rates(load_config(PRESET, settings))
        wanted = wanted.replace(engine=stored.engine)  # which a run fits to the machine
        if changed := config_differences(stored, wanted):
            raise SystemExit(f"{run} has another config: {'; '.join(changed)}; give another --out, or delete it")
    if not (run / "result.json").exists():
        understudy("train", *(["--resume", run] if run.exists() else [PRESET, *settings, "--out", run]))


def warm_start(folder: Path, seed: int, held_out: Sequence[str]) -> Path:
    """Train a seed by SFT and export its model, unless that is done, and return the folder of the run."""
    run = folder / f"sft-seed{seed}"
    train(run, "steps=0", f"seed={seed}", *held_out)
    if not (run / MODEL / "config.json").exists():
        understudy("export", run, "--out", run / MODEL)
    return run


def step_seconds(run: Path) -> list[float]:
    """Return the seconds of each step of a run."""
    return [line["time/step_seconds"] for line in read_metrics(run, "train")]


def row(name: str, runs: Sequence[Path], before: EvalResult, after: EvalResult) -> list[str]:
    """Return an algorithm's row: success and paired gain of all seeds together, steps, seconds, and gain per minute."""
    gain = success_gain(after, before)
    steps = fmean(len(step_seconds(run)) for run in runs)
    seconds = fmean(sum(step_seconds(run)) for run in runs)
    rates = [format_rate(after.success_rate), format_rate(gain, True)]
    return [name, *rates, f"{steps:.1f}", f"{seconds:.0f}", f"{60 * gain.mean / seconds:+.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="NAME", help=f"default: all of {', '.join(ALGORITHMS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--learning-rate", type=float, help="peak learning rate of RL [that of the preset]")
    parser.add_argument("--test", action="store_true", help="play the test tasks; settings are chosen on validation")
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks [%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("runs/algorithms"), help="folder of the runs [%(default)s]")
    given = parser.parse_args()
    names = given.algorithms or list(ALGORITHMS)
    if unknown := [name for name in names if name not in ALGORITHMS]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(ALGORITHMS)}")
    split = "test" if given.test else "validation"
    held_out = f"eval.split={split}", f"eval.tasks={given.tasks}", "eval.base_tasks=1"
    folder = given.out / f"{split}{given.tasks}"
    starts = [warm_start(folder, seed, held_out) for seed in given.seeds]
    before = merge_results([read_run_report(start).held_out.results["sft"] for start in starts])
    rows = [["", "success", "gain, paired", "steps", "seconds", "gain per minute"]]
    rows.append(["SFT", format_rate(before.success_rate), "", "", "", ""])
    rate = [f"algorithm.learning_rate={given.learning_rate}"] if given.learning_rate else []
    for name in names:
        stem = "-".join([name, *(f"{given.learning_rate:g}" for _ in rate)])
        runs = [folder / f"{stem}-seed{seed}" for seed in given.seeds]
        for seed, start, run in zip(given.seeds, starts, runs, strict=True):
            weights = f"model={start / MODEL}", "sft.steps=0"
            train(run, *ALGORITHMS[name], *COMMON, *rate, *held_out, f"seed={seed}", *weights)
        after = merge_results([read_run_report(run).held_out.results["rl"] for run in runs])
        rows.append(row(name, runs, before, after))
        print("\n".join(render_markdown_table(rows)), flush=True)


if __name__ == "__main__":
    main()
