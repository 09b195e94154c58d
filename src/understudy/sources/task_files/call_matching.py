"""CallMatching: a `TaskSource` for tasks that have an instruction, gold calls and outputs, and no database behind them.

Nothing is executed. A call is compared with the gold calls of its task:

    a gold call                  returns its recorded result, or "ok"
    any other read               is refused if calls of its tool have something to show, else it returns "ok"
    any other write              returns "ok". It counts as made, so that the reward cannot be found by trying

If a task has no recorded results, its last gold read shows the outputs that must be told (or its last gold call, if
none looks something up). The reward is the product of strict parts, each 0.0 or 1.0:

    calls_match     the writes made are the gold writes: each as often, in any order. Reads do not count, but one of
                    each tool of `Task.must_call` must succeed
    facts_told      the agent told every output. An output that a recorded result states must have been shown before
    reads_made      every required read was made. Reads are required only with `require_reads`, and only if the task
                    has neither writes nor outputs
    within_limits   no limit cut the episode off

`call_key` says which arguments are equal. Of a call that hands the user over to a person only the name counts, because
its arguments are free text. Tools and their schemas are inferred from the gold calls, or given; so is which tools write
(`inferred_tools`).

A task is refused, with a reason, unless gold earns 1.0. It is also refused if it requires neither a call nor an output,
because then an agent that does nothing, or that reads once and says nothing, would earn 1.0.
"""

import asyncio
import functools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from understudy.core.errors import RolloutError, TaskError, ToolError, did_you_mean
from understudy.core.items import Item, RowError
from understudy.core.messages import ERROR_PREFIX, Message, ToolCall, ToolSpec
from understudy.core.tasks import Score, Split, Task, TaskLimits, assign_splits
from understudy.envs.environment import StepResult, ToolEnvironment
from understudy.envs.rewards import (
    FactRules,
    call_key,
    calls_match,
    calls_progress,
    find_denied,
    is_failure,
    is_number,
    missing_facts,
    product_score,
    states_fact,
)
from understudy.envs.schemas import schema_error
from understudy.envs.shown_values import UnshownValue, find_unshown_value
from understudy.envs.task_source import FULL_SLICE, Slice, TaskSource, validate_slice
from understudy.envs.users import InstructionUser, User, UserFactory, answer_text, make_user
from understudy.envs.validation_time import find_validation_problem, may_be_slow
from understudy.formats.parsing.schema import member_schema, schema_types
from understudy.sources.task_files.inferred_tools import hands_over, infer_tools, looks_up, only_reads, with_bare_names
from understudy.sources.task_files.task_row import TaskRow

ACKNOWLEDGEMENT = '{"ok": true}'
"""The result of a call without a recorded result."""
DOMAIN_POLICY = """\
Do what the user asks, with the tools that you have, and tell the user what they want to know. Change nothing that the
user does not ask for. Your tools answer from a record of calls; there is no database behind them."""
"""The policy of tasks that have none of their own."""
DEFAULT_ANSWER = "Done."
"""The last gold text of tasks without outputs."""
FAMILIES = ("change", "tell", "change_and_tell", "read")
"""What a task needs: writes, outputs that are told, or both; or only reads."""
ONLY_READS, NO_ANSWER, NO_FACTS = "only reads", "no answer", "no facts told"
"""Kinds of refusals of tasks that require nothing but reads: without outputs, without a last text, and with one that
tells nothing that a result shows."""
CALLS_SUFFIX = "-calls"
"""The end of the name of each `CallMatching`, after the domain of its rows."""
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_OPEN_SCHEMAS = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")
"""Keywords with which the schema itself says which other arguments a tool takes."""
_NO_DATABASE = "there is no database: calls are compared with the recorded gold calls, and nothing is executed"


