"""Detection of consent in texts: whether the agent asks for it, and whether the user gives it.

Doubtful cases count as no. If a yes is missed, the agent asks once more. If a yes is seen where there is none, the
agent changes what the user does not want changed. A yes with a condition, a change or a doubt is therefore no consent.
"""

import re
from collections.abc import Iterator

from understudy.envs.visible_text import visible_text


def _any(*patterns: str) -> str:
    return f"(?:{'|'.join(patterns)})"


_GOOD = _any("good", "great", "right", "fine", "perfect", "ok", "okay", "correct")

# ---- texts of the agent; all patterns in this module are for case-folded text
_ASSENT = (
    r"(?:approval|consent|permission|go-ahead|green light|confirmation|ok|okay|yes|nod|say-so|blessing|word"
    r"|thumbs up)"
)
_GO = (
    r"(?:confirm|verify|authori[sz]e|agree|approve|accept|consent|proceed|continue|go ahead|do (?:it|so|that|this)"
    r"|submit)"
)
_INVITES = re.compile(
    _any(
        r"(?:please|kindly|could you|can you|just|and|to) confirm\b|^confirm\b",
        r"\b(?:just )?say (?:yes|so|go|the word)\b",
        r"\b(?:reply|answer|respond|say|type|send|enter|write)(?: back)?(?: with)? (?:an? )?"
        r"['\"*(]*(?:yes|ok|confirm)\b",
        rf"\b(?:let me know|tell me)\b.{{0,60}}\b(?:{_GO}|fine|ok|okay|right|go|good|works?|correct"
        r"|acceptable|happy|al+ ?right)\b",
        r"\b(?:need|want|like|await|awaiting|wait for|waiting for|give me|have|get|receive|with|upon|after|on|pending"
        rf"|subject to) (?:only |just )?(?:your|an?|the) (?:\w+ )?{_ASSENT}(?! number\b)\b",
        rf"\b(?:simple|quick|short) {_ASSENT}\b|\bawait(?:ing)? your (?:reply|response|answer)\b",
        rf"\b(?:once|as soon as|when|if|after) you (?:\w+ )?(?:{_GO}|say|give|let me know|tell me|reply|respond)\b",
        r"\b(?:ready when you are|your call|up to you|hear back from you)\b",
        rf"\bplease (?:authori[sz]e|approve|verify that|give your {_ASSENT})\b",
        rf"\b(?:all i need is|i need) your {_ASSENT}\b",
        rf"\byour (?:\w+ )?{_ASSENT} is (?:needed|required)\b|\bif you(?:'re| are) (?:happy|fine|ok|okay|good) with\b",
    )
)
"""A sentence that invites the user to agree without a question."""
_PROCEEDS = re.compile(
    rf"\b(?:shall|should|may|can|could) (?:i|we) (?:please |now |then )*{_GO}\b|\b(?:want|like) me to (?:now )?{_GO}\b"
)
"""A question for consent, also beside another one or without a question mark."""
_INQUIRES = re.compile(
    _any(
        r"(?:^|[,;:]|\b(?:and|or|so|but|also|then|please|first|yet|here)\b) *(?:(?:in|on|at|for"
        r"|from|to|by|with|about|over|after|until|since|of) )?"
        r"(?:what|which(?! (?:is|was|are|were|has|have|costs?|takes?|means)\b)|who|whom|whose|when|where|why|how)\b"
        r"(?! (?:do|does|would) (?:(?:that|this|it|you) (?:sound|look|say|think|feel)|[^?]{1,300} sound)\b)",
        r"\bconfirm(?: (?:to|with|for) me)? (?:your|the)"
        r" (?:(?:full|first|last) )?(?:name|e-?mail|identity|zip|phone|date of birth|(?:account"
        r"|order) (?:number|id))\b",
        r"\b(?:can|could|would|will) you (?>(?:please |also |just |kindly )*)"
        rf"(?!(?:[\w-]+ ){{0,5}}(?:confirm|verify|approve|agree|authori)|{_GO}\b|mind\b|like\b|prefer (?:that |if "
        rf"|for )?(?:i|we|me|us)\b|let me (?:{_GO}|know)"
        rf"|give me (?:your|the|an?) (?:\w+ )?{_ASSENT}|be (?:ok|okay|fine|happy|comfortable|willing|good)|tell me "
        r"(?:if|whether) (?:i|we)\b|allow (?:me|us)\b|say yes)",
        rf"\b(?:may|can|could) i (?>(?:please )?)(?:have|get|ask|know|see)\b(?! (?:your|the|an?) (?:\w+ )?{_ASSENT}\b)",
        r"\bdo you (?:have|know|see|remember|recall|mean|use|need|still(?! (?:want|wish|agree))|think|notice)\b",
        r"\bdoes (?:it|that|this) (?:still |now )?work(?: (?:now"
        r"|again))?\b(?! for)(?<!does that work)|\bwork (?:now|again)\b",
        r"\bare you (?:still )?(?:there|with me|calling|abroad|at home|a |an |the )",
        r"\b(?:any|some)(?:thing|one|body)? (?:else|other|further|more)\b|\bany (?:other |further )?questions\b",
        r"\b(?:did|has) (?:that|it|this) (?:help|work|fix|solve)",
        r"\b(?:is|are) there\b",
        r"\b(?:no need|(?:not|n't|without) (?:need|have|needing|having)) to\b",
        rf"\b(?:already have|(?:not|n't) (?:need|require)) your (?:\w+ )?{_ASSENT}\b",
    )
)
"""A question for information, to which a yes agrees to nothing, or a text that asks for no answer."""

