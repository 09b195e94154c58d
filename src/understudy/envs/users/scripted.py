"""ScriptedUser: a deterministic user simulator that needs no model."""

import random
import re
from collections.abc import Iterator, Sequence

from understudy.core.messages import Message
from understudy.core.tasks import Fact, Scenario, SuccessCheck, UserAction, UserGoal
from understudy.envs.rewards import extract_numbers, states_fact
from understudy.envs.tools import UserTools
from understudy.envs.user_actions import UserToolExecutor, asks_for_success_check
from understudy.envs.users.consent import asks_for_consent, proposes
from understudy.envs.visible_text import visible_text

MAX_PROPOSAL_ITEMS = 12
"""Distinct numbers and ids that a proposal may contain. A text with more is a list to choose from, not a proposal."""

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_WITH_DIGIT = re.compile(r"\b\d{4}-\d\d-\d\d\b|\b\d{1,2}:\d\d\b|\b\w*\d\w*(?:\.\d+\b)?")
_REQUEST = re.compile(
    r"\?|\b(?:please|provide|tell me|give me|let me know|share|could you|can you|may i|what|(?<!, )which|"
    r"(?<!which is )why|need (?:your|the|to know))\b"
)
_REFUSAL = re.compile(
    r"\b(?:cannot|can't|can not|could not|couldn't|unable|unavailable|ineligible|unfortunately|too late|can only|"
    r"(?:not|\w+n't|no longer)(?: be)? (?:possible|allowed|able|eligible|available|permitted|authori[sz]ed)|"
    r"policy (?:does not|doesn't) (?:allow|permit)|(?:must|have to) (?:decline|refuse)|"
    r"only\b.{1,60}\b(?:can|may) be|no longer be \w+ed|no (?:\w+ )?changes? (?:is|are) possible|"
    r"\w+(?:n't| not) qualify|sold out|too (?:early|soon) to)\b"
)
_OFFER = re.compile(r"\b(?:i will|i'll|i can)(?!['\w]| not\b| never\b| only\b).*", re.DOTALL)
"""What the agent does after all, in a sentence with a reason: "unfortunately it is too late, so i will ..."."""
_ASKS_TO_TELL = re.compile(r"\b(?:please (?:provide|tell|give|share)|tell me|give me|need (?:your|to know))\b")
_HARMLESS = re.compile(r"\b(?:undone|reversed|reverted|revoked|taken back|after (?:which|that|this))\b")
_HANDOVER = re.compile(
    r"\bhuman agent\b|\btransfer\w*\b.{0,40}\b(?:human|agent|colleague|specialist)\b|"
    r"\btransfer(?:red|ring)? you\b|"
    r"\byou (?:are|were|will be|have been)(?: now| being)* transferred\b"
)
_ANNOUNCES = re.compile(r"\b(?:let me|one moment|a moment|please wait|hold on|i will|i'll|i am going to)\b")
_CLOSING = re.compile(r"\b(?:anything|something) else\b|\b(?:else|further|more) i can\b|\bfurther assist")
_YES = (
    "Yes.",
    "Yes, please.",
    "Yes, go ahead.",
    "Yes, that's right.",
    "Yes, please do.",
    "Sure, go ahead.",
    "Yes, that's correct.",
    "Yes, I confirm.",
    "Please go ahead.",
    "That works for me.",
    "Yep, go ahead.",
    "Sounds good.",
    "Okay, please do that.",
    "Yes, do it, please.",
    "Absolutely, go ahead.",
    "That's fine with me, yes.",
)
_TERSE_YES = ("Yes.", "Yep.", "Sure.", "OK.", "Confirmed.")
_NO = ("No.", "No, that's not what I asked for.", "No, that's not it.", "No, I want something else.")
_NO_MORE = ("No, that is all.", "No, that's all I need.", "No, nothing else.", "No, I'm all set.")
SILENCE_TEXTS = ("Are you still there?", "Hello? Are you there?", "Is anyone there?", "Are you still with me?")
_WAITING = "All right, I am waiting."
_OBJECTIONS = (
    "That's not good enough. Please make an exception.",
    "I really need this. Can't you make an exception?",
    "That can't be right. I'd like you to make an exception for me.",
    "Are you sure? I'm asking you to make an exception.",
)
_CHATTY = (
    "Thanks for helping! ",
    "I appreciate your help. ",
    "Let me see. ",
    "Let me think. ",
    "One moment. ",
    "Thanks for your patience. ",
    "Let me check. ",
    "Thank you so much. ",
    "Good question. ",
    "Oh, I see. ",
    "Thanks for getting back to me. ",
    "Happy to help with that. ",
    "Hm, let me look. ",
    "That's kind of you. ",
    "You've been very kind. ",
)


