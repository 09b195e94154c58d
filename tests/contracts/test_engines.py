"""What every engine holds, on random models of three architectures, beside transformers' own forward and backward:
samples carry the log-probabilities of the weights that trained last, and how a batch is cut changes no gradient."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from test_kernels import needs_kernels  # noqa: E402
from understudy.algorithms import losses  # noqa: E402
from understudy.algorithms.options import Loss  # noqa: E402
from understudy.batch import Batch, collate, plan  # noqa: E402
from understudy.engines.base import Completion, Sampling  # noqa: E402
from understudy.engines.local import fuse, head  # noqa: E402
from understudy.engines.local.cache import Cache  # noqa: E402
from understudy.engines.local.config import LocalConfig, Lora, Optimizer  # noqa: E402
from understudy.engines.local.engine import STATE, LocalEngine  # noqa: E402
from understudy.engines.local.packing import Packing  # noqa: E402
from understudy.engines.scripted import ScriptedSampler  # noqa: E402
from understudy.errors import ConfigError  # noqa: E402
from understudy.messages import Message  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers

ARCHITECTURES = ("llama", "qwen2", "qwen3")
STOPS = frozenset(range(0, 264, 12))
"""So many that replies of a random model end after about twelve tokens."""
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.08}
"""Of a log-probability. In bfloat16 a logit of order 1 is off by up to 2^-8, and each layer adds its own rounding."""
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
    return {name: make_tiny(tmp_path_factory.mktemp(name), architecture=name) for name in ARCHITECTURES}


@pytest.fixture
def tiny(folders: dict[str, Path]) -> Path:
    return folders["llama"]


def config(dtype: str = "float32", finetune: str = "full", **settings: Any) -> LocalConfig:
    values = {"device": "cpu", "dtype": dtype, "finetune": finetune, "lora": Lora(rank=4, alpha=8.0)}
    return LocalConfig.model_validate(values | settings)


def ids(text: str) -> list[int]:
    return list(text.encode("latin-1"))


async def converse(
    engine: LocalEngine, prompt: Sequence[int], turns: int, sampling: Sampling, seed: int
) -> tuple[Trajectory, list[Completion]]:
    """An episode of some turns; what is said between them depends on the reply."""
    episode, replies = Trajectory("t", score=Score(reward=float(seed % 2))), []
    new = list(prompt)
    for turn in range(turns):
        episode.observe([], new)
        replies.append(await engine.sample(episode.tokens, sampling, seed * 10 + turn, STOPS))
        episode.act(REPLY, replies[-1].tokens, replies[-1].logprobs)
        new = ids(f"\nuser {len(replies[-1].tokens)}\n")
    return episode, replies


def episodes(
    engine: LocalEngine, temperature: float = 0.8, turns: int = 3, prompts: Sequence[str] = PROMPTS
) -> tuple[Batch, list[Completion]]:
    """Conversations side by side, as a batch with advantages."""

    async def all_of_them() -> list[tuple[Trajectory, list[Completion]]]:
        sampling = Sampling(max_tokens=16, temperature=temperature)
        each = (converse(engine, ids(p), turns, sampling, seed) for seed, p in enumerate(prompts))
        return await asyncio.gather(*each)

    done = asyncio.run(all_of_them())
    batch = collate([episode for episode, _ in done], temperature=temperature or 1.0)
    advantages = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(1)) / 50
    return batch.with_(advantages=advantages * batch.mask), [reply for _, replies in done for reply in replies]


def run(call: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await call

    return asyncio.run(wait())


def plain_logprobs(model: Any, batch: Batch) -> Tensor:
    """Row by row through transformers' own attention, without a cache; 0 where not trained."""
    rows = []
    for tokens, length in zip(batch.tokens, batch.lengths.tolist(), strict=True):
        logits = model(tokens[None, :length]).logits[0, :-1].float() / batch.temperature
        found = logits.log_softmax(-1).gather(-1, tokens[1:length, None])[:, 0]
        rows.append(torch.nn.functional.pad(found, (1, batch.tokens.shape[1] - length)))
    return torch.stack(rows) * batch.mask


