"""What is drawn for one telecom task: the customer, and lines and bills as the customer and the agent call them."""

from dataclasses import dataclass

from understudy.domains import drafts
from understudy.domains.callers import BY_NUMBER, Identity, Knowledge, search
from understudy.domains.drafts import call, say
from understudy.domains.telecom import phrases
from understudy.domains.telecom.state import Bill, Customer, Plan, TelecomState
from understudy.messages import Message
from understudy.tasks import Fact


@dataclass(frozen=True)
class Caller:
    """Who calls: how they are identified, and the number of the line that they call from."""

    identity: Identity
    number: str


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
        return self.knows in BY_NUMBER

    @property
    def named(self) -> str:
        """As the agent calls it in a proposal: so that the user can tell it is the right one."""
        return f"line {self.number}" + ("" if self.by_number else f" with the {self.plan} plan")

    @property
    def names(self) -> tuple[str, ...]:
        """What a proposal has to name for the user to recognize the line."""
        return (spelled(self.number),) if self.by_number else (self.plan,)


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


@dataclass(frozen=True)
class Trouble(drafts.Mention):
    """A phone on which something does not work, its line, and whether the user has to be asked where it is."""

    ref: LineRef
    asks_place: bool
    mended: bool = False
    """Whether it works in the end."""


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
            doubt = (_line(wrong), say(f"Line {wrong} does not have the {plan} plan. Which line is it?"))
            reads = search(_line, self.customer.lines, number, knows, *doubt)
            return LineRef("line", said, f"line {number}", number, plan, knows, wrong, facts=facts, reads=reads)
        described = self.pick(phrases.DESCRIBED, plan=plan)
        said = {"told": f"line {number}", "described": described}.get(knows) or self.pick(phrases.VAGUE)
        known = f"line {number}" if knows in ("told", "asked") else described
        reads = search(_line, self.customer.lines, number, knows)
        return LineRef("line", said, known, number, plan, knows, facts=facts, reads=reads)

    def bill_ref(self, bill_id: str, knows: Knowledge) -> BillRef:
        """The bill: by its number if it is told at once, else by its month."""
        bill = self.world.bills[bill_id]
        told, newest_first = knows == "told", self.customer.bills[::-1]
        said = f"bill {bill_id}" if told else self.pick(phrases.OF_MONTH, month=bill.month)
        says = f"It is bill {bill_id}." if told else f"The one of {bill.month}."
        facts = (Fact(says=says, cues=BILL, opened=True),)
        knows = "told" if told else "described"
        reads = (*(() if told else (call("get_customer"),)), *search(_bill, newest_first, bill_id, knows))
        return BillRef("bill", said, said, bill_id, bill, knows, facts=facts, reads=reads)

    def _asked(self, number: str, knows: Knowledge) -> Fact:
        """What the user says when asked for the line."""
        if knows in ("described", "vague"):
            return Fact(says=self.pick(phrases.NO_NUMBER, plan=self.plan_of(number)), cues=LINE)
        texts = phrases.MISTAKEN if knows == "wrong" else phrases.NUMBER_OF_LINE
        return Fact(says=self.pick(texts, number=number), cues=LINE, opened=knows == "told")


def spelled(number: str) -> str:
    """A number as it may be written."""
    return f"{number}|{number.replace('-', '')}|{number.replace('-', ' ')}"


def _line(number: str) -> Message:
    return call("get_line", number=number)


def _bill(bill_id: str) -> Message:
    return call("get_bill", bill_id=bill_id)
