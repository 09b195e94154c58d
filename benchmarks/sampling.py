"""Prefill and decode speed of the samplers on live multi-turn episodes: PyTorch's own, and vLLM's.

    python benchmarks/sampling.py                                   # where vLLM is installed
    python benchmarks/sampling.py --python ~/vllm/bin/python        # where another Python has it
    python benchmarks/sampling.py --episodes 1 8 --turns 2 --tokens 24     # fewer, shorter

Episodes are those of the default preset, with its scripted users and real tools, all side by side. They go turn by
turn: when every live episode has asked for its reply, one token is sampled after each prompt (prefill: what the
prompts have got since the last turn, over that time), then the replies are sampled whole (decode: their tokens, over
that time). Prefixes stay cached between turns and are shared by episodes, so that prefill counts more tokens than are
computed. The second pass finds the prompts cached, but for what does not fill a block; on a CPU vLLM's blocks have
128 tokens, which is set to 32 for that. Each sampler plays its own episodes, so that their lengths differ. A small
round before the first measurement is not counted.
"""

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from understudy import formats
from understudy.agent import EngineAgent
from understudy.config import TrainConfig
from understudy.domains.base import find
from understudy.engines.base import Completion, Sampler, Sampling
from understudy.engines.local.config import LocalConfig
from understudy.engines.local.engine import LocalEngine
from understudy.models import find_model
from understudy.rollout import episode_seed, play
from understudy.settings import load
from understudy.tasks import Task


@dataclass
class Request:
    """What one episode asks for."""

    prompt: Sequence[int]
    sampling: Sampling
    seed: int
    stop_tokens: Collection[int]
    reply: "asyncio.Future[Completion]"


@dataclass
class Waves:
    """A sampler that answers all live episodes at once, and takes the time."""

    sampler: Sampler
    live: int
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    _waiting: list[Request] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)
    """Of each episode, told apart by who asks, how many tokens were prefilled or sampled."""
    _wave: "asyncio.Task[None] | None" = None

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """As the sampler does, once all live episodes have asked."""
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append(Request(list(prompt), sampling, seed, stop_tokens, reply))
        self._start()
        completion: Completion = await reply
        task = id(asyncio.current_task())
        self.prefill_tokens += len(prompt) - self._known.get(task, 0)
        self.decode_tokens += len(completion.tokens)
        self._known[task] = len(prompt) + len(completion.tokens)
        return completion

    def leave(self) -> None:
        """One episode is over."""
        self.live -= 1
        self._start()

    def _start(self) -> None:
        if self._waiting and len(self._waiting) == self.live:
            wave, self._waiting = self._waiting, []
            self._wave = asyncio.ensure_future(self._answer(wave))

    async def _answer(self, wave: list[Request]) -> None:
        started = time.perf_counter()
        one = [self.sampler.sample(r.prompt[:-1], Sampling(max_tokens=1), r.seed, r.stop_tokens) for r in wave]
        await asyncio.gather(*one)
        filled = time.perf_counter()
        whole = [self.sampler.sample(r.prompt, r.sampling, r.seed, r.stop_tokens) for r in wave]
        replies = await asyncio.gather(*whole)
        self.prefill_seconds += filled - started
        self.decode_seconds += time.perf_counter() - filled
        for request, reply in zip(wave, replies, strict=True):
            request.reply.set_result(reply)


async def measure(engine: LocalEngine, config: TrainConfig, count: int, seed: int) -> dict[str, float]:
    """Play `count` episodes side by side."""
    domain = find(config.domain).slice(config.slice)
    waves = Waves(engine, count)
    agent = EngineAgent(waves, formats.find(find_model(config.model)), config.sampling)

    async def one(task: Task) -> None:
        await play(domain, task, agent, config.limits, episode_seed(seed, task, 0))
        waves.leave()

    started = time.perf_counter()
    await asyncio.gather(*(one(task) for task in itertools.islice(domain.stream("train", seed), count)))
    return {
        "episodes": count,
        "prefill": waves.prefill_tokens / waves.prefill_seconds,
        "decode": waves.decode_tokens / waves.decode_seconds,
        "prefill_tokens": waves.prefill_tokens,
        "decode_tokens": waves.decode_tokens,
        "seconds": time.perf_counter() - started,
    }


def measured(name: str, config: TrainConfig, arguments: argparse.Namespace) -> list[dict[str, float]]:
    on_cpu = arguments.device == "cpu" or not torch.cuda.is_available()
    vllm = {
        "python": arguments.python,
        "max_model_len": config.limits.max_tokens + config.sampling.max_tokens + 256,
        "arguments": ["--block-size", "32"] if on_cpu else [],
    }
    local = {"sampler": name, "dtype": arguments.dtype, "device": arguments.device, "vllm": vllm}
    engine = LocalEngine(find_model(config.model), LocalConfig.model_validate(local))

    async def all_of_them() -> list[dict[str, float]]:
        await measure(engine, config.replace(limits=config.limits.replace(max_turns=1)), 2, seed=0)
        found = []
        for count in arguments.episodes:
            found.append(await measure(engine, config, count, seed=count))  # replies of other rounds help no guess
            print(name, found[-1], file=sys.stderr)
        return found

    try:
        return asyncio.run(all_of_them())
    finally:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--samplers", nargs="+", default=["torch", "vllm"])
    parser.add_argument("--python", default="", help="the Python that has vLLM; this one if not given")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--turns", type=int, default=8, help="replies of an episode at most")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a reply at most")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    config = load(
        TrainConfig, "default", [f"limits.max_turns={arguments.turns}", f"sampling.max_tokens={arguments.tokens}"]
    )
    found = {name: measured(name, config, arguments) for name in arguments.samplers}
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    print("| episodes |" + "".join(f" {name} prefill tok/s | {name} decode tok/s |" for name in found))
    print("|" + "---|" * (1 + 2 * len(found)))
    for row in zip(*found.values(), strict=True):
        cells = [f"{each[kind]:,.0f}" for each in row for kind in ("prefill", "decode")]
        print(f"| {row[0]['episodes']:.0f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
