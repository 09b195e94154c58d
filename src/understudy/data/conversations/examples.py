"""Training conversations, one JSONL row each: whole episodes with tools, as messages without tokens.

    Demonstration   one episode to imitate (SFT)
    PreferencePair  two episodes of one task, the better one and the worse one (DPO)
    LabeledExample  one episode, desirable or not (KTO)

Messages are written as `messages.Message`. They are read in this form or in that of the chat completions API, and so
are tools.
"""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from understudy.core.messages import Message, ToolSpec, message_from_openai, order_tool_results
from understudy.core.records import Record

_OF_API = {"role", "content", "tool_calls", "tool_call_id", "reasoning_content", "weight"}


def _message(value: Any) -> Any:
    """Convert a message of the chat completions API. Return anything else unchanged."""
    if not isinstance(value, dict) or not {"role"} <= value.keys() <= _OF_API:
        return value
    calls = value.get("tool_calls")
    if calls is None or (isinstance(calls, list) and calls and all(map(_is_api_call, calls))):
        message = message_from_openai(value)
        for call in message.tool_calls:
            if call.parse_error:  # the message would not contain the call's original text
                raise ValueError(f"the call of {call.name} is not supported: {call.parse_error}")
        thoughts = value.get("reasoning_content") or ""
        if not isinstance(thoughts, str):
            raise ValueError("reasoning_content is not a text")
        return message.replace(reasoning_content=thoughts, weight=value.get("weight", 1))
    return value


def _is_api_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function"), dict) and "name" in call["function"]


def _spec(value: Any) -> Any:
    return value["function"] if isinstance(value, dict) and value.keys() == {"type", "function"} else value


def validate_conversation(messages: tuple["MessageField", ...]) -> tuple["MessageField", ...]:
    """Return the messages with results in the order of their calls.

    Raise ValueError unless there is a reply to train on, something before each, and calls before each result.
    """
    if all(message.role != "assistant" or not message.weight for message in messages):
        raise ValueError("there is no message of the assistant to train on")
    for number, (before, message) in enumerate(zip([None, *messages], messages, strict=False)):
        if message.role == "assistant" and message.weight and before is None:
            raise ValueError("message 0 is the assistant's, but there is no message before it to reply to")
        if message.role == "assistant" and before and (before.role, before.weight) == ("assistant", message.weight):
            raise ValueError(f"messages {number - 1} and {number} are both the assistant's; join them into one")
        if message.role == "tool" and not (before and (before.tool_calls or before.role == "tool")):
            raise ValueError(f"message {number} is the result of a tool, but there is no call before it")
    return tuple(order_tool_results(messages))


MessageField = Annotated[Message, BeforeValidator(_message)]
Conversation = Annotated[tuple[MessageField, ...], AfterValidator(validate_conversation)]
"""The messages, starting with the policy. Messages after the last reply are not trained on."""
ToolSpecs = tuple[Annotated[ToolSpec, BeforeValidator(_spec)], ...]


class Demonstration(Record):
    """One episode to imitate (SFT)."""

    task: str = ""
    """The id of its task, if known."""
    messages: Conversation
    """Replies with `weight` 0 are not trained on."""
    tools: ToolSpecs = ()
    """The agent's tools."""


class PreferencePair(Record):
    """Two episodes of one task, the better one and the worse one (DPO)."""

    task: str = ""
    chosen: Conversation
    rejected: Conversation
    tools: ToolSpecs = ()

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        if prompt_messages(self.chosen) != prompt_messages(self.rejected):
            raise ValueError("chosen and rejected begin differently, so they are not of one task")
        if self.chosen == self.rejected:
            raise ValueError("chosen and rejected are the same")
        return self


class LabeledExample(Record):
    """One episode with a label (KTO)."""

    task: str = ""
    messages: Conversation
    tools: ToolSpecs = ()
    label: bool


def undescribed_tools(example: Demonstration | PreferencePair | LabeledExample) -> list[str]:
    """Return the names of the tools that replies to train on call and the conversation does not describe."""
    both = (example.chosen, example.rejected) if isinstance(example, PreferencePair) else (example.messages,)
    called = (call.name for messages in both for message in messages if message.weight for call in message.tool_calls)
    known = {tool.name for tool in example.tools}
    return [name for name in dict.fromkeys(called) if name not in known]


def prompt_messages(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages before the first reply."""
    first = next(i for i, message in enumerate(messages) if message.role == "assistant")
    return messages[:first]
