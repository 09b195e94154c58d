"""What the pages of episodes and evaluations are told: that it is true, in all domains, and that nothing breaks it."""

import asyncio
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from script import Script
from toy import DOMAIN as TOY
from understudy.agent import Agent, DemonstrationAgent, GoldAgent
from understudy.algorithms.options import Overlong
from understudy.assess.sitting import Desk, Sitting, assess
from understudy.config import Algorithm, EvalConfig, TrainConfig
from understudy.domains.base import Domain, find, names
from understudy.domains.recall import recall
from understudy.errors import ConfigError
from understudy.formats import find as find_format
from understudy.messages import Message, ToolCall
from understudy.models import local_model, tiny_model
from understudy.purse import Purse
from understudy.rollout import Limits, rollout
from understudy.run import Run
from understudy.tasks import Score, Task
from understudy.trajectory import Stop, Trajectory
from understudy.users import Cast
from understudy.viewer.advantages import advantages
from understudy.viewer.answers import ANSWERS, as_json
from understudy.viewer.episode import Page, Scene, page
from understudy.viewer.group import apart, grouped, members, neighbours
from understudy.viewer.library import Library
from understudy.viewer.repairs import pieces, readings
from understudy.viewer.tokens import tokens
from understudy.viewer.voice import Voice, voice_of

CONFIG = TrainConfig(domain="toy:DOMAIN", model="tiny", algorithm=Algorithm(group_size=2, tasks_per_step=2))
LIMITS = Limits(max_turns=60)


def played(domain: Domain, task: Task, agent: Agent, seed: int = 5, limits: Limits = LIMITS) -> Trajectory:
    return asyncio.run(rollout(task, domain.environment(task, seed=seed), agent, limits, seed))


def paged(domain: Domain, task: Task | None, episode: Trajectory) -> Page:
    return page(Scene(episode, task, domain, scripted=True))


@pytest.fixture(scope="module", params=names())
def domain(request: pytest.FixtureRequest) -> Domain:
    return find(request.param)  # type: ignore[return-value]


# ---- over all domains ----


def test_a_task_is_made_again_from_its_id(domain: Domain) -> None:
    for split in ("train", "test"):
        for task in domain.sample(split, 20, seed=11):
            assert recall(domain, task.id) == task
    assert recall(domain, domain.tasks("test")[7].id) == domain.tasks("test")[7]
    assert recall(domain, f"{domain.name}/train/none/easy/0-1") is None
    assert recall(domain, "another/train/x/easy/0-1") is None


def test_gold_changes_what_gold_changes_and_nothing_is_lacking(domain: Domain) -> None:
    for task in domain.tasks("train")[::60]:
        found = paged(domain, task, played(domain, task, GoldAgent()))
        assert found.notes == ()
        assert found.goal is not None
        assert found.goal.lacking == ()
        assert found.causes == ()
        seen = {edit.path for said in found.said for edit in said.edits}
        assert seen >= {edit.path for edit in found.goal.edits}
        assert all(call.error == "" and call.result is not None for said in found.said for call in said.calls)
        assert {output for output, told in found.goal.outputs if told} == set(task.outputs)
        assert all(part.value == 1.0 for part in found.parts if part.strict)


def test_half_of_gold_lacks_the_other_half(domain: Domain) -> None:
    task = next(t for t in domain.tasks("train") if any(isinstance(rows, dict) for rows in domain.goal(t).values()))
    found = paged(domain, task, played(domain, task, Script(*task.turns[:2])))
    assert found.reward == 0.0
    assert found.goal is not None
    assert found.goal.lacking
    assert found.causes
    assert {part.name for part in found.parts if part.strict and part.value < 1.0 and part.why} >= {"state"}


def test_every_message_is_there_once(domain: Domain) -> None:
    task = domain.tasks("validation")[3]
    episode = played(domain, task, GoldAgent())
    found = paged(domain, task, episode)
    results = sum(call.result is not None for said in found.said for call in said.calls)
    assert len(found.said) + results == len(episode.messages)
    assert [said.turn for said in found.said if said.turn] == list(range(1, episode.turns + 1))


# ---- where something is wrong ----


TASK = TOY.tasks("train")[0]
LAMP = TASK.actions[0].arguments["lamp_id"]
ASK = Message(role="assistant", content=f"I will switch on lamp {LAMP}. Do you want me to proceed?")


