"""Test the viewer's answers on episodes and evaluations, for every domain and for damaged or hostile episodes."""

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.branching import split_episode
from support.run_evaluations import write_run_evaluation
from support.script import Script
from support.viewer_episodes import (
    ASK,
    CONFIG,
    LAMP,
    TASK,
    call_reply,
    gold_episode,
    play,
    request_route,
    write_evaluation,
)
from toy import DOMAIN as TOY
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.models import find_local_model
from understudy.envs.domain import Domain
from understudy.envs.rewards import missing_facts
from understudy.envs.task_source import find_task
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.group import Group
from understudy.rollouts.rollout import EpisodeLimits
from understudy.runs.run import Run
from understudy.runs.storage.trained_episodes import EpisodeTrainingData
from understudy.sources.loading import load_source
from understudy.sources.references import list_domains
from understudy.viewer.api import ROUTES
from understudy.viewer.episodes.decoder import TokenDecoder, load_decoder
from understudy.viewer.episodes.episode_view import EpisodeContext, EpisodeView, build_episode_view
from understudy.viewer.episodes.group import first_divergence, group_members, group_numbers
from understudy.viewer.episodes.repairs import diff_words, explain_parses
from understudy.viewer.episodes.tokens import build_token_view
from understudy.viewer.library import RunLibrary


def build_view(domain: Domain, task: Task | None, episode: Trajectory) -> EpisodeView:
    return build_episode_view(EpisodeContext(episode, task, domain, scripted_user=True))


@pytest.fixture(scope="module", params=list_domains())
def domain(request: pytest.FixtureRequest) -> Domain:
    return load_source(request.param)  # type: ignore[return-value]


def test_find_task_regenerates_a_task_from_its_id(domain: Domain) -> None:
    for split in ("train", "test"):
        for task in domain.sample(split, 20, seed=11):
            assert find_task(domain, task.id) == task
    assert find_task(domain, domain.tasks("test")[7].id) == domain.tasks("test")[7]
    assert find_task(domain, f"{domain.name}/train/none/easy/0-1") is None
    assert find_task(domain, "another/train/x/easy/0-1") is None


def test_gold_episode_view_has_every_required_edit_and_output(domain: Domain) -> None:
    for task in domain.tasks("train")[::60]:
        found = build_view(domain, task, play(domain, task, GoldAgent()))
        assert found.notes == ()
        assert found.goal is not None
        assert found.goal.missing_edits == ()
        assert found.causes == ()
        seen = {edit.path for message in found.messages for edit in message.edits}
        assert seen >= {edit.path for edit in found.goal.edits}
        assert all(call.error == "" and call.result is not None for message in found.messages for call in message.calls)
        assert {output for output, stated in found.goal.outputs if stated} == set(task.outputs)
        assert all(part.value == 1.0 for part in found.parts if part.required)


def test_outputs_are_told_by_the_rules_of_the_reward() -> None:
    domain = load_source("doordash")
    late = next(task for task in domain.tasks("test") if task.family == "late")
    assert isinstance(domain, Domain)
    episode = play(domain, late, GoldAgent())
    assert missing_facts(episode.messages, late.outputs)  # its agent knows a number from the domain policy
    silent = [message for message in episode.messages if message.role != "assistant"]
    for messages, told in ((episode.messages, True), (silent, False)):
        found = build_view(domain, late, dataclasses.replace(episode, messages=messages, score=None))
        assert found.goal is not None
        assert found.goal.outputs == tuple((output, told) for output in late.outputs)


def test_task_whose_gold_is_refused_now_still_has_a_view() -> None:
    gold = tuple(turn.replace(tool_calls=()) if turn.tool_calls else turn for turn in TASK.gold)
    refused = Message(
        role="assistant", tool_calls=(ToolCall(name="switch", arguments={"lamp_id": "none", "on": True}),)
    )
    task = TASK.replace(gold=(refused, *gold), outputs=("bright",))
    found = build_view(TOY, task, dataclasses.replace(play(TOY, TASK, GoldAgent()), score=None))
    assert found.goal is not None
    assert found.goal.outputs == (("bright", False),)
    assert len(found.notes) == 1


def test_partial_gold_episode_has_missing_edits_and_causes(domain: Domain) -> None:
    task = next(
        t for t in domain.tasks("train") if any(isinstance(rows, dict) for rows in domain.gold_changes(t).values())
    )
    found = build_view(domain, task, play(domain, task, Script(*task.gold_turns[:2])))
    assert found.reward == 0.0
    assert found.goal is not None
    assert found.goal.missing_edits
    assert found.causes
    assert {part.name for part in found.parts if part.required and part.value < 1.0 and part.reason} >= {"state_match"}


