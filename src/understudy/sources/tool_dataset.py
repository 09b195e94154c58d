"""ToolDataset: a `TaskSource` made of your own examples, tools and reward function.

Use it for tasks without a database; tasks graded by database changes need a `Domain`. The user sends the prompt, the
agent calls tools, and its first reply without calls is its answer. A `ToolDataset` in a module is loaded as
`module:attribute`.

    class Sum(ToolEpisode):
        def times(self, a: int, b: int) -> int:
            "Multiply two numbers."
            return a * b

        def reward(self, transcript: Sequence[Message]) -> float:
            return float(states_fact(self.example.answer, transcript[-1].content))

    SUMS = ToolDataset("sums", "Answer with a number.", [ToolExample(prompt="What is 6 * 7?", answer="42")], Sum)
"""

import difflib
import functools
import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from typing import Annotated, Any, Protocol, Self, runtime_checkable

from pydantic import BeforeValidator, ModelWrapValidatorHandler, ValidationError, model_validator

from understudy.core.errors import TaskError
from understudy.core.items import describe_validation
from understudy.core.json_values import replace_surrogates, validate_json_value
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.records import Record
from understudy.core.tasks import Difficulty, Scenario, Score, Split, Task, assign_splits
from understudy.core.user_code import user_code
from understudy.envs.domain_definition import find_policy_problem
from understudy.envs.environment import ToolEnvironment
from understudy.envs.rewards import product_score, to_reward
from understudy.envs.task_source import FULL_SLICE, Slice, TaskSource, validate_slice
from understudy.envs.tools import ToolkitBase
from understudy.envs.users import User, UserFactory, make_user
from understudy.sources.environments.gym import UNIT_RANGE, parse_reward_range, scale_reward

_SIGNS = re.compile(r"[\s,'%€$£¥₹]")
"""Signs in numbers that float() does not read."""
_FINAL_ANSWER = re.compile(r"\n####\s*(?P<hashes>\S.*)\Z|\\boxed\{(?P<boxed>[^{}]*)\}")
"""Matches the final answer in a text with its reasoning, as GSM8K and MATH mark it."""
_SHOWN_ANSWERS = 3
_OWN_OF_TRL = ("reset", "get_reward")
"""Methods of an environment of TRL that are no tools."""


def _answer_text(value: Any) -> Any:
    """Return a number as text; anything else unchanged."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, ToolCall) else value


class ToolExample(Record):
    """One example of a `ToolDataset`. A wrong field raises TaskError."""

    prompt: str
    """The user's first message."""
    domain_policy: str = ""
    """The system message of this example; empty means that of the data set."""
    answer: Annotated[str, BeforeValidator(_answer_text)] = ""
    """The final reply of the gold demonstration, which SFT trains on; empty if unknown. A number becomes text."""
    gold_calls: Annotated[tuple[ToolCall, ...], BeforeValidator(_as_tuple)] = ()
    """The calls of the gold demonstration, one reply each. A single call need not be in a list."""
    id: str = ""
    """The task id; empty means the data set's name and a hash of the prompt."""
    split: Split | None = None
    """None means by a hash of the id: 70% train, 10% validation, 20% test."""
    family: str = "question"
    difficulty: Difficulty = "easy"
    info: dict[str, Any] = {}
    """Further data for the tools and the reward function. Each episode has its own copy of its dicts, lists and sets;
    other objects, such as a model, are shared by all episodes."""

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(value)
        except ValidationError as e:
            field, problem = describe_validation(e, cls)
            raise TaskError(f"ToolExample: {field}: {problem}") from e

    @classmethod
    def from_task(cls, task: Task) -> "ToolExample":
        """Return the example of a task, the inverse of `to_task`. The answer is the last gold text."""
        texts = [turn.content for turn in task.gold_turns if not turn.tool_calls]
        return cls(
            prompt=task.scenario.opening,
            answer=texts[-1] if texts else "",
            gold_calls=task.gold_calls,
            id=task.id,
            split=task.split,
            family=task.family,
            difficulty=task.difficulty,
        )

    def task_id(self, domain: str) -> str:
        """Return the id of the example's task in `domain`. Raise `TaskError` if the prompt is not valid Unicode."""
        if self.id:
            return self.id
        try:
            prompt = self.prompt.encode()
        except UnicodeEncodeError as e:
            text = f"{self.prompt!r:.100}"
            raise TaskError(
                f"the prompt {text} contains a lone surrogate, which is not valid Unicode; correct the text"
            ) from e
        return f"{domain}/{hashlib.sha256(prompt).hexdigest()[:12]}"

    def to_task(self, domain: str, split: Split) -> Task:
        """Return the example as a `Task` of `domain`."""
        turns = [Message(role="assistant", tool_calls=(call,)) for call in self.gold_calls]
        last = [Message(role="assistant", content=self.answer)] if self.answer else []
        return Task(
            id=self.task_id(domain),
            domain=domain,
            split=split,
            family=self.family,
            difficulty=self.difficulty,
            scenario=Scenario(instructions=self.prompt, opening=self.prompt),
            gold=(*turns, *last),
        )


