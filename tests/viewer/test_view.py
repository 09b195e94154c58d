"""Test the text view of a run: summary, curves, result, and transcripts of episodes."""

import dataclasses
import re
from pathlib import Path

import pytest

from support.groups import make_groups
from support.run_evaluations import write_run_evaluation
from support.viewer_episodes import request_route
from understudy.cli.view import ViewOptions, view
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory
from understudy.evaluation import explain_stored
from understudy.evaluation.stored_episodes import open_stored_episodes
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run
from understudy.runs.storage.episode_store import REPORT_FILE
from understudy.viewer.library import RunLibrary
from understudy.viewer.run_text import format_run, format_transcript, sparkline

CALL = ToolCall(name="switch", arguments={"id": "L1", "on": True})
MESSAGES = [
    Message(role="system", content="Be kind.\nAlways."),
    Message(role="user", content="Switch on L1."),
    Message(
        role="assistant", content="On it.", tool_calls=(ToolCall(name="switch", arguments={"id": "L1", "on": True}),)
    ),
    Message(role="tool", content="done", tool_call_id="call_1"),
    Message(role="assistant", tool_calls=(ToolCall(name="switch", parse_error="not JSON"),)),
    Message(role="assistant"),
]


def make_episode(task: str, reward: float | None) -> Trajectory:
    score = None if reward is None else Score(reward=reward, parts={"state_match": reward})
    stop = StopReason.FAULT if reward is None else StopReason.DONE
    fault = "engine" if reward is None else None
    return Trajectory(
        task, messages=list(MESSAGES), score=score, stop_reason=stop, fault=fault, error="gone" * (reward is None)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = Run.create(tmp_path / "run", TrainConfig(seed=3))
    for step in range(1, 5):
        run.log_metrics(step, {"rollout/reward": step / 4, "note": "text", "flag": True, "lost": float("nan")})
    run.save_groups(2, make_groups([make_episode("early", 0.0)]))
    played = [
        make_episode("bad", 0.0),
        make_episode("good", 1.0),
        make_episode("worse", 0.0),
        make_episode("failed", None),
    ]
    run.save_groups(4, make_groups(played))
    run.write_file("result.md", "| the | table |\n")
    return run.folder


def test_run_summary_has_config_curves_result_and_failures(folder: Path) -> None:
    text = format_run(folder)
    assert "domain      retail" in text
    assert "seed 3" in text
    assert f"{'rollout/reward':<36} ▁▃▆█" in text
    assert "0.25 -> 1 " in text
    assert "| the | table |" in text
    assert "episode 1: bad: reward 0 (state_match 0), done, 3 turns" in text
    assert "episode 2: good: reward 1" in text
    assert "episode 3" not in text
    assert "lost" not in text
    assert "flag" not in text


def test_health_warnings_are_shown(folder: Path) -> None:
    run = Run(folder, TrainConfig(seed=3))
    assert "\nhealth\n" not in format_run(folder)
    for step in (5, 6, 7):
        run.log_metrics(
            step, {"rollout/reward": 1.0, "health/approx_kl": float(step != 6), "health/noop_baseline": 0.0}
        )
    for step in (5, 7):
        run.log_warning(step, {"check": "approx_kl", "text": f"one step moved it, {step}", "remedy": "lower it"})
    text = format_run(folder)
    assert re.search(r"\nhealth\napprox_kl\b.*\b2\b.*\b7: one step moved it, 7\n +lower it\n", text)
    assert "health/approx_kl" not in text, "0 and 1 are no curve"


def test_summary_of_a_run_without_steps(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", TrainConfig())
    assert format_run(run.folder)
    with pytest.raises(ConfigError, match=r"\brun\b"):
        format_run(run.folder, episode=1)


def test_episode_is_selected_by_step_and_number(folder: Path) -> None:
    assert format_run(folder, episode=3).startswith("step_000004, episode 3: worse")
    assert format_run(folder, step=2).startswith("step_000002, episode 1: early")
    assert "(engine: gone)" in format_run(folder, episode=4)
    with pytest.raises(ConfigError, match=r"\b5\b.*\b1 to 4\b"):
        format_run(folder, episode=5)
    with pytest.raises(ConfigError, match=r"\b0\b.*\b1 to 4\b"):
        format_run(folder, episode=0)
    with pytest.raises(ConfigError, match=r"\b3\b.*\b2, 4\b"):
        format_run(folder, step=3)


def test_summary_names_a_damaged_episode_line(folder: Path) -> None:
    with (folder / "trajectories" / "step_000004.jsonl").open("a") as f:
        f.write("{\n")
    assert "step_000004.jsonl:5: " in format_run(folder)


def test_episode_number_is_its_line_number(folder: Path) -> None:
    file = folder / "trajectories" / "step_000004.jsonl"
    bad, good, *_ = file.read_text().splitlines()
    file.write_text(f"{bad}\n{{\n{good}\n")
    assert "step_000004, episode 3: good" in format_run(folder)
    assert "step_000004, episode 3: good" in format_run(folder, episode=3)
    with pytest.raises(ConfigError, match=r"step_000004\.jsonl:2: "):
        format_run(folder, episode=2)
    with pytest.raises(ConfigError, match=r"\b4\b.*\b1 to 3\b"):
        format_run(folder, episode=4)


def test_control_characters_in_model_text_are_replaced(folder: Path) -> None:
    title, paste = "\x1b]0;taken\x07", "\x9b2J\x1b]52;c;aGk=\x07"
    call = ToolCall(name=title, arguments={paste: title}, parse_error="")
    messages = [Message(role="assistant", content=f"{title}\n\u202eback", tool_calls=(call,))]
    messages.append(Message(role="tool", content=f"a\u00a0b\u3000c\td\r{paste}"))
    run = Run(folder, TrainConfig(seed=3))
    failed = Trajectory(title, messages=messages, stop_reason=StopReason.FAULT, fault="engine", error=paste)
    run.save_groups(5, make_groups([failed]))
    text = format_run(folder, step=5)
    assert {c for c in text if not c.isprintable()} == {"\n", "\t", "\u00a0", "\u3000"}
    assert "\ufffd]0;taken\ufffd" in text, "one sees that there was something"
    assert "a\u00a0b\u3000c\td\n" in text


def test_transcript_lists_messages_and_calls() -> None:
    assert format_transcript(MESSAGES).splitlines() == [
        "   system | Be kind.",
        "          | Always.",
        "     user | Switch on L1.",
        "assistant | On it.",
        "assistant > switch(id='L1', on=True)",
        "     tool | done",
        "assistant > switch (malformed: not JSON)",
        "assistant | (empty)",
    ]


def test_episode_of_an_evaluation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = write_run_evaluation(Run(folder, TrainConfig()), 1, "sft", episodes=[make_episode("bad", 0.0)])
    alone = evaluation.rename(folder.parent / "alone")
    view(ViewOptions(paths=(alone,), episode=1))
    assert "episode 1: bad" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "step", "episode", "error"),
    [
        ("", 1, None, r"\balone\b.*\bno training steps\b.*--step"),
        (REPORT_FILE, None, 1, r"\breport without episodes\b.*--out"),
        ("", None, 2, r"\bno episode 2\b.*\b1 to 1\b"),
    ],
)
def test_episode_that_an_evaluation_lacks(
    folder: Path, file: str, step: int | None, episode: int | None, error: str
) -> None:
    evaluation = write_run_evaluation(Run(folder, TrainConfig()), 1, "sft", episodes=[make_episode("bad", 0.0)])
    alone = evaluation.rename(folder.parent / "alone")
    with pytest.raises(ConfigError, match=error):
        view(ViewOptions(paths=(alone / file,), step=step, episode=episode))


