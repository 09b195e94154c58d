"""The calls of an episode, and the actions that they carry out."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.envs.compliance.actions import names_action
from understudy.envs.rewards import is_failure

_CONSEQUENCES = frozenset({"refund", "reimburs", "credit", "charg", "debit", "deduct", "ship", "send", "pay", "return"})
"""Actions that may follow from another one by the domain policy, such as the refund of a cancelled order."""
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call of a tool that the domain has."""

    place: int
    """Index of the agent's message with the call."""
    succeeded: bool
    writes: bool
    """Whether the agent's message has a call that changed the database."""
    words: frozenset[str]
    """The words of the tool's name and description, and of the call's arguments."""
    action: frozenset[str]
    """Those that say what the tool does: all but those of the description, and its first word."""

    def as_agreed(self, place: int) -> "MadeCall":
        """Return the call as the text at `place` may propose it: by what it does, and not if it was made before.

        What follows from a call may be proposed after it, so the call itself stays.
        """
        return replace(self, words=self.action if self.place > place else frozenset())


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
                words = _tool_words(specs[call.name]) if specs else frozenset(_WORD.findall(call.name.casefold()))
                action = _action_words(specs[call.name]) if specs else words
                arguments = frozenset(_WORD.findall(str(list(call.arguments.values())).casefold()))
                succeeded = not is_failure(message)
                changes = succeeded and place in writes
                calls.append(MadeCall(place, succeeded, changes, words | arguments, action | arguments))
    return calls


def is_carried_out(root: str, gift: str, calls: Sequence[MadeCall], domain_policy: str) -> bool:
    """Return whether a call takes the action whose verb has this root, or the action may follow from a write.

    `gift` is the first word of what the action gives, such as "voucher", or "". The call or the policy must have it.
    """

    def has_gift(words: Collection[str]) -> bool:
        return not gift or gift == "free" or any(word.startswith(gift) for word in words)

    if any(names_action(root, call.words) and has_gift(call.words) for call in calls):
        return True
    if root in _CONSEQUENCES and any(call.writes for call in calls):
        policy = _WORD.findall(domain_policy.casefold())
        return any(word.startswith(root) for word in policy) and has_gift(policy)
    return False


def string_values(value: object) -> Iterator[str]:
    """Yield the texts in arguments or in a JSON value, however deep they are."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from string_values(item)
    elif isinstance(value, str):
        yield value


def _tool_words(spec: ToolSpec) -> frozenset[str]:
    return _words_of(spec.name, spec.description, " ".join(spec.parameters.get("properties", {})))


def _action_words(spec: ToolSpec) -> frozenset[str]:
    first = " ".join(spec.description.split()[:1])
    return _words_of(spec.name, first, " ".join(spec.parameters.get("properties", {})))


@lru_cache(maxsize=512)
def _words_of(name: str, description: str, parameters: str) -> frozenset[str]:
    return frozenset(_WORD.findall(f"{name} {description} {parameters}".casefold().replace("_", " ")))
