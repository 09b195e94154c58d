"""Questions: data of one's own, with tools and a reward of one's own. A module that holds such an object is a domain.

For what has no world whose changes are compared (that is a `Domain`): the user says the prompt, the agent calls tools
as often as it likes, and its first reply without calls is its answer.

    class Sum(Attempt):
        def times(self, a: int, b: int) -> int:
            "Multiply two numbers."
            return a * b

        def reward(self, transcript: Sequence[Message]) -> float:
            return float(said(self.question.reply, transcript[-1].content))

    SUMS = Questions("sums", "Answer with a number.", [Question(prompt="What is 6 * 7?", reply="42")], Sum)
"""

import functools
import hashlib
import inspect
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from understudy.domains.base import WHOLE, Slice, refuse_unknown
from understudy.environment import ToolEnvironment
from understudy.errors import TaskError
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.records import Record
from understudy.rewards import product
from understudy.tasks import Difficulty, Scenario, Score, Split, Task, epochs, select, split_of
from understudy.tools import Methods, rendered
from understudy.users import MakeUser, User


class Question(Record):
    """One row. What the reward needs and no field here holds goes into `info`."""

    prompt: str
    """What the user says."""
    policy: str = ""
    """What the agent is told, instead of the policy of all."""
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


class Attempt(Methods, tools=False):
    """One episode of a question. Public methods of a subclass are its tools, but for those of this class.

    A tool may be a coroutine; a refusal is `raise ToolError(text)`. What an object holds is its episode's alone.
    """

    def __init__(self, question: Question) -> None:
        self.question = question

    async def call(self, call: ToolCall) -> str:
        """Validate, run, and render the result as text; a refusal is a `ToolError`."""
        result = getattr(self, call.name)(**self._validated(call))
        return rendered(await result if inspect.isawaitable(result) else result)

    def reward(self, transcript: Sequence[Message]) -> float | Awaitable[float]:
        """What the episode earned, from 0 to 1, which is a success. It may be a coroutine, which asks a judge.

        The transcript begins with the policy and ends with the answer. It is asked for whole episodes alone: one that
        a limit cut off earns 0. What fails through no fault of the agent is a `RolloutError` of "grader".
        """
        raise TaskError(f"{type(self).__name__} gives no reward; write `def reward(self, transcript) -> float` into it")

    def answer(self, transcript: Sequence[Message]) -> str | None:
        """What the user says to a reply without calls; None ends the episode, and does so unless this is overridden."""
        return None


@dataclass(frozen=True)
class Questions:
    """A `TaskSource` of questions; `part` narrows it."""

    name: str
    policy: str
    """What the agent is told."""
    questions: Sequence[Question]
    attempt: type[Attempt]
    """What is called with a question for each episode."""
    user: MakeUser | None = None
    """Makes users who answer the agent's words; without it the attempt does."""
    part: Slice = WHOLE

    @property
    def families(self) -> tuple[str, ...]:
        """The families of the questions."""
        return tuple(dict.fromkeys(question.family for question in self.questions))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent is shown."""
        return tuple(spec for spec in self.attempt.specs() if not self.part.tools or spec.name in self.part.tools)

    def with_users(self, user: MakeUser) -> "Questions":
        """The same with users who may answer."""
        return replace(self, user=user)

    def slice(self, part: Slice) -> "Questions":
        """The same narrowed to `part`; a name that is not there is a `ConfigError`."""
        refuse_unknown(self.name, part, self.families, [spec.name for spec in self.attempt.specs()])
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

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        """A fresh episode of `task`."""
        question = self.question(task)
        attempt = self.attempt(question)
        made = user or (self.user(task.scenario, seed, None) if self.user else _Asking(attempt))
        grade = functools.partial(_score, attempt, task)
        return ToolEnvironment(question.policy or self.policy, attempt, made, grade, self.specs)

    @functools.cached_property
    def _by_id(self) -> Mapping[str, tuple[Task, Question]]:
        found: dict[str, tuple[Task, Question]] = {}
        for question in self.questions:
            task = question.task(self.name)
            if task.id in found:
                raise TaskError(f"{self.name}: two questions have the id {task.id!r}; give each an id of its own")
            found[task.id] = (task, question)
        return found


class _Asking:
    """The user of an attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The prompt, then what the attempt answers."""
        return self._attempt.answer(transcript) if transcript else self._attempt.question.prompt


async def _score(attempt: Attempt, task: Task, transcript: Sequence[Message], ended: bool) -> Score:
    earned = attempt.reward(transcript) if ended else 0.0
    reward = await earned if inspect.isawaitable(earned) else earned
    if not isinstance(reward, int | float) or not 0.0 <= reward <= 1.0:
        raise TaskError(f"task {task.id}: its reward is {reward!r}; a reward is a number from 0 to 1")
    return product({"reward": float(reward), "ended": float(ended)})