@runtime_checkable
class ExampleSource(Protocol):
    """Protocol of a task source whose tasks are made of examples, which hold the rows of files."""

    def find_example(self, task: Task) -> ToolExample:
        """Return the example of a task."""


class ToolEpisode(ToolkitBase, tools=False):
    """Base of the episodes of a `ToolDataset`. Public methods that a subclass adds are its tools.

    A tool may be a coroutine, and rejects a call with `raise ToolError(text)`. Each object serves one episode, so its
    attributes are the state of that episode.
    """

    _reserved_names = frozenset({"specs", "example"})
    _keeps_defaults = True

    def __init_subclass__(cls, tools: bool = True) -> None:
        for name in [name for name, member in vars(cls).items() if tools and inspect.isfunction(member)]:
            for meant in difflib.get_close_matches(name.lower(), ("reward", "env_response"), 1):
                is_given = getattr(cls, meant) is not getattr(ToolEpisode, meant)
                if not is_given and name[0] != "_" and "transcript" in inspect.signature(getattr(cls, name)).parameters:
                    raise TaskError(f"{cls.__name__} has no {meant}; did you mean {meant} instead of {name}?")
        super().__init_subclass__(tools)

    def __init__(self, example: ToolExample | None = None) -> None:
        if example is None:
            name = type(self).__name__
            raise TaskError(f"{name}() makes an episode without an example; pass the class {name} itself, without ()")
        self.example = example

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, which says where the data of the example is."""
        problem = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name != "example" and not name.startswith("_"):
            problem += "; the example is self.example (prompt, answer, info); set further state in __init__"
        raise AttributeError(problem)

    async def call(self, call: ToolCall) -> str:
        """Validate and run a call, and return the result as text.

        Raise `ToolError` if the call is rejected or the tool raises an exception.
        """
        return await self._run_call(call)

    def reward(self, transcript: Sequence[Message]) -> float | Awaitable[float]:
        """Return the reward of a finished episode, from 0 to 1; 1 is a success. Subclasses must override it.

        The transcript begins with the system message, if there is one, and ends with the answer. The method may be a
        coroutine, such as a call to a judge. An episode that a limit cut off earns 0 without a call of this method. If
        the method raises an exception, the episode has the fault "grader": it has no reward, and is played again.
        """
        raise TaskError(
            f"{type(self).__name__} has no reward function; define `def reward(self, transcript) -> float` in it"
        )

    def env_response(self, transcript: Sequence[Message]) -> str | Awaitable[str | None] | None:
        """Return the user's answer to a reply without calls, or None (the default) to end the episode.

        The method may be a coroutine.
        """
        return None


@dataclass(frozen=True)
class ToolDataset(TaskSource):
    """A `TaskSource` of examples; `task_slice` narrows it."""

    name: str
    domain_policy: str
    """The system message of the agent. If it is empty, there is none."""
    examples: Sequence[ToolExample]
    episode_class: type[ToolEpisode]
    """Called with the example to make each episode. A class for TRL's `environment_factory` becomes one: `reset` gets
    `info`."""
    user_factory: UserFactory | None = None
    """Makes users who answer the agent's texts; None means `ToolEpisode.env_response`."""
    task_slice: Slice = FULL_SLICE
    tools: InitVar[Sequence[Callable[..., Any]]] = ()
    """Functions, also coroutines, that are tools beside the methods of `episode_class`. A function without annotations
    or with the name of another tool is refused."""

    def __post_init__(self, tools: Sequence[Callable[..., Any]]) -> None:
        episode_class: object = self.episode_class
        if is_trl_class(episode_class):
            episode_class = episode_of_trl(episode_class)
            object.__setattr__(self, "episode_class", episode_class)
        if isinstance(episode_class, type) and not issubclass(episode_class, ToolEpisode):
            raise TaskError(explain_foreign_class(episode_class))
        if not isinstance(episode_class, type) and isinstance(self.examples, type):
            raise TaskError(f"examples and episode_class of {self.name} are swapped; give the list of examples first")
        if not isinstance(episode_class, type):
            raise TaskError(
                f"the episode_class of {self.name} is {episode_class!r:.100}; pass the class itself, a subclass of "
                "ToolEpisode, and not an object"
            )
        for name, argument in (("__init__", "example"), ("reward", "transcript"), ("env_response", "transcript")):
            if inspect.isfunction(method := inspect.getattr_static(episode_class, name)):
                try:
                    inspect.signature(method).bind(None, None)
                except TypeError as e:
                    raise TaskError(
                        f"{episode_class.__name__}.{name} cannot be called with the {argument}: {e}; define "
                        f"`def {name}(self, {argument})`"
                    ) from e
        listed: Mapping[str, object] = {"tools": tools, "examples": self.examples}
        for name, value in listed.items():
            if callable(value) or not isinstance(value, Iterable):
                what = "one function" if inspect.isroutine(value) else f"of the type {type(value).__name__}"
                of = "functions, such as tools=[f, g]" if name == "tools" else "ToolExample"
                raise TaskError(f"{name} of {self.name} is {what}; give a list of {of}")
        if tools:
            object.__setattr__(self, "episode_class", _add_tools(self.episode_class, tools))
        object.__setattr__(self, "examples", tuple(self.examples))  # a generator can be read only once
        if not self.examples:
            raise TaskError(f"the data set {self.name} has no examples; give it at least one ToolExample")
        given: Sequence[object] = self.examples
        for number, example in enumerate(given):
            if not isinstance(example, ToolExample):
                raise TaskError(
                    f"example {number} of {self.name} is a {type(example).__name__}, not a ToolExample; write "
                    "ToolExample(prompt=…, answer=…), or read rows with understudy.data.tool_examples"
                )
            if not example.prompt.strip():
                raise TaskError(f"example {number} of {self.name} has no question: its prompt is empty; remove it")
            if problem := _find_lone_surrogate(example):
                raise TaskError(f"example {number} of {self.name}: {problem}, which cannot be stored; correct the text")

        for policy in {self.domain_policy, *(example.domain_policy for example in self.examples)}:
            if problem := find_policy_problem(policy):
                raise TaskError(f"domain_policy of {self.name}: {problem}")

    @property
    def families(self) -> tuple[str, ...]:
        """The distinct families of the examples."""
        return tuple(dict.fromkeys(example.family for example in self.examples))

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent sees."""
        return self.task_slice.select_tools(self.episode_class.specs())

    def with_users(self, user_factory: UserFactory) -> "ToolDataset":
        """Return this data set with users made by `user_factory`."""
        return replace(self, user_factory=user_factory)

    def slice(self, task_slice: Slice) -> "ToolDataset":
        """Return this data set narrowed to `task_slice`. Raise `ConfigError` for unknown names."""
        validate_slice(self.name, task_slice, self.families, [spec.name for spec in self.episode_class.specs()])
        return replace(self, task_slice=task_slice)

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split that are in the slice."""
        return self.task_slice.select_tasks([task for task, _ in self._by_id.values() if task.split == split])

    def task_policy(self, task: Task) -> str:
        """Return the system message of a task: its example's, or the data set's."""
        return self.find_example(task).domain_policy or self.domain_policy

    def find_example(self, task: Task) -> ToolExample:
        """Return the example of a task. A task of this data set that is not in `examples` becomes an example.

        Raise `TaskError` if the task is of another source.
        """
        if task.id in self._by_id:
            return self._by_id[task.id][1]
        if task.domain != self.name:
            raise TaskError(f"task {task.id} is of the domain {task.domain!r}, and {self.name} cannot play it")
        return ToolExample.from_task(task)

    def episode_code(self) -> Sequence[object]:
        """Return the class of episodes, with its tools and reward, and the user factory."""
        return (self.episode_class, self.user_factory)

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        """Return a new episode of `task`. `user` replaces the user of `user_factory`."""
        example = self.find_example(task)
        example = example.replace(info=_copy_containers(example.info))
        with user_code("environment", f"the episode class {self.episode_class.__name__}", self.episode_class):
            episode = self.episode_class(example)
            if not hasattr(episode, "example"):  # its __init__ need not call that of ToolEpisode
                episode.example = example
        if user is None:
            user = (
                make_user(self.user_factory, task.scenario, seed, None) if self.user_factory else _EpisodeUser(episode)
            )
        grade = functools.partial(_score, episode)
        return ToolEnvironment(self.task_policy(task), episode, user, grade, self.tool_specs)

    @functools.cached_property
    def _by_id(self) -> Mapping[str, tuple[Task, ToolExample]]:
        found: dict[str, tuple[Task, ToolExample]] = {}
        splits = assign_splits({example.task_id(self.name): example.split for example in self.examples})
        numbers = dict[str, int]()
        for number, example in enumerate(self.examples):
            task = example.to_task(self.name, splits[example.task_id(self.name)])
            if task.id in found:
                same = f"id {example.id!r}" if example.id else f"prompt {example.prompt!r:.100}"
                raise TaskError(
                    f"{self.name}: examples {numbers[task.id]} and {number} have the same {same}; remove one, or give "
                    "each its own id"
                )
            found[task.id], numbers[task.id] = (task, example), number
        return found


