"""Names of tools as every endpoint takes them: letters, digits, `_` and `-`, at most 64 of them, as OpenAI's asks for.

What an endpoint is told is renamed, what its model calls is named back; a toolkit never notices.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from understudy.messages import Message, ToolCall, ToolSpec

LONGEST = 64
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


class PortableNames:
    """The names of some tools, there and back."""

    def __init__(self, names: Iterable[str]) -> None:
        self._there: dict[str, str] = {}
        given = list(names)
        taken = {name for name in given if portable(name) == name}
        for name in given:
            self._there[name] = new = name if name in taken else _free(portable(name), taken)
            taken.add(new)
        self._back = {new: name for name, new in self._there.items()}

    def specs(self, specs: Sequence[ToolSpec]) -> list[ToolSpec]:
        """The tools as the endpoint is told of them."""
        return [spec.replace(name=self._there[spec.name]) for spec in specs]

    def there(self, message: Message) -> Message:
        """A message as the endpoint is told it; a call of no tool travels under a portable name too."""
        return _named(message, {call.name: self._name(call) for call in message.tool_calls})

    def back(self, message: Message) -> Message:
        """A reply as the toolkit knows its tools."""
        return _named(message, self._back)

    def _name(self, call: ToolCall) -> str:
        return self._there.get(call.name) or portable(call.name)


def portable(name: str) -> str:
    """The name with `_` for what an endpoint may refuse, cut to the length that it takes."""
    return _OTHER.sub("_", name)[:LONGEST]


def _free(name: str, taken: Iterable[str]) -> str:
    """The name, or the first of name_2, name_3, … that is not taken."""
    used, new, number = set(taken), name, 1
    while new in used:
        number += 1
        new = f"{name[: LONGEST - len(str(number)) - 1]}_{number}"
    return new


def _named(message: Message, names: Mapping[str, str]) -> Message:
    if all(names.get(call.name, call.name) == call.name for call in message.tool_calls):
        return message
    calls = tuple(call.replace(name=names.get(call.name, call.name)) for call in message.tool_calls)
    return message.replace(tool_calls=calls)
