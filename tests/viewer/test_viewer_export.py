"""Test the exported page: it contains the server's answers and lists what it omits."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import pytest

from support.run_evaluations import write_run_evaluation
from support.script import Script
from support.viewer_episodes import (
    ASK,
    CONFIG,
    TASK,
    gold_episode,
    play,
    read_page_data,
    request_route,
    write_evaluation,
)
from support.viewing import serve_viewer
from toy import DOMAIN as TOY
from understudy.cli import view as cli
from understudy.evaluation.reports.files import read_report
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.group import Group
from understudy.runs.run import Run, list_run_evaluations
from understudy.viewer import export as exports
from understudy.viewer import index
from understudy.viewer.api import ROUTES
from understudy.viewer.export import export_page
from understudy.viewer.library import RunLibrary

EPISODE = "/api/episode/{key}/{step}/{number}"


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setattr(index, "cache_folder", lambda: cache)  # the cache of models stays in place
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run with one step and two evaluations, and two separate evaluations."""
    folder = tmp_path_factory.mktemp("shelf")
    write_evaluation(folder / "gold", GoldAgent(), "gold")
    write_evaluation(folder / "mute", Script(ASK), "mute")
    run = Run.create(folder / "run", CONFIG)
    mute, gold = (play(TOY, TASK, agent) for agent in (Script(ASK), GoldAgent()))
    run.save_groups(4, [Group(TASK, [gold_episode(), mute])])
    for step, name, of in ((0, "base", "mute"), (4, "rl", "gold")):
        again = dataclasses.replace(gold, seed=gold.seed + 1)
        write_run_evaluation(run, step, name, read_report(folder / of).rows[-1].result, [gold, mute, again], [TASK])
    return folder


def fetch_answer(library: RunLibrary, pattern: str, **values: str) -> tuple[str, object]:
    """Return a path as the page spells it, and the server's answer."""
    where = pattern.format(**{name: value.replace(" ", "%20") for name, value in values.items()})
    return where, request_route(library, pattern, **values)


