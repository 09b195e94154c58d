"""Test what training and evaluations show, with and without a terminal. `test_live_terminal.py` has a real one."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from understudy.cli import live
from understudy.cli.live import EvalView, LiveView, ProgressConsole, describe_run
from understudy.cli.run_clock import RunClock, TimeLeft
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.run import Run

RL_METRICS = {
    "rollout/success_rate": 0.5,
    "rollout/groups": 4.0,
    "rollout/noop_reward": 0.0,
    "rollout/response_tokens": 900.0,
    "rollout/turns": 3.0,
    "train/loss": 0.25,
    "time/rollout_seconds": 3.0,
    "time/step_seconds": 5.0,
    "health/approx_kl": 0.0,
}


def make_console(terminal: bool, width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def read_output(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def make_episode(reward: float | None, task: str = "t/1", stop: StopReason = StopReason.DONE) -> Trajectory:
    score = None if reward is None else Score(reward=reward)
    episode = Trajectory(task, score=score, stop_reason=stop, fault=None if score else "user", error="no\nreply")
    episode.observe([], [1])
    episode.act(Message(role="assistant", content="x"), [2], [-1.0])
    return episode


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", parse_config("", ["domain=toy:DOMAIN", "steps=3", "sft.steps=1"]))


def test_without_terminal_each_step_is_one_short_line(run: Run) -> None:
    where = make_console(terminal=False)
    with LiveView(run, where) as view:
        view.report("evaluate base", 0, 4, {})
        view.add_episode(make_episode(1.0))
        view.report("train", 1, 4, {"train/loss": 5.91234, "time/step_seconds": 1.5})
        view.report("[red]checkpoint written\x1b[2J", 0, 0, {})
        view.report("sample", 3, 8, {})
        view.report("train", 2, 4, RL_METRICS)
        view.report("train", 3, 4, {"rollout/success_rate": float("nan"), "time/step_seconds": 6.0})
    plan, folder, *lines = read_output(where).splitlines()
    assert "SFT 1 step " in plan
    assert "RL 3 steps" in plan
    assert str(run.folder) in folder
    steps = [line for line in lines if line.startswith("step ")]
    assert steps[0].startswith("step 1/4 SFT loss=5.91 seconds=1.5 left")
    assert steps[1].startswith("step 2/4 RL success=0.5 loss=0.25 seconds=5 left")
    assert steps[2].startswith("step 3/4 RL seconds=6 left")
    assert "[red]checkpoint written\N{REPLACEMENT CHARACTER}[2J" in lines
    assert max(map(len, steps)) < 80


@pytest.mark.parametrize("width", [40, 60, 100])
def test_terminal_view_fits_its_width(run: Run, width: int) -> None:
    where = make_console(terminal=True, width=width)
    view = LiveView(run, where)
    view.report("train", 1, 4, {"train/loss": 5.0, "time/step_seconds": 1.0, "time/tokens_per_second": 4321.0})
    view.report("train", 2, 4, RL_METRICS)
    view.report("sample", 3, 8, {})
    view.add_episode(make_episode(0.25, "retail/train/" + "x" * 100))
    page = make_console(terminal=False, width=width)
    page.print(view._render())
    lines = read_output(page).splitlines()
    assert len(lines) == 8
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("RL step 3/4: playing episodes 3/8")
    assert [line.split()[0] for line in lines[2:]] == ["left", "so", "success", "loss", "speed", "last"]
    assert "0.50 [0.15, 0.85]" in lines[4], "Wilson's interval of 2 of 4 tasks"
    assert "300 tokens/s" in lines[6]
    assert lines[7].split()[1:3] == ["reward", "0.25,"]


def test_view_of_sft_has_no_success(run: Run) -> None:
    view = LiveView(run, make_console(terminal=True))
    assert view._lines(20)[0].startswith("SFT step 1/4: starting")
    view.report("train", 1, 4, {"train/loss": 5.0, "time/tokens_per_second": 4321.0})
    view.report("evaluate sft", 2, 4, {})
    lines = view._lines(20)
    assert lines[0].startswith("step 1/4: evaluating sft 2/4")
    assert [line.split()[0] for line in lines[1:]] == ["left", "loss", "speed"]
    assert "4,321 tokens/s" in lines[-1]
    view.report("sample", 0, 4, {})
    assert [line.split()[0] for line in view._lines(20)[1:]] == ["left"], "RL has no step yet"


def test_notes_stay_above_the_view_and_the_view_is_removed_at_the_end(run: Run) -> None:
    where = make_console(terminal=True)
    with LiveView(run, where) as view:
        view.report("something to know", 0, 0, {})
    where.print("after")
    assert "something to know" in read_output(where)
    assert "\x1b[?25h" in read_output(where), "the cursor is shown again"
    assert read_output(where).endswith("after\n")


def test_dumb_terminal_gets_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    where = make_console(terminal=True)
    with LiveView(run, where) as view:
        view.report("train", 2, 4, RL_METRICS)
    assert "step 2/4 RL" in read_output(where)
    assert "\x1b" not in read_output(where)


def test_training_goes_on_when_the_reader_of_its_lines_has_gone(run: Run) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as file, LiveView(run, ProgressConsole(file=file)) as view:
        view.report("train", 1, 4, {"train/loss": 5.0})
        view.note("more")
        print("other code", file=file, flush=True)


def test_first_interrupt_is_announced_with_what_a_second_one_keeps(run: Run) -> None:
    where = make_console(terminal=False)
    with LiveView(run, where) as view:
        view.report("train", 1, 4, {"train/loss": 5.0, "time/step_seconds": 1.0})
        view.report("sample", 3, 8, {})
        with run.write_checkpoint(1) as folder:
            (folder / "weights").write_text("w")
        view.interrupt()
    last = read_output(where).splitlines()[-1]
    assert last.startswith("finishing step 2")
    assert last.endswith("keeps step 1")


@pytest.mark.parametrize(
    ("activity", "saved", "seconds", "parts"),
    [
        ("sample", 26, 80.4, ("finishing step 27, about 80 s;", "keeps step 26")),
        ("update", 20, None, ("finishing step 27;", "keeps step 20")),
        ("evaluate rl", 26, 30.0, ("evaluation;", "keeps step 26")),
        ("", 0, None, ("finishing step 27;", "keeps no step")),
    ],
)
def test_interruption_says_what_is_kept(
    activity: str, saved: int, seconds: float | None, parts: tuple[str, ...]
) -> None:
    text = live.format_interruption(activity, 26, saved, seconds)
    assert all(part in text for part in parts)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.4, "3 s"), (119.0, "119 s"), (150.0, "2 min"), (3599.0, "1 h 00 min"), (7500.0, "2 h 05 min")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert live.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (TimeLeft({}, ("RL", "evaluations")), "is measured"),
        (TimeLeft({}), "0 s"),
        (TimeLeft({"evaluations": 60.0}, ("RL",)), "at least 60 s (evaluations 60 s, RL not measured yet)"),
        (TimeLeft({"RL": 600.0, "evaluations": 60.0}), "11 min (RL 10 min, evaluations 60 s)"),
    ],
)
def test_time_left_by_phase(left: TimeLeft, text: str) -> None:
    assert live.format_left(left) == text


@pytest.mark.parametrize(
    ("episode", "text"),
    [
        (make_episode(1.0), "success, 1 reply: t/1"),
        (make_episode(0.5, stop=StopReason.MAX_TURNS), "reward 0.5, 1 reply, reached limits.max_turns: t/1"),
        (make_episode(None, stop=StopReason.FAULT), "user failed after 1 reply: t/1: no reply"),
    ],
)
def test_outcome_of_an_episode_is_one_line(episode: Trajectory, text: str) -> None:
    assert live.format_outcome(episode) == text


def test_recent_success_counts_groups_of_the_last_five_steps() -> None:
    steps = [{"rollout/success_rate": rate, "rollout/groups": 2.0} for rate in (1.0, 0.0, 0.5, 0.5, 1.0, 0.5)]
    found = live.recent_success(steps)
    assert (found.mean, found.tasks) == (0.5, 10)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (80, "episode 5/10, success so far 0.40 [0.12, 0.77], 12 min left"),
        (50, "episode 5/10, success so far 0.40, 12 min left"),
        (40, "episode 5/10, success so far 0.40"),
        (20, "episode 5/10"),
        (5, "episo"),
    ],
)
def test_a_narrow_line_of_an_evaluation_cuts_no_interval(width: int, shown: str) -> None:
    line = "episode 5/10, success so far 0.40 [0.12, 0.77], 12 min left"
    assert live._fit(line, width) == shown


def test_names_of_targets_are_no_emoji(tmp_path: Path) -> None:
    where = make_console(terminal=False, width=80)
    LiveView(Run.create(tmp_path / "run", TrainConfig()), where).note("tiny on m:OK: RL 1 step")
    assert read_output(where).strip() == "tiny on m:OK: RL 1 step"


def test_bar() -> None:
    assert live.format_bar(1, 4, 8) == "━━──────"
    assert live.format_bar(0, 0, 2) == "──"


def test_evaluation_shows_success_so_far_and_the_time_left() -> None:
    seconds = iter([0.0, *[10.0] * 20])
    where = make_console(terminal=True, width=60)
    config = parse_config("", ["domain=toy:DOMAIN"])
    view = EvalView(config, where, RunClock(config, now=lambda: next(seconds)))
    for done in range(5):
        view.add_episode(make_episode(float(done % 2), f"t/{done}"))
        view.report(done + 1, 10)
    last = read_output(where).rpartition("\r")[2]
    assert last.startswith("episode 5/10, success so far 0.40 [")
    assert len(last) < 60


@pytest.mark.parametrize(
    ("estimator", "count", "named"), [("group_mean", 5, True), ("group_mean", 0, False), ("gae", 5, False)]
)
def test_start_line_names_groups_that_a_step_may_add(tmp_path: Path, estimator: str, count: int, named: bool) -> None:
    algorithm = {"advantage_estimator": estimator, "max_resampled_groups": count}
    lines = describe_run(Run.create(tmp_path / "run", TrainConfig(algorithm=algorithm)))
    assert ("up to 88 episodes, with up to 5 tasks more" in lines[0]) == named
