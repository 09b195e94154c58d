"""Tests of the telecom policy (each row of rules.md names one), of connectivity, its world, and trivial agents."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from support import script
from support.script import Script, assert_openings_do_not_reveal_refusal, mean_reward
from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS, Difficulty, Score, Task
from understudy.domains.telecom import DOMAIN, GENERATOR
from understudy.domains.telecom.connectivity import Connectivity, compute_connectivity
from understudy.domains.telecom.state import (
    TODAY,
    Area,
    Bill,
    CurrentConversation,
    Customer,
    Line,
    Phone,
    Plan,
    TelecomState,
    Ticket,
)
from understudy.domains.telecom.tools import MAX_ADDED_GB, MAX_SUSPENSION_DAYS, TelecomTools
from understudy.domains.telecom.user_tools import USER_ACTIONS, PhoneTools
from understudy.domains.telecom.world import MONTHS, PLANS, build_world
from understudy.envs.dates import date_variants, format_month_day
from understudy.envs.gold import gold_call, gold_text
from understudy.envs.task_source import Slice
from understudy.envs.user_actions import UserToolExecutor
from understudy.envs.users.consent import gives_consent
from understudy.rollouts.agent import Agent, GoldAgent

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


def small_operator() -> TelecomState:
    """Return a world of two customers.

    Amy has two lines, two open bills, one paid bill and a ticket. Ben has one line, one bill and one ticket.
    """
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
        conversation={"now": CurrentConversation(number=AMY)},
    )


class Office(script.Desk):
    """The operator's tools and the tools of Amy's phone. By default Amy is found and her lines and bills are read."""

    def __init__(self, number: str = AMY, read: bool = True, **patch: Any) -> None:
        state = small_operator()
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
        return self._phone.call_sync(ToolCall(name=tool, arguments=arguments))

    @property
    def line(self) -> Line:
        return self.state.lines[AMY]


def play(task: Task, agent: Agent) -> tuple[Score, list[Message]]:
    return script.play(DOMAIN, task, agent)


def tasks(family: str, *difficulties: Difficulty, count: int = 200) -> Iterator[Task]:
    for number, difficulty in itertools.product(range(count), difficulties or ("easy",)):
        yield GENERATOR.make_task("train", 1, family, difficulty, number)


def find_task(family: str, granted: bool, difficulty: Difficulty = "easy") -> Task:
    """Return the first task of a family whose request can be granted (or cannot)."""
    return next(t for t in tasks(family, difficulty) if granted == any(c.name not in READS for c in t.gold_calls))


def find_refusal_task(family: str, difficulty: Difficulty = "easy") -> Task:
    """Return the first task of a family that the agent has to refuse."""
    return next(t for t in tasks(family, difficulty) if t.outputs)


def has_call(task: Task, name: str) -> bool:
    return any(action.name == name for action in task.gold_calls)


def user_call_names(task: Task) -> list[str]:
    """Return the names of the user's calls in the gold episode."""
    return [c.name for m in task.gold if m.role == "user" for c in m.tool_calls]


def replace_arguments(task: Task, tool: str, **arguments: Any) -> tuple[Message, ...]:
    """Return the gold turns with other arguments for a tool."""
    return tuple(
        gold_call(tool, **{**m.tool_calls[0].arguments, **arguments})
        if m.tool_calls and m.tool_calls[0].name == tool
        else m
        for m in task.gold_turns
    )


def test_operator_tools_do_not_reveal_phone_settings() -> None:
    """`get_line` shows only whether the network sees the phone. Its result does not depend on other settings."""
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


@pytest.mark.parametrize("tool", sorted(spec.name for spec in DOMAIN.toolkit.specs()))
def test_tools_refuse_calls_before_customer_is_found(tool: str) -> None:
    arguments: dict[str, Any] = {
        "number": AMY, "bill_id": "B1", "ticket_id": "T1", "plan": "Max", "gb": 1, "days": 9, "reason": "long trip",
        "on": True, "topic": "weak signal", "area": "Denver", "summary": "help",
    }  # fmt: skip
    required = next(spec for spec in DOMAIN.tool_specs if spec.name == tool).parameters.get("required", ())
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
    assert "area 'Atlantis'" in office.refusal("check_outage", area="Atlantis")
    task = find_task("data", granted=True)
    assert play(task, Script(*replace_arguments(task, "add_data", gb=9)))[0].parts["state_match"] == 0.0


