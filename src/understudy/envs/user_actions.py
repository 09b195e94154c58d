"""User actions: find the actions that a text of the agent instructs the user to do, and run them with the user's
tools.

A clause is an instruction if a verb starts it or follows "please", "you", "then" and the like: a common verb, the first
word of the tool's name, or a term of the action. Clauses about what the
agent does or offers, prohibitions and conditions ("once you have ...") are not instructions. The user also
does a read-only action if the text asks for its result.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from understudy.core.errors import TaskError, ToolError, ToolErrorKind
from understudy.core.messages import ToolCall, format_call
from understudy.core.tasks import SuccessCheck, UserAction
from understudy.envs.rewards import states_fact
from understudy.envs.state import State
from understudy.envs.tools import Toolkit

MAX_ACTIONS_PER_MESSAGE = 2
"""Maximum number of writing actions that the user does for one text. The user declines a text that asks for more."""
REJECTED_ACTION_TURNS = 2
"""Useless turns counted for a rejected action, so that guessing costs more than a read-only action."""
MAX_NEW_RESULTS = 6
"""New results that one action can give; later ones count as useless turns. This bounds the conversation."""

WRONG_CALL_KINDS: tuple[ToolErrorKind, ...] = ("unknown_tool", "invalid_arguments", "malformed")
"""Errors of a call that fails in every state."""

RunCall = Callable[[ToolCall], str]
"""Runs a call of the user's own tools and returns its result. Raises `ToolError` if the call is rejected."""

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
_TRY = r"\b(?:try|trying|mind|suggest|recommend|advise|by) "
_ORDER = re.compile(rf"{_LEAD}(?:{_DO})\b|{_TRY}(?:{_ING})\b")
# A term may be a noun, as in "Mobile data is on", so words around it show that it is a verb.
_ASKED = r"(?:\b(?:please|kindly|let's|let us|you (?:can|could|should|must|may)) (?:please |also |now |then |just )?)"
_NO_STATEMENT = r"(?! (?:is|are|was|were|has|have|had|will|can|should|seems?|looks?|works?|shows?|says?)\b)"
_OBJECT = r"(?=\W*$| (?:the|your|a|an|it|this|that|all|both|now|once|again|please|to|on|off|in|up)\b)"
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
# Two searches, because one pattern for both takes time quadratic in the length of the text.
_WORKS = re.compile(r"\b(?:works?|working|fixed|solved|resolved|better|tr(?:y|ied) (?:it )?(?:again|now))\b")
_ASKS = re.compile(r"\?|\b(?:please|tell me|let me know|could you|can you)\b")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_CLAUSE = re.compile(r"[,;:]\s+|\s+(?:and|then|but|so)\s+")


@dataclass(frozen=True, slots=True)
class TriedCall:
    """What a call of the user's tools does in one state."""

    call: ToolCall
    result: str = ""
    error: str = ""
    error_kind: ToolErrorKind | None = None
    writes: tuple[str, ...] = ()
    """The tables and values of the state that it changes."""

    def __str__(self) -> str:
        """Return the call and its result."""
        return f"{format_call(self.call)} returns {self.result!r:.100}"

    def explain(self, agent_tools: Collection[str]) -> str:
        """Return the call and why it fails. `agent_tools` are the names of the agent's tools."""
        if self.error_kind == "unknown_tool" and self.call.name in agent_tools:
            return f"{format_call(self.call)} is of a tool of the agent; call a tool of user_tools"
        return f"{format_call(self.call)} fails: {self.error}"


def try_call(call: ToolCall, toolkit: Toolkit, state: State) -> TriedCall:
    """Run a call of a toolkit on `state`, and undo what it has changed."""
    before, changes = state.snapshot(), state.changes()
    try:
        result, after = toolkit.call_sync(call), state.changes()
        writes = sorted(name for name in {**changes, **after} if changes.get(name) != after.get(name))
        return TriedCall(call, result, writes=tuple(writes))
    except ToolError as e:
        return TriedCall(call, error=str(e), error_kind=e.kind)
    finally:
        state.restore(before)


