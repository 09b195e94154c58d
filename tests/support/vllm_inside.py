"""Runs in vLLM's Python: the local engine with vLLM in the same process, and the differences between their
log-probabilities.

    PYTHONPATH=tests python -m support.vllm_inside MODEL_FOLDER      prints JSON
"""

import asyncio
import json
import sys
from pathlib import Path

import torch

from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.engine import LocalEngine

CONFIG = {"device": "cpu", "dtype": "float32", "max_num_seqs": 4, "vllm": {"in_process": True, "max_model_len": 1024}}


async def sample_batch(engine: LocalEngine) -> Batch:
    """Return two concurrently sampled replies with random advantages."""
    episodes = [Trajectory(str(i), score=Score(reward=float(i))) for i in range(2)]
    for episode in episodes:
        episode.observe((), list(range(100 + int(episode.task_id), 150)))
    replies = [
        engine.sample(episode.tokens, SamplingParams(max_response_tokens=8), i) for i, episode in enumerate(episodes)
    ]
    for episode, reply in zip(episodes, await asyncio.gather(*replies), strict=True):
        episode.tokens += reply.tokens
        episode.mask += [True] * len(reply.tokens)
        episode.logprobs += reply.logprobs
    batch = collate(episodes)
    return batch.replace(advantages=torch.randn(batch.tokens.shape) / 20 * batch.mask)


async def logprob_difference(engine: LocalEngine, batch: Batch) -> float:
    """Return the difference between the log-probabilities of sampler and trainer."""
    return float(((await engine.compute_logprobs(batch)).logprobs - batch.logprobs)[batch.mask].abs().max())


async def measure_differences(engine: LocalEngine) -> dict[str, float]:
    """Return the difference before an update, after it for the old replies, and for new replies."""
    old = await sample_batch(engine)
    before = await logprob_difference(engine, old)
    await engine.update([old], LossConfig(), 3e-4)
    return {
        "before": before,
        "moved": await logprob_difference(engine, old),
        "after": await logprob_difference(engine, await sample_batch(engine)),
    }


if __name__ == "__main__":
    engine = LocalEngine(Path(sys.argv[1]), LocalEngineConfig.model_validate(CONFIG))
    try:
        print(json.dumps({"choice": str(engine.sampler_choice), **asyncio.run(measure_differences(engine))}))
    finally:
        engine.close()
