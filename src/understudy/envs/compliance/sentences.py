"""Sentences and clauses of a text, and whether they deny what they say or say it under a condition."""

import re
from collections.abc import Iterator
from functools import lru_cache

MAX_QUOTE_LENGTH = 200
"""Largest number of characters that a violation quotes."""
MAX_SENTENCE_LENGTH = 1000
"""Largest number of characters of a sentence that is read as a whole."""

MIN_WORDS = 20
"""Number of words from which the language of a text is told."""
MIN_WORDS_PER_FUNCTION_WORD = 12
_ENGLISH_LIST = "the of and to is are you your for with not that this it my i have can please what when if be on by how"
_ENGLISH = frozenset(_ENGLISH_LIST.split())

NEGATION = re.compile(
    r"\b(?:not|never|cannot|neither|nor|no(?!-)|none|nobody|nothing|without|unable|unwilling|impossible|ineligible"
    r"|unavailable|refuse|decline|instead of|rather than|too late|far from|hardly|avoid|prevents?|except|refrain"
    r"|hold off|abstain|forgo|skip|stop(?:s|ping)? (?:me|us) from|out of the question)\b|n't\b"
)
"""A word with which a clause denies what follows."""
CONDITION = re.compile(
    r"\b(?:before(?! (?:that|this|it|me|us)\b)|until|unless|if|whether|in case|once|when|as soon as|only)\b"
)
"""A word with which a clause depends on something."""
POSSIBILITY = re.compile(
    r"\b(?:(?:can|may)(?! (?:count|rely|bank|bet|depend|expect|look|consider|tell (?:your|them|everyone))\b)|might"
    r"|could|must|should"
    r"|(?<!was )(?<!were )(?<!been )able to|(?:allowed|possible|eligible) (?:to|for))\b"
)
"""A word with which a clause says that something may happen."""
_NEUTRAL = re.compile(
    r"\b(?:free of (?:any )?charge|thank(?:s| you) for \w+ing|as (?:you )?request(?:ed)?"
    r"|(?:the|your|this) requested (?=\w)|(?:pleased|happy|glad|delighted"
    r"|sorry) to (?:help|assist|hear|see|say|tell|inform|confirm|announce|report|answer|serve|welcome|explain)\b"
    r"|feel free to \w+|give (?:me|us) (?:the|your|a)|(?:no|without) (?:any "
    r"|extra |additional )*(?:charge|fee|cost)s?|credit cards?"
    r"|return (?:flights?|trips?|dates?|policy)|closing times?|dropped calls|wrong bills?"
    r"|emails?(?! (?:you|me|us|them|it|the|your|out)\b)|double[- ]check(?:ed|ing)?"
    r"|get back to|updat(?:e|ing) you|call(?:s|ed|ing)? back|no longer (?:needed|need|want|wanted)"
    r"|ordered by mistake|order(?:ed|ing)? (?:number|id|it by)"
    r"|not only|not just|why not|nothing else|no (?:problem|trouble|mistake|misunderstanding|worries|doubt)|no "
    r"later than"
    r"|without (?:an? |any |further )?(?:delay|hesitation|ado|hitch|problems?|issues?|trouble)"
    r"|(?:amount|price|total|sum) paid|(?<=, )paid (?=with\b|by\b|from\b)|noted|lined up|in addition"
    r"|on (?:the same page|board)|ma(?:k|d)e? sure|get(?:ting)? started|(?:is|are|'s) (?:it |this |that |these "
    r"|all |everything )?correct|(?:can't|cannot|can not) wait|(?:won't|not) hesitate|(?:can't|cannot) help but"
    r"|n't worry|not to worry|never mind"
    r"|booked visits?|open (?:bills?|tickets?)|payment (?:request|plan|method)s?|bill(?:ing|s)? address(?:es)?"
    r"|delivery (?:fee|address|time)s?|change your mind|changed? my mind|return(?:ed)? to you shortly"
    r"|mobile data|network settings|(?:look|mov|go)(?:e|ing)? forward"
    r"|(?:your|the|this) (?:new |old )?booking(?! (?:of|for)\b)|(?:economy|business) bookings?|fully booked"
    r"|(?:(?:cannot|can't) be (?:undone|reversed|reverted)|after (?:which|that|this),? it can(?:not|'t| no longer) be"
    r" (?:changed|cancelled|undone))(?: (?:or|and) (?:changed|cancelled|undone|reversed))?|cancellation fees?"
    r"|round[- ]?trips?|one[- ]way|(?:maximum|longest) suspensions?(?: period)?|suspensions are limited)\b"
)
"""Words that look like acts or like negations and are none."""
_TITLE = re.compile(r"\b(dr|prof|mr|mrs|ms)\.(?= )")
_HALF_OF_DAY = re.compile(r"(?<=\d)( ?)([ap])\.m\.")
_MONTH = re.compile(r"\b(jan|feb|mar|apr|aug|sept?|oct|nov|dec)\.(?= \d)")
_ONE_L = re.compile(r"\bcancel(?=ed\b|ing\b)")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")
_CLAUSE_END = re.compile(
    r"[;()\n]|(?::(?!\d)|\s[-\u2013\u2014]+\s|\u2014)(?! ?(?:\w+ly )?\w+ed\b)|\s[+&]\s"
    r"|\b(?:but|because|since|so that|(?<!do )(?<!did )(?<!done )so|which|while|whereas|although|though"
    r"|(?<=[^ ] )instead"
    r"|as(?= (?:i|we)\b)"
    r"|(?:note|be (?:aware|advised|informed)) that)\b|\bthat (?=(?:we|our|my)\b)"
    r"|,(?= (?:and |so |then |or |also )?(?:i|we|you|it|this|that|they|there|the|your|our"
    r"|my|an?|please|all|every|one|just)\b)"
    r"|,? not (?=all\b)|(?:,| and)(?: then| also)* (?=(?:check|keep|look|see|tell|let|leave)\b)"
    r"|\b(?:and|or) (?=(?:i|we|you|it|this|that|they|there|will|have|am|shall)\b)"
)


@lru_cache(maxsize=512)
def normalize_text(text: str) -> str:
    """Return the text case-folded, with plain apostrophes and single spaces.

    The dots of titles, times and months are removed, which end no sentence: "Dr.", "2 p.m.", "Mar. 5". "Canceled" is
    spelled "cancelled", as statuses of the domains are.
    """
    lines = (" ".join(line.split()) for line in text.casefold().splitlines())
    text = "\n".join(filter(None, lines)).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    text = _ONE_L.sub("cancell", text).replace("e-mail", "email")
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


def split_clauses(sentence: str) -> Iterator[str]:
    """Yield the clauses of a sentence, with "_" in place of words that look like acts or like negations."""
    sentence = _NEUTRAL.sub(lambda match: "_" * len(match[0]), sentence)
    start = 0
    for end in [*_CLAUSE_END.finditer(sentence), None]:
        yield sentence[start : end.start() if end else len(sentence)]
        start = end.end() if end else 0
