"""Tests of rollouts: limits, faults, retries, seeds, and groups of episodes that run concurrently."""

import asyncio
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.shelves import FixedReplies
from toy import DOMAIN
from understudy.core.errors import ConfigError, Fault, RolloutError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import StopReason, Trajectory, read_trajectories, write_trajectories
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.envs.environment import StepResult, ToolEnvironment
from understudy.envs.users import User
from understudy.rollouts.agent import GoldAgent, NoopAgent
from understudy.rollouts.group import Group
from understudy.rollouts.rollout import (
    EpisodeLimits,
    RolloutRequest,
    episode_seed,
    play_episode,
    rollout,
)
from understudy.rollouts.scheduler import play_groups
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

TASKS = DOMAIN.tasks("train")
LIMITS = EpisodeLimits()


class FakeEnvironment:
    """An environment of one turn that takes `duration` event-loop steps. `hook` may raise in any of its methods."""

    tools: Sequence[ToolSpec] = ()

    def __init__(self, reward: float, duration: int = 0, hook: Callable[[str], None] = lambda when: None) -> None:
        self.reward, self.duration, self.hook = reward, duration, hook
        self.closed = 0

    async def start(self) -> StepResult:
        self.hook("start")
        return StepResult((Message(role="user", content="Play."),))

    async def step(self, reply: Message) -> StepResult:
        self.hook("step")
        for _ in range(self.duration):
            await asyncio.sleep(0)
        return StepResult(score=await self.grade(ended=True), error_kinds=("refused",))

    async def grade(self, ended: bool) -> Score:
        self.hook("grade")
        return Score(reward=self.reward)

    async def close(self) -> None:
        self.hook("close")
        self.closed += 1


class GreetingEnvironment(FakeEnvironment):
    """An environment that greets the user in the agent's place, and never ends."""

    async def start(self) -> StepResult:
        greeting = Message(role="assistant", content="Hello, how can I help?")
        return StepResult((greeting, *(await super().start()).messages))

    async def step(self, reply: Message) -> StepResult:
        return StepResult((Message(role="user", content="Go on."),))


def test_greeting_of_the_environment_is_no_turn_of_the_agent(tmp_path: Path) -> None:
    episode = asyncio.run(rollout(TASKS[0], GreetingEnvironment(1.0), GoldAgent(), EpisodeLimits(max_turns=2)))
    assert episode.stop_reason is StopReason.MAX_TURNS
    assert [message.role for message in episode.messages] == ["assistant", *2 * ("user", "assistant"), "user"]
    assert episode.messages[2].content == TASKS[0].gold_turns[0].content
    (tmp_path / "old.jsonl").write_text('{"task_id": "t", "messages": [{"role": "assistant", "content": "Yes."}]}')
    write_trajectories(tmp_path / "new.jsonl", [episode])
    ((new,), _), ((old,), _) = (read_trajectories(tmp_path / f"{name}.jsonl") for name in ("new", "old"))
    assert (new.num_turns, new.reply_indices) == (2, [2, 4])
    assert (old.num_turns, old.reply_indices) == (1, [0])


class RecordingFactory:
    """An environment factory that records the environments it creates and their seeds."""

    def __init__(self, make: Callable[[Task, int], FakeEnvironment]) -> None:
        self._make = make
        self.made: list[tuple[str, int, FakeEnvironment]] = []

    def environment(self, task: Task, *, seed: int) -> FakeEnvironment:
        game = self._make(task, seed)
        self.made.append((task.id, seed, game))
        return game


def failing_hook(fault: Fault, at: str, times: int = 10**9) -> Callable[[str], None]:
    left = [times]

    def hook(when: str) -> None:
        if when == at and left[0]:
            left[0] -= 1
            raise RolloutError(f"the {fault} is gone", fault)

    return hook


def test_finished_episode_records_its_task_and_score() -> None:
    game = FakeEnvironment(0.5)
    episode = asyncio.run(rollout(TASKS[0], game, NoopAgent(), LIMITS, seed=3))
    assert (episode.reward, episode.stop_reason, episode.fault, episode.error) == (0.5, StopReason.DONE, None, "")
    assert (episode.task_id, episode.domain, episode.family, episode.difficulty, episode.seed) == (
        TASKS[0].id,
        "toy",
        TASKS[0].family,
        TASKS[0].difficulty,
        3,
    )
    assert [m.role for m in episode.messages] == ["user", "assistant"]
    assert episode.event_counts == {"refused": 1}
    assert episode.timings.keys() == {"agent", "environment"}
    assert game.closed == 1