def test_unfinished_evaluation_says_how_to_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = write_run_evaluation(Run(folder, TrainConfig()), 1, "sft", episodes=[make_episode("bad", 0.0)])
    alone = evaluation.rename(folder.parent / "alone")
    (alone / REPORT_FILE).unlink()
    message = f"not finished, 1 episodes are stored; resume it by: understudy eval --resume {alone}"
    view(ViewOptions(paths=(alone,), text=True))
    assert capsys.readouterr().out == f"{alone}: {message}\n"
    library = RunLibrary([folder.parent])
    assert (list(library.runs()), list(library.evaluations())) == (["run"], ["alone"])
    (listed,) = request_route(library, "/api/evaluations")
    assert message in listed["problem"]


def test_sparkline_scales_and_averages_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([float(i) for i in range(100)], width=10) == "▁▂▃▃▄▅▆▆▇█"
    assert len(sparkline([0.0] * 41, width=40)) == 21


def test_damaged_episode_of_an_evaluation_is_named(folder: Path) -> None:
    played = [dataclasses.replace(make_episode("a", 1.0), seed=seed) for seed in range(3)]
    file = write_run_evaluation(Run(folder, TrainConfig()), 4, "rl", episodes=played) / "episodes.jsonl"
    first, _, third = file.read_text().splitlines()
    file.write_text(f"{first}\n{{\n{third}\n")
    assert f"{file}:2: " in explain_stored.format_failures(folder)
    stored = open_stored_episodes(folder, "000004 rl")
    assert stored.episode(3) == played[2]
    with pytest.raises(ConfigError, match=r"000004 rl.episodes\.jsonl:2: "):
        stored.episode(2)
    with pytest.raises(ConfigError, match=r"\b4 of 000004 rl\b.*\b1 to 3\b"):
        stored.episode(4)


@pytest.mark.parametrize("option", [{}, {"as_json": True}, {"text": True}])
def test_an_empty_folder_says_what_to_give(tmp_path: Path, option: dict[str, bool]) -> None:
    with pytest.raises(ConfigError, match=r"is an empty folder.*runs"):
        view(ViewOptions(paths=(tmp_path,), **option))


def test_the_text_of_a_folder_of_runs_needs_one_of_them(tmp_path: Path) -> None:
    run = tmp_path / "a"
    run.mkdir()
    (run / "config.toml").touch()
    with pytest.raises(ConfigError, match=f"give one, such as {run}"):
        view(ViewOptions(paths=(tmp_path,), text=True))
