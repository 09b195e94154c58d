"""Test that a reply that fails in a batch fails alone, and that no sampling option can make one fail."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from understudy.core.errors import ConfigError, RolloutError
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.cpu import kernels
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.sampling import filters
from understudy.engines.models import make_tiny_model

CURSED = 250
"""The token after which the broken model computes NaN."""
HEALTHY = [[1, 2, 3, 4], [5, 6, 7], [8, 9]]
PLAIN = SamplingParams(max_response_tokens=8)
FILTERED = SamplingParams(max_response_tokens=8, top_p=0.9, repetition_penalty=1.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=["float32", "float64"])
def engine(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LocalEngine:
    """An engine with the C kernels, or without them."""
    if request.param == "float64":
        monkeypatch.setattr(kernels, "kernels_accept", lambda *tensors: False)
    return LocalEngine(folder, LocalEngineConfig(dtype="float32", threads=1, max_num_seqs=4))


async def sample_all(engine: LocalEngine, sampling: SamplingParams, *others: Any) -> list[Any]:
    """Return the replies to the healthy prompts, beside other calls whose results are at the end."""
    calls = [engine.sample(prompt, sampling, seed) for seed, prompt in enumerate(HEALTHY)]
    return await asyncio.wait_for(asyncio.gather(*calls, *others, return_exceptions=True), 120)


def assert_alone(engine: LocalEngine, sampling: SamplingParams, offender: Any) -> Any:
    """Assert that the others' replies are those without the offender. Return the offender's error."""
    *replies, error = asyncio.run(sample_all(engine, sampling, offender))
    later = asyncio.run(sample_all(engine, sampling))
    assert not any(slot.busy for slot in engine._sampling.sampler._cache.slots)
    engine._sampling.sampler.reset_prefix_cache()
    for expected, *found in zip(asyncio.run(sample_all(engine, sampling)), replies, later, strict=True):
        assert isinstance(expected, Completion)
        for reply in found:
            assert isinstance(reply, Completion), reply
            assert reply.tokens == expected.tokens
            assert reply.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    return error


@pytest.mark.parametrize("sampling", [PLAIN, FILTERED, PLAIN.replace(temperature=0.0), PLAIN.replace(min_p=0.1)])
def test_nan_logits_fail_their_own_reply_only(
    engine: LocalEngine, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = engine._model.hidden_states

    def broken(tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        hidden = healthy(tokens, *rest)
        hidden.view(-1, hidden.shape[-1])[tokens.view(-1) == CURSED] = torch.nan
        return hidden

    monkeypatch.setattr(engine._model, "hidden_states", broken)
    error = assert_alone(engine, sampling, engine.sample([1, 2, CURSED], sampling, 9))
    assert isinstance(error, RolloutError)
    assert error.fault == "engine"
    assert "NaN" in str(error)


class BrokenGrammar:
    """A grammar that allows the tokens `allowed` and fails when it accepts the token number `fails_at`."""

    def __init__(self, allowed: Sequence[int], fails_at: int) -> None:
        self._mask = bytes(token in allowed for token in range(256))
        self._fails_at, self._accepted = fails_at, 0

    def allowed_tokens(self) -> bytes:
        return self._mask

    def accept(self, token: int) -> None:
        self._accepted += 1
        if self._accepted == self._fails_at:
            raise RolloutError("the grammar has too many states", "engine")


@pytest.mark.parametrize(("allowed", "reason"), [([65], "too many states"), ([], "allows no token")])
def test_failing_grammar_fails_its_own_reply_only(engine: LocalEngine, allowed: list[int], reason: str) -> None:
    error = assert_alone(engine, PLAIN, engine.sample_constrained([1, 2], PLAIN, 9, BrokenGrammar(allowed, 3)))
    assert isinstance(error, RolloutError)
    assert reason in str(error)


def test_exception_of_a_token_callback_reaches_its_own_caller_only(engine: LocalEngine) -> None:
    seen: list[int] = []

    def on_tokens(tokens: Sequence[int], *_: object) -> None:
        seen.extend(tokens)
        if len(seen) > 2:
            raise ZeroDivisionError("the client's parser")

    error = assert_alone(engine, PLAIN, engine.sample([1, 2], PLAIN, 9, (), on_tokens))
    assert isinstance(error, ZeroDivisionError)
    assert seen == asyncio.run(engine.sample([1, 2], PLAIN, 9)).tokens[: len(seen)]


@pytest.mark.parametrize("token", [-1, 10**6])
def test_prompt_with_an_unknown_token_fails_alone(engine: LocalEngine, token: int) -> None:
    error = assert_alone(engine, PLAIN, engine.sample([1, token], PLAIN, 9))
    assert isinstance(error, ConfigError)
    assert str(token) in str(error)


@pytest.mark.parametrize("stop", [("\ud800", "\x00" * 300), ("\ufffd",), ("a" * 10_000,)])
def test_odd_stop_strings_fail_nobody(engine: LocalEngine, stop: tuple[str, ...]) -> None:
    reply = assert_alone(engine, PLAIN, engine.sample([1, 2], PLAIN.replace(stop=stop), 9))
    assert isinstance(reply, Completion)


@pytest.mark.parametrize(
    "option",
    [
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": math.inf},
        {"repetition_penalty": math.nan},
        {"temperature": 1e-300},
        {"temperature": math.inf},
        {"top_p": 5e-324},
        {"top_k": 2**31},
        {"max_response_tokens": 10**30},
    ],
)
def test_options_that_overflow_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(option))):
        SamplingParams(**option)


EXTREMES = [
    {"repetition_penalty": 0.01, "temperature": 1e-5},
    {"repetition_penalty": 100.0, "temperature": 1e-5, "top_p": 1e-6},
    {"temperature": 1e-5},
    {"temperature": 100.0, "top_k": 2**31 - 1},
    {"top_p": 1e-6, "min_p": 0.999999},
    {"temperature": 1e-5, "min_p": 0.999999},
]


@pytest.mark.parametrize("option", EXTREMES)
def test_extreme_options_sample_finite_tokens(engine: LocalEngine, option: dict[str, float]) -> None:
    reply = asyncio.run(engine.sample([1, 2, 3], SamplingParams(max_response_tokens=6, **option), 0))
    assert len(reply.tokens) == 6
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in reply.logprobs)


@pytest.mark.parametrize("option", EXTREMES)
def test_large_logits_stay_finite_within_the_bounds(option: dict[str, float]) -> None:
    logits = torch.linspace(-1e4, 1e4, 300)[None].contiguous()
    params, uniforms = SamplingParams(**option), torch.tensor([0.999])
    seen = [torch.arange(0, 300, 2)]
    for tokens, logprobs in (
        filters.sample_filtered(logits, [params], seen, uniforms)[:2],
        kernels.sample_tokens(logits, params.temperature, uniforms, params.min_p),
    ):
        assert 0 <= int(tokens) < 300
        assert not logprobs.isnan().any()
