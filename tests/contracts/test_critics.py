"""Test an engine's critic against a plain model and autograd: values, gradients, updates and checkpoints."""

import asyncio
import dataclasses
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.gradients import assert_all_close, compute_gradients
from understudy.algorithms import losses
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import CriticConfig, LossConfig
from understudy.algorithms.critic import action_starts, explained_variance
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.local.checkpoint import STATE_FILE
from understudy.engines.local.config import LocalEngineConfig, LoraConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import make_tiny_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # peft reads a renamed property of transformers

CRITIC = CriticConfig(learning_rate=0.1, vf_coef=0.5, value_clip=0.05)
RATE = 1e-2


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def run(call: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await call

    return asyncio.run(wait())


def engine_of(folder: Path, critic: CriticConfig | None = CRITIC, **settings: Any) -> LocalEngine:
    values = {"device": "cpu", "dtype": "float32", "train_embeddings": True, "lora": LoraConfig(rank=4)}
    engine = LocalEngine(folder, LocalEngineConfig.model_validate(values | settings))
    if critic:
        engine.add_critic(critic)
    return engine


def randomize_head(engine: LocalEngine) -> None:
    """Set a nonzero value head, so that values differ and its gradient reaches the layers below."""
    assert engine._critic is not None
    generator = torch.Generator().manual_seed(9)
    masters = engine._critic._optimizer.masters
    with torch.no_grad():
        for master, scale in ((masters["weight"], 3.0), (masters["bias"], 0.1)):
            master.copy_(scale * torch.randn(master.shape, generator=generator))
    engine._critic._optimizer.copy_to_model()


def make_tree_batch(turns: bool = False) -> Batch:
    """Return a batch of episodes that share prefixes, with shared trained tokens and one duplicate episode."""
    generator = torch.Generator().manual_seed(4)

    def random_tokens(count: int) -> list[int]:
        found: list[int] = torch.randint(0, 256, (count,), generator=generator).tolist()
        return found

    def play(*spoken: tuple[list[int], list[int]]) -> Trajectory:
        episode = Trajectory("t", score=Score(reward=0.0))
        for seen, reply in spoken:
            episode.observe([], seen)
            episode.act(Message(role="assistant", content="x"), reply, [-5.0] * len(reply))
        return episode

    first, second, other = ((random_tokens(n), random_tokens(m)) for n, m in ((20, 7), (8, 5), (9, 6)))
    late = (second[0], [*second[1][:3], *random_tokens(4)])
    paths = [
        (first, second),
        (first, second),
        (first, late),
        (first,),
        (other, second),
        ((first[0], random_tokens(5)), late),
    ]
    batch = collate([play(*path) for path in paths], [0, 0, 0, 0, 1, 1])
    advantages, values, returns, weights = torch.randn(4, *batch.tokens.shape, generator=generator) / 10
    steps = action_starts(batch.mask, turns)
    return batch.replace(
        advantages=advantages * batch.mask, values=values, returns=10 * returns, value_weights=weights.abs() * steps
    )


def load_transformers_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def states_and_logprobs(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Compute, row by row, the hidden state before each token [B, T, D] and its log-probability [B, T]."""
    states, logprobs = [], []
    for tokens, length in zip(batch.tokens, batch.lengths.tolist(), strict=True):
        out = model(tokens[None, :length], output_hidden_states=True)
        found = out.logits[0, :-1].log_softmax(-1).gather(-1, tokens[1:length, None])[:, 0]
        more = batch.tokens.shape[1] - length
        logprobs.append(torch.nn.functional.pad(found, (1, more)))
        states.append(torch.nn.functional.pad(out.hidden_states[-1][0, :-1], (0, 0, 1, more)))
    return torch.stack(states), torch.stack(logprobs)


def assert_both_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare the gradients of head and model, each relative to its own length."""
    for part in ("head.", "model."):
        mine, theirs = ({name: x for name, x in all_.items() if name.startswith(part)} for all_ in (found, expected))
        assert_all_close(mine, theirs, 1e-5)


def master_weights(engine: LocalEngine) -> dict[str, Tensor]:
    return {name: master.detach().clone() for name, master in engine._optimizer.masters.items()}


def same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("tokens", [4096, 40, 1])
def test_values_are_a_linear_map_of_hidden_states(tiny: Path, tokens: int) -> None:
    engine, batch = engine_of(tiny, max_tokens_per_microbatch=tokens), make_tree_batch()
    assert not run(engine.compute_values(batch)).values.any(), "a new critic expects nothing"
    randomize_head(engine)
    assert engine._critic is not None
    head = engine._critic._optimizer.masters
    with torch.no_grad():
        states, _ = states_and_logprobs(load_transformers_model(tiny), batch)
        expected = (states @ head["weight"] / 64 + head["bias"]) * batch.mask
    found = run(engine.compute_values(batch)).values
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert found[batch.mask].std() > 0.1
    assert torch.equal(found[0], found[1]), "one episode twice has one value"


def test_engine_without_critic_raises_on_values(tiny: Path) -> None:
    engine = engine_of(tiny, critic=None)
    with pytest.raises(ValueError, match="critic"):
        run(engine.compute_values(make_tree_batch()))
    with pytest.raises(ValueError, match="critic"):
        run(engine.update([make_tree_batch()], LossConfig(), RATE))


@pytest.mark.parametrize("turns", [False, True])
def test_gradients_of_both_losses_match_autograd_for_any_microbatch(tiny: Path, turns: bool) -> None:
    """The layers below get half of the value loss's gradient (`vf_coef` 0.5), the head all of it."""
    engine, batch = engine_of(tiny), make_tree_batch(turns)
    randomize_head(engine)
    assert engine._critic is not None
    model, head = (
        load_transformers_model(tiny),
        {n: m.detach().clone() for n, m in engine._critic._optimizer.masters.items()},
    )
    for weight in head.values():
        weight.requires_grad_()
    states, logprobs = states_and_logprobs(model, batch)
    values = states @ head["weight"] / 64 + head["bias"]
    policy, _ = losses.compute_loss(LossConfig(), logprobs, batch.logprobs, batch.advantages, batch.mask)
    steps = action_starts(batch.mask, turns)
    value, of_values = losses.value_loss(
        values, batch.values, batch.returns, batch.value_weights, steps, CRITIC.value_clip
    )
    below = torch.autograd.grad(policy + 0.5 * value, list(model.parameters()), retain_graph=True)
    expected = {name: grad for (name, _), grad in zip(model.named_parameters(), below, strict=True)}
    expected |= {f"head.{n}": g for n, g in zip(head, torch.autograd.grad(value, list(head.values())), strict=True)}
    assert 0 < of_values["value_clip_fraction"] < steps.sum()
    for tokens in (4096, 60, 1):
        engine._config = engine._config.replace(max_tokens_per_microbatch=tokens)
        found, metrics = compute_gradients(engine, batch)
        assert_both_close(found, expected)
        assert metrics["value_loss"] == pytest.approx(value.item(), rel=1e-4)
        assert metrics["loss"] == pytest.approx(policy.item(), rel=1e-4)
        for name in ("value_mse", "value_clip_fraction"):
            assert metrics[name] == pytest.approx(float(of_values[name] / steps.sum()), rel=1e-4)
        assert metrics["trained_tokens"] == batch.mask.sum()
    assert metrics["computed_tokens"] == batch.lengths.sum()
    other = batch.select(torch.arange(len(batch)).flip(0))
    assert_both_close(compute_gradients(engine, other)[0], expected)


def test_vf_coef_0_gives_the_value_loss_only_to_the_head(tiny: Path) -> None:
    engine, batch = engine_of(tiny, CRITIC.replace(vf_coef=0.0)), make_tree_batch()
    randomize_head(engine)
    found, _ = compute_gradients(engine, batch)
    alone, _ = compute_gradients(engine, batch.replace(value_weights=torch.zeros_like(batch.values)))
    below = {name for name in found if not name.startswith("head.")}
    assert all(torch.equal(found[name], alone[name]) for name in below)
    assert any(found[name].any() for name in found.keys() - below)


def test_rows_with_zero_advantage_train_the_critic(tiny: Path) -> None:
    engine, batch = engine_of(tiny), make_tree_batch()
    randomize_head(engine)
    assert batch.advantages is not None
    batch = batch.replace(advantages=batch.advantages * (torch.arange(len(batch)) % 2)[:, None])
    found, metrics = compute_gradients(engine, batch)
    assert metrics["trained_tokens"] == batch.mask.sum()
    fewer, _ = compute_gradients(engine, batch.select(torch.arange(1, len(batch), 2)))
    assert not torch.equal(found["head.weight"], fewer["head.weight"])


def test_update_without_advantages_trains_only_the_head(tiny: Path) -> None:
    engine = engine_of(tiny)
    ones = torch.ones_like(make_tree_batch().logprobs)
    batch = run(engine.compute_values(dataclasses.replace(make_tree_batch(), advantages=None, returns=ones)))
    before = master_weights(engine)
    all_metrics = [run(engine.update([batch], LossConfig(), RATE)) for _ in range(20)]
    assert same_tensors(master_weights(engine), before)
    assert all_metrics[0]["value_mse"] == 1.0
    assert all_metrics[-1]["value_mse"] < (1 - CRITIC.value_clip) ** 2 + 0.05, "the clip stops the gradient"
    assert all_metrics[-1]["value_clip_fraction"] > 0.5
    assert all_metrics[0].keys() == {
        "value_loss", "value_mse", "value_clip_fraction", "value_grad_norm", "computed_tokens", "distinct_tokens",
        "trained_tokens",
    }  # fmt: skip
    with pytest.raises(ValueError, match="advantages"):
        run(engine.update([dataclasses.replace(batch, returns=None)], LossConfig(), RATE))


def test_head_learns_to_distinguish_episodes(tiny: Path) -> None:
    engine, batch = engine_of(tiny, CRITIC.replace(value_clip=0.0)), make_tree_batch()
    same_first_token = (batch.tokens[:, :1] == batch.tokens[0, 0]).float()
    batch = dataclasses.replace(batch, advantages=None, returns=same_first_token.expand_as(batch.logprobs))
    assert 0 < same_first_token.sum() < len(batch)
    run(engine.update([batch] * 100, LossConfig(), RATE))
    assert batch.returns is not None
    assert explained_variance(run(engine.compute_values(batch)).values, batch.returns, batch.mask) > 0.9


def test_one_step_changes_values_by_about_the_learning_rate(tiny: Path) -> None:
    engine = engine_of(tiny, CRITIC.replace(vf_coef=0.0))
    batch = make_tree_batch().replace(returns=torch.ones_like(make_tree_batch().logprobs))
    run(engine.update([batch], LossConfig(), 0.0))
    moved = run(engine.compute_values(batch)).values[batch.mask]
    assert 0.5 < float(moved.mean()) / CRITIC.learning_rate < 2


@pytest.mark.parametrize(("dtype", "finetune"), [("float32", "full"), ("bfloat16", "lora")])
def test_resumed_critic_equals_uninterrupted(tiny: Path, tmp_path: Path, dtype: str, finetune: str) -> None:
    def update_once(engine: LocalEngine) -> tuple[dict[str, float], Tensor, dict[str, Tensor]]:
        metrics = run(engine.update([batch], LossConfig(), RATE))
        return metrics, run(engine.compute_values(batch)).values, master_weights(engine)

    batch, settings = make_tree_batch(), {"dtype": dtype, "finetune": finetune}
    engine = engine_of(tiny, **settings)
    run(engine.update([batch, batch], LossConfig(), RATE))
    engine.save(tmp_path)
    resumed = engine_of(tiny, **settings)
    resumed.load(tmp_path)
    (metrics, values, moved), (again, same_values, same_moved) = update_once(engine), update_once(resumed)
    assert metrics == again
    assert torch.equal(values, same_values)
    assert values[batch.mask].any()
    assert same_tensors(moved, same_moved)


def test_checkpoint_loads_without_critic_but_needs_the_head_for_one(tiny: Path, tmp_path: Path) -> None:
    engine, batch = engine_of(tiny), make_tree_batch()
    run(engine.update([batch], LossConfig(), RATE))
    engine.save(tmp_path)
    alone = engine_of(tiny, critic=None)
    alone.load(tmp_path)
    assert same_tensors(master_weights(alone), master_weights(engine))
    tensors = {name: x for name, x in load_file(tmp_path / STATE_FILE).items() if not name.startswith("critic.")}
    save_file(tensors, tmp_path / STATE_FILE, {"about": '{"version": 1}'})
    with pytest.raises(ConfigError, match=r"checkpoint.*master\.bias"):
        engine.load(tmp_path)
