"""Requests to change a line: suspension, plan, data, roaming and SIM card."""

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.request import (
    Detail,
    Draw,
    change_mind,
    grant,
    plain_request,
    refuse,
    request,
    tell,
)
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.telecom import user_tools
from understudy.domains.telecom.goals.line import (
    AMOUNT_CUES,
    RESUME_TERMS,
    SIM_TERMS,
    ensure_roaming_plan,
    grant_data,
    grant_roaming,
    other_line_has_plan,
    refuse_ended_contract,
    refuse_unchangeable,
    set_overdue,
)
from understudy.domains.telecom.state import SuspendReason
from understudy.domains.telecom.task_builder import LineMention, TelecomTaskBuilder
from understudy.domains.telecom.tools import MAX_ADDED_GB, MAX_SUSPENSION_DAYS
from understudy.domains.telecom.world import COUNTRIES, PLANS
from understudy.envs.gold import gold_call

SUSPEND_TERMS = (
    "suspend|suspends|suspended|suspending|suspension|block|blocks|blocked|blocking|pause|pauses|paused|pausing|on hold"
    "|freeze|freezes|frozen|freezing"
)
REASON_TERMS: Mapping[SuspendReason, str] = {
    "lost phone": "lost|loss|losing|misplaced",
    "stolen phone": "stolen|theft",
    "long trip": "trip|journey|travel|traveling|travelling|abroad|away",
}
"""The accepted forms of a reason in a proposal."""
_WHY, _DAYS = ("why", "reason"), ("how long", "how many days", "days", "until when")
DATA = Detail("more_data", "more_data_vague", "how_many", "How many GB do you want to add?", AMOUNT_CUES)


