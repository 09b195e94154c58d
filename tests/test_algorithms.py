"""Algorithms as rows of arguments: what names them, what wins over them, and that each learns a toy with a random model
of 115 thousand parameters; and what a critic, epochs and the length of an episode change of a step."""

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from test_train import Stopper, config, episodes, metrics, rewarded, run_of, same, saved, silent  # noqa: E402
from understudy.algorithms import losses  # noqa: E402
from understudy.algorithms.options import Critic, Loss  # noqa: E402
from understudy.algorithms.presets import laid_over, row, row_text, rows  # noqa: E402
from understudy.batch import Batch, collate  # noqa: E402
from understudy.config import Algorithm, TrainConfig  # noqa: E402
from understudy.engines.base import Completion  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.errors import ConfigError  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.players import open_model  # noqa: E402
from understudy.run import Run  # noqa: E402
from understudy.settings import dump, load, parse, presets  # noqa: E402
from understudy.train import optimizer_steps, train, with_advantages  # noqa: E402

DOCS = Path(__file__).parents[1] / "docs" / "algorithms.md"
TOY = ("domain=test_train:WATTS", "sampling.max_tokens=8", "limits.max_turns=1", "save_every=0", "eval.tasks=6")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards that untrained models differ in."""
    monkeypatch.setattr("understudy.domains.base.score", rewarded)


# ---- rows ----


def test_rows_say_what_they_are_and_set_the_same_keys() -> None:
    """So that one that is chosen after another leaves nothing of it; what a critic needs, PPO's alone sets."""

    def keys(values: Mapping[str, Any], path: str = "") -> set[str]:
        found = (keys(v, f"{path}{k}.") if isinstance(v, dict) else {path + k} for k, v in values.items())
        return set().union(*found)

    assert rows() == ["cispo", "dapo", "dr_grpo", "grpo", "gspo", "ppo", "reinforce_pp", "rft", "rloo"]
    sets = {name: {key for key in keys(row(name)) if not key.startswith("critic.")} for name in rows()}
    assert len({frozenset(found) for found in sets.values()}) == 1
    assert {name for name in rows() if "critic" in row(name)} == {"ppo"}
    page = DOCS.read_text(encoding="utf-8")
    for name in rows():
        assert row_text(name).startswith("# ")
        assert f"`{name}`" in page


@pytest.mark.parametrize("name", rows())
def test_a_row_goes_with_any_preset_and_is_read_back(name: str) -> None:
    for preset in presets():
        chosen = load(TrainConfig, preset, [f"algorithm.preset={name}"])
        assert laid_over(chosen.algorithm.model_dump(), row(name)) == chosen.algorithm.model_dump()
        assert parse(TrainConfig, dump(chosen)) == chosen
        plain = load(TrainConfig, preset)
        assert chosen.replace(algorithm=plain.algorithm) == plain, "nothing but the algorithm"


def test_what_is_said_beside_a_row_wins() -> None:
    file = "[algorithm]\npreset = 'dapo'\nrefill = 1\n[algorithm.loss]\nclip_low = 0.1"
    written = parse(TrainConfig, file).algorithm
    assert (written.advantage, written.refill, written.loss) == ("group_std", 1, Loss(clip_low=0.1, clip_high=0.28))
    given = parse(TrainConfig, file, ["algorithm.loss.clip_high=0.3", "algorithm.preset=gspo"]).algorithm
    assert (given.preset, given.refill) == ("gspo", 0), "chosen later than the file was written"
    assert given.loss == Loss(kind="gspo", clip_low=3e-4, clip_high=0.3)
    assert parse(TrainConfig, file, ["algorithm.preset="]).algorithm.advantage == "group"
    assert Algorithm(preset="ppo", critic=Critic(gamma=0.9)).critic.gamma == 0.9
    assert Algorithm(preset="ppo").valued


def test_a_row_that_is_none_names_the_nearest() -> None:
    for text, overrides in (("[algorithm]\npreset = 'drgrpo'", ()), ("", ("algorithm.preset=drgrpo",))):
        with pytest.raises(ConfigError, match=r"algorithm.preset: unknown algorithm 'drgrpo'; did you mean 'dr_grpo'"):
            parse(TrainConfig, text, overrides)


