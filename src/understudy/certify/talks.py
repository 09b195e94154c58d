"""The conversations that are certified: short, and each with something that templates and tokenizers stumble over.

The same talk is played with the replies that stand in it, to prove a format, and with those that an engine samples.
"""

from collections.abc import Collection, Sequence
from typing import Any

from understudy.environment import Step
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.records import Record
from understudy.rollout import Limits
from understudy.tasks import Scenario, Score, Task

SYSTEM = "You work at the desk of a shop. Ask before you change anything."
MOST_LOOK_ALIKES = 16
LIMITS = Limits(max_turns=100, max_tokens=1 << 20)
"""None that a talk meets."""


def _tool(name: str, description: str, **kinds: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name=name, description=description, parameters=schema)


TOOLS = (
    _tool("get_order", "Look an order up.", order_id="string"),
    _tool("note", "Write a note into an order's file.", order_id="string", text="string", urgent="boolean"),
)


class Turn(Record):
    """What is new, and the reply to it."""

    says: tuple[str, ...]
    """The results of the calls before, in order; what is left over is the user's."""
    reply: Message


class Talk(Record):
    """A conversation with the agent's replies."""

    name: str
    turns: tuple[Turn, ...]
    system: str | None = SYSTEM
    tools: tuple[ToolSpec, ...] = TOOLS
    cut: int = 0
    """Tokens after which each reply is cut off; 0 cuts none."""
    look_alikes: bool = False
    """Whether texts in it look like control tokens."""

    @property
    def texts(self) -> list[str]:
        """All that is said in it."""
        return [self.system or "", *(text for turn in self.turns for text in (*turn.says, turn.reply.content))]

    @property
    def whole(self) -> list[Message]:
        """The conversation, with its own replies."""
        replies = [None, *(turn.reply for turn in self.turns)]
        shown = [self.new(i, before) for i, before in enumerate(replies[:-1])]
        return [message for i, new in enumerate(shown) for message in (*new, self.turns[i].reply)]

    @property
    def task(self) -> Task:
        """The talk as what an episode is filed under."""
        scenario = Scenario(instructions="", opening="")
        return Task(
            id=self.name, domain="certify", split="test", family="", difficulty="easy", scenario=scenario, gold=()
        )

    def new(self, turn: int, before: Message | None) -> tuple[Message, ...]:
        """What turn `turn` shows after the reply `before`: results for its calls, then what the user says."""
        says = self.turns[turn].says
        opening = (Message(role="system", content=self.system),) if self.system is not None and turn == 0 else ()
        calls = before.tool_calls if before else ()
        results = [
            Message(role="tool", content=says[i % len(says)], tool_call_id=call.id) for i, call in enumerate(calls)
        ]
        return (*opening, *results, *(Message(role="user", content=text) for text in says[len(calls) :]))


class Script:
    """A talk as an environment: whatever is replied, it goes on with its next turn, and ends after its last."""

    def __init__(self, talk: Talk) -> None:
        self.tools: Sequence[ToolSpec] = talk.tools
        self._talk, self._turn = talk, 0

    async def start(self) -> Step:
        """The first turn."""
        return Step(self._talk.new(0, None))

    async def step(self, reply: Message) -> Step:
        """The next turn."""
        self._turn += 1
        if self._turn == len(self._talk.turns):
            return Step(score=await self.grade(ended=True))
        return Step(self._talk.new(self._turn, reply))

    async def grade(self, ended: bool) -> Score:
        """Nothing is earned here."""
        return Score(reward=0.0)

    async def close(self) -> None:
        """Nothing is held."""


def talks(added: Collection[str]) -> list[Talk]:
    """All talks, for a tokenizer with these added tokens; a thought is among them where `<think>` is one."""
    thinking = [_THINKING] if "<think>" in added else []
    return [ONE_CALL, SEVERAL_CALLS, LONG, UNICODE, *thinking, look_alikes(added), _EMPTY, _NO_SYSTEM, _PLAIN, *_CUT]


def look_alikes(added: Collection[str]) -> Talk:
    """A talk in which user, tools and system say the tokenizer's added tokens as text."""
    return saying(" ".join(["Look:", *sorted(added)[:MOST_LOOK_ALIKES], "<|im_end|>", "</s>", "<|eot_id|>"]))


def saying(text: str) -> Talk:
    """The talk of `look_alikes` with another text: what it comes to must not depend on the text's looks."""
    order = _call(0, "get_order", order_id="W1")
    turns = (_turn(text, calls=(order,)), _turn(text, text, content="It says so."), _turn(text, content="Yes."))
    tools = (_tool("get_order", text, order_id="string"),)
    return Talk(name="text that looks like control tokens", turns=turns, system=text, tools=tools, look_alikes=True)


def _call(place: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, id=f"call{place:05}")


def _turn(*says: str, content: str = "", calls: tuple[ToolCall, ...] = ()) -> Turn:
    return Turn(says=says, reply=Message(role="assistant", content=content, tool_calls=calls))


_ORDER = _call(0, "get_order", order_id="W1")
_FOUND = '{"order_id": "W1", "status": "pending", "items": [{"name": "kettle", "price": "19.90"}]}'

ONE_CALL = Talk(
    name="one call",
    turns=(_turn("Where is order W1?", calls=(_ORDER,)), _turn(_FOUND, content="It is still pending.")),
)
SEVERAL_CALLS = Talk(
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
LONG = Talk(
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
UNICODE = Talk(
    name="unicode",
    turns=(
        _turn(f"{_WORLD}?", calls=(_call(0, "note", order_id="W\u00e9 東", text=_WORLD, urgent=False),)),
        _turn(f'{{"text": "{_WORLD}"}}', content=f"{_WORLD}!"),
        _turn("👩\u200d👩\u200d👧", content="👍🏽"),
    ),
    system=f"{SYSTEM} {_WORLD}",
)
_THINKING = Talk(
    name="thoughts",
    turns=(
        _turn("Where is W1?", content="<think>\nI have to look.\n</think>\n\n", calls=(_ORDER,)),
        _turn(_FOUND, content="<think>\nPending.\n</think>\n\nIt is pending."),
        _turn("Thanks.", content="You are welcome."),
    ),
)
_EMPTY = Talk(
    name="empty texts",
    turns=(_turn("", content=""), _turn(" ", calls=(_call(0, "get_order"),)), _turn("", content="Nothing is there.")),
    system="",
)
_NO_SYSTEM = Talk(name="no system message", turns=ONE_CALL.turns, system=None)
_PLAIN = Talk(
    name="no tools, no system message",
    turns=(_turn("Hello.", content="Hello!"), _turn("Bye.", content="Bye!")),
    system=None,
    tools=(),
)
_CUT = (
    Talk(
        name="replies cut off",
        turns=(_turn("Tell me all.", content="It would take very long to tell."), _turn("So?", content="Well, so.")),
        cut=4,
    ),
    Talk(name="calls cut off", turns=ONE_CALL.turns, cut=7),
)
