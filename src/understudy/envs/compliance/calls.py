"""The calls of an episode, and the actions that they carry out."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.envs.compliance.values import find_ids
from understudy.envs.compliance.vocabulary import tool_groups
from understudy.envs.rewards import is_failure, is_number

# such as: total_refund
_REFUND = re.compile(r"(?:\w+_)?(?:refund|reimburse)")
"""The start of a key of a result whose value is paid back to the user: "refund", "refunded"."""
_CHARGE = re.compile(r"(?:\w+_)?charge")
"""The start of a key of a result whose value the user pays: "charge", "charged"."""
_WORD = re.compile(r"[a-z]+")
MAX_KEY_LENGTH = 40
"""Characters at the start of a record that have its id."""


@dataclass(frozen=True)
class MadeCall:
    """A call of a tool that the domain has."""

    call: ToolCall
    spec: ToolSpec
    place: int
    """Index of the agent's message with the call."""
    result: str
    earlier: Sequence[Message]
    """The messages before the result."""
    succeeded: bool
    writes: bool
    """Whether the agent's message has a call that changed the database."""

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return self.call.name

    @cached_property
    def given(self) -> Mapping[str, object]:
        """The arguments that are not empty: a call that only adds items removes none."""
        return {name: value for name, value in self.call.arguments.items() if value not in (None, "", [], {})}

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the tool's name and description, and of the call's arguments and their names."""
        return self.action | _words_of(self.spec.description)

    @cached_property
    def action(self) -> frozenset[str]:
        """Those that say what the tool does: all but those of the description, and its first word."""
        first = " ".join(self.spec.description.casefold().split()[:1])
        if first in self.spec.parameters.get("properties", ()) and first not in self.given:
            first = ""
        arguments = str(list(self.call.arguments.values())).casefold()
        return _words_of(f"{self.tool} {first} {' '.join(self.given)}") | frozenset(_WORD.findall(arguments))

    @cached_property
    def texts(self) -> frozenset[str]:
        """The texts among the arguments, case-folded."""
        return frozenset(value.casefold() for value in string_values(self.call.arguments))

    @cached_property
    def ids(self) -> frozenset[str]:
        """The ids and numbers among the arguments, case-folded."""
        return frozenset(name for value in self.texts for name in find_ids(value))

    @cached_property
    def related(self) -> frozenset[str]:
        """The ids of earlier results that begin with one of `ids`: those of its record."""
        contents = (message.content.casefold() for message in self.earlier if message.role == "tool")
        own = (content for content in contents if not self.ids.isdisjoint(find_ids(content[:MAX_KEY_LENGTH])))
        return frozenset(name for content in own for name in find_ids(content))

    @cached_property
    def targets(self) -> frozenset[str]:
        """The nouns of the things that the call writes: of its arguments that are ids, or else of the tool's name."""
        ids = frozenset(name.removesuffix("_id") for name in self.given if name.endswith("_id"))
        return ids or frozenset(self.tool.split("_")[1:])

    @cached_property
    def _record(self) -> Mapping[str, object]:
        try:
            record = json.loads(self.result) if self.writes and self.result.startswith("{") else None
        except (ValueError, RecursionError):
            record = None
        return record if isinstance(record, dict) else {}

    @cached_property
    def refund(self) -> float | None:
        """The amount that the result of a write says is paid back to the user; negative if the user is charged.

        None if the result names no such amount.
        """
        amounts = {
            key: float(str(value).replace(",", ""))
            for key, value in self._record.items()
            if isinstance(value, str | int | float) and is_number(str(value))
        }
        refunds = [amount for key, amount in amounts.items() if _REFUND.match(key)]
        charges = [amount for key, amount in amounts.items() if _CHARGE.match(key)]
        return sum(refunds) if refunds else -sum(charges) if charges else None

    @cached_property
    def moves_nothing(self) -> bool:
        """Whether the result of a write would have an amount that was moved, and has none.

        That of a cancellation may be its status only.
        """
        if not self._record or any(_REFUND.match(key) or _CHARGE.match(key) for key in self._record):
            return False
        return len(self._record) > 1 or not tool_groups(self.tool) & {"end", "return", "refund"}


def read_calls(transcript: Sequence[Message], specs: Mapping[str, ToolSpec], writes: Collection[int]) -> list[MadeCall]:
    """Return the calls of an episode whose tool is one of `specs`, or all calls if there are none.

    `writes` are the indices of the messages whose calls have changed the database.
    """
    calls, pending, place = list[MadeCall](), list[ToolCall](), 0
    for index, message in enumerate(transcript):
        if message.role == "assistant":
            pending, place = list(message.tool_calls), index
        elif message.role == "tool" and pending:
            call = pending.pop(0)
            if call.name in specs or not specs:
                spec = specs.get(call.name, ToolSpec(name=call.name, description="", parameters={}))
                succeeded = not is_failure(message)
                changes = succeeded and place in writes
                calls.append(MadeCall(call, spec, place, message.content, transcript[:index], succeeded, changes))
    return calls


def string_values(value: object) -> Iterator[str]:
    """Yield the texts in arguments or in a JSON value, however deep they are."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from string_values(item)
    elif isinstance(value, str):
        yield value


@lru_cache(maxsize=512)
def _words_of(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold().replace("_", " ")))