def test_one_customer_per_conversation() -> None:
    office = Office()
    assert "another customer" in office.refusal("find_customer", "forbidden", number=BEN)
    assert "another customer" in office.refusal(
        "find_customer_by_name", "forbidden", name="Ben Ortiz", birth_date="1980-05-31"
    )
    assert office.do("find_customer", number="555-1002")["name"] == "Amy Lee"


def test_other_customers_data_is_refused() -> None:
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


def test_change_refused_until_line_or_bill_is_read() -> None:
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


def test_fact_counts_only_after_tool_has_shown_it() -> None:
    task = next(t for t in tasks("ticket") if t.outputs and not has_call(t, "get_line"))
    *before, answer = task.gold_turns
    unread = [m for m in before if not m.tool_calls or m.tool_calls[0].name != "get_ticket"]
    assert play(task, Script(*unread, answer))[0].parts["facts_told"] == 0.0
    assert play(task, Script(*before, answer))[0].reward == 1.0


def test_one_consent_allows_one_change() -> None:
    task = next(
        t for t in tasks("resume", "medium") if "pay_request" in user_call_names(t) and has_call(t, "resume_line")
    )
    request = next(m for m in task.gold_turns if m.tool_calls and m.tool_calls[0].name == "send_payment_request")
    both = request.replace(tool_calls=request.tool_calls * 2)
    office_score, messages = play(task, Script(*task.gold_turns[: task.gold_turns.index(request)], both))
    assert any("one at a time" in m.content for m in messages if m.role == "tool")
    resume = next(m for m in task.gold_turns if m.tool_calls and m.tool_calls[0].name == "resume_line")
    skipped = [m for m in task.gold_turns[: task.gold_turns.index(resume) + 1] if "I will resume" not in m.content]
    score, messages = play(task, Script(*skipped))
    assert office_score.reward == score.reward == 0.0
    assert any("has not confirmed" in m.content for m in messages if m.role == "tool")


@pytest.mark.parametrize(
    ("family", "change", "wordings"),
    [
        ("resume", "resume_line", ("restore line {n}", "lift the suspension of line {n}", "switch line {n} back on")),
        (
            "suspend",
            "suspend_line",
            ("freeze line {n} {rest}", "put line {n} on hold {rest}", "start pausing line {n} {rest}"),
        ),
    ],
)
def test_user_consents_to_a_change_in_other_words(family: str, change: str, wordings: tuple[str, ...]) -> None:
    task = next(t for t in tasks(family) if has_call(t, change))
    index = (
        next(i for i, turn in enumerate(task.gold_turns) if any(call.name == change for call in turn.tool_calls)) - 1
    )
    number = next(call.arguments["number"] for call in task.gold_calls if call.name == change)
    rest = task.gold_turns[index].content.partition(number)[2].removesuffix(" Do you confirm?").rstrip(".")
    for wording in wordings:
        proposal = gold_text(f"I will {wording.format(n=number, rest=rest)}. Do you confirm?")
        score, _ = play(task, Script(*task.gold_turns[:index], proposal, *task.gold_turns[index + 1 :]))
        assert score.reward == 1, proposal.content


def test_user_consents_only_to_matching_proposal() -> None:
    task = find_task("suspend", granted=True)
    proposal = next(m for m in task.gold_turns if "Do you confirm?" in m.content)
    before = task.gold_turns[: task.gold_turns.index(proposal)]
    right = [m.content for m in play(task, Script(*before, proposal))[1] if m.role == "user"]
    assert any(gives_consent(text) for text in right)
    for wrong in (
        proposal.content.replace("suspend", "resume"),
        re.sub(r"for \d+ days", "for 5 days", proposal.content),
        re.sub(r"555-\d+", "555-0000", proposal.content),
        re.sub(r"reason: [\w ]+", "reason: you did not pay", proposal.content),
        "I will do it. Do you confirm?",
    ):
        _, messages = play(task, Script(*before, gold_text(wrong)))
        assert not any(gives_consent(m.content) for m in messages if m.role == "user")


def test_user_rejects_ticket_about_another_topic() -> None:
    task = find_task("ticket", granted=True)
    proposal = next(m for m in task.gold_turns if "Do you confirm?" in m.content)
    before = task.gold_turns[: task.gold_turns.index(proposal)]
    for text, agreed in (
        (proposal.content, True),
        (re.sub(r"about .* for", "about a slow phone for", proposal.content), False),
    ):
        messages = play(task, Script(*before, gold_text(text)))[1]
        assert agreed == any(gives_consent(m.content) for m in messages if m.role == "user")


