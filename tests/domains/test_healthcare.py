"""Tests of the healthcare policy (each row of rules.md names one), of its world, and of trivial agents."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from datetime import date
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import script
from support.script import Script, assert_openings_do_not_reveal_refusal, mean_reward
from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import DIFFICULTIES, SPLITS, Difficulty, Score, Task
from understudy.domains.authoring.task_builder import PhraseSampler
from understudy.domains.healthcare import DOMAIN, GENERATOR
from understudy.domains.healthcare.clinic_calendar import (
    SLOT_TIMES,
    WORKING_DAYS,
    draw_spoken_day,
    format_birthday,
    half_hour_slots,
    time_variants,
)
from understudy.domains.healthcare.coverage import plan_initials
from understudy.domains.healthcare.goals import prescription
from understudy.domains.healthcare.state import (
    LATE_CHANGE_BEFORE,
    LATE_FEE,
    MIN_INSTALLMENT,
    NOW,
    REFILL_TOO_EARLY_AFTER,
    TODAY,
    HealthcareState,
)
from understudy.domains.healthcare.task_builder import HealthcareTaskBuilder
from understudy.domains.healthcare.tools import HealthcareTools
from understudy.domains.healthcare.world import build_world, proxy_names
from understudy.envs.dates import add_days, date_variants, format_month_day
from understudy.envs.gold import gold_call, gold_text
from understudy.envs.rewards import states_fact
from understudy.envs.task_source import Slice
from understudy.envs.users.consent import declines, gives_consent
from understudy.envs.users.scripted import SILENCE_TEXTS
from understudy.rollouts.agent import Agent

AMY, BEN = {"born": "1984-05-12", "name": "Amy Lee"}, {"born": "1971-11-30", "name": "Ben Ortiz"}
CEDAR = {"primary": "15.00", "specialist": "35.00", "telehealth": "10.00"}
UNION = {"primary": "27.50", "specialist": "65.00", "telehealth": "18.00", "out_of_network": "125.00"}
BOTH = ["Cedar HMO", "Union PPO"]
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "patients": {
        "P1": {
            "name": "Amy Lee", "born": "1984-05-12", "phone": "303-555-0142", "plan": "Cedar HMO",
            "member_id": "CH-204815", "doctor": "Ito", "payments": ["card_1", "hsa_2"], "proxies": ["Hugo Brown"],
            "appointments": ["A1", "A2", "A3"], "prescriptions": ["RX1", "RX2"], "referrals": ["R1"],
            "bills": ["B1", "B2"], "labs": ["L1", "L2"],
        },
        "P2": {
            "name": "Ben Ortiz", "born": "1971-11-30", "phone": "512-555-0100", "plan": "Union PPO",
            "member_id": "UP-111111", "doctor": "Ito", "payments": ["card_9"],
            "appointments": ["A9"], "prescriptions": ["RX9"], "bills": ["B9"], "labs": [],
        },
    },
    "appointments": {
        "A1": {"doctor": "Ito", "time": "2025-12-01 09:00", "status": "completed"},
        "A2": {"doctor": "Novak", "time": "2026-03-05 10:30", "status": "booked", "minutes": 60, "referral": "R1"},
        "A3": {"doctor": "Weber", "time": "2026-02-20 09:00", "status": "no-show"},
        "A9": {"doctor": "Reid", "time": "2026-03-06 09:00", "status": "booked", "minutes": 60},
    },
    "prescriptions": {
        "RX1": {"drug": "lisinopril", "strength": "10 mg", "use": "blood pressure"},
        "RX2": {"drug": "zolpidem", "strength": "5 mg", "use": "sleep", "controlled": True},
        "RX9": {"drug": "metformin", "strength": "500 mg", "use": "diabetes"},
    },
    "referrals": {"R1": {"specialty": "dermatology", "until": "2026-03-10", "visits": 1}},
    "bills": {
        "B1": {"doctor": "Ito", "date": "2025-12-01", "amount": "120.00", "status": "open"},
        "B2": {"doctor": "Novak", "date": "2025-12-09", "amount": "80.00", "status": "in collections"},
        "B9": {"doctor": "Reid", "date": "2025-12-01", "amount": "50.00", "status": "open"},
    },
    "labs": {
        "L1": {"test": "sodium", "date": "2026-02-20", "status": "released", "result": "140 mmol/L"},
        "L2": {"test": "ferritin", "date": "2026-02-20", "status": "under review", "result": "90 ng/mL"},
    },
    "doctors": {
        "Ito": {"specialty": "family medicine", "clinic": "Northside", "plans": BOTH, "telehealth": True},
        "Weber": {"specialty": "family medicine", "clinic": "Midtown", "plans": BOTH},
        "Novak": {"specialty": "dermatology", "clinic": "Riverside", "plans": BOTH, "telehealth": True},
        "Cole": {"specialty": "dermatology", "clinic": "Midtown", "plans": BOTH},
        "Reid": {"specialty": "cardiology", "clinic": "Lakeview", "plans": ["Granite EPO"]},
    },
    "schedule": {
        "Ito 2026-03-02": {"free": ["09:00", "09:30", "10:00"]},
        "Ito 2026-03-05": {"free": ["09:00", "10:30", "11:00", "11:30"]},
        "Ito 2026-03-06": {"free": ["09:00"]},
        "Weber 2026-03-06": {"free": ["09:00", "11:00", "11:30"]},
        "Novak 2026-03-05": {"free": ["13:00", "13:30"]},
        "Novak 2026-03-10": {"free": ["09:00", "09:30"]},
        "Novak 2026-03-11": {"free": ["09:00", "09:30"]},
        "Cole 2026-03-10": {"free": ["09:00", "09:30"]},
        "Cole 2026-03-11": {"free": ["09:00", "09:30"]},
        "Reid 2026-03-06": {"free": ["13:00", "13:30"]},
    },
    "pharmacies": {
        "Oak Pharmacy": {"address": "1 Oak Street, Denver 80202", "closes": "18:00"},
        "Pine Pharmacy": {"address": "2 Pine Street, Denver 80202", "closes": "22:00"},
    },
    "plans": {"Cedar HMO": CEDAR, "Union PPO": UNION},
}  # fmt: skip
PRESCRIBED = {
    "doctor": "Ito", "pharmacy": "Oak Pharmacy", "refills": 2, "expires": "2026-09-01", "lasts_until": "2026-03-09"
}  # fmt: skip
for kind in ("appointments", "prescriptions", "referrals", "bills", "labs"):
    for key, row in ROWS[kind].items():
        row.update({"id": key, **(PRESCRIBED if kind == "prescriptions" else {})})


class Desk(script.Desk):
    """The tools on the data of two patients. By default Amy is found and her records are read."""

    def __init__(self, patient: dict[str, str] = AMY, read: bool = True, **changes: dict[str, Any]) -> None:
        state = HealthcareState.load({**ROWS, "patient": "", "caller": "", "transferred": ""})
        state.patch(changes)
        super().__init__(state, HealthcareTools(state))
        if patient:
            self.do("find_patient", **patient)
        for kind in ("appointments", "prescriptions", "referrals", "bills", "labs") if patient and read else ():
            self.do("get_records", kind=kind)

    def book(self, doctor: str, time: str, **setting: str) -> str:
        """Check the coverage, book, and return the id of the appointment."""
        self.do("check_coverage", doctor=doctor, **setting)
        day, start = time.split()
        return str(self.do("book_appointment", doctor=doctor, date=day, time=start, **setting)["id"])

    def booking_refusal(self, doctor: str, time: str, **setting: str) -> str:
        """Return why an appointment cannot be booked."""
        self.do("check_coverage", doctor=doctor, **setting)
        day, start = time.split()
        return self.refusal("book_appointment", doctor=doctor, date=day, time=start, **setting)

    def free(self, day: str) -> tuple[str, ...]:
        return self.state.schedule[day].free


def play(task: Task, agent: Agent) -> tuple[Score, list[Message]]:
    return script.play(DOMAIN, task, agent)


WRITES = {
    "book_appointment", "reschedule_appointment", "cancel_appointment", "request_refill", "request_renewal",
    "change_pharmacy", "request_referral", "pay_bill", "set_payment_plan", "update_phone", "update_insurance",
}  # fmt: skip


def find_task(family: str, granted: bool, difficulty: str = "easy", having: str = "") -> Task:
    """Return the first task of a family whose request can be granted (or cannot) and whose gold contains `having`."""
    tasks = (GENERATOR.make_task("train", 1, family, difficulty, n) for n in range(400))  # type: ignore[arg-type]
    fitting = (t for t in tasks if granted == any(c.name in WRITES for c in t.gold_calls))
    return next(t for t in fitting if having in str(t.gold))


def two_change_task() -> Task:
    tasks = (GENERATOR.make_task("train", 1, "several", "medium", n) for n in range(100))
    return next(t for t in tasks if [c.name in WRITES for c in t.gold_calls].count(True) == 2)


def urgent_task() -> Task:
    tasks = (GENERATOR.make_task("train", 1, "handover", "easy", n) for n in range(100))
    return next(t for t in tasks if t.gold_calls[0].name == "transfer")


def test_urgent_symptoms_require_immediate_nurse_transfer() -> None:
    task = urgent_task()
    assert play(task, Script(*task.gold))[0].reward == 1.0
    born = re.search(r"born (\S+): ", task.gold_calls[0].arguments["summary"])
    name = str(task.gold_calls[0].arguments["summary"]).partition(",")[0]
    assert born
    find = gold_call("find_patient", name=name, born=born[1])
    assert play(task, Script(find, *task.gold))[0].parts["state_match"] == 0.0
    staff = gold_call("transfer", to="staff", summary="help")
    assert play(task, Script(find, staff, task.gold[-1]))[0].parts["state_match"] == 0.0


@pytest.mark.parametrize("tool", sorted(spec.name for spec in DOMAIN.toolkit.specs()))
def test_tools_refuse_calls_before_patient_is_found(tool: str) -> None:
    arguments: dict[str, Any] = {
        "kind": "bills", "specialty": "dermatology", "doctor": "Ito", "date": "2026-03-05", "time": "09:00",
        "appointment_id": "A2", "prescription_id": "RX1", "pharmacy": "Pine Pharmacy", "bill_id": "B1", "months": 3,
        "payment_id": "card_1", "phone": "303-555-0100", "plan": "Union PPO", "member_id": "UP-123456",
        "to": "staff", "summary": "help",
    }  # fmt: skip
    required = next(spec for spec in DOMAIN.tool_specs if spec.name == tool).parameters.get("required", ())
    if tool not in ("find_patient", "calculate"):
        assert "find the patient first" in Desk({}).refusal(tool, **{name: arguments[name] for name in required})


def test_the_patient_is_found_by_two_identifiers() -> None:
    for identifiers in (
        {"born": "1984-05-12", "name": " amy  LEE"},
        {"born": "1984-05-12", "member_id": "ch-204815 "},
        {**AMY, "member_id": "CH-204815"},
    ):
        desk = Desk({})
        assert desk.do("find_patient", **identifiers) == {"name": "Amy Lee"}
        assert desk.state.patient == "P1"
    assert "two identifiers" in Desk({}).refusal("find_patient", born="1984-05-12")
    assert "no patient" in Desk({}).refusal("find_patient", born="1971-11-30", name="Amy Lee")
    assert "no patient" in Desk({}).refusal("find_patient", born="1984-05-12", name="Amy Lee", member_id="UP-111111")


def test_guessed_values_are_refused_or_unrewarded() -> None:
    desk = Desk()
    assert "no 'A4'" in desk.refusal("cancel_appointment", appointment_id="A4")
    assert "no doctor 'House'" in desk.refusal("check_coverage", doctor="Dr. House")
    assert "no card 'card_9'" in desk.refusal("pay_bill", bill_id="B1", payment_id="card_9")
    assert "allowed: Pine Pharmacy" in desk.refusal("change_pharmacy", prescription_id="RX1", pharmacy="Elm Pharmacy")
    assert "not a phone number" in desk.refusal("update_phone", phone="none")
    task = find_task("account", granted=True, having="update_phone")
    number = task.gold_calls[-1].arguments["phone"]
    wrong = [Message.model_validate_json(m.model_dump_json().replace(number, "303-555-0199")) for m in task.gold]
    assert play(task, Script(*wrong))[0].parts["state_match"] == 0.0


def test_caller_must_be_on_patients_access_list() -> None:
    desk = Desk({**AMY, "caller": "hugo  brown"})
    assert desk.do("get_patient")["name"] == "Amy Lee"
    assert desk.state.caller == "hugo brown"
    desk = Desk({})
    assert "Eva Hart is not on" in desk.do("find_patient", **AMY, caller="Eva Hart")["access"]
    assert "find the patient first" in desk.refusal("get_patient")
    assert "is not on" in desk.do("find_patient", **AMY)["access"]
    desk = Desk(AMY)
    desk.do("find_patient", **AMY, caller="Eva Hart")
    assert "find the patient first" in desk.refusal("get_patient")
    task = next(
        t
        for t in (GENERATOR.make_task("train", 1, "proxy", "easy", n) for n in range(100))
        if t.outputs[:1] == ("list|authorized",)
    )
    find, refusal = task.gold
    unnamed = {k: v for k, v in find.tool_calls[0].arguments.items() if k != "caller"}
    assert play(task, Script(gold_call("find_patient", **unnamed), refusal))[0].reward == 0.0
    assert play(task, Script(find, refusal, refusal))[0].reward == 1.0


def test_other_patients_data_is_refused() -> None:
    desk = Desk()
    assert "another patient" in desk.refusal("find_patient", "forbidden", **BEN)
    for tool, arguments in (
        ("cancel_appointment", {"appointment_id": "A9"}),
        ("reschedule_appointment", {"appointment_id": "A9", "date": "2026-03-06", "time": "13:00"}),
        ("request_refill", {"prescription_id": "RX9"}),
        ("change_pharmacy", {"prescription_id": "RX9", "pharmacy": "Pine Pharmacy"}),
        ("pay_bill", {"bill_id": "B9", "payment_id": "card_1"}),
    ):
        assert "the patient has no" in desk.refusal(tool, "forbidden", **arguments)


def test_fact_counts_only_after_tool_has_shown_it() -> None:
    task = find_task("cancel", granted=False)
    found = next(m for m in task.gold if m.tool_calls)
    asks = [m for m in task.gold[:1] if not m.tool_calls]
    assert (
        play(task, Script(*asks, found, task.gold[-1]))[0].parts.items()
        >= {"state_match": 1.0, "facts_told": 0.0}.items()
    )


def test_change_refused_until_record_is_read() -> None:
    desk = Desk(read=False)
    for tool, arguments in (
        ("cancel_appointment", {"appointment_id": "A2"}),
        ("reschedule_appointment", {"appointment_id": "A2", "date": "2026-03-10", "time": "09:00"}),
        ("request_refill", {"prescription_id": "RX1"}),
        ("request_renewal", {"prescription_id": "RX2"}),
        ("change_pharmacy", {"prescription_id": "RX1", "pharmacy": "Pine Pharmacy"}),
        ("pay_bill", {"bill_id": "B1", "payment_id": "card_1"}),
        ("set_payment_plan", {"bill_id": "B1", "months": 3}),
        ("request_referral", {"specialty": "cardiology"}),
    ):
        assert "read the patient's" in desk.refusal(tool, **arguments)
    desk.do("get_records", kind="appointments")
    desk.do("cancel_appointment", appointment_id="A2")


def test_caller_consents_only_to_matching_proposal() -> None:
    task = find_task("move", granted=True)
    proposal = next(m for m in task.gold if "Do you confirm?" in m.content)
    before = task.gold[: task.gold.index(proposal)]
    doctor = re.search(r"Dr\. (\w+)", proposal.content)
    assert doctor
    assert play(task, Script(*before, proposal))[1][-2].content in SILENCE_TEXTS
    for wrong in (
        proposal.content.replace(doctor[1], "Nobody"),
        re.sub(r"\d\d:\d\d", "08:00", proposal.content),
        re.sub(r"2026-03-\d\d", "2026-03-31", proposal.content),
        "I will do it. Do you confirm?",
    ):
        _, messages = play(task, Script(*before, gold_text(wrong)))
        assert not any(gives_consent(m.content) for m in messages if m.role == "user")


@pytest.mark.parametrize(("family", "named"), [("cancel", r"Dr\. (\w+)"), ("refill", r"(\w+) \d+ mg")])
def test_described_record_must_be_named_in_the_proposal(family: str, named: str) -> None:
    """A caller who says "the allergy medicine" knows its name, and does not confirm another one."""
    tried = 0
    for task in (GENERATOR.make_task("train", 1, family, "medium", n) for n in range(60)):
        proposal = next((m for m in task.gold if "Do you confirm?" in m.content), None)
        name = re.search(named, proposal.content) if proposal else None
        request = task.scenario.goals[0].text
        if not proposal or not name or name[1] in request:
            continue
        wrong = gold_text(f"You said: {request} {proposal.content.replace(name[1], 'Wrong')}")
        _, messages = play(task, Script(*task.gold[: task.gold.index(proposal)], wrong))
        assert not any(gives_consent(m.content) for m in messages if m.role == "user"), wrong.content
        tried += 1
    assert tried > 5


def test_one_consent_allows_one_change() -> None:
    task = two_change_task()
    first, second = (m for m in task.gold if m.tool_calls and m.tool_calls[0].name in WRITES)
    both = first.replace(tool_calls=first.tool_calls + second.tool_calls)
    *before, proposal = task.gold[: task.gold.index(first)]
    later = [m for m in task.gold[task.gold.index(first) : task.gold.index(second)] if m.tool_calls and m is not first]
    _, messages = play(task, Script(*before, *later, proposal, both))
    assert any("confirmed one change" in m.content for m in messages if m.role == "tool")


def test_caller_declines_proposal_without_cost() -> None:
    late, costly = find_task("cancel", True, having="late fee"), find_task("book", True, having="out of network")
    bill = find_task("bill", True, having="I will pay")
    for task, cost in (
        (late, r", with a late fee of 40\.00"),
        (costly, r", which costs .* of network"),
        (bill, r"(?<=pay )[\d.]+ for "),
    ):
        proposal = next(m for m in task.gold if "Do you confirm?" in m.content)
        before = task.gold[: task.gold.index(proposal)]
        cheap = gold_text(re.sub(cost, "", proposal.content))
        assert cheap.content != proposal.content
        texts = [m.content for m in play(task, Script(*before, cheap))[1] if m.role == "user"]
        assert any(declines(text) for text in texts)
        assert not any(gives_consent(text) for text in texts)
        assert play(task, Script(*task.gold))[0].reward == 1.0


@pytest.mark.parametrize("family", ["book", "cancel", "refill", "pharmacy", "referral", "bill", "labs", "proxy"])
def test_refusal_without_reason_fails_facts_told(family: str) -> None:
    task = find_task(family, granted=False)
    *before, _ = task.gold
    assert play(task, Script(*before, gold_text("I am sorry, I cannot do that.")))[0].parts["facts_told"] == 0.0
    assert play(task, Script(*task.gold))[0].reward == 1.0


def test_refill_refusal_names_prescription_owner() -> None:
    """This includes names that contain "my", such as Amy."""
    for caller, owner in (("Ben Ortiz", "Amy's"), ("", "Your")):
        draft = HealthcareTaskBuilder(
            Random(1),
            PhraseSampler("1", "train", GENERATOR.phrases),
            build_world(),
            next(k for k, p in build_world().patients.items() if p.name.startswith("Amy ")),
        )
        draft.caller = caller
        refusals = [
            prescription.request_refill(draft, grantable=False, easy=True).gold_turns[-1].content for _ in range(20)
        ]
        early = [text for text in refusals if "lasts until" in text]
        assert early
        assert all(text.startswith(f"{owner} ") for text in early)


def test_partially_completed_task_earns_no_reward() -> None:
    task = two_change_task()
    first = next(i for i, m in enumerate(task.gold) if m.tool_calls and m.tool_calls[0].name in WRITES)
    assert play(task, Script(*task.gold[: first + 1], gold_text("Done.")))[0].reward == 0.0


def test_booking_refused_until_coverage_is_checked() -> None:
    desk = Desk()
    slot = {"doctor": "Ito", "date": "2026-03-05", "time": "09:00"}
    assert "check the coverage" in desk.refusal("book_appointment", **slot)
    desk.do("check_coverage", doctor="Dr. Ito", setting="telehealth")
    assert "check the coverage" in desk.refusal("book_appointment", **slot)
    assert desk.do("check_coverage", doctor="ito") == {"network": "in", "copay": "15.00"}
    desk.do("book_appointment", **slot)


def test_only_a_ppo_covers_doctors_out_of_network() -> None:
    desk = Desk(patients={"P1": {"plan": "Cedar HMO"}}, referrals={"R1": {"specialty": "cardiology"}})
    assert "out of network" in desk.do("check_coverage", doctor="Reid")["problem"]
    assert "out of network" in desk.booking_refusal("Reid", "2026-03-06 13:00")
    desk = Desk(BEN, appointments={"A9": {"status": "completed", "time": "2026-02-02 09:00"}})
    assert desk.do("check_coverage", doctor="Reid") == {"network": "out", "copay": "125.00"}
    desk.book("Reid", "2026-03-06 13:00")


@pytest.mark.parametrize(
    ("change", "day", "refused"),
    [
        ({}, "2026-03-10", ""),
        ({}, "2026-03-11", "valid until 2026-03-10"),
        ({"until": "2026-03-01"}, "2026-03-10", "requires a valid referral"),
        ({"visits": 0}, "2026-03-10", "requires a valid referral"),
        ({"status": "requested"}, "2026-03-10", "requires a valid referral"),
        ({"specialty": "neurology"}, "2026-03-10", "requires a valid referral to dermatology"),
    ],
)
def test_an_hmo_needs_a_valid_referral_to_a_specialist(change: dict[str, Any], day: str, refused: str) -> None:
    desk = Desk(referrals={"R1": change})
    if refused:
        assert refused in desk.booking_refusal("Cole", f"{day} 09:00")
        return
    desk.book("Cole", f"{day} 09:00")
    Desk(BEN).book("Cole", "2026-03-11 09:00")


def test_booking_uses_one_visit_of_referral() -> None:
    desk = Desk()
    key = desk.book("Cole", "2026-03-10 09:00")
    assert (desk.state.referrals["R1"].visits, desk.state.appointments[key].referral) == (0, "R1")
    desk.do("cancel_appointment", appointment_id=key)
    assert desk.state.referrals["R1"].visits == 1
    moved = {"appointment_id": "A2", "time": "09:00"}
    assert "valid until 2026-03-10" in desk.refusal("reschedule_appointment", **moved, date="2026-03-11")
    desk.do("reschedule_appointment", **moved, date="2026-03-10")


def test_visit_must_start_at_free_slot() -> None:
    desk = Desk()
    assert desk.do("get_slots", doctor="Ito", date="2026-03-05")["free"] == ["09:00", "10:30", "11:00", "11:30"]
    assert desk.do("get_slots", doctor="Ito", date=TODAY)["free"] == ["09:30", "10:00"], "nine o'clock is now"
    assert desk.do("get_slots", doctor="Ito")["free"][:3] == [f"{TODAY} 09:30", f"{TODAY} 10:00", "2026-03-05 09:00"]
    assert desk.do("get_slots", doctor="Ito", date="2026-03-07")["free"] == []
    for time in ("2026-03-05 09:30", "2026-03-04 09:00", f"{TODAY} 09:00"):
        assert "not free" in desk.booking_refusal("Ito", time)
    desk.book("Ito", "2026-03-05 09:00")
    assert desk.free("Ito 2026-03-05") == ("10:30", "11:00", "11:30")
    visit = {"appointment_id": "A2", "date": "2026-03-05"}
    assert "not free" in desk.refusal("reschedule_appointment", **visit, time="13:30")
    desk.do("reschedule_appointment", **visit, time="13:00")
    assert desk.free("Novak 2026-03-05") == ("10:30", "11:00")


def test_a_first_visit_takes_an_hour() -> None:
    desk = Desk()
    assert desk.do("get_slots", doctor="Ito", date="2026-03-05")["minutes"] == 30
    assert desk.do("get_slots", doctor="Weber", date="2026-03-06") == {"minutes": 60, "free": ["11:00"]}
    assert "not free" in desk.booking_refusal("Weber", "2026-03-06 09:00")
    key = desk.book("Weber", "2026-03-06 11:00")
    assert desk.state.appointments[key].minutes == 60
    assert desk.free("Weber 2026-03-06") == ("09:00",)
    assert half_hour_slots("11:30", 60)[-1] not in SLOT_TIMES, "no visit continues over noon"


def test_overlapping_or_repeated_booking_is_refused() -> None:
    desk = Desk()
    assert desk.do("get_slots", doctor="Novak", date="2026-03-10")["booked"] == "2026-03-05 10:30"
    assert "A2 with Dr. Novak" in desk.booking_refusal("Novak", "2026-03-10 09:00")
    assert "A2 with Dr. Novak at 2026-03-05 10:30" in desk.booking_refusal("Ito", "2026-03-05 11:00")
    key = desk.book("Ito", "2026-03-05 11:30")
    twice = {"appointment_id": key, "date": "2026-03-05"}
    assert "A2 with Dr. Novak" in desk.refusal("reschedule_appointment", **twice, time="10:30")
    desk.do("reschedule_appointment", **twice, time="09:00")


def test_telehealth_is_refused_for_first_visits() -> None:
    desk, video = Desk(), {"setting": "telehealth"}
    assert desk.do("check_coverage", doctor="Ito", **video) == {"network": "in", "copay": "10.00"}
    assert "no telehealth" in desk.booking_refusal("Weber", "2026-03-06 11:00", **video)
    assert "must be in person" in desk.booking_refusal("Novak", "2026-03-10 09:00", **video)
    key = desk.book("Ito", "2026-03-05 09:00", **video)
    assert desk.state.appointments[key].setting == "telehealth"


@pytest.mark.parametrize(("key", "status"), [("A1", "completed"), ("A3", "no-show"), ("A2", "cancelled")])
def test_only_booked_visits_are_moved_or_cancelled(key: str, status: str) -> None:
    desk = Desk(appointments={key: {"status": status}})
    assert f"is {status}" in desk.refusal("cancel_appointment", appointment_id=key)
    time = {"date": "2026-03-10", "time": "09:00"}
    assert f"is {status}" in desk.refusal("reschedule_appointment", appointment_id=key, **time)


@pytest.mark.parametrize(
    ("time", "fee"), [("2026-03-02 16:30", "40.00"), (LATE_CHANGE_BEFORE, None), ("2026-03-03 09:30", None)]
)
def test_a_late_change_has_a_fee(time: str, fee: str | None) -> None:
    for tool, arguments in (
        ("cancel_appointment", {}),
        ("reschedule_appointment", {"date": "2026-03-10", "time": "09:00"}),
    ):
        desk = Desk(appointments={"A2": {"time": time}})
        assert desk.do(tool, appointment_id="A2", **arguments).get("fee") == fee
        assert str(desk.state.appointments["A2"].fee) == str(fee)
        if tool == "reschedule_appointment":
            assert "fee" not in desk.do("cancel_appointment", appointment_id="A2"), "the visit is eight days ahead"
            assert str(desk.state.appointments["A2"].fee) == str(fee)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, ""),
        ({"refills": 0}, "no refills left"),
        ({"expires": "2026-03-01"}, "expired on 2026-03-01"),
        ({"expires": TODAY}, ""),
        ({"controlled": True}, "is controlled"),
        ({"lasts_until": "2026-03-10"}, "lasts until 2026-03-10"),
        ({"requested": "refill"}, "already been requested"),
        ({"requested": "renewal"}, "already been requested"),
    ],
)
def test_refill_requires_refillable_prescription(change: dict[str, Any], refused: str) -> None:
    desk = Desk(prescriptions={"RX1": change})
    if refused:
        assert refused in desk.refusal("request_refill", prescription_id="RX1")
        return
    desk.do("request_refill", prescription_id="RX1")
    assert (desk.state.prescriptions["RX1"].refills, desk.state.prescriptions["RX1"].requested) == (1, "refill")


def test_renewal_is_allowed_only_where_refill_is_not() -> None:
    assert "request a refill" in Desk().refusal("request_renewal", prescription_id="RX1")
    for change in ({"refills": 0}, {"expires": "2026-03-01"}, {"controlled": True}):
        desk = Desk(prescriptions={"RX1": change})
        desk.do("request_renewal", prescription_id="RX1")
        assert desk.state.prescriptions["RX1"].requested == "renewal"
        assert "already been requested" in desk.refusal("request_renewal", prescription_id="RX1")


def test_change_pharmacy_refused_for_controlled_or_requested_drug() -> None:
    desk = Desk(prescriptions={"RX1": {"requested": "refill"}})
    assert "is controlled" in desk.refusal("change_pharmacy", prescription_id="RX2", pharmacy="Pine Pharmacy")
    assert "already been requested" in desk.refusal("change_pharmacy", prescription_id="RX1", pharmacy="Pine Pharmacy")
    desk = Desk()
    desk.do("change_pharmacy", prescription_id="RX1", pharmacy="Pine Pharmacy")
    assert desk.state.prescriptions["RX1"].pharmacy == "Pine Pharmacy"


def test_request_referral_refused_where_not_required() -> None:
    desk = Desk()
    assert "valid until 2026-03-10" in desk.refusal("request_referral", specialty="dermatology")
    assert "does not require a referral to family" in desk.refusal("request_referral", specialty="family medicine")
    key = desk.do("request_referral", specialty="cardiology")["id"]
    assert desk.state.referrals[key].status == "requested"
    assert "already been requested" in desk.refusal("request_referral", specialty="cardiology")
    Desk(referrals={"R1": {"until": "2026-03-01"}}).do("request_referral", specialty="dermatology")
    assert "Union PPO does not require a referral" in Desk(BEN).refusal("request_referral", specialty="cardiology")


def test_lab_result_is_shown_only_after_release() -> None:
    released, other = Desk().do("get_records", kind="labs")
    assert released["result"] == "140 mmol/L"
    assert "result" not in other


def test_open_bills_are_paid_with_a_card_on_file() -> None:
    desk = Desk()
    assert "is in collections" in desk.refusal("pay_bill", bill_id="B2", payment_id="card_1")
    assert desk.do("pay_bill", bill_id="B1", payment_id="hsa_2") == {"status": "paid", "paid": "120.00"}
    assert desk.state.bills["B1"].paid_with == "hsa_2"
    assert "is paid" in desk.refusal("pay_bill", bill_id="B1", payment_id="card_1")
    assert "is paid" in desk.refusal("set_payment_plan", bill_id="B1", months=3)


def test_installments_are_equal_and_at_least_minimum() -> None:
    desk = Desk()
    assert "less than 25.00" in desk.refusal("set_payment_plan", bill_id="B1", months=6)
    assert "bad arguments" in desk.refusal("set_payment_plan", bill_id="B1", months=4)
    assert desk.do("set_payment_plan", bill_id="B1", months=3)["monthly"] == "40.00"
    assert (desk.state.bills["B1"].status, desk.state.bills["B1"].months) == ("payment plan", 3)
    Desk(bills={"B1": {"amount": "75.00"}}).do("set_payment_plan", bill_id="B1", months=3)
    odd = Desk(bills={"B1": {"amount": "100.00"}})
    assert odd.do("set_payment_plan", bill_id="B1", months=3)["monthly"] == "33.33"


def test_member_id_must_match_plan_format() -> None:
    desk = Desk()
    for wrong in ("CH-123456", "UP-12345", "UP123456", "123456", ""):
        assert "such as UP-" in desk.refusal("update_insurance", plan="Union PPO", member_id=wrong)
    desk.do("update_insurance", plan="Union PPO", member_id=" up-123456")
    assert (desk.state.patients["P1"].plan, desk.state.patients["P1"].member_id) == ("Union PPO", "UP-123456")


def transfer_task(to: str) -> Task:
    tasks = (GENERATOR.make_task("train", 1, "handover", "easy", n) for n in range(100))
    return next(t for t in tasks if len(t.gold_calls) == 2 and t.gold_calls[1].arguments["to"] == to)


@pytest.mark.parametrize(("right", "wrong"), [("nurse", "staff"), ("staff", "nurse")])
def test_transfer_to_wrong_recipient_fails_state_match(right: str, wrong: str) -> None:
    *before, _, last = transfer_task(right).gold
    for to in (right, wrong):
        turns = (*before, gold_call("transfer", to=to, summary="help"), last)
        assert play(transfer_task(right), Script(*turns))[0].parts["state_match"] == float(to == right)


def test_medical_questions_are_transferred_to_nurse() -> None:
    test_transfer_to_wrong_recipient_fails_state_match("nurse", "staff")
    advice = transfer_task("nurse")
    before = advice.gold[:-2]
    assert (
        play(advice, Script(*before, gold_text("Yes, you can take both together."), gold_text("Yes.")))[0].reward == 0.0
    )


def test_other_requests_are_transferred_to_staff() -> None:
    test_transfer_to_wrong_recipient_fails_state_match("staff", "nurse")
    assert "find the patient first" in Desk({}).refusal("transfer", to="staff", summary="a letter")


def test_tools_refuse_calls_after_transfer() -> None:
    for desk in (Desk(), Desk({})):
        desk.do("transfer", to="nurse", summary="pain in the chest")
        assert "has been transferred" in desk.refusal("get_patient")
        assert "has been transferred" in desk.refusal("find_patient", **AMY)
        assert "has been transferred" in desk.refusal("transfer", to="staff", summary="help")


def test_unnecessary_transfer_fails_state_match() -> None:
    for task in (find_task("cancel", granted=False), find_task("labs", granted=False)):
        *before, last = task.gold
        assert (
            play(task, Script(*before, gold_call("transfer", to="staff", summary="no"), last))[0].parts["state_match"]
            == 0.0
        )


def test_policy_states_current_time_and_amounts() -> None:
    for told in (TODAY, NOW[11:], LATE_FEE, MIN_INSTALLMENT, "24 hours", "takes 60", "7 days"):
        assert told in DOMAIN.domain_policy
    for told in (TODAY, NOW[11:], LATE_FEE, REFILL_TOO_EARLY_AFTER):
        assert told in DOMAIN.slice(Slice(domain_policy="brief")).domain_policy
    assert add_days(TODAY, 1) + NOW[10:] == LATE_CHANGE_BEFORE
    assert add_days(TODAY, 7) == REFILL_TOO_EARLY_AFTER
    assert draw_spoken_day(Random(0), TODAY).partition(",")[0] in ("Monday", "March 2")


def test_world_has_expected_size_and_splits() -> None:
    state = build_world()
    sizes = {name: len(table) for name, table in state.tables().items()}
    assert sizes.items() >= {"patients": 400, "appointments": 700, "doctors": 40, "plans": 6, "pharmacies": 12}.items()
    assert [len(GENERATOR.customer_keys(split)) for split in SPLITS] == [320, 40, 40]
    assert len({key for split in SPLITS for key in GENERATOR.customer_keys(split)}) == 400
    assert Counter(d.specialty for d in state.doctors.values()) == {
        "family medicine": 12, "cardiology": 4, "dermatology": 4, "endocrinology": 4, "gastroenterology": 4,
        "neurology": 4, "ophthalmology": 4, "orthopedics": 4,
    }  # fmt: skip


def test_patients_have_unique_identifiers() -> None:
    people = build_world().patients.values()
    for name in ("name", "born", "member_id"):
        assert len({getattr(p, name) for p in people}) == 400
    assert not set(proxy_names()) & {p.name for p in people}


@pytest.mark.parametrize("kind", ["appointments", "prescriptions", "referrals", "bills", "labs"])
def test_each_row_belongs_to_one_patient(kind: str) -> None:
    rows = build_world().tables()[kind]
    owners = Counter(key for patient in build_world().patients.values() for key in getattr(patient, kind))
    assert owners == Counter(dict.fromkeys(rows, 1))
    assert all(row.id == key for key, row in rows.items())


def test_world_references_are_valid() -> None:
    state = build_world()
    for patient in state.patients.values():
        primary = state.doctors[patient.doctor]
        assert (primary.specialty, patient.plan in primary.plans) == ("family medicine", True)
        assert patient.member_id.startswith(plan_initials(patient.plan) + "-")
        assert bool(patient.referrals) == patient.plan.endswith("HMO")
        doctors = [state.appointments[key].doctor for key in patient.appointments]
        assert len(doctors) == len(set(doctors)), "a doctor identifies an appointment"
        drugs = [state.prescriptions[key] for key in patient.prescriptions]
        assert len({p.use for p in drugs}) == len(drugs) >= 2
        assert not all(p.controlled for p in drugs)
    for medicine in state.prescriptions.values():
        assert medicine.doctor in state.doctors
        assert medicine.pharmacy in state.pharmacies
    for bill in state.bills.values():
        assert bill.doctor in state.doctors


def test_doctor_slots_are_booked_at_most_once() -> None:
    state = build_world()
    taken: Counter[tuple[str, str, str]] = Counter()
    for visit in state.appointments.values():
        day, time = visit.time.split()
        assert (visit.time > NOW) == (visit.status in ("booked", "cancelled"))
        if visit.status == "booked":
            taken.update((visit.doctor, day, half) for half in half_hour_slots(time, visit.minutes))
    assert set(taken.values()) == {1}
    assert not any(half in state.schedule[f"{doctor} {day}"].free for doctor, day, half in taken)
    assert {key.split()[1] for key in state.schedule} == set(WORKING_DAYS)
    assert all(set(row.free) <= set(SLOT_TIMES) for row in state.schedule.values())


def test_new_ids_do_not_depend_on_booking_order() -> None:
    visits = [("Ito", "2026-03-05 09:00"), ("Weber", "2026-03-06 11:00")]
    ben = {"A9": {"status": "cancelled"}}
    states = []
    for order in (visits, visits[::-1]):
        desk = Desk(BEN, appointments=ben, schedule={"Ito 2026-03-05": {"free": ["09:00", "09:30"]}})
        for doctor, time in order:
            desk.book(doctor, time)
        states.append(desk.state.changes())
    assert states[0] == states[1]
    desk = Desk()
    first = desk.book("Ito", "2026-03-05 09:00")
    desk.do("cancel_appointment", appointment_id=first)
    assert desk.book("Ito", "2026-03-05 09:00") != first, "a cancelled visit is kept"


def _draw_write_call(rng: Random, state: HealthcareState) -> ToolCall:
    """Return a random call of a write tool on the patient's records, with arguments that its schema allows."""
    spec = rng.choice([spec for spec in DOMAIN.tool_specs if spec.name in WRITES])
    patient = state.patients[state.patient]
    doctor = rng.choice([state.appointments[key].doctor for key in patient.appointments] + list(state.doctors)[:4])
    date = rng.choice([key.split()[1] for key in state.schedule if key.startswith(f"{doctor} ")])
    values: dict[str, Sequence[Any]] = {
        "appointment_id": patient.appointments, "prescription_id": patient.prescriptions, "bill_id": patient.bills,
        "doctor": [doctor], "date": [date], "time": state.schedule[f"{doctor} {date}"].free or SLOT_TIMES,
        "pharmacy": list(state.pharmacies), "payment_id": patient.payments, "months": (3, 6, 12),
        "phone": ["303-555-0100"], "plan": list(state.plans), "member_id": ("CH-123456", "PP-123456"),
        "setting": ("in person", "telehealth"), "specialty": ("dermatology", "neurology"),
    }  # fmt: skip
    return ToolCall(
        name=spec.name, arguments={name: rng.choice(values[name]) for name in spec.parameters["properties"]}
    )


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(GENERATOR.customer_keys("train")), st.integers(0, 10**9))
def test_random_calls_keep_state_consistent(key: str, seed: int) -> None:
    rng, before, state = Random(seed), build_world(), build_world().fork()
    state.patient = key
    tools = HealthcareTools(state)
    reads = [ToolCall(name="get_records", arguments={"kind": kind}) for kind in ("appointments", "prescriptions")]
    reads += [ToolCall(name="get_records", arguments={"kind": kind}) for kind in ("bills", "referrals")]
    reads += [ToolCall(name="check_coverage", arguments={"doctor": name}) for name in state.doctors]
    for call_ in itertools.chain(reads, (_draw_write_call(rng, state) for _ in range(30))):
        try:
            tools.call_sync(call_)
        except ToolError:
            assert call_ not in reads
    own = state.patients[key]
    for table in ("appointments", "prescriptions", "referrals", "bills"):
        assert set(state.tables()[table].changes()) <= set(getattr(own, table))
    assert set(state.patients.changes()) <= {key}
    booked = [a for a in (state.appointments[k] for k in own.appointments) if a.status == "booked"]
    taken = [(a.time[:10], half) for a in booked for half in half_hour_slots(a.time[11:], a.minutes)]
    assert len(taken) == len(set(taken))
    assert len({a.doctor for a in booked}) == len(booked)
    for visit in booked:
        free = state.schedule[f"{visit.doctor} {visit.time[:10]}"].free
        assert not set(half_hour_slots(visit.time[11:], visit.minutes)) & set(free)
    assert sum(map(len, (d.free for d in state.schedule.values()))) + len(taken) == _count_half_hours(before, key)
    assert all(state.referrals[k].visits >= 0 for k in own.referrals)
    assert all(state.prescriptions[k].refills >= 0 for k in own.prescriptions)


