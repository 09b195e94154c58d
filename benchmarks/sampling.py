"""Measure prefill and decode speed of PyTorch's sampler and of vLLM on multi-turn episodes.

    python benchmarks/sampling.py                                   # if vLLM is installed
    python benchmarks/sampling.py --python ~/vllm/bin/python        # if vLLM is installed in another Python
    python benchmarks/sampling.py --episodes 1 8 --turns 2 --tokens 24     # fewer and shorter episodes

The episodes are those of the preset `retail_easy`, with scripted users and real tools. They run concurrently and turn
by turn. When every live episode has requested its reply, two passes follow. The first samples one token after each
prompt; prefill is the number of prompt tokens since the last turn, over its time. The second samples the complete
replies; decode is their number of tokens, over its time.

Prefixes stay cached between turns and are shared by episodes, so prefill counts more tokens than are computed. In the
second pass the prompts are cached, except for the end that does not fill a block. vLLM's blocks on a CPU have 128
tokens, which is set to 32 here for that reason. Each sampler plays its own episodes, so their lengths differ. A small
warm-up round comes first.
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
from understudy.core.tasks import Task
from understudy.engines.interface import Completion, Sampler, SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import find_model
from understudy.rollouts.agent import EngineAgent
from understudy.rollouts.rollout import episode_seed, play_episode
from understudy.runs.config import TrainConfig, load_config
from understudy.sources.loading import load_source


@dataclass
class Request:
    """The request of one episode."""

    prompt: Sequence[int]
    sampling: SamplingParams
    seed: int
    stop_tokens: Collection[int]
    reply: "asyncio.Future[Completion]"


@dataclass
class Waves:
    """A sampler that answers all live episodes at once and measures the time."""

    sampler: Sampler
    live: int
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    _waiting: list[Request] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)
    """Number of tokens of each episode that were prefilled or sampled, by the id of its asyncio task."""
    _wave: "asyncio.Task[None] | None" = None

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """Sample a reply after all live episodes have requested theirs."""
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
        """Remove an episode that has ended."""
        self.live -= 1
        self._start()

    def _start(self) -> None:
        if self._waiting and len(self._waiting) == self.live:
            wave, self._waiting = self._waiting, []
            self._wave = asyncio.ensure_future(self._answer(wave))

    async def _answer(self, wave: list[Request]) -> None:
        started = time.perf_counter()
        one = [
            self.sampler.sample(r.prompt[:-1], SamplingParams(max_response_tokens=1), r.seed, r.stop_tokens)
            for r in wave
        ]
        await asyncio.gather(*one)
        filled = time.perf_counter()
        whole = [self.sampler.sample(r.prompt, r.sampling, r.seed, r.stop_tokens) for r in wave]
        replies = await asyncio.gather(*whole)
        self.prefill_seconds += filled - started
        self.decode_seconds += time.perf_counter() - filled
        for request, reply in zip(wave, replies, strict=True):
            request.reply.set_result(reply)


async def measure(engine: LocalEngine, config: TrainConfig, count: int, seed: int) -> dict[str, float]:
    """Play `count` episodes concurrently."""
    domain = load_source(config.domain).slice(config.slice)
    waves = Waves(engine, count)
    agent = EngineAgent(waves, formats.load_chat_format(find_model(config.model)), config.sampling)

    async def one(task: Task) -> None:
        await play_episode(domain, task, agent, config.limits, episode_seed(seed, task, 0))
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
        "max_model_len": config.limits.max_episode_tokens + config.sampling.max_response_tokens + 256,
        "server_args": ["--block-size", "32"] if on_cpu else [],
    }
    local = {"sampler": name, "dtype": arguments.dtype, "device": arguments.device, "vllm": vllm}
    engine = LocalEngine(find_model(config.model), LocalEngineConfig.model_validate(local))

    async def all_of_them() -> list[dict[str, float]]:
        await measure(engine, config.replace(limits=config.limits.replace(max_turns=1)), 2, seed=0)
        found = []
        for count in arguments.episodes:
            # With equal seeds, n-gram speculation would draft the replies of earlier rounds.
            found.append(await measure(engine, config, count, seed=count))
            print(name, found[-1], file=sys.stderr)
        return found

    try:
        return asyncio.run(all_of_them())
    finally:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[1, 8, 32, 64], help="numbers of parallel episodes")
    parser.add_argument("--samplers", nargs="+", default=["torch", "vllm"], help="torch, vllm or both")
    parser.add_argument("--python", default="", help="the Python in which vLLM is installed (default: this one)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--dtype", default="auto", help="bfloat16, float32 or auto")
    parser.add_argument("--turns", type=int, default=8, help="maximum replies per episode (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="maximum tokens per reply (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    arguments = parser.parse_args()
    config = load_config(
        "retail_easy", [f"limits.max_turns={arguments.turns}", f"sampling.max_response_tokens={arguments.tokens}"]
    )
    found = {name: measured(name, config, arguments) for name in arguments.samplers}
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    print("| parallel episodes |" + "".join(f" {name}: prefill tokens/s | {name}: decode tokens/s |" for name in found))
    print("|" + "---|" * (1 + 2 * len(found)))
    for row in zip(*found.values(), strict=True):
        cells = [f"{each[kind]:,.0f}" for each in row for kind in ("prefill", "decode")]
        print(f"| {row[0]['episodes']:.0f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
