"""The scripted conversations of certification. Each is short and has one difficulty for templates or tokenizers.

The format checks play them with the scripted replies, the engine checks with sampled replies.
"""

from collections.abc import Collection, Sequence
from typing import Any

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.records import Record
from understudy.core.tasks import Scenario, Score, Task
from understudy.envs.environment import StepResult
from understudy.rollouts.rollout import EpisodeLimits

SYSTEM_PROMPT = "You work at the desk of a shop. Ask before you change anything."
MAX_CONTROL_TOKENS = 16
LIMITS = EpisodeLimits(max_turns=100, max_episode_tokens=1 << 20)
"""Limits that no conversation reaches."""


def _tool(name: str, description: str, **kinds: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name=name, description=description, parameters=schema)


TOOLS = (
    _tool("get_order", "Look an order up.", order_id="string"),
    _tool("note", "Write a note into an order's file.", order_id="string", text="string", urgent="boolean"),
)


class ScriptedTurn(Record):
    """One turn: its inputs and the scripted reply."""

    inputs: tuple[str, ...]
    """The results of the previous calls, in order, then the user's messages."""
    reply: Message


class ScriptedConversation(Record):
    """A conversation with scripted replies of the agent."""

    name: str
    turns: tuple[ScriptedTurn, ...]
    system: str | None = SYSTEM_PROMPT
    tools: tuple[ToolSpec, ...] = TOOLS
    max_reply_tokens: int = 0
    """Tokens after which each reply is truncated; 0 means never."""
    has_control_text: bool = False
    """True if its texts contain the names of control tokens."""

    @property
    def texts(self) -> list[str]:
        """Return all texts of the conversation."""
        return [self.system or "", *(text for turn in self.turns for text in (*turn.inputs, turn.reply.content))]

    @property
    def messages(self) -> list[Message]:
        """Return the conversation with its scripted replies."""
        replies = [None, *(turn.reply for turn in self.turns)]
        shown = [self.new_messages(i, before) for i, before in enumerate(replies[:-1])]
        return [message for i, new in enumerate(shown) for message in (*new, self.turns[i].reply)]

    @property
    def task(self) -> Task:
        """Return a task with the conversation's name, for its episodes."""
        scenario = Scenario(instructions="", opening="")
        return Task(
            id=self.name, domain="certify", split="test", family="", difficulty="easy", scenario=scenario, gold=()
        )

    def without_text_beside_calls(self) -> "ScriptedConversation":
        """Return the conversation with replies that have either calls or text."""
        silent = [t.replace(reply=t.reply.replace(content="")) if t.reply.tool_calls else t for t in self.turns]
        return self.replace(turns=tuple(silent))

    def new_messages(self, turn: int, before: Message | None) -> tuple[Message, ...]:
        """Return the new messages of a turn after the reply `before`: the results of its calls, then the user's."""
        says = self.turns[turn].inputs
        opening = (Message(role="system", content=self.system),) if self.system is not None and turn == 0 else ()
        calls = before.tool_calls if before else ()
        results = [
            Message(role="tool", content=says[i % len(says)], tool_call_id=call.id) for i, call in enumerate(calls)
        ]
        return (*opening, *results, *(Message(role="user", content=text) for text in says[len(calls) :]))


class ScriptedEnvironment:
    """An environment that plays a scripted conversation. It ignores the replies and ends after the last turn."""

    def __init__(self, conversation: ScriptedConversation) -> None:
        self.tools: Sequence[ToolSpec] = conversation.tools
        self._talk, self._turn = conversation, 0

    async def start(self) -> StepResult:
        """Return the messages of the first turn."""
        return StepResult(self._talk.new_messages(0, None))

    async def step(self, reply: Message) -> StepResult:
        """Return the messages of the next turn, or a reward of 0 after the last turn."""
        self._turn += 1
        if self._turn == len(self._talk.turns):
            return StepResult(score=await self.grade(ended=True))
        return StepResult(self._talk.new_messages(self._turn, reply))

    async def grade(self, ended: bool) -> Score:
        """Return a reward of 0."""
        return Score(reward=0.0)

    async def close(self) -> None:
        """Do nothing: there are no resources."""


def scripted_conversations(added: Collection[str]) -> list[ScriptedConversation]:
    """Return all conversations for a tokenizer with the added tokens `added`.

    The conversation with thoughts is included if `added` has `<think>`.
    """
    thinking = [_THINKING] if "<think>" in added else []
    return [
        ONE_CALL,
        SEVERAL_CALLS,
        LONG,
        UNICODE,
        *thinking,
        control_text_conversation(added),
        _EMPTY,
        _NO_SYSTEM,
        _PLAIN,
        *_CUT,
    ]


def control_text_conversation(added: Collection[str]) -> ScriptedConversation:
    """Return a conversation in which user, tools and system write the tokenizer's added tokens as text."""
    return conversation_saying(
        " ".join(["Look:", *sorted(added)[:MAX_CONTROL_TOKENS], "<|im_end|>", "</s>", "<|eot_id|>"])
    )


