"""Ids, numbers and other targets of writes, as texts name them."""

import re
from collections.abc import Sequence
from functools import lru_cache

# such as: card_41
ID = re.compile(r"(?<![\w.-])(?=[\w-]*[a-z])(?=[\w-]*\d)[a-z0-9_-]{2,}(?![\w-])", re.IGNORECASE)
"""A word with letters and digits: "w1", "card_41"."""
# such as: 713-555-0109
PHONE = re.compile(r"(?<![\w-])(?:\d{3}-)?\d{3}-\d{4}(?![\w-])")
DIGITS = re.compile(r"\d{1,100}")
"""A run of digits. A longer one is read in parts: Python makes no number of a text with more than 4300 digits."""
MAX_SMALL_NUMBER = 12
"""Largest whole number that an agent may state although nobody has: months, and numbers of persons."""


@lru_cache(maxsize=1024)
def id_form(name: str) -> str:
    """Return a text that is the same for ids of one kind: "w9" for "w1" and "w23", "aa9aa9" for "zh9yr9"."""
    prefix = re.fullmatch(r"([a-z_]+)\d+", name)
    return f"{prefix[1]}9" if prefix else re.sub(r"[a-z]", "a", re.sub(r"\d", "9", name))


@lru_cache(maxsize=512)
def find_ids(text: str) -> Sequence[str]:
    """Return the ids and phone numbers of a text."""
    return (*ID.findall(text), *PHONE.findall(text))
