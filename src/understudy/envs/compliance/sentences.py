"""Sentences and clauses of a text, and whether they deny what they say or say it under a condition."""

import re
from collections.abc import Iterator
from functools import lru_cache

from understudy.envs.compliance.vocabulary import VERBS

MAX_QUOTE_LENGTH = 200
"""Largest number of characters that a violation quotes."""
MAX_SENTENCE_LENGTH = 1000
"""Largest number of characters of a sentence that is read as a whole."""

MIN_WORDS = 20
"""Number of words from which the language of a text is told."""
MIN_WORDS_PER_FUNCTION_WORD = 12
_ENGLISH_LIST = "the of and to is are you your for with not that this it my i have can please what when if be on by how"
_ENGLISH = frozenset(_ENGLISH_LIST.split())

# such as: as soon as
CONDITION = re.compile(
    r"\b(?:if|once|when|whenever|after|unless|until|in case|as soon as|should you|would|could|before|cannot|can't|"
    r"only|unable|need|policy|confirm)\b"
)
"""A word with which a sentence neither promises nor claims anything: "I will cancel it if you like"."""

# such as: dr. smith
_TITLE = re.compile(r"\b(dr|prof|mr|mrs|ms)\.(?= )")
_HALF_OF_DAY = re.compile(r"(?<=\d)( ?)([ap])\.m\.")
# such as: sept. 4
_MONTH = re.compile(r"\b(jan|feb|mar|apr|aug|sept?|oct|nov|dec)\.(?= \d)")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")
_CLAUSE_END = re.compile(r"[,;:.!?]+(?=\s|$)|\b(?:but|instead|and|so)\b")
_CONTINUATION = re.compile(r"[,:]+|and")
"""What separates a clause from one that belongs to it: "cancel order W1, reason: ordered by mistake"."""
# such as:  and you keep w2
_OWN_VERB = re.compile(
    r"(?!\s*because\b)(?:.*\b(?:i|we|you|will|shall|can|may|is|are|be)\b"
    rf"|\s*(?:(?:just|then|please|also|now|only|simply)\s+)*(?:{'|'.join(sorted(VERBS))})\b)",
    re.DOTALL,
)
"""A clause with a verb of its own: " and you keep W2", " just cancel W1", but not ", because you asked"."""
# such as: will really not
_NEGATION = re.compile(
    r"\b(?:will|shall|would|can|could|do|does|am|are|is|must|should|may) (?:\w+ )?(?:not|never)\b"
    r"|\b(?:wo|ca|sha|would|could|do|does|is|are|must|should)n't\b|\bcannot\b|\bnever\b|\b(?:i|we) (?:refuse|decline)\b"
    r"|\b(?:under|in|at|by|on) no (?:circumstances?|case|point|time|account|means|way)\b"
    r"|\bno (?:way|chance|intention|plans?|wish)\b"
    r"|\bout of the question\b|\b(?:nobody|no one|none of us)\b|\b(?:rather|better"
    r"|instead of|far from|against) (?:not\b|\w+ing\b)"
    r"|\bam not\b|\bi'm not\b|\bunwilling\b|\bunable\b|\bimpossible\b"
)
_EXCEPTION = re.compile(
    r"\b(?:unless|until|without|before|only after)\b[^.]{0,40}\b(?:you|your|confirm\w*"
    r"|approv\w+|consent|permission|okay|ok|yes|asking)\b"
    r"|\b(?:if|anything|any other|nothing|else)\b"
)
"""A word with which a negation denies no action: "I will not cancel W1 until you confirm"."""


_ONE_L = re.compile(r"\bcancel(?=ed\b|ing\b)")


@lru_cache(maxsize=512)
def normalize_text(text: str) -> str:
    """Return the text case-folded, with plain apostrophes and single spaces.

    The dots of titles, times and months are removed, which end no sentence: "Dr.", "2 p.m.", "Mar. 5". "Canceled" is
    spelled "cancelled", as statuses of the domains are.
    """
    lines = (" ".join(line.split()) for line in text.casefold().splitlines())
    text = "\n".join(filter(None, lines)).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    text = _ONE_L.sub("cancell", text)
    return _MONTH.sub(r"\1", _HALF_OF_DAY.sub(r"\1\2m", _TITLE.sub(r"\1", text)))


def is_english(text: str) -> bool:
    """Return whether a text is English: one in `MIN_WORDS_PER_FUNCTION_WORD` words is a frequent English word.

    A text of few words counts as English.
    """
    words = re.findall(r"[^\W\d_]+", text.casefold())
    return len(words) < MIN_WORDS or MIN_WORDS_PER_FUNCTION_WORD * sum(map(_ENGLISH.__contains__, words)) >= len(words)


def quote(text: str) -> str:
    """Return the start of a text on one line, as a violation shows it."""
    return " ".join(text.split())[:MAX_QUOTE_LENGTH]


def split_sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text. A semicolon ends a sentence too.

    A sentence of more than `MAX_SENTENCE_LENGTH` characters is cut at a space, so that a text of any length is read in
    linear time.
    """
    return [part for sentence in _SENTENCE_END.split(text) for part in _cut(sentence)]


def _cut(sentence: str) -> Iterator[str]:
    start = 0
    while len(sentence) - start > MAX_SENTENCE_LENGTH:
        space = sentence.rfind(" ", start, start + MAX_SENTENCE_LENGTH)
        end = space if space > start else start + MAX_SENTENCE_LENGTH
        yield sentence[start:end]
        start = end
    yield sentence[start:]


def split_clauses(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each clause of a text, and whether it is negated.

    A clause without a verb of its own belongs to the one before: in "I will never cancel W1, reason: ordered by
    mistake" all are negated.
    """
    start, negated, separator = 0, False, ""
    for match in [*_CLAUSE_END.finditer(text), None]:
        clause = text[start : match.start()] if match else text[start:]
        continues = _CONTINUATION.fullmatch(separator) and not _OWN_VERB.match(clause)
        negated = is_negated(clause) or bool(negated and continues)
        yield clause, negated
        if match:
            start, separator = match.end(), match[0]


def is_negated(clause: str) -> bool:
    """Return whether a clause says that something is not done, as in "I won't cancel W1"."""
    return _NEGATION.search(clause) is not None and not _EXCEPTION.search(clause)
