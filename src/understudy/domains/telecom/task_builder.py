"""The random draws of one telecom task: the customer, and lines and bills as customer and agent refer to them."""

from dataclasses import dataclass

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring import task_builder
from understudy.domains.authoring.identification import IdentificationMode, Knowledge, entity_lookup
from understudy.domains.authoring.request import Draw
from understudy.domains.telecom.state import Bill, Customer, Plan, TelecomState
from understudy.envs.gold import gold_call, gold_text


@dataclass(frozen=True)
class Caller:
    """The caller: how they are identified, and the line that they contact the operator from."""

    identification: IdentificationMode
    number: str


LINE_CUES = (
    "which line", "what line", "which of your", "which number", "number of the line", "line is it", "line do you",
)  # fmt: skip
BILL_CUES = ("which bill", "what bill", "bill is it", "bill number", "which month")


@dataclass(frozen=True)
class LineMention(task_builder.NumberedMention):
    """A line as user and agent refer to it."""

    number: str
    plan: str
    wrong_number: str = ""
    """The number of another line, given first by mistake."""

    @property
    def number_in_opening(self) -> str:
        """The number that the first message tells, which identifies the customer too, or ""."""
        return self.wrong_number or (self.number if self.knowledge == "told" else "")

    @property
    def proposal_phrase(self) -> str:
        """The agent's words for the line in a proposal, by which the user recognizes it."""
        return f"line {self.number}" + ("" if self.by_number else f" with the {self.plan} plan")

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a proposal must contain for the user to recognize the line."""
        return (number_variants(self.number),) if self.by_number else (self.plan,)


@dataclass(frozen=True)
class BillMention(task_builder.EntityMention):
    """A bill as user and agent refer to it."""

    bill_id: str
    bill: Bill
    knowledge: Knowledge

    @property
    def proposal_phrase(self) -> str:
        """The agent's words for the bill in a proposal."""
        return f"bill {self.bill_id}" + ("" if self.knowledge == "told" else f" for {self.bill.month}")

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a proposal must contain for the user to recognize the bill."""
        return (self.bill_id if self.knowledge == "told" else self.bill.month,)


@dataclass(frozen=True)
class FaultMention(task_builder.EntityMention):
    """A faulty phone, its line, and whether the agent must ask for its location."""

    line: LineMention
    asks_location: bool
    repaired: bool = False
    """Whether the phone works at the end."""


@dataclass
class TelecomTaskBuilder(task_builder.TaskBuilder):
    """The random draws of one task."""

    world: TelecomState
    key: str

    @property
    def customer(self) -> Customer:
        """The customer."""
        return self.world.customers[self.key]

    def lines(self) -> list[str]:
        """Return the customer's lines in random order."""
        return self.rng.sample(self.customer.lines, len(self.customer.lines))

    def plan_name(self, number: str) -> str:
        """Return the name of a line's plan, including changes by the setup."""
        changed = self.setup.get("lines", {}).get(number, {}).get("plan")
        return str(changed or self.world.lines[number].plan)

    def plan_terms(self, number: str) -> Plan:
        """Return a line's plan."""
        return self.world.plans[self.plan_name(number)]

    def set_line(self, number: str, **fields: object) -> None:
        """Change a line before the conversation."""
        self.patch("lines", number, **fields)

    def line_mention(self, draw: Draw[str]) -> LineMention:
        """Return the line as the user refers to it."""
        number, knowledge = draw.entity, draw.knowledge
        others = [other for other in self.customer.lines if other != number]
        if knowledge == "wrong" and not others:
            knowledge = "asked"
        plan = self.plan_name(number)
        fact = self.entity_fact(knowledge, LINE_CUES, "number_of_line", "no_number", number=number, plan=plan)
        wrong, doubt = "", tuple[Message, ...]()
        if knowledge == "wrong":
            wrong = self.rng.choice(others)
            said, known = f"line {wrong} with the {plan} plan", f"line {number}"
            doubt = (_line(wrong), gold_text(f"Line {wrong} does not have the {plan} plan. Which line is it?"))
        else:
            described = self.phrase("described", plan=plan)
            said = {"told": f"line {number}", "described": described}.get(knowledge) or self.phrase("vague")
            known = f"line {number}" if knowledge in ("told", "asked") else described
        reads = entity_lookup(_line, self.customer.lines, number, knowledge, *doubt)
        return LineMention(
            "line", said, known, number, plan, wrong, knowledge=knowledge, facts=(fact,), lookup_turns=reads
        )

    def bill_mention(self, bill_id: str, knowledge: Knowledge) -> BillMention:
        """Return the bill as the user refers to it: by number if `knowledge` is "told", else by month."""
        bill, newest_first = self.world.bills[bill_id], self.customer.bills[::-1]
        if knowledge == "told":
            said, says = f"bill {bill_id}", self.phrase("bill_number", id=bill_id)
            reads = entity_lookup(_bill, newest_first, bill_id, "told")
        else:
            said, says = self.phrase("of_month", month=bill.month), self.phrase("bill_month", month=bill.month)
            reads = (gold_call("get_customer"), *entity_lookup(_bill, newest_first, bill_id, "described"))
        facts = (Fact(text=says, keywords=BILL_CUES, in_opening=True),)
        return BillMention("bill", said, said, bill_id, bill, knowledge, facts=facts, lookup_turns=reads)


def number_variants(number: str) -> str:
    """Return the accepted spellings of a number."""
    return f"{number}|{number.replace('-', '')}|{number.replace('-', ' ')}"


def _line(number: str) -> Message:
    return gold_call("get_line", number=number)


def _bill(bill_id: str) -> Message:
    return gold_call("get_bill", bill_id=bill_id)
