"""Compare a training run with TRL's GRPOTrainer: seconds until a success rate on held-out tasks, and peak memory.

    python benchmarks/time_to_success.py                  # SmolLM2-135M, 3 seeds per side
    python benchmarks/time_to_success.py --quick          # a smoke test: a tiny model, two steps per side

Both sides start from the same weights: a model fine-tuned on the domain `benchmarks/lamps`, in which it guesses the
time of the day, until it sometimes guesses the evening. They then learn from rewards that the evening is always meant.
Both have the same tasks in the same order, tools, rewards, group and batch sizes, learning rate and optimizer. Both
compute in bfloat16 with float32 master weights.

Each side is a process that stops after each step. This process then plays the held-out tasks with the side's weights,
with the same evaluation for both, while the side's clock is stopped. The clock starts with the first step, so it
excludes imports and loading. The sides alternate, so that both are affected alike if the machine's speed changes.

Weights are written after each step only for the evaluation, and understudy also writes the optimizer's state. So the
seconds of writing are also counted by themselves.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from peer import TRL, python_of

import understudy
from understudy.core.records import Record
from understudy.core.settings import dump_toml
from understudy.engines.local.machine import peak_memory_bytes
from understudy.runs.config import TrainConfig, load_config, parse_config
from understudy.runs.metrics import RecordKind
from understudy.runs.run import MODEL_FOLDER, Run

HERE = Path(__file__).resolve()
SIDES = {"ours": "understudy", "theirs": TRL}
MIB = 1 << 20
GO = "go\n"
SETTINGS = (
    "domain=lamps:DOMAIN",
    "slice.domain_policy=brief",
    "engine.device=cpu",
    "engine.dtype=bfloat16",
    "engine.sampler=torch",
    "engine.train_embeddings=true",
    "sampling.max_response_tokens=64",
    "limits.max_turns=2",
    "limits.max_episode_tokens=1024",
    "eval.tasks=1",  # the run's own evaluations are off the clock and their results are not used
    "eval.temperature=1.0",
    "keep_checkpoints=1",
)
SFT_SETTINGS = (
    "steps=0",
    "sft.batch_size=16",
    "sft.num_demonstrations=1024",
    "sft.learning_rate=1e-4",
    "sft.warmup_steps=5",
    "save_every=10",
)
RL_SETTINGS = (
    "slice.families=evening",
    "sft.steps=0",
    "algorithm.groups_per_batch=4",
    "algorithm.group_size=8",
    "algorithm.max_resampled_groups=0",
    "algorithm.warmup_steps=0",
    "algorithm.learning_rate=2e-5",
    "save_every=1",
)


class Shown(Record):
    """Report of a side that has stopped: its weights after a step."""

    step: int
    weights: Path
    seconds: float
    """Seconds on the side's clock."""
    writing: float = 0.0
    """The part of `seconds` in which weights were written."""
    peak: int
    """Peak memory of the side's process in bytes."""


class Lap(Record):
    """Weights after a step: their success rate on the held-out tasks, the seconds and the peak memory."""

    step: int
    seconds: float
    success: float
    peak: int
    writing: float = 0.0


class Course(Record):
    """The run of one side with one seed."""

    side: str
    seed: int
    laps: tuple[Lap, ...]

    def reached(self, success: float) -> Lap | None:
        """Return the first lap of at least this success rate. The weights before the first step do not count."""
        return next((lap for lap in self.laps if lap.step and lap.success >= success), None)


class Clock:
    """The clock of a side. It is stopped while the side waits for the evaluation of its weights."""

    def __init__(self) -> None:
        self._out, sys.stdout = sys.stdout, sys.stderr  # keeps output of libraries out of the reports
        self._seconds, self._since = 0.0, math.inf
        self._writing = 0.0

    @contextlib.contextmanager
    def write_weights(self) -> Iterator[None]:
        """Count the seconds of the block as writing."""
        begin = time.perf_counter()
        yield
        self._writing += time.perf_counter() - begin

    def show(self, step: int, weights: Path) -> None:
        """Report the weights and wait for the evaluation. Exit unless the run is to continue."""
        self._seconds += max(0.0, time.perf_counter() - self._since)
        shown = Shown(
            step=step,
            weights=weights,
            seconds=self._seconds,
            writing=self._writing,
            peak=peak_memory_bytes("cpu"),
        )
        print(shown.model_dump_json(), file=self._out, flush=True)
        if sys.stdin.readline() != GO:
            raise SystemExit
        self._since = time.perf_counter()


