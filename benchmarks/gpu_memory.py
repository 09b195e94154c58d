"""Print how many GPUs a run with long episodes needs: the tables of docs/gpus.md and docs/archive/memory.md.

Nothing is measured.

    python benchmarks/gpu_memory.py

Each row is the plan of `understudy train --dry-run --plan-for GPU`. The sizes are those of the models' config.json.
"""

import itertools
import json
import tempfile
from functools import cache
from pathlib import Path

from understudy.runs.config import parse_config
from understudy.train.planning.gpu import GPUPlan, plan_shape_for_gpu
from understudy.train.planning.memory import GIB, ModelShape, model_shape_of_config

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
MODELS = {
    "Qwen2.5-3B": ("qwen2", 2048, 11008, 36, 16, 2, 151936, True),
    "Qwen3-4B": ("qwen3", 2560, 9728, 36, 32, 8, 151936, True),
    "Qwen2.5-7B": ("qwen2", 3584, 18944, 28, 28, 4, 152064, False),
    "Llama-3.1-8B": ("llama", 4096, 14336, 32, 32, 8, 128256, False),
}
"""The type of each model and its `SIZES`. Heads have 128 numbers."""
EPISODE = ("limits.max_episode_tokens=32256", "sampling.max_response_tokens=512")
METHODS = {
    "full": ("engine.finetune=full", "engine.sampler=vllm", "engine.sharding=fsdp"),
    "LoRA": ("engine.finetune=lora", "engine.sampler=vllm"),
    "QLoRA": ("engine.finetune=qlora", "engine.sampler=torch"),
}
GPUS = ("h100", "h200")
COUNTS = (1, 2, 4, 8)
STATE = ("weights", "adapters", "master weights", "gradients", "optimizer moments")
COLUMNS = (
    "model",
    "training",
    "GPUs",
    "weights and state",
    "vLLM",
    "sampling",
    "update",
    "peak",
    "tokens of a microbatch",
    "episodes sampled at once",
)
MAX_SHARE = 0.9
"""Share of a GPU that the plan of a row may take."""


@cache
def shape_of(model: str) -> ModelShape:
    """Return the shapes of a model of `MODELS`."""
    kind, *sizes = MODELS[model]
    config = {"model_type": kind, "head_dim": 128, **dict(zip(SIZES, sizes, strict=True))}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        return model_shape_of_config(Path(folder))


def smallest_plan(model: str, method: str, gpu: str) -> GPUPlan:
    """Return the plan for the least number of GPUs that suffices. Raise ValueError if none does."""
    config = parse_config("", [*EPISODE, *METHODS[method]])
    for count in COUNTS if method == "full" else (1,):
        plan = plan_shape_for_gpu(config, shape_of(model), gpu, count)
        if not plan.misfit and plan.memory.peak_bytes <= MAX_SHARE * plan.memory.device_bytes:
            return plan
    raise ValueError(f"{model}, {method}: does not fit on {gpu}")


def row_of(model: str, method: str, gpu: str) -> str:
    """Return one row of the table, in GiB for each GPU."""
    plan = smallest_plan(model, method, gpu)
    memory, engine = plan.memory, plan.config.engine.export_engine_config
    state = sum(part.num_bytes for part in memory.parts if part.name in STATE)
    sizes = (state, memory.vllm_bytes, memory.bytes_in("sampling"), memory.bytes_in("training"), memory.peak_bytes)
    episodes = engine.max_num_seqs
    if memory.vllm_bytes:
        longest = plan.config.limits.max_episode_tokens + plan.config.sampling.max_response_tokens
        episodes = plan.vllm_cache_tokens // longest
    cells = [model, method, f"{memory.processes} {gpu.upper()}", *(f"{size / GIB:.1f}" for size in sizes)]
    cells[-1] += f" of {memory.device_bytes / GIB:.0f}"
    tokens = f"{engine.max_tokens_per_microbatch:,}" + ("" if engine.gradient_checkpointing else ", all stored")
    return f"| {' | '.join((*cells, tokens, str(episodes)))} |"


def table() -> str:
    """Return the table of docs/archive/memory.md."""
    rows = [row_of(model, method, gpu) for model in MODELS for method in METHODS for gpu in GPUS]
    return "\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *rows])


def summary() -> str:
    """Return the table of docs/gpus.md: the number of GPUs, and the peak of each."""
    rows = ["| model | training | H100 or A100, 80 GB | H200 |", "|---|---|---|---|"]
    for model, method in itertools.product(MODELS, METHODS):
        plans = [smallest_plan(model, method, gpu).memory for gpu in GPUS]
        cells = [f"{plan.processes}, {plan.peak_bytes / GIB:.0f} GiB" for plan in plans]
        rows.append(f"| {model} | {method} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(summary(), table(), sep="\n\n")