def list_datasets(sources: Iterable[TaskSource]) -> list[ToolDataset]:
    """Return the data sets among sources. They can play further examples."""
    return [source for source in sources if isinstance(source, ToolDataset)]


def answer_notes(examples: Sequence[tuple[str, ToolExample]]) -> list[str]:
    """Return notes on answers that a reward function may not read. Each example has the name of its row.

    An answer is noted if it is a number with signs that float() does not read, if it has blanks around it, if it is a
    text that marks the final answer in it, or if it is empty although others are not.
    """
    unread = [(where, each.answer) for where, each in examples if _is_unread_number(each.answer)]
    padded = [(where, each.answer) for where, each in examples if each.answer != each.answer.strip()]
    empty = [where for where, each in examples if not each.answer]
    notes = []
    for found, what in (
        (unread, "numbers with signs that float() does not read"),
        (padded, "texts with blanks around"),
    ):
        if found:
            shown = ", ".join(f"{answer!r:.40} ({where})" for where, answer in found[:_SHOWN_ANSWERS])
            notes.append(f"answers of {len(found)} rows are {what}: {shown}")
    marked = [(where, match) for where, each in examples if (match := _FINAL_ANSWER.search(each.answer))]
    if marked:
        where, match = marked[0]
        final = match["hashes"] or match["boxed"]
        read = "example.answer.rpartition('####')[2].strip()" if match["hashes"] else "what \\boxed{…} holds"
        notes.append(
            f"answers of {len(marked)} rows are a reasoning with {match[0].strip()!r:.40} in it ({where}): the whole "
            f"text is example.answer and the gold reply; if a reply should be {final!r:.40}, write only that into the "
            f"column answer, or read it in the reward: {read}"
        )
    if 0 < len(empty) < len(examples):
        notes.append(f"{len(empty)} of {len(examples)} rows have no answer: {', '.join(empty[:_SHOWN_ANSWERS])}")
    return notes


