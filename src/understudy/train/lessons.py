"""Lessons: which of the episodes that were played there is something to learn from, and whether anyone can teach it."""

from collections.abc import Sequence
from pathlib import Path

from understudy.algorithms.options import Advantage
from understudy.chat import ChatModel
from understudy.config import Algorithm, TrainConfig
from understudy.engines.reference import FROZEN
from understudy.errors import ConfigError
from understudy.formats.vocabulary import differing
from understudy.models import find_model
from understudy.rollout import teaches
from understudy.shaping import Judge
from understudy.trajectory import Trajectory


def lesson(group: Sequence[Trajectory], advantage: Advantage) -> list[Trajectory]:
    """The episodes of a group to learn from.

    Comparing them takes unequal rewards. `success` imitates what earned 1, be it all of the group, a critic learns from
    any, and `none` leaves the judgement to the reference.
    """
    scored = [episode for episode in group if episode.score is not None]
    if advantage == "success":
        return [episode for episode in scored if episode.reward >= 1.0]
    return scored if advantage in ("gae", "none") or teaches(group) else []


def lessons(groups: Sequence[Sequence[Trajectory]], algorithm: Algorithm) -> list[list[Trajectory]]:
    """The episodes of a step to learn from, by group; groups without any are left out.

    A reference judges all that have a score, whatever they earned. The deviation of a whole batch is of all of them
    too, where there is a group that teaches.
    """
    found = [lesson(group, algorithm.advantage) for group in groups]
    if algorithm.kl_coefficient or (algorithm.advantage == "batch_std" and any(found)):
        found = [[episode for episode in group if episode.score is not None] for group in groups]
    return [taken for taken in found if taken]


def judge_of(config: TrainConfig) -> Judge | None:
    """Who marks failures, if anyone; a `ConfigError` where `chat` names no model, or a key that is not set."""
    asked = config.steps and config.algorithm.shaping.judge
    return Judge(ChatModel(config.chat, "grader", section="chat")) if asked else None


def refuse_idle(algorithm: Algorithm, folder: Path) -> None:
    """Options that do nothing, and a teacher with another vocabulary than the model in `folder`: a `ConfigError`."""
    reference = algorithm.reference
    if not algorithm.kl_coefficient and reference != FROZEN:
        raise ConfigError(
            f"algorithm.reference.kind = {reference.kind!r}: nothing is compared with it while "
            "algorithm.kl_coefficient is 0; set both, or neither"
        )
    if not algorithm.kl_coefficient and algorithm.advantage == "none":
        raise ConfigError(
            "algorithm.advantage = 'none': no episode is worth more than another; set algorithm.kl_coefficient above 0 "
            "and algorithm.reference.kind=model, for a teacher"
        )
    if reference.model:
        teacher = find_model(reference.model)
        if difference := differing(folder / "tokenizer.json", teacher / "tokenizer.json"):
            raise ConfigError(
                f"algorithm.reference.model = {reference.model!r} has another vocabulary: {difference}; "
                "take a teacher of the model's own family"
            )
