"""Test domains in their simplest form: functions for families, listed tasks, defaults and problems of a definition."""

import asyncio
import dataclasses
import itertools
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from toy import DOMAIN as TOY
from toy import House, Lamp, LampTools, build_house
from understudy.cli.data import FreezeOptions, freeze
from understudy.clients.chat import EndpointConfig
from understudy.core.errors import ConfigError, TaskError
from understudy.core.messages import Message
from understudy.core.records import Record
from understudy.core.tasks import SPLITS, Difficulty, Scenario, Task, UserGoal, read_tasks
from understudy.data.checks.check import check
from understudy.envs.domain import GENERATED_TASK_COUNTS, Domain
from understudy.envs.domain_definition import assign_row_splits, find_domain_folder
from understudy.envs.domain_validation import validate_domain
from understudy.envs.gold import gold_call, gold_text
from understudy.envs.state import State, Table
from understudy.envs.task_source import Slice
from understudy.envs.tools import Toolkit
from understudy.envs.users import LLMUser, ScriptedUser, User, UserConfig, UserSimulatorFactory
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.loading import load_source


def switch_on(rng: random.Random) -> Task:
    lamp = f"L{rng.randrange(90)}"
    return make_task(lamp, "hard" if rng.random() < 0.5 else "easy")


def switch_off(rng: random.Random) -> Task:
    lamp = f"L{rng.randrange(90)}"
    return make_task(lamp, "easy", on=False, setup={"lamps": {lamp: {"on": True}}})


def make_task(lamp: str, difficulty: Difficulty = "easy", on: bool = True, **fields: Any) -> Task:
    word = "on" if on else "off"
    goal = UserGoal(text=f"Please switch {word} lamp {lamp}.", required_terms=(lamp,))
    return Task(
        difficulty=difficulty,
        scenario=Scenario(instructions=goal.text, opening=f"Hello! {goal.text}", goals=(goal,)),
        gold=(
            gold_text(f"I will switch {word} lamp {lamp}. Shall I go ahead?"),
            gold_call("switch_lamp", lamp_id=lamp, on=on),
            gold_text("Done."),
        ),
        **fields,
    )


def without_question(task: Task) -> Task:
    return task.replace(gold=task.gold[1:])


SIMPLE = Domain("simple_lamps", build_house, LampTools, {"on": switch_on, "off": switch_off}, policy="Switch lamps.")


def define_module(monkeypatch: pytest.MonkeyPatch, folder: Path, domain: Domain) -> None:
    """Make a module in `folder` that defines the domain, as if it had been imported."""
    module = ModuleType(domain.module_name)
    module.__file__ = str(folder / f"{domain.module_name}.py")
    vars(module)["DOMAIN"] = domain
    monkeypatch.setitem(sys.modules, domain.module_name, module)


@pytest.mark.slow
def test_families_policy_and_splits_have_defaults() -> None:
    assert (SIMPLE.name, SIMPLE.families, SIMPLE.domain_policy) == ("simple_lamps", ("on", "off"), "Switch lamps.")
    assert SIMPLE.slice(Slice(domain_policy="brief")).domain_policy == "Switch lamps."
    for split in SPLITS:
        tasks = SIMPLE.tasks(split)
        assert 10 < len(tasks) <= GENERATED_TASK_COUNTS[split]
        assert {(task.domain, task.split) for task in tasks} == {("simple_lamps", split)}
        assert Counter(task.family for task in tasks).keys() == {"on", "off"}
    assert check(SIMPLE).problems == ()


@pytest.mark.slow
def test_missing_policy_is_only_a_warning() -> None:
    domain = Domain("simple_lamps", build_house, LampTools, {"on": switch_on})
    assert domain.domain_policy == ""
    report = check(domain)
    assert (report.problems, len(report.warnings)) == ((), 1)


def test_stream_is_deterministic_and_balanced_and_tasks_are_made_again_from_their_ids() -> None:
    tasks = list(itertools.islice(SIMPLE.stream("train", 3), 12))
    assert tasks == list(itertools.islice(SIMPLE.stream("train", 3), 12))
    assert [task.family for task in tasks] == ["on", "off"] * 6
    assert tasks != list(itertools.islice(SIMPLE.stream("train", 4), 12))
    assert [SIMPLE.regenerate(task.id) for task in tasks] == tasks
    assert SIMPLE.regenerate("simple_lamps/dim/0-1") is None
    assert SIMPLE.regenerate("other/on/0-1") is None


