"""Requests to change a line: suspension, plan, data, roaming and SIM card. `base` defines `grantable`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from understudy.core.tasks import Fact
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import (
    GoalSpec,
    gold_call,
    gold_change,
    gold_proposal,
    gold_text,
)
from understudy.domains.telecom import user_tools
from understudy.domains.telecom.goals.base import (
    AMOUNT_CUES,
    RESUME_TERMS,
    SIM_TERMS,
    add_contract_refusal,
    add_data_turns,
    add_refusal,
    add_unchangeable_refusal,
    enable_roaming_turns,
    ensure_roaming_plan,
    other_line_has_plan,
    set_overdue,
)
from understudy.domains.telecom.state import SuspendReason
from understudy.domains.telecom.task_builder import LineMention, TelecomTaskBuilder
from understudy.domains.telecom.tools import MAX_ADDED_GB, MAX_SUSPENSION_DAYS
from understudy.domains.telecom.world import COUNTRIES, PLANS

SUSPEND_TERMS = (
    "suspend|suspended|suspending|suspension|block|blocked|blocking|pause|paused|pausing|on hold|freeze|frozen|freezing"
)
REASON_TERMS: Mapping[SuspendReason, str] = {
    "lost phone": "lost|loss|losing|misplaced",
    "stolen phone": "stolen|theft",
    "long trip": "trip|journey|travel|traveling|travelling|abroad|away",
}
"""The accepted forms of a reason in a proposal."""
_WHY, _DAYS = ("why", "reason"), ("how long", "how many days", "days", "until when")


def suspend_line(
    builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Suspend a line. A refusal is sometimes due to the number of days."""
    mention, reason = builder.line_mention(number, knowledge), builder.rng.choice(get_args(SuspendReason))
    long = not grantable and not easy and builder.draw_bool(0.4)
    days = builder.rng.choice((120, 150, 180, 365) if long else (7, 14, 21, 30, 45, 60, 90))
    in_opening, says = easy or builder.draw_bool(0.5), builder.phrase("days", days=f"{days}")
    why = builder.phrase(f"why.{reason}")
    text = f"{builder.phrase('suspend')} {why}{f' {says}' if in_opening else ''}"
    facts = (Fact(text=says, keywords=_DAYS, in_opening=in_opening), Fact(text=why, keywords=_WHY, in_opening=True))
    terms = (*mention.required_terms, SUSPEND_TERMS, f"{days}", REASON_TERMS[reason])
    goal = GoalSpec(text, mention, required_terms=terms, facts=facts)
    asks = () if in_opening else (gold_text("For how many days should it be suspended?"),)
    if long:
        refusal = f"A line can be suspended for at most {MAX_SUSPENSION_DAYS} days, so I cannot suspend it for {days}."
        return add_refusal(builder, goal, asks, refusal, f"{MAX_SUSPENSION_DAYS}", easy)
    if not grantable:
        return add_unchangeable_refusal(builder, goal, number, "suspend it", easy)
    do = gold_call("suspend_line", number=number, reason=reason, days=days)
    proposal = f"suspend {mention.proposal_phrase} for {days} days, reason: {reason}"
    return replace(goal, gold_turns=asks + gold_change(proposal, do, "The line has been suspended."))


