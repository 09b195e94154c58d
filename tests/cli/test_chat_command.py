"""Test `chat`: what the person sees, the changes of the database, the grade, and the stored episode."""

import asyncio
import io
import re
import signal
import sys
from pathlib import Path

import pytest

from support.endpoint import Answer, lamp_agent, serve_answers
from support.mcp_environment import write_environment
from support.terminal import scripted_player
from toy import DOMAIN
from understudy.cli.chat import (
    MAX_RESULT_CHARS,
    MAX_SHOWN_EDITS,
    MAX_VALUE_CHARS,
    chat_interactively,
    format_edits,
    format_grade,
    format_result,
    split_model,
)
from understudy.cli.main import main
from understudy.cli.play import select_task
from understudy.core.messages import ToolCall
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory
from understudy.envs.state_diff import StateEdit
from understudy.evaluation.failures.causes import EpisodeFailure, FailureCause
from understudy.evaluation.stored_episodes import open_stored_episodes
from understudy.rollouts.agent import GoldAgent, GoldCallsFirstAgent, RefusingAgent
from understudy.sources.loading import load_source
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample
from understudy.viewer.episodes.episode_api import STANDALONE_EVAL_STEP, episode_source_of
from understudy.viewer.library import RunLibrary

TASK = select_task(DOMAIN, split="test")
LAMP = TASK.gold_calls[0].arguments["lamp_id"]