# ---- each row learns ----


@pytest.fixture(scope="module")
def warm(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers right about every second time, after four steps of imitation."""
    sft = ("sft.steps=4", "sft.batch_size=4", "sft.demonstrations=8", "sft.learning_rate=1e-2", "steps=0")
    return run_of(tmp_path_factory.mktemp("warm") / "run", tiny, *TOY, *sft).folder / "model"


@pytest.mark.parametrize("given", [*(f"preset={name}" for name in rows()), "advantage=turn"])
def test_every_row_learns_and_its_first_minibatch_is_on_policy(
    warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    update, firsts = LocalEngine.update, list[dict[str, float]]()

    async def watched(self: LocalEngine, steps: Sequence[Batch], loss: Loss, rate: float) -> dict[str, float]:
        now, first = (await self.forward(steps[0])).logprobs, steps[0]
        assert first.advantages is not None
        _, found = losses.compute(loss, now, first.logprobs, first.advantages, first.mask)
        firsts.append({key: float(value / first.mask.sum()) for key, value in found.items()})
        return await update(self, steps, loss, rate)

    monkeypatch.setattr(LocalEngine, "update", watched)
    chosen = load(TrainConfig, "default", [f"algorithm.{given}"]).algorithm
    rate = 3e-3 if chosen.epochs * chosen.updates_per_step == 1 else 1.5e-3  # several updates move the weights further
    learning = ("sft.steps=0", "steps=16", f"algorithm.learning_rate={rate}", f"algorithm.{given}")
    groups = ("algorithm.tasks_per_step=2", "algorithm.group_size=20", "algorithm.refill=2")
    run = Run.create(tmp_path / "run", config(warm, *TOY, *learning, *groups, "eval.trials=20", "certify.every=0"))
    rates = {stage: found.success.mean for stage, found in train(run.config, run, silent)["evaluations"]}
    assert 0.2 < rates["base model"] < 0.7
    assert rates["trained"] > 0.9
    assert len(firsts) > 6, "all but the steps whose groups teach nothing"
    for first in firsts if chosen.loss.kind != "nll" else ():  # which asks of no ratio
        assert first["ratio"] == pytest.approx(1.0, abs=1e-5)
        assert first["clip_fraction"] == 0.0


@pytest.mark.usefixtures("short")
def test_a_sampler_that_rounds_clips_no_sequence_of_gspo(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clips are a hundredth of how far bfloat16 has sampler and trainer apart."""
    honest, noise = LocalEngine.sample, random.Random(0)

    async def rounded(self: LocalEngine, *args: Any, **kwargs: Any) -> Completion:
        completion = await honest(self, *args, **kwargs)
        return dataclasses.replace(completion, logprobs=[x + noise.gauss(0.0, 0.05) for x in completion.logprobs])

    monkeypatch.setattr(LocalEngine, "sample", rounded)
    settings = ("sft.steps=0", "steps=1", "certify.every=0", "algorithm.preset=gspo", "algorithm.updates_per_step=1")
    trusted, own = (
        metrics(run_of(tmp_path / name, tiny, *settings, *beside))[0]
        for name, beside in (("trusted", ("algorithm.importance_cap=0",)), ("own", ()))
    )
    assert trusted["train/clip_fraction"] > 0.2
    assert own["train/clip_fraction"] == 0.0
    assert 0.03 < own["train/sampler_ratio_error"] ** 0.5 < 0.08


@pytest.mark.usefixtures("short")
def test_the_learning_rate_may_fall_to_the_last_step(tiny: Path, tmp_path: Path) -> None:
    settings = ("sft.steps=0", "steps=3", "certify.every=0", "algorithm.warmup=1", "algorithm.decay=0.1")
    lines = metrics(run_of(tmp_path / "run", tiny, *settings, "algorithm.learning_rate=1e-3"))
    assert [line["train/learning_rate"] for line in lines[-3:]] == pytest.approx([1e-3, 5.5e-4, 1e-4])


# ---- a critic ----


PPO = ("algorithm.preset=ppo", "algorithm.epochs=2", "sft.steps=1")


@pytest.mark.usefixtures("short")
def test_a_run_with_a_critic_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tiny: Path, tmp_path: Path) -> None:
    """Through a warm-up, in which the head learns and the policy does not."""
    settings = (*PPO, "algorithm.critic.warmup=1", "algorithm.critic.step=turn", "steps=3", "algorithm.warmup=2")
    whole = run_of(tmp_path / "whole", tiny, *settings)
    lines = metrics(whole)[1:]
    assert [line["train/learning_rate"] for line in lines] == pytest.approx([0.0, 5e-4, 1e-3])
    assert ["loss/total" in line for line in lines] == [False, True, True]
    assert all({"train/value_error", "loss/value_loss", "train/explained_variance"} <= line.keys() for line in lines)
    assert lines[-1]["train/value_error"] < lines[0]["train/value_error"]
    assert all(line["generation/groups"] == 2 for line in lines), "every group teaches, and none is replaced"
    start, held, moved = (saved(whole, step) for step in (1, 2, 3))

    def policy(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: x for name, x in tensors.items() if name.startswith("master.")}

    assert same(policy(held), policy(start))
    assert not same(policy(moved), policy(held))
    assert held["critic.master.weight"].any()
    assert not torch.equal(moved["critic.master.weight"], held["critic.master.weight"])

    with pytest.raises(KeyboardInterrupt, match="stopped after step 3"):
        run_of(tmp_path / "parts", tiny, *settings, report=Stopper("train", 3))
    resumed = Run.resume(tmp_path / "parts")
    train(resumed.config, resumed, silent)
    assert metrics(resumed) == metrics(whole)
    assert same(saved(resumed), saved(whole))


