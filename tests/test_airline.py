"""The rules of the airline's policy, one test for each row of rules.md."""

import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import script
from script import Script
from understudy.agent import Agent
from understudy.domains.airline import DOMAIN
from understudy.domains.airline.itineraries import day_key, offers, paths
from understudy.domains.airline.network import PLACES
from understudy.domains.airline.state import NOW, TODAY, AirlineState, Airport, Customer, Day, Flight, Reservation
from understudy.domains.airline.tasks import make
from understudy.domains.airline.terms import free_bags, misspelt
from understudy.domains.airline.tools import AirlineTools
from understudy.domains.airline.world import world
from understudy.domains.drafts import call, say
from understudy.messages import Message
from understudy.tasks import Score, Task

AMY, BEN = "amy.lee42@mail.com", "ben.ortiz17@mail.com"
FLIGHTS = {
    "KA1": ("DEN", "BOS", "08:00", "12:00"),
    "KA2": ("BOS", "DEN", "13:00", "17:00"),
    "KA3": ("DEN", "ORD", "09:00", "11:00"),
    "KA4": ("ORD", "BOS", "11:30", "13:30"),
    "KA5": ("ORD", "BOS", "12:00", "14:00"),
    "KA6": ("ORD", "BOS", "18:00", "20:00"),
}
PAST_DAY, DAY, OTHER_DAY, BACK = "2025-05-10", "2025-05-20", "2025-05-22", "2025-05-25"
LATER = {OTHER_DAY: 15}
"""What a date is dearer than the others."""


def trip(date: str, *flights: str, cabin: str = "economy") -> dict[str, Any]:
    fares = {"basic economy": 60, "economy": 100, "business": 300}
    route = f"{FLIGHTS[flights[0]][0]}-{FLIGHTS[flights[-1]][1]}"
    return {
        "date": date,
        "route": route,
        "flights": flights,
        "fare": len(flights) * (fares[cabin] + LATER.get(date, 0)),
    }


def reserved(key: str, cabin: str, *trips: dict[str, Any], **fields: Any) -> dict[str, Any]:
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
    reserved("ECO", "economy", trip(DAY, "KA1"), trip(BACK, "KA2"), passengers=["Amy Lee", "Zoe Lee"]),
    reserved("BIZ", "business", trip(DAY, "KA3", "KA5", cabin="business")),
    reserved("BAS", "basic economy", trip(DAY, "KA1", cabin="basic economy"), booked="2025-05-14 10:01"),
    reserved("OLD", "economy", trip(PAST_DAY, "KA1"), trip(BACK, "KA2")),
    reserved("BEN", "economy", trip(DAY, "KA1"), passengers=["Ben Ortiz"]),
)


