"""Race a small model to a success rate of 0.70: seconds of training on a machine with two CPU cores.

    python benchmarks/speedrun.py                                     # the preset as it is, on validation tasks
    python benchmarks/speedrun.py steps=3 algorithm.learning_rate=2e-4  # an attempt
    python benchmarks/speedrun.py --test                              # a result for the record, on the test tasks

The rules:

1.  Each of the seeds 0, 1 and 2 trains SmolLM2-135M-Instruct from its published weights on the tasks of the preset
    `retail_quick`, and then plays 200 held-out tasks with greedy decoding. The mean success of the three is at least
    0.70.
2.  The time is the mean over the seeds of the seconds from the first step to the last: SFT, episodes, updates and
    checkpoints. Installing, loading and evaluations do not count.
3.  A run may use at most 88 demonstrations. It may play as many training tasks as it likes.
4.  Model, slice, prompt, limits of an episode, user, reward and evaluation are those of the preset. All else may
    change: settings, algorithm, order of tasks, and the code of the trainer and the sampler.
5.  Settings are chosen on validation tasks. A result for the record is one run of each seed on the test tasks.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from understudy.evaluation.reports.files import read_run_report
from understudy.evaluation.reports.markdown import render_markdown_table
from understudy.evaluation.reports.report import format_rate
from understudy.evaluation.result import EvalResult, merge_results, success_gain
from understudy.runs.config import TrainConfig, load_config
from understudy.runs.run import read_metrics, read_run_config

PRESET = "retail_quick"
SEEDS = (0, 1, 2)
REQUIRED_SUCCESS = 0.70
MAX_DEMONSTRATIONS = 88
HELD_OUT_TASKS = 200
FIXED = ("domain", "model", "data", "slice", "limits", "user", "reward", "eval")
"""Parts of the config that an attempt may not change."""


def broken_rules(config: TrainConfig, standard: TrainConfig) -> list[str]:
    """Return a line for each rule that a config breaks, compared with the preset's config."""
    found = [
        f"{name}: an attempt may not change it" for name in FIXED if getattr(config, name) != getattr(standard, name)
    ]
    used = min(config.sft.num_demonstrations, config.sft.steps * config.sft.batch_size)
    if used > MAX_DEMONSTRATIONS or config.sft.dataset_file or config.preferences.steps:
        found.append(f"sft: it uses {used} demonstrations, or files of them; at most {MAX_DEMONSTRATIONS} are allowed")
    return found


def split_settings(test: bool) -> list[str]:
    """Return the settings of the evaluation."""
    return [f"eval.split={'test' if test else 'validation'}", f"eval.tasks={HELD_OUT_TASKS}", "eval.base_tasks=1"]


def training_seconds(run: Path) -> float:
    """Return the seconds of all steps of a run, SFT included."""
    return sum(float(line["time/step_seconds"]) for line in read_metrics(run, "train"))


def report(runs: Sequence[Path]) -> str:
    """Return the table of an attempt's runs, and whether they reach the required success."""
    results = [read_run_report(run).held_out.results for run in runs]
    rows = [["", "SFT", "RL", "gain by RL, paired", "seconds"]]
    for run, found in zip(runs, results, strict=True):
        rows.append([f"seed {read_run_config(run).seed}", *rates(found), f"{training_seconds(run):.0f}"])
    together = {stage: merge_results([found[stage] for found in results]) for stage in ("sft", "rl")}
    success, seconds = together["rl"].success_rate.mean, fmean(training_seconds(run) for run in runs)
    rows.append(["mean", *rates(together), f"{seconds:.0f}"])
    verdict = f"{seconds:.0f} s" if success >= REQUIRED_SUCCESS else f"no result: {REQUIRED_SUCCESS:.2f} is required"
    return "\n".join([*render_markdown_table(rows), "", f"success {success:.3f}: {verdict}"])


def rates(found: dict[str, EvalResult]) -> list[str]:
    """Return success after SFT, after RL, and the paired gain."""
    after = [format_rate(found[stage].success_rate) for stage in ("sft", "rl")]
    return [*after, format_rate(success_gain(found["rl"], found["sft"]), True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the attempt")
    parser.add_argument("--test", action="store_true", help="play the test tasks, for a result for the record")
    parser.add_argument("--out", type=Path, default=Path("runs/speedrun"), help="folder of the runs")
    given = parser.parse_args()
    evaluation = split_settings(given.test)
    problems = broken_rules(load_config(PRESET, [*evaluation, *given.settings]), load_config(PRESET, evaluation))
    if problems:
        parser.error("; ".join(problems))
    runs = [given.out / f"seed{seed}" for seed in SEEDS]
    for seed, run in zip(SEEDS, runs, strict=True):
        if run.exists():
            parser.error(f"{run} exists; give another --out, or delete it")
        settings = [PRESET, *evaluation, *given.settings, f"seed={seed}", "--out", str(run)]
        subprocess.run([sys.executable, "-m", "understudy", "train", *settings], check=True)
    print(report(runs))


if __name__ == "__main__":
    main()
