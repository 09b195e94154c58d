"""The calls of an episode, and the actions that they carry out."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.envs.compliance.ids import find_ids
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


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call of a tool that the domain has."""

    place: int
    """Index of the agent's message with the call."""
    succeeded: bool
    writes: bool
    """Whether the agent's message has a call that changed the database."""
    words: frozenset[str]
    """The words of the tool's name and description, and of the call's arguments and their names."""
    action: frozenset[str]
    """Those that say what the tool does: all but those of the description, and its first word."""
    tool: str = ""
    ids: frozenset[str] = frozenset()
    """The ids and numbers among the arguments, case-folded."""
    texts: frozenset[str] = frozenset()
    """The texts among the arguments, case-folded."""
    related: frozenset[str] = frozenset()
    """The ids of the results that have one of them."""
    targets: frozenset[str] = frozenset()
    """The names of the arguments that are ids or numbers of things."""
    has_record: bool = False
    """Whether the result of a write is a record that would have an amount that was moved, and has none."""
    num_listed: int = 0
    """Number of entries of the longest list among the arguments."""
    refund: float | None = None
    """The amount that the result of a write says is paid back to the user; negative if the user is charged. None if the
    result names no such amount."""


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
                # An argument that is left out or empty says nothing: a call that only adds items removes none.
                given = [name for name, value in call.arguments.items() if value not in (None, "", [], {})]
                names = " ".join(given)
                first = " ".join(spec.description.split()[:1])
                if first.casefold() in spec.parameters.get("properties", ()) and first.casefold() not in given:
                    first = ""
                arguments = frozenset(_WORD.findall(str(list(call.arguments.values())).casefold()))
                words = _words_of(spec.name, spec.description, names) | arguments
                action = _words_of(spec.name, first, names) | arguments
                succeeded = not is_failure(message)
                changes = succeeded and place in writes
                record = _read_record(message.content) if changes else None
                ids = frozenset(name for value in string_values(call.arguments) for name in find_ids(value.casefold()))
                listed = max((len(value) for value in call.arguments.values() if isinstance(value, list)), default=0)
                targets = frozenset(name for name in given if name.endswith("_id")) or frozenset(
                    spec.name.split("_")[1:]
                )
                related = _find_related(ids, transcript[:index])
                calls.append(
                    MadeCall(
                        place,
                        succeeded,
                        changes,
                        words,
                        action,
                        call.name,
                        ids,
                        frozenset(value.casefold() for value in string_values(call.arguments)),
                        related,
                        targets,
                        bool(record) and _shows_amounts(record or {}, call.name),
                        listed,
                        _read_refund(record) if record else None,
                    )
                )
    return calls


def _read_record(result: str) -> Mapping[str, object] | None:
    """Return a result that is a JSON object."""
    try:
        record = json.loads(result) if result.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _read_refund(record: Mapping[str, object]) -> float | None:
    """Return what a result says is paid back to the user, or else minus what the user is charged, or None."""
    amounts = {
        key: float(str(value).replace(",", ""))
        for key, value in record.items()
        if isinstance(value, str | int | float) and is_number(str(value))
    }
    refunds = [amount for key, amount in amounts.items() if _REFUND.match(key)]
    charges = [amount for key, amount in amounts.items() if _CHARGE.match(key)]
    if refunds:
        return sum(refunds)
    return -sum(charges) if charges else None


def _shows_amounts(record: Mapping[str, object], tool: str) -> bool:
    """Return whether a result would have an amount that was moved. That of a cancellation may be its status only."""
    if any(_REFUND.match(key) or _CHARGE.match(key) for key in record):
        return False
    return len(record) > 1 or not tool_groups(tool) & {"end", "return", "refund"}


def _find_related(ids: Collection[str], earlier: Sequence[Message]) -> frozenset[str]:
    """Return the ids in the results that begin with one of `ids`: those of its record."""
    found = set[str]()
    for message in earlier:
        content = message.content.casefold()
        if message.role == "tool" and any(name in ids for name in find_ids(content[:MAX_KEY_LENGTH])):
            found.update(find_ids(content))
    return frozenset(found)


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
def _words_of(name: str, description: str, parameters: str) -> frozenset[str]:
    return frozenset(_WORD.findall(f"{name} {description} {parameters}".casefold().replace("_", " ")))
