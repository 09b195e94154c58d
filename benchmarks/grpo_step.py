"""One GRPO step, sampling and update, beside TRL's GRPOTrainer: same model, prompts, sizes, precision, machine and run.

    python benchmarks/grpo_step.py                    # 4 prompts of about 650 tokens, groups of 8, 64 new tokens
    python benchmarks/grpo_step.py --rounds 3 --json
    python benchmarks/grpo_step.py --dtype float32    # for a CPU without bf16 units, where bf16 is slower

TRL runs in a virtual environment of its own (made on first use in the cache folder). The two sides take turns, so that
a drift of the machine's speed meets both; a round is one warm process a side, its first step not counted.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from peer import TRL, python_of_trl

HERE = Path(__file__).resolve().parent


def prompts(count: int, length: int, tokenizer: Path) -> list[str]:
    """Texts of about `length` tokens each, with little in common: words of a seeded shop catalogue."""
    import random

    from tokenizers import Tokenizer

    words = (
        "lamp",
        "order",
        "blue",
        "return",
        "table",
        "price",
        "cancel",
        "street",
        "parcel",
        "green",
        "refund",
        "chair",
    )
    encode = Tokenizer.from_file(str(tokenizer))
    texts = []
    for i in range(count):
        rng = random.Random(i)
        text = f"Customer {i}:"
        while len(encode.encode(text, add_special_tokens=False).ids) < length:
            text += " " + rng.choice(words)
        texts.append(text)
    return texts


def ours(arguments: argparse.Namespace) -> list[float]:
    """Seconds of each step of understudy's local engine, after a first one that is not counted."""
    import random

    from tokenizers import Tokenizer

    from understudy.algorithms.advantages import group_advantages, token_weights
    from understudy.algorithms.options import Loss
    from understudy.batch import collate
    from understudy.engines.base import Sampling
    from understudy.engines.local.config import LocalConfig
    from understudy.engines.local.engine import LocalEngine
    from understudy.models import find_model
    from understudy.tasks import Score
    from understudy.trajectory import Trajectory

    folder = find_model("smollm2-135m")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = LocalConfig(dtype=arguments.dtype, train_embeddings=True)
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

    return asyncio.run(steps())


def theirs(arguments: argparse.Namespace) -> list[float]:
    """Seconds of each step of TRL's GRPOTrainer, after a first one that is not counted. Runs in TRL's environment."""
    import random

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    folder = Path(arguments.model)
    rows = prompts(arguments.prompts, arguments.length, folder / "tokenizer.json")
    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *_: object, **__: object) -> None:
            seconds.append(time.perf_counter() - self.started)

    size = arguments.prompts * arguments.group
    rng = random.Random(0)
    config = GRPOConfig(
        output_dir=arguments.scratch,
        use_cpu=True,
        bf16=arguments.dtype == "bfloat16",
        per_device_train_batch_size=arguments.group,  # all at once needs more than 24 GB
        gradient_accumulation_steps=arguments.prompts,
        generation_batch_size=size,
        num_generations=arguments.group,
        max_completion_length=arguments.new_tokens,
        generation_kwargs={"min_new_tokens": arguments.new_tokens},
        max_steps=arguments.steps + 1,
        learning_rate=1e-6,
        beta=0.0,
        temperature=1.0,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        save_strategy="no",
        report_to=[],
        logging_steps=1000,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, arguments.dtype)),
        reward_funcs=lambda completions, **_: [float(rng.random() < 0.5) for _ in completions],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": rows * (arguments.steps + 1)}),
        processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=[Clock()],
    )
    trainer.train()
    return seconds[1:]


def run_side(side: str, python: Path | str, arguments: argparse.Namespace, model: Path) -> list[float]:
    """One side in a process of its own."""
    sizes = [
        f"--{name}={getattr(arguments, name)}"
        for name in ("prompts", "length", "group", "new_tokens", "steps", "dtype")
    ]
    scratch = [f"--model={model}", f"--scratch={model.parent.parent / 'benchmarks' / 'scratch'}"]
    done = subprocess.run(
        [python, str(HERE / "grpo_step.py"), f"--side={side}", *sizes, *scratch], check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Both sides in turn, and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--length", type=int, default=650)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new_tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2, help="counted steps of each process")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of both sides")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps((ours if arguments.side == "ours" else theirs)(arguments)))
        return
    from understudy.models import find_model

    model, python = find_model("smollm2-135m"), python_of_trl()
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(arguments.rounds):
        for side, interpreter in (("ours", sys.executable), ("theirs", python)):
            seconds[side] += run_side(side, interpreter, arguments, model)
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    ratio = medians["theirs"] / medians["ours"]
    if arguments.json:
        print(json.dumps({"seconds": seconds, "medians": medians, "ratio": ratio, "trl": TRL}))
    else:
        for side, name in (("ours", "understudy"), ("theirs", TRL)):
            print(f"{name:12} {medians[side]:7.2f} s a step   {' '.join(f'{s:.2f}' for s in seconds[side])}")
        print(f"{ratio:.1f} times faster")


if __name__ == "__main__":
    main()
