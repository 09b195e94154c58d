"""Task sources, users, tools and rewards that fail by a plan. The module `injected` in a case's folder opens them."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.faults.injection import HANG, FaultInjector
from understudy.core.errors import RolloutError
from understudy.core.messages import Message, ToolCall, ToolSpec, assign_call_ids
from understudy.core.tasks import Scenario, Score, Split, Task
from understudy.envs.environment import Environment, StepResult
from understudy.envs.rewards import states_fact
from understudy.envs.task_source import Slice, TaskSource
from understudy.envs.tools import UserTools
from understudy.envs.users import ScriptedUser, User, UserFactory
from understudy.sources.loading import load_source
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

SLOW_SECONDS = 0.05
"""How long a slow call takes."""
RANK = "a rank of two"
MODULE_NAME = "injected"
MODULE_TEXT = f"""\
from pathlib import Path

from {__name__} import open_faulty_source, open_faulty_users

SOURCE = open_faulty_source(Path(__file__).parent)
USER = open_faulty_users(Path(__file__).parent)
"""
"""The module in a case's folder: `injected:SOURCE` is its task source, and `injected:USER` its users."""


def open_faulty_source(folder: Path) -> "FaultySource":
    """Return the plan's task source with its faults. If the plan names none, it is a data set of sums."""
    injector = FaultInjector(folder)
    return FaultySource(load_source(injector.plan.domain) if injector.plan.domain else _make_sums(injector), injector)


def open_faulty_users(folder: Path) -> UserFactory:
    """Return a factory of scripted users with the plan's faults."""
    injector = FaultInjector(folder)

    def make_user(scenario: Scenario, seed: int, user_tools: UserTools | None = None) -> User:
        return _FaultyUser(ScriptedUser(scenario, seed, user_tools), scenario, injector)

    return make_user


async def raise_fault(fault: str) -> bool:
    """Raise the exception of a fault, or wait. Return whether the call has to return wrong data instead."""
    if fault == "exception":
        raise OSError("an injected exception")
    if fault == "slow":
        await asyncio.sleep(SLOW_SECONDS)
    if fault == HANG:
        await asyncio.Event().wait()
    return fault == "wrong data"


@dataclass(frozen=True)
class FaultySource(TaskSource):
    """A task source whose episodes fail by the injector's plan."""

    inner: TaskSource
    injector: FaultInjector

    @property
    def name(self) -> str:
        """The name of the inner source."""
        return self.inner.name

    @property
    def families(self) -> Sequence[str]:
        """The families of the inner source."""
        return self.inner.families

    @property
    def tool_specs(self) -> Sequence[ToolSpec]:
        """The tools of the inner source."""
        return self.inner.tool_specs

    @property
    def domain_policy(self) -> str:
        """The domain policy of the inner source."""
        return self.inner.domain_policy

    def with_users(self, user_factory: UserFactory) -> "FaultySource":
        """Return this source with users made by `user_factory`."""
        return replace(self, inner=self.inner.with_users(user_factory))

    def slice(self, task_slice: Slice) -> "FaultySource":
        """Return this source narrowed to `task_slice`."""
        return replace(self, inner=self.inner.slice(task_slice))

    def tasks(self, split: Split) -> list[Task]:
        """Return the frozen tasks of a split."""
        return self.inner.tasks(split)

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Yield tasks of the inner source."""
        return self.inner.stream(split, seed)

    def split_row_keys(self, task: Task) -> Sequence[tuple[str, str]]:
        """Return the rows that `task` uses."""
        return self.inner.split_row_keys(task)

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        """Return a new episode of `task`."""
        return _FaultyEpisode(self.inner.environment(task, user, seed), task, self.injector)


class _FaultyEpisode:
    """An episode that fails by a plan.

    If the plan says so, it answers gold turns in place of the replies of an agent whose first reply is not empty.
    """

    def __init__(self, inner: Environment, task: Task, injector: FaultInjector) -> None:
        self._inner, self._task, self._injector = inner, task, injector
        self._num_turns, self._plays_gold = 0, injector.plan.plays_gold

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return self._inner.tools

    async def start(self) -> StepResult:
        if _is_rank_one() and (fault := self._find_fault(RANK)):
            os.kill(os.getpid(), signal.SIGSTOP if fault == HANG else signal.SIGKILL)
        return await self._result("environment reset", await self._inner.start())

    async def step(self, reply: Message) -> StepResult:
        turns, turn = self._task.gold_turns, self._num_turns
        self._num_turns += 1
        if not turn and not reply.content and not reply.tool_calls:  # the noop agent, whose score must stay 0
            self._plays_gold = False
        if self._plays_gold and turn < len(turns):
            reply = assign_call_ids(turns[turn], turn)
        return await self._result("environment step", await self._inner.step(reply))

    async def grade(self, ended: bool) -> Score:
        return await self._inner.grade(ended)

    async def close(self) -> None:
        await self._inner.close()
        await raise_fault(self._find_fault("environment close"))

    async def _result(self, component: str, result: StepResult) -> StepResult:
        wrong: Any = "an injected text"
        return wrong if await raise_fault(self._find_fault(component)) else result

    def _find_fault(self, component: str) -> str:
        return self._injector.find_fault(component, self._task.id) if self._task.split == "train" else ""


class _FaultyUser:
    """A user that fails by a plan."""

    def __init__(self, inner: User, scenario: Scenario, injector: FaultInjector) -> None:
        self._inner, self._key, self._injector = inner, scenario.instructions, injector

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        wrong: Any = 17
        is_wrong = await raise_fault(self._injector.find_fault("user", self._key))
        return wrong if is_wrong else await self._inner.reply(transcript)


def _make_sums(injector: FaultInjector) -> ToolDataset:
    """Return a data set of sums whose tool and reward fail by the plan."""

    class Sums(ToolEpisode):
        async def add(self, a: int, b: int) -> int:
            """Add two numbers."""
            fault = injector.find_fault("tools", self.example.prompt)
            if fault == "service down":
                raise RolloutError("the injected service is down", "tool")
            wrong: Any = object()
            return wrong if await raise_fault(fault) else a + b

        async def reward(self, transcript: Sequence[Message]) -> float:
            is_wrong = await raise_fault(injector.find_fault("grader", self.example.prompt))
            told = states_fact(self.example.answer, transcript[-1].content)
            return float("nan") if is_wrong else float(told and any(m.role == "tool" for m in transcript))

    return ToolDataset("sums", "Answer with a number.", [_make_example(number) for number in range(24)], Sums)


def _is_rank_one() -> bool:
    """Return whether this process is the second of its group."""
    import torch.distributed as dist  # here, because the documentation reads the cases without torch

    return dist.is_initialized() and dist.get_rank() == 1


def _make_example(number: int) -> ToolExample:
    a, b = 11 + number, 57 - 2 * number
    splits: Sequence[Split] = ("train", "validation", "test")
    return ToolExample(
        prompt=f"What is {a} + {b}?",
        answer=str(a + b),
        gold_calls=(ToolCall(name="add", arguments={"a": a, "b": b}),),
        split=splits[number % 3],
    )
