"""Tests of tau-bench checkouts: a miniature, and the real one where TAU_BENCH names it."""

import asyncio
import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.checkouts import TAU_BENCH, forget_checkouts, write_checkout
from understudy.core.errors import ConfigError, TaskError
from understudy.core.messages import Message, ToolCall, message_from_openai
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.data.checks.check import check
from understudy.engines.models import smollm2_model
from understudy.envs.environment import StepResult
from understudy.envs.task_source import Slice
from understudy.envs.users import UserConfig, UserSimulatorFactory
from understudy.evaluation.evaluate import evaluate, validate_noop_reward
from understudy.evaluation.runner import prepare_eval, run_eval
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.eval_spec import EvalSpec
from understudy.sources.benchmarks.forked_tables import FrozenTables, LazyTable
from understudy.sources.benchmarks.tau_bench import (
    TauBench,
    TauBenchTools,
    open_domain,
    outputs_told,
    tau_bench_canonical,
)
from understudy.sources.loading import load_source
from understudy.sources.mixture import Mixture

REAL = os.environ.get("TAU_BENCH", "")
real = pytest.mark.skipif(not REAL, reason="TAU_BENCH names no checkout of sierra-research/tau-bench")


@pytest.fixture
def kiosk(tmp_path: Path) -> TauBench:
    source = load_source(f"tau-bench:{write_checkout(tmp_path, TAU_BENCH)}#kiosk")
    assert isinstance(source, TauBench)
    return source


class FixedTextsUser:
    """A user that sends the given texts in order."""

    def __init__(self, *texts: str) -> None:
        self._texts = iter(("Hi.", *texts))

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        return next(self._texts, None)


def call(name: str, **arguments: object) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def text_message(content: str) -> Message:
    return Message(role="assistant", content=content)


def play_steps(source: TauBench, task: Task, *replies: Message, user: FixedTextsUser | None = None) -> list[StepResult]:
    async def play() -> list[StepResult]:
        environment = source.environment(task, user or FixedTextsUser())
        return [await environment.start(), *[await environment.step(reply) for reply in replies]]

    return asyncio.run(play())


def score_parts(step: StepResult) -> dict[str, float]:
    assert step.score is not None
    return step.score.parts


def test_tasks_load_with_gold_outputs_and_policy(kiosk: TauBench) -> None:
    apple, cheap, person, stone = kiosk.tasks("test")
    assert [task.family for task in (apple, cheap, person, stone)] == ["change", "tell", "nothing", "change"]
    assert (apple.id, apple.domain, apple.split, apple.difficulty) == ("test-0", "tau-bench-kiosk", "test", "easy")
    assert apple.scenario.instructions == "Buy an apple."
    assert apple.gold == (call("sell", good="apple", count=1), text_message("Done."))
    assert (cheap.gold, cheap.outputs) == ((text_message("1,000; Apple"),), ("1,000", "Apple"))
    assert person.gold == (text_message("Done."),), "a transfer ends an episode and is no part of gold, as in tau-bench"
    assert kiosk.tasks("validation") == []
    assert kiosk.domain_policy == "You run a kiosk."
    assert kiosk.slice(Slice(domain_policy="brief")).domain_policy == "Ask first.\nThen sell."
    assert [spec.name for spec in kiosk.slice(Slice(tools=("sell",))).tool_specs] == ["sell"]


def test_rules_are_the_brief_policy_also_in_a_mixture(kiosk: TauBench, tmp_path: Path) -> None:
    part = Mixture((kiosk,), (1.0,)).slice(Slice(domain_policy="brief"))
    assert part.domain_policy == "Ask first.\nThen sell."
    bare = {**TAU_BENCH, "tau_bench/envs/kiosk/rules.py": "RULES = []\n"}
    forget_checkouts()
    source = load_source(f"tau-bench:{write_checkout(tmp_path / 'bare', bare)}#kiosk")
    with pytest.raises(ConfigError, match=r"tau-bench-kiosk\b.*\bbrief\b"):
        source.slice(Slice(domain_policy="brief"))


