"""Test exceptions in code that users write: each is attributed to its component, and none ends a run."""

import asyncio
import gc
import io
import itertools
import os
import pickle
import random
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from support.shelves import FixedReplies, call
from toy import DOMAIN, Lamp, LampTools
from understudy.core.errors import ConfigError, RolloutError, TaskError, ToolError
from understudy.core.event_loop import run_async
from understudy.core.interruption import handle_sigterm_as_interrupt
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score, Task, UserGoal
from understudy.core.trajectory import StopReason, Trajectory, trajectory_to_jsonl
from understudy.core.user_code import (
    MAX_TEXT_LENGTH,
    MAX_TRACEBACK_LENGTH,
    describe_exception,
    task_code,
    tool_code,
    user_code,
)
from understudy.envs.domain import Domain
from understudy.envs.users import UserConfig, UserSimulatorFactory
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.group import Group
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.runs.agents import make_agent
from understudy.runs.config import TrainConfig
from understudy.runs.metrics import add_prefixes
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample
from understudy.train.metrics import rollout_metrics

TASK = DOMAIN.tasks("train")[0]


class BuggyEpisode(ToolEpisode):
    """Tools, a reward and an environment with a bug each, which the prompt selects."""

    def __init__(self, example: ToolExample) -> None:
        super().__init__(example)
        if example.prompt == "environment":
            raise KeyError("shelf")

    def find(self, number: str) -> int:
        """Find a thing."""
        return {"7": 7}[number]

    async def convert(self, text: str) -> int:
        """Convert a text to a number."""
        await asyncio.sleep(0)
        return int(text)

    def describe(self) -> object:
        """Return a value that is not JSON."""
        return object()

    def env_response(self, transcript: Sequence[Message]) -> str | None:
        if self.example.prompt == "env_response":
            raise IndexError("no answer")
        return None

    async def reward(self, transcript: Sequence[Message]) -> float:
        if self.example.prompt == "grader":
            raise ZeroDivisionError("division by zero")
        return 1.0


PROMPTS = ("fine", "environment", "env_response", "grader")
BUGGY = ToolDataset("buggy", "p", [ToolExample(prompt=p, id=p, split="train") for p in PROMPTS], BuggyEpisode)


def call_message(*calls: object) -> Message:
    return Message.model_validate({"role": "assistant", "tool_calls": calls})


def play(prompt: str, *replies: Message | str, retries: int = 0) -> Trajectory:
    task = next(task for task in BUGGY.tasks("train") if task.id == prompt)
    return asyncio.run(play_episode(BUGGY, task, FixedReplies(*replies), EpisodeLimits(max_retries=retries), seed=0))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (call("find", number="9"), "KeyError: '9'"),
        (call("convert", text="abc"), "ValueError: invalid literal for int() with base 10: 'abc'"),
        (call("describe"), "TypeError: describe returned object, which is not JSON; return object as a text, a number"),
    ],
    ids=["sync", "async", "result"],
)
def test_exception_of_tool_is_error_for_the_model(wrong: object, text: str) -> None:
    episode = play("fine", call_message(wrong), "Done.")
    (answer,) = (message.content for message in episode.messages if message.role == "tool")
    assert answer.startswith(f"Error: {text}")
    assert "test_user_code" not in answer
    assert (episode.reward, episode.event_counts["tool_exception"]) == (1.0, 1)
    (report,) = episode.exceptions
    assert report.component == "tool"
    assert report.location.startswith("test_user_code.py:")
    assert "Traceback" in report.traceback


def test_exceptions_of_one_place_have_one_report() -> None:
    episode = play("fine", *[call_message(call("find", number=n)) for n in "89"], "Done.")
    assert episode.event_counts["tool_exception"] == 2
    (report,) = episode.exceptions
    assert (report.what, report.exception) == ("the tool find", "KeyError: '8'")
    assert report.location.startswith("test_user_code.py:")
    metrics = rollout_metrics([Group(BUGGY.tasks("train")[0], [episode])], "group_mean")
    assert add_prefixes(metrics)["rollout/tool_exceptions"] == 2.0


@pytest.mark.parametrize(
    ("prompt", "fault", "exception"),
    [
        ("environment", "environment", "KeyError: 'shelf'"),
        ("env_response", "environment", "IndexError: no answer"),
        ("grader", "grader", "ZeroDivisionError: division by zero"),
    ],
)
def test_exception_outside_of_tools_is_fault_of_its_component(prompt: str, fault: str, exception: str) -> None:
    episode = play(prompt, "Done.", retries=1)
    assert (episode.stop_reason, episode.fault, episode.score) == (StopReason.FAULT, fault, None)
    assert exception in episode.error
    assert "test_user_code.py:" in episode.error
    (report,) = episode.exceptions
    assert (report.component, report.exception) == (fault, exception)
    assert episode.seed == 1  # it was played again


