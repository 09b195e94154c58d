"""From a command line to a training run: its config, its folder, its live view, and its result."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy import bench, results
from understudy.config import TrainConfig
from understudy.crew import ALONE, Crew, Place, take_place
from understudy.domains.base import names
from understudy.engines.local.config import Finetune
from understudy.errors import ConfigError, TaskError, nearest
from understudy.hold import held
from understudy.live import Live
from understudy.models import find_model
from understudy.players import not_installed
from understudy.preflight import Preflight, preflight
from understudy.processes import ENDED, SHADOWS, leash, run_together
from understudy.run import ENVIRONMENT, Run, free_folder, read_config, refuse_taken
from understudy.settings import dump, load, parse, presets
from understudy.shadow import shadow
from understudy.weights import config_of, names_file

if TYPE_CHECKING:
    from understudy.train.evaluation import Tables
    from understudy.train.state import Report


def train(settings: Sequence[str] = (), out: Path | None = None, resume: Path | None = None) -> str:
    """Train in a new folder, or go on in an old one; the result table as text, which the folder keeps as well.

    Of the processes of a crew the first one does; the others, who have nothing to say, help it.
    """
    place = take_place()
    if place.size > 1:
        leash()
    with _opened(settings, out, resume) if place.rank == 0 else contextlib.nullcontext() as run:
        return _train(run, ALONE) if run and place.size == 1 else _train_in_crew(run, place)


@contextlib.contextmanager
def _opened(settings: Sequence[str], out: Path | None, resume: Path | None) -> Iterator[Run]:
    """`open_run`, with its folder held for as long as it is trained."""
    with contextlib.ExitStack() as stack:
        if resume is not None and resume.is_dir():
            stack.enter_context(held(resume))  # before what is half-written in it is dropped
        run = open_run(settings, out, resume)
        if resume is None:
            stack.enter_context(held(run.folder))
        yield run


def _train_in_crew(run: Run | None, place: Place) -> str:
    """Train with the others; `run` is the first one's, who opened it."""
    crew = _join(place)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))  # so that the terminal is left as it was
    run = crew.gather(run)[0]
    assert run is not None
    text = _help(run, crew) if crew.rank else _train(run, crew)
    crew.close()
    return text


def train_together(
    processes: int, settings: Sequence[str] = (), out: Path | None = None, resume: Path | None = None
) -> int:
    """The same by several processes of this machine, which are started here; the exit status of the first."""
    if take_place().size > 1:
        raise ConfigError(f"--processes {processes}: this is a process of several already; leave the option out")
    if resume is None:
        read(settings)  # a mistake in them is said here, once
    folders = [text for name, path in (("--out", out), ("--resume", resume)) if path for text in (name, str(path))]
    return run_together([sys.executable, "-m", "understudy", "train", *settings, *folders], processes)


def _join(place: Place) -> Crew:
    try:
        from understudy.engines.local.ranks import Ranks
    except ModuleNotFoundError as e:
        raise not_installed(e, "training") from e
    return Ranks(place)


def _help(run: Run, crew: Crew) -> str:
    """Do what the first process of the crew does, without a trace of it."""
    from understudy.train import train as run_all

    with tempfile.TemporaryDirectory(prefix="understudy-", dir=os.environ.get(SHADOWS)) as folder:
        try:
            run_all(run.config, shadow(run, Path(folder, "run")), lambda *_: None, crew)
        except KeyboardInterrupt:
            sys.exit(130)
    return ""


def _train(run: Run, crew: Crew) -> str:
    try:
        run_all = _trainer(run.config)
        with Live(run.config.total, str(run.folder), done=run.step) as live:
            for warning in run.warnings:
                live.note(warning)
            tables = run_all(run.config, run, live.report, crew)
    except ModuleNotFoundError as e:
        run.withdraw()
        raise not_installed(e, "training") from e
    except (ConfigError, TaskError) as e:
        if not isinstance(e.__cause__, OSError):  # what could not be written is gone on with, once there is room
            run.withdraw()
        raise
    results.keep(run, tables)
    return f"{results.summary(tables)}\n\nEverything is in {run.folder}; look at it by: understudy view {run.folder}"


def _trainer(config: TrainConfig) -> "Callable[[TrainConfig, Run, Report, Crew], Tables]":
    """Who trains; either loads torch, which a mistake in the settings need not wait for."""
    if config.engine.kind == "skyrl":
        from understudy.integrations.skyrl.train import train as run_on_ray

        return run_on_ray
    from understudy.train import train as run_here

    return run_here