def call(name: str = "switch_lamp", **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


def test_each_kind_of_error_stands_at_its_call() -> None:
    broken = ToolCall(name="switch_lamp", malformed="no JSON")
    several = Message(
        role="assistant",
        tool_calls=(
            ToolCall(name="find_lamp", arguments={"room": "nowhere"}),
            broken,
            ToolCall(name="no_tool"),
            ToolCall(name="find_lamp", arguments={"room": f"room{LAMP[1:]}"}),
            ToolCall(name="switch_lamp", arguments={"lamp_id": LAMP, "on": True}),
        ),
    )
    found = paged(TOY, TASK, played(TOY, TASK, Script(several, call(lamp_id=LAMP))))
    (first, second) = [said for said in found.said if said.calls]
    assert [each.error for each in first.calls] == ["refused", "malformed", "unknown_tool", "", "unconfirmed"]
    assert first.edits == ()
    assert second.calls[0].error == "bad_arguments"
    assert found.causes[0].who == "agent"


def test_a_write_stands_at_its_call() -> None:
    found = paged(TOY, TASK, played(TOY, TASK, Script(ASK, call(lamp_id=LAMP, on=True), Message(role="assistant"))))
    writes = {said.turn: said.edits for said in found.said if said.edits}
    assert [(edit.path, edit.before, edit.after) for edit in writes[2]] == [(("lamps", LAMP, "on"), False, True)]
    assert list(writes) == [2]


def test_an_episode_that_was_cut_off_has_its_last_result() -> None:
    found = paged(TOY, TASK, played(TOY, TASK, Script(call("find_lamp", room="x")), limits=Limits(max_turns=1)))
    assert found.stop == Stop.MAX_TURNS
    assert [each.result for said in found.said for each in said.calls] == ["Error: no lamp in room x"]
    assert found.notes == ()
    assert "cut off" in next(part.why for part in found.parts if part.name == "ended")


def test_a_record_that_is_not_what_happens_now_is_said_to_be() -> None:
    episode = played(TOY, TASK, Script(ASK, call(lamp_id=LAMP, on=True)))
    episode.messages[3] = episode.messages[3].replace(content="No.")
    found = paged(TOY, TASK, episode)
    assert "comes out otherwise" in found.notes[0]
    assert all(said.edits == () for said in found.said)
    assert found.goal is not None
    assert found.goal.edits == ()


def test_a_task_that_is_gone_and_a_fault() -> None:
    episode = played(TOY, TASK, Script())
    found = paged(TOY, None, episode)
    assert found.goal is None
    assert "not found any more" in found.notes[0]
    failed = dataclasses.replace(episode, score=None, stop=Stop.FAULT, fault="engine", error="out of memory")
    found = paged(TOY, TASK, failed)
    assert found.reward is None
    assert found.causes[0].who == "engine"
    assert found.parts == ()


# ---- tokens and readings ----


def voice() -> Voice:
    found = voice_of(CONFIG, Path("nowhere"))
    assert isinstance(found, Voice)
    return found


def demonstration() -> Trajectory:
    return played(TOY, TASK, DemonstrationAgent(find_format(tiny_model())))


def test_tokens_are_those_of_the_episode() -> None:
    episode = demonstration()
    episode.logprobs = [math.nan if i == episode.mask.index(True) else lp for i, lp in enumerate(episode.logprobs)]
    found = tokens(episode, voice(), 0.5)
    assert found.texts is not None
    assert "".join(found.texts) == voice().vocabulary.decode(episode.tokens)
    assert len(found.turns) == episode.turns
    assert all(
        (lp is None) == (not sampled or i == episode.mask.index(True))
        for i, (lp, sampled) in enumerate(zip(found.logprobs, found.sampled, strict=True))
    )
    assert found.advantage == 0.5
    assert found.why == ""


def test_an_episode_without_tokens_and_a_model_that_is_not_here() -> None:
    assert "no tokens" in tokens(played(TOY, TASK, GoldAgent()), voice()).why
    missing = voice_of(CONFIG.replace(model="owner/never-downloaded"), Path("nowhere"))
    assert isinstance(missing, str)
    found = tokens(demonstration(), missing)
    assert found.texts is None
    assert "not downloaded" in found.why
    with pytest.raises(ConfigError, match="not downloaded"):
        local_model("owner/never-downloaded")


def test_what_was_repaired_is_marked_in_what_was_written() -> None:
    vocabulary = voice().vocabulary
    text = '<tool_call>{"name": "switch_lamp", "arguments": {"lamp_id": "L1", "on": True}</tool_call>'
    written = vocabulary.encode(text)
    parsed = voice().format.parse(written, TOY.specs)
    episode = Trajectory("t")
    episode.observe([Message(role="user", content="x")], [1])
    episode.act(parsed.message, written, [0.0] * len(written))
    (found,) = readings(episode, TOY.specs, voice()).values()
    assert found.status == "repaired"
    assert found.repairs
    assert "".join(piece.text for piece in found.pieces if piece.kind != "read") == found.text
    assert "True" in {piece.text for piece in found.pieces if piece.kind == "written"}
    assert "true" in {piece.text for piece in found.pieces if piece.kind == "read"}


@given(st.text(max_size=80), st.text(max_size=80))
def test_pieces_hold_both_texts(one: str, other: str) -> None:
    found = pieces(one, other)
    assert "".join(piece.text for piece in found if piece.kind != "read") == one
    assert "".join(piece.text for piece in found if piece.kind != "written") == other


# ---- groups and advantages ----


def scored(task: str, reward: float | None, tokens: int = 3) -> Trajectory:
    score = None if reward is None else Score(reward=reward)
    return Trajectory(
        task, tokens=[1] * tokens, mask=[False] + [True] * (tokens - 1), logprobs=[0.0] * tokens, score=score
    )


def test_groups_are_neighbours_of_one_task() -> None:
    episodes = dict(enumerate([scored(task, 1.0) for task in "aabbbbc"], 3))
    assert grouped(episodes, 2) == [[3, 4], [5, 6], [7, 8], [9]]
    assert neighbours(episodes, 8, 2) == [7, 8]
    del episodes[4]  # a damaged line
    assert grouped(episodes, 2) == [[3], [5, 6], [7, 8], [9]]


REWARDS = st.lists(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=4), min_size=1, max_size=4)
KINDS = st.sampled_from(["group", "group_std", "leave_one_out", "batch_std", "success"])


