"""Tests of the constraints that a program asks for: dropped, or recorded as the tokens that they allowed."""

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from test_program import SUMS, TASK

from support.program_client import ask
from support.replying import ReplySampler, say
from support.serving import load_tiny_served_model, make_short_context_model
from understudy.algorithms.batch import collate
from understudy.core.errors import ConfigError
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.rollouts.program import ProgramAgent, ProgramEpisode
from understudy.rollouts.program_config import ProgramConfig
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.serve.generation import ServedModel

ARGUMENTS = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": ARGUMENTS}} for name in ("f", "g")]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": ARGUMENTS}}
REPLIES: list[Any] = []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    served = load_tiny_served_model(make_short_context_model(tmp_path_factory.mktemp("model")))
    yield served
    served.sampler.close()


async def program(given: ProgramEpisode) -> str:
    """Ask freely, force a call, and force JSON."""
    for how in ({}, {"tools": TOOLS, "tool_choice": "required"}, {"response_format": SCHEMA}):
        REPLIES.append(await ask(given, list(given.prompt), **how))
    return "42"


def play(model: ServedModel, constraints: str) -> Trajectory:
    REPLIES.clear()
    config = ProgramConfig.model_validate({"function": f"{__name__}:program", "constraints": constraints})
    agent = ProgramAgent(config, model, SamplingParams(max_response_tokens=60))
    episode = asyncio.run(play_episode(SUMS, TASK, agent, EpisodeLimits(max_retries=0), seed=3))
    assert episode.fault is None, episode.error
    return episode


def test_masked_constraints_hold_and_are_trained_exactly(model: ServedModel) -> None:
    episode = play(model, "mask")
    _, called, written = REPLIES
    (call,) = called["tool_calls"]
    assert call["function"]["name"] in ("f", "g")
    assert json.loads(call["function"]["arguments"])["n"] in (1, 2)
    assert json.loads(written["content"])["n"] in (1, 2)
    assert episode.event_counts["program/constrained/tool_choice"] == 1
    assert episode.event_counts["program/constrained/response_format"] == 1
    assert "program/unconstrained" not in episode.event_counts
    free, *forced = episode.sequences
    assert not free.sampling_masks
    for sequence in forced:
        assert len(sequence.sampling_masks) == sum(sequence.mask)
        assert any(len(mask) == 1 for mask in sequence.sampling_masks)
    engine: Any = model.sampler
    batch = asyncio.run(engine.compute_logprobs(collate([episode], group_ids=[0])))
    for row, sequence in enumerate(episode.sequences):
        found = batch.logprobs[row][: len(sequence.tokens)][sequence.mask].tolist()
        sampled = [value for value, mask in zip(sequence.logprobs, sequence.mask, strict=True) if mask]
        assert found == pytest.approx(sampled, abs=1e-4)


def test_constraints_are_dropped_and_counted_by_default(model: ServedModel) -> None:
    episode = play(model, "off")
    assert episode.event_counts["program/unconstrained"] == 2
    assert "program/constrained" not in episode.event_counts
    assert not any(sequence.sampling_masks for sequence in episode.sequences)


def test_sampler_that_cannot_constrain_is_refused_before_an_episode(model: ServedModel) -> None:
    sampler = ReplySampler(model.tokenizer_file.parent, say("42")) if model.tokenizer_file else None
    assert sampler
    config = ProgramConfig(function=f"{__name__}:program", constraints="mask")
    served = ServedModel("tiny", sampler, sampler.format, model.vocabulary, tokenizer_file=model.tokenizer_file)
    with pytest.raises(ConfigError, match=r"agent\.constraints = 'mask'.*engine\.sampler=torch"):
        ProgramAgent(config, served, SamplingParams())


def test_missing_package_is_named(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ConfigError, match=r"agent\.constraints = 'mask'.*llguidance.*guided"):
        play(model, "mask")
