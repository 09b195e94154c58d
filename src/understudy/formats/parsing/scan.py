"""ReplyScan: the state of parsing one reply. Tool parsers write to it, and `parse_reply` builds the result from it."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from understudy.core.json_values import replace_surrogates
from understudy.core.messages import ToolCall, ToolSpec
from understudy.formats.parsing.json_calls import CallCandidate, find_calls, pairs_to_dicts
from understudy.formats.parsing.repair import (
    ObjectPairs,
    ParseBudget,
    ParsedValue,
    ParseFailure,
    parse_arguments_text,
    parse_object,
    parse_value,
)

OpeningPattern = tuple[str, str]
"""The beginning of a construct (a call, a thought, a code fence, a role marker): its first character, which makes the
search fast, and a pattern for the rest.
"""
CALL_COST = 10
"""Cost of a call, or of any other construct, in the parse budget."""
BARE_JSON_FORMATS = ("json", "llama3", "openai")
"""Tool formats that write calls as JSON without tags."""
_SPACE = re.compile(r"\s*+")
_KEYS = {"llama3": ("parameters",), "xml": ("args", "arguments"), "": ("arguments", "parameters")}


@dataclass(slots=True)
class ReplyScan:
    """A reply that is being parsed. `tool_format` is the format that the model was instructed to write, "" for any."""

    text: str
    tool_format: str = ""
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    text_parts: list[str | None] = field(default_factory=list)
    """Parts of the text. None stands for a call or a thought between two parts."""
    calls: list[ToolCall] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    parse_errors: Counter[str] = field(default_factory=Counter)
    hallucinated_turn: bool = False
    has_thinking: bool = False
    """Whether the reply contained a thought."""
    unclosed_thought: str = ""
    """A marker that may have opened a thought, and has no end. Calls after it are malformed."""
    open_wrappers: list[tuple[int, int]] = field(default_factory=list)
    """For each open tag around calls, the number of text parts and of calls before it."""
    found_next: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = field(default_factory=dict)
    """The last search for each pattern by `find_next`: its start and its result."""
    budget: ParseBudget = field(default_factory=ParseBudget)

    def add_text(self, start: int, end: int) -> int:
        """Add `text[start:end]` to the reply's text, and return `end`."""
        self.text_parts.append(self.text[start:end])
        return end

    def add_break(self) -> None:
        """Record that a call or a thought separates the text before from the text after."""
        self.text_parts.append(None)

    def discard_as_thinking(self) -> None:
        """Discard everything so far, because it was a thought."""
        self.has_thinking = True
        self.text_parts = []
        self.calls = []
        self.open_wrappers = []
        self.unclosed_thought = ""
        self.repairs, self.parse_errors = Counter(), Counter()

    def remove_open_wrappers(self) -> None:
        """Remove tags around calls from the text if calls follow them. Other mentions of such a tag stay text."""
        for part, num_calls in self.open_wrappers:
            if len(self.calls) > num_calls:
                self.text_parts[part] = None

    def visible_text(self) -> str:
        """Return the reply's text: its parts, stripped, one a line.

        If calls were repaired, parts that contain only punctuation are left out.
        """
        if not any(map(str.strip, filter(None, self.text_parts))):
            return ""
        groups = ("".join(piece for piece in group if piece) for cut, group in self._groups() if not cut)
        pieces = [piece for piece in map(str.strip, groups) if piece]
        return "\n".join(
            piece for piece in pieces if not any(self.repairs.values()) or piece.strip(" \t\r\n{}[](),:;\"'`*")
        )

    def _groups(self) -> Iterator[tuple[bool, Iterator[str | None]]]:
        return groupby(self.text_parts, key=lambda piece: piece is None)

    def read_json(self, at: int, end: int | None = None, *, members: bool = False) -> ParsedValue:
        """Parse the JSON value at `at` that ends before `end`. `members` parses members whose `{` is missing."""
        if end is None:
            return parse_value(self.text, at, self.budget, without_brace=members)
        found = parse_value(self.text[at:end], 0, self.budget)
        return ParsedValue(found.value, at + found.end, found.repairs)

    def add_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Add a call."""
        if tag := self.unclosed_thought:
            reason = f"the call stands after {tag}, which nothing closes; write calls after the end of a thought"
            return self.add_failure(name, ParseFailure("tags", reason))
        name = self._known(replace_surrogates(name))
        self.calls.append(ToolCall(name=name, arguments=self._unaliased(name, dict(arguments))))

    def add_failure(self, name: Any, fault: ParseFailure) -> None:
        """Add a malformed call."""
        self.parse_errors[fault.kind] += 1
        name = self._known(replace_surrogates(name)) if isinstance(name, str) else ""
        reason = fault.reason if fault.reason.startswith("the ") else f"the call is not JSON: {fault.reason}"
        self.calls.append(ToolCall(name=name, parse_error=reason))

    def count_format_mismatch(self, tool_format: str) -> None:
        """Count a call in this tool format as a repair if the model was instructed to write another one."""
        self.repairs["tool_format"] += (
            bool(self.tool_format)
            and self.tool_format != tool_format
            and not {self.tool_format, tool_format} <= set(BARE_JSON_FORMATS)
        )

    def add_json_calls(self, found: ParsedValue, tool_format: str, wrapped: bool = False) -> bool:
        """Add the calls in a JSON value, and return whether there were any. `wrapped` JSON can only be calls."""
        candidates = list(find_calls(found.value, self.tools, wrapped))
        if candidates or wrapped:
            self.repairs.update(found.repairs)
        for draft in candidates:
            if not self.budget.spend(CALL_COST):
                break
            self.count_format_mismatch(tool_format)
            self._take(draft)
        return bool(candidates)

    def add_call_at(self, name: str, at: int) -> int:
        """Add a call of `name` whose arguments object begins at `at`, and return where the object ends."""
        found = parse_object(self.text, at, self.budget)
        self.repairs.update(found.repairs)
        self.add_call_with_value(name, found.value)
        return found.end

    def find_next(self, pattern: re.Pattern[str], at: int) -> re.Match[str] | None:
        """Return the first match from `at` on. All searches for a pattern together take linear time."""
        start, match = self.found_next.get(pattern, (at + 1, None))
        if at < start or (match and match.start() < at):
            match = pattern.search(self.text, at)
            self.found_next[pattern] = at, match
        return match

    def skip_malformed(self, end_tag: re.Pattern[str], at: int) -> int:
        """Return the position after the end tag of the last call if the call is malformed, else `at`."""
        closed = self.find_next(end_tag, at) if self.calls and self.calls[-1].parse_error else None
        return closed.end() if closed else at

    def skip_echo(self, body: str, at: int, end_tag: re.Pattern[str], bare: bool = False) -> int:
        """Return the position after the copies of a call's text that directly follow the call's end tag.

        Small models repeat a call in this way, with the end tag but without the opening tag. A `bare` copy has no end
        tag either. A copy in a pair of tags is a second call.
        """
        while body and self.text.startswith(body, begin := _SPACE.match(self.text, at).end()):  # type: ignore[union-attr]
            closed = end_tag.match(self.text, begin + len(body))
            if closed is None and not bare:
                break
            at = closed.end() if closed else begin + len(body)
            self.repairs["echo"] += 1
        return at

    def _take(self, draft: CallCandidate) -> None:
        fault, name = draft.failure or self._fault(draft), draft.resolve_name(self.tools)
        if fault:
            return self.add_failure(name, fault)
        self.repairs["duplicate"] += draft.has_duplicate_key
        self.repairs["keys"] += draft.name_key != "name" or draft.arguments_key not in _KEYS.get(
            self.tool_format, ("arguments",)
        )
        value = draft.arguments
        for _ in range(2):  # the wire format quotes arguments once; some models quote them again
            if isinstance(value, str):
                self.repairs["argument_text"] += value is not draft.arguments or self.tool_format not in ("", "openai")
                found = parse_arguments_text(value, self.budget) if value.strip() else ParsedValue(ObjectPairs(), 0)
                self.repairs.update(found.repairs)
                value = found.value
        self.add_call_with_value(name, value)

    def _fault(self, draft: CallCandidate) -> ParseFailure | None:
        if isinstance(draft.arguments, ParseFailure):
            return draft.arguments
        if draft.name is None:
            return ParseFailure("shape", "the call has no 'name'")
        if not isinstance(draft.name, str):
            return ParseFailure("shape", "the name is not a string")
        if not draft.arguments_key:
            return ParseFailure("shape", "the call has no 'arguments'")
        if draft.unexpected_key:
            return ParseFailure("shape", f"the call has a key {draft.unexpected_key!r} besides 'name' and 'arguments'")
        return None

    def add_call_with_value(self, name: str, value: Any) -> None:
        """Add a call whose arguments are a parsed value. It is malformed if the value is not an object."""
        if isinstance(value, ParseFailure):
            return self.add_failure(name, value)
        if not isinstance(value, ObjectPairs):
            return self.add_failure(name, ParseFailure("shape", "the arguments are not a JSON object"))
        try:
            arguments, twice = pairs_to_dicts(value)
        except ValueError as error:
            return self.add_failure(name, ParseFailure("duplicate" if "twice" in str(error) else "json", str(error)))
        self.repairs["duplicate"] += twice
        self.add_call(name, arguments)

    def _known(self, name: str) -> str:
        """Return the name of a known tool if `name` is one with surrounding space or the prefix `functions.`, or an
        alias of one, else `name`.
        """
        bare = name.strip().removeprefix("functions.")
        name = bare if name not in self.tools and bare in self.tools else name
        if name not in self.tools:
            return name
        self.repairs["alias"] += name != self.tools[name].name
        return self.tools[name].name

    def _unaliased(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        spec = self.tools.get(name)
        if spec is None or spec.aliases.keys().isdisjoint(arguments):
            return arguments
        renamed = spec.resolve_aliases(arguments)
        self.repairs["alias"] += len(renamed.keys() - arguments.keys())
        return renamed
