"""Told facts: whether one text tells a fact, by its kind.

A text tells a value if a sentence asserts it, and if it has no other value of the same kind, whether stated, asked,
doubted or denied. Kinds are money and counts (numbers with the same unit), dates, times, and the words that the
family's tasks ask for. These other values are allowed: those that the user has said, the task's other outputs, what
gold says itself, the terms of a sum or a product that is the value, and bounds that the domain policy sets ("at least
15 minutes"). Reading out a record tells nothing.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from pydantic_core import from_json

from understudy.envs.dates import normalize_dates

MAX_READ_OUT = 3
"""Largest number of other values of a record, which neither the user nor gold says, in a text that tells a fact."""
MAX_LABELLED = 2
"""Largest number of values of a record that a text gives with their keys, as in "status: pending"."""
MAX_TERMS = 6
"""Largest number of other amounts that are tried as the terms of a sum."""

_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\b[Dd]r\.)(?<!\b[Mm]r\.)(?<!\b[Mm]rs\.)(?<!\b[Mm]s\.)(?<!\b[Pp]rof\.)[*_\"')]*\s+|\n+"
)
_STANCES = (
    r"absurd alleg apocryph assum baseless bluff bogus conjectur contradict debunk deni(?:ed|es) deny "
    r"discredit dismissed disprov disput disregard doubt dubious erroneous exaggerat fabricat fairy fake "
    r"false\b fiction figment forged fanci garbl gossip groundless guess gut hallucinat hearsay hoax hogwash hunch "
    r"hypothe ignore illus imagin implausib inaccura incorrect inexact invented joke kidding legend lie\b lies\b "
    r"lying mirage misheard misinform mislead misled misprint misquot misread misremember misspoke mistak mistook "
    r"misunderst myth no.one\b nobody nonsense obsolete out.?dated out.of.date perhaps placeholder possibilit "
    r"possibly prank presum pretend probab purport questionable reportedly retract rubbish rumor rumour skeptic "
    r"somebody someone speculat spurious stale superseded suppos suspicious tentativ toss.?up typo uncertain unclear "
    r"unconfirmed unconvinc unfounded unlikely unproven unreliab unsubstantiat unsure untrue unverif unwarranted "
    r"vague"
)
"""Starts of words with which a sentence does not assert what it states."""
_DOUBT = re.compile(
    rf"\b(?:{_STANCES.replace(' ', '|')})"
    r"|\b(?:(?:not|\w+n't|never|no longer|hardly) (?:\w+ )?(?:sure|certain|know|say"
    r"|tell|confirm|guarantee|clear|think|believe|true)"
    r"|maybe|might|may be|could be|would be wrong|wrong to|who knows|(?:cannot|can't|could(?:n't| not)|unable to)"
    r"(?: be)? (?:say|tell|confirm|know|verify|check|find|verified|confirmed)|some (?:say|would say|people)"
    r"|(?:either|neither|or)\b(?=.*\bor\b)"
    r"|(?<!\byou )(?<!\byou do )"
    r"(?:not|\w+n't|no|never|nothing) (?:\w+ ){0,2}(?:see|find|have|show|record|trace|sign|entry|such|mention"
    r"|basis|correct|valid|right|accurate|what i)(?!\w)"
    r"|no way (?:it|that|this)|in reality|something else|one of several|the claim|claim(?:s|ed|ing)? (?:that|to|it)"
    r"|used to be|no longer the case|(?:is|are|was) wrong|should(?:n't| not) be|no (?:\S+ "
    r"){1,3}found|mistake in|by mistake|(?:that|it|this|which)(?:'s| is| was| must be) (?:most likely |probably "
    r"|just )?"
    r"(?:an? )?(?:mistake|error|wrong)|hesitate to say|(?:else|other|rather|different) (?:than|from)"
    r"|if it|whether|(?:anything|everything|nothing) but|far from|rul(?:e|es|ed|ing) out|wouldn't|would not"
    r"|differs?|differed|would(?:'ve| have)|had things|belongs? to (?:an? )?(?:different|another|other|someone)"
    r"|(?:not|\w+n't) the case|refuse to say|i made|hop(?:ed|ing) for)\b",
    re.IGNORECASE,
)
"""A word of a sentence that does not assert what it states."""
_SENTENCE_OR_EQUATION = re.compile(r"[^\W\d_]{2}|=")
_JSON_KEY = re.compile(r'"\w+"\s*:')
_PROPOSES = re.compile(
    r"\byes (?:or|/) ?no\b|\b(?:(?:shall|should|may|can|could) (?:i|we)|(?:i|we)(?:'d|'ll| will| would| should)"
    r"|(?:want|like|authori[sz]e|allow) (?:me|us) to|if (?:i|we)"
    r"|(?:permission|approval|consent|go-ahead|okay|ok) to) (?!say|tell|guess|assume|claim|call)|\b(?:me|us) \w+ing\b",
    re.IGNORECASE,
)
"""The start of a question that proposes a write, whose price it states."""
_TABLE_ROW = re.compile(r"\s*[|\u2502+]")
_NEGATED = re.compile(
    r"(?:\b(?:not|never|no(?!-)|nothing|none)\b|n['\N{RIGHT SINGLE QUOTATION MARK}]t\b)(?! (?:only|just)\b"
    r"| (?:\w+ )?(?:more|over|above|than|exceeds?|beyond|past|until|before|after|later)\b)",
    re.IGNORECASE,
)
"""A word with which a clause denies what it states."""
_CLAUSE_END = re.compile(r"[,;:()]|\b(?:that|because|as|since|so|but|and|which|while|although)\b", re.IGNORECASE)
_PERSONAL_REFUSAL = re.compile(
    r"\b(?:so|therefore|which is why|and) (?:i|we) (?:cannot|can't|am unable|are unable|won't)\b.*", re.IGNORECASE
)
# A number with the word that follows it.
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[$\u20ac\u00a3]\s?)?(?P<number>-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?:\s?(?P<unit>%"
    r"|[a-z]+))?",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"\b(?:at (?:least|most)|more than|less than|over|under|within|up to|from|below|above"
    r"|minimum(?: is| of)?|maximum(?: is| of)?"
    r"|exceeds?|until|before|after|than|beyond|limit(?: is| of)?|only|first|last|next|every"
    r"|per)\s+(?:the )?[$\u20ac\u00a3]?$",
    re.IGNORECASE,
)
_ISO = re.compile(r"(?<![\w-])\d{4}-\d\d-\d\d(?![\w-])")
_MONTH_DAY = re.compile(
    r"\b(?:january|february|march|april|may|june|july|august|september|october|november|december) \d{1,2}(?!\d)"
)
_TIME = re.compile(r"(?<![\w:.])\d\d:\d\d(?![\w:])")
_NO_UNITS_LIST = (
    "a an the is are was were and or for to of in on at by with from per so as that which not but if then it this you "
    "your i we my our usd eur gbp dollars dollar euros euro pounds pound each total more less plus minus have has "
    "will would can since because than though unless instead also too now altogether all both either neither maybe "
    "perhaps could might"
)
_NO_UNITS = frozenset(_NO_UNITS_LIST.split())
_GENERAL = re.compile(r"\b(?:only|can|may|must|usually|normally|always)\b")
_PASSIVE = re.compile(r"\bbe \w+", re.IGNORECASE)


_TAKES_BACK = re.compile(
    r"\b(?:may|might|could|can) (?:all |both |also )?be (?:right|true|correct|wrong|false)\b"
    r"|\b(?:i|we) (?:do not|don't|am not|cannot|can't) (?:really |actually )?(?:know|be sure|sure|certain)\b"
    r"|\b(?:i|we) (?:am|'m|are|was|were) (?:only |just )?guessing\b"
    r"|\b(?:oops|whoops|my bad|scratch\b|strike that|(?:no|that),? make (?:it|that)\b|the (?:above|first) (?:was|is)\b"
    r"|let me (?:rephrase|correct)|on second (?:look|thought)"
    r"|(?:i|we) (?:meant\b(?! to)|mis\w+|mixed)|got (?:it|that|this|them) (?:mixed|wrong)|take (?:it|that) back)",
    re.IGNORECASE,
)
"""A sentence that takes back what the others assert."""


def takes_back(text: str) -> bool:
    """Return whether a text doubts its own answer."""
    return _TAKES_BACK.search(text) is not None


def split_sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text."""
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def is_denied(clause: str) -> bool:
    """Return whether a clause denies what it states."""
    return _NEGATED.search(clause) is not None


