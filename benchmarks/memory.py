"""Compare the memory plan with measurements. Each case runs in its own process: sampling, two updates, a checkpoint.

    python benchmarks/memory.py                                          # a tiny model, seconds
    python benchmarks/memory.py --model smollm2-135m --longest 384 --microbatch 768
    python benchmarks/memory.py --shapes --longest 768 --live 4 --group 4   # a large vocabulary, padded rows, experts
    python benchmarks/memory.py --model PATH --device cuda --longest 4096 --microbatch 8192

All episodes have the longest length of the plan: a prompt that a group shares, then replies and observations in turns.
Both columns exclude the memory that the process used before the model was loaded.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from understudy.algorithms.config import LossConfig
from understudy.engines.interface import Engine, SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.machine import detect_machine, peak_memory_bytes
from understudy.engines.models import find_model, make_tiny_model
from understudy.train.planning.memory import (
    GIB,
    MaxPassSizes,
    format_measured_peak,
    format_memory_plan,
    plan_memory,
    read_model_shape,
)

TURNS = 3
FEW_PRIMITIVES = "48"
"""Limit of oneDNN's cache, in measured and planned memory. Only the many shapes of a long run fill the one of a run."""
CASES = {
    "full": {"finetune": "full"},
    "full, embeddings": {"finetune": "full", "train_embeddings": True},
    "full, checkpointing": {"finetune": "full", "gradient_checkpointing": True},
    "lora": {"finetune": "lora"},
    "lora, checkpointing": {"finetune": "lora", "gradient_checkpointing": True},
}
_SIZES = {
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
SHAPES: dict[str, dict[str, Any]] = {
    "large vocabulary": {"model_type": "qwen2", "vocab_size": 150_000},
    "caps": {"model_type": "gemma2", "vocab_size": 150_000, "sliding_window": 256, "query_pre_attn_scalar": 64},
    "windows": {"model_type": "gemma3_text", "vocab_size": 150_000, "sliding_window": 256},
    "linear attention": {
        "model_type": "qwen3_5_text",
        "vocab_size": 32_000,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    },
    "convolutions": {
        "model_type": "lfm2",
        "vocab_size": 32_000,
        "layer_types": (["conv"] * 3 + ["full_attention"]) * 2,
    },
    "Mamba and attention": {
        "model_type": "falcon_h1",
        "vocab_size": 32_000,
        "mamba_d_head": 64,
        "mamba_n_heads": 16,
        "mamba_d_ssm": 1024,
        "mamba_d_state": 64,
    },
    "partial rotation": {"model_type": "stablelm", "vocab_size": 32_000},
    "experts": {
        "model_type": "qwen3_moe",
        "vocab_size": 32_000,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 384,
    },
}
"""Models of random weights with these keys and `_SIZES`."""


def make_random_model(name: str, folder: Path) -> Path:
    """Write the model of a shape to a folder, without a tokenizer, and return the folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**_SIZES | SHAPES[name], bos_token_id=0, eos_token_id=1, pad_token_id=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Measure one case in this process. Return the planned bytes and the peak."""
    from understudy.engines.local.engine import LocalEngine
    from understudy.train.planning.layer_memory import measure_shape

    settings = {"device": arguments.device, "dtype": arguments.dtype, "sampler": "torch"}
    settings |= {"max_num_seqs": arguments.live, "max_tokens_per_microbatch": arguments.microbatch}
    config = LocalEngineConfig.model_validate(settings | CASES[arguments.case])
    load = MaxPassSizes(
        max_episode_tokens=arguments.longest,
        prompt_tokens=arguments.longest // 2,
        max_turn_tokens=arguments.longest // 4 // TURNS,
        group_size=arguments.group,
        concurrent_episodes=arguments.live,
        has_reference=False,
    )
    folder = Path(arguments.model)
    if not (folder / "config.json").is_file():  # `find_model` refuses a random model, which has no tokenizer
        folder = find_model(arguments.model)
    machine = detect_machine(config)
    shape = measure_shape(read_model_shape(folder), folder, config, load.max_episode_tokens, machine)
    planned = plan_memory(shape, config, load, machine)
    asyncio.run(step(LocalEngine(folder, config), load))
    peak = peak_memory_bytes(machine.device)
    if arguments.verbose:
        print(f"{format_memory_plan(planned)}\n{format_measured_peak(planned, peak)}", file=sys.stderr)
    return {"planned": planned.peak_bytes - machine.memory_used, "measured": peak - machine.memory_used}


async def step(engine: Engine, load: MaxPassSizes) -> None:
    """Sample episodes of the longest length, take two updates on all of them, and write a checkpoint."""
    from understudy.algorithms.advantages import token_weights
    from understudy.algorithms.batch import collate
    from understudy.core.messages import Message
    from understudy.core.tasks import Score
    from understudy.core.trajectory import Trajectory

    sampling = SamplingParams(
        max_response_tokens=(load.max_episode_tokens - load.prompt_tokens) // TURNS - load.max_turn_tokens
    )

    async def play(row: int) -> Trajectory:
        episode, said = Trajectory("t", score=Score(reward=float(row % 2))), random.Random(row)
        episode.observe([], random.Random(row // load.group_size).choices(range(200), k=load.prompt_tokens))
        for turn in range(TURNS):
            episode.observe([], said.choices(range(200), k=load.max_turn_tokens))
            done = await engine.sample(episode.tokens, sampling, row * TURNS + turn)
            episode.act(Message(role="assistant"), done.tokens, done.logprobs)
        return episode

    batch = collate(await asyncio.gather(*(play(row) for row in range(load.concurrent_episodes))))
    weighed = token_weights(batch.mask, "token_mean") * (batch.rewards[:, None] - 0.5)
    for _ in range(2):  # the optimizer has moments only from the second update on
        await engine.update([batch.replace(advantages=weighed)], LossConfig(), 1e-6)
    with tempfile.TemporaryDirectory() as folder:
        engine.save(Path(folder))


def row_of(case: str, arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    """Measure one row of the table, in GiB."""
    names = ("device", "dtype", "longest", "microbatch", "live", "group")
    settings = [f"--{name}={getattr(arguments, name)}" for name in names]
    settings += [f"--case={case}", f"--model={model}", *(["--verbose"] if arguments.verbose else [])]
    few = os.environ | {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": FEW_PRIMITIVES, "LRU_CACHE_CAPACITY": FEW_PRIMITIVES}
    command = [sys.executable, __file__, *settings]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=few)
    found = json.loads(done.stdout.splitlines()[-1])
    planned, measured = found["planned"], found["measured"]
    return {"case": case, "planned GiB": planned / GIB, "measured GiB": measured / GIB}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="", help="model name or folder (default: random weights, 4 layers of size 256)"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="bfloat16, float32 or auto")
    parser.add_argument("--longest", type=int, default=768, help="tokens per episode (default: %(default)s)")
    parser.add_argument(
        "--microbatch", type=int, default=2048, help="maximum tokens per microbatch (default: %(default)s)"
    )
    parser.add_argument("--live", type=int, default=8, help="parallel episodes (default: %(default)s)")
    parser.add_argument("--group", type=int, default=8, help="episodes per task (default: %(default)s)")
    parser.add_argument(
        "--shapes", nargs="*", choices=SHAPES, help="measure random models of these architectures (default: of all)"
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), help=f"any of: {'; '.join(CASES)} (default: all)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help="print each plan in full")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    if arguments.case:
        return print(json.dumps(measure(arguments)))
    rows = []
    if not arguments.json:
        print("| case | planned GiB | measured GiB | difference |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for shape in [""] if arguments.shapes is None else arguments.shapes or SHAPES:
            model = arguments.model
            if shape:
                model = str(make_random_model(shape, Path(folder, shape)))
            elif not model:
                model = str(make_tiny_model(Path(folder), hidden_size=256, num_layers=4))
            for case in arguments.cases:
                rows.append(row := row_of(case, arguments, model) | ({"shape": shape} if shape else {}))
                if not arguments.json:
                    planned, measured = row["planned GiB"], row["measured GiB"]
                    name = f"{shape}: {case}" if shape else case
                    print(f"| {name} | {planned:.3f} | {measured:.3f} | {planned / measured - 1:+.0%} |", flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
