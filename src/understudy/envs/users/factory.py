"""Choice of the user simulator by config, and creation of one user per episode."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from understudy.clients.chat import DEFAULT_ENDPOINT, Budget, EndpointConfig, ModelUsage, open_chat_model
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.imports import import_object
from understudy.core.records import Record
from understudy.core.tasks import Scenario
from understudy.core.user_code import user_code
from understudy.envs.tools import UserTools
from understudy.envs.users.human import HumanUser
from understudy.envs.users.llm import LLMUser, ReactUser, ReflectionUser, VerifyUser
from understudy.envs.users.scripted import InstructionUser, ScriptedUser
from understudy.envs.users.user import User, UserFactory

_LANGUAGE = {"llm": LLMUser, "react": ReactUser, "verify": VerifyUser, "reflection": ReflectionUser}


class UserConfig(Record):
    """The user simulator."""

    kind: (
        Literal["scripted", "instruction", "llm", "react", "verify", "reflection", "human"]
        | Annotated[str, StringConstraints(pattern=r"^[\w.]+:\w+$")]
    ) = "scripted"
    """`scripted` and `instruction` (who says everything at once) need no model, `human` is a person at a terminal,
    `module:attribute` is a user class of your own, the others use `endpoint`; see docs/users.md."""
    max_attempts: int = Field(default=3, ge=1)
    """Maximum attempts of the model at one message. If all are rejected, the episode fails with the fault `user`."""
    endpoint: str = DEFAULT_ENDPOINT
    """Name of the endpoint (`endpoints.NAME`) whose model plays the user."""


def _validate_signature(kind: str, factory: UserFactory) -> None:
    """Raise ConfigError if a user's class cannot be called as a UserFactory."""
    try:
        inspect.signature(factory).bind(None, 0, None)
    except TypeError as e:
        raise ConfigError(
            f"user.kind = {kind!r} cannot be called with (scenario, seed, user_tools): {e}; define "
            "`def __init__(self, scenario, seed, user_tools)`"
        ) from e
    except ValueError:  # it is built in and has no signature
        return


class UserSimulatorFactory:
    """Factory of user simulators, one per episode. Users share one model client, with its request limit and usage."""

    def __init__(
        self, config: UserConfig, endpoints: Mapping[str, EndpointConfig] | None = None, budget: Budget | None = None
    ) -> None:
        """Use the model of `endpoints[config.endpoint]` if a model plays the user. `budget` counts its cost."""
        self._config = config
        self._model = None
        self._custom: UserFactory | None = None
        if ":" in config.kind:
            self._custom = import_object(config.kind)
            if not callable(self._custom):
                raise ConfigError(
                    f"user.kind = {config.kind!r} is not callable; name a class or a function that takes scenario, "
                    "seed and user_tools"
                )
            _validate_signature(config.kind, self._custom)
        if config.kind in _LANGUAGE:
            self._model = open_chat_model(endpoints or {}, config.endpoint, "user.endpoint", "user", budget)

    def __call__(self, scenario: Scenario, seed: int, user_tools: UserTools | None = None) -> User:
        """Return the user of one episode. `user_tools` are the user's own tools, or None if the domain has none.

        If a model plays the users, the kind of user is the scenario's `user_kind`, if it has one.
        """
        if self._custom:
            return self._make_custom(self._custom, scenario, seed, user_tools)
        kind = scenario.user_kind or self._config.kind
        if self._model and kind in _LANGUAGE:
            return _LANGUAGE[kind](scenario, self._model, seed, self._config.max_attempts, user_tools)
        if self._config.kind == "human":
            return HumanUser(scenario, user_tools)
        if self._config.kind == "instruction":
            return InstructionUser(scenario)
        return ScriptedUser(scenario, seed, user_tools)

    def _make_custom(self, factory: UserFactory, scenario: Scenario, seed: int, user_tools: UserTools | None) -> User:
        what = f"the user {self._config.kind}"
        with user_code("user", what, factory):
            user = factory(scenario, seed, user_tools)
        if not callable(getattr(user, "reply", None)):
            raise RolloutError(f"{what} is a {type(user).__name__}; it needs `async def reply(transcript)`", "user")
        return user

    @property
    def is_scripted(self) -> bool:
        """Whether the users are those that tasks have a script for."""
        return self._config.kind == "scripted"

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know before an episode is played."""
        return ("the users are models, so the rules for texts are off",) if self._model else ()

    @property
    def usage(self) -> ModelUsage:
        """Usage of the user's model so far; zero if no model plays."""
        return self._model.usage if self._model else ModelUsage()
