"""The process of one run: `understudy` as its users start it, with the patches of a case's plan.

The patches change only this process: its clock, its disk, its sampler.
"""

import builtins
import dataclasses
import errno
import io
import multiprocessing
import os
import random
import resource
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from tests.faults.cases import SKYRL_WORKER
from tests.faults.injection import HANG, RUN_FOLDER, FaultInjector
from tests.faults.program import run_module
from tests.faults.sources import RANK, raise_fault
from understudy.core.errors import RolloutError

JUMP_SECONDS = 3 * 365 * 24 * 3600
"""The largest jump of the clock, in both directions."""
TRACKER_SECONDS = 2.0
"""How long a run waits for a tracker that hangs."""
PARTIAL_BYTES = 512
"""How much of a file a partial write writes."""
_ERRNO = {"full disk": errno.ENOSPC, "read-only": errno.EROFS}


def run_program(arguments: Sequence[str]) -> None:
    """Run `understudy ARGUMENTS` in a case's folder, which is the working folder. It exits as the program does."""
    injector = FaultInjector(Path.cwd())
    for component in sorted({component for component, _ in injector.plan.faults} & _PATCHES.keys()):
        _PATCHES[component](injector)
    run_module("understudy", *arguments)


def _patch_clock(injector: FaultInjector) -> None:
    now, draw = time.time, random.Random(injector.plan.seed)

    def jumping_time() -> float:
        jumps = injector.find_fault("clock", "now")
        return now() + (draw.uniform(-JUMP_SECONDS, JUMP_SECONDS) if jumps else 0.0)

    time.time = jumping_time


def _patch_sampler(injector: FaultInjector) -> None:
    from understudy.engines.local.engine import LocalEngine
    from understudy.train.skyrl.sampler import SkyRLSampler

    for sampler in (LocalEngine, SkyRLSampler):
        sampler.sample = _faulty_sample(sampler.sample, injector)  # type: ignore[method-assign]


def _faulty_sample(sample: Callable[..., Any], injector: FaultInjector) -> Callable[..., Any]:
    async def faulty_sample(*args: Any, **options: Any) -> Any:
        completion = await sample(*args, **options)
        fault = injector.find_fault("agent sampler", "sample")
        if fault == "exception":
            raise RolloutError("the injected sampler does not answer", "engine")
        if await raise_fault(fault):
            return dataclasses.replace(completion, logprobs=[float("nan")] * len(completion.tokens))
        return completion

    return faulty_sample


def _patch_skyrl(injector: FaultInjector) -> None:
    """Kill a worker of SkyRL as it is asked for the episodes of a step."""
    from understudy.train.skyrl.settings import validate_installation

    validate_installation()
    import ray

    from understudy.train.skyrl.trainer import SyncTrainer

    generate = SyncTrainer.generate

    async def generate_without_worker(self: SyncTrainer, *args: Any, **options: Any) -> Any:
        if injector.find_fault(SKYRL_WORKER, "generate"):
            worker = self.policy_model._actor_handlers[0]
            os.kill(ray.get(worker.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        return await generate(self, *args, **options)

    SyncTrainer.generate = generate_without_worker


def _patch_trackers(injector: FaultInjector) -> None:
    """Wait less for a tracker that hangs."""
    from understudy.runs.trackers.processes import TrackerProcesses

    if ("trackers", HANG) in injector.plan.faults:
        TrackerProcesses.close.__defaults__ = (TRACKER_SECONDS,)


def _patch_writes(injector: FaultInjector) -> None:
    """Let writes to the run's folder fail, or kill the process in place of one."""
    run = str(injector.folder / RUN_FOLDER)

    def refuse(path: Any) -> None:
        if isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(run):
            for component in ("disk", "process"):
                _fail_write(injector.find_fault(component, os.fspath(path)), path)

    def wrap(function: Callable[..., Any], writes: Callable[..., bool]) -> Callable[..., Any]:
        def refusing(path: Any, *args: Any, **options: Any) -> Any:
            if writes(*args, **options):
                refuse(path)
            return function(path, *args, **options)

        return refusing

    def has_write_mode(mode: str = "r", *_: Any, **__: Any) -> bool:
        return bool(set(mode) & set("wax+"))

    def has_write_flags(flags: int, *_: Any, **__: Any) -> bool:
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))

    def always(*_: Any, **__: Any) -> bool:
        return True

    builtins.open = io.open = wrap(io.open, has_write_mode)
    os.open = wrap(os.open, has_write_flags)
    for name in ("mkdir", "replace", "rename", "unlink", "symlink"):
        setattr(os, name, wrap(getattr(os, name), always))


def _fail_write(fault: str, path: Any) -> None:
    if fault == "death":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "partial write":
        resource.setrlimit(resource.RLIMIT_FSIZE, (PARTIAL_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    elif fault:
        raise OSError(_ERRNO[fault], os.strerror(_ERRNO[fault]), os.fspath(path))


class _ForkedRank:
    """A rank that is forked from its launcher, which has loaded the package. It has the part of `subprocess.Popen` that
    the launcher uses."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], stderr: IO[bytes] | None = None, **_: Any):
        self._process = multiprocessing.get_context("fork").Process(target=_run_rank, args=(command, env, stderr))
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal that ended the rank, or None if it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None if the rank runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit code. Raise TimeoutExpired if the rank has not ended in time."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a rank", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the rank if it runs."""
        if self.returncode is None and self._process.pid is not None:
            os.kill(self._process.pid, number)


def _run_rank(command: Sequence[str], environment: Mapping[str, str], errors: IO[bytes] | None) -> None:
    """Run the command of a rank. Only rank 0, whose errors are not collected, prints."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the launcher's handlers forward signals to its ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    if errors:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(errors.fileno(), 2)
    sys.argv = ["understudy", *command[command.index("understudy") + 1 :]]
    runpy.run_module("understudy", run_name="__main__", alter_sys=True)


def _fork_ranks(injector: FaultInjector) -> None:
    """Fork the ranks instead of starting an interpreter for each, which takes seconds."""
    from understudy.train import processes

    names = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    vars(processes)["subprocess"] = SimpleNamespace(Popen=_ForkedRank, **names)


_PATCHES: Mapping[str, Callable[[FaultInjector], None]] = {
    "clock": _patch_clock,
    "agent sampler": _patch_sampler,
    "trackers": _patch_trackers,
    "disk": _patch_writes,
    "process": _patch_writes,
    RANK: _fork_ranks,
    SKYRL_WORKER: _patch_skyrl,
}
"""What is patched, by the component that fails."""


if __name__ == "__main__":
    run_program(sys.argv[1:])
