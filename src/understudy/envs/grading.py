"""Grading of a domain's episodes: the default score, and the protocol of a grader of your own."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from understudy.core.messages import Message
from understudy.core.tasks import RewardPolicy, Score, Task, Violation
from understudy.envs.environment import ConsentGate
from understudy.envs.rewards import missing_facts, product_score, state_match, task_progress
from understudy.envs.state import State

POLICY_REWARDS = ("reward_with_policy", "reward_without_policy")
"""The parts of a score that are rewards themselves. See `apply_policy`."""
UNREWARDED_PARTS = ("turn_efficiency", *POLICY_REWARDS)
"""Parts of a domain's score that do not affect the reward."""


class GradeEpisode(Protocol):
    """Protocol of a domain's grader."""

    def __call__(
        self,
        task: Task,
        state: State,
        gold_changes: Mapping[str, Any],
        gate: ConsentGate,
        transcript: Sequence[Message],
        ended: bool,
    ) -> Score | float | Awaitable[Score | float]:
        """Return the score of an episode, or its reward from 0 to 1. The function may be a coroutine.

        `gold_changes` are the changes that the gold calls make; `state.changes()` are those of the episode.
        `gate.violations` are the calls that broke the policy. `ended` is False if a limit cut the
        episode off.
        """


def score_episode(
    task: Task,
    state: State,
    gold_changes: Mapping[str, Any],
    gate: ConsentGate,
    transcript: Sequence[Message],
    ended: bool,
) -> Score:
    """Return the default score of an episode.

    The reward is the product of three strict parts, each 0.0 or 1.0: `state_match` (the changes equal the gold
    changes), `facts_told` (the agent told every output) and `within_limits` (no limit cut the episode off).
    `turn_efficiency` (gold turns / turns taken, at most 1.0) is only reported. The domain adds `policy_compliance`.
    """
    missing = missing_facts(transcript, task.outputs, gate.fact_rules)
    strict = {
        "state_match": state_match(state, gold_changes),
        "facts_told": float(not missing),
        "within_limits": float(ended),
    }
    turns = sum(message.role == "assistant" for message in transcript)
    extra = {
        "turn_efficiency": min(1.0, len(task.gold_turns) / max(1, turns)),
    }
    progress = task_progress(state, gold_changes, task.outputs, missing)
    return product_score(strict, extra).replace(progress=progress)


def apply_policy(score: Score, violations: Sequence[Violation], policy: RewardPolicy) -> Score:
    """Return a score with the violations and three more parts.

    `policy_compliance` is 1.0 if there is no violation, else 0.0. The reward is `reward_with_policy`, the product of
    the score's reward and `policy_compliance`, if `policy` is "strict"; else it is `reward_without_policy`.
    """
    complies = float(not violations)
    with_policy, without_policy = score.reward * complies, score.reward
    rewards = dict(zip(POLICY_REWARDS, (with_policy, without_policy), strict=True))
    reward = with_policy if policy == "strict" else without_policy
    parts = {**score.parts, "policy_compliance": complies, **rewards}
    return score.replace(reward=reward, parts=parts, violations=tuple(violations))
