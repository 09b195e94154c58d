"""Environment: one episode, single use and passive. The rollout loop calls it; it calls no one but its tools and user.

`start` gives what the agent sees first, `step` answers one reply, and a score ends the episode. Calls of a reply run in
order; a broken or unknown call comes back as a tool error and never reaches the user. Text that stands beside calls is
not delivered to the user: a reply is either said or done.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from understudy.errors import ToolError, nearest
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.state import Snapshot, State
from understudy.tasks import Score
from understudy.tools import Toolkit, Tools
from understudy.users import User, asks_consent, consents

ERROR = "Error: "
"""What the answer to a call that failed begins with."""
_NOT_CONFIRMED = "the user has not confirmed this; say what you will do and ask the user to confirm first"
_ONE_CHANGE = "the user confirmed one change, and it is made; ask the user to confirm the next one"


@dataclass(frozen=True, slots=True)
class Step:
    """What the agent is shown next. A score ends the episode; `errors` are the kinds of tool errors in this step."""

    messages: tuple[Message, ...] = ()
    score: Score | None = None
    errors: tuple[str, ...] = ()


class Environment(Protocol):
    """One episode."""

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """What the agent may call."""

    async def start(self) -> Step:
        """Begin: the policy and the user's opening."""

    async def step(self, reply: Message) -> Step:
        """Answer one reply of the agent."""

    async def grade(self, ended: bool) -> Score:
        """Score the episode as it stands; `ended` is False when a limit cut it off."""

    async def close(self) -> None:
        """Give back what the episode holds."""


class ToolEnvironment:
    """Policy x tools x user x grade, which may be a coroutine.

    `shown` narrows the tools; `transcript` is a list that others want to read too.
    """

    def __init__(
        self,
        policy: str,
        tools: Tools,
        user: User,
        grade: Callable[[Sequence[Message], bool], Score | Awaitable[Score]],
        shown: Sequence[ToolSpec] | None = None,
        transcript: list[Message] | None = None,
    ) -> None:
        self.tools: Sequence[ToolSpec] = tools.specs() if shown is None else shown
        self.transcript: list[Message] = [] if transcript is None else transcript
        self._policy, self._tools, self._user, self._grade = policy, tools, user, grade

    async def start(self) -> Step:
        """The policy as system message, then the user's opening."""
        opening = await self._user.reply(())
        return self._show(Message(role="system", content=self._policy), Message(role="user", content=opening or ""))

    async def step(self, reply: Message) -> Step:
        """Run the reply's calls, or else say its text to the user, who may end the episode."""
        self.transcript.append(reply)
        if reply.tool_calls:
            return await self._run(reply.tool_calls)
        said = await self._user.reply(self.transcript)
        if said is None:
            return Step(score=await self.grade(ended=True))
        return self._show(Message(role="user", content=said))

    async def grade(self, ended: bool) -> Score:
        """Score the transcript and the state as they stand."""
        score = self._grade(self.transcript, ended)
        return score if isinstance(score, Score) else await score

    async def close(self) -> None:
        """Nothing is held."""

    async def _run(self, calls: Sequence[ToolCall]) -> Step:
        errors: list[str] = []
        answers = [await self._answer(call, errors) for call in calls]
        return self._show(*answers, errors=tuple(errors))

    async def _answer(self, call: ToolCall, errors: list[str]) -> Message:
        try:
            content = await self._call(call)
        except ToolError as e:
            errors.append(e.kind)
            content = f"{ERROR}{e}"
        return Message(role="tool", content=content, tool_call_id=call.id)

    async def _call(self, call: ToolCall) -> str:
        if call.malformed:
            raise ToolError(call.malformed, "malformed")
        if all(call.name != spec.name for spec in self.tools):
            raise ToolError(f"unknown tool {nearest(call.name, (spec.name for spec in self.tools))}", "unknown_tool")
        return await self._tools.call(call)

    def _show(self, *messages: Message, errors: tuple[str, ...] = ()) -> Step:
        self.transcript += messages
        return Step(messages, errors=errors)


class ConsentGate:
    """Tools whose writes need the user's consent: a call that changes the database without it is undone and refused.

    One yes to an agent's question covers one change. The gate needs no marks on tools, because a copy-on-write state
    knows whether a call has written. `transcript` is the episode's, the list that its environment appends to.
    """

    def __init__(self, toolkit: Toolkit, state: State, transcript: Sequence[Message]) -> None:
        self._toolkit, self._state, self._transcript = toolkit, state, transcript
        self._spent: int | None = None
        self.violations = 0
        """Calls that broke the policy: writes without consent, and grasps at what belongs to somebody else."""

    def specs(self) -> Sequence[ToolSpec]:
        """The toolkit's."""
        return self._toolkit.specs()

    async def call(self, call: ToolCall) -> str:
        """Run the call, and undo it if it wrote without consent."""
        before = self._state.snapshot()
        try:
            result = self._toolkit.run(call)
            if self._state.wrote_since(before):
                self._spend(before)
        except ToolError as e:
            self.violations += e.kind in ("unconfirmed", "forbidden")
            raise
        return result

    def _spend(self, before: Snapshot) -> None:
        consent = consent_at(self._transcript)
        if consent is not None and consent != self._spent:
            self._spent = consent
            return
        self._state.restore(before)
        raise ToolError(_NOT_CONFIRMED if consent is None else _ONE_CHANGE, "unconfirmed")


def consent_at(transcript: Sequence[Message]) -> int | None:
    """Where the user's last message stands, if it says yes to a question of the agent."""
    last = next((i for i in range(len(transcript) - 1, 0, -1) if transcript[i].role == "user"), None)
    if last is None or not consents(transcript[last].content):
        return None
    question = transcript[last - 1]
    return last if question.role == "assistant" and asks_consent(question.content) else None
