"""Tests of `domains.tool_dataset` and of custom sources and agents given as `module:attribute`."""

import asyncio
import inspect
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.shelves import GOLD, ROWS, SHELVES, FixedReplies, Shelf, call
from understudy.cli import launch
from understudy.core.errors import ConfigError, RolloutError, TaskError, ToolError
from understudy.core.event_loop import run_async
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Scenario
from understudy.core.trajectory import StopReason, Trajectory
from understudy.data.checks.check import check
from understudy.envs.task_source import Slice, TaskSource
from understudy.envs.users import ReplayUser
from understudy.evaluation.evaluate import evaluate_gold
from understudy.rollouts.agent import GoldAgent, NoopAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode, rollout
from understudy.runs.agents import CustomAgent, make_agent
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.targets import resolve
from understudy.sources.loading import load_source
from understudy.sources.references import load_domain
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample


def play_first_task(source: TaskSource, *replies: Message | str, turns: int = 9) -> Trajectory:
    task = source.tasks("train")[0]
    return asyncio.run(rollout(task, source.environment(task), FixedReplies(*replies), EpisodeLimits(max_turns=turns)))


def call_message(*made: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=made)


def test_gold_noop_and_partial_episode_rewards() -> None:
    task = SHELVES.tasks("train")[0]
    for agent, reward in ((GoldAgent(), 1.0), (NoopAgent(), 0.0)):
        episode = asyncio.run(rollout(task, SHELVES.environment(task), agent, EpisodeLimits()))
        assert episode.reward == reward
    half = play_first_task(SHELVES, call_message(call("put", thing="cup")), "It is there.")
    assert (half.reward, half.stop_reason) == (0.5, StopReason.DONE)
    assert half.score is not None
    assert half.score.parts == {"reward": 0.5, "within_limits": 1.0}


def test_each_episode_gets_new_object() -> None:
    put = call_message(call("put", thing="cup"))
    assert [play_first_task(SHELVES, put, "Done.").reward for _ in range(2)] == [0.5, 0.5]


def test_tool_errors_are_returned_to_agent() -> None:
    episode = play_first_task(
        SHELVES, call_message(*GOLD, call("put", thing="cup"), call("put", thing=1), call("reward")), "Done."
    )
    told = [message.content for message in episode.messages if message.role == "tool"]
    assert told[:3] == ['["cup"]', "cup", "Error: cup is there already"]
    assert told[3].startswith("Error: bad arguments for put: thing: ")
    assert told[4].startswith("Error: unknown tool 'reward'")
    assert episode.reward == 1.0


def test_episode_at_turn_limit_earns_no_reward() -> None:
    episode = play_first_task(SHELVES, *[call_message(*GOLD)] * 2, turns=1)
    assert (episode.reward, episode.stop_reason) == (0.0, StopReason.MAX_TURNS)


def test_example_may_override_domain_policy() -> None:
    tidy = ToolDataset("tidy", "You tidy up.", [ROWS[0].replace(domain_policy="You tidy quickly."), ROWS[2]], Shelf)
    policies = [asyncio.run(tidy.environment(tidy.tasks(split)[0]).start()) for split in ("train", "test")]
    assert [step.messages[0].content for step in policies] == ["You tidy quickly.", "You tidy up."]


def test_check_passes_on_tool_dataset() -> None:
    report = check(SHELVES)
    assert (report.problems, report.unused_tools) == ((), ())
    assert [split.tasks for split in report.splits] == [1, 1, 1]


def test_splits_follow_ids_and_slices_are_validated() -> None:
    many = ToolDataset("m", "p", [ToolExample(prompt=f"What is {n}?") for n in range(500)], Shelf)
    tasks = {split: many.tasks(split) for split in ("train", "validation", "test")}
    assert sum(map(len, tasks.values())) == 500
    assert 300 < len(tasks["train"]) < 400
    again = ToolDataset("m", "p", many.examples[::-1], Shelf)
    assert {task.id for task in again.tasks("test")} == {task.id for task in tasks["test"]}
    part = SHELVES.slice(Slice(families=("A",), tools=("put",)))
    assert [spec.name for spec in part.tool_specs] == ["put"]
    assert not part.tasks("test")
    for wrong in (Slice(families=("X",)), Slice(tools=("reward",)), Slice(domain_policy="brief")):
        with pytest.raises(ConfigError, match=r"\bshelves\b"):
            SHELVES.slice(wrong)