@dataclass(frozen=True)
class GoldCalls:
    """The gold calls of a task, and what each call shows."""

    reads: tuple[ToolCall, ...]
    writes: tuple[ToolCall, ...]
    results: Mapping[str, tuple[str, ...]]
    """The results of each gold call by `call_key`, in order. A call that is made more often repeats the last one."""
    must_be_shown: frozenset[str]
    """The outputs that some result states."""
    required_reads: tuple[ToolCall, ...] = ()
    """The reads that must be made."""
    failed: str = ""
    """The first gold call whose recorded result is an error, and that result."""

    @property
    def informative_tools(self) -> frozenset[str]:
        """The tools with a result to show."""
        shown = {
            key for key, texts in self.results.items() if any(t.strip() not in ("", ACKNOWLEDGEMENT) for t in texts)
        }
        return frozenset(call.name for call in (*self.reads, *self.writes) if call_key(call) in shown)


@dataclass(frozen=True)
class CallMatching(TaskSource):
    """A `TaskSource` of one domain, made by `match_calls`; `task_slice` narrows it."""

    name: str
    rows: Mapping[str, TaskRow]
    """The tasks by id. Their domain, family and split are set."""
    all_specs: tuple[ToolSpec, ...]
    write_tools: frozenset[str]
    tools_are_given: bool = False
    writes_are_given: bool = False
    refused: tuple[RowError, ...] = ()
    """The tasks that cannot be graded, with the reason."""
    require_reads: bool = False
    """Whether the gold reads of tasks with neither writes nor outputs are required."""
    task_slice: Slice = FULL_SLICE
    user_factory: UserFactory | None = None
    """Makes users that a model or a person plays; None means `InstructionUser`."""
    reports_writes = True

    @property
    def families(self) -> tuple[str, ...]:
        """The families of the tasks."""
        return tuple(name for name in FAMILIES if any(row.task.family == name for row in self.rows.values()))

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent sees."""
        return self.task_slice.select_tools(self.all_specs)

    @property
    def domain_policy(self) -> str:
        """The system message of tasks without their own. It says that there is no database."""
        return DOMAIN_POLICY

    def task_policy(self, task: Task) -> str:
        """Return the system message of a task: its row's, or the source's."""
        row = self.rows.get(task.id)
        return (row.domain_policy if row else "") or self.domain_policy

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know: that there is no database, which tools write, and which users are missing."""
        names = [spec.name for spec in self.all_specs]
        writes = [name for name in names if name in self.write_tools]
        reads = [name for name in names if name not in self.write_tools]
        notes = [
            f"{self.name}: {_NO_DATABASE}",
            f"{self.name}: tools {'given' if self.tools_are_given else 'inferred from the gold calls'}; "
            f"{'as given' if self.writes_are_given else 'by the first words of their names'}, "
            f"{len(writes)} write ({', '.join(writes) or 'none'}) and {len(reads)} read ({', '.join(reads) or 'none'})",
        ]
        if counts := Counter(row.task.scenario.user_kind for row in self.rows.values() if self._lacks_model(row.task)):
            kinds = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
            notes.append(
                f"{self.name}: {counts.total()} tasks ask for a user played by a model (user_strategy: {kinds}), and "
                "scripted users play them; set user.kind=llm and endpoints.default.model=… for such users"
            )
        scenarios = [row.task.scenario for row in self.rows.values()]
        later = sum(each.opening not in ("", each.instructions) for each in scenarios)
        if later and self.user_factory is None:
            notes.append(
                f"{self.name}: in {later} tasks the user says more than their first message, but scripted users do not"
            )
        return tuple(notes)

    def with_users(self, user_factory: UserFactory) -> "CallMatching":
        """Return this source with users made by `user_factory`."""
        return replace(self, user_factory=user_factory)

    def slice(self, task_slice: Slice) -> "CallMatching":
        """Return this source narrowed to `task_slice`. Raise `ConfigError` for unknown names."""
        validate_slice(self.name, task_slice, self.families, [spec.name for spec in self.all_specs])
        return replace(self, task_slice=task_slice)

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split that are in the slice."""
        return self.task_slice.select_tasks([row.task for row in self.rows.values() if row.task.split == split])

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> "CallMatchingEnvironment":
        """Return a new episode of `task`. Raise `TaskError` if the source has no task with this id."""
        if task.id not in self.rows:
            raise TaskError(f"task {task.id} is not one of the {len(self.rows)} tasks of {self.name}")
        calls = record_calls(task, self.write_tools, self.require_reads)
        limits = task.limits or TaskLimits()
        tools = GoldCallToolkit(self.all_specs, self.write_tools, calls, self._informative, limits)
        policy, player = self.task_policy(task), user or self._user(task, seed)
        return CallMatchingEnvironment(policy, tools, player, task, calls, self.tool_specs, limits.max_turns)

    def gold_writes(self, task: Task) -> tuple[ToolCall, ...]:
        """Return the gold calls that write."""
        return tuple(call for call in task.gold_calls if call.name in self.write_tools)

    def required_calls(self, task: Task) -> tuple[ToolCall, ...]:
        """Return the gold calls that write, the reads that `require_reads` requires, and the first read of each tool of
        `Task.must_call` that answers only recorded calls."""
        calls = record_calls(task, self.write_tools, self.require_reads)
        reads = [call for call in calls.reads if call.name in self._informative]
        named = ([call for call in reads if fnmatchcase(call.name, pattern)][:1] for pattern in task.must_call)
        return (*self.gold_writes(task), *calls.required_reads, *(call for found in named for call in found))

    @functools.cached_property
    def unshown_values(self) -> Mapping[str, UnshownValue]:
        """The first value of each task that its agent cannot know before the gold call that needs it, by task id."""
        found = ((row.task.id, self._find_unshown(row.task)) for row in self.rows.values())
        return {task_id: unshown for task_id, unshown in found if unshown}

    def unshown_note(self) -> str:
        """Return a line with the number of tasks that need a value which nothing shows, or "" if there are none."""
        if not self.unshown_values:
            return ""
        task_id, unshown = next(iter(self.unshown_values.items()))
        share = f"{len(self.unshown_values)} of {len(self.rows)} tasks of {self.name}"
        return (
            f"{share} need a value that nothing shows, such as {unshown} of {task_id}; correct it, name the "
            "database with data.sources=tau-bench:PATH#DOMAIN, record the results of the gold calls, or write a file "
            "without these tasks: understudy data convert --skip-unfindable"
        )

    def _find_unshown(self, task: Task) -> UnshownValue | None:
        needed = [call for call in self.required_calls(task) if not hands_over(call.name)]
        calls = record_calls(task, self.write_tools)
        tools = GoldCallToolkit(self.all_specs, self.write_tools, calls, self._informative, TaskLimits())
        return find_unshown_value(self, task, _gold_transcript(task, tools), needed)

    def fact_rules(self, task: Task) -> FactRules:
        """Return what counts as telling the task's outputs."""
        return _fact_rules(task, record_calls(task, self.write_tools))

    def _user(self, task: Task, seed: int) -> User:
        scenario = task.scenario
        if self.user_factory is None or scenario.user_kind == "scripted":
            return InstructionUser(scenario)
        if scenario.opening == scenario.instructions:  # which a model must not read out
            scenario = scenario.replace(opening="")
        return make_user(self.user_factory, scenario, seed, None)

    @functools.cached_property
    def _informative(self) -> frozenset[str]:
        """The tools with a result to show in some task."""
        calls = (record_calls(row.task, self.write_tools) for row in self.rows.values())
        return frozenset(tool for each in calls for tool in each.informative_tools)

    def _lacks_model(self, task: Task) -> bool:
        return self.user_factory is None and task.scenario.user_kind not in (None, "scripted")


