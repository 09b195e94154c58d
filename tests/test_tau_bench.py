"""tau-bench out of a checkout: a miniature of our own, and the real one where TAU_BENCH names it."""

import asyncio
import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkouts import TAU_BENCH, write
from understudy.agent import GoldAgent
from understudy.assess.sitting import Sitting, assess, set_up
from understudy.check import check
from understudy.config import TrainConfig
from understudy.domains.base import Slice, find
from understudy.environment import Step
from understudy.errors import ConfigError, TaskError
from understudy.evaluate import evaluate, refuse_free
from understudy.integrations.rows import Frozen, Rows
from understudy.integrations.tau_bench import TauBench, canonical, open_domain, said
from understudy.messages import Message, ToolCall, from_wire
from understudy.rollout import Limits, rollout
from understudy.settings import parse
from understudy.tasks import Task

REAL = os.environ.get("TAU_BENCH", "")
real = pytest.mark.skipif(not REAL, reason="TAU_BENCH names no checkout of sierra-research/tau-bench")


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """One checkout a test."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "tau_bench"]:
        del sys.modules[name]


@pytest.fixture
def kiosk(tmp_path: Path) -> TauBench:
    source = find(f"tau-bench:{write(tmp_path, TAU_BENCH)}#kiosk")
    assert isinstance(source, TauBench)
    return source


class Says:
    """A user with given texts."""

    def __init__(self, *texts: str) -> None:
        self._texts = iter(("Hi.", *texts))

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        return next(self._texts, None)


def call(name: str, **arguments: object) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def text(content: str) -> Message:
    return Message(role="assistant", content=content)


def played(source: TauBench, task: Task, *replies: Message, user: Says | None = None) -> list[Step]:
    async def play() -> list[Step]:
        environment = source.environment(task, user or Says())
        return [await environment.start(), *[await environment.step(reply) for reply in replies]]

    return asyncio.run(play())


def parts(step: Step) -> dict[str, float]:
    assert step.score is not None
    return step.score.parts


def test_tasks_come_with_what_their_reward_depends_on(kiosk: TauBench) -> None:
    apple, cheap, person, stone = kiosk.tasks("test")
    assert [task.family for task in (apple, cheap, person, stone)] == ["change", "tell", "nothing", "change"]
    assert (apple.id, apple.domain, apple.split, apple.difficulty) == ("test-0", "tau-bench-kiosk", "test", "easy")
    assert apple.scenario.instructions == "Buy an apple."
    assert apple.gold == (call("sell", good="apple", count=1), text("Done."))
    assert (cheap.gold, cheap.outputs) == ((text("1,000; Apple"),), ("1,000", "Apple"))
    assert person.gold == (text("Done."),), "a transfer ends an episode and is no part of gold, as in tau-bench"
    assert kiosk.refused(stone) == ["sell: 'stone'"]
    assert kiosk.tasks("validation") == []
    assert kiosk.policy == "You run a kiosk."
    assert kiosk.slice(Slice(policy="brief")).policy == "Ask first.\nThen sell."
    assert [spec.name for spec in kiosk.slice(Slice(tools=("sell",))).specs] == ["sell"]


def test_the_reward_is_state_and_outputs(kiosk: TauBench) -> None:
    apple, cheap, _, stone = kiosk.tasks("test")
    sell = call("sell", good="apple", count=1)
    assert parts(played(kiosk, apple, sell, text("Done."))[-1]) == {"state": 1.0, "said": 1.0, "ended": 1.0}
    assert parts(played(kiosk, apple, sell, sell, text("Done."))[-1])["state"] == 0.0
    assert parts(played(kiosk, apple, call("sell", good="apple", count=1.0), text("Done."))[-1])["state"] == 0.0, (
        "1.0 is not 1 in what tau-bench hashes"
    )
    assert parts(played(kiosk, apple, call("cheapest"), text("Done."))[-1])["state"] == 0.0
    assert parts(played(kiosk, stone, call("sell", good="pear", count=1), text("It costs 2."))[-1])["said"] == 1.0
    assert parts(played(kiosk, cheap, text("An APPLE costs 1000."))[-1])["said"] == 0.0, (
        "commas go from what is said and not from what is to be said"
    )


def test_what_a_tool_wrote_before_it_failed_stays(kiosk: TauBench) -> None:
    (apple, *_) = kiosk.tasks("test")
    _, failed, ended = played(kiosk, apple, call("sell", good="apple", count=10), text("Done."))
    assert (failed.messages[0].content, failed.errors) == ("Error: too many", ("refused",))
    assert parts(ended)["state"] == 0.0
    steps = played(kiosk, apple, call("refuse"), call("sell"), call("fly"))
    assert [step.messages[0].content.split(";")[0] for step in steps[1:]] == [
        "Error: closed",
        "Error: Sell.invoke() missing 2 required positional arguments: 'good' and 'count'",
        "Error: unknown tool 'fly'",
    ]


def test_a_call_stays_as_the_model_made_it(kiosk: TauBench) -> None:
    (apple, *_) = kiosk.tasks("test")
    made = call("basket", goods=["apple"])
    assert [step.messages[0].content for step in played(kiosk, apple, made, made)[1:]] == ["apple, bag"] * 2
    assert made == call("basket", goods=["apple"])


def test_a_power_is_refused_before_it_is_computed(kiosk: TauBench) -> None:
    (apple, *_) = kiosk.tasks("test")
    steps = played(kiosk, apple, call("calculate", expression="9**9**9"), call("calculate", expression="2 * 3"))
    assert [step.messages[0].content for step in steps[1:]] == ["Error: invalid characters in expression", "6"]
    assert kiosk.refused(apple.replace(gold=(call("calculate", expression="(2)**2"),))) == [
        "calculate: invalid characters in expression"
    ]


def test_a_transfer_and_the_users_mark_end_an_episode(kiosk: TauBench) -> None:
    (apple, *_) = kiosk.tasks("test")
    transferred = played(kiosk, apple, call("transfer_to_human_agents", summary="no"))[-1]
    assert parts(transferred) == {"state": 0.0, "said": 1.0, "ended": 1.0}
    stopped = played(kiosk, apple, text("Hello?"), user=Says("Bye. ###STOP###"))[-1]
    assert parts(stopped)["ended"] == 1.0


def test_episodes_share_nothing_that_they_write(kiosk: TauBench) -> None:
    (apple, *_) = kiosk.tasks("test")

    async def side_by_side() -> list[float]:
        one, other = kiosk.environment(apple, Says()), kiosk.environment(apple, Says())
        for environment in (one, other, one):
            await environment.step(call("cheapest"))
        await one.step(call("sell", good="apple", count=1))
        return [(await environment.grade(True)).reward for environment in (one, other)]

    assert asyncio.run(side_by_side()) == [1.0, 0.0]


def test_check_names_the_tasks_that_doing_nothing_earns(kiosk: TauBench) -> None:
    report = check(kiosk)
    train, _, test = report.splits
    assert (test.tasks, test.floor, test.oracle) == (4, 0.25, 0.75)
    assert (train.tasks, train.floor, train.oracle) == (2, 0.5, 1.0)
    assert report.problems == (
        "task train-1: doing nothing earns 1",
        "task test-1: its gold turns earn 0 instead of 1.0; failed: said",  # no text holds "1,000" once commas are gone
        "task test-2: doing nothing earns 1",
    )


def test_training_on_what_doing_nothing_earns_is_refused(kiosk: TauBench) -> None:
    with pytest.raises(TaskError, match=r"doing nothing earns 1 of the 2 train tasks .*train-1.*free_tasks=true"):
        asyncio.run(refuse_free(kiosk))
    asyncio.run(refuse_free(kiosk.slice(Slice(families=("change",)))))
    with pytest.raises(ConfigError, match="no train tasks in this slice"):
        asyncio.run(refuse_free(kiosk.slice(Slice(families=("tell",)))))


def test_the_stream_repeats_the_tasks_in_another_order(kiosk: TauBench) -> None:
    stream = kiosk.stream("test", 0)
    first, second = ([next(stream).id for _ in range(4)] for _ in range(2))
    assert sorted(first) == sorted(second) == [f"test-{i}" for i in range(4)]
    assert list(kiosk.stream("validation")) == []


def test_a_model_that_speaks_to_nobody_is_told_so(kiosk: TauBench) -> None:
    class Polite:
        async def act(self, task: Task, episode: object, new: object, tools: object) -> Message:
            return text("How can I help?")

    with pytest.raises(
        ConfigError, match=r"task test-0 has no scripted user to answer 'How can I help\?'.*user\.kind=llm"
    ):
        asyncio.run(evaluate(kiosk, Polite(), kiosk.tasks("test")))  # type: ignore[arg-type]


def test_an_exam_without_tasks_is_refused(kiosk: TauBench) -> None:
    pytest.importorskip("torch")
    from understudy.train import exam

    for split, others in (("validation", "train or test"), ("train", "test")):
        part = Slice(families=("change",) if split == "validation" else ("tell",))
        config = parse(TrainConfig, "", [f"eval.split={split}", "eval.tasks=3"])
        with pytest.raises(ConfigError, match=f"has no {split} tasks in this slice; set eval.split to {others}, or"):
            exam.exams(config, kiosk.slice(part))
    config = parse(TrainConfig, "", [f"domain=tau-bench:{kiosk.root}#kiosk"])
    with pytest.raises(ConfigError, match="has no validation tasks in this slice; set eval"):
        set_up(Sitting(name="silent", agent="silent", config=config), None, Decimal(0), 4)


def test_eval_shows_the_floor_beside_the_score(kiosk: TauBench) -> None:
    config = TrainConfig(domain=f"tau-bench:{kiosk.root}#kiosk").model_dump()
    config["eval"] |= {"split": "test", "tasks": 4}
    sitting = Sitting(name="silent", agent="silent", config=TrainConfig.model_validate(config))
    rows = asyncio.run(assess(sitting, set_up(sitting, None, Decimal(0), 4))).pairs
    assert [(name, row.success.mean) for name, row in rows] == [
        ("do nothing", 0.25),
        ("gold oracle", 0.75),
        ("silent", 0.25),
    ]


def test_mistakes_are_one_line(tmp_path: Path, kiosk: TauBench) -> None:
    for reference, message in (
        ("somewhere", "tau-bench:somewhere is not of the form tau-bench:PATH#domain"),
        (f"{tmp_path}/no#kiosk", f"{tmp_path}/no is no checkout of tau-bench: it has no folder tau_bench/envs"),
        (f"{tmp_path}#kiosks", "tau-bench has no domain 'kiosks'; did you mean 'kiosk'"),
    ):
        with pytest.raises(ConfigError) as error:
            find(f"tau-bench:{reference}")
        assert str(error.value).startswith(message)
    with pytest.raises(ConfigError, match="has no family 'sell'"):
        kiosk.slice(Slice(families=("sell",)))
    assert kiosk.tasks("train")
    with pytest.raises(ConfigError, match="is loaded already"):
        find(f"tau-bench:{write(tmp_path / 'other', TAU_BENCH)}#kiosk").tasks("test")


def test_what_a_checkout_needs_is_named(tmp_path: Path) -> None:
    needy = {**TAU_BENCH, "tau_bench/envs/kiosk/tools.py": "import sold_separately\n"}
    with pytest.raises(ConfigError, match=r"needs the module sold_separately; install it"):
        open_domain(f"{write(tmp_path / 'a', needy)}#kiosk").tasks("test")
    for name in [name for name in sys.modules if name.startswith("tau_bench")]:
        del sys.modules[name]
    newer = {**TAU_BENCH, "tau_bench/envs/kiosk/tools.py": "match = case ="}
    with pytest.raises(ConfigError, match="does not load in this Python, "):
        open_domain(f"{write(tmp_path / 'b', newer)}#kiosk").tasks("test")


def test_the_command_line_checks_a_checkout(kiosk: TauBench) -> None:
    command = [
        sys.executable,
        "-m",
        "understudy.cli",
        "check",
        f"tau-bench:{kiosk.root}#kiosk",
        "slice.families=change",
    ]
    code = "import sys; from understudy.cli import main; sys.argv[1:] = sys.argv[2:]; main()"
    done = subprocess.run([command[0], "-c", code, "", *command[3:]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sound: gold earns 1.0 and doing nothing 0.0" in done.stdout


def test_said_is_tau_benchs_rule() -> None:
    transcript = [text("It costs $1,200.50."), call("sell", good="ok"), Message(role="user", content="pear")]
    assert said(transcript, ["1200.5", "IT COSTS"]) == 1.0
    assert said(transcript, ["pear"]) == 0.0


def test_canonical_tells_apart_what_tau_bench_hashes_apart() -> None:
    assert canonical({"a": [1, {"b": None}], "c": 2}) == canonical({"c": 2, "a": [1, {"b": None}]})
    assert len({canonical(value) for value in (1, 1.0, True, "1", [1], {"1": 1})}) == 6
    assert canonical([1, 2]) != canonical([2, 1])


VALUES = st.recursive(st.none() | st.integers(0, 3) | st.text("ab", max_size=2), lambda v: st.lists(v, max_size=2))
KEYS = st.sampled_from("abcd")
TABLES = st.dictionaries(KEYS, st.lists(VALUES, max_size=2), max_size=3)
ACTS = st.lists(
    st.tuples(st.sampled_from(["set", "append", "pop", "scan", "default", "get"]), KEYS, VALUES), max_size=6
)


@given(TABLES, ACTS)
def test_rows_behave_like_a_dict_and_know_what_changed(
    table: dict[str, list[object]], acts: Sequence[tuple[str, str, object]]
) -> None:
    world = Frozen({"t": table, "whole": [1]}, repr)
    fork, plain = world.fork(), copy.deepcopy(table)
    rows = fork["t"]
    assert isinstance(rows, Rows)
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


def test_a_table_that_is_put_in_place_of_another_is_compared_as_a_table() -> None:
    world = Frozen({"t": {"a": [1], "b": [2]}, "whole": [1]}, repr)
    fork = world.fork()
    fork["t"] = {"a": [1], "c": [3]}
    fork["whole"].append(2)
    fork["new"] = 4
    assert world.changes(fork) == {("t", "b"): None, ("t", "c"): "[3]", ("whole", ""): "[1, 2]", ("new", ""): "4"}
    assert json.dumps(world.fork()["t"]["a"]) == "[1]"


@real
@pytest.mark.tau
@pytest.mark.parametrize(("domain", "count"), [("retail", 115), ("airline", 50)])
def test_gold_earns_every_real_task(domain: str, count: int) -> None:
    source = open_domain(f"{REAL}#{domain}")
    tasks = source.tasks("test")
    gold = asyncio.run(evaluate(source, GoldAgent(), tasks, Limits(max_turns=60)))
    assert (len(tasks), gold.success.mean) == (count, 1.0)


@real
@pytest.mark.tau
def test_recorded_episodes_earn_what_was_recorded() -> None:
    """The checkout's own records: 200 conversations with gpt-4o."""
    path = Path(REAL, "historical_trajectories", "gpt-4o-airline.json")
    source = open_domain(f"{REAL}#airline")
    for i, record in enumerate(json.loads(path.read_text(encoding="utf-8"))[::4]):
        messages = [from_wire(wire) for wire in record["traj"]]
        replies = [message for message in messages if message.role == "assistant"]
        user = Says(*(message.content for message in messages[2:] if message.role == "user"))
        task = source.task(f"record-{i}", "test", record["info"]["task"])
        script = task.replace(gold=tuple(replies))
        episode = asyncio.run(
            rollout(script, source.environment(task, user), GoldAgent(), Limits(max_turns=len(replies)))
        )
        assert episode.reward == record["reward"], record["task_id"]
