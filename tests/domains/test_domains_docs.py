"""Tests that the figures and slices of docs/domains.md match the domains."""

import re

import pytest

from support import script
from support.paths import ROOT
from understudy.core.tasks import SPLITS
from understudy.data.checks.check import check
from understudy.envs.domain import Domain
from understudy.envs.task_source import Slice
from understudy.rollouts.agent import GoldAgent
from understudy.runs.config import load_config
from understudy.sources.references import list_domains, load_domain

PAGE = (ROOT / "docs" / "domains.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| `.*$", PAGE, re.MULTILINE)]
FIGURES = {name.strip("`"): cells for name, *cells in ROWS if len(cells) > 3}
SLICES = {name.strip("`"): cells for name, *cells in ROWS if len(cells) == 3}


def easy_slice(name: str) -> Slice:
    families, tools = (tuple(cell.split(", ")) for cell in SLICES[name][1:])
    return Slice(families=families, difficulties=("easy",), tools=tools, domain_policy="brief")


def find_write_tools(domain: Domain) -> set[str]:
    """Return the agent's tools that change rows in gold episodes."""
    found = set[str]()
    for task in domain.tasks("train"):
        state = domain.initial_state(task)
        desk, user_tools = domain.toolkit(state), domain.user_tools(state) if domain.user_tools else None
        for message in task.gold:
            for call in message.tool_calls:
                toolkit = desk if message.role == "assistant" or user_tools is None else user_tools
                before = select_tables(state.changes())
                toolkit.call_sync(call)
                if toolkit is desk and select_tables(state.changes()) != before:
                    found.add(call.name)
    return found


def select_tables(changes: dict[str, object]) -> dict[str, object]:
    return {table: rows for table, rows in changes.items() if isinstance(rows, dict)}


def test_page_lists_every_domain() -> None:
    assert sorted(FIGURES) == sorted(SLICES) == list_domains()


@pytest.mark.parametrize("name", list_domains())
def test_page_figures_match_domain(name: str) -> None:
    domain = load_domain(name)
    _, tools, changing, families, _, world, words, turns = FIGURES[name]
    tables = domain.build_world().tables()
    assert (int(tools), int(changing), int(families)) == (
        len(domain.tool_specs),
        len(find_write_tools(domain)),
        len(domain.families),
    )
    assert {table: len(tables[table]) for _, table in (part.split() for part in world.split(", "))} == {
        table: int(count) for count, table in (part.split() for part in world.split(", "))
    }
    policies = [domain.slice(Slice(domain_policy=policy)).domain_policy for policy in ("full", "brief")]
    assert words == ", ".join(str(len(policy.split())) for policy in policies)
    tasks = [task for split in SPLITS for task in domain.tasks(split)]
    assert float(turns) == round(sum(len(task.gold_turns) for task in tasks) / len(tasks), 1)


@pytest.mark.parametrize("name", list_domains())
def test_page_rule_count_matches_rules_file(name: str) -> None:
    path = ROOT / "src" / "understudy" / "domains" / name / "rules.md"
    rules = re.findall(r"^\| .* \| .* \| \w+ \|$", path.read_text(encoding="utf-8"), re.MULTILINE)[1:]
    assert len(rules) == int(FIGURES[name][4])


@pytest.mark.parametrize("name", list_domains())
def test_slices_pass_check_and_stay_short(name: str) -> None:
    """Count characters: a small model needs about one token for 2.4 characters."""
    part = load_domain(name).slice(easy_slice(name))
    report = check(part)
    assert (report.problems, report.unused_tools) == ((), ())
    assert [split.gold_reward for split in report.splits] == [1.0] * 3
    for task in part.sample("train", 30):
        score, messages = script.play(part, task, GoldAgent())
        assert score.reward == 1.0
        assert len(task.gold_turns) <= 8
        assert sum(len(message.content) for message in messages) < 1500


@pytest.mark.parametrize("name", list_domains())
def test_presets_use_documented_slices(name: str) -> None:
    config = load_config(SLICES[name][0].strip("`"))
    assert (config.domain, config.slice) == (name, easy_slice(name))


def test_page_states_number_of_phone_tools() -> None:
    telecom = load_domain("telecom")
    assert telecom.user_tools is not None
    assert f"a phone of {len(telecom.user_tools(telecom.build_world().fork()).specs())} tools" in PAGE
