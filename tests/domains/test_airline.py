"""Tests of the airline policy: each row of rules.md names one of these tests."""

import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import script
from support.airline import CHANGES, OTHER_DAY
from support.script import Script
from understudy.core.messages import Message
from understudy.core.tasks import Score, Task
from understudy.domains.airline import DOMAIN, GENERATOR
from understudy.domains.airline.itineraries import day_key, find_paths, list_offers
from understudy.domains.airline.policy_rules import edit_distance, free_bags
from understudy.domains.airline.route_network import AIRPORTS
from understudy.domains.airline.state import (
    NOW,
    TODAY,
    AirlineState,
    Airport,
    Customer,
    Flight,
    FlightDate,
    Reservation,
)
from understudy.domains.airline.tools import AirlineTools
from understudy.domains.airline.world import build_world
from understudy.envs.gold import gold_call, gold_text
from understudy.envs.users.consent import gives_consent
from understudy.rollouts.agent import Agent

AMY, BEN = "amy.lee42@mail.com", "ben.ortiz17@mail.com"
FLIGHTS = {
    "KA1": ("DEN", "BOS", "08:00", "12:00"),
    "KA2": ("BOS", "DEN", "13:00", "17:00"),
    "KA3": ("DEN", "ORD", "09:00", "11:00"),
    "KA4": ("ORD", "BOS", "11:30", "13:30"),
    "KA5": ("ORD", "BOS", "12:00", "14:00"),
    "KA6": ("ORD", "BOS", "18:00", "20:00"),
}
PAST_DAY, DAY, BACK = "2025-05-10", "2025-05-20", "2025-05-25"
FARE_SURCHARGES = {OTHER_DAY: 15}
"""The surcharge on every fare, by date."""


def trip(date: str, *flights: str, cabin: str = "economy") -> dict[str, Any]:
    fares = {"basic economy": 60, "economy": 100, "business": 300}
    route = f"{FLIGHTS[flights[0]][0]}-{FLIGHTS[flights[-1]][1]}"
    return {
        "date": date,
        "route": route,
        "flights": flights,
        "fare": len(flights) * (fares[cabin] + FARE_SURCHARGES.get(date, 0)),
    }


def reservation_row(key: str, cabin: str, *trips: dict[str, Any], **fields: Any) -> dict[str, Any]:
    heads = fields.setdefault("passengers", ["Amy Lee"])
    paid = len(heads) * sum(one["fare"] for one in trips)
    return {
        "id": key,
        "booked": "2025-05-01 09:00",
        "cabin": cabin,
        "trips": trips,
        "payment": "card_1",
        "paid": paid,
    } | fields


RESERVATIONS = (
    reservation_row("ECO", "economy", trip(DAY, "KA1"), trip(BACK, "KA2"), passengers=["Amy Lee", "Zoe Lee"]),
    reservation_row("BIZ", "business", trip(DAY, "KA3", "KA5", cabin="business")),
    reservation_row("BAS", "basic economy", trip(DAY, "KA1", cabin="basic economy"), booked="2025-05-14 10:01"),
    reservation_row("OLD", "economy", trip(PAST_DAY, "KA1"), trip(BACK, "KA2")),
    reservation_row("BEN", "economy", trip(DAY, "KA1"), passengers=["Ben Ortiz"]),
)


def small_airline() -> AirlineState:
    """Return a world of two customers: Amy has four reservations, Ben has one (see RESERVATIONS)."""
    seats = {"basic economy": 60, "economy": 100, "business": 300}
    days = {
        day_key(flight, date): FlightDate.model_validate(
            {
                "cabins": {
                    name: {"seats": 3, "fare": fare + FARE_SURCHARGES.get(date, 0)} for name, fare in seats.items()
                },
                "status": "landed" if date < TODAY else "scheduled",
            }
        )
        for flight in FLIGHTS
        for date in (PAST_DAY, TODAY, DAY, OTHER_DAY, BACK)
    }
    payments = {"card_1": {}, "gift_2": {"balance": "50.00"}, "certificate_3": {"balance": "150.00"}}
    amy = {"name": "Amy Lee", "address": "12 Oak Street, Denver 80202", "payments": payments}
    ben = {"name": "Ben Ortiz", "address": "7 Mill Street, Austin 73301", "payments": {"card_4": {}}}
    names = ("origin", "destination", "departs", "arrives")
    return AirlineState(
        customers={
            AMY: Customer.model_validate({**amy, "reservations": ["ECO", "BIZ", "BAS", "OLD"]}),
            BEN: Customer.model_validate({**ben, "reservations": ["BEN"]}),
        },
        reservations={r["id"]: Reservation.model_validate(r) for r in RESERVATIONS},
        flights={key: Flight(**dict(zip(names, row, strict=True))) for key, row in FLIGHTS.items()},
        days=days,
        airports={code: Airport(city=AIRPORTS[code][0]) for code in ("DEN", "BOS", "ORD")},
    )


