"""Fit the settings that only change memory and speed to the machine, unless the user sets them.

These are `engine.max_tokens_per_microbatch`, `engine.gradient_checkpointing` and `engine.max_num_seqs`. They change no
gradient, except by rounding. The fitted values are stored in the run's config, so a resumed run keeps them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.machine import Machine, detect_machine
from understudy.engines.models import find_model
from understudy.engines.models.folder import validate_trainable
from understudy.runs.config import TrainConfig
from understudy.runs.model_format import choose_format
from understudy.train.planning.memory import (
    GIB,
    MemoryPhase,
    MemoryPlan,
    ModelShape,
    explain_misfit,
    max_pass_sizes,
    plan_memory,
    read_model_shape,
)

MEMORY_SHARE = 0.75
"""Share of the memory that fitted settings plan to use. Runs have taken up to 30% more than planned."""
FITTED_KEYS = ("max_tokens_per_microbatch", "gradient_checkpointing", "max_num_seqs")
MIN_TOKENS_PER_MICROBATCH = 1024
"""Gradient checkpointing is preferred to microbatches of fewer tokens, which share fewer prompts."""


@dataclass(frozen=True)
class FittedRun:
    """A config whose settings were fitted to the machine."""

    config: TrainConfig
    plan: MemoryPlan | None
    """The memory plan; None if the engine is not `local`."""
    changes: str = ""
    """A line that says what was fitted, or nothing."""

    @property
    def misfit(self) -> str:
        """A line that says why the run does not fit, or nothing."""
        engine = self.config.engine
        if self.plan is None or not isinstance(engine, LocalEngineConfig):
            return ""
        return explain_misfit(self.plan, engine, _episode_tokens(self.config))


def fit_to_machine(config: TrainConfig, processes: int = 1) -> FittedRun:
    """Do the same as `fit_to_memory` for this machine. Raise ConfigError if it lacks the device or the model."""
    if not isinstance(config.engine, LocalEngineConfig):
        return FittedRun(config, None)
    return fit_to_memory(config, find_model(config.model), detect_machine(config.engine), processes)


def fit_to_memory(config: TrainConfig, folder: Path, machine: Machine, processes: int = 1) -> FittedRun:
    """Return the config with settings that fit into the machine's memory. `folder` is that of the model.

    Settings that the user gave, in a file or on the command line, are not changed. First the microbatch is halved,
    then gradient checkpointing is turned on; then fewer sequences are sampled at once.
    """
    if not isinstance(config.engine, LocalEngineConfig):
        return FittedRun(config, None)
    from understudy.train.planning.layer_memory import measure_shape  # imports torch

    validate_trainable(folder)
    shape = measure_shape(read_model_shape(folder), folder, config.engine, _episode_tokens(config), machine)
    if config.engine.trainable_layers and choose_format(folder, config).trained_tokens:
        shape = shape.replace(trains_rows=True)
    return fit_shape_to_memory(config, shape, machine, processes)


def fit_shape_to_memory(config: TrainConfig, shape: ModelShape, machine: Machine, processes: int = 1) -> FittedRun:
    """Do the same as `fit_to_memory` for a model of which only the shapes are known. The engine is `local`.

    vLLM's share of a GPU is exact, so only a share of the rest is left free.
    """
    engine = configured = config.engine.export_engine_config

    def plan(candidate: LocalEngineConfig) -> MemoryPlan:
        sizes = max_pass_sizes(config.replace(engine=candidate), processes)
        return plan_memory(shape, candidate, sizes, machine, processes)

    def fits(candidate: LocalEngineConfig, phase: MemoryPhase) -> bool:
        planned = plan(candidate)
        available = MEMORY_SHARE * (machine.memory_total - planned.vllm_bytes)
        return planned.required_bytes_in(phase) - planned.vllm_bytes <= available

    for engine in _training_candidates(configured, _episode_tokens(config)):
        if fits(engine, "training"):
            break
    is_given = "max_num_seqs" in configured.model_fields_set
    while not is_given and engine.max_num_seqs > 1 and not fits(engine, "sampling"):
        engine = engine.replace(max_num_seqs=engine.max_num_seqs // 2)
    engine = engine.replace(**{key: getattr(engine, key) for key in FITTED_KEYS})  # set now, so fitted only once
    return FittedRun(config.replace(engine=engine), plan(engine), _describe_changes(config, engine, machine))


def _episode_tokens(config: TrainConfig) -> int:
    """Return the largest number of tokens of an episode."""
    return config.limits.max_episode_tokens + config.sampling.max_response_tokens


def _training_candidates(config: LocalEngineConfig, longest: int) -> Iterator[LocalEngineConfig]:
    """Yield configs from the fastest to the one that needs least memory. `longest` is the tokens of an episode.

    A microbatch that is not set has room for two episodes if possible, because episodes in microbatches of their own
    share no prompt: eight episodes of 3,110 tokens took 15.4 s at 2,048 tokens, and 3.8 s at 4,096. So gradient
    checkpointing is tried before a microbatch with room for less than one.
    """
    sizes = [config.max_tokens_per_microbatch]
    if "max_tokens_per_microbatch" not in config.model_fields_set:
        while sizes[0] < 2 * longest:
            sizes[0] *= 2
        while sizes[-1] > max(MIN_TOKENS_PER_MICROBATCH, longest):
            sizes.append(sizes[-1] // 2)
    if not config.gradient_checkpointing:
        is_set = "gradient_checkpointing" in config.model_fields_set
        for size in sizes if is_set else [size for size in sizes if size >= longest] or sizes:
            yield config.replace(max_tokens_per_microbatch=size)
        if is_set:
            return
    for size in sizes:
        yield config.replace(max_tokens_per_microbatch=size, gradient_checkpointing=True)


def _describe_changes(config: TrainConfig, engine: LocalEngineConfig, machine: Machine) -> str:
    changed = [key for key in FITTED_KEYS if getattr(engine, key) != getattr(config.engine, key)]
    if not changed:
        return ""
    values = ", ".join(f"engine.{key} = {str(getattr(engine, key)).lower()}" for key in changed)
    longest = f"limits.max_episode_tokens = {config.limits.max_episode_tokens}"
    if changed == ["max_tokens_per_microbatch"] and engine.max_tokens_per_microbatch >= 2 * _episode_tokens(config):
        return f"fitted to {longest}, so that episodes share their prompt: {values}"
    return (
        f"fitted to {machine.memory_total / GIB:.1f} GiB of memory: {values}. An episode may have {longest} tokens; a "
        "lower limit allows a faster run"
    )
