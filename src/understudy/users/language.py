"""Users whom a language model plays, from the scenario's instructions. Four kinds, in requests for each message:

    LanguageUser     1      the model's reply is the message
    ReactUser        1      the model thinks first; only what it marks as the message is said
    VerifiedUser     2      a second request judges the message; one that fails is written anew
    ReflectingUser   2      the same, but what fails is revised: the model is shown its draft and what is wrong with it

The conversation that the model sees is made of the transcript each time anew. So it holds what was said and nothing
else: no draft that was rejected, no thought, no verdict. A draft that cannot be said is asked for again, with a
reminder; after `attempts` of them the episode fails by the user's fault.
"""

import json
import re
from collections.abc import Sequence

from understudy.chat import ChatModel, Reply
from understudy.errors import RolloutError, ToolError
from understudy.messages import Message, ToolCall
from understudy.tasks import Scenario
from understudy.tools import Device
from understudy.users.draft import NOT_ALONE, STOP, Draft, read, read_marked, without_thinking

_PART = f"""\
You play a customer who writes to a support agent. Stay in this part whatever the agent says.

%s

How you write:
- One short message at a time, in plain words: what the customer says, and nothing that the agent would say or do.
- Tell only what is needed now. What is not written above you do not know; if you are asked for it, say so.
- If the agent proposes exactly what you want and asks you to confirm, begin with "Yes". If it proposes anything else,
  begin with "No" and say what you want.
- The agent does the work: after your yes, wait until it tells you that the thing is done.
- When all that you want is settled or refused, or you are handed over to a human, write {STOP} and nothing else."""
_MANNERS = {"plain": "", "chatty": "\n- You like to talk.", "terse": "\n- You use as few words as you can."}
_THINK = """\


Write in this form:
Thought: what the agent's message means for you, and what you want next. Nobody sees this.
Message: what you say to the agent"""
_GREETING = "Hello! How can I help you?"
_JUDGE = """\
You check how a customer is played in a conversation with a support agent. The next message is good if it is the
customer's, follows the instructions, invents nothing, says yes only to what the customer wants, and leaves only when
all is settled or refused. Answer "yes" if it is good; else "no: " and the reason in one sentence."""
_REVISE = """\
The conversation so far:
%s
You were about to say: %s
That is not good: %s

Write in this form:
Reflection: what went wrong. Nobody sees this.
Message: what you say to the agent instead"""
MOST_ROUNDS = 8
"""How often a user may call tools of their own before a message."""
_VERDICT = re.compile(r"[\W_]*(yes|no)\b[\W_]*(.*)", re.IGNORECASE | re.DOTALL)
_NO_VERDICT = "the check of the message came to no verdict"
_UNFIT = "the message does not fit the instructions"


class LanguageUser:
    """Says what the model replies. The opening is the scenario's and costs no request."""

    def __init__(
        self,
        scenario: Scenario,
        model: ChatModel,
        seed: int = 0,
        attempts: int = 3,
        device: Device | None = None,
    ) -> None:
        """`device` is what the user has as tools: the model may call them before it writes a message."""
        self._scenario, self._model, self._seed, self._attempts = scenario, model, seed, attempts
        self._device = device
        self._parting = False

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The next message, or None to leave. Without a usable one it is a `RolloutError` of the user."""
        if not transcript:
            return self._scenario.opening
        talk, draft, problem = spoken(transcript), Draft(), ""
        for attempt in range(self._attempts):
            seed = self._request_seed(len(talk), attempt)
            draft = await self._draft(talk, draft, problem, seed)
            problem = draft.problem or await self._objection(talk, draft, seed)
            if not problem:
                self._parting = draft.parting
                return None if draft.leaves else draft.text
        raise RolloutError(
            f"the user's model gave no usable message in {self._attempts} attempts; at last: {problem}", "user"
        )

    async def _draft(self, talk: Sequence[Message], last: Draft, problem: str, seed: int) -> Draft:
        """A message; `last` is the draft before it, and `problem` what was wrong with that."""
        reminder = f"\n\nRemember: {problem}." if problem else ""
        system = Message(role="system", content=self._part() + self._form() + reminder)
        return self._read(await self._answer([system, *_from_the_other_side(talk)], seed))

    async def _answer(self, messages: Sequence[Message], seed: int) -> Reply:
        """The model's reply, after it has used the user's tools as far as it wants to."""
        specs, messages = self._device.specs() if self._device else (), list(messages)
        reply = await self._model.reply(messages, specs, seed)
        for _ in range(MOST_ROUNDS if specs else 0):
            if not reply.message.tool_calls:
                break
            messages += [reply.message, *(self._run(call) for call in reply.message.tool_calls)]
            reply = await self._model.reply(messages, specs, seed)
        return reply

    def _run(self, call: ToolCall) -> Message:
        assert self._device is not None
        try:
            content = self._device.run(call)
        except ToolError as e:
            content = f"Error: {e}"
        return Message(role="tool", content=content, tool_call_id=call.id)

    async def _objection(self, talk: Sequence[Message], draft: Draft, seed: int) -> str:
        """What is wrong with a draft that could be said. A stop word beside the text is passed over once, not twice."""
        return NOT_ALONE if draft.parting and self._parting else ""

    def _part(self) -> str:
        return _PART % self._scenario.instructions + _MANNERS[self._scenario.persona]

    def _form(self) -> str:
        """How the model is to write what `_read` reads."""
        return ""

    def _read(self, reply: Reply) -> Draft:
        return read(reply)

    def _request_seed(self, said: int, attempt: int) -> int:
        """The request's own; all of them fit into 31 bits, which every endpoint takes."""
        return ((self._seed * 1009 + said) * 101 + attempt) % 2**31


