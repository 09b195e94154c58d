"""OpenAI's fine-tuning: JSONL of chat completions with tools, and pairs of replies (its guides "Supervised fine-tuning"
and "Direct preference optimization"). It has no form for judged episodes.

    sft.jsonl   messages, tools, parallel_tool_calls
    dpo.jsonl   input {messages, tools, parallel_tool_calls}, preferred_output, non_preferred_output

Each reply says its `weight`, 1: it is learned from. `parallel_tool_calls` is whether a turn of the conversation, or a
reply that is compared, has several calls. Every call is answered under its id. Tools whose names the API does not take
are told under portable ones, as `chat` tells them to an endpoint.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from understudy.data.conversations import Lesson
from understudy.data.export import DPO, SFT, Unfit, first_difference, last_reply
from understudy.data.preferences import Demonstration, Preference
from understudy.messages import Message, ToolSpec, spec_to_wire, to_wire
from understudy.names import PortableNames
from understudy.records import Record

Wire = dict[str, Any]
MOST_TOOLS = 128


class Input(Record):
    """What a model is shown."""

    messages: tuple[Wire, ...]
    tools: tuple[Wire, ...]
    parallel_tool_calls: bool


class Toolless(Record):
    """The same without tools; the API takes no empty list of them beside `parallel_tool_calls`."""

    messages: tuple[Wire, ...]


class Compared(Record):
    """A row of `dpo.jsonl`."""

    input: Input | Toolless
    preferred_output: tuple[Wire, ...]
    non_preferred_output: tuple[Wire, ...]


class OpenAI:
    """Writes for OpenAI's fine-tuning API."""

    def __init__(self) -> None:
        self._renamed: dict[str, str] = {}

    def rows(self, lesson: Lesson) -> Iterator[tuple[str, Record]]:
        """The rows of a conversation."""
        names = PortableNames(tool.name for tool in lesson.tools)
        tools = names.specs(lesson.tools)
        self._renamed |= {a.name: b.name for a, b in zip(lesson.tools, tools, strict=True) if a.name != b.name}
        if isinstance(lesson, Demonstration):
            before, reply = last_reply(lesson.messages)
            yield SFT, _input(map(names.there, [*before, reply]), tools, weighed=True)
        elif isinstance(lesson, Preference):
            before, *sides = first_difference(lesson)
            preferred, other = ((_wire(names.there(side)),) for side in sides)
            shown = _input(map(names.there, before), tools, replies=sides)
            yield DPO, Compared(input=shown, preferred_output=preferred, non_preferred_output=other)
        else:
            raise Unfit("a judgement of one episode, which OpenAI's fine-tuning has no form for")

    def files(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """None are needed."""
        return {}

    def notes(self) -> Sequence[str]:
        """Tools that are told under another name."""
        return [f"told under another name: {name} as {other}" for name, other in sorted(self._renamed.items())]


def _input(
    messages: Iterable[Message], tools: Sequence[ToolSpec], weighed: bool = False, replies: Sequence[Message] = ()
) -> Input | Toolless:
    """What a model is shown; `replies` are those to it that stand elsewhere."""
    said = list(messages)
    wires = tuple(_wire(m) | ({"weight": 1} if weighed and m.role == "assistant" else {}) for m in said)
    if not tools:
        return Toolless(messages=wires)
    if len(tools) > MOST_TOOLS:
        raise Unfit(f"more than {MOST_TOOLS} tools")
    parallel = any(len(message.tool_calls) > 1 for message in (*said, *replies))
    return Input(messages=wires, tools=tuple(map(spec_to_wire, tools)), parallel_tool_calls=parallel)


def _wire(message: Message) -> Wire:
    """A reply that only calls has no content, as the API itself writes it."""
    wire = to_wire(message)
    return {key: wire[key] for key in wire if key != "content" or message.content or not message.tool_calls}
