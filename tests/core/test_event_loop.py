"""Test `run_async`, `LoopLocal` and `BackgroundLoop`, and how Ctrl-C ends a running coroutine."""

import asyncio
import contextlib
import os
import signal
import sys
import time

import pytest
from pydantic import BaseModel, field_serializer

from understudy.core.event_loop import BackgroundLoop, LoopLocal, gather_or_cancel, run_async


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_run_async_returns_the_result_and_restores_sigint() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert run_async(double(2)) == 4
    assert signal.getsignal(signal.SIGINT) is before


def test_run_async_in_a_running_loop_raises_with_the_await_to_use() -> None:
    async def notebook() -> None:
        run_async(double(2))

    with pytest.raises(RuntimeError, match=r"await double\("):
        asyncio.run(notebook())


def test_ctrl_c_ends_synchronous_code_at_once() -> None:
    reached: list[str] = []

    async def load() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("after")

    with pytest.raises(KeyboardInterrupt):
        run_async(load())
    assert not reached


def test_ctrl_c_that_pydantic_replaces_by_its_own_error_is_still_ctrl_c() -> None:
    class Row(BaseModel):
        cell: int = 1

        @field_serializer("cell")
        def press(self, cell: int) -> int:
            os.kill(os.getpid(), signal.SIGINT)
            return cell

    async def write() -> str:
        return Row().model_dump_json()

    with pytest.raises(KeyboardInterrupt):
        run_async(write())


def test_ctrl_c_cancels_waiting_coroutine_and_runs_its_cleanup() -> None:
    cleaned: list[str] = []

    async def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    async def wait() -> None:
        pressed = asyncio.create_task(press())
        try:
            await asyncio.sleep(60)
        finally:
            await pressed
            cleaned.append("cleaned")

    with pytest.raises(KeyboardInterrupt):
        run_async(wait())
    assert cleaned


def test_ctrl_c_in_a_finalizer_ends_the_coroutine(capfd: pytest.CaptureFixture[str]) -> None:
    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    async def work() -> None:
        Finalized()
        await asyncio.sleep(60)

    hook, started = sys.unraisablehook, time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert time.monotonic() - started < 30
    assert sys.unraisablehook is hook
    assert "ignored" not in capfd.readouterr().err


def test_second_ctrl_c_interrupts_cleanup() -> None:
    async def wait() -> None:
        for seconds in (0.01, 0.05):
            asyncio.get_running_loop().call_later(seconds, os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(60)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_async(wait())
    assert time.monotonic() - started < 30


def test_first_error_cancels_the_others_and_waits_for_their_cleanup() -> None:
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError("first")

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            ended.append("cleaned up")

    assert asyncio.run(gather_or_cancel(map(double, (1, 2)))) == [2, 4]
    with pytest.raises(ZeroDivisionError, match="first"):
        asyncio.run(gather_or_cancel([wait(), fail(), wait()]))
    assert ended == ["cleaned up"] * 2


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_loop_local_is_closed_before_its_loop_ends(error: type[Exception] | None) -> None:
    closed: list[str] = []

    async def close(name: str) -> None:
        await asyncio.sleep(0.01)
        closed.append(name)

    async def use() -> None:
        LoopLocal(lambda: "dropped", close).get()
        early = LoopLocal(lambda: "early", close)
        early.get()
        await early.close()
        assert closed == ["early"]
        if error:
            raise error

    with pytest.raises(error) if error else contextlib.nullcontext():
        run_async(use())
    assert closed == ["early", "dropped"]


def test_loop_local_of_the_background_loop_is_closed_with_it() -> None:
    closed: list[str] = []

    async def close(name: str) -> None:
        closed.append(name)

    async def use() -> str:
        return LoopLocal(lambda: "made", close).get()

    background = BackgroundLoop()
    assert background.run(use()) == "made"
    assert not closed
    background.close()
    assert closed == ["made"]


def test_loop_local_creates_one_object_per_loop() -> None:
    per_loop = LoopLocal[list[int]](list)

    async def twice() -> tuple[list[int], list[int]]:
        return per_loop.get(), per_loop.get()

    first, again = run_async(twice())
    other, _ = run_async(twice())
    assert first is again
    assert first is not other


def test_the_background_loop_serves_threads_with_and_without_a_loop() -> None:
    background = BackgroundLoop()

    async def inside() -> int:
        return background.run(double(3))

    try:
        assert (background.run(double(2)), asyncio.run(inside())) == (4, 6)
    finally:
        background.close()
