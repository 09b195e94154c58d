"""The tools of an episode for its program, which calls them over MCP."""

from collections.abc import Sequence

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.envs.environment import StepResult
from understudy.rollouts.exposed_episode import CallAnswers, find_message_tool
from understudy.rollouts.rollout import EpisodeEnvironment
from understudy.serve.recording import SampledReply, Session

OWN_CALL = "program/own_calls"
"""Event: a call that no reply of the model has made."""


class EpisodeTools(CallAnswers):
    """The tools of an episode for its program: those of the environment, and `send_message`, which is a reply in words.

    Calls are answered one after the other. The calls that one sampled reply has made are one reply in the environment's
    transcript, with the text of the sampled reply.
    """

    def __init__(self, environment: EpisodeEnvironment, session: Session) -> None:
        super().__init__()
        self._environment, self._session = environment, session
        self._message_tool = find_message_tool(environment.tools)
        self._last_reply: SampledReply | None = None
        self.was_used = False
        """Whether the program has called a tool, or sent a message to the user."""

    def count_client(self) -> None:
        """Count an MCP session of the program."""
        self._session.count("program/mcp_sessions")

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools."""
        return [*self._environment.tools, self._message_tool]

    async def call(self, call: ToolCall) -> str:
        """Run a call. Raise ToolError if the tool refuses it, or if the episode has ended."""
        self.was_used = True
        if call.name == self._message_tool.name:
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
