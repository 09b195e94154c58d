"""Tests of the airline world, of the openings of its tasks, and of the rewards of trivial agents."""

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.airline import CHANGES
from support.script import Script, assert_openings_do_not_reveal_refusal, mean_reward
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS, Task
from understudy.domains.airline import DOMAIN, GENERATOR
from understudy.domains.airline.itineraries import (
    MAX_LAYOVER,
    MIN_LAYOVER,
    day_key,
    find_paths,
    is_past,
    list_offers,
)
from understudy.domains.airline.route_network import AIRPORTS, DATES
from understudy.domains.airline.state import NOW, TODAY
from understudy.domains.airline.tools import AirlineTools
from understudy.domains.airline.world import build_world, home_airport, set_price
from understudy.envs.dates import date_variants, format_month_day
from understudy.envs.gold import gold_call, gold_text
from understudy.envs.rewards import states_fact
from understudy.rollouts.agent import Agent


def test_world_has_expected_size_and_splits() -> None:
    state = build_world()
    assert (len(state.customers), len(state.reservations), len(state.airports)) == (400, 700, 14)
    assert len({flight.route for flight in state.flights.values()}) == 60
    assert len(state.days) == len(DATES) * len(state.flights) == 24 * 88
    assert [len(GENERATOR.customer_keys(split)) for split in SPLITS] == [320, 40, 40]
    assert len({email for split in SPLITS for email in GENERATOR.customer_keys(split)}) == 400
    assert len({customer.address[-5:] for customer in state.customers.values()}) == 400, (
        "a zip code identifies a customer"
    )


def test_world_references_are_valid() -> None:
    state = build_world()
    owners = Counter(key for customer in state.customers.values() for key in customer.reservations)
    assert owners == Counter(dict.fromkeys(state.reservations, 1))
    for customer in state.customers.values():
        own = [state.reservations[key] for key in customer.reservations]
        goals = [r.trips[0].route.split("-")[1] for r in own]
        assert len(set(goals)) == len(goals), "a destination identifies a reservation"
        for reservation in own:
            assert reservation.payment in customer.payments
            assert not reservation.payment.startswith("certificate")
            assert reservation.passengers[0] == customer.name
            assert reservation == set_price(customer, reservation)
            assert reservation.trips[0].route.startswith(home_airport(customer))


def test_gold_episodes_keep_references_valid() -> None:
    for task in DOMAIN.sample("train", 126, seed=7):
        tools = AirlineTools(state := DOMAIN.initial_state(task))
        for each in task.gold_calls:
            tools.call_sync(each)
        customer = state.customers[state.customer]
        assert all(state.reservations[key].payment in customer.payments for key in customer.reservations)
        assert all(payment.balance is None or payment.balance >= 0 for payment in customer.payments.values())
        for day in state.days.changes().values():
            assert day is not None
            assert all(place.seats >= 0 for place in day.cabins.values())


def test_reservations_use_scheduled_flights() -> None:
    state = build_world()
    for key, reservation in state.reservations.items():
        assert reservation.id == key
        assert reservation.booked < min(f"{NOW:%Y-%m-%d %H:%M}", reservation.trips[0].date)
        out, *back = reservation.trips
        assert all(t.date > out.date and t.route.split("-") == out.route.split("-")[::-1] for t in back)
        for trip in reservation.trips:
            assert trip.flights in [path for n in (0, 1) for path in find_paths(state, *trip.route.split("-"), n)]
            fares = [state.days[day_key(flight, trip.date)].cabins[reservation.cabin].fare for flight in trip.flights]
            assert sum(fares) == trip.fare


def test_any_two_airports_connect_with_at_most_one_stop() -> None:
    state = build_world()
    for origin in AIRPORTS:
        for goal in set(AIRPORTS) - {origin}:
            assert find_paths(state, origin, goal, 0) or find_paths(state, origin, goal, 1)
            for first, second in find_paths(state, origin, goal, 1):
                wait = _minutes_of_day(state.flights[second].departs) - _minutes_of_day(state.flights[first].arrives)
                assert MIN_LAYOVER <= wait <= MAX_LAYOVER
    assert all(flight.departs < flight.arrives < "23:59" for flight in state.flights.values())


def _minutes_of_day(time: str) -> int:
    return 60 * int(time[:2]) + int(time[3:])


def test_flight_statuses_agree_with_current_time() -> None:
    state = build_world()
    for key, day in state.days.items():
        number, date = key.split()
        flight = state.flights[number]
        if day.status != "cancelled":
            begun, over = is_past(date, flight.departs), is_past(date, flight.arrives)
            assert (day.status in ("departed", "landed"), day.status == "landed") == (begun, over)
            assert (day.status == "scheduled") == (date > TODAY)
            assert day.delay == 0 or day.status not in ("scheduled", "on time")
        assert day.cabins["basic economy"].fare < day.cabins["economy"].fare < day.cabins["business"].fare


def test_tool_results_stay_short() -> None:
    """Count characters: a small model needs about one token for 2.4 characters."""
    state = build_world().fork()
    tools = AirlineTools(state)
    for email in GENERATOR.customer_keys("train")[:50]:
        state.customer = email
        assert len(tools.call_sync(ToolCall(name="get_customer"))) < 110 * 2.8
        for key in state.customers[email].reservations:
            shown = tools.call_sync(ToolCall(name="get_reservation", arguments={"reservation_id": key}))
            assert len(shown) < 140 * 2.8
            assert "null" not in shown


