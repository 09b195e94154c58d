"""Test the live view of training, with and without a terminal."""

import io

from rich.console import Console

from understudy.cli.live import LiveView


def make_console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def read_output(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def test_live_view_without_terminal_prints_a_line_per_step() -> None:
    where = make_console(terminal=False)
    with LiveView(4, "retail", where, done_steps=1) as live:
        live.phase("sampling")
        live.add_step(2, {"reward": 0.25, "faults": 0, "note": "[red]x"})
        live.note("checkpoint written")
        live.report("train", 3, 4, {"reward": 0.5})
        live.report("evaluate", 5, 200, {})
        live.report("replies are sampled by somebody", 0, 0, {})
    lines = read_output(where).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("step 2/4 reward=0.25 faults=0 note=[red]x left=")
    assert lines[1] == "checkpoint written"
    assert lines[2].startswith("step 3/4 reward=0.5 left=")
    assert lines[3] == "replies are sampled by somebody"


def test_time_left_uses_the_last_steps() -> None:
    where = make_console(terminal=False)
    with LiveView(10, "retail", where) as live:
        for step, seconds in enumerate([900.0, 20.0, 30.0, 20.0, 30.0, 25.0], 1):
            live.add_step(step, {"time/step_seconds": seconds})
    left = [line.rpartition("left=")[2] for line in read_output(where).splitlines()]
    assert left[0] == "2:15:00"
    assert left[-1] == "0:01:40", "the first step, which compiles and warms up, is forgotten"


def test_live_view_on_a_terminal_draws_progress_and_curves() -> None:
    where = make_console(terminal=True)
    with LiveView(4, "retail", where) as live:
        live.report(
            "train",
            1,
            8,
            {"rollout/reward": 0.25, "rollout/success_rate": 0.5, "time/rate": 912.34, "health/approx_kl": 0.0},
        )
        live.report("train", 2, 8, {"rollout/reward": 0.75, "rollout/success_rate": float("nan"), "time/rate": 912.34})
        live.report("evaluate", 5, 200, {})
        live.note("something to know")
    text = read_output(where)
    for part in (
        "retail",
        "evaluate 5/200",
        "2/8",
        "▁█ 0.750, mean of the last 2 0.500",
        "rollout/success_rate  ▁ 0.500",
    ):
        assert part in text
    assert "time/rate 912.3" in text
    assert "health/approx_kl" not in text
    assert "something to know" in text


def test_error_ends_the_live_view() -> None:
    where = make_console(terminal=True)
    try:
        with LiveView(4, "retail", where):
            raise ZeroDivisionError
    except ZeroDivisionError:
        where.print("after")
    assert read_output(where).rstrip().endswith("after")
