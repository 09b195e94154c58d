"""Domain: a source of tasks and episodes. A domain is a module or a package that defines `DOMAIN = Domain(...)`.

A package may also hold `policy.md`, `policy_brief.md` and the frozen tasks `tasks/{train,validation,test}.jsonl`. The
frozen tasks of a module `it_desk.py` are in the folder `it_desk_tasks` beside it.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from understudy.core.errors import TaskError, ToolError
from understudy.core.messages import Message, ToolCall, ToolSpec, format_call
from understudy.core.tasks import (
    DIFFICULTIES,
    SPLITS,
    Difficulty,
    RewardPolicy,
    Score,
    Split,
    SuccessCheck,
    Task,
    gold_digest,
    iterate_epochs,
    read_tasks,
    split_from_id,
    task_fingerprint,
    write_tasks,
)
from understudy.core.user_code import task_code, user_code
from understudy.envs.compliance.grounds import GoldWords, read_gold_words
from understudy.envs.compliance.sentences import is_english
from understudy.envs.compliance.violations import find_violations
from understudy.envs.domain_definition import (
    assign_row_splits,
    find_domain_folder,
    without_confirmations,
)
from understudy.envs.environment import ConsentGate, ToolEnvironment
from understudy.envs.grading import GradeEpisode, apply_policy, score_episode
from understudy.envs.rewards import FactRules, find_fact_rules, is_number, to_score
from understudy.envs.state import State
from understudy.envs.task_generation import (
    FamilyFunction,
    FamilyTasks,
    GenerateTasks,
    MakeLongTask,
    RecreateTask,
    distinct_tasks,
)
from understudy.envs.task_source import FULL_SLICE, Slice, StatefulSource, validate_slice
from understudy.envs.tools import Toolkit
from understudy.envs.user_actions import WRONG_CALL_KINDS, try_call
from understudy.envs.users import LLMUser, ScriptedUser, User, UserFactory, UserSimulatorFactory, make_user

FROZEN_TASK_COUNTS: Mapping[Split, int] = {"train": 500, "validation": 100, "test": 100}
"""Number of tasks in each frozen split of a shipped domain."""
GENERATED_TASK_COUNTS: Mapping[Split, int] = {"train": 100, "validation": 20, "test": 40}
"""Largest number of tasks in each split of a domain without frozen tasks."""
MAX_HIDDEN_TASKS = 1000
"""Successive generated tasks that need other tools than those of the slice, after which no more are tried."""
NUM_TASKS_MADE_AGAIN = 5
"""Number of tasks of each family that `check` makes twice."""
MAX_CACHED_GOLD_RUNS = 20_000
"""Largest number of tasks for which a domain caches what their gold calls do. Without it, a run that generates tasks
would use more and more memory."""
MAX_OPENINGS_READ = 50
"""Number of users' openings from which the language is told."""
_GENERATED_ID = re.compile(
    r"(?P<domain>[^/]+)/(?P<split>\w+)/(?P<family>.+)/(?P<difficulty>\w+)/(?P<seed>\d+)-(?P<number>\d+)"
)


@dataclass(frozen=True, slots=True)
class _GoldResult:
    """A gold call, what it returned, and whether it changed the database."""

    role: str
    call: ToolCall
    text: str
    writes: bool


@dataclass(frozen=True, slots=True)
class _OutputWords:
    """The words that are outputs of tasks."""

    by_family: Mapping[str, Sequence[str]]
    """Those of each family."""
    every: Collection[str]
    """All of them, case-folded."""


@dataclass(frozen=True, slots=True)
class _GoldRun:
    """What the gold calls of a task do."""

    changes: Mapping[str, Any]
    writes: tuple[ToolCall, ...]
    fact_rules: FactRules
    gold_words: GoldWords


