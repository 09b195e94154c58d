"""Users whom a language model plays, from the scenario's instructions. Four kinds, in requests for each message:

    LanguageUser     1      the model's reply is the message
    ReactUser        1      the model thinks first; only what it marks as the message is said
    VerifiedUser     2      a second request judges the message; one that fails is written anew
    ReflectingUser   2      the same, but what fails is revised: the model is shown its draft and what is wrong with it

The conversation that the model sees is made of the transcript each time anew. So it holds what was said and nothing
else: no draft that was rejected, no thought, no verdict. A draft that cannot be said is asked for again, with a
reminder; after `attempts` of them the episode fails by the user's fault.

Where the user has tools too, the model calls them as an agent does. What it did with them is done, so it is the one
thing that is kept from turn to turn; the agent sees nothing of it.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from understudy.chat import ChatModel
from understudy.errors import RolloutError
from understudy.messages import Message
from understudy.replies import Reply
from understudy.tasks import Scenario
from understudy.tools import Device
from understudy.users.draft import NOT_ALONE, STOP, Draft, read, read_marked, without_thinking
from understudy.users.user import used

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
_OWN_TOOLS = """
- You have tools of your own. Use them when the agent asks you to look at or do something, and say what they showed."""
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
_NAMES = {"user": "Customer", "assistant": "Agent"}
_VERDICT = re.compile(r"[\W_]*(yes|no)\b[\W_]*(.*)", re.IGNORECASE | re.DOTALL)
MOST_DEEDS = 8
"""How often a user turns to tools of their own before saying something."""
_NO_VERDICT = "the check of the message came to no verdict"
_UNFIT = "the message does not fit the instructions"


class LanguageUser:
    """Says what the model replies. The opening is the scenario's and costs no request, where the scenario has one."""

    def __init__(
        self, scenario: Scenario, model: ChatModel, seed: int = 0, attempts: int = 3, device: Device | None = None
    ) -> None:
        """`device` holds the tools of the user's own."""
        self._scenario, self._model, self._seed, self._attempts = scenario, model, seed, attempts
        self._device = device
        self._deeds: list[tuple[int, Message]] = []  # each with how many messages had been said
        self._parting = False

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The next message, or None to leave. Without a usable one it is a `RolloutError` of the user."""
        if not transcript and self._scenario.opening:
            return self._scenario.opening
        talk, draft, problem = spoken(transcript), Draft(), ""
        for attempt in range(self._attempts):
            seed = self._request_seed(len(talk), attempt)
            draft = await self._draft(talk, draft, problem, seed)
            problem = draft.problem or await self._objection(talk, draft, seed)
            if not problem:
                self._parting = draft.parting
                return None if draft.leaves else draft.text
            self._model.reject()
        raise RolloutError(
            f"the user's model gave no usable message in {self._attempts} attempts; at last: {problem}", "user"
        )

    async def _draft(self, talk: Sequence[Message], last: Draft, problem: str, seed: int) -> Draft:
        """A message; `last` is the draft before it, and `problem` what was wrong with that."""
        reminder = f"\n\nRemember: {problem}." if problem else ""
        system = Message(role="system", content=self._part() + self._form() + reminder)
        return self._read(await self._reply(system, talk, seed))

    async def _reply(self, system: Message, talk: Sequence[Message], seed: int) -> Reply:
        """What the model says when it has done with its own tools what it wants."""
        specs = self._device.specs() if self._device else ()
        for _ in range(MOST_DEEDS):
            reply = await self._model.reply([system, *self._seen(talk)], specs, seed)
            if not (self._device and reply.message.tool_calls):
                break
            self._do(self._device, reply.message, len(talk))
        return reply

    def _do(self, device: Device, message: Message, said: int) -> None:
        calls = tuple(
            call.replace(id=call.id or f"deed_{len(self._deeds)}_{i}") for i, call in enumerate(message.tool_calls)
        )
        results = [Message(role="tool", content=used(device, call), tool_call_id=call.id) for call in calls]
        self._deeds += [(said, deed) for deed in (message.replace(content="", tool_calls=calls), *results)]

    def _done(self, said: int) -> list[Message]:
        """What it did, and what that showed, when so many messages had been said; 0 is before its opening."""
        return [deed for place, deed in self._deeds if place == said]

    def _seen(self, talk: Sequence[Message]) -> list[Message]:
        """The conversation as the user's model takes part in it: the agent is who it answers."""
        seen = [Message(role="user", content=_GREETING), *self._done(0)]
        for place, message in enumerate(talk, 1):
            seen += [_turned(message), *self._done(place)]
        return seen

    def _quoted(self, talk: Sequence[Message]) -> str:
        """The same as text, each message on a line of its own whatever it holds."""
        lines = [line for deed in self._done(0) for line in _told(deed)]
        for place, message in enumerate(talk, 1):
            lines.append(f"{_NAMES[message.role]}: {_json(message.content)}")
            lines += [line for deed in self._done(place) for line in _told(deed)]
        return "\n".join(lines)

    async def _objection(self, talk: Sequence[Message], draft: Draft, seed: int) -> str:
        """What is wrong with a draft that could be said. A stop word beside the text is passed over once, not twice."""
        return NOT_ALONE if draft.parting and self._parting else ""

    def _part(self) -> str:
        own = _OWN_TOOLS if self._device else ""
        return _PART % self._scenario.instructions + own + _MANNERS[self._scenario.persona]

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
            f"The customer's instructions: {_json(self._scenario.instructions)}",
            f"The conversation so far:\n{self._quoted(talk)}",
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
        revise = Message(role="user", content=_REVISE % (self._quoted(talk), _quote(last), problem))
        return read_marked(await self._model.reply([system, revise], seed=seed))


def spoken(transcript: Sequence[Message]) -> list[Message]:
    """What the two sides said to each other: no policy, no calls, no results, and no text beside calls."""
    return [m for m in transcript if m.role == "user" or (m.role == "assistant" and not m.tool_calls)]


def _turned(message: Message) -> Message:
    """A message as the other side sees it."""
    if message.role == "user":
        return Message(role="assistant", content=message.content)
    return Message(role="user", content=message.content.strip() or "(says nothing)")


def _told(deed: Message) -> list[str]:
    """What the user did with a tool, or what that showed, in words."""
    if deed.role == "tool":
        return [f"It showed the customer: {_json(deed.content)}"]
    return [f"The customer used {call.name} {_json(call.arguments)}" for call in deed.tool_calls]


def _quote(draft: Draft) -> str:
    return "(leaves the conversation)" if draft.leaves else _json(draft.text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
