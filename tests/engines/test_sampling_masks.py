"""Tests of sampling masks: what the sampler records, and training on the distribution that was sampled from."""

import asyncio
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from understudy.algorithms.batch import Batch, collate, plan_microbatches
from understudy.algorithms.config import LossConfig
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory, read_trajectories, write_trajectories
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.cpu import kernels
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.sampler_choice import SamplerChoice
from understudy.engines.local.scoring import compute_states, states_logprobs
from understudy.engines.local.token_logprobs import MaskRows, masked_token_logprobs, token_logprobs
from understudy.engines.models import make_tiny_model

PROMPT = [5, 9, 2]
FILTERS: tuple[dict[str, Any], ...] = (
    {"min_p": 0.5, "temperature": 1.4},
    {"min_p": 0.6, "temperature": 3.0},
    {"top_k": 4},
    {"top_p": 0.3, "temperature": 0.8},
    {"top_p": 0.9, "top_k": 50, "min_p": 0.3},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(folder: Path) -> LocalEngine:
    return LocalEngine(folder, LocalEngineConfig(device="cpu", dtype="float32", sampler="torch"))


def sample(engine: LocalEngine, params: SamplingParams, seeds: Sequence[int] = range(3)) -> list[Completion]:
    async def all_replies() -> list[Completion]:
        return list(await asyncio.gather(*(engine.sample(PROMPT, params, seed) for seed in seeds)))

    return asyncio.run(all_replies())


def row(completion: Completion) -> tuple[list[int], list[bool], list[float]]:
    count = len(completion.tokens)
    return [*PROMPT, *completion.tokens], [False] * 3 + [True] * count, [0.0] * 3 + completion.logprobs


def to_batch(completions: Sequence[Completion], temperature: float = 1.0) -> Batch:
    tokens, masks, logprobs = zip(*map(row, completions), strict=True)
    recorded = [completion.sampling_masks for completion in completions]
    return Batch.from_rows(tokens, masks, logprobs, temperature=temperature, sampling_masks=recorded)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def logits_of(plain: Any, tokens: Sequence[int]) -> Tensor:
    with torch.no_grad():
        return plain(torch.tensor([tokens])).logits[0, -1].double()  # type: ignore[no-any-return]


@pytest.mark.parametrize("filters", FILTERS)
def test_each_token_has_the_tokens_that_the_filters_kept(
    engine: LocalEngine, plain: Any, filters: dict[str, Any]
) -> None:
    params = SamplingParams(max_response_tokens=9, **filters)
    sizes = set()
    for completion in sample(engine, params):
        assert len(completion.sampling_masks) == len(completion.tokens) == 9
        for i, (token, mask) in enumerate(zip(completion.tokens, completion.sampling_masks, strict=True)):
            probs = (logits_of(plain, [*PROMPT, *completion.tokens[:i]]) / params.temperature).softmax(-1)
            order = probs.argsort(descending=True).tolist()
            kept = [t for t in order if probs[t] >= params.min_p * probs.max()][: params.top_k or None]
            sums = itertools.accumulate(float(probs[t]) for t in kept)
            total = float(probs[kept].sum())
            kept = [
                t for t, through in zip(kept, sums, strict=True) if through - float(probs[t]) < params.top_p * total
            ]
            assert (sorted(kept), token in mask) == (list(mask), True)
            expected = math.log(float(probs[token] / probs[kept].sum()))
            assert completion.logprobs[i] == pytest.approx(expected, abs=1e-4)
            sizes.add(len(mask))
    assert len(sizes) > 1 or params.top_k == 4


@pytest.mark.parametrize("filters", FILTERS)
def test_trainer_computes_the_log_probabilities_of_the_sampler(engine: LocalEngine, filters: dict[str, Any]) -> None:
    params = SamplingParams(max_response_tokens=9, **filters)
    batch = to_batch(sample(engine, params), params.temperature)
    trained = asyncio.run(engine.compute_logprobs(batch)).logprobs
    assert torch.allclose(trained, batch.logprobs, atol=1e-4)
    engine.set_reference()
    reference = asyncio.run(engine.compute_ref_logprobs(batch)).ref_logprobs
    assert reference is not None
    assert torch.allclose(reference, batch.logprobs, atol=1e-4)
    unmasked = replace(batch, mask_numbers=None, sampling_masks=None)
    assert (asyncio.run(engine.compute_logprobs(unmasked)).logprobs - trained).min() < -0.05


@pytest.mark.parametrize("filters", FILTERS)
def test_the_setting_changes_no_token(engine: LocalEngine, filters: dict[str, Any]) -> None:
    params = SamplingParams(max_response_tokens=9, **filters)
    kept, unkept = sample(engine, params), sample(engine, params.replace(keep_sampling_mask=False))
    assert [x.tokens for x in kept] == [x.tokens for x in unkept]
    assert not any(x.sampling_masks for x in unkept)
    batch = to_batch(unkept, params.temperature)
    assert batch.mask_numbers is None
    assert torch.allclose(asyncio.run(engine.compute_logprobs(batch)).logprobs, batch.logprobs, atol=1e-4)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.0, min_p=0.1)])