def test_reward_requires_state_and_outputs(kiosk: TauBench) -> None:
    apple, cheap, _, stone = kiosk.tasks("test")
    sell = call("sell", good="apple", count=1)
    assert score_parts(play_steps(kiosk, apple, sell, text_message("Done."))[-1]) == {
        "state_match": 1.0,
        "facts_told": 1.0,
        "within_limits": 1.0,
    }
    assert score_parts(play_steps(kiosk, apple, sell, sell, text_message("Done."))[-1])["state_match"] == 0.0
    assert (
        score_parts(play_steps(kiosk, apple, call("sell", good="apple", count=1.0), text_message("Done."))[-1])[
            "state_match"
        ]
        == 0.0
    ), "1.0 is not 1 in what tau-bench hashes"
    assert score_parts(play_steps(kiosk, apple, call("cheapest"), text_message("Done."))[-1])["state_match"] == 0.0
    assert (
        score_parts(play_steps(kiosk, stone, call("sell", good="pear", count=1), text_message("It costs 2."))[-1])[
            "facts_told"
        ]
        == 1.0
    )
    assert score_parts(play_steps(kiosk, cheap, text_message("An APPLE costs 1000."))[-1])["facts_told"] == 0.0, (
        "commas go from what is said and not from what is to be said"
    )


def test_answer_of_a_tool_may_be_none() -> None:
    """A tool of tau-bench's airline returns None for some arguments."""
    tools = TauBenchTools({"idle": SimpleNamespace(invoke=lambda data: None)}, (), {})
    assert tools.call_sync(ToolCall(name="idle", arguments={})) == "None"


def test_failed_call_returns_error_and_keeps_its_writes(kiosk: TauBench) -> None:
    (apple, *_) = kiosk.tasks("test")
    _, failed, ended = play_steps(kiosk, apple, call("sell", good="apple", count=10), text_message("Done."))
    assert (failed.messages[0].content, failed.error_kinds) == ("Error: too many", ("refused",))
    assert score_parts(ended)["state_match"] == 0.0
    steps = play_steps(kiosk, apple, call("refuse"), call("sell"), call("fly"))
    assert [step.messages[0].content.split(";")[0] for step in steps[1:]] == [
        "Error: closed",
        "Error: Sell.invoke() missing 2 required positional arguments: 'good' and 'count'",
        "Error: unknown tool 'fly'",
    ]


def test_tools_do_not_mutate_call_arguments(kiosk: TauBench) -> None:
    (apple, *_) = kiosk.tasks("test")
    made = call("basket", goods=["apple"])
    assert [step.messages[0].content for step in play_steps(kiosk, apple, made, made)[1:]] == ["apple, bag"] * 2
    assert made == call("basket", goods=["apple"])


def test_calculate_rejects_power_operator(kiosk: TauBench) -> None:
    (apple, *_) = kiosk.tasks("test")
    steps = play_steps(kiosk, apple, call("calculate", expression="9**9**9"), call("calculate", expression="2 * 3"))
    assert [step.messages[0].content for step in steps[1:]] == ["Error: invalid characters in expression", "6"]


def test_transfer_or_stop_token_ends_episode(kiosk: TauBench) -> None:
    (apple, *_) = kiosk.tasks("test")
    transferred = play_steps(kiosk, apple, call("transfer_to_human_agents", summary="no"))[-1]
    assert score_parts(transferred) == {"state_match": 0.0, "facts_told": 1.0, "within_limits": 1.0}

    async def extend() -> StepResult:
        environment = kiosk.environment(apple, FixedTextsUser())
        await environment.step(call("cheapest"))
        return await environment.extend_reply(call("transfer_to_human_agents", summary="no").tool_calls[0])

    assert asyncio.run(extend()).score == transferred.score
    stopped = play_steps(kiosk, apple, text_message("Hello?"), user=FixedTextsUser("Bye. ###STOP###"))[-1]
    assert score_parts(stopped)["within_limits"] == 1.0


