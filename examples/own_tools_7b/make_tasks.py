"""Write database.json and tasks.jsonl, always the same: python make_tasks.py [FOLDER]

Each part has one task of each family. Splits share no part.
"""

import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KINDS = ("air filter", "alternator", "brake pad", "clutch disc", "fuel pump", "headlamp", "oil filter", "spark plug")
VEHICLES = ("bus", "tractor", "tram", "truck", "van")
DEPOTS = ("Graz", "Lyon", "Oslo")
SUPPLIERS = ("Arden", "Borel", "Corvin", "Delft")
SPLITS = ("train",) * 7 + ("validation",) + ("test",) * 2
PEOPLE = (
    "Ada",
    "Bruno",
    "Carla",
    "Dario",
    "Elif",
    "Farid",
    "Greta",
    "Hana",
    "Ivo",
    "Jana",
    "Karim",
    "Lena",
    "Marek",
    "Nora",
)
PLACES = ("the night shift", "the paint shop", "the front desk", "the tyre bay", "the road service", "the test lane")
REASONS = (
    "A customer is waiting at the counter.",
    "The inspection is on Friday and I am still missing this.",
    "My notes got wet, so I have to ask you.",
    "We promised the owner an answer by noon.",
    "The vehicle stands on the lift and blocks the hall.",
    "I am on the road and cannot reach the system.",
    "The monthly plan has a gap here.",
    "Our apprentice mixed up the labels this morning.",
    "The foreman wants to know before the meeting.",
)
"""Who asks and why, so that no two requests have nearly the same words."""

Row = dict[str, Any]
Calls = list[tuple[str, Row]]
Request = tuple[str, Calls, str, str]
"""The user's words, the reference calls, the fact to tell, and the reference answer."""


def make_database(rng: random.Random) -> Row:
    """Return the parts, the stock, the offers, and an open or shipped order of each part."""
    parts = {f"P{n}": f"{kind} for the {vehicle}" for n, (kind, vehicle) in enumerate(_pairs(), 101)}
    stock = {part: dict(zip(DEPOTS, rng.sample(range(12, 90), 3), strict=True)) for part in parts}
    offers, orders = {}, {}
    for number, part in enumerate(parts):
        prices, days = rng.sample(range(400, 4000, 5), 4), rng.sample(range(2, 15), 4)
        offers[part] = [
            {"supplier": supplier, "unit_price": price / 100, "min_quantity": least, "delivery_days": day}
            for supplier, price, least, day in zip(
                SUPPLIERS, prices, rng.choices((1, 5, 10, 20, 30), k=4), days, strict=True
            )
        ]
        offer, quantity = rng.choice(offers[part]), rng.randint(30, 60)
        orders[f"R{1001 + number}"] = {
            "part_id": part,
            "supplier": offer["supplier"],
            "quantity": quantity,
            "depot": rng.choice(DEPOTS),
            "total": round(quantity * offer["unit_price"], 2),
            "status": rng.choice(("open", "shipped")),
            "days_until_arrival": offer["delivery_days"],
        }
    return {"parts": parts, "stock": stock, "offers": offers, "orders": orders}


def make_tasks(database: Row, rng: random.Random) -> Iterator[Row]:
    """Yield the tasks of each part."""
    for family, difficulty, make in (
        ("stock", "easy", count_pieces),
        ("order", "medium", order_in_time),
        ("move", "medium", move_pieces),
        ("cancel", "medium", cancel_or_wait),
        ("top_up", "hard", top_up),
    ):
        parts = database["parts"]
        openings = rng.sample([*itertools.product(PLACES, REASONS)], len(parts))
        for number, (part, (place, reason)) in enumerate(zip(parts, openings, strict=True)):
            request, calls, fact, answer = make(database, part, rng)
            yield {
                "id": f"spare_parts/{family}/{part}",
                "family": family,
                "difficulty": difficulty,
                "split": SPLITS[number * 3 % len(SPLITS)],
                "prompt": f"This is {rng.choice(PEOPLE)} from {place}. {reason} {request}",
                "gold_calls": calls,
                "fact": fact,
                "answer": answer,
            }


def count_pieces(database: Row, part: str, rng: random.Random) -> Request:
    """Ask for the stock of a depot."""
    name, depot = database["parts"][part], rng.choice(DEPOTS)
    pieces = database["stock"][part][depot]
    request = rng.choice(
        (
            f"How many pieces of the {name} are in {depot}?",
            f"What does {depot} have in stock of the {name}?",
            f"Please count for me what is left of the {name} in {depot}.",
        )
    )
    return request, [find(name), ("get_stock", {"part_id": part})], str(pieces), f"{depot} has {pieces} pieces."


def order_in_time(database: Row, part: str, rng: random.Random) -> Request:
    """Ask for an order from the cheapest supplier that sells so few pieces and delivers in time."""
    name, depot, offers = database["parts"][part], rng.choice(DEPOTS), database["offers"][part]
    quantity = rng.randint(min(offer["min_quantity"] for offer in offers), 40)
    days = rng.choice([offer["delivery_days"] for offer in offers if offer["min_quantity"] <= quantity])
    offer = cheapest(offers, quantity, days)
    request = rng.choice(
        (
            f"{depot} needs {quantity} pieces of the {name} within {days} days. Order them from the cheapest "
            "supplier that can deliver in time, and tell me the total price.",
            f"Buy {quantity} pieces of the {name} for {depot} as cheaply as possible. They have to be there in "
            f"{days} days at the latest. What do we pay in all?",
            f"Which total do I write down for {quantity} pieces of the {name}? Order them to {depot} where they "
            f"cost least among the suppliers that need no more than {days} days.",
        )
    )
    call = ("order_part", {"part_id": part, "supplier": offer["supplier"], "quantity": quantity, "depot": depot})
    total = f"{quantity * offer['unit_price']:.2f}"
    return request, [find(name), ("list_offers", {"part_id": part}), call], total, f"I ordered them for {total} euros."


