"""Grading of a domain's episodes: the default score, the reasons for its parts, and the protocol of a grader."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
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


def affects_reward(part: str, score: Score) -> bool:
    """Return whether the reward of an episode with `score` is 0 if this part is 0."""
    if part == "policy_compliance":
        return score.reward == score.parts.get("reward_with_policy")
    return part not in UNREWARDED_PARTS


@dataclass(frozen=True, slots=True)
class PartEvidence:
    """What is known of an episode, to explain the parts of its score. None means that it is not known."""

    score: Score
    num_turns: int
    stop_reason: str | None
    task: Task | None = None
    missing_outputs: Sequence[str] | None = None
    """The outputs that the agent did not tell."""
    num_state_differences: int | None = None
    """Number of values of the final state that differ from gold."""
    num_refused_writes: int | None = None
    """Number of calls that were refused because they broke the policy."""


def explain_part(part: str, evidence: PartEvidence) -> str:
    """Return the reason for the value of a part of a domain's score, or "" if it is not known."""
    return _REASONS[part](evidence) if part in _REASONS else ""


def _explain_state_match(evidence: PartEvidence) -> str:
    count = evidence.num_state_differences
    if count is None:
        return ""
    return f"{count} {'value differs' if count == 1 else 'values differ'} from gold" if count else "equal to gold"


def _explain_facts_told(evidence: PartEvidence) -> str:
    if evidence.task is None or evidence.missing_outputs is None:
        return ""
    if not evidence.task.outputs:
        return "no facts are required"
    missing = ", ".join(evidence.missing_outputs)
    return f"not told: {missing}" if missing else "all required facts were told"


def _explain_limits(evidence: PartEvidence) -> str:
    if evidence.score.parts["within_limits"]:
        return "the user ended the conversation"
    return f"cut off by {evidence.stop_reason} after {evidence.num_turns} replies"


def _explain_efficiency(evidence: PartEvidence) -> str:
    task = evidence.task
    return f"{evidence.num_turns} replies; gold has {len(task.gold_turns)}" if task else ""


def _explain_compliance(evidence: PartEvidence) -> str:
    if violations := evidence.score.violations:
        return "; ".join(
            f"{violation.kind} in message {violation.message}: {violation.text}" for violation in violations
        )
    return f"policy violations: {evidence.num_refused_writes}" if evidence.num_refused_writes else ""


_REASONS: Mapping[str, Callable[[PartEvidence], str]] = {
    "state_match": _explain_state_match,
    "facts_told": _explain_facts_told,
    "within_limits": _explain_limits,
    "turn_efficiency": _explain_efficiency,
    "policy_compliance": _explain_compliance,
}
"""What explains each part of `score_episode` and `apply_policy`. Other graders use these names for the same parts."""
