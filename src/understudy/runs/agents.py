"""Create agents from their names (`--agent`) and a config."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from understudy.clients.chat import Budget, ChatModel, open_chat_model
from understudy.core.errors import ConfigError, RolloutError, did_you_mean, install_hint
from understudy.core.imports import import_object
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.core.user_code import task_code, user_code
from understudy.engines.config import EngineConfig
from understudy.engines.factory import AnyEngine, open_engine, open_exported_engine
from understudy.engines.interface import Sampler, SamplingParams, StreamingSampler
from understudy.engines.models import find_model
from understudy.envs.task_source import TaskSource, find_tool_specs
from understudy.formats import ChatFormat, FormatTokenizer
from understudy.formats.round_trip import validate_gold
from understudy.rollouts.agent import (
    Agent,
    APIAgent,
    EngineAgent,
    GoldAgent,
    GoldCallsFirstAgent,
    NoopAgent,
    RefusingAgent,
)
from understudy.rollouts.rollout import Player
from understudy.rollouts.supervised import validate_source_tools
from understudy.runs.config import TrainConfig
from understudy.runs.endpoints import AGENT_KEY
from understudy.runs.model_format import choose_format
from understudy.runs.run import MODEL_FOLDER
from understudy.serve.generation import ServedModel

SCRIPTED_AGENTS: Mapping[str, Callable[[], Agent]] = {
    "gold": GoldAgent,
    "noop": NoopAgent,
    "refusing": RefusingAgent,
    "hasty": GoldCallsFirstAgent,
}
"""Agents that need no model."""


def make_agent(name: str, config: TrainConfig, checkpoint: Path | None = None, budget: Budget | None = None) -> Agent:
    """Create the agent of a name: `model`, `api`, one of `SCRIPTED_AGENTS`, or `module:attribute`.

    `model` samples from the config's model, with the weights of `checkpoint` if it is given. `api` asks the endpoint
    that the config's `agent_endpoint` names, and `budget` counts its requests. `module:attribute` is an agent, or a
    class or function that returns one for a `ChatModel` of that endpoint.

    Raise ConfigError for an unknown name, for an object that is not an agent, and for `model` if a program plays it.
    """
    if name == "model" and config.agent.name:
        raise ConfigError(
            f"the model's episodes are played by the program {config.agent.name}, which gives no single replies; use "
            "eval or data collect, or clear agent.command, agent.function and agent.url"
        )
    agents: dict[str, Callable[[], Agent]] = {
        **SCRIPTED_AGENTS,
        "api": lambda: APIAgent(_open_agent_model(config, budget)),
        "model": lambda: make_model_agent(config, checkpoint),
    }
    if ":" in name:
        return _make_custom_agent(name, config, budget)
    if name not in agents:
        raise ConfigError(f"unknown agent {did_you_mean(name, agents)}, or module:attribute for an agent of your own")
    return agents[name]()


def make_player(name: str, config: TrainConfig, checkpoint: Path | None = None, budget: Budget | None = None) -> Player:
    """Return what plays whole episodes under a name: the config's program for `model` and `api`, else the agent of the
    name.

    Raise ConfigError as `make_agent` does, and if there is no such program.
    """
    if name not in ("model", "api") or not config.agent.name:
        return make_agent(name, config, checkpoint, budget)
    from understudy.rollouts.program import ProgramAgent, validate_program  # MCP takes long to import

    validate_program(config.agent)
    if name == "api":
        return ProgramAgent(config.agent, _open_agent_model(config, budget), config.sampling)
    engine, format = open_model(config, checkpoint)
    return make_model_player(config, engine, format, eval_sampling(config))


def make_model_player(
    config: TrainConfig, engine: Sampler, format: ChatFormat, sampling: SamplingParams, repair_penalty: float = 0.0
) -> Player:
    """Return what plays the model of an engine: the config's program, or the shipped agent."""
    if not config.agent.name:
        return EngineAgent(engine, format, sampling, repair_penalty=repair_penalty)
    from understudy.rollouts.program import ProgramAgent  # MCP takes long to import

    tokenizer = find_model(config.model) / "tokenizer.json"
    streaming = cast(StreamingSampler, engine)  # as every engine is but SkyRL's, which is refused
    model = ServedModel(config.model, streaming, format, FormatTokenizer.load(tokenizer), tokenizer_file=tokenizer)
    return ProgramAgent(config.agent, model, sampling, repair_penalty=repair_penalty)


def _make_custom_agent(name: str, config: TrainConfig, budget: Budget | None) -> Agent:
    factory = import_object(name)
    agent = factory
    if isinstance(factory, type) or inspect.isfunction(factory):
        model = _open_agent_model(config, budget)
        with task_code(f"the agent {name}", factory):
            agent = factory(model)
    if not callable(getattr(agent, "act", None)):
        kind = type(agent).__name__
        raise ConfigError(f"{name!r} is a {kind}, not an agent; it needs `async def act(task, episode, new, tools)`")
    return CustomAgent(agent, name)