def move_pieces(database: Row, part: str, rng: random.Random) -> Request:
    """Ask to move pieces from the depot that has most of them."""
    name, stock = database["parts"][part], database["stock"][part]
    source = max(DEPOTS, key=stock.__getitem__)
    target = rng.choice([depot for depot in DEPOTS if depot != source])
    quantity = rng.randint(3, min(stock[source], 25))
    request = rng.choice(
        (
            f"Move {quantity} pieces of the {name} to {target}, from the depot that has most of them. How many "
            f"pieces does {target} have then?",
            f"{target} is short of the {name}. Send {quantity} pieces there out of the largest stock and tell me "
            f"the new number in {target}.",
            f"Please take {quantity} pieces of the {name} where we have most and bring them to {target}. I need to "
            f"know with how many {target} ends up.",
        )
    )
    call = ("move_stock", {"part_id": part, "from_depot": source, "to_depot": target, "quantity": quantity})
    now = str(stock[target] + quantity)
    return request, [find(name), ("get_stock", {"part_id": part}), call], now, f"{target} now has {now} pieces."


def cancel_or_wait(database: Row, part: str, rng: random.Random) -> Request:
    """Ask to cancel an order, or if that is too late for the days until it arrives."""
    order_id, order = next((key, order) for key, order in database["orders"].items() if order["part_id"] == part)
    goods = f"{order['quantity']} pieces of the {database['parts'][part]}"
    request = rng.choice(
        (
            f"Cancel order {order_id} of {goods} and tell me how much money comes back. If it is too late for that, "
            "tell me in how many days the order arrives.",
            f"I do not want {order_id} any more, the {goods}. What do we get back? Should it be on its way already, "
            "say how many days it still takes.",
            f"Please stop the {goods} that {order_id} is about. Give me the refund, or the days until they are here "
            "in case nothing can be done.",
        )
    )
    read = ("get_order", {"order_id": order_id})
    if order["status"] == "open":
        total = f"{order['total']:.2f}"
        cancel = ("cancel_order", {"order_id": order_id})
        return request, [read, cancel], total, f"The order is cancelled, and {total} euros come back."
    days = str(order["days_until_arrival"])
    return request, [read], days, f"The order is on its way and arrives in {days} days."


def top_up(database: Row, part: str, rng: random.Random) -> Request:
    """Ask to fill a depot up, first from another depot, then by an order. The agent works out both quantities."""
    name, stock = database["parts"][part], database["stock"][part]
    target, source = rng.sample(DEPOTS, 2)
    kept = rng.choice([spare for spare in (5, 8, 10, 12, 15) if spare < stock[source]])
    moved, missing = stock[source] - kept, rng.randint(30, 60)
    wanted = stock[target] + moved + missing
    offer = cheapest(database["offers"][part], missing, 99)
    request = rng.choice(
        (
            f"{target} must get {wanted} pieces of the {name} in all. Move what {source} can spare if it keeps "
            f"{kept}, order the rest for {target} from the cheapest supplier, and tell me the total price of the "
            "order.",
            f"Fill {target} up to {wanted} pieces of the {name}. {source} gives everything but its last {kept}; buy "
            "what is still missing where it is cheapest. How much is that purchase?",
            f"We want {wanted} pieces of the {name} in {target}. Leave {kept} in {source} and send the others over. "
            "What then lacks comes by an order at the lowest price. Name me the sum of the order.",
        )
    )
    total = f"{missing * offer['unit_price']:.2f}"
    calls = [
        find(name),
        ("get_stock", {"part_id": part}),
        ("move_stock", {"part_id": part, "from_depot": source, "to_depot": target, "quantity": moved}),
        ("list_offers", {"part_id": part}),
        ("order_part", {"part_id": part, "supplier": offer["supplier"], "quantity": missing, "depot": target}),
    ]
    return request, calls, total, f"I moved what {source} could spare and ordered the rest for {total} euros."


def find(name: str) -> tuple[str, Row]:
    """Return the call that finds a part."""
    return "find_parts", {"words": name.replace(" for the", "")}


def cheapest(offers: list[Row], quantity: int, days: int) -> Row:
    """Return the offer with the lowest price of those for this quantity and time. Prices of a part differ."""
    possible = [offer for offer in offers if offer["min_quantity"] <= quantity and offer["delivery_days"] <= days]
    return min(possible, key=lambda offer: offer["unit_price"])


def write(folder: Path) -> None:
    """Write both files."""
    rng = random.Random(0)
    database = make_database(rng)
    (folder / "database.json").write_text(json.dumps(database, indent=1) + "\n", encoding="utf-8")
    rows = sorted(make_tasks(database, rng), key=lambda row: row["id"].rpartition("/")[2])  # families take turns
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "tasks.jsonl").write_text("".join(lines), encoding="utf-8")


def _pairs() -> Iterator[tuple[str, str]]:
    return ((kind, vehicle) for kind in KINDS for vehicle in VEHICLES)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
