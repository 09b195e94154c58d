"""Test `data collect`: which episodes become examples, balancing, resuming, and what an endpoint is paid."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.data_kit import run_data_command, write_lines
from support.endpoint import Answer, lamp_agent, serve_answers
from support.groups import make_groups
from toy import DOMAIN
from understudy.core.errors import RolloutError
from understudy.core.items import Item
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.settings import dump_toml
from understudy.core.tasks import Score
from understudy.core.trajectory import Branch, StopReason, Trajectory, write_trajectories
from understudy.data.collect.build_examples import (
    balance_examples,
    build_demonstrations,
    build_labeled_examples,
    build_preference_pairs,
)
from understudy.data.conversations.conversations import read_conversations
from understudy.data.conversations.examples import Demonstration
from understudy.evaluation.evaluate import select_tasks
from understudy.rollouts.agent import NoopAgent
from understudy.runs.agents import make_agent
from understudy.runs.config import parse_config
from understudy.runs.episodes import read_stored_episodes
from understudy.runs.run import Run
from understudy.runs.storage.locking import folder_lock
from understudy.runs.storage.task_store import TaskStore

SPEC = ToolSpec(name="find", description="Finds.", parameters={"type": "object"}, aliases={"q": "query"})


def tools_of(domain: str) -> Sequence[ToolSpec]:
    return (SPEC,)


def make_episode(
    reply_text: str, solved: bool = True, task: str = "t", family: str = "f", difficulty: str = "easy"
) -> Trajectory:
    ended = Trajectory(task, "toy", family, difficulty, score=Score(reward=float(solved)), stop_reason=StopReason.DONE)
    ended.observe([Message(role="system", content="policy"), Message(role="user", content="hello")])
    ended.act(Message(role="assistant", content=reply_text))
    return ended


def make_failed_episode(kind: str) -> Trajectory:
    ended = make_episode("x")
    if kind == "fault":
        ended.score, ended.stop_reason, ended.fault = None, StopReason.FAULT, "user"
    else:
        ended.act(Message(role="assistant", tool_calls=(ToolCall(name="find", parse_error="not JSON"),)))
    return ended


EPISODES = [
    make_episode("a"),
    make_episode("a"),
    make_episode("b"),
    make_episode("c", False),
    make_failed_episode("fault"),
    make_failed_episode("call"),
]
SKIPPED = {"that repeat an earlier one": 1, "with a fault of the user": 1, "with calls that could not be parsed": 1}


def test_demonstrations_are_distinct_solved_episodes() -> None:
    found = build_demonstrations(EPISODES, tools_of)
    assert [example.messages[-1].content for _, example in found.examples] == ["a", "b"]
    assert found.skipped == SKIPPED | {"without the full reward": 1}
    assert found.examples[0][1].tools == (SPEC.replace(aliases={}),)
    assert str(found).splitlines()[0].split() == ["toy", "f", "easy", "2"]


def test_examples_have_no_data_of_the_endpoint() -> None:
    episodes = []
    for number in range(2):
        call = ToolCall(name="find", id=f"c{number}", extra_content={"google": {"thought_signature": f"S{number}"}})
        episodes.append(make_episode("a"))
        episodes[-1].messages[-1] = Message(role="assistant", tool_calls=(call,), reasoning_content=f"S{number}")
    found = build_demonstrations(episodes, tools_of)
    assert len(found.examples) == 1, "the episodes differ only in what the endpoint added"
    reply = found.examples[0][1].messages[-1]
    assert reply == Message(role="assistant", tool_calls=(ToolCall(name="find", id="c0"),))


def test_labeled_examples_include_solved_and_failed_episodes() -> None:
    found = build_labeled_examples(EPISODES, tools_of)
    assert [(example.messages[-1].content, example.label) for _, example in found.examples] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]
    assert found.skipped == SKIPPED


def test_empty_replies_are_written_only_as_undesirable(tmp_path: Path) -> None:
    episodes = [make_episode("a"), make_episode(""), make_episode("", False)]
    examples: list[Any] = [
        *(example for _, example in build_demonstrations(episodes, tools_of).examples),
        *(example for _, example in build_labeled_examples(episodes, tools_of).examples),
        *(example for _, example in build_preference_pairs(episodes, tools_of, max_per_task=4).examples),
    ]
    assert build_labeled_examples(episodes, tools_of).skipped == {"with an empty reply": 1}
    rows = [example.model_dump(mode="json", exclude_defaults=True) for example in examples]
    assert read_examples(write_lines(tmp_path / "c.jsonl", rows)) == examples
    assert len(examples) == 4


def test_preference_pairs_share_the_task_and_the_prompt() -> None:
    other = make_episode("e", False)
    other.messages[1] = Message(role="user", content="good morning")
    many = [*EPISODES, make_episode("d", False), make_episode("x", task="u"), other]
    found = build_preference_pairs(many, tools_of, max_per_task=4)
    assert [(p.chosen[-1].content, p.rejected[-1].content) for _, p in found.examples] == [("a", "c"), ("b", "d")]
    assert len(found.skipped) == len(SKIPPED) + 1
    assert {**found.skipped, **SKIPPED} == found.skipped
    assert sorted(found.skipped.values()) == sorted([*SKIPPED.values(), 2])
    assert len(build_preference_pairs(many, tools_of, max_per_task=1).examples) == 1


def test_each_sequence_of_an_episode_is_a_conversation_with_its_own_tools() -> None:
    """Replies from elsewhere are not trained on. Pairs and labeled examples leave such a sequence out."""
    episode = make_episode("a")
    helper = [Message(role="system", content="Help."), Message(role="assistant", content="helped")]
    rewritten = [*make_episode("b").messages, Message(role="user", content="more"), Message(role="assistant")]
    episode.branches = [
        Branch(messages=helper, tools=[SPEC.replace(name="other")]),
        Branch(messages=rewritten, tools=[], given_replies=[2]),
    ]
    rewritten[-1] = Message(role="assistant", content="c")
    found = build_demonstrations([episode], tools_of)
    assert [example.messages[-1].content for _, example in found.examples] == ["a", "helped", "c"]
    assert [[tool.name for tool in example.tools] for _, example in found.examples] == [[SPEC.name], ["other"], []]
    assert [message.weight for message in found.examples[2][1].messages] == [1, 1, 0, 1, 1]
    assert not found.skipped
    labeled = build_labeled_examples([episode], tools_of)
    assert [example.messages[-1].content for _, example in labeled.examples] == ["a", "helped"]
    assert [*labeled.skipped.values()] == [1]


@pytest.mark.parametrize(
    "history",
    [
        [Message(role="assistant", content="a"), Message(role="assistant", content="b")],
        [Message(role="assistant", tool_calls=(ToolCall(name="find", id="c"),))],
        [Message(role="tool", content="found", tool_call_id="c")],
    ],
)
def test_history_that_cannot_be_read_back_is_left_out(history: list[Message]) -> None:
    episode = make_episode("a")
    begin, given = episode.messages[:2], [2 + i for i, message in enumerate(history) if message.role == "assistant"]
    end = [Message(role="user", content="more"), Message(role="assistant", content="c")]
    episode.branches = [Branch(messages=[*begin, *history, *end], tools=[], given_replies=given)]
    found = build_demonstrations([episode], tools_of)
    assert [example.messages[-1].content for _, example in found.examples] == ["a"]
    assert [*found.skipped.values()] == [1]


def test_balance_examples_caps_each_group_by_seed() -> None:
    many = [
        make_episode(f"{f}{d}{i}", family=f, difficulty=d) for f in "fg" for d in ("easy", "hard") for i in range(5)
    ]
    examples = build_demonstrations(many, tools_of)
    for by, groups in (("domain", 1), ("family", 2), ("difficulty", 2)):
        kept = balance_examples(examples, 3, by, 0)  # type: ignore[arg-type]
        assert len(kept.examples) == 3 * groups
        assert [*kept.skipped.values()] == [20 - 3 * groups]
        places = [examples.examples.index(each) for each in kept.examples]
        assert places == sorted(places)
    assert balance_examples(examples, 3, "family", 0).examples == balance_examples(examples, 3, "family", 0).examples
    assert balance_examples(examples, 3, "family", 0).examples != balance_examples(examples, 3, "family", 1).examples
    assert balance_examples(examples, 99, "family", 0).examples == examples.examples


def read_examples(path: Path) -> list[Any]:
    found = list(read_conversations(path))
    assert all(isinstance(item, Item) for item in found)
    return [item.value for item in found if isinstance(item, Item)]


def test_collect_command_writes_gold_episodes_by_default(tmp_path: Path) -> None:
    out, all_of_them = tmp_path / "demos.jsonl", tmp_path / "labeled.jsonl"
    code, text, err = run_data_command(
        "collect", "toy:DOMAIN", "slice.domain_policy=brief", "--sft", out, "--kto", all_of_them, "--tasks", 6
    )
    assert (code, err) == (0, "")
    assert text.splitlines()[0] == f"{out}: 6"
    found = read_examples(out)
    assert all(isinstance(each, Demonstration) for each in found)
    tasks = {task.id: task for task in select_tasks(DOMAIN, "train", 6)}
    assert [each.task for each in found] == list(tasks)
    for each in found:
        assert [m.content for m in each.messages if m.role == "assistant"] == [
            m.content for m in tasks[each.task].gold_turns
        ]
        assert {tool.name for tool in each.tools} == {"find_lamp", "switch_lamp"}
    assert [each.label for each in read_examples(all_of_them)] == [True] * 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demos.jsonl", "labeled.jsonl"]
    code, _, err = run_data_command("collect", "toy:DOMAIN", "slice.domain_policy=brief", "--sft", out)
    assert (code, str(out) in err) == (2, True)


def test_collect_without_solved_episodes_fails_and_can_resume(tmp_path: Path) -> None:
    out, labeled = tmp_path / "demos.jsonl", tmp_path / "labeled.jsonl"
    arguments = ("collect", "toy:DOMAIN", "--agent", "noop", "--tasks", 3, "--sft", out)
    code, _, err = run_data_command(*arguments)
    assert code == 2
    assert (tmp_path / "demos.jsonl.episodes").is_dir(), "completed episodes are stored"
    code, text, _ = run_data_command(*arguments, "--kto", labeled, "--resume")
    assert (code, f"{labeled}: 3" in text, f"{out}: 0" in text) == (1, True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labeled.jsonl"]
    assert re.search(r"\b3 episodes\b.*\b3 \w+", err, re.DOTALL)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_split_requires_allow_test_data(tmp_path: Path, split: str) -> None:
    arguments = ("collect", "toy:DOMAIN", "--tasks", 2, "--split", split, "--sft", tmp_path / "demos.jsonl")
    code, _, err = run_data_command(*arguments)
    assert (code, split in err) == (2, True)
    assert list(tmp_path.iterdir()) == []
    assert run_data_command(*arguments, "--allow-test-data")[0] == 0
    assert all(f"/{split}/" in each.task for each in read_examples(tmp_path / "demos.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["toy:DOMAIN"], "--dpo"),
        (["toy:DOMAIN", "--sft", "demos.json"], ".jsonl"),
        (["toy:DOMAIN", "--sft", "a.jsonl", "--kto", "a.jsonl"], "a.jsonl"),
        (["toy:DOMAIN", "--sft", "no/a.jsonl"], "a.jsonl"),
        (["toy:DOMAIN", "--sft", "a.jsonl", "--max-pairs-per-task", "2"], "--max-pairs-per-task"),
        (["toy:DOMAIN", "--sft", "a.jsonl", "--balance-by", "domain"], "--balance-by"),
        (["toy:DOMAIN", "--sft", "a.jsonl", "--agent", "sliver"], "'sliver'"),
        (["toy:DOMAIN", "--sft", "a.jsonl", "endpoints.default.model=m"], "--agent api"),
        (
            ["toy:DOMAIN", "--sft", "a.jsonl", "--agent", "api", "endpoints.default.model=m", "cost_limit=1"],
            "1",
        ),
    ],
)
def test_invalid_options_are_rejected_before_any_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run_data_command("collect", *arguments)
    assert (code, why in err) == (2, True), err
    assert list(tmp_path.iterdir()) == []


class InterruptedAgent:
    """The gold agent, recording each started task; it optionally fails in episode 2 and raises Ctrl-C in episode 4."""

    def __init__(self, agent: Any, fails: bool) -> None:
        self._agent, self._fails = agent, fails
        self.started: list[str] = []

    async def act(self, task: Any, episode: Any, new: Any, tools: Any) -> Message:
        if not episode.num_turns:
            self.started.append(task.id)
        if self._fails and len(self.started) == 2:
            raise RolloutError("the endpoint is down", "agent")
        if self._fails and len(self.started) == 4:
            raise KeyboardInterrupt
        reply: Message = await self._agent.act(task, episode, new, tools)
        return reply


def test_resume_after_ctrl_c_equals_an_uninterrupted_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("slice.domain_policy=brief", "limits.max_retries=0", "--tasks", 4, "--concurrency", 1)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "demos.jsonl"
    assert run_data_command("collect", "toy:DOMAIN", *settings, "--sft", whole)[0] == 0
    agents: list[InterruptedAgent] = []
    partial = tmp_path / "demos.jsonl.episodes"

    def make_interrupted(*asked: Any) -> InterruptedAgent:
        agents.append(InterruptedAgent(make_agent(*asked), fails=not agents))
        return agents[-1]

    monkeypatch.setattr("understudy.runs.agents.make_agent", make_interrupted)
    code, _, err = run_data_command("collect", "toy:DOMAIN", *settings, "--sft", out)
    assert (code, "--resume" in err) == (130, True)
    kept = partial / "episodes.jsonl"
    assert len(kept.read_text().splitlines()) == 2
    kept.write_text(kept.read_text() + '{"task_id": "cut o')
    for others, why in (((), "--resume"), (("--resume", "--seed", 1), r"\bseed: 0\b.*\b1\b")):
        code, _, err = run_data_command("collect", "toy:DOMAIN", *settings, "--sft", out, *others)
        assert (code, bool(re.search(why, err))) == (2, True), err
    with folder_lock(partial):
        code, _, err = run_data_command("collect", "toy:DOMAIN", *settings, "--sft", out, "--resume")
        assert (code, partial.name in err) == (2, True)
    assert run_data_command("collect", "toy:DOMAIN", *settings, "--sft", out, "--resume")[0] == 0
    tasks = [task.id for task in select_tasks(DOMAIN, "train", 4)]
    assert agents[0].started == tasks
    assert agents[-1].started == [tasks[1], tasks[3]], "completed episodes are not played again"
    assert out.read_bytes() == whole.read_bytes()
    assert not partial.exists()


ENDPOINT = (
    "slice.families=one",
    "endpoints.default.model=m",
    "endpoints.default.prompt_price=10000",
    "endpoints.default.max_concurrency=1",
    "--agent",
    "api",
)
"""A request of (100, 10) tokens costs 1, and an episode has three requests."""


def test_resume_repeats_no_paid_request_and_cost_limit_stops(tmp_path: Path) -> None:
    out = tmp_path / "demos.jsonl"
    with serve_answers(lamp_agent) as endpoint:
        words = (
            "collect",
            "toy:DOMAIN",
            *ENDPOINT,
            f"endpoints.default.base_url={endpoint.url}",
            "--tasks",
            4,
            "--sft",
            out,
        )
        code, _, err = run_data_command(*words, "cost_limit=5")
        assert (code, len(err.splitlines())) == (1, 1)
        assert re.search(r"\b5\b.*\b5\.0000\b.*agent 5\.0000.*--resume", err)
        assert run_data_command(*words, "cost_limit=5", "--resume")[0] == 1
        assert len(endpoint.requests) == 5
        code, text, _ = run_data_command(*words, "cost_limit=50", "--resume")
        assert (code, len(endpoint.requests)) == (0, 12)
        last = text.splitlines()[-1]
        assert re.match(r"agent: 12\b.*\b1,200\b.*\b120\b.*\b12\.0000$", last)
    assert [len(each.messages) for each in read_examples(out)] == [7] * 4
    assert list(tmp_path.iterdir()) == [out]


def test_rejected_endpoint_request_leaves_no_files(tmp_path: Path) -> None:
    with serve_answers(lambda _: Answer("no tools here", 400)) as endpoint:
        words = (f"endpoints.default.base_url={endpoint.url}", "--tasks", 4, "--sft", tmp_path / "demos.jsonl")
        code, _, err = run_data_command("collect", "toy:DOMAIN", *ENDPOINT, *words)
    assert (code, len(err.splitlines())) == (2, 1)
    assert re.search(r"\b400\b.*no tools here", err)
    assert list(tmp_path.iterdir()) == []


def test_resume_with_another_checkpoint_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.runs.agents.make_agent", lambda *_: NoopAgent())
    run = Run.create(tmp_path / "run", parse_config("", ["domain=toy:DOMAIN", "slice.domain_policy=brief"]))
    arguments = ("collect", run.folder, "--agent", "model", "--tasks", 2, "--sft", tmp_path / "demos.jsonl")
    for step, resume, why in ((1, (), "2 episodes"), (1, ("--resume",), "2 episodes"), (2, ("--resume",), "")):
        if step > run.step:
            with run.write_checkpoint(step) as folder:
                (folder / "weights").touch()
        code, _, err = run_data_command(*arguments, *resume)
        assert (code, (why or "checkpoint: '") in err) == (2, True), err
    assert "step_000001'" in err


def make_run(folder: Path, *trajectories: Trajectory) -> Path:
    (folder / "trajectories").mkdir(parents=True)
    config = parse_config("", ["domain=toy:DOMAIN", "slice.domain_policy=brief", "sft.steps=0"])
    (folder / "config.toml").write_text(dump_toml(config))
    write_trajectories(folder / "trajectories" / "step_000001.jsonl", trajectories)
    TaskStore(folder).add(group.task for group in make_groups(trajectories, DOMAIN.tasks("test")))
    return folder


def test_collect_from_the_recorded_episodes_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", *EPISODES)
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "demos.jsonl"
    code, text, err = run_data_command("collect", run, "--sft", out, "--dpo", pairs)
    assert (code, err) == (0, "")
    assert [each.messages[-1].content for each in read_examples(out)] == ["a", "b"]
    assert [(each.chosen[-1].content, each.rejected[-1].content) for each in read_examples(pairs)] == [("a", "c")]
    assert re.search(r"left out: (1 [^,\n]+(, |$)){4}", text, re.MULTILINE)
    code, _, err = run_data_command("collect", run, "--sft", tmp_path / "more.jsonl", "--trials", 2)
    assert (code, "--trials" in err) == (2, True)


def test_conversations_of_preferences_are_no_episodes_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    config = parse_config(
        (run / "config.toml").read_text(), ["preferences.steps=1", "preferences.dataset_file=p.jsonl"]
    )
    (run / "config.toml").write_text(dump_toml(config))
    write_trajectories(run / "trajectories" / "step_000001.jsonl", [make_episode("a", task="pairs/0")])
    write_trajectories(run / "trajectories" / "step_000002.jsonl", EPISODES)
    assert [episode.task_id for episode in read_stored_episodes(run)] == [episode.task_id for episode in EPISODES]


def test_run_without_episodes_or_with_held_out_tasks_is_rejected(tmp_path: Path) -> None:
    held_out = DOMAIN.tasks("test")[0].id
    run, empty = make_run(tmp_path / "run", make_episode("a", task=held_out)), make_run(tmp_path / "empty")
    (empty / "trajectories" / "step_000001.jsonl").unlink()
    for folder, why in ((run, held_out), (empty, str(empty))):
        code, _, err = run_data_command("collect", folder, "--sft", tmp_path / "demos.jsonl")
        assert (code, why in err) == (2, True), err
    assert run_data_command("collect", run, "--sft", tmp_path / "demos.jsonl", "--allow-test-data")[0] == 0


def test_model_agent_samples_a_different_reply_per_trial(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    settings = (
        "model=tiny",
        "slice.domain_policy=brief",
        "limits.max_turns=1",
        "sampling.max_response_tokens=8",
        "engine.device=cpu",
    )
    arguments = ("--agent", "model", "--tasks", 1, "--trials", 3, "--kto", tmp_path / "labeled.jsonl")
    code, _, err = run_data_command("collect", "toy:DOMAIN", *settings, *arguments)
    assert code == 0, err
    found = read_examples(tmp_path / "labeled.jsonl")
    assert len({each.messages[2].content for each in found}) == len(found) > 1, "trials differ"
    assert not any(each.label for each in found)
