"""Tests of the food delivery world, of random calls on it, and of the rewards of trivial agents."""

import json
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.delivery import AMY, Desk, write_turns
from support.script import Script, assert_openings_do_not_reveal_refusal, mean_reward
from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS, Task
from understudy.domains.doordash import DOMAIN, GENERATOR
from understudy.domains.doordash.state import NOW, dish_price, format_time, minutes_between, parse_area
from understudy.domains.doordash.tools import DoordashTools
from understudy.domains.doordash.world import build_world
from understudy.envs.gold import gold_call, gold_text
from understudy.rollouts.agent import Agent


def test_world_has_expected_size_and_splits() -> None:
    state = build_world()
    assert (len(state.customers), len(state.orders), len(state.restaurants)) == (400, 800, 40)
    assert [len(GENERATOR.customer_keys(split)) for split in SPLITS] == [320, 40, 40]
    assert len({email for split in SPLITS for email in GENERATOR.customer_keys(split)}) == 400
    assert len({customer.phone for customer in state.customers.values()}) == 400


def test_world_references_are_valid() -> None:
    state = build_world()
    owners = Counter(key for customer in state.customers.values() for key in customer.orders)
    assert owners == Counter(dict.fromkeys(state.orders, 1))
    for customer in state.customers.values():
        orders = [state.orders[key] for key in customer.orders]
        dishes = [line.name for order in orders for line in order.items]
        assert len(dishes) == len(set(dishes)), "a dish identifies an order"
        for order in orders:
            assert order.payment in customer.payments
            assert order.address == customer.address
            assert state.restaurants[order.restaurant].area == customer.area
            assert order.delivery_fee == (0 if customer.member else state.restaurants[order.restaurant].delivery_fee)
    assert set(state.trips) == {key for key, order in state.orders.items() if order.status == "picked up"}
    assert all(state.orders[key].courier == trip.courier for key, trip in state.trips.items())


def test_world_orders_satisfy_service_rules() -> None:
    state = build_world()
    for key, order in state.orders.items():
        place = state.restaurants[order.restaurant]
        assert order.id == key
        assert 1 <= len(order.items) <= 3
        for line in order.items:
            assert line.price == line.quantity * dish_price(place.menu[line.name], line.options)
        assert order.food >= place.minimum
        assert not order.promotion or order.food >= state.promotions[order.promotion].minimum
        assert order.placed < order.promised
        assert order.placed < format_time(NOW)
        assert (order.status == "delivered") == bool(order.delivered)
        assert bool(order.courier) == (order.status in ("picked up", "delivered"))
        assert not order.courier or order.courier in state.couriers
        if order.status not in ("delivered", "cancelled"):
            assert minutes_between(order.placed, format_time(NOW)) <= 45


def test_each_area_has_two_restaurants_of_each_cuisine() -> None:
    places = build_world().restaurants.values()
    assert set(Counter((place.cuisine, place.area) for place in places).values()) == {2}
    assert {parse_area(customer.address) for customer in build_world().customers.values()} == {p.area for p in places}
    assert all(any(dish.alcohol for dish in place.menu.values()) for place in places)


def test_tool_results_stay_short() -> None:
    """Count characters: a small model needs about one token for 2.4 characters."""
    tools = DoordashTools(state := build_world().fork())
    for email in GENERATOR.customer_keys("train")[:50]:
        state.customer = email
        assert len(tools.call_sync(ToolCall(name="get_customer"))) < 110 * 2.8
        for key in state.customers[email].orders:
            if len(state.orders[key].items) <= 2:
                shown = tools.call_sync(ToolCall(name="get_order", arguments={"order_id": key}))
                assert len(shown) < 170 * 2.8
                assert "null" not in shown
    for name in state.restaurants:
        assert len(tools.call_sync(ToolCall(name="get_restaurant", arguments={"name": name}))) < 350 * 2.8