class BuggyLampTools(LampTools):
    """A tool of the toy domain that fails after its write."""

    async def switch_lamp(self, lamp_id: str, on: bool) -> Lamp:
        """Switch a lamp, and fail."""
        await asyncio.sleep(0)
        super().switch_lamp(lamp_id, on)
        raise LookupError("after the write")


def test_exception_of_domain_tool_undoes_its_writes() -> None:
    state = DOMAIN.initial_state(TASK)
    with pytest.raises(ToolError, match="LookupError: after the write") as raised:
        BuggyLampTools(state).call_sync(call("switch_lamp", lamp_id="L0", on=True))
    assert raised.value.kind == "tool_exception"
    assert state.changes() == {}
    with pytest.raises(TaskError, match=r"switch_lamp.*LookupError: after the write"):
        replace(DOMAIN, toolkit=BuggyLampTools).gold_changes(TASK)


def play_gold(domain: Domain) -> Trajectory:
    return asyncio.run(play_episode(domain, TASK, GoldAgent(), EpisodeLimits(max_retries=0), seed=0))


async def grade_later(*args: object, **more: object) -> float:
    await asyncio.sleep(0)
    return 0.5


@pytest.mark.parametrize(
    ("grade", "reward"),
    [(lambda *args, **more: 1, 1.0), (lambda *args, **more: Score(reward=0.25), 0.25), (grade_later, 0.5)],
    ids=["number", "score", "coroutine"],
)
def test_grader_may_return_a_number_or_be_a_coroutine(grade: Callable[..., float], reward: float) -> None:
    assert play_gold(replace(DOMAIN, grade=grade)).reward == reward


@pytest.mark.parametrize("graded", [2.0, -1, float("nan"), None, "1", Score(reward=7.0)])
def test_grade_that_is_no_reward_is_fault_of_grader(graded: object) -> None:
    episode = play_gold(replace(DOMAIN, grade=lambda *args, **more: graded))
    assert (episode.fault, episode.score) == ("grader", None)
    assert "0 to 1" in episode.error


def raise_error(*args: object, **more: object) -> float:
    raise RuntimeError("a bug")


class BuggyUser:
    """A user who says `replies` one after the other, without coroutines. An exception among them is raised."""

    def __init__(self, *replies: object) -> None:
        self._replies = iter(replies)

    def reply(self, transcript: Sequence[Message]) -> object:
        reply = next(self._replies)
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.mark.parametrize(
    ("domain", "fault"),
    [
        (replace(DOMAIN, grade=raise_error), "grader"),
        (DOMAIN.with_users(raise_error), "user"),
        (DOMAIN.with_users(lambda *args: BuggyUser(RuntimeError("a bug"))), "user"),
        (DOMAIN.with_users(lambda *args: BuggyUser("Hello.", 3)), "user"),
    ],
    ids=["grader", "user factory", "user", "user's reply"],
)
def test_exception_of_domain_is_fault_of_its_component(domain: Domain, fault: str) -> None:
    assert play_gold(domain).fault == fault


def test_user_need_not_be_a_coroutine() -> None:
    episode = play_gold(DOMAIN.with_users(lambda *args: BuggyUser("Hello.", "Yes.", "Yes.", None)))
    assert episode.fault is None
    assert [message.content for message in episode.messages if message.role == "user"] == ["Hello.", "Yes.", "Yes."]


def test_exception_of_task_generator_is_one_line() -> None:
    def generate(*args: object) -> Iterator[Task]:
        yield TASK
        raise LookupError("no more")

    with pytest.raises(TaskError, match=r"toy raised LookupError: no more \(test_user_code\.py:\d+\)"):
        list(replace(DOMAIN, generate=generate).stream("train"))


async def make_lamp_task(rng: random.Random) -> Task:
    await asyncio.sleep(0)
    return rng.choice(DOMAIN.tasks("train"))


def test_task_maker_may_be_a_coroutine() -> None:
    domain = replace(DOMAIN, module_name="lamps", families=(), generate={"one": make_lamp_task})
    first, again = (domain.sample("train", 3) for _ in range(2))
    assert first == again
    assert [task.family for task in first] == ["one"] * 3