def test_user_simulator_continues_conversation() -> None:
    chatty = SHELVES.with_users(lambda scenario, seed, user_tools: ReplayUser([scenario.opening, "Please look, too."]))
    episode = play_first_task(chatty, call_message(GOLD[0]), "Done.", call_message(GOLD[1]), "Done.")
    assert [message.content for message in episode.messages if message.role == "user"] == [
        ROWS[0].prompt,
        "Please look, too.",
    ]
    assert episode.reward == 1.0


class SeveralNumbers(list[float]):
    """What an array of several numbers is to `float`."""

    def __float__(self) -> float:
        raise TypeError("only a scalar can be converted to a float")


@pytest.mark.parametrize("given", [1.5, -0.1, float("nan"), None, "1", 10**400, SeveralNumbers([1.0, 0.0])])
def test_reward_outside_0_to_1_is_fault_of_grader(given: object) -> None:
    class Odd(ToolEpisode):
        def reward(self, transcript: Sequence[Message]) -> float:
            return given  # type: ignore[return-value]

    episode = play_first_task(ToolDataset("odd", "p", ROWS, Odd), "Hello.")
    assert (episode.score, episode.fault) == (None, "grader")
    assert "0 to 1" in episode.error
    assert f"it is {given!r}"[:55] in episode.error


def test_failed_judge_is_fault_instead_of_zero_reward() -> None:
    class Judged(ToolEpisode):
        async def reward(self, transcript: Sequence[Message]) -> float:
            if transcript[-1].content == "down":
                raise RolloutError("the judge is down", "grader")
            return 1.0

    judged = ToolDataset("judged", "p", ROWS, Judged)
    assert play_first_task(judged, "up").reward == 1.0
    failed = play_first_task(judged, "down")
    assert (failed.score, failed.fault, failed.error) == (None, "grader", "the judge is down")


def test_invalid_dataset_definition_raises_task_error() -> None:
    with pytest.raises(TaskError, match=r"\bToolEpisode\b.*reward"):
        play_first_task(ToolDataset("bare", "p", ROWS, ToolEpisode), "Hello.")
    with pytest.raises(TaskError, match=r"twice: examples 0 and 1 .*the cup on the shelf"):
        ToolDataset("twice", "p", [ROWS[0], ROWS[0]], Shelf).tasks("train")
    with pytest.raises(TaskError, match=r"\bput\b.*`thing`"):

        class Untyped(ToolEpisode):
            def put(self, thing):  # type: ignore[no-untyped-def]
                """Put."""

    stranger = ROWS[0].replace(id="stranger").to_task("tins", "train")
    with pytest.raises(TaskError, match=r"\bstranger\b.*\btins\b.*\bshelves\b"):
        SHELVES.environment(stranger)


@pytest.mark.parametrize(
    ("examples", "text"),
    [
        ([], "the data set half has no examples"),
        ([ROWS[0], ROWS[1].replace(prompt="\ud83d")], "example 1 of half: its prompt contains a lone surrogate"),
        (
            [ROWS[0].replace(gold_calls=(call("put", thing="\ud83d"),))],
            "example 0 of half: in its gold_calls, .*lone surrogate",
        ),
    ],
    ids=["none", "prompt", "gold call"],
)
def test_examples_that_cannot_be_played_are_rejected(examples: list[ToolExample], text: str) -> None:
    with pytest.raises(TaskError, match=text):
        ToolDataset("half", "p", examples, Shelf)


def test_id_of_a_prompt_with_half_a_character_is_an_error_in_one_line() -> None:
    with pytest.raises(TaskError, match=r"the prompt '\\ud83d' contains a lone surrogate"):
        ToolExample(prompt="\ud83d").task_id("half")


def test_examples_may_be_a_generator() -> None:
    generated = ToolDataset("shelves", "p", (row for row in ROWS), Shelf)  # type: ignore[arg-type]
    assert [len(generated.tasks(split)) for split in ("train", "validation", "test")] == [1, 1, 1]


class Forgetful(ToolEpisode):
    """An episode whose `__init__` does not call that of ToolEpisode."""

    def __init__(self, example: ToolExample) -> None:
        self.seen = True

    def reward(self, transcript: Sequence[Message]) -> float:
        return float(transcript[-1].content == self.example.answer)


def test_episode_has_its_example_without_super_init() -> None:
    assert play_first_task(ToolDataset("forgetful", "p", ROWS, Forgetful), "Done.").reward == 1.0


class WithoutExample(Shelf):
    """An episode whose `__init__` has the wrong arguments, and its reward too."""

    def __init__(self) -> None:
        super().__init__(ROWS[0])


class RewardOfNoArguments(Shelf):
    def reward(self) -> float:  # type: ignore[override]
        return 1.0


