"""The calls of an episode, and the actions that they carry out."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.envs.compliance.actions import names_action
from understudy.envs.rewards import is_failure, is_number

_CONSEQUENCES = frozenset({"refund", "reimburs", "credit", "charg", "debit", "deduct", "ship", "send", "pay", "return"})
"""Actions that may follow from another one by the domain policy, such as the refund of a cancelled order."""
# such as: total_refund
_REFUND = re.compile(r"(?:\w+_)?(?:refund|reimburse)")
"""The start of a key of a result whose value is paid back to the user: "refund", "refunded"."""
_CHARGE = re.compile(r"(?:\w+_)?charge")
"""The start of a key of a result whose value the user pays: "charge", "charged"."""
_ENDING_ROOTS = frozenset({"cancel", "delet", "clos", "terminat", "deactivat", "remov", "suspen", "block", "disabl"})
"""Roots of verbs that end what their object is."""
# such as: your loyalty account
_ACCOUNT = re.compile(r"\s*(?:your|the|this)(?: \w+)? (?:account|profile|membership)\b(?!')")
"""An object that is the user's account itself: "your account", but not "the address of your account"."""
# such as: certificate
_GIVEN = re.compile(r"\b(?:certificate|voucher|coupon|credit(?! card))\b")
"""An object that is issued when it is sent or added: "you a travel certificate"."""
# such as:  the prescription to lake pharmacy
_MOVED = re.compile(
    r"(?!\s*(?:\$?\d|(?:an?|another|you|(?:(?:the|your) )?(?:new|replacement))\b))"
    r"(?!.*\b(?:to you|refund|money|amount|balance|call|human|agent|colleague|specialist)\b)"
)
"""An object that is moved when it is sent or transferred: "the prescription to lake pharmacy"."""
_ACCOUNT_WORDS = ("account", "user", "customer", "profile", "member", "patient", "client")
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
    """The words of the tool's name and description, and of the call's arguments and their names."""
    action: frozenset[str]
    """Those that say what the tool does: all but those of the description, and its first word."""
    refund: float | None = None
    """The amount that the result of a write says is paid back to the user; negative if the user is charged. None if the
    result names no such amount."""

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
                refund = _read_refund(message.content) if changes else None
                calls.append(MadeCall(place, succeeded, changes, words, action, refund))
    return calls


def _read_refund(result: str) -> float | None:
    """Return what a result says is paid back to the user, or else minus what the user is charged, or None."""
    if not result.startswith("{"):
        return None
    try:
        record = json.loads(result)
    except (ValueError, RecursionError):
        return None
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


def is_carried_out(root: str, gift: str, target: str, calls: Sequence[MadeCall], domain_policy: str) -> bool:
    """Return whether a call takes the action whose verb has this root, or the action may follow from a write.

    `gift` is the first word of what the action gives, such as "voucher", or "". The call or the policy must have it.
    `target` is what follows the verb. Only a call about accounts ends one.
    """

    def has_gift(words: Collection[str]) -> bool:
        return not gift or gift == "free" or any(word.startswith(gift) for word in words)

    if root in _ENDING_ROOTS and _ACCOUNT.match(target):
        calls = [call for call in calls if any(word.startswith(_ACCOUNT_WORDS) for word in call.words)]
    roots = [root, *_find_meant_roots(root, target)]
    if any(names_action(meant, call.words) and has_gift(call.words) for call in calls for meant in roots):
        return True
    if root in _CONSEQUENCES and any(call.writes for call in calls):
        policy = _WORD.findall(domain_policy.casefold())
        return any(word.startswith(root) for word in policy) and has_gift(policy)
    return False


def _find_meant_roots(root: str, target: str) -> Iterator[str]:
    """Yield the roots of other verbs that name the same action because of its object."""
    if root in ("send", "sent", "add") and _GIVEN.search(target):
        yield "issu"
    if root in ("send", "sent", "transfer") and _MOVED.match(target):
        yield "mov"


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
