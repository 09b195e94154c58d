"""TRL: conversational JSONL with `tools`, as in its page "Dataset formats and types" (version 1.10).

    sft.jsonl  messages, tools
    dpo.jsonl  prompt, chosen, rejected, tools
    kto.jsonl  prompt, completion, label, tools

Arguments of calls are objects, as chat templates expect. `tools` is JSON text, which TRL accepts too: as objects in an
Arrow table, every tool would get the parameters of all others as nulls. That happens to arguments too unless their
column is loaded as JSON; the README.md beside the files says how.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from understudy.core.messages import Message, message_to_openai, tool_to_openai
from understudy.core.records import Record
from understudy.data.conversations.conversations import TrainingExample
from understudy.data.conversations.examples import Demonstration, PreferencePair
from understudy.data.conversations.export import (
    DPO_FILE,
    KTO_FILE,
    SFT_FILE,
    iter_replies,
    split_first_difference,
    split_last_reply,
)

TRLMessage = dict[str, Any]


class TRLSFTRow(Record):
    """A row of `sft.jsonl`."""

    messages: tuple[TRLMessage, ...]
    tools: str
    """JSON."""


class TRLDPORow(Record):
    """A row of `dpo.jsonl`."""

    prompt: tuple[TRLMessage, ...]
    chosen: tuple[TRLMessage, ...]
    rejected: tuple[TRLMessage, ...]
    tools: str


class TRLKTORow(Record):
    """A row of `kto.jsonl`."""

    prompt: tuple[TRLMessage, ...]
    completion: tuple[TRLMessage, ...]
    label: bool
    tools: str


_LOADING = """import json
from datasets import Dataset

with open({name!r}) as file:
    rows = [json.loads(line) for line in file]
dataset = Dataset.from_list(rows, on_mixed_types="use_json")  # datasets 4.7 or newer: arguments stay as they are
"""


class TRLTarget:
    """Export target for TRL's SFTTrainer, DPOTrainer and KTOTrainer."""

    def rows(self, example: TrainingExample) -> Iterator[tuple[str, Record]]:
        """Yield the rows of a conversation."""
        tools = json.dumps([tool_to_openai(tool) for tool in example.tools], ensure_ascii=False)
        if isinstance(example, Demonstration):
            before, reply = split_last_reply(example.messages)
            yield SFT_FILE, TRLSFTRow(messages=_to_trl_messages([*before, reply]), tools=tools)
        elif isinstance(example, PreferencePair):
            before, chosen, rejected = split_first_difference(example)
            ends = {"chosen": _to_trl_messages([chosen]), "rejected": _to_trl_messages([rejected])}
            yield DPO_FILE, TRLDPORow(prompt=_to_trl_messages(before), **ends, tools=tools)
        else:
            for before, reply in iter_replies(example):
                columns = {"prompt": _to_trl_messages(before), "completion": _to_trl_messages([reply])}
                yield KTO_FILE, TRLKTORow(**columns, label=example.label, tools=tools)

    def files(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """Return the README.md that says how to load the files."""
        code = "\n".join(_LOADING.format(name=name) for name in sorted(counts))
        return {"README.md": f"```python\n{code}```\n"}

    def notes(self) -> Sequence[str]:
        """Return no notes."""
        return ()


def _to_trl_messages(messages: Sequence[Message]) -> tuple[TRLMessage, ...]:
    names, converted = dict[str, str](), list[TRLMessage]()
    for message in messages:  # `names` is updated per reply, because some endpoints reuse call ids in each reply
        names |= {call.id: call.name for call in message.tool_calls}
        converted.append(_to_trl_message(message, names))
    return tuple(converted)


def _to_trl_message(message: Message, names: Mapping[str, str]) -> TRLMessage:
    wire = message_to_openai(message)
    if message.role == "tool":
        wire["name"] = names[message.tool_call_id]
    if message.tool_calls:
        functions = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        pairs = zip(message.tool_calls, functions, strict=True)
        wire["tool_calls"] = [{"id": call.id, "type": "function", "function": function} for call, function in pairs]
    return wire
