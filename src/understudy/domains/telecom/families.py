"""Families of telecom tasks: the requests of a conversation, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.core.tasks import Difficulty
from understudy.domains.authoring.identification import (
    IDENTIFICATION_MODES,
    KNOWLEDGE_LEVELS,
    IdentificationMode,
    Knowledge,
)
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.telecom.goals import account, info, line_change
from understudy.domains.telecom.goals.base import TelecomGoalFactory
from understudy.domains.telecom.goals.troubleshooting import Symptom, report_fault
from understudy.domains.telecom.task_builder import Caller, TelecomTaskBuilder

GRANTABLE_SHARE = 0.72
"""Share of requests that are allowed, and of faults that can be repaired."""

_CHANGES: tuple[TelecomGoalFactory, ...] = (
    line_change.suspend_line,
    line_change.change_plan,
    line_change.add_data,
    line_change.enable_roaming,
    line_change.replace_sim,
)
_QUESTIONS: tuple[TelecomGoalFactory, ...] = (info.ask_usage, info.ask_bill)
_REQUESTS: Mapping[str, Sequence[TelecomGoalFactory]] = {
    "suspend": (line_change.suspend_line,),
    "resume": (line_change.resume_line,),
    "plan": (line_change.change_plan,),
    "data": (line_change.add_data,),
    "roaming": (line_change.enable_roaming,),
    "sim": (line_change.replace_sim,),
    "pay": (account.pay_bill,),
    "bill": (info.ask_bill,),
    "usage": (info.ask_usage,),
    "ticket": (account.open_ticket, info.ask_ticket_status),
    "several": _CHANGES,
    "correction": (line_change.correct_plan, line_change.switch_suspend_to_plan),
    "handover": (account.ask_out_of_scope,),
}
"""The main requests of a family. `several` always has more than one request, and in `correction` the user changes their
mind when asked to confirm."""

_TROUBLES: Sequence[Symptom] = ("internet", "calls", "slow", "abroad")
"""Faults: no internet, no calls, slow internet, no internet abroad. Agent and user find the cause together."""

FAMILIES: tuple[str, ...] = (*_REQUESTS, *_TROUBLES)

_BY_NAME: Sequence[Knowledge] = ("described", "vague")
"""The levels for customers who do not know their own number, nor those of their other lines."""


def draw_goals(builder: TelecomTaskBuilder, family: str, difficulty: Difficulty) -> tuple[Caller, Sequence[GoalSpec]]:
    """Draw how the customer is identified, their line, and the requests of one conversation in order.

    Easy: one request that the first message states completely (`several`: a question, then a request). Medium: the
    agent has to ask more. Hard: two or more requests, or two causes of one fault.
    """
    identity = builder.rng.choice(IDENTIFICATION_MODES[difficulty])
    number, requests = _drawn(builder, identity, family, difficulty)
    builder.patch("conversation", "now", number=number)
    return Caller(identity, number), requests


def _drawn(
    builder: TelecomTaskBuilder, identification: IdentificationMode, family: str, difficulty: Difficulty
) -> tuple[str, Sequence[GoalSpec]]:
    """Draw the customer's line and the requests."""
    easy = difficulty == "easy"
    first, *others = builder.lines()
    if symptom := next((symptom for symptom in _TROUBLES if symptom == family), None):
        request = report_fault(builder, first, identification, symptom, builder.draw_bool(GRANTABLE_SHARE), difficulty)
        further = _more(builder, identification, others)[:1] if difficulty == "hard" and builder.draw_bool(0.4) else []
        return first, (request,) if _hands_over(request) else (request, *further)
    knowledge = builder.rng.choice(_BY_NAME if identification == "other" else KNOWLEDGE_LEVELS[difficulty])
    if family == "several" and easy:
        return first, tuple(_one_of(builder, makers, first, "told") for makers in (_QUESTIONS, _CHANGES))
    make = builder.rng.choice(_REQUESTS[family])
    request = make(builder, first, knowledge, builder.draw_bool(GRANTABLE_SHARE), easy)
    more = _more(builder, identification, others) if difficulty == "hard" or family == "several" else []
    caller = builder.rng.choice(builder.customer.lines)
    return caller, (*more, request) if family == "handover" else (request, *more)


def _hands_over(goal: GoalSpec) -> bool:
    return any(call.name == "transfer_to_human" for turn in goal.gold_turns for call in turn.tool_calls)


def _more(builder: TelecomTaskBuilder, identification: IdentificationMode, others: Sequence[str]) -> list[GoalSpec]:
    """Draw further requests, about the customer's other lines if there are any."""
    if not others:
        return [info.ask_bill(builder, "", "told", True, True)]
    known: Sequence[Knowledge] = ("described",) if identification == "other" else ("told", "described")
    return [_one_of(builder, _CHANGES + _QUESTIONS, number, builder.rng.choice(known)) for number in others]


def _one_of(
    builder: TelecomTaskBuilder, factories: Sequence[TelecomGoalFactory], number: str, knowledge: Knowledge
) -> GoalSpec:
    return builder.rng.choice(factories)(builder, number, knowledge, builder.draw_bool(GRANTABLE_SHARE), True)
