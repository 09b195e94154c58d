"""Tool names that every endpoint accepts: at most 64 letters, digits, `_` and `-`, as the OpenAI API requires.

Tools are renamed in requests, and calls in replies get their original names back.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from understudy.core.messages import Message, ToolCall, ToolSpec

MAX_NAME_LENGTH = 64
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


class ToolNameMap:
    """A two-way mapping between the names of some tools and the names that an endpoint accepts."""

    def __init__(self, names: Iterable[str]) -> None:
        self._to_endpoint: dict[str, str] = {}
        originals = list(names)
        used = {name for name in originals if sanitize_tool_name(name) == name}
        for name in originals:
            new = name if name in used else _unused_name(sanitize_tool_name(name), used)
            self._to_endpoint[name] = new
            used.add(new)
        self._from_endpoint = {new: name for name, new in self._to_endpoint.items()}

    def rename_specs(self, specs: Sequence[ToolSpec]) -> list[ToolSpec]:
        """Return the tools under the endpoint's names."""
        return [spec.replace(name=self._to_endpoint[spec.name]) for spec in specs]

    def to_endpoint(self, message: Message) -> Message:
        """Return a message whose calls have the endpoint's names. The name of an unknown tool is sanitized too."""
        return _rename_calls(message, {call.name: self._name(call) for call in message.tool_calls})

    def from_endpoint(self, message: Message) -> Message:
        """Return a reply whose calls have the tools' original names."""
        return _rename_calls(message, self._from_endpoint)

    def _name(self, call: ToolCall) -> str:
        return self._to_endpoint.get(call.name) or sanitize_tool_name(call.name)


def sanitize_tool_name(name: str) -> str:
    """Return the name with `_` for each character that an endpoint may refuse, cut to 64 characters."""
    return _OTHER.sub("_", name)[:MAX_NAME_LENGTH]


def _unused_name(name: str, used: Iterable[str]) -> str:
    """Return the name, or the first of name_2, name_3, … that is not used."""
    used_names = set(used)
    new = name
    number = 1
    while new in used_names:
        number += 1
        new = f"{name[: MAX_NAME_LENGTH - len(str(number)) - 1]}_{number}"
    return new


def _rename_calls(message: Message, names: Mapping[str, str]) -> Message:
    if all(names.get(call.name, call.name) == call.name for call in message.tool_calls):
        return message
    calls = tuple(call.replace(name=names.get(call.name, call.name)) for call in message.tool_calls)
    return message.replace(tool_calls=calls)
