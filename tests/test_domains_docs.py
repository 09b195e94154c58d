"""The figures and the slices of docs/domains.md are those of the domains."""

import re
from pathlib import Path

import pytest

import script
from understudy.agent import GoldAgent
from understudy.check import check
from understudy.config import TrainConfig
from understudy.domains.base import Domain, Slice, find_domain, names
from understudy.settings import load
from understudy.tasks import SPLITS

PAGE = (Path(__file__).parents[1] / "docs" / "domains.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| `.*$", PAGE, re.MULTILINE)]
FIGURES = {name.strip("`"): cells for name, *cells in ROWS if len(cells) > 3}
SLICES = {name.strip("`"): cells for name, *cells in ROWS if len(cells) == 3}


def easy(name: str) -> Slice:
    families, tools = (tuple(cell.split(", ")) for cell in SLICES[name][1:])
    return Slice(families=families, difficulties=("easy",), tools=tools, policy="brief")


def writes(domain: Domain) -> set[str]:
    """The tools of the agent that change rows in gold episodes."""
    found = set[str]()
    for task in domain.tasks("train"):
        state = domain.initial(task)
        desk, device = domain.toolkit(state), domain.device(state) if domain.device else None
        for message in task.gold:
            for call in message.tool_calls:
                toolkit = desk if message.role == "assistant" or device is None else device
                before = rows(state.changes())
                toolkit.run(call)
                if toolkit is desk and rows(state.changes()) != before:
                    found.add(call.name)
    return found


def rows(changes: dict[str, object]) -> dict[str, object]:
    return {table: rows for table, rows in changes.items() if isinstance(rows, dict)}


def test_every_domain_is_on_the_page() -> None:
    assert sorted(FIGURES) == sorted(SLICES) == names()


@pytest.mark.parametrize("name", names())
def test_figures_are_those_of_the_domain(name: str) -> None:
    domain = find_domain(name)
    _, tools, changing, families, _, world, words, turns = FIGURES[name]
    tables = domain.world().tables()
    assert (int(tools), int(changing), int(families)) == (len(domain.specs), len(writes(domain)), len(domain.families))
    assert {table: len(tables[table]) for _, table in (part.split() for part in world.split(", "))} == {
        table: int(count) for count, table in (part.split() for part in world.split(", "))
    }
    policies = [domain.slice(Slice(policy=policy)).policy for policy in ("full", "brief")]
    assert words == ", ".join(str(len(policy.split())) for policy in policies)
    tasks = [task for split in SPLITS for task in domain.tasks(split)]
    assert float(turns) == round(sum(len(task.turns) for task in tasks) / len(tasks), 1)


@pytest.mark.parametrize("name", names())
def test_rules_are_those_of_the_policy(name: str) -> None:
    path = Path(__file__).parents[1] / "src" / "understudy" / "domains" / name / "rules.md"
    rules = re.findall(r"^\| .* \| .* \| \w+ \|$", path.read_text(encoding="utf-8"), re.MULTILINE)[1:]
    assert len(rules) == int(FIGURES[name][4])


@pytest.mark.parametrize("name", names())
def test_slices_are_sound_and_small(name: str) -> None:
    """Counted in characters: a small model needs about one token for each 2.4 of them."""
    part = find_domain(name).slice(easy(name))
    report = check(part)
    assert (report.problems, report.unused_tools) == ((), ())
    assert [split.oracle for split in report.splits] == [1.0] * 3
    for task in part.sample("train", 100):
        score, messages = script.play(part, task, GoldAgent())
        assert score.reward == 1.0
        assert len(task.turns) <= 8
        assert sum(len(message.content) for message in messages) < 1500


@pytest.mark.parametrize("name", names())
def test_presets_train_on_the_slices(name: str) -> None:
    config = load(TrainConfig, SLICES[name][0].strip("`"))
    assert (config.domain, config.slice) == (name, easy(name))


def test_the_phone_has_as_many_tools_as_told() -> None:
    telecom = find_domain("telecom")
    assert telecom.device is not None
    assert f"a phone of {len(telecom.device(telecom.world().fork()).specs())} tools" in PAGE
