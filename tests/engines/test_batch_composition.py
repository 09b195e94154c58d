"""Tests of how a reply depends on the replies that are sampled with it. See "Equal tokens under another scheduling" in
docs/faults.md."""

import asyncio
import random
from collections.abc import Sequence
from typing import Literal

import pytest
import torch

from support.machine import ELSEWHERE
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.cpu.fuse import should_pack_weights
from understudy.engines.local.cpu.kernel_library import kernels_available
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.sampling.sampler import MIN_PREFIX_TOKENS
from understudy.engines.models import find_model

Schedule = Literal["together", "one after another", "alone"]
SAMPLING = SamplingParams(max_response_tokens=12)


def sample(dtype: Literal["float32", "bfloat16"], prompts: Sequence[list[int]], schedule: Schedule) -> list[Completion]:
    """Sample a reply to each prompt with its own seed."""
    engine = LocalEngine(find_model("tiny"), LocalEngineConfig(dtype=dtype), trainable=False)

    async def reply(seed: int) -> Completion:
        for _ in range(40 * seed if schedule == "one after another" else 0):  # join while others are decoded
            await asyncio.sleep(0)
        return await engine.sample(prompts[seed], SAMPLING, seed)

    async def replies() -> list[Completion]:
        if schedule == "alone":
            return [await reply(seed) for seed in range(len(prompts))]
        return await asyncio.gather(*map(reply, range(len(prompts))))

    return asyncio.run(replies())


def make_prompts(shared: int) -> list[list[int]]:
    """Return prompts of different lengths, of which the first `shared` tokens are the same."""
    rng = random.Random(0)

    def draw(count: int) -> list[int]:
        return [rng.randrange(10, 250) for _ in range(count)]

    common = draw(shared)
    return [[*common, 100 + number, *draw(rng.randrange(8, 40))] for number in range(6)]


def test_tokens_in_float32_do_not_depend_on_the_schedule() -> None:
    prompts = make_prompts(shared=80)
    together = sample("float32", prompts, "together")
    for schedule in ("one after another", "alone"):
        other = sample("float32", prompts, schedule)
        assert [reply.tokens for reply in other] == [reply.tokens for reply in together]
        for one, two in zip(other, together, strict=True):
            assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_schedule_gives_the_same_bits_again(dtype: Literal["float32", "bfloat16"]) -> None:
    prompts = make_prompts(shared=80)
    assert sample(dtype, prompts, "one after another") == sample(dtype, prompts, "one after another")


@pytest.mark.skipif(
    not (should_pack_weights(torch.bfloat16) and kernels_available()),
    reason=f"{ELSEWHERE}its processor does not multiply bfloat16, or it has no compiler",
)
def test_prompts_without_a_shared_prefix_get_the_same_bits_in_every_batch_of_bfloat16() -> None:
    prompts = make_prompts(shared=MIN_PREFIX_TOKENS - 1)
    together = sample("bfloat16", prompts, "together")
    assert sample("bfloat16", prompts, "one after another") == together == sample("bfloat16", prompts, "alone")