@given(REWARDS, KINDS, st.sampled_from([0.0, 0.5]))
def test_advantages_are_those_that_training_takes(rewards: list[list[float]], kind: Any, margin: float) -> None:
    torch = pytest.importorskip("torch")
    from understudy.batch import collate
    from understudy.train.lessons import lesson
    from understudy.train.reinforcement import with_advantages

    algorithm = Algorithm(advantage=kind, overlong=Overlong(margin=margin, penalty=0.5))
    config = TrainConfig(algorithm=algorithm, limits=Limits(max_tokens=4))
    groups = [[scored(str(g), r, 3 + i) for i, r in enumerate(group)] for g, group in enumerate(rewards)]
    found = advantages(groups, config)
    assert found is not None
    lessons = [(g, taken) for g, group in enumerate(groups) if (taken := lesson(group, kind))]
    flat = [episode for _, taken in lessons for episode in taken]
    learned = {
        id(e): a for group, values in zip(groups, found, strict=True) for e, a in zip(group, values, strict=True)
    }
    assert {key for key, value in learned.items() if value is not None} == {id(episode) for episode in flat}
    if not flat:
        return
    batch = with_advantages(collate(flat, [g for g, taken in lessons for _ in taken]), config)
    assert batch.advantages is not None
    expected = (batch.advantages.sum(1) / batch.mask.sum(1)).tolist()
    assert [learned[id(episode)] for episode in flat] == pytest.approx(expected, abs=1e-4)
    assert torch.is_tensor(batch.advantages)


def test_a_critic_s_advantages_are_not_one_number() -> None:
    assert advantages([[scored("a", 1.0)]], TrainConfig(algorithm=Algorithm(advantage="gae"))) is None


def test_where_episodes_part() -> None:
    one = played(TOY, TASK, GoldAgent())
    same = played(TOY, TASK, GoldAgent())
    other = played(TOY, TASK, Script(TASK.turns[0], Message(role="assistant", content="Bye.")))
    assert apart(one, same) is None
    assert apart(one, other) == 1
    assert apart(Trajectory("t"), one) == 0
    shorter = dataclasses.replace(one, messages=one.messages[:-1])
    assert apart(one, shorter) == one.turns - 1
    found = members({1: one, 4: other}, 1, {4: -0.5})
    assert [(each.number, each.apart, each.advantage) for each in found] == [(1, None, None), (4, 1, -0.5)]


# ---- answers ----


HOSTILE = "<script>alert(1)</script>\u202eevil\x00\x1b[31m\ufeff" + "A" * 100_000


@pytest.fixture
def library(tmp_path: Path) -> Library:
    run = Run.create(tmp_path / "run", CONFIG)
    bad = played(TOY, TASK, Script(Message(role="assistant", content=HOSTILE), call("find_lamp", room=HOSTILE)))
    run.keep(4, [demonstration(), bad, played(TOY, TASK, GoldAgent()), bad])
    return Library([run.folder])


def ask(library: Library, path: str, **values: str) -> Any:
    return json.loads(as_json(ANSWERS[path](library, values)))