def test_user_looks_at_the_phone_that_an_instruction_names() -> None:
    looks = 0
    for task in tasks("internet", "easy", count=30):
        _, messages = play(task, GoldAgent())
        for said, answer in itertools.pairwise(messages):
            if said.role == "assistant" and said.content.startswith("Please look at the status bar of your phone"):
                looks += 1
                assert "The status bar shows" in answer.content
    assert looks > 5


@pytest.mark.parametrize("family", ["data", "plan", "roaming", "pay"])
def test_user_rejects_proposal_without_price(family: str) -> None:
    task = find_task(family, granted=True)
    proposal = next(m for m in task.gold_turns if "Do you confirm?" in m.content)
    before = task.gold_turns[: task.gold_turns.index(proposal)]
    silent = re.sub(r"\d+\.\d\d", "some", proposal.content)
    assert silent != proposal.content
    _, messages = play(task, Script(*before, gold_text(silent)))
    assert not any(gives_consent(m.content) for m in messages if m.role == "user")


def test_refusal_without_reason_fails_facts_told() -> None:
    for family in ("suspend", "plan", "internet"):
        task = find_refusal_task(family)
        *before, _ = task.gold_turns
        assert play(task, Script(*before, gold_text("I am sorry, I cannot do that.")))[0].parts["facts_told"] == 0.0
        assert play(task, GoldAgent())[0].reward == 1.0


@pytest.mark.parametrize("tool", [*CHANGES, "resume_line"])
def test_change_refused_after_contract_end(tool: str) -> None:
    for days, ended in ((1, True), (0, False)):
        until = f"{TODAY - timedelta(days=days)}"
        suspended = "long trip" if tool == "resume_line" else ""
        office = Office(lines={AMY: {"contract_until": until, "suspended": suspended}})
        arguments = CHANGES.get(tool, {"number": AMY})
        if ended:
            assert f"ended on {until}" in office.refusal(tool, **arguments)
        else:
            office.do(tool, **arguments)


@pytest.mark.parametrize("tool", sorted(CHANGES))
def test_change_refused_on_suspended_line(tool: str) -> None:
    office = Office(lines={AMY: {"suspended": "lost phone"}})
    assert "is suspended: lost phone" in office.refusal(tool, **CHANGES[tool])
    office.do("resume_line", number=AMY)
    office.do(tool, **CHANGES[tool])


def test_suspend_line_requires_reason_and_at_most_90_days() -> None:
    office = Office()
    assert "days" in office.refusal(
        "suspend_line", "invalid_arguments", number=AMY, reason="long trip", days=MAX_SUSPENSION_DAYS + 1
    )
    assert "days" in office.refusal("suspend_line", "invalid_arguments", number=AMY, reason="long trip", days=0)
    assert "reason" in office.refusal("suspend_line", "invalid_arguments", number=AMY, reason="bored", days=9)
    assert (
        office.do("suspend_line", number=AMY, reason="stolen phone", days=MAX_SUSPENSION_DAYS)["until"] == "2025-06-12"
    )
    assert (office.line.suspended, office.line.suspended_until) == ("stolen phone", TODAY + timedelta(days=90))


def test_resume_line_refused_while_bill_is_overdue() -> None:
    office = Office(lines={AMY: {"suspended": "overdue bill"}}, bills={"B2": {"status": "overdue"}})
    assert "bill B2 is overdue" in office.refusal("resume_line", number=AMY)
    assert "not suspended" in office.refusal("resume_line", number="555-1002")
    office.do("send_payment_request", bill_id="B2")
    assert "bill B2 is overdue" in office.refusal("resume_line", number=AMY)
    office.phone("pay_request")
    office.do("resume_line", number=AMY)
    assert (office.line.suspended, office.line.suspended_until) == ("", None)


def test_plan_changes_once_from_next_bill() -> None:
    office = Office()
    assert "already has the Mid plan" in office.refusal("change_plan", number=AMY, plan="mid")
    office.do("change_plan", number=AMY, plan="max")
    assert (office.line.plan, office.line.next_plan) == ("Mid", "Max")
    assert "already set to change to Max" in office.refusal("change_plan", number=AMY, plan="Mini")


