"""What a critic is for: advantages from values, by generalized advantage estimation.

Schulman et al. 2015, arXiv:1506.02438, eq. 16. The chain that is walked is that of the sampled tokens: what a tool or a
user said in between is part of the world. `values[b, t]` is the critic's estimate before `tokens[b, t]` was sampled, as
`logprobs[b, t]` is its log-probability. After the last sampled token comes nothing, also where a limit ended the
episode: its reward counts the limit in.
"""

import torch
from torch import Tensor


def decisions(mask: Tensor, turns: bool) -> Tensor:
    """Where the steps of the chain begin [B, T]: at each sampled token, or with `turns` at each reply's first."""
    return mask & ~torch.nn.functional.pad(mask, (1, 0))[:, :-1] if turns else mask


def at_the_end(rewards: Tensor, mask: Tensor) -> Tensor:
    """Rewards [B] of whole episodes as those of tokens [B, T]: each comes with the last sampled token."""
    columns = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, columns, -1).amax(1, keepdim=True)
    return torch.where(columns == last, rewards[:, None], 0.0)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, turns: bool = False) -> Tensor:
    """Advantages of sampled tokens from their rewards and values, all [B, T]; returns are advantages + values.

    With `turns` the steps of the chain are whole replies: what a reply's tokens earn is added up, the value before its
    first token is the reply's, `gamma` and `lam` count replies, and all tokens of one have its advantage (Zhou et al.
    2024, arXiv:2402.19446, treat replies as actions so).
    """
    begins = decisions(mask, turns)
    earned = torch.where(mask, rewards, 0.0)
    advantages = torch.zeros_like(values)
    reward, following, ahead = (torch.zeros_like(rewards[:, 0]) for _ in range(3))
    for t in reversed(range(values.shape[1])):
        here = begins[:, t]
        reward = reward + earned[:, t]
        found = reward + gamma * following - values[:, t] + gamma * lam * ahead
        advantages[:, t] = torch.where(here, found, 0.0)
        ahead, following = torch.where(here, found, ahead), torch.where(here, values[:, t], following)
        reward = torch.where(here, 0.0, reward)
    return _spread(advantages, begins, mask) if turns else advantages


def whitened(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages [B, T] with mean 0 and deviation 1 over the sampled tokens; of a single token as they are."""
    chosen = advantages[mask]
    if len(chosen) < 2:
        return advantages
    return torch.where(mask, (advantages - chosen.mean()) / (chosen.std() + 1e-8), 0.0)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """How much of the returns' variance [B, T] the values foresee: 1 is all, 0 no more than a constant does.

    Below 0 they mislead. Of returns that do not vary it is 0.
    """
    spread = returns[mask].var(correction=0)
    return float(1 - (returns - values)[mask].var(correction=0) / spread) if spread > 0 else 0.0


def _spread(advantages: Tensor, begins: Tensor, mask: Tensor) -> Tensor:
    """Each sampled token takes the value at its reply's first."""
    columns = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    first = torch.where(begins, columns, 0).cummax(1).values
    return torch.where(mask, advantages.gather(1, first), 0.0)
