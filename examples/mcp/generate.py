"""Write the tasks of the three environments beside this file, the same ones each time.

python examples/mcp/generate.py
"""

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from understudy.mcp.tasks import MCPTask
from understudy.similar import Similar

SPLITS = ["train"] * 20 + ["validation"] * 4 + ["test"] * 6
PEOPLE = ["Ada", "Ben", "Chloe", "Dilip", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Luis"]
FIRMS = ["Acme", "Borealis", "Cobalt", "Dunlin", "Everest", "Foxglove", "Granite", "Halcyon"]
GOODS = ["kettle", "lantern", "saddle", "teapot", "blanket", "compass", "hammer", "basket", "pillow", "candle"]
TOPICS = ["roof", "garden", "boiler", "piano", "bicycle", "fence", "attic", "cellar", "orchard", "garage"]

Task = dict[str, Any]
Make = Callable[[random.Random], Task]


def call(tool: str, **arguments: Any) -> Task:
    return {"tool": tool, "arguments": arguments}


# Files


def save(rng: random.Random) -> Task:
    topic, who, day = rng.choice(TOPICS), rng.choice(PEOPLE), rng.randint(1, 28)
    path, text = f"/episode/{topic}-{day}.txt", f"{who} comes on May {day} to repair the {topic}."
    return {
        "prompt": f"Save this in {topic}-{day}.txt, word for word: {text}",
        "gold": [call("write_file", path=path, content=text)],
        "check": {"state": call("read_text_file", path=path)},
    }


def rename(rng: random.Random) -> Task:
    (old, new), year = rng.sample(TOPICS, 2), rng.randint(1990, 2025)
    source, target = f"/episode/{old}-{year}.md", f"/episode/{new}-{year}.md"
    files = [
        call("write_file", path=source, content=f"# {new} {year}\n"),
        call("write_file", path="/episode/b.md", content="b"),
    ]
    return {
        "prompt": f"The name of {old}-{year}.md is wrong, it is about the {new}. Call it {new}-{year}.md.",
        "setup": files,
        "gold": [call("move_file", source=source, destination=target)],
        "check": {"state": [call("list_directory", path="/episode"), call("read_text_file", path=target)]},
    }


def price(rng: random.Random) -> Task:
    goods, year = rng.sample(GOODS, 5), rng.randint(1990, 2025)
    prices = {name: rng.randint(11, 980) for name in goods}
    path, text = f"/episode/prices-{year}.ini", "".join(f"{name} = {prices[name]}\n" for name in goods)
    return {
        "prompt": f"What did a {goods[0]} cost in {year}? It stands in prices-{year}.ini.",
        "setup": [call("write_file", path=path, content=text)],
        "gold": [call("read_text_file", path=path)],
        "reply": f"It cost {prices[goods[0]]}.",
        "check": {"answer": {"number": prices[goods[0]]}, "calls": {"must_not": [{"tool": "write_file"}]}},
    }


def correct(rng: random.Random) -> Task:
    who, other, day = *rng.sample(PEOPLE, 2), rng.randint(1, 28)
    path, lines = f"/episode/guests-{day}.txt", rng.sample([p for p in PEOPLE if p != other], 5)
    lines = [who, *(p for p in lines if p != who)]
    edit = {"oldText": f"{who}\n", "newText": f"{other}\n"}
    return {
        "difficulty": "medium",
        "prompt": f"In guests-{day}.txt, put {other} in the place of {who} and leave the rest as it is.",
        "setup": [call("write_file", path=path, content="".join(f"{line}\n" for line in lines))],
        "gold": [call("read_text_file", path=path), call("edit_file", path=path, edits=[edit])],
        "check": {"state": call("read_text_file", path=path)},
    }


# A graph of what is known


def known(rng: random.Random) -> tuple[list[str], str, Task]:
    """Some people, a firm, and the call that makes the server know them."""
    people, firm = rng.sample(PEOPLE, 4), rng.choice(FIRMS)
    entities = [
        {"name": who, "entityType": "person", "observations": [f"was born in {rng.randint(1950, 2004)}"]}
        for who in people
    ]
    entities.append({"name": firm, "entityType": "firm", "observations": [f"has {rng.randint(12, 990)} employees"]})
    return people, firm, call("create_entities", entities=entities)


GRAPH = call("read_graph")


def hire(rng: random.Random) -> Task:
    people, firm, setup = known(rng)
    relation = {"from": people[0], "to": firm, "relationType": "works at"}
    return {
        "prompt": f"Remember that {people[0]} works at {firm} (relation: works at). Both are known to you.",
        "setup": [setup],
        "gold": [call("create_relations", relations=[relation])],
        "check": {"state": GRAPH},
    }


def note(rng: random.Random) -> Task:
    people, _, setup = known(rng)
    fact = f"plays the {rng.choice(['flute', 'cello', 'harp', 'organ'])} since {rng.randint(2005, 2024)}"
    return {
        "prompt": f'Add this to what you know of {people[1]}: "{fact}".',
        "setup": [setup],
        "gold": [call("add_observations", observations=[{"entityName": people[1], "contents": [fact]}])],
        "check": {"state": GRAPH},
    }


def born(rng: random.Random) -> Task:
    people, _, setup = known(rng)
    fact = setup["arguments"]["entities"][0]["observations"][0]
    return {
        "prompt": f"When was {people[0]} born? {people[1]} and {people[2]} ask as well, but for them later.",
        "setup": [setup],
        "gold": [call("open_nodes", names=[people[0]])],
        "reply": f"{people[0]} {fact}.",
        "check": {"answer": {"number": int(fact.split()[-1])}, "calls": {"must_not": [{"tool": "delete_*"}]}},
    }


def forget(rng: random.Random) -> Task:
    people, firm, setup = known(rng)
    return {
        "difficulty": "medium",
        "prompt": f"Forget {people[2]} and {firm}, but keep {people[0]}, {people[1]} and {people[3]}.",
        "setup": [setup],
        "gold": [call("delete_entities", entityNames=[people[2], firm])],
        "check": {"state": GRAPH},
    }


# A shop's database


def shop(rng: random.Random) -> tuple[dict[str, int], list[Task]]:
    """Goods with their stock, and the calls that make the table."""
    stock = {name: rng.randint(2, 95) for name in rng.sample(GOODS, 5)}
    rows = ", ".join(f"('{name}', {count})" for name, count in stock.items())
    table = call("create_table", query="CREATE TABLE stock (name TEXT PRIMARY KEY, amount INTEGER)")
    return stock, [table, call("write_query", query=f"INSERT INTO stock VALUES {rows}")]


ROWS = call("read_query", query="SELECT name, amount FROM stock ORDER BY name")


def amount(rng: random.Random) -> Task:
    stock, setup = shop(rng)
    name, count = next(iter(stock.items()))
    return {
        "prompt": f"How many of the item {name} are in stock? The table is called stock; {rng.choice(PEOPLE)} asks.",
        "setup": setup,
        "gold": [call("read_query", query=f"SELECT amount FROM stock WHERE name = '{name}'")],
        "reply": f"There are {count}.",
        "check": {"answer": {"number": count}, "calls": {"must_not": [{"tool": "write_query"}]}},
    }


def total(rng: random.Random) -> Task:
    stock, setup = shop(rng)
    least, most = sorted(rng.sample(range(5, 60), 2))
    few = sum(least <= count <= most for count in stock.values())
    return {
        "difficulty": "medium",
        "prompt": f"Of how many items in the table stock are there at least {least} and at most {most}?",
        "setup": setup,
        "gold": [
            call("describe_table", table_name="stock"),
            call("read_query", query=f"SELECT COUNT(*) FROM stock WHERE amount BETWEEN {least} AND {most}"),
        ],
        "reply": f"Of {few}.",
        "check": {"answer": {"number": few}, "calls": {"must": [{"tool": "read_query"}]}},
    }


def sell(rng: random.Random) -> Task:
    stock, setup = shop(rng)
    name, count = next(iter(stock.items()))
    sold = rng.randint(1, count - 1)
    query = f"UPDATE stock SET amount = amount - {sold} WHERE name = '{name}'"
    return {
        "prompt": f"{rng.choice(PEOPLE)} has bought {sold} of the item {name}. Bring the table stock up to date.",
        "setup": setup,
        "gold": [call("write_query", query=query)],
        "check": {"state": ROWS},
    }


def drop(rng: random.Random) -> Task:
    stock, setup = shop(rng)
    name, least = next(iter(stock)), min(stock.values())
    return {
        "difficulty": "medium",
        "prompt": f"We no longer sell the item {name}, nor whatever there are only {least} of. Delete those rows.",
        "setup": setup,
        "gold": [call("write_query", query=f"DELETE FROM stock WHERE name = '{name}' OR amount = {least}")],
        "check": {"state": ROWS},
    }


MAKERS: dict[str, Sequence[Make]] = {
    "filesystem": (save, rename, price, correct),
    "memory": (hire, note, born, forget),
    "sqlite": (amount, total, sell, drop),
}


def tasks(name: str) -> list[Task]:
    """30 tasks, their families in turn; one that is nearly an earlier one is made anew."""
    made, similar, rng = list[Task](), Similar(), random.Random(name)
    for number, (split, make) in enumerate(zip(SPLITS, itertools.cycle(MAKERS[name]), strict=False)):
        while True:
            task = {"id": f"{name}/{number}", "family": make.__name__, "split": split, **make(rng)}
            candidate = MCPTask.model_validate(task).task(name, {})
            if not similar.find(candidate):
                break
        similar.add(candidate)
        made.append(task)
    return made


if __name__ == "__main__":
    for name in MAKERS:
        lines = [json.dumps(task, ensure_ascii=False) + "\n" for task in tasks(name)]
        (Path(__file__).parent / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
