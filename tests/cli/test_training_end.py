"""Test what `train` prints at its end: a task that the model learned, and the next steps."""

from pathlib import Path

import pytest

from support.run_evaluations import write_run_evaluation
from support.run_folder import save_checkpoint
from understudy.cli.training_end import (
    MAX_LINES_IN_FILES,
    MAX_MESSAGE_CHARS,
    MAX_SHOWN_MESSAGES,
    Improvement,
    find_improvement,
    format_improvement,
    format_next_steps,
    format_training_end,
)
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run


def played(task: str, reward: float | None, texts: list[str], seed: int = 0) -> Trajectory:
    """Return an episode in which user and agent say `texts` in turn. Reward None is a limit of the context."""
    roles = ("user", "assistant")
    said = [Message(role=roles[i % 2], content=text) for i, text in enumerate(texts)]  # type: ignore[arg-type]
    episode = Trajectory(task, seed=seed, messages=[Message(role="system", content="SYSTEM"), *said])
    episode.score = None if reward is None else Score(reward=reward)
    episode.stop_reason = StopReason.DONE
    return episode


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "my run", TrainConfig(domain="toy:DOMAIN"))


def evaluate(run: Run, step: int, stage: str, *episodes: Trajectory, eval_set: str = "") -> None:
    write_run_evaluation(run, step, stage, episodes=episodes, eval_set=eval_set)


def test_shortest_task_that_failed_first_and_succeeds_last_is_found(run: Run) -> None:
    first = {"long": (0, ["hi"] * 6), "new": (0, ["hi", "no"]), "old": (1, ["hi"]), "lost": (1, ["hi"])}
    last = {"long": (1, ["hi", "b"]), "new": (1, ["hi", "yes"]), "old": (1, ["hi"]), "lost": (0, ["hi"])}
    evaluate(run, 0, "base", *(played(task, *what) for task, what in first.items()))
    evaluate(run, 5, "sft", *(played(task, 0, ["hi"]) for task in first))
    evaluate(run, 9, "rl", *(played(task, *what) for task, what in last.items()))
    found = find_improvement(run.folder)
    assert found is not None
    assert (found.stage_before, found.stage_after) == ("base", "rl")
    assert (found.num_tasks, found.num_learned, found.num_lost) == (4, 2, 1)
    assert (found.before.task_id, found.after.task_id) == ("new", "new")
    assert (found.before.messages[-1].content, found.after.messages[-1].content) == ("no", "yes")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([("a", 1.0)], [("a", 1.0)]),
        ([("a", 0.0)], [("a", 0.5)]),
        ([("a", 1.0)], [("a", 0.0)]),
        ([("a", None)], [("a", 1.0)]),  # no score is no failure of the model
        ([("a", 0.0)], [("b", 1.0)]),
        ([("a", 0.0), ("a", 1.0)], [("a", 1.0), ("a", 1.0)]),
        ([("a", 0.0), ("a", 0.0)], [("a", 1.0), ("a", 0.0)]),
        ([("a", 0.0)], None),
    ],
)
def test_nothing_is_claimed_without_such_a_task(
    run: Run, before: list[tuple[str, float | None]], after: list[tuple[str, float | None]] | None
) -> None:
    evaluate(run, 0, "base", *(played(task, reward, ["hi"], seed) for seed, (task, reward) in enumerate(before)))
    if after is not None:
        evaluate(run, 9, "rl", *(played(task, reward, ["hi"], seed) for seed, (task, reward) in enumerate(after)))
    evaluate(run, 9, "rl", played("a", 1, ["hi"]), eval_set="ood")
    assert find_improvement(run.folder) is None
    assert format_training_end(run.folder, is_terminal=True) == format_next_steps(run.folder)


def improvement() -> Improvement:
    call = Message(role="assistant", tool_calls=(ToolCall(name="cancel", arguments={"order": "W1"}),))
    after = played("shop/1", 1, ["Cancel W1.", "It is cancelled."])
    after.messages[2:2] = [call, Message(role="tool", content='{"status":\n "cancelled"}')]
    return Improvement("base", "rl", played("shop/1", 0, ["Cancel W1.", "I cannot."]), after, 9, 3, 2)


def test_conversations_stand_side_by_side_in_a_wide_terminal() -> None:
    text = format_improvement(improvement(), 100)
    lines = text.splitlines()
    assert all(word in lines[0] for word in ("3 of 9", "2 the other", "shop/1"))
    assert any("before: base (reward 0)" in line and "after: rl (reward 1)" in line for line in lines)
    assert any(line.count("Cancel W1.") == 2 for line in lines)
    assert any("I cannot." in line and "> cancel(order='W1')" in line for line in lines)
    assert '{"status": "cancelled"}' in text
    assert max(map(len, lines)) <= 100
    assert "SYSTEM" not in text


def test_conversations_stand_one_under_the_other_in_a_narrow_terminal() -> None:
    lines = format_improvement(improvement(), 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert not any(line.count("Cancel W1.") == 2 for line in lines)
    text = "\n".join(lines)
    assert text.index("I cannot.") < text.index("after: rl") < text.index("It is cancelled.")


def test_long_and_unsafe_texts_are_cut_and_escaped() -> None:
    texts = [f"\x1b[2J[bold]{number:03} " + "x" * 500 for number in range(40)]
    text = format_improvement(
        Improvement("base", "rl", played("t", 0, texts), played("t", 1, ["漢字" * 60, "ok"]), 1, 1, 0), 120
    )
    assert "\x1b" not in text
    assert "[bold]000" in text
    assert f"({40 - MAX_SHOWN_MESSAGES} more)" in text
    assert "[bold]039" in text
    assert "[bold]020" not in text
    assert text.count("x") < (MAX_SHOWN_MESSAGES + 1) * MAX_MESSAGE_CHARS


def test_without_a_terminal_long_conversations_are_left_out(run: Run) -> None:
    evaluate(run, 0, "base", played("a", 0, ["hi", "no"]))
    evaluate(run, 9, "rl", played("a", 1, ["hi", "yes"]))
    short = format_training_end(run.folder, is_terminal=False, width=100)
    assert "before: base" in short
    assert len(short.splitlines()) <= MAX_LINES_IN_FILES
    evaluate(run, 10, "rl", played("a", 1, ["y" * MAX_MESSAGE_CHARS] * 12))
    assert "before: base" not in format_training_end(run.folder, is_terminal=False, width=100)
    assert "before: base" in format_training_end(run.folder, is_terminal=True, width=100)


def test_next_steps_can_be_copied(run: Run) -> None:
    assert "chat" not in format_next_steps(run.folder)  # nothing to talk to
    save_checkpoint(run, 9)
    shown = format_next_steps(run.folder, "a task")
    for command in ("view", "chat"):
        assert f"understudy {command} '{run.folder}'" in shown
    assert "--task 'a task'" in shown
    assert "understudy new environment" in shown
