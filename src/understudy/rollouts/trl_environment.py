"""A source of tasks for TRL's GRPOTrainer: its `environment_factory`, `train_dataset` and `reward_funcs`.

    ours = TRLEnvironment(understudy.load("retail"))
    dataset = Dataset.from_list(ours.rows)
    GRPOTrainer(..., environment_factory=ours.factory, train_dataset=dataset, reward_funcs=ours.reward)

Tools are methods. The user is the tool `send_message`, because TRL ends an episode at the first reply without calls.
That reply is sent to the user before the episode is graded. An episode with a fault has the reward None, which TRL
ignores.
"""

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from understudy.core.errors import ConfigError, RolloutError, ToolError
from understudy.core.event_loop import BACKGROUND_LOOP
from understudy.core.messages import ToolCall, ToolSpec
from understudy.core.tasks import Split
from understudy.envs.task_source import TaskSource, find_policy
from understudy.rollouts.exposed_episode import ExposedEpisode, find_message_tool

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


class TRLEnvironment:
    """The episodes of a source in the form of TRL."""

    def __init__(self, source: TaskSource, split: Split = "train") -> None:
        """Raise ConfigError if a tool has an argument that is no name of Python."""
        tasks = {task.id: task for task in source.tasks(split)}
        self.rows: list[dict[str, Any]] = [
            {"prompt": [*_system(find_policy(source, task)), {"role": "user", "content": ""}], "task_id": task.id}
            for task in tasks.values()
        ]
        """The rows of `train_dataset`. `reset` appends the user's message."""

        def reset(self: Any, task_id: str, **row: Any) -> str:
            if self._episode is not None:
                BACKGROUND_LOOP.run(self._episode.close())
            self._episode = episode = ExposedEpisode(source, tasks[task_id])
            return BACKGROUND_LOOP.run(episode.start())

        specs = [*source.tool_specs, find_message_tool(source.tool_specs)]
        self.factory: type = type(
            "SourceEnvironment", (), {"_episode": None, "reset": reset, **{spec.name: _method(spec) for spec in specs}}
        )
        """The `environment_factory`."""

    def reward(
        self, completions: Sequence[Sequence[Mapping[str, Any]]], environments: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Return the rewards of completions, as an entry of `reward_funcs`."""
        return [
            BACKGROUND_LOOP.run(_grade(environment._episode, completion[-1]))
            for completion, environment in zip(completions, environments, strict=True)
        ]


def _system(policy: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": policy}] if policy else []


async def _grade(episode: ExposedEpisode, last: Mapping[str, Any]) -> float | None:
    """Send the last reply to the user, unless the episode has ended, and return the reward."""
    is_answer = last.get("role") == "assistant" and not last.get("tool_calls")
    try:
        if is_answer and episode.score is None:
            with suppress(ToolError):
                await episode.say(str(last.get("content") or ""))
        return (await episode.grade()).reward
    except RolloutError:
        return None


def _method(spec: ToolSpec) -> Callable[..., str]:
    """Return a method with the signature and the docstring from which TRL makes the schema of a tool."""
    properties: Mapping[str, Any] = spec.parameters.get("properties", {})
    for name in properties:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ConfigError(f"the tool {spec.name} has the argument {name!r}, which is no name of Python")

    def tool(self: Any, **arguments: Any) -> str:
        given = {name: value for name, value in arguments.items() if value is not None}
        episode: ExposedEpisode = self._episode
        return BACKGROUND_LOOP.run(episode.call(ToolCall(name=spec.name, arguments=given)))

    required = spec.parameters.get("required", ())
    hints = {name: _hint(schema, name in required) for name, schema in properties.items()}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hint,
            default=inspect.Parameter.empty if name in required else None,
        )
        for name, hint in hints.items()
    ]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    described = [f"    {name}: {_line(schema.get('description') or name)}" for name, schema in properties.items()]
    tool.__name__ = tool.__qualname__ = spec.name
    tool.__doc__ = "\n".join([spec.description or spec.name, *(["", "Args:", *described] if described else [])])
    tool.__annotations__ = {**hints, "return": str}
    tool.__signature__ = inspect.Signature([own, *parameters], return_annotation=str)  # type: ignore[attr-defined]
    return tool


def _hint(schema: Mapping[str, Any], required: bool) -> Any:
    """Return the type of an argument. What TRL's schemas cannot say, such as the keys of an object, is left out."""
    values = schema.get("enum", ())
    hint = _TYPES.get(str(schema.get("type")), str)
    if values and all(isinstance(value, str) for value in values):
        hint = Literal[tuple(values)]
    return hint if required else hint | None


def _line(text: str) -> str:
    return " ".join(text.split())
