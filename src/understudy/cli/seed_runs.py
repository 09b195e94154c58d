"""Train one config with several seeds: `train TARGET seed=0,1,2`. Each seed is a run in a process of its own."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from understudy.cli.evaluation import print_groups
from understudy.cli.messages import print_message
from understudy.core.errors import ConfigError
from understudy.core.settings import with_full_key
from understudy.engines.process_group import init_rank
from understudy.runs.config import TrainConfig
from understudy.runs.resumption import fixed_differences
from understudy.runs.run import is_run_folder, read_run_config, validate_new_folder
from understudy.runs.storage.status import read_run_status
from understudy.runs.targets import resolve, split_arguments
from understudy.train.completion import complete_resumed_config
from understudy.train.processes import BRIEF_VARIABLE, STOPPED_STATUSES, run_process

_WRONG_ARGUMENT = 2
"""The exit status of a run that other seeds would repeat: a wrong argument or setting."""


@dataclass(frozen=True)
class SeedRun:
    """The run of one seed."""

    seed: int
    folder: Path
    state: Literal["new", "unfinished", "finished"]


def split_seeds(words: Sequence[str]) -> tuple[Sequence[str], list[int]]:
    """Return the arguments of `train` with the first seed, and all seeds if there are several, else none."""
    names, settings = split_arguments(words)
    given = {setting: with_full_key(TrainConfig, setting).partition("=") for setting in settings}
    last = next((setting for setting in reversed(settings) if given[setting][0].strip() == "seed"), "")
    parts = [part.strip() for part in given[last][2].strip(" []").split(",") if part.strip()] if last else []
    if len(parts) < 2:
        return words, []
    others = [setting for setting in settings if given[setting][0].strip() != "seed"]
    seeds = [resolve([*names, *others, f"seed={part}"]).config.seed for part in parts]
    if len({*seeds}) < len(seeds):
        raise ConfigError(f"{last}: a seed is given twice; give each once")
    return [*names, *others, f"seed={seeds[0]}"], seeds


def plan_seed_runs(words: Sequence[str], seeds: Sequence[int], out: Path | None) -> list[SeedRun]:
    """Return the runs of the seeds. Raise ConfigError if a folder has other content, or a run of other settings."""
    base = out or Path("runs", resolve(words).name)
    if not base.name:
        raise ConfigError(f"--out {out}: runs of several seeds begin with a name; give --out NAME")
    return [_find_run(words, seed, base.with_name(f"{base.name}-seed{seed}")) for seed in seeds]


def first_new_folder(runs: Sequence[SeedRun], out: Path | None) -> Path | None:
    """Return the folder that a plan names: of the first new run, or `out` without several seeds."""
    return next((run.folder for run in runs if run.state == "new"), None) if runs else out


def describe_runs(runs: Sequence[SeedRun]) -> list[str]:
    """Return a line on the runs of several seeds."""
    each = ", ".join(f"{run.folder} ({run.state})" for run in runs)
    return [f"{len(runs)} runs, one after the other: {each}; time and disk above are those of one"] if runs else []


def train_seeds(words: Sequence[str], seeds: Sequence[int], out: Path | None, processes: int, debug: bool) -> int:
    """Train the seeds one after the other, and print the table of all that are finished. Return the exit status.

    Unfinished runs are resumed. A seed that health checks, faults or a limit stop does not stop the others. Ctrl-C,
    SIGTERM and a wrong setting do.
    """
    if init_rank().world_size > 1:
        raise ConfigError(
            f"seeds {', '.join(map(str, seeds))} in one of several processes; use --num-processes instead"
        )
    options = [*(["--num-processes", str(processes)] if processes > 1 else []), *(["--debug"] if debug else [])]
    runs, worst = plan_seed_runs(words, seeds, out), 0
    for number, run in enumerate(runs, 1):
        print_message(f"seed {run.seed} ({number} of {len(runs)}): {run.folder} ({run.state})")
        if run.state == "finished":
            continue
        place = ["--out" if run.state == "new" else "--resume", str(run.folder)]
        arguments = [*words, f"seed={run.seed}", *place]
        status = run_process([sys.executable, "-m", "understudy", "train", *arguments, *options], {BRIEF_VARIABLE: "1"})
        if status in (_WRONG_ARGUMENT, *STOPPED_STATUSES):
            if number > 1:
                print_message("earlier seeds are kept; the same command again trains the others", "yellow")
            return status
        worst = worst or status
    finished = [run.folder for run in runs if read_run_status(run.folder).state == "finished"]
    if finished:
        print_groups({f"{str(runs[0].folder).removesuffix(str(runs[0].seed))}*": finished})
        print(f"\nNext:\n  understudy view {shlex.join(map(str, finished))}")
    return worst


def _find_run(words: Sequence[str], seed: int, folder: Path) -> SeedRun:
    if not is_run_folder(folder):
        validate_new_folder(folder)
        return SeedRun(seed, folder, "new")
    stored, resolved = read_run_config(folder), resolve([*words, f"seed={seed}"])
    config = complete_resumed_config(resolved.config, stored)
    steps = [f"steps: {stored.steps} and {config.steps}"] if stored.steps != config.steps else []
    if changed := [*steps, *fixed_differences(stored, config)]:
        raise ConfigError(
            f"{folder} holds a run with other settings (stored / given): {'; '.join(changed)}; give another --out"
        )
    state = read_run_status(folder).state
    if state == "running":
        raise ConfigError(f"{folder} is being trained now; wait until it has finished, or give another --out")
    return SeedRun(seed, folder, "finished" if state == "finished" else "unfinished")
