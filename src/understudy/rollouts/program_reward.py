"""The reward of a program's episode, from the first of these that applies:

1. the environment, if the program has used its tools or its user;
2. the function `agent.reward` of the recorded episode;
3. what the program has posted to its result address;
4. the environment, to which the program's answer is sent.
"""

import inspect
from dataclasses import dataclass

from understudy.core.errors import ConfigError
from understudy.core.imports import import_object
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import Trajectory
from understudy.core.user_code import user_code, wait_limit
from understudy.envs.rewards import to_score
from understudy.rollouts.rollout import EpisodeLimits

UNUSED_RESULT = "program/unused_result"
"""Event: a posted result that does not give the reward."""


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """What a reward function gets."""

    task: Task
    episode: Trajectory
    """All calls of the model: `episode.sequences`, each with its messages."""
    answer: str
    """The answer of the program: the text that it returns, or the last reply without calls."""


def validate_reward(reference: str) -> None:
    """Raise ConfigError if `agent.reward` names no function of one argument."""
    function = import_object(reference)
    problem = "" if callable(function) else f"it is of the type {type(function).__name__}"
    if not problem:
        try:
            inspect.signature(function).bind(object())
        except TypeError as e:
            problem = str(e)
        except ValueError:
            return  # a builtin without a signature
    if problem:
        raise ConfigError(
            f"agent.reward = {reference!r}: {problem}; name a function that is called as reward(recorded) with a "
            "RecordedEpisode, and returns a number from 0 to 1"
        )


async def compute_reward(reference: str, recorded: RecordedEpisode, limits: EpisodeLimits) -> Score:
    """Return what the function `agent.reward` returns. Raise RolloutError with the fault "grader" if it fails."""
    function = import_object(reference)
    async with wait_limit(limits.max_step_seconds, "limits.max_step_seconds"):
        with user_code("grader", f"the reward function {reference}", function):
            reward = function(recorded)
            if inspect.isawaitable(reward):
                reward = await reward
    return to_score(reward)
