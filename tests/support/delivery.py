"""A small delivery service for tests: its tools, and playable tasks of the domain."""

from decimal import Decimal
from typing import Any

from support import script
from understudy.core.messages import Message
from understudy.core.tasks import Difficulty, Score, Task
from understudy.domains.doordash import DOMAIN, GENERATOR
from understudy.domains.doordash.state import (
    Courier,
    Customer,
    Delivery,
    DoordashState,
    Order,
    OrderLine,
    Promotion,
    Restaurant,
    format_time_ago,
)
from understudy.domains.doordash.tools import DoordashTools
from understudy.rollouts.agent import Agent

AMY, BEN = "amy.lee42@mail.com", "ben.ortiz17@mail.com"
HOME, ELSEWHERE, FAR = "12 Oak Street, Harbor", "7 Mill Street, Harbor", "7 Mill Street, Midtown"
PAD_THAI = OrderLine(name="Pad Thai", options=("tofu",), price=Decimal("14.50"))
COLA = OrderLine(name="Cola", price=Decimal("3.00"))
STATUSES = {"D1": "placed", "D2": "accepted", "D3": "preparing", "D4": "picked up", "D7": "cancelled", "D9": "placed"}


def make_order(key: str, status: str, **fields: Any) -> Order:
    """A Pad Thai with tofu and a Cola from Tamarind: 17.50, fee 2.50, tip 2.00."""
    return Order.model_validate(
        {
            "id": key,
            "restaurant": "Tamarind",
            "status": status,
            "placed": format_time_ago(minutes=30),
            "promised": format_time_ago(minutes=-15),
            "address": HOME,
            "payment": "card_1",
            "items": (COLA, PAD_THAI),
            "delivery_fee": "2.50",
            "tip": "2.00",
            **fields,
        }
    )


def make_state() -> DoordashState:
    """Add an order of Amy in each status. Two are delivered: D5 two hours ago and 40 minutes late, D6 49 hours ago."""
    dishes: dict[str, Any] = {
        "Pad Thai": {"price": "12.00", "options": {"tofu": "2.50", "large": "3.00"}, "allergens": ("peanuts", "egg")},
        "Cola": {"price": "3.00"},
        "Dal": {"price": "9.00", "vegan": True},
        "Samosas": {"price": "6.00", "sold_out": True},
        "Lager": {"price": "5.00", "alcohol": True},
    }
    hours = {"cuisine": "thai", "opens": "11:00", "closes": "22:00", "delivery_fee": "2.50", "minimum": "10.00"}
    orders = {key: make_order(key, status) for key, status in STATUSES.items()}
    orders["D5"] = make_order(
        "D5", "delivered", promised=format_time_ago(minutes=160), delivered=format_time_ago(minutes=120)
    )
    orders["D6"] = make_order(
        "D6", "delivered", promised=format_time_ago(hours=50), delivered=format_time_ago(hours=49)
    )
    people: dict[str, Any] = {"address": HOME, "age": "of age", "credit": "10.00"}
    own = ("card_1", "paypal_2")
    return DoordashState(
        customers={
            AMY: Customer.model_validate(
                {"name": "Amy Lee", "phone": "555-1", "payments": own, "orders": sorted(set(orders) - {"D9"}), **people}
            ),
            BEN: Customer.model_validate(
                {"name": "Ben Ortiz", "phone": "555-2", "payments": ("card_9",), "orders": ("D9",), **people}
            ),
        },
        orders=orders,
        trips={"D4": Delivery(courier="c1", minutes=7)},
        couriers={"c1": Courier(name="Kim", vehicle="scooter")},
        restaurants={
            "Tamarind": Restaurant.model_validate({**hours, "area": "Harbor", "menu": dishes}),
            "Lemongrass": Restaurant.model_validate({**hours, "area": "Midtown", "menu": dishes}),
        },
        promotions={
            "SAVE3": Promotion.model_validate({"off": "3.00", "minimum": "15.00", "expires": "2025-05-16"}),
            "OLD3": Promotion.model_validate({"off": "3.00", "minimum": "15.00", "expires": "2025-05-15"}),
            "BIG9": Promotion.model_validate({"off": "9.00", "minimum": "17.51", "expires": "2025-05-31"}),
            "PLUS5": Promotion.model_validate(
                {"off": "5.00", "minimum": "15.00", "expires": "2025-05-31", "members_only": True}
            ),
        },
    )


class Desk(script.Desk):
    """The tools on the small service. By default Amy has been found and all of her data has been read."""

    def __init__(self, customer: str = AMY, read: bool = True) -> None:
        state = make_state()
        super().__init__(state, DoordashTools(state))
        if customer:
            self.do("find_customer", email=customer)
        if read and customer:
            self.do("get_customer")
            for name in ("Tamarind", "Lemongrass"):
                self.do("get_restaurant", name=name)
            for key in self.state.customers[customer].orders:
                self.do("get_order", order_id=key)

    def place(self, *dishes: str, **arguments: Any) -> dict[str, Any]:
        """Return the arguments of an order from Tamarind."""
        items = [{"item": dish} for dish in dishes]
        return {"restaurant": "Tamarind", "items": items, "payment": "card_1", **arguments}

    def account(self, **fields: Any) -> None:
        self.state.patch({"customers": {AMY: fields}})

    def menu(self, **fields: Any) -> None:
        self.state.patch({"restaurants": {"Tamarind": fields}})

    @property
    def credit(self) -> str:
        return str(self.state.customers[AMY].credit)


def play(task: Task, agent: Agent) -> tuple[Score, list[Message]]:
    return script.play(DOMAIN, task, agent)


READS = {
    name for name in (spec.name for spec in DOMAIN.tool_specs) if name.startswith(("find", "get", "search", "track"))
}
READS |= {"calculate"}


def write_turns(task: Task) -> list[Message]:
    """Return the gold turns that change something."""
    return [m for m in task.gold_turns if m.tool_calls and m.tool_calls[0].name not in READS]


def task_of_family(family: str, granted: bool, difficulty: Difficulty = "easy") -> Task:
    """Return a task of a family whose request is granted, or refused."""
    return next(
        t
        for t in (GENERATOR.make_task("train", 1, family, difficulty, n) for n in range(100))
        if granted == bool(write_turns(t))
    )


def task_with_two_changes() -> Task:
    """Return a task with two changes in sequence."""
    return next(
        t
        for t in (GENERATOR.make_task("train", 1, "several", "medium", n) for n in range(100))
        if len(write_turns(t)) == 2
    )


def proposal_turn(task: Task) -> Message:
    return next(m for m in task.gold_turns if "Do you confirm?" in m.content)


def turns_before(task: Task, turn: Message) -> tuple[Message, ...]:
    return task.gold_turns[: task.gold_turns.index(turn)]