def plain(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def exported(engine: LocalEngine, base: Path, folder: Path) -> Any:
    """The engine's model as peft or transformers read what it exports."""
    engine.export(folder)
    if (folder / "adapter_config.json").exists():
        from peft import PeftModel

        return PeftModel.from_pretrained(plain(base), folder).eval()
    return plain(folder)


def apart(found: Tensor, expected: Tensor, mask: Tensor) -> float:
    return float((found - expected)[mask].abs().max())


def weights(engine: LocalEngine) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in engine._model.network.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- one policy, whoever computes it ----


@pytest.mark.parametrize("finetune", ["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sampler_trainer_and_transformers_agree_before_and_after_an_update(
    folders: dict[str, Path], architecture: str, dtype: str, finetune: str, tmp_path: Path
) -> None:
    folder = folders[architecture]
    engine = LocalEngine(folder, config(dtype, finetune, sequences=4))
    for version in range(2):
        batch, replies = episodes(engine)
        assert {reply.finish for reply in replies} == {"stop", "length"}
        assert {reply.version for reply in replies} == {version}
        with torch.no_grad():
            expected = plain_logprobs(exported(engine, folder, tmp_path / str(version)), batch)
        trainer = run(engine.forward(batch)).logprobs
        assert apart(batch.logprobs, expected, batch.mask) < TOLERANCE[dtype]
        assert apart(trainer, expected, batch.mask) < TOLERANCE[dtype]
        assert not trainer[~batch.mask].any()
        run(engine.update([batch], Loss(), 0.02))
        assert apart(run(engine.forward(batch)).logprobs, trainer, batch.mask) > 3 * TOLERANCE[dtype]


def test_replies_end_where_they_should(tiny: Path) -> None:
    batch, replies = episodes(LocalEngine(tiny, config(sequences=4)))
    for reply in replies:
        ended = reply.tokens[-1] in STOPS
        assert reply.finish == ("stop" if ended else "length")
        assert ended or len(reply.tokens) == 16
        assert not STOPS & set(reply.tokens[:-1])
        assert len(reply.tokens) == len(reply.logprobs)
    assert int(batch.mask.sum()) == sum(len(reply.tokens) for reply in replies)


def test_a_reply_ends_where_the_context_is_full(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "narrow")
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"max_position_embeddings": 40}))
    engine = LocalEngine(folder, config(rows=0))
    replies = {length: run(engine.sample([65] * length, Sampling(max_tokens=16), 0)) for length in (8, 35, 39, 40, 50)}
    assert {length: len(reply.tokens) for length, reply in replies.items()} == {8: 16, 35: 5, 39: 1, 40: 0, 50: 0}
    assert {length: reply.full for length, reply in replies.items() if reply.full} == {40: True, 50: True}
    assert {reply.finish for reply in replies.values()} == {"length"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_seed_gives_the_same_run_to_the_bit(tiny: Path, dtype: str) -> None:
    def run_of(seed: int) -> tuple[Batch, dict[str, float], dict[str, Tensor]]:
        engine = LocalEngine(tiny, config(dtype, "lora"), seed)
        batch, _ = episodes(engine)
        metrics = run(engine.update([batch], Loss(), 1e-2))
        return episodes(engine)[0], metrics, weights(engine)

    (one, metrics, moved), (other, again, moved_again), (_, _, third) = run_of(0), run_of(0), run_of(1)
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.logprobs, other.logprobs)
    assert metrics == again
    assert same(moved, moved_again)
    assert not same(moved, third), "the adapters are drawn from the seed"


def test_seeds_draw_different_replies_from_one_distribution(tiny: Path) -> None:
    """First tokens of many seeds against the probabilities that transformers gives: a chi-squared test."""
    engine, count = LocalEngine(tiny, config(sequences=256)), 1500
    prompt, sampling = ids(POLICY), Sampling(max_tokens=1, temperature=0.3)

    async def draw() -> list[Completion]:
        return await asyncio.gather(*(engine.sample(prompt, sampling, seed) for seed in range(count)))

    with torch.no_grad():
        expected = (plain(tiny)(torch.tensor([prompt])).logits[0, -1] / 0.3).softmax(-1) * count
    found = torch.bincount(torch.tensor([c.tokens[0] for c in asyncio.run(draw())]), minlength=264)
    often = expected > 5
    assert often.sum() > 10
    statistic = float(((found - expected)[often] ** 2 / expected[often]).sum())
    degrees = int(often.sum())
    assert abs(statistic - degrees) < 4 * (2 * degrees) ** 0.5


def test_temperature_0_takes_the_most_likely_token(tiny: Path) -> None:
    batch, _ = episodes(LocalEngine(tiny, config()), temperature=0.0)
    model = plain(tiny)
    with torch.no_grad():
        for row, mask, length in zip(batch.tokens, batch.mask, batch.lengths.tolist(), strict=True):
            best = model(row[None, :length]).logits[0, :-1].argmax(-1)
            assert torch.equal(best[mask[1:length]], row[1:length][mask[1:length]])
        assert apart(batch.logprobs, plain_logprobs(model, batch), batch.mask) < 1e-4


def test_replies_of_several_temperatures_and_lengths_are_computed_together(tiny: Path) -> None:
    engine = LocalEngine(tiny, config())
    settings = [Sampling(max_tokens=n, temperature=t) for n, t in ((3, 0.0), (5, 2.0), (1, 0.5), (8, 2.0))]

    async def together() -> list[Completion]:
        return await asyncio.gather(*(engine.sample(ids(POLICY), s, i) for i, s in enumerate(settings)))

    model = plain(tiny)
    for sampling, reply in zip(settings, asyncio.run(together()), strict=True):
        assert len(reply.tokens) == sampling.max_tokens
        episode = Trajectory("t", score=Score(reward=0.0))
        episode.observe([], ids(POLICY))
        episode.act(REPLY, reply.tokens, reply.logprobs)
        batch = collate([episode], temperature=sampling.temperature or 1.0)
        with torch.no_grad():
            assert apart(batch.logprobs, plain_logprobs(model, batch), batch.mask) < 1e-4


@pytest.mark.parametrize("temperature", [0.0, 0.2, 1.0])
def test_guesses_change_no_reply(tiny: Path, temperature: float) -> None:
    """A random model at a low temperature repeats itself, so that many guesses are right; at a high one few are."""
    (without, plainly), (with_guesses, guessed) = (
        episodes(LocalEngine(tiny, config(rows=rows)), temperature, turns=4) for rows in (0, 1000)
    )
    assert [r.tokens for r in guessed] == [r.tokens for r in plainly]
    assert [r.finish for r in guessed] == [r.finish for r in plainly]
    assert apart(with_guesses.logprobs, without.logprobs, without.mask) < 1e-4


def test_an_empty_prompt_is_refused(tiny: Path) -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        run(LocalEngine(tiny, config()).sample([], Sampling(), 0))


# ---- the sampler computes nothing twice ----


@pytest.fixture
def counted(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalEngine, list[int]]:
    """An engine, and how many tokens each of its forward passes computed."""
    engine, passes = LocalEngine(tiny, config()), list[int]()
    hidden = engine._model.hidden

    def counting(tokens: Tensor, positions: Tensor, layout: Any) -> Tensor:
        passes.append(tokens.numel())
        return hidden(tokens, positions, layout)

    monkeypatch.setattr(engine._model, "hidden", counting)
    return engine, passes


