"""Config of the program that plays episodes in place of the shipped agent."""

from ipaddress import ip_address
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from understudy.core.errors import ConfigError
from understudy.core.records import Record


class ProgramConfig(Record):
    """The program that plays episodes in place of the shipped agent. At most one of `command`, `function` and `url`
    is set; without any, the shipped agent plays.
    """

    command: str = ""
    """Command line of the program, such as `python agent.py`. It runs once for each episode, and its exit ends the
    episode. See docs/programs.md."""
    function: str = ""
    """A function as `module:attribute`, which gets a `ProgramEpisode`. It is a coroutine, or runs in a thread."""
    python: str = ""
    """Path of the Python that runs `function`, such as that of a venv with your framework. Each of its processes plays
    one episode after another: what the function keeps in its modules is seen by later episodes. Empty means the Python
    of understudy."""
    url: str = ""
    """Address of a server on this machine. Each episode is a POST request to it, and ends with the response."""
    reward: str = ""
    """A function as `module:attribute` that returns the reward of a recorded episode, a number from 0 to 1. It gets a
    `RecordedEpisode` of `rollouts.program_reward`. Episodes in which the program uses the environment's tools or user
    are graded by the environment."""
    constraints: Literal["off", "mask"] = "off"
    """Whether `tool_choice` and `response_format` of requests apply. `off` drops and counts them. `mask` samples under
    them, and trains with the log-probabilities over the tokens that they allow. It needs
    `pip install 'understudy-rl[guided]'` and `engine.sampler=torch`. A model behind an API gets none."""
    variables: tuple[str, ...] = ()
    """Names of variables that `command` and `python` get although they end in `_API_KEY`. They get all that do not."""
    max_seconds: float = Field(default=600.0, gt=0.0)
    """Time limit of an episode in seconds. To exceed it is a fault of the agent, unless another limit was reached. A
    process is killed then."""
    concurrency: int = Field(default=16, ge=1)
    """Maximum number of programs at once."""

    @property
    def name(self) -> str:
        """The program, for messages; "" if there is none."""
        return self.command or self.function or self.url

    @model_validator(mode="after")
    def _validate_kind(self) -> Self:
        given = [f"agent.{key}" for key in ("command", "function", "url") if getattr(self, key)]
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]} both name the program; give one of them")
        if self.python and not self.function:
            raise ConfigError(f"agent.python = {self.python!r} runs agent.function; set it, or leave out agent.python")
        if self.url and not _is_loopback(self.url):
            raise ConfigError(
                f"agent.url = {self.url!r}: the program must run on this machine, as it calls the model at 127.0.0.1; "
                "give an address such as http://127.0.0.1:9000/play"
            )
        for key, reference in (("function", self.function), ("reward", self.reward)):
            if reference and ":" not in reference:
                raise ConfigError(f"agent.{key} = {reference!r}: give module:attribute")
        return self


def _is_loopback(url: str) -> bool:
    parts = urlsplit(url)
    try:
        is_local = parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
        return parts.scheme == "http" and is_local
    except ValueError:
        return False
