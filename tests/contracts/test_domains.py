"""Test the contract of every bundled domain: tasks, episodes, tools, and database state."""

import asyncio
import inspect
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path

import pytest

from support import script
from support.paths import TESTS
from understudy.core.errors import ConfigError, ToolError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import DIFFICULTIES, SPLITS, Score, Split, Task
from understudy.core.trajectory import Trajectory
from understudy.data.checks.check import DomainReport, check
from understudy.envs.domain import FROZEN_TASK_COUNTS, Domain
from understudy.envs.state import merge_patch
from understudy.envs.task_source import Slice
from understudy.rollouts.agent import Agent, GoldAgent, NoopAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.loading import load_source
from understudy.sources.references import list_domains

LIMITS = EpisodeLimits(max_turns=60)


@pytest.fixture(scope="module", params=list_domains())
def domain(request: pytest.FixtureRequest) -> Domain:
    return load_source(request.param)


@pytest.fixture(scope="module")
def report(domain: Domain) -> DomainReport:
    return check(domain)


def play(domain: Domain, task: Task, agent: Agent) -> Trajectory:
    return asyncio.run(rollout(task, domain.environment(task), agent, LIMITS))


def score_turns(domain: Domain, task: Task, *turns: Message) -> tuple[Score, list[Message]]:
    return script.play(domain, task, script.Script(*turns))


def sample_all_splits(domain: Domain, count: int = 20) -> Iterator[Task]:
    """Yield generated tasks of all splits, for several seeds."""
    for seed, split in itertools.product((1, 2, 3), SPLITS):
        yield from domain.sample(split, count, seed)


@pytest.mark.slow
def test_check_reports_no_problems(domain: Domain, report: DomainReport) -> None:
    assert report.problems == ()
    assert report.unused_tools == ()  # gold calls every tool
    assert all(set(split.families) == set(domain.families) for split in report.splits)
    assert report.warnings == ()  # no unusual call raises anything but ToolError
    assert [split.noop_reward for split in report.splits] == [0.0] * 3
    assert [split.gold_reward for split in report.splits] == [1.0] * 3


@pytest.mark.slow
def test_frozen_splits_equal_the_generated_tasks(domain: Domain) -> None:
    for split, count in FROZEN_TASK_COUNTS.items():
        assert domain.tasks(split) == domain.sample(split, count)


def test_every_family_has_every_difficulty(domain: Domain) -> None:
    assert len(domain.families) >= 3
    wanted = set(itertools.product(domain.families, DIFFICULTIES))
    assert {(t.family, t.difficulty) for t in domain.tasks("train")} == wanted


@pytest.mark.slow
def test_generated_tasks_reward_gold_1_and_noop_0(domain: Domain) -> None:
    for task in sample_all_splits(domain):
        assert play(domain, task, GoldAgent()).reward == 1.0, task.id
        assert play(domain, task, NoopAgent()).reward == 0.0, task.id


def test_sampling_is_deterministic_by_seed(domain: Domain) -> None:
    assert domain.sample("train", 50, seed=4) == domain.sample("train", 50, seed=4)
    assert not {t.id for t in domain.sample("train", 50, seed=4)} & {t.id for t in domain.sample("train", 50, seed=5)}


def test_task_ids_are_unique_and_identify_the_task(domain: Domain) -> None:
    """An id means one task in any slice, because goals are cached by it."""
    tasks = {task.id: task for task in sample_all_splits(domain)}
    assert len(tasks) == len(list(sample_all_splits(domain)))
    for family in domain.families:
        part = domain.slice(Slice(families=(family,), difficulties=("medium", "easy")))
        narrowed = part.sample("train", 20, seed=1)
        assert {(t.family, t.difficulty) for t in narrowed} == {(family, "easy"), (family, "medium")}
        assert all(tasks.get(t.id, t) == t for t in narrowed)


def test_sampled_tasks_are_balanced_over_families(domain: Domain) -> None:
    count = 5 * len(domain.families)
    drawn = domain.sample("validation", count, seed=1)
    assert {family: [t.family for t in drawn].count(family) for family in domain.families} == dict.fromkeys(
        domain.families, 5
    )


def test_slice_rejects_unknown_names(domain: Domain) -> None:
    with pytest.raises(ConfigError, match="'cancle'"):
        domain.slice(Slice(families=("cancle",)))
    with pytest.raises(ConfigError, match="'no_tool'"):
        domain.slice(Slice(tools=("no_tool",)))


def test_gold_episodes_are_deterministic(domain: Domain) -> None:
    for task in domain.sample("train", 60, seed=6):
        first, second = (play(domain, task, GoldAgent()) for _ in range(2))
        assert first.messages == second.messages


def test_episodes_do_not_change_the_shared_database(domain: Domain) -> None:
    before = json.dumps(domain.build_world().dump(), default=str)
    for task in domain.sample("train", 60, seed=6):
        play(domain, task, GoldAgent())
    assert json.dumps(domain.build_world().dump(), default=str) == before