def sample_all(engine: LocalEngine, prompts: Sequence[Sequence[int]], max_tokens: int = 1) -> list[Completion]:
    async def together() -> list[Completion]:
        calls = (engine.sample(p, Sampling(max_tokens=max_tokens), i) for i, p in enumerate(prompts))
        return await asyncio.gather(*calls)

    return asyncio.run(together())


def test_prompts_of_many_groups_are_each_computed_once(counted: tuple[LocalEngine, list[int]]) -> None:
    engine, passes = counted
    prompts = [[group, *range(40)] for group in range(100, 124)]
    sample_all(engine, [p for p in prompts for _ in range(2)])
    assert sum(passes) == 24 * 40 + 48


def test_a_next_turn_computes_what_is_new(counted: tuple[LocalEngine, list[int]]) -> None:
    engine, passes = counted
    prompts = [[*range(30), i] for i in range(3)]
    tokens = [p + reply.tokens for p, reply in zip(prompts, sample_all(engine, prompts, 4), strict=True)]
    assert sum(passes) == 30 + 3 * 1 + 3 * 3
    passes.clear()
    sample_all(engine, [[*t, 1, 2] for t in tokens])
    assert passes == [3 * 3]  # the last sampled token, whose keys were not needed yet, and two new ones
    passes.clear()
    sample_all(engine, [[*range(30), 99]])
    assert passes == [1], "the prefix stays although its episodes may be over"
    run(engine.update([], Loss(), 1.0))
    passes.clear()
    sample_all(engine, [[*range(30), 99]])
    assert passes == [31], "but not beyond an update"


def test_right_guesses_save_passes(counted: tuple[LocalEngine, list[int]]) -> None:
    engine, passes = counted
    prompt = [*range(30)]

    def greedy() -> Completion:
        return run(engine.sample(prompt, Sampling(max_tokens=40, temperature=0.0), 0))

    first = greedy()
    engine._sampler._cache.clear()
    passes.clear()
    assert greedy().tokens == first.tokens
    assert passes == [30, 9, 9, 9, 9, 3], "the prompt, and nine tokens a pass: what was said before is known"


def test_what_only_looks_alike_is_computed(counted: tuple[LocalEngine, list[int]]) -> None:
    """Another beginning and the same end; another prefix, which is cached; and less than what is cached."""
    engine, passes = counted
    (reply,) = sample_all(engine, [[1, *range(30)]])
    passes.clear()
    sample_all(engine, [[2, *range(30), *reply.tokens, 7]])
    assert sum(passes) == 33
    sample_all(engine, [[3, *range(40), 1], [3, *range(40), 2]])
    passes.clear()
    sample_all(engine, [[4, *range(60)]])
    sample_all(engine, [[3, *range(39)]])
    assert passes == [61, 40]


def test_prefixes_that_nobody_uses_are_forgotten(tiny: Path) -> None:
    engine = LocalEngine(tiny, config(sequences=2))
    for first in range(0, 90, 6):
        sample_all(engine, [[group, *range(20), i] for group in range(first, first + 6) for i in range(2)])
    assert len(engine._sampler._cache.prefixes) <= 16 + 6


# ---- gradients ----


def test_a_cache_that_grows_is_never_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, seen = Cache(3, 1, 4, 2, torch.float32, torch.device("cpu")), []
    grown = cache._grown

    def watched(old: Tensor) -> Tensor:
        seen.append([x.shape[2] for x in (*cache.keys, *cache.values)])
        return grown(old)

    monkeypatch.setattr(cache, "_grown", watched)
    cache.reserve(100)
    assert seen == [[128] * done + [0] * (6 - done) for done in range(6)]


def gradients(engine: LocalEngine, batch: Batch, loss: Loss = Loss()) -> tuple[dict[str, Tensor], dict[str, float]]:  # noqa: B008
    """The sums of gradients that an update would step by, and its metrics."""
    found: dict[str, Tensor] = {}

    def keep(rate: float) -> float:
        for name, master in engine._optimizer.masters.items():
            assert master.grad is not None
            found[name] = master.grad.clone()
            master.grad.zero_()
        return 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._optimizer, "step", keep)
        metrics = run(engine.update([batch], loss, 0.0))
    return found, metrics


def close(found: dict[str, Tensor], expected: dict[str, Tensor], most: float) -> None:
    """All gradients as one vector, relative to its length."""
    assert found.keys() == expected.keys()
    error = sum(float((found[name].double() - expected[name].double()).square().sum()) for name in found) ** 0.5
    length = sum(float(x.double().square().sum()) for x in expected.values()) ** 0.5
    assert error < most * length
    assert length > 0