def test_add_data_is_limited_to_ten_gigabytes() -> None:
    office = Office()
    assert "gb" in office.refusal("add_data", "invalid_arguments", number=AMY, gb=MAX_ADDED_GB + 1)
    assert "gb" in office.refusal("add_data", "invalid_arguments", number=AMY, gb=0)
    assert office.do("add_data", number=AMY, gb=7)["charge"] == "21.00"
    assert "7.0 GB have already been added" in office.refusal("add_data", number=AMY, gb=4)
    assert office.do("add_data", number=AMY, gb=3)["charge"] == "9.00"
    assert office.do("get_usage", number=AMY) == {"plan_data": "10.0", "added": "10.0", "used": "3.0"}


def test_roaming_requires_plan_with_roaming() -> None:
    office = Office()
    assert "Mini plan has no roaming" in office.refusal("set_roaming", number="555-1002", on=True)
    assert "already disabled" in office.refusal("set_roaming", number=AMY, on=False)
    office.do("set_roaming", number=AMY, on=True)
    assert "already enabled" in office.refusal("set_roaming", number=AMY, on=True)
    office.do("set_roaming", number=AMY, on=False)
    assert not office.line.roaming


def test_second_sim_card_order_is_refused() -> None:
    office = Office()
    office.do("replace_sim", number=AMY)
    assert "already been ordered" in office.refusal("replace_sim", number=AMY)
    assert office.do("get_line", number=AMY)["new_sim"] == "ordered"


def test_second_open_ticket_for_line_and_topic_is_refused() -> None:
    office = Office()
    assert "ticket T1 about weak signal is in progress" in office.refusal(
        "open_ticket", number=AMY, topic="weak signal"
    )
    assert "topic" in office.refusal("open_ticket", "invalid_arguments", number=AMY, topic="weather")
    first = office.do("open_ticket", number="555-1002", topic="weak signal")["ticket"]
    second = office.do("open_ticket", number=AMY, topic="spam calls")["ticket"]
    assert office.state.customers["C1"].tickets == ("T1", first, second)
    assert "is open" in office.refusal("open_ticket", number=AMY, topic="spam calls")
    solved = Office(tickets={"T1": {"status": "solved"}})
    assert solved.do("open_ticket", number=AMY, topic="weak signal")["status"] == "open"


def test_second_open_payment_request_is_refused() -> None:
    office = Office()
    assert "B1 is already paid" in office.refusal("send_payment_request", bill_id="B1")
    assert office.do("send_payment_request", bill_id="B2")["charge"] == "24.50"
    assert "bill B2 is still open" in office.refusal("send_payment_request", bill_id="B3")
    office.phone("pay_request")
    assert "B2 is already paid" in office.refusal("send_payment_request", bill_id="B2")
    office.do("send_payment_request", bill_id="B3")


def test_customer_pays_only_requested_bill() -> None:
    office = Office()
    with pytest.raises(ToolError, match="no payment request"):
        office.phone("pay_request")
    office.do("send_payment_request", bill_id="B2")
    assert office.state.bills["B2"].status == "open"
    assert "24.50 for bill B2" in office.phone("pay_request")
    assert (office.state.bills["B2"].status, office.state.bills["B2"].requested) == ("paid", False)
    assert office.state.bills["B3"].status == "open"
    task = find_task("pay", granted=True)
    unpaid = [m for m in task.gold_turns if "pay the payment request" not in m.content]
    assert play(task, Script(*unpaid))[0].parts["state_match"] == 0.0


def test_fixing_one_of_two_causes_earns_no_reward() -> None:
    """With one cause on the line and one on the phone, half of the gold episode is not enough."""
    found = (t for family in TROUBLES for t in tasks(family, "hard", count=60))
    both = [
        t
        for t in found
        if len(t.scenario.goals) == 1 and len(user_call_names(t)) > 1 and any(c.name not in READS for c in t.gold_calls)
        and not has_call(t, "transfer_to_human") and not has_call(t, "replace_sim")
    ]  # fmt: skip
    assert len(both) > 20
    for task in both[:20]:
        last_call = max(i for i, m in enumerate(task.gold_turns) if m.tool_calls)
        score, messages = play(
            task, Script(*task.gold_turns[: last_call + 1], *[gold_text("Done. It works again.")] * 9)
        )
        assert score.reward == 0.0
        assert "It still does not work." in " ".join(m.content for m in messages if m.role == "user")
        phone_only = [
            m for m in task.gold_turns if "Please" in m.content or any("find" in c.name for c in m.tool_calls)
        ]
        assert play(task, Script(*phone_only, *[gold_text("Done. It works again.")] * 9))[0].reward == 0.0