def test_agent_receives_policy_and_opening(domain: Domain) -> None:
    (task,) = domain.sample("train", 1)
    for policy in ("full", "brief"):
        part = domain.slice(Slice(domain_policy=policy))
        system, opening = play(part, task, NoopAgent()).messages[:2]
        assert (system.role, system.content, opening.content) == ("system", part.domain_policy, task.scenario.opening)


def test_policy_lengths_are_in_range(domain: Domain) -> None:
    full, brief = (domain.slice(Slice(domain_policy=policy)).domain_policy for policy in ("full", "brief"))
    assert 1500 < len(full) < 6000
    assert 200 < len(brief) < 650, "about 140 tokens"


class RefusingAgent:
    """An agent that gives one refusal as every reply."""

    async def act(self, task: Task, episode: Trajectory, new: list[Message], tools: list[ToolSpec]) -> Message:
        episode.observe(new)
        reply = Message(role="assistant", content="I am sorry, I cannot do that.")
        episode.act(reply)
        return reply


def test_refusing_agent_earns_almost_no_reward(domain: Domain) -> None:
    tasks = list(sample_all_splits(domain, 40))
    assert sum(play(domain, task, RefusingAgent()).reward for task in tasks) < 0.02 * len(tasks)


def easy_single_goal_tasks(domain: Domain) -> list[Task]:
    """Return the frozen easy tasks with one goal."""
    return [t for t in domain.tasks("test") if t.difficulty == "easy" and len(t.scenario.goals) == 1]


def tasks_answered_last(domain: Domain) -> list[Task]:
    """Return easy tasks whose only required output is stated in the last gold turn alone."""
    tasks = [t for t in easy_single_goal_tasks(domain) if len(t.outputs) == 1]
    told = [[any(o in turn.content for o in t.outputs[0].split("|")) for turn in t.gold_turns] for t in tasks]
    return [t for t, turns in zip(tasks, told, strict=True) if turns[-1] and sum(turns) == 1]


def test_text_beside_calls_is_not_sent_to_the_user(domain: Domain) -> None:
    tasks = [t for t in tasks_answered_last(domain) if t.gold_calls[0].name.startswith("find")]
    assert len(tasks) > 3
    for task in tasks:
        *before, answer = task.gold_turns
        beside = answer.replace(tool_calls=task.gold_calls[:1])
        score, messages = score_turns(domain, task, *before, beside)
        assert score.parts["facts_told"] == 0.0
        assert messages[[m.content for m in messages].index(answer.content) + 1].role == "tool"
        assert score_turns(domain, task, *before, answer)[0].reward == 1.0


def test_change_requires_confirmation(domain: Domain) -> None:
    tasks = [
        t for t in easy_single_goal_tasks(domain) if t.family != "correction" and any(map(_proposes, t.gold_turns))
    ]
    assert len(tasks) > 3
    for task in tasks:
        at = next(i for i, turn in enumerate(task.gold_turns) if _proposes(turn))
        score, messages = score_turns(
            domain, task, *task.gold_turns[:at], task.gold_turns[at + 1], *task.gold_turns[-1:]
        )
        assert (score.reward, score.parts["policy_compliance"]) == (0.0, 0.0)
        assert any("has not confirmed" in message.content for message in messages if message.role == "tool")


def _proposes(turn: Message) -> bool:
    return turn.content.endswith("Do you confirm?")


def test_number_in_a_list_is_not_a_stated_fact(domain: Domain) -> None:
    tasks = [t for t in tasks_answered_last(domain) if re.fullmatch(r"[\d.]+", t.outputs[0])]
    assert tasks
    for task in tasks:
        *before, answer = task.gold_turns
        dump = answer.replace(content=f"{answer.content} {', '.join(f'{n}.50' for n in range(200, 210))}")
        assert score_turns(domain, task, *before, dump)[0].parts["facts_told"] == 0.0


def test_every_rule_in_rules_md_has_a_test(domain: Domain) -> None:
    folder = Path(str(resources.files(domain.module_name)))
    rows = re.findall(r"^\| .* \| .* \| (\w+) \|$", (folder / "rules.md").read_text(encoding="utf-8"), re.MULTILINE)[1:]
    files = (Path(__file__), TESTS / "domains" / f"test_{domain.name}.py")
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    assert len(rows) > 20
    assert [name for name in rows if f"\ndef test_{name}(" not in tests] == []


def test_database_is_deterministic_by_seed(domain: Domain) -> None:
    world = inspect.unwrap(domain.build_world)
    assert world() is not domain.build_world()
    assert world().dump() == domain.build_world().dump()
    assert world(1).dump() != domain.build_world().dump()  # type: ignore[call-arg]