def _count_half_hours(state: HealthcareState, key: str) -> int:
    """Return the number of half hours that are free or taken by the patient's booked visits."""
    visits = [state.appointments[k] for k in state.patients[key].appointments]
    booked = sum(v.minutes // 30 for v in visits if v.status == "booked")
    return booked + sum(len(day.free) for day in state.schedule.values())


@pytest.mark.parametrize(
    ("day", "names", "other"),
    [
        ("2026-03-02", "2026-03-02, March 2, march 2nd, 2 March, 2nd of March, 3/2", "March 22"),
        ("2026-03-05", "Mar 5, Mar. 5, 03/05/2026, 03/05, 5th March, March the 5th, 2026/03/05", "03/05/2025"),
        ("2026-03-13", "2026-03-13, March 13, March 13th, 13 march", "March 3"),
        ("2026-03-22", "March 22, March 22nd", "2026-03-02"),
    ],
)
def test_day_is_recognized_in_many_formats(day: str, names: str, other: str) -> None:
    assert all(states_fact(date_variants(day), f"on {name}, please") for name in names.split(", "))
    assert not states_fact(date_variants(day), other)


def test_time_is_recognized_in_many_formats() -> None:
    assert all(states_fact(time_variants("14:00"), f"at {name}.") for name in ("14:00", "2:00 pm", "2 PM", "2pm"))
    assert all(states_fact(time_variants("14:30"), f"at {name}.") for name in ("2:30 p.m.", "02:30 PM", "2:30p.m"))
    assert all(states_fact(time_variants("09:30"), f"at {name}.") for name in ("09:30", "9:30 am", "9:30am"))
    assert not states_fact(time_variants("14:00"), "at 14:30 or 4:00 am")
    assert not states_fact(time_variants("14:30"), "at 2:30 a.m.")
    assert format_birthday("1984-05-02") == "May 2, 1984"


def test_spoken_days_match_calendar() -> None:
    class Last:
        def choice(self, forms: Sequence[str]) -> str:
            return forms[-1]

    spoken = {day: draw_spoken_day(Last(), day) for day in WORKING_DAYS}  # type: ignore[arg-type]
    assert spoken["2026-03-05"] == "this Thursday"
    assert spoken["2026-03-11"] == "Wednesday next week"
    assert spoken["2026-03-20"] == "Friday, March 20"
    assert (WORKING_DAYS[0], WORKING_DAYS[-1], len(WORKING_DAYS)) == ("2026-03-02", "2026-03-20", 15)


@pytest.mark.parametrize("family", DOMAIN.families)
def test_gold_arguments_appear_earlier_in_conversation(family: str) -> None:
    for task in (
        GENERATOR.make_task("train", 4, family, difficulty, n) for difficulty in DIFFICULTIES for n in range(12)
    ):
        seen = ""
        for message in play(task, Script(*task.gold))[1][1:]:
            for name, value in ((n, v) for c in message.tool_calls for n, v in c.arguments.items()):
                if name not in ("kind", "to", "setting", "summary", "expression"):
                    assert _appears_in(name, str(value), seen), (task.id, name, value)
            seen += f"{message.content.casefold()}\n"


@pytest.mark.parametrize("family", ["cancel", "move", "book", "refill", "pharmacy", "bill", "referral"])
@pytest.mark.parametrize("difficulty", ["easy", "medium"])
def test_reworded_gold_earns_full_reward(family: str, difficulty: Difficulty) -> None:
    for task in (GENERATOR.make_task("train", 6, family, difficulty, n) for n in range(12)):
        otherwise = [m.replace(content=_reword(m.content)) for m in task.gold]
        score, messages = play(task, Script(*otherwise))
        assert score.reward == 1.0, [m.content for m in messages if m.content]


def _reword(text: str) -> str:
    """Return an agent's text in other words, with spoken forms of dates and times."""
    day = lambda found: f"{date.fromisoformat(found[0]):%A}, {format_month_day(found[0])},"  # noqa: E731
    time = lambda found: time_variants(found[0]).split("|")[1].upper()  # noqa: E731
    text = re.sub(r"\d\d:\d\d", time, re.sub(r"2026-\d\d-\d\d", day, text))
    text = re.sub(r"(\d+\.\d\d)", r"$\1", text).replace("I will ", "Thank you. I would ")
    return text.replace("Do you confirm?", "Shall I go ahead?").replace("so I cannot", "so unfortunately we can't")


def _appears_in(name: str, value: str, seen: str) -> bool:
    if name == "born":
        return value in seen or format_birthday(value).casefold() in seen
    if name == "date":
        return states_fact(date_variants(value), seen) or f"{date.fromisoformat(value):%A}".casefold() in seen
    return states_fact(time_variants(value) if name == "time" else value, seen)


class RecordReadingAgent:
    """An agent that finds the patient, reads all records, and repeats them with a refusal."""

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        find = next(
            (m for m in task.gold if m.tool_calls and m.tool_calls[0].name == "find_patient"), gold_text("Hello.")
        )
        kinds = ("appointments", "prescriptions", "referrals", "bills", "labs")
        plan = [find, gold_call("get_patient"), *[gold_call("get_records", kind=kind) for kind in kinds]]
        shown = " ".join(m.content for m in episode.messages if m.role == "tool")
        plan += [gold_text(f"I cannot do that, here is all that I know: {shown}")] * 9
        episode.act(reply := plan[min(episode.num_turns, len(plan) - 1)])
        return reply


@pytest.mark.parametrize(
    ("agent", "most"),
    [
        (
            Script(gold_call("transfer", to="staff", summary="help"), gold_text("You are transferred to our staff.")),
            0.0,
        ),
        (Script(gold_call("transfer", to="nurse", summary="help"), gold_text("You are transferred to a nurse.")), 0.03),
        (
            Script(
                *[gold_text("I am sorry, I cannot do that, because it is controlled, out of network and not free.")] * 9
            ),
            0.0,
        ),
        (Script(*[gold_text("I will do it. Do you confirm?"), gold_text("Done.")] * 4), 0.0),
        (RecordReadingAgent(), 0.03),
    ],
    ids=["transfers", "calls a nurse", "refuses", "pretends", "reads out"],
)
def test_trivial_agents_earn_low_reward(agent: Agent, most: float) -> None:
    """Two agents earn a little: a nurse is right for urgent tasks, and the records say who is not on an access list."""
    assert mean_reward(DOMAIN, agent, DOMAIN.sample("validation", 120, seed=5)) <= most


def test_opening_does_not_reveal_whether_request_is_granted() -> None:
    """The most predictive word of easy openings is nearly as frequent in granted as in refused requests."""
    tasks = [
        GENERATOR.make_task("train", 2, family, "easy", n)
        for family in ("cancel", "move", "refill")
        for n in range(300)
    ]
    refused = [t for t in tasks if t.outputs]
    assert 0.22 < len(refused) / len(tasks) < 0.34
    assert_openings_do_not_reveal_refusal(tasks, [bool(t.outputs) for t in tasks], 0.15, 0.42)