@pytest.mark.parametrize(
    ("most", "stop", "turns"), [(1, StopReason.MAX_TURNS, 1), (2, StopReason.MAX_TURNS, 2), (9, StopReason.DONE, 3)]
)
def test_max_turns_ends_the_episode(most: int, stop: StopReason, turns: int) -> None:
    task = next(task for task in TASKS if task.family == "one")
    episode = asyncio.run(rollout(task, DOMAIN.environment(task), GoldAgent(), EpisodeLimits(max_turns=most)))
    assert (episode.stop_reason, episode.num_turns) == (stop, turns)
    assert episode.score is not None
    assert episode.reward == (1.0 if stop is StopReason.DONE else 0.0)
    assert episode.score.parts["within_limits"] == (stop is StopReason.DONE)
    if stop is not StopReason.DONE:
        assert episode.messages[-1].role in ("tool", "user"), "what came of the last reply is told"


class FaultyCallsAgent:
    """An agent whose replies have calls, each readable or not."""

    def __init__(self, readable: str) -> None:
        self.readable = readable

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        episode.observe(new)
        error = "" if self.readable[episode.num_turns] == "y" else "not JSON"
        calls = (ToolCall(name="look_up", id="1"), ToolCall(name="look_up", id="2", parse_error=error))
        episode.act(reply := Message(role="assistant", tool_calls=calls))
        return reply


@pytest.mark.parametrize(
    ("most", "stop", "turns"),
    [(0, StopReason.MAX_TURNS, 6), (1, StopReason.INVALID_REPLIES, 1), (3, StopReason.INVALID_REPLIES, 6)],
)
def test_invalid_replies_in_a_row_end_the_episode(most: int, stop: StopReason, turns: int) -> None:
    limits = EpisodeLimits(max_turns=6, max_invalid_replies=most)
    environment = DOMAIN.environment(TASKS[0])
    episode = asyncio.run(rollout(TASKS[0], environment, FaultyCallsAgent("nnynnn"), limits))
    assert (episode.stop_reason, episode.num_turns) == (stop, turns)
    assert episode.num_invalid_replies == min(turns, 3)
    assert episode.messages[-1].role == "tool", "the errors of the last reply are told"
    assert episode.score is not None
    assert (episode.reward, episode.score.parts["within_limits"]) == (0.0, 0.0)


class VerboseAgent:
    """An agent with ten prompt tokens and ten reply tokens in each turn."""

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        episode.observe(new, [0] * 10)
        episode.act(reply := Message(role="assistant", content="Hm."), [1] * 10, [-1.0] * 10)
        return reply


@pytest.mark.parametrize(("most", "turns"), [(1, 1), (20, 1), (21, 2), (40, 2), (41, 3)])
def test_max_episode_tokens_ends_the_episode(most: int, turns: int) -> None:
    patient = TASKS[0].replace(scenario=TASKS[0].scenario.replace(patience=99))
    episode = asyncio.run(
        rollout(patient, DOMAIN.environment(patient), VerboseAgent(), EpisodeLimits(max_episode_tokens=most))
    )
    assert (episode.stop_reason, episode.num_turns, len(episode.tokens)) == (StopReason.MAX_TOKENS, turns, 20 * turns)
    assert (episode.messages[-1].role, episode.mask[-1]) == ("user", True), "the answer to it is told, without tokens"
    assert episode.reward == 0.0


class LongTextEpisode(ToolEpisode):
    """A tool with a result of any length, and a user of 200 characters."""

    def read(self, length: int) -> str:
        """Read a text."""
        return "x" * length

    def env_response(self, transcript: Sequence[Message]) -> str | None:
        return "y" * 200 if transcript[-1].content == "more" else None

    def reward(self, transcript: Sequence[Message]) -> float:
        return 1.0


LONG_TEXTS = ToolDataset("long", "p", [ToolExample(prompt="Hi.", split="train")], LongTextEpisode)


