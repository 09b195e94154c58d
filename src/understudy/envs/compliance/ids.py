"""Ids, numbers and other targets of writes, as texts name them."""

import re

# such as: card_41
ID = re.compile(r"(?<![\w.-])(?=[\w-]*[a-z])(?=[\w-]*\d)[a-z0-9_-]{2,}(?![\w-])", re.IGNORECASE)
"""A word with letters and digits: "w1", "card_41"."""
# such as: 12
TARGET = re.compile(r"(?<![\w.-])(?=[\w-]*\d)[a-z0-9_-]+(?![\w-])(?![.,]\d)")
"""An id, or a number such as that of a room or of a phone line."""
DIGITS = re.compile(r"\d{1,100}")
"""A run of digits. A longer one is read in parts: Python makes no number of a text with more than 4300 digits."""
MAX_SMALL_NUMBER = 12
"""Largest whole number that an agent may state although nobody has: months, and numbers of persons."""


def id_form(name: str) -> str:
    """Return a text that is the same for ids of one kind: "w9" for "w1" and "w23", "aa9aa9" for "zh9yr9"."""
    prefix = re.fullmatch(r"([a-z_-]+)\d+", name)
    return f"{prefix[1]}9" if prefix else re.sub(r"[a-z]", "a", re.sub(r"\d", "9", name))


def may_be_same_kind(name: str, value: str) -> bool:
    """Return whether two targets may be of one kind: w1 and w23, card_1 and gift_2, or 555-1234 and 555-4321."""
    if name.isdigit() or value.isdigit():
        return name.isdigit() and value.isdigit()
    shapes = [re.sub(r"\d+", "9", re.sub(r"[a-z]+", "a", each)) for each in (name, value)]
    return shapes[0] == shapes[1] or id_form(name) == id_form(value)
