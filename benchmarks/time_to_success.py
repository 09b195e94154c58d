"""A whole run beside TRL's GRPOTrainer: seconds until a success on held-out tasks, and peak memory.

    python benchmarks/time_to_success.py                  # SmolLM2-135M, 3 seeds a side
    python benchmarks/time_to_success.py --quick          # a tiny model, two steps a side, to see that it runs

Both sides begin with the same weights, a model that has imitated lamps (benchmarks/lamps) until it succeeds as often
as guesses at the time of the day do, and then learn from rewards which time is meant. They have the same tasks in the
same order, tools, rewards, group and batch sizes, learning rate and optimizer, and compute in bfloat16 with weights in
float32 behind it. Each is a process that stops after each step; this one then plays the held-out tasks with its
weights, by the same evaluation for both, while the side's clock stands still. The clock begins with the first step:
imports and loading are not on it. The sides take turns, so that a drift of the machine's speed meets both.
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
from collections.abc import Generator, Sequence
from pathlib import Path

from peer import TRL, python_of_trl

import understudy
from understudy.config import TrainConfig
from understudy.engines.local.machine import peak_bytes
from understudy.records import Record
from understudy.run import MODEL, Run
from understudy.settings import dump, load, parse

HERE = Path(__file__).resolve()
SIDES = {"ours": "understudy", "theirs": TRL}
MIB = 1 << 20
GO = "go\n"
SETTINGS = (
    "domain=lamps:DOMAIN",
    "slice.policy=brief",
    "engine.device=cpu",
    "engine.dtype=bfloat16",
    "engine.sampler=torch",
    "engine.train_embeddings=true",
    "sampling.max_tokens=64",
    "limits.max_turns=2",
    "limits.max_tokens=1024",
    "eval.tasks=1",  # at the run's begin and end, off the clock; what counts is examined here
    "eval.temperature=1.0",
    "keep=1",
)
WARM = (
    "steps=0",
    "sft.batch_size=16",
    "sft.demonstrations=1024",
    "sft.learning_rate=1e-4",
    "sft.warmup=5",
    "save_every=10",
)
REINFORCED = (
    "slice.families=evening",
    "sft.steps=0",
    "algorithm.tasks_per_step=4",
    "algorithm.group_size=8",
    "algorithm.refill=0",
    "algorithm.warmup=0",
    "algorithm.learning_rate=2e-5",
    "save_every=1",
)


class Shown(Record):
    """What a side says when it stops: its weights after a step."""

    step: int
    weights: Path
    seconds: float
    """On its clock."""
    peak: int
    """Bytes of memory that its process has had at most."""


class Lap(Record):
    """Weights after a step: how often they succeed on the held-out tasks, and what they took."""

    step: int
    seconds: float
    success: float
    peak: int


class Course(Record):
    """One side's run with one seed."""

    side: str
    seed: int
    laps: tuple[Lap, ...]

    def reached(self, success: float) -> Lap | None:
        """The first lap of at least this success; what the run began with is none."""
        return next((lap for lap in self.laps if lap.step and lap.success >= success), None)


class Clock:
    """A side's: it stands still while the side waits for its weights to be examined."""

    def __init__(self) -> None:
        self._out, sys.stdout = sys.stdout, sys.stderr  # whatever libraries print is not for the other process
        self._seconds, self._since = 0.0, math.inf

    def show(self, step: int, weights: Path) -> None:
        """Say where the weights are, and wait; the process ends here if it is not to go on."""
        self._seconds += max(0.0, time.perf_counter() - self._since)
        told = Shown(step=step, weights=weights, seconds=self._seconds, peak=peak_bytes("cpu"))
        print(told.model_dump_json(), file=self._out, flush=True)
        if sys.stdin.readline() != GO:
            raise SystemExit
        self._since = time.perf_counter()


def ours(config: TrainConfig, folder: Path) -> None:
    """The run of `understudy train`: its checks, files and checkpoints are on the clock."""
    from understudy.train import train

    class Watched(Run):
        def log(self, step: int, values: object) -> None:
            super().log(step, values)
            if step % config.save_every == 0:
                clock.show(step, self.last or Path(config.model))

    clock = Clock()
    train(config, Watched.create(folder, config), lambda *_: None)


def theirs(config: TrainConfig, folder: Path) -> None:
    """TRL's, in the Python that has it."""
    import trl_run

    trl_run.train(config, folder, Clock().show)


def configured(model: Path, *settings: str) -> TrainConfig:
    """The config of a run on lamps."""
    return parse(TrainConfig, "", [f"model={model}", *SETTINGS, *settings])


class Exam:
    """The held-out tasks."""

    def __init__(self, config: TrainConfig, tasks: int) -> None:
        from understudy.domains.base import find
        from understudy.evaluate import held_out

        self._domain, self._config = find(config.domain).slice(config.slice), config
        self._tasks = held_out(self._domain, "validation", tasks)

    def success(self, weights: Path) -> float:
        """How often weights succeed: a checkpoint of ours, or a folder as transformers writes it."""
        from understudy.agent import EngineAgent
        from understudy.evaluate import evaluate
        from understudy.players import open_model
        from understudy.weights import find_weights

        found = find_weights(str(weights))
        engine, format = open_model(found.config.replace(engine=self._config.engine), found.checkpoint)
        with contextlib.closing(engine):
            agent = EngineAgent(engine, format, self._config.sampling)
            return asyncio.run(evaluate(self._domain, agent, self._tasks, self._config.limits)).success.mean


