"""A tolerant JSON parser: strict first, and with repairs only if that fails. Repairs are counted by kind.

Only unambiguous errors are repaired: missing, wrong or extra brackets, keys and strings without their closing quote,
Python quotes, missing commas, a stray word before a bracket. Ambiguous errors (a word instead of a value, a quote
within a string, a reply that ends within a value) give a `ParseFailure` with the reason. Inside arguments nothing is
skipped, so that no argument is lost or shortened unnoticed.

Parsing takes linear time: the strict parser stops at the first error, and the tolerant parser reads at least up to it.
"""

import ast
import json
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from understudy.core.json_values import MAX_DEPTH, parse_float, parse_int, reject_nan_and_infinity

ARGUMENTS = ("arguments", "parameters", "params", "args", "kwargs", "input", "tool_input", "action_input")
"""Keys under which models write the arguments of a call; the first is the standard one."""


class ObjectPairs(list[tuple[str, Any]]):
    """A JSON object as it was written: keys in order, including duplicates."""


class ParseBudget:
    """A limit on the work for one reply: each token of broken JSON costs 1, each construct costs more.

    No meaningful reply comes near the limit. It bounds the time for replies of nothing but brackets.
    """

    __slots__ = ("left",)

    def __init__(self, left: int = 60_000) -> None:
        self.left = left

    def spend(self, cost: int = 1) -> bool:
        """Spend `cost`, and return whether the budget covered it."""
        self.left -= cost
        return self.left >= 0


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """A value that cannot be parsed. `kind` is for counting, `reason` for the model."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class ParsedValue:
    """A parsed value (objects are `ObjectPairs`), the position where it ends, and the repairs by kind."""

    value: Any
    end: int
    repairs: Counter[str] = field(default_factory=Counter)


_STRICT = json.JSONDecoder(
    object_pairs_hook=ObjectPairs, parse_float=parse_float, parse_int=parse_int, parse_constant=reject_nan_and_infinity
)
_SPACE = re.compile(r"\s*+")
# such as: 'a text'
_TOKEN = re.compile(
    r"""\s*+(?:(?P<open>[{\[])|(?P<close>[}\]])|(?P<comma>,)|(?P<string>"(?>(?:[^"\\]++|\\.)*)")"""
    r"""|(?P<single>'(?>(?:[^'\\]++|\\.)*)')|(?P<number>-?\d[\w.+-]*+)|(?P<word>[A-Za-z_][\w.-]*+)|(?P<other>\S))""",
    re.DOTALL,
)
# such as: -1.5e3
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?P<real>(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_COLON = re.compile(r"\s*+:")
# such as: "query: "a"
_OPEN_KEY = re.compile(r'\s*+"([A-Za-z_]\w*+)\s*+:\s*+(?=["{\[])')
# such as: , "limit": 3
_NEXT_KEY = re.compile(r'\s*+,\s*+["\'][^"\'\n]{1,80}["\']\s*+:')
# such as:  ...}
_JUNK = re.compile(r'\s*+[^\s{}\[\]",:]{1,24}+(?=\s*+[}\]])')
# such as: "{"query": "a"}"
_QUOTED_OBJECT = re.compile(r'\s*+"\s*+(?=\{\s*+"[\w ]*+"\s*+:)')
_WORDS = {"true": True, "false": False, "null": None}
_PYTHON = {"True": True, "False": False, "None": None}


def parse_value(text: str, at: int, budget: ParseBudget, *, without_brace: bool = False) -> ParsedValue:
    """Parse the object or array that begins at `at`.

    `without_brace` parses the members of an object whose `{` is missing.
    """
    start = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches anywhere
    if without_brace:
        return _Loose(text, start, budget, members=True).run()
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        return _Loose(text, start, budget).run()
    return ParsedValue(value, end)


def parse_object(text: str, at: int, budget: ParseBudget) -> ParsedValue:
    """Parse the arguments object that begins at `at`."""
    start = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        return _Loose(text, start, budget, inside=True).run()
    return ParsedValue(value, end)


def parse_arguments_text(text: str, budget: ParseBudget) -> ParsedValue:
    """Parse arguments that were written as a string.

    The string must be one JSON value. The value is a string again if the arguments were quoted twice.
    """
    found = parse_object(text, 0, budget)
    rest = text[found.end :].strip()
    if not rest or isinstance(found.value, ParseFailure):
        return found
    return ParsedValue(
        ParseFailure("junk", f"the arguments are not JSON: {rest[:40]!r} follows them"), found.end, found.repairs
    )


@dataclass(slots=True)
class _Frame:
    """An open object or array.

    `key` is the key that waits for its value. `fresh` is True at the start and after a comma.
    """

    items: Any
    inside: bool = False
    quoted: bool = False
    key: str | None = None
    fresh: bool = True

    @property
    def is_object(self) -> bool:
        return isinstance(self.items, ObjectPairs)

    @property
    def wants_key(self) -> bool:
        return self.is_object and self.key is None and self.fresh

    @property
    def wants_value(self) -> bool:
        return self.key is not None if self.is_object else self.fresh

    def add(self, value: Any) -> None:
        self.items.append((self.key, value) if self.is_object else value)
        self.key, self.fresh = None, False


class _Loose:
    """The tolerant parser of one value. It processes tokens with an explicit stack and never backtracks."""

    def __init__(self, text: str, at: int, budget: ParseBudget, *, members: bool = False, inside: bool = False) -> None:
        self.text = text
        self.at = at
        self.budget = budget
        self.inside = inside
        self.stack = [_Frame(ObjectPairs())] if members else []
        self.repairs = Counter({"brackets": int(members)})
        self.fault: ParseFailure | None = None
        self.root: Any = ParseFailure("json", "it is not JSON")
        self.last = ""

    def run(self) -> ParsedValue:
        if not self.stack:
            token = _TOKEN.match(self.text, self.at)
            if token is None or token["open"] is None:
                return ParsedValue(ParseFailure("json", f"{self._near()} is not an object"), self.at)
            self._push(token["open"], token.end())
        while self.stack and not self.fault and self.budget.spend():
            self._step()
        if self.stack:
            self._break(self.fault or self._lost("length", "it is too long to be repaired"))
        return ParsedValue(self.root, self.at, +self.repairs)

    def _step(self) -> None:
        frame = self.stack[-1]
        token = _TOKEN.match(self.text, self.at)
        if token is None:
            self._end()
        elif token["close"]:
            self._close(token)
        elif token["comma"]:
            self._comma(token)
        elif frame.wants_key:
            self._key(token)
        elif frame.wants_value:
            self._value(token)
        else:
            self._after(token)
        self.last = token.lastgroup or "" if token else ""

    def _key(self, token: re.Match[str]) -> None:
        frame, kind = self.stack[-1], token.lastgroup
        colon = _COLON.match(self.text, token.end())
        if colon and kind in ("string", "single"):
            key = self._string(token)
            frame.key, self.at = (key if isinstance(key, str) else None), colon.end()
        elif colon and kind == "word":
            self.repairs["quotes"] += 1
            frame.key, self.at = token["word"], colon.end()
        elif opened := _OPEN_KEY.match(self.text, self.at):
            self.repairs["quotes"] += 1
            frame.key, self.at = opened[1], opened.end()
        elif kind == "open":
            self._sibling()
        else:
            self._fail("json", f"{self._near()} is not a key with its value")

    def _value(self, token: re.Match[str]) -> None:
        frame, kind = self.stack[-1], token.lastgroup
        quoted = frame.key in ARGUMENTS and not frame.inside and _QUOTED_OBJECT.match(self.text, self.at)
        if quoted:
            self.repairs["escapes"] += 1
            self._push("{", quoted.end() + 1, quoted=True)
        elif kind == "open":
            self._push(token["open"], token.end())
        elif kind == "other":
            self._unterminated(token)
        else:
            if kind in ("string", "single"):
                value = self._string(token)
            else:
                value = self._number(token) if kind == "number" else self._word(token)
            if not self.fault:
                frame.add(value)
                self.at = token.end()

    def _after(self, token: re.Match[str]) -> None:
        """Handle a token after a value, if the token is neither a comma nor a closing bracket."""
        frame, kind = self.stack[-1], token.lastgroup
        is_key = frame.is_object and kind in ("string", "single") and _COLON.match(self.text, token.end())
        is_item = not frame.is_object and (kind == "open" or (kind == "string" and not frame.inside))
        if is_key or is_item:
            self.repairs["commas"] += 1
            frame.fresh = True
        elif kind == "open":
            self._sibling()
        elif frame.inside:
            self._fail("quotes", f"{self._near()} stands after a value; a quote within a string needs a backslash")
        elif junk := _JUNK.match(self.text, self.at):
            self.repairs["junk"] += 1
            self.at = junk.end()
        else:
            self._close_all("brackets")

    def _sibling(self) -> None:
        """Handle an object where a key or a comma belongs: the object before it lacks closing brackets."""
        if self.stack[-1].inside:
            return self._fail("brackets", f"{self._near()} stands where a key of the arguments should be")
        lists = [i for i, frame in enumerate(self.stack) if not frame.is_object]
        if not lists:
            return self._close_all("brackets")
        self.repairs["brackets"] += 1
        while len(self.stack) > lists[-1] + 1:
            self._pop()
        self.stack[-1].fresh = True

    def _comma(self, token: re.Match[str]) -> None:
        frame = self.stack[-1]
        if frame.key is not None:
            return self._fail("json", f"the key {frame.key!r} has no value")
        self.repairs["commas"] += frame.fresh
        frame.fresh, self.at = True, token.end()

    def _close(self, token: re.Match[str]) -> None:
        frame, is_object = self.stack[-1], token["close"] == "}"
        if frame.key is not None:
            return self._fail("json", f"the key {frame.key!r} has no value")
        depth = max((i for i, other in enumerate(self.stack) if other.is_object == is_object), default=-1)
        leaves = frame.inside and (depth < 0 or not self.stack[depth].inside)
        if leaves and (depth < 0 or _NEXT_KEY.match(self.text, token.end())):
            return self._fail("brackets", f"the bracket in {self._near()} does not fit the arguments")
        self.at = token.end()
        self.repairs["brackets"] += depth < len(self.stack) - 1
        self.repairs["commas"] += depth >= 0 and frame.fresh and bool(frame.items)
        while 0 <= depth < len(self.stack):
            self._pop()

    def _end(self) -> None:
        """Handle the end of the text. An argument that may be incomplete is not accepted."""
        frame = self.stack[-1]
        if frame.key is not None or (frame.inside and (frame.fresh or self.last in ("number", "word"))):
            return self._fail("truncated", "it ends before it is complete")
        self.at = len(self.text)
        self._close_all("truncated" if frame.inside else "brackets")

    def _unterminated(self, token: re.Match[str]) -> None:
        """Handle a quote without a closing quote.

        The string is accepted if it ends with exactly the closing brackets that the open brackets need.
        """
        if token["other"] != '"':
            return self._fail("json", f"{self._near()} is not a value")
        rest = self.text[token.end() :]
        body = rest.rstrip("}] \t\r\n")
        closers = "".join(rest[len(body) :].split())
        expected = "".join("}" if frame.is_object else "]" for frame in reversed(self.stack))
        value = self._decoded(f'"{body}"')
        self.at = len(self.text)
        if len(closers) < 2 or closers != expected or value is None:  # one bracket may be part of the string
            return self._fail("truncated", f"the string that begins with {body[:20]!r} is not closed")
        self.stack[-1].add(value)
        self._close_all("strings")

    def _string(self, token: re.Match[str]) -> str | None:
        if token["single"]:
            self.repairs["python"] += 1
            value = parse_string_literal(token["single"])
        else:
            value = self._decoded(token["string"])
        if value is None:
            self._fail("escapes", f"the string in {self._near()} has an escape that JSON does not have")
        return value

    def _decoded(self, quoted: str) -> str | None:
        for strict, text, kind in (
            (True, quoted, ""),
            (False, quoted, "newlines"),
            (False, re.sub(r"\\(.)", _unescaped, quoted, flags=re.DOTALL), "escapes"),
        ):
            try:
                value: str = json.loads(text, strict=strict)
            except ValueError:
                continue
            self.repairs[kind] += bool(kind)
            return value
        return None

    def _number(self, token: re.Match[str]) -> Any:
        number = _NUMBER.fullmatch(token["number"])
        try:
            if number:
                return parse_float(number[0]) if number["real"] else parse_int(number[0])
            self._fail("json", f"{self._near()} is not a number")
        except ValueError as error:
            self._fail("json", str(error))

    def _word(self, token: re.Match[str]) -> Any:
        word = token["word"]
        self.repairs["python"] += word in _PYTHON
        if word not in _WORDS and word not in _PYTHON:
            self._fail("json", f"{word[:40]!r} is not a value")
        return (_WORDS | _PYTHON).get(word)

    def _push(self, bracket: str, at: int, quoted: bool = False) -> None:
        above = self.stack[-1] if self.stack else None
        inside = (above.inside or above.key in ARGUMENTS) if above else self.inside
        self.stack.append(_Frame(ObjectPairs() if bracket == "{" else [], inside, quoted))
        self.at = at
        if len(self.stack) > MAX_DEPTH:
            self.fault = self._lost("depth", f"it is nested more than {MAX_DEPTH} deep")

    def _pop(self) -> None:
        frame = self.stack.pop()
        if self.stack:
            self.stack[-1].add(frame.items)
        else:
            self.root = frame.items
        self.at += frame.quoted and self.text.startswith('"', self.at)

    def _close_all(self, kind: str) -> None:
        self.repairs[kind] += 1
        while self.stack:
            self._pop()

    def _fail(self, kind: str, reason: str) -> None:
        self.fault = ParseFailure(kind, reason)

    def _lost(self, kind: str, reason: str) -> ParseFailure:
        self.at = len(self.text)
        return ParseFailure(kind, reason)

    def _break(self, fault: ParseFailure) -> None:
        """Put the failure in place of the arguments that contain it, or outside of arguments in place of the current
        value.
        """
        while self.stack and self.stack[-1].inside:
            self.stack.pop()
        self.root = fault
        if self.stack:
            frame = self.stack[-1]
            frame.key = frame.key or ""
            frame.add(fault)
        while self.stack:
            self._pop()

    def _near(self) -> str:
        return repr(self.text[self.at : self.at + 24].strip())


def _unescaped(escape: re.Match[str]) -> str:
    return "'" if escape[1] == "'" else escape[0]


def parse_string_literal(quoted: str) -> str | None:
    """Return the value of a Python string literal, or None. It is parsed as a literal; no code is executed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = ast.literal_eval(quoted)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return value if isinstance(value, str) else None
