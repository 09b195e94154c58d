"""Settings of an MCP environment: a TOML file. Unknown keys are errors.

name = "notes"
domain_policy = "You keep notes."          # or a file beside this one: "policy.md"
tasks = "notes.jsonl"

[server]                            # several: [servers.notes], [servers.time]
command = "{python} -m my_notes --data {folder}"
isolation = "episode"
env = {NOTES_KEY = "${NOTES_KEY}"}
"""

import shlex
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.core.secrets import mask_secrets, validate_no_secrets
from understudy.core.settings import parse_toml


class MCPCall(Record):
    """One call of a tool."""

    tool: str
    """`tool`, or `server.tool` if there are several servers."""
    arguments: dict[str, Any] = {}
    """The arguments of the call."""


class MCPServerConfig(Record):
    """One server: a command to start (stdio), a URL (streamable HTTP), or both (a command that serves the URL).

    In `command`, `env`, `cwd` and `url`, `{python}` is this interpreter, `{port}` a free port, and `{folder}` a folder
    for the session, which the agent sees as /episode. `${NAME}` is read from the environment and treated as a secret.
    """

    command: tuple[str, ...] = ()
    """The program and its arguments, as a list or as one string in shell syntax."""
    url: str = ""
    """The server's URL, such as http://127.0.0.1:8000/mcp."""
    http_tools: str = ""
    """A JSON file with the tools of a server at `url` that does not speak MCP: a list in OpenAI's format, with name,
    description and parameters. A call of NAME is `POST {url}/NAME`, with the arguments as JSON."""
    http_arguments_key: str = ""
    """The key of the arguments in the body of such a request. By default the body is the arguments."""
    env: dict[str, str] = {}
    """Environment variables of the server, in addition to PATH, HOME and a few other harmless ones."""
    cwd: str = ""
    """The server's working folder. The default is the folder of the TOML file."""
    initial_files: str = ""
    """A folder whose files are copied into {folder}."""
    headers: dict[str, str] = {}
    """Headers of each HTTP request."""
    aliases: tuple[str, ...] = ()
    """Other names of the server in tasks, such as `python_execution` in `python_execution.execute_python`."""
    protocol: Literal["auto", "legacy"] = "auto"
    """`legacy` uses the handshake from before 2026-07-28 and does not ask the server for a newer version first."""
    isolation: Literal["episode", "shared"] = "episode"
    """`episode`: one server for each episode, new or reset. `shared`: one server for all episodes; it must be
    stateless."""
    reset: MCPCall | None = None
    """The call that resets a used server. The agent does not see its tool. Without it, each episode starts a new
    server."""
    state_per_session: bool = False
    """Whether the server at `url` has a separate state for each session. Each episode then gets a new session."""
    max_sessions: int = Field(default=8, ge=1)
    """The largest number of concurrent sessions."""
    warm_sessions: int = Field(default=1, ge=0)
    """How many sessions are started ahead for the next episodes."""
    allow: tuple[str, ...] = ("*",)
    """Patterns (`read_*`) of tools that the agent may use."""
    deny: tuple[str, ...] = ()
    """Patterns of tools that the agent may not use, even if they are allowed."""
    read_only_tools: tuple[str, ...] = ()
    """Patterns of tools that change nothing. They are safe to repeat, and a cassette replays them in any order."""
    max_retries: int = Field(default=1, ge=0)
    """How often a failed call of one of `read_only_tools` is retried."""
    start_timeout: float = Field(default=60.0, gt=0)
    """Seconds until a server must be ready."""
    call_timeout: float = Field(default=30.0, gt=0)
    """Seconds that a call may take."""
    tool_timeouts: dict[str, float] = {}
    """Seconds that calls of single tools may take."""
    on_timeout: Literal["fault", "error"] = "fault"
    """What a call that times out does. `fault`: the episode fails with the fault `mcp` and has no score. `error`: the
    agent sees an error and continues.
    """
    max_start_attempts: int = Field(default=3, ge=1)
    """How often a failing start is attempted."""
    backoff: float = Field(default=0.5, ge=0)
    """Seconds to wait after a failed start. The wait doubles each time, up to a minute."""
    max_result_characters: int = Field(default=16_000, ge=100)
    """The longest tool result that the agent sees, in characters."""

    @field_validator("command", mode="before")
    @classmethod
    def _split_command(cls, value: Any) -> Any:
        try:
            return tuple(shlex.split(value)) if isinstance(value, str) else value
        except ValueError as e:
            raise ConfigError(
                f"the command {mask_secrets(str(value))!r} cannot be split into words: {str(e).lower()}"
            ) from e

    @model_validator(mode="after")
    def _validate_server(self) -> Self:
        if not self.command and not self.url:
            raise ConfigError("a server needs a command or a url")
        if self.http_tools and not self.url:
            raise ConfigError("http_tools needs the url of the tools, such as http://127.0.0.1:7001/tools")
        if self.http_arguments_key and not self.http_tools:
            raise ConfigError("http_arguments_key needs http_tools, the file of the tools at url")
        if self.isolation == "episode" and not self.command and not self.reset and not self.state_per_session:
            raise ConfigError(
                "all episodes use the server at a url: set isolation = 'shared' if stateless, state_per_session = "
                "true if each session has its own state, or reset = {tool = …} to the call that resets it"
            )
        texts = {"command": self.command, "url": self.url, "env": self.env, "cwd": self.cwd, "headers": self.headers}
        validate_no_secrets(texts, "an MCP server")
        return self

    def uses_placeholder(self, place: str) -> bool:
        """Return whether a setting holds placeholders such as `{folder}` or `{port}`."""
        return any(place in text for text in self.filled_texts)

    @property
    def filled_texts(self) -> tuple[str, ...]:
        """The settings in which placeholders are filled."""
        return (*self.command, *self.env.values(), self.cwd, self.url, *self.headers.values())

    @property
    def owns_state(self) -> bool:
        """Whether this program starts a server of its own for each episode, whose changes end with it."""
        return bool(self.command) and self.isolation == "episode"

    @property
    def session_limit(self) -> int:
        """The largest number of concurrent sessions. A server that is reset for each episode serves one at a time."""
        return 1 if self.reset and not self.command else self.max_sessions