@pytest.mark.parametrize(
    ("reply", "stop", "fault", "named"),
    [
        (ToolCall(name="read", arguments={"length": 100}), StopReason.DONE, None, ""),
        (
            ToolCall(name="read", arguments={"length": 101}),
            StopReason.FAULT,
            "tool",
            "the result of read has 101 .*max_message_chars = 100",
        ),
        ("more", StopReason.FAULT, "user", "a message of the user has 200 .*max_message_chars = 100"),
        ("z" * 101, StopReason.MAX_TOKENS, None, ""),
        (ToolCall(name="read", arguments={"length": 1, "more": "z" * 100}), StopReason.MAX_TOKENS, None, ""),
    ],
    ids=["short", "tool", "user", "reply", "arguments"],
)
def test_message_that_is_too_long_ends_the_episode(
    reply: ToolCall | str, stop: StopReason, fault: Fault | None, named: str
) -> None:
    first = reply if isinstance(reply, str) else Message(role="assistant", tool_calls=(reply,))
    limits = EpisodeLimits(max_message_chars=100, max_retries=0)
    (task,) = LONG_TEXTS.tasks("train")
    episode = asyncio.run(play_episode(LONG_TEXTS, task, FixedReplies(first, "Done."), limits, seed=0))
    assert (episode.stop_reason, episode.fault) == (stop, fault)
    assert re.search(named, episode.error or "")


@pytest.mark.parametrize("fault", ["user", "tool", "mcp", "grader", "engine"])
@pytest.mark.parametrize("at", ["start", "step", "grade"])
def test_infrastructure_fault_is_attributed_and_has_no_reward(fault: Fault, at: str) -> None:
    game = FakeEnvironment(1.0, hook=failing_hook(fault, at))
    episode = asyncio.run(rollout(TASKS[0], game, NoopAgent(), LIMITS))
    assert (episode.stop_reason, episode.fault, episode.error) == (StopReason.FAULT, fault, f"the {fault} is gone")
    assert episode.score is None
    with pytest.raises(ValueError, match=rf"the {fault} is gone"):
        assert episode.reward
    assert game.closed == 1


class FailingBackend:
    """An agent whose engine always fails, and a user that always fails."""

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        raise RolloutError("no engine", "engine")

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        raise RolloutError("no user", "user")


def test_agent_and_user_errors_are_attributed_as_faults() -> None:
    episode = asyncio.run(rollout(TASKS[0], DOMAIN.environment(TASKS[0]), FailingBackend(), LIMITS))
    assert (episode.fault, episode.error) == ("engine", "no engine")
    user: User = FailingBackend()
    episode = asyncio.run(rollout(TASKS[0], DOMAIN.environment(TASKS[0], user), GoldAgent(), LIMITS))
    assert (episode.fault, episode.error) == ("user", "no user")


@pytest.mark.parametrize(("retries", "failures", "attempts"), [(2, 0, 1), (2, 2, 3), (2, 3, 3), (0, 1, 1)])
def test_faulty_episode_is_retried_with_a_new_environment_and_seed(retries: int, failures: int, attempts: int) -> None:
    hook = failing_hook("tool", "step", failures)
    source = RecordingFactory(lambda task, seed: FakeEnvironment(1.0, hook=hook))
    episode = asyncio.run(play_episode(source, TASKS[0], NoopAgent(), EpisodeLimits(max_retries=retries), 100))
    assert len(source.made) == attempts
    assert len({id(game) for *_, game in source.made}) == attempts
    assert all(game.closed == 1 for *_, game in source.made)
    assert episode.stop_reason is (StopReason.FAULT if failures > retries else StopReason.DONE)
    assert episode.seed == 100 + attempts - 1
    assert [seed for _, seed, _ in source.made] == [100 + i for i in range(attempts)]
    assert len(episode.messages) == 2, "nothing is left of earlier attempts"


@pytest.mark.parametrize("when", ["start", "step", "grade", "close"])
def test_exception_of_an_environment_is_its_fault_and_has_no_score(when: str) -> None:
    def bug(method: str) -> None:
        if method == when:
            raise ZeroDivisionError

    game = FakeEnvironment(1.0, hook=bug)
    episode = asyncio.run(rollout(TASKS[0], game, NoopAgent(), LIMITS))
    assert (episode.stop_reason, episode.fault, episode.score) == (StopReason.FAULT, "environment", None)
    assert "ZeroDivisionError" in episode.exceptions[0].traceback
    assert game.closed == (when != "close")