class GoldCallToolkit:
    """The tools of one episode, which answer from the gold calls of its task."""

    def __init__(
        self,
        specs: Sequence[ToolSpec],
        write_tools: Collection[str],
        calls: GoldCalls,
        informative: Collection[str],
        limits: TaskLimits,
    ) -> None:
        self.writes: list[ToolCall] = []
        """The writes made, in order."""
        self.reads: list[ToolCall] = []
        """The reads made, in order."""
        self._specs, self._write_tools, self._calls = specs, write_tools, calls
        self._informative, self._limits = informative, limits
        self._made = Counter[str]()
        self._tools = set[str]()

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools."""
        return self._specs

    async def call(self, call: ToolCall) -> str:
        """Answer one call. Raise `ToolError` if it does not fit the tool's schema, is a read that was not recorded, or
        exceeds a limit.
        """
        if any(may_be_slow(spec.parameters) for spec in self._specs if spec.name == call.name):
            await asyncio.to_thread(validate_arguments, call, self._specs)
        return self.answer(call)

    def answer(self, call: ToolCall) -> str:
        """Answer one call synchronously."""
        validate_arguments(call, self._specs)
        self._validate_limits(call.name)
        key = call_key(comparable_call(call))
        results = self._calls.results.get(key)
        if call.name in self._write_tools:
            self.writes.append(call)
        elif results is None and call.name in self._informative:
            raise ToolError(f"no result of {call.name} is recorded for these arguments")
        else:
            self.reads.append(call)
        self._made[key] += 1
        return results[min(self._made[key], len(results)) - 1] if results else ACKNOWLEDGEMENT

    def _validate_limits(self, name: str) -> None:
        tools, limits = self._tools | {name}, self._limits
        for what, used, most in (
            ("calls", self._made.total() + 1, limits.max_calls),
            ("different tools", len(tools), limits.max_tools),
            ("different servers", len({each.rpartition(".")[0] for each in tools}), limits.max_servers),
        ):
            if most is not None and used > most:
                raise ToolError(f"not called: at most {most} {what} may be used for this task")
        self._tools = tools


class CallMatchingEnvironment(ToolEnvironment):
    """One episode. The last reply that the task allows ends it."""

    def __init__(
        self,
        domain_policy: str,
        tools: GoldCallToolkit,
        user: User,
        task: Task,
        calls: GoldCalls,
        visible_tools: Sequence[ToolSpec],
        max_turns: int | None,
    ) -> None:
        super().__init__(domain_policy, tools, user, self._scored, visible_tools)
        self._recorded, self._task, self._calls, self._max_turns = tools, task, calls, max_turns

    async def step(self, reply: Message) -> StepResult:
        """Answer a reply. After `max_turns` replies the episode has ended."""
        step = await super().step(reply)
        turns = sum(message.role == "assistant" for message in self.transcript)
        if step.score is None and self._max_turns is not None and turns >= self._max_turns:
            return replace(step, score=await self.grade(ended=False))
        return step

    def _scored(self, transcript: Sequence[Message], ended: bool) -> Score:
        return score_calls(self._task, self._calls, self._recorded, transcript, ended)


def match_calls(
    domain: str,
    items: Iterable[Item[TaskRow]],
    tool_specs: Sequence[ToolSpec] = (),
    write_tools: Collection[str] | None = None,
    require_reads: bool = False,
) -> CallMatching:
    """Return the source that plays the tasks of one domain. Its `refused` are those that cannot be graded.

    `tool_specs` replace tools that are inferred from the gold calls, and `write_tools` says which tools write.
    `require_reads` is `data.require_reads`.
    """
    name = source_name(domain)
    rows = [Item(item.location, replace(item.value, task=with_answer(item.value.task))) for item in items]
    given = {spec.name: spec for spec in (*(spec for item in rows for spec in item.value.tool_specs), *tool_specs)}
    inferred = {spec.name: spec for spec in infer_tools(call for item in rows for call in item.value.task.gold_calls)}
    specs = with_bare_names(tuple((inferred | given).values()))
    writes = [spec.name for spec in specs if not only_reads(spec.name)] if write_tools is None else write_tools
    accepted, refused = dict[str, TaskRow](), list[RowError]()
    for item in rows:
        row, task = item.value, item.value.task
        error = find_refusal(item, specs, writes, require_reads)
        if task.id in accepted:
            error = RowError(item.location, "id", f"{task.id!r} is also the id of an earlier task", "duplicate")
        if error:
            refused.append(error)
        else:
            accepted[task.id] = replace(row, task=task.replace(domain=name, family=_family(task, writes)))
    splits = assign_splits({key: row.split for key, row in accepted.items()})
    return CallMatching(
        name=name,
        rows={key: replace(row, task=row.task.replace(split=splits[key])) for key, row in accepted.items()},
        all_specs=specs,
        write_tools=frozenset(writes),
        tools_are_given=given.keys() >= inferred.keys(),
        writes_are_given=write_tools is not None,
        refused=tuple(refused),
        require_reads=require_reads,
    )


def record_calls(task: Task, write_tools: Collection[str], require_reads: bool = False) -> GoldCalls:
    """Return the gold calls of a task with the results that they show, and the reads that `require_reads` requires."""
    pairs = _recorded_results(task)
    texts = [text for _, text in pairs if text is not None]
    unknown = [output for output in task.outputs if not states_fact(output, "\n".join(texts))]
    teller = None if texts else _find_teller(task.gold_calls, write_tools)
    results = dict[str, tuple[str, ...]]()
    for number, (call, text) in enumerate(pairs):
        shown = _told_result(unknown) if number == teller and unknown else ACKNOWLEDGEMENT if text is None else text
        key = call_key(comparable_call(call))
        results[key] = (*results.get(key, ()), shown)
    calls = tuple(comparable_call(call) for call, _ in pairs)
    writes = tuple(call for call in calls if call.name in write_tools)
    needs_reads = require_reads and not (writes or task.outputs or task.must_call)
    failures = (f"{call.name}: {text[:100]}" for call, text in pairs if text and text.startswith(ERROR_PREFIX.strip()))
    return GoldCalls(
        reads=tuple(call for call in calls if call.name not in write_tools),
        writes=writes,
        results=results,
        must_be_shown=frozenset(task.outputs if teller is not None else set(task.outputs) - set(unknown)),
        required_reads=tuple(call for call in calls if needs_reads and looks_up(call.name)),
        failed=next(failures, ""),
    )


def score_calls(
    task: Task, calls: GoldCalls, tools: GoldCallToolkit, transcript: Sequence[Message], ended: bool
) -> Score:
    """Return the score of an episode, whose calls `tools` has answered; the module docstring has the parts."""
    made = [comparable_call(call) for call in tools.writes]
    called = _list_successes(transcript)
    reads = all(any(fnmatchcase(name, pattern) for name in called) for pattern in task.must_call)
    missing = missing_facts(transcript, task.outputs, _fact_rules(task, calls))
    parts = {
        "calls_match": calls_match(made, calls.writes) * reads,
        "facts_told": float(not missing),
        "within_limits": float(ended),
    }
    matching, total = calls_progress(made, calls.writes)
    if required := set(map(call_key, calls.required_reads)):
        read = required & set(map(call_key, tools.reads))
        parts["reads_made"] = float(read == required)
        matching, total = matching + len(read), total + len(required)
    turns = sum(message.role == "assistant" for message in transcript)
    extra = {"turn_efficiency": min(1.0, len(task.gold_turns) / max(1, turns))}
    progress = (matching + len(task.outputs) - len(missing)) / max(1, total + len(task.outputs))
    return product_score(parts, extra).replace(progress=progress)


def _list_successes(transcript: Sequence[Message]) -> set[str]:
    """Return the names of the calls that did not fail. Results follow their calls in order."""
    names, calls = set[str](), list[ToolCall]()
    for message in transcript:
        if message.role == "assistant":
            calls = list(message.tool_calls)
        elif message.role == "tool" and calls:
            call = calls.pop(0)
            names |= {call.name} if not is_failure(message) else set()
    return names


def _fact_rules(task: Task, calls: GoldCalls) -> FactRules:
    free = (output for output in task.outputs if is_number(output) and output not in calls.must_be_shown)
    denied = find_denied((turn.content for turn in task.gold_turns), task.outputs)
    return FactRules(dict.fromkeys(free, ()), denied=denied)


def comparable_call(call: ToolCall) -> ToolCall:
    """Return a call as it is compared: without arguments if it hands the user over to a person."""
    return ToolCall(name=call.name, arguments={} if hands_over(call.name) else call.arguments)


def validate_arguments(call: ToolCall, specs: Sequence[ToolSpec]) -> None:
    """Raise `ToolError` if the tool is unknown, or the arguments do not fit its schema.

    Raise `RolloutError` if the schema makes the validation endless.
    """
    spec = next((spec for spec in specs if spec.name == call.name), None)
    if spec is None:
        raise ToolError(f"unknown tool {did_you_mean(call.name, (spec.name for spec in specs))}", "unknown_tool")
    arguments = {key: value for key, value in call.arguments.items() if value is not None}
    properties, required = spec.parameters.get("properties", {}), spec.parameters.get("required", ())
    if found := find_validation_problem(spec.parameters, arguments):
        raise RolloutError(
            f"the schema of {call.name} cannot be used: {found}; correct it in the task file", "environment"
        )
    try:
        error = schema_error(_validator(json.dumps(spec.parameters)), _nulls(spec.parameters, arguments) | arguments)
    except Unresolvable as e:
        raise ToolError(f"the schema of {call.name} refers to something that does not exist", "tool_exception") from e
    is_open = not spec.parameters.keys().isdisjoint(_OPEN_SCHEMAS)
    unknown = None if is_open else next((key for key in arguments if key not in properties), None)
    if not error and unknown is None:
        return
    takes = ", ".join(name if name in required else f"[{name}]" for name in properties)
    problem = error or f"{unknown}: there is no such argument"
    raise ToolError(f"bad arguments for {call.name}: {problem}; it takes ({takes})", "invalid_arguments")


def _nulls(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return null for each argument that is left out, required and may be null, as in OpenAI's strict mode."""
    left_out = (name for name in schema.get("required", ()) if name not in arguments)
    return {name: None for name in left_out if "null" in schema_types(member_schema(schema, name, schema), schema)}


