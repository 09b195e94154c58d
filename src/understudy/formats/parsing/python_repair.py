"""A tolerant parser of Python calls, for lists that Python's own parser rejects. It reads literals only.

It reads five things that Python does not: names with a hyphen (`get-docs`), a line break within a string, a number with
a leading zero (`month=07`), the string's own quote within the string (`command='sed -n '1,9p' f.py'`), and a parameter
named like a Python keyword. The quote that ends a string is the first one followed by what may follow the value: a
closing bracket, or a comma and the next argument or item. If an empty or adjacent string makes this uncertain, the call
is malformed.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from understudy.core.json_values import MAX_DEPTH, parse_float, parse_int, validate_json_value
from understudy.formats.parsing.json_calls import json_equal
from understudy.formats.parsing.repair import ParseBudget, parse_string_literal

_SPACE = re.compile(r"\s*+")
NAME = r"[^\W\d][\w.-]*+"
"""Names of tools in any script, with dots and hyphens."""
KEYWORD = r"[^\W\d][\w-]*+"
"""Names of parameters in any script, with hyphens."""
_NAME = re.compile(NAME)
# such as:  query = "a"
_KEYWORD = re.compile(rf"\s*+({KEYWORD})\s*+=(?!=)")
# such as: -1_000.5e3
_NUMBER = re.compile(r"-?\d[\d_]*+(?P<real>(?:\.\d*+)?(?:[eE][+-]?\d++)?)(?![\w.])")
_WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_CALL_ENDS = rf"\s*+(?:,\s*+(?:{NAME}\(|\])|\]|\Z|[;\n<])"
_AFTER_STRING: Mapping[str, re.Pattern[str]] = {
    # such as: , limit=3
    "argument": re.compile(rf"\s*+(?:,\s*+{KEYWORD}\s*+=(?!=)|,?\s*+\){_CALL_ENDS})"),
    # such as: , "b"
    "item": re.compile(r"\s*+(?:,\s*+[\"'\[{(\d-]|,\s*+(?:True|False|None|true|false|null)\b|,?\s*+[\])])"),
    "key": re.compile(r"\s*+:"),
    # such as:  }
    "member": re.compile(r"\s*+(?:,\s*+[\"']|,?\s*+\})"),
}
"""What may follow a string, by the place of the string."""
# such as:  "b"
_ADJACENT = re.compile(r"[ \t]*+[\"']")


@dataclass(slots=True)
class PythonCalls:
    """Calls that were read, the position where they end, and the repairs by kind."""

    calls: list[tuple[str, dict[str, Any]]]
    end: int
    repairs: Counter[str] = field(default_factory=Counter)


def parse_python_calls(text: str, at: int, end: int, budget: ParseBudget) -> PythonCalls:
    """Parse the list of calls, or the single call, that begins at `at` and ends before `end`.

    Raise ValueError with the reason if it is malformed. Each quote costs 1 of the budget.
    """
    reader = _PythonReader(text[at:end], budget)
    calls = reader.read_list() if text.startswith("[", at) else [reader.read_call()]
    return PythonCalls(calls, at + reader.at, reader.repairs)


class _PythonReader:
    """Reader of Python calls from position `at` on. Its methods raise ValueError with the reason."""

    def __init__(self, text: str, budget: ParseBudget) -> None:
        self.text, self.at, self.budget = text, 0, budget
        self.repairs = Counter[str]()

    def read_list(self) -> list[tuple[str, dict[str, Any]]]:
        self._expect("[")
        calls = [self.read_call()]
        while not self._skip("]"):
            self._expect(",")
            if not self._peek("]"):
                calls.append(self.read_call())
        return calls

    def read_call(self) -> tuple[str, dict[str, Any]]:
        name = _NAME.match(self.text, self._space())
        if name is None:
            raise ValueError(f"{self._near()} is not a call")
        self.at = name.end()
        self._expect("(")
        arguments: dict[str, Any] = {}
        while not self._skip(")"):
            keyword = _KEYWORD.match(self.text, self.at)
            if keyword is None:
                raise ValueError(f"{self._near()} is not an argument with its name")
            self.at = keyword.end()
            value = self._value("argument", 1)
            if keyword[1] in arguments and not json_equal(arguments[keyword[1]], value):
                raise ValueError(f"the argument {keyword[1]!r} is given twice, with different values")
            arguments[keyword[1]] = value
            if not self._peek(")"):
                self._expect(",")
        validate_json_value(arguments)
        return name[0], arguments

    def _value(self, place: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"the call is nested more than {MAX_DEPTH} deep")
        at = self._space()
        character = self.text[at : at + 1]
        if character in ("'", '"') and character:
            return self._string(place)
        if character in ("[", "(") and character:
            return self._items("]" if character == "[" else ")", depth + 1)
        if character == "{":
            return self._members(depth + 1)
        if number := _NUMBER.match(self.text, at):
            return self._number(number)
        word = _NAME.match(self.text, at)
        if word is None or word[0] not in _WORDS:
            raise ValueError(f"{self._near()} is not a literal")
        self.at = word.end()
        return _WORDS[word[0]]

    def _items(self, closing: str, depth: int) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while not self._skip(closing):
            items.append(self._value("item", depth))
            if not self._peek(closing):
                self._expect(",")
        return items

    def _members(self, depth: int) -> dict[str, Any]:
        self.at += 1
        members: dict[str, Any] = {}
        while not self._skip("}"):
            key = self._value("key", depth)
            if not isinstance(key, str) or key in members:
                raise ValueError("the keys of a dict are not different strings")
            self._expect(":")
            members[key] = self._value("member", depth)
            if not self._peek("}"):
                self._expect(",")
        return members

    def _number(self, number: re.Match[str]) -> int | float:
        self.at = number.end()
        digits = number[0].replace("_", "")
        if number["real"]:
            return parse_float(digits)
        self.repairs["numbers"] += digits.lstrip("-").startswith("0") and digits.lstrip("-") != "0"
        return parse_int(digits)

    def _string(self, place: str) -> str:
        start, quote = self.at, self.text[self.at]
        if self.text.startswith(quote * 3, start):
            end = self.text.find(quote * 3, start + 3)
            if end < 0:
                raise ValueError(f"the string in {self._near()} is not closed")
            self.at = end + 3
            return _decode(self.text[start : self.at])
        inner: list[int] = []
        end = start + 1
        while True:
            end = self._next_quote(end, quote)
            if _AFTER_STRING[place].match(self.text, end + 1):
                break
            if _ADJACENT.match(self.text, end + 1):
                raise ValueError(f"it is not certain where the string in {self._near()} ends; escape quotes in it")
            inner.append(end)
            end += 1
        self.at = end + 1
        self.repairs["quotes"] += bool(inner)
        body = _escape(self.text, start + 1, end, inner)
        self.repairs["newlines"] += "\n" in body or "\r" in body
        return _decode(quote + body.replace("\r", "\\r").replace("\n", "\\n") + quote)

    def _next_quote(self, at: int, quote: str) -> int:
        """Return the position of the next quote that has no backslash before it."""
        while self.budget.spend() and (end := self.text.find(quote, at)) >= 0:
            before = self.text[at:end]
            if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
                return end
            at = end + 1
        raise ValueError(f"the string in {self._near()} is not closed")

    def _space(self) -> int:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # it matches anywhere
        return self.at

    def _peek(self, sign: str) -> bool:
        return self.text.startswith(sign, self._space())

    def _skip(self, sign: str) -> bool:
        found = self._peek(sign)
        self.at += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            raise ValueError(f"{self._near()} stands where {sign!r} should be")

    def _near(self) -> str:
        return repr(self.text[self.at : self.at + 24].strip())


def _escape(text: str, start: int, end: int, quotes: list[int]) -> str:
    """Return `text[start:end]` with a backslash before the quotes at the given positions."""
    parts = [text[one:other] for one, other in zip([start, *quotes], [*quotes, end], strict=True)]
    return "\\".join(parts)


def _decode(literal: str) -> str:
    value = parse_string_literal(literal)
    if value is None:
        raise ValueError(f"the string {literal[:24]!r} has an escape that Python does not have")
    return value