@given(st.dates(min_value=NOW.date().replace(day=1), max_value=NOW.date().replace(month=12)))
def test_date_is_recognized_in_all_formats(date: Any) -> None:
    for text in (f"{date}", format_month_day(f"{date}"), f"{date.day} {date:%B}", f"{date.month}/{date.day}"):
        assert states_fact(date_variants(f"{date}"), f"It was booked on {text}, sorry.")
    other = date.replace(day=date.day % 28 + 1)
    assert not states_fact(date_variants(f"{date}"), f"It was booked on {format_month_day(f'{other}')}.")


EMAIL, CODE = re.compile(r"[\w.]+@mail\.com"), re.compile(r"\b[A-Z]{2}\d[A-Z]{2}\d\b")


class ReasonListingAgent:
    """An agent that finds the customer, reads the reservations named in the opening, and refuses with all reasons."""

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        opening = episode.messages[1].content
        email, codes = EMAIL.search(opening), CODE.findall(opening)
        reads = [gold_call("get_reservation", reservation_id=code) for code in codes]
        reasons = "It is basic economy, sold out, landed, delayed, cancelled, and the passengers cannot be replaced."
        plan = [gold_call("find_customer", email=email[0])] if email else []
        plan += [*reads, *[gold_text(reasons)] * 9]
        episode.act(reply := plan[min(episode.num_turns, len(plan) - 1)])
        return reply


class RecordReadingAgent:
    """An agent that reads the reservation named in the opening and repeats all of it."""

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        opening = episode.messages[1].content
        email, code = EMAIL.search(opening), CODE.search(opening)
        plan = [gold_call("find_customer", email=email[0] if email else "")]
        plan += [gold_call("get_reservation", reservation_id=code[0])] if code else []
        shown = " ".join(m.content for m in episode.messages if m.role == "tool")
        episode.act(reply := (plan + [gold_text(shown or "Hello.")] * 9)[min(episode.num_turns, 8)])
        return reply


class AllWriteToolsAgent:
    """An agent that calls every write tool on the reservation named in the opening."""

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        opening = episode.messages[1].content
        email, code = EMAIL.search(opening), CODE.search(opening)
        key = code[0] if code else "ECO"
        plan = [
            gold_call("find_customer", email=email[0] if email else ""),
            gold_call("get_reservation", reservation_id=key),
        ]
        plan += [gold_call(tool, reservation_id=key, **arguments) for tool, arguments in CHANGES.items()]
        episode.act(reply := (plan + [gold_text("Done.")] * 9)[episode.num_turns])
        return reply


@pytest.mark.parametrize(
    "agent",
    [
        Script(gold_call("transfer_to_human", summary="help"), gold_text("You are transferred to a human agent.")),
        Script(*[gold_text("I am sorry, I cannot do that, because it was booked more than 24 hours ago.")] * 9),
        Script(*[gold_text("I will do it. Do you confirm?"), gold_text("Done.")] * 4),
        AllWriteToolsAgent(),
    ],
    ids=["transfers", "refuses", "pretends", "writes"],
)
def test_trivial_agents_earn_no_reward(agent: Agent) -> None:
    assert mean_reward(DOMAIN, agent, DOMAIN.sample("validation", 150, seed=5)) == 0.0


def test_listing_reasons_or_records_earns_low_reward() -> None:
    tasks = DOMAIN.sample("validation", 150, seed=5)
    assert mean_reward(DOMAIN, ReasonListingAgent(), tasks) < 0.05
    assert mean_reward(DOMAIN, RecordReadingAgent(), tasks) < 0.01


@pytest.mark.parametrize("families", [("cancel",), ("insurance", "bags"), ("flights", "cabin")])
def test_opening_does_not_reveal_whether_request_is_granted(families: tuple[str, ...]) -> None:
    """The most predictive word of easy openings is nearly as frequent in granted as in refused requests."""
    tasks = [
        GENERATOR.make_task("train", 2, family, "easy", n) for family in families for n in range(900 // len(families))
    ]
    refused = [t for t in tasks if t.outputs]
    assert 0.22 < len(refused) / len(tasks) < 0.34
    assert_openings_do_not_reveal_refusal(tasks, [bool(t.outputs) for t in tasks], 0.12, 0.42)


def test_easy_bookings_have_one_matching_offer() -> None:
    """The gold booking is the only offer that fits the customer's words."""
    for task in (GENERATOR.make_task("train", 3, "book", "easy", n) for n in range(150)):
        book = next((c.arguments for c in task.gold_calls if c.name == "book_flights"), None)
        if book is not None:
            way = next(c.arguments for c in task.gold_calls if c.name == "search_direct")
            found = find_paths(build_world(), way["origin"], way["destination"], 0)
            fares = {
                o.flights: o.fare
                for o in list_offers(build_world(), found, book["date"], book["cabin"])
                if o.seats != "sold out"
            }
            if re.search(r"cheapest|lowest", task.scenario.opening):
                assert [k for k, fare in fares.items() if fare == min(fares.values())] == [tuple(book["flights"])]
