"""One episode of tau2-bench: agent and user act on one state, and the live state is graded as tau2's evaluator does.

Source: `evaluate_simulation` and the evaluators of src/tau2/evaluator, for text episodes with a user. They replay the
calls on a fresh environment first; here the live one is read, where the same calls have run once.
"""

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from understudy.errors import ToolError
from understudy.integrations.tau_bench import RAISED, refuse_powers
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.rewards import product
from understudy.tasks import Score

MARKS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""A user's message that holds one of them ends the episode: `is_stop` of tau2/user/user_simulator.py."""
Judge = Callable[[Sequence[str], Sequence[Message]], Sequence[bool]]
"""Whether each assertion in plain words holds of the transcript. tau2 asks a language model."""


@dataclass
class Side:
    """The tools of one side, agent or user, in one of tau2's environments; it remembers what was called."""

    environment: Any
    call_type: Callable[..., Any]
    """tau2's ToolCall."""
    requestor: str
    listed: Sequence[ToolSpec]
    calls: list[Any] = field(default_factory=list)

    def specs(self) -> Sequence[ToolSpec]:
        """The tools in tau2's order."""
        return self.listed

    async def call(self, call: ToolCall) -> str:
        """Run one call; what fails is a `ToolError`, and what it had written stays written, as in tau2."""
        return self.run(call)

    def run(self, call: ToolCall) -> str:
        """`call` for callers that are not asynchronous."""
        arguments = copy.deepcopy(call.arguments)  # tools may keep them in the state, and change them there
        made = self.call_type(id=call.id, name=call.name, arguments=arguments, requestor=self.requestor)
        self.calls.append(made)
        refuse_powers(call)
        answer = self.environment.get_response(made)
        if answer.error:
            raise ToolError(str(answer.content).removeprefix("Error: "))
        return str(answer.content)


@dataclass(frozen=True)
class Grader:
    """The evaluation criteria of one task, for one episode."""

    criteria: Any
    """tau2's EvaluationCriteria, or None."""
    environment: Any
    same_state: Callable[[], bool]
    """Whether both databases are as the gold actions leave them."""
    sides: Sequence[Side]
    earlier: Sequence[Message] = ()
    """What was said and called before the episode began."""
    judge: Judge | None = None

    def score(self, transcript: Sequence[Message], ended: bool) -> Score:
        """The product of the parts that the task counts (`reward_basis`), of an episode that no limit cut off."""
        parts = {"ended": float(ended)}
        basis = _basis(self.criteria) if self.criteria else []
        for kind, part in self._graders().items():
            if kind in basis:
                parts[kind.lower()] = float(part([*self.earlier, *transcript]))
        return product(parts)

    def _graders(self) -> dict[str, Callable[[Sequence[Message]], bool]]:
        return {
            "DB": self._database,
            "ENV_ASSERTION": self._assertions,
            "ACTION": self._acted,
            "COMMUNICATE": self._communicated,
            "NL_ASSERTION": self._judged,
        }

    def _database(self, transcript: Sequence[Message]) -> bool:
        return (self.criteria.actions is None and self.criteria.env_assertions is None) or self.same_state()

    def _assertions(self, transcript: Sequence[Message]) -> bool:
        """All of them run, and may change the state, as in tau2."""
        held = [self._holds(assertion) for assertion in self.criteria.env_assertions or ()]
        return all(held)

    def _holds(self, assertion: Any) -> bool:
        """One about a row that is not there raises, which ends tau2's evaluation; here it does not hold."""
        try:
            return bool(self.environment.run_env_assertion(assertion, raise_assertion_error=False))
        except RAISED:
            return False

    def _acted(self, transcript: Sequence[Message]) -> bool:
        """Each gold action was called by somebody; tau2 does not ask by whom."""
        calls = [call for side in self.sides for call in side.calls]
        return all(any(map(action.compare_with_tool_call, calls)) for action in self.criteria.actions or ())

    def _communicated(self, transcript: Sequence[Message]) -> bool:
        return communicated(transcript, self.criteria.communicate_info or ())

    def _judged(self, transcript: Sequence[Message]) -> bool:
        assertions = self.criteria.nl_assertions
        return not assertions or (self.judge is not None and all(self.judge(assertions, transcript)))


def needs_judge(criteria: Any) -> bool:
    """Whether the reward depends on a language model's opinion."""
    return criteria is not None and bool(criteria.nl_assertions) and "NL_ASSERTION" in _basis(criteria)


def communicated(transcript: Sequence[Message], facts: Iterable[str]) -> bool:
    """Whether each fact, in lower case, is part of a text of the agent, commas left out."""
    texts = [m.content.lower().replace(",", "") for m in transcript if m.role == "assistant" and m.content.strip()]
    return all(any(fact.lower() in text for text in texts) for fact in facts)


def canonical(value: Any) -> str:
    """The text that tau2 hashes of a model's dump."""
    return json.dumps(plain(value), sort_keys=True, default=str)


def plain(value: Any) -> Any:
    """Models within lists and mappings as what they dump."""
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False)
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _basis(criteria: Any) -> list[str]:
    return [kind.value for kind in criteria.reward_basis]