def test_nothing_is_recorded_without_a_filter_and_for_greedy_decoding(
    engine: LocalEngine, params: SamplingParams
) -> None:
    assert not any(completion.sampling_masks for completion in sample(engine, params))


class Digits:
    """A grammar that allows the digits, and after an even digit every token."""

    def __init__(self) -> None:
        self.allowed = bytes(token in range(48, 58) for token in range(300))

    def allowed_tokens(self) -> bytes:
        return self.allowed

    def accept(self, token: int) -> None:
        self.allowed = bytes(token % 2 == 0 or i in range(48, 58) for i in range(300))


@pytest.mark.parametrize("filters", [{}, {"min_p": 0.5}, {"top_k": 3}])
def test_a_grammar_is_part_of_the_mask(engine: LocalEngine, filters: dict[str, Any]) -> None:
    params = SamplingParams(max_response_tokens=8, **filters)

    async def all_replies() -> list[Completion]:
        each = (engine.sample_constrained(PROMPT, params, seed, Digits()) for seed in range(4))
        return [*await asyncio.gather(*each), await engine.sample(PROMPT, params, 1)]

    *constrained, free = asyncio.run(all_replies())
    first = [completion.sampling_masks[0] for completion in constrained]
    assert all(set(mask) <= set(range(48, 58)) for mask in first)
    assert bool(free.sampling_masks) == bool(filters)
    if not filters:
        assert first == [tuple(range(48, 58))] * 4
        assert max(len(mask) for completion in constrained for mask in completion.sampling_masks) > 200
    batch = to_batch([*constrained, free])
    assert torch.allclose(asyncio.run(engine.compute_logprobs(batch)).logprobs, batch.logprobs, atol=1e-4)


