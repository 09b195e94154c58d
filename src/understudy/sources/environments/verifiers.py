"""Environments of verifiers 0.4 (github.com/PrimeIntellect-ai/verifiers), played by its own loop, with its own rewards.

`verifiers:PYTHON#NAME` names the environment NAME in the environment of another Python, because verifiers and this
package cannot be installed together. One process of that Python plays all episodes. Its harness calls the model at our
endpoint, so `[agent]` is set to `PROGRAM` and the sessions record every token, as for any program (docs/programs.md).
"""

import asyncio
import functools
import json
import os
import secrets
import shutil
import subprocess
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl

from understudy.core.errors import ConfigError, RolloutError, TaskError, did_you_mean
from understudy.core.event_loop import LoopLocal
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Scenario, Score, Split, Task, assign_splits
from understudy.envs.environment import StepResult
from understudy.envs.task_source import FULL_SLICE, Slice, TaskSource, validate_slice
from understudy.envs.users import User
from understudy.sources.environments.gym import UNIT_RANGE, parse_reward_range, scale_reward

PREFIX = "verifiers:"
PROGRAM = f"{__name__}:play"
"""The `agent.function` of runs on these environments."""
LIST_SECONDS = 600.0
"""Time limit of the list of tasks."""
_OPTIONS = ("harness", "reward_range", "taskset.KEY")
_RUNNER = Path(__file__).with_name("verifiers_runner.py")
_LINE_BYTES = 2**24
_ERROR_LINES, _ERROR_BYTES = 4, 4000
_RESULT_MARK = secrets.token_hex(16)
"""Begins the text that `play` returns, so that no model's text is read as a result."""
_PLAYED: ContextVar["VerifiersSource"] = ContextVar("_PLAYED")
"""The source of the episode that this asyncio task plays: sources with other options may have one name."""


class _Episode(Protocol):
    """What `play` reads of a `ProgramEpisode`."""

    task: str
    base_url: str
    api_key: str


def open_domain(reference: str) -> "VerifiersSource":
    """Return the tasks of `PYTHON#NAME`, which may end in `&harness=ID`, `&reward_range=LOW:HIGH`, and keys of the
    taskset's config, such as `&taskset.task.resources_url=http://127.0.0.1:8000`.

    Raise ConfigError if the Python or the environment cannot be found.
    """
    path, _, rest = reference.partition("#")
    name, _, listed = rest.partition("&")
    python = shutil.which(os.path.expanduser(path)) if path else None
    if not name or not python:
        raise ConfigError(
            f"{PREFIX}{reference}: give a Python that has verifiers, and the name of an environment, such as "
            f"{PREFIX}~/verifiers/bin/python#gsm8k"
        )
    options = dict(parse_qsl(listed, keep_blank_values=True))
    keys = {option: value for option, value in options.items() if option.startswith("taskset.")}
    for option in options.keys() - {*_OPTIONS} - keys.keys():
        raise ConfigError(f"{PREFIX}{reference}: unknown option {did_you_mean(option, _OPTIONS)}")
    declared = options.get("reward_range")
    return VerifiersSource(
        name,
        _Runner(python, name, options.get("harness", ""), tuple(keys.items())),
        UNIT_RANGE if declared is None else parse_reward_range(name, declared.split(":")),
    )


async def play(episode: _Episode) -> str:
    """Play an episode of a program, and return its result as the text that `VerifiersEpisode` reads."""
    name, _, index = episode.task.rpartition("/")
    source = _PLAYED.get(None)
    if source is None or source.name != name:
        raise ConfigError(f"{PROGRAM} plays tasks of {PREFIX}PYTHON#NAME, and not {episode.task}")
    request = {"task": int(index), "base_url": episode.base_url, "api_key": episode.api_key}
    return _RESULT_MARK + json.dumps(await source.runner.play(request))