def test_slice_narrows_generated_tasks() -> None:
    part = SIMPLE.slice(Slice(families=("on",), difficulties=("hard",)))
    found = [*part.tasks("train"), *part.sample("train", 5)]
    assert {(task.family, task.difficulty) for task in found} == {("on", "hard")}
    nothing = SIMPLE.slice(Slice(families=("off",), difficulties=("hard",)))
    assert (nothing.tasks("train"), nothing.sample("train", 5)) == ([], [])


def test_listed_tasks_are_split_by_their_rows_and_may_set_their_split() -> None:
    tasks = [make_task(f"L{number}") for number in range(90)]
    domain = Domain("listed_lamps", build_house, LampTools, task_list=[*tasks, make_task("L5", on=False, split="test")])
    assert domain.families == ("task",)
    counts = [len(domain.tasks(split)) for split in SPLITS]
    assert counts == [63, 9, 19]
    assert len({task.id for split in SPLITS for task in domain.tasks(split)}) == 91
    assert len(domain.sample("train", 100)) == 100
    generator = Domain("listed_lamps", build_house, LampTools, task_list=(task for task in tasks))  # type: ignore[arg-type]
    assert len(generator.task_list) == 90


def test_two_domains_of_a_module_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define_module(monkeypatch, tmp_path, SIMPLE)
    module = vars(sys.modules["simple_lamps"])
    module["PART"] = SIMPLE.slice(Slice(families=("on",)))
    assert SIMPLE.notes() == ()
    module["OTHER"] = Domain("simple_lamps", build_house, LampTools, {"on": switch_on})
    (note,) = SIMPLE.notes()
    assert "DOMAIN, PART, OTHER of simple_lamps" in note
    module["OTHER"] = other = dataclasses.replace(module["OTHER"], own_name="other_lamps")
    assert (SIMPLE.notes(), other.notes()) == ((), ())
    assert other.tasks("train")[0].id.startswith("other_lamps/")
    folder = other.write_frozen_tasks({"train": 1, "validation": 1, "test": 1})
    assert folder == tmp_path / "other_lamps_tasks"


class ModelUser(LLMUser):
    """A user that counts as a model and says what a script says."""

    def __init__(self, scenario: Scenario) -> None:
        self._scripted = ScriptedUser(scenario)

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        return await self._scripted.reply(transcript)


def find_violations_of_lie(domain: Domain, user: User | None = None) -> list[str]:
    """Return the violations of an agent that claims a refund in its last text."""
    task = domain.tasks("train")[0]
    lie = task.replace(gold=(*task.gold[:-1], gold_text("Done. I have also refunded 500.00 to your card.")))
    played = asyncio.run(rollout(lie, domain.environment(task, user), GoldAgent(), EpisodeLimits()))
    assert played.score
    return [violation.kind for violation in played.score.violations]


def test_texts_are_judged_unless_they_are_not_english_or_users_are_models() -> None:
    words = "Schalte die Lampe ein, wenn der Kunde es will und der Frage danach klar zustimmt, und sage sonst nichts."
    german = dataclasses.replace(SIMPLE, own_name="lampen", policy=" ".join([words] * 100))
    (note,) = german.notes()
    assert "lampen is not English" in note
    assert find_violations_of_lie(german) == []
    assert find_violations_of_lie(SIMPLE)
    assert find_violations_of_lie(SIMPLE, ModelUser(SIMPLE.tasks("train")[0].scenario)) == []
    model = EndpointConfig(model="m", base_url="http://127.0.0.1:9/v1")
    users = UserSimulatorFactory(UserConfig(kind="llm"), {"default": model})
    (note,) = SIMPLE.with_users(users).notes()
    assert "users are models" in note
    assert list(users.notes) == [note]
    assert not UserSimulatorFactory(UserConfig()).notes


