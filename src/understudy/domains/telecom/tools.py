"""What the desk can do. Every tool acts on the identified customer's own data, and refuses what the policy forbids."""

import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Annotated, Literal

from pydantic import Field

from understudy.domains.arithmetic import calculated
from understudy.domains.clerk import Clerk
from understudy.domains.money import Money
from understudy.domains.telecom.service import service
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
from understudy.errors import ToolError
from understudy.records import Record

MOST_DAYS = 90
"""How long a line can be suspended."""
MOST_DATA = 10
"""How many GB can be added to a line from bill to bill."""


class Found(Record):
    """Who was found."""

    name: str
    lines: tuple[str, ...]


class LineView(Record):
    """A line as the desk sees it, the phone's half through the network only."""

    plan: str
    contract_until: date
    suspended: str = ""
    suspended_until: date | None = None
    roaming: bool = False
    next_plan: str = ""
    new_sim: Literal["", "ordered"] = ""
    seen: Literal["yes", "no"]
    """Whether the network sees the phone."""


class Offer(Record):
    """A plan in short."""

    price: Money
    data: Gigabytes


class PlanView(Offer):
    """A plan, with prices of what is not in it."""

    extra_gb: Money
    roaming_day: Money | Literal["no roaming"]


class Usage(Record):
    """Data of a line since the last bill, in GB: what the plan holds, what was added, what is used."""

    plan_data: Gigabytes
    added: Gigabytes
    used: Gigabytes


class BillView(Bill):
    """A bill with its sum."""

    sum: Money


class Done(Record):
    """What a change has led to."""

    status: str
    charge: Money | None = None
    until: date | None = None
    ticket: str = ""