@dataclass(frozen=True)
class VerifiersSource(TaskSource):
    """The tasks of an environment."""

    name: str
    runner: "_Runner"
    reward_range: tuple[float, float] = UNIT_RANGE
    task_slice: Slice = FULL_SLICE
    tool_specs: Sequence[ToolSpec] = ()
    """Empty: the harness shows its tools to the model."""
    domain_policy: str = ""
    lacks_gold = True

    @property
    def families(self) -> tuple[str, ...]:
        """The one family of the tasks."""
        return (Task.model_fields["family"].default,)

    def slice(self, task_slice: Slice) -> "VerifiersSource":
        """Return this source narrowed to `task_slice`. Raise `ConfigError` for unknown names."""
        validate_slice(self.name, task_slice, self.families, [])
        return replace(self, task_slice=task_slice)

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split, which a hash of the task's number decides."""
        return self.task_slice.select_tasks([task for task in self._by_id.values() if task.split == split])

    def task_policy(self, task: Task) -> str:
        """Return the system message of a task."""
        return str(self.runner.tasks[int(task.id.rpartition("/")[2])]["system"] or "")

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> "VerifiersEpisode":
        """Return a new episode of `task`. The environment is its own user, so `user` is refused."""
        if user is not None:
            raise ConfigError(f"{self.name} has no user to replace; leave out the user")
        if task.id not in self._by_id:
            raise TaskError(f"{self.name} has no task {task.id}")
        return VerifiersEpisode(self, task)

    @functools.cached_property
    def _by_id(self) -> Mapping[str, Task]:
        splits = assign_splits({f"{self.name}/{index}": None for index in range(len(self.runner.tasks))})
        rows = zip(splits.items(), self.runner.tasks, strict=True)
        return {
            identity: Task(
                id=identity,
                domain=self.name,
                split=split,
                scenario=Scenario(
                    instructions=row["prompt"], opening=row["prompt"] or f"{identity}: the environment begins."
                ),
                gold=(),
            )
            for (identity, split), row in rows
        }


class VerifiersEpisode:
    """The result of one episode, which `play` gives. An agent that replies nothing is played as such a model."""

    def __init__(self, source: VerifiersSource, task: Task) -> None:
        self.tools: Sequence[ToolSpec] = ()
        self._source, self._task = source, task

    async def start(self) -> StepResult:
        """Return the first messages. `play` plays this episode next in the same asyncio task."""
        _PLAYED.set(self._source)
        policy = self._source.task_policy(self._task)
        system = (Message(role="system", content=policy),) if policy else ()
        return StepResult((*system, Message(role="user", content=self._task.scenario.opening)))

    async def step(self, reply: Message) -> StepResult:
        """Return the score of a result, or of doing nothing. Raise RolloutError for any other reply."""
        if reply.content.startswith(_RESULT_MARK):
            result = json.loads(reply.content.removeprefix(_RESULT_MARK))
        elif not reply.content and not reply.tool_calls:
            result = await self._source.runner.play({"task": int(self._task.id.rpartition("/")[2])})
        else:
            raise RolloutError(
                f"the episodes of {self._source.name} are played by verifiers, which needs the run's own model; use "
                f"--agent model, with agent.function={PROGRAM}",
                "agent",
                is_repeatable=False,
            )
        reward = scale_reward(result["reward"], *self._source.reward_range)
        return StepResult(score=Score(reward=reward, parts={"reward": reward, "within_limits": 1.0}))

    async def grade(self, ended: bool) -> Score:
        """Return the score of an episode that a limit ended, which verifiers has not graded."""
        return Score(reward=0.0, parts={"reward": 0.0, "within_limits": float(ended)})

    async def close(self) -> None:
        """Do nothing: verifiers has released the resources."""