class Desk(script.Desk):
    """The tools on the small airline. By default Amy is found and her reservations are read."""

    def __init__(self, customer: str = AMY, read: bool = True, **setup: dict[str, Any]) -> None:
        state = small_airline()
        state.patch(setup)
        super().__init__(state, AirlineTools(state))
        found = self.do("find_customer", email=customer) if customer else {"reservations": []}
        for key in found["reservations"] if read else ():
            self.do("get_reservation", reservation_id=key)

    def search(self, origin: str, destination: str, date: str, cabin: str = "economy") -> list[list[str]]:
        """Run both searches and return the flights of all offers."""
        way = {"origin": origin, "destination": destination, "date": date, "cabin": cabin}
        return [offer["flights"] for tool in ("search_direct", "search_one_stop") for offer in self.do(tool, **way)]

    def book(self, *, searched: bool = True, **other: Any) -> dict[str, Any]:
        """Return the arguments of a booking from Denver to Boston for Amy. Run the searches first by default."""
        arguments: dict[str, Any] = {
            "flights": ["KA1"], "date": DAY, "passengers": ["Amy Lee"], "cabin": "economy", "payment_id": "card_1"
        } | other  # fmt: skip
        for date in {arguments["date"], arguments.get("return_date", DAY)} if searched else ():
            for way in (("DEN", "BOS"), ("BOS", "DEN"), ("DEN", "ORD")):
                self.search(*way, date, arguments["cabin"])
        return arguments

    def seats(self, flight: str = "KA1", date: str = DAY, cabin: str = "economy") -> int:
        return self.state.days[day_key(flight, date)].cabins[cabin].seats  # type: ignore[index]

    def balance(self) -> str:
        return str(self.state.customers[AMY].payments["gift_2"].balance)


READS = {
    "find_customer", "find_customer_by_name", "get_customer", "get_reservation", "list_airports", "search_direct",
    "search_one_stop", "get_flight_status", "calculate",
}  # fmt: skip


def flight_status_setup(flight: str, date: str, status: str, delay: int = 0) -> dict[str, Any]:
    """Return a patch of the world that sets the status of one flight."""
    return {"days": {day_key(flight, date): {"status": status, "delay": delay}}}


def play(task: Task, agent: Agent) -> tuple[Score, list[Message]]:
    return script.play(DOMAIN, task, agent)


def find_task(family: str, granted: bool, difficulty: str = "easy") -> Task:
    """Return the first task of a family whose request can be granted (or cannot)."""
    tasks = (GENERATOR.make_task("train", 1, family, difficulty, n) for n in range(100))  # type: ignore[arg-type]
    return next(t for t in tasks if granted == any(c.name not in READS for c in t.gold_calls))


@pytest.mark.parametrize("tool", sorted(spec.name for spec in DOMAIN.toolkit.specs()))
def test_tools_refuse_calls_before_customer_is_found(tool: str) -> None:
    arguments: dict[str, Any] = {
        "reservation_id": "ECO", "flights": ["KA1"], "date": DAY, "passengers": ["Amy Lee"], "cabin": "business",
        "payment_id": "card_1", "reason": "illness", "way": "outbound", "name": "Amy Lee", "new_name": "Ami Lee",
        "bags": 1, "flight": "KA1", "origin": "DEN", "destination": "BOS", "summary": "help", "expression": "1+1",
    }  # fmt: skip
    required = next(spec for spec in DOMAIN.tool_specs if spec.name == tool).parameters.get("required", ())
    if tool not in ("find_customer", "find_customer_by_name", "calculate"):
        assert "find the customer first" in Desk("").refusal(tool, **{name: arguments[name] for name in required})


def test_the_customer_is_found_by_email_or_by_name_and_zip() -> None:
    for tool, arguments in (
        ("find_customer", {"email": f" {AMY.upper()} "}),
        ("find_customer_by_name", {"name": "amy  lee", "zip": "80202"}),
    ):
        desk = Desk("")
        found = {"name": "Amy Lee", "level": "regular", "reservations": ["ECO", "BIZ", "BAS", "OLD"]}
        assert desk.do(tool, **arguments) == found
        assert desk.state.customer == AMY
    assert "no customer" in Desk("").refusal("find_customer_by_name", name="Amy Lee", zip="73301")
    assert "no customer" in Desk("").refusal("find_customer_by_name", name="Amy Lee", zip="0202")


def test_guessed_values_are_refused_or_unrewarded() -> None:
    desk = Desk()
    assert "no customer" in Desk("").refusal("find_customer", email="amy@mail.com")
    assert "no reservation" in desk.refusal("get_reservation", reservation_id="NIL")
    assert "no airport 'JFK'" in desk.refusal(
        "search_direct", origin="JFK", destination="BOS", date=DAY, cabin="economy"
    )
    assert "no flight 'KA9'" in desk.refusal("get_flight_status", flight="KA9", date=DAY)
    assert "no payment" in desk.refusal("add_bags", reservation_id="BIZ", bags=3, payment_id="card_2")
    assert "no payment" in desk.refusal("book_flights", **desk.book(payment_id="card_2"))
    assert desk.search("DEN", "BOS", "2025-06-30") == []
    task = find_task("bags", granted=True)
    wrong = [_replace_argument(m, "bags", 2) for m in task.gold]
    assert play(task, Script(*wrong))[0].parts["state_match"] == 0.0


def _replace_argument(message: Message, name: str, value: object) -> Message:
    calls = tuple(
        c.replace(arguments={**c.arguments, name: value}) if name in c.arguments else c for c in message.tool_calls
    )
    return message.replace(tool_calls=calls)


def test_one_customer_per_conversation() -> None:
    desk = Desk()
    assert "another customer" in desk.refusal("find_customer", email=BEN)
    assert "another customer" in desk.refusal("find_customer_by_name", name="Ben Ortiz", zip="73301")
    assert desk.do("find_customer", email=AMY)["name"] == "Amy Lee"


