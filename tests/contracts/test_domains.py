"""What every shipped domain holds, whoever wrote it."""

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

import script
from understudy.agent import Agent, GoldAgent, SilentAgent
from understudy.check import Report, check
from understudy.domains.base import FROZEN, Domain, Slice, find, names
from understudy.errors import ConfigError, ToolError
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.rollout import Limits, rollout
from understudy.state import merge_patch
from understudy.tasks import DIFFICULTIES, SPLITS, Score, Split, Task
from understudy.trajectory import Trajectory

LIMITS = Limits(max_turns=60)


@pytest.fixture(scope="module", params=names())
def domain(request: pytest.FixtureRequest) -> Domain:
    return find(request.param)


@pytest.fixture(scope="module")
def report(domain: Domain) -> Report:
    return check(domain)


def play(domain: Domain, task: Task, agent: Agent) -> Trajectory:
    return asyncio.run(rollout(task, domain.environment(task), agent, LIMITS))


def scored(domain: Domain, task: Task, *turns: Message) -> tuple[Score, list[Message]]:
    return script.play(domain, task, script.Script(*turns))


def drawn(domain: Domain, count: int = 60) -> Iterator[Task]:
    """Fresh tasks of all splits and of several seeds."""
    for seed, split in itertools.product((1, 2, 3), SPLITS):
        yield from domain.sample(split, count, seed)


# ---- tasks ----


def test_check_finds_nothing(report: Report) -> None:
    assert report.problems == ()
    assert [split.floor for split in report.splits] == [0.0] * 3
    assert [split.oracle for split in report.splits] == [1.0] * 3


def test_the_frozen_splits_are_what_the_generator_gives(domain: Domain) -> None:
    for split, count in FROZEN.items():
        assert domain.tasks(split) == domain.sample(split, count)


def test_every_family_is_there_at_every_difficulty(domain: Domain, report: Report) -> None:
    assert len(domain.families) >= 3
    wanted = set(itertools.product(domain.families, DIFFICULTIES))
    assert {(t.family, t.difficulty) for t in domain.tasks("train")} == wanted
    assert all(set(split.families) == set(domain.families) for split in report.splits)


def test_gold_calls_every_tool(report: Report) -> None:
    assert report.unused_tools == ()


def test_fresh_tasks_are_sound_too(domain: Domain) -> None:
    for task in drawn(domain):
        assert play(domain, task, GoldAgent()).reward == 1.0, task.id
        assert play(domain, task, SilentAgent()).reward == 0.0, task.id


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others(domain: Domain) -> None:
    assert domain.sample("train", 50, seed=4) == domain.sample("train", 50, seed=4)
    assert not {t.id for t in domain.sample("train", 50, seed=4)} & {t.id for t in domain.sample("train", 50, seed=5)}


def test_ids_are_unique_and_tell_the_task(domain: Domain) -> None:
    """The same id is the same task in any slice, so a goal may be remembered by it."""
    tasks = {task.id: task for task in drawn(domain)}
    assert len(tasks) == len(list(drawn(domain)))
    for family in domain.families:
        part = domain.slice(Slice(families=(family,), difficulties=("medium", "easy")))
        narrowed = part.sample("train", 20, seed=1)
        assert {(t.family, t.difficulty) for t in narrowed} == {(family, "easy"), (family, "medium")}
        assert all(tasks.get(t.id, t) == t for t in narrowed)


def test_streams_are_balanced_over_families(domain: Domain) -> None:
    count = 5 * len(domain.families)
    drawn = domain.sample("validation", count, seed=1)
    assert {family: [t.family for t in drawn].count(family) for family in domain.families} == dict.fromkeys(
        domain.families, 5
    )


def test_slices_refuse_unknown_names(domain: Domain) -> None:
    with pytest.raises(ConfigError, match="has no family 'cancle'"):
        domain.slice(Slice(families=("cancle",)))
    with pytest.raises(ConfigError, match="has no tool 'no_tool'"):
        domain.slice(Slice(tools=("no_tool",)))


# ---- episodes ----


def test_an_episode_is_the_same_each_time(domain: Domain) -> None:
    for task in domain.sample("train", 60, seed=6):
        first, second = (play(domain, task, GoldAgent()) for _ in range(2))
        assert first.messages == second.messages


def test_episodes_leave_the_world_as_it_was(domain: Domain) -> None:
    before = json.dumps(domain.world().dump(), default=str)
    for task in domain.sample("train", 60, seed=6):
        play(domain, task, GoldAgent())
    assert json.dumps(domain.world().dump(), default=str) == before


