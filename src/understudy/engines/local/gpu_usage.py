"""Sample the utilization and memory of a GPU while a run trains."""

import statistics
import threading
from types import TracebackType
from typing import Self

GIB = 1 << 30


class GPUUsage:
    """Context manager that samples the current CUDA device in a thread. It does nothing on other devices.

    Memory is that of all processes on the device, vLLM's included. Utilization is the share of time in which a kernel
    ran; it needs the package `nvidia-ml-py` and a driver with this counter, and is left out without them.
    """

    def __init__(self, device: str, interval: float = 1.0) -> None:
        self._interval = interval if device == "cuda" else 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-usage", daemon=True)
        self._lock = threading.Lock()  # protects the two lists
        self._memory: list[float] = []
        self._utilization: list[float] = []

    def __enter__(self) -> Self:
        if self._interval:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self._interval:
            self._thread.join()

    def pop_metrics(self) -> dict[str, float]:
        """Return mean utilization (0 to 1) and maximum memory in GiB since the last call; nothing without samples."""
        with self._lock:
            memory, self._memory = self._memory, []
            utilization, self._utilization = self._utilization, []
        metrics = {"time/gpu_memory_gib": max(memory)} if memory else {}
        return metrics | ({"time/gpu_utilization": statistics.fmean(utilization)} if utilization else {})

    def _sample(self) -> None:
        import torch

        reports_utilization, errors = True, _utilization_errors()
        while not self._stop.wait(self._interval):
            free, total = torch.cuda.mem_get_info()
            percent = None
            if reports_utilization:
                try:
                    percent = torch.cuda.utilization()
                except errors:
                    reports_utilization = False
            with self._lock:
                self._memory.append((total - free) / GIB)
                self._utilization += [] if percent is None else [percent / 100]


def _utilization_errors() -> tuple[type[Exception], ...]:
    """Return the errors of `torch.cuda.utilization` without nvidia-ml-py, and on GPUs without this counter.

    The slices of a GPU (MIG) and virtual GPUs have none. The error of nvidia-ml-py for them is no RuntimeError.
    """
    try:
        from pynvml import NVMLError
    except ModuleNotFoundError:
        return ModuleNotFoundError, RuntimeError
    return NVMLError, RuntimeError