@pytest.mark.parametrize(
    ("architecture", "loss"),
    [(name, Loss(clip_low=0.1, clip_high=0.1)) for name in ARCHITECTURES]
    + [(ARCHITECTURES[0], Loss(kind=kind, clip_low=0.05, clip_high=0.05)) for kind in ("gspo", "cispo", "nll")],
)
def test_gradients_are_those_of_transformers_whatever_is_shared(
    folders: dict[str, Path], architecture: str, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK", 50)  # several chunks of positions
    folder = folders[architecture]
    engine = LocalEngine(folder, config(train_embeddings=True))
    batch, _ = episodes(engine)
    noise = torch.randn(batch.logprobs.shape, generator=torch.Generator().manual_seed(2))
    batch = batch.with_(logprobs=batch.logprobs + 0.2 * noise)
    model = plain(folder)
    value, expected_metrics = losses.compute(
        loss, plain_logprobs(model, batch), batch.logprobs, batch.advantages, batch.mask
    )
    value.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    found, metrics = gradients(engine, batch, loss)
    close(found, expected, 1e-5)
    assert metrics["loss"] == pytest.approx(value.item(), abs=1e-5)
    count = float(batch.mask.sum())
    assert metrics["trained_tokens"] == count
    for key, total in expected_metrics.items():
        assert metrics[key] == pytest.approx(total.item() / count, abs=1e-4)
    assert metrics["computed_tokens"] < batch.lengths.sum(), "something is shared"


def test_rows_of_nearly_one_length_are_padded_in_attention_alone(tiny: Path) -> None:
    """Two prefixes, and rows of a block that differ in length, so that attention sees padding."""
    generator = torch.Generator().manual_seed(3)

    def drawn(count: int) -> list[int]:
        found: list[int] = torch.randint(0, 256, (count,), generator=generator).tolist()
        return found

    done = []
    for prefix, lengths in ((drawn(20), (40, 38, 40, 37)), (drawn(9), (24, 22)), (drawn(1), (30,))):
        for length in lengths:
            episode = Trajectory("t", score=Score(reward=0.0))
            episode.observe([], prefix + drawn(length - 12))
            episode.act(REPLY, reply := drawn(12), [-5.0] * len(reply))
            done.append(episode)
    batch = collate(done)
    batch = batch.with_(advantages=torch.randn(batch.tokens.shape, generator=generator) * batch.mask)
    engine = LocalEngine(tiny, config())
    (chosen,) = plan(batch, 4096)
    blocks = [b for piece in Packing(batch, chosen, 2, torch.device("cpu")).pieces for b in piece.blocks]
    assert sum(not block.valid.all() for block in blocks) == 2
    model, loss = plain(tiny), Loss(kind="nll")
    logprobs = plain_logprobs(model, batch)
    losses.compute(loss, logprobs, batch.logprobs, batch.advantages, batch.mask)[0].backward()
    assert apart(run(engine.forward(batch)).logprobs, logprobs.detach(), batch.mask) < 1e-4
    found, _ = gradients(engine, batch, loss)
    close(found, {name: p.grad for name, p in model.named_parameters() if name in found}, 1e-5)


def test_episodes_that_part_late_share_what_they_computed_until_then(tiny: Path) -> None:
    """A tree of rows: trained tokens that are shared, a row that ends where others go on, one that is there twice."""
    generator = torch.Generator().manual_seed(4)

    def drawn(count: int) -> list[int]:
        found: list[int] = torch.randint(0, 256, (count,), generator=generator).tolist()
        return found

    def play(*turns: tuple[list[int], list[int]]) -> Trajectory:
        episode = Trajectory("t", score=Score(reward=0.0))
        for seen, reply in turns:
            episode.observe([], seen)
            episode.act(REPLY, reply, [-5.0] * len(reply))
        return episode

    first, other = (drawn(20), drawn(7)), (drawn(9), drawn(6))
    second, third = (drawn(8), drawn(5)), (drawn(12), drawn(4))
    late = (second[0], [*second[1][:3], *drawn(4)])
    paths = [(first,), (first, second), (first, second, third), (first, second, third), (first, late), (first, third)]
    paths += [(other, second), (other, late), ((first[0], drawn(5)), second)]
    batch = collate([play(*path) for path in paths])
    batch = batch.with_(advantages=torch.randn(batch.tokens.shape, generator=generator) * batch.mask)
    model, loss = plain(tiny), Loss(kind="nll")
    logprobs = plain_logprobs(model, batch)
    losses.compute(loss, logprobs, batch.logprobs, batch.advantages, batch.mask)[0].backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    for tokens in (4096, 90, 60):
        engine = LocalEngine(tiny, config(tokens_per_microbatch=tokens))
        assert apart(run(engine.forward(batch)).logprobs, logprobs.detach(), batch.mask) < 1e-4
        found, metrics = gradients(engine, batch, loss)
        close(found, {name: expected[name] for name in found}, 1e-5)
        assert metrics["trained_tokens"] == batch.mask.sum()
        if tokens == 4096:
            texts = [tuple(row[:n]) for row, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]
            assert metrics["computed_tokens"] == len({text[: i + 1] for text in texts for i in range(len(text))})


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_how_a_batch_is_cut_ordered_and_padded_changes_no_gradient(tiny: Path, finetune: str) -> None:
    engine = LocalEngine(tiny, config(finetune=finetune))
    batch, _ = episodes(engine)
    run(engine.update([batch], Loss(), 1e-2))  # adapters start at 0, where half of their gradients are 0
    expected, metrics = gradients(engine, batch)
    logprobs = run(engine.forward(batch)).logprobs
    widen = {
        name: torch.nn.functional.pad(getattr(batch, name), (0, 7))
        for name in ("tokens", "mask", "logprobs", "advantages")
    }
    for other in (batch.rows(torch.arange(len(batch)).flip(0)), batch.with_(**widen)):
        close(gradients(engine, other)[0], expected, 1e-5)
    for tokens in (1, 100, 300):
        engine._config = engine._config.replace(tokens_per_microbatch=tokens)
        found, cut = gradients(engine, batch)
        close(found, expected, 1e-5)
        assert {k: v for k, v in cut.items() if k != "computed_tokens"} == pytest.approx(
            {k: v for k, v in metrics.items() if k != "computed_tokens"}, abs=1e-5
        )
        assert apart(run(engine.forward(batch)).logprobs, logprobs, batch.mask) < 1e-4


def test_tokens_that_are_not_trained_on_do_not_matter(tiny: Path) -> None:
    engine = LocalEngine(tiny, config())
    batch, _ = episodes(engine)
    assert batch.advantages is not None
    expected, _ = gradients(engine, batch)
    elsewhere = ~batch.mask
    wild = batch.with_(
        advantages=batch.advantages + 5.0 * elsewhere,
        logprobs=batch.logprobs.masked_fill(elsewhere, float("nan")),
        tokens=batch.tokens.masked_fill(torch.arange(batch.tokens.shape[1]) >= batch.lengths[:, None], 263),
    )
    found, _ = gradients(engine, wild)
    close(found, expected, 1e-7)


def test_rows_without_advantage_are_left_out(tiny: Path) -> None:
    engine = LocalEngine(tiny, config())
    batch, _ = episodes(engine)
    assert batch.advantages is not None
    batch = batch.with_(advantages=batch.advantages * (torch.arange(len(batch)) % 2)[:, None])
    found, metrics = gradients(engine, batch)
    expected, alone = gradients(engine, batch.rows(torch.arange(1, len(batch), 2)))
    assert same(found, expected)
    assert metrics == alone
    with pytest.raises(ValueError, match="without advantages"):
        run(engine.update([dataclasses.replace(batch, advantages=None)], Loss(), 0.0))


def test_update_is_adam_on_clipped_gradients(tiny: Path) -> None:
    """Two steps beside torch's AdamW on a plain model."""
    optimizer = Optimizer(weight_decay=0.1, max_grad_norm=0.01)
    engine = LocalEngine(tiny, config(optimizer=optimizer))
    batch, _ = episodes(engine)
    assert batch.advantages is not None
    steps = [batch, batch.with_(advantages=-2 * batch.advantages)]
    metrics = run(engine.update(steps, Loss(), 1e-3))
    model = plain(tiny)
    model.get_input_embeddings().requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    norms = []
    for step in steps:
        adam.zero_grad()
        losses.compute(Loss(), plain_logprobs(model, step), step.logprobs, step.advantages, step.mask)[0].backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 0.01).item())
        adam.step()
    assert min(norms) > 0.01
    assert metrics["grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-3)
    for (name, found), expected in zip(engine._model.network.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=3e-5, rtol=0, msg=name)


def test_small_steps_add_up_in_bfloat16(tiny: Path) -> None:
    """A step far below the rounding of a weight: masters keep it, and many of them move the weight."""
    engine = LocalEngine(tiny, config("bfloat16"))
    batch, _ = episodes(engine)
    before, masters = weights(engine), {n: m.detach().clone() for n, m in engine._optimizer.masters.items()}
    run(engine.update([batch] * 10, Loss(kind="nll"), 2e-5))
    name = "model.layers.0.self_attn.q_proj.weight"
    moved = (engine._optimizer.masters[name] - masters[name]).abs()
    assert float(moved.detach().median()) > 1e-4
    assert not torch.equal(weights(engine)[name], before[name])
    assert torch.equal(weights(engine)[name], engine._optimizer.masters[name].detach().bfloat16())


def test_imitation_makes_what_is_imitated_likely(tiny: Path) -> None:
    engine = LocalEngine(tiny, config())
    batch, _ = episodes(engine)
    batch = batch.with_(advantages=batch.mask / batch.mask.sum())
    told = [run(engine.update([batch], Loss(kind="nll"), 3e-3))["nll"] for _ in range(8)]
    assert told[-1] < 0.7 * told[0]


# ---- checkpoints ----


@pytest.mark.parametrize(("dtype", "finetune"), [("float32", "full"), ("bfloat16", "full"), ("bfloat16", "lora")])
def test_what_goes_on_from_a_checkpoint_equals_what_went_on(
    tiny: Path, tmp_path: Path, dtype: str, finetune: str
) -> None:
    def going_on(engine: LocalEngine) -> tuple[Batch, dict[str, float], dict[str, Tensor], Tensor]:
        first, replies = episodes(engine)
        assert {reply.version for reply in replies} == {2}
        metrics = run(engine.update([first], Loss(), 1e-2))
        frozen = run(engine.reference(first)).ref_logprobs
        return first, metrics, weights(engine), frozen

    engine = LocalEngine(tiny, config(dtype, finetune))
    batch, _ = episodes(engine)
    run(engine.update([batch], Loss(), 1e-2))
    engine.keep_reference()
    run(engine.update([batch], Loss(), 1e-2))
    episodes(engine, prompts=PROMPTS[:2])  # leaves something in the cache, as an evaluation does
    engine.save(tmp_path)
    expected = going_on(engine)
    resumed = LocalEngine(tiny, config(dtype, finetune), seed=5)
    resumed.load(tmp_path)
    found = going_on(resumed)
    assert torch.equal(found[0].tokens, expected[0].tokens)
    assert torch.equal(found[0].logprobs, expected[0].logprobs)
    assert found[1] == expected[1]
    assert same(found[2], expected[2])
    assert torch.equal(found[3], expected[3])
    assert resumed.version == engine.version == 3


@pytest.mark.parametrize(("dtype", "finetune"), [("float32", "full"), ("bfloat16", "full"), ("bfloat16", "lora")])
def test_an_engine_that_does_not_train_reads_a_checkpoint_as_one_that_does(
    tiny: Path, tmp_path: Path, dtype: str, finetune: str
) -> None:
    engine = LocalEngine(tiny, config(dtype, finetune))
    batch, _ = episodes(engine)
    run(engine.update([batch], Loss(), 1e-2))
    engine.keep_reference()
    run(engine.update([batch], Loss(), 1e-2))
    engine.save(tmp_path)
    reader = LocalEngine(tiny, config(dtype, finetune), trains=False)
    assert not same(weights(reader), weights(engine))
    reader.load(tmp_path)
    assert same(weights(reader), weights(engine))
    (found, replies), (expected, _) = episodes(reader), episodes(engine)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.logprobs, expected.logprobs)
    assert {reply.version for reply in replies} == {reader.version} == {2}