def test_view_contains_every_message_once(domain: Domain) -> None:
    task = domain.tasks("validation")[3]
    episode = play(domain, task, GoldAgent())
    found = build_view(domain, task, episode)
    results = sum(call.result is not None for message in found.messages for call in message.calls)
    assert len(found.messages) + results == len(episode.messages)
    assert [message.turn for message in found.messages if message.turn] == list(range(1, episode.num_turns + 1))


def test_each_kind_of_tool_error_is_shown_at_its_call() -> None:
    malformed = ToolCall(name="switch_lamp", parse_error="no JSON")
    five_calls = Message(
        role="assistant",
        tool_calls=(
            ToolCall(name="find_lamp", arguments={"room": "nowhere"}),
            malformed,
            ToolCall(name="no_tool"),
            ToolCall(name="find_lamp", arguments={"room": f"room{LAMP[1:]}"}),
            ToolCall(name="switch_lamp", arguments={"lamp_id": LAMP, "on": True}),
        ),
    )
    found = build_view(TOY, TASK, play(TOY, TASK, Script(five_calls, call_reply(lamp_id=LAMP))))
    (first, second) = [message for message in found.messages if message.calls]
    assert [each.error for each in first.calls] == ["refused", "malformed", "unknown_tool", "", "unconfirmed"]
    assert first.edits == ()
    assert second.calls[0].error == "invalid_arguments"
    assert found.causes[0].component == "agent"


def test_database_edit_is_shown_at_its_call() -> None:
    found = build_view(
        TOY, TASK, play(TOY, TASK, Script(ASK, call_reply(lamp_id=LAMP, on=True), Message(role="assistant")))
    )
    writes = {message.turn: message.edits for message in found.messages if message.edits}
    assert [(edit.path, edit.before, edit.after) for edit in writes[2]] == [(("lamps", LAMP, "on"), False, True)]
    assert list(writes) == [2]


def test_episode_cut_by_max_turns_shows_its_last_result() -> None:
    found = build_view(
        TOY, TASK, play(TOY, TASK, Script(call_reply("find_lamp", room="x")), limits=EpisodeLimits(max_turns=1))
    )
    assert found.stop == StopReason.MAX_TURNS
    assert [each.result for message in found.messages for each in message.calls] == ["Error: no lamp in room x"]
    assert found.notes == ()
    assert next(part.reason for part in found.parts if part.name == "within_limits")


def test_episode_that_does_not_replay_has_a_note_and_no_edits() -> None:
    episode = play(TOY, TASK, Script(ASK, call_reply(lamp_id=LAMP, on=True)))
    episode.messages[3] = episode.messages[3].replace(content="No.")
    found = build_view(TOY, TASK, episode)
    assert len(found.notes) == 1
    assert all(message.edits == () for message in found.messages)
    assert found.goal is not None
    assert found.goal.edits == ()


def test_missing_task_and_engine_fault_are_explained() -> None:
    episode = play(TOY, TASK, Script())
    found = build_view(TOY, None, episode)
    assert found.goal is None
    assert TASK.id in found.notes[0]
    failed = dataclasses.replace(
        episode, score=None, stop_reason=StopReason.FAULT, fault="engine", error="out of memory"
    )
    found = build_view(TOY, TASK, failed)
    assert found.reward is None
    assert found.causes[0].component == "engine"
    assert found.parts == ()


def make_decoder() -> TokenDecoder:
    found = load_decoder(CONFIG, Path("nowhere"))
    assert isinstance(found, TokenDecoder)
    return found


def test_token_view_matches_tokens_logprobs_and_advantages() -> None:
    episode = gold_episode()
    episode.logprobs = [math.nan if i == episode.mask.index(True) else lp for i, lp in enumerate(episode.logprobs)]
    values = [float(i) for i in range(sum(episode.mask))]
    trained = EpisodeTrainingData(number=1, reward=1.0, advantages=(0.5,), logprobs=values)
    found = build_token_view(episode, make_decoder(), trained)
    assert found.texts is not None
    assert "".join(found.texts) == make_decoder().vocabulary.decode(episode.tokens)
    assert len(found.turns) == episode.num_turns
    assert all(
        (lp is None) == (not sampled or i == episode.mask.index(True))
        for i, (lp, sampled) in enumerate(zip(found.logprobs, found.sampled, strict=True))
    )
    assert found.advantages == tuple(0.5 if sampled else None for sampled in episode.mask)
    assert found.trainer_logprobs is not None
    assert [value for value in found.trainer_logprobs if value is not None] == values
    assert found.note == ""


def test_missing_tokens_or_model_give_a_note() -> None:
    assert "no tokens" in build_token_view(play(TOY, TASK, GoldAgent()), make_decoder()).note
    missing = load_decoder(CONFIG.replace(model="owner/never-downloaded"), Path("nowhere"))
    assert isinstance(missing, str)
    found = build_token_view(gold_episode(), missing)
    assert found.texts is None
    assert "owner/never-downloaded" in found.note
    with pytest.raises(ConfigError, match="owner/never-downloaded"):
        find_local_model("owner/never-downloaded")


