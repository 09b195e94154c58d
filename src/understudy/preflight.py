"""What a run would be: everything that it needs is checked, and what it will take is told. Nothing is written.

A gold episode of each of a few tasks is played, and the machine's speed is taken from `understudy bench`, or measured
for a second or two.
"""

import asyncio
import contextlib
import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from understudy import bench, forecast, memory
from understudy.bench import Speeds
from understudy.config import TrainConfig
from understudy.engines.local.machine import find_machine
from understudy.engines.tinker.server import Server
from understudy.errors import ConfigError
from understudy.evaluate import demonstrations
from understudy.forecast import Episodes
from understudy.formats import Vocabulary
from understudy.memory import GIB

if TYPE_CHECKING:
    from understudy.train.preparation import Prepared

PLAYED = 8
"""Gold episodes."""


def preflight(config: TrainConfig, folder: Path, processes: int = 1) -> str:
    """The plan of a run in `folder` by so many processes. Raises ConfigError and TaskError as the run itself would."""
    from understudy.train.preparation import doubts, prepare  # torch, which a mistake in the config need not wait for

    prepared = prepare(config)
    head = f"{config.model} on {config.domain}: nothing is wrong with the config; a run would go to {folder}"
    if config.engine.kind == "tinker":
        return "\n".join([head, told(gold_episodes(config, prepared), config), _served(config), *doubts(config)])
    machine = find_machine(config.engine)
    episodes = gold_episodes(config, prepared)
    shape = memory.read_shape(prepared.folder)
    load = memory.load_of(config, episodes.common, processes)
    planned = memory.plan(shape, config.engine, load, machine, processes)
    speeds, source = _speeds(config, prepared.folder)
    evaluated = config.eval.trials * sum(len(exam.tasks) for exam in prepared.exams)
    expected = forecast.forecast(config, episodes, speeds, evaluated)
    parts = [
        head,
        told(episodes, config),
        forecast.as_text(expected, config),
        f"  (gold episodes, and speeds that {source}{'; of one process alone' if processes > 1 else ''})",
        memory.as_text(planned),
        _disk(config, shape, folder),
        *doubts(config),
    ]
    return "\n".join(parts)


def _served(config: TrainConfig) -> str:
    """Where the weights would be: a server is asked whether it is there and has the model, not how fast it is."""
    with contextlib.closing(Server(config.engine.tinker)) as server:
        return f"{server} ({config.engine.tinker.server}) has the model {server.connect()}; its time is not foretold"


def gold_episodes(config: TrainConfig, prepared: "Prepared") -> Episodes:
    """What the gold episodes of the first tasks come to."""
    domain, tasks = prepared.domain, itertools.islice(prepared.domain.stream("train", config.seed), PLAYED)
    played = asyncio.run(demonstrations(domain, tasks, prepared.format, config.limits, config.seed))
    return forecast.sizes(played, Vocabulary.load(prepared.folder / "tokenizer.json"))


def told(episodes: Episodes, config: TrainConfig) -> str:
    """Sizes of episodes; gold that does not fit the limits of the run would have ended it."""
    tight = episodes.longest + config.sampling.max_tokens > config.limits.max_tokens
    room = f", which limits.max_tokens = {config.limits.max_tokens} leaves little room for" if tight else ""
    return (
        f"gold episodes have {episodes.tokens:,.0f} tokens ({episodes.common:,} of them common to all), "
        f"{episodes.sampled:,.0f} of the agent in {episodes.turns:.1f} replies; the longest {episodes.longest:,}{room}"
    )


def _speeds(config: TrainConfig, folder: Path) -> tuple[Speeds, str]:
    """How fast the machine is, and how that is known."""
    if speeds := bench.kept(config.model, config.engine):
        return speeds, "`understudy bench` has measured"
    engine = config.engine.replace(sampler="torch") if config.engine.sampler == "auto" else config.engine
    speeds = bench.measure(folder, engine, bench.QUICK, [config.engine.finetune], config.model)
    return speeds, f"were measured just now; better ones: understudy bench {config.model}"


def _disk(config: TrainConfig, shape: memory.Shape, folder: Path) -> str:
    """Room for the checkpoints and the model; too little is a ConfigError."""
    count = config.total // config.save_every + 2 if config.save_every else 2
    needed = count * memory.checkpoint_bytes(shape, config.engine) + shape.parameters * 4
    there = next(path for path in folder.absolute().parents if path.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise ConfigError(
            f"{count} checkpoints and the model need {needed / GIB:.1f} GiB, and {there} has {free / GIB:.1f} left; "
            "raise save_every, or give --out another folder"
        )
    return f"disk: {needed / GIB:.2f} GiB for {count} checkpoints and the model, of {free / GIB:.1f} that are free"