def test_episodes_do_not_share_writes(kiosk: TauBench) -> None:
    (apple, *_) = kiosk.tasks("test")

    async def side_by_side() -> list[float]:
        one, other = kiosk.environment(apple, FixedTextsUser()), kiosk.environment(apple, FixedTextsUser())
        for environment in (one, other, one):
            await environment.step(call("cheapest"))
        await one.step(call("sell", good="apple", count=1))
        return [(await environment.grade(True)).reward for environment in (one, other)]

    assert asyncio.run(side_by_side()) == [1.0, 0.0]


def test_check_reports_tasks_that_noop_solves(kiosk: TauBench) -> None:
    report = check(kiosk)
    train, _, test = report.splits
    assert (test.tasks, test.noop_reward, test.gold_reward) == (4, 0.25, 0.75)
    assert (train.tasks, train.noop_reward, train.gold_reward) == (2, 0.5, 1.0)
    (first, second, third) = report.problems
    assert first.startswith("task train-1: ")
    assert second.startswith("task test-2: ")
    assert re.search(
        r"^task test-1: .*\b0\b.*\b1\.0\b.*: facts_told; passed: .*; not told: '1,000'$", third
    )  # no text holds "1,000" without its comma
    assert [(group.kind, group.blocks_training) for group in report.problem_groups] == [
        ("noop_rewarded", True),
        ("noop_rewarded", False),
        ("gold_not_rewarded", False),
    ]
    (warning,) = report.warnings
    assert "refuses calls of 1 gold episodes, such as test-3" in warning


def test_training_rejects_tasks_that_noop_solves(kiosk: TauBench) -> None:
    with pytest.raises(TaskError, match=r"\b1 of the 2 train\b.*train-1.*allow_noop_solvable=true"):
        asyncio.run(validate_noop_reward(kiosk))
    asyncio.run(validate_noop_reward(kiosk.slice(Slice(families=("change",)))))
    with pytest.raises(ConfigError, match=r"\btrain\b"):
        asyncio.run(validate_noop_reward(kiosk.slice(Slice(families=("tell",)))))


def test_stream_repeats_all_tasks_in_each_pass(kiosk: TauBench) -> None:
    stream = kiosk.stream("test", 0)
    first, second = ([next(stream).id for _ in range(4)] for _ in range(2))
    assert sorted(first) == sorted(second) == [f"test-{i}" for i in range(4)]
    assert list(kiosk.stream("validation")) == []


def test_text_without_user_simulator_raises_config_error(kiosk: TauBench) -> None:
    class Polite:
        async def act(self, task: Task, episode: Trajectory, new: object, tools: object) -> Message:
            reply = text_message("How can I help?")
            episode.act(reply)
            return reply

    with pytest.raises(ConfigError, match=r"test-0\b.*'How can I help\?'.*user\.kind=llm"):
        asyncio.run(evaluate(kiosk, Polite(), kiosk.tasks("test")))  # type: ignore[arg-type]


def test_user_of_instructions_answers_any_text(kiosk: TauBench) -> None:
    users = UserSimulatorFactory(UserConfig(kind="instruction"))
    task = kiosk.tasks("test")[0]
    environment = kiosk.with_users(users).environment(task)

    async def talk() -> list[str]:
        opening = (await environment.start()).messages[-1].content
        answer = await environment.step(text_message("What do you want?"))
        return [opening, answer.messages[-1].content]

    assert not users.is_scripted
    assert asyncio.run(talk()) == [task.scenario.instructions] * 2


def test_training_without_users_is_refused_before_its_start(kiosk: TauBench) -> None:
    pytest.importorskip("torch")
    from understudy.train.preparation import prepare_run

    settings = [f"domain=tau-bench:{kiosk.root}#kiosk", "eval.split=test", "model=tiny", "allow_noop_solvable=true"]
    with pytest.raises(ConfigError, match=r"no scripted users.*user\.kind=instruction"):
        asyncio.run(prepare_run(parse_config("", settings)))
    asyncio.run(prepare_run(parse_config("", [*settings, "user.kind=instruction"])))


