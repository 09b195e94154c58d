"""Data, tools and rewards of one's own: `domains.questions`, and what `module:attribute` may name."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from understudy import launch
from understudy.agent import ChatAgent, GoldAgent, SilentAgent
from understudy.check import check
from understudy.config import TrainConfig
from understudy.domains.base import Slice, TaskSource, find, find_domain
from understudy.domains.questions import Attempt, Question, Questions
from understudy.errors import ConfigError, RolloutError, TaskError, ToolError
from understudy.messages import Message, ToolCall
from understudy.players import named_agent
from understudy.rollout import Limits, rollout
from understudy.settings import load, parse
from understudy.tasks import Task
from understudy.trajectory import Stop, Trajectory
from understudy.users import RecordedUser


class Shelf(Attempt):
    """A shelf that holds what was put on it in this episode."""

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self._held: list[str] = []

    def put(self, thing: str) -> list[str]:
        """Put a thing on the shelf."""
        if thing in self._held:
            raise ToolError(f"{thing} is there already")
        self._held.append(thing)
        return self._held

    async def look(self) -> str:
        """What is on the shelf."""
        await asyncio.sleep(0)
        return ", ".join(self._held) or "nothing"

    def reward(self, transcript: Sequence[Message]) -> float:
        """Half for the right things, half for having looked at them."""
        looked = any(message.content == "cup" for message in transcript if message.role == "tool")
        return 0.5 * (self._held == ["cup"]) + 0.5 * looked


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


GOLD = (call("put", thing="cup"), call("look"))
ROWS = [
    Question(prompt=f"{name} wants the cup on the shelf.", gold=GOLD, reply="Done.", family=name[0], split=split)
    for name, split in (("Ada", "train"), ("Ben", "validation"), ("Cleo", "test"))
]
SHELVES = Questions("shelves", "You tidy up.", ROWS, Shelf)


class Says:
    """An agent that gives these replies."""

    def __init__(self, *replies: Message | str) -> None:
        self._replies = [Message(role="assistant", content=r) if isinstance(r, str) else r for r in replies]

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[object]) -> Message:
        episode.observe(new)
        episode.act(reply := self._replies[episode.turns])
        return reply


def played(source: TaskSource, *replies: Message | str, turns: int = 9) -> Trajectory:
    task = source.tasks("train")[0]
    return asyncio.run(rollout(task, source.environment(task), Says(*replies), Limits(max_turns=turns)))


def calls(*made: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=made)


def test_gold_and_silence_and_what_lies_between() -> None:
    task = SHELVES.tasks("train")[0]
    for agent, reward in ((GoldAgent(), 1.0), (SilentAgent(), 0.0)):
        episode = asyncio.run(rollout(task, SHELVES.environment(task), agent, Limits()))
        assert episode.reward == reward
    half = played(SHELVES, calls(call("put", thing="cup")), "It is there.")
    assert (half.reward, half.stop) == (0.5, Stop.DONE)
    assert half.score is not None
    assert half.score.parts == {"reward": 0.5, "ended": 1.0}


def test_each_episode_has_an_object_of_its_own() -> None:
    put = calls(call("put", thing="cup"))
    assert [played(SHELVES, put, "Done.").reward for _ in range(2)] == [0.5, 0.5]


def test_a_refusal_and_a_wrong_argument_are_told_to_the_agent() -> None:
    episode = played(SHELVES, calls(*GOLD, call("put", thing="cup"), call("put", thing=1), call("reward")), "Done.")
    told = [message.content for message in episode.messages if message.role == "tool"]
    assert told[:3] == ['["cup"]', "cup", "Error: cup is there already"]
    assert told[3].startswith("Error: bad arguments for put: thing: ")
    assert told[4].startswith("Error: unknown tool 'reward'")
    assert episode.reward == 1.0


def test_a_limit_earns_nothing_and_asks_for_no_reward() -> None:
    episode = played(SHELVES, *[calls(*GOLD)] * 2, turns=1)
    assert (episode.reward, episode.stop) == (0.0, Stop.MAX_TURNS)


def test_a_question_may_have_a_policy_of_its_own() -> None:
    told = Questions("told", "You tidy up.", [ROWS[0].replace(policy="You tidy quickly."), ROWS[2]], Shelf)
    policies = [asyncio.run(told.environment(told.tasks(split)[0]).start()) for split in ("train", "test")]
    assert [step.messages[0].content for step in policies] == ["You tidy quickly.", "You tidy up."]


def test_a_check_proves_it() -> None:
    report = check(SHELVES)
    assert (report.problems, report.unused_tools) == ((), ())
    assert [split.tasks for split in report.splits] == [1, 1, 1]


def test_splits_ids_and_slices() -> None:
    many = Questions("m", "p", [Question(prompt=f"What is {n}?") for n in range(500)], Shelf)
    tasks = {split: many.tasks(split) for split in ("train", "validation", "test")}
    assert sum(map(len, tasks.values())) == 500
    assert 300 < len(tasks["train"]) < 400
    again = Questions("m", "p", many.questions[::-1], Shelf)
    assert {task.id for task in again.tasks("test")} == {task.id for task in tasks["test"]}
    part = SHELVES.slice(Slice(families=("A",), tools=("put",)))
    assert [spec.name for spec in part.specs] == ["put"]
    assert not part.tasks("test")
    for wrong in (Slice(families=("X",)), Slice(tools=("reward",)), Slice(policy="brief")):
        with pytest.raises(ConfigError, match="shelves has no"):
            SHELVES.slice(wrong)


def test_users_who_answer_take_the_place_of_the_attempt() -> None:
    chatty = SHELVES.with_users(lambda scenario, seed, device: RecordedUser([scenario.opening, "Please look, too."]))
    episode = played(chatty, calls(GOLD[0]), "Done.", calls(GOLD[1]), "Done.")
    assert [message.content for message in episode.messages if message.role == "user"] == [
        ROWS[0].prompt,
        "Please look, too.",
    ]
    assert episode.reward == 1.0


@pytest.mark.parametrize("given", [1.5, -0.1, float("nan"), None, "1"])
def test_a_reward_that_is_none(given: object) -> None:
    class Odd(Attempt):
        def reward(self, transcript: Sequence[Message]) -> float:
            return given  # type: ignore[return-value]

    with pytest.raises(TaskError, match="a reward is a number from 0 to 1"):
        played(Questions("odd", "p", ROWS, Odd), "Hello.")


def test_a_judge_that_fails_is_a_fault_and_no_reward_of_0() -> None:
    class Judged(Attempt):
        async def reward(self, transcript: Sequence[Message]) -> float:
            if transcript[-1].content == "down":
                raise RolloutError("the judge is down", "grader")
            return 1.0

    judged = Questions("judged", "p", ROWS, Judged)
    assert played(judged, "up").reward == 1.0
    failed = played(judged, "down")
    assert (failed.score, failed.fault, failed.error) == (None, "grader", "the judge is down")


def test_what_is_forgotten_is_told() -> None:
    with pytest.raises(TaskError, match="Attempt gives no reward"):
        played(Questions("bare", "p", ROWS, Attempt), "Hello.")
    with pytest.raises(TaskError, match="two questions have the id"):
        Questions("twice", "p", [ROWS[0], ROWS[0]], Shelf).tasks("train")
    with pytest.raises(TaskError, match=r"tool put cannot take `thing`; each argument"):

        class Untyped(Attempt):
            def put(self, thing):  # type: ignore[no-untyped-def]
                """Put."""

    stranger = ROWS[0].replace(id="stranger").task("shelves")
    with pytest.raises(TaskError, match="task stranger is none of the 3 questions of shelves"):
        SHELVES.environment(stranger)


# ---- what module:attribute may name ----


def test_a_module_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_here.py").write_text("from test_questions import SHELVES\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    assert find("found_here:SHELVES").name == "shelves"
    with pytest.raises(ConfigError, match="is no Domain"):
        find_domain("found_here:SHELVES")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_questions:SHELFS", "module test_questions has no 'SHELFS'; did you mean 'SHELVES'"),
        ("test_questions:Shelf", "is a class; name an object of it"),
        ("test_questions:ROWS", "is a list, no source of tasks: it has no environment, families, name, policy"),
        ("no_such_module:X", "no module for 'no_such_module:X': No module named 'no_such_module'"),
        ("./test_questions.py:SHELVES", "not of the form module:attribute"),
        (":SHELVES", "not of the form module:attribute"),
    ],
)
def test_what_is_no_source_of_tasks(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find(name)


HELLO = Says("Hello.")


def test_an_agent_of_ones_own_is_taken_or_made() -> None:
    assert named_agent("test_questions:HELLO", TrainConfig()) is HELLO
    asked = named_agent("understudy.agent:ChatAgent", parse(TrainConfig, "", ["chat.model=m"]))
    assert isinstance(asked, ChatAgent)
    with pytest.raises(ConfigError, match=r"chat\.model is empty"):
        named_agent("understudy.agent:ChatAgent", TrainConfig())


def test_what_is_no_agent() -> None:
    with pytest.raises(ConfigError, match="gives a list, no agent: it needs `async def act"):
        named_agent("test_questions:ROWS", TrainConfig())


# ---- training ----


def test_only_the_default_domain_is_narrowed_to_the_default_slice() -> None:
    assert launch.read(["domain=retail"]) == ("default", load(TrainConfig))
    name, config = launch.read(["domain=test_questions:SHELVES", "seed=3", "algorithm.preset=rloo"])
    assert name == "test_questions-SHELVES"
    assert config == parse(TrainConfig, "", ["domain=test_questions:SHELVES", "seed=3", "algorithm.preset=rloo"])
    assert (config.slice, config.seed) == (Slice(), 3)


def test_an_exam_that_has_no_task_is_refused() -> None:
    pytest.importorskip("torch")
    from understudy.train import exam

    only_train = SHELVES.slice(Slice(families=("A",)))
    with pytest.raises(ConfigError, match=r"shelves has no validation tasks in this slice; set eval\.split to train"):
        exam.exams(TrainConfig(), only_train)
    tests = ["eval.tests=test_questions:SHELVES", "test_slice.families=A", "eval.tasks=1"]
    with pytest.raises(ConfigError, match=r"eval\.tests: shelves has no test tasks in test_slice; leave it out, or"):
        exam.exams(parse(TrainConfig, "", tests), find("retail"))


def test_a_run_trains_on_questions(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    settings = [
        "domain=test_questions:SHELVES",
        "model=tiny",
        "steps=1",
        "sft.steps=1",
        "sft.demonstrations=1",
        "sft.batch_size=1",
        "algorithm.group_size=2",
        "algorithm.tasks_per_step=1",
        "algorithm.refill=0",
        "eval.tasks=1",
        "sampling.max_tokens=8",
        "limits.max_turns=2",
        "limits.max_tokens=20000",
    ]
    with pytest.raises(TaskError, match=r"limits\.max_turns is too low"):
        launch.train(settings, tmp_path / "short")
    launch.train([*settings, "limits.max_turns=3"], tmp_path / "run")
    played = (tmp_path / "run" / "trajectories" / "step_000002.jsonl").read_text(encoding="utf-8").splitlines()
    assert {(json.loads(line)["domain"], json.loads(line)["task"]) for line in played} == {
        ("shelves", SHELVES.tasks("train")[0].id)
    }
    assert len(played) == 2
