"""Tests of the DPO and KTO weights against the gradients of their losses, and of the sequence log ratios."""

import math

import pytest
import torch
from torch import Tensor

from understudy.algorithms.losses import nll_loss
from understudy.algorithms.preferences import dpo_weights, kto_weights, sequence_log_ratios

PAIR = torch.tensor([4, 9, 4, 9])
CHOSEN = torch.tensor([True, False, False, True])
MARGINS = torch.tensor([0.3, 1.2, -0.4, 0.7], dtype=torch.float64)
BETA = 0.5


def gradient(loss: Tensor, margins: Tensor) -> Tensor:
    return torch.autograd.grad(loss, margins)[0]


def test_dpo_weights_match_hand_computed_values() -> None:
    """Pair 4: chosen 0.3, rejected -0.4. Pair 9, in the wrong order: chosen 0.7, rejected 1.2."""
    weights, metrics = dpo_weights(MARGINS, PAIR, CHOSEN, BETA)
    right, wrong = (BETA / (1 + math.exp(BETA * x)) / 2 for x in (0.7, -0.5))
    assert weights.tolist() == pytest.approx([right, -wrong, -right, wrong])
    assert metrics["preference_accuracy"] == 0.5
    assert metrics["loss"] == pytest.approx((math.log1p(math.exp(-0.35)) + math.log1p(math.exp(0.25))) / 2)


def test_dpo_weights_equal_the_gradient_of_the_dpo_loss() -> None:
    margins = MARGINS.clone().requires_grad_()
    chosen, rejected = margins[[0, 3]], margins[[2, 1]]
    loss = -torch.nn.functional.logsigmoid(BETA * (chosen - rejected)).mean()
    torch.testing.assert_close(-dpo_weights(MARGINS, PAIR, CHOSEN, BETA)[0], gradient(loss, margins))


@pytest.mark.parametrize(
    ("pair", "chosen"),
    [([1, 1], [True, True]), ([1, 2], [True, False]), ([1, 1, 1, 1], [True, False, True, False])],
)
def test_dpo_rejects_pairs_without_one_chosen_and_one_rejected(pair: list[int], chosen: list[bool]) -> None:
    with pytest.raises(ValueError, match="episode"):
        dpo_weights(torch.zeros(len(pair)), torch.tensor(pair), torch.tensor(chosen), BETA)


@pytest.mark.parametrize("kl", [0.0, 0.4, -1.0])
def test_kto_weights_equal_the_gradient_of_the_kto_loss(kl: float) -> None:
    """A negative KL estimate counts as 0."""
    margins = MARGINS.clone().requires_grad_()
    point = max(0.0, kl)
    desirable = 1 - torch.sigmoid(BETA * (margins[CHOSEN] - point))
    undesirable = 0.7 * (1 - torch.sigmoid(BETA * (point - margins[~CHOSEN])))
    loss = torch.cat([desirable, undesirable]).mean()
    weights, metrics = kto_weights(MARGINS, CHOSEN, BETA, kl, undesirable_weight=0.7)
    torch.testing.assert_close(-weights, gradient(loss, margins))
    assert metrics == {"loss": pytest.approx(loss.item()), "kl": point}


def test_sequence_log_ratios_ignore_unsampled_tokens() -> None:
    mask = torch.tensor([[False, True, True], [False, True, False]])
    nothing = float("nan")
    policy = torch.tensor([[nothing, -1.0, -2.0], [nothing, -0.5, nothing]])
    reference = torch.tensor([[nothing, -1.5, -1.0], [nothing, -2.5, nothing]])
    assert sequence_log_ratios(policy, reference, mask).tolist() == [-0.5, 2.0]


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_weighted_nll_has_the_gradient_of_the_preference_loss(kind: str) -> None:
    """Compares the engine's gradient by token with finite differences of the paper's loss."""
    generator = torch.Generator().manual_seed(0)
    logprobs, reference = (-torch.rand(4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.rand(4, 5, generator=generator) < 0.7

    def weights_and_loss(moved: Tensor) -> tuple[Tensor, float]:
        margin = sequence_log_ratios(moved, reference, mask)
        chosen = dpo_weights(margin, PAIR, CHOSEN, BETA) if kind == "dpo" else kto_weights(margin, CHOSEN, BETA, kl=0.2)
        return chosen[0], chosen[1]["loss"]

    inputs = logprobs.clone().requires_grad_()
    weights = weights_and_loss(logprobs)[0][:, None].expand(4, 5)
    found = gradient(nll_loss(inputs, weights, mask)[0], inputs)
    step = 1e-5
    for row in range(4):
        for column in range(5):
            sides = []
            for sign in (1, -1):
                moved = logprobs.clone()
                moved[row, column] += sign * step
                sides.append(weights_and_loss(moved)[1])
            assert float(found[row, column]) == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-6)
    assert found[mask].abs().min() > 0
