"""What an update tells of itself: ratios apart for the first step and the later ones, and how far the weights moved."""

import pytest

torch = pytest.importorskip("torch")

from understudy.engines.local.config import Optimizer  # noqa: E402
from understudy.engines.local.measures import told  # noqa: E402
from understudy.engines.local.optimizer import MasterAdamW  # noqa: E402


def test_means_by_hand() -> None:
    first = {"loss": 2.0, "grad_norm": 4.0, "trained_tokens": 10.0, "computed_tokens": 30.0, "entropy": 5.0}
    second = {"loss": 4.0, "grad_norm": 2.0, "trained_tokens": 30.0, "computed_tokens": 50.0, "entropy": 15.0}
    assert told([first, second]) == {
        "loss": 3.0,
        "grad_norm": 3.0,
        "trained_tokens": 40.0,
        "computed_tokens": 80.0,
        "entropy": 0.5,
    }


def test_the_first_step_s_ratio_is_told_apart_from_the_later_ones() -> None:
    empty = {"grad_norm": 0.0}  # all of its rows were without advantage
    first = {"trained_tokens": 10.0, "ratio": 10.0, "ratio_error": 0.0}
    later = {"trained_tokens": 10.0, "ratio": 12.0, "ratio_error": 0.4}
    found = told([empty, first, later, later])
    assert (found["first_ratio"], found["first_ratio_error"]) == (1.0, 0.0)
    assert found["later_ratio_error"] == pytest.approx(0.04)
    assert found["ratio"] == pytest.approx(34 / 30)
    assert "later_ratio_error" not in told([first])


@pytest.mark.parametrize(
    ("dtype", "rate", "moves"), [("float32", 1e-5, True), ("bfloat16", 1e-5, False), ("bfloat16", 0.1, True)]
)
def test_what_rounding_swallows_is_no_change(dtype: str, rate: float, moves: bool) -> None:
    """A step that is smaller than half a bfloat16 apart leaves the weight that the model has where it was."""
    weight = torch.nn.Parameter(torch.full((4,), 3.0, dtype=getattr(torch, dtype)))
    optimizer = MasterAdamW({"w": weight}, Optimizer())
    before = weight.detach().clone()
    weight.sum().backward()
    optimizer.step(rate)
    after = weight.detach().float()
    assert optimizer.change == pytest.approx(float((after - before.float()).norm() / after.norm()))
    assert (optimizer.change > 0) is moves
