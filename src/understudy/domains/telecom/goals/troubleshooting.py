"""Faults of phones and lines, and how the gold agent finds them: the line first, then the phone.

The user only reports the symptom. Causes are drawn on both sides, with harmless settings that look like causes. An
agent that has the customer change a harmless setting fails.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Fact, SuccessCheck, UserAction
from understudy.domains.authoring.people import CITIES
from understudy.domains.authoring.request import Draw, grant, refuse, transfer
from understudy.domains.authoring.task_builder import GoalSpec
from understudy.domains.telecom import user_tools
from understudy.domains.telecom.goals.line import (
    AMOUNT_CUES,
    REPLACEMENT_TERMS,
    RESUME_TERMS,
    SIM_TERMS,
    end_contract,
    ensure_roaming_plan,
    grant_data,
    grant_roaming,
    other_line_has_plan,
    set_overdue,
)
from understudy.domains.telecom.state import TODAY
from understudy.domains.telecom.task_builder import FaultMention, LineMention, TelecomTaskBuilder
from understudy.domains.telecom.tools import MAX_ADDED_GB
from understudy.domains.telecom.world import COUNTRIES
from understudy.envs.dates import date_variants
from understudy.envs.gold import gold_call, gold_instruction, gold_text

_PLACE = ("where", "which city", "what city", "which country", "your location", "abroad")
_STATUS = gold_instruction("Please look at the status bar of your phone. What does it show?", user_tools.STATUS_BAR)
_SETTINGS = gold_instruction("Please open the network settings of your phone. What do they say?", user_tools.SETTINGS)


@dataclass(frozen=True)
class PhoneFault:
    """A fault of the phone, where it is visible, and what fixes it."""

    phone_fields: Mapping[str, Any]
    visible_in: Literal["status bar", "settings"]
    instruction: str
    user_action: UserAction


PHONE_FAULTS: Mapping[str, PhoneFault] = {
    "airplane": PhoneFault(
        {"airplane_mode": True}, "status bar", "Please turn off airplane mode.", user_tools.AIRPLANE_OFF
    ),
    "loose": PhoneFault(
        {"sim": "loose"}, "status bar", "Please take the SIM card out and put it back in.", user_tools.RESEAT_SIM
    ),
    "stuck": PhoneFault({"radio": "stuck"}, "status bar", "Please restart your phone.", user_tools.RESTART),
    "saver": PhoneFault(
        {"data_saver": True}, "status bar", "Please turn off the data saver.", user_tools.DATA_SAVER_OFF
    ),
    "vpn": PhoneFault({"vpn": True}, "status bar", "Please turn off the VPN.", user_tools.VPN_OFF),
    "3G": PhoneFault(
        {"network_mode": "3G only"},
        "status bar",
        "Please set the network mode to automatic.",
        user_tools.NETWORK_MODE_AUTOMATIC,
    ),
    "data": PhoneFault({"mobile_data": False}, "settings", "Please turn on mobile data.", user_tools.MOBILE_DATA_ON),
    "apn": PhoneFault({"apn": "outdated"}, "settings", "Please reset the access point.", user_tools.APN_RESET),
    "roaming": PhoneFault(
        {"roaming": False}, "settings", "Please turn on roaming on your phone.", user_tools.ROAMING_ON
    ),
}
"""Faults of the phone, in the order in which they become visible."""


@dataclass(frozen=True)
class SymptomSpec:
    """A symptom: how users report it, how they check that it is gone, and its possible causes."""

    complaint: str
    """The list of phrases with which users report it."""
    test_tool: str
    """The user's tool that tests whether the symptom is gone."""
    expected_output: str
    """What the tool returns then."""
    line_faults: Sequence[str]
    phone_faults: Sequence[str]
    harmless_settings: Sequence[Mapping[str, Any]]
    """Settings that look like causes but are harmless."""

    @property
    def success_check(self) -> SuccessCheck:
        """The check by which the user sees that the symptom is gone."""
        return SuccessCheck(call=ToolCall(name=self.test_tool), expected_output=self.expected_output)