@pytest.mark.usefixtures("short")
def test_a_policy_that_a_critic_taught_is_used_without_it(tiny: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", tiny, *PPO, "steps=1", "algorithm.group_size=1")
    assert metrics(run)[-1]["generation/episodes"] == 2, "groups of one"
    engine, _ = open_model(run.config, run.last)
    engine.export(tmp_path / "model")
    trained, exported = (
        load_file(folder / "model.safetensors") for folder in (run.folder / "model", tmp_path / "model")
    )
    assert same(trained, exported)


def test_an_engine_that_has_no_critic_refuses_before_the_run_begins(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalEngine, critic: Critic) -> None:
        raise ConfigError("algorithm.advantage = 'gae': this engine learns no values")

    monkeypatch.setattr(LocalEngine, "add_critic", refuse)
    with pytest.raises(ConfigError, match="learns no values"):
        run_of(tmp_path / "run", tiny, *PPO)
    assert not list((tmp_path / "run" / "evaluations").iterdir())


def valued(*settings: str) -> tuple[Batch, TrainConfig]:
    """Two episodes of two tokens, of which the second earns 1; values 1/4, then 1/2; log ratios to a reference of 2."""
    chosen = parse(TrainConfig, "", ["algorithm.advantage=gae", "algorithm.critic.whiten=false", *settings])
    batch = collate(episodes(0.0, 1.0)).rows([0, 1])
    mask = batch.mask & (torch.arange(batch.mask.shape[1]) < 3)
    values = torch.tensor([[0.0, 0.25, 0.5, 0.0]] * 2)
    return dataclasses.replace(batch, mask=mask, values=values), chosen


def test_advantages_and_returns_of_a_critic_by_hand() -> None:
    batch, chosen = valued("algorithm.critic.gamma=0.5", "algorithm.critic.lam=0.5")
    found = with_advantages(batch, chosen)
    assert found.advantages is not None
    assert found.returns is not None
    assert found.advantages[:, 1:3].tolist() == [[0.25 - 0.25 - 0.125, -0.5], [0.25 - 0.25 + 0.125, 0.5]]
    assert torch.equal(found.returns, found.advantages + batch.values)  # type: ignore[operator]
    (part,) = optimizer_steps(found, 1, chosen)
    assert part.value_weights is not None
    assert part.value_weights.tolist() == [[0, 0.25, 0.25, 0]] * 2
    turn = chosen.replace(algorithm=chosen.algorithm.replace(critic=Critic(step="turn", gamma=0.5, whiten=False)))
    found = with_advantages(batch, turn)
    assert found.advantages is not None
    assert found.advantages[:, 1:3].tolist() == [[-0.25, -0.25], [0.75, 0.75]]
    (part,) = optimizer_steps(found, 1, turn)
    assert part.value_weights is not None
    assert part.value_weights.tolist() == [[0, 0.5, 0, 0]] * 2, "a reply is asked for once"
    white = with_advantages(batch, chosen.replace(algorithm=chosen.algorithm.replace(critic=Critic())))
    assert white.advantages is not None
    assert float(white.advantages[batch.mask].mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(white.advantages[batch.mask].std()) == pytest.approx(1.0, abs=1e-5)


UNLIKELIER = 1 - math.exp(-2)


@pytest.mark.parametrize(
    ("kind", "first", "second", "value"),
    [("k1", -0.4, -0.2, -0.4), ("k2", -0.2, -0.2, 0.0), ("k3", -0.1 * UNLIKELIER, -0.1 * UNLIKELIER, 0.0)],
)
def test_a_k1_penalty_is_a_reward_and_others_are_part_of_the_loss(
    kind: str, first: float, second: float, value: float
) -> None:
    """Log ratios of 2, coefficient 0.1: as a reward the first token is told of the second's, and so are the values."""
    settings = ("algorithm.critic.lam=1", "algorithm.kl_coefficient=0.1", f"algorithm.kl_kind={kind}")
    batch, chosen = valued(*settings)
    free = with_advantages(batch, chosen)
    bound = with_advantages(batch.with_(ref_logprobs=batch.logprobs - 2.0), chosen)
    assert free.advantages is not None
    assert bound.advantages is not None
    assert free.returns is not None
    assert bound.returns is not None
    assert (bound.advantages - free.advantages)[0, 1:3].tolist() == pytest.approx([first, second])
    assert float((bound.returns - free.returns)[0, 1]) == pytest.approx(value)


# ---- epochs and length ----


def test_epochs_go_through_all_rows_each_time_in_other_parts() -> None:
    batch = collate(episodes(*[0.0, 1.0] * 6), [i // 4 for i in range(12)])
    chosen = parse(TrainConfig, "", ["algorithm.epochs=3"])
    batch = with_advantages(batch, chosen)

    def rows_of(parts: Sequence[Batch]) -> list[list[int]]:
        return [part.lengths.tolist() for part in parts]  # each row has a length of its own

    parts = optimizer_steps(batch, 2, chosen, seed=1)
    assert len(parts) == 6
    assert rows_of(parts)[:2] == rows_of(optimizer_steps(batch, 2, chosen.replace(algorithm=Algorithm())))
    epochs = [rows_of(parts)[i : i + 2] for i in (0, 2, 4)]
    assert all(sorted(one + other) == batch.lengths.tolist() for one, other in epochs)
    assert len({tuple(map(tuple, epoch)) for epoch in epochs}) == 3
    assert all(sorted(part.group.tolist()) == [0, 0, 1, 1, 2, 2] for part in parts), "each has some of every group"
    assert rows_of(optimizer_steps(batch, 2, chosen, seed=1)) == rows_of(parts)
    assert rows_of(optimizer_steps(batch, 2, chosen, seed=2))[2:] != rows_of(parts)[2:]


def test_long_episodes_lose_some_of_their_reward() -> None:
    """Of 4 and 5 tokens, where 5 are the limit: the last half of it, 2.5 tokens, takes up to 0.5."""
    settings = ("limits.max_tokens=5", "algorithm.overlong.margin=0.5", "algorithm.overlong.penalty=0.5")
    batch = collate(episodes(1.0, 1.0, tokens=3), [0, 0])
    assert batch.lengths.tolist() == [4, 5]
    found = with_advantages(batch, parse(TrainConfig, "", settings))
    assert found.rewards.tolist() == pytest.approx([1.0 - 0.5 * 1.5 / 2.5, 0.5])
    assert found.advantages is not None
    assert found.advantages[:, 1].tolist() == pytest.approx([0.1, -0.1])
    assert with_advantages(batch, parse(TrainConfig, "", settings[:1])).rewards.tolist() == [1.0, 1.0]
