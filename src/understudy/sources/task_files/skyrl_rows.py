"""Convert tasks to SkyRL's rows (https://docs.skyrl.ai, "dataset preparation") and back, without loss.

    data_source  "understudy/<domain>", which SkyRL groups evaluation metrics by
    env_class    the name under which `sources.skyrl_gym` registers its environments: "tau_bench" for domains and
                 benchmarks, "MCPToolEnv" for MCP environments, and for sequences of calls whose servers are not named
    prompt       the policy as system message, if there is one, and the user's opening; the environment adds the tools
    reward_spec  method "task", and as ground truth the whole task as JSON: setup, gold and outputs decide the reward
    extra_info   the source that plays the task, and labels to group rows by

The ground truth is JSON text instead of nested columns, because a table would give every call the arguments of all
others as nulls.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from understudy.core.items import InvalidField, row_error_from_validation
from understudy.core.records import Record
from understudy.core.tasks import Difficulty, Split, Task, require_stored_fields
from understudy.sources.task_files.call_matching import is_call_matching
from understudy.sources.task_files.task_row import TaskRow, decode


class PromptMessage(Record):
    """One message of a prompt."""

    role: Literal["system", "user"]
    content: str


class RewardSpec(Record):
    """The specification of the reward."""

    method: Literal["task"]
    ground_truth: str
    """The task as JSON."""


EnvClass = Literal["tau_bench", "MCPToolEnv"]


class ExtraInfo(Record):
    """The source of the task, and its labels."""

    source: str
    """A reference for `load_source`: a domain's name, `module:attribute`, `benchmark:PATH#domain` or `mcp:file.toml`.
    """
    task: str
    """The task's id."""
    domain: str
    split: Split
    family: str
    difficulty: Difficulty


class SkyRLRow(Record):
    """One task as a row for SkyRL."""

    data_source: str
    env_class: EnvClass
    prompt: tuple[PromptMessage, ...]
    """The system message, if there is one, and the user's opening."""
    reward_spec: RewardSpec
    extra_info: ExtraInfo


def is_skyrl_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a task as ground truth, rather than that of another trainer."""
    spec = row.get("reward_spec")
    if not isinstance(spec, dict):
        return False
    truth = decode(spec.get("ground_truth"))
    if not truth or isinstance(truth, str):  # no task, or a damaged one
        return spec.get("method") == "task"
    return isinstance(truth, dict) and "scenario" in truth


def to_skyrl_row(task: Task, domain_policy: str, source: str, is_sequence: bool = False) -> SkyRLRow:
    """Return the row of a task. `domain_policy` is the system message, `source` plays the task.

    A sequence is one of calls on MCP servers, which calls are compared with if no server is named.
    """
    system = (PromptMessage(role="system", content=domain_policy),) if domain_policy else ()
    return SkyRLRow(
        data_source=f"understudy/{task.domain}",
        env_class="MCPToolEnv" if is_sequence else _env_class(source),
        prompt=(*system, PromptMessage(role="user", content=task.scenario.opening)),
        reward_spec=RewardSpec(method="task", ground_truth=task.model_dump_json(exclude_defaults=True)),
        extra_info=_labels(task, source),
    )


def read_skyrl_row(values: Mapping[str, Any], identity: str) -> TaskRow:
    """Return the task of a row. Raise `InvalidField` if the task is invalid or another column contradicts it."""
    row = SkyRLRow.model_validate(values)
    try:
        task = require_stored_fields(Task.model_validate_json(row.reward_spec.ground_truth))
    except ValidationError as e:
        error = row_error_from_validation("", e, "reward_spec.ground_truth")
        raise InvalidField(error.field, error.problem) from e
    source = row.extra_info.source
    if row.extra_info != _labels(task, source):
        raise InvalidField("extra_info", f"it contradicts reward_spec.ground_truth, which is task {task.id}")
    if row.env_class != _env_class(source) and not is_call_matching(task.domain):
        problem = f"{row.env_class!r}, but extra_info.source {source!r} needs {_env_class(source)!r}"
        raise InvalidField("env_class", problem)
    roles, contents = [message.role for message in row.prompt], [message.content for message in row.prompt]
    if roles not in (["system", "user"], ["user"]) or contents[-1] != task.scenario.opening:
        raise InvalidField("prompt", "it must be the policy (system), if any, then the task's opening (user)")
    policy = contents[0] if len(contents) > 1 else ""
    return TaskRow(task, task.split, policy, source="" if source == task.domain else source)


def _labels(task: Task, source: str) -> ExtraInfo:
    return ExtraInfo(
        source=source,
        task=task.id,
        domain=task.domain,
        split=task.split,
        family=task.family,
        difficulty=task.difficulty,
    )


def _env_class(source: str) -> EnvClass:
    return "MCPToolEnv" if source.startswith("mcp:") else "tau_bench"