def test_outage_answer_must_state_end_date() -> None:
    task = next(t for t in tasks("internet") if "areas" in t.setup)
    (area,) = task.setup["areas"]
    assert task.outputs == (date_variants(task.setup["areas"][area]["outage_until"]),)
    assert area in next(c for c in task.gold_calls if c.name == "check_outage").arguments["area"]
    *before, _ = task.gold_turns
    assert play(task, Script(*before, gold_text(f"There is an outage in {area}, I cannot repair it.")))[0].reward == 0.0


@pytest.mark.parametrize("family", ["suspend", "internet"])
def test_date_in_words_earns_full_reward(family: str) -> None:
    """The families cover the end of a contract and the end of an outage."""
    told = 0
    for task in tasks(family):
        day = next((output.partition("|")[0] for output in task.outputs if "|" in output), "")
        if day:
            spoken = [
                turn.replace(content=turn.content.replace(day, format_month_day(day))) for turn in task.gold_turns
            ]
            assert format_month_day(day) in spoken[-1].content
            assert play(task, Script(*spoken))[0].reward == 1.0
            told += 1
    assert told > 5


def test_changing_unrelated_setting_fails_state_match() -> None:
    """Changing a setting that is not the cause loses the reward even if the service works in the end."""
    harmless: list[tuple[Callable[[dict[str, Any]], bool], str]] = [
        (lambda phone: bool(phone.get("data_saver")), "Please turn off the data saver."),
        (lambda phone: bool(phone.get("vpn")), "Please turn off the VPN."),
        (lambda phone: phone.get("apn") == "company", "Please reset the access point."),
        (lambda phone: "network_mode" in phone, "Please set the network mode to automatic."),
    ]
    for fits, text in harmless:
        task = next(
            t for t in tasks("internet", "medium")
            if fits(next(iter(t.setup["phones"].values()))) and "look_at_status_bar" in user_call_names(t)
        )  # fmt: skip
        look = next(i for i, m in enumerate(task.gold_turns) if "status bar" in m.content)
        score, messages = play(task, Script(*task.gold_turns[:look], gold_text(text), *task.gold_turns[look:]))
        assert any("It works now." in m.content for m in messages if m.role == "user")
        assert score.parts["state_match"] == 0.0


def test_user_rejects_more_than_two_steps_at_once() -> None:
    task = next(t for t in tasks("internet") if "set_airplane_mode" in user_call_names(t))
    look = next(i for i, m in enumerate(task.gold_turns) if "status bar" in m.content)
    text = "Please restart your phone. Turn off airplane mode. Turn on mobile data."
    _, messages = play(task, Script(*task.gold_turns[:look], gold_text(text)))
    assert any(m.content.startswith("That is too much") for m in messages if m.role == "user")
    assert not any("It works now." in m.content for m in messages if m.role == "user")


def test_steps_without_effect_cost_patience() -> None:
    task = next(t for t in tasks("slow") if user_call_names(t) == ["look_at_status_bar", "set_vpn"])
    look = next(i for i, m in enumerate(task.gold_turns) if "status bar" in m.content)
    guesses = (
        gold_text("Please turn off the data saver."),
        gold_text("Please turn on mobile data."),
        gold_text("Please turn off the VPN."),
    )
    score, messages = play(task, Script(*task.gold_turns[:look], *guesses))
    assert messages[-2].content == "I cannot do that: the data saver is already off. It still does not work."
    assert score.reward == 0.0


def test_user_rejects_sim_replacement_when_sim_is_loose() -> None:
    task = next(t for t in tasks("calls") if user_call_names(t) == ["look_at_status_bar", "reseat_sim"])
    (number,) = task.setup["phones"]
    look = next(i for i, m in enumerate(task.gold_turns) if "status bar" in m.content)
    replace = gold_text(f"I will send you a new SIM card for line {number}. Do you confirm?")
    _, messages = play(task, Script(*task.gold_turns[: look + 1], replace, gold_call("replace_sim", number=number)))
    assert any("has not confirmed" in m.content for m in messages if m.role == "tool")
    damaged = next(t for t in tasks("calls", "medium") if has_call(t, "replace_sim"))
    assert "reseat_sim" in user_call_names(damaged)


