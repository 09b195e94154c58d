"""Questions: prompts of one's own, plain functions as tools, and a reward of one's own.

For what has no world to change: the user says the prompt, the agent calls tools as often as it likes, and its first
reply without calls is its answer, which ends the episode. Where the state of a database decides, it is a `Domain`.

    SUMS = Questions("sums", "Answer with a number.", [Question(prompt="What is 6 * 7?", reply="42")], right, [times])

A module that holds such an object is all that `find("module:SUMS")` needs.
"""

import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from understudy.domains.base import WHOLE, Slice
from understudy.environment import Environment, ToolEnvironment
from understudy.errors import ConfigError, TaskError, nearest
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.records import Record
from understudy.rewards import product
from understudy.tasks import Difficulty, Scenario, Score, Split, Task, epochs, select, split_of
from understudy.tools import Functions
from understudy.users import MakeUser, NoUser, User


class Question(Record):
    """One row. What the reward needs and no field here holds goes into `info`."""

    prompt: str
    """What the user says."""
    reply: str = ""
    """The last words of a perfect episode, which a warm start imitates; empty where none is known."""
    gold: tuple[ToolCall, ...] = ()
    """The calls of a perfect episode, a reply each."""
    id: str = ""
    """Made of the prompt if not given."""
    split: Split | None = None
    """By the id if not given: 7 of 10 are for training, 1 for validation, 2 for tests."""
    family: str = "question"
    difficulty: Difficulty = "easy"
    info: dict[str, Any] = {}

    def task(self, domain: str) -> Task:
        """The same as everything else takes it."""
        identity = self.id or f"{domain}/{hashlib.sha256(self.prompt.encode()).hexdigest()[:12]}"
        turns = [Message(role="assistant", tool_calls=(call,)) for call in self.gold]
        last = [Message(role="assistant", content=self.reply)] if self.reply else []
        return Task(
            id=identity,
            domain=domain,
            split=self.split or split_of(identity),
            family=self.family,
            difficulty=self.difficulty,
            scenario=Scenario(instructions=self.prompt, opening=self.prompt),
            gold=(*turns, *last),
        )


class Reward(Protocol):
    """What an episode earns; it may be a coroutine, which asks a judge."""

    def __call__(self, question: Question, transcript: Sequence[Message]) -> float | Awaitable[float]:
        """A number from 0 to 1, where 1 is a success. The transcript begins with the policy and ends with the answer.

        It is asked for whole episodes alone: one that a limit cut off earns 0. What failed without being the agent's
        fault, such as a judge's endpoint, is a `RolloutError` of "grader".
        """


@dataclass(frozen=True)
class Questions:
    """A `TaskSource` of questions; `part` narrows it."""

    name: str
    policy: str
    """What the agent is told."""
    questions: Sequence[Question]
    reward: Reward
    tools: Sequence[Callable[..., Any]] = ()
    """Functions with annotations and a docstring, coroutines among them; a refusal is `raise ToolError(text)`."""
    user: MakeUser | None = None
    """Makes users who answer the agent's words; without it they say the prompt and nothing more."""
    part: Slice = WHOLE

    @property
    def families(self) -> tuple[str, ...]:
        """The families of the questions."""
        return tuple(dict.fromkeys(question.family for question in self.questions))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent is shown."""
        return tuple(spec for spec in self._tools.specs() if not self.part.tools or spec.name in self.part.tools)

    def with_users(self, user: MakeUser) -> "Questions":
        """The same with users who may answer."""
        return replace(self, user=user)

    def slice(self, part: Slice) -> "Questions":
        """The same narrowed to `part`; a name that is not there is a `ConfigError`."""
        tools = [spec.name for spec in self._tools.specs()]
        for kind, given, known in (("family", part.families, self.families), ("tool", part.tools, tools)):
            for wrong in sorted(set(given) - set(known)):
                raise ConfigError(f"{self.name} has no {kind} {nearest(wrong, known)}")
        if part.policy != "full":
            raise ConfigError(f"{self.name} has no {part.policy} policy; use slice.policy=full")
        return replace(self, part=part)

    def tasks(self, split: Split) -> list[Task]:
        """The tasks of a split, those of the slice."""
        tasks = (task for task, _ in self._by_id.values() if task.split == split)
        return select(list(tasks), self.part.families, self.part.difficulties)

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """The tasks of the slice in endless epochs, each shuffled anew."""
        return epochs(self.tasks(split), seed)

    def rows(self, task: Task) -> Sequence[tuple[str, str]]:
        """None: questions are about no rows that could belong to a split."""
        return ()

    def question(self, task: Task) -> Question:
        """The question that a task was made of."""
        if task.id not in self._by_id:
            raise TaskError(f"task {task.id} is none of the {len(self.questions)} questions of {self.name}")
        return self._by_id[task.id][1]

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        """A fresh episode of `task`. A subclass that plays otherwise overrides this."""
        question = self.question(task)
        made = user or (self.user(task.scenario, seed, None) if self.user else NoUser(question.prompt))
        return ToolEnvironment(self.policy, self._tools, made, functools.partial(self.score, task), self.specs)

    async def score(self, task: Task, transcript: Sequence[Message], ended: bool) -> Score:
        """What the reward says of an episode; `ended` is False where a limit cut it off."""
        earned = self.reward(self.question(task), transcript) if ended else 0.0
        reward = await earned if inspect.isawaitable(earned) else earned
        if not isinstance(reward, int | float) or not 0.0 <= reward <= 1.0:
            raise TaskError(f"task {task.id}: its reward is {reward!r}; a reward is a number from 0 to 1")
        return product({"reward": float(reward), "ended": float(ended)})

    @functools.cached_property
    def _tools(self) -> Functions:
        return Functions(*self.tools)

    @functools.cached_property
    def _by_id(self) -> Mapping[str, tuple[Task, Question]]:
        found: dict[str, tuple[Task, Question]] = {}
        for question in self.questions:
            task = question.task(self.name)
            if task.id in found:
                raise TaskError(
                    f"{self.name}: two questions have the id {task.id!r}; give each an id, or another prompt"
                )
            found[task.id] = (task, question)
        return found
