"""Conversations to learn from, a row of JSONL each: whole episodes with tools, as messages and without tokens.

    Demonstration   one to imitate
    Preference      two of one task, the better one and the worse one (DPO)
    Judged          one that is wanted or not (KTO)

A message is written as `messages.Message`; it is read as that, or as the chat completions API has it, and so is a tool.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, ValidationError, model_validator

from understudy.data.items import Bad, Item, malformed
from understudy.data.read import read
from understudy.messages import Message, ToolSpec, from_wire
from understudy.records import Record

_OF_API = {"role", "content", "tool_calls", "tool_call_id"}


def _message(value: Any) -> Any:
    """A message of the chat completions API as ours; anything else as it is."""
    if not isinstance(value, dict) or not {"role"} <= value.keys() <= _OF_API:
        return value
    calls = value.get("tool_calls")
    if calls is None or (isinstance(calls, list) and calls and all(map(_is_api_call, calls))):
        message = from_wire(value)
        for call in message.tool_calls:
            if call.malformed:  # what stood there would be lost
                raise ValueError(f"the call of {call.name} cannot be held: {call.malformed}")
        return message
    return value


def _is_api_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function"), dict) and "name" in call["function"]


def _spec(value: Any) -> Any:
    return value["function"] if isinstance(value, dict) and value.keys() == {"type", "function"} else value


def _spoken(messages: tuple["Said", ...]) -> tuple["Said", ...]:
    """What an agent could have said: something before each of its replies, and at least one reply."""
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        raise ValueError("no message is the assistant's, so there is nothing to learn from")
    for number, (before, role) in enumerate(zip([None, *roles], roles, strict=False)):
        if role == "assistant" and before in (None, "assistant"):
            raise ValueError(f"message {number} is the assistant's, and no message stands before it to reply to")
    return messages


Said = Annotated[Message, BeforeValidator(_message)]
Conversation = Annotated[tuple[Said, ...], AfterValidator(_spoken)]
"""Messages from the policy on; what comes after the assistant's last one is shown and not learned from."""
Tools = tuple[Annotated[ToolSpec, BeforeValidator(_spec)], ...]


class Demonstration(Record):
    """One episode to imitate."""

    task: str = ""
    """The id of its task, where there is one."""
    messages: Conversation
    tools: Tools = ()
    """What the agent could call."""


class Preference(Record):
    """Two episodes of one task, of which one is better."""

    task: str = ""
    chosen: Conversation
    rejected: Conversation
    tools: Tools = ()

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        if prompt(self.chosen) != prompt(self.rejected):
            raise ValueError("chosen and rejected begin otherwise, so they are not of one task")
        if self.chosen == self.rejected:
            raise ValueError("chosen and rejected are the same")
        return self


class Judged(Record):
    """One episode, and whether it is wanted."""

    task: str = ""
    messages: Conversation
    tools: Tools = ()
    wanted: bool


R = TypeVar("R", bound=Record)


def prompt(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """What stands before the assistant's first reply."""
    first = next(i for i, message in enumerate(messages) if message.role == "assistant")
    return messages[:first]


def rows(path: Path, kind: type[R]) -> Iterator[Item[R] | Bad]:
    """The rows of a file as records of one kind; one that is none is a `Bad` that says where and why."""
    for item in read(path):
        if isinstance(item, Bad):
            yield item
            continue
        try:
            yield Item(item.where, kind.model_validate(item.value))
        except ValidationError as e:
            yield malformed(item.where, e)
