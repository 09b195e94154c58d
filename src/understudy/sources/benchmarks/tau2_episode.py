"""One episode of tau2-bench: agent and user act on one state, which is graded as tau2's evaluator does.

Source: `evaluate_simulation` and the evaluators of src/tau2/evaluator, for text episodes with a user. tau2's evaluator
replays the calls in a new environment. This module grades the state at the end of the episode instead, without a
replay.
"""

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Score
from understudy.envs.rewards import product_score
from understudy.sources.benchmarks.tau_bench import TOOL_EXCEPTIONS, validate_expression

STOP_MARKERS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""Marks that end the episode in a user's message: `is_stop` of tau2/user/user_simulator.py."""
AssertionJudge = Callable[[Sequence[str], Sequence[Message]], Sequence[bool]]
"""Return whether each natural-language assertion holds of the transcript. tau2 asks a language model."""


@dataclass
class Tau2Tools:
    """The tools of one side (agent or user) in a tau2 environment. It records the calls."""

    environment: Any
    call_type: Callable[..., Any]
    """tau2's ToolCall."""
    requestor: str
    tool_specs: Sequence[ToolSpec]
    calls: list[Any] = field(default_factory=list)

    def specs(self) -> Sequence[ToolSpec]:
        """The tools in tau2's order."""
        return self.tool_specs

    async def call(self, call: ToolCall) -> str:
        """Run one call. Raise `ToolError` if it fails.

        As in tau2, the writes of a failed call before its error remain.
        """
        return self.call_sync(call)

    def call_sync(self, call: ToolCall) -> str:
        """Run one call synchronously."""
        arguments = copy.deepcopy(call.arguments)  # tools may store them in the state and change them there
        made = self.call_type(id=call.id, name=call.name, arguments=arguments, requestor=self.requestor)
        self.calls.append(made)
        validate_expression(call)
        answer = self.environment.get_response(made)
        if answer.error:
            raise ToolError(str(answer.content).removeprefix("Error: "))
        return str(answer.content)


@dataclass(frozen=True)
class Tau2Grader:
    """The evaluation criteria of one task, for one episode."""

    criteria: Any
    """tau2's EvaluationCriteria, or None."""
    environment: Any
    same_state: Callable[[], bool]
    """Return whether both databases equal those after the gold actions."""
    tools: Sequence[Tau2Tools]
    history: Sequence[Message] = ()
    """The messages and calls from before the episode."""
    judge: AssertionJudge | None = None

    def score(self, transcript: Sequence[Message], ended: bool) -> Score:
        """Return the product of the task's reward parts (`reward_basis`) for an episode within its limits."""
        parts = {"within_limits": float(ended)}
        basis = _basis(self.criteria) if self.criteria else []
        for kind, part in self._graders().items():
            if kind in basis:
                parts[kind.lower()] = float(part([*self.history, *transcript]))
        return product_score(parts)

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
        """Run all environment assertions. As in tau2, they may change the state."""
        held = [self._holds(assertion) for assertion in self.criteria.env_assertions or ()]
        return all(held)

    def _holds(self, assertion: Any) -> bool:
        """Run one assertion. tau2 fails if its row is missing; here the assertion is false."""
        try:
            return bool(self.environment.run_env_assertion(assertion, raise_assertion_error=False))
        except TOOL_EXCEPTIONS:
            return False

    def _acted(self, transcript: Sequence[Message]) -> bool:
        """Return whether each gold action was called, by agent or user, as in tau2."""
        calls = [call for side in self.tools for call in side.calls]
        return all(any(map(action.compare_with_tool_call, calls)) for action in self.criteria.actions or ())

    def _communicated(self, transcript: Sequence[Message]) -> bool:
        return info_communicated(transcript, self.criteria.communicate_info or ())

    def _judged(self, transcript: Sequence[Message]) -> bool:
        assertions = self.criteria.nl_assertions
        return not assertions or (self.judge is not None and all(self.judge(assertions, transcript)))


def needs_judge(criteria: Any) -> bool:
    """Return whether the reward needs a language model as judge."""
    return criteria is not None and bool(criteria.nl_assertions) and "NL_ASSERTION" in _basis(criteria)


def info_communicated(transcript: Sequence[Message], facts: Iterable[str]) -> bool:
    """Return whether each fact is part of a text of the agent, ignoring case and commas."""
    texts = [m.content.lower().replace(",", "") for m in transcript if m.role == "assistant" and m.content.strip()]
    return all(any(fact.lower() in text for text in texts) for fact in facts)


def tau2_canonical(value: Any) -> str:
    """Return the text that tau2 hashes of a dumped model."""
    return json.dumps(dump_models(value), sort_keys=True, default=str)


def dump_models(value: Any) -> Any:
    """Dump models within lists and mappings."""
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False)
    if isinstance(value, dict):
        return {key: dump_models(inner) for key, inner in value.items()}
    return [dump_models(inner) for inner in value] if isinstance(value, list | tuple) else value


def _basis(criteria: Any) -> list[str]:
    return [kind.value for kind in criteria.reward_basis]
