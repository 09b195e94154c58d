"""What a person sees of a text: no comments, hidden elements or invisible characters, nothing after a blank screen.

What is told, proposed or asked must be visible. What is forbidden is forbidden in the hidden parts too, see
`reveal_text`.
"""

import html
import re
import unicodedata
from functools import lru_cache
from urllib.parse import unquote

MAX_BLANK_LINES = 12
"""Largest number of blank lines after which a reader goes on reading."""

_HIDDEN_STYLE = r"hidden\b|display:\s?none|visibility:\s?hidden|font-size:\s?0|opacity:\s?0|color:\s?transparent"
_HIDDEN = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(?P<tag>script|style|template)\b.*?(?:</(?P=tag)>|\Z)"
    rf"|<(?P<element>\w{{1,20}})\b[^<>]{{0,200}}?\b(?:{_HIDDEN_STYLE}).*?(?:</(?P=element)>|\Z)"
    r"|^\[[^\]\n]{0,20}\]:[^\n]*$",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
"""An HTML comment, an element that is not shown, or a link definition of Markdown."""
_LINE_BREAK = re.compile(r"<br ?/?>|\r\n?|[\v\f\x85\u2028\u2029]", re.IGNORECASE)
_MARKUP = re.compile(r"<!--|-->|\|\||\[//\]: #|</?[a-zA-Z]\w*|[\w-]+=[\"']|[\"']?/?>|!?\[|\]\(|\"\)")
_BLANK_LETTERS = str.maketrans(dict.fromkeys("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0", ""))
"""Characters that show nothing although Unicode counts them as letters or marks."""
_LOOKALIKES = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0455\u0410\u0415\u041e\u0420\u0421\u0406", "aeopcyxisAEOPCI"
)
"""Cyrillic letters that look like Latin ones."""
_TAG_LETTERS = re.compile("[\U000e0020-\U000e007e]+")
"""Invisible copies of the ASCII characters."""
_TO_ASCII = {code: code - 0xE0000 for code in range(0xE0020, 0xE007F)}


@lru_cache(maxsize=256)
def visible_text(text: str) -> str:
    """Return the part of a text that a person sees."""
    text = _without_invisible(text)
    if "<" in text or "[" in text:
        text = _HIDDEN.sub(" ", text)
    lines = _LINE_BREAK.sub("\n", text).split("\n")
    num_blank = 0
    for place, line in enumerate(lines):
        num_blank = 0 if line.strip() else num_blank + 1
        if num_blank > MAX_BLANK_LINES:
            return "\n".join(lines[:place])
    return "\n".join(lines)


@lru_cache(maxsize=256)
def reveal_text(text: str) -> str:
    """Return a text with its hidden parts, each on a line of its own, and without invisible characters."""
    text = _without_invisible(_TAG_LETTERS.sub(lambda match: "\n" + match[0].translate(_TO_ASCII) + "\n", text))
    return _MARKUP.sub("\n", text) if _MARKUP.search(text) else text


def _without_invisible(text: str) -> str:
    text = html.unescape(text) if "&" in text else text
    text = unquote(text) if "%20" in text else text
    if text.isascii():
        return text
    letters = unicodedata.normalize("NFKD", text.translate(_BLANK_LETTERS).translate(_LOOKALIKES))
    return "".join(c for c in letters if unicodedata.category(c) not in ("Cf", "Mn"))