def test_an_episode_class_without_the_example_and_an_episode_in_its_place_are_refused() -> None:
    with pytest.raises(TaskError, match=r"^WithoutExample\.__init__ .*`def __init__\(self, example\)`"):
        ToolDataset("shelves", "p", ROWS, WithoutExample)
    with pytest.raises(TaskError, match=r"^RewardOfNoArguments\.reward .*`def reward\(self, transcript\)`"):
        ToolDataset("shelves", "p", ROWS, RewardOfNoArguments)
    with pytest.raises(TaskError, match=r"^CountEpisode\(\) .*\bCountEpisode itself"):
        ToolDataset("counts", "p", ROWS, CountEpisode())  # type: ignore[arg-type]


def test_a_misspelled_reward_is_named() -> None:
    for name in ("rewrd", "get_reward", "Reward"):
        with pytest.raises(TaskError, match=rf"^Misspelled has no reward; .* {name}\?"):
            type("Misspelled", (ToolEpisode,), {name: lambda self, transcript: 1.0})
    with pytest.raises(TaskError, match=r"^Silent has no env_response; .* env_respons\?"):
        type("Silent", (Shelf,), {"env_respons": lambda self, transcript: None})

    class Rewards(Shelf):
        def rewards(self, transcript: str) -> int:
            """Count the rewards in a transcript."""
            return 1

    assert "rewards" in [spec.name for spec in Rewards.specs()]


