"""The control tokens that a chat format writes."""

from dataclasses import dataclass

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.formats.chat_format import ChatFormat
from understudy.formats.tokenizer import FormatTokenizer

_SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
_TOOLS = (ToolSpec(name="f", description="d", parameters=_SCHEMA),)
_CALL = Message(role="assistant", tool_calls=(ToolCall(name="f", arguments={"x": "y"}, id="call00001"),))
_RESULT = Message(role="tool", content="r", tool_call_id="call00001")


@dataclass(frozen=True)
class ControlTokens:
    """The added tokens of a conversation with a call and its result."""

    texts: dict[int, str]
    """The text of each by id, in the order of the ids."""
    sampled: frozenset[int]
    """Those that the model samples. The others are only in prompts."""


def control_tokens(format: ChatFormat, vocabulary: FormatTokenizer) -> ControlTokens:
    """Return the control tokens of a format, found by encoding a short conversation."""
    prompt = format.encode([Message(role="user", content="u")], _TOOLS, ())
    call, reply = (format.encode_reply(message) for message in (_CALL, Message(role="assistant", content="a")))
    result = format.encode([_RESULT], _TOOLS, [*prompt, *call])
    used = {*prompt, *call, *result, *reply}
    added = sorted((token, text) for text, token in vocabulary.added_tokens.items() if token in used)
    return ControlTokens(dict(added), frozenset(token for token, _ in added if token in {*call, *reply}))
