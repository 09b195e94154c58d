"""Scan: what has been read of a reply so far. The dialects write into it; `parse` makes the result of it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from understudy.formats.repair import Broken, Budget, Pairs, Value, read, read_arguments, read_object
from understudy.formats.shapes import Draft, drafts, plain
from understudy.messages import ToolCall, ToolSpec
from understudy.values import whole

CALL = 10
"""What a call, or anything else that begins, costs of the budget."""
BARE = ("json", "llama3", "openai")
"""Dialects that mark calls by nothing but their JSON."""
_KEYS = {"llama3": ("parameters",), "xml": ("args", "arguments"), "": ("arguments", "parameters")}


@dataclass(slots=True)
class Scan:
    """A reply that is being read. `own` is the dialect that the model was told to write, "" for whichever it is."""

    text: str
    own: str = ""
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    said: list[str | None] = field(default_factory=list)
    """Pieces of text; None where something else stood between two of them."""
    calls: list[ToolCall] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    other_side: bool = False
    thought: bool = False
    """A thought stood there."""
    budget: Budget = field(default_factory=Budget)

    def say(self, start: int, end: int) -> int:
        """The text from `start` to `end` is said; gives `end`."""
        self.said.append(self.text[start:end])
        return end

    def cut(self) -> None:
        """Something that is not said stood here."""
        self.said.append(None)

    def forget(self) -> None:
        """What was read so far turns out to be a thought."""
        self.thought = True
        self.said, self.calls = [], []
        self.repairs, self.faults = Counter(), Counter()

    def content(self) -> str:
        """What is said: pieces, stripped, a line each; of broken calls, pieces of mere punctuation are left out."""
        if not any(map(str.strip, filter(None, self.said))):
            return ""
        groups = ("".join(piece for piece in group if piece) for cut, group in self._groups() if not cut)
        pieces = [piece for piece in map(str.strip, groups) if piece]
        return "\n".join(
            piece for piece in pieces if not any(self.repairs.values()) or piece.strip(" \t\r\n{}[](),:;\"'`*")
        )

    def _groups(self) -> Iterator[tuple[bool, Iterator[str | None]]]:
        return groupby(self.said, key=lambda piece: piece is None)

    def read(self, at: int, end: int | None = None, *, members: bool = False) -> Value:
        """The JSON at `at`, which ends before `end`."""
        if end is None:
            return read(self.text, at, self.budget, members=members)
        found = read(self.text[at:end], 0, self.budget)
        return Value(found.value, at + found.end, found.repairs)

    def call(self, name: str, arguments: Mapping[str, Any]) -> None:
        """A call that was read."""
        name = self._known(whole(name))
        self.calls.append(ToolCall(name=name, arguments=self._unaliased(name, dict(arguments))))

    def fail(self, name: Any, fault: Broken) -> None:
        """A call that cannot be read."""
        self.faults[fault.kind] += 1
        name = self._known(whole(name)) if isinstance(name, str) else ""
        reason = fault.reason if fault.reason.startswith("the ") else f"the call is not JSON: {fault.reason}"
        self.calls.append(ToolCall(name=name, malformed=reason))

    def foreign(self, dialect: str) -> None:
        """A call in this dialect was found: a repair, if the model was told to write another one."""
        self.repairs["dialect"] += bool(self.own) and self.own != dialect and not {self.own, dialect} <= set(BARE)

    def json(self, found: Value, dialect: str, wrapped: bool = False) -> bool:
        """The calls in a JSON value; whether there were any. `wrapped` is JSON that can be nothing but calls."""
        made = list(drafts(found.value, self.tools, wrapped))
        if made or (wrapped and not made):
            self.repairs.update(found.repairs)
        for draft in made:
            if not self.budget.spend(CALL):
                break
            self.foreign(dialect)
            self._take(draft)
        return bool(made)

    def arguments(self, name: str, at: int) -> int:
        """A call of `name` whose arguments are the JSON object that begins at `at`; gives the object's end."""
        found = read_object(self.text, at, self.budget)
        self.repairs.update(found.repairs)
        self._finish(name, found.value)
        return found.end

    def _take(self, draft: Draft) -> None:
        fault = draft.fault or self._fault(draft)
        if fault:
            return self.fail(draft.name, fault)
        self.repairs["duplicate"] += draft.twice
        self.repairs["keys"] += draft.name_key != "name" or draft.arguments_key not in _KEYS.get(
            self.own, ("arguments",)
        )
        value = draft.arguments
        for _ in range(2):  # once for the wire format, twice if it was quoted again
            if isinstance(value, str):
                self.repairs["argument_text"] += value is not draft.arguments or self.own not in ("", "openai")
                found = read_arguments(value, self.budget) if value.strip() else Value(Pairs(), 0)
                self.repairs.update(found.repairs)
                value = found.value
        self._finish(draft.name, value)

    def _fault(self, draft: Draft) -> Broken | None:
        if isinstance(draft.arguments, Broken):
            return draft.arguments
        if draft.name is None:
            return Broken("shape", "the call has no 'name'")
        if not isinstance(draft.name, str):
            return Broken("shape", "the name is not a string")
        if not draft.arguments_key:
            return Broken("shape", "the call has no 'arguments'")
        if draft.other:
            return Broken("shape", f"the call has a key {draft.other!r} besides 'name' and 'arguments'")
        return None

    def _finish(self, name: str, value: Any) -> None:
        if isinstance(value, Broken):
            return self.fail(name, value)
        if not isinstance(value, Pairs):
            return self.fail(name, Broken("shape", "the arguments are not a JSON object"))
        try:
            arguments, twice = plain(value)
        except ValueError as error:
            return self.fail(name, Broken("duplicate" if "twice" in str(error) else "json", str(error)))
        self.repairs["duplicate"] += twice
        self.call(name, arguments)

    def _known(self, name: str) -> str:
        """The name; where only that makes it a tool's, without space around it and the namespace `functions.`."""
        bare = name.strip().removeprefix("functions.")
        return bare if name not in self.tools and bare in self.tools else name

    def _unaliased(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        spec = self.tools.get(name)
        renamed = {key: spec.aliases.get(key, key) for key in arguments} if spec else {}
        if len(set(renamed.values())) < len(arguments) or all(old == new for old, new in renamed.items()):
            return arguments  # also where both names are there: the tool says which one it does not have
        self.repairs["alias"] += sum(old != new for old, new in renamed.items())
        return {renamed[key]: value for key, value in arguments.items()}
