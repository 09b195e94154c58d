"""OpenAI fine-tuning: JSONL of chat completions with tools, and pairs of replies (guides "Supervised fine-tuning" and
"Direct preference optimization"). Labeled examples are not supported.

    sft.jsonl  messages, tools, parallel_tool_calls
    dpo.jsonl  input {messages, tools, parallel_tool_calls}, preferred_output, non_preferred_output

Each reply has a `weight`: 1 if it is trained on, else 0. `parallel_tool_calls` says whether any reply of the row has
several calls. Every result has the id of its call. Tools whose names the API does not accept are renamed, as
`clients.chat` renames them for an endpoint.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from understudy.core.messages import Message, ToolSpec, message_to_openai, tool_to_openai
from understudy.core.records import Record
from understudy.data.conversations.conversations import TrainingExample
from understudy.data.conversations.examples import Demonstration, PreferencePair
from understudy.data.conversations.export import (
    DPO_FILE,
    SFT_FILE,
    UnsupportedExample,
    split_first_difference,
    split_last_reply,
)
from understudy.formats.tool_names import ToolNameMap

ApiMessage = dict[str, Any]
ApiTool = dict[str, Any]
MAX_TOOLS = 128


class OpenAIInput(Record):
    """The messages and tools of a row: the `input` of `dpo.jsonl`, or a row of `sft.jsonl` itself."""

    messages: tuple[ApiMessage, ...]
    tools: tuple[ApiTool, ...]
    parallel_tool_calls: bool


class OpenAIInputWithoutTools(Record):
    """`OpenAIInput` without tools, because the API rejects an empty list of tools beside `parallel_tool_calls`."""

    messages: tuple[ApiMessage, ...]


class OpenAIDPORow(Record):
    """A row of `dpo.jsonl`."""

    input: OpenAIInput | OpenAIInputWithoutTools
    preferred_output: tuple[ApiMessage, ...]
    non_preferred_output: tuple[ApiMessage, ...]


class OpenAITarget:
    """Export target for OpenAI's fine-tuning API."""

    def __init__(self) -> None:
        self._renamed: dict[str, str] = {}

    def rows(self, example: TrainingExample) -> Iterator[tuple[str, Record]]:
        """Yield the rows of a conversation."""
        names = ToolNameMap(tool.name for tool in example.tools)
        tools = names.rename_specs(example.tools)
        self._renamed |= {a.name: b.name for a, b in zip(example.tools, tools, strict=True) if a.name != b.name}
        if isinstance(example, Demonstration):
            before, reply = split_last_reply(example.messages, allow_weights=True)
            yield SFT_FILE, _input(map(names.to_endpoint, [*before, reply]), tools, weighed=True)
        elif isinstance(example, PreferencePair):
            before, *sides = split_first_difference(example)
            preferred, other = ((_to_api_message(names.to_endpoint(side)),) for side in sides)
            shown = _input(map(names.to_endpoint, before), tools, replies=sides)
            yield DPO_FILE, OpenAIDPORow(input=shown, preferred_output=preferred, non_preferred_output=other)
        else:
            raise UnsupportedExample("a label, which OpenAI's fine-tuning does not support")

    def files(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """Return no further files."""
        return {}

    def notes(self) -> Sequence[str]:
        """Report tools that were renamed."""
        return [f"renamed tool: {name} is now {other}" for name, other in sorted(self._renamed.items())]


def _input(
    messages: Iterable[Message], tools: Sequence[ToolSpec], weighed: bool = False, replies: Sequence[Message] = ()
) -> OpenAIInput | OpenAIInputWithoutTools:
    """Return messages and tools. `replies`, stored elsewhere in the row, count for `parallel_tool_calls` only."""
    said = list(messages)
    api_messages = tuple(
        _to_api_message(m) | ({"weight": m.weight} if weighed and m.role == "assistant" else {}) for m in said
    )
    if not tools:
        return OpenAIInputWithoutTools(messages=api_messages)
    if len(tools) > MAX_TOOLS:
        raise UnsupportedExample(f"more than {MAX_TOOLS} tools")
    parallel = any(len(message.tool_calls) > 1 for message in (*said, *replies))
    return OpenAIInput(messages=api_messages, tools=tuple(map(tool_to_openai, tools)), parallel_tool_calls=parallel)


def _to_api_message(message: Message) -> ApiMessage:
    """Return a message in the API's format. A reply that only has calls gets no `content`."""
    converted = message_to_openai(message)
    return {key: converted[key] for key in converted if key != "content" or message.content or not message.tool_calls}
