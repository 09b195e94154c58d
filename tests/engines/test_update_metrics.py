"""Tests of update metrics: token means, ratios of the first and later minibatches, the relative weight change, and
which tokens a loss of the user's own is computed of."""

import asyncio
import math
from pathlib import Path

import pytest
import torch

from understudy.algorithms.batch import Batch
from understudy.algorithms.config import LossConfig
from understudy.engines.local.config import LocalEngineConfig, OptimizerConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.optimizer import MasterAdamW
from understudy.engines.local.update_metrics import exceeds_target_kl, reduce_metrics
from understudy.engines.models import find_model


def test_reduced_metrics_match_hand_computed_values() -> None:
    first = {"loss": 2.0, "grad_norm": 4.0, "trained_tokens": 10.0, "computed_tokens": 30.0, "entropy": 5.0}
    second = {"loss": 4.0, "grad_norm": 2.0, "trained_tokens": 30.0, "computed_tokens": 50.0, "entropy": 15.0}
    assert reduce_metrics([first, second]) == {
        "loss": 3.0,
        "grad_norm": 3.0,
        "trained_tokens": 40.0,
        "computed_tokens": 80.0,
        "entropy": 0.5,
    }


def test_ratio_of_the_first_minibatch_is_reported_separately() -> None:
    empty = {"grad_norm": 0.0, "trained_tokens": 0.0}  # no row had an advantage
    first = {"trained_tokens": 10.0, "ratio": 10.0, "ratio_mse": 0.0, "grad_norm": 3.0}
    later = {"trained_tokens": 10.0, "ratio": 12.0, "ratio_mse": 0.4}
    found = reduce_metrics([empty, first, later, later])
    assert (found["first_minibatch_ratio"], found["first_minibatch_ratio_mse"]) == (1.0, 0.0)
    assert found["later_minibatch_ratio_mse"] == pytest.approx(0.04)
    assert found["ratio"] == pytest.approx(34 / 30)
    assert reduce_metrics([empty, first])["grad_norm"] == 3.0
    assert reduce_metrics([empty, empty])["grad_norm"] == 0.0
    assert "later_minibatch_ratio_mse" not in reduce_metrics([first])
    of_own_loss = {"trained_tokens": 10.0, "ratio": 10.0}
    assert reduce_metrics([of_own_loss]) == {"trained_tokens": 10.0, "ratio": 1.0}


@pytest.mark.parametrize(
    ("dtype", "rate", "moves"), [("float32", 1e-5, True), ("bfloat16", 1e-5, False), ("bfloat16", 0.1, True)]
)
def test_relative_change_is_zero_when_the_update_rounds_away(dtype: str, rate: float, moves: bool) -> None:
    """An update below half of a bfloat16 step leaves the model's weight unchanged."""
    weight = torch.nn.Parameter(torch.full((4,), 3.0, dtype=getattr(torch, dtype)))
    optimizer = MasterAdamW({"w": weight}, OptimizerConfig())
    before = weight.detach().clone()
    weight.sum().backward()
    optimizer.step(rate)
    after = weight.detach().float()
    change = float(optimizer.relative_change)
    assert change == pytest.approx(float((after - before.float()).norm() / after.norm()))
    assert (change > 0) is moves


def small_batch() -> Batch:
    batch = Batch.from_rows([[row, row + 1, row + 2] for row in range(10, 40, 10)], [[False, True, True]] * 3)
    return batch.replace(advantages=torch.tensor([[-1.0], [1.0], [0.5]]) * batch.mask)


@pytest.mark.parametrize(("target_kl", "steps"), [(0.0, 4), (1e6, 4), (1e-9, 1)])
def test_target_kl_skips_the_remaining_minibatches(target_kl: float, steps: int) -> None:
    """The log-probabilities of the batch are 0, far from the model's, so the first minibatch exceeds a small target."""
    engine, reported = LocalEngine(find_model("tiny"), LocalEngineConfig(dtype="float32")), []
    loss = LossConfig(target_kl=target_kl)
    found = asyncio.run(engine.update([small_batch()] * 4, loss, 1e-5, lambda index, logprobs: reported.append(index)))
    assert (reported, found["trained_tokens"]) == ([*range(steps)], 6.0 * steps)
    assert found.get("skipped_minibatches") == (4.0 - steps if target_kl else None)
    assert exceeds_target_kl(LossConfig(target_kl=0.1), {"approx_kl": 0.7, "trained_tokens": 6.0})
    assert not exceeds_target_kl(LossConfig(target_kl=0.1), {"approx_kl": 0.5, "trained_tokens": 6.0})
    assert not exceeds_target_kl(LossConfig(target_kl=0.1), {"trained_tokens": 0.0})


def test_eps_of_adam_divides_the_first_step() -> None:
    """The first step of Adam is rate * g / (|g| + eps)."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = MasterAdamW({"w": weight}, OptimizerConfig(eps=0.5, max_grad_norm=10.0))
    (0.5 * weight).sum().backward()
    optimizer.step(0.1)
    assert weight.item() == pytest.approx(-0.1 * 0.5 / (0.5 + 0.5))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_gradients_that_are_not_finite_change_nothing(wrong: float) -> None:
    weights = {name: torch.nn.Parameter(torch.ones(2)) for name in ("a", "b")}
    optimizer = MasterAdamW(weights, OptimizerConfig())
    sum(weight.sum() for weight in weights.values()).backward()  # type: ignore[union-attr]
    optimizer.step(0.1)
    norms = []
    for factor in (wrong, 1.0):
        (weights["a"].sum() * factor + weights["b"].sum()).backward()
        before = {name: tensor.clone() for name, tensor in optimizer.state_dict().items()}
        norms.append(float(optimizer.step(0.1)))
        changed = {name for name, tensor in optimizer.state_dict().items() if not torch.equal(tensor, before[name])}
        assert changed == (set() if factor is wrong else set(before))
    assert not math.isfinite(norms[0])
    assert norms[1] == pytest.approx(2.0)


@pytest.mark.parametrize("rewards", [(-0.5, 0.5, 0.0), (0.0, 0.0, 0.0)])
def test_own_loss_gets_every_row_with_sampled_tokens(
    rewards: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KL or SFT term also has a gradient where the advantage is 0. Rows without sampled tokens have none."""
    code = "def own(logprobs, *rest):\n    return -logprobs.sum(), {'seen': logprobs.numel()}\n"
    (tmp_path / "loss_of_every_row.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    engine = LocalEngine(find_model("tiny"), LocalEngineConfig(dtype="float32"))
    masks = [[False, True, True]] * 3 + [[False] * 3]
    batch = Batch.from_rows([[row, row + 1, row + 2] for row in range(10, 50, 10)], masks)
    batch = batch.replace(advantages=torch.tensor([*rewards, 0.0])[:, None] * batch.mask)
    found = asyncio.run(engine.update([batch], LossConfig(kind="loss_of_every_row:own"), 1e-5))
    assert (found["trained_tokens"], found["seen"]) == (6, 1.0), "the metric is a mean over 6 tokens"
    assert found["grad_norm"] > 0