def test_an_engine_that_does_not_train_makes_no_optimizer_and_reads_none(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("an optimizer was made")

    engine = LocalEngine(tiny, config())
    run(engine.update([episodes(engine)[0]], Loss(), 1e-2))
    engine.save(tmp_path)
    masters = {name: x for name, x in load_file(tmp_path / STATE).items() if name.startswith("master.")}
    save_file(masters, tmp_path / STATE, {"version": "1"})
    monkeypatch.setattr("understudy.engines.local.engine.MasterAdamW", refuse)
    with pytest.raises(AssertionError, match="an optimizer was made"):
        LocalEngine(tiny, config())
    reader = LocalEngine(tiny, config(), trains=False)
    reader.load(tmp_path)
    assert same(weights(reader), weights(engine))


def test_an_engine_that_does_not_train_refuses_to(tiny: Path, tmp_path: Path) -> None:
    reader = LocalEngine(tiny, config(), trains=False)
    batch, _ = episodes(reader, turns=1)
    before = weights(reader)
    for refused in (
        lambda: run(reader.update([batch], Loss(), 1e-2)),
        lambda: reader.save(tmp_path),
        reader.fresh_optimizer,
        reader.keep_reference,
    ):
        with pytest.raises(ValueError, match="opened to read its model; open it with trains=True"):
            refused()
    assert same(weights(reader), before)
    assert reader.version == 0
    assert not any(tmp_path.iterdir())


def test_a_fresh_optimizer_forgets_and_keeps_the_weights(tiny: Path, tmp_path: Path) -> None:
    engine = LocalEngine(tiny, config())
    batch, _ = episodes(engine)
    run(engine.update([batch], Loss(), 1e-2))
    engine.fresh_optimizer()
    engine.save(tmp_path)
    before = weights(engine)
    other = LocalEngine(tiny, config())
    other.load(tmp_path)
    assert same(weights(other), before)
    for each in (engine, other):
        run(each.update([batch], Loss(kind="nll"), 1e-2))
    assert same(weights(engine), weights(other))
    still = LocalEngine(tiny, config())
    run(still.update([batch], Loss(), 1e-2))
    run(still.update([batch], Loss(kind="nll"), 1e-2))
    assert not same(weights(still), weights(engine)), "moments would have mattered"


@pytest.mark.parametrize(
    "harm",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-100]),
        lambda file: file.write_bytes(b"\xff" * 1000),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["gone", "empty", "cut", "noise", "folder"],
)
def test_a_damaged_checkpoint_is_a_config_error(tiny: Path, tmp_path: Path, harm: Callable[[Path], object]) -> None:
    engine = LocalEngine(tiny, config())
    engine.save(tmp_path)
    before = weights(engine)
    harm(tmp_path / STATE)
    for each in (engine, LocalEngine(tiny, config(), trains=False)):
        with pytest.raises(ConfigError, match=r"optimizer.safetensors: not a checkpoint of this model"):
            each.load(tmp_path)
        assert same(weights(each), before)


