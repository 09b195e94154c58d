"""The telecom agent's tools. They act on the identified customer's data and reject what the policy forbids."""

import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Annotated, Literal

from pydantic import Field

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.domains.authoring.customer_toolkit import CustomerToolkit
from understudy.domains.authoring.money import Money
from understudy.domains.telecom.connectivity import compute_connectivity
from understudy.domains.telecom.state import (
    TODAY,
    Area,
    Bill,
    Customer,
    Gigabytes,
    Line,
    SuspendReason,
    TelecomState,
    Ticket,
    Topic,
)
from understudy.envs.calculator import evaluate_expression

MAX_SUSPENSION_DAYS = 90
"""The longest suspension of a line, in days."""
MAX_ADDED_GB = 10
"""The most GB that can be added to a line between two bills."""


class TelecomCustomerSummary(Record):
    """The customer who was found."""

    name: str
    lines: tuple[str, ...]


class LineView(Record):
    """A line as the agent sees it. Of the phone it only shows what the network sees."""

    plan: str
    contract_until: date
    suspended: str = ""
    suspended_until: date | None = None
    roaming: bool = False
    next_plan: str = ""
    new_sim: Literal["", "ordered"] = ""
    seen: Literal["yes", "no"]
    """Whether the phone is connected to the network."""


class PlanOffer(Record):
    """A plan in a list."""

    price: Money
    data: Gigabytes


class PlanView(PlanOffer):
    """A plan with the prices of extras."""

    extra_gb: Money
    roaming_day: Money | Literal["no roaming"]


class DataUsage(Record):
    """Data of a line since the last bill, in GB: included in the plan, added, used."""

    plan_data: Gigabytes
    added: Gigabytes
    used: Gigabytes


class BillView(Bill):
    """A bill with its total."""

    sum: Money


class TelecomActionResult(Record):
    """The result of a change."""

    status: str
    charge: Money | None = None
    until: date | None = None
    ticket: str = ""


