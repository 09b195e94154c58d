"""TRL: conversational JSONL with `tools`, as its page "Dataset formats and types" has it (version 1.10).

    sft.jsonl   messages, tools
    dpo.jsonl   prompt, chosen, rejected, tools
    kto.jsonl   prompt, completion, label, tools

Arguments of calls are objects, as chat templates want them. `tools` is JSON text, which TRL reads too: a table would
give every tool the parameters of all others, as nulls. It does the same to arguments, unless their column is JSON; the
README.md beside the files says how to load them so that they stay as they are.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from understudy.data.conversations import Lesson
from understudy.data.export import DPO, KTO, SFT, each_reply, first_difference, last_reply
from understudy.data.preferences import Demonstration, Preference
from understudy.messages import Message, spec_to_wire, to_wire
from understudy.records import Record

Wire = dict[str, Any]


class Imitated(Record):
    """A row of `sft.jsonl`."""

    messages: tuple[Wire, ...]
    tools: str
    """JSON."""


class Compared(Record):
    """A row of `dpo.jsonl`."""

    prompt: tuple[Wire, ...]
    chosen: tuple[Wire, ...]
    rejected: tuple[Wire, ...]
    tools: str


class Labelled(Record):
    """A row of `kto.jsonl`."""

    prompt: tuple[Wire, ...]
    completion: tuple[Wire, ...]
    label: bool
    tools: str


_LOADING = """import json
from datasets import Dataset

with open({name!r}) as file:
    rows = [json.loads(line) for line in file]
dataset = Dataset.from_list(rows, on_mixed_types="use_json")  # datasets 4.7 or newer: arguments stay as they are
"""


class Trl:
    """Writes for TRL's SFTTrainer, DPOTrainer and KTOTrainer."""

    def rows(self, lesson: Lesson) -> Iterator[tuple[str, Record]]:
        """The rows of a conversation."""
        tools = json.dumps([spec_to_wire(tool) for tool in lesson.tools], ensure_ascii=False)
        if isinstance(lesson, Demonstration):
            before, reply = last_reply(lesson.messages)
            yield SFT, Imitated(messages=_wires([*before, reply]), tools=tools)
        elif isinstance(lesson, Preference):
            before, chosen, rejected = first_difference(lesson)
            ends = {"chosen": _wires([chosen]), "rejected": _wires([rejected])}
            yield DPO, Compared(prompt=_wires(before), **ends, tools=tools)
        else:
            for before, reply in each_reply(lesson):
                said = {"prompt": _wires(before), "completion": _wires([reply])}
                yield KTO, Labelled(**said, label=lesson.wanted, tools=tools)

    def files(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """How to load them."""
        code = "\n".join(_LOADING.format(name=name) for name in sorted(counts))
        return {"README.md": f"```python\n{code}```\n"}

    def notes(self) -> Sequence[str]:
        """None."""
        return ()


def _wires(messages: Sequence[Message]) -> tuple[Wire, ...]:
    names, wires = dict[str, str](), list[Wire]()
    for message in messages:  # in turn: there are endpoints that begin their ids anew in each reply
        names |= {call.id: call.name for call in message.tool_calls}
        wires.append(_wire(message, names))
    return tuple(wires)


def _wire(message: Message, names: Mapping[str, str]) -> Wire:
    wire = to_wire(message)
    if message.role == "tool":
        wire["name"] = names[message.tool_call_id]
    if message.tool_calls:
        functions = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        pairs = zip(message.tool_calls, functions, strict=True)
        wire["tool_calls"] = [{"id": call.id, "type": "function", "function": function} for call, function in pairs]
    return wire
