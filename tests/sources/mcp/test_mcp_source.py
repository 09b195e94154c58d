"""Tests of MCP environments of one TOML and one JSONL file: check, play, record and replay."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from support.mcp_environment import TASKS, write_environment
from support.mcp_kit import UNRULY, run_async, running_servers
from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import Item
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import SPLITS, Scenario, Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.data.checks.check import check
from understudy.envs.environment import StepResult
from understudy.envs.task_source import Slice
from understudy.evaluation.evaluate import evaluate
from understudy.formats.parsing.parse import parse_reply
from understudy.rollouts.agent import Agent, GoldAgent, NoopAgent
from understudy.rollouts.rollout import EpisodeLimits, RolloutRequest, play_episode, rollout
from understudy.rollouts.scheduler import play_groups
from understudy.sources.loading import load_source
from understudy.sources.mcp.cassette import EMPTY_HISTORY, Cassette
from understudy.sources.mcp.config import MCPServerConfig
from understudy.sources.mcp.session import MCPSession
from understudy.sources.mcp.source import MCPTaskSource
from understudy.sources.mcp.tool_result import ToolResult
from understudy.sources.task_files.call_sequences import SequenceStep, read_sequences
from understudy.sources.task_files.config import DataConfig


class FixedCallsAgent:
    """An agent that makes the given calls, one a reply, and ends with a text."""

    def __init__(self, *calls: dict[str, Any], word: str = "Done.") -> None:
        made = (ToolCall(id="c", name=call["tool"], arguments=call.get("arguments", {})) for call in calls)
        self._replies = [Message(role="assistant", tool_calls=(call,)) for call in made]
        self._replies.append(Message(role="assistant", content=word))

    async def act(self, task: Task, episode: Trajectory, new: Any, tools: Any) -> Message:
        episode.observe(new)
        episode.act(reply := self._replies[min(episode.num_turns, len(self._replies) - 1)])
        return reply


@pytest.mark.slow
def test_check_plays_gold_and_names_call_that_ends_the_server(tmp_path: Path) -> None:
    source = load_source(f"mcp:{write_environment(tmp_path)}")
    assert isinstance(source, MCPTaskSource)
    report = check(source)
    (problem,) = report.problems  # an unusual call that the server does not survive
    assert re.match(r"task count/1: .*\bdied during die\b.* after die\(\)$", problem)
    assert [(s.split, s.tasks, s.gold_reward, s.noop_reward) for s in report.splits] == [
        ("train", 2, 1.0, 0.0),
        ("validation", 0, 0.0, 0.0),
        ("test", 1, 1.0, 0.0),
    ]
    assert "sleep" not in {spec.name for spec in source.tool_specs}
    assert source.families == ("task", "ask")
    assert [t.id for t in source.slice(Slice(families=("ask",))).tasks("train")] == ["count/2"]
    with pytest.raises(ConfigError, match=r"'asks'.*'ask'"):
        source.slice(Slice(families=("asks",)))
    assert not running_servers()


@pytest.mark.slow
def test_session_without_changes_serves_next_episode_of_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[MCPSession] = []
    open_session = MCPSession.open

    async def count_open(session: MCPSession) -> None:
        started.append(session)
        await open_session(session)

    monkeypatch.setattr(MCPSession, "open", count_open)
    path = write_environment(tmp_path)
    path.write_text(path.read_text().replace('reset = {tool = "reset"}', "warm_sessions = 0"), encoding="utf-8")
    source = load_source(f"mcp:{path}")
    with_setup, without = source.tasks("train")[1], source.tasks("train")[0]
    limits, calls_count = EpisodeLimits(), FixedCallsAgent({"tool": "count"}, word="It is 41.")

    async def play(*tasks_and_agents: tuple[Task, Agent]) -> tuple[list[float], int]:
        before = len(started)
        episodes = [await play_episode(source, task, agent, limits, seed=0) for task, agent in tasks_and_agents]
        return [episode.reward for episode in episodes], len(started) - before

    async def all_plays() -> list[tuple[list[float], int]]:
        return [
            await play((with_setup, NoopAgent()), (with_setup, calls_count), (with_setup, GoldAgent())),
            await play((without, NoopAgent()), (without, GoldAgent())),
            await play((without, GoldAgent())),
        ]

    kept, clean, changed = run_async(all_plays())
    assert kept == ([0.0, 1.0, 1.0], 1)  # the setup calls were made once: twice would give 82
    assert clean == ([0.0, 1.0], 1)
    assert changed == ([1.0], 1)  # gold has changed the session, so that it serves nobody else


@pytest.mark.slow
def test_shaped_rewards_of_imperfect_episodes(tmp_path: Path) -> None:
    rest = '[reward]\nkind = "shaped"\nmax_partial_reward = 0.4'
    source = load_source(f"mcp:{write_environment(tmp_path, rest=rest)}")
    tasks = {task.id: task for split in ("train", "test") for task in source.tasks(split)}  # type: ignore[arg-type]

    async def episodes() -> list[Trajectory]:
        return [
            await play_episode(source, tasks[task], agent, EpisodeLimits(), seed=0)
            for task, agent in (
                ("count/1", FixedCallsAgent({"tool": "add", "arguments": {"amount": 7}})),
                ("count/1", FixedCallsAgent({"tool": "add", "arguments": {"amount": 6}})),
                ("count/2", FixedCallsAgent(word="Is it 40?")),
                ("count/3", FixedCallsAgent({"tool": "add", "arguments": {"amount": 4}})),
                ("count/3", FixedCallsAgent({"tool": "add", "arguments": {"amount": 3}})),
                ("count/1", FixedCallsAgent(*({"tool": "count"} for _ in range(9)))),
            )
        ]

    other_way, wrong, guess, partly, forbidden, endless = run_async(episodes())
    assert other_way.reward == 1.0  # the reward depends on the final state only
    assert wrong.reward == guess.reward == 0.0
    assert partly.reward == pytest.approx(0.4 / 2)
    assert forbidden.reward == 0.0  # although the final state is right
    assert (endless.num_turns, endless.stop_reason, endless.reward) == (
        5,
        StopReason.DONE,
        0.0,
    )  # the limit of an easy task is five replies
    assert endless.score is not None
    assert endless.score.parts["within_limits"] == 0.0


@pytest.mark.slow
def test_server_crash_is_fault_instead_of_zero_reward(tmp_path: Path) -> None:
    source = load_source(f"mcp:{write_environment(tmp_path)}")
    task = source.tasks("train")[0]

    async def episodes() -> list[Trajectory]:
        request = RolloutRequest(source, FixedCallsAgent({"tool": "die"}), EpisodeLimits(max_retries=1))
        (deadly,) = await play_groups(request, iter([task]), group_size=2, num_groups=1)
        return [*deadly.episodes, await play_episode(source, task, GoldAgent(), EpisodeLimits(), seed=0)]

    *deadly, after = run_async(episodes())
    assert {(e.stop_reason, e.fault, e.score) for e in deadly} == {(StopReason.FAULT, "mcp", None)}
    assert re.search(r"\bdie\b", deadly[0].error)
    assert after.reward == 1.0


@pytest.mark.slow
def test_recorded_environment_replays_without_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "hunter2hunter2")
    tell = {"id": "t", "prompt": "What is the key?", "gold": [{"tool": "secret"}], "final_answer": "[THE_KEY]"}
    tasks = [*TASKS, {**tell, "split": "train", "check": {"answer": {"regex": "THE_KEY"}}}]
    server, tape = 'env = {NOTES_KEY = "${THE_KEY}"}', '[cassette]\nfile = "tapes/all.jsonl"\nmode = "%s"'
    assert check(load_source(f"mcp:{write_environment(tmp_path, tasks, server, tape % 'record')}")).problems == ()
    (recorded,) = (tmp_path / "tapes").iterdir()
    lines = [json.loads(line) for line in recorded.read_text(encoding="utf-8").splitlines()]
    assert lines[0].keys() == {"tools"}
    assert {line["task"] for line in lines[1:]} == {task["id"] for task in tasks}
    assert "hunter2" not in recorded.read_text(encoding="utf-8")
    monkeypatch.delenv("THE_KEY")  # replay needs neither the key nor a server
    nowhere = server + '\ncwd = "nowhere"'
    replayed = load_source(f"mcp:{write_environment(tmp_path, tasks, nowhere, tape % 'replay')}")
    assert check(replayed).problems == ()
    task = replayed.tasks("train")[0]

    async def unknown() -> Trajectory:
        return await play_episode(
            replayed,
            task,
            FixedCallsAgent({"tool": "add", "arguments": {"amount": 9}}),
            EpisodeLimits(max_retries=0),
            seed=0,
        )

    episode = run_async(unknown())
    assert (episode.stop_reason, episode.fault) == (StopReason.FAULT, "mcp")
    assert "add({'amount': 9})" in episode.error
    assert "extend" in episode.error


@pytest.mark.slow
def test_extend_mode_brings_server_to_recorded_state(tmp_path: Path) -> None:
    tape = '[cassette]\nfile = "tapes/all.jsonl"\nmode = "%s"'
    calls = ({"tool": "add", "arguments": {"amount": 3}}, {"tool": "add", "arguments": {"amount": 1}})

    def shown(source: Any) -> list[str]:
        task = source.tasks("train")[0]
        script = FixedCallsAgent(*({**call} for call in calls))
        episode = run_async(play_episode(source, task, script, EpisodeLimits(max_retries=0), seed=0))
        assert not episode.error
        return [message.content for message in episode.messages if message.role == "tool"]

    assert check(load_source(f"mcp:{write_environment(tmp_path, rest=tape % 'record')}")).problems == ()
    extended = shown(load_source(f"mcp:{write_environment(tmp_path, rest=tape % 'extend')}"))
    assert extended == ["the count is 3", "the count is 4"]  # the first from the cassette, the second from the server
    assert shown(load_source(f"mcp:{write_environment(tmp_path, rest=tape % 'replay')}")) == extended


@pytest.mark.slow
def test_recording_of_an_only_server_replays_under_another_name_of_the_toml_file(tmp_path: Path) -> None:
    tape = '[cassette]\nfile = "tape.jsonl"\nmode = "%s"'
    tasks = TASKS[:1]
    assert check(load_source(f"mcp:{write_environment(tmp_path, tasks, rest=tape % 'record')}")).problems == ()
    copy = write_environment(tmp_path, tasks, rest=tape % "replay").rename(tmp_path / "copy.toml")
    assert check(load_source(f"mcp:{copy}")).problems == ()
    more = f"[servers.one]\ncommand = 'a'\n[servers.two]\ncommand = 'b'\n{tape % 'replay'}"
    copy.write_text(f'tasks = "tasks.jsonl"\n{more}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tally.*one, two"):
        load_source(f"mcp:{copy}").tool_specs  # noqa: B018


def test_cassette_round_trips_unicode_line_separators(tmp_path: Path) -> None:
    said, tool = ToolResult(text="a\u2028b\u2029c\x85d\r\n"), ToolSpec(name="t", description="e\u2028f", parameters={})
    tape = Cassette(tmp_path / "tape.jsonl")
    tape.record_server_tools({"s": (tool,)})
    episode = tape.task("a")
    episode.record("s", EMPTY_HISTORY, "t", {"x": "\x85"}, said)
    episode.save()
    read = Cassette(tape.path)
    assert read.server_tools == {"s": (tool,)}
    assert read.task("a").find("s", EMPTY_HISTORY, "t", {"x": "\x85"}) == said
    assert read.task("b").find("s", EMPTY_HISTORY, "t", {"x": "other"}) is None


def test_task_without_an_own_recording_gets_the_answer_of_another_task(tmp_path: Path) -> None:
    tape = Cassette(tmp_path / "tape.jsonl")
    for task, text in (("a", "one"), ("b", "two")):
        episode = tape.task(task)
        episode.record("s", EMPTY_HISTORY, "t", {}, ToolResult(text=text))
        episode.save()
    found = {task: Cassette(tape.path).task(task).find("s", EMPTY_HISTORY, "t", {}) for task in "abc"}
    assert found == {task: ToolResult(text=text) for task, text in (("a", "one"), ("b", "two"), ("c", "two"))}
    assert tape.task("c").find("s", "another state", "t", {}) is None


def test_recording_appends_new_results_and_last_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    for text in ("one", "one", "two"):
        tape = Cassette(path)
        tape.record_server_tools({})
        episode = tape.task("a")
        episode.record("s", EMPTY_HISTORY, "t", {}, ToolResult(text=text))
        episode.save()
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3  # the tools, one, two
    assert Cassette(path).task("a").find("s", EMPTY_HISTORY, "t", {}) == ToolResult(text="two")


def test_missing_or_damaged_cassette_is_named(tmp_path: Path) -> None:
    rest = '[cassette]\nfile = "tapes/all.jsonl"\nmode = "replay"'
    path = write_environment(tmp_path, rest=rest)
    with pytest.raises(ConfigError, match=r"all\.jsonl"):
        load_source(f"mcp:{path}").tasks("train")
    (tmp_path / "tapes").mkdir()
    (tmp_path / "tapes" / "all.jsonl").write_text('{"tools": {}}\n{}\n')
    with pytest.raises(TaskError, match=r"all\.jsonl:2"):
        load_source(f"mcp:{path}").tasks("train")


def test_unlisted_task_needs_its_outputs_shown_and_its_writes_made() -> None:
    source = load_source("mcp:slack-replay")
    listing = Message(role="assistant", tool_calls=(ToolCall(name="slack_list_channels", arguments={}),))
    sent = {"channel": "C0LUNCH", "message": "Hello."}
    writing = Message(role="assistant", tool_calls=(ToolCall(name="slack_send_message", arguments=sent),))
    answer = Message(role="assistant", content="It is C0GENERAL.")
    scenario = Scenario(instructions="Which id has general?", opening="Which id has general?")
    asked = Task(id="new", domain="slack", scenario=scenario, gold=(listing, answer), outputs=("C0GENERAL",))

    async def score(task: Task) -> dict[str, float]:
        episode = await rollout(task, source.environment(task), GoldAgent(), EpisodeLimits())
        assert episode.score is not None
        return {**episode.score.parts, "reward": episode.score.reward}

    assert run_async(score(asked))["reward"] == 1.0
    guessed = run_async(score(asked.replace(gold=(answer,))))
    assert (guessed["facts_told"], guessed["reward"]) == (0.0, 0.0), "no tool has shown it"
    told = asked.replace(id="told", gold=(listing, writing, answer))
    assert source.gold_writes(told) == writing.tool_calls  # type: ignore[attr-defined]
    mine = source.environment(told)._task.check.calls  # type: ignore[attr-defined]
    assert [(c.tool, c.arguments) for c in mine.required] == [("slack.slack_send_message", sent)]
    assert {c.tool for c in mine.allowed} >= {"slack.slack_list_channels"}
    assert "slack.slack_send_message" not in {c.tool for c in mine.allowed}
    for wrong, match in (
        (asked.replace(domain="other"), "'other'"),
        (asked.replace(outputs=()), "does nothing"),
        (asked.replace(gold=(listing.replace(tool_calls=(ToolCall(name="shout"),)), answer)), "'shout'"),
    ):
        with pytest.raises(TaskError, match=match):
            source.environment(wrong)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"one \[server\]"),
        ('tasks = "x"\n', r"one \[server\]"),
        ('tasks = "x"\n[server]\ncommand = "a"\n[servers.b]\ncommand = "b"', r"one \[server\]"),
        ('tasks = "x"\n[server]\ncommand = "a"\nisolatoin = "shared"', "isolatoin"),
        ('tasks = "x"\ndomain_policy = "no.md"\n[server]\ncommand = "a"', "no.md"),
        ('tasks = "x"\n[server]\ncommand = "a"\n[cassette]\nmode = "replay"', "file"),
        ('tasks = "x"\n[server]\ncommand = "a {folder}"\ninitial_files = "e.toml"', r"e\.toml.*no folder"),
    ],
)
def test_invalid_toml_raises_config_error(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "e.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=match):
        load_source(f"mcp:{tmp_path / 'e.toml'}")


ALIASES = '[aliases]\nadd = {number = "amount", amount = "amount"}\n"tally.say" = {words = "text"}'


@pytest.mark.slow
def test_aliases_of_the_toml_file_reach_the_server_under_the_parameters_names(tmp_path: Path) -> None:
    source = load_source(f"mcp:{write_environment(tmp_path, server=ALIASES)}")
    shown = {spec.name: spec for spec in source.tool_specs}
    assert (shown["add"].aliases, shown["say"].aliases) == ({"number": "amount"}, {"words": "text"})
    assert "number" not in json.dumps(shown["add"].parameters)

    async def play() -> Trajectory:
        task = source.tasks("train")[0]
        calls = [{"tool": "add", "arguments": {key: amount}} for key, amount in (("number", 3), ("amount", 4))]
        return await play_episode(source, task, FixedCallsAgent(*calls), EpisodeLimits(), seed=0)

    episode = run_async(play())
    assert episode.reward == 1.0
    results = [message.content for message in episode.messages if message.role == "tool"]
    assert results == ["the count is 3", "the count is 7"]
    parsed = parse_reply('{"name": "add", "arguments": {"number": 3}}', "json", source.tool_specs)
    assert (parsed.calls[0].arguments, parsed.repairs) == ({"amount": 3}, {"alias": 1})


@pytest.mark.parametrize(
    ("table", "key", "allowed"),
    [
        ('ad = {number = "amount"}', "aliases.ad", "'add'"),
        ('add = {number = "amonut"}', "aliases.add.number", "'amount'"),
    ],
)
def test_alias_of_an_unknown_tool_or_parameter_is_refused_at_load(
    tmp_path: Path, table: str, key: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_source(f"mcp:{write_environment(tmp_path, server=f'[aliases]{chr(10)}{table}')}")
    assert key in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.slow
def test_check_names_refused_gold_call(tmp_path: Path) -> None:
    bad = {**TASKS[2], "id": "bad", "gold": [{"tool": "fail", "arguments": {"reason": "closed"}}]}
    source = load_source(f"mcp:{write_environment(tmp_path, [bad])}")
    (problem, *_) = check(source).problems
    assert "task bad: " in problem
    assert "fail({'reason': 'closed'})" in problem


@pytest.mark.slow
def test_check_names_the_task_of_an_unknown_tool(tmp_path: Path) -> None:
    call = {"tool": "opn", "arguments": {}}
    places = {"gold": [call], "setup": [call], "check": {"state": [call]}}
    bad = [{**TASKS[2], "id": f"bad {place}", place: value} for place, value in places.items()]
    report = check(load_source(f"mcp:{write_environment(tmp_path, [TASKS[0], *bad])}"))
    for place in ("setup", "check"):
        assert any(f"task bad {place}: no server has a tool 'opn'" in problem for problem in report.problems)
    assert any("task bad gold: a gold turn calls opn" in problem for problem in report.problems)
    assert any("task count/1: " in problem for problem in report.problems), "and the other tasks are checked"


@pytest.mark.slow
def test_gold_evaluation_scores_one_and_noop_zero(tmp_path: Path) -> None:
    source = load_source(f"mcp:{write_environment(tmp_path, sdk=True)}")

    async def both() -> tuple[float, float]:
        tasks = source.tasks("train")[:1]
        gold = await evaluate(source, GoldAgent(), tasks, trials=4)
        noop = await evaluate(source, NoopAgent(), tasks, trials=2)
        return gold.success_rate.mean, noop.success_rate.mean

    assert run_async(both()) == (1.0, 0.0)
    assert not running_servers()


@pytest.mark.slow
def test_episode_starts_with_policy_and_prompt(tmp_path: Path) -> None:
    source = load_source(f"mcp:{write_environment(tmp_path)}")
    task = source.tasks("test")[0]

    async def started() -> StepResult:
        episode = source.environment(task)
        try:
            return await episode.start()
        finally:
            await episode.close()

    step = run_async(started())
    assert [(m.role, m.content) for m in step.messages] == [
        ("system", "You keep a count."),
        ("user", "Bring it to five and back down by two, please."),
    ]


@pytest.mark.slow
def test_skyrl_rows_over_several_servers_form_environment(tmp_path: Path) -> None:
    steps = [
        {"step": 1, "server": "bank", "tool": "add", "params": {"amount": 3}},
        {"step": 2, "server": "post", "tool": "say", "params": {"text": "three"}},
    ]
    truth = {"task_id": "row/1", "complexity": "easy", "max_turns": 2, "success": {"must_call_tool": "post.say"}}
    spec = {"method": "rule", "ground_truth": {**truth, "tool_sequence": steps, "limits": {"max_servers": 2}}}
    prompt = [{"role": "system", "content": "You work."}, {"role": "user", "content": "Add three and tell it."}]
    row = {"data_source": "synthetic/x", "env_class": "MCPToolEnv", "prompt": prompt, "reward_spec": spec}
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, "extra_info": {"split": "train"}}) + "\n")
    command = json.dumps([sys.executable, str(UNRULY)])
    reset = 'reset = {tool = "reset"}'
    (tmp_path / "e.toml").write_text(
        f"""tasks = "rows.jsonl"\ntool_naming = "server.tool"
