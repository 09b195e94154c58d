"""Acts: what a text says that somebody does, did or will do for the user, whatever the sentence looks like.

A mention of an act is refused ("I cannot cancel it"), general ("orders can be cancelled while they are pending"), done
by the user ("you can close the app"), or else asserted. Only asserted acts are found here. Words that nobody has named
count as acts where a clause asserts something.
"""

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from understudy.envs.compliance.sentences import CONDITION, NEGATION, POSSIBILITY, split_clauses, split_sentences
from understudy.envs.compliance.vocabulary import TOOL_NOUNS, is_act, is_noun, is_past_form, stem

Tense = Literal["past", "future", "present"]

_DENIED_AFTER = re.compile(
    r"\b(?:is|are|was|were|be|has|have|can|could|will|would)(?:n't|not\b| not\b| no longer\b| never\b)"
    r"|\b(?:is|are) (?:impossible|unavailable|out of the question|up to)\b"
    r"|\b(?:takes?|take up to|depends?|require[sd]?)\b"
)
"""A predicate that denies its subject, or says something general about it: "a refund is not possible"."""
_USER = re.compile(
    r"\byou(?:'d|'ll|'ve| would| will| have)?(?: \w+ly| also| just| now| already)? (?:can(?! (?:count|rely)\b)"
    r"|may|could|need|needed|have to|should|must|might|want|wanted|like|asked|requested|"
    r"wish|wished|mentioned|said|told|paid|pay|bought|ordered|booked|added|chose|reported|ask|request|had|try|do|did)\b"
    r"|\byour (?:request|wish|question|inquiry|message|intention)\b|\b(?:asking|ask"
    r"|asked|request|requested) (?:for|to|about)\b|\bhow to\b"
)
_BY_USER = re.compile(r"\byou(?:'ve|'d| have| had)? (?:\w+ly )?$")
"""The subject of what the user did: "as you gave them"."""
_ABILITY = re.compile(rf"{POSSIBILITY.pattern}(?: \w+){{0,3}} $")
"""What stands before an act that may happen."""
_IMPERATIVE = re.compile(
    r"^\W*(?:(?:please|kindly|then|now|next|first|and|just|after that|once more|also|if so)[, ]+)*$"
)
"""What stands before an instruction to the user."""
_INSTRUCTS = re.compile(
    r"\W*(?:please|kindly|remember to|make sure to|be sure to|do(?:n't| not) forget to)"
    r" (?!(?:note|be|know|find|see|expect|hold|rest)\b)(?!.*\d\.\d\d)"
)
"""The start of a sentence on what the user shall do: "please bring your insurance card"."""
_VERB_PLACE = re.compile(
    r"(?:\b(?:i|we|they|us|me|to|will|shall|would|must|did|please|and|also|then|team|system"
    r"|colleagues?|manager|ahead and|immediately|now|automatically|just|hereby)|'ll|'d)\s+(?:\w+ly )?$"
)
"""What stands before a word that is a verb there, and no noun."""
_OBJECT_FOLLOWS = re.compile(r"\s+(?:your|the|an?|all|every|you|it|this|that|them|both|any|each|our|everything)\b")
_ID_FOLLOWS = re.compile(r" [a-z_-]*\d")
_OFFER = re.compile(
    r"\b(?:if|once|when|as soon as|should|in case) you(?:'d| would)? (?!(?:\w+ )?(?:do not"
    r"|don't|not|refuse|decline|disagree|say no)\b)"
    r"|\bif (?:there (?:is|are)|any\w*|something|necessary|needed)\b"
)
"""A condition that the user or the future may fulfil. A threat has another one: "if you do not agree"."""
_CHOICE = re.compile(r"\bif you(?:'d| would)? (?:like|want|wish|prefer)\b")
"""What makes an act that may happen an offer of something else: "if you like, i can also cancel w2"."""
_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")
_ADVERBS = (
    r"(?:(?:already|just|now|also|then|both|all|each|even|since|soon|first|too|hereby"
    r"|gone ahead and|went ahead and|go ahead and|\w+ly)\s+){0,4}"
)
_ACTOR = (
    r"(?:i|we|they|he|she|somebody|someone|(?:\w+ )?(?:team|system|colleagues?|manager"
    r"|supervisor|department|specialists?|boss|agents?)(?: of mine)?)"
)
_PHRASES = {
    "back": re.compile(
        r"\b(?P<verb>back) (?:to|on|onto|into|in) your\b|\b(?:get|receive|have|see) (?:[\w.$]+ ){1,5}(?P<end>back)\b"
    ),
    "handover": re.compile(
        r"\b(?:human|live|real|agents?|colleagues?|specialists?|supervisors?|representatives?|managers?|nurses?|staff"
        r"|person|team)\b"
    ),
    "gift": re.compile(r"\bon (?:us|the house)\b"),
    "same": re.compile(
        r"\b(?:the same|likewise) (?P<verb>has|have|had|was|is|will|goes|applies)\b"
        r"|\b(?P<end>did|done|do|apply|applied) the same\b"
    ),
    "do": re.compile(
        r"\b(?P<verb>do|did|done) (?:it|that|this|so)\b|\balready (?:been )?(?P<end>done)\b"
        r"|\b(?P<care>took|taken|take) care of\b|\b(?P<get>got|get|getting) (?:it|that|this) (?:done|through)\b"
    ),
    "exception": re.compile(
        r"\b(?:(?:make|made|making) an (?=exception)|anyway|all the same|regardless|nonetheless|off the record"
        r"|(?:override|overrode|overridden|bypass|bypassed)\b)"
    ),
}
"""Acts without a verb for them: money goes "back to your card", "a colleague" takes over, "i have done it", "anyway"."""
_PAST = re.compile(r"\b(?:have|has|had|been|was|were|did|already|just|got|went|done)\b|'ve\b")
_DID = re.compile(r"\bdid (?:\w+ )?$")
_FUTURE = re.compile(
    r"\b(?:will|shall|going to|about to|to be|being|tomorrow|tonight|shortly|soon|would"
    r"|by \w+day|within|later|next|am|are to|is to|let me|me to|us to|plan|intend)\b|'ll\b"
    r"|'d\b|'m\b"
)
_AGENT = re.compile(
    rf"\b{_ACTOR}(?:'ve|'ll|'m|'d|'re)?(?:\s+(?:have|has|had|will|shall|am|are|is|would|can"
    rf"|could|did|do|going to|about to|being))*\s+{_ADVERBS}$"
)
"""What stands before an act of the agent, or of somebody on its side: "i have already"."""
_ASSERTS = re.compile(
    r"\b(?:i|we|you|they|he|she)(?:'ve|'ll|'re|'m|'d)?\b|\byours?\b|\b(?:has|have|had|was|were|will|gets?|got)\b"
    r"|\b(?:is|are|am|be|been|being) (?:\w+ly |now |also |already |just )*(?:\w+(?:ed|en)|on|sent|paid|yours)\b"
    r"|\bfree\b"
)
"""What makes a clause say that something was, is or will be done: somebody who does it, or a verb in such a form."""
_FINITE = re.compile(r"\b(?:i|we|they|is|are|was|were|has|have|had|will|shall)\b|'(?:ll|ve|m|re|s)\b")
_FEELS = re.compile(
    r"\b(?:i|we)(?:'m| am|'re| are| do)? (?:\w+ly |really |so |very |also )*(?:understand|appreciate|apologi[sz]e"
    r"|regret|sympathi[sz]e|empathi[sz]e|sorry)\b|\b(?:sorry|apologies) (?:for|about)\b"
    r"|\b(?:need|let me know|(?:tell|give|send) me|so (?:that )?i can)\b"
    r"|\bto (?:help|assist|find|verify|locate|look|start)\b"
)
"""The start of a clause about feelings, or one that asks for information. It asserts no act."""
_HARMLESS = frozenset(
    map(
        stem,
        "understand know see hear feel think believe guess hope wish want need like love hate value care appreciate "
        "regret realize imagine sympathize empathize apologize thank remember notice worry agree trust respect admire "
        "welcome mean sound seem wonder assume suppose recognize acknowledge sense hesitate aim strive try deserve "
        "saw felt knew heard thought meant look search check read review examine dig spend spent load find found "
        "explain tell told say said answer clarify describe summarize walk guide speak talk ask".split(),
    )
)
"""Stems of verbs of the mind, of looking and of speaking: what they take as an object changes nothing."""
_SAYS_WHAT_IS = frozenset(
    "a an the our my your this that what why how as here happy glad sorry able sure aware ready eager grateful "
    "committed dedicated confident".split()
)
"""What follows a copula that only describes."""
_AUXILIARY = r"(?:have|has|had|been|will|shall|would|can|could|do|did|to|me|just|not|all|\w+ly|always|also|so|too|both)"
_PREDICATE = re.compile(
    rf"\b(?:{_ACTOR}(?:'ve|'ll|'d)?|let)(?:\s+{_AUXILIARY})*+\s+(?!(?:am|are|is|was|were)\b)(?P<verb>\w+)"
    rf"|\b(?:is|are|am|was|were|been|'s|'m|'re)(?:\s+{_AUXILIARY})*+\s+(?P<copula>\w+)"
)
"""A verb of the agent, or what follows a copula."""
_GIVES = re.compile(
    r"\b(?:you(?:'ve|'ll|'re)(?! been\b)|you (?:\w+ )?(?:have(?! been\b)|get|got|will|are|receive)"
    r"|yours?(?= now)|free|gets?|got)\b"
)
"""What says that the user has something, or gets it."""
_ATTRIBUTE = re.compile(r"\b(?:the|your|this|these|an?|of|for|to|from|any|each|our|my) $")
"""What stands before a participle that is an adjective: "the cancelled order"."""
_TO = re.compile(r"\W*(?:in order )?to $")
_INVERTED = re.compile(
    r"\W*(?:(?:what|which|who|when|where|why|how)\b.* )?(?:have|has|had|did|do|does|is|are|was|were|will|shall|can|could|would|should|may) (?:i|we|you|it|the|your)\b"
)


