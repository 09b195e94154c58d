"""Run by vLLM's own Python: the local engine with vLLM inside the process, and how far the two are from each other.

python tests/vllm_inside.py MODEL_FOLDER      prints JSON
"""

import asyncio
import json
import sys
from pathlib import Path

import torch

from understudy.algorithms.options import Loss
from understudy.batch import Batch, collate
from understudy.engines.base import Sampling
from understudy.engines.local.config import LocalConfig
from understudy.engines.local.engine import LocalEngine
from understudy.tasks import Score
from understudy.trajectory import Trajectory

CONFIG = {"device": "cpu", "dtype": "float32", "sequences": 4, "vllm": {"in_process": True, "max_model_len": 1024}}


async def sampled(engine: LocalEngine) -> Batch:
    """Two replies side by side, with random advantages."""
    episodes = [Trajectory(str(i), score=Score(reward=float(i))) for i in range(2)]
    for episode in episodes:
        episode.observe((), list(range(100 + int(episode.task), 150)))
    replies = [engine.sample(episode.tokens, Sampling(max_tokens=8), i) for i, episode in enumerate(episodes)]
    for episode, reply in zip(episodes, await asyncio.gather(*replies), strict=True):
        episode.tokens += reply.tokens
        episode.mask += [True] * len(reply.tokens)
        episode.logprobs += reply.logprobs
    batch = collate(episodes)
    return batch.with_(advantages=torch.randn(batch.tokens.shape) / 20 * batch.mask)


async def gap(engine: LocalEngine, batch: Batch) -> float:
    """How far the sampler's log-probabilities are from the trainer's."""
    return float(((await engine.forward(batch)).logprobs - batch.logprobs)[batch.mask].abs().max())


async def measured(engine: LocalEngine) -> dict[str, float]:
    """The gap before an update, of the old replies after it, and of new ones."""
    old = await sampled(engine)
    before = await gap(engine, old)
    await engine.update([old], Loss(), 3e-4)
    return {"before": before, "moved": await gap(engine, old), "after": await gap(engine, await sampled(engine))}


if __name__ == "__main__":
    engine = LocalEngine(Path(sys.argv[1]), LocalConfig.model_validate(CONFIG))
    try:
        print(json.dumps({"choice": str(engine.choice), **asyncio.run(measured(engine))}))
    finally:
        engine.close()