class MCPLimits(Record):
    """Limits of an episode."""

    max_turns: int | None = Field(default=None, ge=1)
    """Maximum number of replies of the agent. The default depends on the difficulty: 5 easy, 8 medium, 10 hard."""
    max_calls: int | None = Field(default=None, ge=0)
    """Maximum number of calls that are run."""
    max_tools: int | None = Field(default=None, ge=0)
    """Maximum number of different tools that the agent may call."""
    max_servers: int | None = Field(default=None, ge=0)
    """Maximum number of different servers whose tools the agent may call."""
    max_seconds: float = Field(default=300.0, gt=0)
    """Maximum seconds that the servers may take for an episode. A slower episode fails with the fault `mcp` and has
    no score.
    """

    def override(self, own: "MCPLimits") -> "MCPLimits":
        """Return these limits, with those that `own` sets in place of them."""
        return self.replace(**{name: getattr(own, name) for name in own.model_fields_set})


class RewardConfig(Record):
    """The reward of an episode."""

    kind: Literal["strict", "shaped"] = "strict"
    """`strict`: 1 if every check passes, else 0. `shaped`: a failure earns `max_partial_reward` times the share that
    passes."""
    max_partial_reward: float = Field(default=0.3, gt=0, lt=1)
    """The largest reward without success. Each check pays once."""


class CassetteConfig(Record):
    """Recorded answers of the servers."""

    file: str = ""
    """The .jsonl file of answers, relative to the TOML file."""
    mode: Literal["off", "record", "replay", "extend"] = "off"
    """`replay` starts no server and rejects calls that are not recorded. `extend` sends those to the server and records
    them."""

    @model_validator(mode="after")
    def _validate_file(self) -> Self:
        if self.mode != "off" and not self.file:
            raise ConfigError(f"cassette.mode = '{self.mode}' needs cassette.file, such as 'answers.jsonl'")
        return self


