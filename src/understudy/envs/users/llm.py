"""User simulators in which a language model follows the scenario's instructions.

    class            requests per draft
    LLMUser          1      the model's reply is the message
    ReactUser        1      the model writes a thought and a message; only the message is sent
    VerifyUser       2      a second request judges the draft; a rejected draft is written anew
    ReflectionUser   2      a second request judges the draft; to revise it, the model gets the draft and the problem

The model's prompt is rebuilt from the transcript for every request. It contains the messages that were sent, but no
rejected drafts, thoughts or verdicts. If a draft is rejected, the next request names the problem. After `max_attempts`
rejected drafts the episode fails with a `RolloutError` whose fault is `user`.

If the user has tools, the model calls them as an agent does. These calls and their results stay in the prompts of
later turns. The agent does not see them.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from understudy.clients.chat import ChatModel
from understudy.clients.completions import ChatCompletion
from understudy.core.errors import RolloutError
from understudy.core.messages import Message
from understudy.core.tasks import Scenario
from understudy.envs.tools import UserTools
from understudy.envs.users.draft import (
    PROBLEM_STRAY_STOP,
    STOP_TOKEN,
    UserDraft,
    parse_marked_message,
    parse_user_message,
    strip_thinking,
)
from understudy.envs.users.user import run_user_tool

_PART = f"""\
You play a customer who is chatting with a support agent. Stay in this role whatever the agent says.

%s

How to write:
- Send one short message at a time, in plain words. Say only what the customer would say, never the agent's part.
- Give only the information that is needed now. You know nothing beyond the text above; if you are asked for something
  else, say that you don't know.
- If the agent proposes exactly what you want and asks you to confirm, start with "Yes". If it proposes anything else,
  start with "No" and say what you want.
- The agent does the work. After you say yes, wait until it tells you that it is done.
- When everything you want is settled or refused, or you are transferred to a human, write {STOP_TOKEN} and nothing \
else."""
_OWN_TOOLS = """
- You have tools of your own. Use them when the agent asks you to check or do something, and report the result."""
_MANNERS = {"plain": "", "chatty": "\n- You are talkative.", "terse": "\n- You use as few words as possible."}
_THINK = """\


Use this format:
Thought: what the agent's message means for you, and what you want next. Nobody sees this.
Message: your message to the agent"""
_GREETING = "Hello! How can I help you?"
_JUDGE = """\
You check the messages of a simulated customer in a conversation with a support agent. The next message is good if a
customer would write it, it follows the instructions, invents nothing, says yes only to what the customer wants, and
ends the conversation only when everything is settled or refused. Answer "yes" if it is good. Otherwise answer "no: "
and the reason in one sentence."""
_REVISE = """\
The conversation so far:
%s
You were about to say: %s
The problem with it: %s

Use this format:
Reflection: what went wrong. Nobody sees this.
Message: your new message to the agent"""
_NAMES = {"user": "Customer", "assistant": "Agent"}
_VERDICT = re.compile(r"[\W_]*(yes|no)\b[\W_]*(.*)", re.IGNORECASE | re.DOTALL)
MAX_TOOL_ROUNDS = 8
"""Maximum requests per draft while the user's model calls tools."""
_NO_VERDICT = "the check of the message gave no verdict"
_UNFIT = "the message does not fit the instructions"