def test_other_customers_data_is_refused() -> None:
    desk = Desk()
    none = desk.refusal("get_reservation", reservation_id="NIL")
    assert desk.refusal("get_reservation", reservation_id="BEN") == none.replace("NIL", "BEN")
    for tool, arguments in {**CHANGES, "issue_certificate": {"flight": "KA1"}}.items():
        assert "no reservation" in desk.refusal(tool, reservation_id="BEN", **arguments)
    assert "no payment" in desk.refusal("add_bags", reservation_id="BIZ", bags=3, payment_id="card_4")
    assert list(desk.do("get_customer")["payments"]) == ["card_1", "gift_2", "certificate_3"]


def test_fact_counts_only_after_tool_has_shown_it() -> None:
    task = find_task("bags", granted=False)
    found = next(m for m in task.gold if m.tool_calls)
    asks = [m for m in task.gold[:1] if not m.tool_calls]
    assert (
        play(task, Script(*asks, found, task.gold[-1]))[0].parts.items()
        >= {"state_match": 1.0, "facts_told": 0.0}.items()
    )


@pytest.mark.parametrize("tool", CHANGES)
def test_change_refused_until_reservation_is_read(tool: str) -> None:
    desk = Desk(read=False, reservations={"ECO": {"booked": f"{TODAY} 08:00"}})
    desk.search("DEN", "BOS", OTHER_DAY)
    desk.search("DEN", "BOS", DAY, "business")
    desk.search("BOS", "DEN", BACK, "business")
    assert "read reservation ECO first" in desk.refusal(tool, reservation_id="ECO", **CHANGES[tool])
    desk.do("get_reservation", reservation_id="ECO")
    desk.do(tool, reservation_id="ECO", **CHANGES[tool])


def test_certificate_refused_until_flight_status_is_read() -> None:
    desk = Desk(**flight_status_setup("KA1", PAST_DAY, "cancelled"))
    assert "read the status" in desk.refusal("issue_certificate", reservation_id="OLD", flight="KA1")
    desk.do("get_flight_status", flight="KA1", date=DAY)
    assert "read the status" in desk.refusal("issue_certificate", reservation_id="OLD", flight="KA1")
    desk.do("get_flight_status", flight="KA1", date=PAST_DAY)
    desk.do("issue_certificate", reservation_id="OLD", flight="KA1")
    task = find_task("status", granted=False)
    unread = [m for m in task.gold if not any(c.name == "get_flight_status" for c in m.tool_calls)]
    assert play(task, Script(*unread))[0].parts["facts_told"] == 0.0


def test_booking_refuses_flights_no_search_has_offered() -> None:
    desk = Desk()
    assert "no search has offered KA1" in desk.refusal("book_flights", **desk.book(searched=False))
    assert "no search" in desk.refusal("change_flights", reservation_id="ECO", **CHANGES["change_flights"])
    assert "no search" in desk.refusal("change_cabin", reservation_id="ECO", cabin="business")
    desk.search("DEN", "BOS", DAY, "business")
    assert "no search has offered KA2" in desk.refusal("change_cabin", reservation_id="ECO", cabin="business")
    assert "no search" in desk.refusal("book_flights", **desk.book(searched=False)), "another cabin"
    arguments = desk.book(flights=["KA3", "KA4"])
    assert "no search has offered KA3 and KA4" in desk.refusal("book_flights", **arguments)
    assert "no search" in desk.refusal("book_flights", **desk.book(flights=[]))


def test_gold_prefers_direct_flights_and_detour_earns_nothing() -> None:
    """Gold searches for connections only where there is no direct flight. Booking one instead earns nothing."""
    for task in (GENERATOR.make_task("train", 4, "book", "medium", n) for n in range(60)):
        direct = [c.arguments for c in task.gold_calls if c.name == "search_direct"]
        stops = [c.arguments for c in task.gold_calls if c.name == "search_one_stop"]
        assert stops == [way for way in direct if not find_paths(build_world(), way["origin"], way["destination"], 0)]
    task = next(
        t
        for t in (GENERATOR.make_task("train", 4, "book", "easy", n) for n in range(90))
        if _find_bookable_connections(t)
    )
    book = next(m for m in task.gold if m.tool_calls and m.tool_calls[0].name == "book_flights")
    detour, look = _find_bookable_connections(task)[0], next(c for c in task.gold_calls if c.name == "search_direct")
    *before, _, report = task.gold
    turns = [*before[:-2], gold_call("search_one_stop", **look.arguments), *before[-2:]]
    score, messages = play(task, Script(*turns, _replace_argument(book, "flights", list(detour)), report))
    assert any('"status":"booked"' in m.content for m in messages)
    assert (score.reward, score.parts["state_match"]) == (0.0, 0.0)


def _find_bookable_connections(task: Task) -> list[tuple[str, ...]]:
    """Return the connections that could be booked instead of a task's direct flight."""
    way = next(c.arguments for c in task.gold_calls if c.name == "search_direct")
    found = (
        find_paths(build_world(), way["origin"], way["destination"], 1)
        if task.gold_calls[-1].name == "book_flights"
        else []
    )
    return [o.flights for o in list_offers(build_world(), found, way["date"], way["cabin"]) if o.seats != "sold out"]