@dataclass(frozen=True)
class Domain(StatefulSource):
    """A `TaskSource` made of a database, tools, a domain policy and tasks; `task_slice` narrows them.

    The least that a domain needs is `Domain(__name__, build_world, MyTools, {"family": make_task}, policy="…")`.
    """

    module_name: str
    """`__name__` of the module or package that defines the domain. Its last part is the domain's name, unless it has an
    `own_name`."""
    build_world: Callable[[], State]
    """Returns the initial state, which every episode shares."""
    toolkit: Callable[[State], Toolkit]
    """Makes the agent's tools on a state: the `Toolkit` class."""
    generate: Mapping[str, FamilyFunction] | GenerateTasks | None = None
    """A function for each family that makes one task, by the family's name; or one generator of all tasks. None if
    there is a `task_list`."""
    families: tuple[str, ...] = ()
    """The task families. The default is the families of `generate` or of `task_list`; only a `GenerateTasks` needs
    them."""
    task_list: Sequence[Task] = ()
    """All tasks, if they are written by hand instead of generated."""
    policy: str | None = None
    """The domain policy. None means the text of `policy.md` in the package, or no policy if there is no such file.
    The brief policy is `policy_brief.md`, or else the same as the policy."""
    confirm_writes: bool = True
    """Whether the user must confirm each change of the database before the agent makes it. False is for agents that
    act on their own: every allowed write is made, and the report of an action settles the user's goal."""
    user_tools: Callable[[State], Toolkit] | None = None
    """Makes the user's own tools on the same state, such as a phone."""
    shared_tables: tuple[str, ...] = ()
    """Tables that all splits share, such as a catalogue. Rows of other tables belong to one split."""
    make_task: RecreateTask | None = None
    """Makes a task of a `GenerateTasks` again from its `TaskGenerator` id. If None, only frozen tasks are found."""
    make_long_task: MakeLongTask | None = None
    """Makes a task with more requests of one customer, for `understudy data synthesize --min-reads`. If None, that
    command selects among the generated tasks only."""
    task_slice: Slice = FULL_SLICE
    user_factory: UserFactory = ScriptedUser
    """Makes the user of each episode."""
    grade: GradeEpisode | None = None
    """Grades an episode; None means `score_episode`. Gold must earn 1.0, and an agent that does nothing 0.0."""

    own_name: str = ""
    """Name of the domain, if its module defines several. Two domains of one name have the same task ids and files."""
    reward_policy: RewardPolicy = "strict"
    """Whether violations of the policy (`Score.violations`) make the reward 0."""
    has_brief_policy = True
    reports_writes = True

    def __post_init__(self) -> None:
        if isinstance(self.task_list, Iterator):
            object.__setattr__(self, "task_list", tuple(self.task_list))
        if not self.families:
            named = self.generate if isinstance(self.generate, Mapping) else (task.family for task in self.task_list)
            object.__setattr__(self, "families", tuple(dict.fromkeys(named)))

    @property
    def name(self) -> str:
        """`own_name`, or the last part of `module_name`."""
        return self.own_name or self.module_name.rpartition(".")[2]

    def notes(self) -> Sequence[str]:
        """Return a note if its module defines another domain of the same name."""
        defined = vars(sys.modules.get(self.module_name, sys)).items()
        domains = {attribute: value for attribute, value in defined if isinstance(value, Domain)}
        names = [attribute for attribute, value in domains.items() if value.name == self.name]
        off: tuple[str, ...] = ()
        if not self._is_english:
            off = (f"{self.name} is not English, so the rules for texts are off",)
        if isinstance(self.user_factory, UserSimulatorFactory):
            off += tuple(self.user_factory.notes)
        if all(_definition(domains[attribute]) == _definition(self) for attribute in names):
            return off
        return (
            *off,
            f"{', '.join(names)} of {self.module_name} are different domains of the same name {self.name!r}, so their "
            "tasks and evaluations mix up; give each its own: Domain(…, own_name='NAME')",
        )

    def slice(self, task_slice: Slice) -> "Domain":
        """Return this domain narrowed to `task_slice`. Raise `ConfigError` for unknown names."""
        validate_slice(
            self.name, task_slice, self.families, [spec.name for spec in self._all_specs], self.has_brief_policy
        )
        return dataclasses.replace(self, task_slice=task_slice)

    def with_users(self, user_factory: UserFactory) -> "Domain":
        """Return this domain with users made by `user_factory`."""
        return dataclasses.replace(self, user_factory=user_factory)

    def with_reward_policy(self, policy: RewardPolicy) -> "Domain":
        """Return this domain with `reward_policy`."""
        return dataclasses.replace(self, reward_policy=policy)

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split that are in the slice.

        They are those of `task_list`; else the frozen ones; else up to `GENERATED_TASK_COUNTS` generated tasks.
        """
        if split not in self._split_tasks:
            self._split_tasks[split] = self._find_tasks(split)
        return self.task_slice.select_tasks(self._split_tasks[split])

    def sample(self, split: Split, count: int, seed: int = 0) -> list[Task]:
        """Return `count` tasks of `stream`; fewer if the split has none."""
        return list(itertools.islice(self.stream(split, seed), count))

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Yield tasks of the slice without end, deterministic by seed. They use only the rows of the split.

        They are generated tasks, or those of `task_list` in shuffled epochs.
        """
        if self._generator is None:
            return iterate_epochs(self.tasks(split), seed)
        part = self.task_slice
        tasks = self._generated(split, seed, part.families or self.families, part.difficulties or DIFFICULTIES)
        return self._with_shown_tools(tasks) if part.tools else tasks

    def _with_shown_tools(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield the tasks whose gold calls only tools of the slice. End after `MAX_HIDDEN_TASKS` others."""
        num_hidden = 0
        for task in tasks:
            shown = bool(self.task_slice.select_tasks([task]))
            num_hidden = 0 if shown else num_hidden + 1
            if num_hidden == MAX_HIDDEN_TASKS:
                return
            if shown:
                yield task

    def regenerate(self, task_id: str) -> Task | None:
        """Make a generated task again from its id. Return None for an id of another domain."""
        with task_code(f"the task generator of {self.name}"):
            if self._family_tasks:
                return self._family_tasks.regenerate(task_id)
            return self._recreate(task_id)

    def write_frozen_tasks(self, counts: Mapping[Split, int] = GENERATED_TASK_COUNTS, out: Path | None = None) -> Path:
        """Write the first generated tasks of each split for seed 0. Return their folder.

        They overwrite the domain's frozen splits, or with `out` the files of that folder, which the domain does not
        read. A split gets fewer tasks than `counts` if no more are distinct. Raise `TaskError` if the domain's tasks
        are a `task_list`, or if without `out` it is not defined in the module `module_name`.
        """
        folder = find_domain_folder(self.module_name, self.own_name)
        if self._generator is None or (folder is None and out is None):
            why = "its tasks are a list" if self._generator is None else f"no module {self.module_name!r} defines it"
            raise TaskError(f"domain {self.name} cannot freeze tasks: {why}; use Domain(__name__, …, generate=…)")
        tasks = {split: self._generate_distinct(split, count) for split, count in counts.items()}
        written = out or folder.tasks  # type: ignore[union-attr]  # one of them is given
        written.mkdir(parents=True, exist_ok=True)
        for split, found in tasks.items():
            write_tasks(written / f"{split}.jsonl", found)
        self._split_tasks.clear()
        return written

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        """Return a new episode of `task`. `user` replaces the user of `user_factory`."""
        return self.environment_from_state(self.initial_state(task), task, user, seed)

    def environment_from_state(
        self, state: State, task: Task, user: User | None = None, seed: int = 0
    ) -> ToolEnvironment:
        """Return an episode of `task` on `state`, so that the caller can inspect the state.

        Raise `TaskError` if the task has user actions and the domain has no user tools.
        """
        transcript = list[Message]()
        gate = ConsentGate(
            self.toolkit(state),
            state,
            transcript,
            self._requires_consent(task),
            self.fact_rules(task),
            self._write_tools if self._requires_consent(task) else (),
        )
        user_tools = self.user_tools(state) if self.user_tools else None
        if task.scenario.user_actions and not user_tools:
            raise TaskError(f"task {task.id}: its user has actions to do, but {self.name} has no user_tools")
        scenario = task.scenario if self.confirm_writes else without_confirmations(task.scenario)
        user = user or make_user(self.user_factory, scenario, seed, user_tools)
        reads_texts = self._is_english and not isinstance(user, LLMUser)
        grade = functools.partial(self._grade, task, state, gate, reads_texts)
        return ToolEnvironment(self.domain_policy, gate, user, grade, self.tool_specs, transcript)

    async def _grade(
        self,
        task: Task,
        state: State,
        gate: ConsentGate,
        reads_texts: bool,
        transcript: Sequence[Message],
        ended: bool,
    ) -> Score:
        changes = self.gold_changes(task)
        with user_code("grader", "the reward function", self.grade):
            graded = (self.grade or score_episode)(task, state, changes, gate, transcript, ended)
            graded = await graded if inspect.isawaitable(graded) else graded
        score = to_score(graded, self.grade)
        if not reads_texts:
            return apply_policy(score, gate.violations, self.reward_policy)
        gold_words = self._run_gold(task).gold_words
        found = find_violations(transcript, gate, task.outputs, self._all_specs, self._policies["full"], gold_words)
        return apply_policy(score, found, self.reward_policy)

    def find_changed_rows(self) -> Sequence[str]:
        """Return the rows of the world, as `table.id`, that differ from those of a new world.

        Episodes share these rows, so a tool must replace a row and not change an object in it. If new worlds differ, no
        row is returned; `find_unstable_parts` says so.
        """
        if self._find_unstable_rows():
            return ()
        new = self.build_world().tables()
        rows = [(name, key, row) for name, table in self._world.tables().items() for key, row in table.items()]
        return [f"{name}.{key}" for name, key, row in rows if new[name].get(key) != row]

    def episode_code(self) -> Sequence[object]:
        """Return its toolkits, reward function and user factory."""
        return (self.toolkit, self.user_tools, self.grade, self.user_factory)

    def find_unstable_parts(self) -> Sequence[str]:
        """Return a sentence if `build_world` returns other rows each time, and one for each family whose tasks differ
        when they are made again with the same ids."""
        found = list[str]()
        if rows := self._find_unstable_rows():
            found.append(
                f"{self.name}: build_world returns other rows each time: {len(rows)} differ, such as "
                f"{'.'.join(rows[0])}; draw them with a random.Random of a fixed seed"
            )
        first, again = (self.sample("train", NUM_TASKS_MADE_AGAIN * len(self.families)) for _ in range(2))
        known, unstable = {task.id: task for task in again}, dict[str, str]()
        for task in first if self._generator else ():
            if task != known.get(task.id, task) or self.regenerate(task.id) not in (task, None):
                unstable.setdefault(task.family, task.id)
        return found + [
            f"{self.name}: family {family} makes another task of the same id each time, such as {task_id}; draw with "
            "the function's `rng` only, and not with the module random"
            for family, task_id in unstable.items()
        ]

    def _find_unstable_rows(self) -> Sequence[tuple[str, str]]:
        """Return the rows `(table, id)` that differ between two new worlds."""
        one, other = self.build_world().tables(), self.build_world().tables()
        pairs = ((name, key) for name, rows in one.items() for key in {**rows, **other[name]})
        return [(name, key) for name, key in pairs if one[name].get(key) != other[name].get(key)]

    def find_passing_check(self, task: Task) -> str:
        """Return which success check of the task's user passes in the initial state, and why, or an empty text."""
        if not self.user_tools:
            return ""
        state = self.initial_state(task)
        for check in _success_checks(task):
            tried = try_call(check.call, self.user_tools(state), state)
            if not tried.error and check.expected_output in tried.result:
                return f"{tried}, which contains expected_output {check.expected_output!r}"
        return ""

    def list_family_notes(self) -> Sequence[str]:
        """Return which families of `generate` have no task, or always the same."""
        if not isinstance(self.generate, Mapping):
            return ()
        whole = self if self.task_slice == FULL_SLICE else dataclasses.replace(self, task_slice=FULL_SLICE)
        counts = Counter(task.family for split in SPLITS for task in whole.tasks(split))
        notes = {
            0: "the family {} has no task: each needs rows of several splits, or repeats one of another family; use "
            "rows of one split, or name a table that all may use in shared_tables",
            1: "the function of family {} always makes the same task; draw its rows and words with rng",
        }
        return [notes[counts[family]].format(family) for family in self.families if counts[family] in notes]

    def find_user_action_problems(self, task: Task, user_leaves: bool = False) -> Iterator[str]:
        """Yield what is wrong with the user's actions and success checks. Raise `TaskError` if a gold call is refused.

        A success check must pass once while the gold calls are made, unless `user_leaves`.
        """
        if not self.user_tools:
            return
        state = self.initial_state(task)
        toolkit, of_agent = self.user_tools(state), {spec.name for spec in self._all_specs}
        for action in task.scenario.user_actions:
            tried = try_call(action.call, toolkit, state)
            if tried.error_kind in WRONG_CALL_KINDS:
                yield f"its user action {tried.explain(of_agent)}"
            elif action.read_only and tried.writes:
                what = f"{format_call(tried.call)} is read_only, but changes {', '.join(tried.writes)}"
                yield f"its user action {what}; leave out read_only"
        gold_calls = [call for message in task.gold if message.role == "user" for call in message.tool_calls]
        if gold_calls and not task.scenario.user_actions:
            yield (
                f"gold has the user's call {format_call(gold_calls[0])}, which the user never makes: add UserAction("
                f"call=ToolCall(name={gold_calls[0].name!r}, …), required_terms=(…)) to scenario.user_actions"
            )
        checks = _success_checks(task)
        tries = [[try_call(check.call, toolkit, state)] for check in checks]
        for _ in self._make_gold_calls(task, state) if checks else ():
            for check, done in zip(checks, tries, strict=True):
                done.append(try_call(check.call, toolkit, state))
        for check, done in zip(checks, tries, strict=True):
            if writes := next((tried.writes for tried in done if tried.writes), ()):
                what = f"{format_call(done[-1].call)} changes {', '.join(writes)}"
                yield f"its success check {what}; call a tool of user_tools that only reads"
            elif all(tried.error for tried in done):
                yield f"its success check {done[-1].explain(of_agent)}"
            elif not (user_leaves or any(check.expected_output in tried.result for tried in done)):
                lacks = f"{done[-1]} after gold, which does not contain expected_output {check.expected_output!r}"
                yield f"its success check never passes: {lacks}"

    def initial_state(self, task: Task) -> State:
        """Return a new state with the task's setup applied. Raise `TaskError` if the setup does not fit the world."""
        state = self._world.fork()
        try:
            state.patch(task.setup)
        except TaskError as e:
            raise TaskError(f"task {task.id}: its setup does not fit: {e}") from e
        return state

    def gold_changes(self, task: Task) -> Mapping[str, Any]:
        """Return the changes that the task's gold calls make, cached. Raise `TaskError` if a gold call is refused."""
        return self._run_gold(task).changes

    def fact_rules(self, task: Task) -> FactRules:
        """Return what counts as telling the task's outputs, cached. Raise `TaskError` if a gold call is refused."""
        return self._run_gold(task).fact_rules

    def split_row_keys(self, task: Task) -> list[tuple[str, str]]:
        """Return the rows `(table, id)` of the task's setup and of its gold calls' arguments, without shared tables.

        A row that only the task's setup creates is not among them.
        """
        named = {text for call in task.gold_calls for value in call.arguments.values() for text in _strings(value)}
        found: list[tuple[str, str]] = []
        for table, rows in self._world.tables().items():
            if table not in self.shared_tables:
                keys = (task.setup.get(table, {}).keys() | named) & rows.keys()
                found += ((table, key) for key in sorted(keys))
        return found

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent sees."""
        return self.task_slice.select_tools(self._all_specs)

    @property
    def domain_policy(self) -> str:
        """The domain policy, which is the agent's system message."""
        return self._policies[self.task_slice.domain_policy]

    def gold_writes(self, task: Task) -> tuple[ToolCall, ...]:
        """Return the agent's gold calls that change the database. Raise `TaskError` if a tool rejects a gold call."""
        return self._run_gold(task).writes

    def gold_state(self, task: Task, results: list[_GoldResult] | None = None) -> State:
        """Return the state after the gold calls of agent and user. Raise `TaskError` if a tool rejects one.

        The agent's calls and their results are appended to `results`.
        """
        state = self.initial_state(task)
        made = [result for result in self._make_gold_calls(task, state) if result.role == "assistant"]
        if results is not None:
            results += made
        return state

    def default_values(self, task: Task) -> Mapping[str, str]:
        """Return the fields that results of the gold calls leave out because they have their default, and its text."""
        runs = list[list[_GoldResult]]()
        with contextlib.suppress(TaskError):  # a gold call is refused
            for shown in (True, False):
                runs.append(list(self._make_gold_calls(task, self.initial_state(task), shown)))
        if len(runs) < 2:
            return {}
        rows = [next(iter(table.values())) for table in self._world.tables().values() if table]
        owners = {name: type(row).__name__ for row in rows for name in getattr(type(row), "model_fields", ())}
        pairs = zip(*runs, strict=True)
        left_out = (each for full, short in pairs for each in _list_left_out(_to_value(full), _to_value(short)))
        return {f"{owners[name]}.{name}" if name in owners else name: str(value) for name, value in left_out}

    def _make_gold_calls(self, task: Task, state: State, keeps_defaults: bool = False) -> Iterator[_GoldResult]:
        """Make the gold calls of agent and user on a state, and yield each result. Raise `TaskError` if a tool rejects
        one.

        With `keeps_defaults`, results of the agent show fields that have their default.
        """
        user_toolkit = self.user_tools(state) if self.user_tools else None
        toolkits = {"assistant": self.toolkit(state), "user": user_toolkit}
        if keeps_defaults:
            vars(toolkits["assistant"])["_keeps_defaults"] = True
        for role, call in ((message.role, call) for message in task.gold for call in message.tool_calls):
            toolkit = toolkits[role]
            if toolkit is None:
                raise TaskError(f"task {task.id}: the user calls {call.name}, but {self.name} has no user_tools")
            before = state.snapshot()
            try:
                text = toolkit.call_sync(call)
            except ToolError as e:
                why = f"raises {e.report.exception} ({e.report.location})" if e.report else f"is refused: {e}"
                if role == "assistant" and user_toolkit and call.name in {spec.name for spec in user_toolkit.specs()}:
                    why = "is of a tool of the user; write Message(role='user', tool_calls=(…,)) for it in gold"
                raise TaskError(f"task {task.id}: the gold call {call.name}({call.arguments}) {why}") from e
            yield _GoldResult(role, call, text, bool(state.tables_modified_since(before)))

    def _run_gold(self, task: Task) -> _GoldRun:
        """Return what the gold calls do, cached. Raise `TaskError` if a tool rejects one."""
        key = gold_digest(task)
        if key not in self._gold_runs:
            if len(self._gold_runs) >= MAX_CACHED_GOLD_RUNS:
                self._gold_runs.clear()
            results = list[_GoldResult]()
            changes = self.gold_state(task, results).changes()
            texts = iter(results)
            transcript = [
                message
                for turn in task.gold_turns
                for message in (turn, *(Message(role="tool", content=next(texts).text) for _ in turn.tool_calls))
            ]
            words = self._output_words
            rules = find_fact_rules(transcript, task.outputs, words.by_family.get(task.family, ()), words.every)
            writes = tuple(result.call for result in results if result.writes)
            self._gold_runs[key] = _GoldRun(changes, writes, rules, read_gold_words(task.gold_turns))
        return self._gold_runs[key]

    def _requires_consent(self, task: Task) -> bool:
        """Return whether the user must confirm writes. A user without goals has ordered them in the opening."""
        return self.confirm_writes and bool(task.scenario.goals)

    def _find_tasks(self, split: Split) -> list[Task]:
        if self.task_list:
            return [task for task in self._listed_tasks if task.split == split]
        folder = find_domain_folder(self.module_name, self.own_name)
        if folder and folder.tasks.is_dir():
            return read_tasks(folder.tasks / f"{split}.jsonl")
        return self._generate_distinct(split, GENERATED_TASK_COUNTS[split])

    def _generate_distinct(self, split: Split, count: int) -> list[Task]:
        return distinct_tasks(self._generated(split, 0, self.families, DIFFICULTIES), count)

    def _generated(
        self, split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]
    ) -> Iterator[Task]:
        if self._generator:
            with task_code(f"the task generator of {self.name}", self._generator):
                yield from self._generator(split, seed, families, difficulties)

    def _recreate(self, task_id: str) -> Task | None:
        match = _GENERATED_ID.fullmatch(task_id)
        if not match or not self.make_task or match["domain"] != self.name or match["family"] not in self.families:
            return None
        split = next((split for split in SPLITS if split == match["split"]), None)
        difficulty = next((level for level in DIFFICULTIES if level == match["difficulty"]), None)
        if not split or not difficulty:
            return None
        return self.make_task(split, int(match["seed"]), match["family"], difficulty, int(match["number"]))

    def _find_split(self, task: Task) -> Split | None:
        """Return the split of the task's rows, or by a hash of its id if it has none; None if they have several."""
        splits = {self._row_splits[key] for key in self.split_row_keys(task)} or {split_from_id(task.id)}
        return splits.pop() if len(splits) == 1 else None

    @property
    def _generator(self) -> GenerateTasks | None:
        if self._family_tasks:
            return self._family_tasks.generate
        return None if isinstance(self.generate, Mapping) else self.generate

    @functools.cached_property
    def _family_tasks(self) -> FamilyTasks | None:
        if not isinstance(self.generate, Mapping):
            return None
        return FamilyTasks(self.name, self.generate, self._find_split)

    @functools.cached_property
    def _listed_tasks(self) -> list[Task]:
        tasks = []
        for task in self.task_list:
            task = task.replace(id=task.id or f"{self.name}/{task_fingerprint(task)}", domain=self.name)
            split = task.split if "split" in task.model_fields_set else self._find_split(task)
            tasks.append(task.replace(split=split or split_from_id(task.id)))
        return tasks

    @functools.cached_property
    def _split_tasks(self) -> dict[Split, list[Task]]:
        return {}

    @functools.cached_property
    def _row_splits(self) -> dict[tuple[str, str], Split]:
        tables = self._world.tables()
        return assign_row_splits({name: rows for name, rows in tables.items() if name not in self.shared_tables})

    @functools.cached_property
    def _world(self) -> State:
        return self.build_world()

    @functools.cached_property
    def _gold_runs(self) -> dict[bytes, _GoldRun]:
        return {}

    @functools.cached_property
    def _frozen_tasks(self) -> Sequence[Task]:
        """All tasks, of every slice."""
        whole = dataclasses.replace(self, task_slice=FULL_SLICE)
        return [task for split in SPLITS for task in whole.tasks(split)]

    @functools.cached_property
    def _output_words(self) -> _OutputWords:
        outputs = [(task.family, word) for task in self._frozen_tasks for word in task.outputs if not is_number(word)]
        by_family = dict[str, list[str]]()
        for family, output in dict.fromkeys(outputs):
            by_family.setdefault(family, []).append(output)
        return _OutputWords(
            by_family, frozenset(word.casefold() for _, output in outputs for word in output.split("|"))
        )

    @functools.cached_property
    def _write_tools(self) -> frozenset[str]:
        """The tools that write in the gold calls of the first tasks of each family and difficulty."""
        first = dict[tuple[str, str], Task]()
        for task in self._frozen_tasks:
            first.setdefault((task.family, task.difficulty), task)
        names = set[str]()
        for task in first.values():
            try:
                names.update(call.name for call in self._run_gold(task).writes)
            except TaskError:
                continue  # `check` reports the task
        return frozenset(names)

    @functools.cached_property
    def _is_english(self) -> bool:
        openings = (task.scenario.opening for task in self._frozen_tasks[:MAX_OPENINGS_READ])
        return is_english(" ".join((self._policies["full"], *openings)))

    @functools.cached_property
    def _all_specs(self) -> tuple[ToolSpec, ...]:
        return self.toolkit(self._world.fork()).specs()

    @functools.cached_property
    def _policies(self) -> dict[str, str]:
        folder = find_domain_folder(self.module_name, self.own_name)
        full = folder.read_policy("policy.md") if folder and self.policy is None else self.policy
        brief = folder.read_policy("policy_brief.md") if folder else None
        return {"full": (full or "").strip(), "brief": ((full if brief is None else brief) or "").strip()}


def _definition(domain: Domain) -> tuple[object, ...]:
    """Return the parts of a domain that make its tasks and episodes."""
    parts = ("build_world", "toolkit", "generate", "task_list", "policy", "user_tools", "grade", "confirm_writes")
    return tuple(getattr(domain, part) for part in parts)


def _to_value(result: _GoldResult) -> Any:
    """Return the value of a result that is JSON, else its text."""
    try:
        return from_json(result.text)
    except ValueError:
        return result.text


def _list_left_out(full: Any, short: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys of the objects in `full` that those of `short` do not have, with their plain values."""
    if isinstance(full, dict) and isinstance(short, dict):
        for key, value in full.items():
            if key in short:
                yield from _list_left_out(value, short[key])
            elif not isinstance(value, dict | list | bool | None):
                yield str(key), value
    elif isinstance(full, list) and isinstance(short, list):
        for one, other in zip(full, short, strict=False):
            yield from _list_left_out(one, other)


def _success_checks(task: Task) -> list[SuccessCheck]:
    return [goal.success_check for goal in task.scenario.goals if goal.success_check]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