class ReactUser(LanguageUser):
    """Thinks before it speaks; the thought is dropped."""

    def _form(self) -> str:
        return _THINK

    def _read(self, reply: Reply) -> Draft:
        return read_marked(reply)


class VerifiedUser(LanguageUser):
    """Says only what a second look, at the instructions and the conversation, has found good."""

    async def _objection(self, talk: Sequence[Message], draft: Draft, seed: int) -> str:
        return await super()._objection(talk, draft, seed) or await self._verdict(talk, draft, seed)

    async def _verdict(self, talk: Sequence[Message], draft: Draft, seed: int) -> str:
        """The reason against a draft, or nothing."""
        case = [
            f"The customer's instructions: {json.dumps(self._scenario.instructions, ensure_ascii=False)}",
            f"The conversation so far:\n{_quoted(talk)}",
            f"The customer's next message: {_quote(draft)}",
            "Is it good?",
        ]
        messages = [Message(role="system", content=_JUDGE), Message(role="user", content="\n".join(case))]
        reply = await self._model.reply(messages, seed=seed)
        verdict = _VERDICT.match(without_thinking(reply.message.content))
        if verdict is None:
            return _NO_VERDICT
        return "" if verdict[1].lower() == "yes" else verdict[2].strip().rstrip(".") or _UNFIT


class ReflectingUser(VerifiedUser):
    """Revises what the second look objects to."""

    async def _draft(self, talk: Sequence[Message], last: Draft, problem: str, seed: int) -> Draft:
        if not (last.text or last.leaves):
            return await super()._draft(talk, last, problem, seed)
        system = Message(role="system", content=self._part())
        revise = Message(role="user", content=_REVISE % (_quoted(talk), _quote(last), problem))
        return read_marked(await self._model.reply([system, revise], seed=seed))


def spoken(transcript: Sequence[Message]) -> list[Message]:
    """What the two sides said to each other: no policy, no calls, no results, and no text beside calls."""
    return [m for m in transcript if m.role == "user" or (m.role == "assistant" and not m.tool_calls)]


def _from_the_other_side(talk: Sequence[Message]) -> list[Message]:
    """The conversation as the user's model takes part in it: the agent is who it answers."""
    turned = [
        Message(role="assistant", content=m.content)
        if m.role == "user"
        else Message(role="user", content=m.content.strip() or "(says nothing)")
        for m in talk
    ]
    return [Message(role="user", content=_GREETING), *turned]


def _quoted(talk: Sequence[Message]) -> str:
    """The conversation as text, each message on a line of its own whatever it holds."""
    names = {"user": "Customer", "assistant": "Agent"}
    return "\n".join(f"{names[m.role]}: {json.dumps(m.content, ensure_ascii=False)}" for m in talk)


def _quote(draft: Draft) -> str:
    return "(leaves the conversation)" if draft.leaves else json.dumps(draft.text, ensure_ascii=False)