def parse_left_out(left_out: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the key and the numbers of each line."""
    return [tuple(re.findall(r"^\w+(?=:)|\d+", line)) for line in left_out]


def test_export_contains_evaluations_comparisons_and_parses(folder: Path, tmp_path: Path) -> None:
    library = RunLibrary([folder])
    assert parse_left_out(export_page(library, tmp_path / "page.html")) == [("run", "2")]
    data = read_page_data(tmp_path / "page.html")["answers"]
    expected = [
        fetch_answer(library, "/api/comparison/{new}/{new_row}/{old}/{old_row}", new=new, new_row=a, old=old, old_row=b)
        for new, a, old, b in (("gold", "1", "mute", "2"), ("run", "1", "run", "0"), ("mute", "2", "run", "0"))
    ]
    for key, step in (("mute", "eval"), ("run", "4"), ("run", "000004 rl")):
        for ending in ("", "/parses", "/tokens", "/group"):
            expected += [fetch_answer(library, EPISODE + ending, key=key, step=step, number=number) for number in "12"]
    expected += [fetch_answer(library, "/api/failures/{key}/{step}", key="run", step=s) for s in ("4", "000004 rl")]
    for where, answer in expected:
        assert data[where] == answer, where
    _, raw = fetch_answer(library, f"{EPISODE}/parses", key="run", step="4", number="1")
    assert raw["parses"][0], "of an episode that a model of ours sampled"  # type: ignore[index]
    assert "/api/episode/run/000000%20base/1" not in data


def test_export_lists_what_exceeds_its_limits(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = RunLibrary([folder])
    monkeypatch.setattr(exports, "MAX_COMPARISONS", 2)
    left_out = export_page(library, tmp_path / "page.html", max_episodes=4)
    assert parse_left_out(left_out) == [
        ("12", "2"),
        ("run", "2"),
        ("run", "2", "1"),
        ("gold", "8", "1"),
        ("mute", "8", "1"),
        ("run", "3", "000004", "1"),
    ]
    data = read_page_data(tmp_path / "page.html")
    assert data["left_out"] == left_out
    stage = [where for where in data["answers"] if where.startswith("/api/episode/run/000004%20rl")]
    assert {where.split("/")[5] for where in stage} == {"2"}, "the one that failed"
    compared = [where.split("/")[3::2] for where in data["answers"] if where.startswith("/api/comparison")]
    assert all("run" in pair or set(pair) == {"gold", "mute"} for pair in compared)
    monkeypatch.setattr(exports, "MAX_BYTES", 1)
    assert ("gold", "8", "0") in parse_left_out(export_page(library, tmp_path / "none.html"))


def test_export_names_damaged_evaluation_and_keeps_the_rest(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "sound", GoldAgent(), "gold")
    write_evaluation(tmp_path / "torn", GoldAgent(), "gold")
    (tmp_path / "torn" / "tasks.jsonl").write_text('{"id": 1}\n')
    (left_out,) = export_page(RunLibrary([tmp_path]), tmp_path / "page.html")
    assert left_out.startswith("torn: ")
    assert "tasks.jsonl" in left_out
    answers = read_page_data(tmp_path / "page.html")["answers"]
    assert answers["/api/episode/sound/eval/1"]["reward"] == 1.0
    assert answers["/api/evaluations/torn"]["rows"][-1]["success"]["mean"] == 1.0


DAMAGED_DOMAIN = """
from toy import LampTools, build_house
from understudy.envs.domain import Domain
DOMAIN = Domain(__name__, build_house, LampTools)  # no tasks
"""


def test_domain_that_cannot_be_loaded_fails_only_its_own_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torn_lamps.py").write_text(DAMAGED_DOMAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = Run.create(tmp_path / "run", CONFIG.replace(domain="torn_lamps:DOMAIN"))
    run.save_groups(4, [Group(TASK, [play(TOY, TASK, Script(ASK))])])
    library = RunLibrary([run.folder])
    export_page(library, tmp_path / "page.html")
    data = read_page_data(tmp_path / "page.html")["answers"]
    assert "torn_lamps" in data["/api/failures/run/4"]["error"]
    assert data["/api/episode/run/4/1"]["reward"] == 0.0
    with serve_viewer(library) as address:
        found = httpx2.get(f"{address}/api/failures/run/4", verify=False, timeout=60)
    assert (found.status_code, found.json()["error"]) == (404, data["/api/failures/run/4"]["error"])
    cli.view(cli.ViewOptions(paths=(run.folder,), text=True))
    assert "are unknown: " in capsys.readouterr().out


def test_episodes_are_shown_if_their_mcp_server_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "x", "prompt": "p", "check": {"answer": {"text": "a"}}}\n')
    (tmp_path / "gone.toml").write_text(
        'tasks = "tasks.jsonl"\n[server]\ncommand = "false"\nmax_start_attempts = 1\nbackoff = 0\n'
    )
    run = Run.create(tmp_path / "run", CONFIG.replace(domain=f"mcp:{tmp_path / 'gone.toml'}"))
    run.save_groups(4, [Group(TASK, [play(TOY, TASK, Script(ASK))])])
    library = RunLibrary([run.folder])
    shown = request_route(library, EPISODE, key="run", step="4", number="1")
    assert shown["messages"]
    export_page(library, tmp_path / "page.html")
    data = read_page_data(tmp_path / "page.html")["answers"]
    assert data["/api/episode/run/4/1"] == shown
    assert [each["task"] for each in data["/api/failures/run/4"]["failures"]] == [TASK.id]
    cli.view(cli.ViewOptions(paths=(run.folder,), text=True))
    assert "Why 1 of the 1 episodes of step 4 failed" in capsys.readouterr().out


def test_view_accepts_the_folder_or_report_of_an_evaluation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.view(cli.ViewOptions(paths=(folder / "mute",), text=True))
    text = capsys.readouterr().out
    cli.view(cli.ViewOptions(paths=(folder / "mute" / "report.json",), text=True))
    assert capsys.readouterr().out == text
    cli.view(cli.ViewOptions(paths=(folder / "run" / "evaluations" / "000004 rl",), text=True))
    assert "step 4" in capsys.readouterr().out


def test_failures_answer_explains_training_and_evaluation_episodes(folder: Path) -> None:
    library = RunLibrary([folder])
    found = request_route(library, "/api/evaluations/{key}", key="run")
    assert found["stored"] == ["000004 rl", "000000 base", "4"]
    assert request_route(library, "/api/evaluations/{key}", key="mute")["stored"] == []
    for step, episodes in (("4", 2), ("000000 base", 3)):
        why = request_route(library, "/api/failures/{key}/{step}", key="run", step=step)
        (failure,) = why["failures"]
        assert (why["episodes"], failure["episode"]) == (episodes, 2)
        shown = request_route(library, EPISODE, key="run", step=step, number="2")
        assert failure["cause"]["kind"] == why["causes"][0]["kind"] == shown["causes"][0]["kind"]
        assert why["meanings"][failure["cause"]["kind"]]["component"] == "agent"
    assert shown["fork"].endswith("run --fork '000000 base/2@TURN'")
    assert shown["group_size"] == 3, "of an evaluation all episodes of the task"


def test_text_view_explains_failed_episodes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.view(cli.ViewOptions(paths=(folder / "run",), text=True))
    text = capsys.readouterr().out
    assert "Why 1 of the 3 episodes of 000004 rl failed" in text
    assert text.index("step_000004, episode 1") < text.index("Why 1 of")
    cli.view(cli.ViewOptions(paths=(folder / "run",), step=4, episode=1))
    assert "Why" not in capsys.readouterr().out
    cli.view(cli.ViewOptions(paths=(folder / "mute",), text=True))
    assert "Why episodes failed" in capsys.readouterr().out


def test_run_without_episodes_exports_and_lists_no_evaluations(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    (run.folder / "evaluations" / "notes").mkdir()
    (run.folder / "evaluations" / "notes" / "report.json").write_text("{}\n")
    assert list_run_evaluations(run.folder) == []
    assert request_route(RunLibrary([run.folder]), "/api/evaluations/{key}", key="run")["stored"] == []
    assert export_page(RunLibrary([run.folder]), tmp_path / "page.html") == []


def test_every_route_is_exported_or_computed_by_the_page() -> None:
    ours = {"/api/runs/{run}/episodes", "/api/runs/{run}/facets"}
    source = Path(exports.__file__).read_text(encoding="utf-8")
    for pattern in ROUTES.keys() - ours:
        bare = pattern.count("{") <= 1 or "{key}/{step}/{number}" in pattern
        assert bare or f'"{pattern}"' in source, pattern