def ours(config: TrainConfig, folder: Path) -> None:
    """Run `understudy train`. The clock includes its checks, files and checkpoints."""
    from understudy.train.loop import train

    class Watched(Run):
        def log_metrics(self, step: int, values: Mapping[str, Any], kind: RecordKind = "train") -> None:
            super().log_metrics(step, values, kind)
            if step == 0:
                clock.show(step, Path(config.model))

        @contextlib.contextmanager
        def write_checkpoint(self, step: int) -> Iterator[Path]:
            with clock.write_weights(), super().write_checkpoint(step) as folder:
                yield folder
            assert self.last_checkpoint is not None
            if step % config.save_every == 0:
                clock.show(step, self.last_checkpoint)

    clock = Clock()
    train(config, Watched.create(folder, config), lambda *_: None)


def theirs(config: TrainConfig, folder: Path) -> None:
    """Run TRL, in the Python in which it is installed."""
    import trl_run

    trl_run.train(config, folder, Clock())


def configured(model: Path, *settings: str) -> TrainConfig:
    """Return the config of a run on lamps."""
    return parse_config("", [f"model={model}", *SETTINGS, *settings])


class HeldOutEval:
    """The held-out tasks."""

    def __init__(self, config: TrainConfig, tasks: int) -> None:
        from understudy.evaluation.evaluate import select_tasks
        from understudy.sources.loading import load_source

        self._domain, self._config = load_source(config.domain).slice(config.slice), config
        self._tasks = select_tasks(self._domain, "validation", tasks)

    def success(self, weights: Path) -> float:
        """Return the success rate of weights: a checkpoint of this package, or a folder that transformers wrote."""
        from understudy.evaluation.evaluate import evaluate
        from understudy.rollouts.agent import EngineAgent
        from understudy.runs.agents import open_model
        from understudy.runs.weights import resolve_weights

        found = resolve_weights(str(weights))
        engine, format = open_model(found.config.replace(engine=self._config.engine), found.checkpoint)
        with contextlib.closing(engine):
            agent = EngineAgent(engine, format, self._config.sampling)
            return asyncio.run(evaluate(self._domain, agent, self._tasks, self._config.limits)).success_rate.mean


def race(
    side: str, python: Path | str, config: TrainConfig, folder: Path, held_out: HeldOutEval, success: float
) -> Course:
    """Run one side in its own process until it reaches the success rate or its last step."""
    folder.mkdir(parents=True)
    (folder / "race.toml").write_text(dump_toml(config), encoding="utf-8")
    course = Course(side=side, seed=config.seed, laps=())
    with contextlib.closing(answers([python, str(HERE), f"--side={side}", f"--folder={folder}"])) as shown:
        for each in shown:
            success_rate = held_out.success(each.weights)
            lap = Lap(step=each.step, seconds=each.seconds, success=success_rate, peak=each.peak, writing=each.writing)
            print(f"{SIDES[side]}, seed {config.seed}: {lap}", file=sys.stderr, flush=True)
            course = course.replace(laps=(*course.laps, lap))
            if course.reached(success) or each.step == config.total_steps:
                break
    return course


def beginner(folder: Path, tiny: bool) -> Path:
    """Return the folder of a model that was not trained on lamps, with a chat template that shows tools on both
    sides.
    """
    from understudy.engines.models import find_model, make_tiny_model
    from understudy.engines.models.tiny import TINY_CHAT_TEMPLATE

    if tiny:
        return make_tiny_model(folder)
    shutil.copytree(find_model("smollm2-135m"), folder)
    (folder / "chat_template.jinja").write_text(TINY_CHAT_TEMPLATE, encoding="utf-8")
    return folder


def train_sft(folder: Path, arguments: argparse.Namespace) -> Path:
    """Return the folder of the model that both sides start from: fine-tuned on demonstrations of all times of the day,
    up to the given success rate on the tasks of RL.
    """
    from understudy.runs.weights import export_model, resolve_weights

    model = beginner(folder / "beginner", arguments.quick)
    config = configured(model, *SFT_SETTINGS, f"sft.steps={arguments.sft_steps}")
    held_out = HeldOutEval(configured(model, *RL_SETTINGS), arguments.tasks)
    course = race("ours", sys.executable, config, folder / "warm", held_out, arguments.warm)
    last = course.laps[-1]
    if not arguments.warm <= last.success < arguments.success:
        raise SystemExit(
            f"SFT ended with {last}; its success must be at least --warm ({arguments.warm}) "
            f"and below --success ({arguments.success})"
        )
    export_model(resolve_weights(str(folder / "warm" / "run")), folder / MODEL_FOLDER)
    return folder / MODEL_FOLDER


