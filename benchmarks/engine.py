"""Measure a step of the local engine: time, tokens per second and memory, with and without shared prompts.

    python benchmarks/engine.py                                # on a GPU: prompts of 4,000 tokens in groups of 8
    python benchmarks/engine.py --shape 3b --finetune lora     # random weights in the shape of a 3B model
    python benchmarks/engine.py --device cpu                   # fewer and shorter prompts
    python benchmarks/engine.py --peers trl                    # also TRL's GRPOTrainer, in its own environment
    python benchmarks/engine.py --sampler vllm --peers trl-vllm unsloth        # all sample with vLLM; needs a GPU

Each row of the table runs in its own process: one warm-up step, then `--steps`, of which the median is shown. Without
sharing, each prompt begins with a different token, so that no two rows have a common prefix. "computed" is the number
of an update's tokens that the model computed, "trained" the number of tokens in the loss. Memory is the peak of the
process on a CPU and of its tensors on a GPU, beside the forecast of the memory plan.

TRL's weights have `--dtype`, and so have its moments in full fine-tuning. This package keeps both in float32. TRL's
prompts are texts of about as many tokens. In full fine-tuning TRL trains the embeddings too, and this package does with
`--embeddings`. With `--sampler vllm` the peak is without vLLM, which takes 40% of the GPU.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import trl_step
from grpo_step import SPARE_TOKENS, prompts
from peer import NAMES, PEERS
from shapes import SHAPES, write_model

from understudy.algorithms.advantages import token_weights
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.machine import detect_machine, peak_memory_bytes
from understudy.engines.local.model import choose_device, choose_dtype
from understudy.engines.models import find_model
from understudy.train.planning.memory import GIB, MaxPassSizes, explain_misfit, plan_memory, read_model_shape

SIZES = {"cuda": {"prompt": 4000, "reply": 256, "groups": 4}, "cpu": {"prompt": 256, "reply": 16, "groups": 1}}
HEAD = (
    "finetune",
    "prompts",
    "step, s",
    "sampling, s",
    "update, s",
    "sampled tokens/s",
    "computed tokens/s",
    "trained tokens/s",
    "peak GiB",
    "planned GiB",
)


async def sampled(engine: LocalEngine, arguments: argparse.Namespace, step: int) -> Batch:
    """Return groups of replies to prompts of random tokens."""
    sampling = SamplingParams(max_response_tokens=arguments.reply)

    async def reply(row: int) -> Trajectory:
        prompt = random.Random(f"{step}/{row // arguments.group}").choices(range(200), k=arguments.prompt)
        if not arguments.share:
            prompt[0] = row % 200
        episode = Trajectory("", score=Score(reward=float(row % 2)))
        episode.observe([], prompt)
        done = await engine.sample(prompt, sampling, 1000 * step + row)
        episode.act(Message(role="assistant"), done.tokens, done.logprobs)
        return episode

    rows = range(arguments.groups * arguments.group)
    return collate(await asyncio.gather(*map(reply, rows)), [row // arguments.group for row in rows])


async def steps(engine: LocalEngine, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Return the measurements of each step except the first."""
    found = []
    for step in range(arguments.steps + 1):
        started = time.perf_counter()
        batch = await sampled(engine, arguments, step)
        between = time.perf_counter()
        weighed = token_weights(batch.mask, "token_mean") * (batch.rewards[:, None] - 0.5)
        metrics = await engine.update([batch.replace(advantages=weighed)], LossConfig(), 1e-6)
        done = time.perf_counter()
        trained = int(batch.mask.sum())
        found.append(
            {
                "step, s": done - started,
                "sampling, s": between - started,
                "update, s": done - between,
                "sampled tokens/s": trained / (between - started),
                "computed tokens/s": metrics["computed_tokens"] / (done - between),
                "trained tokens/s": trained / (done - between),
            }
        )
    return found[1:]


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Measure one row of the table in this process."""
    settings = {"device": arguments.device, "dtype": arguments.dtype, "sampler": arguments.sampler}
    settings |= {"finetune": arguments.finetune[0], "gradient_checkpointing": arguments.checkpointing}
    settings |= {"train_embeddings": arguments.embeddings and arguments.finetune[0] == "full"}
    settings |= {"vllm": {"python": arguments.python, "max_model_len": arguments.prompt + arguments.reply + 1}}
    rows = arguments.groups * arguments.group
    laid_down = rows * arguments.reply + (arguments.groups if arguments.share else rows) * arguments.prompt
    settings |= {"max_num_seqs": rows, "max_tokens_per_microbatch": min(arguments.microbatch, laid_down)}
    config, folder = LocalEngineConfig.model_validate(settings), find_model_or_folder(arguments.model)
    machine = detect_machine(config)
    shared = arguments.prompt if arguments.share else 0
    longest = arguments.prompt + arguments.reply
    load = MaxPassSizes(
        max_episode_tokens=longest,
        prompt_tokens=shared,
        max_turn_tokens=1,
        group_size=arguments.group,
        concurrent_episodes=rows,
        has_reference=False,
        samples_locally=config.sampler == "torch",
    )
    plan = plan_memory(read_model_shape(folder), config, load, machine)
    if misfit := explain_misfit(plan, config, longest):
        raise ConfigError(misfit)
    with contextlib.closing(LocalEngine(folder, config)) as engine:
        found = asyncio.run(steps(engine, arguments))
    medians = {name: statistics.median(step[name] for step in found) for name in found[0]}
    planned = plan.peak_bytes - sum(part.num_bytes for part in plan.parts if part.name == "vLLM")  # another process
    return medians | {"peak GiB": peak_memory_bytes(machine.device) / GIB, "planned GiB": planned / GIB}


def find_model_or_folder(name: str) -> Path:
    """Return the folder of a model. A folder is not validated, because random weights have no tokenizer."""
    return Path(name) if Path(name).is_dir() else find_model(name)


def of_peer(peer: str, arguments: argparse.Namespace, model: Path, finetune: str) -> dict[str, float | None]:
    """Measure a peer's row of the table: as many rows of as many tokens, one group per pass."""
    config = LocalEngineConfig(device=arguments.device, dtype=arguments.dtype)
    device = choose_device(config.device)
    tokenizer = model if (model / "tokenizer.json").exists() else find_model("smollm2-135m")
    lora = {"r": config.lora.rank, "lora_alpha": config.lora.alpha, "target_modules": config.lora.target_modules}
    found = trl_step.measured(
        peer,
        model=model,
        tokenizer=tokenizer,
        texts=prompts(arguments.groups, arguments.prompt, tokenizer / "tokenizer.json"),
        lora=lora if finetune == "lora" else None,
        group=arguments.group,
        reply=arguments.reply,
        longest=arguments.prompt + arguments.reply + SPARE_TOKENS,
        count=arguments.steps + 1,
        dtype=str(choose_dtype(config.dtype, device)).removeprefix("torch."),
        device=device.type,
        checkpointing=arguments.checkpointing,
    )
    whole, sampling = (statistics.median(found[name][1:]) for name in ("steps", "sampling"))
    trained = arguments.groups * arguments.group * arguments.reply
    return {
        "step, s": whole,
        "sampling, s": sampling,
        "update, s": whole - sampling,
        "sampled tokens/s": trained / sampling,
        "computed tokens/s": trained * (1 + arguments.prompt / arguments.reply) / (whole - sampling),
        "trained tokens/s": trained / (whole - sampling),
        "peak GiB": found["peak"] / GIB,
        "planned GiB": None,
    }


