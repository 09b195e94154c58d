"""Compare algorithms on a real model: each trains for the same time, from the same SFT checkpoints.

    python benchmarks/algorithms.py                                  # all algorithms, seeds 0, 1 and 2
    python benchmarks/algorithms.py rft grpo --seeds 0 --test        # some, on the test tasks

For each seed, the preset `retail_quick` is trained by SFT once. Each algorithm then trains the result by RL, on the
same training tasks in the same order, until its steps have taken `--seconds`; the last step is finished. Then the
held-out tasks are played with greedy decoding. Gains are paired with the SFT checkpoint, task by task. The last column
divides the gain by the minutes that the steps took.

An algorithm is a preset with the settings in `ALGORITHMS`. All sample groups of eight episodes and train on the best
two and the worst two of each, as `retail_quick` does. An interrupted comparison continues where it was.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from understudy.evaluation.report import format_rate, read_report, render_markdown_table
from understudy.evaluation.result import EvalResult, merge_results, success_gain
from understudy.runs.run import read_metrics

PRESET = "retail_quick"
MINIBATCHES = "algorithm.num_minibatches=4"
ALGORITHMS = {
    "preset": (),
    "group mean": ("algorithm.advantage_estimator=group_mean", "algorithm.negative_advantage_scale=1", MINIBATCHES),
    "turn": ("algorithm.advantage_estimator=turn", "algorithm.negative_advantage_scale=1", MINIBATCHES),
    **{name: (f"algorithm.preset={name}", MINIBATCHES) for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp", "rft")},
    "dapo": ("algorithm.preset=dapo", MINIBATCHES),
    "gspo": ("algorithm.preset=gspo",),
    "cispo": ("algorithm.preset=cispo",),
    "ppo": ("algorithm.preset=ppo",),
}
"""Name -> settings. All sample as many episodes a step; none replaces groups of equal rewards, which costs time."""
COMMON = ("algorithm.max_resampled_groups=0", "algorithm.warmup_steps=0", "algorithm.min_lr_ratio=1")
MOST_STEPS = 1000
MODEL = "exported"


def understudy(*words: object) -> list[str]:
    """Return a command line."""
    return [sys.executable, "-m", "understudy", *map(str, words)]


def warm_start(folder: Path, seed: int) -> Path:
    """Train a seed by SFT and export its model, unless that is done, and return the folder of the run."""
    run = folder / f"sft-seed{seed}"
    if not (run / "result.json").exists():
        words = ["--resume", run] if run.exists() else [PRESET, "steps=0", f"seed={seed}", "eval.tasks=1", "--out", run]
        subprocess.run(understudy("train", *words), check=True)
    if not (run / MODEL / "config.json").exists():
        subprocess.run(understudy("export", run, "--out", run / MODEL), check=True)
    return run


def step_seconds(run: Path) -> list[float]:
    """Return the seconds of each step that a run has finished."""
    return [line["time/step_seconds"] for line in read_metrics(run, "train")] if run.exists() else []


def train(run: Path, settings: Sequence[str], seconds: float) -> None:
    """Train until the steps have taken these seconds, unless that is done."""
    if sum(step_seconds(run)) >= seconds:
        return
    words = ["--resume", run] if run.exists() else [*settings, f"steps={MOST_STEPS}", "save_every=1", "--out", run]
    process = subprocess.Popen(understudy("train", *words))
    while sum(step_seconds(run)) < seconds and process.poll() is None:
        time.sleep(0.2)
    for _ in range(2):  # the second one stops at once and keeps the last finished step
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    process.wait()
    if sum(step_seconds(run)) < seconds:
        raise SystemExit(f"{run} ended before {seconds:.0f} s of steps; its messages are above")


def evaluate(run: Path, tasks: int, split: str) -> EvalResult:
    """Play the held-out tasks with a run's last checkpoint, unless that is done, and return the result."""
    out = run / f"{split}{tasks}"
    if not (out / "report.json").exists():
        words = ["--resume", out] if out.exists() else [run, "--tasks", tasks, "--split", split, "--out", out]
        subprocess.run(understudy("eval", *words), check=True)
    return read_report(out).results["model"]


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
    parser.add_argument("--seconds", type=float, default=150.0, help="of RL steps [%(default)s]")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="of RL [%(default)s]")
    parser.add_argument("--test", action="store_true", help="play the test tasks; settings are chosen on validation")
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks [%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("runs/algorithms"), help="folder of the runs [%(default)s]")
    given = parser.parse_args()
    names = given.algorithms or list(ALGORITHMS)
    if unknown := [name for name in names if name not in ALGORITHMS]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(ALGORITHMS)}")
    held_out = given.tasks, "test" if given.test else "validation"
    starts = [warm_start(given.out, seed) for seed in given.seeds]
    before = merge_results([evaluate(start, *held_out) for start in starts])
    rows = [["", "success", "gain, paired", "steps", "seconds", "gain per minute"]]
    rows.append(["SFT", format_rate(before.success_rate), "", "", "", ""])
    for name in names:
        runs = [given.out / f"{name.replace(' ', '_')}-{given.learning_rate:g}-seed{seed}" for seed in given.seeds]
        for seed, start, run in zip(given.seeds, starts, runs, strict=True):
            settings = [*ALGORITHMS[name], *COMMON, f"algorithm.learning_rate={given.learning_rate}"]
            first = [PRESET, f"seed={seed}", f"model={start / MODEL}", "sft.steps=0", "eval.tasks=1"]
            train(run, [*first, *settings], given.seconds)
        after = merge_results([evaluate(run, *held_out) for run in runs])
        rows.append(row(name, runs, before, after))
        print("\n".join(render_markdown_table(rows)), flush=True)


if __name__ == "__main__":
    main()
