"""Shared parts of the tests of compliance: transcripts with proposals, and the kinds of their violations."""

from collections.abc import Sequence

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.envs.compliance.violations import find_violations
from understudy.envs.domain import Domain
from understudy.envs.environment import ConfirmedWrite, ConsentGate
from understudy.envs.rewards import FactRules
from understudy.sources.references import load_domain

RETAIL = load_domain("retail")
AIRLINE = load_domain("airline")
CANCEL = ToolCall(name="cancel_order", arguments={"order_id": "W1", "reason": "no longer needed"})
GET = ToolCall(name="get_order", arguments={"order_id": "W1"})
ORDER = '{"id": "W1", "status": "pending", "total": "31.25", "items": [{"name": "apron", "price": "31.25"}]}'
CANDIDATES = ("cancelled|canceled", "shipped", "delivered", "pending")


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def call(made: ToolCall, result: str) -> list[Message]:
    return [Message(role="assistant", tool_calls=(made,)), Message(role="tool", content=result)]


def kinds(
    transcript: Sequence[Message],
    writes: Sequence[ConfirmedWrite] = (),
    outputs: Sequence[str] = (),
    specs: Sequence[ToolSpec] = RETAIL.tool_specs,
    policy: str = RETAIL.domain_policy,
) -> list[str]:
    """Return the kinds of violations of a transcript."""
    state = RETAIL.build_world()
    gate = ConsentGate(RETAIL.toolkit(state), state, transcript, fact_rules=FactRules(candidates=CANDIDATES))
    gate.writes.extend(writes)
    return [found.kind for found in find_violations(transcript, gate, outputs, specs, policy)]


def after_proposal(
    proposal: str, write: ToolCall = CANCEL, then: str = "Done. The order has been cancelled.", domain: Domain = RETAIL
) -> list[str]:
    """Return the kinds of violations if a write follows a proposal and a yes."""
    start = [user("Please help."), *call(GET, ORDER), say(proposal), user("Yes.")]
    transcript = [*start, *call(write, '{"status": "cancelled"}'), say(then)]
    writes = [ConfirmedWrite(write, len(start), len(start) - 1)]
    return kinds(transcript, writes, (), domain.tool_specs, domain.domain_policy)


TWO_ORDERS = [user("Please help with my orders W1, W2 and W3."), *call(GET, ORDER)]
"""The start of an episode in which several orders are known."""


def after_yes(proposal: str, *then: Message, answer: str = "Yes.", write: ToolCall = CANCEL) -> list[str]:
    """Return the kinds of violations if `write` follows a proposal and an answer, and `then` follows it."""
    start = [*TWO_ORDERS, say(proposal), user(answer)]
    writes = [ConfirmedWrite(write, len(start), len(start) - 1)]
    return kinds([*start, *call(write, '{"status": "cancelled"}'), *then], writes)
