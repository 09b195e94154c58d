"""The control tokens that a chat format writes."""

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.formats.chat_format import ChatFormat
from understudy.formats.tokenizer import FormatTokenizer

_TOOLS = (ToolSpec(name="f", description="d", parameters={"type": "object", "properties": {}}),)
_QUESTION = Message(role="user", content="u")
_CALLS = Message(role="assistant", content="a", tool_calls=(ToolCall(name="f", id="call00001"),) * 2)
_RESULTS = tuple(Message(role="tool", content="r", tool_call_id=call.id) for call in _CALLS.tool_calls)


def control_tokens(format: ChatFormat, vocabulary: FormatTokenizer) -> dict[int, str]:
    """Return the added tokens in a short conversation with calls, results and thoughts, with their texts by id."""
    tokens = format.encode([_QUESTION], _TOOLS, ())
    tokens += format.encode_reply(_CALLS)
    tokens += format.encode([*_RESULTS, _QUESTION], _TOOLS, tokens)
    tokens += format.encode_reply(Message(role="assistant", content="a"))
    used = set(tokens)
    return {token: text for text, token in sorted(vocabulary.added_tokens.items(), key=lambda x: x[1]) if token in used}