def _is_unread_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        pass
    else:
        return False
    try:
        float(_SIGNS.sub("", text))
    except ValueError:
        return False
    return True


def explain_foreign_class(episode_class: type) -> str:
    """Return what to change in a class that is no `ToolEpisode`, such as an environment of TRL."""
    how = ""
    if hasattr(episode_class, "reset"):
        how = ", or define get_reward in it, as for TRL's environment_factory"
    name = episode_class.__name__
    return f"{name} is no subclass of ToolEpisode; derive it from ToolEpisode{how}"


def is_trl_class(value: object) -> bool:
    """Return whether a value is a class with `reset` and `get_reward`."""
    return isinstance(value, type) and all(callable(getattr(value, name, None)) for name in _OWN_OF_TRL)


def episode_of_trl(environment_class: Any) -> type[ToolEpisode]:
    """Return the episodes of an environment of TRL. Raise TaskError if a tool has no free name, or cannot be one.

    As in TRL, public methods are tools, `reset` gets the columns of the row and may return a text, which is appended to
    the prompt, and `get_reward` gives the reward. The first reply without calls ends the episode. Other than in TRL,
    each episode has an object of its own, and an episode that a limit ends earns 0.
    """
    members = inspect.getmembers(environment_class, inspect.isfunction)
    tools = {name: method for name, method in members if name not in _OWN_OF_TRL and name[0] != "_"}
    for name in tools:
        if hasattr(ToolEpisode, name) or name == "example":
            raise TaskError(f"{environment_class.__name__}.{name} has a name that ToolEpisode uses; rename the tool")
    low, high = parse_reward_range(environment_class.__name__, getattr(environment_class, "reward_range", UNIT_RANGE))

    def __init__(self: Any, example: ToolExample) -> None:
        self._environment = environment_class()
        said = self._environment.reset(**_row(environment_class, example))
        ToolEpisode.__init__(self, example.replace(prompt=f"{example.prompt}{said or ''}"))

    def reward(self: Any, transcript: Sequence[Message]) -> float | Awaitable[float]:
        found = self._environment.get_reward()
        return _awaited(found) if inspect.isawaitable(found) else scale_reward(found, low, high)

    async def _awaited(found: Awaitable[Any]) -> float:
        return scale_reward(await found, low, high)

    methods: dict[str, Any] = {name: _delegate(name, method) for name, method in tools.items()}
    return type(environment_class.__name__, (ToolEpisode,), {**methods, "__init__": __init__, "reward": reward})