def two_change_task() -> Task:
    """Return a task of two changes."""
    tasks = (GENERATOR.make_task("train", 1, "several", "medium", n) for n in range(300))
    return next(t for t in tasks if sum(c.name not in READS for c in t.gold_calls) == 2)


def test_one_consent_allows_one_change() -> None:
    task = two_change_task()
    first, second = (m for m in task.gold if m.tool_calls and m.tool_calls[0].name not in READS)
    reads = [m for m in task.gold if m.tool_calls and m.tool_calls[0].name == "get_reservation"]
    both = first.replace(tool_calls=first.tool_calls + second.tool_calls)
    _, messages = play(task, Script(*turns_before_change(task, first, reads), both))
    assert any("confirmed one change" in m.content for m in messages if m.role == "tool")


def turns_before_change(task: Task, change: Message, reads: list[Message]) -> list[Message]:
    """Return the gold turns before a change, with all reservations read before the proposal."""
    before = [m for m in task.gold[: task.gold.index(change)] if m not in reads]
    return [*before[:-1], *reads, before[-1]]


def test_user_consents_only_to_matching_proposal() -> None:
    task = find_task("bags", granted=True)
    proposal = next(m for m in task.gold if "Do you confirm?" in m.content)
    before = task.gold[: task.gold.index(proposal)]
    assert _user_consents(task, [*before, proposal])
    for wrong in (
        proposal.content.replace("bag", "suitcase"),
        re.sub(r"reservation \w+", "reservation XX0XX0", proposal.content),
        "I will do it. Do you confirm?",
        proposal.content.replace("I will", "I cannot"),
    ):
        assert not _user_consents(task, [*before, gold_text(wrong)])


def test_user_consents_only_to_correct_reason_passengers_and_bags() -> None:
    found = (GENERATOR.make_task("train", 1, "book", "medium", n) for n in range(100))
    calls = ((task, call.arguments) for task in found for call in task.gold_calls if call.name == "book_flights")
    book, arguments = next((task, made) for task, made in calls if "bags" in made and len(made["passengers"]) == 2)
    other = arguments["passengers"][1]
    for task, right, wrong in (
        (find_task("cancel", granted=True), r"reason: [\w ]+", "reason: weather"),
        (book, other, "Donald Duck"),
        (book, r"with \d checked", "with 9 checked"),
    ):
        proposal = next(m for m in task.gold if "Do you confirm?" in m.content)
        before = task.gold[: task.gold.index(proposal)]
        assert _user_consents(task, [*before, proposal])
        assert not _user_consents(task, [*before, gold_text(re.sub(right, wrong, proposal.content))])


def _user_consents(task: Task, turns: list[Message]) -> bool:
    return any(gives_consent(m.content) for m in play(task, Script(*turns))[1] if m.role == "user")


@pytest.mark.parametrize("family", ["insurance", "flights", "cabin", "book", "compensation"])
def test_user_consents_only_to_correct_price(family: str) -> None:
    task = find_task(family, granted=True)
    proposal = next(m for m in task.gold if "Do you confirm?" in m.content)
    before = task.gold[: task.gold.index(proposal)]
    assert _user_consents(task, [*before, proposal])
    assert not _user_consents(task, [*before, gold_text(re.sub(r"\d+\.\d\d", "1.00", proposal.content))])
    assert not _user_consents(task, [*before, gold_text(re.sub(r" \S+ \d+\.\d\d", "", proposal.content))])


@pytest.mark.parametrize("family", ["cancel", "insurance", "compensation", "flights", "book"])
def test_refusal_without_reason_fails_facts_told(family: str) -> None:
    task = find_task(family, granted=False)
    *before, _ = task.gold
    assert play(task, Script(*before, gold_text("I am sorry, I cannot do that.")))[0].parts["facts_told"] == 0.0
    assert play(task, Script(*task.gold))[0].reward == 1.0


def test_booking_accepts_one_to_four_passengers() -> None:
    desk = Desk(days={day_key("KA1", DAY): {"cabins": {"economy": {"seats": 9}}}})
    for names in ([], ["Amy Lee", "Amy  Lee"], [f"P{n}" for n in range(5)]):
        assert "one to 4" in desk.refusal("book_flights", **desk.book(passengers=names))
    booked = desk.do("book_flights", **desk.book(passengers=["Zoe Lee", " Amy  Lee", "P1", "P2"]))
    assert desk.state.reservations[booked["reservation"]].passengers == ("Amy Lee", "P1", "P2", "Zoe Lee")
    assert desk.do("get_customer")["reservations"][-1] == booked["reservation"]


def test_booking_charge_sums_fares_bags_and_insurance() -> None:
    desk = Desk()
    assert desk.do("book_flights", **desk.book())["charge"] == "100.00"
    two = {"passengers": ["Amy Lee", "Zoe Lee"], "bags": 3, "insurance": True, "return_flights": ["KA2"]}
    booked = desk.do("book_flights", **desk.book(**two, return_date=BACK))
    assert booked["charge"] == "500.00", "2 * (100 + 100 + 30) + 40 for the third bag"
    kept = desk.state.reservations[booked["reservation"]]
    assert (kept.booked, kept.bags, kept.insurance) == (f"{NOW:%Y-%m-%d %H:%M}", 3, True)
    assert [(t.route, t.fare) for t in kept.trips] == [("DEN-BOS", Decimal(100)), ("BOS-DEN", Decimal(100))]


