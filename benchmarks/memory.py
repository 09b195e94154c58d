"""The memory plan beside what is measured: each case a process of its own, sampling, two updates, a checkpoint.

    python benchmarks/memory.py                                          # a tiny model, seconds
    python benchmarks/memory.py --model smollm2-135m --longest 384 --microbatch 768
    python benchmarks/memory.py --model PATH --device cuda --longest 4096 --microbatch 8192

Episodes are of exactly the length that the plan is made for: a prompt that a group shares, then replies and further
prompts in turns. Both columns are without what the process took before there was a model.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from understudy.algorithms.options import Loss
from understudy.engines.base import Engine, Sampling
from understudy.engines.local.config import LocalConfig
from understudy.engines.local.machine import find_machine, peak_bytes
from understudy.memory import GIB, Load, as_text, beside, plan, read_shape
from understudy.models import find_model, make_tiny

TURNS = 3
CASES = {
    "full": {"finetune": "full"},
    "full, embeddings": {"finetune": "full", "train_embeddings": True},
    "full, checkpointing": {"finetune": "full", "checkpointing": True},
    "lora": {"finetune": "lora"},
    "lora, checkpointing": {"finetune": "lora", "checkpointing": True},
}


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """One case in this process: bytes that were planned, and the peak."""
    from understudy.engines.local.engine import LocalEngine

    settings = {"device": arguments.device, "dtype": arguments.dtype, "sampler": "torch"}
    settings |= {"sequences": arguments.live, "tokens_per_microbatch": arguments.microbatch}
    config = LocalConfig.model_validate(settings | CASES[arguments.case])
    load = Load(
        longest=arguments.longest,
        prompt=arguments.longest // 2,
        turn=arguments.longest // 4 // TURNS,
        group=arguments.group,
        live=arguments.live,
        reference=False,
    )
    folder = find_model(arguments.model)
    machine = find_machine(config)
    planned = plan(read_shape(folder), config, load, machine)
    asyncio.run(step(LocalEngine(folder, config), load))
    peak = peak_bytes(machine.device)
    if arguments.verbose:
        print(f"{as_text(planned)}\n{beside(planned, peak)}", file=sys.stderr)
    return {"planned": planned.peak - machine.taken, "measured": peak - machine.taken}


async def step(engine: Engine, load: Load) -> None:
    """Episodes of the longest length, two updates on all of them, and a checkpoint."""
    from understudy.algorithms.advantages import token_weights
    from understudy.batch import collate
    from understudy.messages import Message
    from understudy.tasks import Score
    from understudy.trajectory import Trajectory

    sampling = Sampling(max_tokens=(load.longest - load.prompt) // TURNS - load.turn)

    async def play(row: int) -> Trajectory:
        episode, said = Trajectory("t", score=Score(reward=float(row % 2))), random.Random(row)
        episode.observe([], random.Random(row // load.group).choices(range(200), k=load.prompt))
        for turn in range(TURNS):
            episode.observe([], said.choices(range(200), k=load.turn))
            done = await engine.sample(episode.tokens, sampling, row * TURNS + turn)
            episode.act(Message(role="assistant"), done.tokens, done.logprobs)
        return episode

    batch = collate(await asyncio.gather(*(play(row) for row in range(load.live))))
    weighed = token_weights(batch.mask, "token") * (batch.rewards[:, None] - 0.5)
    for _ in range(2):  # the first one has no moments yet
        await engine.update([batch.with_(advantages=weighed)], Loss(), 1e-6)
    with tempfile.TemporaryDirectory() as folder:
        engine.save(Path(folder))


def row_of(case: str, arguments: argparse.Namespace, model: str) -> str:
    """One line of the table."""
    names = ("device", "dtype", "longest", "microbatch", "live", "group")
    settings = [f"--{name}={getattr(arguments, name)}" for name in names]
    settings += [f"--case={case}", f"--model={model}", *(["--verbose"] if arguments.verbose else [])]
    done = subprocess.run([sys.executable, __file__, *settings], stdout=subprocess.PIPE, check=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    planned, measured = found["planned"], found["measured"]
    return f"| {case} | {planned / GIB:.3f} | {measured / GIB:.3f} | {planned / measured - 1:+.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a name or a folder; a random one of 256 x 4 if not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--longest", type=int, default=768, help="tokens of an episode")
    parser.add_argument("--microbatch", type=int, default=2048)
    parser.add_argument("--live", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help="print the plans")
    arguments = parser.parse_args()
    if arguments.case:
        return print(json.dumps(measure(arguments)))
    print("| | planned GiB | measured GiB | |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or str(make_tiny(Path(folder), hidden=256, layers=4))
        for case in arguments.cases:
            print(row_of(case, arguments, model), flush=True)


if __name__ == "__main__":
    main()
