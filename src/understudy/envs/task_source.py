"""TaskSource: the protocol of a source of tasks and episodes, and `Slice`, a subset of its tasks and tools."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from understudy.core.errors import ConfigError, TaskError, did_you_mean
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.records import Record
from understudy.core.tasks import SPLITS, Difficulty, RewardPolicy, Split, Task
from understudy.envs.environment import Environment
from understudy.envs.file_summary import FileSummary
from understudy.envs.rewards import SHOWN_ONLY, FactRules, missing_facts
from understudy.envs.state import State
from understudy.envs.users import User, UserFactory

if TYPE_CHECKING:
    from understudy.sources.task_files.call_sequences import CallSequence
    from understudy.sources.tool_dataset import ToolExample


class Slice(Record):
    """A subset of a domain's tasks and tools, and the version of its policy. An empty field means all."""

    families: tuple[str, ...] = ()
    """Task families; in a mixture also `domain/family`."""
    difficulties: tuple[Difficulty, ...] = ()
    """Task difficulties."""
    tools: tuple[str, ...] = ()
    """Tools that the agent sees and may call. A task whose gold calls another tool is invalid."""
    domain_policy: Literal["full", "brief"] = "full"
    """`full` is policy.md; `brief` is policy_brief.md, for small models and short contexts."""


FULL_SLICE = Slice()


class PolicyRewardConfig(Record):
    """How violations of the domain policy count."""

    policy: RewardPolicy = "strict"
    """`strict` multiplies the reward by the score part `policy_compliance`, so that an episode that breaks the policy
    earns nothing. `off` only reports it. Evaluation reports both rewards. Sources without a policy are unaffected."""


STRICT_REWARD = PolicyRewardConfig()


def validate_slice(
    name: str, task_slice: Slice, families: Collection[str], tools: Collection[str], has_brief_policy: bool = False
) -> None:
    """Raise `ConfigError` if `task_slice` names a family or tool that the source `name` does not have.

    Also raise it if `task_slice` selects the brief policy and `has_brief_policy` is False.
    """
    for kind, given, known in (("family", task_slice.families, families), ("tool", task_slice.tools, tools)):
        for wrong in sorted(set(given) - set(known)):
            raise ConfigError(f"{name} has no {kind} {did_you_mean(wrong, known)}")
    if task_slice.domain_policy != "full" and not has_brief_policy:
        raise ConfigError(f"{name} has no {task_slice.domain_policy} policy; use slice.domain_policy=full")


