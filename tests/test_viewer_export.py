"""An exported page holds what the server shows, evaluations and comparisons too; what it leaves out it names."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from script import Script
from test_viewer import told_by
from test_viewer_episode import ASK, CONFIG, TASK, TOY, ask, demonstration, evaluated, played
from understudy.agent import GoldAgent
from understudy.outcome import read
from understudy.run import Run, evaluation_files
from understudy.viewer import cli, index
from understudy.viewer import export as exports
from understudy.viewer.answers import ANSWERS
from understudy.viewer.export import export
from understudy.viewer.library import Library
from viewing import served

EPISODE = "/api/episode/{key}/{step}/{number}"


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setattr(index, "cache_folder", lambda: cache)  # the models' stays where it is
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a step and two evaluations, and two evaluations of their own."""
    folder = tmp_path_factory.mktemp("shelf")
    evaluated(folder / "gold", GoldAgent(), "gold")
    evaluated(folder / "mute", Script(ASK), "mute")
    run = Run.create(folder / "run", CONFIG)
    mute, gold = (played(TOY, TASK, agent) for agent in (Script(ASK), GoldAgent()))
    run.keep(4, [demonstration(), mute])
    for step, name, of in ((0, "base model", "mute"), (4, "trained", "gold")):
        run.write(f"evaluations/{step:06} {name}.json", read(folder / of).rows[-1].evaluation.model_dump_json())
        run.keep_evaluation(f"{step:06} {name}", [gold, mute, gold])
    return folder


def asked(library: Library, pattern: str, **values: str) -> tuple[str, object]:
    """A path as the page spells it, and what the server says there."""
    where = pattern.format(**{name: value.replace(" ", "%20") for name, value in values.items()})
    return where, ask(library, pattern, **values)


def test_the_file_holds_evaluations_comparisons_and_readings(folder: Path, tmp_path: Path) -> None:
    library = Library([folder])
    assert export(library, tmp_path / "page.html") == [
        "run: of 2 evaluations this file holds episodes of the last one only"
    ]
    told = told_by(tmp_path / "page.html")["answers"]
    expected = [
        asked(library, "/api/comparison/{new}/{new_row}/{old}/{old_row}", new=new, new_row=a, old=old, old_row=b)
        for new, a, old, b in (("gold", "2", "mute", "2"), ("run", "1", "run", "0"), ("mute", "2", "run", "0"))
    ]
    for key, step in (("mute", "eval"), ("run", "4"), ("run", "000004 trained")):
        for ending in ("", "/readings", "/tokens", "/group"):
            expected += [asked(library, EPISODE + ending, key=key, step=step, number=number) for number in "12"]
    expected += [asked(library, "/api/failures/{key}/{step}", key="run", step=s) for s in ("4", "000004 trained")]
    for where, said in expected:
        assert told[where] == said, where
    _, raw = asked(library, f"{EPISODE}/readings", key="run", step="4", number="1")
    assert raw["readings"], "of an episode that a model of ours sampled"  # type: ignore[index]
    assert "/api/episode/run/000000%20base%20model/1" not in told


def test_what_there_is_no_room_for_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library([folder])
    monkeypatch.setattr(exports, "PAIRS", 2)
    left_out = export(library, tmp_path / "page.html", most=4)
    assert left_out == [
        "of 12 comparisons of two evaluations this file holds 2, those of the last evaluations",
        "run: of 2 evaluations this file holds episodes of the last one only",
        "run: of 2 episodes this file holds 1, the newest",
        "gold: of 8 episodes this file holds 1, first those that failed",
        "mute: of 8 episodes this file holds 1, first those that failed",
        "run: of 3 episodes of 000004 trained this file holds 1, first those that failed",
    ]
    told = told_by(tmp_path / "page.html")
    assert told["left_out"] == left_out
    stage = [where for where in told["answers"] if where.startswith("/api/episode/run/000004%20trained")]
    assert {where.split("/")[5] for where in stage} == {"2"}, "the one that failed"
    compared = [where.split("/")[3::2] for where in told["answers"] if where.startswith("/api/comparison")]
    assert all("run" in pair or set(pair) == {"gold", "mute"} for pair in compared)
    monkeypatch.setattr(exports, "LARGEST", 1)
    assert "gold: of 8 episodes this file holds 0, first those that failed" in export(library, tmp_path / "none.html")


def test_what_is_damaged_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    evaluated(tmp_path / "sound", GoldAgent(), "gold")
    evaluated(tmp_path / "torn", GoldAgent(), "gold")
    (tmp_path / "torn" / "tasks.jsonl").write_text('{"id": 1}\n')
    (left_out,) = export(Library([tmp_path]), tmp_path / "page.html")
    assert left_out.startswith("torn: ")
    assert "tasks.jsonl" in left_out
    answers = told_by(tmp_path / "page.html")["answers"]
    assert answers["/api/episode/sound/eval/1"]["reward"] == 1.0
    assert answers["/api/evaluations/torn"]["rows"][2]["success"]["mean"] == 1.0