class HangingEpisode(ToolEpisode):
    """An episode of which one part never returns: the one that the prompt names."""

    async def look(self) -> str:
        """Look around."""
        await self._hang_in("tool")
        return "a wall"

    async def reward(self, transcript: Sequence[Message]) -> float:
        await self._hang_in("grader")
        return 1.0

    async def env_response(self, transcript: Sequence[Message]) -> None:
        await self._hang_in("environment")

    async def _hang_in(self, part: str) -> None:
        if self.example.prompt == part:
            await asyncio.Event().wait()


class HangingUser:
    """A user who never answers a reply."""

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        if transcript:
            await asyncio.Event().wait()
        return "Look."


@pytest.mark.parametrize("part", ["environment", "tool", "grader", "user"])
def test_part_that_never_returns_is_its_fault(part: str) -> None:
    gold = (ToolCall(name="look"),)
    example = ToolExample(prompt=part, answer="A wall.", gold_calls=gold, split="train")
    source = ToolDataset("hanging", "", [example], HangingEpisode)
    (task,) = source.tasks("train")
    user = HangingUser() if part == "user" else None
    limits = EpisodeLimits(max_step_seconds=0.5)
    episode = asyncio.run(rollout(task, source.environment(task, user), GoldAgent(), limits))
    assert (episode.stop_reason, episode.fault, episode.score) == (StopReason.FAULT, part, None)
    assert "0.5 s" in (episode.error or "")
    assert "limits.max_step_seconds" in (episode.error or "")