class TaskSource(Protocol):
    """Protocol of a source of tasks and episodes: a `Domain`, a benchmark, an MCP environment or a mixture."""

    @property
    def name(self) -> str:
        """The name in tasks and results."""

    @property
    def families(self) -> Sequence[str]:
        """The task families."""

    @property
    def tool_specs(self) -> Sequence[ToolSpec]:
        """The tools that the agent sees."""

    @property
    def domain_policy(self) -> str:
        """The domain policy, which is the agent's system message."""

    def with_users(self, user_factory: UserFactory) -> "TaskSource":
        """Return this source with users made by `user_factory`."""

    def slice(self, task_slice: Slice) -> "TaskSource":
        """Return this source narrowed to `task_slice`. Raise `ConfigError` for unknown names."""

    def tasks(self, split: Split) -> list[Task]:
        """Return the frozen tasks of a split that are in the slice."""

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Yield tasks of the slice without end, deterministic by seed. Yield nothing if the split has no tasks."""

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        """Return a new episode of `task`. `user` replaces the user of the source."""

    def split_row_keys(self, task: Task) -> Sequence[tuple[str, str]]:
        """Return the rows `(table, id)` that `task` uses. They must belong to its split only."""


@runtime_checkable
class StatefulSource(Protocol):
    """Protocol of a task source whose state can be inspected: replays show what each call changed.

    Code asks for this capability, and for those below, by `isinstance`. They have methods only, because `isinstance`
    evaluates every attribute of a protocol.
    """

    def initial_state(self, task: Task) -> State:
        """Return a new state with the task's setup applied."""

    def environment_from_state(self, state: State, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        """Return an episode of `task` on `state`."""

    def gold_changes(self, task: Task) -> Mapping[str, Any]:
        """Return the changes that the task's gold calls make. Raise `TaskError` if a gold call is refused."""


@runtime_checkable
class SharedRowsSource(Protocol):
    """Protocol of a task source whose episodes share the rows of one world."""

    def find_changed_rows(self) -> Sequence[str]:
        """Return the rows of the world, as `table.id`, that an episode has changed for all others."""


@runtime_checkable
class FactRulesSource(Protocol):
    """Protocol of a task source that has rules of its own for what counts as telling the outputs of a task."""

    def fact_rules(self, task: Task) -> FactRules:
        """Return the rules that the reward of `task` uses. Raise `TaskError` if a gold call is refused."""


@runtime_checkable
class PolicyRewardSource(Protocol):
    """Protocol of a task source in which violations of the domain policy count."""

    def with_reward_policy(self, policy: RewardPolicy) -> TaskSource:
        """Return this source with another `reward.policy`."""


@runtime_checkable
class CompositeSource(Protocol):
    """Protocol of a task source whose tasks are played by other sources: a mixture, or files of tasks."""

    def leaf_sources(self) -> Sequence[TaskSource]:
        """Return the sources that play the tasks, none of which is composite. Their names differ."""

    def file_summaries(self) -> Sequence[FileSummary]:
        """Return what was read from each file of tasks."""


@runtime_checkable
class RowSource(Protocol):
    """Protocol of a task source that converts rows of its own benchmark to tasks."""

    def to_task(self, id: str, split: Split, raw: Mapping[str, Any]) -> Task:
        """Convert a row."""


@runtime_checkable
class SequenceSource(Protocol):
    """Protocol of a task source that plays sequences of calls from other files."""

    def has_tool(self, name: str) -> bool:
        """Return whether the agent can call a tool by this name, with or without its server."""

    def add_task(self, sequence: "CallSequence", split: Split) -> Task:
        """Convert a sequence to a task that the source plays from then on. Raise `TaskError` if it cannot."""

    async def record_sequence(self, sequence: "CallSequence") -> "CallSequence":
        """Return a sequence with values in place of references, and the results of its calls.

        Raise `TaskError` if it calls a tool that the source does not have, if a call fails, or if a reference has no
        value.
        """


@runtime_checkable
class WriteReportingSource(Protocol):
    """Protocol of a task source that knows which gold calls change something."""

    def gold_writes(self, task: Task) -> tuple[ToolCall, ...]:
        """Return the agent's gold calls that change the state, or may change it, in order."""


@runtime_checkable
class ResourceSource(Protocol):
    """Protocol of a task source whose servers have resources: texts beside the results of tools."""

    async def read_resources(self, limit: int) -> list[str]:
        """Return the texts of up to `limit` resources of each server."""


@runtime_checkable
class FolderSource(Protocol):
    """Protocol of a task source that can be written as a folder of its own with other tasks."""

    def write_folder(self, folder: Path, tasks: Sequence[Task]) -> None:
        """Write the folder, which must not exist."""


@runtime_checkable
class RegeneratingSource(Protocol):
    """Protocol of a task source that makes a generated task again from its id."""

    def regenerate(self, task_id: str) -> Task | None:
        """Return the generated task, or None if no task of the source has this id."""


@runtime_checkable
class ExternalSource(Protocol):
    """Protocol of a task source whose tools run outside of this process: its episodes are slow, and may have effects
    that no episode undoes."""

    def callable_specs(self) -> Sequence[ToolSpec]:
        """Return the tools that `check` may call with any arguments: those that change nothing but their episode."""

    def starts_servers(self) -> bool:
        """Return whether each episode waits for the start of a program, so that several should start at once."""


@runtime_checkable
class TaskPolicySource(Protocol):
    """Protocol of a task source whose tasks may have system messages of their own."""

    def task_policy(self, task: Task) -> str:
        """Return the system message of a task."""


@runtime_checkable
class ExampleSource(Protocol):
    """Protocol of a task source whose tasks are made of examples, which hold the rows of files."""

    def find_example(self, task: Task) -> "ToolExample":
        """Return the example of a task."""


@runtime_checkable
class BriefPolicySource(Protocol):
    """Protocol of a task source that has a brief policy: `slice.domain_policy=brief`."""

    def brief_policy(self) -> str:
        """Return the brief version of the domain policy."""


def list_sources(source: TaskSource) -> Sequence[TaskSource]:
    """Return the sources that play the tasks of `source`: its leaves, or itself if it is not composite."""
    return source.leaf_sources() if isinstance(source, CompositeSource) else (source,)


def find_source(source: TaskSource, domain: str) -> TaskSource:
    """Return the source that plays the tasks of `domain`: `source` itself, or one of its leaves.

    Raise `TaskError` if a composite source has none of this name.
    """
    if not isinstance(source, CompositeSource):
        return source
    for leaf in source.leaf_sources():
        if leaf.name == domain:
            return leaf
    raise TaskError(f"a task has domain {domain!r}, which is not in {source.name}")


def with_reward_policy(source: TaskSource, reward: PolicyRewardConfig) -> TaskSource:
    """Return a source with the reward of a config. A source that has switched violations off itself stays as it is."""
    if reward.policy == "strict" or not isinstance(source, PolicyRewardSource):
        return source
    return source.with_reward_policy(reward.policy)


def find_policy(source: TaskSource, task: Task) -> str:
    """Return the system message of a task of `source`."""
    player = find_source(source, task.domain)
    return player.task_policy(task) if isinstance(player, TaskPolicySource) else player.domain_policy


def find_tool_specs(source: TaskSource, domain: str) -> Sequence[ToolSpec]:
    """Return the tools that the agent sees in tasks of `domain`."""
    return find_source(source, domain).tool_specs


def find_missing_facts(source: TaskSource, task: Task, transcript: Sequence[Message]) -> list[str]:
    """Return the outputs of a task that the agent did not tell, by the rules of the task's reward.

    If the gold calls are refused, because the source has changed since, each output must be shown itself.
    """
    player, rules = find_source(source, task.domain), SHOWN_ONLY
    if task.outputs and isinstance(player, FactRulesSource):
        with contextlib.suppress(TaskError):
            rules = player.fact_rules(task)
    return missing_facts(transcript, task.outputs, rules)


def list_file_summaries(source: TaskSource) -> Sequence[FileSummary]:
    """Return what was read from each file of tasks of a source."""
    return source.file_summaries() if isinstance(source, CompositeSource) else ()


def find_task(source: TaskSource, task_id: str) -> Task | None:
    """Return the task with this id, generated or frozen, or None if the source has none."""
    generated = source.regenerate(task_id) if isinstance(source, RegeneratingSource) else None
    frozen = (task for split in SPLITS for task in source.tasks(split) if task.id == task_id)
    return generated or next(frozen, None)
