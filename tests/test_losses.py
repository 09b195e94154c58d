"""Losses: worked by hand, against finite differences, and sums whatever way the tokens are split."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from understudy.algorithms.losses import cispo_loss, compute, gspo_loss, nll, policy_loss  # noqa: E402
from understudy.algorithms.options import Loss  # noqa: E402

CLIP = (0.2, 0.3)
generated = settings(deadline=None, derandomize=True)
number = st.floats(-30.0, 30.0)


def ratios(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).log().requires_grad_()


def drawn(seed: int = 0, rows: int = 3, length: int = 7) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities (with gradient), those of the sampler, advantages and mask; ratios beyond both clips."""
    generator = torch.Generator().manual_seed(seed)
    old, noise, advantages = torch.randn(3, rows, length, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, length, generator=generator) < 0.7
    return (old + 0.5 * noise).requires_grad_(), old, advantages, mask


def test_policy_loss_and_metrics_by_hand() -> None:
    # Ratios 0.5 and 2 are outside of [0.8, 1.3]. Of min(r A, clip(r) A): 0.5, 0.8 * -1, 1.3, 2 * -1, 1.1 * 3.
    logprobs = ratios(0.5, 0.5, 2.0, 2.0, 1.1, 7.0)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 3.0, 5.0], dtype=torch.float64)
    mask = torch.tensor([True] * 5 + [False])
    loss, metrics = policy_loss(logprobs, torch.zeros(6), advantages, mask, *CLIP)
    assert loss.item() == pytest.approx(-(0.5 - 0.8 + 1.3 - 2.0 + 3.3))
    assert metrics["clip_fraction"].item() == 2
    assert metrics["logprob_gap"].item() == pytest.approx(4 * math.log(2) + math.log(1.1))
    k3 = [r - 1 - math.log(r) for r in (0.5, 0.5, 2.0, 2.0, 1.1)]
    assert metrics["approx_kl"].item() == pytest.approx(sum(k3))
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert grad.tolist() == pytest.approx([-0.5, 0.0, 0.0, 2.0, -3.3, 0.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (0.79, -1.0, False),
        (0.81, -1.0, True),
        (0.79, 1.0, True),
        (1.29, 1.0, True),
        (1.31, 1.0, False),
        (1.31, -1.0, True),
    ],
)
def test_both_sides_of_both_clips(ratio: float, advantage: float, moves: bool) -> None:
    logprobs = ratios(ratio)
    loss, metrics = policy_loss(logprobs, torch.zeros(1), torch.tensor([advantage]), torch.tensor([True]), *CLIP)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert grad.item() == pytest.approx(-ratio * advantage if moves else 0.0)
    assert metrics["clip_fraction"].item() == (not moves)


def test_on_policy_it_is_the_policy_gradient() -> None:
    logprobs, _, advantages, mask = drawn()
    loss, metrics = policy_loss(logprobs, logprobs.detach(), advantages, mask, *CLIP)
    (grad,) = torch.autograd.grad(loss, logprobs)
    torch.testing.assert_close(grad, -advantages * mask)
    found = {key: value.item() for key, value in metrics.items()}
    assert found.pop("ratio") == mask.sum()
    assert found == dict.fromkeys(found, 0.0)


@pytest.mark.parametrize("loss", [Loss(clip_high=0.3), Loss(kind="gspo", clip_high=0.3), Loss(kind="nll")])
@pytest.mark.parametrize("seed", range(5))
def test_gradients_are_those_of_finite_differences(loss: Loss, seed: int) -> None:
    logprobs, old, advantages, mask = drawn(seed)

    def value(x: Tensor) -> Tensor:
        return compute(loss, x, old, advantages, mask)[0]

    assert torch.autograd.gradcheck(value, (logprobs,), eps=1e-7)
    (grad,) = torch.autograd.grad(value(logprobs), logprobs)
    assert not grad[~mask].any()
    assert grad[mask].any()


