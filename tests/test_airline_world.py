"""The airline's world, what its openings tell, and policies that must not pay."""

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from script import Script, assert_openings_tell_nothing, mean
from test_airline import CHANGES
from understudy.agent import Agent
from understudy.domains.airline import DOMAIN
from understudy.domains.airline.itineraries import LONGEST, SHORTEST, day_key, offers, past, paths
from understudy.domains.airline.network import DATES, PLACES
from understudy.domains.airline.state import NOW, TODAY
from understudy.domains.airline.tasks import make
from understudy.domains.airline.tools import AirlineTools
from understudy.domains.airline.world import emails, home, priced, world
from understudy.domains.days import any_day, month_day
from understudy.domains.drafts import call, say
from understudy.messages import Message, ToolCall
from understudy.rewards import said
from understudy.tasks import SPLITS, Task


def test_the_world_has_its_size_and_splits() -> None:
    state = world()
    assert (len(state.customers), len(state.reservations), len(state.airports)) == (400, 700, 14)
    assert len({flight.route for flight in state.flights.values()}) == 60
    assert len(state.days) == len(DATES) * len(state.flights) == 24 * 88
    assert [len(emails(split)) for split in SPLITS] == [320, 40, 40]
    assert len({email for split in SPLITS for email in emails(split)}) == 400
    assert len({customer.address[-5:] for customer in state.customers.values()}) == 400, "a zip tells a customer"


def test_references_of_the_world_are_intact() -> None:
    state = world()
    owners = Counter(key for customer in state.customers.values() for key in customer.reservations)
    assert owners == Counter(dict.fromkeys(state.reservations, 1))
    for customer in state.customers.values():
        own = [state.reservations[key] for key in customer.reservations]
        goals = [r.trips[0].route.split("-")[1] for r in own]
        assert len(set(goals)) == len(goals), "a city has to tell its reservation"
        for reservation in own:
            assert reservation.payment in customer.payments
            assert not reservation.payment.startswith("certificate")
            assert reservation.passengers[0] == customer.name
            assert reservation == priced(customer, reservation)
            assert reservation.trips[0].route.startswith(home(customer))


def test_references_stay_intact_in_gold_episodes() -> None:
    for task in DOMAIN.sample("train", 126, seed=7):
        tools = AirlineTools(state := DOMAIN.initial(task))
        for each in task.actions:
            tools.run(each)
        customer = state.customers[state.customer]
        assert all(state.reservations[key].payment in customer.payments for key in customer.reservations)
        assert all(payment.balance is None or payment.balance >= 0 for payment in customer.payments.values())
        for day in state.days.changes().values():
            assert day is not None
            assert all(place.seats >= 0 for place in day.cabins.values())


def test_reservations_are_on_flights_of_the_timetable() -> None:
    state = world()
    for key, reservation in state.reservations.items():
        assert reservation.id == key
        assert reservation.booked < min(f"{NOW:%Y-%m-%d %H:%M}", reservation.trips[0].date)
        out, *back = reservation.trips
        assert all(t.date > out.date and t.route.split("-") == out.route.split("-")[::-1] for t in back)
        for trip in reservation.trips:
            assert trip.flights in [path for n in (0, 1) for path in paths(state, *trip.route.split("-"), n)]
            fares = [state.days[day_key(flight, trip.date)].cabins[reservation.cabin].fare for flight in trip.flights]
            assert sum(fares) == trip.fare


def test_any_two_airports_are_one_change_of_planes_apart() -> None:
    state = world()
    for origin in PLACES:
        for goal in set(PLACES) - {origin}:
            assert paths(state, origin, goal, 0) or paths(state, origin, goal, 1)
            for first, second in paths(state, origin, goal, 1):
                wait = _minutes(state.flights[second].departs) - _minutes(state.flights[first].arrives)
                assert SHORTEST <= wait <= LONGEST
    assert all(flight.departs < flight.arrives < "23:59" for flight in state.flights.values())


def _minutes(time: str) -> int:
    return 60 * int(time[:2]) + int(time[3:])


def test_statuses_agree_with_the_clock() -> None:
    state = world()
    for key, day in state.days.items():
        number, date = key.split()
        flight = state.flights[number]
        if day.status != "cancelled":
            begun, over = past(date, flight.departs), past(date, flight.arrives)
            assert (day.status in ("departed", "landed"), day.status == "landed") == (begun, over)
            assert (day.status == "scheduled") == (date > TODAY)
            assert day.delay == 0 or day.status not in ("scheduled", "on time")
        assert day.cabins["basic economy"].fare < day.cabins["economy"].fare < day.cabins["business"].fare


def test_what_tools_show_is_short() -> None:
    """Counted in characters: a small model needs about one token for each 2.4 of them."""
    state = world().fork()
    tools = AirlineTools(state)
    for email in emails("train")[:50]:
        state.customer = email
        assert len(tools.run(ToolCall(name="get_customer"))) < 110 * 2.8
        for key in state.customers[email].reservations:
            shown = tools.run(ToolCall(name="get_reservation", arguments={"reservation_id": key}))
            assert len(shown) < 140 * 2.8
            assert "null" not in shown


