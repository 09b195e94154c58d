"""Announcements: the actions that a text says the agent will take or may take."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from understudy.envs.compliance.actions import ANY_VERB
from understudy.envs.compliance.sentences import split_sentences

MAX_OBJECT_LENGTH = 240
"""Characters after a verb that are read as its object."""

OBJECT = rf"(?P<object>(?:[^,;.!?]|[.,](?=\d)){{0,{MAX_OBJECT_LENGTH}}})"
"""A pattern of what follows a verb: "order w1 with a refund of 1,231.25"."""
PROMISING = re.compile(r"\b(?:i|we)(?:'ll| will| shall| am going to|'m going to| are going to| promise to)\b")
"""The start of a promise: "I will", "we are going to"."""
PROPOSING = re.compile(
    rf"{PROMISING.pattern}|\b(?:i|we)(?: can| could| would(?: like to)?|'d(?: like to)?| want to| plan to| intend to)\b"
    r"|\b(?:shall|should|may|can|could) (?:i|we)\b|\b(?:like|want) me to\b|\b(?:let|allow) me(?: to)?\b"
)
"""The start of a promise, or of a question or an offer: "shall I", "do you want me to"."""

_ADVERBS = r"(?:(?:\w+ly|then|also|now|first|just|please|go ahead and|finally|and)\s+){0,8}"
# such as:  also refund the apron
_FIRST_ACTION = re.compile(rf"\s*{_ADVERBS}(?P<verb>{ANY_VERB})\b{OBJECT}")
_DETERMINER = (
    r"(?=\s+(?:the|your|an?|it|them|this|that|these|those|you|all|any|both|another|order|line|\$?\d|w?\w*\d)\b)"
)
# such as: , then refund the apron
_NEXT_ACTION = re.compile(
    rf"(?:[,;]|\b(?:and|then|plus|as well as)\b)\s*{_ADVERBS}(?P<verb>{ANY_VERB})\b{_DETERMINER}{OBJECT}"
)
"""A further action: ", then refund the apron". Before a verb that may be a noun, as in "and credit card", a determiner
must follow."""
_CONJUNCTION = re.compile(r"\b(?:and|then|plus|as well as)\b")
# such as:  probably not
_NEGATED = re.compile(rf"\s*{_ADVERBS}(?:not|never)\b")


class Announcement(NamedTuple):
    """An action that a text announces."""

    sentence: str
    verb: str
    object: str
    """What follows the verb, up to the next clause."""

    @property
    def phrase(self) -> str:
        """The verb and its object."""
        return f"{self.verb}{self.object}".strip()


def find_announcements(text: str, starts: re.Pattern[str]) -> Iterator[Announcement]:
    """Yield the actions that a text announces after one of the starts, which are `PROMISING` or `PROPOSING`."""
    for sentence in split_sentences(text):
        found = list(starts.finditer(sentence))
        for number, start in enumerate(found):
            end = found[number + 1].start() if number + 1 < len(found) else len(sentence)
            rest = sentence[start.end() : end]
            if _NEGATED.match(rest):
                continue
            first = _FIRST_ACTION.match(rest)
            for match in ([first] if first else []) + list(_NEXT_ACTION.finditer(rest)):
                yield Announcement(sentence, match["verb"], _CONJUNCTION.split(match["object"])[0])
