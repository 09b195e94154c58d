"""Gradients of an engine's updates, and their comparison."""

import asyncio

import pytest
import torch
from torch import Tensor

from understudy.algorithms.batch import Batch
from understudy.algorithms.config import LossConfig
from understudy.engines.local.engine import LocalEngine

PPO = LossConfig()


def compute_gradients(
    engine: LocalEngine, batch: Batch, loss: LossConfig = PPO
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the gradient sums of an update, a critic's head with the prefix `head.`, and the update's metrics."""
    found: dict[str, Tensor] = {}
    optimizers = {"": engine._optimizer} | ({"head.": engine._critic._optimizer} if engine._critic else {})
    with pytest.MonkeyPatch.context() as patch:
        for prefix, optimizer in optimizers.items():

            def keep(_: float, prefix: str = prefix, masters: dict[str, Tensor] = optimizer.masters) -> Tensor:
                for name, master in masters.items():
                    assert master.grad is not None
                    found[prefix + name] = master.grad.clone()
                    master.grad.zero_()
                return torch.zeros(())

            patch.setattr(optimizer, "step", keep)
        metrics = asyncio.run(engine.update([batch], loss, 0.0))
    return found, metrics


def assert_all_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Compare all gradients as one vector, relative to its length."""
    assert found.keys() == expected.keys()
    error = sum(float((found[name].double() - expected[name].double()).square().sum()) for name in found) ** 0.5
    length = sum(float(x.double().square().sum()) for x in expected.values()) ** 0.5
    assert error < tolerance * length
    assert length > 0