class LLMUser:
    """User whose messages are the model's replies. The scenario's opening, if it has one, needs no request."""

    def __init__(
        self,
        scenario: Scenario,
        model: ChatModel,
        seed: int = 0,
        attempts: int = 3,
        user_tools: UserTools | None = None,
    ) -> None:
        """Set the model, the maximum number of drafts of a message (`attempts`), and the user's own tools, if any."""
        self._scenario = scenario
        self._model = model
        self._seed = seed
        self._attempts = attempts
        self._user_tools = user_tools
        self._tool_messages: list[tuple[int, Message]] = []  # with the number of messages sent before
        self._ignored_stop = False

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the next message, or None to leave. Raise `RolloutError` if every draft was rejected."""
        if not transcript and self._scenario.opening:
            return self._scenario.opening
        talk, draft, problem = dialogue_messages(transcript), UserDraft(), ""
        for attempt in range(self._attempts):
            seed = self._request_seed(len(talk), attempt)
            draft = await self._draft(talk, draft, problem, seed)
            problem = draft.problem or await self._objection(talk, draft, seed)
            if not problem:
                self._ignored_stop = draft.has_stray_stop
                return None if draft.ends_conversation else draft.text
            self._model.record_rejected_reply()
        raise RolloutError(
            f"the user's model wrote no usable message in {self._attempts} attempts; the last problem: {problem}",
            "user",
        )

    async def _draft(self, talk: Sequence[Message], last: UserDraft, problem: str, seed: int) -> UserDraft:
        """Return a new draft. `last` is the previous, rejected draft and `problem` the reason, both empty at first."""
        reminder = f"\n\nRemember: {problem}." if problem else ""
        system = Message(role="system", content=self._part() + self._form() + reminder)
        return self._read(await self._reply(system, talk, seed))

    async def _reply(self, system: Message, talk: Sequence[Message], seed: int) -> ChatCompletion:
        """Return the model's reply. Run its calls of the user's tools first, in up to `MAX_TOOL_ROUNDS` requests."""
        specs = self._user_tools.specs() if self._user_tools else ()
        for _ in range(MAX_TOOL_ROUNDS):
            reply = await self._model.generate([system, *self._seen(talk)], specs, seed)
            if not (self._user_tools and reply.message.tool_calls):
                break
            self._do(self._user_tools, reply.message, len(talk))
        return reply

    def _do(self, user_tools: UserTools, message: Message, said: int) -> None:
        calls = tuple(
            call.replace(id=call.id or f"user_call_{len(self._tool_messages)}_{i}")
            for i, call in enumerate(message.tool_calls)
        )
        results = [
            Message(role="tool", content=run_user_tool(user_tools, call), tool_call_id=call.id) for call in calls
        ]
        self._tool_messages += [(said, action) for action in (message.replace(content="", tool_calls=calls), *results)]

    def _done(self, said: int) -> list[Message]:
        """Return the calls and results of the user's tools that were run when `said` messages had been sent."""
        return [action for place, action in self._tool_messages if place == said]

    def _seen(self, talk: Sequence[Message]) -> list[Message]:
        """Return the conversation for the user's model, which is the assistant in it; the agent is the user."""
        seen = [Message(role="user", content=_GREETING), *self._done(0)]
        for place, message in enumerate(talk, 1):
            seen += [_turned(message), *self._done(place)]
        return seen

    def _quoted(self, talk: Sequence[Message]) -> str:
        """Return the conversation and the user's calls as text, one line each, with line breaks escaped."""
        lines = [line for action in self._done(0) for line in _action_lines(action)]
        for place, message in enumerate(talk, 1):
            lines.append(f"{_NAMES[message.role]}: {_json(message.content)}")
            lines += [line for action in self._done(place) for line in _action_lines(action)]
        return "\n".join(lines)

    async def _objection(self, talk: Sequence[Message], draft: UserDraft, seed: int) -> str:
        """Return the problem of a draft, or "". A stray stop token is a problem if the previous message had one too."""
        return PROBLEM_STRAY_STOP if draft.has_stray_stop and self._ignored_stop else ""

    def _part(self) -> str:
        own = _OWN_TOOLS if self._user_tools else ""
        return _PART % self._scenario.instructions + own + _MANNERS[self._scenario.persona]

    def _form(self) -> str:
        """Return the instruction on the format that `_read` parses."""
        return ""

    def _read(self, reply: ChatCompletion) -> UserDraft:
        return parse_user_message(reply)

    def _request_seed(self, said: int, attempt: int) -> int:
        """Return the seed of a request. It fits into 31 bits, which every endpoint accepts."""
        return ((self._seed * 1009 + said) * 101 + attempt) % 2**31


class ReactUser(LLMUser):
    """User whose model writes a thought before each message. The thought is dropped."""

    def _form(self) -> str:
        return _THINK

    def _read(self, reply: ChatCompletion) -> UserDraft:
        return parse_marked_message(reply)


class VerifyUser(LLMUser):
    """User whose drafts are judged by a second request, given the instructions and the conversation."""

    async def _objection(self, talk: Sequence[Message], draft: UserDraft, seed: int) -> str:
        return await super()._objection(talk, draft, seed) or await self._verdict(talk, draft, seed)

    async def _verdict(self, talk: Sequence[Message], draft: UserDraft, seed: int) -> str:
        """Return the judge's reason to reject a draft, or ""."""
        case = [
            f"The customer's instructions: {_json(self._scenario.instructions)}",
            f"The conversation so far:\n{self._quoted(talk)}",
            f"The customer's next message: {_quote(draft)}",
            "Is it good?",
        ]
        messages = [Message(role="system", content=_JUDGE), Message(role="user", content="\n".join(case))]
        reply = await self._model.generate(messages, seed=seed)
        verdict = _VERDICT.match(strip_thinking(reply.message.content))
        if verdict is None:
            return _NO_VERDICT
        return "" if verdict[1].lower() == "yes" else verdict[2].strip().rstrip(".") or _UNFIT


class ReflectionUser(VerifyUser):
    """User whose rejected drafts are revised."""

    async def _draft(self, talk: Sequence[Message], last: UserDraft, problem: str, seed: int) -> UserDraft:
        if not (last.text or last.ends_conversation):
            return await super()._draft(talk, last, problem, seed)
        system = Message(role="system", content=self._part())
        revise = Message(role="user", content=_REVISE % (self._quoted(talk), _quote(last), problem))
        return parse_marked_message(await self._model.generate([system, revise], seed=seed))


def dialogue_messages(transcript: Sequence[Message]) -> list[Message]:
    """Return the messages between agent and user. Messages with tool calls are left out, even if they have text."""
    return [m for m in transcript if m.role == "user" or (m.role == "assistant" and not m.tool_calls)]


def _turned(message: Message) -> Message:
    """Return a message with the roles of user and assistant exchanged."""
    if message.role == "user":
        return Message(role="assistant", content=message.content)
    return Message(role="user", content=message.content.strip() or "(says nothing)")


def _action_lines(action: Message) -> list[str]:
    """Return a call of the user's tools, or its result, as lines of text."""
    if action.role == "tool":
        return [f"It showed the customer: {_json(action.content)}"]
    return [f"The customer used {call.name} {_json(call.arguments)}" for call in action.tool_calls]


def _quote(draft: UserDraft) -> str:
    return "(leaves the conversation)" if draft.ends_conversation else _json(draft.text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
