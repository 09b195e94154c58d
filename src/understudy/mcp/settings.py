"""Settings: an MCP environment's TOML file, every key checked.

name = "notes"
policy = "You keep notes."          # or a file beside this one: "policy.md"
tasks = "notes.jsonl"

[server]                            # several: [servers.notes], [servers.time]
command = "{python} -m my_notes --data {folder}"
isolation = "episode"
env = {NOTES_KEY = "${NOTES_KEY}"}
"""

import re
import shlex
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from understudy.errors import ConfigError
from understudy.records import Record
from understudy.settings import parse

_SECRET_KEY = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{(\w+)\}")


class Call(Record):
    """One call of a tool."""

    tool: str
    """`tool`, or `server.tool` where there are several servers."""
    arguments: dict[str, Any] = {}
    """What it is called with."""


class ServerConfig(Record):
    """One server: a command to start (stdio), an address (streamable HTTP), or both: a command that serves the address.

    In `command`, `env`, `cwd` and `url`, `{python}` is this interpreter, `{port}` a free port, and `{folder}` a folder
    of the session's own, which the agent sees as /episode. `${NAME}` comes from the environment and is kept secret.
    """

    command: tuple[str, ...] = ()
    """The program and its arguments, as a list or as one text that is split like a shell does."""
    url: str = ""
    """Such as http://127.0.0.1:8000/mcp."""
    env: dict[str, str] = {}
    """Variables of the server, beside PATH, HOME and a few that are harmless."""
    cwd: str = ""
    """Where the server runs; the folder of the TOML file if not given."""
    files: str = ""
    """A folder whose files {folder} begins with."""
    headers: dict[str, str] = {}
    """Sent with each HTTP request."""
    protocol: Literal["auto", "legacy"] = "auto"
    """`legacy` shakes hands as before 2026-07-28, without asking the server first whether it is newer."""
    isolation: Literal["episode", "shared"] = "episode"
    """`episode`: a server for each rollout, fresh or reset. `shared`: one for all, which declares it keeps no state."""
    reset: Call | None = None
    """The call that makes a used server as good as new; without it each episode has a new one."""
    per_session: bool = False
    """Declares that the server at `url` keeps its state by session, so that a new session is a fresh one."""
    processes: int = Field(default=8, ge=1)
    """How many sessions there are at most."""
    warm: int = Field(default=1, ge=0)
    """How many sessions wait, started, for the next episodes."""
    allow: tuple[str, ...] = ("*",)
    """Tools that there are for the agent, by pattern (`read_*`)."""
    deny: tuple[str, ...] = ()
    """Tools that there are not, though allowed."""
    reads: tuple[str, ...] = ()
    """Tools that change nothing, by pattern: safe to repeat, and played from a cassette in any order."""
    retries: int = Field(default=1, ge=0)
    """How often a call of one of `reads` that failed is repeated."""
    start_timeout: float = Field(default=60.0, gt=0)
    """Seconds until a server has to be ready."""
    call_timeout: float = Field(default=30.0, gt=0)
    """Seconds that a call may take."""
    timeouts: dict[str, float] = {}
    """Seconds for single tools."""
    on_timeout: Literal["fault", "error"] = "fault"
    """`fault`: the server is at fault, and the episode has no score. `error`: the agent sees an error and goes on."""
    starts: int = Field(default=3, ge=1)
    """How often a start that fails is tried."""
    backoff: float = Field(default=0.5, ge=0)
    """Seconds to wait after a start that failed, doubled each time up to a minute."""
    result_characters: int = Field(default=16_000, ge=100)
    """How much of a result the agent is shown."""

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        try:
            return tuple(shlex.split(value)) if isinstance(value, str) else value
        except ValueError as e:
            raise ConfigError(f"the command {value!r} cannot be split into words: {str(e).lower()}") from e

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.command and not self.url:
            raise ConfigError("a server needs a command to start, or the url where it is")
        if self.isolation == "episode" and not self.command and not self.reset and not self.per_session:
            raise ConfigError(
                "a server at a url is one for all episodes: say isolation = 'shared' if it keeps no state, "
                "per_session = true if it keeps it by session, or name the call that resets it: reset = {tool = …}"
            )
        for kind, values in (("env", self.env), ("headers", self.headers)):
            for key, value in values.items():
                if _SECRET_KEY.search(key) and not _REFERENCE.search(value):
                    raise ConfigError(f"{kind}.{key} is a secret in plain text; write '${{NAME}}' and set NAME outside")
        return self

    def mentions(self, place: str) -> bool:
        """Whether a text that is filled in holds `{folder}`, `{port}` or the like."""
        texts = (*self.command, *self.env.values(), self.cwd, self.url)
        return any(place in text for text in texts)

    @property
    def sessions(self) -> int:
        """How many sessions there may be at once: a server that is reset for each episode serves one at a time."""
        return 1 if self.reset and not self.command else self.processes


