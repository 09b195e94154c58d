"""Which weights: a run's last checkpoint, one of its checkpoints, a folder, or a model's name; and their export."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from understudy.checkpoints import damage, last_checkpoint
from understudy.config import TrainConfig
from understudy.disk import AGAIN, whole_folder, writing
from understudy.domains.base import names
from understudy.errors import ConfigError
from understudy.players import open_model
from understudy.records import Record
from understudy.settings import load, parse, presets


class Weights(Record):
    """A model, the checkpoint of a run that it takes its weights from, and the run's config."""

    name: str
    config: TrainConfig
    checkpoint: Path | None = None
    warnings: tuple[str, ...] = ()
    """Checkpoints that are damaged, and were passed over."""


def config_of(what: str, settings: Sequence[str] = ()) -> TrainConfig:
    """A config for the name of a domain or a preset, for a config's file or a run's folder."""
    if Path(what, "config.toml").is_file():
        return load(TrainConfig, Path(what, "config.toml"), settings)
    if what in presets() or names_file(what):
        return load(TrainConfig, what, settings)
    return parse(TrainConfig, "", [f"domain={what}", *settings])


def names_file(what: str) -> bool:
    """Whether a config's file is named, one that is there or one that should be; a domain's name comes before it."""
    there = Path(what).is_file() and what not in names()
    return there or (what.endswith(".toml") and ":" not in what)


def find_weights(what: str, settings: Sequence[str] = ()) -> Weights:
    """The weights that `what` names: RUN, RUN/checkpoints/STEP, a model's folder, or a model's name.

    `settings` are `key=value` overrides of the run's config. Raises ConfigError for a checkpoint that is damaged, and
    for a run without one.
    """
    path = Path(what).expanduser()
    if (path / "config.toml").is_file():
        checkpoint, damaged = last_checkpoint(path)
        if checkpoint is None:
            raise ConfigError(f"{what} has no checkpoint yet; go on with it by: understudy train --resume {what}")
        config = load(TrainConfig, path / "config.toml", settings)
        return Weights(name=path.resolve().name, config=config, checkpoint=checkpoint, warnings=tuple(damaged))
    if (path.parent.parent / "config.toml").is_file() and path.parent.name == "checkpoints":
        return _of_checkpoint(path, settings)
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise ConfigError(
            f"{what} holds adapters only; name the run instead, or export it whole: understudy export RUN"
        )
    config = parse(TrainConfig, "", [f"model={what}", *settings])
    return Weights(name=path.resolve().name if path.is_dir() else what, config=config)


def last_weights(what: str) -> Path | None:
    """The last whole checkpoint where `what` is a run; None where it is none, or has none yet."""
    return last_checkpoint(Path(what))[0] if Path(what, "config.toml").is_file() else None


def _of_checkpoint(path: Path, settings: Sequence[str]) -> Weights:
    run = path.parent.parent
    if fault := damage(path):
        raise ConfigError(
            f"checkpoint {path} is damaged ({fault}); name another one, or the run for its last whole one"
        )
    config = load(TrainConfig, run / "config.toml", settings)
    return Weights(name=f"{run.resolve().name}/{path.name}", config=config, checkpoint=path)


def export(weights: Weights, out: Path, adapter: bool = False) -> None:
    """Write a folder as transformers, peft and vLLM read it: the whole model, or of LoRA the adapters alone.

    A folder that is there is never written to.
    """
    if out.exists():
        raise ConfigError(f"{out} is there already; give another --out")
    if adapter and not weights.config.engine.adapters:
        raise ConfigError(f"{weights.name} has no adapters: engine.finetune is {weights.config.engine.finetune!r}")
    engine, _ = open_model(weights.config, weights.checkpoint)
    with contextlib.closing(engine), writing(out, AGAIN):
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(out) as folder:
            engine.export(folder, merged=not adapter)
