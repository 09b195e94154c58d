"""The processes of programs: one for each episode of a command, and workers that play the episodes of a function.

A worker imports the function once (`program_worker`), and plays one episode at a time. If it ends, or an episode is
cancelled, only that episode fails, and the next one gets another worker. Workers end with the event loop.
"""

import asyncio
import dataclasses
import errno
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from understudy.core.errors import ConfigError, RolloutError
from understudy.core.event_loop import LoopLocal
from understudy.rollouts import program_worker
from understudy.rollouts.program_config import ProgramConfig
from understudy.rollouts.program_worker import ProgramEpisode

OUTPUT_BYTES = 4000
"""Bytes at the end of a program's output of which an error shows the last lines."""
CHECK_SECONDS = 300.0
"""Time limit of the import of a function by `agent.python`."""
MAX_ANSWER_BYTES = 2**24
"""Largest size of the answer of a worker."""
_ERROR_LINES = 5
_OWN_HOSTS = "127.0.0.1,localhost"
"""The hosts of the endpoint, which no proxy of the environment can reach."""


async def run_command(config: ProgramConfig, given: ProgramEpisode) -> None:
    """Run a command to its end, and kill what it has started. Raise RolloutError if its exit status is not 0."""
    with tempfile.TemporaryFile() as output:  # a pipe would stay open for what the program leaves running
        variables = _variables(config.variables) | given.variables
        try:
            process = await _start(shlex.split(config.command), variables, DEVNULL, output, output)
        except OSError as e:
            if e.errno != errno.E2BIG:
                raise
            size = len(os.fsencode(given.variables["UNDERSTUDY_PROMPT"]))
            problem = f"a prompt of {size:,} bytes cannot be a variable of the program {config.command} (Linux allows "
            problem += "131,000 bytes); use agent.function or agent.url, or shorten it"
            raise RolloutError(problem, "agent", is_repeatable=False) from e
        try:
            status = await process.wait()
        finally:
            await _kill(process)
        last = _last_lines(output)
    if status:
        raise RolloutError(f"the program {config.command} exited with status {status}: {last}", "agent")


async def run_in_worker(config: ProgramConfig, given: ProgramEpisode) -> str | None:
    """Return the answer of a function that another Python runs. Raise RolloutError if it fails or its worker ends."""
    pool = _pool(find_python(config), config.function, config.variables, os.getcwd()).get()
    async with pool.worker() as worker:
        answer = await worker.play(given)
    if "error" in answer:
        raise RolloutError(f"the program {config.function} {answer['error']}", "agent")
    return answer["text"]


def find_python(config: ProgramConfig) -> str:
    """Return the path of `agent.python`. Raise ConfigError if it cannot be found."""
    if not (python := shutil.which(os.path.expanduser(config.python))):
        raise ConfigError(f"agent.python = {config.python!r}: there is no such program; name the Python of a venv")
    return python


def validate_worker(config: ProgramConfig) -> None:
    """Raise ConfigError if `agent.python` cannot import `agent.function`."""
    episode = ProgramEpisode("", (), "http://127.0.0.1/v1", "none", "", "")  # what a module may read
    try:
        done = subprocess.run(
            [*_command(find_python(config), config.function), "--check"],
            env=_variables(config.variables) | episode.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ConfigError(f"agent.python = {config.python!r}: {e}") from e
    if done.returncode:
        last = " ".join(done.stderr.strip().splitlines()[-1:]) or f"exit status {done.returncode}"
        raise ConfigError(f"agent.function = {config.function!r} cannot be imported by {config.python}: {last}")


class _Worker:
    """A process that plays one episode at a time."""

    def __init__(self, function: str, process: Process, output: IO[bytes]) -> None:
        self._function, self._process, self._output = function, process, output

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    async def play(self, given: ProgramEpisode) -> Mapping[str, str | None]:
        """Return the answer to an episode. Raise RolloutError if the process ends, or its answer is too long."""
        assert self._process.stdin
        assert self._process.stdout
        self._output.seek(0)  # the process shares the position
        self._output.truncate()
        with suppress(ConnectionError):  # reading reports the end of the process
            self._process.stdin.write(json.dumps(dataclasses.asdict(given)).encode() + b"\n")
            await self._process.stdin.drain()
        try:
            line = await self._process.stdout.readline()
        except ValueError as e:
            problem = f"returned a text of more than {MAX_ANSWER_BYTES:,} bytes"
            raise RolloutError(f"the program {self._function} {problem}", "agent") from e
        if not line:
            status, last = await self._process.wait(), _last_lines(self._output)
            ended = f"the process of the program {self._function} ended with status {status}"
            raise RolloutError(f"{ended} in the episode: {last}", "agent")
        answer: Mapping[str, str | None] = json.loads(line)
        return answer

    async def kill(self) -> None:
        """End the process, and what it has started."""
        self._output.close()
        await _kill(self._process)


class _Pool:
    """The workers of a function that play no episode."""

    def __init__(self, python: str, function: str, variables: Sequence[str]) -> None:
        self._python, self._function, self._names = python, function, variables
        self._idle: list[_Worker] = []

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[_Worker]:
        """Yield a worker, which is killed if the block does not end normally."""
        while self._idle and not self._idle[-1].is_running:
            await self._idle.pop().kill()
        worker = self._idle.pop() if self._idle else await self._start()
        has_ended = False
        try:
            yield worker
            has_ended = True
        finally:
            if has_ended:
                self._idle.append(worker)
            else:
                await worker.kill()

    async def close(self) -> None:
        """End all workers that play no episode."""
        await asyncio.gather(*(worker.kill() for worker in self._idle))
        self._idle.clear()

    async def _start(self) -> _Worker:
        variables = _variables(self._names)
        with ExitStack() as opened:
            output = opened.enter_context(tempfile.TemporaryFile(buffering=0))
            process = await _start(_command(self._python, self._function), variables, PIPE, PIPE, output)
            opened.pop_all()  # `kill` closes it
        return _Worker(self._function, process, output)


@functools.cache
def _pool(python: str, function: str, variables: Sequence[str], folder: str) -> LoopLocal[_Pool]:
    """Return the workers of a function in a folder, which training and evaluation share."""
    return LoopLocal(lambda: _Pool(python, function, variables), lambda pool: pool.close())


def _command(python: str, function: str) -> list[str]:
    return [python, str(Path(program_worker.__file__)), function]


def _variables(names: Sequence[str]) -> dict[str, str]:
    """Return the environment variables without API keys, but those of these names. No proxy is used on this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    direct = kept.get("no_proxy") or kept.get("NO_PROXY")
    if direct != "*":  # which means all hosts only if it stands alone
        direct = f"{direct},{_OWN_HOSTS}" if direct else _OWN_HOSTS
    kept |= {"no_proxy": direct, "NO_PROXY": direct}
    return kept | {name: os.environ[name] for name in names if name in os.environ}


async def _start(
    words: Sequence[str], variables: Mapping[str, str], stdin: int, stdout: int | IO[bytes], stderr: IO[bytes]
) -> Process:
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=variables,
        start_new_session=True,
        limit=MAX_ANSWER_BYTES,
    )


async def _kill(process: Process) -> None:
    """End a process and its children, also those that it has left running."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _last_lines(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_BYTES))
    return " | ".join(output.read().decode("utf-8", "replace").strip().splitlines()[-_ERROR_LINES:]) or "no output"