def find_refusal(
    item: Item[TaskRow], specs: Sequence[ToolSpec], write_tools: Collection[str], require_reads: bool = False
) -> RowError | None:
    """Return why a task cannot be graded, or None. Its gold calls are answered and scored."""
    task = item.value.task
    refuse = functools.partial(RowError, item.location)
    calls = record_calls(task, write_tools, require_reads)
    if calls.failed:
        return refuse("gold", f"a gold call failed when it was recorded: {calls.failed}", "gold refused")
    if not task.gold_calls:
        return refuse("gold", "it has no gold calls, so no tool can show or change anything", "does nothing")
    if not (calls.writes or task.outputs or task.must_call or calls.required_reads):
        return _only_reads(item)
    if not all(word.strip() for output in task.outputs for word in output.split("|")):
        return refuse("outputs", "an output or an alternative in it is empty, so any text would tell it")
    if answer_text(task.gold_turns[-1].content, task.scenario.opening) is not None:
        return refuse("gold", "its last gold message must be a text that asks nothing, after which the user leaves")
    limits = task.limits or TaskLimits()
    most = limits.max_turns
    if most is not None and len(task.gold_turns) > most:
        return refuse("gold", f"it has {len(task.gold_turns)} replies, but limits.max_turns is {most}", "too long")
    tools = GoldCallToolkit(specs, write_tools, calls, calls.informative_tools, limits)
    try:
        gold = score_calls(task, calls, tools, _gold_transcript(task, tools), ended=True)
    except ToolError as e:
        return refuse("gold", f"a gold call is refused: {e}", "gold refused")
    except RolloutError as e:
        return refuse("tools", str(e))
    if gold.reward < 1.0:
        return refuse("outputs", _explain_untold(task, calls), "gold fails")
    return None


