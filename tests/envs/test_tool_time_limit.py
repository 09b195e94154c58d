"""Tests of the time limit of a tool's call."""

import asyncio
import contextlib
import os
import signal
import threading
import time

import pytest

from understudy.core.errors import RolloutError
from understudy.core.event_loop import run_async
from understudy.core.messages import ToolCall
from understudy.envs.tools import ToolkitBase

LOOPS = threading.Event()
"""Set while the endless tool runs."""


class Endless(ToolkitBase, tools=False):
    """A toolkit whose tools may run forever."""

    max_call_seconds = 0.2

    async def call(self, call: ToolCall) -> str:
        return await self._run_call(call)


class Tools(Endless):
    """Its tools."""

    def loop(self) -> str:
        """Loop forever, whatever is raised."""
        while True:
            with contextlib.suppress(Exception):
                LOOPS.set()
                time.sleep(0.01)

    def quick(self) -> str:
        """Return at once."""
        return "done"


def test_tool_that_loops_forever_is_named_as_a_fault_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGALRM)

    async def calls() -> str:
        with pytest.raises(RolloutError, match=r"\bloop\b.*\b0\.2 s\b") as error:
            await Tools().call(ToolCall(name="loop"))
        assert error.value.fault == "tool"
        monkeypatch.setattr(Tools, "max_call_seconds", 60.0)
        return await Tools().call(ToolCall(name="quick"))

    assert asyncio.run(calls()) == "done"
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_ctrl_c_ends_a_tool_that_loops_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    def press_once_it_loops() -> None:
        if LOOPS.wait(60):
            os.kill(os.getpid(), signal.SIGINT)

    LOOPS.clear()
    monkeypatch.setattr(Tools, "max_call_seconds", 120.0)
    threading.Thread(target=press_once_it_loops).start()
    with pytest.raises(KeyboardInterrupt):
        run_async(Tools().call(ToolCall(name="loop")))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
