"""An environment out of one TOML and one JSONL: found, checked, played, recorded and replayed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_kit import UNRULY, run, servers_left
from understudy.agent import GoldAgent, SilentAgent
from understudy.check import check
from understudy.domains.base import Slice, find
from understudy.environment import Step
from understudy.errors import ConfigError, TaskError
from understudy.evaluate import evaluate
from understudy.mcp.cassette import BEGINNING, Cassette, cassette_path, read_offers, write_offers
from understudy.mcp.reply import Reply
from understudy.mcp.source import MCPSource
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.rollout import Limits, play, play_group
from understudy.tasks import Task
from understudy.trajectory import Stop, Trajectory

ADD = {"tool": "add", "arguments": {"amount": 3}}
TASKS: list[dict[str, Any]] = [
    {
        "id": "count/1",
        "prompt": "Add three to the count, then four.",
        "split": "train",
        "gold": [ADD, {"tool": "add", "arguments": {"amount": 4}}],
        "check": {"state": {"tool": "count", "equals": {"count": 7}}},
    },
    {
        "id": "count/2",
        "family": "ask",
        "prompt": "What is the sum of everything so far?",
        "split": "train",
        "setup": [{"tool": "add", "arguments": {"amount": 41}}],
        "gold": [{"tool": "count"}],
        "reply": "It is 41.",
        "check": {"answer": {"number": 41}},
    },
    {
        "id": "count/3",
        "prompt": "Bring it to five and back down by two, please.",
        "split": "test",
        "difficulty": "medium",
        "gold": [{"tool": "tally.add", "arguments": {"amount": 5}}, {"tool": "add", "arguments": {"amount": -2}}],
        "check": {"state": {"tool": "count"}, "calls": {"must": [{"tool": "add"}], "must_not": [{"tool": "reset"}]}},
    },
]


def environment(folder: Path, tasks: list[dict[str, Any]] | None = None, server: str = "", rest: str = "") -> Path:
    """The files of an environment."""
    lines = [json.dumps(task) + "\n" for task in (TASKS if tasks is None else tasks)]
    (folder / "tasks.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "tally.toml").write_text(
        f"""