@pytest.mark.parametrize("other", ["lora", "embeddings", "architecture", "deeper", "wider", "file"])
def test_a_foreign_checkpoint_is_a_config_error(folders: dict[str, Path], tmp_path: Path, other: str) -> None:
    engine, folder, settings = LocalEngine(folders["llama"], config()), folders["llama"], config()
    if other == "lora":
        settings = config(finetune="lora")
    elif other == "embeddings":
        settings = config(train_embeddings=True)
    elif other == "architecture":
        folder = folders["qwen3"]
    else:
        folder = make_tiny(tmp_path / "model", layers=3, hidden=64 + 32 * (other == "wider"))
    theirs = LocalEngine(folder, settings)
    theirs.save(tmp_path)
    if other == "file":
        (tmp_path / "model" / "model.safetensors").rename(tmp_path / STATE)
    before = weights(engine)
    for each in (engine, LocalEngine(folders["llama"], config(), trains=False)):
        with pytest.raises(ConfigError, match="not a checkpoint of this model and fine-tuning mode"):
            each.load(tmp_path)
        assert same(weights(each), before)


# ---- the reference policy, LoRA and export ----


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_the_reference_stays_where_it_was(tiny: Path, finetune: str) -> None:
    engine = LocalEngine(tiny, config("bfloat16", finetune))
    batch, _ = episodes(engine)
    with pytest.raises(ValueError, match="keep_reference first"):
        run(engine.reference(batch))
    run(engine.update([batch], Loss(), 1e-2))
    engine.keep_reference()
    expected = run(engine.forward(batch)).logprobs
    run(engine.update([batch], Loss(), 1e-2))
    before, current = weights(engine), run(engine.forward(batch)).logprobs
    found = run(engine.reference(batch))
    assert torch.equal(found.ref_logprobs, expected)
    assert torch.equal(found.logprobs, batch.logprobs)
    assert same(weights(engine), before)
    assert torch.equal(run(engine.forward(batch)).logprobs, current)
    assert not torch.equal(current, expected)