def _only_reads(item: Item[TaskRow]) -> RowError:
    """Return the refusal of a task that requires neither a call nor an output, and what would make it a task."""
    remedies = (
        ["set data.require_reads=true"] if any(looks_up(call.name) for call in item.value.task.gold_calls) else []
    )
    problem, kind = (
        "its gold calls only read and it has no outputs, so one read and then silence, or nothing, would fulfil it",
        ONLY_READS,
    )
    if not remedies:
        names = ", ".join(dict.fromkeys(call.name for call in item.value.task.gold_calls))
        problem = f"its gold calls ({names}) only compute: such tools look nothing up, so no call of them is required"
    if found := item.value.ungraded:
        problem, kind = found.problem, found.kind
    else:
        remedies = ["give the facts to tell as outputs", "the conversation with its results as messages", *remedies]
    return RowError(item.location, "gold", "; ".join(filter(None, (problem, ", or ".join(remedies)))), kind)


def with_answer(task: Task) -> Task:
    """Return the task with a last gold text, if its gold turns end with a call: the outputs, or "Done."."""
    if not task.gold_turns or not task.gold_turns[-1].tool_calls:
        return task
    answer = "; ".join(map(first_alternative, task.outputs)) or DEFAULT_ANSWER
    return task.replace(gold=(*task.gold, Message(role="assistant", content=answer)))


