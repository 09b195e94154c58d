"""Rows: tasks as SkyRL reads them (https://docs.skyrl.ai, "dataset preparation"), without loss and back.

    data_source    "understudy/<domain>": what SkyRL reports evaluation metrics by
    env_class      the name under which `integrations.skyrl_gym` registers its environments: "tau_bench" for domains
                   and benchmarks, "MCPToolEnv" for MCP environments
    prompt         the policy as system message, and the user's opening; the environment shows the tools
    reward_spec    method "task", and as ground truth the whole task as JSON: setup, gold and outputs decide the reward
    extra_info     the source that plays the task, and what to group rows by

The ground truth is JSON text and not nested columns: a table would give every call the arguments of all others, as
nulls.
"""

from typing import Literal

from pydantic import ValidationError

from understudy.data.items import Bad, Item, malformed
from understudy.records import Record
from understudy.tasks import Difficulty, Split, Task


class Said(Record):
    """One message of a prompt."""

    role: Literal["system", "user"]
    content: str


class RewardSpec(Record):
    """What the reward is decided by."""

    method: Literal["task"]
    ground_truth: str
    """The task as JSON."""


EnvClass = Literal["tau_bench", "MCPToolEnv"]


class ExtraInfo(Record):
    """Where the task is played, and its labels."""

    source: str
    """What `domains.base.find` takes: a domain's name, `module:attribute`, `benchmark:PATH#domain`, `mcp:file.toml`."""
    task: str
    """Its id."""
    domain: str
    split: Split
    family: str
    difficulty: Difficulty


class Row(Record):
    """One task as a row of SkyRL's."""

    data_source: str
    env_class: EnvClass
    prompt: tuple[Said, Said]
    reward_spec: RewardSpec
    extra_info: ExtraInfo


def to_row(task: Task, policy: str, source: str) -> Row:
    """The row of a task; `policy` is what the agent is told of its job, `source` what plays it."""
    return Row(
        data_source=f"understudy/{task.domain}",
        env_class=_env_class(source),
        prompt=(Said(role="system", content=policy), Said(role="user", content=task.scenario.opening)),
        reward_spec=RewardSpec(method="task", ground_truth=task.model_dump_json(exclude_defaults=True)),
        extra_info=_labels(task, source),
    )


def from_row(item: Item[Row]) -> Item[Task] | Bad:
    """The task of a row, one whose other columns say the same."""
    row, where = item.value, item.where
    try:
        task = Task.model_validate_json(row.reward_spec.ground_truth)
    except ValidationError as e:
        return malformed(where, e, "reward_spec.ground_truth")
    source = row.extra_info.source
    if row.extra_info != _labels(task, source):
        return Bad(where, "extra_info", f"it contradicts reward_spec.ground_truth, which is task {task.id}")
    if row.env_class != _env_class(source):
        return Bad(where, "env_class", f"{row.env_class!r}, where extra_info.source {source!r} needs the other one")
    roles, opening = tuple(said.role for said in row.prompt), row.prompt[1].content
    if roles != ("system", "user") or opening != task.scenario.opening:
        return Bad(where, "prompt", "it is not the policy as system message and then the task's opening")
    return Item(where, task)


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