def split_clauses(sentence: str) -> list[str]:
    """Return the clauses of a sentence."""
    return _CLAUSE_END.split(sentence)


def is_assertion(sentence: str) -> bool:
    """Return whether a sentence asserts what it states: it asks and doubts nothing, and is no row of a table."""
    asks = sentence.rstrip(" *_\"')").endswith("?") and not _PROPOSES.search(sentence)
    return not (asks or _TABLE_ROW.match(sentence) or _DOUBT.search(_PERSONAL_REFUSAL.sub(" ", sentence)))


@dataclass(frozen=True)
class Values:
    """The values of a text by kind."""

    text: str

    @cached_property
    def numbers(self) -> list[tuple[float, str, bool]]:
        """The numbers, each with its unit and whether a word before it makes it a bound."""
        plain = _TIME.sub(" ", _MONTH_DAY.sub(" ", _ISO.sub(" ", self._normal)))
        found = []
        for match in _NUMBER.finditer(plain):
            unit = (match["unit"] or "").casefold()
            if match["unit"] and plain[match.end("number")] not in " %" and len(unit) > 2:
                continue  # part of a word
            value = float(match["number"].replace(",", ""))
            found.append(
                (
                    value,
                    "" if unit in _NO_UNITS else unit.removesuffix("s"),
                    bool(_BOUND.search(plain[max(0, match.start() - 30) : match.start()])),
                )
            )
        return found

    @cached_property
    def dates(self) -> frozenset[str]:
        """The dates, as months and days."""
        return frozenset(_to_month_day(day) for day in _ISO.findall(self._normal)) | set(
            _MONTH_DAY.findall(self._normal)
        )

    @cached_property
    def times(self) -> frozenset[str]:
        """The times of day."""
        return frozenset(_TIME.findall(self._normal))

    @cached_property
    def _normal(self) -> str:
        return normalize_dates(self.text.casefold())


