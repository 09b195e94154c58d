"""The training data of a stored episode, or why it was not trained on."""

import math
from collections.abc import Collection, Mapping

from understudy.algorithms.config import is_custom
from understudy.core.records import Record
from understudy.core.trajectory import Trajectory, sampled_spans
from understudy.evaluation.stored_episodes import StoredEpisodes
from understudy.runs.storage.trained_episodes import EpisodeTrainingData


class TrainingView(Record):
    """The training reward, advantages and log-probability differences of one episode."""

    reward: float | None = None
    """The reward used in training, with shaping bonus and penalties."""
    advantages: tuple[float | None, ...] = ()
    """The advantage of each reply: the mean of its tokens."""
    is_preference: bool = False
    """True for a conversation of a preference step, whose advantages are its weights in the loss of DPO or KTO."""
    max_logprob_diff: float | None = None
    """Largest absolute difference between the trainer's and the sampler's log-probabilities, in nats."""
    mean_logprob_diff: float | None = None
    optimizer_steps: int = 0
    """Optimizer steps of this training step before the trainer's log-probabilities were computed."""
    note: str = ""
    """Why the episode was not trained on; "" if it was."""


def build_training_view(
    stored: StoredEpisodes, number: int, trained: Mapping[int, EpisodeTrainingData], group: Mapping[int, Trajectory]
) -> TrainingView:
    """Return the training data of the episode with this number, or a note that says why it was not trained on.

    `group` has the episodes of its group by number, and itself.
    """
    episode = stored.episode(number)
    if number not in trained:
        return TrainingView(note=_why_untrained(stored, episode, trained.keys(), group))
    found = trained[number]
    sampled = [
        logprob
        for sequence in episode.sequences
        for logprob, mask in zip(sequence.logprobs, sequence.mask, strict=True)
        if mask
    ]
    pairs = zip(found.logprobs, sampled, strict=False)
    diffs = [abs(own - other) for own, other in pairs if own is not None and math.isfinite(other)]
    return TrainingView(
        reward=found.reward,
        advantages=tuple(reply_advantages(episode, found)),
        max_logprob_diff=max(diffs, default=None),
        mean_logprob_diff=math.fsum(diffs) / len(diffs) if diffs else None,
        optimizer_steps=found.optimizer_steps,
        is_preference=stored.is_preferences,
    )


def reply_advantages(episode: Trajectory, trained: EpisodeTrainingData) -> list[float | None]:
    """Return the advantage of each reply of each sequence: the mean of its tokens, or None if it is not finite."""
    tokens = trained.token_advantages(episode)
    return [_mean(tokens[start:end]) for start, end in sampled_spans(episode.all_masks)]


def _mean(values: list[float | None]) -> float | None:
    if len(set(values)) == 1:
        return values[0]
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if len(known) == len(values) else None


def _why_untrained(
    stored: StoredEpisodes, episode: Trajectory, trained: Collection[int], group: Mapping[int, Trajectory]
) -> str:
    algorithm = stored.config.algorithm
    if stored.step is None:
        return "Episodes of evaluations are not trained on."
    if episode.score is None:
        return "Not trained on: the episode has no score."
    if stored.config.engine.kind == "skyrl":
        return "Advantages are not stored: SkyRL computes them."
    first_step = stored.step - stored.config.steps_before_rl
    if first_step <= algorithm.critic_warmup_steps:
        return "Not trained on: the policy was frozen in this step (algorithm.critic.warmup_steps)."
    if algorithm.advantage_estimator == "success_indicator" and episode.reward < 1:
        return "Not trained on: success_indicator trains on episodes with reward 1 only."
    most = algorithm.most_trained_episodes
    if most < algorithm.group_size and sum(number in trained for number in group) == most:
        return (
            f"Not trained on: algorithm.max_trained_episodes = {most} of its group are trained on, those with the "
            "highest and the lowest rewards."
        )
    takes_all = algorithm.advantage_estimator in ("gae", "zero") or is_custom(algorithm.advantage_estimator)
    rewards = {each.reward for each in group.values() if each.score is not None}
    if not takes_all and len(rewards) < 2:
        return "Not trained on: all episodes of its group have the same reward."
    return "No training data of this episode is stored: the step ended before its update, or the update had no signal."