class Act(NamedTuple):
    """An asserted act."""

    word: str
    """The word that names it."""
    clause: str
    start: int
    """Where the word begins in the clause."""
    end: int
    sentence: str
    tense: Tense
    by_agent: bool
    """Whether the clause says that the agent, or somebody on its side, does it."""
    is_known: bool = True
    """Whether the word names an act of the vocabulary, and is no word that nobody has named."""

    @property
    def before(self) -> str:
        """What stands before the word in its clause."""
        return self.clause[: self.start]

    @property
    def after(self) -> str:
        """What follows the word in its clause."""
        return self.clause[self.end :]


def find_acts(text: str, *, proposed: bool, is_known: Callable[[str], bool] = lambda word: True) -> Iterator[Act]:
    """Yield the acts that a normalized text asserts, and the words there that are not known.

    If the user has agreed to the text, it is `proposed`: what it asks, offers or makes conditional is asserted too.
    """
    for sentence in split_sentences(text):
        for clause in split_clauses(sentence):
            for word, place, end in _find_words(clause):
                by_agent = bool(_AGENT.search(clause[max(0, place - 80) : place]))
                act = Act(word, clause, place, end, sentence, _find_tense(clause, place), by_agent)
                if not _is_exempt(act, proposed):
                    yield act
            unknown = next(
                (m for m in _WORD.finditer(clause) if not (is_known(m[0]) or NEGATION.fullmatch(m[0]))), None
            )
            if unknown and _ASSERTS.search(clause) and not sentence.endswith("?") and not _INSTRUCTS.match(sentence):
                before = clause[: unknown.start()]
                denied = any(pattern.search(before) for pattern in (NEGATION, CONDITION, POSSIBILITY, _FEELS))
                if not denied and not (_describes(clause) and not before.endswith(" to ")):
                    yield Act(unknown[0], clause, *unknown.span(), sentence, "present", False, False)


