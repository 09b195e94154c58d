"""Tasks of Harbor (github.com/harbor-framework/harbor): `harbor:FOLDER#run=local`, a folder of task folders, or one.

A task is code: the agent writes shell commands, and `tests/test.sh` grades what they did. Harbor runs both in a
container, which this package does not. With `run=local` they run as processes of this machine, in a file system of
their own (`sandbox/shell.py`), with this machine's programs instead of those of the image, and with the network unless
the task has none. Tasks that need more, such as an image whose Dockerfile has RUN, are left out, which `notes` says.

The agent has the tool `bash`. Its first reply without calls ends the episode, and the reward is what `tests/test.sh`
writes. `solution/solve.sh`, if it is alone there, is the gold solution.
"""

import json
import math
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl

from understudy.core.errors import ConfigError, RolloutError, ToolError, did_you_mean
from understudy.core.event_loop import BACKGROUND_LOOP
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import SPLITS, assign_splits
from understudy.envs.tools import AsyncToolkit
from understudy.sources.environments.graded import GradedSource
from understudy.sources.environments.gym import UNIT_RANGE, parse_reward_range
from understudy.sources.sandbox.shell import RESERVED_FOLDERS, Shell, require_shell

PREFIX = "harbor:"
COMMAND_SECONDS = 120.0
"""Time limit of a command of the agent."""
_OPTIONS = ("run", "reward_range")
_VERIFIER_SECONDS = 600.0
_REWARD_FILES = ("reward.json", "reward.txt")
_WITHOUT_EFFECT = ("CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "ARG", "SHELL")
"""Instructions of a Dockerfile that change nothing here."""
_KNOWN_INSTRUCTIONS = ("FROM", "WORKDIR", "COPY", "ENV")
_NEEDS_CONTAINER: Mapping[str, Sequence[str]] = {
    "environment": ("docker_image", "mcp_servers", "gpus", "tpu", "healthcheck", "skills_dir", "allowed_hosts"),
    "verifier": ("user", "environment", "collect", "network_mode", "allowed_hosts"),
    "agent": ("user", "network_mode", "allowed_hosts"),
    "": ("steps",),
}
"""Keys of task.toml without an equal here, by section."""


def open_domain(reference: str) -> GradedSource:
    """Return the tasks of `FOLDER#run=local`.

    Raise ConfigError without `run=local`, if no task can run so, or if this machine cannot isolate them.
    """
    path, _, listed = reference.partition("#")
    folder, options = Path(os.path.expanduser(path)), dict(parse_qsl(listed, keep_blank_values=True))
    for option in options.keys() - {*_OPTIONS}:
        raise ConfigError(f"{PREFIX}{reference}: unknown option {did_you_mean(option, _OPTIONS)}")
    given = [folder] if _is_task(folder) else sorted(filter(_is_task, folder.iterdir())) if folder.is_dir() else []
    if not given:
        raise ConfigError(f"{PREFIX}{reference}: {path or 'it'} is no folder with tasks of Harbor (task.toml)")
    if options.get("run") != "local":
        raise ConfigError(
            f"{PREFIX}{reference}: its tasks run code, which Harbor isolates in containers and this package does not; "
            f"to run the agent's commands and tests/test.sh as processes of this machine, add #run=local"
        )
    tasks, reasons = dict[str, HarborTask](), dict[str, str]()
    for each in given:
        try:
            tasks[each.name] = HarborTask.read(each)
        except _NeedsContainer as e:
            reasons[each.name] = str(e)
    shown = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:3])
    left_out = f"{len(reasons)} of {len(given)} tasks need a container, such as {shown}"
    if not tasks:
        raise ConfigError(f"{PREFIX}{reference}: {left_out}")
    BACKGROUND_LOOP.run(require_shell())
    name, declared = f"harbor-{folder.resolve().name}", options.get("reward_range")
    splits = assign_splits(dict.fromkeys(tasks))
    return GradedSource(
        name,
        lambda row: _HarborSession(row["task"]),
        _Bash.specs(),
        rows={s: {n: {"task": task} for n, task in tasks.items() if splits[n] == s} for s in SPLITS},
        reward_range=UNIT_RANGE if declared is None else parse_reward_range(name, declared.split(":")),
        own_notes=[f"{left_out}; they are left out"] if reasons else [],
    )


def _is_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file()


class _NeedsContainer(Exception):
    """What a task needs a container for."""


