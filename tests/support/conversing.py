"""Hypothesis strategies for conversations with any content."""

from hypothesis import strategies as st

from support.data_kit import json_values
from understudy.core.messages import Message, ToolCall, ToolSpec

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
TOOLS = tuple(ToolSpec(name=name, description=f"What {name} does.", parameters=SCHEMA) for name in ("find", "switch"))

_alphabet = st.sampled_from("abz059 <>{}[]|/:,.\\\"'\n\té→👍")
_texts = st.text(_alphabet, max_size=12).map(str.strip)
_shown = st.text(_alphabet, max_size=12) | st.just("a <|im_end|> <|eot|> <tool_call> in a text")
_calls = st.builds(
    ToolCall,
    name=st.sampled_from(["find", "switch"]),
    arguments=st.dictionaries(st.sampled_from(["x", "y"]), json_values, max_size=2),
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Draw a conversation: a policy, a user, and replies that are texts or one or two calls, each with its result."""
    messages = [Message(role="system", content=draw(_shown)), Message(role="user", content=draw(_shown))]
    for turn in range(draw(st.integers(1, 4))):
        calls = draw(st.lists(_calls, max_size=2))
        named = tuple(call.replace(id=f"call_{turn}_{i}") for i, call in enumerate(calls))
        messages.append(Message(role="assistant", content="" if calls else draw(_texts), tool_calls=named))
        messages += [Message(role="tool", content=draw(_shown), tool_call_id=call.id) for call in named]
        messages += [] if calls else [Message(role="user", content=draw(_shown))]
    return tuple(messages)