@pytest.mark.slow
def test_frozen_tasks_of_a_module_are_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Domain("simple_lamps", build_house, LampTools, {"on": switch_on})
    define_module(monkeypatch, tmp_path, domain)
    before = domain.tasks("test")
    freeze(FreezeOptions(domain="simple_lamps:DOMAIN"))
    assert read_tasks(tmp_path / "simple_lamps_tasks" / "test.jsonl") == before == domain.tasks("test")
    (tmp_path / "simple_lamps_tasks" / "test.jsonl").write_text("")
    assert Domain("simple_lamps", build_house, LampTools, {"on": switch_on}).tasks("test") == []
    with pytest.raises(ConfigError, match=r"simple_lamps_tasks exists"):
        freeze(FreezeOptions(domain="simple_lamps:DOMAIN"))
    freeze(FreezeOptions(domain="simple_lamps:DOMAIN", out=tmp_path / "copy"))
    assert read_tasks(tmp_path / "copy" / "test.jsonl") == before
    assert (tmp_path / "simple_lamps_tasks" / "test.jsonl").read_text() == ""
    with pytest.raises(ConfigError, match=r"copy exists"):
        freeze(FreezeOptions(domain="simple_lamps:DOMAIN", out=tmp_path / "copy"))


def test_a_name_without_a_module_has_no_files() -> None:
    assert find_domain_folder("simple_lamps") is None
    assert find_domain_folder("calendar") is None
    with pytest.raises(TaskError, match="simple_lamps"):
        SIMPLE.write_frozen_tasks()


def test_all_problems_of_a_definition_are_raised_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class SilentTools(Toolkit):
        def look(self) -> str:
            return ""

    domain = Domain(
        "bad_lamps", build_house, SilentTools, {"on": switch_on}, families=("on", "onn"), shared_tables=("lamp",)
    )
    define_module(monkeypatch, tmp_path, domain)
    with pytest.raises(TaskError) as raised:
        load_source("bad_lamps:DOMAIN")
    lines = str(raised.value).splitlines()
    assert len(lines) == 4
    for part, line in zip(("bad_lamps", "'lamp'", "look", "'onn'"), lines, strict=True):
        assert part in line


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, "generate="),
        ({"generate": TOY.generate}, "families="),
        ({"generate": {"on": switch_on}, "task_list": [make_task("L1")]}, "task_list"),
        ({"generate": {"on": "L1"}}, "'on'"),
        ({"task_list": [make_task("L1", domain="other")]}, "'other'"),
        ({"generate": {"on": switch_on}, "user_tools": State}, "user_tools"),
        ({"generate": [switch_on]}, "generate is a list.*dict"),
        ({"generate": {"on": lambda: None}}, "family 'on' takes .*rng"),
        ({"generate": {"on": switch_on}, "policy": "rules.md"}, "policy 'rules.md'.*read_text"),
        ({"generate": {"on": switch_on}, "policy": Path("docs/rules")}, "policy 'docs/rules'.*read_text"),
        ({"generate": {"on": switch_on}, "policy": __file__}, "policy .*read_text"),
        ({"generate": {"on": switch_on}, "toolkit": LampTools(build_house())}, "class, toolkit=LampTools"),
        ({"generate": {"on": switch_on}, "user_tools": LampTools(build_house())}, "class, user_tools=LampTools"),
        ({"generate": {"on": switch_on}, "build_world": build_house()}, "build_world .* function"),
    ],
)
def test_problem_of_a_definition(fields: dict[str, Any], part: str) -> None:
    with pytest.raises(TaskError, match=part):
        validate_domain(Domain("lamps", **{"build_world": build_house, "toolkit": LampTools, **fields}))


def test_toolkit_whose_constructor_sets_no_state_is_named() -> None:
    class OwnTools(LampTools):
        def __init__(self, db: House) -> None:
            self.db = db

    domain = Domain("lamps", build_house, OwnTools, {"on": switch_on})
    for use in (validate_domain, lambda domain: domain.gold_changes(make_task("L1"))):
        with pytest.raises(TaskError, match=r"OwnTools.*super\(\)\.__init__\(state\)"):
            use(domain)


def test_gold_of_the_agent_with_a_tool_of_the_user_is_named() -> None:
    class Agent(Toolkit):
        def look(self) -> str:
            """Look."""
            return "dark"

    domain = Domain("lamps", build_house, Agent, {"on": switch_on}, user_tools=LampTools)
    with pytest.raises(TaskError, match=r"switch_lamp.*tool of the user.*role='user'"):
        domain.gold_changes(make_task("L1"))


