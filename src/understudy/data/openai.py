"""OpenAI's fine-tuning: JSONL of chat completions with tools, and pairs of replies (its guides "Supervised fine-tuning"
and "Direct preference optimization"). It has no form for judged episodes.

    sft.jsonl   messages, tools, parallel_tool_calls
    dpo.jsonl   input {messages, tools, parallel_tool_calls}, preferred_output, non_preferred_output

Each reply says its `weight`, 1: it is learned from. `parallel_tool_calls` is whether a turn of the conversation has
several calls. Every call is answered under its id. Names of tools are of letters, digits, _ and -, 64 at most.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from understudy.data.conversations import Lesson
from understudy.data.export import DPO, SFT, Unfit, first_difference, last_reply
from understudy.data.preferences import Demonstration, Preference
from understudy.messages import Message, ToolSpec, spec_to_wire, to_wire
from understudy.records import Record

Wire = dict[str, Any]
MOST_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


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

    def rows(self, lesson: Lesson) -> Iterator[tuple[str, Record]]:
        """The rows of a conversation."""
        if isinstance(lesson, Demonstration):
            before, reply = last_reply(lesson.messages)
            yield SFT, _input([*before, reply], lesson.tools, weighed=True)
        elif isinstance(lesson, Preference):
            before, chosen, rejected = first_difference(lesson)
            outputs = {"preferred_output": (_wire(chosen),), "non_preferred_output": (_wire(rejected),)}
            yield DPO, Compared(input=_input(before, lesson.tools), **outputs)
        else:
            raise Unfit("a judgement of one episode, which OpenAI's fine-tuning has no form for")

    def files(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """None are needed."""
        return {}

    def notes(self) -> Sequence[str]:
        """None."""
        return ()


def _input(messages: Sequence[Message], tools: Sequence[ToolSpec], weighed: bool = False) -> Input | Toolless:
    wires = tuple(_wire(m) | ({"weight": 1} if weighed and m.role == "assistant" else {}) for m in messages)
    if not tools:
        return Toolless(messages=wires)
    if len(tools) > MOST_TOOLS:
        raise Unfit(f"more than {MOST_TOOLS} tools")
    if not all(_NAME.fullmatch(tool.name) for tool in tools):
        raise Unfit("names of tools that the API does not take")
    parallel = any(len(message.tool_calls) > 1 for message in messages)
    return Input(messages=wires, tools=tuple(map(spec_to_wire, tools)), parallel_tool_calls=parallel)


def _wire(message: Message) -> Wire:
    """A reply that only calls has no content, as the API itself writes it."""
    wire = to_wire(message)
    return {key: wire[key] for key in wire if key != "content" or message.content or not message.tool_calls}
