"""Rollouts: limits, faults and retries, and groups of episodes side by side; the same order and seeds each time."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from toy import DOMAIN
from understudy.agent import GoldAgent, SilentAgent
from understudy.crew import ALONE, Crew
from understudy.environment import Step, ToolEnvironment
from understudy.errors import Fault, RolloutError
from understudy.messages import Message, ToolSpec
from understudy.rollout import Limits, episode_seed, play, play_group, play_groups, rollout, teaches
from understudy.tasks import Score, Task
from understudy.trajectory import Stop, Trajectory
from understudy.users import User

TASKS = DOMAIN.tasks("train")
LIMITS = Limits()


class Game:
    """One turn of `lasts` waits, then a score; `happens` may raise at start, step, grade or close."""

    tools: Sequence[ToolSpec] = ()

    def __init__(self, reward: float, lasts: int = 0, happens: Callable[[str], None] = lambda when: None) -> None:
        self.reward, self.lasts, self.happens = reward, lasts, happens
        self.closed = 0

    async def start(self) -> Step:
        self.happens("start")
        return Step((Message(role="user", content="Play."),))

    async def step(self, reply: Message) -> Step:
        self.happens("step")
        for _ in range(self.lasts):
            await asyncio.sleep(0)
        return Step(score=await self.grade(ended=True), errors=("refused",))

    async def grade(self, ended: bool) -> Score:
        self.happens("grade")
        return Score(reward=self.reward)

    async def close(self) -> None:
        self.happens("close")
        self.closed += 1


class Games:
    """A source of games, which remembers those it made and with which seeds."""

    def __init__(self, make: Callable[[Task, int], Game]) -> None:
        self._make = make
        self.made: list[tuple[str, int, Game]] = []

    def environment(self, task: Task, *, seed: int) -> Game:
        game = self._make(task, seed)
        self.made.append((task.id, seed, game))
        return game


def failing(fault: Fault, at: str, times: int = 10**9) -> Callable[[str], None]:
    left = [times]

    def happens(when: str) -> None:
        if when == at and left[0]:
            left[0] -= 1
            raise RolloutError(f"the {fault} is gone", fault)

    return happens


# ---- one episode ----


def test_an_episode_to_its_end() -> None:
    game = Game(0.5)
    episode = asyncio.run(rollout(TASKS[0], game, SilentAgent(), LIMITS, seed=3))
    assert (episode.reward, episode.stop, episode.fault, episode.error) == (0.5, Stop.DONE, None, "")
    assert (episode.task, episode.domain, episode.family, episode.difficulty, episode.seed) == (
        TASKS[0].id,
        "toy",
        TASKS[0].family,
        TASKS[0].difficulty,
        3,
    )
    assert [m.role for m in episode.messages] == ["user", "assistant"]
    assert episode.counts == {"refused": 1}
    assert episode.seconds.keys() == {"agent", "environment"}
    assert game.closed == 1


@pytest.mark.parametrize(("most", "stop", "turns"), [(1, Stop.MAX_TURNS, 1), (2, Stop.MAX_TURNS, 2), (9, Stop.DONE, 3)])
def test_turns_are_limited(most: int, stop: Stop, turns: int) -> None:
    task = next(task for task in TASKS if task.family == "one")
    episode = asyncio.run(rollout(task, DOMAIN.environment(task), GoldAgent(), Limits(max_turns=most)))
    assert (episode.stop, episode.turns) == (stop, turns)
    assert episode.score is not None
    assert episode.reward == (1.0 if stop is Stop.DONE else 0.0)
    assert episode.score.parts["ended"] == (stop is Stop.DONE)
    if stop is not Stop.DONE:
        assert episode.messages[-1].role in ("tool", "user"), "what came of the last reply is told"


class Talker:
    """Ten tokens are shown and ten are said in each turn."""

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        episode.observe(new, [0] * 10)
        episode.act(reply := Message(role="assistant", content="Hm."), [1] * 10, [-1.0] * 10)
        return reply


@pytest.mark.parametrize(("most", "turns"), [(1, 1), (20, 1), (21, 2), (40, 2), (41, 3)])
def test_tokens_are_limited(most: int, turns: int) -> None:
    patient = TASKS[0].replace(scenario=TASKS[0].scenario.replace(patience=99))
    episode = asyncio.run(rollout(patient, DOMAIN.environment(patient), Talker(), Limits(max_tokens=most)))
    assert (episode.stop, episode.turns, len(episode.tokens)) == (Stop.MAX_TOKENS, turns, 20 * turns)
    assert (episode.messages[-1].role, episode.mask[-1]) == ("user", True), "the answer to it is told, without tokens"
    assert episode.reward == 0.0


# ---- faults ----


@pytest.mark.parametrize("fault", ["user", "tool", "mcp", "grader", "engine"])
@pytest.mark.parametrize("at", ["start", "step", "grade"])
def test_a_fault_of_the_machinery_is_attributed_and_has_no_reward(fault: Fault, at: str) -> None:
    game = Game(1.0, happens=failing(fault, at))
    episode = asyncio.run(rollout(TASKS[0], game, SilentAgent(), LIMITS))
    assert (episode.stop, episode.fault, episode.error) == (Stop.FAULT, fault, f"the {fault} is gone")
    assert episode.score is None
    with pytest.raises(ValueError, match=f"has no score \\(the {fault} is gone\\)"):
        assert episode.reward
    assert game.closed == 1


class Unavailable:
    """An agent whose engine is not there, and a user who is not either."""

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        raise RolloutError("no engine", "engine")

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        raise RolloutError("no user", "user")


def test_agents_and_users_are_at_fault_too() -> None:
    episode = asyncio.run(rollout(TASKS[0], DOMAIN.environment(TASKS[0]), Unavailable(), LIMITS))
    assert (episode.fault, episode.error) == ("engine", "no engine")
    user: User = Unavailable()
    episode = asyncio.run(rollout(TASKS[0], DOMAIN.environment(TASKS[0], user), GoldAgent(), LIMITS))
    assert (episode.fault, episode.error) == ("user", "no user")


@pytest.mark.parametrize(("retries", "failures", "attempts"), [(2, 0, 1), (2, 2, 3), (2, 3, 3), (0, 1, 1)])
def test_an_episode_is_begun_anew_after_a_fault(retries: int, failures: int, attempts: int) -> None:
    happens = failing("tool", "step", failures)
    source = Games(lambda task, seed: Game(1.0, happens=happens))
    episode = asyncio.run(play(source, TASKS[0], SilentAgent(), Limits(retries=retries), 100))
    assert len(source.made) == attempts
    assert len({id(game) for *_, game in source.made}) == attempts
    assert all(game.closed == 1 for *_, game in source.made)
    assert episode.stop is (Stop.FAULT if failures > retries else Stop.DONE)
    assert episode.seed == 100 + attempts - 1
    assert [seed for _, seed, _ in source.made] == [100 + i for i in range(attempts)]
    assert len(episode.messages) == 2, "nothing is left of earlier attempts"


def test_a_bug_is_not_a_fault_and_the_environment_is_closed() -> None:
    def bug(when: str) -> None:
        if when == "step":
            raise ZeroDivisionError

    game = Game(1.0, happens=bug)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(rollout(TASKS[0], game, SilentAgent(), LIMITS))
    assert game.closed == 1


def test_malformed_calls_are_counted_by_the_environment_and_do_not_end_the_episode() -> None:
    environment = DOMAIN.environment(TASKS[0])
    assert isinstance(environment, ToolEnvironment)
    call = {"name": "switch_lamp", "malformed": "not JSON"}
    broken = TASKS[0].replace(
        gold=(Message.model_validate({"role": "assistant", "tool_calls": [call]}), *TASKS[0].gold)
    )
    episode = asyncio.run(rollout(broken, environment, GoldAgent(), LIMITS))
    assert episode.reward == 1.0
    assert episode.counts == {"malformed": 1}


# ---- groups ----


def groups(
    source: Games, *, size: int = 2, count: int = 3, refill: int = 0, tasks: Iterator[Task] | None = None, seed: int = 7
) -> list[list[Trajectory]]:
    return asyncio.run(
        play_groups(
            source, tasks or iter(TASKS), SilentAgent(), LIMITS, size=size, groups=count, refill=refill, seed=seed
        )
    )


def rewards_by(rewards: dict[int, tuple[float, ...]], lasts: dict[int, int] | None = None) -> Games:
    """Rewards of the tasks by number; `lasts` by task number, how long its games take."""
    number = {task.id: i for i, task in enumerate(TASKS)}
    left = {i: list(values) for i, values in rewards.items()}
    return Games(lambda task, seed: Game(left[number[task.id]].pop(0), (lasts or {}).get(number[task.id], 0)))


def test_a_group_is_one_task_with_seeds_of_its_own() -> None:
    source = rewards_by({0: (0.0, 1.0, 0.5)})
    group = asyncio.run(play_group(source, TASKS[0], SilentAgent(), LIMITS, 3, 7))
    assert [episode.reward for episode in group] == [0.0, 1.0, 0.5]
    assert [episode.seed for episode in group] == [episode_seed(7, TASKS[0], i) for i in range(3)]
    assert len({episode.seed for episode in group}) == 3
    assert {episode.task for episode in group} == {TASKS[0].id}


def test_seeds_are_the_same_in_every_process() -> None:
    assert episode_seed(7, TASKS[0].replace(id="a"), 1) == 3565837012
    seeds = {episode_seed(seed, task, trial) for seed in range(5) for task in TASKS for trial in range(5)}
    assert len(seeds) == 5 * len(TASKS) * 5
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_a_task_that_comes_again_is_played_with_other_seeds() -> None:
    task, other = TASKS[:2]
    source = Games(lambda task, seed: Game(0.0))
    played = groups(source, count=3, refill=1, tasks=iter([task, other, task, task]))
    trials = [(task, 0, 1), (other, 0, 1), (task, 2, 3), (task, 4, 5)]
    assert [[e.seed for e in group] for group in played] == [[episode_seed(7, t, i) for i in of] for t, *of in trials]


def test_a_group_of_equal_rewards_is_followed_by_another_and_returned_too() -> None:
    source = rewards_by({0: (0.0, 1.0), 1: (0.0, 0.0), 2: (1.0, 1.0), 3: (0.0, 0.0), 4: (1.0, 0.0), 5: (0.0, 1.0)})
    tasks = iter(TASKS)
    played = groups(source, refill=5, tasks=tasks)
    assert [group[0].task for group in played] == [TASKS[i].id for i in range(6)]
    assert [teaches(group) for group in played] == [True, False, False, False, True, True]
    assert next(tasks).id == TASKS[6].id, "a resumed run goes on with the task after those played"


@pytest.mark.parametrize(("refill", "expected"), [(0, 3), (1, 4), (4, 7)])
def test_refilling_is_bounded(refill: int, expected: int) -> None:
    assert len(groups(rewards_by(dict.fromkeys(range(12), (0.0, 0.0))), refill=refill)) == expected


def test_when_tasks_run_out_there_is_no_refill() -> None:
    played = groups(rewards_by(dict.fromkeys(range(4), (0.0, 0.0))), refill=9, tasks=iter(TASKS[:4]))
    assert len(played) == 4
    assert len(groups(rewards_by(dict.fromkeys(range(4), (0.0, 0.0))), refill=9, tasks=iter(TASKS[:2]))) == 2


def test_groups_are_returned_in_the_order_of_their_start_however_long_they_take() -> None:
    rewards = {0: (0.0, 1.0), 1: (0.0, 0.0), 2: (0.0, 0.0), 3: (0.0, 1.0), 4: (0.0, 1.0)}
    for lasts in ({0: 50}, {1: 50}, {2: 50, 0: 20}, {3: 9}):
        played = [groups(rewards_by(rewards, lasts), refill=2) for _ in range(2)]
        assert [group[0].task for group in played[0]] == [TASKS[i].id for i in range(5)]
        assert [[e.seed for e in group] for group in played[0]] == [[e.seed for e in group] for group in played[1]]
        assert [[e.reward for e in group] for group in played[0]] == [list(rewards[i]) for i in range(5)]


def test_groups_that_end_together_are_refilled_in_order() -> None:
    source = rewards_by(dict.fromkeys(range(6), (0.0, 0.0)))
    groups(source, refill=3)
    assert [task for task, *_ in source.made] == [TASKS[i].id for i in range(6) for _ in range(2)]


class OfThreads(Crew):
    """One of several threads, who tell each other through a list."""

    def __init__(self, rank: int, said: list[object], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._said, self._barrier = rank, len(said), said, barrier

    def gather(self, value: Any) -> list[Any]:
        self._said[self.rank] = value
        self._barrier.wait(60)
        found = list(self._said)
        self._barrier.wait(60)
        return found


@pytest.mark.parametrize(("count", "refill", "equal"), [(3, 0, 2), (3, 4, 2), (1, 9, 3), (4, 3, 1), (2, 20, 1)])
@pytest.mark.parametrize("processes", [2, 3])
def test_a_crew_plays_the_same_groups_and_uses_the_same_tasks(
    count: int, refill: int, equal: int, processes: int
) -> None:
    """Every `equal`-th task has groups of equal rewards."""
    number = {task.id: i for i, task in enumerate(TASKS)}

    def game(task: Task, seed: int) -> Game:
        return Game(0.5 if number[task.id] % equal == 0 else seed / 2**32)

    def played(crew: Crew) -> tuple[list[list[tuple[str, int, float]]], int]:
        tasks, source = iter([*TASKS[:2], *TASKS]), Games(game)
        options = {"size": 3, "groups": count, "refill": refill, "seed": 7}
        found = asyncio.run(play_groups(source, tasks, SilentAgent(), LIMITS, **options, crew=crew))
        assert len(source.made) < 3 * len(found) or crew.size == 1
        return [[(e.task, e.seed, e.reward) for e in group] for group in found], len(list(tasks))

    said, barrier = [None] * processes, threading.Barrier(processes)
    with ThreadPoolExecutor(processes) as pool:
        results = list(pool.map(played, [OfThreads(rank, said, barrier) for rank in range(processes)]))
    assert results == [played(ALONE)] * processes


def test_episodes_without_a_score_do_not_decide() -> None:
    def group(*rewards: float | None) -> list[Trajectory]:
        return [Trajectory("t", score=None if r is None else Score(reward=r)) for r in rewards]

    assert teaches(group(0.0, None, 1.0))
    assert not teaches(group(0.0, None, 0.0))
    assert not teaches(group(None, None))
    assert not teaches([])


def test_an_error_ends_all_groups_and_closes_what_is_open(caplog: pytest.LogCaptureFixture) -> None:
    def bug(when: str) -> None:
        if when == "step":
            raise ZeroDivisionError

    source = Games(lambda task, seed: Game(0.0, happens=bug) if task == TASKS[1] else Game(0.0, lasts=10**9))
    with pytest.raises(ZeroDivisionError):
        groups(source, count=4)
    assert [game.closed for *_, game in source.made] == [1] * 8
    assert not caplog.records, "no error of a group is reported as never retrieved"
