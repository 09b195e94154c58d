"""The requests that a customer can have about lines, bills and tickets: what is said, what is drawn, and gold's turns.

`ok` says whether the request can be granted. If not, the opening looks the same; only reading tells.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Protocol, get_args

from understudy.domains.callers import Knowledge
from understudy.domains.days import any_day
from understudy.domains.drafts import Want, call, change, instruct, propose, say
from understudy.domains.talks import MIND
from understudy.domains.telecom import phone, phrases
from understudy.domains.telecom.drafts import BILL, Draft, LineRef
from understudy.domains.telecom.state import TODAY, SuspendReason, Topic
from understudy.domains.telecom.tools import MOST_DATA, MOST_DAYS
from understudy.domains.telecom.world import COUNTRIES, PLANS, TOPICS
from understudy.messages import Message
from understudy.tasks import Fact

SUSPEND = "suspend|suspended|suspending|suspension|block|blocked|pause"
RESUME = "resume|resumed|resuming|reactivate|reactivated|unsuspend|unblock|activate"
REQUEST = "request|pay|payment"
SIM_CARD, NEW = "sim|sim card", "new|replace|replacement|another"
HOW_MANY = ("how many", "how much", "gb do you", "amount of data")
_WHY, _DAYS = ("why", "reason"), ("how long", "how many days", "days", "until when")


class MakeWant(Protocol):
    """Draws one request about a line."""

    def __call__(self, draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
        """`easy` leaves nothing about the request itself unsaid."""


def suspend(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Suspend a line; where it cannot be, sometimes because it would be for too long."""
    ref, reason = draft.line_ref(number, knows), draft.random.choice(get_args(SuspendReason))
    long = not ok and not easy and draft.likely(0.4)
    days = draft.random.choice((120, 150, 180, 365) if long else (7, 14, 21, 30, 45, 60, 90))
    told, says = easy or draft.likely(0.5), draft.pick(phrases.DAYS, days=f"{days}")
    why = draft.pick(phrases.WHY[reason])
    text = f"{draft.pick(phrases.SUSPEND)} {why}{f' {says}' if told else ''}"
    facts = (Fact(says=says, cues=_DAYS, opened=told), Fact(says=why, cues=_WHY, opened=True))
    want = Want(text, ref, names=(*ref.names, SUSPEND, f"{days}"), facts=facts)
    asks = () if told else (say("For how many days?"),)
    if long:
        refusal = f"A line can be suspended for at most {MOST_DAYS} days, so I cannot suspend it for {days}."
        return _refused(draft, want, asks, refusal, f"{MOST_DAYS}", easy)
    if not ok:
        return _barred(draft, want, number, "suspend it", easy)
    do = call("suspend_line", number=number, reason=reason, days=days)
    proposal = f"suspend {ref.named} for {days} days, reason: {reason}"
    return replace(want, turns=asks + change(proposal, do, "The line is suspended."))