def test_transfer_of_broken_phone_requires_all_steps() -> None:
    task = next(t for t in tasks("calls", "medium") if has_call(t, "transfer_to_human"))
    assert user_call_names(task) == ["look_at_status_bar", "restart", "reseat_sim"]
    assert play(task, GoldAgent())[0].reward == 1.0
    for left_out in ("restart", "SIM card out"):
        fewer = [m for m in task.gold_turns if left_out not in m.content]
        assert len(fewer) == len(task.gold_turns) - 1
        assert play(task, Script(*fewer))[0].parts["state_match"] == 0.0


def test_tools_refuse_calls_after_transfer() -> None:
    office = Office()
    office.do("transfer_to_human", summary="insurance")
    assert "has been transferred" in office.refusal("get_line", number=AMY)
    assert "has been transferred" in office.refusal("replace_sim", number=AMY)


def test_unnecessary_transfer_fails_state_match() -> None:
    for task in (find_refusal_task("suspend"), find_refusal_task("bill"), find_refusal_task("internet")):
        *before, last = task.gold_turns
        assert (
            play(task, Script(*before, gold_call("transfer_to_human", summary="no"), last))[0].parts["state_match"]
            == 0.0
        )


def test_partially_completed_task_earns_no_reward() -> None:
    task = next(t for t in tasks("several", "medium") if [c.name in READS for c in t.gold_calls][-1:] == [False])
    writes = [i for i, m in enumerate(task.gold_turns) if m.tool_calls and m.tool_calls[0].name not in READS]
    assert play(task, Script(*task.gold_turns[: writes[-1] - 1], gold_text("Done.")))[0].reward == 0.0


FULL_SERVICE = Connectivity("good", internet=True, fast=True)


def connectivity_of(
    place: str = "Denver", outage: str = "", line_fields: Any = (), **phone_fields: Any
) -> Connectivity:
    state = small_operator()
    fields = dict(line_fields)
    state.patch({"lines": {AMY: fields}, "phones": {AMY: {"place": place, **phone_fields}}})
    state.patch({"areas": {place: {"outage": outage}}})
    row = state.lines[AMY]
    return compute_connectivity(row, state.plans[row.plan], state.phones[AMY], state.areas[place])


@pytest.mark.parametrize(
    ("works", "expected"),
    [
        (connectivity_of(), FULL_SERVICE),
        (connectivity_of(airplane_mode=True, sim="loose"), Connectivity("airplane mode", internet=False, fast=False)),
        (connectivity_of(sim="damaged", radio="stuck"), Connectivity("no SIM", internet=False, fast=False)),
        (connectivity_of(radio="broken"), Connectivity("no service", internet=False, fast=False)),
        (
            connectivity_of(line_fields={"suspended": "long trip"}),
            Connectivity("no service", internet=False, fast=False),
        ),
        (connectivity_of(outage="network"), Connectivity("no service", internet=False, fast=False)),
        (connectivity_of(outage="internet"), Connectivity("good", internet=False, fast=False)),
        (connectivity_of(mobile_data=False), Connectivity("good", internet=False, fast=False)),
        (connectivity_of(apn="outdated"), Connectivity("good", internet=False, fast=False)),
        (connectivity_of(apn="company", roaming=True), FULL_SERVICE),
        (connectivity_of(data_saver=True), Connectivity("good", internet=True, fast=False)),
        (connectivity_of(vpn=True), Connectivity("good", internet=True, fast=False)),
        (connectivity_of(network_mode="3G only"), Connectivity("good", internet=True, fast=False)),
        (connectivity_of(line_fields={"data_used": "10.0"}), Connectivity("good", internet=True, fast=False)),
        (connectivity_of(line_fields={"data_used": "10.0", "data_added": "1.0"}), FULL_SERVICE),
        (connectivity_of("Spain"), Connectivity("good", internet=False, fast=False)),
        (connectivity_of("Spain", roaming=True), Connectivity("good", internet=False, fast=False)),
        (connectivity_of("Spain", line_fields={"roaming": True}), Connectivity("good", internet=False, fast=False)),
        (connectivity_of("Spain", line_fields={"roaming": True}, roaming=True), FULL_SERVICE),
    ],
)
def test_connectivity_depends_on_line_phone_and_area(works: Connectivity, expected: Connectivity) -> None:
    assert works == expected


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "full signal and 4G."),
        ({"network_mode": "3G only", "vpn": True}, "full signal, 3G and the VPN symbol."),
        ({"mobile_data": False, "data_saver": True}, "full signal, no internet symbol and the data saver symbol."),
        ({"airplane_mode": True}, "airplane mode."),
        ({"sim": "loose"}, "no SIM."),
        ({"radio": "broken"}, "no service."),
    ],
)
def test_phone_tools_report_connectivity(fields: dict[str, Any], shown: str) -> None:
    office = Office(phones={AMY: fields})
    assert office.phone("look_at_status_bar") == f"The status bar shows {shown}"
    works = connectivity_of(**fields)
    assert ("goes through" in office.phone("make_call")) == works.can_call
    assert ("opens" in office.phone("open_web_page").replace("No web page opens", "")) == works.internet
    assert ("60 Mbit/s" in office.phone("run_speed_test")) == works.fast