def test_the_agent_is_shown_policy_and_opening(domain: Domain) -> None:
    (task,) = domain.sample("train", 1)
    for policy in ("full", "brief"):
        part = domain.slice(Slice(policy=policy))
        system, opening = play(part, task, SilentAgent()).messages[:2]
        assert (system.role, system.content, opening.content) == ("system", part.policy, task.scenario.opening)


def test_policies_have_their_length(domain: Domain) -> None:
    full, brief = (domain.slice(Slice(policy=policy)).policy for policy in ("full", "brief"))
    assert 1500 < len(full) < 6000
    assert 200 < len(brief) < 600, "about 130 tokens"


class Refuser:
    """Says the same refusal to whatever it is told."""

    async def act(self, task: Task, episode: Trajectory, new: list[Message], tools: list[ToolSpec]) -> Message:
        episode.observe(new)
        reply = Message(role="assistant", content="I am sorry, I cannot do that.")
        episode.act(reply)
        return reply


def test_refusing_everything_earns_nothing(domain: Domain) -> None:
    tasks = list(drawn(domain, 40))
    assert sum(play(domain, task, Refuser()).reward for task in tasks) < 0.02 * len(tasks)


def easy(domain: Domain) -> list[Task]:
    """Frozen tasks of one request."""
    return [t for t in domain.tasks("test") if t.difficulty == "easy" and len(t.scenario.wishes) == 1]


def answers(domain: Domain) -> list[Task]:
    """Those whose last turn alone tells what has to be told."""
    tasks = [t for t in easy(domain) if len(t.outputs) == 1]
    told = [[any(o in turn.content for o in t.outputs[0].split("|")) for turn in t.turns] for t in tasks]
    return [t for t, turns in zip(tasks, told, strict=True) if turns[-1] and sum(turns) == 1]


def test_a_text_beside_calls_is_not_said(domain: Domain) -> None:
    tasks = [t for t in answers(domain) if t.actions[0].name.startswith("find")]
    assert len(tasks) > 3
    for task in tasks:
        *before, answer = task.turns
        beside = answer.replace(tool_calls=task.actions[:1])
        score, messages = scored(domain, task, *before, beside)
        assert score.parts["said"] == 0.0
        assert messages[[m.content for m in messages].index(answer.content) + 1].role == "tool"
        assert scored(domain, task, *before, answer)[0].reward == 1.0


def test_a_change_needs_a_yes(domain: Domain) -> None:
    tasks = [t for t in easy(domain) if t.family != "correction" and any(map(_proposes, t.turns))]
    assert len(tasks) > 3
    for task in tasks:
        at = next(i for i, turn in enumerate(task.turns) if _proposes(turn))
        score, messages = scored(domain, task, *task.turns[:at], task.turns[at + 1], *task.turns[-1:])
        assert (score.reward, score.parts["policy"]) == (0.0, 0.0)
        assert any("has not confirmed" in message.content for message in messages if message.role == "tool")


def _proposes(turn: Message) -> bool:
    return turn.content.endswith("Do you confirm?")


def test_a_number_in_a_list_does_not_count(domain: Domain) -> None:
    tasks = [t for t in answers(domain) if re.fullmatch(r"[\d.]+", t.outputs[0])]
    assert tasks
    for task in tasks:
        *before, answer = task.turns
        dump = answer.replace(content=f"{answer.content} {', '.join(f'{n}.50' for n in range(200, 210))}")
        assert scored(domain, task, *before, dump)[0].parts["said"] == 0.0


def test_each_rule_has_its_test(domain: Domain) -> None:
    folder = Path(str(resources.files(domain.package)))
    rows = re.findall(r"^\| .* \| .* \| (\w+) \|$", (folder / "rules.md").read_text(encoding="utf-8"), re.MULTILINE)[1:]
    files = (Path(__file__), Path(__file__).parents[1] / f"test_{domain.name}.py")
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    assert len(rows) > 20
    assert [name for name in rows if f"\ndef test_{name}(" not in tests] == []


# ---- tools and state ----


def test_the_world_is_the_same_for_the_same_seed(domain: Domain) -> None:
    world = inspect.unwrap(domain.world)
    assert world() is not domain.world()
    assert world().dump() == domain.world().dump()
    assert world(1).dump() != domain.world().dump()  # type: ignore[call-arg]


def test_tools_are_documented_and_their_schemas_are_json_schema(domain: Domain) -> None:
    for spec in domain.specs:
        assert spec.name.isidentifier()
        assert spec.name == spec.name.lower()
        assert spec.description.endswith(".")
        assert 10 < len(spec.description) < 300
        json.dumps(spec.parameters)
        assert _is_schema(spec.parameters), spec
        assert set(spec.parameters.get("required", ())) <= spec.parameters["properties"].keys()