def test_world_without_tables_is_a_problem() -> None:
    class Empty(State):
        pass

    with pytest.raises(TaskError, match="Empty has no tables"):
        validate_domain(Domain("lamps", Empty, LampTools, {"on": switch_on}))


def test_function_that_returns_no_task_is_named() -> None:
    domain = Domain("lamps", build_house, LampTools, {"on": lambda rng: None})  # type: ignore[dict-item,return-value]
    with pytest.raises(TaskError, match=r"'on' returned None"):
        domain.tasks("train")


def test_all_bad_parameters_of_a_toolkit_are_raised_at_once() -> None:
    with pytest.raises(TaskError) as raised:

        class BadTools(Toolkit):
            def find(self, name) -> str:  # type: ignore[no-untyped-def]
                """Find."""
                return ""

            def move(self, *places: str) -> str:
                """Move."""
                return ""

    assert "`name`" in str(raised.value)
    assert "`*places: str`" in str(raised.value)


class Owner(Record):
    name: str


class Lease(Record):
    owner: str
    lamps: tuple[str, ...] = ()


class Estate(State):
    owners: Table[Owner]
    leases: Table[Lease]


def test_rows_belong_to_the_split_of_the_row_that_they_name() -> None:
    estate = Estate(
        owners={f"O{n}": Owner(name="Ada") for n in range(20)},
        leases={f"K{n}": Lease(owner=f"O{n % 20}") for n in range(40)},
    )
    splits = assign_row_splits(estate.tables())
    assert Counter(splits["owners", f"O{n}"] for n in range(20)) == {"train": 14, "validation": 2, "test": 4}
    assert all(splits["leases", f"K{n}"] == splits["owners", f"O{n % 20}"] for n in range(40))


def test_two_rows_are_not_divided() -> None:
    house = House(lamps={"L1": Lamp(room="a"), "L2": Lamp(room="b")})
    assert set(assign_row_splits(house.tables()).values()) == {"train"}


def play(domain: Domain, task: Task) -> Any:
    return asyncio.run(rollout(task, domain.environment(task), GoldAgent(), EpisodeLimits()))


def test_autonomous_agents_need_no_confirmation() -> None:
    task = without_question(make_task("L1", id="t"))
    must_ask = Domain("lamps", build_house, LampTools, task_list=[task])
    asked = play(must_ask, must_ask.tasks("train")[0] if must_ask.tasks("train") else task)
    assert asked.reward == 0.0
    assert asked.score.parts["policy_compliance"] == 0.0
    autonomous = Domain("lamps", build_house, LampTools, task_list=[task], policy="p", confirm_writes=False)
    episode = play(autonomous, task)
    assert (episode.reward, episode.score.parts["policy_compliance"]) == (1.0, 1.0)
    assert [message.role for message in episode.messages] == ["system", "user", "assistant", "tool", "assistant"]


def test_user_of_an_autonomous_agent_still_agrees_to_a_correct_proposal() -> None:
    domain = Domain("lamps", build_house, LampTools, task_list=[make_task("L1", id="t")], confirm_writes=False)
    assert play(domain, make_task("L1", id="t")).reward == 1.0


def test_user_without_confirmations_states_each_goal_after_the_report_of_the_one_before() -> None:
    goals = tuple(UserGoal(text=f"Please switch on lamp L{n}.", required_terms=(f"L{n}",)) for n in (1, 2))
    turns = [m for n in (1, 2) for m in (gold_call("switch_lamp", lamp_id=f"L{n}", on=True), gold_text("Done."))]
    task = Task(
        id="t",
        scenario=Scenario(instructions="Both lamps.", opening=goals[0].text, goals=goals),
        gold=tuple(turns),
    )
    domain = Domain("lamps", build_house, LampTools, task_list=[task], confirm_writes=False)
    episode = play(domain, task)
    assert episode.reward == 1.0
    assert Message(role="user", content=goals[1].text) in episode.messages


def test_generated_tasks_call_only_tools_of_the_slice() -> None:
    retail = load_source("retail")
    few = retail.slice(Slice(tools=("find_user", "get_order")))
    tasks = list(itertools.islice(few.stream("train"), 40))
    assert all({call.name for call in task.gold_calls} <= {"find_user", "get_order"} for task in tasks)
    assert len(tasks) == 40
    assert list(retail.slice(Slice(families=("cancel",), tools=("transfer_to_human",))).stream("train")) == []
