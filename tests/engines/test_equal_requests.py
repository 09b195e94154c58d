"""Test that requests with the same tokens are computed once, and that this changes no reply."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import make_tiny_model

PROMPT = [*range(100, 140)]
GREEDY = SamplingParams(max_response_tokens=24, temperature=0.0)
PEAKED = SamplingParams(max_response_tokens=24, temperature=0.1)
"""Replies of a random model to the same prompt are equal at first and differ later."""


@pytest.fixture
def engine_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalEngine, list[int]]:
    """Return an engine without drafts, and the list of the token counts of its forward passes."""
    engine = LocalEngine(
        make_tiny_model(tmp_path), LocalEngineConfig(dtype="float32", max_num_seqs=8, max_draft_rows=1)
    )
    passes = list[int]()
    hidden = engine._model.hidden_states

    def record_tokens(tokens: Tensor, positions: Tensor, layout: Any) -> Tensor:
        passes.append(tokens.numel())
        return hidden(tokens, positions, layout)

    monkeypatch.setattr(engine._model, "hidden_states", record_tokens)
    return engine, passes


async def sample_all(
    engine: LocalEngine, prompts: Sequence[Sequence[int]], sampling: SamplingParams
) -> list[Completion]:
    return await asyncio.gather(*(engine.sample(prompt, sampling, seed) for seed, prompt in enumerate(prompts)))


def sample_alone(engine: LocalEngine, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> list[Completion]:
    """Return the replies to the prompts, each sampled with an empty cache."""

    async def one_by_one() -> list[Completion]:
        found = []
        for seed, prompt in enumerate(prompts):
            engine.reset_prefix_cache()
            found.append(await engine.sample(prompt, sampling, seed))
        engine.reset_prefix_cache()
        return found

    return asyncio.run(one_by_one())


def assert_equal(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    assert [reply.tokens for reply in found] == [reply.tokens for reply in expected]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(ours.logprobs), torch.tensor(theirs.logprobs), atol=1e-4, rtol=0)


def test_equal_requests_beside_one_of_another_temperature(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    """The pass has two rows for three requests, two of them of one temperature."""
    engine, _ = engine_and_passes
    params = [SamplingParams(max_response_tokens=4, temperature=t) for t in (0.9, 0.9, 1.1)]
    prompts = [PROMPT, PROMPT, [*PROMPT, 7]]

    async def together() -> list[Completion]:
        return await asyncio.gather(
            *(engine.sample(p, s, i) for i, (p, s) in enumerate(zip(prompts, params, strict=True)))
        )

    async def alone() -> list[Completion]:
        return [await engine.sample(p, s, i) for i, (p, s) in enumerate(zip(prompts, params, strict=True))]

    found = asyncio.run(together())
    engine.reset_prefix_cache()
    assert_equal(found, asyncio.run(alone()))


def test_equal_replies_take_the_passes_of_one(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    engine, passes = engine_and_passes
    replies = asyncio.run(sample_all(engine, [PROMPT] * 4, GREEDY))
    assert len({tuple(reply.tokens) for reply in replies}) == 1
    assert sum(passes) == len(PROMPT) + GREEDY.max_response_tokens - 1


def test_replies_that_part_are_those_sampled_alone(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    engine, passes = engine_and_passes
    alone = sample_alone(engine, [PROMPT] * 6, PEAKED)
    assert 1 < len({tuple(reply.tokens) for reply in alone}) <= 6
    assert len({reply.tokens[0] for reply in alone}) < 6, "some start alike"
    passes.clear()
    assert_equal(asyncio.run(sample_all(engine, [PROMPT] * 6, PEAKED)), alone)
    branches = {tuple(reply.tokens[:n]) for reply in alone for n in range(1, PEAKED.max_response_tokens)}
    assert sum(passes) == len(PROMPT) + len(branches), "each distinct beginning is one row"


def test_requests_with_other_settings_are_computed_apart(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    engine, _ = engine_and_passes
    settings = [GREEDY, GREEDY.replace(max_response_tokens=3), PEAKED]

    async def together() -> list[Completion]:
        return await asyncio.gather(*(engine.sample(PROMPT, each, seed) for seed, each in enumerate(settings)))

    replies = asyncio.run(together())
    for seed, (sampling, reply) in enumerate(zip(settings, replies, strict=True)):
        engine.reset_prefix_cache()
        assert asyncio.run(engine.sample(PROMPT, sampling, seed)).tokens == reply.tokens


def test_next_turn_copies_what_another_episode_computed(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    engine, passes = engine_and_passes
    reply = asyncio.run(sample_all(engine, [PROMPT] * 3, GREEDY))[0]
    prompts = [[*PROMPT, *reply.tokens, *range(first, first + 5)] for first in (1, 11, 11)]
    passes.clear()
    found = asyncio.run(sample_all(engine, prompts, GREEDY.replace(max_response_tokens=1)))
    assert sum(passes) == 2 * (1 + 5), "the last sampled token and the new ones, of two distinct prompts"
    assert_equal(found, sample_alone(engine, prompts, GREEDY.replace(max_response_tokens=1)))


def test_waiting_requests_compute_their_prefix_once(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    """24 groups of four equal prompts take turns in eight slots."""
    engine, passes = engine_and_passes
    rng = random.Random(0)
    prompts = [[rng.randrange(10, 250) for _ in range(60)] for _ in range(24)]
    requests = [prompt for prompt in prompts for _ in range(4)]
    sampling = SamplingParams(max_response_tokens=4)
    found = asyncio.run(sample_all(engine, requests, sampling))
    assert passes.count(60 - 1) == len(prompts)
    assert_equal(found, sample_alone(engine, requests, sampling))


def test_a_cancelled_leader_is_replaced(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    engine, _ = engine_and_passes
    expected = sample_alone(engine, [PROMPT] * 3, GREEDY)

    async def cancel_one(number: int) -> list[Completion]:
        tokens = asyncio.Event()
        calls = [
            asyncio.create_task(engine.sample(PROMPT, GREEDY, seed, on_tokens=lambda *_: tokens.set()))
            for seed in range(3)
        ]
        await tokens.wait()
        calls.pop(number).cancel()
        return await asyncio.gather(*calls)

    for number in range(3):
        assert_equal(asyncio.run(cancel_one(number)), expected[:2])
        assert not any(slot.busy for slot in engine._sampling.sampler._cache.slots)  # type: ignore[union-attr]
        engine.reset_prefix_cache()