def test_an_episode_is_told_with_its_neighbours(library: Library) -> None:
    found = ask(library, "/api/episode/{key}/{step}/{number}", key="run", step="4", number="2")
    assert (found["before"], found["after"], found["of"], found["group"]) == (1, 3, 4, 2)
    assert found["fork"].endswith("run --fork 4/2@TURN")
    assert found["advantage"] == -0.5
    assert any(HOSTILE[:30] in said["content"] for said in found["said"])
    shown = ask(library, "/api/episode/{key}/{step}/{number}/tokens", key="run", step="4", number="1")
    assert len(shown["ids"]) == len(shown["texts"]) == len(shown["sampled"])
    group = ask(library, "/api/episode/{key}/{step}/{number}/group", key="run", step="4", number="1")
    assert [member["number"] for member in group] == [1, 2]
    assert all(len(reply["text"]) <= 160 for member in group for reply in member["replies"])
    read = ask(library, "/api/episode/{key}/{step}/{number}/readings", key="run", step="4", number="1")
    assert len(read["readings"]) == 3


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"step": "4", "number": "9"}, "has no episode 9 of step 4; it has 1 to 4"),
        ({"step": "5", "number": "1"}, "keeps no episodes of step 5"),
        ({"step": "x", "number": "1"}, "keeps no episodes of 'x'; it does of: 4"),
        ({"step": "4", "number": "-1"}, "number '-1' is no number"),
        ({"step": "eval", "number": "1"}, "no evaluation 'run'"),
    ],
)
def test_what_is_not_there_is_said(library: Library, values: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ANSWERS["/api/episode/{key}/{step}/{number}"](library, {"key": "run", **values})


# ---- evaluations ----


def evaluated(folder: Path, agent: Agent, name: str) -> None:
    config = CONFIG.replace(eval=EvalConfig(split="test", tasks=4, trials=2))
    desk = Desk(Purse(), agent, Cast(config.user))
    asyncio.run(assess(Sitting(name=name, agent=name, config=config), desk, folder))


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("evals")
    evaluated(folder / "gold", GoldAgent(), "gold")
    evaluated(folder / "mute", Script(ASK), "mute")
    return Library([folder])


def test_evaluations_are_listed(evaluations: Library) -> None:
    found = ask(evaluations, "/api/evaluations")
    assert {each["key"] for each in found} == {"gold", "mute"}
    assert [row["kind"] for row in found[0]["rows"]] == ["floor", "oracle", "agent"]


def test_an_evaluation_leads_to_the_episodes_that_failed(evaluations: Library) -> None:
    found = ask(evaluations, "/api/evaluations/{key}", key="mute")
    assert len(found["failures"]) == 8
    assert found["causes"][0]["failures"] == max(cause["failures"] for cause in found["causes"])
    first = found["failures"][0]
    shown = ask(
        evaluations, "/api/episode/{key}/{step}/{number}", key="mute", step="eval", number=str(first["episode"])
    )
    assert (shown["task"], shown["seed"]) == (first["task"], first["seed"])
    assert shown["causes"][0]["what"] == first["cause"]["what"]
    assert shown["group"] == 2, "the trials of the task"
    assert shown["fork"].endswith(f"mute --fork {first['episode']}@TURN")


def test_two_evaluations_side_by_side(evaluations: Library) -> None:
    values = {"new": "gold", "new_row": "2", "old": "mute", "old_row": "2"}
    found = ask(evaluations, "/api/comparison/{new}/{new_row}/{old}/{old_row}", **values)
    assert found["gain"]["mean"] == 1.0
    assert [task["gain"] for task in found["tasks"]] == [1.0] * 4
    with pytest.raises(ConfigError, match="gold has no row '9'; it has 0 to 2"):
        ask(evaluations, "/api/comparison/{new}/{new_row}/{old}/{old_row}", **{**values, "new_row": "9"})


def test_the_stages_of_a_run_are_an_evaluation(tmp_path: Path, evaluations: Library) -> None:
    from understudy.outcome import read

    run = Run.create(tmp_path / "run", CONFIG)
    for step, key in ((0, "mute"), (12, "gold")):
        run.write(
            f"evaluations/{step:06} stage.json", read(evaluations.evaluation(key)).rows[-1].evaluation.model_dump_json()
        )
    found = ask(Library([run.folder]), "/api/evaluations/{key}", key="run")
    assert [row["name"] for row in found["rows"]] == ["stage, step 0", "stage, step 12"]
    assert found["rows"][1]["gain"]["mean"] == 1.0
    run.write("evaluations/000013 stage.json", "{}")
    (line,) = ask(Library([run.folder]), "/api/evaluations")
    assert "holds no evaluation" in line["problem"]
