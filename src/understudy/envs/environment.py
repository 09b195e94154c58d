"""Environment: one episode of one task. The rollout loop drives it, and each environment is used once.

`start` returns the agent's first observation and `step` answers one reply of the agent. A step with a score ends the
episode. The tool calls of a reply run in order. A malformed or unknown call returns a tool error. The user never sees
tool calls: if a reply has both text and calls, only the calls count.
"""

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from understudy.core.errors import ExceptionReport, RolloutError, ToolError, did_you_mean
from understudy.core.json_values import replace_surrogates
from understudy.core.messages import ERROR_PREFIX, Message, ToolCall, ToolSpec
from understudy.core.tasks import Score, Violation, ViolationKind
from understudy.core.user_code import user_code
from understudy.envs.rewards import SHOWN_ONLY, FactRules, to_score
from understudy.envs.state import Snapshot, State
from understudy.envs.tools import Toolkit, ToolProvider
from understudy.envs.users import User, asks_for_consent, gives_consent

_NOT_CONFIRMED = "the user has not confirmed this; say what you will do and ask the user to confirm first"
_ONE_CHANGE = "the user confirmed one change, and it is made; ask the user to confirm the next one"


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of `start` or `step`: the next observation of the agent."""

    messages: tuple[Message, ...] = ()
    """The new messages, which the agent sees next."""
    score: Score | None = None
    """The score that ends the episode; None while the episode continues."""
    error_kinds: tuple[str, ...] = ()
    """`ToolError.kind` of each call that failed in this step."""
    exceptions: tuple[ExceptionReport, ...] = ()
    """The exceptions that tools raised in this step."""


class Environment(Protocol):
    """Protocol of one episode."""

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools that the agent may call."""

    async def start(self) -> StepResult:
        """Start the episode: return the system message, if there is one, and the user's first message."""

    async def step(self, reply: Message) -> StepResult:
        """Answer one reply of the agent: return tool results, the user's message, or the score."""

    async def grade(self, ended: bool) -> Score:
        """Return the score of the episode so far; `ended` is False if a limit cut the episode off."""

    async def close(self) -> None:
        """Release the resources of the episode."""


@runtime_checkable
class ExtendableEnvironment(Protocol):
    """Environment that can get the calls of one reply one after the other, as programs make them."""

    async def extend_reply(self, call: ToolCall) -> StepResult | None:
        """Run a further call of the last reply. Return None if that is not possible."""


class ToolEnvironment:
    """Environment made of a domain policy, tools, a user and a grader.

    `grade(transcript, ended)` returns a `Score`, a number from 0 to 1, or a coroutine of either. `visible_tools`
    restricts the agent's tools; None means all tools. Messages are appended to `transcript`, so pass a list to share it
    with other components. An exception of the user or of the grader is a `RolloutError` with that fault.
    """

    def __init__(
        self,
        domain_policy: str,
        tools: ToolProvider,
        user: User,
        grade: Callable[[Sequence[Message], bool], Score | float | Awaitable[Score | float]],
        visible_tools: Sequence[ToolSpec] | None = None,
        transcript: list[Message] | None = None,
    ) -> None:
        self.tools: Sequence[ToolSpec] = tools.specs() if visible_tools is None else visible_tools
        self.transcript: list[Message] = [] if transcript is None else transcript
        self._domain_policy = domain_policy
        self._tools = tools
        self._user = user
        self._grade = grade

    async def start(self) -> StepResult:
        """Return the domain policy as the system message, if it is not empty, then the user's first message."""
        opening = await self._ask_user(())
        system = (Message(role="system", content=self._domain_policy),) if self._domain_policy else ()
        return self._observe(*system, Message(role="user", content=opening or ""))

    async def step(self, reply: Message) -> StepResult:
        """Run the calls of the reply. Without calls, send its text to the user, who may end the episode."""
        self.transcript.append(reply)
        if reply.tool_calls:
            return await self._run(reply.tool_calls)
        answer = await self._ask_user(self.transcript)
        if answer is None:
            return StepResult(score=await self.grade(ended=True))
        return self._observe(Message(role="user", content=answer))

    async def extend_reply(self, call: ToolCall) -> StepResult:
        """Run a further call of the last reply, which had other calls, as if `step` had got all of them at once."""
        results = add_call_to_last_reply(self.transcript, call)
        errors: list[ToolError] = []
        answer = await self._answer(call, errors)
        self.transcript += results
        return self._observe(answer, errors=errors)

    async def grade(self, ended: bool) -> Score:
        """Return the score of the transcript and state so far."""
        with user_code("grader", "the reward function", self._grade):
            score = self._grade(self.transcript, ended)
            if inspect.isawaitable(score):
                score = await score
        return to_score(score, self._grade)

    async def close(self) -> None:
        """Do nothing: there are no resources to release."""

    async def _ask_user(self, transcript: Sequence[Message]) -> str | None:
        with user_code("user", "the user simulator", getattr(self._user, "reply", self._user)):
            reply: object = self._user.reply(transcript)
            if inspect.isawaitable(reply):
                reply = await reply
        if reply is None or isinstance(reply, str):
            return reply if reply is None else replace_surrogates(reply)
        raise RolloutError(
            f"the user simulator replied with {reply!r:.100}; a reply is a text, or None to end the episode", "user"
        )

    async def _run(self, calls: Sequence[ToolCall]) -> StepResult:
        errors: list[ToolError] = []
        answers = [await self._answer(call, errors) for call in calls]
        return self._observe(*answers, errors=errors)

    async def _answer(self, call: ToolCall, errors: list[ToolError]) -> Message:
        try:
            content = await self._call(call)
        except ToolError as e:
            errors.append(e)
            content = f"{ERROR_PREFIX}{e}"
        return Message(role="tool", content=replace_surrogates(content), tool_call_id=call.id)

    async def _call(self, call: ToolCall) -> str:
        if call.parse_error:
            raise ToolError(call.parse_error, "malformed")
        if all(call.name != spec.name for spec in self.tools):
            raise ToolError(
                f"unknown tool {did_you_mean(call.name, (spec.name for spec in self.tools))}", "unknown_tool"
            )
        return await self._tools.call(call)

    def _observe(self, *messages: Message, errors: Sequence[ToolError] = ()) -> StepResult:
        self.transcript += messages
        return StepResult(
            messages,
            error_kinds=tuple(error.kind for error in errors),
            exceptions=tuple(error.report for error in errors if error.report),
        )