@pytest.mark.parametrize("method", ["start", "step", "grade", "close"])
def test_method_that_never_returns_ends_the_attempt_and_is_played_again(method: str) -> None:
    class FullContextAgent(NoopAgent):
        async def act(self, *_: Any) -> None:  # type: ignore[override]
            return None

    async def hang(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    def make(task: Task, seed: int) -> FakeEnvironment:
        game = FakeEnvironment(1.0)
        if not source.made:
            setattr(game, method, hang)
        return game

    source = RecordingFactory(make)
    agent = FullContextAgent() if method == "grade" else NoopAgent()
    episode = asyncio.run(play_episode(source, TASKS[0], agent, EpisodeLimits(max_step_seconds=0.5), seed=0))
    assert (episode.fault, episode.reward, len(source.made)) == (None, 1.0, 2)


def test_infinite_limit_ends_no_step() -> None:
    limits = EpisodeLimits(max_step_seconds=math.inf)
    episode = asyncio.run(rollout(TASKS[0], FakeEnvironment(1.0, duration=3), NoopAgent(), limits))
    assert (episode.fault, episode.reward) == (None, 1.0)


def test_timeout_and_cancellation_that_are_not_the_limit_pass() -> None:
    def time_out(method: str) -> None:
        if method == "step":
            raise TimeoutError("mine")

    episode = asyncio.run(rollout(TASKS[0], FakeEnvironment(1.0, hook=time_out), NoopAgent(), LIMITS))
    assert (episode.fault, "max_step_seconds" in (episode.error or "")) == ("environment", False)

    async def cancel() -> None:
        reached = asyncio.Event()
        game = FakeEnvironment(1.0, duration=10**9, hook=lambda method: reached.set() if method == "step" else None)
        playing = asyncio.ensure_future(rollout(TASKS[0], game, NoopAgent(), LIMITS))
        await reached.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert game.closed == 1

    asyncio.run(cancel())


def test_episode_without_any_wait_can_be_cancelled() -> None:
    class EndlessEnvironment(FakeEnvironment):
        async def step(self, reply: Message) -> StepResult:
            replies.append(reply)
            if len(replies) == 100:
                raise AssertionError("the episode cannot be cancelled")
            return StepResult()

    async def cancel() -> None:
        limits = LIMITS.replace(max_turns=1000)
        playing = asyncio.ensure_future(rollout(TASKS[0], EndlessEnvironment(1.0), NoopAgent(), limits))
        await asyncio.sleep(0)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    replies = list[Message]()
    asyncio.run(cancel())


def test_reply_that_is_not_acted_is_a_fault_of_the_agent() -> None:
    """Such replies count as no turns, so no limit would end the episode."""

    class ObservingAgent(NoopAgent):
        async def act(self, task: Task, episode: Trajectory, new: Any, tools: Any) -> Message:
            reply = Message(role="assistant", content="Hello.")
            episode.observe([*new, reply])
            return reply

    episode = asyncio.run(rollout(TASKS[0], FakeEnvironment(1.0, duration=10**9), ObservingAgent(), LIMITS))
    assert (episode.fault, "episode.act" in episode.error) == ("agent", True)


def test_exception_of_the_grader_at_a_limit_is_its_fault() -> None:
    def bug(method: str) -> None:
        if method == "grade":
            raise ZeroDivisionError

    class FullContextAgent(NoopAgent):
        async def act(self, *_: Any) -> None:  # type: ignore[override]
            return None

    game = FakeEnvironment(1.0, hook=bug)
    episode = asyncio.run(rollout(TASKS[0], game, FullContextAgent(), LIMITS))
    assert (episode.fault, episode.score, game.closed) == ("grader", None, 1)


@pytest.mark.parametrize("method", ["start", "step"])
def test_wrong_result_of_an_environment_is_its_fault(method: str) -> None:
    game = FakeEnvironment(1.0)

    async def wrong(*_: Any) -> Any:
        return {"score": 1.0}

    setattr(game, method, wrong)
    episode = asyncio.run(rollout(TASKS[0], game, NoopAgent(), LIMITS))
    assert (episode.fault, episode.score, game.closed) == ("environment", None, 1)
    assert method in (episode.error or "")
    assert "StepResult" in (episode.error or "")


@pytest.mark.parametrize("method", ["start", "step", "grade", "close"])
def test_method_of_an_environment_without_async_is_its_fault(method: str) -> None:
    class FullContextAgent(NoopAgent):
        async def act(self, *_: Any) -> None:  # type: ignore[override]
            return None

    game = FakeEnvironment(1.0)
    setattr(game, method, lambda *_, **__: None)
    agent = FullContextAgent() if method == "grade" else NoopAgent()
    episode = asyncio.run(rollout(TASKS[0], game, agent, LIMITS))
    assert (episode.fault, episode.score) == ("environment", None)
    assert re.match(rf"{method} of FakeEnvironment \(test_rollout.py:\d+\) .*\basync def", episode.error)


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (None, r"None\b.*\bno tools, start, step, grade, close\b"),
        (StepResult(), r"an object of StepResult\b.*\bno tools, start\b"),
        (FakeEnvironment, r"the class FakeEnvironment \(test_rollout.py:\d+\).* FakeEnvironment\(\.\.\.\)"),
    ],
)
def test_a_source_that_returns_no_environment_is_named(returned: object, error: str) -> None:
    class Broken:
        def environment(self, task: Task, *, seed: int) -> Any:
            return returned

    episode = asyncio.run(play_episode(Broken(), TASKS[0], NoopAgent(), LIMITS, 0))
    assert episode.fault == "environment"
    assert re.match(rf"environment of \S*\bBroken \(test_rollout.py:\d+\) returned {error}", episode.error)


def test_a_class_instead_of_an_agent_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\bNoopAgent is a class\b.* NoopAgent\(\.\.\.\)"):
        asyncio.run(rollout(TASKS[0], FakeEnvironment(1.0), NoopAgent, LIMITS))  # type: ignore[arg-type]