class UserOfOneArgument:
    """A user whose `__init__` has the wrong arguments."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario


def test_wrong_user_factory_is_a_fault_of_the_user_in_its_file() -> None:
    source = SHELVES.with_users(UserOfOneArgument)  # type: ignore[arg-type]
    limits = EpisodeLimits(max_retries=0)
    episode = asyncio.run(play_episode(source, source.tasks("train")[0], FixedReplies("Done."), limits, seed=0))
    assert episode.fault == "user"
    assert "test_tool_dataset.py:" in episode.error


class Stock(ToolEpisode):
    def take(self) -> Sequence[int]:
        """Take one thing."""
        stock: list[int] = self.example.info["stock"]
        stock.pop()
        return stock

    def reward(self, transcript: Sequence[Message]) -> float:
        return float(transcript[-2].content == "[1]")


def test_each_episode_has_its_own_copy_of_info() -> None:
    shared = object()
    example = ToolExample(
        prompt="Take one.", gold_calls=(call("take"),), answer="Done.", info={"stock": [1, 2], "a": shared}
    )
    source = ToolDataset("stock", "p", [example], Stock)
    assert [play_first_task(source, call_message(call("take")), "Done.").reward for _ in range(3)] == [1.0] * 3
    assert source.examples[0].info == {"stock": [1, 2], "a": shared}


def test_object_is_no_episode_class() -> None:
    with pytest.raises(TaskError, match=r"the episode_class of shelves is <.*pass the class itself"):
        ToolDataset("shelves", "p", ROWS, Shelf(ROWS[0]))  # type: ignore[arg-type]


def test_unlisted_task_of_the_data_set_is_an_example() -> None:
    row = ROWS[0].replace(id="new", info={}, domain_policy="")
    assert SHELVES.find_example(row.to_task("shelves", "train")) == row.replace(split="train")


def test_module_in_current_folder_is_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_here.py").write_text("from support.shelves import SHELVES\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    assert load_source("found_here:SHELVES").name == "shelves"
    with pytest.raises(ConfigError, match=r"found_here:SHELVES.*\bDomain\b"):
        load_domain("found_here:SHELVES")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("support.shelves:SHELFS", "'SHELFS'.*'SHELVES'"),
        ("support.shelves:Shelf", r"support\.shelves:Shelf\b.*\bclass\b"),
        (
            "support.shelves:ROWS",
            r"support\.shelves:ROWS.*the type list.*did you mean 'support\.shelves:SHELVES'",
        ),
        ("no_such_module:X", "'no_such_module:X'.*No module named 'no_such_module'"),
        ("./shelves.py:SHELVES", "module:attribute"),
        (":SHELVES", "module:attribute"),
    ],
)
def test_invalid_task_source_is_rejected(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_source(name)


def test_custom_agent_is_used_or_constructed() -> None:
    for name in ("support.shelves:HELLO", "support.shelves:make_hello"):
        agent = make_agent(name, parse_config("", ["endpoints.default.model=m"]))
        assert isinstance(agent, CustomAgent)
    with pytest.raises(ConfigError, match=r"endpoints\.default\.model\b"):
        make_agent("understudy.rollouts.agent:APIAgent", TrainConfig())


def test_object_without_act_is_rejected_as_agent() -> None:
    with pytest.raises(ConfigError, match=r"support\.shelves:ROWS.*`async def act"):
        make_agent("support.shelves:ROWS", TrainConfig())


def test_custom_domain_trains_on_full_slice_by_default() -> None:
    resolved = resolve(["domain=support.shelves:SHELVES", "seed=3", "algorithm.preset=rloo"])
    assert resolved.name == "support.shelves-SHELVES"
    assert resolved.config == parse_config("", ["domain=support.shelves:SHELVES", "seed=3", "algorithm.preset=rloo"])
    assert (resolved.config.slice, resolved.config.seed) == (Slice(), 3)


def test_eval_set_without_tasks_is_rejected() -> None:
    pytest.importorskip("torch")
    from understudy.train import eval_sets

    only_train = SHELVES.slice(Slice(families=("A",)))
    with pytest.raises(ConfigError, match=r"\bshelves\b.*\bvalidation\b.*eval\.split\b.*\btrain"):
        eval_sets.make_eval_sets(TrainConfig(), only_train)
    tests = ["eval.ood_domains=support.shelves:SHELVES", "ood_slice.families=A", "eval.tasks=1"]
    with pytest.raises(ConfigError, match=r"eval\.ood_domains: .*\bshelves\b.*ood_slice"):
        eval_sets.make_eval_sets(parse_config("", tests), load_source("retail"))


@pytest.mark.slow
def test_a_run_trains_on_a_tool_dataset(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    settings = [
        "domain=support.shelves:SHELVES",
        "model=tiny",
        "steps=1",
        "sft.steps=1",
        "sft.num_demonstrations=1",
        "sft.batch_size=1",
        "algorithm.group_size=2",
        "algorithm.groups_per_batch=1",
        "algorithm.max_resampled_groups=0",
        "eval.tasks=1",
        "sampling.max_response_tokens=8",
        "limits.max_turns=2",
        "limits.max_episode_tokens=20000",
    ]
    with pytest.raises(TaskError, match=r"limits\.max_turns"):
        launch.run_training(settings, tmp_path / "short")
    shown = launch.run_training([*settings, "limits.max_turns=3"], tmp_path / "run")
    assert shown.index("gold") < shown.index(f"understudy chat {tmp_path / 'run'}")
    played = (tmp_path / "run" / "trajectories" / "step_000002.jsonl").read_text(encoding="utf-8").splitlines()
    assert {(json.loads(line)["domain"], json.loads(line)["task_id"]) for line in played} == {
        ("shelves", SHELVES.tasks("train")[0].id)
    }
    assert len(played) == 2


class Doubling(ToolEpisode):
    def double(self, n: int) -> int:
        """Double a number."""
        if n > 1000:
            raise ToolError("too large")
        return 2 * n

    def reward(self, transcript: Sequence[Message]) -> float:
        return float(transcript[-1].content == self.example.answer)


@pytest.mark.parametrize(
    ("tool", "argument", "first", "reward", "text"),
    [
        ("double", "n", 1, 1.0, ""),
        ("double", "number", 1, 0.0, r"double\(number=1\) fails: bad arguments for double: n: .*takes \(n\)"),
        ("duoble", "n", 1, 0.0, r"calls duoble, which is not one of the agent's tools; did you mean 'double'"),
        ("double", "n", 5000, 1.0, "refuses calls of 12 gold episodes"),
    ],
)
def test_gold_calls_that_fail_are_shown_and_earn_0_in_the_table(
    tool: str, argument: str, first: int, reward: float, text: str
) -> None:
    examples = [
        ToolExample(
            prompt=f"Double {n}.", answer=str(2 * n), gold_calls=(ToolCall(name=tool, arguments={argument: n}),)
        )
        for n in range(first, first + 12)
    ]
    dataset = ToolDataset("doubling", "Use the tool.", examples, Doubling)
    report = check(dataset)
    assert run_async(evaluate_gold(dataset, dataset.tasks("train"))).pass_k_mean("hat", 1) == reward
    assert (report.problems == ()) == (reward == 1.0)
    assert {split.gold_reward for split in report.splits if split.tasks} == {reward}
    assert report.unsound == ({} if reward else {"gold fails": 12})
    assert re.search(text, " ".join((*report.problems, *report.warnings)))


def test_example_of_another_type_is_named() -> None:
    with pytest.raises(TaskError, match=r"example 1 of sums is a dict\b.*ToolExample"):
        ToolDataset("sums", "", [ToolExample(prompt="1"), {"prompt": "2"}], Doubling)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": ["a"]}, r"^ToolExample: prompt: .*\['a'\].*string"),
        ({"prompt": "a", "difficulty": ""}, r"^ToolExample: difficulty: .*''.*'easy', 'medium' or 'hard'"),
        ({"prompt": "a", "answr": "4"}, r"^ToolExample: answr: .*\banswer\b"),
        ({"question": "a"}, r"^ToolExample: question: .*\bprompt\b"),
        ({"answer": "4"}, r"^ToolExample: prompt: .*missing"),
        ({"prompt": "a", "answer": True}, r"^ToolExample: answer: .*True"),
    ],
)
def test_a_wrong_field_of_an_example_is_named_in_one_line(fields: dict[str, object], said: str) -> None:
    with pytest.raises(TaskError, match=said) as error:
        ToolExample.model_validate(fields)
    assert "\n" not in str(error.value)
    assert "http" not in str(error.value)


def test_a_single_gold_call_and_a_single_tool() -> None:
    call = ToolCall(name="double", arguments={"n": 1})
    assert ToolExample(prompt="a", gold_calls=call).gold_calls == (call,)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"tools=\[f, g\]"):
        ToolDataset("d", "", [ToolExample(prompt="a")], Doubling, tools=count_items)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"module.*tools=\[f, g\]"):
        ToolDataset("d", "", [ToolExample(prompt="a")], Doubling, tools=inspect)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"examples of d .*NoneType.*ToolExample"):
        ToolDataset("d", "", None, Doubling)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"tool Three\.double is replaced by 3"):
        type("Three", (Doubling,), {"double": 3})


def test_an_answer_may_be_a_number() -> None:
    assert [ToolExample(prompt="a", answer=answer).answer for answer in (42, 1.5)] == ["42", "1.5"]  # type: ignore[arg-type]


def test_an_example_without_a_question_is_refused_with_its_number() -> None:
    with pytest.raises(TaskError, match="example 1 of quiz"):
        ToolDataset("quiz", "p", [ROWS[0], ROWS[0].replace(prompt=" ")], Shelf)


def test_two_examples_with_one_id_are_named_by_their_numbers() -> None:
    twice = [row.replace(id="a") for row in ROWS[:2]]
    with pytest.raises(TaskError, match=r"examples 0 and 1 .*'a'"):
        ToolDataset("twice", "p", twice, Shelf).tasks("train")


STOCK = {"mug": 3, "cup": 0}


def count_items(name: str) -> int:
    """Count the items in stock."""
    return STOCK[name]


async def count_later(name: str) -> int:
    """Count the items that come later."""
    await asyncio.sleep(0)
    return STOCK[name] + 1


class CountEpisode(ToolEpisode):
    def reward(self, transcript: Sequence[Message]) -> float:
        return float(transcript[-1].content == self.example.answer)


def test_functions_are_tools_as_they_are() -> None:
    calls = (
        ToolCall(name="count_items", arguments={"name": "mug"}),
        ToolCall(name="count_later", arguments={"name": "cup"}),
    )
    counts = ToolDataset(
        "counts",
        "Count.",
        [ToolExample(prompt=f"Count the mugs, {n}.", answer=3, gold_calls=calls) for n in range(9)],  # type: ignore[arg-type]
        CountEpisode,
        tools=[count_items, count_later],
    )
    assert [spec.name for spec in counts.tool_specs] == ["count_items", "count_later"]
    assert counts.examples[0].answer == "3"
    narrowed = counts.slice(Slice(families=("question",)))
    task = narrowed.tasks("train")[0]
    episode = asyncio.run(rollout(task, narrowed.environment(task), GoldAgent(), EpisodeLimits()))
    assert episode.reward == 1.0
    assert [message.content for message in episode.messages if message.role == "tool"] == ["3", "1"]


@pytest.mark.parametrize(
    "tools",
    [[count_items, count_items], [lambda name: 1], [7], [CountEpisode.reward]],
    ids=["twice", "lambda", "7", "reward"],
)
def test_functions_without_a_free_name_are_refused(tools: list[object]) -> None:
    with pytest.raises(TaskError, match="tool"):
        ToolDataset("counts", "", [ToolExample(prompt="a")], CountEpisode, tools=tools)  # type: ignore[arg-type]


def test_a_class_of_trl_without_a_reward_is_told_to_define_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class CounterEnv:
        def reset(self, **row: object) -> None: ...

    with pytest.raises(TaskError, match=r"CounterEnv is no subclass of ToolEpisode.*get_reward"):
        ToolDataset("count", "", [ToolExample(prompt="a")], CounterEnv)  # type: ignore[arg-type]
    (tmp_path / "trl_like.py").write_text("class CounterEnv:\n    def reset(self, **row): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="CounterEnv is no subclass of ToolEpisode"):
        resolve(["trl_like:CounterEnv"]).config.open_source()