_OWN_ACT = re.compile(
    r"\b(?:me|us) to \w|\b(?:if|that|whether) (?:i|we)\b|\b(?:with|about|to) (?:me|my|us|our) \w+ing\b"
    r"|\b(?:me|us) \w+ing\b|\b(?:allow|let|permit) (?:me|us)\b(?! know)|\bobjections?\b|\b(?:how|what) about\b"
    r"|\bwhat if\b"
    rf"|\b{_ASSENT} to\b"
)
"""Words of a question about what the agent would do."""
_ASKS_WHAT = re.compile(
    r"\b(?:what|which(?! (?:is|was|costs?|takes?|means)\b)|who|where|when|why|how)\b(?! about\b| if\b| (?:do"
    r"|would) you (?:say|think|feel))|\bso (?:that )?(?:i|we)\b"
)

_PROPOSES = re.compile(
    r"\b(?:i|we)(?:'ll|'d|'m| will| would| can| am| are)\b|\b(?:shall|should|may|can) (?:i|we)\b"
    r"|\b(?:want|like) me to\b|\blet me\b|\b(?:confirm|proceed|go ahead|agree)\b|\bbe \w+ed\b"
)
_TITLE = re.compile(r"\b(dr|prof|mr|mrs|ms)\.(?= )")
MAX_QUESTION_LENGTH = 600
"""Number of characters at the end of a sentence that are read as a question."""

# ---- texts of the user
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
_CLOSING = re.compile(r"([.!?;,])[\"'*_)\u201d]+(?=\s|$)")
_CLAUSE = re.compile(r"[,;:.!…]+(?=\s|$)|\s+[-\u2013\u2014]+\s+|\s*\u2014\s*")
_LEAD = r"[\W_]*(?:(?:oh|ah|well|so|and|then|great|perfect|thanks|thank you|hi|hello|i see|i think|also)\b[\W_]*)*"
_LET = _any("please", "just", "you (?:can|may)", "i(?:'d| would) like (?:you )?to", "let's", "feel free to", "kindly")
_YES = re.compile(
    _LEAD
    + _any(
        "yes|yeah|yep|yup|sure|certainly|absolutely|definitely|of course|by all means|affirmative|exactly",
        r"i (?:do |can |hereby |fully )*(?:confirm|agree|accept|approve|consent)(?:ed)?",
        r"(?:i|please) do(?=\W*$)",
        "i'm (?:sure|fine with|happy with)|i(?:'ll| will) accept",
        rf"(?:{_LET} )*(?:proceed|go ahead|go for it|do (?:it|that|so|this))",
        rf"(?:that|this|it|everything|all)(?:'s| is| are| sounds| looks| seems)(?: (?!not\b)\w+)? {_GOOD}",
        rf"(?:sounds|looks|works) (?:\w+ )?{_GOOD}",
        r"works for me|(?:that|this|it) (?:would |will )?works?(?! (?:now|again)\b)",
        f"all {_GOOD}",
    )
    + r"(?![\w'])"
)
_WEAK = re.compile(
    _LEAD + _any("ok", "okay", "right", "correct", "al+ ?right", "fine", "confirmed", "agreed") + r"(?![\w'])"
)
"""Words that mean yes only at the start of a text without a question. "OK, and what does it cost?" is not a yes."""
_NO = re.compile(
    _LEAD
    + r"(?:(?:please|actually|sorry|hm+|um+|but)\b[\W_]*)*"
    + _any(
        r"no(?! (?:problem|worries|objections?|issues?|longer|need|changes?)\b)",
        "nope|nah|never(?! again)|not (?!an? (?:problem|issue)|needed)",
        r"wait|hold on|hang on|stop(?=\W*$)",
        "do(?:n't| not)(?! worry| need| forget)",
        "i (?:do(?:n't| not)|can(?:'t|not)|won't|will not) (?:yet )?(?:agree|confirm|accept|approve|consent|think so)",
        "i do(?:n't| not) want (?:that|this|you|to (?:do|go|confirm|proceed|cancel))",
        "i(?:'d| would) (?:rather|prefer)",
    )
    + r"(?![\w'])"
)
_LIMITS = re.compile(
    r"\b"
    + _any(
        "but(?! (?:that's|that is|it's) (?:ok|okay|fine))",
        "except|however|unless|only if|as long as|provided (?:that|you|it)|on (?:the )?condition",
        "instead|rather|changed my mind|never ?mind",
        "not (?:that|this|the|those|yet|right|sure|now|before|until|correct|quite|exactly|what)",
        "(?:is|are|'s) (?:wrong|incorrect)|isn't (?:right|correct)",
        "first,? (?:can|could|tell|let|please)|without (?:my|me)",
        "didn't (?:say|ask|confirm|agree)",
    )
    + r"\b"
)
_CONDITIONS = re.compile(
    r"\b(?:if (?!you (?:could|would|can|don't mind)|possible)|another|different|the other|before (?:you|we|i))\b"
)
"""Conditions that cancel a yes in the same sentence. `_LIMITS` cancels a yes in any sentence."""
_ASKS_BACK = re.compile(r"\b(?:what|which|how|when|where|why|who)\b|^\W*\w+\W*$")