def suspend_line(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Suspend a line. A refusal is sometimes due to the number of days."""
    mention, reason = b.line_mention(draw), b.rng.choice(get_args(SuspendReason))
    too_long = not draw.grantable and not draw.easy and b.draw_bool(0.4)
    days = b.rng.choice((120, 150, 180, 365) if too_long else (7, 14, 21, 30, 45, 60, 90))
    vague = not draw.easy and not b.draw_bool(0.5)
    period, why = b.phrase("days", days=f"{days}"), b.phrase(f"why.{reason}")
    goal = plain_request(f"{b.phrase('suspend')} {why}", mention, SUSPEND_TERMS, f"{days}", REASON_TERMS[reason])
    goal = tell(goal, period, "For how many days should it be suspended?", _DAYS, vague=vague)
    goal = replace(goal, facts=(*goal.facts, Fact(text=why, keywords=_WHY, in_opening=True)))
    if too_long:
        limit = f"{MAX_SUSPENSION_DAYS}"
        refusal = f"A line can be suspended for at most {limit} days, so I cannot suspend it for {days}."
        return refuse(b, goal, refusal, limit, easy=draw.easy)
    if not draw.grantable:
        return refuse_unchangeable(b, draw, goal, "suspend it")
    call = gold_call("suspend_line", number=draw.entity, reason=reason, days=days)
    proposal = f"suspend {mention.proposal_phrase} for {days} days, reason: {reason}"
    return grant(goal, proposal, call, "The line has been suspended.")


def resume_line(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Resume a line that was suspended by the customer or for an overdue bill."""
    mention = b.line_mention(draw)
    goal = plain_request(b.phrase("resume"), mention, RESUME_TERMS)
    goal = replace(goal, user_actions=(user_tools.PAY_BILL,))
    if not draw.grantable or b.draw_bool(0.5):
        b.set_line(draw.entity, suspended=b.rng.choice(get_args(SuspendReason)))
    else:
        turns, steps = set_overdue(b, draw.entity)
        goal = replace(goal, gold_turns=turns, accepted_steps=steps)
    if not draw.grantable:
        return refuse_ended_contract(b, draw, goal, "resume it")
    call = gold_call("resume_line", number=draw.entity)
    return grant(goal, f"resume {mention.proposal_phrase}", call, "The line is active.")


def change_plan(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Change a line's plan, or unless easy sometimes to the cheapest plan with enough data."""
    current = b.plan_name(draw.entity)
    plan = b.rng.choice([name for name in PLANS if name != current])
    text, read = b.phrase("plan", plan=plan), gold_call("get_plan", plan=plan)
    if not draw.easy and (larger := _draw_larger_plan(b, draw.entity)) and b.draw_bool(0.6):
        plan, data = larger
        text, read = b.phrase("cheapest", data=data), gold_call("list_plans")
    mention = b.line_mention(draw)
    goal = plain_request(text, mention, plan, _price(b, plan))
    if draw.grantable:
        return _grant_plan(b, goal, mention, plan, read)
    if b.draw_bool(0.6):
        return refuse_unchangeable(b, draw, goal, "change its plan")
    next_plan = b.rng.choice([name for name in PLANS if name not in (current, plan)])
    b.set_line(draw.entity, next_plan=next_plan)
    waiting = f"Line {draw.entity} is already set to change to the {next_plan} plan"
    return refuse(b, goal, f"{waiting}, so I cannot change it to another one.", next_plan, easy=draw.easy)


def _draw_larger_plan(b: TelecomTaskBuilder, number: str) -> tuple[str, str] | None:
    """Draw a data size that is larger than that of the line's plan.

    Return the cheapest plan with at least that size, and the size, or None if no plan is larger.
    """
    plans = b.world.plans
    sizes = [plan.data for plan in plans.values() if plan.data > b.plan_terms(number).data]
    if not sizes:
        return None
    data = b.rng.choice(sizes)
    cheapest = min((plan.price, name) for name, plan in plans.items() if plan.data >= data)[1]
    return cheapest, f"{data:.0f}"


def correct_plan(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Ask for one plan, then for another one when asked to confirm."""
    mention = b.line_mention(draw)
    first, second = b.rng.sample([name for name in PLANS if name != mention.plan], 2)
    goal = plain_request(b.phrase("plan", plan=first), mention, second, _price(b, second))
    goal = replace(goal, gold_turns=(gold_call("get_plan", plan=first),))
    wish = f"{b.phrase('change_of_mind')} {b.phrase('plan', plan=second)}"
    goal = change_mind(goal, _plan_proposal(b, mention, first), wish)
    return _grant_plan(b, goal, mention, second, gold_call("get_plan", plan=second))


def switch_suspend_to_plan(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Ask to suspend a line, then for another plan instead when asked to confirm."""
    mention, days = b.line_mention(draw), b.rng.choice((30, 60, 90))
    plan = b.rng.choice([name for name in PLANS if name != mention.plan])
    text = f"{b.phrase('suspend')} {b.phrase('why.long trip')} {b.phrase('days', days=f'{days}')}"
    wish = f"{b.phrase('change_of_mind')} {b.phrase('keep_active')} {b.phrase('plan', plan=plan)}"
    goal = plain_request(text, mention, plan, _price(b, plan))
    goal = change_mind(goal, f"suspend {mention.proposal_phrase} for {days} days, reason: long trip", wish)
    return _grant_plan(b, goal, mention, plan, gold_call("get_plan", plan=plan))


def _grant_plan(b: TelecomTaskBuilder, goal: GoalSpec, mention: LineMention, plan: str, read: Message) -> GoalSpec:
    call = gold_call("change_plan", number=mention.number, plan=plan)
    return grant(goal, _plan_proposal(b, mention, plan), call, "The plan has been changed.", [read])


def _plan_proposal(b: TelecomTaskBuilder, mention: LineMention, plan: str) -> str:
    price = _price(b, plan)
    return f"change {mention.proposal_phrase} to the {plan} plan for {price} a month, starting with the next bill"


def _price(b: TelecomTaskBuilder, plan: str) -> str:
    return f"{b.world.plans[plan].price}"


def add_data(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Buy more data for a line."""
    mention, gb = b.line_mention(draw), b.rng.randint(2, 6)
    vague = not draw.easy and b.draw_bool(0.4)
    price = gb * b.plan_terms(draw.entity).extra_gb
    goal = request(b, DATA, mention, vague, f"{gb}", f"{price}", gb=f"{gb}")
    if not draw.grantable and b.draw_bool(0.4):
        return refuse_unchangeable(b, draw, goal, "add data")
    added = 0 if draw.grantable else b.rng.randint(MAX_ADDED_GB + 1 - gb, MAX_ADDED_GB)
    b.set_line(draw.entity, data_added=f"{added}.0")
    read = gold_call("get_usage", number=draw.entity)
    if not draw.grantable:
        reason = f"{added} GB have already been added and the limit is {MAX_ADDED_GB}, so I cannot add {gb}."
        return refuse(b, goal, reason, f"{added}", easy=draw.easy, reads=[read])
    return grant_data(b, replace(goal, gold_turns=(*goal.gold_turns, read)), mention, gb)


def enable_roaming(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Enable roaming for a line."""
    if draw.grantable:
        ensure_roaming_plan(b, draw.entity)
    without = not draw.grantable and not other_line_has_plan(b, draw.entity, "Start") and b.draw_bool(0.5)
    if without:
        b.set_line(draw.entity, plan="Start")
    mention, text = b.line_mention(draw), b.phrase("roaming", country=b.rng.choice(COUNTRIES))
    goal = plain_request(text, mention, "roaming", f"{b.plan_terms(draw.entity).roaming_day}")
    if without:
        reason = "The Start plan has no roaming, so I cannot enable it."
        return refuse(b, goal, reason, "Start", easy=draw.easy, reads=[gold_call("get_plan", plan="Start")])
    if not draw.grantable:
        return refuse_unchangeable(b, draw, goal, "enable roaming")
    return grant_roaming(b, goal, mention)


def replace_sim(b: TelecomTaskBuilder, draw: Draw[str]) -> GoalSpec:
    """Get a new SIM card for a line."""
    mention = b.line_mention(draw)
    goal = plain_request(b.phrase("sim"), mention, SIM_TERMS)
    if draw.grantable:
        call = gold_call("replace_sim", number=draw.entity)
        return grant(goal, f"send you a new SIM card for {mention.proposal_phrase}", call, "It is on its way.")
    if b.draw_bool(0.5):
        return refuse_unchangeable(b, draw, goal, "send a SIM card")
    b.set_line(draw.entity, sim_ordered=True)
    reason = f"A new SIM card for line {draw.entity} has already been ordered, so I cannot send another one."
    return refuse(b, goal, reason, "ordered", easy=draw.easy)