class UserToolExecutor:
    """Runs the actions of a task with the user's own tools."""

    def __init__(self, actions: Sequence[UserAction], run_call: RunCall | None) -> None:
        """Raise `TaskError` if there are actions and `run_call` is None."""
        if actions and run_call is None:
            raise TaskError(f"the user has no tools to do {actions[0].call.name!r} with; set Domain.user_tools")
        self._actions, self._run_call = actions, run_call
        self._shown: dict[str, list[str]] = {}

    def find_instructed(self, text: str) -> list[UserAction]:
        """Return the actions that a text instructs the user to do, in the order of the text."""
        found: list[UserAction] = []
        before = ""
        for sentence in _SENTENCE.split(text.casefold()):
            for action in self._find_in_sentence(sentence, before):
                if action not in found:
                    found.append(action)
            before = sentence
        return found

    def run_actions(self, actions: Iterable[UserAction]) -> tuple[str, int]:
        """Run the actions in order. Return the user's text and the number of useless turns."""
        done = [self._do(action.call, action.reply_template) for action in actions]
        return " ".join(dict.fromkeys(text for text, _ in done)), sum(useless for _, useless in done)

    def run_actions_and_check(self, actions: Sequence[UserAction], check: SuccessCheck | None) -> tuple[str, int, bool]:
        """Run the actions, then the success check. Return the user's text, useless turns, and success."""
        changes = sum(not action.read_only for action in actions)
        if changes > MAX_ACTIONS_PER_MESSAGE:
            return "That is too much at once. One step after the other, please.", 1, False
        text, useless = self.run_actions(actions)
        if check and self.check_success(check):
            return f"{text} {check.success_text}", 0, True
        return f"{text} {check.failure_text}" if check and changes else text, useless, False

    def check_success(self, check: SuccessCheck) -> bool:
        """Return whether the success check passes."""
        try:
            return check.expected_output in self._result(check.call)
        except ToolError as e:
            if e.report:
                raise
            return False

    def _find_in_sentence(self, sentence: str, before: str) -> list[UserAction]:
        clauses = [clause for clause in _CLAUSE.split(_OWN.sub(" ", sentence)) if not _DEPENDS.search(clause)]
        if _OFFER.search(sentence) or any(_FORBIDDEN.search(clause) for clause in clauses):
            return []
        # Match each clause alone first, so that "turn off A and turn on B" does not turn off B. Then match the complete
        # sentence, as in "if A is on, turn it off and check B".
        found = [action for clause in clauses for action in self._match(clause, (clause,), sentence)]
        if all(action.read_only for action in found):
            thing = f"{before} {sentence}" if _IT.search(sentence) else sentence
            does = [action for action in self._match(sentence, clauses, sentence, thing) if not action.read_only]
            return [*does, *found] or self._match(sentence, clauses, sentence)
        return found

    def _match(self, text: str, clauses: Sequence[str], sentence: str, thing: str = "") -> list[UserAction]:
        """Return the actions that a text names.

        `thing` is a longer text for sentences with "it": the object may be named in the sentence before.
        """
        asks = bool(_ABOUT.search(sentence))
        does = not asks and any(_ORDER.search(clause) for clause in clauses)
        looks = "?" in sentence or any(_LOOK_ORDER.search(clause) for clause in clauses)
        fitting = [
            action
            for action in self._actions
            if (looks if action.read_only else does or (not asks and _orders_by_own_words(action, clauses)))
        ]
        named = [
            action
            for action in fitting
            if all(states_fact(name, text) for name in action.required_terms[1:])
            and states_fact(action.required_terms[0], thing or text)
        ]
        first = {action.required_terms[0]: action for action in reversed(named) if not action.read_only}
        return list(reversed(first.values())) or named

    def _do(self, call: ToolCall, template: str) -> tuple[str, int]:
        """Run one call. Return the user's text and the useless turns: 0 if the text is new."""
        try:
            text = template.replace("{result}", self._result(call))
        except ToolError as e:
            if e.report:  # a bug in the tool, which is a fault of the user and nothing that a user would say
                raise
            return f"I cannot do that: {e}.", REJECTED_ACTION_TURNS
        seen = self._shown.setdefault(call.model_dump_json(), [])
        useless = text in seen or len(seen) >= MAX_NEW_RESULTS
        seen.append(text)
        return text, int(useless)

    def _result(self, call: ToolCall) -> str:
        if self._run_call is None:
            raise TaskError(f"the user has no tools to try {call.name!r} with; set Domain.user_tools")
        return self._run_call(call)


def _orders_by_own_words(action: UserAction, clauses: Iterable[str]) -> bool:
    """Return whether a clause uses a term of the action, or the first word of its tool's name, as a verb."""
    terms = [term for name in action.required_terms for term in name.split("|")]
    own = "|".join(re.escape(word.casefold()) for word in (*terms, action.call.name.split("_")[0]) if word)
    order = re.compile(rf"(?:{_ASKED}|{_TRY})(?:{own})\b{_NO_STATEMENT}|{_LEAD}(?:{own})\b{_OBJECT}")
    return any(order.search(clause) for clause in clauses)


def asks_for_success_check(text: str) -> bool:
    """Return whether a text of the agent asks the user to check that the problem is solved."""
    sentences = _SENTENCE.split(text.casefold())
    return any(_WORKS.search(sentence) and _ASKS.search(sentence) for sentence in sentences)