def test_phone_tools_change_settings_of_current_phone() -> None:
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
    with pytest.raises(ToolError, match="already the standard one"):
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
def test_reworded_instructions_are_recognized(text: str, tool: str) -> None:
    assert [action.call.name for action in UserToolExecutor(USER_ACTIONS, lambda call: "").find_instructed(text)] == [
        tool
    ]


def test_restart_and_reseat_fix_only_matching_faults() -> None:
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
    assert broken.state.phones[AMY].failed_steps == ("SIM card", "restart")


def test_phone_tools_refuse_without_current_phone() -> None:
    with pytest.raises(ToolError, match="no phone at hand"):
        Office(conversation={"now": {"number": ""}}).phone("restart")


def test_user_actions_match_phone_tools() -> None:
    names = {spec.name for spec in PhoneTools(small_operator()).specs()}
    assert {action.call.name for action in USER_ACTIONS} == names
    for action in USER_ACTIONS:
        try:
            Office().phone(action.call.name, **action.call.arguments)
        except ToolError as e:
            assert e.kind == "refused"  # noqa: PT017


def test_world_has_expected_size_and_splits() -> None:
    state = build_world()
    assert len(state.customers) == 400
    assert 700 < len(state.lines) < 900
    assert [len(GENERATOR.customer_keys(split)) for split in SPLITS] == [320, 40, 40]
    assert len({key for split in SPLITS for key in GENERATOR.customer_keys(split)}) == 400


@pytest.mark.parametrize(("table", "field"), [("lines", "lines"), ("bills", "bills"), ("tickets", "tickets")])
def test_world_references_are_valid(table: str, field: str) -> None:
    state = build_world()
    owners = Counter(key for owner in state.customers.values() for key in getattr(owner, field))
    assert owners == Counter(dict.fromkeys(state.tables()[table], 1))


def test_world_rows_are_consistent() -> None:
    state = build_world()
    assert set(state.phones) == set(state.lines)
    assert len({owner.birth_date for owner in state.customers.values()}) == 400
    for owner in state.customers.values():
        plans = [state.lines[number].plan for number in owner.lines]
        assert len(plans) == len(set(plans)), "a plan identifies a line"
        assert [state.bills[key].month for key in owner.bills] == list(MONTHS[-len(owner.bills) :])
        for key in owner.bills:
            texts = [item.text for item in state.bills[key].items]
            assert len(texts) == len(set(texts)), "a position identifies an amount"
            assert state.bills[key].total == sum((item.amount for item in state.bills[key].items), Decimal(0))
        assert {state.tickets[key].number for key in owner.tickets} <= set(owner.lines)
        for number in owner.lines:
            assert state.phones[number].place in owner.address
            works = compute_connectivity(
                state.lines[number], state.plans[state.lines[number].plan], state.phones[number], Area()
            )
            assert works == FULL_SERVICE


def test_tool_results_stay_short() -> None:
    """Count characters: a small model needs about one token for 2.4 characters."""
    tools = TelecomTools(state := build_world().fork())
    run: Callable[..., str] = lambda tool, **arguments: tools.call_sync(ToolCall(name=tool, arguments=arguments))  # noqa: E731
    for key in GENERATOR.customer_keys("train")[:50]:
        state.customer = key
        assert len(run("get_customer")) < 290
        assert all(len(run("get_line", number=number)) < 120 for number in state.customers[key].lines)
        assert all(len(run("get_bill", bill_id=bill)) < 330 for bill in state.customers[key].bills)
    assert len(run("list_plans")) < 340


