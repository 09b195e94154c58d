"""JSON as models write it: read strictly first, and only if that fails with repairs, each counted by its kind.

What is repaired has one reading: brackets that are missing, wrong or too many, keys and strings without their closing
quote, quotes of Python, missing commas, a stray word before a bracket. What has more than one (a word where a value
should be, a quote within a string, a reply that ends amid a value) is `Broken`, with the reason. Inside of arguments
nothing is skipped, so that no argument is lost or shortened without a word.

Time is linear: the strict reading ends at the first error, and the loose one goes at least as far.
"""

import ast
import json
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from understudy.values import DEPTH, finite, integer, refuse

ARGUMENTS = ("arguments", "parameters", "args", "kwargs", "input", "tool_input", "action_input")
"""Keys under which models write the arguments of a call; the first is the right one."""


class Pairs(list[tuple[str, Any]]):
    """An object as it was written: keys in order, and those that are there twice twice."""


class Budget:
    """How much of a reply is worth reading: so many tokens of broken JSON, and fewer things that begin.

    No reply that a model means comes near it; one that is nothing but brackets is not read to its end.
    """

    __slots__ = ("left",)

    def __init__(self, left: int = 60_000) -> None:
        self.left = left

    def spend(self, cost: int = 1) -> bool:
        """Whether there is so much left; it is spent."""
        self.left -= cost
        return self.left >= 0


