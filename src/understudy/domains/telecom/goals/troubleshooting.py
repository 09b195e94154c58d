"""Faults of phones and lines, and how the gold agent finds them: the line first, then the phone.

The user only reports the symptom. Causes are drawn on both sides, with harmless settings that look like causes. An
agent that has the customer change a harmless setting fails.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Difficulty, Fact, SuccessCheck, UserAction
from understudy.domains.authoring.identification import IdentificationMode
from understudy.domains.authoring.people import CITIES
from understudy.domains.authoring.task_builder import GoalSpec, gold_call, gold_change, gold_instruction, gold_text
from understudy.domains.telecom import user_tools
from understudy.domains.telecom.goals.base import (
    AMOUNT_CUES,
    REPLACEMENT_TERMS,
    RESUME_TERMS,
    SIM_TERMS,
    add_data_turns,
    enable_roaming_turns,
    end_contract,
    ensure_roaming_plan,
    other_line_has_plan,
    set_overdue,
)
from understudy.domains.telecom.state import TODAY
from understudy.domains.telecom.task_builder import FaultMention, LineMention, TelecomTaskBuilder
from understudy.domains.telecom.tools import MAX_ADDED_GB
from understudy.domains.telecom.world import COUNTRIES
from understudy.envs.dates import date_variants

Symptom = Literal["internet", "calls", "slow", "abroad"]

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
    success_check: SuccessCheck
    phone_faults: Sequence[str]
    harmless_settings: Sequence[Mapping[str, Any]]
    """Settings that look like causes but are harmless."""


def _success_check(tool: str, shows: str) -> SuccessCheck:
    return SuccessCheck(call=ToolCall(name=tool), expected_output=shows)


_COMPANY = {"apn": "company"}
_SLOWING = ({"data_saver": True}, {"vpn": True}, {"network_mode": "3G only"})
SYMPTOMS: Mapping[Symptom, SymptomSpec] = {
    "internet": SymptomSpec(
        "no_internet",
        _success_check("open_web_page", "A web page opens"),
        ("airplane", "stuck", "data", "apn"),
        (*_SLOWING, _COMPANY, _COMPANY),
    ),
    "calls": SymptomSpec(
        "no_calls",
        _success_check("make_call", "A call goes through"),
        ("airplane", "loose", "stuck"),
        (*_SLOWING, {"mobile_data": False}),
    ),
    "slow": SymptomSpec(
        "slow",
        _success_check("run_speed_test", "60 Mbit/s"),
        ("saver", "vpn", "3G"),
        (_COMPANY, {"roaming": True}),
    ),
    "abroad": SymptomSpec(
        "abroad",
        _success_check("open_web_page", "A web page opens"),
        ("airplane", "data", "roaming", "apn"),
        (*_SLOWING, _COMPANY, _COMPANY),
    ),
}


LINE_FAULTS: Mapping[Symptom, Sequence[str]] = {
    "internet": ("overdue bill", "long trip"),
    "calls": ("overdue bill", "long trip"),
    "slow": ("data used up",),
    "abroad": ("no roaming",),
}
"""Possible faults of the line."""


def report_fault(
    builder: TelecomTaskBuilder,
    number: str,
    identification: IdentificationMode,
    symptom: Symptom,
    grantable: bool,
    difficulty: Difficulty,
) -> GoalSpec:
    """Report a fault. If not `grantable`, it cannot be repaired now."""
    kind, easy = SYMPTOMS[symptom], difficulty == "easy"
    place = builder.rng.choice(COUNTRIES if symptom == "abroad" else CITIES)
    builder.patch("phones", number, place=place)
    if symptom == "abroad":
        ensure_roaming_plan(builder, number)
        builder.set_line(number, roaming=True)
        builder.patch("phones", number, roaming=True)
    for fields in builder.rng.sample(kind.harmless_settings, 1) if builder.draw_bool(0.4 if easy else 0.8) else ():
        builder.patch("phones", number, **fields)
    hopeless = None if grantable else _set_unrepairable(builder, number, symptom, place)
    goal, about = _complaint(builder, number, identification, symptom, place, easy)
    checks = _checks(number, symptom, place)
    if hopeless:
        reads, refusal, output = hopeless
        contests = not easy and builder.draw_bool(0.5)
        turns = (*checks, *reads, *(gold_text(refusal),) * (1 + contests))
        return replace(goal, gold_turns=turns, outputs=(output,), contests_refusal=contests)
    if symptom == "calls" and builder.draw_bool(0.2 if easy else 0.4):
        return builder.rng.choice((_damaged, _broken))(builder, goal, about, checks)
    return _add_repair(builder, goal, about, checks, symptom, difficulty)


def _complaint(
    builder: TelecomTaskBuilder,
    number: str,
    identification: IdentificationMode,
    symptom: Symptom,
    place: str,
    easy: bool,
) -> tuple[GoalSpec, FaultMention]:
    """Return what the user says and knows. The agent needs the place for the outage check."""
    mention = builder.line_mention(number, "vague" if identification == "other" else "told")
    needed, in_opening = symptom in ("internet", "calls"), easy or builder.draw_bool(0.5)
    where = builder.phrase("here" if in_opening else "where", place=place)
    facts = (*mention.facts, Fact(text=where, keywords=_PLACE, in_opening=not needed or in_opening))
    about = FaultMention(
        "phone", "", "", mention, needed and not in_opening, facts=facts, lookup_turns=mention.lookup_turns
    )
    text = builder.phrase(SYMPTOMS[symptom].complaint, place=place) + (f" {where}" if needed and in_opening else "")
    return GoalSpec(
        text, about, user_actions=user_tools.USER_ACTIONS, success_check=SYMPTOMS[symptom].success_check
    ), about


def _checks(number: str, symptom: Symptom, place: str) -> tuple[Message, ...]:
    """Return what the agent checks besides the line."""
    if symptom == "slow":
        return (gold_call("get_usage", number=number),)
    return (gold_call("check_outage", area=place),) if symptom != "abroad" else ()


def _set_unrepairable(
    builder: TelecomTaskBuilder, number: str, symptom: Symptom, place: str
) -> tuple[tuple[Message, ...], str, str]:
    """Set an unrepairable cause. Return the lookups that reveal it, the refusal and its reason."""
    if symptom == "slow":
        builder.set_line(
            number, data_used=f"{builder.plan_terms(number).data + MAX_ADDED_GB}", data_added=f"{MAX_ADDED_GB}.0"
        )
        refusal = f"Your data is used up and {MAX_ADDED_GB} GB have already been added, so I cannot add more."
        return (), refusal, f"{MAX_ADDED_GB}"
    if symptom == "abroad" and not other_line_has_plan(builder, number, "Start"):
        builder.set_line(number, plan="Start", roaming=False)
        return (gold_call("get_plan", plan="Start"),), "The Start plan has no roaming, so I cannot enable it.", "Start"
    if symptom == "abroad" or builder.draw_bool(0.3):
        ended = end_contract(builder, number)
        builder.set_line(number, **{"roaming": False} if symptom == "abroad" else {"suspended": "long trip"})
        return (
            (),
            f"The contract of line {number} ended on {ended}, so I cannot make it work.",
            date_variants(ended),
        )
    until = f"{TODAY + timedelta(days=builder.rng.randint(1, 6))}"
    builder.patch("areas", place, outage="internet" if symptom == "internet" else "network", outage_until=until)
    return (), f"There is an outage in {place} until {until}, so I cannot repair it now.", date_variants(until)


def _damaged(builder: TelecomTaskBuilder, goal: GoalSpec, about: FaultMention, checks: Sequence[Message]) -> GoalSpec:
    """Make the SIM card damaged: only a new one helps."""
    mention = about.line
    builder.patch("phones", mention.number, sim="damaged")
    do = gold_call("replace_sim", number=mention.number)
    new = gold_change(f"send you a new SIM card for {mention.proposal_phrase}", do, "The new SIM card is on its way.")
    turns = (*checks, *_STATUS, *_repair_step("loose"), *new)
    return replace(goal, gold_turns=turns, required_terms=(SIM_TERMS, REPLACEMENT_TERMS))


def _broken(builder: TelecomTaskBuilder, goal: GoalSpec, about: FaultMention, checks: Sequence[Message]) -> GoalSpec:
    """Make the radio broken: after all steps have failed, transfer the customer."""
    builder.patch("phones", about.line.number, radio="broken")
    hand_over = gold_call("transfer_to_human", summary="no service; restart and SIM card tried")
    last = (hand_over, gold_text("I have transferred you to a human agent."))
    return replace(goal, gold_turns=(*checks, *_STATUS, *_repair_step("stuck"), *_repair_step("loose"), *last))


def _add_repair(
    builder: TelecomTaskBuilder,
    goal: GoalSpec,
    about: FaultMention,
    checks: Sequence[Message],
    symptom: Symptom,
    difficulty: Difficulty,
) -> GoalSpec:
    """Add one or two causes, on the line or the phone."""
    line_side, phone_side = _drawn(builder, symptom, difficulty)
    for name in phone_side:
        builder.patch("phones", about.line.number, **PHONE_FAULTS[name].phone_fields)
    goal = _on_the_line(builder, goal, about.line, line_side)
    turns = (*checks, *_asking(goal.gold_turns), *_at_the_phone(phone_side))
    return replace(goal, mention=replace(about, repaired=True), gold_turns=turns)


def _asking(turns: Sequence[Message]) -> Iterator[Message]:
    """Yield the turns. The last one, a report, also asks whether the repair helped."""
    yield from turns[:-1]
    yield from (done.replace(content=f"{done.content} Does it work now?") for done in turns[-1:])


def _drawn(builder: TelecomTaskBuilder, symptom: Symptom, difficulty: Difficulty) -> tuple[str, Sequence[str]]:
    """Draw the fault of the line, if any, and those of the phone in the order in which they become visible."""
    line_side = builder.rng.choice(LINE_FAULTS[symptom]) if builder.draw_bool(0.6) else ""
    count = 1 - bool(line_side) + (difficulty == "hard")
    return line_side, sorted(builder.rng.sample(SYMPTOMS[symptom].phone_faults, count), key=list(PHONE_FAULTS).index)


def _on_the_line(builder: TelecomTaskBuilder, goal: GoalSpec, mention: LineMention, cause: str) -> GoalSpec:
    """Return `goal` with the agent's part of the repair, which ends with a report. Only faults of the line have one."""
    number = mention.number
    resumes = gold_change(
        f"resume {mention.proposal_phrase}", gold_call("resume_line", number=number), "The line is active again."
    )
    agrees = ((RESUME_TERMS, *mention.required_terms),)
    match cause:
        case "overdue bill":
            pays, paying = set_overdue(builder, number)
            return replace(goal, gold_turns=(*pays, *resumes), accepted_steps=(*paying, *agrees))
        case "long trip":
            builder.set_line(number, suspended="long trip")
            return replace(goal, gold_turns=resumes, accepted_steps=agrees)
        case "no roaming":
            builder.set_line(number, roaming=False)
            agrees = (("roaming", f"{builder.plan_terms(number).roaming_day}"),)
            return replace(
                goal,
                gold_turns=tuple(enable_roaming_turns(builder, number, mention.proposal_phrase)),
                accepted_steps=agrees,
            )
        case "data used up":
            return _used_up(builder, goal, mention)
    return goal


