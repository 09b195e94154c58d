"""The live view, on a terminal and without one."""

import io

from rich.console import Console

from understudy.live import Live


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def written(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def test_without_a_terminal_each_step_is_a_plain_line() -> None:
    where = console(terminal=False)
    with Live(4, "retail", where, done=1) as live:
        live.phase("sampling")
        live.update(2, {"reward": 0.25, "faults": 0, "note": "[red]x"})
        live.note("checkpoint written")
        live.report("train", 3, 4, {"reward": 0.5})
        live.report("evaluate", 5, 200, {})
        live.report("replies are sampled by somebody", 0, 0, {})
    lines = written(where).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("step 2/4 reward=0.25 faults=0 note=[red]x left=")
    assert lines[1] == "checkpoint written"
    assert lines[2].startswith("step 3/4 reward=0.5 left=")
    assert lines[3] == "replies are sampled by somebody"


def test_the_time_left_goes_by_the_last_steps() -> None:
    where = console(terminal=False)
    with Live(10, "retail", where) as live:
        for step, seconds in enumerate([900.0, 20.0, 30.0, 20.0, 30.0, 25.0], 1):
            live.update(step, {"timing/step_seconds": seconds})
    left = [line.rpartition("left=")[2] for line in written(where).splitlines()]
    assert left[0] == "2:15:00"
    assert left[-1] == "0:01:40", "the first step, which compiles and warms up, is forgotten"


def test_on_a_terminal_progress_curves_and_metrics_are_drawn() -> None:
    where = console(terminal=True)
    with Live(4, "retail", where) as live:
        live.report(
            "train",
            1,
            8,
            {"reward/average_reward": 0.25, "reward/success_rate": 0.5, "timing/rate": 912.34, "health/kl": 0.0},
        )
        live.report(
            "train", 2, 8, {"reward/average_reward": 0.75, "reward/success_rate": float("nan"), "timing/rate": 912.34}
        )
        live.report("evaluate", 5, 200, {})
        live.note("something to know")
    text = written(where)
    for part in (
        "retail",
        "evaluate 5/200",
        "2/8",
        "▁█ 0.750, mean of the last 2 0.500",
        "reward/success_rate   ▁ 0.500",
    ):
        assert part in text
    assert "timing/rate 912.3" in text
    assert "health/kl" not in text
    assert "something to know" in text


def test_an_error_ends_the_display() -> None:
    where = console(terminal=True)
    try:
        with Live(4, "retail", where):
            raise ZeroDivisionError
    except ZeroDivisionError:
        where.print("after")
    assert written(where).rstrip().endswith("after")
