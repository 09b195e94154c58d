"""Sampling from a part of the vocabulary: beside plain Python, row by row, and through the engine on a random model."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import Tensor  # noqa: E402

from understudy.agent import EngineAgent  # noqa: E402
from understudy.batch import collate  # noqa: E402
from understudy.engines.base import Completion, Sampling  # noqa: E402
from understudy.engines.local import filters  # noqa: E402
from understudy.engines.local.choice import Choice  # noqa: E402
from understudy.engines.local.config import LocalConfig  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.formats import find  # noqa: E402
from understudy.messages import Message  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.tasks import Scenario, Score, Task  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402

ON = (
    Sampling(max_tokens=12, top_p=0.8),
    Sampling(max_tokens=12, top_k=5, temperature=0.7),
    Sampling(max_tokens=12, min_p=0.3, temperature=1.5),
    Sampling(max_tokens=12, repetition_penalty=1.8),
    Sampling(max_tokens=12, repetition_penalty=1.3, temperature=0.0),
    Sampling(max_tokens=12, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.2, temperature=0.9),
)


def drawn(logits: Sequence[float], s: Sampling, seen: Sequence[int], uniform: float) -> int:
    """The same, one token at a time, as the definitions say it."""
    scores = list(logits)
    for i in set(seen):
        scores[i] = scores[i] / s.repetition_penalty if scores[i] > 0 else scores[i] * s.repetition_penalty
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
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([0.1, 0.5, 0.93, 1.0]),
    top_k=st.sampled_from([0, 1, 4, 100]),
    min_p=st.sampled_from([0.0, 0.05, 0.6]),
    repetition_penalty=st.sampled_from([0.7, 1.0, 1.6]),
)
ROWS = st.lists(
    st.tuples(LOGITS, SAMPLINGS, st.lists(st.integers(0, 8), max_size=4), st.floats(0, 0.999)), min_size=1, max_size=5
)


@settings(max_examples=200)
@given(ROWS)
def test_each_row_is_what_the_definitions_say_whatever_stands_beside_it(rows: list[tuple]) -> None:  # type: ignore[type-arg]
    logits = torch.tensor([row[0] for row in rows])
    uniforms = torch.tensor([row[3] for row in rows])
    seen = [torch.tensor(row[2], dtype=torch.int64) for row in rows]
    tokens, logprobs = filters.sample(logits, [row[1] for row in rows], seen, uniforms)
    assert tokens.tolist() == [drawn(x, s, ids, float(u)) for (x, s, ids, _), u in zip(rows, uniforms, strict=True)]
    for i, (_, sampling, _, _) in enumerate(rows):
        full = (logits[i].double() / (sampling.temperature or 1.0)).log_softmax(-1)
        assert float(logprobs[i]) == pytest.approx(float(full[tokens[i]]), abs=1e-5)
        alone = filters.sample(logits[i : i + 1], [sampling], seen[i : i + 1], uniforms[i : i + 1])
        assert (alone[0][0], alone[1][0]) == (tokens[i], logprobs[i])


@pytest.mark.parametrize(
    "sampling", [Sampling(top_p=0.9), Sampling(top_k=7), Sampling(top_k=30, top_p=0.8), Sampling()]
)
def test_of_equally_likely_tokens_the_first_ones_stay(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(40, 300, generator=generator) * 6).round() / 4  # many equals
    uniforms = torch.rand(40, generator=generator)
    beside = [sampling, Sampling(top_p=0.5, temperature=0.6)]  # rows that leave another number of tokens
    samplings = [beside[i % 2] for i in range(40)]
    tokens, _ = filters.sample(logits, samplings, [torch.empty(0, dtype=torch.int64)] * 40, uniforms)
    rows = zip(logits.tolist(), samplings, uniforms.tolist(), strict=True)
    assert tokens.tolist() == [drawn(x, s, (), u) for x, s, u in rows]


def test_tokens_that_are_left_out_are_never_drawn_and_the_others_as_often_as_they_should() -> None:
    probs = torch.tensor([0.05, 0.5, 0.25, 0.2])
    count = 4000
    uniforms = (torch.arange(count) + 0.5) / count
    for sampling, expected in (
        (Sampling(top_p=0.7), [0, 2 / 3, 1 / 3, 0]),
        (Sampling(top_k=3), [0, 50 / 95, 25 / 95, 20 / 95]),
        (Sampling(min_p=0.45), [0, 2 / 3, 1 / 3, 0]),
        (Sampling(top_k=3, top_p=0.75), [0, 2 / 3, 1 / 3, 0]),  # of what top_k leaves, 0.75 * 0.95 is reached by two
    ):
        rows = probs.log().expand(count, -1)
        tokens, _ = filters.sample(rows, [sampling] * count, [torch.empty(0, dtype=torch.int64)] * count, uniforms)
        found = torch.bincount(tokens, minlength=4) / count
        assert found.tolist() == pytest.approx(expected, abs=2 / count)


# ---- through the engine ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def engine_of(folder: Path, **settings: object) -> LocalEngine:
    return LocalEngine(folder, LocalConfig.model_validate({"device": "cpu", "dtype": "float32"} | settings))


def asked(engine: LocalEngine, samplings: Sequence[Sampling], stops: Sequence[int] = ()) -> list[Completion]:
    async def together() -> list[Completion]:
        prompts = ([*b"Order 12, order 12, order", i] for i in range(len(samplings)))
        return await asyncio.gather(
            *(engine.sample(p, s, i, stops) for i, (p, s) in enumerate(zip(prompts, samplings, strict=True)))
        )

    return asyncio.run(together())


def full_logprobs(engine: LocalEngine, replies: Sequence[Completion], samplings: Sequence[Sampling]) -> list[Tensor]:
    found = []
    for i, (reply, sampling) in enumerate(zip(replies, samplings, strict=True)):
        episode = Trajectory("t", score=Score(reward=0.0))
        episode.observe([], [*b"Order 12, order 12, order", i])
        episode.act(Message(role="assistant"), reply.tokens, reply.logprobs)
        batch = asyncio.run(engine.forward(collate([episode], temperature=sampling.temperature or 1.0)))
        found.append(batch.logprobs[0, -len(reply.tokens) :])
    return found


def test_log_probabilities_are_the_trainers_and_rows_do_not_see_each_other(folder: Path) -> None:
    """Filtered and plain rows side by side, each as it is alone, guesses or none."""
    samplings = [*ON, Sampling(max_tokens=12), Sampling(max_tokens=12, temperature=0.4)]
    together = asked(engine_of(folder), samplings)
    unguessed = asked(engine_of(folder, rows=0), samplings)
    assert [r.tokens for r in together] == [r.tokens for r in unguessed]
    engine = engine_of(folder)
    for reply, expected in zip(together, full_logprobs(engine, together, samplings), strict=True):
        assert torch.allclose(torch.tensor(reply.logprobs), expected, atol=1e-4)
    for i, sampling in enumerate(samplings):
        plain = [Sampling(max_tokens=1)] * i
        assert asked(engine_of(folder), [*plain, sampling])[-1].tokens == together[i].tokens


def test_a_repetition_penalty_keeps_tokens_from_coming_again(folder: Path) -> None:
    (reply,) = asked(engine_of(folder), [Sampling(max_tokens=60, temperature=0.0, repetition_penalty=1e6)])
    assert len(set(reply.tokens)) == 60
    assert not set(reply.tokens) & set(b"Order 12, order 12, order\0")


def test_a_stop_string_ends_a_reply_with_the_token_that_completes_it(folder: Path) -> None:
    long = Sampling(max_tokens=40, temperature=0.9)
    (whole,) = asked(engine_of(folder), [long])
    pairs = [bytes(t if t < 128 else 0 for t in whole.tokens[i - 1 : i + 1]) for i in range(1, 40)]
    at = next(i for i, pair in enumerate(pairs) if i > 2 and 0 not in pair and pairs.index(pair) == i)
    stop, first = pairs[at].decode(), at + 2
    for rows in (0, 160):  # what was guessed right beyond the end is not taken
        (cut,) = asked(engine_of(folder, rows=rows), [long.replace(stop=("never", stop))])
        assert cut.tokens == whole.tokens[:first]
        assert cut.logprobs == pytest.approx(whole.logprobs[:first], abs=1e-5)
        assert cut.finish == "stop"


def test_an_agent_says_what_was_sampled_and_counts_the_stop_string(folder: Path) -> None:
    format = find(folder)
    agent = EngineAgent(engine_of(folder), format, Sampling(max_tokens=400, stop=tuple("aeiou0123456789 ,.<>{}")))
    episode = Trajectory("t")
    task = Task.model_construct(id="t", scenario=Scenario.model_construct())
    asyncio.run(agent.act(task, episode, [Message(role="user", content="Hi")], ()))
    asyncio.run(agent.act(task, episode, [Message(role="user", content="Yes")], ()))
    assert episode.counts["stop_string"] == 2
    assert "cut" not in episode.counts


def test_what_vllm_leaves_out_is_put_right_by_the_trainer(folder: Path) -> None:
    """vLLM's log-probabilities are those of what the filters leave: the engine reads the reply itself."""
    engine = engine_of(folder)
    (reply,) = asked(engine, ON[:1])
    sampled = Completion(reply.tokens, [0.0] * len(reply.tokens), reply.finish)

    class Vllm:
        async def sample(self, *_: object) -> Completion:
            return sampled

    engine._sampler, engine.choice = Vllm(), Choice("vllm", "")  # type: ignore[assignment]
    (again,) = asked(engine, ON[:1])
    assert again.tokens == reply.tokens
    assert again.logprobs == pytest.approx(reply.logprobs, abs=1e-4)
    (plain,) = asked(engine, [Sampling()])
    assert plain is sampled
