"""The rules of telecom's policy, a test for each row of rules.md; service, the world, and what must not pay."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

import script
from script import Script, assert_openings_tell_nothing, mean
from understudy.agent import Agent, GoldAgent
from understudy.deeds import Hands
from understudy.domains.base import Slice
from understudy.domains.days import any_day, month_day
from understudy.domains.drafts import call, say
from understudy.domains.telecom import DOMAIN
from understudy.domains.telecom.phone import DEEDS, PhoneTools
from understudy.domains.telecom.service import Service, service
from understudy.domains.telecom.state import TODAY, Area, Bill, Customer, Desk, Line, Phone, Plan, TelecomState, Ticket
from understudy.domains.telecom.tasks import make
from understudy.domains.telecom.tools import MOST_DATA, MOST_DAYS, TelecomTools
from understudy.domains.telecom.world import MONTHS, PLANS, customer_ids, world
from understudy.errors import ToolError
from understudy.messages import Message, ToolCall
from understudy.tasks import SPLITS, Difficulty, Score, Task

AMY, BEN = "555-1001", "555-9001"
TROUBLES = ("internet", "calls", "slow", "abroad")
CHANGES: dict[str, dict[str, Any]] = {
    "suspend_line": {"number": AMY, "reason": "long trip", "days": 30},
    "change_plan": {"number": AMY, "plan": "Max"},
    "add_data": {"number": AMY, "gb": 2},
    "set_roaming": {"number": AMY, "on": True},
    "replace_sim": {"number": AMY},
}
READS = {
    *("find_customer", "find_customer_by_name", "get_customer", "get_line", "get_usage", "get_bill", "get_ticket"),
    *("list_plans", "get_plan", "check_outage", "calculate"),
}


def line(**fields: Any) -> Line:
    base = {"plan": "Mid", "contract_until": f"{TODAY + timedelta(days=99)}", "data_used": "3.0"}
    return Line.model_validate({**base, **fields})


def bill(month: str, status: str, *amounts: str) -> Bill:
    items = [{"text": f"position {i}", "amount": amount} for i, amount in enumerate(amounts)]
    return Bill.model_validate({"month": month, "status": status, "items": items})


def customer(name: str, **fields: Any) -> Customer:
    base = {"name": name, "birth_date": "1980-05-31", "address": "12 Oak Street, Denver 80202", "lines": []}
    return Customer.model_validate({**base, "bills": [], **fields})


def operator() -> TelecomState:
    """Two customers. Amy has two lines, two bills that are not paid and one that is, and a ticket; Ben has one line."""
    plans = {
        "Mini": {"price": "10.00", "data": "2", "extra_gb": "4.00"},
        "Mid": {"price": "20.00", "data": "10", "extra_gb": "3.00", "roaming_day": "2.50"},
        "Max": {"price": "40.00", "data": "50", "extra_gb": "1.50", "roaming_day": "0.90"},
    }
    return TelecomState(
        customers={
            "C1": customer("Amy Lee", lines=[AMY, "555-1002"], bills=["B1", "B2", "B3"], tickets=["T1"]),
            "C2": customer("Ben Ortiz", lines=[BEN], bills=["B9"], tickets=["T9"]),
        },
        lines={AMY: line(), "555-1002": line(plan="Mini"), BEN: line()},
        bills={
            "B1": bill("January", "paid", "20.00"),
            "B2": bill("February", "open", "20.00", "4.50"),
            "B3": bill("March", "open", "20.00"),
            "B9": bill("March", "open", "10.00"),
        },
        tickets={
            "T1": Ticket(number=AMY, topic="weak signal", status="in progress"),
            "T9": Ticket(number=BEN, topic="weak signal", status="open"),
        },
        phones={number: Phone(model="Nova 5", place="Denver") for number in (AMY, "555-1002", BEN)},
        plans={name: Plan.model_validate(row) for name, row in plans.items()},
        areas={"Denver": Area(), "Spain": Area(abroad=True)},
        desk={"now": Desk(number=AMY)},
    )


class Office(script.Desk):
    """Both sides of the desk: the operator's tools, with Amy found and all of hers read, and Amy's phone."""

    def __init__(self, number: str = AMY, read: bool = True, **patch: Any) -> None:
        state = operator()
        state.patch(patch)
        super().__init__(state, TelecomTools(state))
        self._phone = PhoneTools(state)
        if number:
            for found in self.do("find_customer", number=number)["lines"] if read else ():
                self.do("get_line", number=found)
                self.do("get_usage", number=found)
        for key in ("B1", "B2", "B3") if number == AMY and read else ():
            self.do("get_bill", bill_id=key)
        if number and not read:
            self.do("find_customer", number=number)

    def phone(self, tool: str, /, **arguments: Any) -> str:
        return self._phone.run(ToolCall(name=tool, arguments=arguments))

    @property
    def line(self) -> Line:
        return self.state.lines[AMY]


def play(task: Task, agent: Agent) -> tuple[Score, list[Message]]:
    return script.play(DOMAIN, task, agent)


def tasks(family: str, *difficulties: Difficulty, count: int = 200) -> Iterator[Task]:
    for number, difficulty in itertools.product(range(count), difficulties or ("easy",)):
        yield make("train", 1, family, difficulty, number)


def drawn(family: str, granted: bool, difficulty: Difficulty = "easy") -> Task:
    """A task whose request can be granted, or not."""
    return next(t for t in tasks(family, difficulty) if granted == any(c.name not in READS for c in t.actions))


def hopeless(family: str, difficulty: Difficulty = "easy") -> Task:
    """A task whose right end is a refusal."""
    return next(t for t in tasks(family, difficulty) if t.outputs)


def calls(task: Task, name: str) -> bool:
    return any(action.name == name for action in task.actions)


def steps(task: Task) -> list[str]:
    """What the user does in the gold episode."""
    return [c.name for m in task.gold if m.role == "user" for c in m.tool_calls]


def swapped(task: Task, tool: str, **arguments: Any) -> tuple[Message, ...]:
    """The gold turns with other arguments for a tool."""
    return tuple(
        call(tool, **{**m.tool_calls[0].arguments, **arguments}) if m.tool_calls and m.tool_calls[0].name == tool else m
        for m in task.turns
    )


# ---- the rules, row by row ----


def test_the_desk_does_not_see_the_phone() -> None:
    """The same answers whatever is set on a phone that is seen, and those of another phone that is not seen."""
    settings = {
        "mobile_data": False,
        "roaming": True,
        "data_saver": True,
        "vpn": True,
        "apn": "outdated",
        "place": "Spain",
    }
    hidden = {"sim": "loose"}, {"airplane_mode": True}, {"radio": "stuck"}, {"radio": "broken"}
    for phones, other in (({}, settings), *itertools.pairwise(hidden)):
        shown = [Office(phones={AMY: fields}).do("get_line", number=AMY) for fields in (phones, other)]
        assert shown[0] == shown[1]
    assert Office().do("get_line", number=AMY)["seen"] == "yes"
    assert Office(phones={AMY: {"sim": "loose"}}).do("get_line", number=AMY)["seen"] == "no"


@pytest.mark.parametrize("tool", sorted(spec.name for spec in DOMAIN.specs))
def test_nothing_works_before_the_customer_is_found(tool: str) -> None:
    arguments: dict[str, Any] = {
        "number": AMY, "bill_id": "B1", "ticket_id": "T1", "plan": "Max", "gb": 1, "days": 9, "reason": "long trip",
        "on": True, "topic": "weak signal", "area": "Denver", "summary": "help",
    }  # fmt: skip
    required = next(spec for spec in DOMAIN.specs if spec.name == tool).parameters.get("required", ())
    if tool not in ("find_customer", "find_customer_by_name", "calculate"):
        refusal = Office("").refusal(tool, **{name: arguments[name] for name in required})
        assert "find the customer first" in refusal


@pytest.mark.parametrize("number", [AMY, "5551001", "555 1001", " 555-1002 "])
def test_the_customer_is_found_by_number_or_by_name_and_birth(number: str) -> None:
    by_name = {"name": "amy lee ", "birth_date": "1980-05-31"}
    for tool, arguments in (("find_customer", {"number": number}), ("find_customer_by_name", by_name)):
        office = Office("")
        assert office.do(tool, **arguments) == {"name": "Amy Lee", "lines": [AMY, "555-1002"]}
        assert office.state.customer == "C1"
    assert "no customer" in Office("").refusal("find_customer_by_name", name="Amy Lee", birth_date="1980-05-30")


def test_guessed_values_are_refused_or_unrewarded() -> None:
    office = Office()
    assert "no customer" in Office("").refusal("find_customer", number="555-0000")
    assert "no line '555-0000'" in office.refusal("get_line", number="555-0000")
    assert "no bill 'B4'" in office.refusal("get_bill", bill_id="B4")
    assert "no ticket 'T4'" in office.refusal("get_ticket", ticket_id="T4")
    assert "no plan 'Huge'" in office.refusal("change_plan", number=AMY, plan="Huge")
    assert "no area 'Atlantis'" in office.refusal("check_outage", area="Atlantis")
    task = drawn("data", granted=True)
    assert play(task, Script(*swapped(task, "add_data", gb=9)))[0].parts["state"] == 0.0


def test_one_customer_per_conversation() -> None:
    office = Office()
    assert "another customer" in office.refusal("find_customer", "forbidden", number=BEN)
    assert "another customer" in office.refusal(
        "find_customer_by_name", "forbidden", name="Ben Ortiz", birth_date="1980-05-31"
    )
    assert office.do("find_customer", number="555-1002")["name"] == "Amy Lee"


def test_the_data_of_others_is_closed() -> None:
    for tool, arguments in (
        ("get_line", {"number": BEN}),
        ("get_usage", {"number": BEN}),
        ("get_bill", {"bill_id": "B9"}),
        ("send_payment_request", {"bill_id": "B9"}),
        ("get_ticket", {"ticket_id": "T9"}),
        ("resume_line", {"number": BEN}),
        ("open_ticket", {"number": BEN, "topic": "spam calls"}),
        *((tool, {**arguments, "number": BEN}) for tool, arguments in CHANGES.items()),
    ):
        assert "the customer has no" in Office().refusal(tool, "forbidden", **arguments)


def test_lines_and_bills_are_read_before_they_are_acted_on() -> None:
    office = Office(read=False)
    for tool, arguments in (*CHANGES.items(), ("resume_line", {"number": AMY})):
        assert f"read line {AMY} first" in office.refusal(tool, **arguments)
    assert "read line" in office.refusal("open_ticket", number=AMY, topic="spam calls")
    assert "read bill B2 first" in office.refusal("send_payment_request", bill_id="B2")
    office.do("get_line", number="5551001")
    office.do("set_roaming", number=AMY, on=True)
    assert f"read usage of {AMY} first" in office.refusal("add_data", number=AMY, gb=2)
    office.do("get_usage", number=AMY)
    office.do("add_data", number=AMY, gb=2)


def test_a_fact_counts_once_a_tool_has_shown_it() -> None:
    task = next(t for t in tasks("ticket") if t.outputs and not calls(t, "get_line"))
    *before, answer = task.turns
    unread = [m for m in before if not m.tool_calls or m.tool_calls[0].name != "get_ticket"]
    assert play(task, Script(*unread, answer))[0].parts["said"] == 0.0
    assert play(task, Script(*before, answer))[0].reward == 1.0


def test_one_yes_covers_one_change() -> None:
    task = next(t for t in tasks("resume", "medium") if "pay_request" in steps(t) and calls(t, "resume_line"))
    request = next(m for m in task.turns if m.tool_calls and m.tool_calls[0].name == "send_payment_request")
    both = request.replace(tool_calls=request.tool_calls * 2)
    office_score, messages = play(task, Script(*task.turns[: task.turns.index(request)], both))
    assert any("one at a time" in m.content for m in messages if m.role == "tool")
    resume = next(m for m in task.turns if m.tool_calls and m.tool_calls[0].name == "resume_line")
    skipped = [m for m in task.turns[: task.turns.index(resume) + 1] if "I will resume" not in m.content]
    score, messages = play(task, Script(*skipped))
    assert office_score.reward == score.reward == 0.0
    assert any("has not confirmed" in m.content for m in messages if m.role == "tool")


def test_the_user_says_yes_to_the_right_proposal_alone() -> None:
    task = drawn("suspend", granted=True)
    proposal = next(m for m in task.turns if "Do you confirm?" in m.content)
    before = task.turns[: task.turns.index(proposal)]
    right = [m.content for m in play(task, Script(*before, proposal))[1] if m.role == "user"]
    assert any(text.startswith("Yes") for text in right)
    for wrong in (
        proposal.content.replace("suspend", "resume"),
        re.sub(r"for \d+ days", "for 5 days", proposal.content),
        re.sub(r"555-\d+", "555-0000", proposal.content),
        "I will do it. Do you confirm?",
    ):
        _, messages = play(task, Script(*before, say(wrong)))
        assert not any(m.content.startswith("Yes") for m in messages if m.role == "user")


@pytest.mark.parametrize("family", ["data", "plan", "roaming"])
def test_a_proposal_names_its_price(family: str) -> None:
    task = drawn(family, granted=True)
    proposal = next(m for m in task.turns if "Do you confirm?" in m.content)
    before = task.turns[: task.turns.index(proposal)]
    silent = re.sub(r"\d+\.\d\d", "some", proposal.content)
    assert silent != proposal.content
    _, messages = play(task, Script(*before, say(silent)))
    assert not any(m.content.startswith("Yes") for m in messages if m.role == "user")


def test_a_refusal_names_its_reason() -> None:
    for family in ("suspend", "plan", "internet"):
        task = hopeless(family)
        *before, _ = task.turns
        assert play(task, Script(*before, say("I am sorry, I cannot do that.")))[0].parts["said"] == 0.0
        assert play(task, GoldAgent())[0].reward == 1.0


@pytest.mark.parametrize("tool", [*CHANGES, "resume_line"])
def test_an_ended_contract_bars_every_change(tool: str) -> None:
    for days, ended in ((1, True), (0, False)):
        until = f"{TODAY - timedelta(days=days)}"
        suspended = "long trip" if tool == "resume_line" else ""
        office = Office(lines={AMY: {"contract_until": until, "suspended": suspended}})
        arguments = CHANGES.get(tool, {"number": AMY})
        if ended:
            assert f"has ended on {until}" in office.refusal(tool, **arguments)
        else:
            office.do(tool, **arguments)


@pytest.mark.parametrize("tool", sorted(CHANGES))
def test_a_suspended_line_is_resumed_before_it_changes(tool: str) -> None:
    office = Office(lines={AMY: {"suspended": "lost phone"}})
    assert "is suspended: lost phone" in office.refusal(tool, **CHANGES[tool])
    office.do("resume_line", number=AMY)
    office.do(tool, **CHANGES[tool])


def test_lines_are_suspended_for_a_reason_and_ninety_days_at_most() -> None:
    office = Office()
    assert "days" in office.refusal("suspend_line", "bad_arguments", number=AMY, reason="long trip", days=MOST_DAYS + 1)
    assert "days" in office.refusal("suspend_line", "bad_arguments", number=AMY, reason="long trip", days=0)
    assert "reason" in office.refusal("suspend_line", "bad_arguments", number=AMY, reason="bored", days=9)
    assert office.do("suspend_line", number=AMY, reason="stolen phone", days=MOST_DAYS)["until"] == "2025-06-12"
    assert (office.line.suspended, office.line.suspended_until) == ("stolen phone", TODAY + timedelta(days=90))


def test_a_line_is_resumed_when_no_bill_is_overdue() -> None:
    office = Office(lines={AMY: {"suspended": "overdue bill"}}, bills={"B2": {"status": "overdue"}})
    assert "bill B2 is overdue" in office.refusal("resume_line", number=AMY)
    assert "not suspended" in office.refusal("resume_line", number="555-1002")
    office.do("send_payment_request", bill_id="B2")
    assert "bill B2 is overdue" in office.refusal("resume_line", number=AMY)
    office.phone("pay_request")
    office.do("resume_line", number=AMY)
    assert (office.line.suspended, office.line.suspended_until) == ("", None)


def test_a_plan_changes_once_with_the_next_bill() -> None:
    office = Office()
    assert "has the Mid plan already" in office.refusal("change_plan", number=AMY, plan="mid")
    office.do("change_plan", number=AMY, plan="max")
    assert (office.line.plan, office.line.next_plan) == ("Mid", "Max")
    assert "changes to Max already" in office.refusal("change_plan", number=AMY, plan="Mini")


def test_data_is_added_up_to_ten_gigabytes() -> None:
    office = Office()
    assert "gb" in office.refusal("add_data", "bad_arguments", number=AMY, gb=MOST_DATA + 1)
    assert "gb" in office.refusal("add_data", "bad_arguments", number=AMY, gb=0)
    assert office.do("add_data", number=AMY, gb=7)["charge"] == "21.00"
    assert "7.0 GB are added already" in office.refusal("add_data", number=AMY, gb=4)
    assert office.do("add_data", number=AMY, gb=3)["charge"] == "9.00"
    assert office.do("get_usage", number=AMY) == {"plan_data": "10.0", "added": "10.0", "used": "3.0"}


def test_roaming_is_for_plans_that_have_it() -> None:
    office = Office()
    assert "Mini plan has no roaming" in office.refusal("set_roaming", number="555-1002", on=True)
    assert "disabled already" in office.refusal("set_roaming", number=AMY, on=False)
    office.do("set_roaming", number=AMY, on=True)
    assert "enabled already" in office.refusal("set_roaming", number=AMY, on=True)
    office.do("set_roaming", number=AMY, on=False)
    assert not office.line.roaming


def test_one_sim_card_is_sent_at_a_time() -> None:
    office = Office()
    office.do("replace_sim", number=AMY)
    assert "ordered already" in office.refusal("replace_sim", number=AMY)
    assert office.do("get_line", number=AMY)["new_sim"] == "ordered"


def test_one_ticket_for_a_line_and_topic() -> None:
    office = Office()
    assert "ticket T1 on weak signal is in progress" in office.refusal("open_ticket", number=AMY, topic="weak signal")
    assert "topic" in office.refusal("open_ticket", "bad_arguments", number=AMY, topic="weather")
    first = office.do("open_ticket", number="555-1002", topic="weak signal")["ticket"]
    second = office.do("open_ticket", number=AMY, topic="spam calls")["ticket"]
    assert office.state.customers["C1"].tickets == ("T1", first, second)
    assert "is open" in office.refusal("open_ticket", number=AMY, topic="spam calls")
    solved = Office(tickets={"T1": {"status": "solved"}})
    assert solved.do("open_ticket", number=AMY, topic="weak signal")["status"] == "open"


def test_one_payment_request_at_a_time() -> None:
    office = Office()
    assert "B1 is paid already" in office.refusal("send_payment_request", bill_id="B1")
    assert office.do("send_payment_request", bill_id="B2")["charge"] == "24.50"
    assert "B2 is not paid yet" in office.refusal("send_payment_request", bill_id="B3")
    office.phone("pay_request")
    assert "B2 is paid already" in office.refusal("send_payment_request", bill_id="B2")
    office.do("send_payment_request", bill_id="B3")


def test_only_the_customer_pays_and_only_what_was_requested() -> None:
    office = Office()
    with pytest.raises(ToolError, match="no payment request"):
        office.phone("pay_request")
    office.do("send_payment_request", bill_id="B2")
    assert office.state.bills["B2"].status == "open"
    assert "B2 is paid, 24.50" in office.phone("pay_request")
    assert (office.state.bills["B2"].status, office.state.bills["B2"].requested) == ("paid", False)
    assert office.state.bills["B3"].status == "open"
    task = drawn("pay", granted=True)
    unpaid = [m for m in task.turns if "pay the request" not in m.content]
    assert play(task, Script(*unpaid))[0].parts["state"] == 0.0


def test_both_halves_have_to_be_right() -> None:
    """With two causes, one on either side, neither half of the gold episode is enough."""
    found = (t for family in TROUBLES for t in tasks(family, "hard", count=60))
    both = [
        t
        for t in found
        if len(t.scenario.wishes) == 1 and len(steps(t)) > 1 and any(c.name not in READS for c in t.actions)
        and not calls(t, "transfer_to_human") and not calls(t, "replace_sim")
    ]  # fmt: skip
    assert len(both) > 20
    for task in both[:20]:
        last_call = max(i for i, m in enumerate(task.turns) if m.tool_calls)
        score, messages = play(task, Script(*task.turns[: last_call + 1], *[say("Done. It works again.")] * 9))
        assert score.reward == 0.0
        assert "It still does not work." in " ".join(m.content for m in messages if m.role == "user")
        phone_only = [m for m in task.turns if "Please" in m.content or any("find" in c.name for c in m.tool_calls)]
        assert play(task, Script(*phone_only, *[say("Done. It works again.")] * 9))[0].reward == 0.0


def test_an_outage_is_told_with_its_end() -> None:
    task = next(t for t in tasks("internet") if "areas" in t.setup)
    (area,) = task.setup["areas"]
    assert task.outputs == (any_day(task.setup["areas"][area]["outage_until"]),)
    assert area in next(c for c in task.actions if c.name == "check_outage").arguments["area"]
    *before, _ = task.turns
    assert play(task, Script(*before, say(f"There is an outage in {area}, I cannot repair it.")))[0].reward == 0.0


@pytest.mark.parametrize("family", ["suspend", "internet"])
def test_a_day_may_be_told_as_people_say_it(family: str) -> None:
    """The end of a contract, and that of an outage."""
    told = 0
    for task in tasks(family):
        day = next((output.partition("|")[0] for output in task.outputs if "|" in output), "")
        if day:
            spoken = [turn.replace(content=turn.content.replace(day, month_day(day))) for turn in task.turns]
            assert month_day(day) in spoken[-1].content
            assert play(task, Script(*spoken))[0].reward == 1.0
            told += 1
    assert told > 5


def test_settings_that_are_not_the_cause_stay() -> None:
    """To have the user change a setting that is no cause loses the reward, though it works in the end."""
    harmless: list[tuple[Callable[[dict[str, Any]], bool], str]] = [
        (lambda phone: bool(phone.get("data_saver")), "Please turn off the data saver."),
        (lambda phone: bool(phone.get("vpn")), "Please turn off the VPN."),
        (lambda phone: phone.get("apn") == "company", "Please reset the access point."),
        (lambda phone: "network_mode" in phone, "Please set the network mode to automatic."),
    ]
    for fits, text in harmless:
        task = next(
            t for t in tasks("internet", "medium")
            if fits(next(iter(t.setup["phones"].values()))) and "look_at_status_bar" in steps(t)
        )  # fmt: skip
        look = next(i for i, m in enumerate(task.turns) if "status bar" in m.content)
        score, messages = play(task, Script(*task.turns[:look], say(text), *task.turns[look:]))
        assert any("It works now." in m.content for m in messages if m.role == "user")
        assert score.parts["state"] == 0.0


def test_more_than_two_steps_are_not_done() -> None:
    task = next(t for t in tasks("internet") if "set_airplane_mode" in steps(t))
    look = next(i for i, m in enumerate(task.turns) if "status bar" in m.content)
    text = "Please restart your phone. Turn off airplane mode. Turn on mobile data."
    _, messages = play(task, Script(*task.turns[:look], say(text)))
    assert any(m.content.startswith("That is too much") for m in messages if m.role == "user")
    assert not any("It works now." in m.content for m in messages if m.role == "user")


def test_steps_that_change_nothing_cost_patience() -> None:
    task = next(t for t in tasks("slow") if steps(t) == ["look_at_status_bar", "set_vpn"])
    look = next(i for i, m in enumerate(task.turns) if "status bar" in m.content)
    guesses = (
        say("Please turn off the data saver."),
        say("Please turn on mobile data."),
        say("Please turn off the VPN."),
    )
    score, messages = play(task, Script(*task.turns[:look], *guesses))
    assert messages[-2].content == "I cannot do that: the data saver is off already. It still does not work."
    assert score.reward == 0.0


def test_a_sim_card_that_only_sits_loose_is_not_replaced() -> None:
    task = next(t for t in tasks("calls") if steps(t) == ["look_at_status_bar", "reseat_sim"])
    (number,) = task.setup["phones"]
    look = next(i for i, m in enumerate(task.turns) if "status bar" in m.content)
    replace = say(f"I will send you a new SIM card for line {number}. Do you confirm?")
    _, messages = play(task, Script(*task.turns[: look + 1], replace, call("replace_sim", number=number)))
    assert any("has not confirmed" in m.content for m in messages if m.role == "tool")
    damaged = next(t for t in tasks("calls", "medium") if calls(t, "replace_sim"))
    assert "reseat_sim" in steps(damaged)


def test_a_broken_phone_is_transferred_when_all_is_tried() -> None:
    task = next(t for t in tasks("calls", "medium") if calls(t, "transfer_to_human"))
    assert steps(task) == ["look_at_status_bar", "restart", "reseat_sim"]
    assert play(task, GoldAgent())[0].reward == 1.0
    for left_out in ("restart", "SIM card out"):
        fewer = [m for m in task.turns if left_out not in m.content]
        assert len(fewer) == len(task.turns) - 1
        assert play(task, Script(*fewer))[0].parts["state"] == 0.0


def test_a_transfer_is_the_last_call() -> None:
    office = Office()
    office.do("transfer_to_human", summary="insurance")
    assert "has been transferred" in office.refusal("get_line", number=AMY)
    assert "has been transferred" in office.refusal("replace_sim", number=AMY)


def test_a_needless_transfer_earns_nothing() -> None:
    for task in (hopeless("suspend"), hopeless("bill"), hopeless("internet")):
        *before, last = task.turns
        assert play(task, Script(*before, call("transfer_to_human", summary="no"), last))[0].parts["state"] == 0.0


def test_half_of_the_requests_earn_nothing() -> None:
    task = next(t for t in tasks("several", "medium") if [c.name in READS for c in t.actions][-1:] == [False])
    writes = [i for i, m in enumerate(task.turns) if m.tool_calls and m.tool_calls[0].name not in READS]
    assert play(task, Script(*task.turns[: writes[-1] - 1], say("Done.")))[0].reward == 0.0


# ---- service ----

GOOD = Service("good", internet=True, fast=True)


def served(place: str = "Denver", outage: str = "", line_fields: Any = (), **phone_fields: Any) -> Service:
    state = operator()
    fields = dict(line_fields)
    state.patch({"lines": {AMY: fields}, "phones": {AMY: {"place": place, **phone_fields}}})
    state.patch({"areas": {place: {"outage": outage}}})
    row = state.lines[AMY]
    return service(row, state.plans[row.plan], state.phones[AMY], state.areas[place])


@pytest.mark.parametrize(
    ("works", "expected"),
    [
        (served(), GOOD),
        (served(airplane_mode=True, sim="loose"), Service("airplane mode", internet=False, fast=False)),
        (served(sim="damaged", radio="stuck"), Service("no SIM", internet=False, fast=False)),
        (served(radio="broken"), Service("no service", internet=False, fast=False)),
        (served(line_fields={"suspended": "long trip"}), Service("no service", internet=False, fast=False)),
        (served(outage="network"), Service("no service", internet=False, fast=False)),
        (served(outage="internet"), Service("good", internet=False, fast=False)),
        (served(mobile_data=False), Service("good", internet=False, fast=False)),
        (served(apn="outdated"), Service("good", internet=False, fast=False)),
        (served(apn="company", roaming=True), GOOD),
        (served(data_saver=True), Service("good", internet=True, fast=False)),
        (served(vpn=True), Service("good", internet=True, fast=False)),
        (served(network_mode="3G only"), Service("good", internet=True, fast=False)),
        (served(line_fields={"data_used": "10.0"}), Service("good", internet=True, fast=False)),
        (served(line_fields={"data_used": "10.0", "data_added": "1.0"}), GOOD),
        (served("Spain"), Service("good", internet=False, fast=False)),
        (served("Spain", roaming=True), Service("good", internet=False, fast=False)),
        (served("Spain", line_fields={"roaming": True}), Service("good", internet=False, fast=False)),
        (served("Spain", line_fields={"roaming": True}, roaming=True), GOOD),
    ],
)
def test_service_takes_both_halves(works: Service, expected: Service) -> None:
    assert works == expected


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "full signal and 4G."),
        ({"network_mode": "3G only", "vpn": True}, "full signal, 3G and a VPN sign."),
        ({"mobile_data": False, "data_saver": True}, "full signal, no internet sign and a data saver sign."),
        ({"airplane_mode": True}, "airplane mode."),
        ({"sim": "loose"}, "no SIM."),
        ({"radio": "broken"}, "no service."),
    ],
)
def test_the_phone_shows_what_works(fields: dict[str, Any], shown: str) -> None:
    office = Office(phones={AMY: fields})
    assert office.phone("look_at_status_bar") == f"The status bar shows {shown}"
    works = served(**fields)
    assert ("goes through" in office.phone("make_call")) == works.calls
    assert ("opens" in office.phone("open_web_page").replace("No web page opens", "")) == works.internet
    assert ("60 Mbit/s" in office.phone("run_speed_test")) == works.fast


def test_the_phone_in_hand_is_set() -> None:
    office = Office()
    assert "mobile data on, roaming off, network mode automatic, standard access point" in office.phone(
        "look_at_settings"
    )
    for tool, arguments, field, value in (
        ("set_airplane_mode", {"on": True}, "airplane_mode", True),
        ("set_mobile_data", {"on": False}, "mobile_data", False),
        ("set_roaming", {"on": True}, "roaming", True),
        ("set_data_saver", {"on": True}, "data_saver", True),
        ("set_vpn", {"on": True}, "vpn", True),
        ("set_network_mode", {"mode": "3G only"}, "network_mode", "3G only"),
    ):
        office.phone(tool, **arguments)
        assert getattr(office.state.phones[AMY], field) == value
        with pytest.raises(ToolError, match="already"):
            office.phone(tool, **arguments)
    with pytest.raises(ToolError, match="standard one already"):
        office.phone("reset_access_point")
    assert office.state.changes()["phones"].keys() == {AMY}


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("Please toggle airplane mode.", "toggle_airplane_mode"),
        ("Turn airplane mode on, wait ten seconds, and turn it off again.", "toggle_airplane_mode"),
        ("Please make sure airplane mode is off.", "look_at_status_bar"),
        ("Please turn off airplane mode.", "set_airplane_mode"),
        ("Please switch your network mode from 3G only to automatic.", "set_network_mode"),
        ("Please power off your phone, remove the SIM card and reinsert it.", "reseat_sim"),
        ("Could you go to the network settings and tell me whether roaming is on?", "look_at_settings"),
        ("Please enable data roaming in your phone's settings.", "set_roaming"),
        ("Navigate to your APN settings and select 'Reset to default'.", "reset_access_point"),
        ("Have you received the payment request? If so, please pay it.", "pay_request"),
        ("Please disconnect from the VPN.", "set_vpn"),
        ("Please run a speed test and tell me the result.", "run_speed_test"),
    ],
)
def test_what_other_agents_may_say_is_understood(text: str, tool: str) -> None:
    assert [deed.call.name for deed in Hands(DEEDS, lambda call: "").told(text)] == [tool]


def test_restart_and_reseating_mend_what_they_can() -> None:
    for fields, tool, mended in (
        ({"radio": "stuck"}, "restart", True),
        ({"radio": "stuck"}, "reseat_sim", False),
        ({"sim": "loose"}, "reseat_sim", True),
        ({"sim": "loose"}, "restart", False),
        ({"sim": "damaged"}, "reseat_sim", False),
        ({"radio": "broken"}, "restart", False),
    ):
        office = Office(phones={AMY: fields})
        office.phone(tool)
        assert ("goes through" in office.phone("make_call")) == mended
    assert Office().phone("restart") == "The phone has restarted."
    broken = Office(phones={AMY: {"radio": "broken"}})
    for tool in ("reseat_sim", "restart", "restart"):
        broken.phone(tool)
    assert broken.state.phones[AMY].tried == ("SIM card", "restart")


def test_nobody_has_no_phone_in_hand() -> None:
    with pytest.raises(ToolError, match="no phone in hand"):
        Office(desk={"now": {"number": ""}}).phone("restart")


def test_every_deed_is_a_call_of_the_phone() -> None:
    names = {spec.name for spec in PhoneTools(operator()).specs()}
    assert {deed.call.name for deed in DEEDS} == names
    for deed in DEEDS:
        try:
            Office().phone(deed.call.name, **deed.call.arguments)
        except ToolError as e:
            assert e.kind == "refused"  # noqa: PT017


# ---- the world ----


def test_the_world_has_its_size_and_splits() -> None:
    state = world()
    assert len(state.customers) == 400
    assert 700 < len(state.lines) < 900
    assert [len(customer_ids(split)) for split in SPLITS] == [320, 40, 40]
    assert len({key for split in SPLITS for key in customer_ids(split)}) == 400


@pytest.mark.parametrize(("table", "field"), [("lines", "lines"), ("bills", "bills"), ("tickets", "tickets")])
def test_references_of_the_world_are_intact(table: str, field: str) -> None:
    state = world()
    owners = Counter(key for owner in state.customers.values() for key in getattr(owner, field))
    assert owners == Counter(dict.fromkeys(state.tables()[table], 1))


def test_what_belongs_together_in_the_world() -> None:
    state = world()
    assert set(state.phones) == set(state.lines)
    assert len({owner.birth_date for owner in state.customers.values()}) == 400
    for owner in state.customers.values():
        plans = [state.lines[number].plan for number in owner.lines]
        assert len(plans) == len(set(plans)), "a plan has to tell its line"
        assert [state.bills[key].month for key in owner.bills] == list(MONTHS[-len(owner.bills) :])
        for key in owner.bills:
            texts = [item.text for item in state.bills[key].items]
            assert len(texts) == len(set(texts)), "a position has to tell its amount"
            assert state.bills[key].total == sum((item.amount for item in state.bills[key].items), Decimal(0))
        assert {state.tickets[key].number for key in owner.tickets} <= set(owner.lines)
        for number in owner.lines:
            assert state.phones[number].place in owner.address
            works = service(state.lines[number], state.plans[state.lines[number].plan], state.phones[number], Area())
            assert works == GOOD


def test_what_tools_show_is_short() -> None:
    """Counted in characters: a small model needs about one token for each 2.4 of them."""
    tools = TelecomTools(state := world().fork())
    run: Callable[..., str] = lambda tool, **arguments: tools.run(ToolCall(name=tool, arguments=arguments))  # noqa: E731
    for key in customer_ids("train")[:50]:
        state.customer = key
        assert len(run("get_customer")) < 290
        assert all(len(run("get_line", number=number)) < 120 for number in state.customers[key].lines)
        assert all(len(run("get_bill", bill_id=bill)) < 330 for bill in state.customers[key].bills)
    assert len(run("list_plans")) < 340


# ---- what must not pay ----


class Found:
    """Finds the customer by any number that it hears, then says or calls what it is given, over and over."""

    def __init__(self, *plan: Message) -> None:
        self._plan = plan

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        number = re.search(r"555-\d{4}", " ".join(m.content for m in episode.messages if m.role == "user"))
        asks = say("What is your phone number?")
        found = any(m.role == "tool" for m in episode.messages)
        said = sum(m.role == "assistant" for m in episode.messages) - 1
        reply = (
            self._plan[said % len(self._plan)] if found else call("find_customer", number=number[0]) if number else asks
        )
        episode.act(reply)
        return reply


@pytest.mark.parametrize(
    "agent",
    [
        Script(call("transfer_to_human", summary="help"), say("You are transferred to a human agent.")),
        Script(*[say("I will do it. Do you confirm?"), say("Done.")] * 4),
        Found(say("I cannot do that: it is suspended, paid, ordered, or its contract has ended.")),
        Found(*[say("I will do it. Do you confirm?"), say("Done. It works again.")]),
    ],
    ids=["transfers", "pretends", "refuses", "repairs nothing"],
)
def test_trivial_policies_earn_nothing(agent: Agent) -> None:
    assert mean(DOMAIN, agent, DOMAIN.sample("validation", 300, seed=5)) == 0.0


def test_transferring_whoever_is_found_earns_little() -> None:
    """Only those who ask for what no tool can do are transferred rightly, and they have to agree first."""
    agent = Found(call("transfer_to_human", summary="help"), say("You are transferred to a human agent."))
    assert mean(DOMAIN, agent, DOMAIN.sample("validation", 306, seed=5)) <= 1 / len(DOMAIN.families)


def test_guessing_at_the_phone_earns_little() -> None:
    """All steps, the likeliest first, without a look and without the line."""
    guesses = (
        say("Please restart your phone and turn off airplane mode."),
        say("Please turn on mobile data and turn off the VPN."),
        say("Please reset the access point and set the network mode to automatic."),
    )
    for difficulty, most in (("easy", 0.3), ("medium", 0.2), ("hard", 0.1)):
        part = DOMAIN.slice(Slice(families=TROUBLES, difficulties=(difficulty,)))  # type: ignore[arg-type]
        assert mean(DOMAIN, Found(*guesses), part.sample("train", 200, seed=5)) < most


def test_openings_do_not_tell_whether_a_request_is_granted() -> None:
    """The most telling word of easy openings is nearly as frequent in granted as in refused requests."""
    families = ("suspend", "resume", "sim", "internet", "calls", "pay")
    drawn_tasks = [make("train", 2, family, "easy", n) for family in families for n in range(200)]
    refused = [t for t in drawn_tasks if t.outputs]
    assert 0.22 < len(refused) / len(drawn_tasks) < 0.34
    assert_openings_tell_nothing(drawn_tasks, [bool(t.outputs) for t in drawn_tasks], 0.15, 0.42)


def test_the_cheapest_plan_is_the_cheapest() -> None:
    found = [t for t in tasks("plan", "medium", count=80) if "at least" in t.scenario.opening]
    assert len(found) > 5
    for task in found:
        if calls(task, "change_plan"):
            wanted = int(re.findall(r"at least (\d+) GB", task.scenario.opening)[0])
            plan = next(c for c in task.actions if c.name == "change_plan").arguments["plan"]
            enough = {name: Decimal(row[0]) for name, row in PLANS.items() if int(row[1]) >= wanted}
            assert enough[plan] == min(enough.values())


def test_deeds_are_told_in_words_that_the_user_understands() -> None:
    """What gold tells the user is understood as just what the user then does."""
    for family in TROUBLES:
        for task in tasks(family, "easy", "medium", "hard", count=100):
            hands = Hands(task.scenario.deeds, lambda call: "")
            for i, turn in enumerate(task.gold):
                if turn.role == "assistant" and not turn.tool_calls and "confirm" not in turn.content:
                    after = itertools.takewhile(lambda m: m.role == "user", task.gold[i + 1 :])
                    done = [c for m in after for c in m.tool_calls]
                    assert [deed.call for deed in hands.told(turn.content)] == done