def test_bug_of_an_agent_propagates_and_closes_the_environment() -> None:
    class BuggyAgent(NoopAgent):
        async def act(self, *_: Any) -> Message:
            raise ZeroDivisionError

    game = FakeEnvironment(1.0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(rollout(TASKS[0], game, BuggyAgent(), LIMITS))
    assert game.closed == 1


def test_agent_that_records_a_user_message_as_its_reply_is_told_so() -> None:
    class ConfusedAgent(NoopAgent):
        async def act(self, task: Task, episode: Trajectory, new: Any, tools: Any) -> Message:
            episode.act(reply := Message(role="user", content="Hello."))
            return reply

    with pytest.raises(ValueError, match=r'"user".*"assistant"'):
        asyncio.run(rollout(TASKS[0], FakeEnvironment(1.0, duration=10**9), ConfusedAgent(), LIMITS))


def fail_to_close(method: str) -> None:
    if method == "close":
        raise ConnectionError("the server is gone")


def test_failing_close_does_not_replace_an_earlier_error() -> None:
    class FailingAgent(NoopAgent):
        def __init__(self, error: Exception) -> None:
            self.error = error

        async def act(self, *_: Any) -> Message:
            raise self.error

    source = RecordingFactory(lambda task, seed: FakeEnvironment(1.0, hook=fail_to_close))
    with pytest.raises(ConfigError, match="no room"):
        asyncio.run(play_episode(source, TASKS[0], FailingAgent(ConfigError("no room")), LIMITS, 0))
    assert len(source.made) == 1, "the episode is not played again"
    agent = FailingAgent(RolloutError("no engine", "engine"))
    episode = asyncio.run(rollout(TASKS[0], FakeEnvironment(1.0, hook=fail_to_close), agent, LIMITS))
    assert (episode.fault, episode.error) == ("engine", "no engine")


def test_failing_close_does_not_swallow_a_cancellation() -> None:
    async def cancel() -> None:
        playing = asyncio.ensure_future(play_episode(source, TASKS[0], NoopAgent(), LIMITS, 0))
        await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    source = RecordingFactory(lambda task, seed: FakeEnvironment(1.0, duration=10**9, hook=fail_to_close))
    asyncio.run(cancel())
    assert len(source.made) == 1, "the episode is not played again"


def test_malformed_calls_are_counted_and_do_not_end_the_episode() -> None:
    environment = DOMAIN.environment(TASKS[0])
    assert isinstance(environment, ToolEnvironment)
    call = {"name": "switch_lamp", "parse_error": "not JSON"}
    broken = TASKS[0].replace(
        gold=(Message.model_validate({"role": "assistant", "tool_calls": [call]}), *TASKS[0].gold)
    )
    episode = asyncio.run(rollout(broken, environment, GoldAgent(), LIMITS))
    assert episode.reward == 1.0
    assert episode.event_counts == {"malformed": 1}


def run_groups(
    source: RecordingFactory,
    *,
    size: int = 2,
    count: int = 3,
    refill: int = 0,
    tasks: Iterator[Task] | None = None,
    seed: int = 7,
) -> list[Group]:
    return asyncio.run(
        play_groups(
            RolloutRequest(source, NoopAgent(), seed=seed),
            tasks or iter(TASKS),
            group_size=size,
            num_groups=count,
            max_resampled_groups=refill,
        )
    )


@pytest.mark.parametrize("processes", [1, 2])
def test_progress_counts_ended_and_started_episodes(processes: int) -> None:
    """No group has variance, so a third one is played in place of the first that ends."""

    def play(process_group: ProcessGroup) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        ended: list[Trajectory] = []
        request = RolloutRequest(
            RecordingFactory(lambda task, seed: FakeEnvironment(1.0)),
            NoopAgent(),
            process_group=process_group,
            on_progress=lambda done, total: seen.append((done, total)),
            on_episode=ended.append,
        )
        asyncio.run(play_groups(request, iter(TASKS), group_size=2, num_groups=2, max_resampled_groups=1))
        assert [episode.reward for episode in ended] == [1.0] * seen[-1][0]
        return seen

    if processes == 1:
        assert play(SINGLE_PROCESS) == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4), (4, 6), (5, 6), (6, 6)]
        return
    shared_values, barrier = [None] * processes, threading.Barrier(processes)
    with ThreadPoolExecutor(processes) as pool:
        found = list(pool.map(play, [ThreadProcessGroup(rank, shared_values, barrier) for rank in range(processes)]))
    assert found == [[(0, 2), (1, 2), (2, 2), (2, 3), (3, 3)]] * 2


def factory_with_rewards(
    rewards: dict[int, tuple[float, ...]], duration: dict[int, int] | None = None
) -> RecordingFactory:
    """Return a factory with rewards by task number; `duration` gives the event-loop steps of a task's episodes."""
    number = {task.id: i for i, task in enumerate(TASKS)}
    left = {i: list(values) for i, values in rewards.items()}
    return RecordingFactory(
        lambda task, seed: FakeEnvironment(left[number[task.id]].pop(0), (duration or {}).get(number[task.id], 0))
    )


