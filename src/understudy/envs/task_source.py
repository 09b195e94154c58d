"""TaskSource: the base of the sources of tasks and episodes, and `Slice`, a subset of its tasks and tools."""

import contextlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from understudy.core.errors import ConfigError, TaskError, did_you_mean
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.records import Record
from understudy.core.tasks import SPLITS, Difficulty, RewardPolicy, Split, Task, filter_tasks, iterate_epochs
from understudy.core.trajectory import Trajectory
from understudy.core.user_code import name_definition, task_code
from understudy.envs.docstrings import find_unknown_parameters
from understudy.envs.environment import Environment
from understudy.envs.file_summary import FileSummary
from understudy.envs.rewards import SHOWN_ONLY, FactRules, missing_facts, states_fact
from understudy.envs.state import State
from understudy.envs.users import User, UserFactory
from understudy.envs.users.scripted import explain_unconfirmed


class Slice(Record):
    """A subset of a domain's tasks and tools, and the version of its policy. An empty field means all."""

    domains: tuple[str, ...] = ()
    """Domains of a file or a mixture, as its rows or the sources that play them are named: `airline` and
    `airline-calls` are the same."""
    families: tuple[str, ...] = ()
    """Task families; in a file or a mixture also `domain/family`."""
    difficulties: tuple[Difficulty, ...] = ()
    """Task difficulties."""
    tools: tuple[str, ...] = ()
    """Tools that the agent sees and may call. Tasks whose gold calls another tool are left out."""
    domain_policy: Literal["full", "brief"] = "full"
    """`full` is policy.md; `brief` is policy_brief.md, for small models and short contexts."""

    def select_tasks(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks of the slice's domains, families, difficulties and tools.

        Names of domains are those of tasks, and names of tools those of gold calls.
        """
        return [
            task
            for task in filter_tasks(tasks, (), self.difficulties)
            if (not self.domains or task.domain in self.domains)
            and (not self.families or not {task.family, f"{task.domain}/{task.family}"}.isdisjoint(self.families))
            and (not self.tools or all(call.name in self.tools for call in task.gold_calls))
        ]

    def select_tools(self, specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Return the tools of the slice."""
        return tuple(spec for spec in specs if not self.tools or spec.name in self.tools)


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
    """Raise `ConfigError` if `task_slice` names a domain, family or tool that the source `name` does not have.

    Also raise it if `task_slice` selects the brief policy and `has_brief_policy` is False.
    """
    validate_names(name, "domain", task_slice.domains, [name])
    validate_names(name, "family", task_slice.families, families)
    validate_names(name, "tool", task_slice.tools, tools)
    if task_slice.domain_policy != "full" and not has_brief_policy:
        raise ConfigError(f"{name} has no {task_slice.domain_policy} policy; use slice.domain_policy=full")


def validate_names(source: str, kind: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise `ConfigError` if one of the given names of a kind, such as "family", is not known."""
    for wrong in sorted(set(given) - set(known)):
        raise ConfigError(f"{source} has no {kind} {did_you_mean(wrong, known)}")


REQUIRED_MEMBERS = ("name", "tool_specs", "domain_policy", "tasks", "environment")
"""What each source of tasks must define. All other members of `TaskSource` have a default."""


class TaskSource:
    """Base of the sources of tasks and episodes: a `Domain`, a benchmark, an MCP environment, a mixture or your own.

    A subclass defines `REQUIRED_MEMBERS`, and overrides what else it has:

        name: str                               the name in tasks and results
        tool_specs: Sequence[ToolSpec]          the tools that the agent sees
        domain_policy: str                      the agent's system message
        tasks(split) -> list[Task]              the tasks of a split, with this split and `name` as their domain
        environment(task, user=None, seed=0)    a new episode of a task; `user` replaces the user of the source
    """

    task_slice = FULL_SLICE
    """The slice that `tasks` and `tool_specs` are narrowed to."""

    if TYPE_CHECKING:  # At run time, a dataclass would take an inherited property as the default of its field.

        @property
        @abstractmethod
        def name(self) -> str:
            """The name in tasks and results."""

        @property
        @abstractmethod
        def tool_specs(self) -> Sequence[ToolSpec]:
            """The tools that the agent sees."""

        @property
        @abstractmethod
        def domain_policy(self) -> str:
            """The domain policy, which is the agent's system message."""

        @abstractmethod
        def tasks(self, split: Split) -> list[Task]:
            """Return the frozen tasks of a split that are in the slice."""

        @abstractmethod
        def environment(self, task: Task, user: User | None = None, seed: int = 0) -> Environment:
            """Return a new episode of `task`. `user` replaces the user of the source."""

    def notes(self) -> Sequence[str]:
        """Return what a user should know before an episode is played, such as tools that are left out."""
        return ()

    def find_passing_check(self, task: Task) -> str:
        """Return which success check of the task's user passes before the agent has done anything, or an empty text."""
        return ""

    def find_user_action_problems(self, task: Task, user_leaves: bool = False) -> Iterator[str]:
        """Yield what is wrong with the actions and success checks of the task's user.

        `user_leaves` says that the user leaves after gold, as after a refusal: then no check needs to pass.
        """
        return iter(())

    def list_family_notes(self) -> Sequence[str]:
        """Return which families have no task, or always the same."""
        return ()

    @property
    def has_brief_policy(self) -> bool:
        """Whether `slice` accepts `domain_policy="brief"`."""
        return False

    @property
    def reports_writes(self) -> bool:
        """Whether `gold_writes` says which gold calls change something."""
        return False

    @property
    def lacks_users(self) -> bool:
        """Whether only `gold` and `noop` can play its tasks until `with_users` gives them users."""
        return False

    @property
    def lacks_gold(self) -> bool:
        """Whether nobody knows the gold solutions of its tasks, which RL does not need."""
        return False

    @property
    def families(self) -> Sequence[str]:
        """The task families."""
        return tuple(dict.fromkeys(task.family for split in SPLITS for task in self.tasks(split)))

    def slice(self, task_slice: Slice) -> "TaskSource":
        """Return this source narrowed to `task_slice`.

        Raise `ConfigError` for unknown names, and for any slice if the source does not override this method.
        """
        if task_slice != FULL_SLICE:
            raise ConfigError(f"{self.name} cannot be narrowed; leave out the keys of slice, or implement `slice`")
        return self

    def with_users(self, user_factory: UserFactory) -> "TaskSource":
        """Return this source with users made by `user_factory`. Raise `ConfigError` if its users cannot be replaced."""
        raise ConfigError(
            f"the users of {self.name} cannot be replaced; implement `with_users` in {type(self).__name__}, or leave "
            "its own user"
        )

    def with_reward_policy(self, policy: RewardPolicy) -> "TaskSource":
        """Return this source with another `reward.policy`: itself, unless violations of its policy can count."""
        return self

    def task_policy(self, task: Task) -> str:
        """Return the system message of a task."""
        return self.domain_policy

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Yield tasks of the slice without end, deterministic by seed. Yield nothing if the split has no tasks.

        The default is `tasks` in endless epochs, each shuffled with `seed`.
        """
        return iterate_epochs(self.tasks(split), seed)

    def regenerate(self, task_id: str) -> Task | None:
        """Make a generated task again from its id. Return None if the source generates no task with this id."""
        return None

    def split_row_keys(self, task: Task) -> Sequence[tuple[str, str]]:
        """Return the rows `(table, id)` that `task` uses, which must belong to its split only."""
        return ()

    def find_changed_rows(self) -> Sequence[str]:
        """Return the rows of a shared world, as `table.id`, that an episode has changed for all others."""
        return ()

    def episode_code(self) -> Sequence[object]:
        """Return the classes and functions that play and grade its episodes; `check` finds what state they share."""
        return (type(self),)

    def find_unstable_parts(self) -> Sequence[str]:
        """Return a sentence for each thing that differs each time it is made, such as the tasks of a family."""
        return ()

    def fact_rules(self, task: Task) -> FactRules:
        """Return what counts as telling the outputs of `task`. Raise `TaskError` if a gold call is refused."""
        return SHOWN_ONLY

    def lookup_text(self, task: Task) -> str:
        """Return what the tools of a task can show although no gold call asks for it; "" if gold makes all calls."""
        return ""

    def default_values(self, task: Task) -> Mapping[str, str]:
        """Return the fields that results of the gold calls leave out because they have their default, and its text."""
        return {}

    def gold_writes(self, task: Task) -> tuple[ToolCall, ...]:
        """Return the agent's gold calls that change the state, or may change it, in order. See `reports_writes`."""
        return ()

    def required_calls(self, task: Task) -> tuple[ToolCall, ...]:
        """Return the gold calls that the reward requires: those that write, unless a source requires reads too."""
        return self.gold_writes(task)


def describe_no_tasks(source: TaskSource, split: str, remedies: Sequence[str] = ()) -> str:
    """Return an error text: a source has no tasks of a split, and what to do; another slice only if there is one."""
    is_sliced = any(each.task_slice != FULL_SLICE for each in (source, *list_sources(source)))
    choices = [*remedies, *(["set another slice"] if is_sliced else [])] or [f"add some whose split is {split}"]
    return f"{source.name} has no {split} tasks{' in this slice' * is_sliced}; {', or '.join(choices)}"


def list_hidden_tasks(source: TaskSource) -> list[Task]:
    """Return the tasks that `slice.tools` leaves out, because their gold calls a tool that the agent does not see."""
    if not source.task_slice.tools:
        return [task for leaf in list_sources(source) if leaf is not source for task in list_hidden_tasks(leaf)]
    whole = source.slice(source.task_slice.replace(tools=()))
    shown = {(task.domain, task.id) for split in SPLITS for task in source.tasks(split)}
    return [task for split in SPLITS for task in whole.tasks(split) if (task.domain, task.id) not in shown]


def list_notes(source: TaskSource) -> list[str]:
    """Return what a user should know of the sources that play the tasks, and how many tasks `slice.tools` leaves
    out."""
    notes = [note for leaf in list_sources(source) for note in leaf.notes()]
    if hidden := list_hidden_tasks(source):
        notes.append(
            f"slice.tools: {len(hidden)} tasks are left out, such as {hidden[0].id}; their gold calls other tools"
        )
    specs = {spec.name: spec for leaf in list_sources(source) for spec in leaf.tool_specs}
    for spec in specs.values():
        known = spec.parameters.get("properties", {})
        notes += [
            f"the docstring of the tool {spec.name} describes a parameter that it does not have: "
            f"{did_you_mean(name, known)}; rename or remove the entry, as the model reads it too"
            for name in find_unknown_parameters(spec.description, known)
        ]
    return notes


def find_contract_error(source: TaskSource) -> str:
    """Return which member of a source is missing or has the wrong type, with its class and location; "" if none.

    `tasks` is called for each split. Raise TaskError if it raises an exception.
    """
    if isinstance(source, str):
        return f"{source!r} is a text and no source of tasks; give load({source!r})"
    if isinstance(source, type):
        return f"{name_definition(source)} is a class; give an instance of it, such as {source.__name__}(...)"

    def owner() -> str:
        return name_definition(type(source))

    if missing := sorted({*REQUIRED_MEMBERS} - {*dir(source)}):
        return f"{owner()} does not define {', '.join(missing)}"
    for member in ("name", "tool_specs", "domain_policy"):
        with task_code(f"{member} of {type(source).__name__}", source):
            value = getattr(source, member)
        if callable(value):
            return f"{member} of {owner()} is a method; make it a property"
        if member != "tool_specs" and not isinstance(value, str):
            return f"{member} of {owner()} is {value!r:.100}; it must be a text"
        if member == "tool_specs" and (wrong := _list_error(value, ToolSpec)):
            return f"{member} of {owner()} is {wrong}"
    if inspect.iscoroutinefunction(source.environment):
        return f"environment of {owner()} is a coroutine; define it with def, without async"
    for split in SPLITS:
        with task_code(f"tasks of {type(source).__name__}", source):
            tasks: object = source.tasks(split)
        if wrong := _list_error(tasks, Task):
            return f"tasks of {owner()} returned {wrong}"
    return ""


def _list_error(values: object, kind: type) -> str:
    """Return what a value is instead of a list of `kind`, or ""."""
    if inspect.iscoroutine(values):
        values.close()  # it is never awaited, which would be a warning
        return f"a coroutine; define it without async, and return a list of {kind.__name__}"
    if isinstance(values, Iterator):
        return f"a {type(values).__name__}; return a list of {kind.__name__}, such as list(...)"
    if not isinstance(values, Sequence) or isinstance(values, str):
        return f"{values!r:.100}; it must be a list of {kind.__name__}"
    wrong = next((value for value in values if not isinstance(value, kind)), None)
    return f"a list with {wrong!r:.100}; it must be a list of {kind.__name__}" if wrong is not None else ""


class StatefulSource(TaskSource, ABC):
    """A task source whose state can be inspected: replays show what each call changed.

    Code asks for this and the two other capabilities by `isinstance`, never for a concrete source.
    """

    @abstractmethod
    def initial_state(self, task: Task) -> State:
        """Return a new state with the task's setup applied."""

    @abstractmethod
    def environment_from_state(self, state: State, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        """Return an episode of `task` on `state`."""

    @abstractmethod
    def gold_changes(self, task: Task) -> Mapping[str, Any]:
        """Return the changes that the task's gold calls make. Raise `TaskError` if a gold call is refused."""


class ExternalSource(TaskSource, ABC):
    """A task source whose tools run outside of this process, on servers.

    Its episodes are slow, and may have effects that no episode undoes.
    """

    @abstractmethod
    def callable_specs(self) -> Sequence[ToolSpec]:
        """Return the tools that `check` may call with any arguments: those that change nothing but their episode."""

    @abstractmethod
    def starts_servers(self) -> bool:
        """Return whether each episode waits for the start of a program, so that several should start at once."""

    @abstractmethod
    async def read_resources(self, limit: int) -> list[str]:
        """Return the texts of up to `limit` resources of each server: texts beside the results of tools."""


class CompositeSource(TaskSource, ABC):
    """A task source whose tasks are played by other sources: a mixture, or files of tasks."""

    @property
    def has_brief_policy(self) -> bool:
        """Whether one of the sources that play the tasks has a brief policy."""
        return any(leaf.has_brief_policy for leaf in self.leaf_sources())

    @property
    @abstractmethod
    def domain_names(self) -> Mapping[str, Collection[str]]:
        """The names of domains that a slice may have, and the leaf sources that each means."""

    @property
    @abstractmethod
    def qualified_families(self) -> Mapping[str, Collection[str]]:
        """The families as `domain/family` with all names of the domain, and as tasks have them: `source/family`."""

    @abstractmethod
    def leaf_sources(self) -> Sequence[TaskSource]:
        """Return the sources that play the tasks, none of which is composite. Their names differ."""

    @abstractmethod
    def file_summaries(self) -> Sequence[FileSummary]:
        """Return what was read from each file of tasks."""


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
    return source if reward.policy == "strict" else source.with_reward_policy(reward.policy)


def find_policy(source: TaskSource, task: Task) -> str:
    """Return the system message of a task of `source`."""
    return find_source(source, task.domain).task_policy(task)


def find_tool_specs(source: TaskSource, domain: str) -> Sequence[ToolSpec]:
    """Return the tools that the agent sees in tasks of `domain`."""
    return find_source(source, domain).tool_specs


def find_missing_facts(source: TaskSource, task: Task, transcript: Sequence[Message]) -> list[str]:
    """Return the outputs of a task that the agent did not tell, by the rules of the task's reward.

    If the gold calls are refused, because the source has changed since, each output must be shown itself.
    """
    player, rules = find_source(source, task.domain), SHOWN_ONLY
    if task.outputs:
        with contextlib.suppress(TaskError):
            rules = player.fact_rules(task)
    return missing_facts(transcript, task.outputs, rules)


def explain_failed_parts(source: TaskSource, task: Task, episode: Trajectory) -> Iterator[str]:
    """Yield the first output that the agent of a scored episode did not tell, and the first violation of the policy."""
    if episode.score is None:
        return
    if episode.score.parts.get("facts_told", 1.0) < 1.0:
        for fact in find_missing_facts(source, task, episode.messages)[:1]:
            field = find_default(find_source(source, task.domain), task, fact)
            yield f"not told: {fact!r}" + (f", {explain_default(field)}" if field else "")
    for violation in episode.score.violations[:1]:
        earlier = [m for m in episode.messages[: violation.message] if m.role == "assistant" and not m.tool_calls]
        unconfirmed = violation.kind == "unconfirmed" and task.scenario.goals
        why = explain_unconfirmed(task.scenario, [m.content for m in earlier]) if unconfirmed else ""
        yield f"{violation.kind} in message {violation.message}: {why or repr(violation.text)[:200]}"


def find_default(source: TaskSource, task: Task, value: str) -> str:
    """Return the field that has a value as its default, if results of the gold calls leave it out, else ""."""
    defaults = source.default_values(task)
    return next((field for field, default in defaults.items() if states_fact(value, default)), "")


def explain_default(field: str) -> str:
    """Return the end of an error text on a value that is the default of `field`."""
    return f"which is the default of {field}, and results leave out defaults: remove the default of {field}"


def list_file_summaries(source: TaskSource) -> Sequence[FileSummary]:
    """Return what was read from each file of tasks of a source."""
    return source.file_summaries() if isinstance(source, CompositeSource) else ()


def find_task(source: TaskSource, task_id: str) -> Task | None:
    """Return the task with this id, generated or frozen, or None if the source has none."""
    frozen = (task for split in SPLITS for task in source.tasks(split) if task.id == task_id)
    return source.regenerate(task_id) or next(frozen, None)