def _describes(clause: str) -> bool:
    """Return whether a clause only says what somebody feels or knows, or what something is."""
    found = list(_PREDICATE.finditer(clause))
    return bool(found) and not _GIVES.search(clause) and all(map(_is_description, found))


def _is_description(predicate: re.Match[str]) -> bool:
    if verb := predicate["verb"]:
        return stem(verb) in _HARMLESS
    return predicate["copula"] in _SAYS_WHAT_IS


def _find_words(clause: str) -> Iterator[tuple[str, int, int]]:
    """Yield the words of acts in a clause, and where they begin and end."""
    for match in _WORD.finditer(clause):
        if is_act(match[0]) and _is_act_here(match[0], clause, match):
            yield match[0], *match.span()
    for word, pattern in _PHRASES.items():
        for match in pattern.finditer(clause):
            yield word, match.start(match.lastgroup or 0), match.end()


def _is_act_here(word: str, clause: str, match: re.Match[str]) -> bool:
    """Return whether a word of an act, which may also be a noun or an adjective, is one there: "close", "orders"."""
    if word in TOOL_NOUNS and _ID_FOLLOWS.match(clause, match.end()):
        return False
    if is_past_form(word):
        before = clause[: match.start()]
        return not (
            _ATTRIBUTE.search(before)
            or (
                not before.strip(" |*_")
                and clause[match.end() :].strip()
                and not _OBJECT_FOLLOWS.match(clause, match.end())
            )
        )
    if is_noun(word) or word.endswith("ing"):
        return True
    before = clause[max(0, match.start() - 80) : match.start()]
    if _VERB_PLACE.search(before[-30:]) or _AGENT.search(before):
        return True
    is_instruction = _IMPERATIVE.match(clause[: match.start()])
    return bool(_OBJECT_FOLLOWS.match(clause, match.end()) and (is_instruction or word.endswith("s")))


