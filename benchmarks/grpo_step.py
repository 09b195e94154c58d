"""One GRPO step, sampling and update, beside TRL's GRPOTrainer: same model, prompts, sizes, precision, machine and run.

    python benchmarks/grpo_step.py                    # 4 prompts of about 650 tokens, groups of 8, 64 new tokens
    python benchmarks/grpo_step.py --rounds 3 --json
    python benchmarks/grpo_step.py --dtype float32    # for a CPU without bf16 units, where bf16 is slower
    python benchmarks/grpo_step.py --device cuda --length 4000

TRL runs in a virtual environment of its own (made on first use in the cache folder). A round is one warm process a
side, its first step not counted; in several, the sides take turns, so that a drift of the machine's speed meets both.
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
from understudy.algorithms.options import Loss
from understudy.batch import collate
from understudy.engines.base import Sampling
from understudy.engines.local.config import LocalConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.machine import peak_bytes
from understudy.memory import GIB
from understudy.models import find_model
from understudy.tasks import Score
from understudy.trajectory import Trajectory

SIDES = {"ours": "understudy", "theirs": TRL}
WORDS = (
    *(" lamp", " order", " blue", " return", " table", " price"),
    *(" cancel", " street", " parcel", " green", " refund", " chair"),
)


def prompts(count: int, length: int, tokenizer: Path) -> list[str]:
    """Texts of about `length` tokens each, with little in common: words of a seeded shop catalogue."""

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
    """Seconds of each step of understudy's local engine, after a first one that is not counted, and its peak memory."""
    folder = find_model("smollm2-135m")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = LocalConfig(device=arguments.device, sampler="torch", dtype=arguments.dtype, train_embeddings=True)
    engine = LocalEngine(folder, config, 0)
    ids = [
        tokenizer.encode(t, add_special_tokens=False).ids
        for t in prompts(arguments.prompts, arguments.length, folder / "tokenizer.json")
    ]
    sampling = Sampling(max_tokens=arguments.new_tokens)

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
        advantages = group_advantages(batch.rewards, batch.group, scale=True)[:, None] * token_weights(
            batch.mask, "sequence"
        )
        await engine.update([batch.with_(advantages=advantages)], Loss(), 1e-6)
        return time.perf_counter() - started

    async def steps() -> list[float]:
        return [await step(number) for number in range(arguments.steps + 1)][1:]

    return {"seconds": asyncio.run(steps()), "peak": peak_bytes(arguments.device)}


def run_ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """Our side in a process of its own."""
    names = ("prompts", "length", "group", "new_tokens", "steps", "dtype", "device")
    command = [sys.executable, __file__, "--ours", *(f"--{name}={getattr(arguments, name)}" for name in names)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def run_theirs(arguments: argparse.Namespace, model: Path) -> dict[str, Any]:
    """TRL's."""
    found = trl_step.measured(
        model=model,
        tokenizer=model,
        texts=prompts(arguments.prompts, arguments.length, model / "tokenizer.json"),
        lora=None,
        group=arguments.group,
        reply=arguments.new_tokens,
        count=arguments.steps + 1,
        dtype=arguments.dtype,
        device=arguments.device,
        checkpointing=False,
    )
    return {"seconds": found["steps"][1:], "peak": found["peak"]}


def main() -> None:
    """Both sides in turn, and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--length", type=int, default=650)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new_tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2, help="counted steps of each process")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of both sides")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of both sides")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
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
        print(f"{name:12} {medians[side]:7.2f} s a step, {peaks[side] / GIB:.1f} GiB   {every}")
    print(f"{ratio:.1f} times faster")


if __name__ == "__main__":
    main()
