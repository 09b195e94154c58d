"""The spare-parts desk of a workshop: seven tools over a small database, tasks from a file, and a reward.

understudy check spare_parts:TASKS
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from understudy import Message, ToolCall, ToolDataset, ToolEpisode, ToolError, ToolExample
from understudy.envs.rewards import extract_numbers, missing_facts

FOLDER = Path(__file__).parent
DATABASE = json.loads((FOLDER / "database.json").read_text(encoding="utf-8"))
"""`parts`: id to name; `stock`: part to depot to pieces; `offers`: part to a list of offers; `orders`: id to order."""

Depot = Literal["Graz", "Lyon", "Oslo"]
Quantity = Annotated[int, Field(gt=0)]


class DeskEpisode(ToolEpisode):
    """One episode. Public methods are the tools. The agent's changes are in `_stock` and `_orders`."""

    def __init__(self, example: ToolExample) -> None:
        super().__init__(example)
        self._stock: dict[str, dict[str, int]] = copy.deepcopy(DATABASE["stock"])
        self._orders: dict[str, dict[str, Any]] = copy.deepcopy(DATABASE["orders"])

    def find_parts(self, words: str) -> dict[str, str]:
        """Find parts by words of their name, such as "brake pad bus". Return the name of each part by its id."""
        wanted = words.lower().split()
        found = {part: name for part, name in DATABASE["parts"].items() if all(word in name for word in wanted)}
        if not wanted or not found:
            raise ToolError(f"no part has all words of {words!r} in its name; use fewer words, in the singular")
        return found

    def get_stock(self, part_id: str) -> dict[str, int]:
        """Get the pieces of a part in each depot."""
        return dict(self._stock[_known(part_id, "part", DATABASE["parts"])])

    def list_offers(self, part_id: str) -> list[dict[str, Any]]:
        """List the offers for a part: supplier, price of a piece, minimum quantity, and days until delivery."""
        offers: list[dict[str, Any]] = DATABASE["offers"][_known(part_id, "part", DATABASE["parts"])]
        return offers

    def get_order(self, order_id: str) -> dict[str, Any]:
        """Get an order: part, supplier, quantity, depot, total price, status, and days until it arrives."""
        return dict(self._orders[_known(order_id, "order", self._orders)])

    def order_part(self, part_id: str, supplier: str, quantity: Quantity, depot: Depot) -> dict[str, Any]:
        """Order pieces of a part from a supplier, to be delivered to a depot. Return the order's id and the order."""
        offer = next((offer for offer in self.list_offers(part_id) if offer["supplier"] == supplier), None)
        if offer is None:
            raise ToolError(f"{supplier!r} does not offer {part_id}; list_offers names the suppliers")
        if quantity < offer["min_quantity"]:
            raise ToolError(f"{supplier} sells at least {offer['min_quantity']} pieces of {part_id}, not {quantity}")
        order = {
            "part_id": part_id,
            "supplier": supplier,
            "quantity": quantity,
            "depot": depot,
            "total": round(quantity * offer["unit_price"], 2),
            "status": "open",
            "days_until_arrival": offer["delivery_days"],
        }
        order_id = f"R{len(self._orders) + 1001}"
        self._orders[order_id] = order
        return {"order_id": order_id, **order}

    def cancel_order(self, order_id: str) -> dict[str, Any]:
        """Cancel an open order. Return it with its total, which is paid back."""
        order = self._orders[_known(order_id, "order", self._orders)]
        if order["status"] != "open":
            raise ToolError(f"order {order_id} is {order['status']}; only open orders can be cancelled")
        order["status"] = "cancelled"
        return dict(order)

    def move_stock(self, part_id: str, from_depot: Depot, to_depot: Depot, quantity: Quantity) -> dict[str, int]:
        """Move pieces of a part from one depot to another. Return the pieces in each depot afterwards."""
        stock = self._stock[_known(part_id, "part", DATABASE["parts"])]
        if from_depot == to_depot:
            raise ToolError(f"from_depot and to_depot are both {to_depot}")
        if quantity > stock[from_depot]:
            raise ToolError(f"{from_depot} has {stock[from_depot]} pieces of {part_id}, fewer than {quantity}")
        stock[from_depot] -= quantity
        stock[to_depot] += quantity
        return dict(stock)

    def reward(self, transcript: Sequence[Message]) -> float:
        """Return 1.0 if the database is as after the reference calls, and the answer tells exactly the asked number.

        A tool must have returned the number. The answer may repeat numbers of the request, and has no others.
        """
        fact, text = str(self.example.info["fact"]), transcript[-1].content
        others = extract_numbers(text) - extract_numbers(self.example.prompt) - {float(fact)}
        told = not others and not missing_facts(transcript, [fact])
        return float(told and self._state() == self._goal())

    def _state(self) -> tuple[object, ...]:
        """Return the stock and the orders. The ids of new orders depend on their sequence, so they do not count."""
        return self._stock, sorted(json.dumps(order, sort_keys=True) for order in self._orders.values())

    def _goal(self) -> tuple[object, ...]:
        goal = DeskEpisode(self.example)
        for call in self.example.gold_calls:
            getattr(goal, call.name)(**call.arguments)
        return goal._state()


def _known(key: str, kind: str, rows: Mapping[str, object]) -> str:
    """Return an id. Raise ToolError if no row has it."""
    if key not in rows:
        raise ToolError(f"there is no {kind} {key!r}")
    return key


def make_example(row: dict[str, Any]) -> ToolExample:
    """Return the example of a line of tasks.jsonl."""
    calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in row["gold_calls"])
    return ToolExample(
        id=row["id"],
        prompt=row["prompt"],
        gold_calls=calls,
        answer=row["answer"],
        info={"fact": row["fact"]},
        split=row["split"],
        family=row["family"],
        difficulty=row["difficulty"],
    )


POLICY = (FOLDER / "policy.md").read_text(encoding="utf-8")
ROWS = [json.loads(line) for line in (FOLDER / "tasks.jsonl").read_text(encoding="utf-8").splitlines()]
TASKS = ToolDataset("spare_parts", POLICY, [*map(make_example, ROWS)], DeskEpisode)
