"""Generalized advantage estimation: worked by hand, its two ends, and what does not matter to it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from understudy.algorithms.advantages import overlong_penalty  # noqa: E402
from understudy.algorithms.critic import at_the_end, decisions, explained_variance, gae, whitened  # noqa: E402
from understudy.algorithms.losses import value_loss  # noqa: E402

generated = settings(deadline=None, derandomize=True)
MASK = torch.tensor([[0, 1, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0, 0]]).bool()
VALUES = torch.tensor([[9.0, 0.5, 0.25, 9.0, 9.0, 0.75, 9.0], [9.0, 9.0, 9.0, 0.5, 9.0, 9.0, 9.0]])
REWARDS = torch.tensor([1.0, 0.0])
LAST = torch.tensor([[0.0, 0, 0, 0, 0, 1, 0], [0.0, 0, 0, 0, 0, 0, 0]])
PENALIZED = LAST - 0.125 * MASK


def test_a_reward_comes_with_the_last_sampled_token() -> None:
    assert torch.equal(at_the_end(REWARDS, MASK), LAST)
    assert at_the_end(torch.tensor([2.0]), torch.tensor([[False, True, False, False]])).tolist() == [[0, 2, 0, 0]]
    assert not at_the_end(torch.tensor([2.0]), torch.tensor([[False, False]])).any(), "nothing was sampled"


def test_decisions_are_tokens_or_the_beginnings_of_replies() -> None:
    assert torch.equal(decisions(MASK, turns=False), MASK)
    assert decisions(MASK, turns=True).int().tolist() == [[0, 1, 0, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0, 0]]


def test_gae_by_hand() -> None:
    """gamma 1/2, lambda 1/2. What a tool said in between is skipped."""
    last = 1 - 0.75
    middle = 0.5 * 0.75 - 0.25 + 0.25 * last
    first = 0.5 * 0.25 - 0.5 + 0.25 * middle
    found = gae(LAST, VALUES, MASK, gamma=0.5, lam=0.5)
    assert found.tolist() == [[0, first, middle, 0, 0, last, 0], [0, 0, 0, -0.5, 0, 0, 0]]


def test_gae_of_rewards_for_every_token_by_hand() -> None:
    """A penalty of 1/8 for each token, as one for KL is."""
    last = 1 - 0.125 - 0.75
    middle = -0.125 + 0.5 * 0.75 - 0.25 + 0.25 * last
    first = -0.125 + 0.5 * 0.25 - 0.5 + 0.25 * middle
    found = gae(PENALIZED, VALUES, MASK, gamma=0.5, lam=0.5)
    assert found.tolist() == [[0, first, middle, 0, 0, last, 0], [0, 0, 0, -0.625, 0, 0, 0]]


@pytest.mark.parametrize(("rewards", "each"), [(LAST, 0.0), (PENALIZED, 0.125)])
def test_gae_of_whole_replies_by_hand(rewards: Tensor, each: float) -> None:
    """Two replies: tokens 1 and 2, and token 5. The value inside of a reply does not count, what it earns adds up."""
    last = 1 - each - 0.75
    first = -2 * each + 0.5 * 0.75 - 0.5 + 0.25 * last
    found = gae(rewards, VALUES, MASK, gamma=0.5, lam=0.5, turns=True)
    assert found.tolist() == [[0, first, first, 0, 0, last, 0], [0, 0, 0, -0.5 - each, 0, 0, 0]]


@pytest.mark.parametrize("turns", [False, True])
def test_at_lambda_1_it_is_the_reward_minus_the_value(turns: bool) -> None:
    found = gae(LAST, VALUES, MASK, gamma=1.0, lam=1.0, turns=turns)
    values = VALUES.clone()
    if turns:
        values[0, 2] = values[0, 1]
    torch.testing.assert_close(found, (REWARDS[:, None] - values) * MASK)


def test_at_lambda_0_it_is_one_steps_surprise() -> None:
    found = gae(LAST, VALUES, MASK, gamma=1.0, lam=0.0)
    assert found[0].tolist() == [0, 0.25 - 0.5, 0.75 - 0.25, 0, 0, 1 - 0.75, 0]


def test_a_critic_that_knows_leaves_nothing_to_learn() -> None:
    values = REWARDS[:, None].expand(2, 7)
    assert not gae(LAST, values, MASK, gamma=1.0, lam=0.95).any()


@generated
@given(st.integers(0, 99), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans(), st.integers(1, 4))
def test_padding_other_rows_and_what_is_not_sampled_do_not_matter(
    seed: int, gamma: float, lam: float, turns: bool, padding: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 3, 9, generator=generator)
    mask = torch.rand(3, 9, generator=generator) < 0.5
    mask[:, 0] = False
    found = gae(rewards, values, mask, gamma, lam, turns)
    assert not found[~mask].any()

    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, padding), value=1.0 if x.dtype != torch.bool else False)

    rewards, wild = (x.masked_fill(~m, float("nan")) for x, m in ((rewards, mask), (values, decisions(mask, turns))))
    assert torch.equal(gae(padded(rewards), padded(wild), padded(mask), gamma, lam, turns)[:, :9], found)
    assert torch.equal(gae(rewards[1:2], wild[1:2], mask[1:2], gamma, lam, turns)[0], found[1])


def test_whitened_advantages_have_mean_0_and_deviation_1() -> None:
    found = whitened(VALUES, MASK)
    assert found[MASK].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert found[MASK].std().item() == pytest.approx(1.0, abs=1e-5)
    assert not found[~MASK].any()
    alone = torch.tensor([[False, True]])
    assert torch.equal(whitened(VALUES[:1, :2], alone), VALUES[:1, :2]), "one token has no deviation"


def test_explained_variance_by_hand() -> None:
    """Returns 1, 2, 3, whose variance is 2/3; errors 0, 0, 1 have 2/9."""
    mask = torch.tensor([True, True, True, False])
    returns, values = torch.tensor([1.0, 2.0, 3.0, 50.0]), torch.tensor([1.0, 2.0, 2.0, -9.0])
    assert explained_variance(values, returns, mask) == pytest.approx(2 / 3)
    assert explained_variance(returns + 7.0, returns, mask) == pytest.approx(1.0), "a constant is no variance"
    assert explained_variance(0.0 * returns, returns, mask) == 0.0
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)
    assert explained_variance(values, 0.0 * returns, mask) == 0.0


# ---- the critic's own loss ----


def test_value_loss_by_hand() -> None:
    """Errors 0.2 and 2: the second value moved from 1 to 4; held at 1.5 its error is 0.5, and the worse one counts."""
    values = torch.tensor([2.0, 4.0, float("nan")], requires_grad=True)
    args = torch.tensor([2.2, 1.0, 0.0]), torch.tensor([1.0, 2.0, 0.0]), torch.tensor([0.5, 0.5, 1.0])
    loss, metrics = value_loss(values, *args, torch.tensor([True, True, False]), clip=0.5)
    assert loss.item() == pytest.approx(0.5 * (0.5 * 1.0 + 0.5 * 4.0))
    assert torch.autograd.grad(loss, values)[0].tolist() == pytest.approx([0.5, 1.0, 0.0])
    found = {key: value.item() for key, value in metrics.items()}
    assert found == {"value_loss": 1.25, "value_error": 5.0, "value_clip_fraction": 0.0, "valued_tokens": 2.0}


def test_a_value_that_jumped_to_its_return_is_held_back() -> None:
    """From 3 to 1, where the return is: a jump of 2 counts as one of 0.5, and pulls no further."""
    values, old, one = torch.tensor([1.0], requires_grad=True), torch.tensor([3.0]), torch.ones(1)
    loss, metrics = value_loss(values, old, one, one, one.bool(), clip=0.5)
    assert loss.item() == pytest.approx(0.5 * 1.5**2)
    assert metrics["value_clip_fraction"].item() == 1
    assert torch.autograd.grad(loss, values)[0].item() == 0.0
    loss, metrics = value_loss(values, old, 0 * one, one, one.bool(), clip=0.0)
    assert torch.autograd.grad(loss, values)[0].item() == 1.0
    assert metrics["value_clip_fraction"].item() == 0


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_value_gradients_are_those_of_finite_differences(clip: float) -> None:
    generator = torch.Generator().manual_seed(1)
    values, old, returns, weights = torch.randn(4, 3, 7, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 7, generator=generator) < 0.7

    def of(x: Tensor) -> Tensor:
        return value_loss(x, old, returns, weights.abs(), mask, clip)[0]

    values.requires_grad_()
    assert torch.autograd.gradcheck(of, (values,), eps=1e-7)
    (grad,) = torch.autograd.grad(of(values), values)
    assert not grad[~mask].any()


# ---- what length costs ----


def test_overlong_penalty_by_hand() -> None:
    lengths = torch.tensor([10, 80, 90, 100, 120])
    assert overlong_penalty(lengths, limit=100, margin=0.2).tolist() == pytest.approx([0, 0, 0.5, 1, 1])
    assert overlong_penalty(lengths, limit=100, margin=1.0).tolist() == pytest.approx([0.1, 0.8, 0.9, 1, 1])
    assert not overlong_penalty(lengths, limit=100, margin=0.0).any()
