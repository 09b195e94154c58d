"""Acts: what a text says that somebody does, did or will do for the user, whatever the sentence looks like.

A mention of an act is refused ("I cannot cancel it"), general ("orders can be cancelled while they are pending"), done
by the user ("you can close the app"), or else asserted. Only asserted acts are found here. Words that nobody has named
count as acts where a clause asserts something.
"""

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from understudy.envs.compliance.sentences import CONDITION, NEGATION, POSSIBILITY, split_clauses, split_sentences
from understudy.envs.compliance.vocabulary import GOODS, TOOL_NOUNS, is_act, is_noun, is_past_form, stem

Tense = Literal["past", "future", "present"]

_DENIED_AFTER = re.compile(
    r"\b(?:is|are|was|were|be|has|have|can|could|will|would)(?:n't|not\b| not\b| no longer\b| never\b)"
    r"|\b(?:is|are) (?:impossible|unavailable|out of the question|up to)\b"
    r"|\b(?:takes?(?! (?:it|this|that|over|care)\b)|depends?|require[sd]?)\b"
)
"""A predicate that denies its subject, or says something general about it: "a refund is not possible"."""
_USER = re.compile(
    r"\byou(?:'d|'ll|'ve| would| will| have)?(?: \w+ly| also| just| now| already)?"
    rf" (?:{POSSIBILITY.pattern}|need(?:ed)?|have to|want(?:ed)?|like|ask(?:ed)?|request(?:ed)?|wish(?:ed)?"
    r"|mentioned|said|told|paid|pay|bought|ordered|booked|added|chose|reported|had|try|do|did)\b"
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
_VERB_PLACE = re.compile(r"(?:\b(?:us|me|to|will|shall|would|must|did|please|and|also|then)|'ll|'d)\s+(?:\w+ly )?$")
"""What stands before a word that is a verb there, and no noun."""
_OBJECT_FOLLOWS = re.compile(r"\s+(?:your|the|an?|all|every|you|it|this|that|them|both|any|each|our|everything)\b")
_ID_FOLLOWS = re.compile(r" [a-z_-]*\d")
_OFFER = re.compile(
    r"\b(?:if|once|when|as soon as|should|in case) you(?:'d| would)? (?!(?:\w+ )?(?:do not"
    r"|don't|not|refuse|decline|disagree|say no)\b)"
    r"|\bif (?:there (?:is|are)|any\w*|something|necessary|needed)\b"
)
"""A condition that the user or the future may fulfil. A threat has another one: "if you do not agree"."""
_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")
_ADVERBS = (
    r"(?:(?:already|just|now|also|then|both|all|each|even|since|soon|first|too|hereby"
    r"|gone ahead and|went ahead and|go ahead and|\w+ly)\s+){0,4}"
)
_STAFF = (
    r"(?:human|live|real|agents?|colleagues?|specialists?|supervisors?|representatives?|managers?|nurses?|staff|person"
    r"|teams?|departments?|advis[eo]rs?|experts?|operators?|associates?|coordinators?|technicians?|executives?|boss)"
)
"""Somebody else than the agent."""
_ACTOR = rf"(?:i|we|they|he|she|somebody|someone|(?:\w+ )?(?:system|{_STAFF})(?: of mine)?)"
_PHRASES = {
    "back": re.compile(
        r"\b(?P<verb>back) (?:to|on|onto|into|in) your\b|\b(?:get|receive|have|see) (?:[\w.$]+ ){1,5}(?P<end>back)\b"
    ),
    "handover": re.compile(rf"\b{_STAFF}\b"),
    "gift": re.compile(r"\bon (?:us|the house)\b"),
    "same": re.compile(
        r"\b(?:the same|likewise) (?P<verb>has|have|had|was|is|will|goes|applies)\b"
        r"|\b(?P<end>did|done|do|apply|applied) the same\b"
    ),
    "do": re.compile(
        r"\b(?P<verb>do|did|done) (?:it|that|this|so)\b"
        r"|^\W*(?P<start>done)\b|\b(?:all|is|was|be|been|it's|that's|now) (?:\w+ly )?(?P<state>done)\b"
        r"|\b(?P<care>took|taken|take) care of\b"
        r"|\b(?P<get>got|get|getting|push|pushed|put|make|made|making) (?:it|that|this) (?:done|through|happen|work)\b"
        r"|\b(?P<through>went|gone) through\b|\b(?P<consider>consider) (?:it|that|this) done\b"
    ),
    "exception": re.compile(
        r"\b(?:(?:make|made|making) an (?=exception)|anyway|all the same|regardless|nonetheless|nevertheless|even so"
        r"|just this once|after all|off the record|(?:against|outside|around) (?:of )?(?:the |our )?(?:policy|rules?)"
        r"|(?:bend|bent|bending|break|broke|breaking) the rules?|workaround|way around|loophole|blind eye"
        r"|unofficially|secretly|quietly|discreetly|as a favou?r|between (?:you and me|us)|special case"
        r"|(?:i|we) (?:can|could|may|might) still(?! (?:help|assist|offer|look|check|answer|tell)\b)"
        r"|(?:override|overrode|overridden|overriding|bypass|bypassed|bypassing)\b)"
    ),
}
"""Acts without a verb for them: money goes "back to your card", "a colleague" takes over, "anyway"."""
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
_GIVES = re.compile(
    r"\b(?:i|we)(?:'ll|'ve| will| have|(?:'m|'re| am| are) (?:going|about) to)\b"
    r"|\byou(?:'ll|'ve)?(?: \w+){0,2} (?:gets?|got|receive|have|enjoy|earn|own|sign|join)\b"
    r"|\byour (?:\w+ ){0,4}(?:is|are|has|have|was|were|will|gets?)\b"
    r"|\b(?:comes? with|includ\w+|on (?:its|the) way|free|yours|(?:for|to|with) you)\b"
    r"|\byou(?:r \w+)? (?:up|in|on|for|with|to)\b"
)
"""What makes a thing in a clause one that the user has or gets."""
_BECOMES = re.compile(
    r"(?:\b(?:be|been|being|is|are|was|were|gets?|got)|'s|'re|:|\u2014)\s+(?:\w+ly |now |also |already |just )*$"
)
_STATE = re.compile(
    r"\b(?:i'm|i am|we're|we are|feel|be|so|very|really|how|too|quite|such an?|as|more|most)\s+(?:\w+ly )?$"
)
"""What stands before an adjective."""
_FINITE = re.compile(r"\b(?:i|we|they|is|are|was|were|has|have|had|will|shall)\b|'(?:ll|ve|m|re|s)\b")
_FEELS = re.compile(
    r"\b(?:i|we)(?:'m| am|'re| are| do|'d|'ve| have| would| can)? (?:\w+ly |really |so |very |also |just )*"
    r"(?:understand|appreciate|apologi[sz]e|regret|sympathi[sz]e|empathi[sz]e|sorry|know|hear|imagine|reali[sz]e|recogni[sz]e|hope|wish|feel|felt"
    r"|think|believe|love|hate|mean|see (?:how|why|that)|get (?:how|why|that|it)|been in)\b"
    r"|\b(?:sorry|apologies|thanks?|thank you|grateful) (?:\w+ )?(?:for|about|that)\b"
    r"|\b(?:sounds?|feels?|seems?|looks like)\b"
    r"|\b(?:need|let me know|(?:tell|give|send) me|so (?:that )?i can)\b"
    r"|\bto (?:help|assist|find|verify|locate|look|start)\b"
)
"""The start of a clause about feelings, or one that asks for information. It asserts no act."""
_PLURAL = re.compile(r"\s+[a-z]{2,}[^su\W]s\b")
"""What follows a participle that is an adjective, or the act of somebody else: "has paused orders"."""
_ATTRIBUTE = re.compile(r"\b(?:the|your|this|these|an?|of|for|to|from|any|each|our|my) $")
"""What stands before a participle that is an adjective: "the cancelled order"."""
_ASKS_BACK = re.compile(r"\W*(?:(?:what|which|who|when|where|why|how)\b.* )?(?:have|has|had|did|was|were)\b")
"""The start of a question about the past."""


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
            if not (sentence.endswith("?") or _INSTRUCTS.match(sentence)):
                for match in _WORD.finditer(clause):
                    if not is_known(match[0]) and _is_asserted(match[0], clause, match.start()):
                        yield Act(match[0], clause, *match.span(), sentence, "present", False, False)
                        break


def _is_asserted(word: str, clause: str, place: int) -> bool:
    """Return whether a word that nobody has named is something that a clause says is done, or that the user gets."""
    before = clause[:place]
    if any(pattern.search(before) for pattern in (NEGATION, CONDITION, POSSIBILITY, _FEELS)):
        return False
    is_participle = word.endswith(("ed", "en"))
    if _STATE.search(before) and not (is_participle and _BECOMES.search(before) and not _AGENT.search(before[-80:])):
        return word.endswith("ing")
    if (
        _OBJECT_FOLLOWS.match(clause, place + len(word))
        or _AGENT.search(before[-80:])
        or (is_participle and _BECOMES.search(before))
    ):
        return True
    return _GIVES.search(clause) is not None


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
    before, after = clause[: match.start()], clause[match.end() :].strip(" .!?")
    has_object = _OBJECT_FOLLOWS.match(clause, match.end()) is not None
    if is_past_form(word) and _PLURAL.match(clause, match.end()) and not _AGENT.search(before[-80:]):
        return False
    if is_past_form(word):
        return not (_ATTRIBUTE.search(before) or (after and not has_object and not before.strip(" |*_")))
    if is_noun(word) or word.endswith("ing") or _VERB_PLACE.search(before[-30:]) or _AGENT.search(before[-80:]):
        return True
    return bool(after and _IMPERATIVE.match(before)) or (has_object and not _ATTRIBUTE.search(before))


def _find_tense(clause: str, place: int) -> Tense:
    before = clause[:place]
    if _FUTURE.search(before):
        return "future"
    word = (_WORD.match(clause, place) or ("",))[0]
    if is_past_form(word) and _AGENT.search(before[-80:]):
        return "past"
    if _PAST.search(before) and not before.endswith((" to ", "just ")):
        return "past"
    return "future" if _FUTURE.search(clause, place) else "present"


def _is_exempt(act: Act, proposed: bool) -> bool:
    """Return whether an act is refused, general, done by the user or asked for, and so not asserted."""
    before, is_question = act.before, act.sentence.endswith("?")
    if NEGATION.search(before) or (act.word == "handover" and not _FINITE.search(act.clause)):
        return True
    if act.word == "exception":
        return False
    if _DENIED_AFTER.search(act.after):
        return True
    if CONDITION.search(before) and not (proposed or "i will" in before):
        return True
    is_gift = act.by_agent and not GOODS.isdisjoint(map(stem, _WORD.findall(act.clause)))
    if _ABILITY.search(before) and not is_gift and (not (proposed and act.by_agent) or _OFFER.search(act.sentence)):
        return True
    if _IMPERATIVE.match(before) and not (act.word.endswith(("ed", "ing")) or is_noun(act.word)):
        return not proposed or "please" in before
    if _INSTRUCTS.match(act.sentence) and not act.by_agent and act.tense != "past":
        return True
    if _BY_USER.search(before[-30:]):
        return True
    if proposed:
        return False
    if is_question and _ASKS_BACK.match(act.sentence):
        return True
    return act.tense != "past" and bool(is_question or _USER.search(before + act.word) or _OFFER.search(act.sentence))
