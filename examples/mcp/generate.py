"""Write the tasks of the three environments in this folder. The output is deterministic.

python examples/mcp/generate.py
"""

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from understudy.core.tasks import Split
from understudy.domains.authoring.phrases import PhraseSampler
from understudy.sources.mcp.tasks import MCPTask
from understudy.sources.task_files.near_duplicates import NearDuplicateIndex

SPLITS: list[Split] = [*["train"] * 20, *["validation"] * 4, *["test"] * 6]
PEOPLE = ["Ada", "Ben", "Chloe", "Dilip", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Luis"]
FIRMS = ["Acme", "Borealis", "Cobalt", "Dunlin", "Everest", "Foxglove", "Granite", "Halcyon"]
GOODS = ["kettle", "lantern", "saddle", "teapot", "blanket", "compass", "hammer", "basket", "pillow", "candle"]
READING = ["read_*", "list_*", "open_nodes", "search_nodes", "describe_table"]
TOPICS = ["roof", "garden", "boiler", "piano", "bicycle", "fence", "attic", "cellar", "orchard", "garage"]

Task = dict[str, Any]
Make = Callable[[random.Random, PhraseSampler], Task]


def call(tool: str, **arguments: Any) -> Task:
    return {"tool": tool, "arguments": arguments}


def only(*patterns: Task) -> Task:
    """Return a check that no calls were made except those of these patterns and those that read."""
    return {"allowed": [*patterns, *({"tool": tool} for tool in READING)]}


def writes(tool: str, argument: str, pattern: str) -> Task:
    """Return a pattern of the calls of a tool in which an argument has a regular expression."""
    return {"tool": tool, "argument_patterns": {argument: pattern}}


def save(rng: random.Random, phrases: PhraseSampler) -> Task:
    topic, who, day = rng.choice(TOPICS), rng.choice(PEOPLE), rng.randint(1, 28)
    path, text = f"/episode/{topic}-{day}.txt", f"{who} comes on May {day} to repair the {topic}."
    return {
        "prompt": phrases.choose(
            [
                f"Save this in {topic}-{day}.txt, word for word: {text}",
                f"Write the following text to {topic}-{day}.txt without any change: {text}",
                f"Create {topic}-{day}.txt with exactly this text: {text}",
            ]
        ),
        "gold": [call("write_file", path=path, content=text)],
        "check": {
            "state": [call("read_text_file", path=path), call("list_directory", path="/episode")],
            "calls": only(*(writes(tool, "path", rf"{topic}-{day}\.txt$") for tool in ("write_file", "edit_file"))),
        },
    }


def rename(rng: random.Random, phrases: PhraseSampler) -> Task:
    (old, new), year = rng.sample(TOPICS, 2), rng.randint(1990, 2025)
    source, target = f"/episode/{old}-{year}.md", f"/episode/{new}-{year}.md"
    setup = [
        call("write_file", path=source, content=f"# {new} {year}\n"),
        call("write_file", path="/episode/b.md", content="b"),
    ]
    return {
        "prompt": phrases.choose(
            [
                f"The name of {old}-{year}.md is wrong, it is about the {new}. Rename it to {new}-{year}.md.",
                f"Please rename {old}-{year}.md to {new}-{year}.md, because it is about the {new}.",
                f"{old}-{year}.md is really about the {new}. Change its name to {new}-{year}.md.",
            ]
        ),
        "setup": setup,
        "gold": [call("move_file", source=source, destination=target)],
        "check": {
            "state": [call("list_directory", path="/episode"), call("read_text_file", path=target)],
            "calls": only(writes("move_file", "source", rf"{old}-{year}\.md$")),
        },
    }


def price(rng: random.Random, phrases: PhraseSampler) -> Task:
    goods, year = rng.sample(GOODS, 5), rng.randint(1990, 2025)
    prices = {name: rng.randint(11, 980) for name in goods}
    path, text = f"/episode/prices-{year}.ini", "".join(f"{name} = {prices[name]}\n" for name in goods)
    return {
        "prompt": phrases.choose(
            [
                f"What did the {goods[0]} cost in {year}? You can find it in prices-{year}.ini.",
                f"Look up the price of the {goods[0]} in prices-{year}.ini. What is it?",
                f"According to prices-{year}.ini, how much was the {goods[0]} in {year}?",
            ]
        ),
        "setup": [call("write_file", path=path, content=text)],
        "gold": [call("read_text_file", path=path)],
        "final_answer": f"It cost {prices[goods[0]]}.",
        "check": {"answer": {"number": prices[goods[0]]}, "calls": only()},
    }


def correct(rng: random.Random, phrases: PhraseSampler) -> Task:
    who, other, day = *rng.sample(PEOPLE, 2), rng.randint(1, 28)
    path, lines = f"/episode/guests-{day}.txt", rng.sample([p for p in PEOPLE if p != other], 5)
    lines = [who, *(p for p in lines if p != who)]
    edit = {"oldText": f"{who}\n", "newText": f"{other}\n"}
    return {
        "difficulty": "medium",
        "prompt": phrases.choose(
            [
                f"In guests-{day}.txt, replace {who} with {other} and leave the rest as it is.",
                f"{who} cannot come. Put {other} in the same place in guests-{day}.txt and change nothing else.",
                f"Change {who} to {other} in guests-{day}.txt. Keep all other lines as they are.",
            ]
        ),
        "setup": [call("write_file", path=path, content="".join(f"{line}\n" for line in lines))],
        "gold": [call("read_text_file", path=path), call("edit_file", path=path, edits=[edit])],
        "check": {
            "state": [call("read_text_file", path=path), call("list_directory", path="/episode")],
            "calls": only(*(writes(tool, "path", rf"guests-{day}\.txt$") for tool in ("write_file", "edit_file"))),
        },
    }


def known(rng: random.Random) -> tuple[list[str], str, Task]:
    """Return some people, a company, and the call that adds them to the server."""
    people, firm = rng.sample(PEOPLE, 4), rng.choice(FIRMS)
    entities = [
        {"name": who, "entityType": "person", "observations": [f"was born in {rng.randint(1950, 2004)}"]}
        for who in people
    ]
    entities.append({"name": firm, "entityType": "firm", "observations": [f"has {rng.randint(12, 990)} employees"]})
    return people, firm, call("create_entities", entities=entities)


GRAPH = call("read_graph")


def hire(rng: random.Random, phrases: PhraseSampler) -> Task:
    people, firm, setup = known(rng)
    relation = {"from": people[0], "to": firm, "relationType": "works at"}
    return {
        "prompt": phrases.choose(
            [
                f"Remember that {people[0]} works at {firm} (relation: works at). You already know both.",
                f"{people[0]} works at {firm}. Store this as the relation 'works at' between the two existing entries.",
                f"Add the relation 'works at' from {people[0]} to {firm}. Both are already in your memory.",
            ]
        ),
        "setup": [setup],
        "gold": [call("create_relations", relations=[relation])],
        "check": {"state": GRAPH, "calls": only(writes("create_relations", "relations", f'"{people[0]}"'))},
    }


def note(rng: random.Random, phrases: PhraseSampler) -> Task:
    people, _, setup = known(rng)
    fact = f"plays the {rng.choice(['flute', 'cello', 'harp', 'organ'])} since {rng.randint(2005, 2024)}"
    return {
        "prompt": phrases.choose(
            [
                f'Add this to what you know about {people[1]}: "{fact}".',
                f'Remember this about {people[1]}: "{fact}".',
                f'Note the following about {people[1]}, word for word: "{fact}".',
            ]
        ),
        "setup": [setup],
        "gold": [call("add_observations", observations=[{"entityName": people[1], "contents": [fact]}])],
        "check": {"state": GRAPH, "calls": only(writes("add_observations", "observations", f'"{people[1]}"'))},
    }


def born(rng: random.Random, phrases: PhraseSampler) -> Task:
    people, _, setup = known(rng)
    fact = setup["arguments"]["entities"][0]["observations"][0]
    return {
        "prompt": phrases.choose(
            [
                f"When was {people[0]} born? I will ask about {people[1]} and {people[2]} later.",
                f"In which year was {people[0]} born? For now I don't need {people[1]} or {people[2]}.",
                f"Tell me in which year {people[0]} was born, but not {people[1]} and {people[2]} yet.",
            ]
        ),
        "setup": [setup],
        "gold": [call("open_nodes", names=[people[0]])],
        "final_answer": f"{people[0]} {fact}.",
        "check": {"answer": {"number": int(fact.split()[-1])}, "calls": only()},
    }


def forget(rng: random.Random, phrases: PhraseSampler) -> Task:
    people, firm, setup = known(rng)
    return {
        "difficulty": "medium",
        "prompt": phrases.choose(
            [
                f"Forget {people[2]} and {firm}, but keep {people[0]}, {people[1]} and {people[3]}.",
                f"Delete {people[2]} and {firm} from your memory. Keep {people[0]}, {people[1]} and {people[3]}.",
                f"Remove {people[2]} and {firm} from what you know, but not {people[0]}, {people[1]} or {people[3]}.",
            ]
        ),
        "setup": [setup],
        "gold": [call("delete_entities", entityNames=[people[2], firm])],
        "check": {
            "state": GRAPH,
            "calls": only(writes("delete_entities", "entityNames", f'"({people[2]}|{firm})"')),
        },
    }


def shop(rng: random.Random) -> tuple[dict[str, int], list[Task]]:
    """Return goods with their stock, and the calls that create the table."""
    stock = {name: rng.randint(2, 95) for name in rng.sample(GOODS, 5)}
    rows = ", ".join(f"('{name}', {count})" for name, count in stock.items())
    table = call("create_table", query="CREATE TABLE stock (name TEXT PRIMARY KEY, amount INTEGER)")
    return stock, [table, call("write_query", query=f"INSERT INTO stock VALUES {rows}")]


ROWS = call("read_query", query="SELECT name, amount FROM stock ORDER BY name")


def amount(rng: random.Random, phrases: PhraseSampler) -> Task:
    stock, setup = shop(rng)
    name, count = next(iter(stock.items()))
    who = rng.choice(PEOPLE)
    return {
        "prompt": phrases.choose(
            [
                f"{who} asks how many of the item {name} are in stock. The table is called stock.",
                f"How many of the item {name} do we have? See the table stock. {who} wants to know.",
                f"{who} needs to know the amount of the item {name} in the table stock. How many are there?",
            ]
        ),
        "setup": setup,
        "gold": [call("read_query", query=f"SELECT amount FROM stock WHERE name = '{name}'")],
        "final_answer": f"There are {count}.",
        "check": {"answer": {"number": count}, "calls": only()},
    }


def total(rng: random.Random, phrases: PhraseSampler) -> Task:
    stock, setup = shop(rng)
    least, most = sorted(rng.sample(range(5, 60), 2))
    few = sum(least <= count <= most for count in stock.values())
    return {
        "difficulty": "medium",
        "prompt": phrases.choose(
            [
                f"How many items in the table stock have an amount of at least {least} and at most {most}?",
                f"Count the items in the table stock with an amount from {least} to {most}, both included.",
                f"In the table stock, for how many items is the amount between {least} and {most}, including both?",
            ]
        ),
        "setup": setup,
        "gold": [
            call("describe_table", table_name="stock"),
            call("read_query", query=f"SELECT COUNT(*) FROM stock WHERE amount BETWEEN {least} AND {most}"),
        ],
        "final_answer": f"There are {few}.",
        "check": {"answer": {"number": few}, "calls": {"required": [{"tool": "read_query"}], **only()}},
    }


def sell(rng: random.Random, phrases: PhraseSampler) -> Task:
    stock, setup = shop(rng)
    name, count = next(iter(stock.items()))
    sold = rng.randint(1, count - 1)
    who = rng.choice(PEOPLE)
    query = f"UPDATE stock SET amount = amount - {sold} WHERE name = '{name}'"
    return {
        "prompt": phrases.choose(
            [
                f"{who} has bought {sold} of the item {name}. Update the table stock.",
                f"We sold {sold} of the item {name} to {who}. Please update the table stock.",
                f"Reduce the amount of the item {name} in the table stock by {sold}, because {who} bought them.",
            ]
        ),
        "setup": setup,
        "gold": [call("write_query", query=query)],
        "check": {"state": ROWS, "calls": only(writes("write_query", "query", rf"\b{name}\b"))},
    }


def drop(rng: random.Random, phrases: PhraseSampler) -> Task:
    stock, setup = shop(rng)
    name, least = next(iter(stock)), min(stock.values())
    return {
        "difficulty": "medium",
        "prompt": phrases.choose(
            [
                f"We no longer sell the item {name}, nor those with an amount of {least}. Delete those rows.",
                f"Delete the item {name} and every item with an amount of exactly {least} from the table stock.",
                f"Remove the rows of the table stock for the item {name} and for all items whose amount is {least}.",
            ]
        ),
        "setup": setup,
        "gold": [call("write_query", query=f"DELETE FROM stock WHERE name = '{name}' OR amount = {least}")],
        "check": {
            "state": ROWS,
            "calls": only(writes("write_query", "query", rf"^[^'\d]*(('{name}'|\b{least}\b)[^'\d]*)*$")),
        },
    }


MAKERS: dict[str, Sequence[Make]] = {
    "filesystem": (save, rename, price, correct),
    "memory": (hire, note, born, forget),
    "sqlite": (amount, total, sell, drop),
}


def tasks(name: str) -> list[Task]:
    """Return 30 tasks, with the families in turn. A near-duplicate of an earlier task is replaced."""
    made, similar, rng = list[Task](), NearDuplicateIndex(), random.Random(name)
    for number, (split, make) in enumerate(zip(SPLITS, itertools.cycle(MAKERS[name]), strict=False)):
        while True:
            phrases = PhraseSampler(f"{name}/{number}", split)
            task = {"id": f"{name}/{number}", "family": make.__name__, "split": split, **make(rng, phrases)}
            candidate = MCPTask.model_validate(task).to_task(name, split, {})
            if not similar.find(candidate):
                break
        similar.add(candidate)
        made.append(task)
    return made


if __name__ == "__main__":
    for name in MAKERS:
        lines = [json.dumps(task, ensure_ascii=False) + "\n" for task in tasks(name)]
        (Path(__file__).parent / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
