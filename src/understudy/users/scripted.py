"""ScriptedUser: a deterministic person, who needs no model."""

import random
import re
from collections.abc import Iterator, Sequence

from understudy.deeds import Hands, asks_whether_it_works
from understudy.messages import Message
from understudy.rewards import numbers, said
from understudy.tasks import Deed, Fact, Proof, Scenario, Wish
from understudy.tools import Device
from understudy.users.consent import asks_consent

LONGEST_PROPOSAL = 12
"""A text with more distinct numbers and ids is a list to pick from, and no user says yes to it."""

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_WITH_DIGIT = re.compile(r"\w*\d\w*")
_REQUEST = re.compile(
    r"\?|\b(?:please|provide|tell me|give me|let me know|share|could you|can you|may i|what|which|why|"
    r"need (?:your|the|to know))\b"
)
_REFUSAL = re.compile(
    r"\b(?:cannot|can't|can not|could not|couldn't|unable|unavailable|ineligible|unfortunately|too late|can only|"
    r"(?:not|\w+n't|no longer|not be) (?:possible|allowed|able|eligible|available|permitted)|"
    r"only\b.{1,60}\b(?:can|may) be)\b"
)
_HARMLESS = re.compile(r"\b(?:undone|reversed|reverted|revoked|taken back)\b")
_HANDOVER = re.compile(
    r"\bhuman agent\b|\btransfer\w*\b.{0,40}\b(?:human|agent|colleague|specialist|you)\b|"
    r"\byou (?:are|were|will be|have been)(?: now| being)* transferred\b"
)
_ANNOUNCES = re.compile(r"\b(?:let me|one moment|a moment|please wait|hold on|i will|i'll|i am going to)\b")
_CLOSING = re.compile(r"\b(?:anything|something) else\b|\b(?:else|further|more) i can\b|\bfurther assist")
_YES = ("Yes.", "Yes, please.", "Yes, go ahead.", "Yes, that is right.", "Yes, please do.")
_CHATTY = ("Thanks for helping! ", "I appreciate your help. ", "Let me see. ", "Let me think. ", "One moment. ")