def resume_line(
    builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Resume a line that was suspended by the customer or for an overdue bill."""
    mention = builder.line_mention(number, knowledge)
    goal = GoalSpec(
        builder.phrase("resume"),
        mention,
        required_terms=(*mention.required_terms, RESUME_TERMS),
        user_actions=(user_tools.PAY_BILL,),
    )
    if not grantable:
        builder.set_line(number, suspended=builder.rng.choice(get_args(SuspendReason)))
        return add_contract_refusal(builder, goal, number, "resume it", easy)
    do = gold_change(
        f"resume {mention.proposal_phrase}", gold_call("resume_line", number=number), "The line is active."
    )
    if builder.draw_bool(0.5):
        builder.set_line(number, suspended=builder.rng.choice(get_args(SuspendReason)))
        return replace(goal, gold_turns=do)
    pays, agrees = set_overdue(builder, number)
    return replace(goal, gold_turns=(*pays, *do), accepted_steps=agrees)


def change_plan(
    builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Change a line's plan, or unless `easy` sometimes to the cheapest plan with enough data."""
    current = builder.plan_name(number)
    target = builder.rng.choice([name for name in PLANS if name != current])
    text, read = builder.phrase("plan", plan=target), gold_call("get_plan", plan=target)
    if not easy and (bigger := _bigger(builder, number)) and builder.draw_bool(0.6):
        target, text, read = bigger[0], builder.phrase("cheapest", data=bigger[1]), gold_call("list_plans")
    mention = builder.line_mention(number, knowledge)
    goal = _planned(builder, GoalSpec(text, mention, (read,)), mention, target)
    if grantable:
        return goal
    if builder.draw_bool(0.6):
        return add_unchangeable_refusal(builder, goal, number, "change its plan", easy)
    waiting = builder.rng.choice([name for name in PLANS if name not in (current, target)])
    builder.set_line(number, next_plan=waiting)
    refusal = f"Line {number} is already set to change to the {waiting} plan, so I cannot change it to another one."
    return add_refusal(builder, goal, (), refusal, waiting, easy)


def add_data(builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool) -> GoalSpec:
    """Buy more data for a line."""
    mention, gb, vague = (
        builder.line_mention(number, knowledge),
        builder.rng.randint(2, 6),
        not easy and builder.draw_bool(0.4),
    )
    text = builder.phrase("more_data_vague") if vague else builder.phrase("more_data", gb=f"{gb}")
    facts = (Fact(text=builder.phrase("how_many", gb=f"{gb}"), keywords=AMOUNT_CUES, in_opening=not vague),)
    price, asks = (
        gb * builder.plan_terms(number).extra_gb,
        (gold_text("How many GB do you want to add?"),) if vague else (),
    )
    goal = GoalSpec(
        text, mention, required_terms=(*mention.required_terms, f"{gb}", f"{price}"), facts=facts, gold_turns=asks
    )
    if not grantable and builder.draw_bool(0.4):
        return add_unchangeable_refusal(builder, goal, number, "add data", easy)
    added = builder.rng.randint(MAX_ADDED_GB + 1 - gb, MAX_ADDED_GB) if not grantable else 0
    builder.set_line(number, data_added=f"{added}.0")
    if not grantable:
        refusal = f"{added} GB have already been added and the limit is {MAX_ADDED_GB}, so I cannot add {gb}."
        return add_refusal(builder, goal, (*asks, gold_call("get_usage", number=number)), refusal, f"{added}", easy)
    return replace(
        goal,
        gold_turns=(
            *asks,
            gold_call("get_usage", number=number),
            *add_data_turns(builder, number, mention.proposal_phrase, gb),
        ),
    )


def enable_roaming(
    builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Enable roaming for a line."""
    if grantable:
        ensure_roaming_plan(builder, number)
    without = not grantable and not other_line_has_plan(builder, number, "Start") and builder.draw_bool(0.5)
    if without:
        builder.set_line(number, plan="Start")
    mention, text = (
        builder.line_mention(number, knowledge),
        builder.phrase("roaming", country=builder.rng.choice(COUNTRIES)),
    )
    goal = GoalSpec(
        text, mention, required_terms=(*mention.required_terms, "roaming", f"{builder.plan_terms(number).roaming_day}")
    )
    if without:
        refusal = "The Start plan has no roaming, so I cannot enable it."
        return add_refusal(builder, goal, (gold_call("get_plan", plan="Start"),), refusal, "Start", easy)
    if not grantable:
        return add_unchangeable_refusal(builder, goal, number, "enable roaming", easy)
    return replace(goal, gold_turns=tuple(enable_roaming_turns(builder, number, mention.proposal_phrase)))


def replace_sim(
    builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Get a new SIM card for a line."""
    mention = builder.line_mention(number, knowledge)
    goal = GoalSpec(builder.phrase("sim"), mention, required_terms=(*mention.required_terms, SIM_TERMS))
    if grantable:
        do = gold_call("replace_sim", number=number)
        return replace(
            goal,
            gold_turns=gold_change(f"send you a new SIM card for {mention.proposal_phrase}", do, "It is on its way."),
        )
    if builder.draw_bool(0.5):
        return add_unchangeable_refusal(builder, goal, number, "send a SIM card", easy)
    builder.set_line(number, sim_ordered=True)
    refusal = f"A new SIM card for line {number} has already been ordered, so I cannot send another one."
    return add_refusal(builder, goal, (), refusal, "ordered", easy)


def correct_plan(
    builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask for one plan, then for another one when asked to confirm."""
    mention = builder.line_mention(number, knowledge)
    first, second = builder.rng.sample([name for name in PLANS if name != mention.plan], 2)
    price = builder.world.plans[first].price
    turns = (
        gold_call("get_plan", plan=first),
        gold_proposal(_proposal(mention, first, f"{price}")),
        gold_call("get_plan", plan=second),
    )
    goal = _planned(builder, GoalSpec(builder.phrase("plan", plan=first), mention, turns), mention, second)
    return replace(goal, final_text=f"{builder.phrase('change_of_mind')} {builder.phrase('plan', plan=second)}")


def switch_suspend_to_plan(
    builder: TelecomTaskBuilder, number: str, knowledge: Knowledge, grantable: bool, easy: bool
) -> GoalSpec:
    """Ask to suspend a line, then for another plan instead when asked to confirm."""
    mention, days = builder.line_mention(number, knowledge), builder.rng.choice((30, 60, 90))
    target = builder.rng.choice([name for name in PLANS if name != mention.plan])
    request, reason = builder.phrase("suspend"), builder.phrase(f"why.{'long trip'}")
    text = f"{request} {reason} {builder.phrase('days', days=f'{days}')}"
    first = gold_proposal(f"suspend {mention.proposal_phrase} for {days} days, reason: long trip")
    goal = _planned(builder, GoalSpec(text, mention, (first, gold_call("get_plan", plan=target))), mention, target)
    opening, keep = builder.phrase("change_of_mind"), builder.phrase("keep_active")
    return replace(goal, final_text=f"{opening} {keep} {builder.phrase('plan', plan=target)}")


def _planned(builder: TelecomTaskBuilder, goal: GoalSpec, mention: LineMention, target: str) -> GoalSpec:
    """Return `goal` with the turns that change the plan. Its earlier turns must have found the plan's price."""
    price = f"{builder.world.plans[target].price}"
    do = gold_call("change_plan", number=mention.number, plan=target)
    turns = gold_change(_proposal(mention, target, price), do, "The plan has been changed.")
    return replace(goal, required_terms=(*mention.required_terms, target, price), gold_turns=(*goal.gold_turns, *turns))


def _proposal(mention: LineMention, plan: str, price: str) -> str:
    return f"change {mention.proposal_phrase} to the {plan} plan for {price} a month, starting with the next bill"


def _bigger(builder: TelecomTaskBuilder, number: str) -> tuple[str, str] | None:
    """Draw a data size that is larger than that of the line's plan.

    Return the cheapest plan with at least that size, and the size, or None if no plan is larger.
    """
    plans = builder.world.plans
    sizes = [plan.data for plan in plans.values() if plan.data > builder.plan_terms(number).data]
    if not sizes:
        return None
    data = builder.rng.choice(sizes)
    cheapest = min((plan.price, name) for name, plan in plans.items() if plan.data >= data)[1]
    return cheapest, f"{data:.0f}"
