"""Who plays the users of a run: chosen in the config, made for each episode."""

from typing import Literal

from pydantic import Field

from understudy.chat import ChatConfig, ChatModel, Payer, Usage
from understudy.records import Record
from understudy.tasks import Scenario
from understudy.tools import Device
from understudy.users.human import HumanUser
from understudy.users.language import LanguageUser, ReactUser, ReflectingUser, VerifiedUser
from understudy.users.scripted import ScriptedUser
from understudy.users.user import User

_LANGUAGE = {"llm": LanguageUser, "react": ReactUser, "verify": VerifiedUser, "reflection": ReflectingUser}


class UserConfig(Record):
    """Who the agent speaks to."""

    kind: Literal["scripted", "llm", "react", "verify", "reflection", "human"] = "scripted"
    """`scripted` needs no model, `human` is a person at a prompt, and the others ask `chat`; see docs/users.md."""
    attempts: int = Field(default=3, ge=1)
    """Messages asked of the model at one turn before the episode fails by the user's fault."""
    chat: ChatConfig = ChatConfig()
    """The endpoint and model that plays the user."""


class Cast:
    """Makes a user for each episode. All whom a language model plays share it: its limit and totals are the run's."""

    def __init__(self, config: UserConfig, payer: Payer | None = None) -> None:
        """`payer` pays for the model that plays them, where one does."""
        self._config = config
        self._model = ChatModel(config.chat, "user", payer) if config.kind in _LANGUAGE else None

    def __call__(self, scenario: Scenario, seed: int, device: Device | None = None) -> User:
        """The user of one episode; `device` holds the user's own tools, where the domain gives them any."""
        if self._model:
            return _LANGUAGE[self._config.kind](scenario, self._model, seed, self._config.attempts, device)
        return HumanUser(scenario, device) if self._config.kind == "human" else ScriptedUser(scenario, seed, device)

    @property
    def scripted(self) -> bool:
        """Whether they are those that the tasks were made for, and nobody is asked."""
        return self._config.kind == "scripted"

    @property
    def usage(self) -> Usage:
        """What the model was asked so far."""
        return self._model.usage if self._model else Usage()