[servers.bank]\ncommand = {command}\n{reset}\nallow = ["add"]
[servers.post]\ncommand = {command}\n{reset}\nallow = ["say"]"""
    )
    source = load_source(f"mcp:{tmp_path / 'e.toml'}")
    assert [spec.name for spec in source.tool_specs] == ["bank.add", "post.say"]
    assert source.domain_policy == "You work."
    assert check(source).problems == ()
    task = source.tasks("train")[0]
    assert [call.name for call in task.gold_calls] == ["bank.add", "post.say"]
    backwards = FixedCallsAgent(
        {"tool": "say", "arguments": {"text": "three"}}, {"tool": "add", "arguments": {"amount": 3}}
    )
    assert run_async(play_episode(source, task, backwards, EpisodeLimits(), seed=0)).reward == 0.0


def counting_spec(text: str, task_id: str = "spec/1") -> dict[str, Any]:
    """Return a scenario in which the agent adds, reads the count and says it."""
    steps = [
        {"step": 1, "server": "tally", "tool": "add", "params": {"amount": 3}},
        {"step": 2, "server": "tally", "tool": "count", "params": {}},
        {"step": 3, "server": "tally", "tool": "say", "params": {"text": text}},
    ]
    told = [{"role": "user", "message": "Add three and say the count."}]
    task = {"task_id": task_id, "complexity": 2, "conversation": told, "solution": {"tool_sequence": steps}}
    return {"scenario": "counting", "turns": 4, "tasks": [task]}


def write_spec_environment(folder: Path, text: str, rest: str = "") -> Path:
    path = write_environment(folder, rest=rest)
    path.write_text(path.read_text().replace("tasks.jsonl", "specs.json"))
    (folder / "specs.json").write_text(json.dumps({"dependent_dataset": [counting_spec(text)]}))
    return path


@pytest.mark.slow
def test_references_become_the_values_that_the_server_returns(tmp_path: Path) -> None:
    rest = '[cassette]\nfile = "tape.jsonl"\nmode = "%s"'
    path = write_spec_environment(tmp_path, "It is ${step2.count}.", rest % "record")
    assert check(load_source(f"mcp:{path}")).problems == ()
    write_spec_environment(tmp_path, "It is ${step2.count}.", rest % "replay")
    source = load_source(f"mcp:{path}")
    (task,) = [task for split in SPLITS for task in source.tasks(split)]
    assert task.gold_calls[2].arguments == {"text": "It is 3."}
    assert check(source).problems == ()
    literal = FixedCallsAgent(
        {"tool": "add", "arguments": {"amount": 3}},
        {"tool": "count"},
        {"tool": "say", "arguments": {"text": "It is 3."}},
    )
    assert run_async(play_episode(source, task, literal, EpisodeLimits(), seed=0)).reward == 1.0
    assert not running_servers()


@pytest.mark.slow
def test_reference_to_a_field_that_the_server_does_not_return_is_named(tmp_path: Path) -> None:
    source = load_source(f"mcp:{write_spec_environment(tmp_path, 'It is ${step2.total}.')}")
    with pytest.raises(TaskError, match=r"spec/1.*total.*count"):
        source.tasks("train")
    assert not running_servers()


@pytest.mark.slow
def test_sequences_of_other_files_are_played(tmp_path: Path) -> None:
    source = load_source(f"mcp:{write_environment(tmp_path)}")
    assert isinstance(source, MCPTaskSource)
    (item,) = read_sequences(Item("specs:1", counting_spec("It is ${step2.count}.")), "specs/0")
    assert isinstance(item, Item)
    task = source.add_task(item.value, "train")
    assert (task.domain, task.family, task.gold_calls[2].arguments) == (source.name, "counting", {"text": "It is 3."})
    assert "counting" in source.families

    async def rewards() -> list[float | None]:
        agents = GoldAgent(), NoopAgent()
        return [(await play_episode(source, task, agent, EpisodeLimits(), seed=0)).reward for agent in agents]

    assert run_async(rewards()) == [1.0, 0.0]
    other = item.value.replace(id="spec/2", steps=(SequenceStep(server="tally", tool="ad"),))
    with pytest.raises(TaskError, match=r"'tally\.add'"):
        source.add_task(other, "train")
    with pytest.raises(TaskError, match="count/1"):
        source.add_task(item.value.replace(id="count/1"), "train")
    assert not running_servers()


@pytest.mark.slow
def test_facts_of_a_row_are_those_that_the_server_returns(tmp_path: Path) -> None:
    """A gold call may use an alias of an argument, as the agent's calls."""
    aliases = 'aliases = {say = {words = "text"}}'
    path = write_environment(tmp_path)
    path.write_text(f"{aliases}\n{path.read_text()}")
    source = load_source(f"mcp:{path}")
    assert isinstance(source, MCPTaskSource)
    steps = [
        {"server": "tally", "tool": "add", "params": {"amount": 3}},
        {
            "server": "tally",
            "tool": "count",
            "analysis_requirements": {"extract": ["now = count"], "compute": ["x = now"]},
        },
        {"server": "tally", "tool": "say", "params": {"words": "It is ${x}, not ${y}."}},
    ]
    truth = {
        "task_id": "row/1",
        "tool_sequence": steps,
        "analysis_rubric": {"final_answer_requirements": {"must_include": ["now"]}},
        "final_reference": {"facts": {"now": 41}},
    }
    row = {"env_class": "MCPToolEnv", "prompt": "Count.", "reward_spec": {"ground_truth": truth}}
    (item,) = read_sequences(Item("rows:1", row), "rows/0")
    assert isinstance(item, Item)
    task = source.add_task(item.value, "train")
    assert (task.gold_calls[2].arguments, task.outputs) == ({"text": "It is 3, not ${y}."}, ("3",))
    calls = [
        {"tool": "add", "arguments": {"amount": 3}},
        {"tool": "count"},
        {"tool": "say", "arguments": {"text": "It is 3, not ${y}."}},
    ]

    async def rewards() -> list[float | None]:
        agents = [GoldAgent(), NoopAgent(), *(FixedCallsAgent(*calls, word=word) for word in ("Three: 3", "It is 41."))]
        return [(await play_episode(source, task, agent, EpisodeLimits(), seed=0)).reward for agent in agents]

    assert run_async(rewards()) == [1.0, 0.0, 1.0, 0.0]
    assert not running_servers()