def answers(command: Sequence[Path | str]) -> Generator[Shown]:
    """Yield the reports of a side. Requesting the next one continues the side, and closing the generator ends it."""
    source = os.pathsep.join(filter(None, [str(Path(understudy.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": source}
    )
    with process as side:
        assert side.stdin is not None
        assert side.stdout is not None
        for line in side.stdout:
            yield Shown.model_validate_json(line)
            side.stdin.write(GO)
            side.stdin.flush()
        if side.wait():
            raise SystemExit(f"exit code {side.returncode} of {' '.join(map(str, command))}")


def seconds(courses: Sequence[Course], side: str, success: float, writing: bool = True) -> float:
    """Return the median over a side's seeds of the seconds to that success rate; inf if most seeds did not reach it.

    Without `writing`, the seconds in which weights were written do not count.
    """
    laps = [course.reached(success) for course in courses if course.side == side]
    return statistics.median(lap.seconds - (0 if writing else lap.writing) if lap else math.inf for lap in laps)


def peak(courses: Sequence[Course], side: str) -> float:
    """Return the median over a side's seeds of the peak memory in bytes."""
    return statistics.median(course.laps[-1].peak for course in courses if course.side == side)


def table(courses: Sequence[Course], success: float) -> str:
    """Return a table with a row for each run and the medians of both sides."""
    lines = [
        f"| side | seed | seconds to success {success:.2f} | of writing | steps | peak MiB | MiB before the steps |",
        "|---|---|---|---|---|---|---|",
    ]
    for course in courses:
        lap, last = course.reached(success), course.laps[-1]
        missed = f"not reached in {last.seconds:.1f} s (success {last.success:.2f}) | {last.writing:.1f} | {last.step}"
        came = f"{lap.seconds:.1f} | {lap.writing:.1f} | {lap.step}" if lap else missed
        used = f"{last.peak / MIB:.0f} | {course.laps[0].peak / MIB:.0f}"
        lines.append(f"| {SIDES[course.side]} | {course.seed} | {came} | {used} |")
    for side, name in SIDES.items():
        medians = f"{seconds(courses, side, success):.1f} | | | {peak(courses, side) / MIB:.0f}"
        lines.append(f"| {name}, median | | {medians} | |")
    return "\n".join(lines)


def compared(courses: Sequence[Course], success: float) -> str:
    """Return the ratios of the medians as a sentence."""
    own, other = (seconds(courses, side, success) for side in SIDES)
    if math.isinf(own) or math.isinf(other):
        return "no ratio: most seeds of a side did not reach the success rate"
    memory = peak(courses, "theirs") / peak(courses, "ours")
    steps = seconds(courses, "theirs", success, writing=False) / seconds(courses, "ours", success, writing=False)
    return (
        f"{other / own:.1f} times the seconds ({steps:.1f} without writing weights) and {memory:.1f} times the peak "
        f"memory with {SIDES['theirs']}"
    )


def raced(arguments: argparse.Namespace, folder: Path) -> list[Course]:
    """Run both sides for each seed. The side that runs first alternates."""
    python: dict[str, Path | str] = {"ours": sys.executable, "theirs": python_of("trl")}
    model = train_sft(folder, arguments)
    courses = []
    for seed in range(arguments.seeds):
        config = configured(model, *RL_SETTINGS, f"seed={seed}", f"steps={arguments.steps}")
        held_out = HeldOutEval(config, arguments.tasks)
        for side in list(SIDES)[:: -1 if seed % 2 else 1]:
            courses.append(race(side, python[side], config, folder / f"{side}_{seed}", held_out, arguments.success))
    return courses


def main() -> None:
    """Run both sides, and print a table and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--success", type=float, default=0.8, help="success rate on held-out tasks to reach (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs per side (default: %(default)s)")
    parser.add_argument(
        "--warm",
        type=float,
        default=0.05,
        help="success rate on the tasks of RL at which SFT ends; guessing has 0.25 (default: %(default)s)",
    )
    parser.add_argument("--sft-steps", type=int, default=60, help="maximum SFT steps (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="maximum RL steps (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=100, help="number of held-out tasks (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="smoke test: a tiny model, one seed, two steps, two tasks")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--side", choices=tuple(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seeds, arguments.tasks, arguments.steps = 1, 2, 2
        arguments.warm, arguments.sft_steps = 0.0, 10
    if arguments.side:
        run = ours if arguments.side == "ours" else theirs
        return run(load_config(arguments.folder / "race.toml"), arguments.folder / "run")
    with tempfile.TemporaryDirectory() as folder:
        courses = raced(arguments, Path(folder))
    if arguments.json:
        print(json.dumps({"trl": TRL, "courses": [course.model_dump(mode="json") for course in courses]}))
    else:
        print(f"{table(courses, arguments.success)}\n\n{compared(courses, arguments.success)}")


if __name__ == "__main__":
    main()