class BuggyAgent:
    """An agent whose `act` is no coroutine, and raises `error`."""

    def __init__(self, error: object) -> None:
        self.error = error

    def act(self, *args: object) -> object:
        if isinstance(self.error, Exception):
            raise self.error
        return self.error


class AppendingAgent:
    """An agent that appends `reply`, whatever it is."""

    def __init__(self, reply: object) -> None:
        self.reply = reply

    def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: object) -> object:
        episode.observe(new)
        episode.act(self.reply)  # type: ignore[arg-type]
        return self.reply


class ForgetfulAgent:
    """An agent that does not append its reply."""

    def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: object) -> object:
        episode.observe(new)
        return HELLO_FROM_AGENT


class AgentOfOneArgument:
    """An agent whose `act` has the wrong arguments."""

    def act(self, messages: object) -> None:
        """Never called."""


HELLO_FROM_AGENT = Message(role="assistant", content="Hello.")


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        (BuggyAgent(ValueError("a bug")), r"ValueError: a bug \(test_user_code\.py:"),
        (BuggyAgent("Hello."), "a reply is a Message"),
        (
            BuggyAgent(HELLO_FROM_AGENT),
            r"has not appended the new messages to the episode; call episode\.observe\(new\)",
        ),
        (ForgetfulAgent(), r"has not appended its reply to the episode; call episode\.observe\(new\)"),
        (AppendingAgent("hi"), r"TypeError: act of the episode got 'hi'; it takes a Message, .*test_user_code\.py:"),
        (AppendingAgent(None), r"TypeError: act of the episode got None; .*test_user_code\.py:"),
        (AppendingAgent(HELLO_FROM_AGENT.replace(role="user")), r'ValueError: .* role "user".*test_user_code\.py:'),
        (AppendingAgent(HELLO_FROM_AGENT.replace(content="\ud83d")), "cannot be written as JSON"),
        (AgentOfOneArgument(), r"TypeError: .*takes 2 positional arguments but 5 .*test_user_code\.py:"),
    ],
    ids=[
        "exception",
        "text",
        "nothing appended",
        "only observed",
        "appended text",
        "appended None",
        "user",
        "surrogate",
        "signature",
    ],
)
def test_mistake_of_custom_agent_is_fault_of_agent(agent: object, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.shelves.HELLO", agent)
    agent = make_agent("support.shelves:HELLO", TrainConfig())
    episode = asyncio.run(play_episode(DOMAIN, TASK, agent, EpisodeLimits(max_retries=0), seed=0))
    assert episode.fault == "agent"
    assert re.search(text, episode.error), episode.error
    trajectory_to_jsonl(episode)  # raises ValueError for a lone surrogate


class OutOfMemoryError(RuntimeError):
    """The name of PyTorch's exception."""


@pytest.mark.parametrize("error", [ConfigError("c"), TaskError("t"), RolloutError("r", "mcp")])
@pytest.mark.parametrize(
    "enter",
    [lambda: user_code("user", "x"), lambda: tool_code("x"), lambda: task_code("x")],
    ids=["user", "tool", "task"],
)
def test_errors_that_are_no_bugs_of_users_pass(
    error: Exception, enter: Callable[[], AbstractContextManager[None]]
) -> None:
    with pytest.raises(type(error)) as raised, enter():
        raise error
    assert raised.value is error


@pytest.mark.parametrize("error", [MemoryError(), OutOfMemoryError("CUDA")], ids=repr)
def test_only_the_engines_lack_of_memory_passes(error: Exception) -> None:
    with pytest.raises(type(error)), user_code("engine", "the loss"):
        raise error


def fill_memory() -> None:
    [0] * (1 << 60)


def fill_numpy_memory() -> None:
    np.zeros(1 << 55)


def fill_torch_memory() -> None:
    torch.empty(1 << 60)


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def call_itself() -> None:
    call_itself()


class OwnStopError(BaseException):
    """An exception that is no Exception."""


def raise_own_stop() -> None:
    raise OwnStopError


def raise_group() -> None:
    raise BaseExceptionGroup("two", [ValueError("a"), OwnStopError()])


@pytest.mark.parametrize("kind", ["user", "tool", "task"])
@pytest.mark.parametrize(
    ("fails", "exception"),
    [
        (fill_memory, "MemoryError"),
        (fill_numpy_memory, "MemoryError: Unable to allocate "),
        (fill_torch_memory, "RuntimeError: "),
        (press_ctrl_c, "KeyboardInterrupt"),
        (call_itself, "RecursionError: "),
        (raise_own_stop, "OwnStopError"),
        (raise_group, "BaseExceptionGroup: two"),
    ],
)
def test_what_user_code_raises_is_of_its_component(fails: Callable[[], None], exception: str, kind: str) -> None:
    enter, expected = ENTER[kind]
    with pytest.raises(expected, match=rf"\b{exception}"), enter():
        fails()


def test_records_with_wrong_fields_are_one_line_without_an_address() -> None:
    with pytest.raises(ValidationError) as error:
        ToolCall(name="get", argumnts={})  # type: ignore[call-arg]
    assert describe_exception(error.value) == (
        "ValidationError: ToolCall: argumnts: this key is unknown; did you mean 'arguments'? allowed: arguments, "
        "extra_content, id, name, parse_error"
    )
    with pytest.raises(ValidationError) as error:
        UserGoal(text="Sync.", user_actions=())  # type: ignore[call-arg]
    assert describe_exception(error.value).endswith("user_actions: this key is unknown; it is a field of Scenario")
    with pytest.raises(ValidationError) as error:
        Lamp(room="hall").on = True  # type: ignore[misc]
    assert "row.replace(on=" in describe_exception(error.value)


@pytest.mark.filterwarnings("error")
def test_asyncio_run_in_a_tool_is_an_error_without_a_warning() -> None:
    async def later() -> None: ...

    async def call() -> None:
        for run in (asyncio.run, asyncio.get_running_loop().run_until_complete):
            with pytest.raises(ToolError, match=r"RuntimeError: .*event loop"), tool_code("get"):
                run(later())

    asyncio.run(call())
    gc.collect()


ENTER = {
    "user": (lambda: user_code("user", "x"), RolloutError),
    "tool": (lambda: tool_code("x"), ToolError),
    "task": (lambda: task_code("x"), TaskError),
}


@pytest.mark.parametrize("kind", ENTER)
def test_interruption_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    enter, _ = ENTER[kind]
    with pytest.raises(KeyboardInterrupt) as interrupt, enter():
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(BaseExceptionGroup), enter():
        raise BaseExceptionGroup("stopped", [interrupt.value])
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)  # as in a background job of a shell
    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.append(handler))
    handlers: list[Callable[..., None]] = []
    handle_sigterm_as_interrupt()
    with pytest.raises(SystemExit), enter():
        handlers[0](signal.SIGTERM, None)

    async def wait() -> None:
        with enter():
            await asyncio.sleep(0)
            await asyncio.Event().wait()

    async def cancel() -> None:
        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        abandoned.send(None)

    abandoned = wait()
    asyncio.run(cancel())
    abandoned.close()  # raises an exception if GeneratorExit does not pass


