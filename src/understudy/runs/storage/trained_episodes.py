"""Training data of the episodes of a step: `trained/step_000010.jsonl` of a run, one line per trained episode.

A line holds the training reward, the advantages, and the trainer's log-probabilities of the sampled tokens. An episode
that was not trained on has no line. The tokens of an episode are those of all its sequences, one after the other.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from understudy.core.errors import ConfigError
from understudy.core.files import cached_until_changed, read_bytes
from understudy.core.records import Record
from understudy.core.trajectory import Trajectory, sampled_spans
from understudy.runs.storage.checkpoints import step_name

TRAINED_FOLDER = "trained"


class EpisodeTrainingData(Record):
    """The training data of one episode."""

    number: int
    """Number of the episode's line in the step's file of trajectories, from 1."""
    reward: float
    """Reward that it was trained on, with shaping bonus, penalty and overlong penalty."""
    advantages: tuple[float | None, ...]
    """Advantages, in the shortest form without loss: one value if all tokens have the same, else one per reply if the
    tokens of each reply have the same, else one per sampled token.
    """
    logprobs: tuple[float | None, ...] = ()
    """Log-probabilities of the sampled tokens by the trainer. Empty if the update skipped the episode, because all
    its advantages are 0, or if the engine does not report them. With LoRA dropout they are computed with dropout.
    """
    optimizer_steps: int = 0
    """Optimizer steps of the same training step that came before `logprobs` were computed. With 0, the trainer had the
    weights that sampled the episode."""

    def token_advantages(self, episode: Trajectory) -> list[float | None]:
        """Return the advantage of each token of the episode; None for tokens that were not sampled."""
        spans = list(sampled_spans(episode.all_masks))
        lengths = [end - start for start, end in spans]
        if len(self.advantages) == 1:
            values = [self.advantages[0]] * sum(lengths)
        elif len(self.advantages) == len(spans):
            values = [value for value, n in zip(self.advantages, lengths, strict=True) for _ in range(n)]
        else:
            values = list(self.advantages)
        return spread_over_tokens(episode, values)


def spread_over_tokens(episode: Trajectory, values: Sequence[float | None]) -> list[float | None]:
    """Return `values` of the sampled tokens at their places among all tokens; None for the others.

    Raise ConfigError if there are not as many values as sampled tokens.
    """
    mask = episode.all_masks
    if len(values) != sum(mask):
        raise ConfigError(
            f"task {episode.task_id}: {len(values)} stored values for {sum(mask)} sampled tokens; the files in "
            f"trajectories/ and {TRAINED_FOLDER}/ do not belong together"
        )
    left = iter(values)
    return [next(left) if sampled else None for sampled in mask]


def compress_advantages(mask: Sequence[bool], values: Sequence[float]) -> tuple[float | None, ...]:
    """Return one value, one per reply or one per sampled token, from the advantages of all tokens of an episode."""
    spans = list(sampled_spans(mask))
    replies = [values[start] for start, _ in spans]
    if any(values[i] != value for value, (start, end) in zip(replies, spans, strict=True) for i in range(start, end)):
        return round_values(value for value, sampled in zip(values, mask, strict=True) if sampled)
    return round_values(replies[:1] if len(set(replies)) == 1 else replies)


def round_values(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return the values with 7 significant digits, the precision of float32; None for one that is not finite."""
    return tuple(float(f"{value:.7g}") if math.isfinite(value) else None for value in values)


def trained_file(run: Path, step: int) -> Path:
    """Return the file of a step's trained episodes."""
    return run / TRAINED_FOLDER / f"{step_name(step)}.jsonl"


def read_trained_episodes(run: Path, step: int) -> dict[int, EpisodeTrainingData]:
    """Return the training data of a step's episodes by number. It is empty if the step stored none.

    Raise ConfigError if a line is damaged.
    """
    file = trained_file(run, step)
    return _read(file) if file.is_file() else {}


@cached_until_changed(4)
def _read(file: Path) -> dict[int, EpisodeTrainingData]:
    try:
        episodes = [EpisodeTrainingData.model_validate_json(line) for line in read_bytes(file).splitlines()]
    except ValidationError as e:
        raise ConfigError(f"{file} is damaged ({str(e).splitlines()[0]}); remove it") from e
    return {episode.number: episode for episode in episodes}
