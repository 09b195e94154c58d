"""Generalized advantage estimation (GAE) from the values of a critic.

See Schulman et al. 2015, arXiv:1506.02438, eq. 16. Actions are the sampled tokens, or replies. The tokens of tools and
users between them belong to the environment. `values[b, t]` is the critic's estimate before `tokens[b, t]` is sampled.
The value after the last sampled token is 0, also where a limit ended the episode: the reward accounts for the limit.
"""

import torch
from torch import Tensor


def action_starts(mask: Tensor, turn_level: bool) -> Tensor:
    """Return where actions start, as bool [B, T]: every sampled token, or with `turn_level` a reply's first token."""
    if not turn_level:
        return mask
    previous = torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    return mask & ~previous


def terminal_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """Return per-token rewards [B, T] that pay each episode's reward [B] at its last sampled token."""
    columns = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, columns, -1).amax(1, keepdim=True)
    return torch.where(columns == last, rewards[:, None], 0.0)


def gae_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float, turn_level: bool = False
) -> Tensor:
    """Return GAE advantages of the sampled tokens from per-token rewards and values; all are [B, T].

    The returns are advantages + values. With `turn_level` an action is a whole reply: its reward is the sum over its
    tokens, its value is the one before its first token, `gamma` and `gae_lambda` apply per reply, and its tokens share
    one advantage (Zhou et al. 2024, arXiv:2402.19446).
    """
    starts = action_starts(mask, turn_level)
    token_rewards = torch.where(mask, rewards, 0.0)
    advantages = torch.zeros_like(values)
    reward = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(reward)
    next_advantage = torch.zeros_like(reward)
    for t in reversed(range(values.shape[1])):
        is_start = starts[:, t]
        reward = reward + token_rewards[:, t]
        advantage = reward + gamma * next_value - values[:, t] + gamma * gae_lambda * next_advantage
        advantages[:, t] = torch.where(is_start, advantage, 0.0)
        next_advantage = torch.where(is_start, advantage, next_advantage)
        next_value = torch.where(is_start, values[:, t], next_value)
        reward = torch.where(is_start, 0.0, reward)
    return _broadcast_to_replies(advantages, starts, mask) if turn_level else advantages


def masked_whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Return advantages [B, T] with mean 0 and standard deviation 1 over the sampled tokens, and 0 elsewhere.

    Return `advantages` unchanged if `mask` [B, T] has fewer than two sampled tokens.
    """
    sampled = advantages[mask]
    if len(sampled) < 2:
        return advantages
    return torch.where(mask, (advantages - sampled.mean()) / (sampled.std() + 1e-8), 0.0)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """Return the fraction of the variance of `returns` [B, T] that `values` [B, T] explain at the masked tokens.

    1 is a perfect prediction, 0 is no better than a constant, and a negative number is worse than a constant. Return 0
    if the returns have zero variance.
    """
    variance = returns[mask].var(correction=0)
    if variance > 0:
        return float(1 - (returns - values)[mask].var(correction=0) / variance)
    return 0.0


def _broadcast_to_replies(advantages: Tensor, starts: Tensor, mask: Tensor) -> Tensor:
    """Return advantages [B, T] in which each sampled token has the advantage of its reply's first token."""
    columns = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    first = torch.where(starts, columns, 0).cummax(1).values
    return torch.where(mask, advantages.gather(1, first), 0.0)