def test_group_plays_one_task_with_distinct_seeds() -> None:
    source = factory_with_rewards({0: (0.0, 1.0, 0.5)})
    (group,) = run_groups(source, size=3, count=1)
    assert [episode.reward for episode in group.episodes] == [0.0, 1.0, 0.5]
    assert [episode.seed for episode in group.episodes] == [episode_seed(7, TASKS[0], i) for i in range(3)]
    assert len({episode.seed for episode in group.episodes}) == 3
    assert {episode.task_id for episode in group.episodes} == {TASKS[0].id}


def test_episode_seeds_are_deterministic_and_distinct() -> None:
    assert episode_seed(7, TASKS[0].replace(id="a"), 1) == 3565837012
    seeds = {episode_seed(seed, task, trial) for seed in range(5) for task in TASKS for trial in range(5)}
    assert len(seeds) == 5 * len(TASKS) * 5
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_repeated_task_gets_new_seeds() -> None:
    task, other = TASKS[:2]
    source = RecordingFactory(lambda task, seed: FakeEnvironment(0.0))
    played = run_groups(source, count=3, refill=1, tasks=iter([task, other, task, task]))
    trials = [(task, 0, 1), (other, 0, 1), (task, 2, 3), (task, 4, 5)]
    assert [[e.seed for e in group.episodes] for group in played] == [
        [episode_seed(7, t, i) for i in of] for t, *of in trials
    ]


def test_group_of_equal_rewards_is_resampled_and_still_returned() -> None:
    source = factory_with_rewards(
        {0: (0.0, 1.0), 1: (0.0, 0.0), 2: (1.0, 1.0), 3: (0.0, 0.0), 4: (1.0, 0.0), 5: (0.0, 1.0)}
    )
    tasks = iter(TASKS)
    played = run_groups(source, refill=5, tasks=tasks)
    assert [group.task.id for group in played] == [TASKS[i].id for i in range(6)]
    assert [group.has_reward_variance for group in played] == [True, False, False, False, True, True]
    assert next(tasks).id == TASKS[6].id, "a resumed run goes on with the task after those played"


@pytest.mark.parametrize(("refill", "expected"), [(0, 3), (1, 4), (4, 7)])
def test_number_of_resampled_groups_is_bounded(refill: int, expected: int) -> None:
    assert len(run_groups(factory_with_rewards(dict.fromkeys(range(12), (0.0, 0.0))), refill=refill)) == expected


def test_no_group_is_resampled_when_tasks_run_out() -> None:
    played = run_groups(factory_with_rewards(dict.fromkeys(range(4), (0.0, 0.0))), refill=9, tasks=iter(TASKS[:4]))
    assert len(played) == 4
    assert (
        len(run_groups(factory_with_rewards(dict.fromkeys(range(4), (0.0, 0.0))), refill=9, tasks=iter(TASKS[:2]))) == 2
    )


def test_groups_are_returned_in_start_order() -> None:
    rewards = {0: (0.0, 1.0), 1: (0.0, 0.0), 2: (0.0, 0.0), 3: (0.0, 1.0), 4: (0.0, 1.0)}
    for duration in ({0: 50}, {1: 50}, {2: 50, 0: 20}, {3: 9}):
        played = [run_groups(factory_with_rewards(rewards, duration), refill=2) for _ in range(2)]
        assert [group.task.id for group in played[0]] == [TASKS[i].id for i in range(5)]
        assert [[e.seed for e in group.episodes] for group in played[0]] == [
            [e.seed for e in group.episodes] for group in played[1]
        ]
        assert [[e.reward for e in group.episodes] for group in played[0]] == [list(rewards[i]) for i in range(5)]


def test_resampled_groups_start_in_task_order() -> None:
    source = factory_with_rewards(dict.fromkeys(range(6), (0.0, 0.0)))
    run_groups(source, refill=3)
    assert [task for task, *_ in source.made] == [TASKS[i].id for i in range(6) for _ in range(2)]


def test_group_is_replaced_while_others_still_run() -> None:
    ended = list[str]()
    source = factory_with_rewards({0: (0.0, 1.0), 1: (0.0, 0.0), 2: (0.0, 0.0), 3: (0.0, 1.0)}, {0: 100})
    request = RolloutRequest(source, NoopAgent(), on_episode=lambda episode: ended.append(episode.task_id))
    played = asyncio.run(play_groups(request, iter(TASKS), group_size=2, num_groups=2, max_resampled_groups=9))
    assert ended == [TASKS[number].id for number in (1, 1, 2, 2, 3, 3, 0, 0)]
    assert [group.task.id for group in played] == [task.id for task in TASKS[:4]]