class IdentifyThenRepeatAgent:
    """An agent that finds the customer by the first phone number it hears and then repeats the given turns."""

    def __init__(self, *plan: Message) -> None:
        self._plan = plan

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        number = re.search(r"555-\d{4}", " ".join(m.content for m in episode.messages if m.role == "user"))
        asks = gold_text("What is your phone number?")
        found = any(m.role == "tool" for m in episode.messages)
        said = sum(m.role == "assistant" for m in episode.messages) - 1
        reply = (
            self._plan[said % len(self._plan)]
            if found
            else gold_call("find_customer", number=number[0])
            if number
            else asks
        )
        episode.act(reply)
        return reply


@pytest.mark.parametrize(
    "agent",
    [
        Script(gold_call("transfer_to_human", summary="help"), gold_text("You are transferred to a human agent.")),
        Script(*[gold_text("I will do it. Do you confirm?"), gold_text("Done.")] * 4),
        IdentifyThenRepeatAgent(
            gold_text("I cannot do that: it is suspended, paid, ordered, or its contract has ended.")
        ),
        IdentifyThenRepeatAgent(*[gold_text("I will do it. Do you confirm?"), gold_text("Done. It works again.")]),
    ],
    ids=["transfers", "pretends", "refuses", "repairs nothing"],
)
def test_trivial_agents_earn_no_reward(agent: Agent) -> None:
    assert mean_reward(DOMAIN, agent, DOMAIN.sample("validation", 120, seed=5)) == 0.0


def test_always_transferring_earns_low_reward() -> None:
    """A transfer is right only where no tool can serve the request and after the user agrees."""
    agent = IdentifyThenRepeatAgent(
        gold_call("transfer_to_human", summary="help"), gold_text("You are transferred to a human agent.")
    )
    assert mean_reward(DOMAIN, agent, DOMAIN.sample("validation", 120, seed=5)) <= 1 / len(DOMAIN.families)


def test_guessing_phone_steps_earns_low_reward() -> None:
    """The agent tries all phone steps, the most likely first, without reading the status bar or the line."""
    guesses = (
        gold_text("Please restart your phone and turn off airplane mode."),
        gold_text("Please turn on mobile data and turn off the VPN."),
        gold_text("Please reset the access point and set the network mode to automatic."),
    )
    for difficulty, most in (("easy", 0.3), ("medium", 0.2), ("hard", 0.1)):
        part = DOMAIN.slice(Slice(families=TROUBLES, difficulties=(difficulty,)))  # type: ignore[arg-type]
        assert mean_reward(DOMAIN, IdentifyThenRepeatAgent(*guesses), part.sample("train", 80, seed=5)) < most


def test_opening_does_not_reveal_whether_request_is_granted() -> None:
    """The most predictive word of easy openings is nearly as frequent in granted as in refused requests."""
    families = ("suspend", "resume", "sim", "internet", "calls", "pay")
    drawn_tasks = [GENERATOR.make_task("train", 2, family, "easy", n) for family in families for n in range(200)]
    refused = [t for t in drawn_tasks if t.outputs]
    assert 0.22 < len(refused) / len(drawn_tasks) < 0.34
    assert_openings_do_not_reveal_refusal(drawn_tasks, [bool(t.outputs) for t in drawn_tasks], 0.15, 0.42)


def test_gold_chooses_cheapest_sufficient_plan() -> None:
    found = [t for t in tasks("plan", "medium", count=80) if "at least" in t.scenario.opening]
    assert len(found) > 5
    for task in found:
        if has_call(task, "change_plan"):
            wanted = int(re.findall(r"at least (\d+) GB", task.scenario.opening)[0])
            plan = next(c for c in task.gold_calls if c.name == "change_plan").arguments["plan"]
            enough = {name: Decimal(row[0]) for name, row in PLANS.items() if int(row[1]) >= wanted}
            assert enough[plan] == min(enough.values())


def test_user_recognizes_gold_instructions() -> None:
    """The actions recognized in a gold instruction are exactly the calls that the user makes next."""
    for family in TROUBLES:
        for task in tasks(family, "easy", "medium", "hard", count=100):
            hands = UserToolExecutor(task.scenario.user_actions, lambda call: "")
            for i, turn in enumerate(task.gold):
                if turn.role == "assistant" and not turn.tool_calls and "confirm" not in turn.content:
                    after = itertools.takewhile(lambda m: m.role == "user", task.gold[i + 1 :])
                    done = [c for m in after for c in m.tool_calls]
                    assert [action.call for action in hands.find_instructed(turn.content)] == done
