"""Advantages and returns from the values of a critic."""

from understudy.algorithms.advantages import apply_kl_penalty
from understudy.algorithms.batch import Batch
from understudy.algorithms.critic import (
    action_starts,
    explained_variance,
    gae_advantages,
    masked_whiten,
    terminal_rewards,
)
from understudy.runs.config import AlgorithmConfig
from understudy.train.state import Metrics


def with_gae_advantages(batch: Batch, algorithm: AlgorithmConfig) -> Batch:
    """Return the batch with GAE advantages and returns, from its rewards and the critic's `values`.

    The reward is given at the last sampled token. With `kl_estimator = "k1"` each token gets its KL penalty as a
    reward, so that the critic's values include it.
    """
    assert batch.values is not None
    critic, mask = algorithm.critic, batch.mask
    rewards = terminal_rewards(batch.rewards, mask)
    if batch.ref_logprobs is not None and algorithm.kl_estimator == "k1":
        rewards = apply_kl_penalty(rewards, batch.logprobs, batch.ref_logprobs, mask, algorithm.kl_coef)
    advantages = gae_advantages(
        rewards, batch.values, mask, critic.gamma, critic.gae_lambda, turn_level=critic.action_level == "turn"
    )
    returns = advantages + batch.values
    return batch.replace(
        advantages=masked_whiten(advantages, mask) if critic.whiten_advantages else advantages, returns=returns
    )


def critic_metrics(batch: Batch, algorithm: AlgorithmConfig) -> Metrics:
    """Return the critic's explained variance before the update, or nothing without a critic."""
    if batch.values is None or batch.returns is None:
        return {}
    steps = action_starts(batch.mask, algorithm.critic.action_level == "turn")
    return {"explained_variance": explained_variance(batch.values, batch.returns, steps)}