class CustomAgent:
    """An agent that a user wrote. An exception of it is a `RolloutError` with fault "agent"."""

    def __init__(self, agent: Any, name: str) -> None:
        self._agent, self._name = agent, name

    async def act(
        self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        """Return the agent's reply. Its `act` may be a coroutine or a function.

        Raise RolloutError unless the reply is None, or a message of the assistant, and `act` has appended the new
        messages, which it may change, and the reply last.
        """
        num_messages = len(episode.messages)
        with user_code("agent", f"the agent {self._name}", self._agent.act):
            reply: object = self._agent.act(task, episode, new, tools)
            if inspect.isawaitable(reply):
                reply = await reply
        if reply is None:
            return None
        if not isinstance(reply, Message):
            raise RolloutError(f"the agent {self._name} returned {reply!r:.100}; a reply is a Message", "agent")
        if reply.role != "assistant":
            raise RolloutError(
                f"the agent {self._name} returned a message with role={reply.role!r}; a reply has role='assistant'",
                "agent",
            )
        appended = episode.messages[num_messages:]
        if appended[-1:] != [reply] or len(appended) <= len(new):
            missing = "its reply" if appended and appended[-1] != reply else "the new messages"
            raise RolloutError(
                f"the agent {self._name} has not appended {missing} to the episode; call episode.observe(new) and "
                "episode.act(reply) before `return reply`",
                "agent",
            )
        try:
            for message in episode.messages[num_messages:]:
                message.model_dump_json()
        except ValueError as e:  # a lone surrogate, or an argument that is no JSON
            del episode.messages[num_messages:]  # the episode is written with its fault
            reason = " ".join(str(e).split())
            raise RolloutError(
                f"the agent {self._name} appended a message that cannot be written as JSON: {reason:.200}", "agent"
            ) from e
        return reply


def _open_agent_model(config: TrainConfig, budget: Budget | None) -> ChatModel:
    return open_chat_model(config.endpoints, config.agent_endpoint, AGENT_KEY, "agent", budget)


def make_model_agent(config: TrainConfig, checkpoint: Path | None = None) -> EngineAgent:
    """Return an agent that samples from the config's model as evaluations do."""
    engine, format = open_model(config, checkpoint)
    return EngineAgent(engine, format, eval_sampling(config))


def eval_sampling(config: TrainConfig) -> SamplingParams:
    """Return the sampling parameters of evaluations, whose replies are not trained on."""
    return config.sampling.replace(temperature=config.eval.temperature, keep_sampling_mask=False)


def validate_model_format(config: TrainConfig, source: TaskSource, tasks: Sequence[Task]) -> tuple[str, ...]:
    """Return a warning if the chat format of the config's model cannot express gold calls of the tasks.

    Raise ConfigError if it cannot express calls of a tool.
    """
    format = choose_format(find_model(config.model), config).format
    validate_source_tools(format, [source])
    problems = list[str]()
    for task in tasks:
        try:
            validate_gold(format, task, find_tool_specs(source, task.domain))
        except ConfigError as e:
            problems.append(f"{task.id}: {e}")
    named = f"{len(problems)} of {len(tasks)} tasks have a gold call that this model cannot make, such as task "
    return (named + problems[0],) if problems else ()


def open_model(
    config: TrainConfig, checkpoint: Path | None = None, engine: EngineConfig | None = None
) -> tuple[AnyEngine, ChatFormat]:
    """Return an engine that does not train, and the chat format, of the config's model or of a checkpoint.

    `engine` overrides `config.resolved_engine`, whose context fits the longest episode of the config. Raise
    ConfigError if a package is missing.
    """
    engine = engine or config.resolved_engine
    folder = find_model(config.model)
    exported = checkpoint / MODEL_FOLDER if checkpoint else None
    try:
        chosen = choose_format(folder, config)
        if exported and exported.is_dir():
            return open_exported_engine(exported, folder, engine, config.seed), chosen.format
        opened = open_engine(folder, engine, config.seed, trainable=False, trained_tokens=chosen.trained_tokens)
    except ModuleNotFoundError as e:
        raise missing_package_error(e, f"model {config.model!r}") from e
    if checkpoint:
        opened.load(checkpoint)
    return opened, chosen.format


def missing_package_error(error: ModuleNotFoundError, what: str) -> Exception:
    """Return a ConfigError that names the missing package and how to install it.

    The error is returned unchanged if the missing module is one of `understudy`.
    """
    if error.name is None or error.name.startswith("understudy"):
        return error
    return ConfigError(f"{what} needs {error.name}; {install_hint('train')}")