def test_eval_split_without_tasks_is_rejected(kiosk: TauBench) -> None:
    pytest.importorskip("torch")
    from understudy.train import eval_sets

    for split, others in (("validation", "train or test"), ("train", "test")):
        part = Slice(families=("change",) if split == "validation" else ("tell",))
        config = parse_config("", [f"eval.split={split}", "eval.tasks=3"])
        with pytest.raises(ConfigError, match=rf"\b{split}\b.*eval\.split\b.*\b{others}\b"):
            eval_sets.make_eval_sets(config, kiosk.slice(part))
    config = parse_config("", [f"domain=tau-bench:{kiosk.root}#kiosk"])
    with pytest.raises(ConfigError, match=r"\bvalidation\b.*eval"):
        prepare_eval(EvalSpec(name="noop", agent="noop", config=config), None, Decimal(0), 4)


def test_eval_reports_gold_and_noop_rows(kiosk: TauBench) -> None:
    config = TrainConfig(domain=f"tau-bench:{kiosk.root}#kiosk").model_dump()
    config["eval"] |= {"split": "test", "tasks": 4}
    spec = EvalSpec(name="noop", agent="noop", config=TrainConfig.model_validate(config))
    rows = asyncio.run(run_eval(spec, prepare_eval(spec, None, Decimal(0), 4))).rows
    assert [(row.name, row.result.success_rate.mean) for row in rows] == [
        ("gold", 0.75),
        ("noop", 0.25),
    ]


def test_invalid_reference_or_slice_raises_clear_error(tmp_path: Path, kiosk: TauBench) -> None:
    for reference, message in (
        ("somewhere", r"somewhere\b.*tau-bench:PATH#domain"),
        (f"{kiosk.root}", "#kiosk"),
        (f"{tmp_path}/no#kiosk", rf"{tmp_path}/no\b.*tau_bench/envs"),
        (f"{tmp_path}#kiosks", "'kiosks'.*'kiosk'"),
    ):
        with pytest.raises(ConfigError) as error:
            load_source(f"tau-bench:{reference}")
        assert re.search(message, str(error.value))
    with pytest.raises(ConfigError, match="'sell'"):
        kiosk.slice(Slice(families=("sell",)))
    assert kiosk.tasks("train")
    with pytest.raises(ConfigError, match=re.escape(str(kiosk.root))):
        load_source(f"tau-bench:{write_checkout(tmp_path / 'other', TAU_BENCH)}#kiosk").tasks("test")


def test_missing_dependency_of_checkout_is_named(tmp_path: Path) -> None:
    needy = {**TAU_BENCH, "tau_bench/envs/kiosk/tools.py": "import sold_separately\n"}
    with pytest.raises(ConfigError, match="sold_separately"):
        open_domain(f"{write_checkout(tmp_path / 'a', needy)}#kiosk").tasks("test")
    forget_checkouts()
    newer = {**TAU_BENCH, "tau_bench/envs/kiosk/tools.py": "match = case ="}
    with pytest.raises(ConfigError, match="Python"):
        open_domain(f"{write_checkout(tmp_path / 'b', newer)}#kiosk").tasks("test")


