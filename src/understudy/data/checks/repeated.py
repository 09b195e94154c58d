"""Environments that repeat episodes which were played before: nothing is run again."""

from collections.abc import Mapping
from itertools import takewhile

from understudy.core.messages import Message
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.envs.environment import Environment, StepResult
from understudy.envs.task_source import TaskSource, find_tool_specs


class RepeatedEpisodes:
    """A factory of the environments of scored episodes, by the ids of their tasks. The agent must reply as in them."""

    def __init__(self, source: TaskSource, episodes: Mapping[str, Trajectory]) -> None:
        self._source, self._episodes = source, episodes

    def environment(self, task: Task, *, seed: int) -> Environment:
        """Return an environment that repeats the episode of a task."""
        return _RepeatedEpisode(self._source, self._episodes[task.id])


class _RepeatedEpisode:
    def __init__(self, source: TaskSource, episode: Trajectory) -> None:
        self.tools = find_tool_specs(source, episode.domain)
        self._episode, self._num_seen = episode, 0

    async def start(self) -> StepResult:
        """Return the messages before the first reply."""
        return self._observe()

    async def step(self, reply: Message) -> StepResult:
        """Return the messages that followed the reply."""
        self._num_seen += 1
        return self._observe()

    async def grade(self, ended: bool) -> Score:
        """Return a reward of 0: only the agent's limits end the episode before its end."""
        return Score(reward=0.0)

    async def close(self) -> None:
        """Do nothing."""

    def _observe(self) -> StepResult:
        rest = self._episode.messages[self._num_seen :]
        messages = tuple(takewhile(lambda message: message.role != "assistant", rest))
        self._num_seen += len(messages)
        is_end = len(messages) == len(rest) and self._episode.stop_reason is StopReason.DONE
        return StepResult(messages, self._episode.score if is_end else None)