policy = "You keep a count."
tasks = "tasks.jsonl"
{rest}
[server]
command = [{json.dumps(sys.executable)}, {json.dumps(str(UNRULY))}]
reads = ["count"]
deny = ["sleep", "babble"]
processes = 2
reset = {{tool = "reset"}}
call_timeout = 20
{server}
""",
        encoding="utf-8",
    )
    return folder / "tally.toml"


class Script:
    """An agent that makes given calls, a reply each, and says a last word."""

    def __init__(self, *calls: dict[str, Any], word: str = "Done.") -> None:
        made = (ToolCall(id="c", name=call["tool"], arguments=call.get("arguments", {})) for call in calls)
        self._replies = [Message(role="assistant", tool_calls=(call,)) for call in made]
        self._replies.append(Message(role="assistant", content=word))

    async def act(self, task: Task, episode: Trajectory, new: Any, tools: Any) -> Message:
        episode.observe(new)
        episode.act(reply := self._replies[min(episode.turns, len(self._replies) - 1)])
        return reply


def test_check_proves_an_environment_and_gold_plays_it(tmp_path: Path) -> None:
    source = find(f"mcp:{environment(tmp_path)}")
    assert isinstance(source, MCPSource)
    report = check(source)
    assert report.problems == ()
    assert [(s.split, s.tasks, s.oracle, s.floor) for s in report.splits] == [
        ("train", 2, 1.0, 0.0),
        ("validation", 0, 0.0, 0.0),
        ("test", 1, 1.0, 0.0),
    ]
    assert "sleep" not in {spec.name for spec in source.specs}
    assert source.families == ("task", "ask")
    assert [t.id for t in source.slice(Slice(families=("ask",))).tasks("train")] == ["count/2"]
    with pytest.raises(ConfigError, match="no family 'asks'; did you mean 'ask'"):
        source.slice(Slice(families=("asks",)))
    assert not servers_left()


def test_rewards_of_episodes_that_are_not_perfect(tmp_path: Path) -> None:
    rest = '[reward]\nkind = "shaped"\nshare = 0.4'
    source = find(f"mcp:{environment(tmp_path, rest=rest)}")
    tasks = {task.id: task for split in ("train", "test") for task in source.tasks(split)}  # type: ignore[arg-type]

    async def episodes() -> list[Trajectory]:
        return [
            await play(source, tasks[task], agent, Limits(), seed=0)
            for task, agent in (
                ("count/1", Script({"tool": "add", "arguments": {"amount": 7}})),
                ("count/1", Script({"tool": "add", "arguments": {"amount": 6}})),
                ("count/2", Script(word="Is it 40?")),
                ("count/3", Script({"tool": "add", "arguments": {"amount": 4}})),
                ("count/3", Script({"tool": "add", "arguments": {"amount": 3}}, {"tool": "reset"})),
                ("count/1", Script(*({"tool": "count"} for _ in range(9)))),
            )
        ]

    other_way, wrong, guess, partly, forbidden, endless = run(episodes())
    assert other_way.reward == 1.0  # it is the state that counts, not the way there
    assert wrong.reward == guess.reward == 0.0
    assert partly.reward == pytest.approx(0.4 / 2)
    assert forbidden.reward == 0.0
    assert (endless.turns, endless.stop, endless.reward) == (5, Stop.DONE, 0.0)  # easy: five replies
    assert endless.score is not None
    assert endless.score.parts["ended"] == 0.0


def test_a_server_that_dies_costs_the_episode_and_is_never_a_reward_of_nothing(tmp_path: Path) -> None:
    source = find(f"mcp:{environment(tmp_path)}")
    task = source.tasks("train")[0]

    async def episodes() -> list[Trajectory]:
        deadly = await play_group(source, task, Script({"tool": "die"}), Limits(retries=1), size=2, seed=0)
        return [*deadly, await play(source, task, GoldAgent(), Limits(), seed=0)]

    *deadly, after = run(episodes())
    assert {(e.stop, e.fault, e.score) for e in deadly} == {(Stop.FAULT, "mcp", None)}
    assert "died during die" in deadly[0].error
    assert after.reward == 1.0


def test_an_environment_is_recorded_once_and_replayed_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "hunter2hunter2")
    tell = {"id": "t", "prompt": "What is the key?", "gold": [{"tool": "secret"}], "reply": "[THE_KEY]"}
    tasks = [*TASKS, {**tell, "split": "train", "check": {"answer": {"regex": "THE_KEY"}}}]
    server, tape = 'env = {NOTES_KEY = "${THE_KEY}"}', '[cassette]\nfolder = "tapes"\nmode = "%s"'
    assert check(find(f"mcp:{environment(tmp_path, tasks, server, tape % 'record')}")).problems == ()
    texts = [path.read_text(encoding="utf-8") for path in (tmp_path / "tapes").iterdir()]
    assert len(texts) == 5  # a cassette for each task, and the tools
    assert not any("hunter2" in text for text in texts)
    monkeypatch.delenv("THE_KEY")  # what replays needs no key, and no server
    nowhere = server + '\ncwd = "nowhere"'
    replayed = find(f"mcp:{environment(tmp_path, tasks, nowhere, tape % 'replay')}")
    assert check(replayed).problems == ()
    task = replayed.tasks("train")[0]

    async def unknown() -> Trajectory:
        return await play(
            replayed, task, Script({"tool": "add", "arguments": {"amount": 9}}), Limits(retries=0), seed=0
        )

    episode = run(unknown())
    assert (episode.stop, episode.fault) == (Stop.FAULT, "mcp")
    assert "has no answer to add({'amount': 9})" in episode.error
    assert "extend" in episode.error


def test_a_cassette_is_extended_by_a_server_that_is_brought_to_the_same_place(tmp_path: Path) -> None:
    tape = '[cassette]\nfolder = "tapes"\nmode = "%s"'
    calls = ({"tool": "add", "arguments": {"amount": 3}}, {"tool": "add", "arguments": {"amount": 1}})

    def shown(source: Any) -> list[str]:
        task = source.tasks("train")[0]
        script = Script(*({**call} for call in calls))
        episode = run(play(source, task, script, Limits(retries=0), seed=0))
        assert not episode.error
        return [message.content for message in episode.messages if message.role == "tool"]

    assert check(find(f"mcp:{environment(tmp_path, rest=tape % 'record')}")).problems == ()
    extended = shown(find(f"mcp:{environment(tmp_path, rest=tape % 'extend')}"))
    assert extended == ["the count is 3", "the count is 4"]  # the first out of the cassette, the second live
    assert shown(find(f"mcp:{environment(tmp_path, rest=tape % 'replay')}")) == extended


def test_a_cassette_holds_text_with_any_mark(tmp_path: Path) -> None:
    said, tool = Reply(text="a\u2028b\u2029c\x85d\r\n"), ToolSpec(name="t", description="e\u2028f", parameters={})
    tape = Cassette(tmp_path / "tape.jsonl")
    tape.record("s", BEGINNING, "t", {"x": "\x85"}, said)
    tape.save()
    assert Cassette(tape.path).find("s", BEGINNING, "t", {"x": "\x85"}) == said
    write_offers(tmp_path, {"s": (tool,)})
    assert read_offers(tmp_path) == {"s": (tool,)}


def test_no_task_has_the_cassette_of_another_or_of_the_tools(tmp_path: Path) -> None:
    write_offers(tmp_path, {})
    taken = {path.name for path in tmp_path.iterdir()}
    paths = [cassette_path(tmp_path, task).name for task in ("tools", "a", "a/1", "a_1")]
    assert len({*paths, *taken}) == 5
    assert paths[1] == "a.jsonl"


def test_a_damaged_cassette_is_named(tmp_path: Path) -> None:
    rest = '[cassette]\nfolder = "tapes"\nmode = "replay"'
    path = environment(tmp_path, rest=rest)
    with pytest.raises(ConfigError, match="there are no cassettes"):
        find(f"mcp:{path}").tasks("train")
    (tmp_path / "tapes").mkdir()
    (tmp_path / "tapes" / "tools.jsonl").write_text("{}\n")
    with pytest.raises(TaskError, match="record it anew"):
        find(f"mcp:{path}").tasks("train")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "tasks"),
        ('tasks = "x"\n', r"one \[server\]"),
        ('tasks = "x"\n[server]\ncommand = "a"\n[servers.b]\ncommand = "b"', r"one \[server\]"),
        ('tasks = "x"\n[server]\ncommand = "a"\nisolatoin = "shared"', "isolatoin"),
        ('tasks = "x"\npolicy = "no.md"\n[server]\ncommand = "a"', "no.md"),
        ('tasks = "x"\n[server]\ncommand = "a"\n[cassette]\nmode = "replay"', "folder"),
    ],
)
def test_a_toml_that_is_wrong_is_one_clear_line(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "e.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=match):
        find(f"mcp:{tmp_path / 'e.toml'}")


def test_a_gold_call_that_is_refused_and_an_unknown_tool_are_named(tmp_path: Path) -> None:
    bad = {**TASKS[2], "id": "bad", "gold": [{"tool": "fail", "arguments": {"reason": "closed"}}]}
    source = find(f"mcp:{environment(tmp_path, [bad])}")
    (problem, *_) = check(source).problems
    assert "task bad: the call fail({'reason': 'closed'}) is refused" in problem


def test_episodes_of_gold_and_of_nobody_side_by_side(tmp_path: Path) -> None:
    source = find(f"mcp:{environment(tmp_path)}")

    async def both() -> tuple[float, float]:
        tasks = source.tasks("train")[:1]
        gold = await evaluate(source, GoldAgent(), tasks, trials=4)
        silent = await evaluate(source, SilentAgent(), tasks, trials=2)
        return gold.success.mean, silent.success.mean

    assert run(both()) == (1.0, 0.0)
    assert not servers_left()


def test_an_episode_shows_policy_task_and_tools(tmp_path: Path) -> None:
    source = find(f"mcp:{environment(tmp_path)}")
    task = source.tasks("test")[0]

    async def started() -> Step:
        episode = source.environment(task)
        try:
            return await episode.start()
        finally:
            await episode.close()

    step = run(started())
    assert [(m.role, m.content) for m in step.messages] == [
        ("system", "You keep a count."),
        ("user", "Bring it to five and back down by two, please."),
    ]


def test_rows_over_several_servers_are_an_environment_as_they_are(tmp_path: Path) -> None:
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
        f"""tasks = "rows.jsonl"\nnames = "server.tool"
[servers.bank]\ncommand = {command}\n{reset}\nallow = ["add"]
[servers.post]\ncommand = {command}\n{reset}\nallow = ["say"]"""
    )
    source = find(f"mcp:{tmp_path / 'e.toml'}")
    assert [spec.name for spec in source.specs] == ["bank.add", "post.say"]
    assert source.policy == "You work."
    assert check(source).problems == ()
    task = source.tasks("train")[0]
    assert [call.name for call in task.actions] == ["bank.add", "post.say"]
    backwards = Script({"tool": "say", "arguments": {"text": "three"}}, {"tool": "add", "arguments": {"amount": 3}})
    assert run(play(source, task, backwards, Limits(), seed=0)).reward == 0.0