@pytest.mark.parametrize("loss", [Loss(), Loss(kind="cispo"), Loss(kind="nll")])
@generated
@given(values=st.lists(st.tuples(number, number, number, st.booleans()), min_size=2, max_size=9), cut=st.data())
def test_a_loss_is_a_sum_over_tokens_however_they_are_split_ordered_and_padded(
    loss: Loss, values: list[tuple[float, float, float, bool]], cut: st.DataObject
) -> None:
    logprobs, old, advantages = torch.tensor([v[:3] for v in values], dtype=torch.float64).T
    mask = torch.tensor([v[3] for v in values])
    logprobs = logprobs.clone().requires_grad_()

    def of(index: list[int]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        value, metrics = compute(loss, logprobs[index], old[index], advantages[index], mask[index])
        return value, torch.autograd.grad(value, logprobs)[0], metrics

    order = cut.draw(st.permutations(range(len(values))))
    at = cut.draw(st.integers(0, len(values)))
    whole, first, second = of(list(range(len(values)))), of(order[:at]), of(order[at:])
    torch.testing.assert_close(first[0] + second[0], whole[0])
    torch.testing.assert_close(first[1] + second[1], whole[1])
    for key, total in whole[2].items():
        torch.testing.assert_close((first[2][key] + second[2][key]).double(), total.double())
    nobody = [i for i in range(len(values)) if not mask[i]]
    assert of(nobody)[0].item() == 0.0


@generated
@given(number, number, number)
def test_whatever_is_masked_is_not_looked_at(logprob: float, old: float, advantage: float) -> None:
    wild = torch.tensor([math.nan, math.inf, -math.inf, logprob], dtype=torch.float64).requires_grad_()
    mask = torch.tensor([False, False, False, True])
    others = torch.tensor([old] * 4), torch.tensor([advantage] * 4)
    rows = torch.tensor([0, 0, 0, 0])
    for loss in (Loss(), Loss(kind="gspo"), Loss(kind="cispo"), Loss(kind="nll")):
        value, metrics = compute(loss, wild, *others, mask, rows)
        (grad,) = torch.autograd.grad(value, wild)
        assert value.isfinite()
        assert grad[:3].tolist() == [0.0, 0.0, 0.0]
        assert all(metric.isfinite() for metric in metrics.values())


def test_nll_by_hand() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -4.0], requires_grad=True)
    value, metrics = nll(logprobs, torch.tensor([0.5, 0.25, 9.0]), torch.tensor([True, True, False]))
    assert value.item() == 1.0
    assert metrics["nll"].item() == 3.0
    assert torch.autograd.grad(value, logprobs)[0].tolist() == [-0.5, -0.25, 0.0]


# ---- GSPO, CISPO ----


def test_gspo_by_hand() -> None:
    # Row 0: ratios 2 and 1/2, whose mean is 1; row 1: 4 and 1, mean 2, worth no more than 1.3; the last is masked.
    logprobs = ratios(2.0, 0.5, 4.0, 1.0, 9.0)
    rows, mask = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([True] * 4 + [False])
    advantages = torch.tensor([0.5, 0.5, 3.0, 3.0, 7.0], dtype=torch.float64)
    loss, metrics = gspo_loss(logprobs, torch.zeros(5), advantages, mask, rows, *CLIP)
    assert loss.item() == pytest.approx(-(0.5 + 0.5 + 1.3 * 6.0))
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert grad.tolist() == pytest.approx([-0.5, -0.5, 0.0, 0.0, 0.0])
    assert metrics["clip_fraction"].item() == 2
    assert metrics["ratio"].item() == pytest.approx(1 + 1 + 2 + 2)


def test_gspo_and_cispo_are_the_policy_gradient_on_policy() -> None:
    logprobs, _, advantages, mask = drawn()
    advantages = advantages[:, :1].expand_as(advantages)  # one for all tokens of a sequence
    for kind in ("gspo", "cispo"):
        loss, metrics = compute(Loss(kind=kind), logprobs, logprobs.detach(), advantages, mask)
        (grad,) = torch.autograd.grad(loss, logprobs)
        torch.testing.assert_close(grad, -advantages * mask)
        assert metrics["ratio_error"].item() == 0.0


@generated
@given(seed=st.integers(0, 99), order=st.permutations(range(5)), at=st.integers(0, 5))
def test_gspo_is_a_sum_over_sequences_however_they_are_split(seed: int, order: list[int], at: int) -> None:
    logprobs, old, advantages, mask = drawn(seed, rows=5)

    def of(index: list[int]) -> tuple[Tensor, Tensor]:
        flat = mask[index]
        rows = torch.tensor(index)[:, None].expand_as(flat)[flat]
        chosen = logprobs[index][flat], old[index][flat], advantages[index][flat], torch.ones_like(rows).bool()
        value, _ = compute(Loss(kind="gspo"), *chosen, rows)
        return value, torch.autograd.grad(value, logprobs)[0]

    whole, _ = compute(Loss(kind="gspo"), logprobs, old, advantages, mask)
    (first, one), (second, other) = of(order[:at]), of(order[at:])
    torch.testing.assert_close(first + second, whole)
    torch.testing.assert_close(one + other, torch.autograd.grad(whole, logprobs)[0])


def test_a_low_clip_of_1_is_no_bound() -> None:
    logprobs, one = ratios(0.01), torch.ones(1)
    for kind, grad in (("cispo", 0.01), ("policy", -0.01)):
        advantage = one if kind == "cispo" else -one
        loss, metrics = compute(Loss(kind=kind, clip_low=1.0), logprobs, 0 * one, advantage, one.bool())
        assert torch.autograd.grad(loss, logprobs)[0].item() == pytest.approx(-grad)
        assert metrics["clip_fraction"].item() == 0


def test_cispo_by_hand() -> None:
    """Beyond the clip the weight stays, and so does the gradient: PPO's would be gone."""
    logprobs = ratios(0.5, 2.0, 1.1)
    advantages = torch.tensor([-1.0, 1.0, 2.0], dtype=torch.float64)
    loss, metrics = cispo_loss(logprobs, torch.zeros(3), advantages, torch.ones(3).bool(), *CLIP)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert grad.tolist() == pytest.approx([0.8, -1.3, -2.2])
    assert metrics["clip_fraction"].item() == 2
    assert metrics["ratio_error"].item() == pytest.approx(0.25 + 1.0 + 0.01)