def small() -> AirlineState:
    """Two customers. Amy has four reservations: see RESERVATIONS; Ben has one."""
    seats = {"basic economy": 60, "economy": 100, "business": 300}
    days = {
        day_key(flight, date): Day.model_validate(
            {
                "cabins": {name: {"seats": 3, "fare": fare + LATER.get(date, 0)} for name, fare in seats.items()},
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
        airports={code: Airport(city=PLACES[code][0]) for code in ("DEN", "BOS", "ORD")},
    )


class Desk(script.Desk):
    """The tools on the small airline, with Amy found and her reservations read unless said otherwise."""

    def __init__(self, customer: str = AMY, read: bool = True, **setup: dict[str, Any]) -> None:
        state = small()
        state.patch(setup)
        super().__init__(state, AirlineTools(state))
        found = self.do("find_customer", email=customer) if customer else {"reservations": []}
        for key in found["reservations"] if read else ():
            self.do("get_reservation", reservation_id=key)

    def search(self, origin: str, destination: str, date: str, cabin: str = "economy") -> list[list[str]]:
        """Both searches; the flights found."""
        way = {"origin": origin, "destination": destination, "date": date, "cabin": cabin}
        return [offer["flights"] for tool in ("search_direct", "search_one_stop") for offer in self.do(tool, **way)]

    def book(self, *, searched: bool = True, **other: Any) -> dict[str, Any]:
        """The arguments of a booking from Denver to Boston for Amy, searched for unless said otherwise."""
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
CHANGES: dict[str, dict[str, Any]] = {
    "cancel_reservation": {"reason": "change of plans"},
    "change_flights": {"way": "outbound", "flights": ["KA1"], "date": OTHER_DAY},
    "change_cabin": {"cabin": "business"},
    "correct_name": {"name": "Amy Lee", "new_name": "Amie Lee"},
    "add_bags": {"bags": 1},
    "add_insurance": {},
}
"""Every tool that changes a reservation, with arguments that fit."""


def off(flight: str, date: str, status: str, delay: int = 0) -> dict[str, Any]:
    """A setup of one flight's status."""
    return {"days": {day_key(flight, date): {"status": status, "delay": delay}}}


def play(task: Task, agent: Agent) -> tuple[Score, list[Message]]:
    return script.play(DOMAIN, task, agent)


def drawn(family: str, granted: bool, difficulty: str = "easy") -> Task:
    """A task whose request can be granted, or not."""
    tasks = (make("train", 1, family, difficulty, n) for n in range(100))  # type: ignore[arg-type]
    return next(t for t in tasks if granted == any(c.name not in READS for c in t.actions))


# ---- the rules, row by row ----


@pytest.mark.parametrize("tool", sorted(spec.name for spec in DOMAIN.specs))
def test_nothing_works_before_the_customer_is_found(tool: str) -> None:
    arguments: dict[str, Any] = {
        "reservation_id": "ECO", "flights": ["KA1"], "date": DAY, "passengers": ["Amy Lee"], "cabin": "business",
        "payment_id": "card_1", "reason": "illness", "way": "outbound", "name": "Amy Lee", "new_name": "Ami Lee",
        "bags": 1, "flight": "KA1", "origin": "DEN", "destination": "BOS", "summary": "help", "expression": "1+1",
    }  # fmt: skip
    required = next(spec for spec in DOMAIN.specs if spec.name == tool).parameters.get("required", ())
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
    task = drawn("bags", granted=True)
    wrong = [_with(m, "bags", 2) for m in task.gold]
    assert play(task, Script(*wrong))[0].parts["state"] == 0.0


def _with(message: Message, name: str, value: object) -> Message:
    calls = tuple(
        c.replace(arguments={**c.arguments, name: value}) if name in c.arguments else c for c in message.tool_calls
    )
    return message.replace(tool_calls=calls)


def test_one_customer_per_conversation() -> None:
    desk = Desk()
    assert "another customer" in desk.refusal("find_customer", email=BEN)
    assert "another customer" in desk.refusal("find_customer_by_name", name="Ben Ortiz", zip="73301")
    assert desk.do("find_customer", email=AMY)["name"] == "Amy Lee"


def test_the_data_of_others_is_closed() -> None:
    desk = Desk()
    none = desk.refusal("get_reservation", reservation_id="NIL")
    assert desk.refusal("get_reservation", reservation_id="BEN") == none.replace("NIL", "BEN")
    for tool, arguments in {**CHANGES, "issue_certificate": {"flight": "KA1"}}.items():
        assert "no reservation" in desk.refusal(tool, reservation_id="BEN", **arguments)
    assert "no payment" in desk.refusal("add_bags", reservation_id="BIZ", bags=3, payment_id="card_4")
    assert list(desk.do("get_customer")["payments"]) == ["card_1", "gift_2", "certificate_3"]


def test_a_fact_counts_once_a_tool_has_shown_it() -> None:
    task = drawn("bags", granted=False)
    found = next(m for m in task.gold if m.tool_calls)
    asks = [m for m in task.gold[:1] if not m.tool_calls]
    assert play(task, Script(*asks, found, task.gold[-1]))[0].parts.items() >= {"state": 1.0, "said": 0.0}.items()


@pytest.mark.parametrize("tool", CHANGES)
def test_a_reservation_is_read_before_it_is_changed(tool: str) -> None:
    desk = Desk(read=False, reservations={"ECO": {"booked": f"{TODAY} 08:00"}})
    desk.search("DEN", "BOS", OTHER_DAY)
    desk.search("DEN", "BOS", DAY, "business")
    desk.search("BOS", "DEN", BACK, "business")
    assert "read reservation ECO first" in desk.refusal(tool, reservation_id="ECO", **CHANGES[tool])
    desk.do("get_reservation", reservation_id="ECO")
    desk.do(tool, reservation_id="ECO", **CHANGES[tool])


def test_a_status_is_read_before_compensation() -> None:
    desk = Desk(**off("KA1", PAST_DAY, "cancelled"))
    assert "read the status" in desk.refusal("issue_certificate", reservation_id="OLD", flight="KA1")
    desk.do("get_flight_status", flight="KA1", date=DAY)
    assert "read the status" in desk.refusal("issue_certificate", reservation_id="OLD", flight="KA1")
    desk.do("get_flight_status", flight="KA1", date=PAST_DAY)
    desk.do("issue_certificate", reservation_id="OLD", flight="KA1")
    task = drawn("status", granted=False)
    unread = [m for m in task.gold if not any(c.name == "get_flight_status" for c in m.tool_calls)]
    assert play(task, Script(*unread))[0].parts["said"] == 0.0


def test_flights_come_from_a_search() -> None:
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


def test_direct_flights_come_before_connections() -> None:
    """Gold looks for connections exactly where there is no direct flight, and another trip earns nothing."""
    for task in (make("train", 4, "book", "medium", n) for n in range(60)):
        direct = [c.arguments for c in task.actions if c.name == "search_direct"]
        stops = [c.arguments for c in task.actions if c.name == "search_one_stop"]
        assert stops == [way for way in direct if not paths(world(), way["origin"], way["destination"], 0)]
    task = next(t for t in (make("train", 4, "book", "easy", n) for n in range(90)) if _by_detour(t))
    book = next(m for m in task.gold if m.tool_calls and m.tool_calls[0].name == "book_flights")
    detour, look = _by_detour(task)[0], next(c for c in task.actions if c.name == "search_direct")
    *before, _, report = task.gold
    turns = [*before[:-2], call("search_one_stop", **look.arguments), *before[-2:]]
    score, messages = play(task, Script(*turns, _with(book, "flights", list(detour)), report))
    assert any('"status":"booked"' in m.content for m in messages)
    assert (score.parts["policy"], score.parts["state"]) == (1.0, 0.0)


def _by_detour(task: Task) -> list[tuple[str, ...]]:
    """Connections that could be booked instead of a task's direct flight."""
    way = next(c.arguments for c in task.actions if c.name == "search_direct")
    found = paths(world(), way["origin"], way["destination"], 1) if task.actions[-1].name == "book_flights" else []
    return [o.flights for o in offers(world(), found, way["date"], way["cabin"]) if o.seats != "sold out"]


def several() -> Task:
    """A task of two changes."""
    tasks = (make("train", 1, "several", "medium", n) for n in range(300))
    return next(t for t in tasks if sum(c.name not in READS for c in t.actions) == 2)


def test_one_yes_covers_one_change() -> None:
    task = several()
    first, second = (m for m in task.gold if m.tool_calls and m.tool_calls[0].name not in READS)
    reads = [m for m in task.gold if m.tool_calls and m.tool_calls[0].name == "get_reservation"]
    both = first.replace(tool_calls=first.tool_calls + second.tool_calls)
    _, messages = play(task, Script(*reads_first(task, first, reads), both))
    assert any("confirmed one change" in m.content for m in messages if m.role == "tool")


def reads_first(task: Task, change: Message, reads: list[Message]) -> list[Message]:
    """The gold turns before a change, with all reservations read before the proposal."""
    before = [m for m in task.gold[: task.gold.index(change)] if m not in reads]
    return [*before[:-1], *reads, before[-1]]


def test_the_user_says_yes_to_the_right_proposal_alone() -> None:
    task = drawn("bags", granted=True)
    proposal = next(m for m in task.gold if "Do you confirm?" in m.content)
    before = task.gold[: task.gold.index(proposal)]
    assert _agrees(task, [*before, proposal])
    for wrong in (
        proposal.content.replace("bag", "suitcase"),
        re.sub(r"reservation \w+", "reservation XX0XX0", proposal.content),
        "I will do it. Do you confirm?",
        proposal.content.replace("I will", "I cannot"),
    ):
        assert not _agrees(task, [*before, say(wrong)])


def _agrees(task: Task, turns: list[Message]) -> bool:
    return any(m.content.startswith("Yes") for m in play(task, Script(*turns))[1] if m.role == "user")


@pytest.mark.parametrize("family", ["insurance", "flights", "cabin", "book", "compensation"])
def test_the_user_says_yes_to_the_right_price_alone(family: str) -> None:
    task = drawn(family, granted=True)
    proposal = next(m for m in task.gold if "Do you confirm?" in m.content)
    before = task.gold[: task.gold.index(proposal)]
    assert _agrees(task, [*before, proposal])
    assert not _agrees(task, [*before, say(re.sub(r"\d+\.\d\d", "1.00", proposal.content))])
    assert not _agrees(task, [*before, say(re.sub(r" \S+ \d+\.\d\d", "", proposal.content))])


@pytest.mark.parametrize("family", ["cancel", "insurance", "compensation", "flights", "book"])
def test_a_refusal_names_its_reason(family: str) -> None:
    task = drawn(family, granted=False)
    *before, _ = task.gold
    assert play(task, Script(*before, say("I am sorry, I cannot do that.")))[0].parts["said"] == 0.0
    assert play(task, Script(*task.gold))[0].reward == 1.0


def test_one_to_four_passengers_are_booked() -> None:
    desk = Desk(days={day_key("KA1", DAY): {"cabins": {"economy": {"seats": 9}}}})
    for names in ([], ["Amy Lee", "Amy  Lee"], [f"P{n}" for n in range(5)]):
        assert "one to 4" in desk.refusal("book_flights", **desk.book(passengers=names))
    booked = desk.do("book_flights", **desk.book(passengers=["Zoe Lee", " Amy  Lee", "P1", "P2"]))
    assert desk.state.reservations[booked["reservation"]].passengers == ("Amy Lee", "P1", "P2", "Zoe Lee")
    assert desk.do("get_customer")["reservations"][-1] == booked["reservation"]


def test_a_booking_costs_fares_bags_and_insurance() -> None:
    desk = Desk()
    assert desk.do("book_flights", **desk.book())["charge"] == "100.00"
    two = {"passengers": ["Amy Lee", "Zoe Lee"], "bags": 3, "insurance": True, "return_flights": ["KA2"]}
    booked = desk.do("book_flights", **desk.book(**two, return_date=BACK))
    assert booked["charge"] == "500.00", "2 * (100 + 100 + 30) + 40 for the third bag"
    kept = desk.state.reservations[booked["reservation"]]
    assert (kept.booked, kept.bags, kept.insurance) == (f"{NOW:%Y-%m-%d %H:%M}", 3, True)
    assert [(t.route, t.fare) for t in kept.trips] == [("DEN-BOS", Decimal(100)), ("BOS-DEN", Decimal(100))]


def test_trips_back_lead_back_and_later() -> None:
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


def test_connections_leave_time_to_change_planes() -> None:
    desk = Desk()
    assert desk.search("DEN", "BOS", DAY) == [["KA1"], ["KA3", "KA5"]], "KA4 leaves too early, KA6 too late"
    way = {"origin": "DEN", "destination": "BOS", "date": DAY, "cabin": "business"}
    assert desk.do("search_one_stop", **way) == [
        {"flights": ["KA3", "KA5"], "departs": "09:00", "arrives": "14:00", "fare": "600.00", "seats": 3, "via": "ORD"}
    ]


def test_only_flights_still_to_come_are_offered() -> None:
    desk = Desk(**off("KA1", DAY, "cancelled"))
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
def test_free_bags_follow_cabin_and_level(level: Any, cabin: Any, free: int) -> None:
    assert free_bags(level, cabin, 2) == free
    desk = Desk(
        customers={AMY: {"level": level}}, reservations={"ECO": {"cabin": cabin, "bags": free - 1 if free else 0}}
    )
    if free:
        assert "charge" not in desk.do("add_bags", reservation_id="ECO", bags=1)
    assert desk.do("add_bags", reservation_id="ECO", bags=2)["charge"] == "80.00"
    assert desk.state.reservations["ECO"].bags == free + 2
    assert desk.state.reservations["ECO"].paid == Decimal("480.00")


def test_bags_have_a_limit_and_are_not_taken_off() -> None:
    desk = Desk()
    for bags in (0, -1):
        assert "not taken off" in desk.refusal("add_bags", reservation_id="ECO", bags=bags)
    assert "at most 10 bags, not 11" in desk.refusal("add_bags", reservation_id="ECO", bags=11)
    assert "at most 5 bags" in desk.refusal("book_flights", **desk.book(bags=6))
    assert "at most 5 bags" in desk.refusal("book_flights", **desk.book(bags=-1))
    desk.do("add_bags", reservation_id="ECO", bags=10)
    assert "not 11" in desk.refusal("add_bags", reservation_id="ECO", bags=1)


def test_insurance_is_sold_within_a_day() -> None:
    desk = Desk()
    assert desk.do("add_insurance", reservation_id="BAS")["charge"] == "30.00"
    assert "insured already" in desk.refusal("add_insurance", reservation_id="BAS")
    refusal = desk.refusal("add_insurance", reservation_id="ECO")
    assert "booked on 2025-05-01 09:00, more than 24 hours ago" in refusal
    for booked, sold in (("2025-05-14 10:00", True), ("2025-05-14 09:59", False)):
        desk = Desk(reservations={"ECO": {"booked": booked}})
        if sold:
            assert desk.do("add_insurance", reservation_id="ECO")["charge"] == "60.00"
        else:
            assert "more than 24 hours" in desk.refusal("add_insurance", reservation_id="ECO")


def test_a_gift_card_has_to_hold_the_charge() -> None:
    desk = Desk()
    assert "holds 50.00, less than 100.00" in desk.refusal("book_flights", **desk.book(payment_id="gift_2"))
    assert "holds 50.00, less than 80.00" in desk.refusal("add_bags", reservation_id="BAS", bags=2, payment_id="gift_2")
    desk.do("add_bags", reservation_id="BAS", bags=1, payment_id="gift_2")
    assert desk.balance() == "10.00"
    assert "holds 10.00, less than 30.00" in desk.refusal("add_insurance", reservation_id="BAS", payment_id="gift_2")
    assert "new bookings only" in desk.refusal("add_insurance", reservation_id="BAS", payment_id="certificate_3")
    assert "new bookings only" in desk.refusal("book_flights", **desk.book(payment_id="certificate_3"))


def test_a_certificate_is_used_up() -> None:
    desk = Desk()
    booked = desk.do("book_flights", **desk.book(certificate_id="certificate_3"))
    assert booked["charge"] == "0.00"
    assert list(desk.do("get_customer")["payments"]) == ["card_1", "gift_2"], "the other 50.00 are lost"
    assert desk.state.reservations[booked["reservation"]].certificate == Decimal("100.00")
    assert "no payment" in desk.refusal("book_flights", **desk.book(certificate_id="certificate_3"))
    assert "is no certificate" in desk.refusal("book_flights", **desk.book(certificate_id="gift_2"))
    desk = Desk()
    two = desk.book(certificate_id="certificate_3", payment_id="gift_2", passengers=["Amy Lee", "Zoe Lee"])
    assert desk.do("book_flights", **two)["charge"] == "50.00"
    assert desk.balance() == "0.00"


@pytest.mark.parametrize("status", ["departed", "landed"])
@pytest.mark.parametrize("tool", CHANGES)
def test_nothing_flown_is_changed(tool: str, status: str) -> None:
    desk = Desk(**off("KA1", PAST_DAY, status))
    desk.search("DEN", "BOS", OTHER_DAY)
    assert f"flight KA1 of {PAST_DAY} has {status}" in desk.refusal(tool, reservation_id="OLD", **CHANGES[tool])


def test_a_trip_still_ahead_can_be_changed() -> None:
    desk = Desk()
    desk.search("BOS", "DEN", OTHER_DAY)
    assert desk.do("change_flights", reservation_id="OLD", way="return", flights=["KA2"], date=OTHER_DAY)
    assert [t.date for t in desk.state.reservations["OLD"].trips] == [PAST_DAY, OTHER_DAY]


@pytest.mark.parametrize("tool", CHANGES)
def test_a_cancelled_reservation_stays_as_it_is(tool: str) -> None:
    desk = Desk(reservations={"ECO": {"cancelled": "illness"}})
    desk.search("DEN", "BOS", OTHER_DAY)
    assert "reservation ECO is cancelled" in desk.refusal(tool, reservation_id="ECO", **CHANGES[tool])
    assert "is cancelled" in desk.refusal("issue_certificate", reservation_id="ECO", flight="KA1")


def test_flights_change_on_their_route() -> None:
    desk = Desk()
    for way in (("DEN", "BOS"), ("BOS", "DEN"), ("DEN", "ORD")):
        for cabin in ("basic economy", "economy"):
            desk.search(*way, OTHER_DAY, cabin)
            desk.search(*way, DAY, cabin)
    change: dict[str, Any] = {"reservation_id": "ECO", "way": "outbound", "date": OTHER_DAY}
    assert "on the route DEN-BOS" in desk.refusal("change_flights", **change, flights=["KA3"])
    same = {**change, "date": DAY}
    assert "other ones" in desk.refusal("change_flights", **same, flights=["KA1"])
    assert "is basic economy" in desk.refusal("change_flights", **{**change, "reservation_id": "BAS"}, flights=["KA1"])
    desk.do("change_flights", **change, flights=["KA3", "KA5"])
    changed = desk.state.reservations["ECO"].trips
    assert (changed[0].flights, changed[0].date, changed[0].fare) == (("KA3", "KA5"), OTHER_DAY, Decimal("230.00"))
    assert changed[1].flights == ("KA2",)
    one_way = {**change, "reservation_id": "BIZ", "way": "return"}
    assert "no return trip" in desk.refusal("change_flights", **one_way, flights=["KA2"])


def test_the_cabin_changes_for_all_trips() -> None:
    desk = Desk()
    for way in (("DEN", "BOS", DAY), ("BOS", "DEN", BACK)):
        desk.search(*way, "business")
        desk.search(*way, "economy")
    for key in ("ECO", "BIZ"):
        same = desk.state.reservations[key].cabin
        assert f"is in {same} already" in desk.refusal("change_cabin", reservation_id=key, cabin=same)
    assert "is basic economy" in desk.refusal("change_cabin", reservation_id="BAS", cabin="economy")
    assert "bad arguments" in desk.refusal("change_cabin", reservation_id="ECO", cabin="basic economy")
    assert desk.do("change_cabin", reservation_id="ECO", cabin="business")["charge"] == "800.00"
    assert [t.fare for t in desk.state.reservations["ECO"].trips] == [Decimal(300)] * 2
    assert desk.do("change_cabin", reservation_id="BIZ", cabin="economy")["refund"] == "400.00"


def test_seats_are_taken_and_given_back() -> None:
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


def test_a_difference_is_charged_or_paid_back() -> None:
    desk = Desk()
    for date in (DAY, OTHER_DAY):
        desk.search("DEN", "BOS", date)
    change = {"reservation_id": "ECO", "way": "outbound", "flights": ["KA1"], "payment_id": "gift_2"}
    assert desk.do("change_flights", **change, date=OTHER_DAY)["charge"] == "30.00"
    assert (desk.balance(), desk.state.reservations["ECO"].paid) == ("20.00", Decimal("430.00"))
    assert desk.do("change_flights", **change, date=DAY)["refund"] == "30.00"
    assert (desk.balance(), desk.state.reservations["ECO"].paid) == ("50.00", Decimal("400.00"))


def test_what_is_booked_changed_and_cancelled_leaves_money_and_seats_as_they_were() -> None:
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


def test_three_letters_of_a_name_are_corrected() -> None:
    desk = Desk()
    correct = {"reservation_id": "ECO", "name": "Zoe Lee"}
    assert "more than 3 letters" in desk.refusal("correct_name", **correct, new_name="Zoe Miller")
    assert "passengers are" in desk.refusal("correct_name", **correct, new_name="Amy Lee")
    assert "passengers are" in desk.refusal("correct_name", reservation_id="ECO", name="Zoe", new_name="Zoey")
    desk.do("correct_name", **correct, new_name="Zoey  Leah")
    assert desk.state.reservations["ECO"].passengers == ("Amy Lee", "Zoey Leah")


@given(st.text("ab ", max_size=6), st.text("ab ", max_size=6), st.text("ab ", max_size=6))
def test_letters_between_names_are_a_distance(one: str, other: str, third: str) -> None:
    assert misspelt(one, other) == misspelt(other, one)
    assert (misspelt(one, other) == 0) == (one == other)
    assert misspelt(one, third) <= misspelt(one, other) + misspelt(other, third)
    assert abs(len(one) - len(other)) <= misspelt(one, other) <= max(len(one), len(other))


@pytest.mark.parametrize(
    ("setup", "reason", "text"),
    [
        ({"booked": "2025-05-14 10:00"}, "change of plans", ""),
        ({"booked": "2025-05-14 09:59"}, "change of plans", "booked on 2025-05-14 09:59, more than 24 hours ago"),
        ({"cabin": "business"}, "change of plans", ""),
        ({"insurance": True}, "illness", ""),
        ({"insurance": True}, "change of plans", "insurance covers illness alone"),
        ({}, "illness", "without insurance"),
        ({"trips": [trip(TODAY, "KA2")]}, "flight cancelled", ""),
        ({"insurance": True}, "flight cancelled", "has cancelled no flight"),
    ],
)
def test_four_cases_can_be_cancelled(setup: dict[str, Any], reason: str, text: str) -> None:
    desk = Desk(reservations={"ECO": setup}, **off("KA2", TODAY, "cancelled"))
    if text:
        assert text in desk.refusal("cancel_reservation", reservation_id="ECO", reason=reason)
    else:
        assert desk.do("cancel_reservation", reservation_id="ECO", reason=reason)["status"] == "cancelled"
        assert desk.state.reservations["ECO"].cancelled == reason


def test_a_cancelled_reservation_is_paid_back() -> None:
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
def test_compensation_is_for_cancelled_and_long_delayed_flights(status: str, delay: int, amount: str) -> None:
    desk = Desk(**off("KA1", DAY, status, delay))
    desk.do("get_flight_status", flight="KA1", date=DAY)
    give = {"reservation_id": "ECO", "flight": "KA1"}
    if not amount:
        assert f"is {status}, its delay {delay} minutes" in desk.refusal("issue_certificate", **give)
        return
    assert desk.do("issue_certificate", **give)["certificate"] == "certificate_ECO"
    assert desk.do("get_customer")["payments"]["certificate_ECO"] == {"balance": amount}
    assert "was compensated" in desk.refusal("issue_certificate", **give)
    assert "has no flight 'KA3'" in desk.refusal("issue_certificate", reservation_id="ECO", flight="KA3")
    assert "is basic economy" in desk.refusal("issue_certificate", reservation_id="BAS", flight="KA1")


def test_an_unasked_certificate_earns_nothing() -> None:
    tasks = (make("train", 1, "status", "easy", n) for n in range(200))
    task = next(t for t in tasks if t.outputs == ("cancelled|canceled",) and _compensated(t))
    *before, answer = task.gold
    reservation = next(c.arguments["reservation_id"] for c in task.actions if "reservation_id" in c.arguments)
    flight = task.actions[-1].arguments["flight"]
    issue = call("issue_certificate", reservation_id=reservation, flight=flight)
    assert play(task, Script(*before, issue, answer))[0].parts["policy"] == 0.0
    tools = AirlineTools(state := DOMAIN.initial(task))
    for each in (*task.actions, *issue.tool_calls):
        tools.run(each)
    assert state.changes() != DOMAIN.goal(task)


def _compensated(task: Task) -> bool:
    """Whether the reservation of a task could be compensated if the customer asked."""
    key = next(c.arguments["reservation_id"] for c in task.actions if "reservation_id" in c.arguments)
    return DOMAIN.initial(task).tables()["reservations"][key].cabin != "basic economy"


def test_a_transfer_is_the_last_call() -> None:
    desk = Desk()
    desk.do("transfer_to_human", summary="a lost bag")
    assert "has been transferred" in desk.refusal("get_reservation", reservation_id="ECO")
    assert "has been transferred" in desk.refusal("add_bags", reservation_id="ECO", bags=1)


def test_a_needless_transfer_earns_nothing() -> None:
    for task in (drawn("cancel", granted=False), drawn("fare", granted=False)):
        *before, last = task.gold
        assert play(task, Script(*before, call("transfer_to_human", summary="no"), last))[0].parts["state"] == 0.0


def test_half_of_the_requests_earn_nothing() -> None:
    task = several()
    first = next(i for i, m in enumerate(task.gold) if m.tool_calls and m.tool_calls[0].name not in READS)
    assert play(task, Script(*task.gold[: first + 1], say("Done.")))[0].reward == 0.0