KEYS = st.sampled_from(["D1", "D2", "D3", "D4", "D5", "D6", "D7", "D9", "D9001", "D0"])
DISHES = st.sampled_from(["Pad Thai", "Cola", "Dal", "Samosas", "Lager", "Fries"])
AMOUNTS = st.sampled_from([0, 0.5, 2, 3, 6, 10, 40, 501, -1, "1.999"])
CHOICES = st.lists(
    st.fixed_dictionaries(
        {
            "item": DISHES,
            "quantity": st.integers(0, 3),
            "options": st.lists(st.sampled_from(["tofu", "large", "spicy"])),
        }
    ),
    max_size=3,
)
CODES = st.sampled_from(["SAVE3", "OLD3", "BIG9", "PLUS5", "NONE"])
ARGUMENTS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "place_order": {
        "restaurant": st.sampled_from(["Tamarind", "Lemongrass", "Nowhere"]),
        "items": CHOICES,
        "payment": st.sampled_from(["card_1", "credit", "card_9"]),
        "tip": AMOUNTS,
        "promotion": st.one_of(st.just(""), CODES),
    },
    "cancel_order": {"order_id": KEYS},
    "change_items": {"order_id": KEYS, "remove": st.lists(DISHES, max_size=2), "add": CHOICES},
    "change_tip": {"order_id": KEYS, "tip": AMOUNTS},
    "apply_promotion": {"order_id": KEYS, "code": CODES},
    "refund_items": {
        "order_id": KEYS,
        "items": st.lists(DISHES, max_size=3),
        "to": st.sampled_from(["payment", "credit"]),
    },
    "redeliver_items": {"order_id": KEYS, "items": st.lists(DISHES, max_size=3)},
    "credit_late_delivery": {"order_id": KEYS, "amount": AMOUNTS},
    "get_order": {"order_id": KEYS},
}
CALLS = st.lists(
    st.one_of(*(st.tuples(st.just(tool), st.fixed_dictionaries(fields)) for tool, fields in ARGUMENTS.items())),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(CALLS, st.booleans())
def test_random_calls_keep_state_consistent(calls: list[tuple[str, dict[str, Any]]], member: bool) -> None:
    """A refused call changes nothing. An accepted call respects the order minimum, the credit and the amount paid."""
    desk = Desk()
    desk.account(member=member)
    theirs = desk.state.orders["D9"]
    for tool, arguments in calls:
        before = desk.state.changes()
        try:
            desk.do(tool, **arguments)
        except ToolError:
            assert desk.state.changes() == before
    amy = desk.state.customers[AMY]
    assert amy.credit >= 0
    assert len(amy.refunds) <= 3
    assert desk.state.orders["D9"] == theirs
    for key in amy.orders:
        order = desk.state.orders[key]
        assert order.food >= desk.state.restaurants["Tamarind"].minimum
        assert order.total >= 0
        assert not order.promotion or order.food >= desk.state.promotions[order.promotion].minimum
        assert len({line.name for line in order.items}) == len(order.items)
        assert not set(order.refunded) & set(order.redelivered)
        assert set(order.refunded) | set(order.redelivered) <= {line.name for line in order.items}


class ReasonGuessingAgent:
    """An agent that finds the customer by the email in the opening and refuses with reasons that are often right."""

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        email = re.search(r"[\w.]+@mail\.com", episode.messages[1].content)
        found = [gold_call("find_customer", email=email[0])] if email else []
        reasons = "preparing, picked up, delivered, cancelled, sold out, paused, refunded, under age, for members only"
        plan = [*found, *[gold_text(f"I cannot do that: it is {reasons}.")] * 9]
        reply = plan[min(len(plan) - 1, int(episode.num_turns))]
        episode.act(reply)
        return reply


class RecordReadingAgent:
    """An agent that finds the customer, reads all orders of the customer, and repeats all of them."""

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        episode.act(reply := self._reply(episode.messages))
        return reply

    def _reply(self, messages: list[Message]) -> Message:
        email = re.search(r"[\w.]+@mail\.com", " ".join(m.content for m in messages if m.role == "user"))
        shown = [m.content for m in messages if m.role == "tool"]
        if not email:
            return gold_text("What is your email?")
        if not shown:
            return gold_call("find_customer", email=email[0])
        if len(shown) == 1:
            orders = [ToolCall(name="get_order", arguments={"order_id": key}) for key in json.loads(shown[0])["orders"]]
            return Message(role="assistant", tool_calls=tuple(orders))
        return gold_text(f"I cannot do more than tell you this: {' '.join(shown)}")


@pytest.mark.parametrize(
    "agent",
    [
        Script(gold_call("transfer_to_human", summary="help"), gold_text("You are transferred to a human agent.")),
        Script(*[gold_text("I am sorry, I cannot do that, because the order is delivered.")] * 9),
        Script(*[gold_text("I will do it. Do you confirm?"), gold_text("Done.")] * 4),
        ReasonGuessingAgent(),
    ],
    ids=["transfers", "refuses", "pretends", "guesses"],
)
def test_trivial_agents_earn_no_reward(agent: Agent) -> None:
    assert mean_reward(DOMAIN, agent, DOMAIN.sample("validation", 120, seed=5)) == 0.0


def test_reading_out_records_earns_low_reward() -> None:
    """The agent refuses every request. It is right only where the order does not allow the request."""
    tasks = DOMAIN.sample("validation", 120, seed=5)
    assert mean_reward(DOMAIN, RecordReadingAgent(), tasks) < 0.12
    assert mean_reward(DOMAIN, RecordReadingAgent(), [task for task in tasks if write_turns(task)]) == 0.0
    assert (
        mean_reward(
            DOMAIN, RecordReadingAgent(), [task for task in tasks if task.family in ("paid", "menu", "cheapest")]
        )
        == 0.0
    )


@pytest.mark.slow
def test_opening_does_not_reveal_whether_request_is_granted() -> None:
    """The most predictive word of easy openings is nearly as frequent in granted as in refused requests."""
    families = (
        "cancel",
        "address",
        "dropoff",
        "tip",
        "items",
        "promotion",
        "missing",
        "late",
        "redeliver",
        "place",
        "again",
    )
    tasks = [GENERATOR.make_task("train", 2, family, "easy", n) for family in families for n in range(150)]
    refused = [not write_turns(task) for task in tasks]
    assert 0.24 < sum(refused) / len(tasks) < 0.36
    assert_openings_do_not_reveal_refusal(tasks, refused, 0.18, 0.44)
