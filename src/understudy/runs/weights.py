"""Resolve a name or path to model weights, and export them."""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.files import RETRY_HINT, atomic_folder, os_errors_as_config_errors
from understudy.core.messages import Message, ToolSpec
from understudy.core.records import Record
from understudy.engines.models import find_model
from understudy.engines.models.gguf_writer import GGUFType, find_architecture, write_gguf
from understudy.formats.jinja import compile_template, read_chat_template
from understudy.formats.tool_template import write_tool_template
from understudy.runs.agents import open_model
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.eval_spec import read_spec
from understudy.runs.storage.checkpoints import find_damage, last_checkpoint
from understudy.runs.targets import TARGET_KINDS, ResolvedTarget, detect_target, read_layer, resolve, split_arguments

_ALLOWED = "allowed: a run, a checkpoint, an evaluation of a model, the folder of a model, or a model's name"


class ModelWeights(Record):
    """A model's config, and the checkpoint that holds its weights."""

    name: str
    config: TrainConfig
    checkpoint: Path | None = None
    """None means the weights of `config.model`."""
    warnings: tuple[str, ...] = ()
    """Damaged checkpoints that were skipped."""


def resolve_weights(source: str, overrides: Sequence[str] = ()) -> ModelWeights:
    """Return the weights of a run, a checkpoint, an evaluation, a model's folder or a model's name.

    `overrides` are configs and `key=value` settings, as after TARGET. Raise ConfigError for a damaged checkpoint, a run
    without a checkpoint, a folder with adapters only, and a preset or domain.
    """
    target = detect_target(source)
    if target and target.kind == "evaluation" and (agent := read_spec(target.path).agent) != "model":
        raise ConfigError(f"{source} is an evaluation of the agent {agent}, which has no weights; {_ALLOWED}")
    if target and target.kind in ("run", "checkpoint", "evaluation"):
        return target_weights(resolve([source, *overrides]))
    if target and target.kind in ("preset", "domain"):
        raise ConfigError(f"{source} is {TARGET_KINDS[target.kind]}; {_ALLOWED}")
    path = Path(os.path.expanduser(source))
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise ConfigError(
            f"{source} holds adapters only; name the run, or export its full model: understudy export RUN"
        )
    names, settings = split_arguments(overrides)
    config = parse_config("", [f"model={source}", *settings], layers=[read_layer(name, source) for name in names])
    return ModelWeights(name=path.resolve().name if path.is_dir() else source, config=config)


def target_weights(resolved: ResolvedTarget) -> ModelWeights:
    """Return the weights of a resolved target: of its checkpoint if it has one, else those of its config's model.

    For a run it is the last complete checkpoint, for an evaluation the evaluated one. Raise ConfigError for a damaged
    checkpoint, and for a run without a checkpoint.
    """
    target, config = resolved.target, resolved.config
    match target.kind:
        case "run":
            checkpoint, damaged = last_checkpoint(target.path)
            if checkpoint is None:
                raise ConfigError(
                    f"{target.text} has no checkpoint yet; resume it by: understudy train --resume {target.text}"
                )
            return ModelWeights(name=resolved.name, config=config, checkpoint=checkpoint, warnings=tuple(damaged))
        case "checkpoint":
            validate_checkpoint(target.path, "name another one, or the run for its last complete one")
            return ModelWeights(name=f"{resolved.name}/{target.path.name}", config=config, checkpoint=target.path)
        case "evaluation" if evaluated := read_spec(target.path).checkpoint:
            validate_checkpoint(Path(evaluated), f"it was evaluated in {target.text}; give --model")
            return ModelWeights(name=resolved.name, config=config, checkpoint=Path(evaluated))
        case _:
            return ModelWeights(name=config.model, config=config)


def validate_checkpoint(checkpoint: Path, hint: str) -> None:
    """Raise ConfigError if a checkpoint is damaged or missing."""
    if damage := find_damage(checkpoint):
        raise ConfigError(f"checkpoint {checkpoint} is damaged or missing ({damage}); {hint}")


def export_gguf(weights: ModelWeights, out: Path, kind: GGUFType) -> None:
    """Write the model to a new GGUF file for llama.cpp and Ollama, with matrices of the type `kind`.

    Raise ConfigError if the file exists, or for a model that is not supported.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; give another --out")
    if out.suffix != ".gguf":
        raise ConfigError(f"--out is {out}; the name of a GGUF file ends with .gguf")
    find_architecture(find_model(weights.config.model))
    with os_errors_as_config_errors(out, RETRY_HINT):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
            export_model(weights, Path(folder) / "model")
            write_gguf(Path(folder) / "model", out, kind)


def export_model(weights: ModelWeights, out: Path, adapters_only: bool = False) -> None:
    """Write the model, or only its LoRA adapters, to a new folder for transformers, peft and vLLM.

    Raise ConfigError if the folder exists, or if `adapters_only` is set for a model without adapters.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; give another --out")
    if adapters_only and not weights.config.engine.uses_lora:
        find_model(weights.config.model)  # a name of nothing has its own error
        raise ConfigError(
            f"{weights.name} has no adapters: engine.finetune is {weights.config.engine.finetune!r}; leave out "
            "--adapter-only, or name a run that was trained with engine.finetune=lora"
        )
    engine, _ = open_model(weights.config, weights.checkpoint)
    with contextlib.closing(engine), os_errors_as_config_errors(out, RETRY_HINT):
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(out) as folder:
            engine.export(folder, merge_adapters=not adapters_only)
            if not adapters_only:
                write_tool_template(folder, weights.config.format)
            config = folder / ("adapter_config.json" if adapters_only else "config.json")
            for path in folder.iterdir():  # safetensors writes files that only their owner can read
                path.chmod(config.stat().st_mode)


def hides_tools(folder: Path) -> bool:
    """Return whether the chat template of a model's folder, if it has one, renders a prompt with a tool as one
    without."""
    messages = [Message(role="user", content="Hello.")]
    tools = [ToolSpec(name="find_order", description="Find it.", parameters={})]
    try:
        render = compile_template(folder, read_chat_template(folder))
        return render(messages, tools) == render(messages)
    except ConfigError:  # a base model has no template, and some templates fail on tools
        return True
