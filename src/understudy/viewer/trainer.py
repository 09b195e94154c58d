"""The trainer's log-probabilities of an episode beside the sampler's: the one thing that the page loads weights for.

The episodes of a step were sampled with the weights after the step before it, so that step's checkpoint is asked. Where
a run has not kept it, that is a ConfigError that names those that it has.
"""

import asyncio
import dataclasses
import math
import threading
from functools import lru_cache
from pathlib import Path

from understudy.checkpoints import checkpoints, damage
from understudy.engines.opening import AnyEngine
from understudy.errors import ConfigError
from understudy.players import open_model
from understudy.records import Record
from understudy.run import read_config
from understudy.tasks import Score
from understudy.trajectory import Trajectory
from understudy.viewer.tokens import of_sampled

_ONE_AT_A_TIME = threading.Lock()


class Second(Record):
    """A second opinion on what an episode's tokens were worth to the model."""

    logprobs: tuple[float | None, ...]
    """By the trainer; None for tokens that were not sampled."""
    largest: float
    """How far the two are apart at most, in nats."""
    mean: float
    tolerance: float
    """What rounding alone comes to at most."""
    checkpoint: str


def second(run: Path, step: int, episode: Trajectory) -> Second:
    """What the trainer holds of the tokens of a step's episode."""
    if not any(episode.mask):
        raise ConfigError("nothing in this episode was sampled by a model of ours")
    checkpoint = _before(run, step)
    with _ONE_AT_A_TIME:
        engine = _opened(run, checkpoint)
        found = _forward(engine, episode, read_config(run).sampling.temperature or 1.0)
    gaps = [abs(a - b) for a, b, sampled in zip(found, episode.logprobs, episode.mask, strict=True) if sampled]
    return Second(
        logprobs=of_sampled(episode, found),
        largest=max(gaps),
        mean=math.fsum(gaps) / len(gaps),
        tolerance=engine.tolerance.largest,
        checkpoint=str(checkpoint),
    )


def _before(run: Path, step: int) -> Path:
    """The checkpoint of the weights that sampled a step's episodes."""
    kept = dict(checkpoints(run))
    if step - 1 not in kept:
        steps = ", ".join(str(each + 1) for each in kept) or "none"
        raise ConfigError(
            f"the weights that sampled step {step} are not kept any more; they are for episodes of step: {steps} "
            "(keep=0 keeps all)"
        )
    if fault := damage(kept[step - 1]):
        raise ConfigError(f"checkpoint {kept[step - 1]} is damaged ({fault})")
    return kept[step - 1]


@lru_cache(maxsize=1)
def _opened(run: Path, checkpoint: Path) -> AnyEngine:
    return open_model(read_config(run), checkpoint)[0]


def _forward(engine: AnyEngine, episode: Trajectory, temperature: float) -> list[float]:
    from understudy.batch import collate

    scored = dataclasses.replace(episode, score=episode.score or Score(reward=0.0))
    batch = asyncio.run(engine.forward(collate([scored], temperature=temperature)))
    found: list[float] = batch.logprobs[0].tolist()
    return found
