"""What a text tells the user to do with tools of their own, and what doing it has shown.

A clause tells the user to do something when it is an order to them: a verb at its start, or after "please", "you",
"then" and the like. What the agent does or offers to do, what is forbidden, and what depends ("once you have ...") is
no order. A look is also taken where the text asks about what it shows.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from understudy.errors import TaskError, ToolError
from understudy.messages import ToolCall
from understudy.rewards import said
from understudy.tasks import Deed, Proof

MOST = 2
"""How many deeds one text can ask for, beside looks; more is too much at once."""
REFUSED = 2
"""How many useless turns a refused deed is worth, so that guessing costs more than looking."""
OFTEN = 6
"""How often a deed can show something new. So no conversation goes on for ever."""

Run = Callable[[ToolCall], str]
"""Runs a call of the user's own tools, and gives its result."""

_DO = (
    "turn|switch|toggle|set|put|disable|enable|activate|deactivate|allow|restart|reboot|power|reset|restore|remove|take|"
    "eject|reinsert|re-insert|insert|reseat|pull|push|run|do(?= an? )|start|perform|make(?! sure)|pay|accept|approve|"
    "settle|choose|select|pick|change|connect|disconnect|stop|tap|swipe|use"
)
_LOOK = (
    "make sure|ensure|check|look|tell|see|read|confirm|verify|describe|share|report|say|try|test|open|load|run|make|"
    "measure"
)
_ING = (
    "turning|switching|toggling|setting|putting|disabling|enabling|activating|deactivating|restarting|rebooting|"
    "resetting|removing|taking|ejecting|reinserting|inserting|reseating|choosing|selecting|changing|disconnecting|paying"
)
_LEAD = (
    r"(?:^\W*|\b(?:please|then|now|next|first|second|finally|and|also|just|kindly|again|to|let's|let us|"
    r"you(?: (?:can|could|should|must|may))?) (?:please |also |now |then )?)"
)
_ORDER = re.compile(rf"{_LEAD}(?:{_DO})\b|\b(?:try|trying|mind|suggest|recommend|advise|by) (?:{_ING})\b")
_LOOK_ORDER = re.compile(rf"{_LEAD}(?:{_LOOK})\b")
_ABOUT = re.compile(r"^\W*(?:is|are|was|were|do|does|did|have|has|what|which|why|when|where|who|how)\b.*\?")
_OFFER = re.compile(
    r"\b(?:shall|should|may|can|could) (?:i|we) (?!ask)|\bdo you (?:want|agree|accept|confirm)\b|\bwant me to\b|"
    r"\bwould you (?:like|prefer)\b"
)
_FORBIDDEN = re.compile(r"\b(?:do not|don't|never|no need|not need|without|instead of|avoid)\b")
_DEPENDS = re.compile(r"^\W*(?:once|after|before|when|while|until|if|since|because|as soon as)\b")
_IT = re.compile(r"\b(?:it|this|that)\b")
_OWN = re.compile(r"\b(?:i|we)\b(?!(?:'d| would)? (?:recommend|suggest|advise))(?:(?!\b(?:please|you)\b).)*")
_WORKS = re.compile(
    r"(?=.*\b(?:works?|working|fixed|solved|resolved|better|tr(?:y|ied) (?:it )?(?:again|now))\b)"
    r".*(?:\?|\b(?:please|tell me|let me know|could you|can you)\b)"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_CLAUSE = re.compile(r"[,;:]\s+|\s+(?:and|then|but|so)\s+")


class Hands:
    """The user's own tools in use."""

    def __init__(self, deeds: Sequence[Deed], device: Run | None) -> None:
        """Deeds without a device to do them with are a `TaskError`."""
        if deeds and device is None:
            raise TaskError(f"the user has no tools to do {deeds[0].call.name!r} with; give the domain a device")
        self._deeds, self._device = deeds, device
        self._shown: dict[str, list[str]] = {}

    def told(self, text: str) -> list[Deed]:
        """The deeds that a text tells the user to do, in the text's order."""
        found: list[Deed] = []
        before = ""
        for sentence in _SENTENCE.split(text.casefold()):
            for deed in self._told_in(sentence, before):
                found += [deed] if deed not in found else []
            before = sentence
        return found

    def do(self, deeds: Iterable[Deed]) -> tuple[str, int]:
        """Do them in turn: what the user says then, and how many useless turns that was worth."""
        done = [self._do(deed.call, deed.says) for deed in deeds]
        return " ".join(dict.fromkeys(text for text, _ in done)), sum(useless for _, useless in done)

    def report(self, deeds: Sequence[Deed], proof: Proof | None) -> tuple[str, int, bool]:
        """Do them, and notice what it has led to: what the user says, the useless turns, and whether all is well."""
        changes = sum(not deed.looks for deed in deeds)
        if changes > MOST:
            return "That is too much at once. One step after the other, please.", 1, False
        text, useless = self.do(deeds)
        if proof and self.works(proof):
            return f"{text} {proof.says}", 0, True
        return f"{text} {proof.fails}" if proof and changes else text, useless, False

    def works(self, proof: Proof) -> bool:
        """Try whether all is well."""
        try:
            return proof.shows in self._result(proof.call)
        except ToolError:
            return False

    def _told_in(self, sentence: str, before: str) -> list[Deed]:
        clauses = [clause for clause in _CLAUSE.split(_OWN.sub(" ", sentence)) if not _DEPENDS.search(clause)]
        if _OFFER.search(sentence) or any(_FORBIDDEN.search(clause) for clause in clauses):
            return []
        # A clause alone, so that "turn off A and turn on B" does not turn off B; else the clauses together, as in
        # "if A is on, turn it off and check B".
        found = [deed for clause in clauses for deed in self._named(clause, (clause,), sentence)]
        if all(deed.looks for deed in found):
            thing = f"{before} {sentence}" if _IT.search(sentence) else sentence
            does = [deed for deed in self._named(sentence, clauses, sentence, thing) if not deed.looks]
            return [*does, *found] or self._named(sentence, clauses, sentence)
        return found

    def _named(self, text: str, clauses: Sequence[str], sentence: str, thing: str = "") -> list[Deed]:
        """The deeds that a text names; the thing itself may be named in a longer text, where this one says "it"."""
        does = not _ABOUT.search(sentence) and any(_ORDER.search(clause) for clause in clauses)
        looks = "?" in sentence or any(_LOOK_ORDER.search(clause) for clause in clauses)
        fitting = [deed for deed in self._deeds if (looks if deed.looks else does)]
        named = [
            d for d in fitting if all(said(name, text) for name in d.names[1:]) and said(d.names[0], thing or text)
        ]
        first = {deed.names[0]: deed for deed in reversed(named) if not deed.looks}
        return list(reversed(first.values())) or named

    def _do(self, call: ToolCall, says: str) -> tuple[str, int]:
        """What the user says, and 0 useless turns if it is something new."""
        try:
            text = says.replace("{result}", self._result(call))
        except ToolError as e:
            return f"I cannot do that: {e}.", REFUSED
        seen = self._shown.setdefault(call.model_dump_json(), [])
        useless = text in seen or len(seen) >= OFTEN
        seen.append(text)
        return text, int(useless)

    def _result(self, call: ToolCall) -> str:
        if self._device is None:
            raise TaskError(f"the user has no tools to try {call.name!r} with; give the domain a device")
        return self._device(call)


def asks_whether_it_works(text: str) -> bool:
    """Whether a text of the agent asks the user to try whether all is well now."""
    return any(_WORKS.search(sentence) for sentence in _SENTENCE.split(text.casefold()))