@dataclass(frozen=True, slots=True)
class Broken:
    """A value that cannot be read: `kind` is for counting, `reason` for the model."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Value:
    """What was read (objects are `Pairs`), where it ends, and what was repaired, by kind."""

    value: Any
    end: int
    repairs: Counter[str] = field(default_factory=Counter)


_STRICT = json.JSONDecoder(object_pairs_hook=Pairs, parse_float=finite, parse_int=integer, parse_constant=refuse)
_SPACE = re.compile(r"\s*+")
_TOKEN = re.compile(
    r"""\s*+(?:(?P<open>[{\[])|(?P<close>[}\]])|(?P<comma>,)|(?P<string>"(?:[^"\\]++|\\.)*+")"""
    r"""|(?P<single>'(?:[^'\\]++|\\.)*+')|(?P<number>-?\d[\w.+-]*+)|(?P<word>[A-Za-z_][\w.-]*+)|(?P<other>\S))""",
    re.DOTALL,
)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?P<real>(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_COLON = re.compile(r"\s*+:")
_OPEN_KEY = re.compile(r'\s*+"([A-Za-z_]\w*+)\s*+:\s*+(?=["{\[])')
_NEXT_KEY = re.compile(r'\s*+,\s*+["\'][^"\'\n]{1,80}["\']\s*+:')
_JUNK = re.compile(r'\s*+[^\s{}\[\]",:]{1,24}+(?=\s*+[}\]])')
_QUOTED_OBJECT = re.compile(r'\s*+"\s*+(?=\{\s*+"[\w ]*+"\s*+:)')
_WORDS = {"true": True, "false": False, "null": None}
_PYTHON = {"True": True, "False": False, "None": None}


def read(text: str, at: int, budget: Budget, *, members: bool = False) -> Value:
    """The object or array that begins at `at`; with `members` the inside of an object, whose `{` is missing."""
    start = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches anywhere
    if members:
        return _Loose(text, start, budget, members=True).run()
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        return _Loose(text, start, budget).run()
    return Value(value, end)


def read_object(text: str, at: int, budget: Budget) -> Value:
    """The arguments that begin at `at`, an object."""
    start = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        return _Loose(text, start, budget, inside=True).run()
    return Value(value, end)


def read_arguments(text: str, budget: Budget) -> Value:
    """Arguments that were written as a string: the whole of it is one object, perhaps in quotes once more."""
    found = read_object(text, 0, budget)
    rest = text[found.end :].strip()
    if not rest or isinstance(found.value, Broken):
        return found
    return Value(Broken("junk", f"the arguments are not JSON: {rest[:40]!r} follows them"), found.end, found.repairs)


@dataclass(slots=True)
class _Frame:
    """An object or array that is open. `key` waits for its value; `fresh` is at the start, or after a comma."""

    items: Any
    inside: bool = False
    quoted: bool = False
    key: str | None = None
    fresh: bool = True

    @property
    def is_object(self) -> bool:
        return isinstance(self.items, Pairs)

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
    """One value, token by token, with an explicit stack: it never goes back."""

    def __init__(self, text: str, at: int, budget: Budget, *, members: bool = False, inside: bool = False) -> None:
        self.text, self.at, self.budget, self.inside = text, at, budget, inside
        self.stack = [_Frame(Pairs())] if members else []
        self.repairs = Counter({"brackets": int(members)})
        self.fault: Broken | None = None
        self.root: Any = Broken("json", "it is not JSON")
        self.last = ""

    def run(self) -> Value:
        if not self.stack:
            token = _TOKEN.match(self.text, self.at)
            if token is None or token["open"] is None:
                return Value(Broken("json", f"{self._near()} is not an object"), self.at)
            self._push(token["open"], token.end())
        while self.stack and not self.fault and self.budget.spend():
            self._step()
        if self.stack:
            self._break(self.fault or self._lost("length", "it is too long to be repaired"))
        return Value(self.root, self.at, +self.repairs)

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
            value = {"string": self._string, "single": self._string, "number": self._number, "word": self._word}[
                kind or ""
            ](token)
            if not self.fault:
                frame.add(value)
                self.at = token.end()

    def _after(self, token: re.Match[str]) -> None:
        """Something other than a comma or a bracket after a value."""
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
        """An object begins where a key or a comma should stand: the brackets of the one before it are missing."""
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
        """The text ends. An argument that may be half of itself is not taken."""
        frame = self.stack[-1]
        if frame.key is not None or (frame.inside and (frame.fresh or self.last in ("number", "word"))):
            return self._fail("truncated", "it ends before it is complete")
        self.at = len(self.text)
        self._close_all("truncated" if frame.inside else "brackets")

    def _unterminated(self, token: re.Match[str]) -> None:
        """A quote that nothing closes: the string is whole if just the brackets that are open follow it."""
        if token["other"] != '"':
            return self._fail("json", f"{self._near()} is not a value")
        rest = self.text[token.end() :]
        body = rest.rstrip("}] \t\r\n")
        closers = "".join(rest[len(body) :].split())
        expected = "".join("}" if frame.is_object else "]" for frame in reversed(self.stack))
        value = self._decoded(f'"{body}"')
        self.at = len(self.text)
        if len(closers) < 2 or closers != expected or value is None:  # one may well be the string's
            return self._fail("truncated", f"the string that begins with {body[:20]!r} is not closed")
        self.stack[-1].add(value)
        self._close_all("strings")

    def _string(self, token: re.Match[str]) -> str | None:
        if token["single"]:
            self.repairs["python"] += 1
            value = _python_string(token["single"])
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
                return finite(number[0]) if number["real"] else integer(number[0])
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
        self.stack.append(_Frame(Pairs() if bracket == "{" else [], inside, quoted))
        self.at = at
        if len(self.stack) > DEPTH:
            self.fault = self._lost("depth", f"it is nested more than {DEPTH} deep")

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
        self.fault = Broken(kind, reason)

    def _lost(self, kind: str, reason: str) -> Broken:
        self.at = len(self.text)
        return Broken(kind, reason)

    def _break(self, fault: Broken) -> None:
        """Put the fault in the place of the value, or the arguments, that it is in."""
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


def _python_string(quoted: str) -> str | None:
    """A string in single quotes. Only a literal is read; nothing runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = ast.literal_eval(quoted)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return value if isinstance(value, str) else None