@lru_cache(maxsize=512)
def values_of(text: str) -> Values:
    """Return the values of a text."""
    return Values(text)


_MONTHS = (
    "",
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)


def _to_month_day(day: str) -> str:
    month = int(day[5:7])
    return f"{_MONTHS[month]} {int(day[8:10])}" if month < len(_MONTHS) else day


def other_numbers(
    own: Collection[float], text: str, allowed: Collection[float], policy: Collection[float]
) -> set[float]:
    """Return the numbers of the kind of `own` in a text, except those that are allowed, bounds or terms of `own`."""
    found = values_of(text).numbers
    units = {unit for value, unit, _ in found if value in own}
    others = {
        value
        for value, unit, bound in found
        if value not in own
        and value not in allowed
        and not (bound and value in policy)
        and (unit in units or not unit or (units <= {""} and unit in ("", "%")))
    }
    explains = _SENTENCE_OR_EQUATION.search(text) and any(_is_made_of(value, others) for value in own)
    return set() if explains else others


def _is_made_of(value: float, others: Collection[float]) -> bool:
    """Return whether a number is the sum, the difference or a product of all the others."""
    terms = sorted(others)[: MAX_TERMS + 1]
    if not terms or len(terms) > MAX_TERMS:
        return not terms
    if len(terms) > 1 and abs(sum(terms) - value) < 0.006:
        return True
    if len(terms) == 2 and abs(terms[1] - terms[0] - value) < 0.006:
        return True
    counts = range(2, 13)
    large = [term for term in terms if term > 12 or not float(term).is_integer()]
    if len(large) == 1 and any(abs(large[0] * count - value) < 0.006 for count in counts):
        return True
    return len(large) > 1 and any(abs(sum(large) * count - value) < 0.006 for count in counts)


def other_dates(text: str, own: str, allowed: Sequence[str]) -> set[str]:
    """Return the dates of a text except those of `own` and of the `allowed` texts."""
    return set(values_of(text).dates.difference(values_of(own).dates, *(values_of(each).dates for each in allowed)))


def other_times(text: str, own: str, allowed: Sequence[str]) -> set[str]:
    """Return the times of a text except those of `own` and of the `allowed` texts."""
    return set(values_of(text).times.difference(values_of(own).times, *(values_of(each).times for each in allowed)))


def without_general(text: str) -> str:
    """Return a text without general clauses, as "only pending orders can be changed", and without future passives."""
    clauses = re.split(r"[,;]|(?<=[.!?])\s|\b(?:and|so|but)\b", text)
    general = [
        clause
        for clause in clauses
        if _GENERAL.search(clause) and re.search(r"\b\w+s\b(?= (?:can|may|must|that)\b)", clause)
    ]
    for clause in general:
        text = text.replace(clause, " ")
    return _PASSIVE.sub(" ", text)


def reads_out(text: str, records: Sequence[str], said: str) -> bool:
    """Return whether a text reads out one of the records, which are JSON texts. `said` is what may be said anyway."""
    if len(_JSON_KEY.findall(text)) > 1:
        return True
    folded, said = text.casefold(), said.casefold()
    for record in records:
        stated = labelled = 0
        for key, value in _leaves(record):
            place = folded.find(value) if value not in said else -1
            if place < 0:
                continue
            stated += 1
            near = folded[max(0, place - len(key) - 12) : place + len(value) + len(key) + 8]
            labelled += key in near
        if stated > MAX_READ_OUT or labelled > MAX_LABELLED:
            return True
    return False


@lru_cache(maxsize=256)
def _leaves(record: str) -> Collection[tuple[str, str]]:
    """Return the texts and numbers of a JSON record, each once with its key, case-folded."""
    if record[:1] not in ("{", "["):
        return ()
    try:
        value = from_json(record)
    except ValueError:
        return ()
    keys = {text: key for key, text in _walk(value, "") if len(text) > 1}
    return tuple((key, text) for text, key in keys.items())


def _walk(value: object, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _walk(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, key)
    elif not isinstance(value, bool) and value is not None:
        yield key.replace("_", " ").casefold(), str(value).casefold()