def test_lora_leaves_the_base_alone_and_peft_reads_it(tiny: Path, tmp_path: Path) -> None:
    engine = LocalEngine(tiny, config(finetune="lora", lora=Lora(rank=3, alpha=9.0, targets=("q_proj", "down_proj"))))
    before = {name.replace(".base_layer", ""): x for name, x in weights(engine).items() if "lora_" not in name}
    original = dict(plain(tiny).named_parameters())
    assert same(before, {name: p.detach() for name, p in original.items()})
    batch, _ = episodes(engine)
    run(engine.update([batch], Loss(), 0.05))
    after = {name.replace(".base_layer", ""): x for name, x in weights(engine).items() if "lora_" not in name}
    assert same(before, after)
    trained = engine._model.trainable()
    assert {name.split(".")[-4] for name in trained} == {"q_proj", "down_proj"}
    assert sum(p.numel() for p in trained.values()) == 2 * 3 * (64 + 64 + 192 + 64)
    moved = exported(engine, tiny, tmp_path)
    with torch.no_grad():
        found = plain_logprobs(moved.merge_and_unload(), batch)
        assert apart(found, run(engine.forward(batch)).logprobs, batch.mask) < 1e-4
        assert apart(found, plain_logprobs(plain(tiny), batch), batch.mask) > 0.01


