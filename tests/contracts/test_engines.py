"""Test the local engine against transformers: sampling, log-probabilities, gradients and checkpoints."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.cpu_kernels import needs_kernels
from support.gradients import assert_all_close, compute_gradients
from understudy.algorithms import losses
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local import token_logprobs
from understudy.engines.local.checkpoint import STATE_FILE
from understudy.engines.local.config import LocalEngineConfig, LoraConfig, OptimizerConfig
from understudy.engines.local.cpu import fuse
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.sampling.kv_cache import KVCache
from understudy.engines.models import make_tiny_model
from understudy.engines.scripted import ScriptedSampler

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # peft reads a renamed property of transformers

ARCHITECTURES = ("llama", "qwen2", "qwen3")
STOPS = frozenset(range(0, 264, 12))
"""Enough stop tokens that replies of a random model end after about twelve tokens."""
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.08}
"""Tolerance of a log-probability. In bfloat16 a logit of order 1 is off by up to 2^-8, and each layer adds rounding."""
POLICY = "You help customers. Ask before you change anything."
PROMPTS = (
    *[f"{POLICY} Order {i}." for i in range(3)],
    f"{POLICY} Order 0.",
    f"{POLICY} Orde",
    "Grüße aus 東京 👩‍👩‍👧 \x00\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
    "A",
    "Quite another policy, which is shared by nobody but its twin.",
    "Quite another policy, which is shared by nobody but its twin!",
)
REPLY = Message(role="assistant", content="x")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_tiny_model(tmp_path_factory.mktemp(name), architecture=name) for name in ARCHITECTURES}


@pytest.fixture
def tiny(folders: dict[str, Path]) -> Path:
    return folders["llama"]


def make_config(dtype: str = "float32", finetune: str = "full", **settings: Any) -> LocalEngineConfig:
    values = {"device": "cpu", "dtype": dtype, "finetune": finetune, "lora": LoraConfig(rank=4, alpha=8.0)}
    return LocalEngineConfig.model_validate(values | settings)


def ids(text: str) -> list[int]:
    return list(text.encode("latin-1"))


async def sample_episode(
    engine: LocalEngine, prompt: Sequence[int], turns: int, sampling: SamplingParams, seed: int
) -> tuple[Trajectory, list[Completion]]:
    """Sample an episode of `turns` turns; the text of each next turn depends on the reply."""
    episode, replies = Trajectory("t", score=Score(reward=float(seed % 2))), []
    new = list(prompt)
    for turn in range(turns):
        episode.observe([], new)
        replies.append(await engine.sample(episode.tokens, sampling, seed * 10 + turn, STOPS))
        episode.act(REPLY, replies[-1].tokens, replies[-1].logprobs)
        new = ids(f"\nuser {len(replies[-1].tokens)}\n")
    return episode, replies


def sample_episodes(
    engine: LocalEngine, temperature: float = 0.8, turns: int = 3, prompts: Sequence[str] = PROMPTS
) -> tuple[Batch, list[Completion]]:
    """Sample episodes concurrently and return them as a batch with random advantages, and their completions."""

    async def sample_concurrently() -> list[tuple[Trajectory, list[Completion]]]:
        sampling = SamplingParams(max_response_tokens=16, temperature=temperature)
        each = (sample_episode(engine, ids(p), turns, sampling, seed) for seed, p in enumerate(prompts))
        return await asyncio.gather(*each)

    done = asyncio.run(sample_concurrently())
    batch = collate([episode for episode, _ in done], temperature=temperature or 1.0)
    advantages = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(1)) / 50
    return batch.replace(advantages=advantages * batch.mask), [reply for _, replies in done for reply in replies]


def run(call: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await call

    return asyncio.run(wait())


def plain_logprobs(model: Any, batch: Batch) -> Tensor:
    """Compute log-probabilities row by row with transformers, without a cache; 0 where not trained."""
    rows = []
    for tokens, length in zip(batch.tokens, batch.lengths.tolist(), strict=True):
        logits = model(tokens[None, :length]).logits[0, :-1].float() / batch.temperature
        found = logits.log_softmax(-1).gather(-1, tokens[1:length, None])[:, 0]
        rows.append(torch.nn.functional.pad(found, (1, batch.tokens.shape[1] - length)))
    return torch.stack(rows) * batch.mask


def load_transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def export_and_load(engine: LocalEngine, base: Path, folder: Path) -> Any:
    """Export the engine's model and load it with peft or transformers."""
    engine.export(folder)
    if (folder / "adapter_config.json").exists():
        from peft import PeftModel

        return PeftModel.from_pretrained(load_transformers_model(base), folder).eval()
    return load_transformers_model(folder)


def max_difference(found: Tensor, expected: Tensor, mask: Tensor) -> float:
    return float((found - expected)[mask].abs().max())


def copy_weights(engine: LocalEngine) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in engine._model.network.named_parameters()}