def test_return_trip_reverses_route_and_does_not_precede_outbound() -> None:
    desk = Desk()
    back = {"flights": ["KA1"], "date": BACK, "return_flights": ["KA2"], "return_date": DAY}
    assert "before the outbound" in desk.refusal("book_flights", **desk.book(**back))
    astray = {"return_flights": ["KA3"], "return_date": BACK}
    assert "lead back" in desk.refusal("book_flights", **desk.book(**astray))
    for half in ({"return_flights": ["KA2"]}, {"return_date": BACK}):
        assert "needs return_flights and return_date" in desk.refusal("book_flights", **desk.book(**half))
    desk.do("book_flights", **desk.book(return_flights=["KA2"], return_date=DAY))
    desk.search("BOS", "DEN", DAY)
    desk.search("DEN", "BOS", BACK)
    assert desk.do("change_flights", reservation_id="ECO", way="return", flights=["KA2"], date=DAY)
    outbound = {"reservation_id": "ECO", "way": "outbound", "flights": ["KA1"], "date": BACK}
    assert "before the outbound" in desk.refusal("change_flights", **outbound)


def test_search_offers_only_connections_with_valid_layover() -> None:
    desk = Desk()
    assert desk.search("DEN", "BOS", DAY) == [["KA1"], ["KA3", "KA5"]], "KA4 leaves too early, KA6 too late"
    way = {"origin": "DEN", "destination": "BOS", "date": DAY, "cabin": "business"}
    assert desk.do("search_one_stop", **way) == [
        {"flights": ["KA3", "KA5"], "departs": "09:00", "arrives": "14:00", "fare": "600.00", "seats": 3, "via": "ORD"}
    ]


def test_search_skips_departed_and_cancelled_flights() -> None:
    desk = Desk(**flight_status_setup("KA1", DAY, "cancelled"))
    assert desk.search("DEN", "BOS", DAY) == [["KA3", "KA5"]]
    assert desk.search("DEN", "BOS", TODAY) == [], "at ten, the flights of eight and nine are gone"
    assert desk.search("BOS", "DEN", TODAY) == [["KA2"]]
    assert desk.search("BOS", "DEN", PAST_DAY) == []


@pytest.mark.parametrize(
    ("level", "cabin", "free"),
    [
        ("regular", "basic economy", 0),
        ("regular", "economy", 2),
        ("regular", "business", 4),
        ("silver", "basic economy", 2),
        ("gold", "economy", 6),
        ("gold", "business", 8),
    ],
)
def test_free_bags_depend_on_cabin_and_level(level: Any, cabin: Any, free: int) -> None:
    assert free_bags(level, cabin, 2) == free
    desk = Desk(
        customers={AMY: {"level": level}}, reservations={"ECO": {"cabin": cabin, "bags": free - 1 if free else 0}}
    )
    if free:
        assert "charge" not in desk.do("add_bags", reservation_id="ECO", bags=1)
    assert desk.do("add_bags", reservation_id="ECO", bags=2)["charge"] == "80.00"
    assert desk.state.reservations["ECO"].bags == free + 2
    assert desk.state.reservations["ECO"].paid == Decimal("480.00")


def test_add_bags_rejects_removal_and_more_than_limit() -> None:
    desk = Desk()
    for bags in (0, -1):
        assert "cannot be removed" in desk.refusal("add_bags", reservation_id="ECO", bags=bags)
    assert "at most 10 bags, not 11" in desk.refusal("add_bags", reservation_id="ECO", bags=11)
    assert "at most 5 bags" in desk.refusal("book_flights", **desk.book(bags=6))
    assert "at most 5 bags" in desk.refusal("book_flights", **desk.book(bags=-1))
    desk.do("add_bags", reservation_id="ECO", bags=10)
    assert "not 11" in desk.refusal("add_bags", reservation_id="ECO", bags=1)


def test_insurance_is_sold_only_within_24_hours_of_booking() -> None:
    desk = Desk()
    assert desk.do("add_insurance", reservation_id="BAS")["charge"] == "30.00"
    assert "already insured" in desk.refusal("add_insurance", reservation_id="BAS")
    refusal = desk.refusal("add_insurance", reservation_id="ECO")
    assert "booked on 2025-05-01 09:00, more than 24 hours ago" in refusal
    for booked, sold in (("2025-05-14 10:00", True), ("2025-05-14 09:59", False)):
        desk = Desk(reservations={"ECO": {"booked": booked}})
        if sold:
            assert desk.do("add_insurance", reservation_id="ECO")["charge"] == "60.00"
        else:
            assert "more than 24 hours" in desk.refusal("add_insurance", reservation_id="ECO")


def test_gift_card_is_refused_when_balance_is_too_low() -> None:
    desk = Desk()
    assert "is 50.00, which is less than 100.00" in desk.refusal("book_flights", **desk.book(payment_id="gift_2"))
    assert "is 50.00, which is less" in desk.refusal("add_bags", reservation_id="BAS", bags=2, payment_id="gift_2")
    desk.do("add_bags", reservation_id="BAS", bags=1, payment_id="gift_2")
    assert desk.balance() == "10.00"
    assert "is 10.00, which is less" in desk.refusal("add_insurance", reservation_id="BAS", payment_id="gift_2")
    assert "new bookings only" in desk.refusal("add_insurance", reservation_id="BAS", payment_id="certificate_3")
    assert "new bookings only" in desk.refusal("book_flights", **desk.book(payment_id="certificate_3"))


