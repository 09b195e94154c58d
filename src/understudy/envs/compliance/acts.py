"""Acts: what a text says that somebody does, did or will do for the user, whatever the sentence looks like.

A mention of an act is refused ("I cannot cancel it"), general ("orders can be cancelled while they are pending"), done
by the user ("you can close the app"), or else asserted. Only asserted acts are found here.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from understudy.envs.compliance.sentences import split_sentences
from understudy.envs.compliance.vocabulary import ACT_WORDS, NOUNS, is_ambiguous, is_past_form

Tense = Literal["past", "future", "present"]

_NO_ACTS = re.compile(
    r"\b(?:free of (?:any )?charge|thank(?:s| you) for \w+ing|as (?:you )?request(?:ed)?"
    r"|(?:the|your|this) requested (?=\w)|(?:pleased|happy|glad|delighted"
    r"|sorry) to \w+|feel free to \w+|give (?:me|us) (?:the|your|a)|(?:no|without) (?:any "
    r"|extra |additional )*(?:charge|fee|cost)s?|credit cards?"
    r"|return (?:flights?|trips?|dates?|policy)|closing times?|dropped calls|wrong bills?"
    r"|e-?mails?|double[- ]check(?:ed|ing)?"
    r"|get back to|call(?:s|ed|ing)? back|all set|no longer (?:needed|need|want|wanted)"
    r"|ordered by mistake|order(?:ed|ing)? (?:number|id|it by)"
    r"|not only|not just|nothing else|no (?:problem|worries|doubt)|no later than"
    r"|without (?:delay|hesitation|further ado)"
    r"|(?:can't|cannot|can not) wait|(?:won't|not) hesitate|(?:can't|cannot) help but|n't worry|not to worry|never mind"
    r"|booked visits?|open (?:bills?|tickets?)|payment (?:request|plan|method)s?|bill(?:ing|s)? address(?:es)?"
    r"|delivery (?:fee|address|time)s?|change your mind|changed? my mind|return(?:ed)? to you shortly"
    r"|mobile data|network settings|(?:look|mov|go)(?:e|ing)? forward"
    r"|(?:your|the|this) (?:new |old )?booking(?! (?:of|for)\b))\b"
)
"""Words that look like acts or like negations and are none."""
_CLAUSE_END = re.compile(
    r"[;:()\n]|\s[-\u2013\u2014]+\s|\u2014|\b(?:but|because|since|so that|so|which|while"
    r"|whereas|although|though|instead)\b"
    r"|,(?= (?:and |so |then |or |also )?(?:i|we|you|it|this|that|they|there|the|your|our"
    r"|my|an?|please|all|every|one)\b)"
    r"|\b(?:and|or) (?=(?:i|we|you|it|this|that|they|there|will|have|am|shall)\b)"
)
_NEGATION = re.compile(
    r"\b(?:not|never|cannot|neither|nor|no|none|nobody|nothing|without|unable|impossible|ineligible|refuse|decline"
    r"|instead of|rather than|too late|far from|hardly|avoid|prevents?|stop(?:s"
    r"|ping)? (?:me|us) from|out of the question"
    r"|before(?! (?:that|this|it|me|us)\b)|until|unless|if|whether|in case|except)\b|n't\b"
)
"""A word after which an act is denied or depends on something."""
_DENIED_AFTER = re.compile(
    r"\b(?:is|are|was|were|be)(?:n't| not| no longer) (?:\w+ ){0,2}?(?:possible|allowed"
    r"|permitted|available|eligible|needed|required|included|due)\b"
    r"|\b(?:is|are) (?:impossible|unavailable|out of the question|up to)\b|\b(?:is|are|has"
    r"|have|was|were)(?:n't| not) (?:yet )?been\b"
    r"|\b(?:takes?|take up to|depends?|require[sd]?)\b"
)
"""A predicate that denies its subject, or says something general about it: "a refund is not possible"."""
_ABILITY = re.compile(
    r"\b(?:can(?! (?:count|rely)\b)|may|might|could|must|should|able to|allowed to|possible to|eligible (?:to|for))"
    r"(?: \w+){0,3} $"
)
"""What stands before an act that may happen."""
_USER = re.compile(
    r"\byou(?:'d|'ll|'ve| would| will| have)?(?: \w+ly| also| just| now| already)? (?:can(?! (?:count|rely)\b)"
    r"|may|could|need|needed|have to|should|must|might|want|wanted|like|asked|requested|"
    r"wish|wished|mentioned|said|told|paid|pay|bought|ordered|booked|added|chose|reported|ask|request|had|try|do|did)\b"
    r"|\byour (?:request|wish|question|inquiry|message|intention)\b|\b(?:asking|ask"
    r"|asked|request|requested) (?:for|to|about)\b|\bhow to\b"
)
_IMPERATIVE = re.compile(
    r"^\W*(?:(?:please|kindly|then|now|next|first|and|just|after that|once more|also|if so)[, ]+)+$|^\W*$"
)
"""What stands before an instruction to the user."""
_INSTRUCTS = re.compile(
    r"\W*(?:please|kindly|remember to|make sure to|be sure to|do(?:n't| not) forget to)"
    r" (?:bring|have|show|carry|check|review|visit|call|contact)\b(?!.*\d\.\d\d)"
)
"""The start of a sentence on what the user shall do: "please bring your insurance card"."""
_NOT_INSTRUCTION = re.compile(r"\b(?:been|being|is|are|was|were|gets?|got|will|of \d)\b")
_VERB_PLACE = re.compile(
    r"(?:\b(?:i|we|they|us|me|to|will|shall|would|must|please|and|also|then|team|system"
    r"|colleagues?|manager|this|that|it|ahead and"
    r"|immediately|now|automatically|just|hereby)|'ll|'d)\s+(?:\w+ly )?$"
)
"""What stands before a word that is a verb there, and no noun."""
_OBJECT_FOLLOWS = re.compile(r"\s+(?:your|the|an?|all|every|you|it|this|that|them|both|any|each|our|everything)\b")
_ID_FOLLOWS = re.compile(r" [a-z_-]*\d")
_DEMONSTRATIVE = re.compile(r"(?:this|that|it)\b")
_OFFER = re.compile(
    r"\b(?:if|once|when|as soon as|should|in case) you(?:'d| would)? (?!(?:\w+ )?(?:do not"
    r"|don't|not|refuse|decline|disagree|say no)\b)"
    r"|\bif (?:there (?:is|are)|any\w*|something|necessary|needed)\b"
)
"""A condition that the user or the future may fulfil. A threat has another one: "if you do not agree"."""
_CHOICE = re.compile(r"\bif you(?:'d| would)? (?:like|want|wish|prefer)\b")
"""What makes an act that may happen an offer of something else: "if you like, i can also cancel w2"."""
_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*|\d[\w.,]*")
_ADVERBS = (
    r"(?:(?:already|just|now|also|then|both|all|each|even|since|soon|first|too|hereby"
    r"|gone ahead and|went ahead and|go ahead and|\w+ly)\s+){0,4}"
)
_ACTOR = (
    r"(?:i|we|they|he|she|somebody|someone|(?:\w+ )?(?:team|system|colleagues?|manager"
    r"|supervisor|department|specialists?|boss|agents?)(?: of mine)?)"
)
_MONEY_BACK = re.compile(
    r"\b(?P<verb>back) (?:to|on|onto|into|in) your\b|\b(?:get|receive|have|see) (?:[\w.$]+ ){1,5}(?P<end>back)\b"
)
"""Money that a text moves to the user without a verb for it: "500.00 goes back to your card"."""
_PAST = re.compile(r"\b(?:have|has|had|been|was|were|did|already|just|got|went|done)\b|'ve\b")
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


class Act(NamedTuple):
    """An asserted act."""

    word: str
    """The word that names it."""
    clause: str
    start: int
    """Where the word begins in the clause."""
    sentence: str
    tense: Tense
    by_agent: bool
    """Whether the clause says that the agent, or somebody on its side, does it."""

    @property
    def before(self) -> str:
        """What stands before the word in its clause."""
        return self.clause[: self.start]

    @property
    def after(self) -> str:
        """What follows the word in its clause."""
        return self.clause[self.start + len(self.word) :]


def split_act_clauses(sentence: str) -> Iterator[str]:
    """Yield the clauses of a sentence."""
    start = 0
    for end in [*_CLAUSE_END.finditer(sentence), None]:
        yield sentence[start : end.start() if end else len(sentence)]
        start = end.end() if end else 0


def find_acts(text: str, *, proposed: bool) -> Iterator[Act]:
    """Yield the acts that a normalized text asserts.

    If the user has agreed to the text, it is `proposed`: what it asks, offers or makes conditional is asserted too.
    """
    for sentence in split_sentences(text):
        sentence = _NO_ACTS.sub(lambda match: "_" * len(match[0]), sentence)
        is_question = sentence.endswith("?")
        for clause in split_act_clauses(sentence):
            for word, place in _find_words(clause):
                by_agent = bool(_AGENT.search(clause[max(0, place - 80) : place]))
                act = Act(word, clause, place, sentence, _find_tense(clause, place), by_agent)
                if not _is_exempt(act, is_question, proposed):
                    yield act


def _find_words(clause: str) -> Iterator[tuple[str, int]]:
    """Yield the words of acts in a clause, and where they begin."""
    for match in _WORD.finditer(clause):
        word = match[0]
        if word in ACT_WORDS:
            if is_ambiguous(word):
                if _ID_FOLLOWS.match(clause, match.end()) and word in NOUNS:
                    continue
                verb = _VERB_PLACE.search(clause[max(0, match.start() - 30) : match.start()])
                if verb and _DEMONSTRATIVE.match(verb[0]) and not word.endswith(("s", "ed")):
                    continue
                if not verb and not (word.endswith("s") and _OBJECT_FOLLOWS.match(clause, match.end())):
                    if not (match.start() == 0 or _IMPERATIVE.match(clause[: match.start()])):
                        continue
                    if not _OBJECT_FOLLOWS.match(clause, match.end()):
                        continue
            yield word, match.start()
    for match in _MONEY_BACK.finditer(clause):
        yield "back", match.start(match.lastgroup or 0)


def _find_tense(clause: str, place: int) -> Tense:
    before = clause[:place]
    if _FUTURE.search(before):
        return "future"
    if _PAST.search(before) or (_AGENT.search(before[-80:]) and is_past_form(_WORD.match(clause, place)[0])):  # type: ignore[index]
        return "past"
    return "future" if _FUTURE.search(clause, place) else "present"


def _is_exempt(act: Act, is_question: bool, proposed: bool) -> bool:
    """Return whether an act is refused, general, done by the user or asked for, and so not asserted."""
    before, after = act.before, act.after
    if act.word in _STATUSES and not act.by_agent and act.tense != "future":
        return True
    if _NOUN_FOLLOWS.match(after) and is_past_form(act.word) and not act.by_agent:
        return True
    if _is_negated(act, proposed) or _DENIED_AFTER.search(after):
        return True
    if _ABILITY.search(before) and (not (proposed and act.by_agent) or _CHOICE.search(act.sentence)):
        return True
    if _IMPERATIVE.match(before) and not _NOT_INSTRUCTION.search(act.clause) and not act.word.endswith(("ed", "ing")):
        return not is_noun(act.word)
    if _INSTRUCTS.match(act.sentence) and not act.by_agent and act.tense != "past":
        return True
    if is_question and _INVERTED.match(act.sentence) and not proposed:
        return True
    if _BY_USER.search(before[-30:]):
        return True
    if not proposed:
        if _TO.match(before):
            return True
        if _USER.search(before + act.word) and act.tense != "past":
            return True
        return act.tense != "past" and (is_question or bool(_OFFER.search(act.sentence)))
    return False


_STATUSES = frozenset(("placed", "shipped", "delivered", "booked"))
"""Participles that say how a thing is."""
_BY_USER = re.compile(r"\byou(?:'ve|'d| have| had)? (?:\w+ly )?$")
"""The subject of what the user did: "as you gave them"."""
_TO = re.compile(r"\W*(?:in order )?to $")
_NOUN_FOLLOWS = re.compile(
    r"\s+(?:orders?|reservations?|lines?|bills?|visits?|items?|flights?|trips?|appointments?|prescriptions?)\b"
)
_INVERTED = re.compile(
    r"\W*(?:have|has|had|did|do|does|is|are|was|were|will|shall|can|could|would|should|may) (?:i|we|you|it|the|your)\b"
)
_CONDITIONS = re.compile(r"\b(?:before|until|unless|if|whether|in case)\b")


def _is_negated(act: Act, proposed: bool) -> bool:
    negations = [match[0] for match in _NEGATION.finditer(act.before)]
    if proposed or "i will" in act.before:
        negations = [word for word in negations if not _CONDITIONS.fullmatch(word)]
    return bool(negations)


def is_noun(word: str) -> bool:
    """Return whether a word of an act is a noun, such as "refund" or "cancellation"."""
    return word.endswith(("tion", "al", "als", "ment", "ments", "fee", "fees", "sion")) or word in _MONEY_NOUNS


_MONEY_NOUNS_LIST = (
    "refund refunds voucher vouchers coupon coupons discount discounts compensation bonus surcharge certificate "
    "credit charge credits charges debit deduction rebate"
)
_MONEY_NOUNS = frozenset(_MONEY_NOUNS_LIST.split())