def same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("finetune", ["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sampler_trainer_and_transformers_logprobs_agree(
    folders: dict[str, Path], architecture: str, dtype: str, finetune: str, tmp_path: Path
) -> None:
    folder = folders[architecture]
    engine = LocalEngine(folder, make_config(dtype, finetune, max_num_seqs=4))
    for version in range(2):
        batch, replies = sample_episodes(engine)
        assert {reply.finish_reason for reply in replies} == {"stop", "length"}
        assert {reply.weights_version for reply in replies} == {version}
        with torch.no_grad():
            expected = plain_logprobs(export_and_load(engine, folder, tmp_path / str(version)), batch)
        trainer = run(engine.compute_logprobs(batch)).logprobs
        assert max_difference(batch.logprobs, expected, batch.mask) < TOLERANCE[dtype]
        assert max_difference(trainer, expected, batch.mask) < TOLERANCE[dtype]
        assert not trainer[~batch.mask].any()
        run(engine.update([batch], LossConfig(), 0.02))
        assert max_difference(run(engine.compute_logprobs(batch)).logprobs, trainer, batch.mask) > 3 * TOLERANCE[dtype]


def test_row_without_tokens_has_no_scores(tiny: Path) -> None:
    engine = LocalEngine(tiny, make_config())
    masks = [[False, False, True], []]
    batch = run(engine.compute_logprobs(Batch.from_rows([[1, 2, 5], []], masks))).logprobs
    assert batch[0, 2] < 0
    assert not batch[1].any()
    assert not run(engine.compute_logprobs(Batch.from_rows([[1, 2], []], [[False, False], []]))).logprobs.any()


def test_replies_end_at_a_stop_token_or_the_limit(tiny: Path) -> None:
    batch, replies = sample_episodes(LocalEngine(tiny, make_config(max_num_seqs=4)))
    for reply in replies:
        ended = reply.tokens[-1] in STOPS
        assert reply.finish_reason == ("stop" if ended else "length")
        assert ended or len(reply.tokens) == 16
        assert not STOPS & set(reply.tokens[:-1])
        assert len(reply.tokens) == len(reply.logprobs)
    assert int(batch.mask.sum()) == sum(len(reply.tokens) for reply in replies)


def test_reply_ends_at_the_context_length(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "narrow")
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"max_position_embeddings": 40}))
    engine = LocalEngine(folder, make_config(max_draft_rows=0))
    replies = {
        length: run(engine.sample([65] * length, SamplingParams(max_response_tokens=16), 0))
        for length in (8, 35, 39, 40, 50)
    }
    assert {length: len(reply.tokens) for length, reply in replies.items()} == {8: 16, 35: 5, 39: 1, 40: 0, 50: 0}
    assert {length: reply.context_full for length, reply in replies.items() if reply.context_full} == {
        40: True,
        50: True,
    }
    assert {reply.finish_reason for reply in replies.values()} == {"length"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_same_seed_gives_bitwise_equal_results(tiny: Path, dtype: str) -> None:
    def train_once(seed: int) -> tuple[Batch, dict[str, float], dict[str, Tensor]]:
        engine = LocalEngine(tiny, make_config(dtype, "lora"), seed)
        batch, _ = sample_episodes(engine)
        metrics = run(engine.update([batch], LossConfig(), 1e-2))
        return sample_episodes(engine)[0], metrics, copy_weights(engine)

    (one, metrics, moved), (other, again, moved_again), (_, _, third) = train_once(0), train_once(0), train_once(1)
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.logprobs, other.logprobs)
    assert metrics == again
    assert same_tensors(moved, moved_again)
    assert not same_tensors(moved, third), "the adapters are drawn from the seed"


def test_sampled_tokens_follow_the_models_distribution(tiny: Path) -> None:
    """Compare first tokens of many seeds with transformers' probabilities by a chi-squared test."""
    engine, count = LocalEngine(tiny, make_config(max_num_seqs=256)), 1500
    prompt, sampling = ids(POLICY), SamplingParams(max_response_tokens=1, temperature=0.3)

    async def draw() -> list[Completion]:
        return await asyncio.gather(*(engine.sample(prompt, sampling, seed) for seed in range(count)))

    with torch.no_grad():
        expected = (load_transformers_model(tiny)(torch.tensor([prompt])).logits[0, -1] / 0.3).softmax(-1) * count
    found = torch.bincount(torch.tensor([c.tokens[0] for c in asyncio.run(draw())]), minlength=264)
    often = expected > 5
    assert often.sum() > 10
    statistic = float(((found - expected)[often] ** 2 / expected[often]).sum())
    degrees = int(often.sum())
    assert abs(statistic - degrees) < 4 * (2 * degrees) ** 0.5


def test_temperature_0_samples_the_argmax_token(tiny: Path) -> None:
    batch, _ = sample_episodes(LocalEngine(tiny, make_config()), temperature=0.0)
    model = load_transformers_model(tiny)
    with torch.no_grad():
        for row, mask, length in zip(batch.tokens, batch.mask, batch.lengths.tolist(), strict=True):
            best = model(row[None, :length]).logits[0, :-1].argmax(-1)
            assert torch.equal(best[mask[1:length]], row[1:length][mask[1:length]])
        assert max_difference(batch.logprobs, plain_logprobs(model, batch), batch.mask) < 1e-4


def test_concurrent_requests_keep_their_temperature_and_length(tiny: Path) -> None:
    engine = LocalEngine(tiny, make_config())
    settings = [
        SamplingParams(max_response_tokens=n, temperature=t) for n, t in ((3, 0.0), (5, 2.0), (1, 0.5), (8, 2.0))
    ]

    async def together() -> list[Completion]:
        return await asyncio.gather(*(engine.sample(ids(POLICY), s, i) for i, s in enumerate(settings)))

    model = load_transformers_model(tiny)
    for sampling, reply in zip(settings, asyncio.run(together()), strict=True):
        assert len(reply.tokens) == sampling.max_response_tokens
        episode = Trajectory("t", score=Score(reward=0.0))
        episode.observe([], ids(POLICY))
        episode.act(REPLY, reply.tokens, reply.logprobs)
        batch = collate([episode], temperature=sampling.temperature or 1.0)
        with torch.no_grad():
            assert max_difference(batch.logprobs, plain_logprobs(model, batch), batch.mask) < 1e-4


@pytest.mark.parametrize("temperature", [0.0, 0.2, 1.0])
def test_speculative_drafts_do_not_change_replies(tiny: Path, temperature: float) -> None:
    """At a low temperature a random model repeats itself, so that many drafts are accepted; at a high one few are."""
    (without, plainly), (with_guesses, guessed) = (
        sample_episodes(LocalEngine(tiny, make_config(max_draft_rows=rows)), temperature, turns=4) for rows in (0, 1000)
    )
    assert [r.tokens for r in guessed] == [r.tokens for r in plainly]
    assert [r.finish_reason for r in guessed] == [r.finish_reason for r in plainly]
    assert max_difference(with_guesses.logprobs, without.logprobs, without.mask) < 1e-4