_SUSPENSIONS = ("overdue bill", "long trip")
_COMPANY_APN = {"apn": "company"}
_SLOWING = ({"data_saver": True}, {"vpn": True}, {"network_mode": "3G only"})
SYMPTOMS: Mapping[str, SymptomSpec] = {
    "internet": SymptomSpec(
        "no_internet",
        "open_web_page",
        "A web page opens",
        _SUSPENSIONS,
        ("airplane", "stuck", "data", "apn"),
        (*_SLOWING, _COMPANY_APN, _COMPANY_APN),
    ),
    "calls": SymptomSpec(
        "no_calls",
        "make_call",
        "A call goes through",
        _SUSPENSIONS,
        ("airplane", "loose", "stuck"),
        (*_SLOWING, {"mobile_data": False}),
    ),
    "slow": SymptomSpec(
        "slow",
        "run_speed_test",
        "60 Mbit/s",
        ("data used up",),
        ("saver", "vpn", "3G"),
        (_COMPANY_APN, {"roaming": True}),
    ),
    "abroad": SymptomSpec(
        "abroad",
        "open_web_page",
        "A web page opens",
        ("no roaming",),
        ("airplane", "data", "roaming", "apn"),
        (*_SLOWING, _COMPANY_APN, _COMPANY_APN),
    ),
}
"""Faults: no internet, no calls, slow internet, no internet abroad. Agent and user find the cause together."""


def report_fault(b: TelecomTaskBuilder, draw: Draw[str], symptom: str, causes: int) -> GoalSpec:
    """Report a fault that has one or two causes. If not grantable, it cannot be repaired now."""
    number, spec = draw.entity, SYMPTOMS[symptom]
    place = b.rng.choice(COUNTRIES if symptom == "abroad" else CITIES)
    b.patch("phones", number, place=place)
    if symptom == "abroad":
        ensure_roaming_plan(b, number)
        b.set_line(number, roaming=True)
        b.patch("phones", number, roaming=True)
    if b.draw_bool(0.4 if draw.easy else 0.8):
        b.patch("phones", number, **b.rng.sample(spec.harmless_settings, 1)[0])
    unrepairable = None if draw.grantable else _set_unrepairable(b, number, symptom, place)
    mention, text = _complaint(b, draw, symptom, place)
    checks: tuple[Message, ...] = ()
    if symptom == "slow":
        checks = (gold_call("get_usage", number=number),)
    elif symptom != "abroad":
        checks = (gold_call("check_outage", area=place),)
    goal = GoalSpec(text, mention, checks, user_actions=user_tools.USER_ACTIONS, success_check=spec.success_check)
    if unrepairable:
        reason, output, reads = unrepairable
        return refuse(b, goal, reason, output, easy=draw.easy, reads=reads)
    if symptom == "calls" and b.draw_bool(0.2 if draw.easy else 0.4):
        return b.rng.choice((_damage_sim, _break_radio))(b, goal, mention.line)
    return _add_repair(b, goal, mention, symptom, causes)


def _complaint(b: TelecomTaskBuilder, draw: Draw[str], symptom: str, place: str) -> tuple[FaultMention, str]:
    """Return what the user knows and says. The agent needs the place for the outage check."""
    line = b.line_mention(draw)
    needed, stated = symptom in ("internet", "calls"), draw.easy or b.draw_bool(0.5)
    where = b.phrase("here" if stated else "where", place=place)
    facts = (*line.facts, Fact(text=where, keywords=_PLACE, in_opening=not needed or stated))
    asks_location = needed and not stated
    mention = FaultMention("phone", "", "", line, asks_location, facts=facts, lookup_turns=line.lookup_turns)
    return mention, b.phrase(SYMPTOMS[symptom].complaint, place=place) + (f" {where}" if needed and stated else "")


def _set_unrepairable(
    b: TelecomTaskBuilder, number: str, symptom: str, place: str
) -> tuple[str, str, Sequence[Message]]:
    """Set an unrepairable cause. Return the refusal, its reason as an output, and the lookups that reveal it."""
    if symptom == "slow":
        used = b.plan_terms(number).data + MAX_ADDED_GB
        b.set_line(number, data_used=f"{used}", data_added=f"{MAX_ADDED_GB}.0")
        reason = f"Your data is used up and {MAX_ADDED_GB} GB have already been added, so I cannot add more."
        return reason, f"{MAX_ADDED_GB}", ()
    if symptom == "abroad" and not other_line_has_plan(b, number, "Start"):
        b.set_line(number, plan="Start", roaming=False)
        reason = "The Start plan has no roaming, so I cannot enable it."
        return reason, "Start", [gold_call("get_plan", plan="Start")]
    if symptom == "abroad" or b.draw_bool(0.3):
        ended = end_contract(b, number)
        b.set_line(number, **{"roaming": False} if symptom == "abroad" else {"suspended": "long trip"})
        reason = f"The contract of line {number} ended on {ended}, so I cannot make it work."
        return reason, date_variants(ended), ()
    until = f"{TODAY + timedelta(days=b.rng.randint(1, 6))}"
    b.patch("areas", place, outage="internet" if symptom == "internet" else "network", outage_until=until)
    return f"There is an outage in {place} until {until}, so I cannot repair it now.", date_variants(until), ()


