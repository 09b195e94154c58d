"""Families of telecom tasks: the requests of a conversation, at three difficulties."""

from collections.abc import Mapping, Sequence

from understudy.core.tasks import Difficulty
from understudy.domains.authoring.identification import (
    IDENTIFICATION_MODES,
    KNOWLEDGE_LEVELS,
    IdentificationMode,
    Knowledge,
)
from understudy.domains.authoring.request import Draw, GoalFunction, draw_goal
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.telecom.goals import account, info, line_change
from understudy.domains.telecom.goals.troubleshooting import SYMPTOMS, report_fault
from understudy.domains.telecom.task_builder import Caller, TelecomTaskBuilder

TelecomGoal = GoalFunction[TelecomTaskBuilder, str]
"""A function that makes a request about the line with a number."""

_CHANGES: tuple[TelecomGoal, ...] = (
    line_change.suspend_line,
    line_change.change_plan,
    line_change.add_data,
    line_change.enable_roaming,
    line_change.replace_sim,
)
_QUESTIONS: tuple[TelecomGoal, ...] = (info.ask_usage, info.ask_bill)
_REQUESTS: Mapping[str, Sequence[TelecomGoal]] = {
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

FAMILIES: tuple[str, ...] = (*_REQUESTS, *SYMPTOMS)

_BY_NAME: Sequence[Knowledge] = ("described", "vague")
"""The levels for customers who do not know their own number, nor those of their other lines."""


def draw_goals(b: TelecomTaskBuilder, family: str, difficulty: Difficulty) -> tuple[Caller, Sequence[GoalSpec]]:
    """Draw how the customer is identified, their line, and the requests of one conversation in order.

    Easy: one request that the first message states completely (`several`: a question, then a request). Medium: the
    agent has to ask more. Hard: two or more requests, or two causes of one fault.
    """
    identification = b.rng.choice(IDENTIFICATION_MODES[difficulty])
    draw = _draw_faults if family in SYMPTOMS else _draw_requests
    number, goals = draw(b, identification, family, difficulty)
    b.patch("conversation", "now", number=number)
    return Caller(identification, number), goals


def _draw_faults(
    b: TelecomTaskBuilder, identification: IdentificationMode, family: str, difficulty: Difficulty
) -> tuple[str, Sequence[GoalSpec]]:
    """Draw the faulty line, and its fault with sometimes a further request."""
    number, *others = b.lines()
    hard, grantable = difficulty == "hard", b.draw_bool(b.grantable_share)
    draw = Draw(number, "vague" if identification == "other" else "told", grantable, difficulty == "easy")
    goal = report_fault(b, draw, family, causes=2 if hard else 1)
    more = _more(b, identification, others)[:1] if hard and b.draw_bool(0.4) else []
    transferred = any(call.name == "transfer_to_human" for turn in goal.gold_turns for call in turn.tool_calls)
    return number, (goal,) if transferred else (goal, *more)


def _draw_requests(
    b: TelecomTaskBuilder, identification: IdentificationMode, family: str, difficulty: Difficulty
) -> tuple[str, Sequence[GoalSpec]]:
    """Draw the customer's line and the requests."""
    easy = difficulty == "easy"
    number, *others = b.lines()
    knowledge = b.rng.choice(_BY_NAME if identification == "other" else KNOWLEDGE_LEVELS[difficulty])
    if family == "several" and easy:
        return number, [draw_goal(b, functions, number, "told", easy=True) for functions in (_QUESTIONS, _CHANGES)]
    goal = draw_goal(b, _REQUESTS[family], number, knowledge, easy=easy)
    more = _more(b, identification, others) if difficulty == "hard" or family == "several" else []
    caller = b.rng.choice(b.customer.lines)
    return caller, (*more, goal) if family == "handover" else (goal, *more)


def _more(b: TelecomTaskBuilder, identification: IdentificationMode, others: Sequence[str]) -> list[GoalSpec]:
    """Draw further requests, about the customer's other lines if there are any."""
    if not others:
        return [info.ask_bill(b, Draw("", "told", True, True))]
    levels: Sequence[Knowledge] = ("described",) if identification == "other" else ("told", "described")
    functions = _CHANGES + _QUESTIONS
    return [draw_goal(b, functions, number, b.rng.choice(levels), easy=True) for number in others]