class TelecomTools(CustomerToolkit[Customer]):
    """The tools of telecom support."""

    _state: TelecomState
    _found_by = "by a number or by name and date of birth"

    def find_customer(self, number: Annotated[str, "like 555-2368"]) -> TelecomCustomerSummary:
        """Find the customer by the phone number of any of their lines. Do this first."""
        number = _formatted(number)
        return self._identify(lambda customer: number in customer.lines, f"no customer has the number {number!r}")

    def find_customer_by_name(self, name: str, birth_date: Annotated[str, "like 1980-05-31"]) -> TelecomCustomerSummary:
        """Find the customer by full name and date of birth, if they do not know a number."""
        name, born = name.strip().casefold(), birth_date.strip()
        return self._identify(
            lambda customer: customer.name.casefold() == name and str(customer.birth_date) == born,
            f"no customer has the name {name!r} and the date of birth {born!r}",
        )

    def get_customer(self) -> Customer:
        """Get the customer's address, lines, bills and tickets."""
        return self._customer()

    def get_line(self, number: str) -> LineView:
        """Get one line: its plan, its status, and whether the network sees its phone."""
        number, line = self._line(number)
        self._read.add(f"line {number}")
        phone = self._state.phones[number]
        works = compute_connectivity(line, self._state.plans[line.plan], phone, self._state.areas[phone.place])
        shown = line.model_dump(exclude={"data_used", "data_added", "sim_ordered"})
        ordered: Literal["", "ordered"] = "ordered" if line.sim_ordered else ""
        return LineView(**shown, new_sim=ordered, seen="yes" if works.can_call else "no")

    def get_usage(self, number: str) -> DataUsage:
        """Get how much data a line has and has used since the last bill."""
        number, line = self._line(number)
        self._read.add(f"usage of {number}")
        return DataUsage(plan_data=self._state.plans[line.plan].data, added=line.data_added, used=line.data_used)

    def get_bill(self, bill_id: str) -> BillView:
        """Get one bill."""
        bill = self._bill(bill_id)
        self._read.add(f"bill {bill_id}")
        return BillView(**dict(bill), sum=bill.total)

    def get_ticket(self, ticket_id: str) -> Ticket:
        """Get one ticket."""
        return self._own("ticket", ticket_id, self._customer().tickets, self._state.tickets)

    def list_plans(self) -> dict[str, PlanOffer]:
        """List all plans with the price and GB per month."""
        self._customer()
        return {name: PlanOffer(price=plan.price, data=plan.data) for name, plan in self._state.plans.items()}

    def get_plan(self, plan: str) -> PlanView:
        """Get a plan: price and GB per month, price of an extra GB, price per day of roaming."""
        self._customer()
        row = self._state.plans[self._plan(plan)]
        return PlanView(**{**dict(row), "roaming_day": row.roaming_day or "no roaming"})

    def check_outage(self, area: Annotated[str, "a city or a country"]) -> Area | str:
        """Check whether there is an outage at the customer's location."""
        self._customer()
        row = self._state.areas.get(area.strip().title())
        if row is None:
            raise ToolError(f"unknown area {area!r}; give a city, or the country if abroad")
        return row if row.outage else "no outage"

    def send_payment_request(self, bill_id: str) -> TelecomActionResult:
        """Send the customer a request to pay a bill on their phone. Only one at a time."""
        bill = self._bill(bill_id)
        self._validate_read("bill", bill_id)
        if bill.status == "paid":
            raise ToolError(f"bill {bill_id} is already paid")
        waiting = next((key for key in self._customer().bills if self._state.bills[key].requested), None)
        if waiting:
            raise ToolError(f"the payment request for bill {waiting} is still open; only one at a time is allowed")
        self._state.bills[bill_id] = bill.replace(requested=True)
        return TelecomActionResult(status="payment request sent", charge=bill.total)

    def suspend_line(
        self, number: str, reason: SuspendReason, days: Annotated[int, Field(ge=1, le=MAX_SUSPENSION_DAYS)]
    ) -> TelecomActionResult:
        """Suspend a line for up to 90 days."""
        number, line = self._changeable(number)
        until = TODAY + timedelta(days=days)
        self._state.lines[number] = line.replace(suspended=reason, suspended_until=until)
        return TelecomActionResult(status="suspended", until=until)

    def resume_line(self, number: str) -> TelecomActionResult:
        """Resume a suspended line. No bill may be overdue."""
        number, line = self._current(number)
        if not line.suspended:
            raise ToolError(f"line {number} is not suspended")
        overdue = [key for key in self._customer().bills if self._state.bills[key].status == "overdue"]
        if overdue:
            raise ToolError(f"bill {', '.join(overdue)} is overdue and must be paid first")
        self._state.lines[number] = line.replace(suspended="", suspended_until=None)
        return TelecomActionResult(status="active")

    def change_plan(self, number: str, plan: str) -> TelecomActionResult:
        """Change a line's plan, starting with the next bill."""
        number, line = self._changeable(number)
        name = self._plan(plan)
        if line.next_plan:
            raise ToolError(f"line {number} is already set to change to {line.next_plan}")
        if name == line.plan:
            raise ToolError(f"line {number} already has the {name} plan")
        self._state.lines[number] = line.replace(next_plan=name)
        return TelecomActionResult(status=f"{name} starting with the next bill")

    def add_data(self, number: str, gb: Annotated[int, Field(ge=1, le=MAX_ADDED_GB)]) -> TelecomActionResult:
        """Add GB to a line until the next bill, at most 10 in total. Get its usage first."""
        number, line = self._changeable(number)
        self._validate_read("usage of", number)
        if line.data_added + gb > MAX_ADDED_GB:
            raise ToolError(f"{line.data_added} GB have already been added, and the limit is {MAX_ADDED_GB}")
        self._state.lines[number] = line.replace(data_added=line.data_added + gb)
        return TelecomActionResult(status="data added", charge=gb * self._state.plans[line.plan].extra_gb)

    def set_roaming(self, number: str, on: bool) -> TelecomActionResult:
        """Enable or disable roaming for a line, if its plan has roaming."""
        number, line = self._changeable(number)
        if on and self._state.plans[line.plan].roaming_day is None:
            raise ToolError(f"the {line.plan} plan has no roaming")
        if on == line.roaming:
            raise ToolError(f"roaming is already {'enabled' if on else 'disabled'} for line {number}")
        self._state.lines[number] = line.replace(roaming=on)
        return TelecomActionResult(status=f"roaming {'enabled' if on else 'disabled'}")

    def replace_sim(self, number: str) -> TelecomActionResult:
        """Send a new SIM card for a line to the customer's address."""
        number, line = self._changeable(number)
        if line.sim_ordered:
            raise ToolError(f"a new SIM card for line {number} has already been ordered")
        self._state.lines[number] = line.replace(sim_ordered=True)
        return TelecomActionResult(status="SIM card ordered")

    def open_ticket(self, number: str, topic: Topic) -> TelecomActionResult:
        """Open a ticket for a line, unless there is an unsolved one about the same topic."""
        number, _ = self._line(number)
        self._validate_read("line", number)
        for key in self._customer().tickets:
            ticket = self._state.tickets[key]
            if (ticket.number, ticket.topic) == (number, topic) and ticket.status != "solved":
                raise ToolError(f"ticket {key} about {topic} is {ticket.status}")
        key = f"T{100_000 + len(self._state.tickets)}"
        self._state.tickets[key] = Ticket(number=number, topic=topic, status="open")
        customer = self._customer()
        self._save_customer(customer.replace(tickets=(*customer.tickets, key)))
        return TelecomActionResult(status="open", ticket=key)

    def calculate(self, expression: Annotated[str, "like (12.50 + 30) * 2"]) -> str:
        """Calculate with numbers, + - * / and parentheses."""
        return evaluate_expression(expression)

    def transfer_to_human(self, summary: str) -> TelecomActionResult:
        """Transfer the customer to a human agent for what no tool or step on the phone can do. Your last call."""
        self._customer()
        self._state.transferred = True
        return TelecomActionResult(status="transferred")

    def _identify(self, fits: Callable[[Customer], bool], unknown: str) -> TelecomCustomerSummary:
        keys = (key for key, customer in self._state.customers.items() if fits(customer))
        customer = self._find(next(keys, ""), unknown)
        return TelecomCustomerSummary(name=customer.name, lines=customer.lines)

    def _line(self, number: str) -> tuple[str, Line]:
        """Return a line of the customer, and its number as in the database."""
        number = _formatted(number)
        return number, self._own("line", number, self._customer().lines, self._state.lines)

    def _bill(self, bill_id: str) -> Bill:
        return self._own("bill", bill_id, self._customer().bills, self._state.bills)

    def _plan(self, plan: str) -> str:
        name = plan.strip().title()
        if name not in self._state.plans:
            raise ToolError(f"there is no plan {plan!r}; the plans are {', '.join(self._state.plans)}")
        return name

    def _validate_read(self, kind: Literal["line", "usage of", "bill"], key: str) -> None:
        if f"{kind} {key}" not in self._read:
            raise ToolError(f"read {kind} {key} first")

    def _current(self, number: str) -> tuple[str, Line]:
        """Return a line that was read and is under contract."""
        number, line = self._line(number)
        self._validate_read("line", number)
        if line.contract_until < TODAY:
            raise ToolError(f"the contract of line {number} ended on {line.contract_until}")
        return number, line

    def _changeable(self, number: str) -> tuple[str, Line]:
        """Return a line that was read, is under contract and not suspended."""
        number, line = self._current(number)
        if line.suspended:
            raise ToolError(f"line {number} is suspended: {line.suspended}")
        return number, line


def _formatted(number: str) -> str:
    """Return a number as in the database: 555-2368, whatever separates its digits."""
    digits = re.sub(r"\D", "", number)
    return f"{digits[:3]}-{digits[3:]}" if len(digits) == 7 else number.strip()