def race(side: str, python: Path | str, config: TrainConfig, folder: Path, exam: Exam, success: float) -> Course:
    """One side's run, in a process of its own, until it succeeds so often or its steps are done."""
    folder.mkdir(parents=True)
    (folder / "race.toml").write_text(dump(config), encoding="utf-8")
    course = Course(side=side, seed=config.seed, laps=())
    with contextlib.closing(answers([python, str(HERE), f"--side={side}", f"--folder={folder}"])) as shown:
        for told in shown:
            lap = Lap(step=told.step, seconds=told.seconds, success=exam.success(told.weights), peak=told.peak)
            print(f"{SIDES[side]}, seed {config.seed}: {lap}", file=sys.stderr, flush=True)
            course = course.replace(laps=(*course.laps, lap))
            if course.reached(success) or told.step == config.total:
                break
    return course


def beginner(folder: Path, tiny: bool) -> Path:
    """The folder of a model that knows nothing of lamps, with a chat template that shows tools to both sides."""
    from understudy.models import find_model, make_tiny
    from understudy.models.tiny import TINY_TEMPLATE

    if tiny:
        return make_tiny(folder)
    shutil.copytree(find_model("smollm2-135m"), folder)
    (folder / "chat_template.jinja").write_text(TINY_TEMPLATE, encoding="utf-8")
    return folder


def warm_start(folder: Path, arguments: argparse.Namespace) -> Path:
    """The folder of the model that both sides begin with: one that has imitated until it succeeds so often."""
    from understudy.weights import export, find_weights

    model = beginner(folder / "beginner", arguments.quick)
    config = configured(model, *WARM, f"sft.steps={arguments.imitation}")
    course = race("ours", sys.executable, config, folder / "warm", Exam(config, arguments.tasks), arguments.warm)
    last = course.laps[-1]
    if not arguments.warm <= last.success < arguments.success:
        raise SystemExit(f"imitation came to {last} and not to between {arguments.warm} and {arguments.success}")
    export(find_weights(str(folder / "warm" / "run")), folder / MODEL)
    return folder / MODEL


def answers(command: Sequence[Path | str]) -> Generator[Shown]:
    """What a side shows; asking for the next lets it go on, and leaving off ends it."""
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
            raise SystemExit(f"{' '.join(map(str, command))} ended with exit code {side.returncode}")


def seconds(courses: Sequence[Course], side: str, success: float) -> float:
    """The median over a side's seeds of how long that success took; inf where most of them did not come so far."""
    laps = [course.reached(success) for course in courses if course.side == side]
    return statistics.median(lap.seconds if lap else math.inf for lap in laps)


def peak(courses: Sequence[Course], side: str) -> float:
    """The median over a side's seeds of its peak memory, in bytes."""
    return statistics.median(course.laps[-1].peak for course in courses if course.side == side)


def table(courses: Sequence[Course], success: float) -> str:
    """A row for each run, and the medians of both sides beside each other."""
    lines = [
        f"| | seed | seconds to {success:.2f} | steps | peak MiB | before the first step |",
        "|---|---|---|---|---|---|",
    ]
    for course in courses:
        lap, last = course.reached(success), course.laps[-1]
        missed = f"not in {last.seconds:.1f} ({last.success:.2f}) | {last.step}"
        came = f"{lap.seconds:.1f} | {lap.step}" if lap else missed
        used = f"{last.peak / MIB:.0f} | {course.laps[0].peak / MIB:.0f}"
        lines.append(f"| {SIDES[course.side]} | {course.seed} | {came} | {used} |")
    for side, name in SIDES.items():
        medians = f"{seconds(courses, side, success):.1f} | | {peak(courses, side) / MIB:.0f}"
        lines.append(f"| {name}, median | | {medians} | |")
    return "\n".join(lines)


def compared(courses: Sequence[Course], success: float) -> str:
    """The medians' ratios in a sentence."""
    own, other = (seconds(courses, side, success) for side in SIDES)
    if math.isinf(own) or math.isinf(other):
        return "no ratio of times: a median did not come to that success"
    memory = peak(courses, "theirs") / peak(courses, "ours")
    return f"{other / own:.1f} times faster, {memory:.1f} times less memory"


def raced(arguments: argparse.Namespace, folder: Path) -> list[Course]:
    """All runs: for each seed both sides, who goes first in turn."""
    python: dict[str, Path | str] = {"ours": sys.executable, "theirs": python_of_trl()}
    model = warm_start(folder, arguments)
    courses = []
    for seed in range(arguments.seeds):
        config = configured(model, *REINFORCED, f"seed={seed}", f"steps={arguments.steps}")
        exam = Exam(config, arguments.tasks)
        for side in list(SIDES)[:: -1 if seed % 2 else 1]:
            courses.append(race(side, python[side], config, folder / f"{side}_{seed}", exam, arguments.success))
    return courses


def main() -> None:
    """Both sides in turn, a table, and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--success", type=float, default=0.8, help="on held-out tasks, at which the clock is read")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--warm", type=float, default=0.2, help="the success at which imitation ends; guesses have 0.25"
    )
    parser.add_argument("--imitation", type=int, default=60, help="its steps, at most")
    parser.add_argument("--steps", type=int, default=20, help="of reinforcement, at most")
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks")
    parser.add_argument("--quick", action="store_true", help="one seed, two steps, two tasks: to see that it runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=tuple(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seeds, arguments.tasks, arguments.steps = 1, 2, 2
        arguments.warm, arguments.imitation = 0.0, 10
    if arguments.side:
        run = ours if arguments.side == "ours" else theirs
        return run(load(TrainConfig, arguments.folder / "race.toml"), arguments.folder / "run")
    with tempfile.TemporaryDirectory() as folder:
        courses = raced(arguments, Path(folder))
    if arguments.json:
        print(json.dumps({"trl": TRL, "courses": [course.model_dump(mode="json") for course in courses]}))
    else:
        print(f"{table(courses, arguments.success)}\n\n{compared(courses, arguments.success)}")


if __name__ == "__main__":
    main()