def _is_schema(schema: object) -> bool:
    """The part of JSON Schema that tools use: types, enums, unions, references, arrays and objects."""
    if not isinstance(schema, dict):
        return False
    inner = [*schema.get("anyOf", ()), *schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner += [schema["items"]] if "items" in schema else []
    kinds = ("object", "array", "string", "integer", "number", "boolean", "null")
    known = schema.get("type") in kinds or any(key in schema for key in ("enum", "const", "anyOf", "$ref"))
    return known and all(_is_schema(part) for part in inner)


def test_gold_calls_match_their_schemas(domain: Domain) -> None:
    properties = {spec.name: spec.parameters["properties"].keys() for spec in domain.specs}
    for task in domain.tasks("test"):
        for call in task.actions:
            assert call.arguments.keys() <= properties[call.name]


def test_unknown_arguments_are_refused(domain: Domain) -> None:
    toolkit = domain.toolkit(domain.world().fork())
    for spec in domain.specs:
        with pytest.raises(ToolError, match="no_such_argument") as caught:
            toolkit.run(ToolCall(name=spec.name, arguments={"no_such_argument": 1, **_any(spec)}))
        assert caught.value.kind == "bad_arguments"


def _any(spec: ToolSpec) -> dict[str, object]:
    values = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    properties = {name: spec.parameters["properties"][name] for name in spec.parameters.get("required", ())}
    return {n: p["enum"][0] if "enum" in p else values.get(p.get("type"), "x") for n, p in properties.items()}


def test_refused_calls_change_nothing(domain: Domain) -> None:
    """The gold calls of many tasks on the state of each other: most are refused."""
    tasks = domain.sample("train", 40, seed=8)
    refused = 0
    for task in tasks[:20]:
        state = domain.initial(task)
        toolkit = domain.toolkit(state)
        for call in itertools.chain(task.actions[:1], *(other.actions for other in tasks)):
            before = state.changes()
            try:
                toolkit.run(call)
            except ToolError:
                refused += 1
                assert state.changes() == before
    assert refused > 100


def test_no_number_is_too_large_to_be_refused(domain: Domain) -> None:
    """Numbers that a model makes up, in place of those of gold calls and where gold leaves one out."""
    numbers = {spec.name: _numbers(spec) for spec in domain.specs}
    tried = set()
    for task in domain.sample("train", 60, seed=11):
        state = domain.initial(task)
        toolkits = {"assistant": domain.toolkit(state), "user": (domain.device or domain.toolkit)(state)}
        for role, call in ((message.role, call) for message in task.gold for call in message.tool_calls):
            for name, number in itertools.product(numbers.get(call.name, ()), (1e30, 1e300, 10**60, -(10**60))):
                before = state.snapshot()
                with suppress(ToolError):
                    toolkits[role].run(call.replace(arguments={**call.arguments, name: number}))
                state.restore(before)
                tried.add(call.name)
            toolkits[role].run(call)
    assert tried == {name for name, parameters in numbers.items() if parameters}


def _numbers(spec: ToolSpec) -> list[str]:
    """The parameters that are numbers."""
    properties = spec.parameters["properties"].items()
    return [name for name, schema in properties if schema.get("type") in ("integer", "number")]


def test_state_survives_json(domain: Domain) -> None:
    for task in [None, *domain.sample("train", 20, seed=9)]:
        state = domain.fulfilled(task) if task else domain.world().fork()
        dumped = json.loads(json.dumps(state.dump()))
        assert type(state).load(dumped).dump() == dumped


def test_setups_are_applied_and_are_no_changes(domain: Domain) -> None:
    plain = domain.world().dump()
    setups = 0
    for task in domain.sample("train", 60, seed=10):
        state = domain.initial(task)
        assert state.changes() == {}
        for table, rows in task.setup.items():
            for key, fields in rows.items():
                row = state.tables()[table][key].model_dump(mode="json")
                assert merge_patch(row, fields) == row
                setups += row != plain[table].get(key)
    assert setups > 0


def test_users_are_told_apart_by_split(domain: Domain) -> None:
    """No two splits share a scenario's facts, whatever the seed."""
    owners: dict[str, Split] = {}
    for task in drawn(domain):
        for fact in task.scenario.facts:
            if any(character.isdigit() for character in fact.says):
                assert owners.setdefault(fact.says, task.split) == task.split, fact.says