def run_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, *words: str
) -> tuple[int, str, str]:
    """Run `understudy chat` with a person who types `typed`, and return the exit code, the output and the errors."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    monkeypatch.setattr(sys, "argv", ["understudy", "chat", *words])
    code = 0
    try:
        main()
    except SystemExit as e:
        code = int(e.code or 0)
    return code, *capsys.readouterr()


def test_person_sees_calls_results_changes_and_the_grade() -> None:
    someone, shown = scripted_player(["A lamp, please.", "Yes, please.", "/end"])
    episode = chat_interactively(DOMAIN, TASK, GoldAgent(), someone)
    assert episode is not None
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.DONE)
    text = "\n".join(shown)
    assert "find_lamp, switch_lamp" in shown[0]
    assert TASK.scenario.instructions in text
    call, result, change = (
        text.index(f"agent > switch_lamp(lamp_id='{LAMP}', on=True)"),
        text.index(" tool | "),
        text.index(f"   db | lamps.{LAMP}.on: False -> True"),
    )
    assert call < result < change < text.index("reward 1")
    assert re.search(r"state_match +1\n", shown[-1])
    assert "why" not in shown[-1]


def test_end_of_input_grades_and_says_why_it_failed() -> None:
    someone, shown = scripted_player([""])  # an empty first message is the opening of the task
    episode = chat_interactively(DOMAIN, TASK, RefusingAgent(), someone)
    assert episode is not None
    assert episode.reward == 0.0
    assert episode.messages[1].content == TASK.scenario.opening
    assert re.search(r"state_match +0\n", shown[-1])
    assert re.search(r"why: agent .+", shown[-1])
    assert not any("db |" in text for text in shown)


def test_refused_write_changes_nothing_and_is_shown_as_an_error() -> None:
    someone, shown = scripted_player(["A lamp, please.", "/end"])
    assert chat_interactively(DOMAIN, TASK, GoldCallsFirstAgent(), someone) is not None
    assert any(text.startswith(" tool | Error: ") for text in shown)
    assert not any("db |" in text for text in shown)
    assert "unconfirmed" in shown[-1]


@pytest.mark.parametrize("lines", [[], ["/end"], ["/quit"], ["Hello.", "/quit"]])
def test_person_who_leaves_early_gets_no_grade(lines: list[str]) -> None:
    someone, shown = scripted_player(lines)
    assert chat_interactively(DOMAIN, TASK, GoldAgent(), someone) is None
    assert not any("reward" in text for text in shown)


class _InterruptedAgent:
    """An agent during whose reply the person presses Ctrl-C."""

    async def act(self, *_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()


def test_ctrl_c_during_a_reply_leaves_without_a_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("understudy.cli.chat.Status.update", lambda _, text: told.append(text))
    handler = signal.getsignal(signal.SIGINT)
    someone, shown = scripted_player(["Hello."])
    assert chat_interactively(DOMAIN, TASK, _InterruptedAgent(), someone) is None  # type: ignore[arg-type]
    assert (len(told), "left" in shown[-1]) == (1, True)
    assert signal.getsignal(signal.SIGINT) is handler


class _Sums(ToolEpisode):
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def reward(self, transcript: object) -> float:
        return 1.0


def test_single_turn_source_has_calls_and_a_grade_but_no_database() -> None:
    calls = (ToolCall(name="add", arguments={"a": 1, "b": 2}),)
    source = ToolDataset("sums", "Add.", [ToolExample(prompt="1 + 2?", answer="3", gold_calls=calls)], _Sums)
    task = next(task for split in ("train", "validation", "test") for task in source.tasks(split))  # type: ignore[arg-type]
    someone, shown = scripted_player(["", "/end"])
    episode = chat_interactively(source, task, GoldAgent(), someone)
    assert episode is not None
    assert (episode.reward, [m.content for m in episode.messages if m.role == "user"]) == (1.0, ["1 + 2?"])
    assert shown.index("agent > add(a=1, b=2)") < shown.index(" tool | 3")
    assert not any("db |" in text for text in shown)


@pytest.mark.slow
def test_mcp_environment(tmp_path: Path) -> None:
    source = load_source(f"mcp:{write_environment(tmp_path)}")
    task = select_task(source, "count/1")
    someone, shown = scripted_player(["", "/end"])
    episode = chat_interactively(source, task, GoldAgent(), someone)
    assert episode is not None
    assert episode.reward == 1.0
    assert shown.index("agent > add(amount=3)") < shown.index("agent > add(amount=4)")
    assert sum(text.startswith(" tool | ") for text in shown) == 2


def test_changes_and_results_are_short() -> None:
    edits = [StateEdit(path=("rows", str(i)), kind="added", after="x" * 500) for i in range(MAX_SHOWN_EDITS + 3)]
    lines = list(format_edits([StateEdit(path=("rows", "a"), kind="removed", before={"id": 1}), *edits]))
    assert lines[0] == "   db | rows.a: removed {'id': 1}"
    assert len(lines) == MAX_SHOWN_EDITS + 1
    assert len(lines[1]) < MAX_VALUE_CHARS + 40
    assert "4 more" in lines[-1]
    assert len(format_result("y" * 5000)) < MAX_RESULT_CHARS + 50
    assert format_result("a\nb") == " tool | a\n      | b"


def test_model_in_the_place_of_what(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert split_model(["tiny", "toy:DOMAIN", "seed=1"]) == (["toy:DOMAIN", "seed=1"], "tiny")
    assert split_model([str(tmp_path)]) == ([], str(tmp_path))
    assert split_model(["retail", "seed=1"]) == (["retail", "seed=1"], "")
    assert split_model(["seed=1"]) == (["seed=1"], "")


@pytest.mark.slow
def test_model_talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "chat"
    words = ("tiny", "toy:DOMAIN", "sampling.max_response_tokens=8", "--task", TASK.id, "--out", str(out))
    code, shown, _ = run_chat(monkeypatch, capsys, "Hello.\n", *words)
    assert (code, f"{TASK.id}: reward 0 " in shown) == (0, True)
    episode = open_stored_episodes(out).episode(1)
    assert episode.messages[1].content == "Hello."
    assert sum(episode.mask)  # the tokens that were sampled


def test_episode_is_stored_as_an_evaluation_that_view_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "chat"
    words = ("toy:DOMAIN", "--agent", "gold", "--task", TASK.id, "--out", str(out))
    code, _, err = run_chat(monkeypatch, capsys, "Hello.\nYes, please.\n", *words)
    assert (code, f"understudy view {out}" in err) == (0, True)
    stored = open_stored_episodes(out)
    episode = stored.episode(1)
    assert stored.task(episode) == TASK
    assert (stored.config.user.kind, episode.reward) == ("human", 1.0)
    assert [m.content for m in episode.messages if m.role == "user"] == ["Hello.", "Yes, please."]
    place = {"key": out.name, "step": STANDALONE_EVAL_STEP}
    assert episode_source_of(RunLibrary([out]), place).stored.episode(1) == episode
    assert run_chat(monkeypatch, capsys, "Hello.\n", *words)[0] == 2  # the folder is not overwritten


def test_endpoint_talks_and_its_failure_has_no_grade(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["toy:DOMAIN", "--agent", "api", "endpoints.default.model=m", "--task", TASK.id]
    words += ["endpoints.default.max_retries=0", "limits.max_retries=0"]
    with serve_answers(lamp_agent) as endpoint:
        url = f"endpoints.default.base_url={endpoint.url}"
        code, shown, _ = run_chat(monkeypatch, capsys, "\nYes, please.\n", *words, url)
        assert (code, f"db | lamps.{LAMP}.on" in shown) == (0, True)
        assert "reward 1" in shown
    with serve_answers([Answer("no", status=500)] * 3) as endpoint:
        url = f"endpoints.default.base_url={endpoint.url}"
        code, shown, _ = run_chat(monkeypatch, capsys, "\n", *words, url)
        assert (code, "no score" in shown, "500" in shown) == (1, True, True)


def test_person_who_leaves_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "chat"
    assert run_chat(monkeypatch, capsys, "Hello.\n/quit\n", "toy:DOMAIN", "--agent", "gold", "--out", str(out))[0] == 0
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("toy:DOMAIN", "--agent", "gold", "user.kind=llm"), "user.kind=llm"),
        (("tiny", "toy:DOMAIN", "--model", "smollm2-135m"), "smollm2-135m"),
        (("tiny", "toy:DOMAIN", "--agent", "gold"), "gold"),
    ],
)
def test_settings_without_effect_are_refused(
    words: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_chat(monkeypatch, capsys, "", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert named in err


def test_own_question_of_the_person_is_not_graded() -> None:
    episode = Trajectory(TASK.id, TASK.domain)
    episode.score = Score(reward=0.0)
    cause = FailureCause(kind="contradicted_scenario", message_index=1, evidence="'L999' is not in the scenario")
    failure = EpisodeFailure.model_construct(cause=cause)
    assert format_grade(episode, failure).startswith(f"{TASK.id}: not graded")
    assert "L999" in format_grade(episode, failure)
    other = EpisodeFailure.model_construct(cause=cause.replace(kind="unknown"))
    assert "reward 0" in format_grade(episode, other)