class ScriptedUser:
    """A deterministic user with facts and goals that reacts to each text of the agent.

    If the agent's text (read sentence by sentence)            the user
        proposes what a goal requires, and asks for consent    says yes, to the first such goal only
        asks the user to do something they can do              does it with their own tools and reports the result;
                                                               if it also asks for facts, tells new ones before checks
        asks for facts                                         tells them, first those not told yet
        refuses                                                accepts; objects once if the goal `contests_refusal`
        proposes anything else                                 says no, and repeats the goal
        answers a question, or reports                         moves on to the next goal, or leaves if there is none;
                                                               a goal with a success check must pass it first
        does none of this                                      repeats the goal
        is empty                                               asks whether the agent is still there

    Every turn without progress costs patience. When it is used up, the user leaves, so every conversation ends. The
    wording varies with the seed.
    """

    def __init__(self, scenario: Scenario, seed: int = 0, user_tools: UserTools | None = None) -> None:
        """`user_tools` are the user's own tools. Raise `TaskError` if the scenario has actions and there are none."""
        self._scenario = scenario
        self._executor = UserToolExecutor(scenario.user_actions, user_tools.call_sync if user_tools else None)
        self._random = random.Random(seed)
        self._pending = list(scenario.goals)
        self._agreed: list[tuple[UserGoal, tuple[str, ...]]] = []
        self._current_goal = next(iter(scenario.goals), None)
        self._contested = False
        self._revealed: set[Fact] = set()
        self._patience = scenario.patience

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the next message. It depends on the scenario, the seed and the agent's texts so far."""
        return self.respond_to(transcript[-1].content) if transcript else self._scenario.opening

    def respond_to(self, text: str) -> str | None:
        """React to one text of the agent."""
        text = visible_text(text)
        if not text.strip():
            return self._useless(self._random.choice(SILENCE_TEXTS))
        sentences = [s for s in _SENTENCE.split(text.casefold().strip()) if not _CLOSING.search(s)]
        refusals = {s for s in sentences if is_refusal(s)}
        rest = " ".join(s for s in sentences if s not in refusals)
        offer = " ".join(_find_offer(s) if s in refusals else s for s in sentences)
        if asks_for_consent(offer) and (proposal := self._proposed(offer)):
            return self._agree(*proposal)
        asks = asks_for_consent(rest) and proposes(rest)
        if not asks and announces_transfer(rest):
            return None
        actions = self._executor.find_instructed(rest)
        if any(not action.read_only for action in actions):
            return self._do(actions)
        asked = [fact for fact in self._known() if any(_asks_for(s, fact) for s in sentences)]
        if asked and not (actions and all(fact.in_opening or fact in self._revealed for fact in asked)):
            return self._tell(asked)
        if actions:
            return self._do(actions)
        if refusals:
            return self._handle_refusal()
        if (check := self._pending_check()) and asks_for_success_check(rest):
            return self._try(check, asked=True)
        if asks:
            return self._object()
        return self._handle_statement(rest)

    def _proposed(self, text: str) -> tuple[UserGoal, tuple[str, ...]] | None:
        """Return the goal, or step of a goal, that a text proposes; preferably one not yet agreed to."""
        if len(set(_WITH_DIGIT.findall(text))) > MAX_PROPOSAL_ITEMS:
            return None
        right = [(goal, names) for goal, names in self._agreeable() if all(states_fact(name, text) for name in names)]
        return next((proposal for proposal in right if proposal not in self._agreed), next(iter(right), None))

    def _agreeable(self) -> Iterator[tuple[UserGoal, tuple[str, ...]]]:
        for goal in self._pending:
            if goal.kind == "action" or goal.required_terms:
                yield from ((goal, names) for names in goal.accepted_steps)
                if goal.required_terms or not goal.success_check:
                    yield goal, goal.required_terms
        yield from self._agreed

    def _agree(self, goal: UserGoal, names: tuple[str, ...]) -> str | None:
        yes = self._random.choice(_TERSE_YES if self._scenario.persona == "terse" else _YES)
        if (goal, names) in self._agreed:
            return self._useless(yes)
        self._agreed.append((goal, names))
        if names == goal.required_terms:
            self._pending.remove(goal)
        self._current_goal, self._contested = goal, False
        return yes

    def _do(self, actions: Sequence[UserAction]) -> str | None:
        """Do what the agent asked. A goal whose check then passes is done."""
        text, useless, works = self._executor.run_actions_and_check(actions, self._pending_check())
        following = self._next() if works else None
        return self._useless(self._in_persona(f"{text} {following.text}" if following else text), useless)

    def _pending_check(self) -> SuccessCheck | None:
        """Return the success check of the current goal, or None if the goal is not pending."""
        return self._current_goal.success_check if self._current_goal in self._pending else None

    def _try(self, check: SuccessCheck, asked: bool) -> str | None:
        """Run the success check. If it passes, state the next goal; after the last goal, leave, or report if asked."""
        if not self._executor.check_success(check):
            text, useless = self._executor.run_actions(
                (UserAction(call=check.call, required_terms=("try",), reply_template=check.failure_text),)
            )
            return self._useless(self._in_persona(text), useless)
        following = self._next()
        if not following:
            return self._in_persona(check.success_text) if asked else None
        return self._in_persona(f"{check.success_text} {following.text}")

    def _known(self) -> Sequence[Fact]:
        """Return the facts that the user can tell now: about themselves and about the current goal."""
        return self._scenario.facts + (self._current_goal.facts if self._current_goal else ())

    def _tell(self, asked: Sequence[Fact]) -> str | None:
        """Tell facts. If several answer the same question, the later ones are told when the agent asks again."""
        fresh: dict[tuple[str, ...], Fact] = {}
        for fact in asked:
            if not fact.in_opening and fact not in self._revealed:
                fresh.setdefault(fact.keywords, fact)
        self._revealed.update(fresh.values())
        if fresh:
            return self._in_persona(" ".join(fact.text for fact in fresh.values()))
        latest = {fact.keywords: fact.text for fact in asked}
        return self._useless(" ".join(latest.values()))

    def _handle_refusal(self) -> str | None:
        if self._current_goal and self._current_goal.contests_refusal and not self._contested:
            self._contested = True
            return self._random.choice(_OBJECTIONS)
        return self._settle()

    def _object(self) -> str | None:
        """Reject a proposal of something else."""
        if not self._pending:
            return self._useless(self._random.choice(_NO_MORE))
        self._current_goal = self._pending[0]
        return self._useless(f"{self._random.choice(_NO)} {self._current_goal.text}")

    def _handle_statement(self, text: str) -> str | None:
        """React to a statement: a report on an approved change, the answer to a question, or something else."""
        goal = self._current_goal
        if (check := self._pending_check()) and text and not text.endswith("?") and not _ANNOUNCES.search(text):
            return self._try(check, asked=False)
        if goal in self._pending and not _answers(text, goal):
            return self._useless(goal.text)
        return self._settle()

    def _settle(self) -> str | None:
        """Finish the current goal: state the next one, or leave."""
        following = self._next()
        return self._in_persona(following.text) if following else None

    def _next(self) -> UserGoal | None:
        """Drop the current goal and return the next one."""
        self._pending = [goal for goal in self._pending if goal is not self._current_goal]
        self._current_goal, self._contested = next(iter(self._pending), None), False
        return self._current_goal

    def _useless(self, text: str, count: int = 1) -> str | None:
        """Spend patience on turns without progress: return the text, or None when no patience is left."""
        self._patience -= count
        return text if self._patience > 0 else None

    def _in_persona(self, text: str) -> str:
        return self._random.choice(_CHATTY) + text if self._scenario.persona == "chatty" else text


