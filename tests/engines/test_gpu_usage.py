"""Tests of the samples of a GPU, with a CUDA runtime that answers in its place."""

import sys
import threading
from types import ModuleType

import pytest
import torch

from understudy.engines.local.gpu_usage import GIB, GPUUsage


def test_mean_utilization_and_maximum_memory_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [8 * GIB, 6 * GIB, 7 * GIB]
    percents = [0, 100, 50]
    last = threading.Event()

    def utilization() -> int:
        percent = percents.pop(0)
        if not percents:
            last.set()
        return percent

    def memory() -> tuple[int, int]:
        return (free.pop(0), 10 * GIB) if free else (9 * GIB, 10 * GIB)

    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    monkeypatch.setattr(torch.cuda, "utilization", lambda: utilization() if percents else 50)
    with GPUUsage("cuda", interval=0.001) as usage:
        assert last.wait(60)
    found = usage.pop_metrics()
    assert found["time/gpu_memory_gib"] == 4.0
    assert found["time/gpu_utilization"] == pytest.approx(0.5)
    assert usage.pop_metrics() == {}, "each sample counts once"


class NVMLError(Exception):
    """The error of pynvml, which is no RuntimeError."""


@pytest.mark.parametrize("error", [ModuleNotFoundError("pynvml"), NVMLError("Not Supported"), RuntimeError("driver")])
def test_missing_counter_of_utilization_leaves_only_memory(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of a GPU (MIG) has no counter; the samples of its memory go on after the error."""
    samples = iter([3 * GIB, 4 * GIB, 5 * GIB])
    sampled = threading.Event()

    def memory() -> tuple[int, int]:
        total = next(samples, None)
        if total is None:
            sampled.set()
        return GIB, total or 3 * GIB

    def utilization() -> int:
        raise error

    fake = ModuleType("pynvml")
    fake.NVMLError = NVMLError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", None if isinstance(error, ModuleNotFoundError) else fake)
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    with GPUUsage("cuda", interval=0.001) as usage:
        assert sampled.wait(60)
    assert usage.pop_metrics() == {"time/gpu_memory_gib": 4.0}


def test_cpu_has_no_samples() -> None:
    with GPUUsage("cpu", interval=0.001) as usage:
        pass
    assert usage.pop_metrics() == {}