def test_repaired_tool_call_marks_added_and_removed_text() -> None:
    vocabulary = make_decoder().vocabulary
    text = '<tool_call>{"name": "switch_lamp", "arguments": {"lamp_id": "L1", "on": True}</tool_call>'
    written = vocabulary.encode(text)
    parsed = make_decoder().format.parse(written, TOY.tool_specs)
    episode = Trajectory("t")
    episode.observe([Message(role="user", content="x")], [1])
    episode.act(parsed.message, written, [0.0] * len(written))
    (found,) = explain_parses(episode, TOY.tool_specs, make_decoder()).values()
    assert found.status == "repaired"
    assert found.repairs
    assert "".join(piece.text for piece in found.pieces if piece.kind != "added") == found.text
    assert "True" in {piece.text for piece in found.pieces if piece.kind == "removed"}
    assert "true" in {piece.text for piece in found.pieces if piece.kind == "added"}


@given(st.text(max_size=80), st.text(max_size=80))
def test_diff_pieces_reconstruct_both_texts(one: str, other: str) -> None:
    found = diff_words(one, other)
    assert "".join(piece.text for piece in found if piece.kind != "added") == one
    assert "".join(piece.text for piece in found if piece.kind != "removed") == other


def scored_episode(task: str, reward: float | None, tokens: int = 3) -> Trajectory:
    score = None if reward is None else Score(reward=reward)
    return Trajectory(
        task, tokens=[1] * tokens, mask=[False] + [True] * (tokens - 1), logprobs=[0.0] * tokens, score=score
    )


def test_group_numbers_are_adjacent_episodes_of_one_task() -> None:
    episodes = dict(enumerate([scored_episode(task, 1.0) for task in "aabbbbc"], 3))
    assert [group_numbers(episodes, number, 2) for number in (3, 6, 8, 9)] == [[3, 4], [5, 6], [7, 8], [9]]
    del episodes[4]  # a damaged line
    assert [group_numbers(episodes, number, 2) for number in (3, 6)] == [[3], [5, 6]]


def test_first_divergence_of_episodes() -> None:
    one = play(TOY, TASK, GoldAgent())
    same = play(TOY, TASK, GoldAgent())
    other = play(TOY, TASK, Script(TASK.gold_turns[0], Message(role="assistant", content="Bye.")))
    assert first_divergence(one, same) is None
    assert first_divergence(one, other) == 1
    assert first_divergence(Trajectory("t"), one) == 0
    shorter = dataclasses.replace(one, messages=one.messages[:-1])
    assert first_divergence(one, shorter) == one.num_turns - 1
    found = group_members({1: one, 4: other}, 1, {})
    assert [(each.number, each.diverges_at) for each in found] == [(1, None), (4, 1)]


HOSTILE = "<script>alert(1)</script>\u202eevil\x00\x1b[31m\ufeff" + "A" * 100_000


@pytest.fixture
def library(tmp_path: Path) -> RunLibrary:
    run = Run.create(tmp_path / "run", CONFIG)
    bad = play(TOY, TASK, Script(Message(role="assistant", content=HOSTILE), call_reply("find_lamp", room=HOSTILE)))
    run.save_groups(4, [Group(TASK, [gold_episode(), bad]), Group(TASK, [play(TOY, TASK, GoldAgent()), bad])])
    return RunLibrary([run.folder])


def test_episode_answer_has_neighbors_fork_tokens_and_group(library: RunLibrary) -> None:
    found = request_route(library, "/api/episode/{key}/{step}/{number}", key="run", step="4", number="2")
    assert (found["before"], found["after"], found["total"], found["group_size"]) == (1, 3, 4, 2)
    assert found["fork"].endswith("run --fork 4/2@TURN")
    assert found["training"]["note"]
    assert any(HOSTILE[:30] in message["content"] for message in found["messages"])
    shown = request_route(library, "/api/episode/{key}/{step}/{number}/tokens", key="run", step="4", number="1")
    assert len(shown["ids"]) == len(shown["texts"]) == len(shown["sampled"])
    group = request_route(library, "/api/episode/{key}/{step}/{number}/group", key="run", step="4", number="1")
    assert [member["number"] for member in group] == [1, 2]
    assert all(len(reply["text"]) <= 160 for member in group for reply in member["replies"])
    read = request_route(library, "/api/episode/{key}/{step}/{number}/parses", key="run", step="4", number="1")
    assert len(read["parses"][0]) == 3


