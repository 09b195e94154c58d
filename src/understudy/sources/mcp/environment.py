"""Environment of an MCP task: the user gives the task, and the agent's first reply without calls is its answer."""

import dataclasses
from collections.abc import Awaitable, Callable, Sequence

from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score
from understudy.envs.environment import StepResult, ToolEnvironment
from understudy.envs.rewards import FactRules, find_denied, missing_facts
from understudy.envs.users import User
from understudy.sources.mcp.checks import EpisodeEvidence, score_checks
from understudy.sources.mcp.config import RewardConfig
from understudy.sources.mcp.tasks import MCPTask, naming_task
from understudy.sources.mcp.tool_result import ToolResult
from understudy.sources.mcp.toolkit import MCPToolkit

ExpectedStates = Callable[[], Awaitable[Sequence[ToolResult | None]]]
"""Returns the result of each state check after the gold calls, or None if the check itself has the expected result."""


class MCPEnvironment(ToolEnvironment):
    """One episode. It uses sessions of the servers from `start` to `close`."""

    def __init__(
        self,
        task: MCPTask,
        toolkit: MCPToolkit,
        domain_policy: str,
        user: User,
        expected_states: ExpectedStates,
        reward: RewardConfig,
    ) -> None:
        super().__init__(domain_policy, toolkit, user, self._scored)
        self._task = task
        self._kit = toolkit
        self._goal = expected_states
        self._reward = reward
        self._expected: Sequence[ToolResult | None] = ()
        self._states: Sequence[bool] = ()
        self._before: Sequence[bool] = ()
        self._turns = 0

    async def start(self) -> StepResult:
        """Run the task's setup calls, then return its prompt."""
        self._expected = await self._goal()  # first: it needs sessions of its own
        with naming_task(self._task):
            await self._kit.set_up(self._task.setup)
        if self._reward.kind == "shaped":
            self._before = await self._look()
        return await super().start()

    async def step(self, reply: Message) -> StepResult:
        """Answer a reply. The last reply that the task allows ends the episode."""
        self._turns += 1
        step = await super().step(reply)
        if step.score is None and self._turns >= self._task.max_turns:
            return dataclasses.replace(step, score=await self.grade(ended=False))
        return step

    async def grade(self, ended: bool) -> Score:
        """Run the state checks, then score."""
        self._states = await self._look()
        return await super().grade(ended)

    async def close(self) -> None:
        """Return the sessions to their pools."""
        await self._kit.close()

    async def _call(self, call: ToolCall) -> str:
        return await self._kit.call(call)  # which knows tools by both of their names

    async def _look(self) -> list[bool]:
        with naming_task(self._task):
            shown = [await self._kit.call_internal(check) for check in self._task.check.state]
        checks = zip(self._task.check.state, shown, self._expected, strict=True)
        return [check.passes(reply, expected) for check, reply, expected in checks]

    def _scored(self, transcript: Sequence[Message], ended: bool) -> Score:
        last = transcript[-1] if transcript else Message(role="user")
        answer = last.content if ended and last.role == "assistant" else ""
        if self._task.gold and all(call.failed for call in self._kit.server_calls):
            answer = ""  # a guess: gold looks the answer up
        missing = missing_facts(transcript, self._task.outputs, find_mcp_fact_rules(self._task))
        told = [output not in missing for output in self._task.outputs]
        evidence = EpisodeEvidence(answer, ended, self._kit.server_calls, self._states, self._before, told)
        return score_checks(self._task.check, evidence, self._reward)


def find_mcp_fact_rules(task: MCPTask) -> FactRules:
    """Return what counts as telling the outputs of a task: each must be shown."""
    return FactRules(denied=find_denied([task.final_answer], task.outputs))