class ScriptedUser:
    """A deterministic person: knows facts, wants wishes, and reacts to what each text of the agent does.

    A text, sentence by sentence:

        proposes what a wish names, and asks    -> yes; to the first such wish only
        tells them to do what they can do       -> does it, by a tool of their own, and says what that shows; a text
                                                   that asks for facts gets these before a mere look
        asks for facts                          -> the facts, those not told yet first
        refuses                                 -> accepted; a wish that `contests` does so once
        proposes anything else                  -> no, and the wish again
        answers a question, or reports          -> on to the next wish, or leaves when there is none; a wish that has
                                                   a proof is tried first, and stays until it holds
        does none of this                       -> the wish again; or, if it is empty, "Are you still there?"

    Whatever moves nothing costs patience; without any left the user leaves. So a conversation ends whatever the agent
    says, and no text of the agent can end it with a wish granted that was not. The words vary with the seed.
    """

    def __init__(self, scenario: Scenario, seed: int = 0, device: Device | None = None) -> None:
        """`device` is what the user has as tools; deeds without it are a `TaskError`."""
        self._scenario, self._hands = scenario, Hands(scenario.deeds, device.run if device else None)
        self._random = random.Random(seed)
        self._pending = list(scenario.wishes)
        self._agreed: list[tuple[Wish, tuple[str, ...]]] = []
        self._at_hand = next(iter(scenario.wishes), None)
        self._contested = False
        self._revealed: set[Fact] = set()
        self._patience = scenario.patience

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The next message: a function of the scenario, the seed and what the agent has said so far."""
        return self.hear(transcript[-1].content) if transcript else self._scenario.opening

    def hear(self, text: str) -> str | None:
        """React to one text of the agent."""
        if not text.strip():
            return self._useless("Are you still there?")
        sentences = [s for s in _SENTENCE.split(text.casefold().strip()) if not _CLOSING.search(s)]
        refusals = [s for s in sentences if refuses(s)]
        rest = " ".join(s for s in sentences if s not in refusals)
        asks = asks_consent(rest)
        if asks and (proposal := self._proposed(rest)):
            return self._agree(*proposal)
        if not asks and hands_over(rest):
            return None
        deeds = self._hands.told(rest)
        if any(not deed.looks for deed in deeds):
            return self._do(deeds)
        if asked := [fact for fact in self._known() if any(_asks_for(s, fact) for s in sentences)]:
            return self._tell(asked)
        if deeds:
            return self._do(deeds)
        if refusals:
            return self._refused()
        if (proof := self._unproved()) and asks_whether_it_works(rest):
            return self._try(proof, asked=True)
        if asks:
            return self._object()
        return self._told(rest)

    def _proposed(self, text: str) -> tuple[Wish, tuple[str, ...]] | None:
        """The wish that a text names, or a step of it: one not yet agreed to if there is any."""
        if len(set(_WITH_DIGIT.findall(text))) > LONGEST_PROPOSAL:
            return None
        right = [(wish, names) for wish, names in self._agreeable() if all(said(name, text) for name in names)]
        return next((proposal for proposal in right if proposal not in self._agreed), next(iter(right), None))

    def _agreeable(self) -> Iterator[tuple[Wish, tuple[str, ...]]]:
        for wish in self._pending:
            if wish.kind == "action":
                yield from ((wish, names) for names in wish.agrees)
                if wish.names or not wish.proof:
                    yield wish, wish.names
        yield from self._agreed

    def _agree(self, wish: Wish, names: tuple[str, ...]) -> str | None:
        yes = "Yes." if self._scenario.persona == "terse" else self._random.choice(_YES)
        if (wish, names) in self._agreed:
            return self._useless(yes)
        self._agreed.append((wish, names))
        if names == wish.names:
            self._pending.remove(wish)
        self._at_hand, self._contested = wish, False
        return yes

    def _do(self, deeds: Sequence[Deed]) -> str | None:
        """Do what was told. What then works is no longer wanted."""
        text, useless, works = self._hands.report(deeds, self._unproved())
        following = self._next() if works else None
        return self._useless(self._voiced(f"{text} {following.says}" if following else text), useless)

    def _unproved(self) -> Proof | None:
        """The proof of the wish at hand, while it is wanted."""
        return self._at_hand.proof if self._at_hand in self._pending else None

    def _try(self, proof: Proof, asked: bool) -> str | None:
        """Try whether the wish at hand is fulfilled. A user who is not asked and wants nothing more leaves then."""
        if not self._hands.works(proof):
            text, useless = self._hands.do((Deed(call=proof.call, names=("try",), says=proof.fails),))
            return self._useless(self._voiced(text), useless)
        following = self._next()
        if not following:
            return self._voiced(proof.says) if asked else None
        return self._voiced(f"{proof.says} {following.says}")

    def _known(self) -> Sequence[Fact]:
        """What the user can tell now: of the person, and of the wish at hand."""
        return self._scenario.facts + (self._at_hand.facts if self._at_hand else ())

    def _tell(self, asked: Sequence[Fact]) -> str | None:
        """Reveal facts. Of several that answer the same question the later ones are told only on asking again."""
        fresh: dict[tuple[str, ...], Fact] = {}
        for fact in asked:
            if not fact.opened and fact not in self._revealed:
                fresh.setdefault(fact.cues, fact)
        self._revealed.update(fresh.values())
        if fresh:
            return self._voiced(" ".join(fact.says for fact in fresh.values()))
        latest = {fact.cues: fact.says for fact in asked}
        return self._useless(" ".join(latest.values()))

    def _refused(self) -> str | None:
        if self._at_hand and self._at_hand.contests and not self._contested:
            self._contested = True
            return "That is not good enough. I ask you to make an exception."
        return self._settle()

    def _object(self) -> str | None:
        """Answer a proposal of something else."""
        if not self._pending:
            return self._useless("No, that is all.")
        self._at_hand = self._pending[0]
        return self._useless(f"No. {self._at_hand.says}")

    def _told(self, text: str) -> str | None:
        """React to a statement: a report on what was approved, the answer to a question, or nothing of use."""
        wish = self._at_hand
        if (proof := self._unproved()) and text and not text.endswith("?") and not _ANNOUNCES.search(text):
            return self._try(proof, asked=False)
        if wish in self._pending and not _answers(text, wish):
            return self._useless(wish.says)
        return self._settle()

    def _settle(self) -> str | None:
        """The wish at hand is done with: bring up the next one, or leave."""
        following = self._next()
        return self._voiced(following.says) if following else None

    def _next(self) -> Wish | None:
        """Be done with the wish at hand; the next one is at hand then."""
        self._pending = [wish for wish in self._pending if wish is not self._at_hand]
        self._at_hand, self._contested = next(iter(self._pending), None), False
        return self._at_hand

    def _useless(self, text: str, count: int = 1) -> str | None:
        """Bear some useless turns: say something, or leave where the patience is spent."""
        self._patience -= count
        return text if self._patience > 0 else None

    def _voiced(self, text: str) -> str:
        return self._random.choice(_CHATTY) + text if self._scenario.persona == "chatty" else text


def refuses(sentence: str) -> bool:
    """Whether a case-folded sentence of the agent says that something cannot be done."""
    return _REFUSAL.search(sentence) is not None and not _HARMLESS.search(sentence)


def hands_over(text: str) -> bool:
    """Whether a case-folded text of the agent hands the user over to a human."""
    return _HANDOVER.search(text) is not None


def _answers(text: str, wish: Wish) -> bool:
    if wish.kind == "action" or not text or text.endswith("?"):
        return False
    return bool(numbers(text)) if wish.kind == "number" else not _ANNOUNCES.search(text)


def _asks_for(sentence: str, fact: Fact) -> bool:
    return any(cue in sentence for cue in fact.cues) and _REQUEST.search(sentence) is not None