def test_certificate_remainder_is_lost_after_use() -> None:
    desk = Desk()
    booked = desk.do("book_flights", **desk.book(certificate_id="certificate_3"))
    assert booked["charge"] == "0.00"
    assert list(desk.do("get_customer")["payments"]) == ["card_1", "gift_2"], "the other 50.00 are lost"
    assert desk.state.reservations[booked["reservation"]].certificate == Decimal("100.00")
    assert "no payment" in desk.refusal("book_flights", **desk.book(certificate_id="certificate_3"))
    assert "is not a certificate" in desk.refusal("book_flights", **desk.book(certificate_id="gift_2"))
    desk = Desk()
    two = desk.book(certificate_id="certificate_3", payment_id="gift_2", passengers=["Amy Lee", "Zoe Lee"])
    assert desk.do("book_flights", **two)["charge"] == "50.00"
    assert desk.balance() == "0.00"


@pytest.mark.parametrize("status", ["departed", "landed"])
@pytest.mark.parametrize("tool", CHANGES)
def test_change_refused_once_flight_has_departed(tool: str, status: str) -> None:
    desk = Desk(**flight_status_setup("KA1", PAST_DAY, status))
    desk.search("DEN", "BOS", OTHER_DAY)
    assert f"flight KA1 of {PAST_DAY} has {status}" in desk.refusal(tool, reservation_id="OLD", **CHANGES[tool])


def test_return_trip_can_change_after_outbound_was_flown() -> None:
    desk = Desk()
    desk.search("BOS", "DEN", OTHER_DAY)
    assert desk.do("change_flights", reservation_id="OLD", way="return", flights=["KA2"], date=OTHER_DAY)
    assert [t.date for t in desk.state.reservations["OLD"].trips] == [PAST_DAY, OTHER_DAY]


@pytest.mark.parametrize("tool", CHANGES)
def test_change_refused_on_cancelled_reservation(tool: str) -> None:
    desk = Desk(reservations={"ECO": {"cancelled": "illness"}})
    desk.search("DEN", "BOS", OTHER_DAY)
    assert "reservation ECO is cancelled" in desk.refusal(tool, reservation_id="ECO", **CHANGES[tool])
    assert "is cancelled" in desk.refusal("issue_certificate", reservation_id="ECO", flight="KA1")


def test_change_flights_must_keep_route() -> None:
    desk = Desk()
    for way in (("DEN", "BOS"), ("BOS", "DEN"), ("DEN", "ORD")):
        for cabin in ("basic economy", "economy"):
            desk.search(*way, OTHER_DAY, cabin)
            desk.search(*way, DAY, cabin)
    change: dict[str, Any] = {"reservation_id": "ECO", "way": "outbound", "date": OTHER_DAY}
    assert "on the route DEN-BOS" in desk.refusal("change_flights", **change, flights=["KA3"])
    same = {**change, "date": DAY}
    assert "different ones" in desk.refusal("change_flights", **same, flights=["KA1"])
    assert "is basic economy" in desk.refusal("change_flights", **{**change, "reservation_id": "BAS"}, flights=["KA1"])
    desk.do("change_flights", **change, flights=["KA3", "KA5"])
    changed = desk.state.reservations["ECO"].trips
    assert (changed[0].flights, changed[0].date, changed[0].fare) == (("KA3", "KA5"), OTHER_DAY, Decimal("230.00"))
    assert changed[1].flights == ("KA2",)
    one_way = {**change, "reservation_id": "BIZ", "way": "return"}
    assert "no return trip" in desk.refusal("change_flights", **one_way, flights=["KA2"])


def test_change_cabin_applies_to_all_trips() -> None:
    desk = Desk()
    for way in (("DEN", "BOS", DAY), ("BOS", "DEN", BACK)):
        desk.search(*way, "business")
        desk.search(*way, "economy")
    for key in ("ECO", "BIZ"):
        same = desk.state.reservations[key].cabin
        assert f"is already in {same}" in desk.refusal("change_cabin", reservation_id=key, cabin=same)
    assert "is basic economy" in desk.refusal("change_cabin", reservation_id="BAS", cabin="economy")
    assert "bad arguments" in desk.refusal("change_cabin", reservation_id="ECO", cabin="basic economy")
    assert desk.do("change_cabin", reservation_id="ECO", cabin="business")["charge"] == "800.00"
    assert [t.fare for t in desk.state.reservations["ECO"].trips] == [Decimal(300)] * 2
    assert desk.do("change_cabin", reservation_id="BIZ", cabin="economy")["refund"] == "400.00"


