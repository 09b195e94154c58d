"""Collecting: which episodes become what, how many of each kind, and that nothing is lost or paid for twice."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data_kit import call
from endpoint import Answer, serving
from test_chat_agent import lamp
from toy import DOMAIN
from understudy.agent import SilentAgent
from understudy.collect import collect
from understudy.collect.lessons import balanced, demonstrations, judged, preferences
from understudy.config import TrainConfig
from understudy.data.conversations import conversations
from understudy.data.items import Item
from understudy.data.preferences import Demonstration
from understudy.errors import RolloutError
from understudy.evaluate import held_out
from understudy.hold import held
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.run import Run
from understudy.settings import dump, parse
from understudy.tasks import Score
from understudy.trajectory import Stop, Trajectory, write_trajectories

SPEC = ToolSpec(name="find", description="Finds.", parameters={"type": "object"}, aliases={"q": "query"})


def shown(domain: str) -> Sequence[ToolSpec]:
    return (SPEC,)


def episode(said: str, won: bool = True, task: str = "t", family: str = "f", difficulty: str = "easy") -> Trajectory:
    ended = Trajectory(task, "toy", family, difficulty, score=Score(reward=float(won)), stop=Stop.DONE)
    ended.observe([Message(role="system", content="policy"), Message(role="user", content="hello")])
    ended.act(Message(role="assistant", content=said))
    return ended


def broken(kind: str) -> Trajectory:
    ended = episode("x")
    if kind == "fault":
        ended.score, ended.stop, ended.fault = None, Stop.FAULT, "user"
    else:
        ended.act(Message(role="assistant", tool_calls=(ToolCall(name="find", malformed="not JSON"),)))
    return ended


EVERY = [episode("a"), episode("a"), episode("b"), episode("c", False), broken("fault"), broken("call")]
LEFT = {"said before": 1, "failed by the user": 1, "with calls that could not be read": 1}


def test_demonstrations_are_episodes_that_were_won_each_once() -> None:
    found = demonstrations(EVERY, shown)
    assert [lesson.messages[-1].content for _, lesson in found.found] == ["a", "b"]
    assert found.left == LEFT | {"lost": 1}
    assert found.found[0][1].tools == (SPEC.replace(aliases={}),)
    assert str(found).splitlines()[0].split() == ["toy", "f", "easy", "2"]


def test_judgements_are_all_episodes() -> None:
    found = judged(EVERY, shown)
    assert [(lesson.messages[-1].content, lesson.wanted) for _, lesson in found.found] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]
    assert found.left == LEFT


def test_pairs_are_of_one_task_and_begin_alike() -> None:
    other = episode("e", False)
    other.messages[1] = Message(role="user", content="good morning")
    many = [*EVERY, episode("d", False), episode("x", task="u"), other]
    found = preferences(many, shown, most=4)
    assert [(p.chosen[-1].content, p.rejected[-1].content) for _, p in found.found] == [("a", "c"), ("b", "d")]
    assert found.left == LEFT | {"without an episode that ended otherwise": 2}
    assert len(preferences(many, shown, most=1).found) == 1


def test_as_many_of_each_as_wanted() -> None:
    many = [episode(f"{f}{d}{i}", family=f, difficulty=d) for f in "fg" for d in ("easy", "hard") for i in range(5)]
    lessons = demonstrations(many, shown)
    for by, groups in (("domain", 1), ("family", 2), ("difficulty", 2)):
        kept = balanced(lessons, 3, by, 0)  # type: ignore[arg-type]
        assert len(kept.found) == 3 * groups
        assert kept.left == {f"more than 3 of a {by}": 20 - 3 * groups}
        places = [lessons.found.index(each) for each in kept.found]
        assert places == sorted(places)
    assert balanced(lessons, 3, "family", 0).found == balanced(lessons, 3, "family", 0).found
    assert balanced(lessons, 3, "family", 0).found != balanced(lessons, 3, "family", 1).found
    assert balanced(lessons, 99, "family", 0).found == lessons.found


def read(path: Path) -> list[Any]:
    found = list(conversations(path))
    assert all(isinstance(item, Item) for item in found)
    return [item.value for item in found if isinstance(item, Item)]


def test_the_verb_plays_gold(tmp_path: Path) -> None:
    out, all_of_them = tmp_path / "demos.jsonl", tmp_path / "judged.jsonl"
    code, text, err = call(
        "collect", "toy:DOMAIN", "slice.policy=brief", "--out", out, "--judged", all_of_them, "--tasks", 6
    )
    assert (code, err) == (0, "")
    assert text.splitlines()[0] == f"{out}: 6"
    found = read(out)
    assert all(isinstance(each, Demonstration) for each in found)
    tasks = {task.id: task for task in held_out(DOMAIN, "train", 6)}
    assert [each.task for each in found] == list(tasks)
    for each in found:
        assert [m.content for m in each.messages if m.role == "assistant"] == [
            m.content for m in tasks[each.task].turns
        ]
        assert {tool.name for tool in each.tools} == {"find_lamp", "switch_lamp"}
    assert [each.wanted for each in read(all_of_them)] == [True] * 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demos.jsonl", "judged.jsonl"]
    code, _, err = call("collect", "toy:DOMAIN", "slice.policy=brief", "--out", out)
    assert (code, "is there already" in err) == (2, True)


def test_a_silent_agent_demonstrates_nothing(tmp_path: Path) -> None:
    out, judged_ = tmp_path / "demos.jsonl", tmp_path / "judged.jsonl"
    arguments = ("collect", "toy:DOMAIN", "--agent", "silent", "--tasks", 3, "--out", out)
    code, _, err = call(*arguments)
    assert code == 2
    assert (tmp_path / "demos.jsonl.episodes").is_dir(), "what was played is not lost"
    code, text, _ = call(*arguments, "--judged", judged_, "--resume")
    assert (code, f"{judged_}: 3" in text, f"{out}: 0" in text) == (1, True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["judged.jsonl"]
    assert "of 3 episodes there is none to write" in err
    assert "3 lost" in err


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_tasks_are_taken_only_when_asked_loudly(tmp_path: Path, split: str) -> None:
    arguments = ("collect", "toy:DOMAIN", "--tasks", 2, "--split", split, "--out", tmp_path / "demos.jsonl")
    code, _, err = call(*arguments)
    assert (code, f"{split} tasks are there to measure" in err) == (2, True)
    assert list(tmp_path.iterdir()) == []
    assert call(*arguments, "--even-held-out")[0] == 0
    assert all(f"/{split}/" in each.task for each in read(tmp_path / "demos.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["toy:DOMAIN"], "give --out, --preferences or --judged"),
        (["toy:DOMAIN", "--out", "demos.json"], "conversations are written as .jsonl"),
        (["toy:DOMAIN", "--out", "a.jsonl", "--judged", "a.jsonl"], "a.jsonl is there already"),
        (["toy:DOMAIN", "--out", "no/a.jsonl"], "there is no folder no"),
        (["toy:DOMAIN", "--out", "a.jsonl", "--pairs", "2"], "--pairs has no effect"),
        (["toy:DOMAIN", "--out", "a.jsonl", "--by", "domain"], "--by has no effect"),
        (["toy:DOMAIN", "--out", "a.jsonl", "--agent", "sliver"], "unknown agent 'sliver'"),
        (["toy:DOMAIN", "--out", "a.jsonl", "chat.model=m"], "and this is --agent gold; add --agent native"),
        (
            ["toy:DOMAIN", "--out", "a.jsonl", "--agent", "chat", "chat.model=m", "cost_cap=1"],
            "nothing that is asked has",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call("collect", *arguments)
    assert (code, why in err) == (2, True), err
    assert list(tmp_path.iterdir()) == []


class Watched:
    """Gold, which counts what it begins; the endpoint is down in its second episode, Ctrl-C comes in its fourth."""

    def __init__(self, agent: Any, fails: bool) -> None:
        self._agent, self._fails = agent, fails
        self.begun: list[str] = []

    async def act(self, task: Any, episode: Any, new: Any, tools: Any) -> Message:
        if not episode.turns:
            self.begun.append(task.id)
        if self._fails and len(self.begun) == 2:
            raise RolloutError("the endpoint is down", "agent")
        if self._fails and len(self.begun) == 4:
            raise KeyboardInterrupt
        reply: Message = await self._agent.act(task, episode, new, tools)
        return reply


def test_what_was_interrupted_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("slice.policy=brief", "limits.retries=0", "--tasks", 4, "--concurrency", 1)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "demos.jsonl"
    assert call("collect", "toy:DOMAIN", *settings, "--out", whole)[0] == 0
    agents: list[Watched] = []
    named, partial = collect._agent, tmp_path / "demos.jsonl.episodes"

    def watched(*asked: Any) -> Watched:
        agents.append(Watched(named(*asked), fails=not agents))
        return agents[-1]

    monkeypatch.setattr(collect, "_agent", watched)
    code, _, err = call("collect", "toy:DOMAIN", *settings, "--out", out)
    assert (code, "--resume goes on with them" in err) == (130, True)
    kept = partial / "episodes.jsonl"
    assert len(kept.read_text().splitlines()) == 2
    kept.write_text(kept.read_text() + '{"task": "cut o')
    for others, why in (((), "unfinished; go on with it by --resume"), (("--resume", "--seed", 1), "seed: 0 and 1")):
        code, _, err = call("collect", "toy:DOMAIN", *settings, "--out", out, *others)
        assert (code, why in err) == (2, True), err
    with held(partial):
        code, _, err = call("collect", "toy:DOMAIN", *settings, "--out", out, "--resume")
        assert (code, "another process is writing to" in err) == (2, True)
    assert call("collect", "toy:DOMAIN", *settings, "--out", out, "--resume")[0] == 0
    tasks = [task.id for task in held_out(DOMAIN, "train", 4)]
    assert agents[0].begun == tasks
    assert agents[-1].begun == [tasks[1], tasks[3]], "what had ended is not played again"
    assert out.read_bytes() == whole.read_bytes()
    assert not partial.exists()


ENDPOINT = ("slice.families=one", "chat.model=m", "chat.prompt_price=10000", "chat.concurrency=1", "--agent", "native")
"""A request of (100, 10) tokens costs 1, and an episode has three."""


def test_an_endpoint_is_paid_once_up_to_a_cap(tmp_path: Path) -> None:
    out = tmp_path / "demos.jsonl"
    with serving(lamp) as endpoint:
        words = ("collect", "toy:DOMAIN", *ENDPOINT, f"chat.base_url={endpoint.url}", "--tasks", 4, "--out", out)
        code, _, err = call(*words, "cost_cap=5")
        assert (code, len(err.splitlines())) == (2, 1)
        assert "the cost cap 5 is reached: 5.0000 is spent (agent 5.0000); what has ended is kept, and --resume" in err
        assert call(*words, "cost_cap=5", "--resume")[0] == 2
        assert len(endpoint.requests) == 5
        code, text, _ = call(*words, "cost_cap=50", "--resume")
        assert (code, len(endpoint.requests)) == (0, 12)
        last = text.splitlines()[-1]
        assert last.startswith("agent: 12 requests, ")
        assert last.endswith(" 1,200 prompt and 120 completion tokens, cost 12.0000")
    assert [len(each.messages) for each in read(out)] == [7] * 4
    assert list(tmp_path.iterdir()) == [out]


def test_an_endpoint_that_is_set_up_wrongly_leaves_nothing(tmp_path: Path) -> None:
    with serving(lambda _: Answer("no tools here", 400)) as endpoint:
        words = (f"chat.base_url={endpoint.url}", "--tasks", 4, "--out", tmp_path / "demos.jsonl")
        code, _, err = call("collect", "toy:DOMAIN", *ENDPOINT, *words)
    assert (code, len(err.splitlines()), "status 400: no tools here" in err) == (2, 1, True)
    assert list(tmp_path.iterdir()) == []


def test_episodes_of_two_checkpoints_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_agent", lambda *_: SilentAgent())
    run = Run.create(tmp_path / "run", parse(TrainConfig, "", ["domain=toy:DOMAIN", "slice.policy=brief"]))
    arguments = ("collect", run.folder, "--agent", "model", "--tasks", 2, "--out", tmp_path / "demos.jsonl")
    for step, resume, why in ((1, (), "none to write"), (1, ("--resume",), "none to write"), (2, ("--resume",), "")):
        if step > run.step:
            with run.checkpoint(step) as folder:
                (folder / "weights").touch()
        code, _, err = call(*arguments, *resume)
        assert (code, (why or "checkpoint: '") in err) == (2, True), err
    assert "step_000001' and '" in err


def run_with(folder: Path, *trajectories: Trajectory) -> Path:
    (folder / "trajectories").mkdir(parents=True)
    config = parse(TrainConfig, "", ["domain=toy:DOMAIN", "slice.policy=brief"])
    (folder / "config.toml").write_text(dump(config))
    write_trajectories(folder / "trajectories" / "step_000001.jsonl", trajectories)
    return folder


def test_the_episodes_of_a_run(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", *EVERY)
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "demos.jsonl"
    code, text, err = call("collect", run, "--out", out, "--preferences", pairs)
    assert (code, err) == (0, "")
    assert [each.messages[-1].content for each in read(out)] == ["a", "b"]
    assert [(each.chosen[-1].content, each.rejected[-1].content) for each in read(pairs)] == [("a", "c")]
    assert "left out: 1 said before, 1 lost, 1 failed by the user, 1 with calls that could not be read" in text
    code, _, err = call("collect", run, "--out", tmp_path / "more.jsonl", "--trials", 2)
    assert (code, "--trials has no effect" in err) == (2, True)


def test_a_run_without_episodes_or_with_held_out_ones(tmp_path: Path) -> None:
    held = DOMAIN.tasks("test")[0].id
    run, empty = run_with(tmp_path / "run", episode("a", task=held)), run_with(tmp_path / "empty")
    (empty / "trajectories" / "step_000001.jsonl").unlink()
    for folder, why in ((run, f"held-out tasks, such as {held}"), (empty, "has stored no episodes")):
        code, _, err = call("collect", folder, "--out", tmp_path / "demos.jsonl")
        assert (code, why in err) == (2, True), err
    assert call("collect", run, "--out", tmp_path / "demos.jsonl", "--even-held-out")[0] == 0


def test_a_model_plays_as_it_samples(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    settings = ("model=tiny", "slice.policy=brief", "limits.max_turns=1", "sampling.max_tokens=8", "engine.device=cpu")
    arguments = ("--agent", "model", "--tasks", 1, "--trials", 3, "--judged", tmp_path / "judged.jsonl")
    code, _, err = call("collect", "toy:DOMAIN", *settings, *arguments)
    assert code == 0, err
    found = read(tmp_path / "judged.jsonl")
    assert len({each.messages[2].content for each in found}) == len(found) > 1, "trials differ"
    assert not any(each.wanted for each in found)