TORN = """
from toy import LampTools, generate, house
from understudy.domains.base import Domain
DOMAIN = Domain(__name__, house, LampTools, generate, ("one", "two"))
"""


def test_a_domain_whose_tasks_are_damaged_costs_no_other_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torn_lamps" / "tasks").mkdir(parents=True)
    (tmp_path / "torn_lamps" / "__init__.py").write_text(TORN)
    (tmp_path / "torn_lamps" / "tasks" / "train.jsonl").write_text('{"id": 1}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    run = Run.create(tmp_path / "run", CONFIG.replace(domain="torn_lamps:DOMAIN"))
    run.keep(4, [played(TOY, TASK, Script(ASK))])
    library = Library([run.folder])
    export(library, tmp_path / "page.html")
    told = told_by(tmp_path / "page.html")["answers"]
    assert "train.jsonl:1: not a task" in told["/api/failures/run/4"]["not_told"]
    assert told["/api/episode/run/4/1"]["reward"] == 0.0
    with served(library) as address:
        found = httpx2.get(f"{address}/api/failures/run/4", verify=False, timeout=60)
    assert (found.status_code, found.json()["error"]) == (404, told["/api/failures/run/4"]["not_told"])
    cli.view([run.folder], text=True)
    assert "failed is not known: " in capsys.readouterr().out


def test_episodes_are_shown_where_the_server_of_their_domain_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "x", "prompt": "p", "check": {"answer": {"text": "a"}}}\n')
    (tmp_path / "gone.toml").write_text('tasks = "tasks.jsonl"\n[server]\ncommand = "false"\nstarts = 1\nbackoff = 0\n')
    run = Run.create(tmp_path / "run", CONFIG.replace(domain=f"mcp:{tmp_path / 'gone.toml'}"))
    run.keep(4, [played(TOY, TASK, Script(ASK))])
    library = Library([run.folder])
    shown = ask(library, EPISODE, key="run", step="4", number="1")
    assert shown["said"]
    export(library, tmp_path / "page.html")
    told = told_by(tmp_path / "page.html")["answers"]
    assert told["/api/episode/run/4/1"] == shown
    assert "the MCP server 'gone' does not start" in told["/api/failures/run/4"]["not_told"]
    cli.view([run.folder], text=True)
    assert "failed is not known: " in capsys.readouterr().out


def test_an_evaluation_is_shown_by_its_folder_or_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.view([folder / "mute"], text=True)
    text = capsys.readouterr().out
    cli.view([folder / "mute" / "evaluation.json"], text=True)
    assert capsys.readouterr().out == text
    cli.view([folder / "run" / "evaluations" / "000004 trained.json"], text=True)
    assert "000004 trained" in capsys.readouterr().out


def test_why_episodes_of_a_run_failed(folder: Path) -> None:
    library = Library([folder])
    found = ask(library, "/api/evaluations/{key}", key="run")
    assert found["kept"] == ["000004 trained", "000000 base model", "4"]
    assert ask(library, "/api/evaluations/{key}", key="mute")["kept"] == []
    for step, episodes in (("4", 2), ("000000 base model", 3)):
        why = ask(library, "/api/failures/{key}/{step}", key="run", step=step)
        (failure,) = why["failures"]
        assert (why["episodes"], failure["episode"]) == (episodes, 2)
        shown = ask(library, EPISODE, key="run", step=step, number="2")
        assert failure["cause"]["what"] == why["causes"][0]["what"] == shown["causes"][0]["what"]
        assert why["meanings"][failure["cause"]["what"]]["who"] == "agent"
    assert shown["fork"].endswith("run --fork '000000 base model/2@TURN'")
    assert shown["group"] == 3, "of an evaluation all episodes of the task"


def test_a_run_as_text_says_why_episodes_failed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.view([folder / "run"], text=True)
    text = capsys.readouterr().out
    assert "Why 1 of the 3 episodes of 000004 trained failed" in text
    assert text.index("step_000004, episode 1") < text.index("Why 1 of")
    cli.view([folder / "run"], step=4, episode=1)
    assert "Why" not in capsys.readouterr().out
    cli.view([folder / "mute"], text=True)
    assert "Why episodes failed" in capsys.readouterr().out


def test_a_run_without_anything_yet(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    (run.folder / "episodes" / "notes.jsonl").write_text("{}\n")
    assert evaluation_files(run.folder) == {}
    assert ask(Library([run.folder]), "/api/evaluations/{key}", key="run")["kept"] == []
    assert export(Library([run.folder]), tmp_path / "page.html") == []


def test_every_answer_is_held_or_worked_out_by_the_page() -> None:
    ours = {"/api/runs/{run}/episodes", "/api/runs/{run}/facets"}
    weights = {"/api/runs/{run}/steps/{at}/episodes/{episode}/trainer"}
    source = Path(exports.__file__).read_text(encoding="utf-8")
    for pattern in ANSWERS.keys() - ours - weights:
        bare = pattern.count("{") <= 1 or "{key}/{step}/{number}" in pattern
        assert bare or f'"{pattern}"' in source, pattern