def test_seat_counts_follow_bookings_changes_and_cancellations() -> None:
    desk = Desk()
    desk.do("book_flights", **desk.book(passengers=["Amy Lee", "Zoe Lee"]))
    assert desk.seats() == 1
    assert "has 1 seats for 2 passengers" in desk.refusal("book_flights", **desk.book(passengers=["P1", "P2"]))
    booked = desk.do("book_flights", **desk.book())["reservation"]
    assert (
        desk.do("search_direct", origin="DEN", destination="BOS", date=DAY, cabin="economy")[0]["seats"] == "sold out"
    )
    assert "is sold out" in desk.refusal("book_flights", **desk.book())
    desk.do("get_reservation", reservation_id=booked)
    desk.do("cancel_reservation", reservation_id=booked, reason="change of plans")
    assert desk.seats() == 1
    desk.search("DEN", "BOS", OTHER_DAY)
    desk.do("change_flights", reservation_id="ECO", way="outbound", flights=["KA1"], date=OTHER_DAY)
    assert (desk.seats(), desk.seats(date=OTHER_DAY)) == (3, 1)
    for there in (("DEN", "BOS", OTHER_DAY), ("BOS", "DEN", BACK)):
        desk.search(*there, "business")
    desk.do("change_cabin", reservation_id="ECO", cabin="business")
    assert (desk.seats(date=OTHER_DAY), desk.seats(date=OTHER_DAY, cabin="business")) == (3, 1)
    assert (desk.seats("KA2", BACK), desk.seats("KA2", BACK, "business")) == (5, 1)


def test_price_difference_is_charged_or_refunded() -> None:
    desk = Desk()
    for date in (DAY, OTHER_DAY):
        desk.search("DEN", "BOS", date)
    change = {"reservation_id": "ECO", "way": "outbound", "flights": ["KA1"], "payment_id": "gift_2"}
    assert desk.do("change_flights", **change, date=OTHER_DAY)["charge"] == "30.00"
    assert (desk.balance(), desk.state.reservations["ECO"].paid) == ("20.00", Decimal("430.00"))
    assert desk.do("change_flights", **change, date=DAY)["refund"] == "30.00"
    assert (desk.balance(), desk.state.reservations["ECO"].paid) == ("50.00", Decimal("400.00"))


def test_refund_goes_to_what_has_paid() -> None:
    desk = Desk(reservations={"ECO": {"booked": "2025-05-15 09:00"}})
    for date in (DAY, OTHER_DAY):
        desk.search("DEN", "BOS", date)
    change = {"reservation_id": "ECO", "way": "outbound", "flights": ["KA1"]}
    desk.do("change_flights", **change, date=OTHER_DAY, payment_id="gift_2")
    assert desk.state.reservations["ECO"].shares == {"card_1": Decimal("400.00"), "gift_2": Decimal("30.00")}
    assert desk.do("change_flights", **change, date=DAY)["refund"] == "30.00"
    assert (desk.balance(), desk.state.reservations["ECO"].charged) == ("50.00", {})
    desk.do("change_flights", **change, date=OTHER_DAY)
    assert "has not paid" in desk.refusal("change_flights", **change, date=DAY, payment_id="gift_2")
    desk.do("add_bags", reservation_id="ECO", bags=3, payment_id="gift_2")
    assert desk.balance() == "10.00"
    assert desk.do("cancel_reservation", reservation_id="ECO", reason="illness")["refund"] == "470.00"
    assert desk.balance() == "50.00"


def test_refund_reduces_certificate_first() -> None:
    desk = Desk(reservations={"BIZ": {"certificate": "350.00", "payment": "gift_2"}})
    paid = desk.state.reservations["BIZ"].paid
    desk.search("DEN", "BOS", DAY)
    assert desk.do("change_cabin", reservation_id="BIZ", cabin="economy")["refund"] == "50.00"
    reservation = desk.state.reservations["BIZ"]
    assert (reservation.paid, reservation.certificate) == (paid - 400, Decimal("0.00"))
    assert desk.balance() == "100.00"


def test_book_change_and_cancel_restores_balance_and_seats() -> None:
    desk = Desk(customers={AMY: {"payments": {"gift_2": {"balance": "2000.00"}}}})
    before = desk.do("get_customer")["payments"], dict(desk.state.days.items())
    booked = desk.do("book_flights", **desk.book(payment_id="gift_2", passengers=["Amy Lee", "Zoe Lee"], bags=3))
    key = booked["reservation"]
    desk.do("get_reservation", reservation_id=key)
    desk.do("add_insurance", reservation_id=key)
    desk.search("DEN", "BOS", OTHER_DAY)
    desk.do("change_flights", reservation_id=key, way="outbound", flights=["KA3", "KA5"], date=OTHER_DAY)
    desk.search("DEN", "BOS", OTHER_DAY, "business")
    desk.do("change_cabin", reservation_id=key, cabin="business")
    desk.do("add_bags", reservation_id=key, bags=2)
    assert desk.balance() == "600.00", "2000 - 2 * (315 + 315 + 30) - 2 bags of 40"
    assert desk.do("cancel_reservation", reservation_id=key, reason="change of plans")["refund"] == "1400.00"
    assert (desk.do("get_customer")["payments"], dict(desk.state.days.items())) == before


def test_correct_name_allows_up_to_three_letters() -> None:
    desk = Desk()
    correct = {"reservation_id": "ECO", "name": "Zoe Lee"}
    assert "more than 3 letters" in desk.refusal("correct_name", **correct, new_name="Zoe Miller")
    assert "passengers are" in desk.refusal("correct_name", **correct, new_name="Amy Lee")
    assert "passengers are" in desk.refusal("correct_name", reservation_id="ECO", name="Zoe", new_name="Zoey")
    desk.do("correct_name", **correct, new_name="Zoey  Leah")
    assert desk.state.reservations["ECO"].passengers == ("Amy Lee", "Zoey Leah")