class InstructionUser:
    """A user who says everything at once: for tasks that have an instruction and no goals.

    If the agent's text                     the user
        asks for consent                    says yes
        asks anything else                  repeats the instruction
        is empty, or announces something    asks whether the agent is still there, or says that they wait
        is any other text                   leaves

    Every answer costs patience. When it is used up, the user leaves.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the next message. It depends on the scenario and the transcript only."""
        instruction = self._scenario.opening or self._scenario.instructions
        if not transcript:
            return instruction
        answers = sum(message.role == "user" for message in transcript) - 1
        return None if answers >= self._scenario.patience else answer_text(transcript[-1].content, instruction)


def answer_text(text: str, instruction: str) -> str | None:
    """Return what an `InstructionUser` answers to a text of the agent, or None if the user leaves."""
    text = visible_text(text)
    if not text.strip():
        return SILENCE_TEXTS[0]
    sentences = [s for s in _SENTENCE.split(text.casefold().strip()) if not _CLOSING.search(s)]
    rest = " ".join(sentences)
    if asks_for_consent(rest):
        return _YES[1]
    if any(sentence.endswith("?") or _ASKS_TO_TELL.search(sentence) for sentence in sentences):
        return instruction
    return _WAITING if _ANNOUNCES.search(rest) else None


def explain_unconfirmed(scenario: Scenario, texts: Sequence[str]) -> str:
    """Return why a scripted user has not agreed to a change after the agent's `texts`, or "" if a text got a yes."""
    if not texts:
        return "no text proposes it before"
    text = texts[-1].casefold()
    if not asks_for_consent(text):
        return f"the text before it, {texts[-1]!r:.100}, asks no question, such as 'Shall I go ahead?'"
    goals = [goal for goal in scenario.goals if goal.required_terms]
    lacks = [[term for term in goal.required_terms if not states_fact(term, text)] for goal in goals]
    if not lacks or not all(lacks):
        return ""
    fewest = min(lacks, key=lambda terms: len(terms))
    listed = ", ".join(map(repr, fewest))
    return f"the proposal {texts[-1]!r:.100} lacks the required_terms {listed}; write them into it, or correct the goal"


def is_refusal(sentence: str) -> bool:
    """Return whether a case-folded sentence of the agent says that something cannot be done."""
    return _REFUSAL.search(sentence) is not None and not _HARMLESS.search(sentence)


def _find_offer(refusal: str) -> str:
    """Return what a refusing sentence says the agent will do after all, or ""."""
    offer = _OFFER.search(refusal, max(match.end() for match in _REFUSAL.finditer(refusal)))
    return offer[0] if offer else ""


def announces_transfer(text: str) -> bool:
    """Return whether a case-folded text of the agent transfers the user to a human."""
    return _HANDOVER.search(text) is not None


def _answers(text: str, goal: UserGoal) -> bool:
    if goal.kind == "action" or not text or text.endswith("?"):
        return False
    return bool(extract_numbers(text)) if goal.kind == "number" else not _ANNOUNCES.search(text)


def _asks_for(sentence: str, fact: Fact) -> bool:
    return any(cue in sentence for cue in fact.keywords) and _REQUEST.search(sentence) is not None
