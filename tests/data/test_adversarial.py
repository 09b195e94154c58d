"""Test that `check --adversarial` finds rewards that are earned without doing the task."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import toy
from understudy.cli.main import app, main
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS, Task
from understudy.data.checks.adversarial.custom import find_strategy, load_strategies
from understudy.data.checks.adversarial.knowledge import SourceKnowledge, Strategy, TaskKnowledge, sample_tasks
from understudy.data.checks.adversarial.suite import ADVERSARIAL_LIMIT, STRATEGIES, AdversarialReport, play_strategies
from understudy.data.checks.check import AdversarialOptions, check
from understudy.envs.rewards import states_fact
from understudy.runs.targets import resolve
from understudy.sources.references import list_domains, load_domain
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

REPLAYS = ("fmp-replay", "polygon-replay", "slack-replay", "tavily-replay", "several-replay")


def earned(report: AdversarialReport) -> Mapping[str, float]:
    return {result.strategy: result.over_floor for result in report.results}


class ColorEpisode(ToolEpisode):
    """Shows the color of a thing."""

    def look(self, thing: str) -> str:
        """Return the color of a thing."""
        return {"sky": "blue", "grass": "green", "coal": "black", "snow": "white"}.get(thing, "unknown")

    def reward(self, transcript: Sequence[Message]) -> float:
        return float(self.example.answer == transcript[-1].content)


class GenerousEpisode(ColorEpisode):
    """Rewards any text that states the answer."""

    def reward(self, transcript: Sequence[Message]) -> float:
        return float(states_fact(self.example.answer, transcript[-1].content))


def colors(episode: type[ToolEpisode]) -> ToolDataset:
    things = {"sky": "blue", "grass": "green", "coal": "black", "snow": "white"}
    examples = [
        ToolExample(prompt=f"Which color has {thing}?", answer=color, id=thing, gold_calls=(call,))
        for thing, color in things.items()
        for call in [ToolCall(name="look", arguments={"thing": thing})]
    ]
    return ToolDataset("colors", "Look.", examples, episode)


def test_reward_that_accepts_lists_and_denials_is_a_problem() -> None:
    report = check(colors(GenerousEpisode), AdversarialOptions())
    (attack,) = report.adversarial
    paid = {result.strategy for result in attack.failures}
    assert {"family_facts_unread", "all_facts_unread", "negated_facts", "two_words"} <= paid
    groups = [group for group in report.problem_groups if group.kind == "strategy_rewarded"]
    assert len(groups) == len(paid) == len(report.problems)
    assert earned(attack)["negated_facts"] == 1.0
    assert earned(attack)["wrong_facts"] == 0.0


def test_sound_reward_has_no_problem_and_rows_that_do_not_apply_are_left_out() -> None:
    report = check(colors(ColorEpisode), AdversarialOptions())
    assert report.problems == ()
    (attack,) = report.adversarial
    assert attack.num_tasks == 4
    assert {"two_words", "empty", "database_unread"} & earned(attack).keys() == {"two_words", "empty"}
    assert not {"unasked", "transfer", "forged_user", "extra_write"} & earned(attack).keys()


def test_the_floor_is_what_doing_nothing_earns() -> None:
    class PaysAll(ColorEpisode):
        def reward(self, transcript: Sequence[Message]) -> float:
            return 1.0

    report = asyncio.run(play_strategies(colors(PaysAll)))
    assert {(result.reward, result.floor) for result in report.results} == {(1.0, 1.0)}
    assert not report.failures


def test_sampled_tasks_have_all_families_and_splits() -> None:
    domain = load_domain("retail")
    tasks = sample_tasks(domain, 3 * len(domain.families), seed=0)
    assert {(task.family, task.split) for task in tasks} == {
        (family, split) for family in domain.families for split in ("train", "validation", "test")
    }
    assert [task.id for task in tasks] == [task.id for task in sample_tasks(domain, len(tasks), seed=0)]
    assert [task.id for task in tasks] != [task.id for task in sample_tasks(domain, len(tasks), seed=1)]
    assert {task.family for task in sample_tasks(domain, len(domain.families), 0)} == set(domain.families)


def test_no_strategy_plays_the_gold_turns() -> None:
    known = SourceKnowledge(load_domain("retail"))
    for task in sample_tasks(known.source, 14, seed=0):
        for strategy in STRATEGIES:
            replies = strategy.replies(TaskKnowledge(known, task))
            assert replies is None or list(replies) != list(task.gold_turns), strategy.name


def test_names_of_strategies_are_unique_and_there_are_enough() -> None:
    names = [strategy.name for strategy in STRATEGIES]
    assert len(names) == len(set(names)) >= 48


def test_episodes_that_are_lost_are_counted_and_earn_nothing() -> None:
    class Raises(ColorEpisode):
        def reward(self, transcript: Sequence[Message]) -> float:
            text = transcript[-1].content
            return float(bool(text) and 1 / (len(text) < 30))

    report = asyncio.run(play_strategies(colors(Raises)))
    flood = next(result for result in report.results if result.strategy == "done")
    assert (flood.num_lost, flood.num_tasks) == (0, 4)
    assert "text_flood" not in earned(report)


def test_command_prints_the_table_and_its_exit_code_tells_of_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    unsound = dataclasses.replace(toy.DOMAIN, grade=generous, reward_policy="off")
    monkeypatch.setattr(toy, "DOMAIN", unsound)
    runner = CliRunner()
    result = runner.invoke(app, ["check", "toy:DOMAIN", "--adversarial", "--tasks", "3", "--json"])
    assert result.exit_code == 1
    (attack,) = json.loads(result.stdout)["adversarial"]
    assert (attack["num_tasks"], attack["seed"]) == (3, 0)
    done = next(each for each in attack["results"] if each["strategy"] == "done")
    assert (done["reward"], done["floor"], done["limit"]) == (1.0, 0.0, ADVERSARIAL_LIMIT)
    text = runner.invoke(app, ["check", "toy:DOMAIN", "--adversarial", "--tasks", "3"]).stdout
    assert any(line.split()[:1] == ["done"] and "BAD" in line for line in text.splitlines())


def says_done(task: TaskKnowledge) -> Sequence[Message | Callable[[Sequence[Message]], Message]]:
    """Says "Done." twice.

    The second time, a function makes the reply.
    """
    return [Message(role="assistant", content="Done."), lambda messages: messages[-2]]


def applies_to_nothing(task: TaskKnowledge) -> None:
    """Plays nothing."""


def raises(task: TaskKnowledge) -> Sequence[Message]:
    raise KeyError("W9")


def returns_text(task: TaskKnowledge) -> str:
    return "Done."


def reply_raises(task: TaskKnowledge) -> Sequence[Callable[[Sequence[Message]], Message]]:
    return [lambda messages: messages[100]]


def reply_is_text(task: TaskKnowledge) -> Sequence[Callable[[Sequence[Message]], str]]:
    return [lambda messages: "Done."]


DECLARED = Strategy("declared", "says hello", lambda task: [Message(role="assistant", content="Hello!")])


def test_own_strategies_are_played_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "DOMAIN", dataclasses.replace(toy.DOMAIN, grade=generous, reward_policy="off"))
    mine = [f"--strategy={__name__}:{name}" for name in ("says_done", "DECLARED", "applies_to_nothing")]
    result = CliRunner().invoke(app, ["check", "toy:DOMAIN", "--adversarial", "--tasks", "2", *mine, "--json"])
    (attack,) = json.loads(result.stdout)["adversarial"]
    found = {each["strategy"]: each for each in attack["results"]}
    assert list(found)[-2:] == ["says_done", "declared"]
    assert found["says_done"]["description"] == 'says "Done." twice'
    assert [found[name]["reward"] for name in ("says_done", "declared", "done")] == [1.0] * 3


@pytest.mark.parametrize(
    ("reference", "code", "words"),
    [
        (f"{__name__}:raises", 1, ("'W9'", "test_adversarial.py")),
        (f"{__name__}:reply_raises", 1, ("IndexError", "test_adversarial.py")),
        (f"{__name__}:returns_text", 1, ("returned 'Done.'",)),
        (f"{__name__}:reply_is_text", 1, ("'Done.'",)),
        (f"{__name__}:REPLAYS", 2, ("tuple",)),
        (f"{__name__}:missing", 2, ("'missing'",)),
        ("missing", 2, ("module:attribute",)),
    ],
)
def test_wrong_strategy_is_one_line(
    reference: str, code: int, words: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["understudy", "check", "toy:DOMAIN", "--adversarial", "--tasks", "1", "--strategy", reference]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words)


def test_names_of_own_strategies_differ_from_the_others() -> None:
    says_done.__name__, before = "done", says_done.__name__
    try:
        with pytest.raises(ConfigError, match="done"):
            load_strategies([f"{__name__}:says_done"])
    finally:
        says_done.__name__ = before
    with pytest.raises(ConfigError, match="declared"):
        load_strategies([f"{__name__}:DECLARED", f"{__name__}:DECLARED"])


def test_strategy_option_needs_the_adversarial_one() -> None:
    result = CliRunner().invoke(app, ["check", "toy:DOMAIN", "--strategy", f"{__name__}:says_done"])
    assert isinstance(result.exception, ConfigError)


def test_file_of_tasks_is_checked_in_the_same_way(tmp_path: Path) -> None:
    domain = load_domain("retail")
    tasks = [task for split in SPLITS for task in domain.tasks(split)[:2]]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(task.model_dump_json() + "\n" for task in tasks), encoding="utf-8")
    result = CliRunner().invoke(app, ["check", str(path), "--adversarial", "--tasks", "2", "--json"])
    (attack,) = json.loads(result.stdout)["adversarial"]
    assert attack["num_tasks"] == 2
    assert {"unasked", "empty", "extra_write"} <= {each["strategy"] for each in attack["results"]}


def generous(
    task: Task, state: object, gold: object, gate: object, transcript: Sequence[Message], ended: bool
) -> float:
    """Reward any text."""
    return float(any(message.role == "assistant" and message.content.strip() for message in transcript))


@pytest.mark.slow
@pytest.mark.parametrize("name", list_domains())
def test_no_strategy_is_rewarded_in_a_shipped_domain(name: str) -> None:
    report = asyncio.run(play_strategies(resolve([name]).config.open_source(), num_tasks=5))
    assert len(report.results) >= 48
    assert [(result.strategy, result.over_floor) for result in report.failures] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLAYS)
def test_no_strategy_is_rewarded_in_a_shipped_mcp_environment(name: str) -> None:
    report = asyncio.run(play_strategies(resolve([f"mcp:{name}"]).config.open_source(), num_tasks=20))
    assert [(result.strategy, result.over_floor) for result in report.failures] == []


@pytest.mark.slow
def test_no_strategy_is_rewarded_where_tasks_run_python() -> None:
    report = asyncio.run(play_strategies(resolve(["mcp:python"]).config.open_source(), num_tasks=1))
    assert [(result.strategy, result.over_floor) for result in report.failures] == []


def test_a_strategy_is_found_by_its_name() -> None:
    for strategy in STRATEGIES:
        assert find_strategy(strategy.name) is strategy
    assert find_strategy(f"{__name__}:DECLARED").description == DECLARED.description
    name = STRATEGIES[0].name
    with pytest.raises(ConfigError, match=rf"'{name}s'; did you mean '{name}'\? allowed: .*module:attribute"):
        find_strategy(f"{name}s")


def test_the_command_below_the_table_shows_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "DOMAIN", dataclasses.replace(toy.DOMAIN, grade=generous, reward_policy="off"))
    runner = CliRunner()
    text = runner.invoke(app, ["check", "toy:DOMAIN", "--adversarial", "--tasks", "2"]).stdout
    commands = [line.partition("see it: understudy ")[2] for line in text.splitlines() if line.startswith("see it: ")]
    shown = [command for command in commands if "--strategy" in command]
    assert shown
    for command in shown:
        played = runner.invoke(app, command.split())
        assert (played.exit_code, "reward 1" in played.stdout) == (0, True), command