def resume(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Resume a line that the customer had suspended, or one that was suspended for an overdue bill."""
    ref = draft.line_ref(number, knows)
    want = Want(draft.pick(phrases.RESUME), ref, names=(*ref.names, RESUME), deeds=(phone.PAY,))
    if not ok:
        draft.line(number, suspended=draft.random.choice(get_args(SuspendReason)))
        return _ended(draft, want, number, "resume it", easy)
    do = change(f"resume {ref.named}", call("resume_line", number=number), "The line is active.")
    if draft.likely(0.5):
        draft.line(number, suspended=draft.random.choice(get_args(SuspendReason)))
        return replace(want, turns=do)
    pays, agrees = overdue(draft, number)
    return replace(want, turns=(*pays, *do), agrees=agrees)


def overdue(draft: Draft, number: str) -> tuple[tuple[Message, ...], tuple[tuple[str, ...], ...]]:
    """Suspend a line for an overdue bill: the turns that find it and have it paid, and what the user agrees to."""
    bill_id = draft.random.choice(draft.customer.bills)
    draft.line(number, suspended="overdue bill")
    draft.patch("bills", bill_id, status="overdue")
    bills = draft.customer.bills[::-1]
    reads = [call("get_bill", bill_id=key) for key in bills[: bills.index(bill_id) + 1]]
    turns = (call("get_customer"), *reads, *request(draft, bill_id, f"bill {bill_id}"))
    return turns, ((REQUEST, bill_id),)


def request(draft: Draft, bill_id: str, named: str) -> Iterator[Message]:
    """Have a bill paid."""
    total = draft.world.bills[bill_id].total
    yield propose(f"send you a payment request for {named} of {total}")
    yield call("send_payment_request", bill_id=bill_id)
    yield from instruct("Done. Please pay the request on your phone.", phone.PAY)


def plan(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Change a line's plan; or, not as easy, to the cheapest one with so much data."""
    current = draft.plan_of(number)
    target = draft.random.choice([name for name in PLANS if name != current])
    text, read = draft.pick(phrases.PLAN, plan=target), call("get_plan", plan=target)
    if not easy and (bigger := _bigger(draft, number)) and draft.likely(0.6):
        target, text, read = bigger[0], draft.pick(phrases.CHEAPEST, data=bigger[1]), call("list_plans")
    ref = draft.line_ref(number, knows)
    want = _planned(draft, Want(text, ref, (read,)), ref, target)
    if ok:
        return want
    if draft.likely(0.6):
        return _barred(draft, want, number, "change its plan", easy)
    waiting = draft.random.choice([name for name in PLANS if name not in (current, target)])
    draft.line(number, next_plan=waiting)
    refusal = f"Line {number} changes to the {waiting} plan already, so I cannot change it to another."
    return _refused(draft, want, (), refusal, waiting, easy)


def data(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Buy more data for a line."""
    ref, gb, vague = draft.line_ref(number, knows), draft.random.randint(2, 6), not easy and draft.likely(0.4)
    text = draft.pick(phrases.MORE_DATA_VAGUE) if vague else draft.pick(phrases.MORE_DATA, gb=f"{gb}")
    facts = (Fact(says=draft.pick(phrases.HOW_MANY, gb=f"{gb}"), cues=HOW_MANY, opened=not vague),)
    price, asks = gb * draft.terms(number).extra_gb, (say("How many GB do you want?"),) if vague else ()
    want = Want(text, ref, names=(*ref.names, f"{gb}", f"{price}"), facts=facts, turns=asks)
    if not ok and draft.likely(0.4):
        return _barred(draft, want, number, "add data", easy)
    added = draft.random.randint(MOST_DATA + 1 - gb, MOST_DATA) if not ok else 0
    draft.line(number, data_added=f"{added}.0")
    if not ok:
        refusal = f"{added} GB are added already and at most {MOST_DATA} can be, so I cannot add {gb}."
        return _refused(draft, want, (*asks, call("get_usage", number=number)), refusal, f"{added}", easy)
    return replace(want, turns=(*asks, call("get_usage", number=number), *buys(draft, number, ref.named, gb)))


def buys(draft: Draft, number: str, named: str, gb: int) -> Iterator[Message]:
    """Sell a line more data."""
    extra = draft.terms(number).extra_gb
    yield call("get_plan", plan=draft.plan_of(number))
    yield call("calculate", expression=f"{gb} * {extra}")
    do = call("add_data", number=number, gb=gb)
    yield from change(f"add {gb} GB to {named} for {gb * extra}", do, "The data is added.")


def usage(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask how much data is used; or, not as easy, how much is left."""
    ref, plan_data = draft.line_ref(number, knows), draft.terms(number).data
    used = plan_data * draft.random.randint(10, 99) / 100
    used, added = used.quantize(Decimal("0.1")), draft.random.choice((0, 0, 1, 2, 3))
    draft.line(number, data_used=f"{used}", data_added=f"{added}.0")
    read = call("get_usage", number=number)
    if easy:
        answer = say(f"You have used {used} GB on line {number}.")
        return Want(draft.pick(phrases.USED), ref, (read, answer), "number", outputs=(f"{used}",))
    left = f"{plan_data + added - used:.1f}"
    turns = (
        read,
        call("calculate", expression=f"{plan_data} + {added}.0 - {used}"),
        say(f"You have {left} GB left on line {number}."),
    )
    return Want(draft.pick(phrases.LEFT), ref, turns, "number", outputs=(left,))


def roaming(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Enable roaming for a line."""
    if ok:
        with_roaming(draft, number)
    without = not ok and not others_have(draft, number, "Start") and draft.likely(0.5)
    if without:
        draft.line(number, plan="Start")
    ref, text = draft.line_ref(number, knows), draft.pick(phrases.ROAMING, country=draft.random.choice(COUNTRIES))
    want = Want(text, ref, names=(*ref.names, "roaming", f"{draft.terms(number).roaming_day}"))
    if without:
        refusal = "The Start plan has no roaming, so I cannot enable it."
        return _refused(draft, want, (call("get_plan", plan="Start"),), refusal, "Start", easy)
    if not ok:
        return _barred(draft, want, number, "enable roaming", easy)
    return replace(want, turns=tuple(roams(draft, number, ref.named)))


def with_roaming(draft: Draft, number: str) -> None:
    """Put a line on a plan that has roaming."""
    if draft.terms(number).roaming_day is None:
        free = [name for name, row in PLANS.items() if row[3] and not others_have(draft, number, name)]
        draft.line(number, plan=draft.random.choice(free))


def roams(draft: Draft, number: str, named: str) -> Iterator[Message]:
    """Enable a line's roaming."""
    yield call("get_plan", plan=draft.plan_of(number))
    do = call("set_roaming", number=number, on=True)
    proposal = f"enable roaming for {named}, at {draft.terms(number).roaming_day} a day"
    yield from change(proposal, do, "Roaming is enabled for your line.")


def sim(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Get a new SIM card for a line."""
    ref = draft.line_ref(number, knows)
    want = Want(draft.pick(phrases.SIM), ref, names=(*ref.names, SIM_CARD))
    if ok:
        do = call("replace_sim", number=number)
        return replace(want, turns=change(f"send you a new SIM card for {ref.named}", do, "It is on its way."))
    if draft.likely(0.5):
        return _barred(draft, want, number, "send a SIM card", easy)
    draft.line(number, sim_ordered=True)
    refusal = f"A new SIM card for line {number} is ordered already, so I cannot send another."
    return _refused(draft, want, (), refusal, "ordered", easy)


def report(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Have a ticket opened, unless there is one already."""
    ref, topic = draft.line_ref(number, knows), draft.random.choice(TOPICS)
    text = f"{draft.pick(phrases.REPORT[topic])} {draft.pick(phrases.LOOK_INTO)}"
    key = _ticket(draft, number, topic, "solved" if ok else draft.random.choice(("open", "in progress")))
    want = Want(text, ref, names=(*ref.names, "ticket"))
    reads = (call("get_customer"), call("get_ticket", ticket_id=key))
    if not ok:
        refusal = f"Ticket {key} on {topic} is not solved yet, so I cannot open another one."
        return _refused(draft, want, reads, refusal, key, easy)
    do = call("open_ticket", number=number, topic=topic)
    return replace(want, turns=reads + change(f"open a ticket on {topic} for {ref.named}", do, "The ticket is open."))


def progress(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask about a ticket."""
    topic, status = draft.random.choice(TOPICS), draft.random.choice(("open", "in progress", "solved"))
    key = _ticket(draft, number, topic, status)
    turns = (call("get_customer"), call("get_ticket", ticket_id=key), say(f"Ticket {key} on {topic} is {status}."))
    return Want(draft.pick(phrases.PROGRESS, topic=topic), turns=turns, kind="text", outputs=(status,))


def bill(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask what a bill comes to, or one position of it; or, not as easy, the difference between two bills."""
    bill_id, other = draft.random.sample(draft.customer.bills, 2)
    ref = draft.bill_ref(bill_id, knows)
    if not easy and draft.likely(0.6):
        return _difference(draft, bill_id, other)
    if easy and draft.likely(0.5):
        total = f"{ref.bill.total}"
        answer = say(f"{ref.named[0].upper()}{ref.named[1:]} is {total}.")
        return Want(draft.pick(phrases.TOTAL), ref, (answer,), "number", outputs=(total,))
    item = draft.random.choice(ref.bill.items)
    answer = say(f"You were charged {item.amount} for the {item.text}.")
    return Want(draft.pick(phrases.POSITION, item=item.text), ref, (answer,), "number", outputs=(f"{item.amount}",))


def pay(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Pay a bill on the phone, by a payment request."""
    bill_id = draft.customer.bills[-1] if knows == "told" else draft.random.choice(draft.customer.bills)
    draft.patch("bills", bill_id, status=draft.random.choice(("open", "overdue")) if ok else "paid")
    ref = draft.bill_ref(bill_id, knows)
    want = Want(draft.pick(phrases.PAY), ref, names=(*ref.names, REQUEST), deeds=(phone.PAY,))
    if not ok:
        refusal = f"{ref.named[0].upper()}{ref.named[1:]} is paid already, so I cannot send a payment request for it."
        return _refused(draft, want, (), refusal, "paid", easy)
    return replace(want, turns=(*request(draft, bill_id, ref.named), say("The bill is paid.")))


def outside(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Ask for what no tool can do."""
    text = draft.pick(phrases.OUTSIDE)
    turns = (call("transfer_to_human", summary=text), say("You are transferred to a human agent."))
    return Want(text, turns=turns, names=("human|transfer|transferred",))


def other_plan(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Name one plan, and another one when asked to confirm it."""
    ref = draft.line_ref(number, knows)
    first, second = draft.random.sample([name for name in PLANS if name != ref.plan], 2)
    price = draft.world.plans[first].price
    turns = (call("get_plan", plan=first), propose(_proposal(ref, first, f"{price}")), call("get_plan", plan=second))
    want = _planned(draft, Want(draft.pick(phrases.PLAN, plan=first), ref, turns), ref, second)
    return replace(want, meant=f"{draft.pick(MIND)} {draft.pick(phrases.PLAN, plan=second)}")


def rather_plan(draft: Draft, number: str, knows: Knowledge, ok: bool, easy: bool) -> Want:
    """Want a line suspended, and a smaller or bigger plan instead when asked to confirm that."""
    ref, days = draft.line_ref(number, knows), draft.random.choice((30, 60, 90))
    target = draft.random.choice([name for name in PLANS if name != ref.plan])
    text = f"{draft.pick(phrases.SUSPEND)} {draft.pick(phrases.WHY['long trip'])} Make it {days} days."
    first = propose(f"suspend {ref.named} for {days} days, reason: long trip")
    want = _planned(draft, Want(text, ref, (first, call("get_plan", plan=target))), ref, target)
    return replace(want, meant=f"{draft.pick(MIND)} I keep it active. {draft.pick(phrases.PLAN, plan=target)}")


def _planned(draft: Draft, want: Want, ref: LineRef, target: str) -> Want:
    """The want to change to a plan, granted; its turns so far have found the price."""
    price = f"{draft.world.plans[target].price}"
    do = call("change_plan", number=ref.number, plan=target)
    turns = change(_proposal(ref, target, price), do, "The plan is changed.")
    return replace(want, names=(*ref.names, target, price), turns=(*want.turns, *turns))


def _proposal(ref: LineRef, plan: str, price: str) -> str:
    return f"change {ref.named} to the {plan} plan for {price} a month from the next bill on"


def _bigger(draft: Draft, number: str) -> tuple[str, str] | None:
    """The cheapest plan with at least so much data, more than the line's plan has."""
    plans = draft.world.plans
    sizes = [plan.data for plan in plans.values() if plan.data > draft.terms(number).data]
    if not sizes:
        return None
    data = draft.random.choice(sizes)
    cheapest = min((plan.price, name) for name, plan in plans.items() if plan.data >= data)[1]
    return cheapest, f"{data:.0f}"


def others_have(draft: Draft, number: str, plan: str) -> bool:
    """Whether another line of the customer has a plan; a plan has to tell its line."""
    return any(draft.plan_of(other) == plan for other in draft.customer.lines if other != number)


def _ticket(draft: Draft, number: str, topic: Topic, status: str) -> str:
    """Give the customer one ticket, on this topic."""
    key = draft.customer.tickets[0] if draft.customer.tickets else f"T{draft.key[1:]}0"
    draft.patch("tickets", key, number=number, topic=topic, status=status)
    draft.patch("customers", draft.key, tickets=[key])
    return key


def _difference(draft: Draft, bill_id: str, other: str) -> Want:
    """How much more one bill is than another. The older one is read last."""
    first, second = (draft.world.bills[key] for key in (bill_id, other))
    text = draft.pick(phrases.MORE_THAN, bill=f"my {first.month} bill", other=f"my {second.month} bill")
    fact = Fact(says=f"Those of {first.month} and {second.month}.", cues=BILL, opened=True)
    older = min(bill_id, other, key=draft.customer.bills.index)
    low, high = sorted((first.total, second.total))
    return Want(
        text,
        replace(draft.bill_ref(older, "described"), facts=(fact,)),
        (call("calculate", expression=f"{high} - {low}"), say(f"The difference is {high - low}.")),
        "number",
        outputs=(f"{high - low}",),
    )


def _barred(draft: Draft, want: Want, number: str, action: str, easy: bool) -> Want:
    """The request on a line that nothing can be changed of: suspended, or its contract has ended."""
    if draft.likely(0.5):
        return _ended(draft, want, number, action, easy)
    reason = draft.random.choice((*get_args(SuspendReason), "overdue bill"))
    draft.line(number, suspended=reason)
    refusal = f"Line {number} is suspended, reason: {reason}, so I cannot {action}."
    return _refused(draft, want, (), refusal, reason, easy)


def end_contract(draft: Draft, number: str) -> str:
    """Let a line's contract have ended; the day."""
    ended = f"{TODAY - timedelta(days=draft.random.randint(1, 120))}"
    draft.line(number, contract_until=ended)
    return ended


def _ended(draft: Draft, want: Want, number: str, action: str, easy: bool) -> Want:
    ended = end_contract(draft, number)
    refusal = f"The contract of line {number} has ended on {ended}, so I cannot {action}."
    return _refused(draft, want, (), refusal, any_day(ended), easy)


def _refused(draft: Draft, want: Want, before: Sequence[Message], refusal: str, output: str, easy: bool) -> Want:
    """The request, refused for a reason. Some customers contest that."""
    contests = not easy and draft.likely(0.5)
    turns = (*before, *(say(refusal),) * (1 + contests))
    return replace(want, turns=turns, outputs=(output,), contests=contests)
