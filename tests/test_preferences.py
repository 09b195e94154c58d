"""Preferences: weights whose negative log-likelihood has the gradient of the loss in the paper."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from understudy.algorithms.losses import nll  # noqa: E402
from understudy.algorithms.preferences import dpo_weights, kto_weights, margins  # noqa: E402

PAIR = torch.tensor([4, 9, 4, 9])
WON = torch.tensor([True, False, False, True])
MARGINS = torch.tensor([0.3, 1.2, -0.4, 0.7], dtype=torch.float64)
BETA = 0.5


def gradient(loss: Tensor, margins: Tensor) -> Tensor:
    return torch.autograd.grad(loss, margins)[0]


def test_dpo_by_hand() -> None:
    """Pair 4: 0.3 against -0.4; pair 9: 0.7 against 1.2, the wrong way round."""
    weights, metrics = dpo_weights(MARGINS, PAIR, WON, BETA)
    right, wrong = (BETA / (1 + math.exp(BETA * x)) / 2 for x in (0.7, -0.5))
    assert weights.tolist() == pytest.approx([right, -wrong, -right, wrong])
    assert metrics["preferred"] == 0.5
    assert metrics["loss"] == pytest.approx((math.log1p(math.exp(-0.35)) + math.log1p(math.exp(0.25))) / 2)


def test_dpo_has_the_gradient_of_its_loss() -> None:
    margins = MARGINS.clone().requires_grad_()
    chosen, rejected = margins[[0, 3]], margins[[2, 1]]
    loss = -torch.nn.functional.logsigmoid(BETA * (chosen - rejected)).mean()
    torch.testing.assert_close(-dpo_weights(MARGINS, PAIR, WON, BETA)[0], gradient(loss, margins))


@pytest.mark.parametrize(
    ("pair", "won"),
    [([1, 1], [True, True]), ([1, 2], [True, False]), ([1, 1, 1, 1], [True, False, True, False])],
)
def test_a_pair_is_one_that_won_and_one_that_lost(pair: list[int], won: list[bool]) -> None:
    with pytest.raises(ValueError, match="one episode that won and one that lost"):
        dpo_weights(torch.zeros(len(pair)), torch.tensor(pair), torch.tensor(won), BETA)


@pytest.mark.parametrize("kl", [0.0, 0.4, -1.0])
def test_kto_has_the_gradient_of_its_loss(kl: float) -> None:
    """An estimate of the divergence below 0 counts as 0."""
    margins = MARGINS.clone().requires_grad_()
    point = max(0.0, kl)
    wanted = 1 - torch.sigmoid(BETA * (margins[WON] - point))
    unwanted = 0.7 * (1 - torch.sigmoid(BETA * (point - margins[~WON])))
    loss = torch.cat([wanted, unwanted]).mean()
    weights, metrics = kto_weights(MARGINS, WON, BETA, kl, unwanted_weight=0.7)
    torch.testing.assert_close(-weights, gradient(loss, margins))
    assert metrics == {"loss": pytest.approx(loss.item()), "kl": point}


def test_margins_leave_out_what_was_not_sampled() -> None:
    mask = torch.tensor([[False, True, True], [False, True, False]])
    nothing = float("nan")
    policy = torch.tensor([[nothing, -1.0, -2.0], [nothing, -0.5, nothing]])
    reference = torch.tensor([[nothing, -1.5, -1.0], [nothing, -2.5, nothing]])
    assert margins(policy, reference, mask).tolist() == [-0.5, 2.0]


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_nll_with_the_weights_has_the_gradient_of_the_loss_by_finite_differences(kind: str) -> None:
    """Through the tokens: what the engine computes against the loss of the paper, of log-probabilities moved a bit."""
    generator = torch.Generator().manual_seed(0)
    logprobs, reference = (-torch.rand(4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.rand(4, 5, generator=generator) < 0.7

    def weighed(moved: Tensor) -> tuple[Tensor, float]:
        margin = margins(moved, reference, mask)
        chosen = dpo_weights(margin, PAIR, WON, BETA) if kind == "dpo" else kto_weights(margin, WON, BETA, kl=0.2)
        return chosen[0], chosen[1]["loss"]

    inputs = logprobs.clone().requires_grad_()
    weights = weighed(logprobs)[0][:, None].expand(4, 5)
    found = gradient(nll(inputs, weights, mask)[0], inputs)
    step = 1e-5
    for row in range(4):
        for column in range(5):
            sides = []
            for sign in (1, -1):
                moved = logprobs.clone()
                moved[row, column] += sign * step
                sides.append(weighed(moved)[1])
            assert float(found[row, column]) == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-6)
    assert found[mask].abs().min() > 0