@pytest.mark.slow
def test_file_of_specs_is_played_on_the_servers_that_the_user_names(tmp_path: Path) -> None:
    environment = write_environment(tmp_path)
    specs = tmp_path / "specs.json"
    specs.write_text(json.dumps({"dependent_dataset": [counting_spec("It is ${step2.count}.")]}))
    source = load_source(str(specs), DataConfig(sources=(f"mcp:{environment}",)))
    (task,) = source.tasks("train")
    assert (task.domain, task.gold_calls[2].arguments) == ("tally", {"text": "It is 3."})
    assert [call.name for call in task.gold_calls] == ["add", "count", "say"]
    safe = Slice(tools=("add", "count", "say"))  # check kills the server with the tool "die"
    assert check(source.slice(safe)).problems == ()
    assert load_source(str(specs)).tasks("train")[0].domain == "specs-calls"
    assert not running_servers()


@pytest.mark.parametrize(
    ("place", "server"),
    [
        ("command.2", {"command": "my-notes --api-key hunter2hunter2"}),
        ("command.1", {"command": ["my-notes", "--token=hunter2hunter2"]}),
        ("url", {"url": "https://bob:hunter2hunter2@notes.example/mcp"}),
        ("url", {"url": "https://notes.example/mcp?api_key=hunter2hunter2"}),
        ("headers.Authorization", {"url": "https://notes.example/mcp", "headers": {"Authorization": "hunter2hunter2"}}),
        ("headers.X-Api-Key", {"url": "https://notes.example/mcp", "headers": {"X-Api-Key": "hunter2hunter2"}}),
        ("env.NOTES_PASSWORD", {"command": "my-notes", "env": {"NOTES_PASSWORD": "hunter2hunter2"}}),
    ],
)
def test_secret_in_plain_text_is_refused_by_its_place_and_may_be_a_variable(place: str, server: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        MCPServerConfig.model_validate({"isolation": "shared", **server})
    assert re.search(rf"\b{re.escape(place)}\b", str(error.value))
    assert "hunter2" not in str(error.value)
    allowed = json.loads(
        json.dumps(server).replace("bob:hunter2hunter2", "${LOGIN}").replace("hunter2hunter2", "${KEY}")
    )
    MCPServerConfig.model_validate({"isolation": "shared", **allowed})