def random_masks(count: int, vocabulary: int) -> tuple[Tensor, MaskRows]:
    """Return targets, and masks of 1 to 40 ids that contain them."""
    generator = torch.Generator().manual_seed(7)
    targets = torch.randint(vocabulary, (count,), generator=generator)
    sets = [
        sorted({int(target), *torch.randint(vocabulary, (int(target) % 40,), generator=generator).tolist()})
        for target in targets
    ]
    sizes = torch.tensor([len(one) for one in sets])
    token_ids = torch.tensor([i for one in sets for i in one])
    return targets, MaskRows(sizes, token_ids, torch.repeat_interleave(sizes), sizes > 0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("is_gathered", [True, False])
def test_gradients_of_both_ways_equal_those_of_a_softmax_over_the_mask(
    monkeypatch: pytest.MonkeyPatch, is_gathered: bool, dtype: torch.dtype, tolerance: float
) -> None:
    monkeypatch.setattr("understudy.engines.local.token_logprobs.CHUNK_ROWS", 50)
    monkeypatch.setattr("understudy.engines.local.token_logprobs.LOGIT_CHUNK", 7)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(30, 16, generator=generator).to(dtype).requires_grad_()
    head = torch.randn(200, 16, generator=generator).to(dtype).requires_grad_()
    tokens = torch.tensor([3, 90, 150])
    rows = head.detach()[tokens].clone().requires_grad_()
    targets, masks = random_masks(30, 200)
    slopes = torch.randn(30, generator=generator)
    compute = masked_token_logprobs if is_gathered else token_logprobs
    logprobs, entropy = compute(hidden, head, targets, 1.3, rows, tokens, masks)
    found = torch.autograd.grad((logprobs * slopes).sum(), (hidden, head, rows))
    wide = [x.detach().double().requires_grad_() for x in (hidden, head)]
    outside = torch.ones(30, 200, dtype=torch.bool)
    outside[masks.owners, masks.token_ids] = False
    every = (wide[0] @ wide[1].T / 1.3).masked_fill(outside, -torch.inf).log_softmax(-1)
    expected = every.gather(-1, targets[:, None])[:, 0]
    assert torch.allclose(logprobs.double(), expected, atol=3 * tolerance)
    assert torch.allclose(entropy.double(), torch.special.entr(every.exp()).sum(-1), atol=3 * tolerance)
    gradients = torch.autograd.grad((expected * slopes).sum(), wide)
    for one, other in zip(found, (*gradients, gradients[1][tokens]), strict=True):
        assert float((one.double() - other).norm() / other.norm()) < tolerance


def expected_reward_gradient(
    plain: Any, params: SamplingParams, rewards: Sequence[float], names: Sequence[str]
) -> Tensor:
    """Return the gradient of the expected reward of replies of two tokens, by enumeration."""

    def kept_probs(tokens: Sequence[int]) -> dict[int, Tensor]:
        probs = (plain(torch.tensor([tokens])).logits[0, -1] / params.temperature).softmax(-1)
        kept = [t for t in probs.argsort(descending=True).tolist() if probs[t] >= params.min_p * probs.max()]
        kept = kept[: params.top_k or None]
        return {t: probs[t] / probs[kept].sum() for t in kept}

    expected = torch.zeros(())
    for first, chance in kept_probs(PROMPT).items():
        for second, chance_after in kept_probs([*PROMPT, first]).items():
            expected = expected + chance * chance_after * rewards[(31 * first + second) % len(rewards)]
    parameters = dict(plain.named_parameters())
    found = torch.autograd.grad(expected, [parameters[name] for name in names])
    return torch.cat([x.flatten() for x in found])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("filters", [{"top_k": 4}, {"min_p": 0.6, "temperature": 1.4}])
def test_policy_gradient_is_exact_with_masks_and_biased_without(
    tmp_path: Path, seed: int, filters: dict[str, Any]
) -> None:
    """The estimator's expectation over all replies that can be sampled is the gradient of the expected reward."""
    folder, params = make_tiny_model(tmp_path, seed=seed), SamplingParams(max_response_tokens=2, **filters)
    rewards = torch.randn(97, generator=torch.Generator().manual_seed(seed)).tolist()
    engine = LocalEngine(folder, LocalEngineConfig(device="cpu", dtype="float32", sampler="torch"))
    replies = {tuple(one.tokens): one for one in sample(engine, params, range(900))}
    chances = torch.tensor([math.exp(sum(one.logprobs)) for one in replies.values()])
    assert len(replies) > 8
    assert float(chances.sum()) == pytest.approx(1.0, abs=1e-3)
    earned = torch.tensor([rewards[(31 * first + second) % len(rewards)] for first, second in replies])
    batch, model = to_batch([*replies.values()], params.temperature), engine._model
    names = [*model.trainable_parameters()]

    def estimate(batch: Batch) -> Tensor:
        states = compute_states(model, batch, plan_microbatches(batch, 4096)[0])
        logprobs, _ = states_logprobs(model, states, batch)
        weighted = (logprobs * (chances * earned)[states.rows]).sum()
        found = torch.autograd.grad(weighted, [*model.trainable_parameters().values()])
        return torch.cat([x.flatten() for x in found])

    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    exact = expected_reward_gradient(plain, params, rewards, names)
    biases = [
        float((estimate(each) - exact).norm() / exact.norm())
        for each in (batch, replace(batch, mask_numbers=None, sampling_masks=None))
    ]
    print(biases)
    assert biases[0] < 1e-4
    assert biases[1] > 0.1


def test_a_token_alone_in_its_mask_has_no_gradient(engine: LocalEngine) -> None:
    tokens, masks = [*PROMPT, 7, 8], [False, False, False, True, True]
    batch = Batch.from_rows([tokens], [masks], sampling_masks=[[(7,), (8,)]])
    assert asyncio.run(engine.compute_logprobs(batch)).logprobs.tolist() == [[0.0] * 5]
    before = asyncio.run(engine.compute_logprobs(Batch.from_rows([tokens], [masks]))).logprobs
    trained = batch.replace(advantages=batch.mask.float())
    metrics = asyncio.run(engine.update([trained], LossConfig(), 1e-2))
    assert (metrics["grad_norm"], metrics["entropy"], metrics["ratio"]) == (0.0, 0.0, 1.0)
    after = asyncio.run(engine.compute_logprobs(Batch.from_rows([tokens], [masks]))).logprobs
    assert torch.allclose(before, after, atol=1e-6)


def test_rows_with_equal_tokens_may_have_different_masks(engine: LocalEngine) -> None:
    rows, masks = [[*PROMPT, 7, 8]] * 3, [[False, False, False, True, True]] * 3
    batch = Batch.from_rows(rows, masks, sampling_masks=[[(7, 9), (8, 10, 11)], [], [tuple(range(200)), ()]])
    found = asyncio.run(engine.compute_logprobs(batch)).logprobs
    full = asyncio.run(engine.compute_logprobs(Batch.from_rows(rows[:1], masks[:1]))).logprobs[0]
    assert torch.allclose(found[1], full, atol=1e-5)
    assert torch.allclose(found[2, 4], full[4], atol=1e-5)
    assert found[0, 3] > found[2, 3] > full[3]


def test_selected_rows_keep_their_masks() -> None:
    rows, masks = [[1, 2, 3]] * 3, [[False, True, True]] * 3
    batch = Batch.from_rows(rows, masks, sampling_masks=[[(2, 5), (3,)], [], [(2, 6, 7), (3,)]])
    part = batch.select([2, 1])
    assert part.mask_numbers is not None
    assert part.sampling_masks is not None
    assert part.sampling_masks.sizes(part.mask_numbers).tolist() == [[0, 3, 1], [0, 0, 0]]
    ids, owners = part.sampling_masks.select(part.mask_numbers[0])
    assert (ids.tolist(), owners.tolist()) == ([2, 6, 7, 3], [1, 1, 1, 2])
    assert Batch.from_rows(rows, masks, sampling_masks=[[], [], []]).mask_numbers is None


def test_episodes_store_masks_and_older_episodes_have_none(tmp_path: Path) -> None:
    episode = Trajectory("t", score=Score(reward=1.0))
    episode.observe([], [1, 2])
    episode.act(Message(role="assistant"), [3, 4], [-0.5, -0.5])
    write_trajectories(tmp_path / "old.jsonl", [episode])
    assert b"sampling_masks" not in (tmp_path / "old.jsonl").read_bytes()
    episode.act(Message(role="assistant"), [5, 6], [-0.5, 0.0], [(5, 7), (6,)])
    episode.act(Message(role="assistant"), [5], [-0.5], [(5, 7)])
    episode.act(Message(role="assistant"), [9], [-0.5])
    assert episode.sampling_masks == [(), (), (5, 7), (6,), (5, 7), ()]
    write_trajectories(tmp_path / "new.jsonl", [episode])
    stored = json.loads((tmp_path / "new.jsonl").read_bytes())["sampling_masks"]
    assert stored == {"sets": [[], [5, 7], [6]], "index": [0, 0, 1, 2, 1, 0]}
    for name, masks in (("old", []), ("new", episode.sampling_masks)):
        (found,), errors = read_trajectories(tmp_path / f"{name}.jsonl")
        assert (found.sampling_masks, errors) == (masks, [])
        assert (collate([found]).mask_numbers is None) == (name == "old")
    damaged = (tmp_path / "new.jsonl").read_bytes().replace(b'"index":[0,', b'"index":[3,')
    (tmp_path / "damaged.jsonl").write_bytes(damaged)
    assert len(read_trajectories(tmp_path / "damaged.jsonl")[1]) == 1
    with pytest.raises(ValueError, match="2 sampled tokens, 1 sampling masks"):
        episode.act(Message(role="assistant"), [5, 6], [-0.5, 0.0], [(5, 7)])
    with pytest.raises(ValueError, match=r"token 6 .* mask"):
        episode.act(Message(role="assistant"), [5, 6], [-0.5, 0.0], [(5, 7), (7,)])


@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_keeps_the_tokens_that_it_samples_from(
    monkeypatch: pytest.MonkeyPatch, min_p: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(20, 3000, generator=generator) * 3).to(dtype)
    logits[0, 5:], logits[1] = -torch.inf, 1.0  # a grammar; equal tokens, more than the kernel lists
    uniforms = torch.rand(20, generator=generator)
    found = [kernels.sample_likely_tokens(logits, 1.4, uniforms, min_p)]
    found.append(kernels.sample_likely_tokens(logits[2:], 1.4, uniforms[2:], min_p))  # the kernel lists all
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "kernels_accept", lambda *_: False)
        expected = kernels.sample_likely_tokens(logits, 1.4, uniforms, min_p)
    tokens, logprobs, kept = expected
    assert kept.counts[:2].tolist() == [
        len([i for i in range(5) if logits[0, i] >= logits[0, :5].max() + 1.4 * math.log(min_p or 1e-9)]),
        3000,
    ]
    for (tokens_too, logprobs_too, kept_too), first in zip(found, (0, 2), strict=True):
        assert torch.equal(tokens_too, tokens[first:])
        assert torch.allclose(logprobs_too, logprobs[first:], atol=1e-5)
        assert kept_too.tuples() == kept.tuples()[first:]
    plain = kernels.sample_tokens(logits, 1.4, uniforms, min_p)[0]
    assert torch.equal(plain, tokens)


def test_masks_of_vllm_replies_are_those_of_the_trainer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's log-probabilities are those over the tokens that it kept, which it does not name."""
    engine = LocalEngine(folder, LocalEngineConfig(device="cpu", dtype="float32", sampler="torch"))
    for filters in ({"min_p": 0.5, "temperature": 1.4}, {"top_p": 0.4}, {"top_k": 3, "repetition_penalty": 1.5}):
        params = SamplingParams(max_response_tokens=40, **filters)  # type: ignore[arg-type]
        (own,) = sample(engine, params, [0])
        reply = replace(own, sampling_masks=())

        async def sample_reply(*_: Any, reply: Completion = reply) -> Completion:
            return reply

        with monkeypatch.context() as patch:
            patch.setattr(engine._sampling, "choice", SamplerChoice("vllm", "a test"))
            patch.setattr(engine._sampling.sampler, "sample", sample_reply)
            (found,) = sample(engine, params, [0])
        assert list(found.sampling_masks) == list(own.sampling_masks)
        assert found.logprobs == pytest.approx(own.logprobs, abs=1e-4)
