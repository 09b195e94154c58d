"""What may be wrong with a phone or its line, and how a perfect agent finds out: the line first, then the phone.

The user tells the symptom only. Causes are drawn on either side, and beside them settings that look like causes and are
not; whoever has the customer change these earns nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from understudy.domains.callers import Identity
from understudy.domains.days import any_day
from understudy.domains.drafts import Want, call, change, instruct, say
from understudy.domains.people import CITIES
from understudy.domains.telecom import phone, phrases, wants
from understudy.domains.telecom.drafts import Draft, LineRef, Trouble
from understudy.domains.telecom.state import TODAY
from understudy.domains.telecom.tools import MOST_DATA
from understudy.domains.telecom.world import COUNTRIES
from understudy.messages import Message, ToolCall
from understudy.tasks import Deed, Difficulty, Fact, Proof

Symptom = Literal["internet", "calls", "slow", "abroad"]

_PLACE = ("where", "which city", "what city", "which country", "your location", "abroad")
_STATUS = instruct("Please look at the status bar. What does it show?", phone.STATUS_BAR)
_SETTINGS = instruct("Please look at the network settings. What do they say?", phone.SETTINGS)


@dataclass(frozen=True)
class Cause:
    """A fault of the phone, where it is seen, and what mends it."""

    fields: Mapping[str, Any]
    seen: Literal["status bar", "settings"]
    tell: str
    deed: Deed


CAUSES: Mapping[str, Cause] = {
    "airplane": Cause({"airplane_mode": True}, "status bar", "Please turn off airplane mode.", phone.AIRPLANE_OFF),
    "loose": Cause({"sim": "loose"}, "status bar", "Please take the SIM card out and put it in again.", phone.RESEAT),
    "stuck": Cause({"radio": "stuck"}, "status bar", "Please restart your phone.", phone.RESTART),
    "saver": Cause({"data_saver": True}, "status bar", "Please turn off the data saver.", phone.DATA_SAVER_OFF),
    "vpn": Cause({"vpn": True}, "status bar", "Please turn off the VPN.", phone.VPN_OFF),
    "3G": Cause(
        {"network_mode": "3G only"}, "status bar", "Please set the network mode to automatic.", phone.AUTOMATIC
    ),
    "data": Cause({"mobile_data": False}, "settings", "Please turn on mobile data.", phone.MOBILE_DATA_ON),
    "apn": Cause({"apn": "outdated"}, "settings", "Please reset the access point.", phone.STANDARD_APN),
    "roaming": Cause({"roaming": False}, "settings", "Please turn on roaming on your phone.", phone.ROAMING_ON),
}
"""In the order in which they show."""


@dataclass(frozen=True)
class Kind:
    """A symptom: how it is told, how the user notices that it is gone, and what may be behind it."""

    says: Sequence[str]
    proof: Proof
    phone: Sequence[str]
    harmless: Sequence[Mapping[str, Any]]
    """Settings that look like causes and are not."""


def _proof(tool: str, shows: str) -> Proof:
    return Proof(call=ToolCall(name=tool), shows=shows)


_COMPANY = {"apn": "company"}
_SLOWING = ({"data_saver": True}, {"vpn": True}, {"network_mode": "3G only"})
KINDS: Mapping[Symptom, Kind] = {
    "internet": Kind(
        phrases.NO_INTERNET,
        _proof("open_web_page", "A web page opens"),
        ("airplane", "stuck", "data", "apn"),
        (*_SLOWING, _COMPANY, _COMPANY),
    ),
    "calls": Kind(
        phrases.NO_CALLS,
        _proof("make_call", "A call goes through"),
        ("airplane", "loose", "stuck"),
        (*_SLOWING, {"mobile_data": False}),
    ),
    "slow": Kind(
        phrases.SLOW,
        _proof("run_speed_test", "60 Mbit/s"),
        ("saver", "vpn", "3G"),
        (_COMPANY, {"roaming": True}),
    ),
    "abroad": Kind(
        phrases.ABROAD,
        _proof("open_web_page", "A web page opens"),
        ("airplane", "data", "roaming", "apn"),
        (*_SLOWING, _COMPANY, _COMPANY),
    ),
}


LINE_SIDE: Mapping[Symptom, Sequence[str]] = {
    "internet": ("overdue bill", "long trip"),
    "calls": ("overdue bill", "long trip"),
    "slow": ("data used up",),
    "abroad": ("no roaming",),
}
"""What may be wrong with the line."""


def trouble(draft: Draft, number: str, identity: Identity, symptom: Symptom, ok: bool, difficulty: Difficulty) -> Want:
    """Something does not work. If not `ok`, nobody can repair it now."""
    kind, easy = KINDS[symptom], difficulty == "easy"
    place = draft.random.choice(COUNTRIES if symptom == "abroad" else CITIES)
    draft.patch("phones", number, place=place)
    if symptom == "abroad":
        wants.with_roaming(draft, number)
        draft.line(number, roaming=True)
        draft.patch("phones", number, roaming=True)
    for fields in draft.random.sample(kind.harmless, 1) if draft.likely(0.4 if easy else 0.8) else ():
        draft.patch("phones", number, **fields)
    hopeless = None if ok else _hopeless(draft, number, symptom, place)
    want, about = _complaint(draft, number, identity, symptom, place, easy)
    checks = _checks(number, symptom, place)
    if hopeless:
        reads, refusal, output = hopeless
        contests = not easy and draft.likely(0.5)
        turns = (*checks, *reads, *(say(refusal),) * (1 + contests))
        return replace(want, turns=turns, outputs=(output,), contests=contests)
    if symptom == "calls" and draft.likely(0.2 if easy else 0.4):
        return draft.random.choice((_damaged, _broken))(draft, want, about, checks)
    return _mended(draft, want, about, checks, symptom, difficulty)


def _complaint(
    draft: Draft, number: str, identity: Identity, symptom: Symptom, place: str, easy: bool
) -> tuple[Want, Trouble]:
    """What the user says and knows. The place of an outage has to be known, so it may have to be asked for."""
    ref = draft.line_ref(number, "vague" if identity == "other" else "told")
    needed, told = symptom in ("internet", "calls"), easy or draft.likely(0.5)
    where = draft.pick(phrases.HERE if told else phrases.WHERE, place=place)
    facts = (*ref.facts, Fact(says=where, cues=_PLACE, opened=not needed or told))
    about = Trouble("phone", "", "", ref, needed and not told, facts=facts, reads=ref.reads)
    text = draft.pick(KINDS[symptom].says, place=place) + (f" {where}" if needed and told else "")
    return Want(text, about, deeds=phone.DEEDS, proof=KINDS[symptom].proof), about


def _checks(number: str, symptom: Symptom, place: str) -> tuple[Message, ...]:
    """What the desk looks at beside the line itself."""
    if symptom == "slow":
        return (call("get_usage", number=number),)
    return (call("check_outage", area=place),) if symptom != "abroad" else ()


def _hopeless(draft: Draft, number: str, symptom: Symptom, place: str) -> tuple[tuple[Message, ...], str, str]:
    """Let it be something that nobody can repair now: what has to be read to know, the refusal, and its reason."""
    if symptom == "slow":
        draft.line(number, data_used=f"{draft.terms(number).data + MOST_DATA}", data_added=f"{MOST_DATA}.0")
        refusal = f"The data of your line is used up, and {MOST_DATA} GB are added already, so I cannot add more."
        return (), refusal, f"{MOST_DATA}"
    if symptom == "abroad" and not wants.others_have(draft, number, "Start"):
        draft.line(number, plan="Start", roaming=False)
        return (call("get_plan", plan="Start"),), "The Start plan has no roaming, so I cannot enable it.", "Start"
    if symptom == "abroad" or draft.likely(0.3):
        ended = wants.end_contract(draft, number)
        draft.line(number, **{"roaming": False} if symptom == "abroad" else {"suspended": "long trip"})
        return (), f"The contract of line {number} has ended on {ended}, so I cannot make it work.", any_day(ended)
    until = f"{TODAY + timedelta(days=draft.random.randint(1, 6))}"
    draft.patch("areas", place, outage="internet" if symptom == "internet" else "network", outage_until=until)
    return (), f"There is an outage in {place} until {until}, so I cannot repair it now.", any_day(until)


def _damaged(draft: Draft, want: Want, about: Trouble, checks: Sequence[Message]) -> Want:
    """The SIM card is damaged: only a new one helps."""
    ref = about.ref
    draft.patch("phones", ref.number, sim="damaged")
    do = call("replace_sim", number=ref.number)
    new = change(f"send you a new SIM card for {ref.named}", do, "The new SIM card is on its way.")
    turns = (*checks, *_STATUS, *_mends("loose"), *new)
    return replace(want, turns=turns, names=(wants.SIM_CARD, wants.NEW))


def _broken(draft: Draft, want: Want, about: Trouble, checks: Sequence[Message]) -> Want:
    """The radio is broken: when all steps have been tried in vain, it is for the repair service."""
    draft.patch("phones", about.ref.number, radio="broken")
    hand_over = call("transfer_to_human", summary="no service; restart and SIM card tried")
    last = (hand_over, say("You are transferred to a human agent."))
    return replace(want, turns=(*checks, *_STATUS, *_mends("stuck"), *_mends("loose"), *last))


def _mended(
    draft: Draft, want: Want, about: Trouble, checks: Sequence[Message], symptom: Symptom, difficulty: Difficulty
) -> Want:
    """One cause or two, on either side."""
    line_side, phone_side = _drawn(draft, symptom, difficulty)
    for name in phone_side:
        draft.patch("phones", about.ref.number, **CAUSES[name].fields)
    want = _on_the_line(draft, want, about.ref, line_side)
    turns = (*checks, *_asking(want.turns), *_at_the_phone(phone_side))
    return replace(want, about=replace(about, mended=True), turns=turns)


def _asking(turns: Sequence[Message]) -> Iterator[Message]:
    """The turns, the last of which says that something is done, and now asks whether it has helped."""
    yield from turns[:-1]
    yield from (done.replace(content=f"{done.content} Does it work now?") for done in turns[-1:])


def _drawn(draft: Draft, symptom: Symptom, difficulty: Difficulty) -> tuple[str, Sequence[str]]:
    """What is wrong with the line, if anything, and with the phone, in the order in which it shows."""
    line_side = draft.random.choice(LINE_SIDE[symptom]) if draft.likely(0.6) else ""
    count = 1 - bool(line_side) + (difficulty == "hard")
    return line_side, sorted(draft.random.sample(KINDS[symptom].phone, count), key=list(CAUSES).index)


def _on_the_line(draft: Draft, want: Want, ref: LineRef, cause: str) -> Want:
    """The desk's part. Its last turn says that it is done."""
    number = ref.number
    resumes = change(f"resume {ref.named}", call("resume_line", number=number), "The line is active again.")
    agrees = ((wants.RESUME, *ref.names),)
    match cause:
        case "overdue bill":
            pays, paying = wants.overdue(draft, number)
            return replace(want, turns=(*pays, *resumes), agrees=(*paying, *agrees))
        case "long trip":
            draft.line(number, suspended="long trip")
            return replace(want, turns=resumes, agrees=agrees)
        case "no roaming":
            draft.line(number, roaming=False)
            agrees = (("roaming", f"{draft.terms(number).roaming_day}"),)
            return replace(want, turns=tuple(wants.roams(draft, number, ref.named)), agrees=agrees)
        case "data used up":
            return _used_up(draft, want, ref)
    return want


def _used_up(draft: Draft, want: Want, ref: LineRef) -> Want:
    terms, gb = draft.terms(ref.number), draft.random.randint(2, 6)
    draft.line(ref.number, data_used=f"{terms.data}")
    fact = Fact(says=draft.pick(phrases.HOW_MANY, gb=f"{gb}"), cues=wants.HOW_MANY)
    asks = say("The data of your line is used up. How many GB do you want to add?")
    turns = (asks, *wants.buys(draft, ref.number, ref.named, gb))
    return replace(want, facts=(fact,), turns=turns, agrees=((f"{gb}", f"{gb * terms.extra_gb}"),))


def _at_the_phone(causes: Sequence[str]) -> Iterator[Message]:
    """Look before each step, unless the last look has shown all that is left."""
    looks, seen = True, ""
    for name in causes:
        if looks:
            yield from _STATUS
        if CAUSES[name].seen == "settings" != seen:
            yield from _SETTINGS
        yield from _mends(name)
        looks, seen = name in ("airplane", "loose", "stuck"), CAUSES[name].seen


def _mends(name: str) -> tuple[Message, ...]:
    return instruct(CAUSES[name].tell, CAUSES[name].deed)
