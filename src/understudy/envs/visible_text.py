"""What a person sees of a text, and what it hides: comments, hidden elements, what follows a blank screen.

Only what is visible is told, proposed or asked. An agent that hides words breaks the policy, whatever they say.
"""

import html
import re
import unicodedata
from functools import lru_cache

MAX_BLANK_LINES = 12
"""Largest number of blank lines after which a reader goes on reading."""

_HIDDEN_STYLE = r"hidden\b|display:\s?none|visibility:\s?hidden|font-size:\s?0|opacity:\s?0|color:\s?transparent"
_HIDDEN = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(?P<tag>script|style|template|details)\b.*?(?:</(?P=tag)>|\Z)"
    rf"|<(?P<element>\w{{1,20}})\b[^<>]{{0,200}}?\b(?:{_HIDDEN_STYLE}).*?(?:</(?P=element)>|\Z)"
    r"|^\[[^\]\n]{0,20}\]:[^\n]*$"
    r"|\]\([^()\n]{0,200}?(?P<quote>['\"])[^()\n]{1,1000}?(?P=quote)\s?\)"
    r"|\\(?:[hv]?phantom)\b[^\n]*"
    r"|\|\|[^|\n]{1,1000}\|\|"
    "|[\N{LEFT-TO-RIGHT OVERRIDE}\N{RIGHT-TO-LEFT OVERRIDE}][^\n]*",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
"""An HTML comment, an element that is not shown, a link's definition or title, an invisible formula, a spoiler, or
words in reversed order."""
_MAY_HIDE = re.compile("[<\\[\\\\|\N{LEFT-TO-RIGHT OVERRIDE}\N{RIGHT-TO-LEFT OVERRIDE}]")
_TAGGED = re.compile("(?<![\N{BLACK FLAG}\U0001f3f4\U000e0020-\U000e007f])[\U000e0020-\U000e007e]+")
"""Tag characters, an invisible copy of ASCII, that belong to no flag."""
_TWO_SCRIPTS = re.compile("(?=[^\\W\\d_]{4})(?=\\w{0,40}[a-zA-Z])\\w{0,40}[\u0370-\u052f]\\w{0,40}")
"""A word of Latin letters and of Greek or Cyrillic ones that look alike."""
_LINE_BREAK = re.compile(r"<br ?/?>|\r\n?|[\v\f\x85\u2028\u2029]", re.IGNORECASE)
_BLANK_LETTERS = str.maketrans(dict.fromkeys("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0", ""))
"""Characters that show nothing although Unicode counts them as letters or marks."""


@lru_cache(maxsize=256)
def visible_text(text: str) -> str:
    """Return the part of a text that a person sees."""
    return _split_text(text)[0]


@lru_cache(maxsize=256)
def hidden_text(text: str) -> str:
    """Return the words of a text that a person does not see, or reads as other words; "" if there are none."""
    return _split_text(text)[1]


@lru_cache(maxsize=256)
def _split_text(text: str) -> tuple[str, str]:
    hidden = list[str]()
    if not text.isascii():
        hidden += ("".join(chr(ord(c) - 0xE0000) for c in match[0]) for match in _TAGGED.finditer(text))
        hidden += (match[0] for match in _TWO_SCRIPTS.finditer(text))
    if _MAY_HIDE.search(text):
        hidden += (match[0] for match in _HIDDEN.finditer(text))
        text = _HIDDEN.sub(" ", text)
    text = _without_invisible(html.unescape(text))
    lines = _LINE_BREAK.sub("\n", text).split("\n")
    num_blank = 0
    for place, line in enumerate(lines):
        num_blank = 0 if line.strip() else num_blank + 1
        if num_blank > MAX_BLANK_LINES:
            hidden += lines[place:]
            lines = lines[:place]
            break
    return "\n".join(lines), "\n".join(part for part in hidden if any(map(str.isalpha, part)))


def _without_invisible(text: str) -> str:
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text.translate(_BLANK_LETTERS))
    return "".join(c for c in text if unicodedata.category(c) != "Cf")