@pytest.mark.parametrize("kind", ENTER)
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()], ids=repr)
def test_exit_of_user_code_is_an_exception_of_its_component(error: BaseException, kind: str) -> None:
    enter, expected = ENTER[kind]

    async def run() -> None:
        await asyncio.sleep(0)
        with enter():
            raise error

    if kind == "task" and isinstance(error, GeneratorExit):
        expected = GeneratorExit  # a generator of tasks is closed so
    with pytest.raises(expected) as raised:
        asyncio.run(run())
    if expected in (RolloutError, ToolError):
        assert raised.value.report.location.startswith("test_user_code.py:")  # type: ignore[attr-defined]


def test_generator_of_tasks_can_be_closed() -> None:
    stream = replace(DOMAIN, generate=lambda *args: itertools.repeat(TASK)).stream("train")
    assert next(stream) == TASK
    stream.close()  # type: ignore[attr-defined]


class ExitingLampTools(LampTools):
    """A tool of the toy domain that ends the process."""

    async def switch_lamp(self, lamp_id: str, on: bool) -> Lamp:
        """Switch a lamp."""
        sys.exit(3)


def test_exit_of_coroutines_in_the_background_is_reported() -> None:
    async def draw(rng: random.Random) -> Task:
        sys.exit(3)

    with pytest.raises(ToolError, match="SystemExit: 3"):
        ExitingLampTools(DOMAIN.initial_state(TASK)).call_sync(call("switch_lamp", lamp_id="L0", on=True))
    with pytest.raises(TaskError, match=r"family 'one' raised SystemExit: 3 \(test_user_code"):
        replace(DOMAIN, module_name="lamps", families=(), generate={"one": draw}).sample("train", 1)


