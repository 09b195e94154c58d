"""What a critic makes of a step's episodes: advantages for the policy, returns for itself."""

from understudy.algorithms.advantages import kl_shaped
from understudy.algorithms.critic import at_the_end, decisions, explained_variance, gae, whitened
from understudy.batch import Batch
from understudy.config import Algorithm
from understudy.train.state import Metrics


def estimated(batch: Batch, algorithm: Algorithm) -> Batch:
    """The batch with advantages and returns of its tokens, from its rewards and the critic's `values`.

    The reward comes with the last sampled token. A KL penalty of the kind k1 is a reward of every token, so that values
    learn to foresee it.
    """
    assert batch.values is not None
    critic, mask = algorithm.critic, batch.mask
    rewards = at_the_end(batch.rewards, mask)
    if batch.ref_logprobs is not None and algorithm.kl_kind == "k1":
        rewards = kl_shaped(rewards, batch.logprobs, batch.ref_logprobs, mask, algorithm.kl_coefficient)
    advantages = gae(rewards, batch.values, mask, critic.gamma, critic.lam, turns=critic.step == "turn")
    returns = advantages + batch.values
    return batch.with_(advantages=whitened(advantages, mask) if critic.whiten else advantages, returns=returns)


def foresight(batch: Batch, algorithm: Algorithm) -> Metrics:
    """How well the critic knew before the update what came; nothing where there is none."""
    if batch.values is None or batch.returns is None:
        return {}
    steps = decisions(batch.mask, algorithm.critic.step == "turn")
    return {"explained_variance": explained_variance(batch.values, batch.returns, steps)}
