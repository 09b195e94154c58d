"""An episode that the loop of another program plays, one call at a time."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from understudy.core.errors import ConfigError, RolloutError, TaskError, ToolError
from understudy.core.messages import ERROR_PREFIX, Message, ToolCall, ToolSpec, index_tools
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import Trajectory
from understudy.envs.environment import StepResult
from understudy.envs.task_source import TaskSource
from understudy.rollouts.rollout import DEFAULT_LIMITS, EpisodeEnvironment

MESSAGE_TOOL = ToolSpec(
    name="send_message",
    description="Send a message to the user, and get the user's answer.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
"""The user, as a tool beside those of the source."""


def find_message_tool(tools: Sequence[ToolSpec]) -> ToolSpec:
    """Return `MESSAGE_TOOL`, under a longer name if one of the tools has its name."""
    taken, name = index_tools(tools), MESSAGE_TOOL.name
    while name in taken:
        name += "_to_user"
    return MESSAGE_TOOL.replace(name=name)


class CallAnswers:
    """Answers the calls of another program as texts, one after the other."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._num_calls = 0
        self.score: Score | None = None
        """The score, once the user or the environment has ended the episode."""
        self.failure: ConfigError | RolloutError | TaskError | None = None
        """The fault that ended the episode, or the error that ends the run."""

    async def _answer(self, running: Coroutine[Any, Any, StepResult]) -> str:
        """Return the answer of a step. Raise ToolError if the call is refused, or if the episode has ended."""
        async with self._turn:
            if self.score is not None or self.failure:
                running.close()
                raise ToolError("the episode has ended")
            try:
                step = await running
            except (ConfigError, RolloutError, TaskError) as e:
                self.failure = e
                raise ToolError("the environment failed; the episode has ended") from e
            self.score = step.score
        text = "\n".join(message.content for message in step.messages)
        if step.error_kinds:
            raise ToolError(text.removeprefix(ERROR_PREFIX))
        return text if step.score is None else text or "The conversation has ended."


class ExposedEpisode(CallAnswers):
    """One episode with the default limits. Each call, and each message to the user, is one reply of the agent."""

    def __init__(self, source: TaskSource, task: Task, seed: int = 0) -> None:
        super().__init__()
        self._owned = source.environment(task, seed=seed)
        self._environment = EpisodeEnvironment(self._owned, DEFAULT_LIMITS, Trajectory(task.id))
        self._message_tool = find_message_tool(source.tool_specs).name

    async def start(self) -> str:
        """Start the episode, and return the user's first message."""
        step = await self._environment.start()
        self.score = step.score
        return step.messages[-1].content if step.messages else ""

    async def call(self, call: ToolCall) -> str:
        """Return the answer to a call. Raise ToolError if it is refused, or if the episode has ended."""
        if call.name == self._message_tool:
            return await self.say(str(call.arguments.get("text", "")))
        self._num_calls += 1
        call = call.replace(id=f"call_{self._num_calls}")
        return await self._answer(self._environment.step(Message(role="assistant", tool_calls=(call,))))

    async def say(self, text: str) -> str:
        """Return the user's answer to a text. Raise ToolError as `call` does."""
        return await self._answer(self._environment.step(Message(role="assistant", content=text)))

    async def grade(self) -> Score:
        """Return the score, or that of the episode so far. Raise `failure` if the episode has one."""
        if self.failure:
            raise self.failure
        return self.score or await self._environment.grade(ended=False)

    async def close(self) -> None:
        """Release the resources of the episode."""
        await self._owned.close()