def _damage_sim(b: TelecomTaskBuilder, goal: GoalSpec, line: LineMention) -> GoalSpec:
    """Make the SIM card damaged: only a new one helps."""
    b.patch("phones", line.number, sim="damaged")
    call = gold_call("replace_sim", number=line.number)
    proposal = f"send you a new SIM card for {line.proposal_phrase}"
    reads = (*_STATUS, *_repair_step("loose"))
    terms = (SIM_TERMS, REPLACEMENT_TERMS)
    return grant(goal, proposal, call, "The new SIM card is on its way.", reads, terms=terms)


def _break_radio(b: TelecomTaskBuilder, goal: GoalSpec, line: LineMention) -> GoalSpec:
    """Make the radio broken: after all steps have failed, transfer the customer."""
    b.patch("phones", line.number, radio="broken")
    steps = (*_STATUS, *_repair_step("stuck"), *_repair_step("loose"))
    goal = replace(goal, gold_turns=(*goal.gold_turns, *steps))
    return replace(transfer(goal, "no service; restart and SIM card tried"), required_terms=())


def _add_repair(b: TelecomTaskBuilder, goal: GoalSpec, mention: FaultMention, symptom: str, causes: int) -> GoalSpec:
    """Add causes on the line and the phone, and their repair."""
    line_fault = b.rng.choice(SYMPTOMS[symptom].line_faults) if b.draw_bool(0.6) else ""
    phone_faults = b.rng.sample(SYMPTOMS[symptom].phone_faults, causes - bool(line_fault))
    phone_faults.sort(key=list(PHONE_FAULTS).index)  # the order in which they become visible
    for name in phone_faults:
        b.patch("phones", mention.line.number, **PHONE_FAULTS[name].phone_fields)
    turns = list(goal.gold_turns)
    if line_fault:
        goal = _repair_line(b, goal, mention.line, line_fault)
        *turns, report = goal.gold_turns
        turns.append(report.replace(content=f"{report.content} Does it work now?"))
    turns += _repair_phone(phone_faults)
    return replace(goal, mention=replace(mention, repaired=True), gold_turns=tuple(turns))


def _repair_line(b: TelecomTaskBuilder, goal: GoalSpec, line: LineMention, fault: str) -> GoalSpec:
    """Set a fault of the line, and add its repair."""
    number = line.number
    if fault == "no roaming":
        b.set_line(number, roaming=False)
        goal = replace(goal, accepted_steps=(("roaming", f"{b.plan_terms(number).roaming_day}"),))
        return grant_roaming(b, goal, line)
    if fault == "data used up":
        plan, gb = b.plan_terms(number), b.rng.randint(2, 6)
        b.set_line(number, data_used=f"{plan.data}")
        fact = Fact(text=b.phrase("how_many", gb=f"{gb}"), keywords=AMOUNT_CUES)
        turns = (*goal.gold_turns, gold_text("Your data is used up. How many GB do you want to add?"))
        step = (f"{gb}", f"{gb * plan.extra_gb}")
        return grant_data(b, replace(goal, facts=(fact,), gold_turns=turns, accepted_steps=(step,)), line, gb)
    payment, payment_steps = set_overdue(b, number) if fault == "overdue bill" else ((), ())
    if fault == "long trip":
        b.set_line(number, suspended="long trip")
    goal = replace(goal, accepted_steps=(*payment_steps, (RESUME_TERMS, *line.required_terms)))
    call = gold_call("resume_line", number=number)
    return grant(goal, f"resume {line.proposal_phrase}", call, "The line is active again.", payment)


def _repair_phone(faults: Sequence[str]) -> Iterator[Message]:
    """Yield the steps at the phone. The agent looks at it before each step, unless the last look showed all faults."""
    looks, seen = True, ""
    for name in faults:
        if looks:
            yield from _STATUS
        if PHONE_FAULTS[name].visible_in == "settings" != seen:
            yield from _SETTINGS
        yield from _repair_step(name)
        looks, seen = name in ("airplane", "loose", "stuck"), PHONE_FAULTS[name].visible_in


def _repair_step(name: str) -> tuple[Message, ...]:
    return gold_instruction(PHONE_FAULTS[name].instruction, PHONE_FAULTS[name].user_action)
