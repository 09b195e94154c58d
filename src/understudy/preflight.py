"""What a run would be: everything that it needs is checked, and what it will take is told. Nothing is written.

A gold episode of each of a few tasks is played, and the machine's speed is taken from `understudy bench`, or measured
for a second or two.
"""

import asyncio
import contextlib
import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy import bench, forecast, memory
from understudy.bench import Speeds
from understudy.config import TrainConfig
from understudy.engines.local.machine import find_machine
from understudy.engines.tinker.server import Server
from understudy.errors import ConfigError
from understudy.evaluate import demonstrations
from understudy.forecast import Episodes, Forecast
from understudy.formats import Vocabulary
from understudy.memory import GIB, Plan
from understudy.records import Record

if TYPE_CHECKING:
    from understudy.train.preparation import Prepared

PLAYED = 8
"""Gold episodes."""


class Disk(Record):
    """Room on disk, in bytes."""

    needed: int
    """For the checkpoints and the model; episodes and metrics are small beside them."""
    checkpoints: int
    free: int


class Preflight(Record):
    """What a run would be; as text, all of it to read."""

    config: TrainConfig
    folder: Path
    """Where it would go."""
    verdict: str
    gold: Episodes
    forecast: Forecast | None = None
    """None where others have the weights, whose time is not foretold; the same is so of memory and disk."""
    speeds: str = ""
    """How it is known how fast the machine is."""
    memory: Plan | None = None
    disk: Disk | None = None
    notes: tuple[str, ...] = ()
    """What else there is to know."""

    def __str__(self) -> str:
        head = f"{self.config.model} on {self.config.domain}: {self.verdict}; a run would go to {self.folder}"
        lines = [head, _sizes(self.gold, self.config)]
        if self.forecast:
            lines += [forecast.as_text(self.forecast, self.config), f"  (gold episodes, and speeds that {self.speeds})"]
        lines += [memory.as_text(self.memory)] if self.memory else []
        lines += [_room(self.disk)] if self.disk else []
        return "\n".join([*lines, *self.notes])


def preflight(config: TrainConfig, folder: Path, processes: int = 1) -> Preflight:
    """The plan of a run in `folder` by so many processes. Raises ConfigError and TaskError as the run itself would."""
    from understudy.train.preparation import doubts, prepare  # torch, which a mistake in the config need not wait for

    prepared = prepare(config)
    sound, notes = "nothing is wrong with the config", (*doubts(config), *prepared.files.notes)
    if config.engine.kind == "tinker":
        gold, served = gold_episodes(config, prepared), _served(config)
        return Preflight(config=config, folder=folder, verdict=sound, gold=gold, notes=(served, *notes))
    machine = find_machine(config.engine)
    gold = gold_episodes(config, prepared)
    (planned,) = memory.planned(config, prepared.folder, machine, processes)
    speeds, source = _speeds(config, prepared.folder)
    evaluated = config.eval.trials * sum(len(exam.tasks) for exam in prepared.exams)
    return Preflight(
        config=config,
        folder=folder,
        verdict=sound,
        gold=gold,
        forecast=forecast.forecast(config, gold, speeds, evaluated),
        speeds=f"{source}; of one process alone" if processes > 1 else source,
        memory=planned,
        disk=_disk(config, memory.read_shape(prepared.folder), machine.item, folder),
        notes=notes,
    )


def as_json(found: Preflight) -> dict[str, Any]:
    """The plan as plain values, with what its parts come to."""
    plain = found.model_dump(mode="json")
    if found.forecast:
        plain["forecast"]["seconds"] = found.forecast.seconds
    if found.memory:
        plain["memory"] |= {"peak": found.memory.peak, "fits": found.memory.fits}
    return plain


def _served(config: TrainConfig) -> str:
    """Where the weights would be: a server is asked whether it is there and has the model, not how fast it is."""
    with contextlib.closing(Server(config.engine.tinker)) as server:
        return f"{server} ({config.engine.tinker.server}) has the model {server.connect()}; its time is not foretold"


def gold_episodes(config: TrainConfig, prepared: "Prepared") -> Episodes:
    """What the gold episodes of the first tasks come to."""
    domain, tasks = prepared.domain, itertools.islice(prepared.domain.stream("train", config.seed), PLAYED)
    played = asyncio.run(demonstrations(domain, tasks, prepared.format, config.limits, config.seed))
    return forecast.sizes(played, Vocabulary.load(prepared.folder / "tokenizer.json"))


def _sizes(episodes: Episodes, config: TrainConfig) -> str:
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
    slower = engine != config.engine and not memory.load_of(config).here
    how = " with PyTorch, where vLLM would sample and be faster" if slower else ""
    return speeds, f"were measured just now{how}; better ones: understudy bench {config.model}"


def _disk(config: TrainConfig, shape: memory.Shape, item: int, folder: Path) -> Disk:
    """Room for the checkpoints and the model, whose numbers have `item` bytes; too little is a ConfigError."""
    from understudy.train.loop import saved_after

    saved = sum(saved_after(config, step) for step in range(1, config.total + 1))
    count = min(saved, config.keep + 2) if config.keep else saved  # the best one, and one that is being written
    needed = count * memory.checkpoint_bytes(shape, config, item) + shape.parameters * 4
    there = next(path for path in folder.absolute().parents if path.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise ConfigError(
            f"{count} checkpoints and the model need {needed / GIB:.1f} GiB, and {there} has {free / GIB:.1f} left; "
            f"{'lower' if config.keep else 'set'} keep, raise save_every, or give --out another folder"
        )
    return Disk(needed=needed, checkpoints=count, free=free)


def _room(disk: Disk) -> str:
    needed, free = disk.needed / GIB, disk.free / GIB
    return f"disk: {needed:.2f} GiB for {disk.checkpoints} checkpoints and the model, of {free:.1f} that are free"
