"""Players: the agents that a name, such as that of `--agent`, and a config stand for, and the endpoints they ask."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from understudy import formats
from understudy.agent import Agent, ChatAgent, EngineAgent, GoldAgent, HastyAgent, RefusingAgent, SilentAgent
from understudy.chat import ChatConfig, ChatModel, Payer
from understudy.config import TrainConfig
from understudy.engines.local.config import LocalConfig
from understudy.engines.opening import AnyEngine, open_engine, open_exported
from understudy.errors import ConfigError, installation, nearest
from understudy.imported import imported
from understudy.models import find_model
from understudy.run import MODEL

SCRIPTED: Mapping[str, Callable[[], Agent]] = {
    "gold": GoldAgent,
    "silent": SilentAgent,
    "refusing": RefusingAgent,
    "hasty": HastyAgent,
}
"""Agents that need no model."""


def named_agent(name: str, config: TrainConfig, checkpoint: Path | None = None, payer: Payer | None = None) -> Agent:
    """The agent called `model`, `native` or `chat` (the endpoint of the config's `chat`), one of `SCRIPTED`, or yours.

    Yours is `module:attribute`: an agent, or a class or function that makes one when it is called with the endpoint's
    `ChatModel`. `native` uses the endpoint's own tool calls, `chat` what `chat.tools` says, which unless it is set is
    the same. `model` is the config's, with a checkpoint's weights where one is given. `payer` pays for an endpoint's.
    """
    agents: dict[str, Callable[[], Agent]] = {
        **SCRIPTED,
        "native": lambda: ChatAgent(ChatModel(_native(config), "agent", payer)),
        "chat": lambda: ChatAgent(ChatModel(config.chat, "agent", payer)),
        "model": lambda: model_agent(config, checkpoint),
    }
    if ":" in name:
        return _own_agent(name, config, payer)
    if name not in agents:
        raise ConfigError(f"unknown agent {nearest(name, agents)}, or module:attribute for your own")
    return agents[name]()


def asks_chat(agent: str) -> bool:
    """Whether an agent of this name plays with the endpoint of the config's `chat`."""
    return agent in ("native", "chat") or ":" in agent


def refuse_idle_chat(agent: str, settings: Sequence[str]) -> None:
    """Settings of an endpoint that the agent does not ask are a `ConfigError`: somebody else would be measured."""
    idle = next((each for each in settings if each.strip().startswith("chat.")), "")
    if idle and not asks_chat(agent):
        key = idle.partition("=")[0]
        raise ConfigError(
            f"{key} is of the endpoint that --agent native and --agent chat play with, and this is --agent {agent}; "
            "add --agent native, or leave it out"
        )


def asked(agent: str, config: TrainConfig, judged: bool = False) -> list[ChatConfig]:
    """The endpoints that an agent of this name, its users and the judge are played with."""
    own = [config.chat] if asks_chat(agent) else []
    users = [config.user.chat] if config.user.kind not in ("scripted", "human") else []
    return [*own, *users, *([config.judge] if judged else [])]


def cap_of(agent: str, config: TrainConfig, judged: bool = False) -> Decimal:
    """What the config lets them cost; 0, no cap, where no endpoint is asked."""
    return config.cost_cap if asked(agent, config, judged) else Decimal(0)


def _own_agent(name: str, config: TrainConfig, payer: Payer | None) -> Agent:
    found = imported(name)
    made = isinstance(found, type) or inspect.isfunction(found)
    agent: Agent = found(ChatModel(config.chat, "agent", payer)) if made else found
    if not inspect.iscoroutinefunction(getattr(agent, "act", None)):
        kind = type(agent).__name__
        raise ConfigError(f"{name!r} gives a {kind}, no agent: it needs `async def act(task, episode, new, tools)`")
    return agent


def _native(config: TrainConfig) -> ChatConfig:
    if config.chat.tools != "native":
        text = f"agent native uses the endpoint's own tool calls, and chat.tools is {config.chat.tools!r}"
        raise ConfigError(f"{text}; leave that out, or use --agent chat")
    return config.chat


def model_agent(config: TrainConfig, checkpoint: Path | None = None) -> EngineAgent:
    """The config's model, sampling as it does in evaluation."""
    engine, format = open_model(config, checkpoint)
    return EngineAgent(engine, format, config.sampling.replace(temperature=config.eval.temperature))


def open_model(
    config: TrainConfig, checkpoint: Path | None = None, engine: LocalConfig | None = None
) -> tuple[AnyEngine, formats.ChatFormat]:
    """An engine that does not train and the format of the config's model, with a checkpoint's weights if one is given.

    The engine is as `engine` says; unless that is given, as the config does, with room for its episodes.
    """
    engine = engine or config.fitted
    folder = find_model(config.model)
    format = formats.configured(folder, config.format)
    exported = checkpoint / MODEL if checkpoint else None
    try:
        if exported and exported.is_dir():
            return open_exported(exported, folder, engine, config.seed), format
        opened = open_engine(folder, engine, config.seed, trains=False)
    except ModuleNotFoundError as e:
        raise not_installed(e, f"model {config.model!r}") from e
    if checkpoint:
        opened.load(checkpoint)
    return opened, format


def not_installed(error: ModuleNotFoundError, what: str) -> Exception:
    """What to tell a user who lacks a package; a module of our own that is missing is a bug and stays one."""
    if error.name is None or error.name.startswith("understudy"):
        return error
    return ConfigError(f"{what} needs {error.name}; {installation('train')}")