def _delegate(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def tool(self: Any, **arguments: Any) -> Any:
        return getattr(self._environment, name)(**arguments)

    return tool


def _row(environment_class: Any, example: ToolExample) -> dict[str, Any]:
    """Return what `reset` gets: `info`, and the prompt if the method takes it and `info` has none."""
    parameters = inspect.signature(environment_class.reset).parameters.values()
    takes_prompt = any(p.name == "prompt" or p.kind is p.VAR_KEYWORD for p in parameters)
    prompt = {"prompt": [{"role": "user", "content": example.prompt}]} if takes_prompt else {}
    return {**prompt, **example.info}


def _add_tools(episode_class: type[ToolEpisode], tools: Sequence[Callable[..., Any]]) -> type[ToolEpisode]:
    """Return a subclass with functions as tools. Raise `TaskError` for one without a free name."""
    added = dict[str, Any]()
    for tool in tools:
        name = getattr(tool, "__name__", "")
        if isinstance(tool, type):
            raise TaskError(f"the tool {name} is a class; give functions, or make it the episode_class")
        if not callable(tool) or not name.isidentifier() or name.startswith("_"):
            raise TaskError(f"the tool {tool!r:.100} is no function with a public name; define it with `def`")
        if name in added or hasattr(episode_class, name):
            raise TaskError(f"the tool {name} has a name that another tool or ToolEpisode uses; rename the function")
        added[name] = staticmethod(tool)
    return type(episode_class.__name__, (episode_class,), {"__module__": episode_class.__module__, **added})


def _copy_containers(value: Any) -> Any:
    """Return a value whose dicts, lists and sets are copies. Other objects, such as a model, are shared."""
    if type(value) is dict:
        return {key: _copy_containers(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copy_containers, value))
    return set(value) if type(value) is set else value


def _find_lone_surrogate(example: ToolExample) -> str | None:
    """Return which part of an example has a lone surrogate, or None. `info` is not stored, and may have any value."""
    texts = {name: getattr(example, name) for name in ("prompt", "domain_policy", "answer", "id", "family")}
    name = next((name for name, text in texts.items() if text != replace_surrogates(text)), None)
    if name:
        return f"its {name} contains a lone surrogate, which is not valid Unicode"
    try:
        for call in example.gold_calls:
            validate_json_value([call.name, call.arguments])
    except ValueError as e:
        return f"in its gold_calls, {e}"
    return None


class _EpisodeUser:
    """User that sends the prompt, then the answers of `env_response`."""

    def __init__(self, episode: ToolEpisode) -> None:
        self._episode = episode

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the prompt, then the episode's `env_response`."""
        if not transcript:
            return self._episode.example.prompt
        with user_code("environment", "env_response", self._episode.env_response):
            response = self._episode.env_response(transcript)
            return await response if inspect.isawaitable(response) else response


async def _score(episode: ToolEpisode, transcript: Sequence[Message], ended: bool) -> Score:
    with user_code("grader", "the reward function", episode.reward):
        result = episode.reward(transcript) if ended else 0.0
        reward = await result if inspect.isawaitable(result) else result
    return product_score({"reward": to_reward(reward, episode.reward), "within_limits": float(ended)})