@given(st.dates(min_value=NOW.date().replace(day=1), max_value=NOW.date().replace(month=12)))
def test_a_date_is_recognized_however_it_is_said(date: Any) -> None:
    for text in (f"{date}", month_day(f"{date}"), f"{date.day} {date:%B}", f"{date.month}/{date.day}"):
        assert said(any_day(f"{date}"), f"It was booked on {text}, sorry.")
    other = date.replace(day=date.day % 28 + 1)
    assert not said(any_day(f"{date}"), f"It was booked on {month_day(f'{other}')}.")


# ---- what must not pay ----

EMAIL, CODE = re.compile(r"[\w.]+@mail\.com"), re.compile(r"\b[A-Z]{2}\d[A-Z]{2}\d\b")


class Lister:
    """Finds the customer, reads all reservations that the opening names, and refuses with all reasons there are."""

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        opening = episode.messages[1].content
        email, codes = EMAIL.search(opening), CODE.findall(opening)
        reads = [call("get_reservation", reservation_id=code) for code in codes]
        reasons = "It is basic economy, sold out, landed, delayed, cancelled, and the passengers cannot be replaced."
        plan = [call("find_customer", email=email[0])] if email else []
        plan += [*reads, *[say(reasons)] * 9]
        episode.act(reply := plan[min(episode.turns, len(plan) - 1)])
        return reply


class Dumper:
    """Reads what the opening names and reads it all out."""

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        opening = episode.messages[1].content
        email, code = EMAIL.search(opening), CODE.search(opening)
        plan = [call("find_customer", email=email[0] if email else "")]
        plan += [call("get_reservation", reservation_id=code[0])] if code else []
        shown = " ".join(m.content for m in episode.messages if m.role == "tool")
        episode.act(reply := (plan + [say(shown or "Hello.")] * 9)[min(episode.turns, 8)])
        return reply


class EveryWrite:
    """Calls every tool that writes, about the reservation that the opening names."""

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        opening = episode.messages[1].content
        email, code = EMAIL.search(opening), CODE.search(opening)
        key = code[0] if code else "ECO"
        plan = [call("find_customer", email=email[0] if email else ""), call("get_reservation", reservation_id=key)]
        plan += [call(tool, reservation_id=key, **arguments) for tool, arguments in CHANGES.items()]
        episode.act(reply := (plan + [say("Done.")] * 9)[episode.turns])
        return reply


@pytest.mark.parametrize(
    "agent",
    [
        Script(call("transfer_to_human", summary="help"), say("You are transferred to a human agent.")),
        Script(*[say("I am sorry, I cannot do that, because it was booked more than 24 hours ago.")] * 9),
        Script(*[say("I will do it. Do you confirm?"), say("Done.")] * 4),
        EveryWrite(),
    ],
    ids=["transfers", "refuses", "pretends", "writes"],
)
def test_trivial_policies_earn_nothing(agent: Agent) -> None:
    assert mean(DOMAIN, agent, DOMAIN.sample("validation", 150, seed=5)) == 0.0


def test_listing_reasons_or_records_earns_next_to_nothing() -> None:
    tasks = DOMAIN.sample("validation", 150, seed=5)
    assert mean(DOMAIN, Lister(), tasks) < 0.05
    assert mean(DOMAIN, Dumper(), tasks) < 0.01


@pytest.mark.parametrize("families", [("cancel",), ("insurance", "bags"), ("flights", "cabin")])
def test_openings_do_not_tell_whether_a_request_is_granted(families: tuple[str, ...]) -> None:
    """The most telling word of easy openings is nearly as frequent in granted as in refused requests."""
    tasks = [make("train", 2, family, "easy", n) for family in families for n in range(900 // len(families))]
    refused = [t for t in tasks if t.outputs]
    assert 0.22 < len(refused) / len(tasks) < 0.34
    assert_openings_tell_nothing(tasks, [bool(t.outputs) for t in tasks], 0.15, 0.42)


def test_searches_of_easy_bookings_have_one_answer() -> None:
    """What a perfect agent books is the only offer that fits the customer's words."""
    for task in (make("train", 3, "book", "easy", n) for n in range(150)):
        book = next((c.arguments for c in task.actions if c.name == "book_flights"), None)
        if book is not None:
            way = next(c.arguments for c in task.actions if c.name == "search_direct")
            found = paths(world(), way["origin"], way["destination"], 0)
            fares = {
                o.flights: o.fare for o in offers(world(), found, book["date"], book["cabin"]) if o.seats != "sold out"
            }
            if re.search(r"cheapest|lowest", task.scenario.opening):
                assert [k for k, fare in fares.items() if fare == min(fares.values())] == [tuple(book["flights"])]