def dry_run(
    settings: Sequence[str] = (), out: Path | None = None, resume: Path | None = None, processes: int = 1
) -> Preflight:
    """What `train` would do with these settings; nothing is written."""
    if resume is not None:
        raise ConfigError(f"a dry run is of a new run: leave out --resume, or name {resume} as the config")
    name, config = read(settings)
    if out is not None:
        refuse_taken(out)
    try:
        if config.engine.kind == "skyrl":
            from understudy.integrations.skyrl.train import dry_run as on_ray

            return on_ray(config, out or free_folder(name))
        return preflight(config, out or free_folder(name), processes)
    except ModuleNotFoundError as e:
        raise not_installed(e, "training") from e


def measure(model: str, settings: Sequence[str] = (), quick: bool = False) -> bench.Speeds:
    """This machine's speeds with a model, which are kept for forecasts unless they are `quick` ones."""
    config = parse(TrainConfig, "", [*([f"model={model}"] if model else []), *settings])
    engine, size = config.engine, bench.QUICK if quick else bench.Size()
    if engine.kind != "local":
        raise ConfigError(f"engine.kind = {engine.kind!r}: what is measured is this machine; leave it out")
    ways: tuple[Finetune, ...] = ("qlora",) if engine.finetune == "qlora" else ("full", "lora")
    try:
        speeds = bench.measure(find_model(config.model), config.fitted, size, ways, config.model)
    except ModuleNotFoundError as e:
        raise not_installed(e, "measuring") from e
    if not quick:
        bench.keep(speeds, engine)
    return speeds


def certify(model: str, settings: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """The certificate of a model, as plain values and as text."""
    config = parse(TrainConfig, "", [f"model={model}", *settings])
    try:
        from understudy import certify as proof
    except ModuleNotFoundError as e:
        raise not_installed(e, "certification") from e
    certificate = asyncio.run(proof.certify(config))
    return proof.as_json(certificate), proof.as_text(certificate)


def open_run(settings: Sequence[str], out: Path | None, resume: Path | None) -> Run:
    """A new run, or one to go on with, whose own settings are then changed only in what changes none of its numbers."""
    if resume is None:
        name, config = read(settings)
        return Run.create(out or free_folder(name), config)
    if out is not None:
        raise ConfigError("give --resume a run to go on with, or --out a folder for a new one, not both")
    if not settings:
        return Run.resume(resume)
    source = resume / "config.toml" if "=" in settings[0] else settings[0]
    read_config(resume)  # which says so where it is no run
    return Run.resume(resume, load(TrainConfig, source, [text for text in settings if "=" in text]))


def read(settings: Sequence[str]) -> tuple[str, TrainConfig]:
    """A config and its name, from `[WHAT] [key=value]…`; without `WHAT` it is the default preset.

    `WHAT` is a preset, a config's file, a run, whose config it is, or a domain, which is the whole of that with every
    key's default. The default preset is a slice of one domain: `domain=` of another one is the whole of that, too.
    """
    if settings and "=" not in settings[0]:
        _refuse_unknown(settings[0])
        return _name(settings[0]), config_of(settings[0], settings[1:])
    domain = parse(TrainConfig, "", settings).domain
    if domain != load(TrainConfig).domain:
        return _name(domain), parse(TrainConfig, "", settings)
    return "default", load(TrainConfig, "default", settings)


def _refuse_unknown(what: str) -> None:
    """What names no config and no domain is a `ConfigError`, before there is a run of it."""
    folder, known = Path(what), [*presets(), *names()]
    if what in known or names_file(what) or ":" in what or (folder / "config.toml").is_file():
        return
    if folder.is_dir():
        raise ConfigError(f"{what} is not a run: it has no config.toml")
    raise ConfigError(f"unknown preset or domain {nearest(what, known)}, or the path of a .toml file or of a run")


def _name(what: str) -> str:
    """What runs are called after: the run that a config is of, its file, or the domain."""
    path = Path(what)
    of_a_run = path.name == "config.toml" and (path.parent / ENVIRONMENT).is_file()
    if of_a_run or (path / "config.toml").is_file():
        return (path.parent if of_a_run else path).resolve().name
    return re.sub(r"[^\w.]+", "-", what).strip("-") if ":" in what else path.stem


def keys(settings: Sequence[str]) -> str:
    """The config of these settings, with every key and what it means."""
    return dump(read(settings)[1])
