"""The tools of an episode for its program, which calls them over MCP."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from understudy.core.errors import RolloutError, ToolError
from understudy.core.messages import ERROR_PREFIX, Message, ToolCall, ToolSpec
from understudy.core.tasks import Score
from understudy.envs.environment import StepResult
from understudy.rollouts.rollout import EpisodeEnvironment
from understudy.serve.recording import SampledReply, Session

OWN_CALL = "program/own_calls"
"""Event: a call that no reply of the model has made."""
SEND_MESSAGE = ToolSpec(
    name="send_message",
    description="Send a message to the user, and get the user's answer.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)


class EpisodeTools:
    """The tools of an episode for its program: those of the environment, and `send_message`, which is a reply in words.

    Calls are answered one after the other. The calls that one sampled reply has made are one reply in the environment's
    transcript, with the text of the sampled reply.
    """

    def __init__(self, environment: EpisodeEnvironment, session: Session) -> None:
        self._environment, self._session = environment, session
        self._turn = asyncio.Lock()
        self._num_calls = 0
        self._last_reply: SampledReply | None = None
        self.was_used = False
        """Whether the program has called a tool, or sent a message to the user."""
        self.score: Score | None = None
        """The score, once the user or the environment has ended the episode."""
        self.failure: RolloutError | None = None
        """The fault that ended the episode."""

    def count_client(self) -> None:
        """Count an MCP session of the program."""
        self._session.count("program/mcp_sessions")

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools."""
        return [*self._environment.tools, SEND_MESSAGE]

    async def call(self, call: ToolCall) -> str:
        """Run a call. Raise ToolError if the tool refuses it, or if the episode has ended."""
        self.was_used = True
        if call.name == SEND_MESSAGE.name:
            return await self.step(Message(role="assistant", content=str(call.arguments.get("text", ""))))
        self._num_calls += 1
        return await self._answer(self._run(call.replace(id=call.id or f"mcp_{self._num_calls}")))

    async def step(self, reply: Message) -> str:
        """Return the environment's answer to a reply as a text. Raise ToolError as `call` does."""
        return await self._answer(self._step(reply, None))

    async def _run(self, call: ToolCall) -> StepResult:
        sampled = self._session.take_call(call, self._environment.tools)
        if sampled is None:
            self._session.count(OWN_CALL)
        elif sampled is self._last_reply and (step := await self._environment.extend_reply(call)):
            return step
        text = sampled.text if sampled and sampled is not self._last_reply else ""
        return await self._step(Message(role="assistant", content=text, tool_calls=(call,)), sampled)

    async def _step(self, reply: Message, sampled: SampledReply | None) -> StepResult:
        self._last_reply = sampled
        return await self._environment.step(reply)

    async def _answer(self, running: Coroutine[Any, Any, StepResult]) -> str:
        async with self._turn:
            if self.score is not None or self.failure:
                running.close()
                raise ToolError("the episode has ended")
            try:
                step = await running
            except RolloutError as e:
                self.failure = e
                raise ToolError("the environment failed; the episode has ended") from e
            self.score = step.score
        text = "\n".join(message.content for message in step.messages)
        if step.error_kinds:
            raise ToolError(text.removeprefix(ERROR_PREFIX))
        return text if step.score is None else text or "The conversation has ended."
