"""Detection of consent in texts: whether the agent asks for it, and whether the user gives it.

Doubtful cases count as no. If a yes is missed, the agent asks once more. If a yes is seen where there is none, the
agent changes what the user does not want changed. A yes with a condition, a change or a doubt is therefore no consent.
"""

import re
from collections.abc import Iterator


def _any(*patterns: str) -> str:
    return f"(?:{'|'.join(patterns)})"


_GOOD = _any("good", "great", "right", "fine", "perfect", "ok", "okay", "correct")

# ---- texts of the agent; all patterns in this module are for case-folded text
_ASKS = re.compile(
    _any(
        r"\b(?:confirm|shall i|should i|want me to|would you like)\b",
        r"\bdo you (?:want|agree|accept|approve)\b",
        r"\bare you (?:sure|ready|ok|okay|fine|happy)\b",
        r"\b(?:is|are|does) (?:that|this|these|it|everything) (?:all )?(?:ok|okay|right|correct|fine|sound|look)\b",
        r"\b(?:does|will|would) (?:that|this|it) work\b(?! (?:now|again)\b)",
        r"\bsounds? (?:good|right|ok|okay|fine)\b",
        r"\b(?:ok|okay|fine|all ?right) (?:with|for|by) you\b",
        r"\byour (?:approval|consent|permission|go-ahead)\b",
        r"\b(?:reply|answer|respond|say|type)(?: with)? ['\"*]*yes\b",
    )
)
_OFFERS = re.compile(r"\b(?:proceed|go ahead)\b")
_INVITES = re.compile(r"\?|\b(?:yes|let me know)\b")
"""A sentence that matches this and `_OFFERS` asks for consent: "Ready to proceed?", but not "Then I can proceed."."""
_WHO_OR_WHICH = _any(
    r"(?:(?:full|first|last) )?name",
    r"e-?mail(?: address)?",
    "identity",
    r"zip(?: code)?",
    r"phone(?: number)?",
    "date of birth",
    "(?:account|order) (?:number|id)",
)
_INQUIRES = re.compile(rf"\bconfirm(?: (?:to|with|for) me)? (?:your|the) {_WHO_OR_WHICH}\b")
"""A request to confirm an identity or an order number. An answer to it confirms no change."""

_CHOOSES = re.compile(
    r"\b(?:which|what|how|when|where)\b(?: \w+){0,4} (?:would you like|do you want)\b"
    r"(?! (?:me )?to (?:proceed|go ahead)\b)"
)
"""A question for what the user wants: "which one would you like?". An answer to it confirms no change."""

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
    """Return whether a text of the agent asks the user to agree to something."""
    text = _CHOOSES.sub(" ", _INQUIRES.sub(" ", _plain(text)))
    if any(sign in text for sign in ("?", "confirm", "yes")) and _ASKS.search(text):
        return True
    return any(_OFFERS.search(s) and _INVITES.search(s) for s in _SENTENCE.split(text))


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