@given(st.text("ab ", max_size=6), st.text("ab ", max_size=6), st.text("ab ", max_size=6))
def test_edit_distance_is_a_metric(one: str, other: str, third: str) -> None:
    assert edit_distance(one, other) == edit_distance(other, one)
    assert (edit_distance(one, other) == 0) == (one == other)
    assert edit_distance(one, third) <= edit_distance(one, other) + edit_distance(other, third)
    assert abs(len(one) - len(other)) <= edit_distance(one, other) <= max(len(one), len(other))


@pytest.mark.parametrize(
    ("setup", "reason", "text"),
    [
        ({"booked": "2025-05-14 10:00"}, "change of plans", ""),
        ({"booked": "2025-05-14 09:59"}, "change of plans", "booked on 2025-05-14 09:59, more than 24 hours ago"),
        ({"cabin": "business"}, "change of plans", ""),
        ({"insurance": True}, "illness", ""),
        ({"insurance": True}, "change of plans", "insurance only covers illness"),
        ({}, "illness", "not insured"),
        ({"trips": [trip(TODAY, "KA2")]}, "flight cancelled", ""),
        ({"insurance": True}, "flight cancelled", "was cancelled by the airline"),
    ],
)
def test_cancellation_is_allowed_in_four_cases(setup: dict[str, Any], reason: str, text: str) -> None:
    desk = Desk(reservations={"ECO": setup}, **flight_status_setup("KA2", TODAY, "cancelled"))
    if text:
        assert text in desk.refusal("cancel_reservation", reservation_id="ECO", reason=reason)
    else:
        assert desk.do("cancel_reservation", reservation_id="ECO", reason=reason)["status"] == "cancelled"
        assert desk.state.reservations["ECO"].cancelled == reason


def test_cancellation_refunds_payment_and_frees_seat() -> None:
    desk = Desk(reservations={"BAS": {"payment": "gift_2", "certificate": "45.00"}})
    assert desk.do("cancel_reservation", reservation_id="BAS", reason="illness")["refund"] == "15.00"
    assert desk.balance() == "65.00"
    assert desk.seats("KA1", DAY, "basic economy") == 4


@pytest.mark.parametrize(
    ("status", "delay", "amount"),
    [
        ("cancelled", 0, "240.00"),
        ("delayed", 180, "120.00"),
        ("landed", 300, "120.00"),
        ("landed", 179, ""),
        ("on time", 0, ""),
    ],
)
def test_compensation_requires_cancelled_or_long_delayed_flight(status: str, delay: int, amount: str) -> None:
    desk = Desk(**flight_status_setup("KA1", DAY, status, delay))
    desk.do("get_flight_status", flight="KA1", date=DAY)
    give = {"reservation_id": "ECO", "flight": "KA1"}
    if not amount:
        assert f"the status {status} and a delay of {delay} minutes" in desk.refusal("issue_certificate", **give)
        return
    assert desk.do("issue_certificate", **give)["certificate"] == "certificate_ECO"
    assert desk.do("get_customer")["payments"]["certificate_ECO"] == {"balance": amount}
    assert "was compensated" in desk.refusal("issue_certificate", **give)
    assert "has no flight 'KA3'" in desk.refusal("issue_certificate", reservation_id="ECO", flight="KA3")
    assert "is basic economy" in desk.refusal("issue_certificate", reservation_id="BAS", flight="KA1")


def test_unrequested_certificate_fails_policy_compliance() -> None:
    tasks = (GENERATOR.make_task("train", 1, "status", "easy", n) for n in range(200))
    task = next(t for t in tasks if t.outputs == ("cancelled|canceled",) and _is_compensable(t))
    *before, answer = task.gold
    reservation = next(c.arguments["reservation_id"] for c in task.gold_calls if "reservation_id" in c.arguments)
    flight = task.gold_calls[-1].arguments["flight"]
    issue = gold_call("issue_certificate", reservation_id=reservation, flight=flight)
    assert play(task, Script(*before, issue, answer))[0].parts["policy_compliance"] == 0.0
    tools = AirlineTools(state := DOMAIN.initial_state(task))
    for each in (*task.gold_calls, *issue.tool_calls):
        tools.call_sync(each)
    assert state.changes() != DOMAIN.gold_changes(task)


def _is_compensable(task: Task) -> bool:
    """Return whether the reservation of a task could be compensated if the customer asked."""
    key = next(c.arguments["reservation_id"] for c in task.gold_calls if "reservation_id" in c.arguments)
    return DOMAIN.initial_state(task).tables()["reservations"][key].cabin != "basic economy"


def test_tools_refuse_calls_after_transfer() -> None:
    desk = Desk()
    desk.do("transfer_to_human", summary="a lost bag")
    assert "has been transferred" in desk.refusal("get_reservation", reservation_id="ECO")
    assert "has been transferred" in desk.refusal("add_bags", reservation_id="ECO", bags=1)


def test_unnecessary_transfer_fails_state_match() -> None:
    for task in (find_task("cancel", granted=False), find_task("fare", granted=False)):
        *before, last = task.gold
        assert (
            play(task, Script(*before, gold_call("transfer_to_human", summary="no"), last))[0].parts["state_match"]
            == 0.0
        )


def test_partially_completed_task_earns_no_reward() -> None:
    task = two_change_task()
    first = next(i for i, m in enumerate(task.gold) if m.tool_calls and m.tool_calls[0].name not in READS)
    assert play(task, Script(*task.gold[: first + 1], gold_text("Done.")))[0].reward == 0.0
