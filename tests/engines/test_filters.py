"""Tests of top-p, top-k, min-p, penalties and stop strings, against plain Python and through the engine."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from understudy.algorithms.batch import collate
from understudy.core.messages import Message
from understudy.core.tasks import Scenario, Score, Task
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.sampler_choice import SamplerChoice
from understudy.engines.local.sampling import filters
from understudy.engines.models import make_tiny_model
from understudy.formats import load_chat_format
from understudy.rollouts.agent import EngineAgent

FILTERED = (
    SamplingParams(max_response_tokens=12, top_p=0.8),
    SamplingParams(max_response_tokens=12, top_k=5, temperature=0.7),
    SamplingParams(max_response_tokens=12, min_p=0.3, temperature=1.5),
    SamplingParams(max_response_tokens=12, repetition_penalty=1.8),
    SamplingParams(max_response_tokens=12, repetition_penalty=1.3, temperature=0.0),
    SamplingParams(max_response_tokens=12, frequency_penalty=0.5, presence_penalty=0.3),
    SamplingParams(max_response_tokens=12, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.2, temperature=0.9),
)


def reference_sample(
    logits: Sequence[float], s: SamplingParams, seen: Sequence[int], uniform: float, prompt_length: int = 0
) -> int:
    """Return the sampled token of one row, by the definitions of the filters."""
    scores, reply = list(logits), list(seen[prompt_length:])
    for i in set(seen):
        scores[i] = scores[i] / s.repetition_penalty if scores[i] > 0 else scores[i] * s.repetition_penalty
    for i in range(len(scores)):
        scores[i] -= s.frequency_penalty * reply.count(i) + s.presence_penalty * (i in reply)
    if s.temperature == 0:
        return scores.index(max(scores))
    weights = [math.exp((x - max(scores)) / s.temperature) for x in scores]
    kept = {i for i, w in enumerate(weights) if w >= s.min_p * max(weights)}
    order = sorted(kept, key=lambda i: (-weights[i], i))
    if s.top_k:
        least = weights[order[min(s.top_k, len(order)) - 1]]
        order = [i for i in order if weights[i] >= least]
    total, sum_, nucleus = sum(weights[i] for i in order), 0.0, []
    for i in order:
        if sum_ < s.top_p * total:
            nucleus.append(i)
        sum_ += weights[i]
    place, sum_ = uniform * sum(weights[i] for i in nucleus), 0.0
    for i in sorted(nucleus):
        sum_ += weights[i]
        if place < sum_:
            return i
    return max(nucleus)


LOGITS = st.lists(st.integers(-400, 400).map(lambda i: i / 64), min_size=9, max_size=9, unique=True)
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([0.1, 0.5, 0.93, 1.0]),
    top_k=st.sampled_from([0, 1, 4, 100]),
    min_p=st.sampled_from([0.0, 0.05, 0.6]),
    repetition_penalty=st.sampled_from([0.7, 1.0, 1.6]),
    frequency_penalty=st.sampled_from([-0.5, 0.0, 1.25]),
    presence_penalty=st.sampled_from([0.0, 0.75]),
)
ROWS = st.lists(
    st.tuples(LOGITS, SAMPLINGS, st.lists(st.integers(0, 8), max_size=4), st.floats(0, 0.999)), min_size=1, max_size=5
)


@settings(max_examples=200)
@given(ROWS)
def test_filtered_sampling_matches_the_reference_for_each_row(rows: list[tuple]) -> None:  # type: ignore[type-arg]
    logits = torch.tensor([row[0] for row in rows])
    uniforms = torch.tensor([row[3] for row in rows])
    seen = [torch.tensor(row[2], dtype=torch.int64) for row in rows]
    starts = [len(ids) // 2 for ids in seen]
    tokens, logprobs, *_ = filters.sample_filtered(logits, [row[1] for row in rows], seen, uniforms, None, starts)
    assert tokens.tolist() == [
        reference_sample(x, s, ids, float(u), n) for (x, s, ids, _), u, n in zip(rows, uniforms, starts, strict=True)
    ]
    for i, (_, sampling, _, _) in enumerate(rows):
        full = (logits[i].double() / (sampling.temperature or 1.0)).log_softmax(-1)
        assert float(logprobs[i]) == pytest.approx(float(full[tokens[i]]), abs=1e-5)
        one = slice(i, i + 1)
        alone = filters.sample_filtered(logits[one], [sampling], seen[one], uniforms[one], None, starts[one])
        assert (alone[0][0], alone[1][0]) == (tokens[i], logprobs[i])


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(top_p=0.9), SamplingParams(top_k=7), SamplingParams(top_k=30, top_p=0.8), SamplingParams()],
)
def test_filters_keep_the_first_of_equally_likely_tokens(sampling: SamplingParams) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(40, 300, generator=generator) * 6).round() / 4  # many logits are equal
    uniforms = torch.rand(40, generator=generator)
    beside = [sampling, SamplingParams(top_p=0.5, temperature=0.6)]  # the filters keep different numbers of tokens
    samplings = [beside[i % 2] for i in range(40)]
    tokens, *_ = filters.sample_filtered(logits, samplings, [torch.empty(0, dtype=torch.int64)] * 40, uniforms)
    rows = zip(logits.tolist(), samplings, uniforms.tolist(), strict=True)
    assert tokens.tolist() == [reference_sample(x, s, (), u) for x, s, u in rows]


def test_few_candidates_give_the_same_tokens_or_say_that_they_do_not() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(40, 300, generator=generator) * torch.linspace(0.5, 6, 40)[:, None]
    uniforms, nothing = torch.rand(40, generator=generator), [torch.empty(0, dtype=torch.int64)] * 40
    samplings = [SamplingParams(top_p=0.9), SamplingParams(top_p=0.9, top_k=50)] * 20
    exact, few = (filters.sample_filtered(logits, samplings, nothing, uniforms, count) for count in (None, 20))
    assert exact.is_exact.all()
    assert 10 < few.is_exact.sum() < 30
    assert torch.equal(few.tokens[few.is_exact], exact.tokens[few.is_exact])
    assert not torch.equal(few.tokens, exact.tokens)


def test_top_k_alone_is_exact_without_the_candidates_of_top_p() -> None:
    generator = torch.Generator().manual_seed(3)
    logits, uniforms = torch.randn(20, 300, generator=generator), torch.rand(20, generator=generator)
    samplings = [SamplingParams(top_k=k) for k in (19, 20, 21, 100, 300)] * 4
    nothing = [torch.empty(0, dtype=torch.int64)] * 20
    tokens, _, is_exact, _ = filters.sample_filtered(logits, samplings, nothing, uniforms, 20)
    assert is_exact.all()
    rows = zip(logits.tolist(), samplings, uniforms.tolist(), strict=True)
    assert tokens.tolist() == [reference_sample(x, s, (), u) for x, s, u in rows]


def test_filtered_sampling_has_the_expected_frequencies() -> None:
    probs = torch.tensor([0.05, 0.5, 0.25, 0.2])
    count = 4000
    uniforms = (torch.arange(count) + 0.5) / count
    for sampling, expected in (
        (SamplingParams(top_p=0.7), [0, 2 / 3, 1 / 3, 0]),
        (SamplingParams(top_k=3), [0, 50 / 95, 25 / 95, 20 / 95]),
        (SamplingParams(min_p=0.45), [0, 2 / 3, 1 / 3, 0]),
        (
            SamplingParams(top_k=3, top_p=0.75),
            [0, 2 / 3, 1 / 3, 0],
        ),  # two tokens reach 0.75 * 0.95 of what top_k keeps
    ):
        rows = probs.log().expand(count, -1)
        tokens, *_ = filters.sample_filtered(
            rows, [sampling] * count, [torch.empty(0, dtype=torch.int64)] * count, uniforms
        )
        found = torch.bincount(tokens, minlength=4) / count
        assert found.tolist() == pytest.approx(expected, abs=2 / count)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def engine_of(folder: Path, **settings: object) -> LocalEngine:
    return LocalEngine(folder, LocalEngineConfig.model_validate({"device": "cpu", "dtype": "float32"} | settings))


def sample_prompts(
    engine: LocalEngine, samplings: Sequence[SamplingParams], stops: Sequence[int] = ()
) -> list[Completion]:
    async def sample_all() -> list[Completion]:
        prompts = ([*b"Order 12, order 12, order", i] for i in range(len(samplings)))
        return await asyncio.gather(
            *(engine.sample(p, s, i, stops) for i, (p, s) in enumerate(zip(prompts, samplings, strict=True)))
        )

    return asyncio.run(sample_all())


def full_logprobs(
    engine: LocalEngine, replies: Sequence[Completion], samplings: Sequence[SamplingParams]
) -> list[Tensor]:
    found = []
    for i, (reply, sampling) in enumerate(zip(replies, samplings, strict=True)):
        episode = Trajectory("t", score=Score(reward=0.0))
        episode.observe([], [*b"Order 12, order 12, order", i])
        episode.act(Message(role="assistant"), reply.tokens, reply.logprobs, reply.sampling_masks)
        batch = asyncio.run(engine.compute_logprobs(collate([episode], temperature=sampling.temperature or 1.0)))
        found.append(batch.logprobs[0, -len(reply.tokens) :])
    return found


def test_filtered_logprobs_match_the_trainer_and_rows_are_independent(folder: Path) -> None:
    """Filtered and plain rows in one batch give the tokens of separate runs, with and without speculation."""
    samplings = [
        *FILTERED,
        SamplingParams(max_response_tokens=12),
        SamplingParams(max_response_tokens=12, temperature=0.4),
    ]
    together = sample_prompts(engine_of(folder), samplings)
    unguessed = sample_prompts(engine_of(folder, max_draft_rows=0), samplings)
    assert [r.tokens for r in together] == [r.tokens for r in unguessed]
    engine = engine_of(folder)
    for reply, expected in zip(together, full_logprobs(engine, together, samplings), strict=True):
        assert torch.allclose(torch.tensor(reply.logprobs), expected, atol=1e-4)
    for i, sampling in enumerate(samplings):
        plain = [SamplingParams(max_response_tokens=1)] * i
        assert sample_prompts(engine_of(folder), [*plain, sampling])[-1].tokens == together[i].tokens


def test_large_repetition_penalty_prevents_repeated_tokens(folder: Path) -> None:
    (reply,) = sample_prompts(
        engine_of(folder), [SamplingParams(max_response_tokens=60, temperature=0.0, repetition_penalty=100.0)]
    )
    assert len(set(reply.tokens)) == 60
    assert not set(reply.tokens) & set(b"Order 12, order 12, order\0")


def test_penalties_count_the_reply_and_not_the_prompt(folder: Path) -> None:
    """A penalty of 2 for each time moves the greedy reply away from repeated tokens, but only from its own."""
    greedy = SamplingParams(max_response_tokens=30, temperature=0.0)
    plain, first, penalized = sample_prompts(
        engine_of(folder),
        [greedy, greedy.replace(frequency_penalty=2.0, max_response_tokens=1), greedy.replace(frequency_penalty=2.0)],
    )
    assert len(set(penalized.tokens)) > len(set(plain.tokens))
    (alone,) = sample_prompts(engine_of(folder), [greedy.replace(max_response_tokens=1)])
    assert alone.tokens == plain.tokens[:1], "the first token of a reply has no penalty"
    assert len(first.tokens) == 1


def test_reply_ends_with_the_token_that_completes_a_stop_string(folder: Path) -> None:
    long = SamplingParams(max_response_tokens=40, temperature=0.9)
    (whole,) = sample_prompts(engine_of(folder), [long])
    pairs = [bytes(t if t < 128 else 0 for t in whole.tokens[i - 1 : i + 1]) for i in range(1, 40)]
    at = next(i for i, pair in enumerate(pairs) if i > 2 and 0 not in pair and pairs.index(pair) == i)
    stop, first = pairs[at].decode(), at + 2
    for rows in (0, 160):  # with drafts, accepted tokens after the stop are dropped
        (cut,) = sample_prompts(engine_of(folder, max_draft_rows=rows), [long.replace(stop=("never", stop))])
        assert cut.tokens == whole.tokens[:first]
        assert cut.logprobs == pytest.approx(whole.logprobs[:first], abs=1e-5)
        assert cut.finish_reason == "stop"


def test_agent_counts_replies_ended_by_a_stop_string(folder: Path) -> None:
    format = load_chat_format(folder)
    agent = EngineAgent(
        engine_of(folder), format, SamplingParams(max_response_tokens=400, stop=tuple("aeiou0123456789 ,.<>{}"))
    )
    episode = Trajectory("t")
    task = Task.model_construct(id="t", scenario=Scenario.model_construct())
    asyncio.run(agent.act(task, episode, [Message(role="user", content="Hi")], ()))
    asyncio.run(agent.act(task, episode, [Message(role="user", content="Yes")], ()))
    assert episode.event_counts["stop_string"] == 2
    assert "truncated" not in episode.event_counts


@pytest.mark.parametrize("params", [FILTERED[0].replace(keep_sampling_mask=False), FILTERED[3]])
def test_logprobs_of_filtered_vllm_replies_are_recomputed(folder: Path, params: SamplingParams) -> None:
    """vLLM reports log-probabilities after filters and penalties. Without masks, the engine recomputes them."""
    engine = engine_of(folder)
    (reply,) = sample_prompts(engine, [params])
    sampled = Completion(reply.tokens, [0.0] * len(reply.tokens), reply.finish_reason)

    class Vllm:
        async def sample(self, *_: object) -> Completion:
            return sampled

    engine._sampling.sampler, engine._sampling.choice = Vllm(), SamplerChoice("vllm", "")  # type: ignore[assignment]
    (again,) = sample_prompts(engine, [params])
    assert again.tokens == reply.tokens
    assert again.logprobs == pytest.approx(reply.logprobs, abs=1e-4)
    (plain,) = sample_prompts(engine, [SamplingParams()])
    assert plain is sampled
