"""What an engine with a critic holds, beside a plain model and autograd: values of a tree of episodes, and gradients
that no cut changes; the head alone where there are no advantages; and a checkpoint that goes on to the bit."""

import asyncio
import dataclasses
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from understudy.algorithms import losses  # noqa: E402
from understudy.algorithms.critic import decisions, explained_variance  # noqa: E402
from understudy.algorithms.options import Critic, Loss  # noqa: E402
from understudy.batch import Batch, collate  # noqa: E402
from understudy.engines.local.config import LocalConfig, Lora  # noqa: E402
from understudy.engines.local.engine import STATE, LocalEngine  # noqa: E402
from understudy.errors import ConfigError  # noqa: E402
from understudy.messages import Message  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers

CRITIC = Critic(learning_rate=0.1, coefficient=0.5, clip=0.05)
RATE = 1e-2


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def run(call: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await call

    return asyncio.run(wait())


def engine_of(folder: Path, critic: Critic | None = CRITIC, **settings: Any) -> LocalEngine:
    values = {"device": "cpu", "dtype": "float32", "train_embeddings": True, "lora": Lora(rank=4)}
    engine = LocalEngine(folder, LocalConfig.model_validate(values | settings))
    if critic:
        engine.add_critic(critic)
    return engine


def drawn_head(engine: LocalEngine) -> None:
    """A head that is not zero, so that values differ and its gradient reaches the layers below."""
    assert engine._critic is not None
    generator = torch.Generator().manual_seed(9)
    masters = engine._critic._optimizer.masters
    with torch.no_grad():
        for master, scale in ((masters["weight"], 3.0), (masters["bias"], 0.1)):
            master.copy_(scale * torch.randn(master.shape, generator=generator))
    engine._critic._optimizer.publish()


def tree(turns: bool = False) -> Batch:
    """Episodes of two turns that share a prompt, or more: trained tokens too, and one episode that is there twice."""
    generator = torch.Generator().manual_seed(4)

    def ids(count: int) -> list[int]:
        found: list[int] = torch.randint(0, 256, (count,), generator=generator).tolist()
        return found

    def play(*spoken: tuple[list[int], list[int]]) -> Trajectory:
        episode = Trajectory("t", score=Score(reward=0.0))
        for seen, reply in spoken:
            episode.observe([], seen)
            episode.act(Message(role="assistant", content="x"), reply, [-5.0] * len(reply))
        return episode

    first, second, other = ((ids(n), ids(m)) for n, m in ((20, 7), (8, 5), (9, 6)))
    late = (second[0], [*second[1][:3], *ids(4)])
    paths = [(first, second), (first, second), (first, late), (first,), (other, second), ((first[0], ids(5)), late)]
    batch = collate([play(*path) for path in paths], [0, 0, 0, 0, 1, 1])
    advantages, values, returns, weights = torch.randn(4, *batch.tokens.shape, generator=generator) / 10
    steps = decisions(batch.mask, turns)
    return batch.with_(
        advantages=advantages * batch.mask, values=values, returns=10 * returns, value_weights=weights.abs() * steps
    )


def plain(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def states_and_logprobs(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Row by row: the hidden state before each token [B, T, D], and its log-probability [B, T]."""
    states, logprobs = [], []
    for tokens, length in zip(batch.tokens, batch.lengths.tolist(), strict=True):
        out = model(tokens[None, :length], output_hidden_states=True)
        found = out.logits[0, :-1].log_softmax(-1).gather(-1, tokens[1:length, None])[:, 0]
        more = batch.tokens.shape[1] - length
        logprobs.append(torch.nn.functional.pad(found, (1, more)))
        states.append(torch.nn.functional.pad(out.hidden_states[-1][0, :-1], (0, 0, 1, more)))
    return torch.stack(states), torch.stack(logprobs)


def gradients(engine: LocalEngine, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The sums that an update would step by, the head's as `head.…`, and its metrics."""
    assert engine._critic is not None
    found: dict[str, Tensor] = {}
    with pytest.MonkeyPatch.context() as patch:
        for prefix, optimizer in (("", engine._optimizer), ("head.", engine._critic._optimizer)):

            def keep(_: float, prefix: str = prefix, masters: dict[str, Tensor] = optimizer.masters) -> float:
                for name, master in masters.items():
                    assert master.grad is not None
                    found[prefix + name] = master.grad.clone()
                    master.grad.zero_()
                return 0.0

            patch.setattr(optimizer, "step", keep)
        metrics = run(engine.update([batch], Loss(), 0.0))
    return found, metrics


def close(found: dict[str, Tensor], expected: dict[str, Tensor], most: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for part in ("head.", "model."):  # each to its own length
        names = [name for name in found if name.startswith(part)]
        length = sum(float(expected[name].square().sum()) for name in names) ** 0.5
        error = sum(float((found[name] - expected[name]).square().sum()) for name in names) ** 0.5
        assert error < most * length
        assert length > 1e-3


def masters(engine: LocalEngine) -> dict[str, Tensor]:
    return {name: master.detach().clone() for name, master in engine._optimizer.masters.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- values ----


@pytest.mark.parametrize("tokens", [4096, 40, 1])
def test_values_are_a_linear_map_of_the_states_before_the_tokens(tiny: Path, tokens: int) -> None:
    engine, batch = engine_of(tiny, tokens_per_microbatch=tokens), tree()
    assert not run(engine.values(batch)).values.any(), "a new critic expects nothing"
    drawn_head(engine)
    assert engine._critic is not None
    head = engine._critic._optimizer.masters
    with torch.no_grad():
        states, _ = states_and_logprobs(plain(tiny), batch)
        expected = (states @ head["weight"] / 64 + head["bias"]) * batch.mask
    found = run(engine.values(batch)).values
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert found[batch.mask].std() > 0.1
    assert torch.equal(found[0], found[1]), "one episode twice has one value"


def test_without_a_critic_there_are_no_values(tiny: Path) -> None:
    engine = engine_of(tiny, critic=None)
    with pytest.raises(ValueError, match="call add_critic first"):
        run(engine.values(tree()))
    with pytest.raises(ValueError, match="takes a critic"):
        run(engine.update([tree()], Loss(), RATE))


# ---- gradients ----


@pytest.mark.parametrize("turns", [False, True])
def test_gradients_are_those_of_both_losses_however_the_batch_is_cut(tiny: Path, turns: bool) -> None:
    """Into the layers below goes half of the value loss's gradient, into the head all of it."""
    engine, batch = engine_of(tiny), tree(turns)
    drawn_head(engine)
    assert engine._critic is not None
    model, head = plain(tiny), {n: m.detach().clone() for n, m in engine._critic._optimizer.masters.items()}
    for weight in head.values():
        weight.requires_grad_()
    states, logprobs = states_and_logprobs(model, batch)
    values = states @ head["weight"] / 64 + head["bias"]
    policy, _ = losses.compute(Loss(), logprobs, batch.logprobs, batch.advantages, batch.mask)
    steps = decisions(batch.mask, turns)
    value, of_values = losses.value_loss(values, batch.values, batch.returns, batch.value_weights, steps, CRITIC.clip)
    below = torch.autograd.grad(policy + 0.5 * value, list(model.parameters()), retain_graph=True)
    expected = {name: grad for (name, _), grad in zip(model.named_parameters(), below, strict=True)}
    expected |= {f"head.{n}": g for n, g in zip(head, torch.autograd.grad(value, list(head.values())), strict=True)}
    assert 0 < of_values["value_clip_fraction"] < steps.sum()
    for tokens in (4096, 60, 1):
        engine._config = engine._config.replace(tokens_per_microbatch=tokens)
        found, metrics = gradients(engine, batch)
        close(found, expected)
        assert metrics["value_loss"] == pytest.approx(value.item(), rel=1e-4)
        assert metrics["loss"] == pytest.approx(policy.item(), rel=1e-4)
        for name in ("value_error", "value_clip_fraction"):
            assert metrics[name] == pytest.approx(float(of_values[name] / steps.sum()), rel=1e-4)
        assert metrics["trained_tokens"] == batch.mask.sum()
    assert metrics["computed_tokens"] == batch.lengths.sum()
    other = batch.rows(torch.arange(len(batch)).flip(0))
    close(gradients(engine, other)[0], expected)


def test_a_coefficient_of_0_keeps_the_value_loss_out_of_the_layers_below(tiny: Path) -> None:
    engine, batch = engine_of(tiny, CRITIC.replace(coefficient=0.0)), tree()
    drawn_head(engine)
    found, _ = gradients(engine, batch)
    alone, _ = gradients(engine, batch.with_(value_weights=torch.zeros_like(batch.values)))
    below = {name for name in found if not name.startswith("head.")}
    assert all(torch.equal(found[name], alone[name]) for name in below)
    assert any(found[name].any() for name in found.keys() - below)


def test_a_row_without_advantage_teaches_the_critic(tiny: Path) -> None:
    engine, batch = engine_of(tiny), tree()
    drawn_head(engine)
    assert batch.advantages is not None
    batch = batch.with_(advantages=batch.advantages * (torch.arange(len(batch)) % 2)[:, None])
    found, metrics = gradients(engine, batch)
    assert metrics["trained_tokens"] == batch.mask.sum()
    fewer, _ = gradients(engine, batch.rows(torch.arange(1, len(batch), 2)))
    assert not torch.equal(found["head.weight"], fewer["head.weight"])


# ---- steps ----


def test_without_advantages_the_head_learns_alone(tiny: Path) -> None:
    engine = engine_of(tiny)
    ones = torch.ones_like(tree().logprobs)
    batch = run(engine.values(dataclasses.replace(tree(), advantages=None, returns=ones)))
    before = masters(engine)
    told = [run(engine.update([batch], Loss(), RATE)) for _ in range(20)]
    assert same(masters(engine), before)
    assert told[0]["value_error"] == 1.0
    assert told[-1]["value_error"] < (1 - CRITIC.clip) ** 2 + 0.05, "beyond the clip nothing pulls on"
    assert told[-1]["value_clip_fraction"] > 0.5
    assert told[0].keys() == {
        "value_loss", "value_error", "value_clip_fraction", "value_grad_norm", "computed_tokens", "trained_tokens",
    }  # fmt: skip
    with pytest.raises(ValueError, match="without advantages"):
        run(engine.update([dataclasses.replace(batch, returns=None)], Loss(), RATE))


def test_the_head_learns_to_tell_episodes_apart(tiny: Path) -> None:
    engine, batch = engine_of(tiny, CRITIC.replace(clip=0.0)), tree()
    begun_alike = (batch.tokens[:, :1] == batch.tokens[0, 0]).float()
    batch = dataclasses.replace(batch, advantages=None, returns=begun_alike.expand_as(batch.logprobs))
    assert 0 < begun_alike.sum() < len(batch)
    run(engine.update([batch] * 100, Loss(), RATE))
    assert batch.returns is not None
    assert explained_variance(run(engine.values(batch)).values, batch.returns, batch.mask) > 0.9


def test_a_step_moves_a_value_by_about_the_learning_rate(tiny: Path) -> None:
    engine = engine_of(tiny, CRITIC.replace(coefficient=0.0))
    batch = tree().with_(returns=torch.ones_like(tree().logprobs))
    run(engine.update([batch], Loss(), 0.0))
    moved = run(engine.values(batch)).values[batch.mask]
    assert 0.5 < float(moved.mean()) / CRITIC.learning_rate < 2


# ---- checkpoints ----


@pytest.mark.parametrize(("dtype", "finetune"), [("float32", "full"), ("bfloat16", "lora")])
def test_what_goes_on_from_a_checkpoint_equals_what_went_on(
    tiny: Path, tmp_path: Path, dtype: str, finetune: str
) -> None:
    def going_on(engine: LocalEngine) -> tuple[dict[str, float], Tensor, dict[str, Tensor]]:
        metrics = run(engine.update([batch], Loss(), RATE))
        return metrics, run(engine.values(batch)).values, masters(engine)

    batch, settings = tree(), {"dtype": dtype, "finetune": finetune}
    engine = engine_of(tiny, **settings)
    run(engine.update([batch, batch], Loss(), RATE))
    engine.save(tmp_path)
    resumed = engine_of(tiny, **settings)
    resumed.load(tmp_path)
    (metrics, values, moved), (again, same_values, same_moved) = going_on(engine), going_on(resumed)
    assert metrics == again
    assert torch.equal(values, same_values)
    assert values[batch.mask].any()
    assert same(moved, same_moved)


def test_a_policy_is_read_without_its_critic_and_a_critic_not_without_its_head(tiny: Path, tmp_path: Path) -> None:
    engine, batch = engine_of(tiny), tree()
    run(engine.update([batch], Loss(), RATE))
    engine.save(tmp_path)
    alone = engine_of(tiny, critic=None)
    alone.load(tmp_path)
    assert same(masters(alone), masters(engine))
    tensors = {name: x for name, x in load_file(tmp_path / STATE).items() if not name.startswith("critic.")}
    save_file(tensors, tmp_path / STATE, {"version": "1"})
    with pytest.raises(ConfigError, match="not a checkpoint of this model"):
        engine.load(tmp_path)