@dataclass(frozen=True)
class HarborTask:
    """A task that can run without its container."""

    folder: Path
    instruction: str
    workdir: PurePosixPath
    copies: Sequence[tuple[Path, PurePosixPath, bool]]
    """Files to copy into the environment: from, to, and whether `to` is a folder to copy into."""
    variables: Mapping[str, str]
    verifier_variables: Mapping[str, str]
    verifier_seconds: float
    has_network: bool

    @classmethod
    def read(cls, folder: Path) -> "HarborTask":
        """Return the task of a folder. Raise _NeedsContainer if it cannot run without, ConfigError if it is wrong."""
        config = _read_toml(folder / "task.toml")
        sections = {name: config.get(name) or {} for name in ("environment", "verifier", "agent")}
        for name, keys in _NEEDS_CONTAINER.items():
            section = sections.get(name, config)
            if not isinstance(section, dict):
                raise ConfigError(f"{folder}/task.toml: {name} is no table")
            if found := next((key for key in keys if section.get(key)), ""):
                raise _NeedsContainer(f"task.toml has {f'{name}.{found}'.lstrip('.')}")
        environment, verifier = sections["environment"], sections["verifier"]
        if str(environment.get("os", "linux")).lower() != "linux":
            raise _NeedsContainer(f"task.toml has environment.os = {environment['os']!r}")
        if not (folder / "tests" / "test.sh").is_file():
            raise ConfigError(f"{folder} has no tests/test.sh; add it, or remove the folder")
        if verifier.get("environment_mode", "shared") != "shared":
            raise _NeedsContainer(f"task.toml has verifier.environment_mode = {verifier['environment_mode']!r}")
        if (folder / "trajectory.json").exists():
            raise _NeedsContainer("it has an earlier conversation (trajectory.json)")
        if link := next((path for path in folder.rglob("*") if path.is_symlink()), None):
            raise _NeedsContainer(f"{link.relative_to(folder)} is a link")
        try:
            workdir, copies, variables = _read_dockerfile(folder / "environment")
        except ValueError as e:
            raise ConfigError(f"{folder}/environment/Dockerfile: {e}") from e
        mode = environment.get("network_mode", "public" if environment.get("allow_internet", True) else "no-network")
        if mode not in ("public", "no-network"):
            raise _NeedsContainer(f"task.toml has environment.network_mode = {mode!r}")
        try:
            instruction = (folder / "instruction.md").read_text(encoding="utf-8")
            seconds = float(verifier.get("timeout_sec", _VERIFIER_SECONDS))
        except (OSError, ValueError, TypeError) as e:
            raise ConfigError(f"{folder}: {e}") from e
        return cls(
            folder,
            instruction,
            _placed(workdir, environment.get("workdir") or ""),
            copies,
            {**variables, **_literals(environment, "environment")},
            _literals(verifier, "verifier"),
            seconds,
            mode == "public",
        )

    @property
    def gold_command(self) -> str:
        """The text of `solution/solve.sh`, or nothing if the solution is another one."""
        solution = self.folder / "solution"
        files = [path.name for path in solution.iterdir()] if solution.is_dir() else []
        return (solution / "solve.sh").read_text(encoding="utf-8") if files == ["solve.sh"] else ""


class _Bash(AsyncToolkit):
    def __init__(self, shell: Shell, folder: str) -> None:
        self._shell, self._folder = shell, folder

    async def bash(self, command: str) -> str:
        """Run a command with bash, and get its output. Files persist between commands, processes do not."""
        status, output = await self._shell.run(command, self._folder, COMMAND_SECONDS)
        return f"{output}\n[exit status {status}]".lstrip() if status else output


class _HarborSession:
    """One episode of a task."""

    def __init__(self, task: HarborTask) -> None:
        self._task = task
        self._shell: Shell | None = None

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tool `bash`."""
        return _Bash.specs()

    def prompt(self) -> Sequence[Message]:
        """Return the instruction."""
        return (Message(role="user", content=self._task.instruction),)

    def gold(self) -> Sequence[Message]:
        """Return the solution as one command."""
        if not self._task.gold_command:
            return ()
        call = ToolCall(name="bash", arguments={"command": self._task.gold_command})
        return (Message(role="assistant", tool_calls=(call,)), Message(role="assistant", content="Done."))

    async def start(self) -> None:
        """Copy the files of the environment."""
        self._shell = shell = Shell(self._task.has_network, self._task.variables)
        for folder in (self._task.workdir, *map(PurePosixPath, ("/logs/verifier", "/logs/agent", "/logs/artifacts"))):
            shell.place(folder).mkdir(parents=True, exist_ok=True)
        for source, target, is_folder in self._task.copies:
            place = shell.place(target)
            place = place / source.name if is_folder and source.is_file() else place
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, place, dirs_exist_ok=True, symlinks=True)
            else:
                shutil.copy(source, place, follow_symlinks=False)

    async def call(self, call: ToolCall) -> str:
        """Run a command. Raise ToolError if it is stopped."""
        assert self._shell
        return await _Bash(self._shell, str(self._task.workdir)).call(call)

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return None, which ends the episode."""
        return None

    async def grade(self, written: Sequence[Message]) -> float:
        """Return the reward that `tests/test.sh` writes. Raise RolloutError if it writes none."""
        assert self._shell
        tests, target = self._task.folder / "tests", self._shell.root / "tests"
        target.unlink() if target.is_symlink() else shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(tests, target, symlinks=True)
        set_variables = "".join(f"export {k}={shlex.quote(v)}; " for k, v in self._task.verifier_variables.items())
        files = [f"/logs/verifier/{name}" for name in _REWARD_FILES]
        command = f"mkdir -p /logs/verifier; rm -rf {' '.join(files)}; chmod +x /tests/test.sh; {set_variables}"
        command += "/tests/test.sh > /logs/verifier/test-stdout.txt 2>&1"
        workdir = str(self._task.workdir)
        try:
            await self._shell.run(command, workdir, self._task.verifier_seconds)
            for file in files:
                status, text = await self._shell.run(f"cat {file}", "/", COMMAND_SECONDS)
                if not status:
                    return _parse_reward(file, text)
            _, output = await self._shell.run("tail -n 3 /logs/verifier/test-stdout.txt", "/", COMMAND_SECONDS)
        except (ToolError, ValueError, RecursionError) as e:
            raise RolloutError(f"tests/test.sh of {self._task.folder.name}: {e}", "grader") from e
        raise RolloutError(f"tests/test.sh of {self._task.folder.name} writes no reward: {output}", "grader")

    async def close(self) -> None:
        """Remove the files of the episode."""
        if self._shell:
            self._shell.close()