class ThreadProcessGroup(ProcessGroup):
    """A process group of threads that exchange values through a list."""

    def __init__(self, rank: int, values: list[object], barrier: threading.Barrier) -> None:
        self.rank, self.world_size, self._values, self._barrier = rank, len(values), values, barrier

    def all_gather(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait(60)
        found = list(self._values)
        self._barrier.wait(60)
        return found


@pytest.mark.parametrize(("count", "refill", "equal"), [(3, 0, 2), (3, 4, 2), (1, 9, 3), (4, 3, 1), (2, 20, 1)])
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_agree_on_groups_and_consumed_tasks(count: int, refill: int, equal: int, processes: int) -> None:
    """Every `equal`-th task has groups of equal rewards."""
    number = {task.id: i for i, task in enumerate(TASKS)}

    def game(task: Task, seed: int) -> FakeEnvironment:
        return FakeEnvironment(0.5 if number[task.id] % equal == 0 else seed / 2**32)

    def play(process_group: ProcessGroup) -> tuple[list[list[tuple[str, int, float]]], int]:
        tasks, source = iter([*TASKS[:2], *TASKS]), RecordingFactory(game)
        options = {"group_size": 3, "num_groups": count, "max_resampled_groups": refill}
        request = RolloutRequest(source, NoopAgent(), seed=7, process_group=process_group)
        found = asyncio.run(play_groups(request, tasks, **options))
        assert len(source.made) < 3 * len(found) or process_group.world_size == 1
        return [[(e.task_id, e.seed, e.reward) for e in group.episodes] for group in found], len(list(tasks))

    shared_values, barrier = [None] * processes, threading.Barrier(processes)
    with ThreadPoolExecutor(processes) as pool:
        results = list(pool.map(play, [ThreadProcessGroup(rank, shared_values, barrier) for rank in range(processes)]))
    assert results == [play(SINGLE_PROCESS)] * processes


def test_reward_variance_ignores_episodes_without_score() -> None:
    def group(*rewards: float | None) -> Group:
        return Group(TASKS[0], [Trajectory("t", score=None if r is None else Score(reward=r)) for r in rewards])

    assert group(0.0, None, 1.0).has_reward_variance
    assert not group(0.0, None, 0.0).has_reward_variance
    assert not group(0.1 + 0.2, 0.3, 0.3).has_reward_variance, "the advantages of float32 are 0"
    assert group(0.3, 0.3001).has_reward_variance
    assert not group(None, None).has_reward_variance
    assert not group().has_reward_variance


def test_error_in_one_group_cancels_all_and_closes_environments(caplog: pytest.LogCaptureFixture) -> None:
    def bug(when: str) -> None:
        if when == "step":
            raise ConfigError("a wrong setting")

    source = RecordingFactory(
        lambda task, seed: FakeEnvironment(0.0, hook=bug) if task == TASKS[1] else FakeEnvironment(0.0, duration=10**9)
    )
    with pytest.raises(ConfigError):
        run_groups(source, count=4)
    assert [game.closed for *_, game in source.made] == [1] * 8
    assert not caplog.records, "no error of a group is reported as never retrieved"


@pytest.mark.parametrize("processes", [1, 2])
def test_error_in_one_episode_cancels_the_others_of_its_group(processes: int) -> None:
    def bug(when: str) -> None:
        if when == "step":
            raise ConfigError("a wrong setting")

    def make(task: Task, seed: int) -> FakeEnvironment:
        is_first = not source.made
        return FakeEnvironment(0.0, hook=bug) if is_first else FakeEnvironment(0.0, duration=10**9)

    async def play() -> None:
        request = RolloutRequest(source, NoopAgent(), process_group=process_group)
        with pytest.raises(ConfigError):
            await play_groups(request, iter(TASKS), group_size=4, num_groups=1)
        assert [game.closed for *_, game in source.made] == [1] * (4 // processes), "before the error is raised"

    source = RecordingFactory(make)
    process_group = ThreadProcessGroup(0, [None] * processes, threading.Barrier(processes))
    asyncio.run(play())