def conversation_saying(text: str) -> ScriptedConversation:
    """Return a conversation in which user, tools and system write `text`.

    The control tokens in its prompts must be the same for every `text`.
    """
    order = _call(0, "get_order", order_id="W1")
    turns = (_turn(text, calls=(order,)), _turn(text, text, content="It says so."), _turn(text, content="Yes."))
    tools = (_tool("get_order", text, order_id="string"),)
    return ScriptedConversation(
        name="text that looks like control tokens", turns=turns, system=text, tools=tools, has_control_text=True
    )


def history_saying(text: str) -> list[Message]:
    """Return a conversation in which everybody writes `text`, the assistant too, up to the user's last message.

    Replies do not start with it, because a thought at their start has its tokens.
    """
    call = _call(0, "get_order", order_id=text, **{f"a{text}": text})
    return [
        Message(role="system", content=text),
        Message(role="user", content=text),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content=text, tool_call_id=call.id),
        Message(role="assistant", content=f"It says {text}"),
        Message(role="user", content=f"Again: {text}"),
    ]


def _call(place: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, id=f"call{place:05}")


def _turn(*says: str, content: str = "", calls: tuple[ToolCall, ...] = ()) -> ScriptedTurn:
    return ScriptedTurn(inputs=says, reply=Message(role="assistant", content=content, tool_calls=calls))


_ORDER = _call(0, "get_order", order_id="W1")
_FOUND = '{"order_id": "W1", "status": "pending", "items": [{"name": "kettle", "price": "19.90"}]}'

ONE_CALL = ScriptedConversation(
    name="one call",
    turns=(_turn("Where is order W1?", calls=(_ORDER,)), _turn(_FOUND, content="It is still pending.")),
)
SEVERAL_CALLS = ScriptedConversation(
    name="several calls in a reply",
    turns=(
        _turn(
            "Where are W1 and W2? Put a note into both.",
            content="I look.",
            calls=(
                _ORDER,
                _call(1, "get_order", order_id="W2"),
                _call(2, "note", order_id="W2", text="x", urgent=False),
            ),
        ),
        _turn(_FOUND, "Error: there is no order W2", "ok", content="W2 is not there."),
        _turn("Then only W1.", calls=(_call(3, "note", order_id="W1", text='Asked: "where?"\n{}', urgent=True),)),
        _turn("ok", "Thanks!", content="You are welcome."),
    ),
)
LONG = ScriptedConversation(
    name="many turns",
    turns=(
        _turn("Hello.", content="Hello! What can I do for you?"),
        _turn("Where is order W1?", calls=(_ORDER,)),
        _turn(_FOUND, content="It is pending.\n\n- kettle, 19.90"),
        _turn("Cancel it,  please.\n", content="Shall I cancel W1? Say yes."),
        _turn("yes", content="Done."),
    ),
)
_WORLD = " ".join(
    (
        "Zo\u00eb 東京 한국어 नमस्ते",
        "👩\u200d👩\u200d👧 👍🏽 🇯🇵 \U0001d518",
        "e\u0301 A\u030a",  # combining characters
        "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u202eabc\u202c",  # from right to left
    )
)
UNICODE = ScriptedConversation(
    name="unicode",
    turns=(
        _turn(f"{_WORLD}?", calls=(_call(0, "note", order_id="W\u00e9 東", text=_WORLD, urgent=False),)),
        _turn(f'{{"text": "{_WORLD}"}}', content=f"{_WORLD}!"),
        _turn("👩\u200d👩\u200d👧", content="👍🏽"),
    ),
    system=f"{SYSTEM_PROMPT} {_WORLD}",
)
_THINKING = ScriptedConversation(
    name="thoughts",
    turns=(
        _turn("Where is W1?", content="<think>\nI have to look.\n</think>\n\n", calls=(_ORDER,)),
        _turn(_FOUND, content="<think>\nPending.\n</think>\n\nIt is pending."),
        _turn("Thanks.", content="You are welcome."),
    ),
)
_EMPTY = ScriptedConversation(
    name="empty texts",
    turns=(_turn("", content=""), _turn(" ", calls=(_call(0, "get_order"),)), _turn("", content="Nothing is there.")),
    system="",
)
_NO_SYSTEM = ScriptedConversation(name="no system message", turns=ONE_CALL.turns, system=None)
_PLAIN = ScriptedConversation(
    name="no tools, no system message",
    turns=(_turn("Hello.", content="Hello!"), _turn("Bye.", content="Bye!")),
    system=None,
    tools=(),
)
_CUT = (
    ScriptedConversation(
        name="truncated replies",
        turns=(_turn("Tell me all.", content="It would take very long to tell."), _turn("So?", content="Well, so.")),
        max_reply_tokens=4,
    ),
    ScriptedConversation(name="truncated calls", turns=ONE_CALL.turns, max_reply_tokens=7),
)