class TelecomTools(Clerk[Customer]):
    """The desk's tools."""

    _state: TelecomState
    _found_by = "by a number or by name and date of birth"

    def find_customer(self, number: Annotated[str, "like 555-2368"]) -> Found:
        """Find the customer by the phone number of any of their lines. Do this first."""
        number = _formatted(number)
        return self._identify(lambda customer: number in customer.lines, f"no customer has the number {number!r}")

    def find_customer_by_name(self, name: str, birth_date: Annotated[str, "like 1980-05-31"]) -> Found:
        """Find the customer by full name and date of birth, if they know no number."""
        name, born = name.strip().casefold(), birth_date.strip()
        return self._identify(
            lambda customer: customer.name.casefold() == name and str(customer.birth_date) == born,
            f"no customer has the name {name!r} and the date of birth {born!r}",
        )

    def get_customer(self) -> Customer:
        """Read the customer's address, lines, bills and tickets."""
        return self._customer()

    def get_line(self, number: str) -> LineView:
        """Read one line: its plan, its state, and whether the network sees its phone."""
        number, line = self._line(number)
        self._read.add(f"line {number}")
        phone = self._state.phones[number]
        works = service(line, self._state.plans[line.plan], phone, self._state.areas[phone.place])
        shown = line.model_dump(exclude={"data_used", "data_added", "sim_ordered"})
        ordered: Literal["", "ordered"] = "ordered" if line.sim_ordered else ""
        return LineView(**shown, new_sim=ordered, seen="yes" if works.calls else "no")

    def get_usage(self, number: str) -> Usage:
        """Read how much data a line has and has used since the last bill."""
        number, line = self._line(number)
        self._read.add(f"usage of {number}")
        return Usage(plan_data=self._state.plans[line.plan].data, added=line.data_added, used=line.data_used)

    def get_bill(self, bill_id: str) -> BillView:
        """Read one bill."""
        bill = self._bill(bill_id)
        self._read.add(f"bill {bill_id}")
        return BillView(**dict(bill), sum=bill.total)

    def get_ticket(self, ticket_id: str) -> Ticket:
        """Read one ticket."""
        return self._own("ticket", ticket_id, self._customer().tickets, self._state.tickets)

    def list_plans(self) -> dict[str, Offer]:
        """List all plans: price a month and GB a month."""
        self._customer()
        return {name: Offer(price=plan.price, data=plan.data) for name, plan in self._state.plans.items()}

    def get_plan(self, plan: str) -> PlanView:
        """Read a plan: price a month, GB a month, price of an extra GB, price of a day of roaming."""
        self._customer()
        found = self._state.plans[self._plan(plan)]
        return PlanView(**{**dict(found), "roaming_day": found.roaming_day or "no roaming"})

    def check_outage(self, area: Annotated[str, "a city or a country"]) -> Area | str:
        """Check whether there is an outage where the customer is."""
        self._customer()
        found = self._state.areas.get(area.strip().title())
        if found is None:
            raise ToolError(f"there is no area {area!r}; name a city, or the country abroad")
        return found if found.outage else "no outage"

    def send_payment_request(self, bill_id: str) -> Done:
        """Send the customer a request to pay a bill, which they pay on their phone. One at a time."""
        bill = self._bill(bill_id)
        self._need_read("bill", bill_id)
        if bill.status == "paid":
            raise ToolError(f"bill {bill_id} is paid already")
        waiting = next((key for key in self._customer().bills if self._state.bills[key].requested), None)
        if waiting:
            raise ToolError(f"the payment request for bill {waiting} is not paid yet; one at a time")
        self._state.bills[bill_id] = bill.replace(requested=True)
        return Done(status="payment request sent", charge=bill.total)

    def suspend_line(self, number: str, reason: SuspendReason, days: Annotated[int, Field(ge=1, le=MOST_DAYS)]) -> Done:
        """Suspend a line for some days, at most 90."""
        number, line = self._changeable(number)
        until = TODAY + timedelta(days=days)
        self._state.lines[number] = line.replace(suspended=reason, suspended_until=until)
        return Done(status="suspended", until=until)

    def resume_line(self, number: str) -> Done:
        """Resume a suspended line, once no bill is overdue."""
        number, line = self._current(number)
        if not line.suspended:
            raise ToolError(f"line {number} is not suspended")
        overdue = [key for key in self._customer().bills if self._state.bills[key].status == "overdue"]
        if overdue:
            raise ToolError(f"bill {', '.join(overdue)} is overdue and has to be paid first")
        self._state.lines[number] = line.replace(suspended="", suspended_until=None)
        return Done(status="active")

    def change_plan(self, number: str, plan: str) -> Done:
        """Change a line's plan from the next bill on."""
        number, line = self._changeable(number)
        name = self._plan(plan)
        if line.next_plan:
            raise ToolError(f"line {number} changes to {line.next_plan} already")
        if name == line.plan:
            raise ToolError(f"line {number} has the {name} plan already")
        self._state.lines[number] = line.replace(next_plan=name)
        return Done(status=f"{name} from the next bill on")

    def add_data(self, number: str, gb: Annotated[int, Field(ge=1, le=MOST_DATA)]) -> Done:
        """Add GB to a line until the next bill, at most 10 in all. Read its usage first."""
        number, line = self._changeable(number)
        self._need_read("usage of", number)
        if line.data_added + gb > MOST_DATA:
            raise ToolError(f"{line.data_added} GB are added already, and at most {MOST_DATA} can be")
        self._state.lines[number] = line.replace(data_added=line.data_added + gb)
        return Done(status="data added", charge=gb * self._state.plans[line.plan].extra_gb)

    def set_roaming(self, number: str, on: bool) -> Done:
        """Enable or disable roaming for a line, if its plan has roaming."""
        number, line = self._changeable(number)
        if on and self._state.plans[line.plan].roaming_day is None:
            raise ToolError(f"the {line.plan} plan has no roaming")
        if on == line.roaming:
            raise ToolError(f"roaming is {'enabled' if on else 'disabled'} already for line {number}")
        self._state.lines[number] = line.replace(roaming=on)
        return Done(status=f"roaming {'enabled' if on else 'disabled'}")

    def replace_sim(self, number: str) -> Done:
        """Send a new SIM card for a line to the customer's address."""
        number, line = self._changeable(number)
        if line.sim_ordered:
            raise ToolError(f"a new SIM card for line {number} is ordered already")
        self._state.lines[number] = line.replace(sim_ordered=True)
        return Done(status="SIM card ordered")

    def open_ticket(self, number: str, topic: Topic) -> Done:
        """Open a ticket about a line, unless one is open on the same topic."""
        number, _ = self._line(number)
        self._need_read("line", number)
        for key in self._customer().tickets:
            ticket = self._state.tickets[key]
            if (ticket.number, ticket.topic) == (number, topic) and ticket.status != "solved":
                raise ToolError(f"ticket {key} on {topic} is {ticket.status}")
        key = f"T{100_000 + len(self._state.tickets)}"
        self._state.tickets[key] = Ticket(number=number, topic=topic, status="open")
        customer = self._customer()
        self._save_customer(customer.replace(tickets=(*customer.tickets, key)))
        return Done(status="open", ticket=key)

    def calculate(self, expression: Annotated[str, "like (12.50 + 30) * 2"]) -> str:
        """Calculate with numbers, + - * / and brackets."""
        return calculated(expression)

    def transfer_to_human(self, summary: str) -> Done:
        """Hand over to a human agent, for what no tool and no step at the phone can do. This is your last call."""
        self._customer()
        self._state.transferred = True
        return Done(status="transferred")

    def _identify(self, fits: Callable[[Customer], bool], unknown: str) -> Found:
        found = (key for key, customer in self._state.customers.items() if fits(customer))
        customer = self._find(next(found, ""), unknown)
        return Found(name=customer.name, lines=customer.lines)

    def _line(self, number: str) -> tuple[str, Line]:
        """A line of the customer, and its number as the database writes it."""
        number = _formatted(number)
        return number, self._own("line", number, self._customer().lines, self._state.lines)

    def _bill(self, bill_id: str) -> Bill:
        return self._own("bill", bill_id, self._customer().bills, self._state.bills)

    def _plan(self, plan: str) -> str:
        name = plan.strip().title()
        if name not in self._state.plans:
            raise ToolError(f"there is no plan {plan!r}; the plans are {', '.join(self._state.plans)}")
        return name

    def _need_read(self, kind: Literal["line", "usage of", "bill"], key: str) -> None:
        if f"{kind} {key}" not in self._read:
            raise ToolError(f"read {kind} {key} first")

    def _current(self, number: str) -> tuple[str, Line]:
        """A line that was read and whose contract has not ended."""
        number, line = self._line(number)
        self._need_read("line", number)
        if line.contract_until < TODAY:
            raise ToolError(f"the contract of line {number} has ended on {line.contract_until}")
        return number, line

    def _changeable(self, number: str) -> tuple[str, Line]:
        """A line that was read, is under contract, and active."""
        number, line = self._current(number)
        if line.suspended:
            raise ToolError(f"line {number} is suspended: {line.suspended}")
        return number, line


def _formatted(number: str) -> str:
    """A number as the database writes it: 555-2368, whatever stands between its digits."""
    digits = re.sub(r"\D", "", number)
    return f"{digits[:3]}-{digits[3:]}" if len(digits) == 7 else number.strip()