def is_call_matching(domain: str) -> bool:
    """Return whether a task's domain is the name of a `CallMatching` source."""
    return domain.endswith(CALLS_SUFFIX)


def source_name(domain: str) -> str:
    """Return the name of the source of a domain's tasks, which tells it apart from the domain itself."""
    plain = _NOT_IN_NAMES.sub("-", domain).strip("-") or "tasks"
    return plain if is_call_matching(plain) else f"{plain}{CALLS_SUFFIX}"


def _find_teller(calls: Sequence[ToolCall], write_tools: Collection[str]) -> int | None:
    """Return the place of the gold call that shows the outputs of a task without recorded results."""
    reads = [n for n, call in enumerate(calls) if call.name not in write_tools and looks_up(call.name)]
    return next(reversed(reads or range(len(calls))), None)


def _family(task: Task, write_tools: Collection[str]) -> str:
    changes = any(call.name in write_tools for call in task.gold_calls)
    if changes:
        return "change_and_tell" if task.outputs else "change"
    return "tell" if task.outputs else "read"


def _recorded_results(task: Task) -> list[tuple[ToolCall, str | None]]:
    """Return the gold calls in order, each with its recorded result or None."""
    results = {message.tool_call_id: message.content for message in task.gold if message.role == "tool"}
    return [(call, results.get(call.id) if call.id else None) for call in task.gold_calls]