# ---- what can go wrong ----


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory: you tried 9 GB"),
        MemoryError(),
    ],
    ids=["cuda", "cpu", "python"],
)
def test_out_of_memory_names_what_to_turn_down(tiny: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    engine = LocalEngine(tiny, config(sequences=7, tokens_per_microbatch=99))
    batch, _ = episodes(engine)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(engine._model, "hidden", fail)
    with pytest.raises(ConfigError, match=r"out of memory; lower engine.sequences \(now 7\)"):
        run(engine.sample([1, 2], Sampling(), 0))
    for call in (engine.update([batch], Loss(), 1e-3), engine.forward(batch)):
        with pytest.raises(ConfigError, match=r"lower engine.tokens_per_microbatch \(now 99\)"):
            run(call)


def test_an_illegal_access_is_not_taken_for_too_little_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalEngine(tiny, config())
    batch, _ = episodes(engine, turns=1)

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(engine._model, "hidden", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run(engine.forward(batch))


@pytest.mark.parametrize("when", ["prefix", "prefill", "decode"])
def test_a_failing_pass_reaches_all_who_wait_and_nobody_later(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    engine = LocalEngine(tiny, config(sequences=2))
    hidden, passes = engine._model.hidden, itertools.count()
    fatal = {"prefix": 0, "prefill": 1, "decode": 3}[when]

    def failing(*arguments: Any) -> Tensor:
        if next(passes) == fatal:
            raise RuntimeError("the roof is on fire")
        return hidden(*arguments)

    monkeypatch.setattr(engine._model, "hidden", failing)
    prompts = [[*range(20), i] for i in range(5)]

    async def all_at_once() -> tuple[list[object], list[Completion]]:
        calls = (engine.sample(p, Sampling(max_tokens=6), i) for i, p in enumerate(prompts))
        failed = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
        calls = (engine.sample(p, Sampling(max_tokens=6), i) for i, p in enumerate(prompts))
        return list(failed), await asyncio.wait_for(asyncio.gather(*calls), 10)

    failed, later = asyncio.run(all_at_once())
    assert [str(error) for error in failed] == ["the roof is on fire"] * 5
    assert [len(reply.tokens) for reply in later] == [6] * 5


def test_callers_who_go_away_leave_the_others_alone(tiny: Path) -> None:
    engine = LocalEngine(tiny, config(sequences=3))
    prompts = [[*range(20), i] for i in range(8)]

    async def some_leave() -> list[object]:
        calls = [asyncio.ensure_future(engine.sample(p, Sampling(max_tokens=20), i)) for i, p in enumerate(prompts)]
        for turn in range(40):
            await asyncio.sleep(0)
            if turn % 8 == 0:
                calls[turn // 8].cancel()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)

    done = asyncio.run(some_leave())
    assert [type(x).__name__ for x in done] == ["CancelledError"] * 5 + ["Completion"] * 3
    assert not engine._sampler._unanswered
    assert not any(slot.busy for slot in engine._sampler._cache.slots)
    for prompt, reply in zip(prompts[5:], done[5:], strict=True):
        assert isinstance(reply, Completion)
        episode = Trajectory("t", score=Score(reward=0.0))
        episode.observe([], prompt)
        episode.act(REPLY, reply.tokens, reply.logprobs)
        batch = collate([episode])
        assert apart(run(engine.forward(batch)).logprobs, batch.logprobs, batch.mask) < 1e-4


def test_when_all_go_away_nothing_is_left_to_do(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = LocalEngine(tiny, config())

    async def all_leave() -> Completion:
        calls = [asyncio.ensure_future(engine.sample([1, 2, 3], Sampling(), i)) for i in range(3)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        driver = engine._sampler._driver
        assert driver is not None
        await asyncio.wait_for(driver, 10)
        assert driver.exception() is None
        return await asyncio.wait_for(engine.sample([1, 2, 3], Sampling(max_tokens=2), 0), 10)

    assert len(asyncio.run(all_leave()).tokens) == 2
    assert not caplog.records


def test_a_reply_that_nobody_waits_for_is_not_finished(tiny: Path) -> None:
    engine = LocalEngine(tiny, config())

    async def leave() -> bool:
        call = asyncio.ensure_future(engine.sample([1, 2, 3], Sampling(max_tokens=100_000), 0))
        for _ in range(30):
            await asyncio.sleep(0)
        call.cancel()
        for _ in range(30):
            await asyncio.sleep(0)
        assert engine._sampler._driver is not None
        return engine._sampler._driver.done()

    assert asyncio.run(leave())


def test_one_event_loop_after_the_other(tiny: Path) -> None:
    """Also after one that was torn down with replies in the making."""
    engine = LocalEngine(tiny, config(sequences=2))

    async def give_up() -> None:
        calls = [asyncio.ensure_future(engine.sample([1, 2, i], Sampling(max_tokens=500), i)) for i in range(4)]
        for _ in range(20):
            await asyncio.sleep(0)
        raise ZeroDivisionError(len(calls))

    expected = sample_all(engine, [[1, 2, 3]], 5)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(give_up())
    assert sample_all(engine, [[1, 2, 3]], 5)[0].tokens == expected[0].tokens
    assert sample_all(engine, [[1, 2, 3]] * 4, 5)[0].tokens == expected[0].tokens


def test_what_the_engine_cannot_do_is_said(tiny: Path, tmp_path: Path) -> None:
    from transformers import GraniteConfig, GraniteForCausalLM, PhiConfig, PhiForCausalLM, Qwen2Config, Qwen2ForCausalLM

    with pytest.raises(ConfigError, match=r"no module 'w_proj' in this model; it has .*q_proj"):
        LocalEngine(tiny, config(finetune="lora", lora=Lora(targets=("w_proj",))))
    missing = next(
        name for name in ("mps", "cuda") if not getattr(torch, name if name == "cuda" else "mps").is_available()
    )
    with pytest.raises(ConfigError, match=f"no '{missing}' device here; available: .*cpu"):
        LocalEngine(tiny, config(device=missing))
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 9,
    }
    sliding = Qwen2Config(**sizes, num_key_value_heads=2, use_sliding_window=True, max_window_layers=1)
    Qwen2ForCausalLM(sliding).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="'sliding_attention' are not supported"):
        LocalEngine(tmp_path, config())
    scaled = GraniteConfig(**sizes, num_key_value_heads=2, logits_scaling=8.0)
    GraniteForCausalLM(scaled).save_pretrained(tmp_path / "scaled")
    with pytest.raises(ConfigError, match="scaled: logits_scaling is not supported"):
        LocalEngine(tmp_path / "scaled", config())
    PhiForCausalLM(PhiConfig(**sizes)).save_pretrained(tmp_path / "biased")
    with pytest.raises(ConfigError, match="biased: an output head with a bias"):
        LocalEngine(tmp_path / "biased", config())


def test_the_context_ends_where_attention_would_be_another(tmp_path: Path) -> None:
    """Within it ours is the model's own; what is longer is not sampled, and not trained on."""
    from transformers import MistralConfig, MistralForCausalLM, Phi3Config, Phi3ForCausalLM

    def said(count: int) -> Batch:
        episode = Trajectory("t", score=Score(reward=0.0))
        episode.observe([], ids("order W10423 is late"[:count]))
        episode.act(REPLY, [66, 67], [-1.0, -1.0])
        return collate([episode])

    torch.manual_seed(3)
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    windowed = MistralConfig(**sizes, num_key_value_heads=1, vocab_size=264, sliding_window=12, pad_token_id=0)
    MistralForCausalLM(windowed).save_pretrained(tmp_path)
    engine = LocalEngine(tmp_path, config())
    assert engine.context == 12
    assert len(run(engine.sample([65] * 9, Sampling(max_tokens=16), 0)).tokens) == 3
    batch, longer = (said(count) for count in (10, 13))
    with torch.no_grad():
        found, other = (
            apart(run(engine.forward(each)).logprobs, plain_logprobs(plain(tmp_path), each), each.mask)
            for each in (batch, longer)
        )
    assert found < 1e-5 < 1e-4 < other
    with pytest.raises(ConfigError, match=r"a row of 15 tokens is longer than the model's context of 12"):
        run(engine.update([longer.with_(advantages=longer.mask.float())], Loss(), 1e-3))
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
    assert LocalEngine(tmp_path / "long", config()).context == 32


# ---- fused modules ----


@needs_kernels
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_modules_are_as_exact_as_transformers_own(
    folders: dict[str, Path], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in bfloat16 against float32: the fused error may be as large as the other, and half more."""
    folder = folders[architecture]
    engine = LocalEngine(folder, config("bfloat16", train_embeddings=True))
    layer = engine._model.body.layers[0]  # type: ignore[index,union-attr]
    for module in (
        layer,
        layer.self_attn,
        layer.mlp,
        layer.input_layernorm,
        layer.mlp.up_proj,
        engine._model.body.norm,
    ):
        assert module.forward.__func__.__module__ == fuse.__name__, type(module).__name__
    batch, _ = episodes(engine)
    exact, own = plain(folder), plain(folder, torch.bfloat16)

    def with_gradients(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
        logprobs = plain_logprobs(model, batch)
        losses.compute(Loss(kind="nll"), logprobs, batch.logprobs, batch.advantages, batch.mask)[0].backward()
        return logprobs.detach(), {name: p.grad.float() for name, p in model.named_parameters()}

    (expected, slopes), (theirs, their_slopes) = with_gradients(exact), with_gradients(own)
    found, found_slopes = run(engine.forward(batch)).logprobs, gradients(engine, batch, Loss(kind="nll"))[0]
    spread = [float((x - expected)[batch.mask].square().mean().sqrt()) for x in (theirs, found, batch.logprobs)]
    assert max(spread[1:]) < 1.5 * spread[0]
    for name, slope in slopes.items():
        error, their_error = (float((x[name] - slope).norm()) for x in (found_slopes, their_slopes))
        assert error < 1.5 * their_error + 0.01 * float(slope.norm()), name


# ---- the sampler without weights ----


def test_the_scripted_sampler_replays_texts_and_remembers_prompts() -> None:
    sampler = ScriptedSampler(["abc", "de"], ids)
    first = run(sampler.sample([1], Sampling(max_tokens=2), 0))
    second = run(sampler.sample([1, *first.tokens, 5], Sampling(max_tokens=2), 0))
    assert (first.tokens, first.finish) == (ids("ab"), "length")
    assert (second.tokens, second.finish) == (ids("de"), "stop")
    assert sampler.prompts == [[1], [1, *ids("ab"), 5]]
    assert len(first.logprobs) == 2