def test_tools_have_descriptions_and_valid_schemas(domain: Domain) -> None:
    for spec in domain.tool_specs:
        assert spec.name.isidentifier()
        assert spec.name == spec.name.lower()
        assert spec.description.endswith(".")
        assert 10 < len(spec.description) < 300
        json.dumps(spec.parameters)
        assert _is_schema(spec.parameters), spec
        assert set(spec.parameters.get("required", ())) <= spec.parameters["properties"].keys()


def _is_schema(schema: object) -> bool:
    """Return whether a schema uses only types, enums, unions, references, arrays and objects."""
    if not isinstance(schema, dict):
        return False
    inner = [*schema.get("anyOf", ()), *schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner += [schema["items"]] if "items" in schema else []
    kinds = ("object", "array", "string", "integer", "number", "boolean", "null")
    known = schema.get("type") in kinds or any(key in schema for key in ("enum", "const", "anyOf", "$ref"))
    return known and all(_is_schema(part) for part in inner)


def test_gold_arguments_are_in_the_schemas(domain: Domain) -> None:
    properties = {spec.name: spec.parameters["properties"].keys() for spec in domain.tool_specs}
    for task in domain.tasks("test"):
        for call in task.gold_calls:
            assert call.arguments.keys() <= properties[call.name]


def test_unknown_argument_is_rejected(domain: Domain) -> None:
    toolkit = domain.toolkit(domain.build_world().fork())
    for spec in domain.tool_specs:
        with pytest.raises(ToolError, match="no_such_argument") as caught:
            toolkit.call_sync(ToolCall(name=spec.name, arguments={"no_such_argument": 1, **_minimal_arguments(spec)}))
        assert caught.value.kind == "invalid_arguments"


def _minimal_arguments(spec: ToolSpec) -> dict[str, object]:
    values = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    properties = {name: spec.parameters["properties"][name] for name in spec.parameters.get("required", ())}
    return {n: p["enum"][0] if "enum" in p else values.get(p.get("type"), "x") for n, p in properties.items()}


def test_refused_calls_do_not_change_state(domain: Domain) -> None:
    """Run the gold calls of many tasks on each other's state, where most are refused."""
    tasks = domain.sample("train", 40, seed=8)
    refused = 0
    for task in tasks[:20]:
        state = domain.initial_state(task)
        toolkit = domain.toolkit(state)
        for call in itertools.chain(task.gold_calls[:1], *(other.gold_calls for other in tasks)):
            before = state.changes()
            try:
                toolkit.call_sync(call)
            except ToolError:
                refused += 1
                assert state.changes() == before
    assert refused > 100


def test_huge_numbers_raise_no_unexpected_error(domain: Domain) -> None:
    """Replace or add each numeric argument of gold calls by huge numbers."""
    numbers = {spec.name: _number_parameters(spec) for spec in domain.tool_specs}
    tried = set()
    for task in domain.sample("train", 60, seed=11):
        state = domain.initial_state(task)
        toolkits = {"assistant": domain.toolkit(state), "user": (domain.user_tools or domain.toolkit)(state)}
        for role, call in ((message.role, call) for message in task.gold for call in message.tool_calls):
            for name, number in itertools.product(numbers.get(call.name, ()), (1e30, 1e300, 10**60, -(10**60))):
                before = state.snapshot()
                with suppress(ToolError):
                    toolkits[role].call_sync(call.replace(arguments={**call.arguments, name: number}))
                state.restore(before)
                tried.add(call.name)
            toolkits[role].call_sync(call)
    assert tried == {name for name, parameters in numbers.items() if parameters}


def _number_parameters(spec: ToolSpec) -> list[str]:
    """Return the names of a tool's numeric parameters."""
    properties = spec.parameters["properties"].items()
    return [name for name, schema in properties if schema.get("type") in ("integer", "number")]


@pytest.mark.slow
def test_state_round_trips_through_json(domain: Domain) -> None:
    for task in [None, *domain.sample("train", 5, seed=9)]:
        state = domain.gold_state(task) if task else domain.build_world().fork()
        dumped = json.loads(json.dumps(state.dump()))
        assert type(state).load(dumped).dump() == dumped


def test_task_setup_is_applied_and_is_no_change(domain: Domain) -> None:
    plain = domain.build_world().dump()
    setups = 0
    for task in domain.sample("train", 60, seed=10):
        state = domain.initial_state(task)
        assert state.changes() == {}
        for table, rows in task.setup.items():
            for key, fields in rows.items():
                row = state.tables()[table][key].model_dump(mode="json")
                assert merge_patch(row, fields) == row
                setups += row != plain[table].get(key)
    assert setups > 0


def test_splits_share_no_scenario_facts(domain: Domain) -> None:
    """No two splits share a fact with a digit, for any seed."""
    owners: dict[str, Split] = {}
    for task in sample_all_splits(domain):
        for fact in task.scenario.facts:
            if any(character.isdigit() for character in fact.text):
                assert owners.setdefault(fact.text, task.split) == task.split, fact.text