def asks_for_consent(text: str) -> bool:
    """Return whether a visible text of the agent ends as a question or an invitation to which a user may say yes.

    What the user agrees to, and whether the text names it, is judged by its content.
    """
    plain = _TITLE.sub(r"\1", _plain(visible_text(text)))
    return any(_asks(sentence[-MAX_QUESTION_LENGTH:]) for sentence in _SENTENCE.split(plain))


def proposes(text: str) -> bool:
    """Return whether a case-folded text of the agent says what the agent would do."""
    return _PROPOSES.search(text) is not None


def _asks(sentence: str) -> bool:
    if _PROCEEDS.search(sentence):
        return True
    if sentence.endswith("?"):
        proposes_act = _OWN_ACT.search(sentence) and not _ASKS_WHAT.search(sentence)
        return bool(proposes_act) or not _INQUIRES.search(sentence)
    return _INVITES.search(sentence) is not None and not _INQUIRES.search(sentence)


def gives_consent(text: str) -> bool:
    """Return whether a text of the user says yes, without an objection, a condition, a change or a doubt."""
    text = _plain(text)
    if _declined(text):
        return False
    if _WEAK.match(text) and "?" not in text and not _CONDITIONS.search(text):
        return True
    stated = (s for s in _SENTENCE.split(text) if not _CONDITIONS.search(s) and not _asks_back(s))
    return any(_YES.match(clause) for sentence in stated for clause in _clauses(sentence))


def declines(text: str) -> bool:
    """Return whether a text of the user says no, or says yes only to something else.

    A text may neither decline nor give consent.
    """
    return _declined(_plain(text))


def says_no(text: str) -> bool:
    """Return whether a text of the user says no. A text that wants something else instead does not."""
    return _says_no(_plain(text))


def _declined(text: str) -> bool:
    return _LIMITS.search(text) is not None or _says_no(text)


def _says_no(text: str) -> bool:
    return any(_NO.match(clause) for clause in _clauses(text))


def _asks_back(sentence: str) -> bool:
    return sentence.endswith("?") and _ASKS_BACK.search(sentence) is not None


def _clauses(text: str) -> Iterator[str]:
    return (clause for clause in _CLAUSE.split(text) if clause.strip())


def _plain(text: str) -> str:
    """Return the text case-folded, with plain apostrophes and without quotes that close a sentence.

    Runs of white space become one space, because the patterns take quadratic time on them.
    """
    lines = (" ".join(line.split()) for line in text.casefold().splitlines())
    text = "\n".join(filter(None, lines)).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return _CLOSING.sub(r"\1", text)