@dataclass(frozen=True)
class _Runner:
    """The processes of verifiers' Python: one that lists the tasks, and one in each event loop that plays them."""

    python: str
    name: str
    harness: str
    keys: Sequence[tuple[str, str]] = ()
    """Keys of the environment's config, and their values."""
    _process: LoopLocal["_Playing"] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_process", LoopLocal(lambda: _Playing(self), lambda playing: playing.close()))

    @functools.cached_property
    def tasks(self) -> Sequence[Mapping[str, Any]]:
        """The tasks. Raise ConfigError if verifiers cannot load them."""
        try:
            done = subprocess.run(
                [*self.command, "--list"],
                env=self.variables,
                capture_output=True,
                text=True,
                timeout=LIST_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise ConfigError(f"{PREFIX}{self.python}#{self.name}: {e}") from e
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode or not rows or "end" not in rows[-1]:
            last = " | ".join(done.stderr.strip().splitlines()[-_ERROR_LINES:]) or f"exit status {done.returncode}"
            raise ConfigError(f"{PREFIX}{self.python}#{self.name}: verifiers cannot load it: {last}")
        return rows[:-1]

    @property
    def command(self) -> list[str]:
        """The command of a process. With `-P`, modules beside the runner hide none of verifiers' own."""
        agent = {"runtime": {"type": "subprocess"}} | ({"harness": {"id": self.harness}} if self.harness else {})
        env: dict[str, Any] = {"taskset": {"id": self.name}}
        for key, value in self.keys:
            section = env
            *outer, last = key.split(".")
            for part in outer:
                section = section.setdefault(part, {})
            section[last] = value
        return [self.python, "-P", str(_RUNNER), json.dumps({"env": env, "agent": agent})]

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process, without API keys. The current folder is on its import path."""
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH", ""))))
        return kept

    async def play(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the result of an episode. Raise RolloutError if verifiers reports an error, or ends."""
        result: Mapping[str, Any] = await self._process.get().play(request)
        if "error" in result:
            raise RolloutError(f"verifiers: {result['error']}", "environment")
        return result


class _Playing:
    """A process that plays episodes, which the first episode starts."""

    def __init__(self, runner: _Runner) -> None:
        self._runner, self._starting = runner, asyncio.Lock()
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._num_requests = 0

    async def play(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the result of a request."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self._start()
        assert self._process
        assert self._process.stdin
        episodes = self._waiting
        self._num_requests += 1
        number = self._num_requests
        result: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        episodes[number] = result
        try:
            with suppress(ConnectionError):  # the reader reports the end of the process
                self._process.stdin.write(json.dumps({"number": number, **request}).encode() + b"\n")
                await self._process.stdin.drain()
            return await result
        finally:
            del episodes[number]

    async def close(self) -> None:
        """End the process."""
        if self._process is not None and self._reading is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._reading

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._runner.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._runner.variables,
            limit=_LINE_BYTES,
        )
        self._waiting = {}
        self._reading = asyncio.create_task(_read_results(self._process, self._waiting))


async def _read_results(process: Process, episodes: Mapping[int, "asyncio.Future[Mapping[str, Any]]"]) -> None:
    """Give the results of a process to the episodes that wait for them, up to its end."""
    assert process.stdout
    assert process.stderr
    errors = asyncio.create_task(_read_end(process.stderr))
    problem = ""
    try:
        async for line in process.stdout:
            result = json.loads(line)
            waiting = episodes.get(result["number"])
            if waiting and not waiting.done():
                waiting.set_result(result)
    except (ValueError, KeyError, TypeError):  # of the stream, of JSON, or for want of a number
        problem = f"its process has written a result that is no JSON, or longer than {_LINE_BYTES:,} bytes"
        process.kill()
    status, last = await process.wait(), await errors
    problem = problem or f"its process ended with status {status}"
    for waiting in episodes.values():
        if not waiting.done():
            waiting.set_result({"error": f"{problem}: {last or 'no output'}"})


async def _read_end(stream: asyncio.StreamReader) -> str:
    """Return the last line of a stream."""
    end = b""
    while part := await stream.read(_ERROR_BYTES):
        end = (end + part)[-_ERROR_BYTES:]
    return " ".join(end.decode("utf-8", "replace").strip().splitlines()[-1:])
