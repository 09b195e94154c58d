"""Environments whose tasks have their own messages and tools, and whose reward is of the finished episode.

As `GymSource`, they answer themselves. A session plays one episode; a text of the agent ends it unless the session
answers. Also an episode that a limit ends is graded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Score, Task
from understudy.envs.environment import StepResult, ToolEnvironment
from understudy.envs.users import User
from understudy.sources.environments.gym import GymSource, scale_reward

SelectTools = Callable[[Sequence[ToolSpec]], Sequence[ToolSpec]]


class GradedSession(Protocol):
    """One episode. It has no resources before `start`."""

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools that the agent has now. They may change after a text of the agent."""

    def prompt(self) -> Sequence[Message]:
        """Return the messages before the agent's first reply."""

    def gold(self) -> Sequence[Message]:
        """Return the agent's turns of a perfect episode, or nothing if nobody knows them."""

    async def start(self) -> None:
        """Start the episode."""

    async def call(self, call: ToolCall) -> str:
        """Return the result of a call. Raise `ToolError` if it is refused."""

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the user's answer to a text, or None to end the episode."""

    async def grade(self, written: Sequence[Message]) -> float:
        """Return the reward of what was written after the prompt: replies, results and the user's answers."""

    async def close(self) -> None:
        """Release the resources of the episode."""


class GradedSource(GymSource):
    """The tasks of such an environment. `open_environment` returns a `GradedSession`."""

    @property
    def lacks_gold(self) -> bool:  # type: ignore[override]
        """Whether a task has no gold solution."""
        return not all(task.gold for task, _ in self._by_id.values())

    def task_policy(self, task: Task) -> str:
        """Return the system message of a task."""
        prompt = self._session(self.find_row(task)).prompt()
        return next((message.content for message in prompt if message.role == "system"), "")

    def opening(self, identity: str, row: Mapping[str, Any]) -> str:
        """Return the last message of the user."""
        return [message.content for message in self._session(row).prompt() if message.role == "user"][-1]

    def gold(self, row: Mapping[str, Any]) -> Sequence[Message]:
        """Return the agent's turns of a perfect episode, if they are known."""
        return self._session(row).gold()

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> "GradedEpisode":
        """Return a new episode of `task`. `user` is refused."""
        self.refuse_user(user)
        session = self._session(self.find_row(task))
        return GradedEpisode(session, self.task_slice.select_tools, self.reward_range)

    def _session(self, row: Mapping[str, Any]) -> GradedSession:
        session: GradedSession = self.open_environment(row)
        return session


class GradedEpisode(ToolEnvironment):
    """One episode of a session."""

    def __init__(self, session: GradedSession, select: SelectTools, reward_range: tuple[float, float]) -> None:
        super().__init__("", session, session, self._score, select(session.specs()))
        self._session, self._select, self._range, self._prompt = session, select, reward_range, session.prompt()

    async def start(self) -> StepResult:
        """Start the session, and return its first messages."""
        await self._session.start()
        return self._observe(*self._prompt)

    async def step(self, reply: Message) -> StepResult:
        """Answer a reply. Afterwards, `tools` are those that the session has then."""
        result = await super().step(reply)
        self.tools = self._select(self._session.specs())
        return result

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()

    async def _score(self, transcript: Sequence[Message], ended: bool) -> Score:
        reward = scale_reward(await self._session.grade(transcript[len(self._prompt) :]), *self._range)
        return Score(reward=reward, parts={"reward": reward, "within_limits": float(ended)})


def list_specs(sessions: Sequence[GradedSession]) -> tuple[ToolSpec, ...]:
    """Return the tools of all tasks, each name once."""
    return tuple({spec.name: spec for session in sessions for spec in session.specs()}.values())