class Limits(Record):
    """What an episode may use."""

    max_turns: int | None = Field(default=None, ge=1)
    """Replies of the agent, the last one included; by difficulty if not given: 5 easy, 8 medium, 10 hard."""
    max_calls: int | None = Field(default=None, ge=0)
    """Calls that are run."""
    max_tools: int | None = Field(default=None, ge=0)
    """Different tools that are called."""
    max_servers: int | None = Field(default=None, ge=0)
    """Different servers that are called."""
    seconds: float = Field(default=300.0, gt=0)
    """Time that the servers may take for an episode; beyond it the episode has no score, by their fault."""

    def narrowed(self, own: "Limits") -> "Limits":
        """These limits, and where a task has one of its own, that one."""
        return self.replace(**{name: getattr(own, name) for name in own.model_fields_set})


class RewardConfig(Record):
    """What an episode is paid."""

    kind: Literal["strict", "shaped"] = "strict"
    """`strict`: 1 if every check holds, else 0. `shaped`: else `share` times the part of the checks that holds."""
    share: float = Field(default=0.3, gt=0, lt=1)
    """What an episode can earn at most without success. Each check pays once."""


class CassetteConfig(Record):
    """Recorded answers of the servers."""

    folder: str = ""
    """Where the cassettes are, one a task, beside the TOML file."""
    mode: Literal["off", "record", "replay", "extend"] = "off"
    """`replay` starts no server and refuses what is not recorded; `extend` asks the server then, and records it."""

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.mode != "off" and not self.folder:
            raise ConfigError(f"cassette.mode = '{self.mode}' needs the folder of the cassettes")
        return self


class EnvironmentConfig(Record):
    """An environment's TOML file."""

    name: str = ""
    """What tasks and results are filed under; the file's name if not given."""
    policy: str = ""
    """What the agent is told of its job; what ends in .md is a file."""
    tasks: str
    """The tasks: a .jsonl file, or .json or .parquet."""
    server: ServerConfig | None = None
    """The only server, named like the environment."""
    servers: dict[str, ServerConfig] = {}
    """Servers by name."""
    names: Literal["flat", "server.tool"] = "flat"
    """How tools are named to the agent."""
    limits: Limits = Limits()
    """What an episode may use; a task's own limits go first."""
    reward: RewardConfig = RewardConfig()
    """What an episode is paid."""
    cassette: CassetteConfig = CassetteConfig()
    """Recorded answers of the servers."""


def load_environment(path: Path) -> EnvironmentConfig:
    """The file with all paths made absolute. What is wrong with it is a `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"MCP environment {path}: {e}") from e
    config, folder = parse(EnvironmentConfig, text, where=str(path)), path.resolve().parent
    name = config.name or path.stem
    named = {**config.servers, **({name: config.server} if config.server else {})}
    if not named or (config.server and config.servers):
        raise ConfigError(f"{path}: give either one [server], or several as [servers.NAME]")
    servers = {key: _placed(server, folder) for key, server in named.items()}
    tape = config.cassette
    return config.replace(
        name=name,
        policy=_policy(config.policy, folder),
        tasks=str(folder / config.tasks),
        server=None,
        servers=servers,
        cassette=tape.replace(folder=str(folder / tape.folder)) if tape.folder else tape,
    )


def _placed(server: ServerConfig, folder: Path) -> ServerConfig:
    cwd = server.cwd if server.cwd.startswith("{folder}") else str(folder / server.cwd)
    return server.replace(cwd=cwd, files=str(folder / server.files) if server.files else "")


def _policy(policy: str, folder: Path) -> str:
    if not policy.endswith(".md"):
        return policy.strip()
    try:
        return (folder / policy).read_text(encoding="utf-8").strip()
    except OSError as e:
        raise ConfigError(f"the policy {folder / policy} cannot be read: {e.strerror}") from e