def _used_up(builder: TelecomTaskBuilder, goal: GoalSpec, mention: LineMention) -> GoalSpec:
    terms, gb = builder.plan_terms(mention.number), builder.rng.randint(2, 6)
    builder.set_line(mention.number, data_used=f"{terms.data}")
    fact = Fact(text=builder.phrase("how_many", gb=f"{gb}"), keywords=AMOUNT_CUES)
    asks = gold_text("Your data is used up. How many GB do you want to add?")
    turns = (asks, *add_data_turns(builder, mention.number, mention.proposal_phrase, gb))
    return replace(goal, facts=(fact,), gold_turns=turns, accepted_steps=((f"{gb}", f"{gb * terms.extra_gb}"),))


def _at_the_phone(causes: Sequence[str]) -> Iterator[Message]:
    """Yield the steps at the phone. The agent looks at it before each step, unless the last look showed all faults."""
    looks, seen = True, ""
    for name in causes:
        if looks:
            yield from _STATUS
        if PHONE_FAULTS[name].visible_in == "settings" != seen:
            yield from _SETTINGS
        yield from _repair_step(name)
        looks, seen = name in ("airplane", "loose", "stuck"), PHONE_FAULTS[name].visible_in


def _repair_step(name: str) -> tuple[Message, ...]:
    return gold_instruction(PHONE_FAULTS[name].instruction, PHONE_FAULTS[name].user_action)
