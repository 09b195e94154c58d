"""Plan the memory of a run for a GPU that this machine does not have.

Only the model's config.json is needed. Weights, tokenizer, tasks and users are not read, so a plan for a GPU checks
neither the domain nor the servers of a config, and it forecasts neither time nor disk space. The exception are token
limits of a preset that was made for another model: they are fitted as in a run if the model's files are here.
"""

from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.machine import planned_gpu
from understudy.engines.models import find_model_config
from understudy.runs.config import TrainConfig
from understudy.train.model_size import fit_preset_to_size
from understudy.train.planning.fitting import fit_shape_to_memory
from understudy.train.planning.memory import (
    GIB,
    MemoryPlan,
    ModelShape,
    format_memory_plan,
    model_shape_of_config,
    token_cache_bytes,
    weight_bytes,
)
from understudy.train.token_limits import fit_token_limits, has_foreign_limits


class GPUPlan(Record):
    """The memory plan of a run on a named GPU. Its text is the full report."""

    config: TrainConfig
    """The config with the settings that were fitted to the GPU."""
    gpu: str
    memory: MemoryPlan
    misfit: str = ""
    """A line that says why the run does not fit, or nothing."""
    vllm_cache_tokens: int = 0
    """Tokens of vLLM's KV cache: what its share of the memory leaves for them beside the weights. vLLM's own passes
    need some of it. 0 if PyTorch samples."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{self.config.model} on {self.gpu}: the {'run fits' if not self.misfit else 'plan of the memory'}"
        lines = [*([self.misfit] if self.misfit else []), head, format_memory_plan(self.memory), *self.notes]
        return "\n".join(lines)


def plan_for_gpu(config: TrainConfig, gpu: str, processes: int = 1) -> GPUPlan:
    """Return the plan for `processes` GPUs of a kind. Raise ConfigError if the GPU or the model is unknown."""
    if not isinstance(config.engine, LocalEngineConfig):
        raise ConfigError(f"engine.kind = {config.engine.kind!r}: only the memory of a local engine can be planned")
    planned_gpu(gpu, config.engine)  # a mistake in its name should not wait for the model
    folder = find_model_config(config.model)
    shape = model_shape_of_config(folder)
    (config, lines), line = fit_preset_to_size(config, shape.parameters), ""
    if (folder / "tokenizer.json").is_file() and any(folder.glob("*.safetensors")):
        config, line = fit_token_limits(config)
    elif has_foreign_limits(config):
        line = "the token limits are those of the preset; a run may raise them for this model, whose files are not here"
    plan = plan_shape_for_gpu(config, shape, gpu, processes)
    return plan.replace(notes=(*lines, *([line] if line else []), *plan.notes))


def plan_shape_for_gpu(config: TrainConfig, shape: ModelShape, gpu: str, processes: int = 1) -> GPUPlan:
    """Return the plan for a model of which only the shapes are known."""
    machine = planned_gpu(gpu, config.engine.export_engine_config)
    fitted = fit_shape_to_memory(config, shape, machine, processes)
    assert fitted.plan is not None  # the engine is local
    notes, tokens, misfit = [fitted.changes] if fitted.changes else [], 0, fitted.misfit
    if share := fitted.plan.vllm_bytes:
        engine = fitted.config.resolved_engine.export_engine_config
        weights, length = weight_bytes(shape, machine.dtype_bytes), engine.vllm.max_model_len
        tokens = max(0, (share - weights) // token_cache_bytes(shape, machine.dtype_bytes))
        notes.append(
            f"vLLM has {share / GIB:.1f} GiB: {weights / GIB:.1f} GiB of weights, and at most {tokens:,} tokens of KV "
            f"cache; an episode may have {length:,}"
        )
        if tokens < length and not misfit:
            misfit = (
                f"the run does not fit into the memory: vLLM has room for {tokens:,} tokens, and an episode may have "
                f"{length:,}; raise engine.vllm.gpu_memory_utilization (now {engine.vllm.gpu_memory_utilization:g})"
            )
    return GPUPlan(
        config=fitted.config, gpu=gpu, memory=fitted.plan, misfit=misfit, vllm_cache_tokens=tokens, notes=tuple(notes)
    )
