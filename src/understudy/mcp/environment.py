"""Environment of an MCP task: the user says it, the agent works, and its first reply without calls is its answer."""

from collections.abc import Awaitable, Callable, Sequence

from understudy.environment import Step, ToolEnvironment
from understudy.errors import TaskError
from understudy.mcp.checks import Evidence, score
from understudy.mcp.reply import Reply
from understudy.mcp.settings import Call, RewardConfig
from understudy.mcp.tasks import MCPTask
from understudy.mcp.toolkit import MCPToolkit
from understudy.messages import Message, ToolCall
from understudy.tasks import Score
from understudy.users import User

Goal = Callable[[], Awaitable[Sequence[Reply | None]]]
"""What each check of the state has to show by the gold calls; None where the check itself says it."""


class MCPEnvironment(ToolEnvironment):
    """One episode. It holds sessions from `start` to `close`."""

    def __init__(
        self, task: MCPTask, kit: MCPToolkit, policy: str, user: User, goal: Goal, reward: RewardConfig
    ) -> None:
        super().__init__(policy, kit, user, self._scored)
        self._task, self._kit, self._goal, self._reward = task, kit, goal, reward
        self._expected: Sequence[Reply | None] = ()
        self._states: Sequence[bool] = ()
        self._before: Sequence[bool] = ()
        self._turns = 0

    async def start(self) -> Step:
        """Bring the servers to where the task begins, then say it."""
        self._expected = await self._goal()  # first: it needs sessions of its own
        await self._kit.open()
        await prepare(self._kit, self._task.id, self._task.setup)
        if self._reward.kind == "shaped":
            self._before = await self._look()
        return await super().start()

    async def step(self, reply: Message) -> Step:
        """Answer a reply; the last one that the task allows ends the episode."""
        self._turns += 1
        step = await super().step(reply)
        if step.score is None and self._turns >= self._task.turns:
            return Step(step.messages, await self.grade(ended=False), step.errors)
        return step

    async def grade(self, ended: bool) -> Score:
        """Look at the state, then score."""
        self._states = await self._look()
        return await super().grade(ended)

    async def close(self) -> None:
        """Give the sessions back."""
        await self._kit.close()

    async def _call(self, call: ToolCall) -> str:
        return await self._kit.call(call)  # which knows tools by both of their names

    async def _look(self) -> list[bool]:
        shown = [await self._kit.perform(check) for check in self._task.check.state]
        checks = zip(self._task.check.state, shown, self._expected, strict=True)
        return [check.holds(reply, expected) for check, reply, expected in checks]

    def _scored(self, transcript: Sequence[Message], ended: bool) -> Score:
        last = transcript[-1] if transcript else Message(role="user")
        answer = last.content if ended and last.role == "assistant" else ""
        evidence = Evidence(answer, ended, self._kit.made, self._states, self._before)
        return score(self._task.check, evidence, self._reward)


async def prepare(kit: MCPToolkit, task: str, calls: Sequence[Call]) -> None:
    """Make calls that have to succeed."""
    for call in calls:
        reply = await kit.perform(call)
        if reply.error:
            raise TaskError(f"task {task}: the call {call.tool}({call.arguments}) is refused: {reply.text[:300]}")