def test_exception_without_a_text_is_reported() -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(RolloutError, match="UnprintableError: its text cannot be shown"), user_code("user", "x"):
        raise UnprintableError


def reward_of_no_arguments() -> float:
    return 1.0


class UserOfNoArguments:
    """A user whose `__init__` has the wrong arguments."""

    def __init__(self) -> None:
        self.reply = None


@pytest.mark.parametrize(
    ("domain", "fault", "text"),
    [
        (replace(DOMAIN, grade=reward_of_no_arguments), "grader", r"TypeError: .*\(test_user_code\.py:"),
        (DOMAIN.with_users(lambda *args: BuggyAgent("")), "user", r"AttributeError: .*\(test_user_code\.py:"),
    ],
    ids=["grader", "user without reply"],
)
def test_call_that_fails_is_located_at_the_definition(domain: Domain, fault: str, text: str) -> None:
    episode = play_gold(domain)
    assert episode.fault == fault
    assert re.search(text, episode.error), episode.error


def test_wrong_user_class_is_fault_of_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.shelves.HELLO", lambda *args: BuggyAgent(""))
    users = UserSimulatorFactory(UserConfig(kind="support.shelves:HELLO"))
    with pytest.raises(RolloutError, match="is a BuggyAgent; it needs `async def reply") as raised:
        users(TASK.scenario, 7)
    assert raised.value.fault == "user"


def test_signature_of_a_user_class_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.shelves.HELLO", UserOfNoArguments)
    with pytest.raises(ConfigError, match=r"user\.kind = .*def __init__\(self, scenario, seed, user_tools\)"):
        UserSimulatorFactory(UserConfig(kind="support.shelves:HELLO"))


def test_report_is_short_and_survives_pickling() -> None:
    with pytest.raises(RolloutError) as raised, user_code("grader", "the reward function"):
        raise ValueError("a\nb " + "x" * 100_000)
    assert len(str(raised.value)) < MAX_TEXT_LENGTH + 200
    assert "\n" not in str(raised.value)
    copied = pickle.loads(pickle.dumps(raised.value))
    assert (copied.fault, copied.report) == ("grader", raised.value.report)
    assert len(copied.report.traceback) <= MAX_TRACEBACK_LENGTH + 1


def test_user_kind_names_a_class_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_users.py").write_text(
        "class Shy:\n"
        "    def __init__(self, scenario, seed, user_tools):\n"
        "        self.seed = seed\n"
        "    def reply(self, transcript):\n"
        "        return None\n"
        "NOTHING = 1\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    users = UserSimulatorFactory(UserConfig(kind="own_users:Shy"))
    assert not users.is_scripted
    assert vars(users(DOMAIN.tasks("train")[0].scenario, 7)) == {"seed": 7}
    for wrong in ("own_users:NOTHING", "own_users:Nobody"):
        with pytest.raises(ConfigError, match=wrong.partition(":")[2]):
            UserSimulatorFactory(UserConfig(kind=wrong))


class ChangingEpisode(ToolEpisode):
    """A tool that changes the process, or cancels its tasks."""

    async def change(self, folder: str) -> str:
        """Enter a folder."""
        os.chdir(folder)
        sys.setrecursionlimit(sys.getrecursionlimit() - 1)
        sys.stdout = io.StringIO()
        sys.stderr = None
        return "done"

    async def cancel(self) -> str:
        """Cancel all tasks."""
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)
        return "done"

    def reward(self, transcript: Sequence[Message]) -> float:
        assert sys.stderr is not None
        return 1.0


CHANGING = ToolDataset("changing", "p", [ToolExample(prompt="p", split="train")], ChangingEpisode)


def play_changing(*calls: object) -> Trajectory:
    agent = FixedReplies(*[call_message(each) for each in calls], "Done.")
    task = CHANGING.tasks("train")[0]
    return run_async(play_episode(CHANGING, task, agent, EpisodeLimits(max_retries=0), seed=0))


def test_state_of_the_process_is_put_back(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    before = os.getcwd(), sys.getrecursionlimit(), sys.stdout, sys.stderr
    episode = play_changing(call("change", folder=str(tmp_path)), call("change", folder=str(gone)))
    assert (episode.reward, episode.error) == (1.0, "")
    assert (os.getcwd(), sys.getrecursionlimit(), sys.stdout, sys.stderr) == before


def test_tool_that_cancels_the_tasks_of_the_run_is_one_error() -> None:
    with pytest.raises(RolloutError, match=r"cancel\(\)"):
        play_changing(call("cancel"))
