"""A run as text: head, curves, result, and episodes that can be read."""

from pathlib import Path

import pytest

from understudy.assess import why
from understudy.assess.stored import open_stored
from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.messages import Message, ToolCall
from understudy.run import Run
from understudy.tasks import Score
from understudy.trajectory import Stop, Trajectory
from understudy.view import sparkline, transcript, view

CALL = ToolCall(name="switch", arguments={"id": "L1", "on": True})
MESSAGES = [
    Message(role="system", content="Be kind.\nAlways."),
    Message(role="user", content="Switch on L1."),
    Message(
        role="assistant", content="On it.", tool_calls=(ToolCall(name="switch", arguments={"id": "L1", "on": True}),)
    ),
    Message(role="tool", content="done", tool_call_id="call_1"),
    Message(role="assistant", tool_calls=(ToolCall(name="switch", malformed="not JSON"),)),
    Message(role="assistant"),
]


def episode(task: str, reward: float | None) -> Trajectory:
    score = None if reward is None else Score(reward=reward, parts={"state": reward})
    stop = Stop.FAULT if reward is None else Stop.DONE
    fault = "engine" if reward is None else None
    return Trajectory(
        task, messages=list(MESSAGES), score=score, stop=stop, fault=fault, error="gone" * (reward is None)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = Run.create(tmp_path / "run", TrainConfig(seed=3))
    for step in range(1, 5):
        run.log(step, {"reward": step / 4, "note": "text", "flag": True, "lost": float("nan")})
    run.keep(2, [episode("early", 0.0)])
    run.keep(4, [episode("bad", 0.0), episode("good", 1.0), episode("worse", 0.0), episode("failed", None)])
    run.write("result.md", "| the | table |\n")
    return run.folder


def test_summary(folder: Path) -> None:
    text = view(folder)
    assert "domain     retail" in text
    assert "seed 3" in text
    assert f"{'reward/average_reward':<36} ▁▃▆█" in text, "of an old run, under its new name"
    assert "0.25 -> 1 " in text
    assert "| the | table |" in text
    assert "episode 1: bad: reward 0 (state 0), done, 3 turns" in text
    assert "episode 2: good: reward 1" in text
    assert "episode 3" not in text
    assert "lost" not in text
    assert "flag" not in text


def test_what_was_wrong_with_a_run_is_told(folder: Path) -> None:
    run = Run(folder, TrainConfig(seed=3))
    assert "\nhealth\n" not in view(folder)
    for step in (5, 6, 7):
        run.log(step, {"reward/average_reward": 1.0, "health/kl": float(step != 6), "health/floor": 0.0})
    for step in (5, 7):
        run.warn(step, {"check": "kl", "text": f"one step moved it, {step}", "remedy": "lower it"})
    text = view(folder)
    assert "\nhealth\nkl, in 2 steps, the last time since step 7: one step moved it, 7\n    lower it\n" in text
    assert "health/kl" not in text, "0 and 1 are no curve"


def test_a_run_that_has_done_nothing_yet(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", TrainConfig())
    assert "no step is done yet" in view(run.folder)
    with pytest.raises(ConfigError, match="keeps no episodes yet"):
        view(run.folder, episode=1)


def test_one_episode(folder: Path) -> None:
    assert view(folder, episode=3).startswith("step_000004, episode 3: worse")
    assert view(folder, step=2).startswith("step_000002, episode 1: early")
    assert "failed: no score (engine: gone)" in view(folder, episode=4)
    with pytest.raises(ConfigError, match=r"has no episode 5; it has 1 to 4"):
        view(folder, episode=5)
    with pytest.raises(ConfigError, match=r"has no episode 0; it has 1 to 4"):
        view(folder, episode=0)
    with pytest.raises(ConfigError, match=r"no episodes of step 3; it does of: 2, 4"):
        view(folder, step=3)


def test_damaged_episodes_are_named(folder: Path) -> None:
    with (folder / "trajectories" / "step_000004.jsonl").open("a") as f:
        f.write("{\n")
    assert "step_000004.jsonl:5: not a trajectory" in view(folder)


def test_episodes_are_counted_by_their_lines_as_everywhere(folder: Path) -> None:
    file = folder / "trajectories" / "step_000004.jsonl"
    bad, good, *_ = file.read_text().splitlines()
    file.write_text(f"{bad}\n{{\n{good}\n")
    assert "step_000004, episode 3: good" in view(folder)
    assert "step_000004, episode 3: good" in view(folder, episode=3)
    with pytest.raises(ConfigError, match=r"step_000004\.jsonl:2: not a trajectory"):
        view(folder, episode=2)
    with pytest.raises(ConfigError, match="has no episode 4; it has 1 to 3"):
        view(folder, episode=4)


def test_a_terminal_obeys_nothing_that_a_model_wrote(folder: Path) -> None:
    title, paste = "\x1b]0;taken\x07", "\x9b2J\x1b]52;c;aGk=\x07"
    call = ToolCall(name=title, arguments={paste: title}, malformed="")
    said = [Message(role="assistant", content=f"{title}\n\u202eback", tool_calls=(call,))]
    said.append(Message(role="tool", content=f"a\u00a0b\u3000c\td\r{paste}"))
    run = Run(folder, TrainConfig(seed=3))
    run.keep(5, [Trajectory(title, messages=said, stop=Stop.FAULT, fault="engine", error=paste)])
    text = view(folder, step=5)
    assert {c for c in text if not c.isprintable()} == {"\n", "\t", "\u00a0", "\u3000"}
    assert "\ufffd]0;taken\ufffd" in text, "one sees that there was something"
    assert "a\u00a0b\u3000c\td\n" in text


def test_transcript() -> None:
    assert transcript(MESSAGES).splitlines() == [
        "   system | Be kind.",
        "          | Always.",
        "     user | Switch on L1.",
        "assistant | On it.",
        "assistant > switch(id='L1', on=True)",
        "     tool | done",
        "assistant > switch (malformed: not JSON)",
        "assistant | (nothing)",
    ]


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([float(i) for i in range(100)], width=10) == "▁▂▃▃▄▅▆▆▇█"
    assert len(sparkline([0.0] * 41, width=40)) == 21


def test_a_damaged_episode_of_an_evaluation_is_named(folder: Path) -> None:
    Run(folder, TrainConfig()).keep_evaluation("000004 trained", [episode("a", 1.0)] * 3)
    file = folder / "episodes" / "000004 trained.jsonl"
    first, _, third = file.read_text().splitlines()
    file.write_text(f"{first}\n{{\n{third}\n")
    assert f"{file}:2: not a trajectory" in why.as_text(folder)
    stored = open_stored(folder, "000004 trained")
    assert stored.episode(3) == stored.episode(1)
    with pytest.raises(ConfigError, match=r"000004 trained\.jsonl:2: not a trajectory"):
        stored.episode(2)
    with pytest.raises(ConfigError, match="has no episode 4 of 000004 trained; it has 1 to 3"):
        stored.episode(4)