def lines(arguments: argparse.Namespace, model: str) -> list[dict[str, object]]:
    """Measure every case in its own process."""
    found: list[dict[str, object]] = []
    names = ("device", "dtype", "prompt", "reply", "group", "groups", "microbatch", "steps", "sampler", "python")
    settings = [f"--{name}={getattr(arguments, name)}" for name in names]
    settings += [f"--{name}" for name in ("checkpointing", "embeddings") if getattr(arguments, name)]
    for finetune in arguments.finetune:
        for share in (True, False):
            case = [f"--model={model}", f"--finetune={finetune}", "--one", *(["--share"] if share else [])]
            done = subprocess.run([sys.executable, __file__, *settings, *case], stdout=subprocess.PIPE, check=True)
            row = {"finetune": finetune, "prompts": "shared" if share else "not shared"}
            found.append(row | json.loads(done.stdout.splitlines()[-1]))
            print(found[-1], file=sys.stderr)
        for peer in arguments.peers:
            if finetune == "lora" or (finetune == "full" and peer != "unsloth"):
                row = of_peer(peer, arguments, find_model_or_folder(model), finetune)
                found.append({"finetune": finetune, "prompts": NAMES[peer]} | row)
                print(found[-1], file=sys.stderr)
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="model name or folder (default: %(default)s)")
    parser.add_argument(
        "--shape", choices=[*SHAPES, "tiny"], help="use random weights of this shape instead of --model"
    )
    parser.add_argument("--finetune", nargs="+", default=["full", "lora"], help="full, lora or qlora; one or more")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    parser.add_argument("--dtype", default="auto", help="bfloat16, float32 or auto")
    parser.add_argument("--prompt", type=int, help="tokens per prompt")
    parser.add_argument("--reply", type=int, help="tokens per reply")
    parser.add_argument("--groups", type=int, help="prompts per step")
    parser.add_argument("--group", type=int, default=8, help="replies per prompt (default: %(default)s)")
    parser.add_argument(
        "--microbatch", type=int, default=8192, help="maximum tokens per microbatch (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=3, help="measured steps (default: %(default)s)")
    parser.add_argument("--checkpointing", action="store_true", help="use gradient checkpointing")
    parser.add_argument("--embeddings", action="store_true", help="in full fine-tuning train embeddings too, as TRL")
    parser.add_argument("--sampler", choices=("torch", "vllm"), default="torch", help="what samples (default: torch)")
    parser.add_argument("--python", default="", help="the Python in which vLLM is installed (default: this one)")
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=[*PEERS],
        default=[],
        help="other trainers to measure: " + ", ".join(f"{key} ({name})" for key, name in NAMES.items()),
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument(
        "--one", action="store_true", help="measure one row: of the first peer if there is one, else of this package"
    )
    parser.add_argument("--share", action="store_true", help="with --one: the prompts of a group are equal")
    arguments = parser.parse_args()
    for name, value in SIZES["cuda" if arguments.device == "cuda" else "cpu"].items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def main() -> None:
    arguments = parsed()
    if arguments.one and arguments.peers:
        model = find_model_or_folder(arguments.model)
        return print(json.dumps(of_peer(arguments.peers[0], arguments, model, arguments.finetune[0])))
    if arguments.one:
        return print(json.dumps(measure(arguments)))
    with tempfile.TemporaryDirectory() as folder:
        on_gpu = "cuda" if arguments.device == "cuda" else "cpu"
        model = str(write_model(Path(folder), arguments.shape, on_gpu)) if arguments.shape else arguments.model
        found = lines(arguments, model)
    if arguments.json:
        return print(json.dumps(found, indent=1))
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for row in found:
        cells = [f"{value:,.2f}" if isinstance(value, float) else str(value or "-") for value in map(row.get, HEAD)]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