def add_call_to_last_reply(transcript: list[Message], call: ToolCall) -> list[Message]:
    """Add a call to the last reply of a transcript. Remove and return the results that follow the reply."""
    place = next(i for i in range(len(transcript) - 1, -1, -1) if transcript[i].role == "assistant")
    reply, *results = transcript[place:]
    transcript[place:] = [reply.replace(tool_calls=(*reply.tool_calls, call))]
    return results


@dataclass(frozen=True, slots=True)
class ConfirmedWrite:
    """A call that has changed the database, or was refused by its tool."""

    call: ToolCall
    place: int
    """Index of the agent's message with the call."""
    consent: int | None
    """Index of the user's message that agreed to it. None if writes need no consent."""


class ConsentGate:
    """Tool provider that requires the user's consent for every write.

    A call that changes the database without consent is undone and raises `ToolError`. One yes to a question of the
    agent covers one change. Tools need no read or write marks, because the copy-on-write state records every write.
    `transcript` must be the list that the environment of the episode appends to. If `required` is False, writes need
    no consent, and only calls that a tool refuses as `forbidden` break the policy. A call of one of `write_tools` that
    the tool itself refuses breaks the policy too if there was no consent.
    """

    def __init__(
        self,
        toolkit: Toolkit,
        state: State,
        transcript: Sequence[Message],
        required: bool = True,
        fact_rules: FactRules = SHOWN_ONLY,
        write_tools: Collection[str] = (),
    ) -> None:
        self._toolkit = toolkit
        self._state = state
        self._transcript = transcript
        self._required = required
        self._write_tools = write_tools
        self._used_consent: int | None = None
        self.fact_rules = fact_rules
        """What counts as telling the outputs of the task, for the grader."""
        self.violations: list[Violation] = []
        """The calls that broke the policy: writes without consent, and access to records of other users."""
        self.writes: list[ConfirmedWrite] = []
        """The calls that changed the database."""
        self.refused_writes: list[ConfirmedWrite] = []
        """The calls of `write_tools` that the tools refused although the user had agreed to a write."""

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools of the toolkit."""
        return self._toolkit.specs()

    async def call(self, call: ToolCall) -> str:
        """Run the call. Raise `ToolError`, and undo the call, if it wrote without consent."""
        before, place = self._state.snapshot(), len(self._transcript) - 1
        try:
            result = await self._toolkit.call(call)
            if self._state.tables_modified_since(before):
                consent = self._require_consent(before) if self._required else None
                self.writes.append(ConfirmedWrite(call, place, consent))
        except ToolError as e:
            kind: ViolationKind | None = "forbidden" if e.kind == "forbidden" else None
            if e.kind == "unconfirmed" or (e.kind == "refused" and self._lacks_consent(call)):
                kind = "unconfirmed"
            elif e.kind == "refused" and self._required and call.name in self._write_tools:
                self.refused_writes.append(ConfirmedWrite(call, place, find_consent(self._transcript)))
            if kind:
                self.violations.append(Violation(kind=kind, message=place, text=f"{call.name}: {e}"[:200]))
            raise
        return result

    def _lacks_consent(self, call: ToolCall) -> bool:
        """Return whether a call of a tool that writes was tried without a consent that is still unused."""
        if not self._required or call.name not in self._write_tools:
            return False
        return find_consent(self._transcript) in (None, self._used_consent)

    def _require_consent(self, before: Snapshot) -> int:
        consent = find_consent(self._transcript)
        if consent is not None and consent != self._used_consent:
            self._used_consent = consent
            return consent
        self._state.restore(before)
        raise ToolError(_NOT_CONFIRMED if consent is None else _ONE_CHANGE, "unconfirmed")


def find_consent(transcript: Sequence[Message]) -> int | None:
    """Return the index of the user's last message if it says yes to a question of the agent, else None."""
    last = next((i for i in range(len(transcript) - 1, 0, -1) if transcript[i].role == "user"), None)
    if last is None or not gives_consent(transcript[last].content):
        return None
    question = transcript[last - 1]
    return last if question.role == "assistant" and asks_for_consent(question.content) else None