def _parse_reward(file: str, text: str) -> float:
    """Return the reward of a file: a number, or in JSON also the value of `reward`, or the only value, of an object."""
    value: Any = json.loads(text) if file.endswith(".json") else float(text)
    if isinstance(value, dict):
        value = value.get("reward", next(iter(value.values())) if len(value) == 1 else value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{file} has no reward: {text!r:.100}")
    return float(value)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(f"{file}: {e}") from e


def _literals(section: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the variables of a section. Raise _NeedsContainer for those that take a value of this machine."""
    found = {str(key): str(value) for key, value in (section.get("env") or {}).items()}
    for key, value in found.items():
        if "${" in value or not re.fullmatch(r"[A-Za-z_]\w*", key):
            raise _NeedsContainer(f"task.toml takes {name}.env.{key} from this machine's variables")
    return found


def _read_dockerfile(
    folder: Path,
) -> tuple[PurePosixPath, Sequence[tuple[Path, PurePosixPath, bool]], Mapping[str, str]]:
    """Return the working directory, the copies and the variables of `environment/Dockerfile`.

    Raise _NeedsContainer for what needs the image.
    """
    if not (file := folder / "Dockerfile").is_file():
        raise _NeedsContainer("environment/ has no Dockerfile")
    others = (path.name for path in folder.iterdir() if "compose" in path.name or path.name == ".dockerignore")
    if other := next(others, ""):
        raise _NeedsContainer(f"environment/ has {other}")
    workdir, copies, variables = PurePosixPath("/"), list[tuple[Path, PurePosixPath, bool]](), dict[str, str]()
    for instruction, rest in _instructions(file):
        if instruction == "WORKDIR":
            workdir = _placed(workdir, rest)
        elif instruction == "COPY":
            *sources, target = shlex.split(rest)
            for source in sources:
                copies += _copies(folder, source, _placed(workdir, target), target.endswith("/") or len(sources) > 1)
        elif instruction == "ENV":
            pairs = shlex.split(rest) if "=" in rest.split()[0] else ["=".join(rest.split(maxsplit=1))]
            variables |= dict(pair.split("=", 1) for pair in pairs)
    return workdir, copies, variables


def _instructions(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile and the rest of their lines. Raise _NeedsContainer for others."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        instruction, rest = instruction.upper(), rest.strip()
        if not instruction or instruction in _WITHOUT_EFFECT:
            continue
        if instruction not in _KNOWN_INSTRUCTIONS or not rest:
            raise _NeedsContainer(f"environment/Dockerfile has {instruction}")
        if "$" in rest or (instruction == "COPY" and (rest.startswith(("--", "[")) or len(rest.split()) < 2)):
            raise _NeedsContainer(f"environment/Dockerfile has {instruction} {rest:.60}")
        yield instruction, rest


def _copies(
    folder: Path, source: str, target: PurePosixPath, is_folder: bool
) -> Iterator[tuple[Path, PurePosixPath, bool]]:
    """Yield what one source of COPY copies. Raise ConfigError for a path outside of the folder, or that is missing."""
    relative = PurePosixPath(source.lstrip("/") or ".")
    found = [folder] if str(relative) == "." else sorted(folder.glob(str(relative)))
    if ".." in relative.parts or not all(path.resolve().is_relative_to(folder.resolve()) for path in found):
        raise ConfigError(f"{folder}/Dockerfile copies {source!r}, which is outside of its folder; remove the line")
    if not found:
        raise ConfigError(f"{folder}/Dockerfile copies {source!r}, which does not exist; correct the line")
    for path in found:
        yield path, target, is_folder or len(found) > 1 or target.name == ""


def _placed(workdir: PurePosixPath, path: str) -> PurePosixPath:
    """Return a path of the environment. Raise _NeedsContainer if it belongs to this machine's programs."""
    placed = PurePosixPath(workdir / path)
    if ".." in placed.parts or (placed.parts[1:2] and placed.parts[1] in RESERVED_FOLDERS):
        raise _NeedsContainer(f"environment/Dockerfile writes to {placed}")
    return placed
