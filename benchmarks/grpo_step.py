"""Compare one GRPO step, sampling and update, with TRL's GRPOTrainer.

    python benchmarks/grpo_step.py                    # 4 prompts of about 650 tokens, groups of 8, 64 new tokens
    python benchmarks/grpo_step.py --rounds 3 --json
    python benchmarks/grpo_step.py --dtype float32    # for a CPU without bf16 units, where bf16 is slower
    python benchmarks/grpo_step.py --device cuda --length 4000

Both sides have the same model, prompts, sizes and precision, and run on the same machine.

TRL runs in its own virtual environment, which the first use creates in the cache folder. A round is one process per
side, and its first step is a warm-up. In several rounds the sides alternate, so that both are affected alike if the
machine's speed changes.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import trl_step
from peer import TRL
from tokenizers import Tokenizer

from understudy.algorithms.advantages import group_advantages, token_weights
from understudy.algorithms.batch import collate
from understudy.algorithms.config import LossConfig
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.machine import peak_memory_bytes
from understudy.engines.models import find_model
from understudy.train.planning.memory import GIB

SPARE_TOKENS = 64
"""A text may have a few tokens more than asked for."""
SIDES = {"ours": "understudy", "theirs": TRL}
WORDS = (
    *(" lamp", " order", " blue", " return", " table", " price"),
    *(" cancel", " street", " parcel", " green", " refund", " chair"),
)


def prompts(count: int, length: int, tokenizer: Path) -> list[str]:
    """Return texts of about `length` tokens each with little in common, from a seeded list of shop words."""

    def size(text: str) -> int:
        return len(encode.encode(text, add_special_tokens=False).ids)

    encode = Tokenizer.from_file(str(tokenizer))
    sizes = {word: size(word) for word in WORDS}
    texts = []
    for i in range(count):
        rng = random.Random(i)
        text = f"Customer {i}:"
        tokens = size(text)
        while tokens < length:
            word = rng.choice(WORDS)
            text, tokens = text + word, tokens + sizes[word]
        texts.append(text)
    return texts


def ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of each step of the local engine after a warm-up step, and the peak memory."""
    folder = find_model("smollm2-135m")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = LocalEngineConfig(device=arguments.device, sampler="torch", dtype=arguments.dtype, train_embeddings=True)
    engine = LocalEngine(folder, config, 0)
    ids = [
        tokenizer.encode(t, add_special_tokens=False).ids
        for t in prompts(arguments.prompts, arguments.length, folder / "tokenizer.json")
    ]
    sampling = SamplingParams(max_response_tokens=arguments.new_tokens)

    async def step(number: int) -> float:
        started = time.perf_counter()
        rows = [(i, prompt) for i, prompt in enumerate(ids) for _ in range(arguments.group)]
        done = await asyncio.gather(*(engine.sample(p, sampling, number * 1000 + j) for j, (_, p) in enumerate(rows)))
        rng, episodes = random.Random(number), []
        for (i, prompt), completion in zip(rows, done, strict=True):
            episode = Trajectory(str(i), score=Score(reward=float(rng.random() < 0.5)))
            episode.observe((), prompt)
            episode.tokens += completion.tokens
            episode.mask += [True] * len(completion.tokens)
            episode.logprobs += completion.logprobs
            episodes.append(episode)
        batch = collate(episodes, [i for i, _ in rows])
        advantages = group_advantages(batch.rewards, batch.group_ids, scale_by_std=True)[:, None] * token_weights(
            batch.mask, "sequence_mean"
        )
        await engine.update([batch.replace(advantages=advantages)], LossConfig(), 1e-6)
        return time.perf_counter() - started

    async def steps() -> list[float]:
        return [await step(number) for number in range(arguments.steps + 1)][1:]

    return {"seconds": asyncio.run(steps()), "peak": peak_memory_bytes(arguments.device)}


def run_ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure this package in its own process."""
    names = ("prompts", "length", "group", "new_tokens", "steps", "dtype", "device")
    command = [sys.executable, __file__, "--ours", *(f"--{name}={getattr(arguments, name)}" for name in names)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def run_theirs(arguments: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Measure TRL."""
    found = trl_step.measured(
        model=model,
        tokenizer=model,
        texts=prompts(arguments.prompts, arguments.length, model / "tokenizer.json"),
        lora=None,
        group=arguments.group,
        reply=arguments.new_tokens,
        longest=arguments.length + arguments.new_tokens + SPARE_TOKENS,
        count=arguments.steps + 1,
        dtype=arguments.dtype,
        device=arguments.device,
        checkpointing=False,
    )
    return {"seconds": found["steps"][1:], "peak": found["peak"]}


def main() -> None:
    """Measure both sides in turn, and print the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=4, help="prompts per step (default: %(default)s)")
    parser.add_argument("--length", type=int, default=650, help="tokens per prompt, about (default: %(default)s)")
    parser.add_argument("--group", type=int, default=8, help="replies per prompt (default: %(default)s)")
    parser.add_argument("--new_tokens", type=int, default=64, help="tokens per reply (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="measured steps per process (default: %(default)s)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=1, help="processes per side (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        print(json.dumps(ours(arguments)))
        return
    model = find_model("smollm2-135m")
    rounds = [(run_ours(arguments), run_theirs(arguments, model)) for _ in range(arguments.rounds)]
    sides = dict(zip(SIDES, zip(*rounds, strict=True), strict=True))
    seconds = {side: [second for found in rounds for second in found["seconds"]] for side, rounds in sides.items()}
    peaks = {side: max(found["peak"] for found in rounds) for side, rounds in sides.items()}
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    ratio = medians["theirs"] / medians["ours"]
    if arguments.json:
        print(json.dumps({"seconds": seconds, "medians": medians, "ratio": ratio, "peak_bytes": peaks, "trl": TRL}))
        return
    for side, name in SIDES.items():
        every = " ".join(f"{second:.2f}" for second in seconds[side])
        print(f"{name:12} {medians[side]:7.2f} s per step (median), {peaks[side] / GIB:.1f} GiB peak; steps: {every}")
    print(f"{SIDES['theirs']} takes {ratio:.1f} times as long per step")


if __name__ == "__main__":
    main()