def _find_tense(clause: str, place: int) -> Tense:
    before = clause[:place]
    if _FUTURE.search(before):
        return "future"
    word = (_WORD.match(clause, place) or ("",))[0]
    if is_past_form(word) and _AGENT.search(before[-80:]):
        return "past"
    if _PAST.search(before) and not before.endswith(" to ") and (is_past_form(word) or not is_act(word) or is_noun(word) or _DID.search(before)):
        return "past"
    return "future" if _FUTURE.search(clause, place) else "present"


def _is_exempt(act: Act, proposed: bool) -> bool:
    """Return whether an act is refused, general, done by the user or asked for, and so not asserted."""
    before, after, is_question = act.before, act.after, act.sentence.endswith("?")
    if NEGATION.search(before) or _DENIED_AFTER.search(after) or act.word == "exception":
        return act.word != "exception" or bool(NEGATION.search(before))
    if act.word == "handover" and not _FINITE.search(act.clause):
        return True
    if CONDITION.search(before) and not (proposed or "i will" in before):
        return True
    if _ABILITY.search(before) and (not (proposed and act.by_agent) or _CHOICE.search(act.sentence)):
        return True
    if _IMPERATIVE.match(before) and not (act.word.endswith(("ed", "ing")) or is_noun(act.word)):
        return not proposed or "please" in before
    if _INSTRUCTS.match(act.sentence) and not act.by_agent and act.tense != "past":
        return True
    if _BY_USER.search(before[-30:]):
        return True
    if proposed:
        return False
    if (is_question and _INVERTED.match(act.sentence)) or _TO.match(before):
        return True
    return act.tense != "past" and bool(is_question or _USER.search(before + act.word) or _OFFER.search(act.sentence))