def test_sequences_of_an_episode_are_shown_one_by_one(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    whole = gold_episode()
    run.save_groups(4, [Group(TASK, [split_episode(whole, [1, whole.num_turns - 1])])])
    library, where = RunLibrary([run.folder]), {"key": "run", "step": "4", "number": "1"}
    shown = request_route(library, "/api/episode/{key}/{step}/{number}", **where)
    assert [message["turn"] for message in shown["messages"] if message["role"] == "assistant"] == [1]
    (branch,) = shown["branches"]
    turns = [message["turn"] for message in branch if message["role"] == "assistant"]
    assert turns == [None, *range(1, whole.num_turns)]
    assert "2 token sequences" in shown["notes"][0]
    tokens = request_route(library, "/api/episode/{key}/{step}/{number}/tokens", **where)
    end = len(whole.tokens)
    (first, second) = tokens["sequences"]
    assert (first[0], second[1] - second[0], first[1]) == (0, end, second[0])
    assert tokens["ids"][slice(*second)] == whole.tokens
    assert len(tokens["turns"]) == whole.num_turns
    assert len(tokens["texts"]) == len(tokens["sampled"]) == second[1] == shown["num_tokens"]
    parses = request_route(library, "/api/episode/{key}/{step}/{number}/parses", **where)["parses"]
    assert [len(found) for found in parses] == [1, whole.num_turns - 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": "4", "number": "9"}, r"\b9 of step 4\b.*\b1 to 4\b"),
        ({"step": "5", "number": "1"}, r"\bstep 5\b"),
        ({"step": "x", "number": "1"}, "'x'.*4"),
        ({"step": "4", "number": "-1"}, "'-1'"),
        ({"step": "eval", "number": "1"}, "'run'"),
    ],
)
def test_missing_episode_error_names_the_allowed_range(
    library: RunLibrary, values: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ROUTES["/api/episode/{key}/{step}/{number}"](library, {"key": "run", **values})


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> RunLibrary:
    folder = tmp_path_factory.mktemp("evals")
    write_evaluation(folder / "gold", GoldAgent(), "gold")
    write_evaluation(folder / "mute", Script(ASK), "mute")
    return RunLibrary([folder])


def test_evaluation_list_has_baseline_and_agent_rows(evaluations: RunLibrary) -> None:
    found = request_route(evaluations, "/api/evaluations")
    assert {each["key"] for each in found} == {"gold", "mute"}
    assert [row["kind"] for row in found[0]["rows"]] == ["noop", "agent"], "the gold agent is no baseline of its own"


def test_evaluation_failures_refer_to_their_episodes(evaluations: RunLibrary) -> None:
    found = request_route(evaluations, "/api/evaluations/{key}", key="mute")
    assert len(found["failures"]) == 8
    assert found["causes"][0]["failures"] == max(cause["failures"] for cause in found["causes"])
    first = found["failures"][0]
    shown = request_route(
        evaluations, "/api/episode/{key}/{step}/{number}", key="mute", step="eval", number=str(first["episode"])
    )
    assert (shown["task"], shown["seed"]) == (first["task"], first["seed"])
    assert shown["causes"][0]["kind"] == first["cause"]["kind"]
    assert shown["group_size"] == 2, "the trials of the task"
    assert shown["fork"].endswith(f"mute --fork {first['episode']}@TURN")


def test_comparison_answer_has_gain_by_task(evaluations: RunLibrary) -> None:
    values = {"new": "gold", "new_row": "1", "old": "mute", "old_row": "2"}
    found = request_route(evaluations, "/api/comparison/{new}/{new_row}/{old}/{old_row}", **values)
    assert found["gain"]["mean"] == 1.0
    assert [task["gain"] for task in found["tasks"]] == [1.0] * 4
    with pytest.raises(ConfigError, match=r"\bgold\b.*'9'.*\b0 to 1\b"):
        request_route(evaluations, "/api/comparison/{new}/{new_row}/{old}/{old_row}", **{**values, "new_row": "9"})


def test_stages_of_a_run_are_listed_as_an_evaluation(tmp_path: Path, evaluations: RunLibrary) -> None:
    from understudy.evaluation.reports.files import read_report

    run = Run.create(tmp_path / "run", CONFIG)
    for step, key in ((0, "mute"), (12, "gold")):
        write_run_evaluation(run, step, "stage", read_report(evaluations.evaluation(key)).rows[-1].result)
    found = request_route(RunLibrary([run.folder]), "/api/evaluations/{key}", key="run")
    assert [row["name"] for row in found["rows"]] == ["stage, step 0", "stage, step 12"]
    assert found["rows"][1]["gain"]["mean"] == 1.0
    (write_run_evaluation(run, 13, "stage") / "report.json").write_text("{}")
    (line,) = request_route(RunLibrary([run.folder]), "/api/evaluations")
    assert "000013 stage" in line["problem"]