def _told_result(outputs: Sequence[str]) -> str:
    return json.dumps({"ok": True, "result": [first_alternative(output) for output in outputs]}, ensure_ascii=False)


def first_alternative(output: str) -> str:
    """Return the first of the alternatives of an output, such as "cancel" of "cancel|cancellation"."""
    return next(filter(None, output.split("|")), output)


def _gold_transcript(task: Task, tools: GoldCallToolkit) -> list[Message]:
    transcript = list[Message]()
    for turn in task.gold_turns:
        transcript.append(turn)
        transcript += (Message(role="tool", content=tools.answer(call)) for call in turn.tool_calls)
    return transcript


def _explain_untold(task: Task, calls: GoldCalls) -> str:
    """Return why the gold texts do not tell an output."""
    shown = "\n".join(text for results in calls.results.values() for text in results)
    missing = missing_facts(_gold_texts(task, shown), task.outputs)
    for output in missing:
        if not states_fact(output, shown):
            return f"no recorded result states {output!r}, so an agent could only guess it"
    if not missing:
        return "each result that states an output is of a call whose arguments state it, so it shows nothing new"
    return f"the gold texts do not tell {', '.join(map(repr, missing))} as it must be told (envs/rewards.py)"


def _gold_texts(task: Task, shown: str) -> list[Message]:
    return [Message(role="tool", content=shown), *(turn for turn in task.gold_turns if not turn.tool_calls)]


@functools.lru_cache(maxsize=1024)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema), registry=Registry())  # which fetches no remote reference
