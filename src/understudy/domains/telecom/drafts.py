"""What is drawn for one telecom task: the customer, and lines and bills as the customer and the agent call them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from understudy.domains import drafts
from understudy.domains.drafts import call, say
from understudy.domains.telecom import phrases
from understudy.domains.telecom.state import Bill, Customer, Plan, TelecomState
from understudy.messages import Message
from understudy.tasks import Fact

Identity = Literal["opened", "asked", "name"]
"""How the user is identified: by a number in the opening, by a number when asked, by name and date of birth."""


@dataclass(frozen=True)
class Caller:
    """Who calls: how they are identified, and the number of the line that they call from."""

    identity: Identity
    number: str


Knowledge = Literal["told", "asked", "described", "vague", "wrong"]
"""What the user says of the line or bill: its number at once, its number when asked, what tells it (a line's plan, a
bill's month) at once, that when asked, or another line's number first."""

LINE = ("which line", "what line", "which of your", "which number", "number of the line", "line is it", "line do you")
BILL = ("which bill", "what bill", "bill is it", "bill number", "which month")


@dataclass(frozen=True)
class LineRef(drafts.Mention):
    """A line as the user and the agent call it."""

    number: str
    plan: str
    knows: Knowledge
    wrong: str = ""
    """Number of the other line that is named first."""

    @property
    def by_number(self) -> bool:
        """Whether the user knows the number."""
        return self.knows in ("told", "asked", "wrong")

    @property
    def named(self) -> str:
        """As the agent calls it in a proposal: so that the user can tell it is the right one."""
        return f"line {self.number}" + ("" if self.by_number else f" with the {self.plan} plan")

    @property
    def names(self) -> tuple[str, ...]:
        """What a proposal has to name for the user to recognize the line."""
        return (spelled(self.number),) if self.by_number else (self.plan,)

    def reads(self, draft: "Draft", read: set[str]) -> Iterator[Message]:
        """Read lines until it is the right one."""
        if self.wrong:
            yield from _read("get_line", "number", self.wrong, read)
            yield say(f"Line {self.wrong} does not have the {self.plan} plan. Which line is it?")
        searched = (self.number,) if self.by_number else draft.customer.lines
        for number in searched[: searched.index(self.number) + 1]:
            yield from _read("get_line", "number", number, read)


@dataclass(frozen=True)
class BillRef(drafts.Mention):
    """A bill as the user and the agent call it."""

    bill_id: str
    bill: Bill
    knows: Knowledge

    @property
    def named(self) -> str:
        """As the agent calls it in a proposal."""
        return f"bill {self.bill_id}" + ("" if self.knows == "told" else f" of {self.bill.month}")

    @property
    def names(self) -> tuple[str, ...]:
        """What a proposal has to name for the user to recognize the bill."""
        return (self.bill_id if self.knows == "told" else self.bill.month,)

    def reads(self, draft: "Draft", read: set[str]) -> Iterator[Message]:
        """Read bills, the newest first, until it is the right one."""
        if self.knows == "told":
            yield from _read("get_bill", "bill_id", self.bill_id, read)
            return
        yield from _account(read)
        bills = draft.customer.bills[::-1]
        for bill_id in bills[: bills.index(self.bill_id) + 1]:
            yield from _read("get_bill", "bill_id", bill_id, read)


@dataclass(frozen=True)
class Trouble(drafts.Mention):
    """A phone on which something does not work, its line, and whether the user has to be asked where it is."""

    ref: LineRef
    asks_place: bool
    mended: bool = False
    """Whether it works in the end."""

    def reads(self, draft: "Draft", read: set[str]) -> Iterator[Message]:
        """The line first."""
        yield from self.ref.reads(draft, read)


@dataclass
class Draft(drafts.Draft):
    """One task's draws."""

    world: TelecomState
    key: str

    @property
    def customer(self) -> Customer:
        """The customer."""
        return self.world.customers[self.key]

    def lines(self) -> list[str]:
        """The customer's lines in random order."""
        return self.random.sample(self.customer.lines, len(self.customer.lines))

    def plan_of(self, number: str) -> str:
        """The name of a line's plan, after what the setup has changed."""
        changed = self.setup.get("lines", {}).get(number, {}).get("plan")
        return str(changed or self.world.lines[number].plan)

    def terms(self, number: str) -> Plan:
        """A line's plan."""
        return self.world.plans[self.plan_of(number)]

    def line(self, number: str, **fields: object) -> None:
        """Change a line before the talk."""
        self.patch("lines", number, **fields)

    def line_ref(self, number: str, knows: Knowledge) -> LineRef:
        """The line with what the user knows of it."""
        others = [other for other in self.customer.lines if other != number]
        if knows == "wrong" and not others:
            knows = "asked"
        plan, facts = self.plan_of(number), (self._asked(number, knows),)
        if knows == "wrong":
            wrong = self.random.choice(others)
            said = f"line {wrong} with the {plan} plan"
            return LineRef("line", said, f"line {number}", number, plan, knows, wrong, facts=facts)
        described = self.pick(phrases.DESCRIBED, plan=plan)
        said = {"told": f"line {number}", "described": described}.get(knows) or self.pick(phrases.VAGUE)
        known = f"line {number}" if knows in ("told", "asked") else described
        return LineRef("line", said, known, number, plan, knows, facts=facts)

    def bill_ref(self, bill_id: str, knows: Knowledge) -> BillRef:
        """The bill: by its number if it is told at once, else by its month."""
        bill = self.world.bills[bill_id]
        told = knows == "told"
        said = f"bill {bill_id}" if told else self.pick(phrases.OF_MONTH, month=bill.month)
        says = f"It is bill {bill_id}." if told else f"The one of {bill.month}."
        facts = (Fact(says=says, cues=BILL, opened=True),)
        return BillRef("bill", said, said, bill_id, bill, "told" if told else "described", facts=facts)

    def _asked(self, number: str, knows: Knowledge) -> Fact:
        """What the user says when asked for the line."""
        if knows in ("described", "vague"):
            return Fact(says=self.pick(phrases.NO_NUMBER, plan=self.plan_of(number)), cues=LINE)
        texts = phrases.MISTAKEN if knows == "wrong" else phrases.NUMBER_OF_LINE
        return Fact(says=self.pick(texts, number=number), cues=LINE, opened=knows == "told")


def spelled(number: str) -> str:
    """A number as it may be written."""
    return f"{number}|{number.replace('-', '')}|{number.replace('-', ' ')}"


def _read(tool: str, argument: str, key: str, read: set[str]) -> Iterator[Message]:
    if key not in read:
        read.add(key)
        yield call(tool, **{argument: key})


def _account(read: set[str]) -> Iterator[Message]:
    if "account" not in read:
        read.add("account")
        yield call("get_customer")