def test_check_command_accepts_checkout(kiosk: TauBench) -> None:
    command = [
        sys.executable,
        "-m",
        "understudy.cli.main",
        "check",
        f"tau-bench:{kiosk.root}#kiosk",
        "slice.families=change",
    ]
    smollm2_model()  # its conversion says one line on stderr, once
    code = "import sys; from understudy.cli.main import main; sys.argv[1:] = sys.argv[2:]; main()"
    done = subprocess.run([command[0], "-c", code, "", *command[3:]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\b1\.0\b.*\b0\.0\b", done.stdout)


def test_outputs_told_follows_tau_bench_rule() -> None:
    transcript = [text_message("It costs $1,200.50."), call("sell", good="ok"), Message(role="user", content="pear")]
    assert outputs_told(transcript, ["1200.5", "IT COSTS"]) == 1.0
    assert outputs_told(transcript, ["pear"]) == 0.0


def test_canonical_form_separates_values_like_tau_bench_hash() -> None:
    assert tau_bench_canonical({"a": [1, {"b": None}], "c": 2}) == tau_bench_canonical({"c": 2, "a": [1, {"b": None}]})
    assert len({tau_bench_canonical(value) for value in (1, 1.0, True, "1", [1], {"1": 1})}) == 6
    assert tau_bench_canonical([1, 2]) != tau_bench_canonical([2, 1])


VALUES = st.recursive(st.none() | st.integers(0, 3) | st.text("ab", max_size=2), lambda v: st.lists(v, max_size=2))
KEYS = st.sampled_from("abcd")
TABLES = st.dictionaries(KEYS, st.lists(VALUES, max_size=2), max_size=3)
ACTS = st.lists(
    st.tuples(st.sampled_from(["set", "append", "pop", "scan", "default", "get"]), KEYS, VALUES), max_size=6
)


@given(TABLES, ACTS)
def test_lazy_table_behaves_like_dict_and_reports_changes(
    table: dict[str, list[object]], acts: Sequence[tuple[str, str, object]]
) -> None:
    world = FrozenTables({"t": table, "whole": [1]}, repr)
    fork, plain = world.fork(), copy.deepcopy(table)
    rows = fork["t"]
    assert isinstance(rows, LazyTable)
    for act, key, value in acts:
        for mapping in (rows, plain):
            if act == "set":
                mapping[key] = [copy.deepcopy(value)]
            elif act == "append" and key in mapping:
                mapping[key].append(copy.deepcopy(value))
            elif act == "scan":
                assert len([row for row in mapping.values() if row == row]) == len(mapping)
        assert act != "pop" or rows.pop(key, None) == plain.pop(key, None)
        assert act != "default" or rows.setdefault(key, [1]) == plain.setdefault(key, [1])
        assert act != "get" or rows.get(key, value) == plain.get(key, value)
    expected = {("t", k): repr(v) for k, v in plain.items() if k not in table or table[k] != v}
    assert world.changes(fork) == expected | {("t", k): None for k in table.keys() - plain.keys()}
    assert (rows, len(rows), list(rows), {**rows}, rows.copy()) == (plain, len(plain), list(plain), plain, plain)
    assert world.changes(world.fork()) == {}


def test_replaced_table_is_compared_row_by_row() -> None:
    world = FrozenTables({"t": {"a": [1], "b": [2]}, "whole": [1]}, repr)
    fork = world.fork()
    fork["t"] = {"a": [1], "c": [3]}
    fork["whole"].append(2)
    fork["new"] = 4
    assert world.changes(fork) == {("t", "b"): None, ("t", "c"): "[3]", ("whole", ""): "[1, 2]", ("new", ""): "4"}
    assert json.dumps(world.fork()["t"]["a"]) == "[1]"


@real
@pytest.mark.tau
@pytest.mark.parametrize(("domain", "count"), [("retail", 115), ("airline", 50)])
def test_real_gold_solves_every_task(domain: str, count: int) -> None:
    source = open_domain(f"{REAL}#{domain}")
    tasks = source.tasks("test")
    gold = asyncio.run(evaluate(source, GoldAgent(), tasks, EpisodeLimits(max_turns=60)))
    assert (len(tasks), gold.success_rate.mean) == (count, 1.0)


@real
@pytest.mark.tau
def test_recorded_episodes_reproduce_recorded_rewards() -> None:
    """The checkout contains records of 200 conversations with gpt-4o. This test replays every fourth."""
    path = Path(REAL, "historical_trajectories", "gpt-4o-airline.json")
    source = open_domain(f"{REAL}#airline")
    for i, record in enumerate(json.loads(path.read_text(encoding="utf-8"))[::4]):
        messages = [message_from_openai(wire) for wire in record["traj"]]
        replies = [message for message in messages if message.role == "assistant"]
        user = FixedTextsUser(*(message.content for message in messages[2:] if message.role == "user"))
        task = source.to_task(f"record-{i}", "test", record["info"]["task"])
        script = task.replace(gold=tuple(replies))
        episode = asyncio.run(
            rollout(script, source.environment(task, user), GoldAgent(), EpisodeLimits(max_turns=len(replies)))
        )
        assert episode.reward == record["reward"], record["task_id"]
