"""Generalized advantage estimation: worked by hand, its two ends, and what does not matter to it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from understudy.algorithms.critic import gae, whitened  # noqa: E402

generated = settings(deadline=None, derandomize=True)
MASK = torch.tensor([[0, 1, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0, 0]]).bool()
VALUES = torch.tensor([[9.0, 0.5, 0.25, 9.0, 9.0, 0.75, 9.0], [9.0, 9.0, 9.0, 0.5, 9.0, 9.0, 9.0]])
REWARDS = torch.tensor([1.0, 0.0])


def test_gae_by_hand() -> None:
    """gamma 1/2, lambda 1/2. What a tool said in between is skipped."""
    last = 1 - 0.75
    middle = 0.5 * 0.75 - 0.25 + 0.25 * last
    first = 0.5 * 0.25 - 0.5 + 0.25 * middle
    found = gae(REWARDS, VALUES, MASK, gamma=0.5, lam=0.5)
    assert found.tolist() == [[0, first, middle, 0, 0, last, 0], [0, 0, 0, -0.5, 0, 0, 0]]


def test_gae_of_whole_replies_by_hand() -> None:
    """Two replies: tokens 1 and 2, and token 5. The value inside of a reply does not count."""
    last = 1 - 0.75
    first = 0.5 * 0.75 - 0.5 + 0.25 * last
    found = gae(REWARDS, VALUES, MASK, gamma=0.5, lam=0.5, turns=True)
    assert found.tolist() == [[0, first, first, 0, 0, last, 0], [0, 0, 0, -0.5, 0, 0, 0]]


@pytest.mark.parametrize("turns", [False, True])
def test_at_lambda_1_it_is_the_reward_minus_the_value(turns: bool) -> None:
    found = gae(REWARDS, VALUES, MASK, gamma=1.0, lam=1.0, turns=turns)
    values = VALUES.clone()
    if turns:
        values[0, 2] = values[0, 1]
    torch.testing.assert_close(found, (REWARDS[:, None] - values) * MASK)


def test_at_lambda_0_it_is_one_steps_surprise() -> None:
    found = gae(REWARDS, VALUES, MASK, gamma=1.0, lam=0.0)
    assert found[0].tolist() == [0, 0.25 - 0.5, 0.75 - 0.25, 0, 0, 1 - 0.75, 0]


def test_a_critic_that_knows_leaves_nothing_to_learn() -> None:
    values = REWARDS[:, None].expand(2, 7)
    assert not gae(REWARDS, values, MASK, gamma=1.0, lam=0.95).any()


@generated
@given(st.integers(0, 99), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans(), st.integers(1, 4))
def test_padding_other_rows_and_what_is_not_sampled_do_not_matter(
    seed: int, gamma: float, lam: float, turns: bool, padding: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(3, generator=generator), torch.randn(3, 9, generator=generator)
    mask = torch.rand(3, 9, generator=generator) < 0.5
    found = gae(rewards, values, mask, gamma, lam, turns)
    assert not found[~mask].any()

    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, padding), value=1.0 if x.dtype != torch.bool else False)

    wild = torch.where(mask, values, float("nan")) if not turns else values
    assert torch.equal(gae(rewards, padded(wild), padded(mask), gamma, lam, turns)[:, :9], found)
    assert torch.equal(gae(rewards[1:2], values[1:2], mask[1:2], gamma, lam, turns)[0], found[1])


def test_whitened_advantages_have_mean_0_and_deviation_1() -> None:
    found = whitened(VALUES, MASK)
    assert found[MASK].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert found[MASK].std().item() == pytest.approx(1.0, abs=1e-5)
    assert not found[~MASK].any()
    alone = torch.tensor([[False, True]])
    assert torch.equal(whitened(VALUES[:1, :2], alone), VALUES[:1, :2]), "one token has no deviation"