class MCPEnvironmentConfig(Record):
    """The TOML file of an environment."""

    name: str = ""
    """The environment's name in tasks and results. The default is the file's name."""
    domain_policy: str = ""
    """The agent's rules. A value that ends in .md is the path of a file."""
    tasks: str = ""
    """The tasks: a .jsonl, .json or .parquet file. Empty if there are none yet (`understudy data synthesize`)."""
    server: MCPServerConfig | None = None
    """The only server. It has the environment's name."""
    servers: dict[str, MCPServerConfig] = {}
    """Servers by name."""
    tool_naming: Literal["flat", "server.tool"] = "flat"
    """How tools are named for the agent."""
    aliases: dict[str, str | dict[str, str]] = {}
    """Other names that models and tasks use. Of a tool, mapped to the tool (`tool`, or `server.tool`): `post_note =
    "add_note"`. Of arguments, by tool and other name, mapped to the parameter: `execute_python = {python_code =
    "code"}`. An alias of an argument has no effect if the tool has a parameter of its name."""
    limits: MCPLimits = MCPLimits()
    """Limits of an episode. A task's own limits take precedence."""
    reward: RewardConfig = RewardConfig()
    """The reward of an episode."""
    cassette: CassetteConfig = CassetteConfig()
    """Recorded answers of the servers."""

    @property
    def server_names(self) -> tuple[str, ...]:
        """The names of the servers in tasks, with their aliases."""
        return (*self.servers, *(alias for server in self.servers.values() for alias in server.aliases))


def load_environment_config(path: Path) -> MCPEnvironmentConfig:
    """Read the file and make its paths absolute. Raise `ConfigError` if it is not valid."""
    if path.suffix == ".json":
        raise ConfigError(f"{path}: MCP servers are named in a TOML file, which `understudy new mcp NAME` writes")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"the file {path} of an MCP environment cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"the file {path} of an MCP environment is not UTF-8 text: {e}") from e
    config, folder = parse_toml(MCPEnvironmentConfig, text, source=str(path)), path.resolve().parent
    name = config.name or path.stem
    named = {**config.servers, **({name: config.server} if config.server else {})}
    if not named or (config.server and config.servers):
        raise ConfigError(f"{path}: give either one [server], or several as [servers.NAME]")
    servers = {key: _placed(server, folder) for key, server in named.items()}
    _validate_server_aliases(servers, path)
    tape = config.cassette
    policy = _policy(config.domain_policy, folder)
    if config.tasks and not (folder / config.tasks).is_file():
        raise ConfigError(f"{path}: tasks: there is no file {folder / config.tasks}; correct the path, or leave it out")
    return config.replace(
        name=name,
        domain_policy=policy,
        tasks=str(folder / config.tasks) if config.tasks else "",
        server=None,
        servers=servers,
        cassette=tape.replace(file=str(folder / tape.file)) if tape.file else tape,
    )


def _validate_server_aliases(servers: dict[str, MCPServerConfig], path: Path) -> None:
    """Raise `ConfigError` if two servers have one name or alias."""
    owners = {name: name for name in servers}
    for name, server in servers.items():
        for alias in server.aliases:
            if (owner := owners.setdefault(alias, name)) != name or alias in servers:
                raise ConfigError(
                    f"{path}: the alias {alias!r} of the server {name!r} is a name of {owner!r}; choose another one"
                )


def _placed(server: MCPServerConfig, folder: Path) -> MCPServerConfig:
    cwd = server.cwd if server.cwd.startswith("{folder}") else str(folder / server.cwd)
    if server.http_tools:
        server = server.replace(http_tools=str(folder / server.http_tools))
    if not server.initial_files:
        return server.replace(cwd=cwd)
    files = folder / server.initial_files
    if not files.is_dir():
        raise ConfigError(f"initial_files: {files} is no folder")
    return server.replace(cwd=cwd, initial_files=str(files))


def _policy(policy: str, folder: Path) -> str:
    if not policy.endswith(".md"):
        return policy.strip()
    try:
        return (folder / policy).read_text(encoding="utf-8").strip()
    except OSError as e:
        raise ConfigError(f"the policy {folder / policy} cannot be read: {e.strerror}") from e