def test_empty_prompt_raises(tiny: Path) -> None:
    with pytest.raises(ValueError, match="prompt"):
        run(LocalEngine(tiny, make_config()).sample([], SamplingParams(), 0))


@pytest.fixture
def engine_and_passes(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalEngine, list[int]]:
    """Return an engine, and the list of the token counts of its forward passes."""
    engine, passes = LocalEngine(tiny, make_config()), list[int]()
    hidden = engine._model.hidden_states

    def record_tokens(tokens: Tensor, positions: Tensor, layout: Any) -> Tensor:
        passes.append(tokens.numel())
        return hidden(tokens, positions, layout)

    monkeypatch.setattr(engine._model, "hidden_states", record_tokens)
    return engine, passes


def sample_all(engine: LocalEngine, prompts: Sequence[Sequence[int]], max_tokens: int = 1) -> list[Completion]:
    async def together() -> list[Completion]:
        calls = (engine.sample(p, SamplingParams(max_response_tokens=max_tokens), i) for i, p in enumerate(prompts))
        return await asyncio.gather(*calls)

    return asyncio.run(together())


def test_shared_prompts_are_computed_once(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    engine, passes = engine_and_passes
    prompts = [[group, *range(40)] for group in range(100, 124)]
    sample_all(engine, [p for p in prompts for _ in range(2)])
    assert sum(passes) == 24 * 40 + 24  # each prompt, and one last token for both of its requests


def test_next_turn_computes_only_new_tokens(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    engine, passes = engine_and_passes
    prompts = [[*range(30), i] for i in range(3)]
    tokens = [p + reply.tokens for p, reply in zip(prompts, sample_all(engine, prompts, 4), strict=True)]
    assert sum(passes) == 30 + 3 * 1 + 3 * 3
    passes.clear()
    sample_all(engine, [[*t, 1, 2] for t in tokens])
    assert passes == [3 * 3]  # the last sampled token, which is not in the cache yet, and two new ones
    passes.clear()
    sample_all(engine, [[*range(30), 99]])
    assert passes == [1], "the prefix stays although its episodes may be over"
    run(engine.update([], LossConfig(), 1.0))
    passes.clear()
    sample_all(engine, [[*range(30), 99]])
    assert passes == [31], "but not beyond an update"


def test_accepted_drafts_save_forward_passes(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    engine, passes = engine_and_passes
    prompt = [*range(30)]

    def greedy() -> Completion:
        return run(engine.sample(prompt, SamplingParams(max_response_tokens=40, temperature=0.0), 0))

    first = greedy()
    engine._sampling.sampler._cache.clear()
    passes.clear()
    assert greedy().tokens == first.tokens
    assert passes == [30, 9, 9, 9, 9, 3], "the prompt, and nine tokens a pass: what was said before is known"


def test_prompts_without_a_cached_prefix_are_computed(engine_and_passes: tuple[LocalEngine, list[int]]) -> None:
    """Cover an equal end after another beginning, a different prefix, and a prompt shorter than a cached one."""
    engine, passes = engine_and_passes
    (reply,) = sample_all(engine, [[1, *range(30)]])
    passes.clear()
    sample_all(engine, [[2, *range(30), *reply.tokens, 7]])
    assert sum(passes) == 33
    sample_all(engine, [[3, *range(40), 1], [3, *range(40), 2]])
    passes.clear()
    sample_all(engine, [[4, *range(60)]])
    sample_all(engine, [[3, *range(39)]])
    assert passes == [61, 40]


def test_unused_cached_prefixes_are_evicted(tiny: Path) -> None:
    engine = LocalEngine(tiny, make_config(max_num_seqs=2))
    for first in range(0, 90, 6):
        sample_all(engine, [[group, *range(20), i] for group in range(first, first + 6) for i in range(2)])
    assert len(engine._sampling.sampler._cache.prefixes) <= 16 + 6


def test_growing_kv_cache_reallocates_one_tensor_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, seen = KVCache(2), []
    tokens = torch.zeros(0, dtype=torch.int64)
    for layer in range(3):
        cache.write(layer, tokens, tokens, torch.zeros(0, 1, 4), torch.zeros(0, 1, 4))
    grown = cache._grown

    def record_sizes(old: Tensor) -> Tensor:
        seen.append([x.shape[2] for x in (*cache.keys.values(), *cache.values.values())])
        return grown(old)

    monkeypatch.setattr(cache, "_grown", record_sizes)
    cache.reserve(100)
    assert seen == [[128] * done + [0] * (6 - done) for done in range(6)]


@pytest.mark.parametrize(
    ("architecture", "loss"),
    [(name, LossConfig(clip_low=0.1, clip_high=0.1)) for name in ARCHITECTURES]
    + [(ARCHITECTURES[0], LossConfig(kind=kind, clip_low=0.05, clip_high=0.05)) for kind in ("gspo", "cispo", "nll")],
)
def test_gradients_match_transformers_with_shared_prefixes(
    folders: dict[str, Path], architecture: str, loss: LossConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_logprobs, "LOGIT_CHUNK", 50)  # several chunks of positions
    folder = folders[architecture]
    engine = LocalEngine(folder, make_config(train_embeddings=True))
    batch, _ = sample_episodes(engine)
    noise = torch.randn(batch.logprobs.shape, generator=torch.Generator().manual_seed(2))
    batch = batch.replace(logprobs=batch.logprobs + 0.2 * noise)
    model = load_transformers_model(folder)
    value, expected_metrics = losses.compute_loss(
        loss, plain_logprobs(model, batch), batch.logprobs, batch.advantages, batch.mask
    )
    value.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    found, metrics = compute_gradients(engine, batch, loss)
    assert_all_close(found, expected, 1e-5)
    assert metrics["loss"] == pytest.approx(value.item(), abs=1e-5)
    count = float(batch.mask.sum())
    assert metrics["trained_tokens"] == count
    for key, total in expected_metrics.items():
        assert metrics[key] == pytest.approx(total.item() / count, abs=1e-4)
    assert metrics["computed_tokens"] < batch.lengths.sum(), "something is shared"


def test_prefix_tree_is_computed_once_and_matches_transformers(tiny: Path) -> None:
    """The tree has shared trained tokens, a row that is a prefix of others, and a duplicate row."""
    generator = torch.Generator().manual_seed(4)

    def random_tokens(count: int) -> list[int]:
        found: list[int] = torch.randint(0, 256, (count,), generator=generator).tolist()
        return found

    def play(*turns: tuple[list[int], list[int]]) -> Trajectory:
        episode = Trajectory("t", score=Score(reward=0.0))
        for seen, reply in turns:
            episode.observe([], seen)
            episode.act(REPLY, reply, [-5.0] * len(reply))
        return episode

    first, other = (random_tokens(20), random_tokens(7)), (random_tokens(9), random_tokens(6))
    second, third = (random_tokens(8), random_tokens(5)), (random_tokens(12), random_tokens(4))
    late = (second[0], [*second[1][:3], *random_tokens(4)])
    paths = [(first,), (first, second), (first, second, third), (first, second, third), (first, late), (first, third)]
    paths += [(other, second), (other, late), ((first[0], random_tokens(5)), second)]
    batch = collate([play(*path) for path in paths])
    batch = batch.replace(advantages=torch.randn(batch.tokens.shape, generator=generator) * batch.mask)
    model, loss = load_transformers_model(tiny), LossConfig(kind="nll")
    logprobs = plain_logprobs(model, batch)
    losses.compute_loss(loss, logprobs, batch.logprobs, batch.advantages, batch.mask)[0].backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    for tokens in (4096, 90, 60):
        engine = LocalEngine(tiny, make_config(max_tokens_per_microbatch=tokens))
        assert max_difference(run(engine.compute_logprobs(batch)).logprobs, logprobs.detach(), batch.mask) < 1e-4
        found, metrics = compute_gradients(engine, batch, loss)
        assert_all_close(found, {name: expected[name] for name in found}, 1e-5)
        assert metrics["trained_tokens"] == batch.mask.sum()
        if tokens == 4096:
            texts = [tuple(row[:n]) for row, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]
            assert metrics["computed_tokens"] == len({text[: i + 1] for text in texts for i in range(len(text))})


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_microbatches_order_and_padding_do_not_change_gradients(tiny: Path, finetune: str) -> None:
    engine = LocalEngine(tiny, make_config(finetune=finetune))
    batch, _ = sample_episodes(engine)
    run(engine.update([batch], LossConfig(), 1e-2))  # adapters start at 0, where half of their gradients are 0
    expected, metrics = compute_gradients(engine, batch)
    logprobs = run(engine.compute_logprobs(batch)).logprobs
    widen = {
        name: torch.nn.functional.pad(getattr(batch, name), (0, 7))
        for name in ("tokens", "mask", "logprobs", "advantages")
    }
    for other in (batch.select(torch.arange(len(batch)).flip(0)), batch.replace(**widen)):
        assert_all_close(compute_gradients(engine, other)[0], expected, 1e-5)
    for tokens in (1, 100, 300):
        engine._config = engine._config.replace(max_tokens_per_microbatch=tokens)
        found, cut = compute_gradients(engine, batch)
        assert_all_close(found, expected, 1e-5)
        assert {k: v for k, v in cut.items() if k not in ("computed_tokens", "distinct_tokens")} == pytest.approx(
            {k: v for k, v in metrics.items() if k not in ("computed_tokens", "distinct_tokens")}, abs=1e-5, rel=1e-5
        )
        assert max_difference(run(engine.compute_logprobs(batch)).logprobs, logprobs, batch.mask) < 1e-4


def test_untrained_tokens_do_not_affect_gradients(tiny: Path) -> None:
    engine = LocalEngine(tiny, make_config())
    batch, _ = sample_episodes(engine)
    assert batch.advantages is not None
    expected, _ = compute_gradients(engine, batch)
    untrained = ~batch.mask
    altered = batch.replace(
        advantages=batch.advantages + 5.0 * untrained,
        logprobs=batch.logprobs.masked_fill(untrained, float("nan")),
        tokens=batch.tokens.masked_fill(torch.arange(batch.tokens.shape[1]) >= batch.lengths[:, None], 263),
    )
    found, _ = compute_gradients(engine, altered)
    assert_all_close(found, expected, 1e-7)


def test_rows_with_zero_advantage_are_skipped(tiny: Path) -> None:
    engine = LocalEngine(tiny, make_config())
    batch, _ = sample_episodes(engine)
    assert batch.advantages is not None
    batch = batch.replace(advantages=batch.advantages * (torch.arange(len(batch)) % 2)[:, None])
    found, metrics = compute_gradients(engine, batch)
    expected, alone = compute_gradients(engine, batch.select(torch.arange(1, len(batch), 2)))
    assert same_tensors(found, expected)
    assert metrics == alone
    with pytest.raises(ValueError, match="advantages"):
        run(engine.update([dataclasses.replace(batch, advantages=None)], LossConfig(), 0.0))


@pytest.mark.parametrize("position", ["alone", "first", "last"])
def test_minibatch_without_trained_tokens_keeps_the_weights(tiny: Path, position: str) -> None:
    """After a step, Adam's momentum would move the weights without a gradient."""
    without, with_idle = (LocalEngine(tiny, make_config(optimizer=OptimizerConfig(weight_decay=0.1))) for _ in range(2))
    batch, _ = sample_episodes(without)
    idle = batch.replace(advantages=torch.zeros_like(batch.logprobs))
    minibatches = {"alone": [idle], "first": [idle, batch], "last": [batch, idle]}[position]
    for engine in (without, with_idle):
        first = run(engine.update([batch], LossConfig(), 1e-3))
    if position != "alone":
        run(without.update([batch], LossConfig(), 1e-3))
    seen: dict[int, Tensor] = {}
    metrics = run(with_idle.update(minibatches, LossConfig(), 1e-3, seen.__setitem__))
    assert same_tensors(without._optimizer.state_dict(), with_idle._optimizer.state_dict())
    assert [bool(seen[i].isnan().all()) for i in range(len(minibatches))] == [part is idle for part in minibatches]
    if position == "alone":
        assert (metrics["grad_norm"], metrics["relative_weight_change"], metrics["trained_tokens"]) == (0.0, 0.0, 0.0)
    else:
        assert metrics.keys() >= first.keys() - {"first_minibatch_ratio", "first_minibatch_ratio_mse"}
        assert metrics["trained_tokens"] == first["trained_tokens"] > 0


def test_update_matches_adamw_on_clipped_gradients(tiny: Path) -> None:
    """Compare two steps with torch's AdamW on a plain model."""
    optimizer = OptimizerConfig(weight_decay=0.1, max_grad_norm=0.01)
    engine = LocalEngine(tiny, make_config(optimizer=optimizer))
    batch, _ = sample_episodes(engine)
    assert batch.advantages is not None
    steps = [batch, batch.replace(advantages=-2 * batch.advantages)]
    metrics = run(engine.update(steps, LossConfig(), 1e-3))
    model = load_transformers_model(tiny)
    model.get_input_embeddings().requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    norms = []
    for step in steps:
        adam.zero_grad()
        losses.compute_loss(LossConfig(), plain_logprobs(model, step), step.logprobs, step.advantages, step.mask)[
            0
        ].backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 0.01).item())
        adam.step()
    assert min(norms) > 0.01
    assert metrics["grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-3)
    for (name, found), expected in zip(engine._model.network.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=3e-5, rtol=0, msg=name)


def test_small_updates_accumulate_in_bfloat16(tiny: Path) -> None:
    """Each step is below the rounding of a weight; the float32 master weights accumulate them."""
    engine = LocalEngine(tiny, make_config("bfloat16"))
    batch, _ = sample_episodes(engine)
    before, masters = copy_weights(engine), {n: m.detach().clone() for n, m in engine._optimizer.masters.items()}
    run(engine.update([batch] * 10, LossConfig(kind="nll"), 2e-5))
    name = "model.layers.0.self_attn.q_proj.weight"
    moved = (engine._optimizer.masters[name] - masters[name]).abs()
    assert float(moved.detach().median()) > 1e-4
    assert not torch.equal(copy_weights(engine)[name], before[name])
    assert torch.equal(copy_weights(engine)[name], engine._optimizer.masters[name].detach().bfloat16())


def test_sft_updates_lower_the_nll_loss(tiny: Path) -> None:
    engine = LocalEngine(tiny, make_config())
    batch, _ = sample_episodes(engine)
    batch = batch.replace(advantages=batch.mask / batch.mask.sum())
    found = [run(engine.update([batch], LossConfig(kind="nll"), 3e-3))["nll_loss"] for _ in range(8)]
    assert found[-1] < 0.7 * found[0]


@pytest.mark.parametrize(("dtype", "finetune"), [("float32", "full"), ("bfloat16", "full"), ("bfloat16", "lora")])
def test_resumed_engine_equals_uninterrupted(tiny: Path, tmp_path: Path, dtype: str, finetune: str) -> None:
    def sample_and_update(engine: LocalEngine) -> tuple[Batch, dict[str, float], dict[str, Tensor], Tensor]:
        first, replies = sample_episodes(engine)
        assert {reply.weights_version for reply in replies} == {2}
        metrics = run(engine.update([first], LossConfig(), 1e-2))
        frozen = run(engine.compute_ref_logprobs(first)).ref_logprobs
        return first, metrics, copy_weights(engine), frozen

    engine = LocalEngine(tiny, make_config(dtype, finetune))
    batch, _ = sample_episodes(engine)
    run(engine.update([batch], LossConfig(), 1e-2))
    engine.set_reference()
    run(engine.update([batch], LossConfig(), 1e-2))
    sample_episodes(engine, prompts=PROMPTS[:2])  # fills the cache, as an evaluation does
    engine.save(tmp_path)
    expected = sample_and_update(engine)
    resumed = LocalEngine(tiny, make_config(dtype, finetune), seed=5)
    resumed.load(tmp_path)
    found = sample_and_update(resumed)
    assert torch.equal(found[0].tokens, expected[0].tokens)
    assert torch.equal(found[0].logprobs, expected[0].logprobs)
    assert found[1] == expected[1]
    assert same_tensors(found[2], expected[2])
    assert torch.equal(found[3], expected[3])
    assert resumed.weights_version == engine.weights_version == 3


@pytest.mark.parametrize(("dtype", "finetune"), [("float32", "full"), ("bfloat16", "full"), ("bfloat16", "lora")])
def test_inference_engine_loads_a_training_checkpoint(tiny: Path, tmp_path: Path, dtype: str, finetune: str) -> None:
    engine = LocalEngine(tiny, make_config(dtype, finetune))
    batch, _ = sample_episodes(engine)
    run(engine.update([batch], LossConfig(), 1e-2))
    engine.set_reference()
    run(engine.update([batch], LossConfig(), 1e-2))
    engine.save(tmp_path)
    reader = LocalEngine(tiny, make_config(dtype, finetune), trainable=False)
    assert not same_tensors(copy_weights(reader), copy_weights(engine))
    reader.load(tmp_path)
    assert same_tensors(copy_weights(reader), copy_weights(engine))
    (found, replies), (expected, _) = sample_episodes(reader), sample_episodes(engine)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.logprobs, expected.logprobs)
    assert {reply.weights_version for reply in replies} == {reader.weights_version} == {2}


def test_inference_engine_creates_and_loads_no_optimizer(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("an optimizer was made")

    engine = LocalEngine(tiny, make_config())
    run(engine.update([sample_episodes(engine)[0]], LossConfig(), 1e-2))
    engine.save(tmp_path)
    masters = {name: x for name, x in load_file(tmp_path / STATE_FILE).items() if name.startswith("master.")}
    save_file(masters, tmp_path / STATE_FILE, {"about": '{"version": 1}'})
    monkeypatch.setattr("understudy.engines.local.engine.MasterAdamW", refuse)
    with pytest.raises(AssertionError, match="an optimizer was made"):
        LocalEngine(tiny, make_config())
    reader = LocalEngine(tiny, make_config(), trainable=False)
    reader.load(tmp_path)
    assert same_tensors(copy_weights(reader), copy_weights(engine))


def test_inference_engine_rejects_training_calls(tiny: Path, tmp_path: Path) -> None:
    reader = LocalEngine(tiny, make_config(), trainable=False)
    batch, _ = sample_episodes(reader, turns=1)
    before = copy_weights(reader)
    for refused in (
        lambda: run(reader.update([batch], LossConfig(), 1e-2)),
        lambda: reader.save(tmp_path),
        reader.reset_optimizer,
        reader.set_reference,
    ):
        with pytest.raises(ValueError, match="trainable=True"):
            refused()
    assert same_tensors(copy_weights(reader), before)
    assert reader.weights_version == 0
    assert not any(tmp_path.iterdir())


def test_reset_optimizer_clears_moments_and_keeps_weights(tiny: Path, tmp_path: Path) -> None:
    engine = LocalEngine(tiny, make_config())
    batch, _ = sample_episodes(engine)
    run(engine.update([batch], LossConfig(), 1e-2))
    engine.reset_optimizer()
    engine.save(tmp_path)
    before = copy_weights(engine)
    other = LocalEngine(tiny, make_config())
    other.load(tmp_path)
    assert same_tensors(copy_weights(other), before)
    for each in (engine, other):
        run(each.update([batch], LossConfig(kind="nll"), 1e-2))
    assert same_tensors(copy_weights(engine), copy_weights(other))
    still = LocalEngine(tiny, make_config())
    run(still.update([batch], LossConfig(), 1e-2))
    run(still.update([batch], LossConfig(kind="nll"), 1e-2))
    assert not same_tensors(copy_weights(still), copy_weights(engine)), "moments would have mattered"


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-100]),
        lambda file: file.write_bytes(b"\xff" * 1000),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["gone", "empty", "cut", "noise", "folder"],
)
def test_damaged_checkpoint_raises_config_error(tiny: Path, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    engine = LocalEngine(tiny, make_config())
    engine.save(tmp_path)
    before = copy_weights(engine)
    damage(tmp_path / STATE_FILE)
    for each in (engine, LocalEngine(tiny, make_config(), trainable=False)):
        with pytest.raises(ConfigError, match=r"optimizer\.safetensors: "):
            each.load(tmp_path)
        assert same_tensors(copy_weights(each), before)


@pytest.mark.parametrize("other", ["lora", "embeddings", "architecture", "deeper", "wider", "file"])
def test_checkpoint_of_another_model_raises_config_error(folders: dict[str, Path], tmp_path: Path, other: str) -> None:
    engine, folder, settings = LocalEngine(folders["llama"], make_config()), folders["llama"], make_config()
    if other == "lora":
        settings = make_config(finetune="lora")
    elif other == "embeddings":
        settings = make_config(train_embeddings=True)
    elif other == "architecture":
        folder = folders["qwen3"]
    else:
        folder = make_tiny_model(tmp_path / "model", num_layers=3, hidden_size=64 + 32 * (other == "wider"))
    theirs = LocalEngine(folder, settings)
    theirs.save(tmp_path)
    if other == "file":
        (tmp_path / "model" / "model.safetensors").rename(tmp_path / STATE_FILE)
    before = copy_weights(engine)
    for each in (engine, LocalEngine(folders["llama"], make_config(), trainable=False)):
        with pytest.raises(ConfigError, match=r"optimizer\.safetensors: "):
            each.load(tmp_path)
        assert same_tensors(copy_weights(each), before)


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_reference_logprobs_do_not_change_with_updates(tiny: Path, finetune: str) -> None:
    engine = LocalEngine(tiny, make_config("bfloat16", finetune))
    batch, _ = sample_episodes(engine)
    with pytest.raises(ValueError, match="set_reference"):
        run(engine.compute_ref_logprobs(batch))
    run(engine.update([batch], LossConfig(), 1e-2))
    engine.set_reference()
    expected = run(engine.compute_logprobs(batch)).logprobs
    run(engine.update([batch], LossConfig(), 1e-2))
    before, current = copy_weights(engine), run(engine.compute_logprobs(batch)).logprobs
    found = run(engine.compute_ref_logprobs(batch))
    assert torch.equal(found.ref_logprobs, expected)
    assert torch.equal(found.logprobs, batch.logprobs)
    assert same_tensors(copy_weights(engine), before)
    assert torch.equal(run(engine.compute_logprobs(batch)).logprobs, current)
    assert not torch.equal(current, expected)


def test_lora_keeps_base_weights_and_exports_to_peft(tiny: Path, tmp_path: Path) -> None:
    engine = LocalEngine(
        tiny, make_config(finetune="lora", lora=LoraConfig(rank=3, alpha=9.0, target_modules=("q_proj", "down_proj")))
    )
    before = {name.replace(".base_layer", ""): x for name, x in copy_weights(engine).items() if "lora_" not in name}
    original = dict(load_transformers_model(tiny).named_parameters())
    assert same_tensors(before, {name: p.detach() for name, p in original.items()})
    batch, _ = sample_episodes(engine)
    run(engine.update([batch], LossConfig(), 0.05))
    after = {name.replace(".base_layer", ""): x for name, x in copy_weights(engine).items() if "lora_" not in name}
    assert same_tensors(before, after)
    trained = engine._model.trainable_parameters()
    assert {name.split(".")[-4] for name in trained} == {"q_proj", "down_proj"}
    assert sum(p.numel() for p in trained.values()) == 2 * 3 * (64 + 64 + 192 + 64)
    moved = export_and_load(engine, tiny, tmp_path)
    with torch.no_grad():
        found = plain_logprobs(moved.merge_and_unload(), batch)
        assert max_difference(found, run(engine.compute_logprobs(batch)).logprobs, batch.mask) < 1e-4
        assert max_difference(found, plain_logprobs(load_transformers_model(tiny), batch), batch.mask) > 0.01


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory: you tried 9 GB"),
        MemoryError(),
    ],
    ids=["cuda", "cpu", "python"],
)
def test_out_of_memory_error_names_the_setting_to_reduce(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    engine = LocalEngine(tiny, make_config(max_num_seqs=7, max_tokens_per_microbatch=99))
    batch, _ = sample_episodes(engine)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(engine._model, "hidden_states", fail)
    with pytest.raises(ConfigError, match=r"out of memory.*engine\.max_num_seqs\b.*\b7\b"):
        run(engine.sample([1, 2], SamplingParams(), 0))
    for call in (engine.update([batch], LossConfig(), 1e-3), engine.compute_logprobs(batch)):
        with pytest.raises(ConfigError, match=r"out of memory.*engine\.max_tokens_per_microbatch\b.*\b99\b"):
            run(call)


def test_illegal_memory_access_is_not_reported_as_out_of_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalEngine(tiny, make_config())
    batch, _ = sample_episodes(engine, turns=1)

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(engine._model, "hidden_states", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run(engine.compute_logprobs(batch))


@pytest.mark.parametrize("when", ["prefix", "prefill", "decode"])
def test_failing_pass_fails_pending_requests_but_not_later_ones(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    engine = LocalEngine(tiny, make_config(max_num_seqs=2))
    hidden, passes = engine._model.hidden_states, itertools.count()
    fatal = {"prefix": 0, "prefill": 1, "decode": 3}[when]

    def failing(*arguments: Any) -> Tensor:
        if next(passes) == fatal:
            raise RuntimeError("the roof is on fire")
        return hidden(*arguments)

    monkeypatch.setattr(engine._model, "hidden_states", failing)
    prompts = [[*range(20), i] for i in range(5)]

    async def all_at_once() -> tuple[list[object], list[Completion]]:
        calls = (engine.sample(p, SamplingParams(max_response_tokens=6), i) for i, p in enumerate(prompts))
        failed = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 120)
        calls = (engine.sample(p, SamplingParams(max_response_tokens=6), i) for i, p in enumerate(prompts))
        return list(failed), await asyncio.wait_for(asyncio.gather(*calls), 120)

    failed, later = asyncio.run(all_at_once())
    assert [str(error) for error in failed] == ["the roof is on fire"] * 5
    assert [len(reply.tokens) for reply in later] == [6] * 5


def test_cancelled_requests_do_not_affect_others(tiny: Path) -> None:
    engine = LocalEngine(tiny, make_config(max_num_seqs=3))
    prompts = [[*range(20), i] for i in range(8)]

    async def some_leave() -> list[object]:
        calls = [
            asyncio.ensure_future(engine.sample(p, SamplingParams(max_response_tokens=20), i))
            for i, p in enumerate(prompts)
        ]
        for turn in range(40):
            await asyncio.sleep(0)
            if turn % 8 == 0:
                calls[turn // 8].cancel()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 120)

    done = asyncio.run(some_leave())
    assert [type(x).__name__ for x in done] == ["CancelledError"] * 5 + ["Completion"] * 3
    assert not engine._sampling.sampler._unanswered
    assert not any(slot.busy for slot in engine._sampling.sampler._cache.slots)
    for prompt, reply in zip(prompts[5:], done[5:], strict=True):
        assert isinstance(reply, Completion)
        episode = Trajectory("t", score=Score(reward=0.0))
        episode.observe([], prompt)
        episode.act(REPLY, reply.tokens, reply.logprobs)
        batch = collate([episode])
        assert max_difference(run(engine.compute_logprobs(batch)).logprobs, batch.logprobs, batch.mask) < 1e-4


def test_engine_is_idle_after_all_requests_are_cancelled(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = LocalEngine(tiny, make_config())

    async def all_leave() -> Completion:
        calls = [asyncio.ensure_future(engine.sample([1, 2, 3], SamplingParams(), i)) for i in range(3)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        driver = engine._sampling.sampler._driver
        assert driver is not None
        await asyncio.wait_for(driver, 120)
        assert driver.exception() is None
        return await asyncio.wait_for(engine.sample([1, 2, 3], SamplingParams(max_response_tokens=2), 0), 120)

    assert len(asyncio.run(all_leave()).tokens) == 2
    assert not caplog.records


def test_cancelled_request_stops_sampling(tiny: Path) -> None:
    engine = LocalEngine(tiny, make_config())

    async def leave() -> bool:
        call = asyncio.ensure_future(engine.sample([1, 2, 3], SamplingParams(max_response_tokens=100_000), 0))
        for _ in range(30):
            await asyncio.sleep(0)
        call.cancel()
        for _ in range(30):
            await asyncio.sleep(0)
        assert engine._sampling.sampler._driver is not None
        return engine._sampling.sampler._driver.done()

    assert asyncio.run(leave())


def test_engine_works_in_successive_event_loops(tiny: Path) -> None:
    """One of the loops is closed while replies are being sampled."""
    engine = LocalEngine(tiny, make_config(max_num_seqs=2))

    async def give_up() -> None:
        calls = [
            asyncio.ensure_future(engine.sample([1, 2, i], SamplingParams(max_response_tokens=500), i))
            for i in range(4)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        raise ZeroDivisionError(len(calls))

    expected = sample_all(engine, [[1, 2, 3]], 5)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(give_up())
    assert sample_all(engine, [[1, 2, 3]], 5)[0].tokens == expected[0].tokens
    assert sample_all(engine, [[1, 2, 3]] * 4, 5)[0].tokens == expected[0].tokens


def test_unknown_modules_and_missing_devices_raise_config_error(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"'w_proj'.*q_proj"):
        LocalEngine(tiny, make_config(finetune="lora", lora=LoraConfig(target_modules=("w_proj",))))
    missing = next(
        name for name in ("mps", "cuda") if not getattr(torch, name if name == "cuda" else "mps").is_available()
    )
    with pytest.raises(ConfigError, match=rf"'{missing}'.*cpu"):
        LocalEngine(tiny, make_config(device=missing))


def test_rows_may_be_longer_than_the_window_but_not_than_the_context(tmp_path: Path) -> None:
    """Within the context log-probabilities equal the model's own; longer batches are neither sampled nor trained on."""
    from transformers import MistralConfig, MistralForCausalLM, Phi3Config, Phi3ForCausalLM

    def make_batch(count: int) -> Batch:
        episode = Trajectory("t", score=Score(reward=0.0))
        episode.observe([], ids("order W10423 is late"[:count]))
        episode.act(REPLY, [66, 67], [-1.0, -1.0])
        return collate([episode])

    torch.manual_seed(3)
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    windowed = MistralConfig(**sizes, num_key_value_heads=1, vocab_size=264, sliding_window=4, pad_token_id=0)
    windowed.max_position_embeddings = 12
    MistralForCausalLM(windowed).save_pretrained(tmp_path)
    engine = LocalEngine(tmp_path, make_config())
    assert engine.context_length == 12
    assert not engine._model.padding_reason
    assert len(run(engine.sample([65] * 9, SamplingParams(max_response_tokens=16), 0)).tokens) == 3
    batch, longer = (make_batch(count) for count in (10, 13))
    with torch.no_grad():
        plain = plain_logprobs(load_transformers_model(tmp_path), batch)
        assert max_difference(run(engine.compute_logprobs(batch)).logprobs, plain, batch.mask) < 1e-5
    with pytest.raises(ConfigError, match=r"\b15\b.*\b12\b"):
        run(engine.compute_logprobs(longer))
    with pytest.raises(ConfigError, match=r"\b15\b.*\b12\b"):
        run(engine.update([longer.replace(advantages=longer.mask.float())], LossConfig(), 1e-3))
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, "factor": 4.0}
    long = Phi3Config(
        **sizes,
        vocab_size=264,
        pad_token_id=0,
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        rope_parameters=rope | {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16},
    )
    Phi3ForCausalLM(long).save_pretrained(tmp_path / "long")
    assert LocalEngine(tmp_path / "long", make_config()).context_length == 32


@needs_kernels
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_modules_are_as_accurate_as_transformers(
    folders: dict[str, Path], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against float32, the error of fused bfloat16 may be 1.5 times that of transformers' bfloat16."""
    folder = folders[architecture]
    engine = LocalEngine(folder, make_config("bfloat16", train_embeddings=True))
    layer = engine._model.backbone.layers[0]  # type: ignore[index,union-attr]
    for module in (
        layer,
        layer.self_attn,
        layer.mlp,
        layer.input_layernorm,
        layer.mlp.up_proj,
        engine._model.backbone.norm,
    ):
        assert module.forward.__func__.__module__ == fuse.__name__, type(module).__name__
    batch, _ = sample_episodes(engine)
    exact, own = load_transformers_model(folder), load_transformers_model(folder, torch.bfloat16)

    def with_gradients(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
        logprobs = plain_logprobs(model, batch)
        losses.compute_loss(LossConfig(kind="nll"), logprobs, batch.logprobs, batch.advantages, batch.mask)[
            0
        ].backward()
        return logprobs.detach(), {name: p.grad.float() for name, p in model.named_parameters()}

    (expected, slopes), (theirs, their_slopes) = with_gradients(exact), with_gradients(own)
    found, found_slopes = (
        run(engine.compute_logprobs(batch)).logprobs,
        compute_gradients(engine, batch, LossConfig(kind="nll"))[0],
    )
    spread = [float((x - expected)[batch.mask].square().mean().sqrt()) for x in (theirs, found, batch.logprobs)]
    assert max(spread[1:]) < 1.5 * spread[0]
    for name, slope in slopes.items():
        error, their_error = (float((x[name] - slope).norm()) for x in (found_slopes, their_slopes))
        assert error < 1.5 * their_error + 0.01 * float(slope.norm()), name


def test_scripted_sampler_replays_texts_and_records_prompts() -> None:
    sampler = ScriptedSampler(["abc", "de"], ids)
    first = run(sampler.sample([1], SamplingParams(max_response_tokens=2), 0))
    second = run(sampler.sample([1, *first.tokens, 5], SamplingParams(max_response_tokens=2), 0))
    assert (first.tokens, first.finish_reason) == (ids("ab"), "length")
    assert (second.tokens, second.finish_reason) == (ids("de"), "stop")
    assert sampler.prompts == [[1], [1, *ids("ab"), 5]]
    assert len(first.logprobs) == 2
