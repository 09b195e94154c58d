"""Test the source that compares calls: gold earns 1.0, doing nothing 0.0, and no other writes earn anything."""

import asyncio
import json
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.call_rows import ACTIONS, SHAPES, tau_row
from support.shelves import FixedReplies
from understudy import parse_reply
from understudy.core.errors import ConfigError, TaskError, ToolError
from understudy.core.items import Item
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Task, TaskLimits
from understudy.core.trajectory import StopReason, Trajectory
from understudy.data.checks.check import check
from understudy.envs.rewards import missing_facts
from understudy.envs.task_source import Slice, find_missing_facts
from understudy.envs.users import InstructionUser, OpeningOnlyUser
from understudy.rollouts.agent import GoldAgent, NoopAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.task_files.call_matching import CallMatching, match_calls, validate_arguments
from understudy.sources.task_files.call_rows import read_call_row
from understudy.sources.task_files.task_row import TaskRow

FIND = {"name": "find_user", "kwargs": {"email": "mia@mail.com"}}
ORDER = {"name": "get_order", "kwargs": {"order_id": "W17"}}
CANCEL = {"name": "cancel_order", "kwargs": {"order_id": "W17", "reason": "late", "notify": None}}
REFUND = {"name": "refund", "kwargs": {"amounts": [5, 7.5], "to": "card"}}


def items(*rows: dict[str, Any]) -> list[Item[TaskRow]]:
    return [Item(f"rows:{n + 1}", read_call_row(row, f"rows/{n}")) for n, row in enumerate(rows)]


def source(*rows: dict[str, Any], **given: Any) -> CallMatching:
    return match_calls("retail", items(*rows), **given)


def row(*actions: dict[str, Any], outputs: Iterable[str] = (), **changes: Any) -> dict[str, Any]:
    return tau_row("retail", actions=list(actions), outputs=list(outputs), **changes)


def the_task(made: CallMatching) -> Task:
    (found,) = made.rows.values()
    return found.task


def play(made: CallMatching, *turns: dict[str, Any] | str, max_turns: int = 30) -> Trajectory:
    """Play the only task: each turn is a call or a text."""
    replies = [
        turn
        if isinstance(turn, str)
        else Message(role="assistant", tool_calls=(ToolCall(name=turn["name"], arguments=turn["kwargs"]),))
        for turn in turns
    ]
    task = the_task(made)
    return asyncio.run(
        rollout(task, made.environment(task), FixedReplies(*replies), EpisodeLimits(max_turns=max_turns))
    )


def reward(made: CallMatching, *turns: dict[str, Any] | str) -> float | None:
    return play(made, *turns).reward


def results(episode: Trajectory) -> list[str]:
    return [message.content for message in episode.messages if message.role == "tool"]


@pytest.mark.parametrize("domain", ACTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gold_earns_one_and_doing_nothing_zero(shape: str, domain: str) -> None:
    made = match_calls(domain, items(SHAPES[shape](domain)))
    assert (made.refused, made.name) == ((), f"{domain}-calls")
    task = the_task(made)
    for agent, expected in ((GoldAgent(), 1.0), (NoopAgent(), 0.0)):
        assert asyncio.run(rollout(task, made.environment(task), agent, EpisodeLimits())).reward == expected
    assert check(made).problems == ()


def test_source_says_that_it_has_no_database_and_which_tools_write() -> None:
    made = source(tau_row("retail", user_strategy="verify"))
    about, tools, users = made.notes()
    assert "no database" in about
    assert "no database" in made.domain_policy
    assert "1 write (cancel_pending_order)" in tools
    assert "2 read (find_user_id_by_email, get_order_details)" in tools
    assert "verify 1" in users
    assert "user.kind=llm" in users
    assert len(made.with_users(lambda *args: OpeningOnlyUser("Hi.")).notes()) == 2


writes = st.lists(st.sampled_from([CANCEL, REFUND, {"name": "send", "kwargs": {"n": 1}}]), max_size=5)
reads = st.lists(st.sampled_from([FIND, ORDER, {"name": "get_order", "kwargs": {"order_id": "W99"}}]), max_size=5)


@settings(deadline=None, max_examples=150)
@given(writes, reads, st.randoms(use_true_random=False))
def test_only_the_gold_writes_earn_the_reward_whatever_is_read(
    made: list[Any], read: list[Any], order: random.Random
) -> None:
    one = source(
        row(FIND, ORDER, CANCEL, REFUND, REFUND, outputs=["shipped"]),
        row({"name": "send", "kwargs": {"n": 1}}, id="other"),
    )
    calls = [*made, *read]
    order.shuffle(calls)
    task = next(found.task for found in one.rows.values() if found.task.id != "other")
    replies = [
        Message(role="assistant", tool_calls=(ToolCall(name=call["name"], arguments=call["kwargs"]),)) for call in calls
    ]
    episode = asyncio.run(
        rollout(task, one.environment(task), FixedReplies(*replies, "It has shipped."), EpisodeLimits(max_turns=30))
    )
    names = sorted(call["name"] for call in made)
    assert episode.reward == float(names == ["cancel_order", "refund", "refund"] and ORDER in read)


def test_arguments_are_compared_by_value() -> None:
    made = source(row(CANCEL, REFUND))
    same = {"name": "cancel_order", "kwargs": {"order_id": "w17", "reason": " Late "}}
    as_numbers = {"name": "refund", "kwargs": {"to": "card", "amounts": [5.0, 7.5]}}
    assert reward(made, same, as_numbers, "Done.") == 1.0
    for wrong in ({"amounts": [7.5, 5]}, {"amounts": [5]}, {"to": "bank"}):
        assert reward(made, CANCEL, {"name": "refund", "kwargs": {**REFUND["kwargs"], **wrong}}, "Done.") == 0.0  # type: ignore[dict-item]


def test_refused_call_does_not_count() -> None:
    made = source(row(FIND, CANCEL))
    episode = play(
        made, {"name": "cancel_order", "kwargs": {"order_id": 17}}, {"name": "cancel", "kwargs": {}}, CANCEL, "Done."
    )
    assert episode.reward == 1.0
    assert episode.event_counts["invalid_arguments"] == 1
    assert episode.event_counts["unknown_tool"] == 1


def test_wrong_write_is_not_told_apart_from_the_gold_one() -> None:
    made = source(row(FIND, CANCEL))
    wrong = {"name": "cancel_order", "kwargs": {**CANCEL["kwargs"], "order_id": "W18"}}  # type: ignore[dict-item]
    episode = play(made, wrong, CANCEL, "Done.")
    assert results(episode)[0] == results(episode)[1]
    assert (episode.reward, episode.score and episode.score.progress) == (0.0, 0.5)


def test_outputs_must_be_shown_before_they_are_told() -> None:
    recorded = {**ORDER, "result": {"status": "shipped", "total": 42.5}}
    made = source(row(recorded, CANCEL, outputs=["shipped", "42.5"]))
    told = "It is shipped and costs $42.50."
    assert reward(made, CANCEL, told) == 0.0  # right, but not read
    assert reward(made, ORDER, CANCEL, told) == 1.0
    assert reward(made, ORDER, CANCEL, "It is shipped.") == 0.0
    assert reward(made, ORDER, CANCEL, "It is shipped and costs 40, 41, 42.5 or 43.") == 0.0  # candidates
    echo = {"name": "get_order", "kwargs": {"order_id": "shipped 42.5"}}
    unknown = {"name": "shipped 42.5", "kwargs": {}}
    assert reward(made, echo, unknown, CANCEL, told) == 0.0  # errors repeat the agent's words


def test_number_that_no_result_states_may_be_computed() -> None:
    made = source(row({**ORDER, "result": {"items": [4, 6]}}, CANCEL, outputs=["10"]))
    episode = play(made, ORDER, CANCEL, "That makes 10.")
    assert episode.reward == 1.0
    assert find_missing_facts(made, the_task(made), episode.messages) == []
    assert missing_facts(episode.messages, the_task(made).outputs) == ["10"]


def test_last_read_shows_the_outputs_of_a_task_without_results() -> None:
    made = source(row(FIND, ORDER, CANCEL, outputs=["late|delayed"]))
    episode = play(made, FIND, ORDER, CANCEL, "It is delayed, or late.")
    assert results(episode) == ['{"ok": true}', '{"ok": true, "result": ["late"]}', '{"ok": true}']
    assert episode.reward == 1.0
    other = {"name": "get_order", "kwargs": {"order_id": "W18"}}
    episode = play(made, other, CANCEL, "It is late.")
    assert results(episode)[0].startswith("Error: ")
    assert episode.reward == 0.0


def test_recorded_results_of_a_repeated_call_come_in_order() -> None:
    first, second = {**ORDER, "result": "open"}, {**ORDER, "result": "closed"}
    made = source(row(first, CANCEL, second, outputs=["closed"]))
    assert results(play(made, ORDER, ORDER, ORDER, "Closed.")) == ["open", "closed", "closed"]


def test_handover_counts_whatever_its_summary_says() -> None:
    made = source(row(FIND, {"name": "transfer_to_human_agents", "kwargs": {"summary": "wants a person"}}))
    other = {"name": "transfer_to_human_agents", "kwargs": {"summary": "anything"}}
    assert [reward(made, *[other] * times, "Bye.") for times in (0, 1, 2)] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("refused", "kind", "named"),
    [
        (row(FIND, ORDER), "only reads", "one read"),
        (row(outputs=["5"]), "does nothing", "no gold calls"),
        (row({**ORDER, "result": "Error: no such order"}, CANCEL), "gold refused", "no such order"),
        (row({**ORDER, "result": "open"}, CANCEL, outputs=["gold"]), "gold fails", "'gold'"),
        (row(FIND, ORDER, CANCEL, outputs=["a|"]), "malformed", "empty"),
        (row(FIND, CANCEL, id="same"), "duplicate", "'same'"),
    ],
)
def test_task_that_cannot_be_graded_is_refused_with_its_reason(refused: dict[str, Any], kind: str, named: str) -> None:
    made = source(row(FIND, CANCEL, id="same"), refused)
    (error,) = made.refused
    assert (error.kind, error.location) == (kind, "rows:2")
    assert named in error.problem
    assert list(made.rows) == ["same"]


def test_reads_are_required_only_if_nothing_else_is() -> None:
    think, other = {"name": "think", "kwargs": {"thought": "hm"}}, {"name": "get_order", "kwargs": {"order_id": "W9"}}
    made = source(row(FIND, think, ORDER), require_reads=True)
    assert (made.refused, made.families) == ((), ("read",))
    assert [reward(made, *turns, "Done.") for turns in ((FIND, ORDER), (ORDER, other, FIND, ORDER), (FIND,), ())] == [
        1.0,
        1.0,
        0.0,
        0.0,
    ]
    assert play(made, FIND, "Done.").score.progress == 0.5  # type: ignore[union-attr]
    assert reward(source(row(FIND, CANCEL), require_reads=True), CANCEL, "Done.") == 1.0
    (refused,) = source(row(think), require_reads=True).refused
    assert (refused.kind, "(think) only compute" in refused.problem) == ("only reads", True)


def test_a_tool_of_a_server_may_be_called_by_its_bare_name() -> None:
    quote, news = ({"name": name, "kwargs": {"of": "A"}} for name in ("polygon.get_quote", "polygon.get_news"))
    made = source(row(quote, news, {"name": "fmp.get_news", "kwargs": {}}, CANCEL))
    aliases = {spec.name: spec.name_aliases for spec in made.tool_specs}
    assert aliases == {
        "polygon.get_quote": ("get_quote",),
        "polygon.get_news": (),
        "fmp.get_news": (),
        "cancel_order": (),
    }
    text = '<tool_call>{"name": "get_quote", "arguments": {"of": "A"}}</tool_call>'
    assert parse_reply(text, tools=made.tool_specs).calls[0].name == "polygon.get_quote"


def test_given_tools_and_writes_replace_inferred_ones() -> None:
    tool = {"name": "look_at_order", "description": "Look.", "parameters": {"properties": {"id": {"type": "string"}}}}
    act = {"name": "look_at_order", "kwargs": {"id": "1"}}
    made = source(row(act, tools=[tool]), write_tools=["look_at_order"])
    assert [spec.description for spec in made.tool_specs] == ["Look."]
    assert (made.refused, reward(made, act, "Done.")) == ((), 1.0)
    assert "as given" in made.notes()[1]
    assert source(row(act, tools=[tool])).refused[0].kind == "only reads"


def test_remote_schema_is_not_fetched() -> None:
    tool = {"name": "cancel", "parameters": {"properties": {"id": {"$ref": "http://127.0.0.1:9/schema.json"}}}}
    (error,) = source(row({"name": "cancel", "kwargs": {"id": "1"}}, tools=[tool])).refused
    assert (error.kind, "does not exist" in error.problem) == ("gold refused", True)


def test_limits_of_the_row_end_the_episode() -> None:
    (item,) = items(row(FIND, ORDER, CANCEL))

    def limited(**limits: int) -> CallMatching:
        task = item.value.task.replace(limits=TaskLimits(**limits))
        return match_calls("retail", [Item("rows:1", replace(item.value, task=task))])

    made = limited(max_turns=4, max_tools=3)
    assert reward(made, FIND, ORDER, CANCEL, "Done.") == 1.0
    cut_off = play(made, FIND, FIND, FIND, CANCEL, "Done.")
    assert (cut_off.reward, cut_off.stop_reason, cut_off.num_turns) == (0.0, StopReason.DONE, 4)
    assert limited(max_tools=2).refused[0].kind == "gold refused"
    assert limited(max_turns=3).refused[0].kind == "too long"


def test_splits_families_and_slices() -> None:
    made = source(
        row(FIND, CANCEL, id="a", split="train"),
        row(FIND, ORDER, outputs=["open"], id="b", split="test"),
        row(ORDER, CANCEL, outputs=["open"], id="c", split="dev"),
    )
    assert {split: [t.id for t in made.tasks(split)] for split in ("train", "validation", "test")} == {  # type: ignore[arg-type]
        "train": ["a"],
        "validation": ["c"],
        "test": ["b"],
    }
    assert made.families == ("change", "tell", "change_and_tell")
    assert made.slice(Slice(families=("tell",))).tasks("train") == []
    assert [spec.name for spec in made.slice(Slice(tools=("get_order",))).tool_specs] == ["get_order"]
    with pytest.raises(ConfigError, match="'get_ordr'"):
        made.slice(Slice(tools=("get_ordr",)))
    with pytest.raises(TaskError, match="other"):
        made.environment(made.tasks("train")[0].replace(id="other"))


def test_a_task_alone_holds_all_that_its_source_needs() -> None:
    made = source(row({**ORDER, "result": {"total": 42.5}}, CANCEL, outputs=["42.5"], user_strategy="react"))
    task = Task.model_validate_json(the_task(made).model_dump_json(exclude_defaults=True))
    again = match_calls(task.domain, [Item("tasks:1", TaskRow(task, task.split))])
    assert the_task(again) == task == the_task(made)
    assert again.name == made.name


def test_scripted_user_answers_consistently_and_leaves() -> None:
    task = the_task(source(row(FIND, CANCEL, instruction="Cancel W17. I am mia@mail.com.")))
    opening = task.scenario.opening

    def answers(*texts: str) -> list[str | None]:
        user, transcript, said = InstructionUser(task.scenario), [Message(role="user", content=opening)], []
        for text in texts:
            transcript.append(Message(role="assistant", content=text))
            said.append(asyncio.run(user.reply(transcript)))
            transcript.append(Message(role="user", content=said[-1] or ""))
        return said

    assert asyncio.run(InstructionUser(task.scenario).reply(())) == opening
    assert answers("What is your e-mail address?", "Shall I cancel W17?", "It is cancelled.") == [
        opening,
        "Yes, please.",
        None,
    ]
    assert answers("It is cancelled. Is there anything else I can help you with?") == [None]
    assert answers("", "", "", "")[-1] is None
    assert answers("Let me check.", "Which one?", "Which?", "Which?")[1:] == [opening, opening, None]


def test_model_plays_the_user_from_the_instructions() -> None:
    seen = []

    def factory(scenario: Any, seed: int, tools: Any) -> OpeningOnlyUser:
        seen.append(scenario)
        return OpeningOnlyUser("Hi.")

    made = source(row(FIND, CANCEL, user_strategy="react")).with_users(factory)
    made.environment(the_task(made))
    ((scenario,),) = [seen]
    assert (scenario.opening, scenario.user_kind, scenario.instructions != "") == ("", "react", True)
    scripted = source(row(FIND, CANCEL, user_strategy="scripted")).with_users(factory)
    scripted.environment(the_task(scripted))
    assert len(seen) == 1


def test_row_of_json_text_has_the_results_of_its_calls() -> None:
    actions = json.dumps([{**ORDER, "output": "shipped"}, CANCEL])
    made = source(tau_row("retail", actions=actions, outputs='["shipped"]'))
    assert reward(made, ORDER, CANCEL, "shipped") == 1.0


SLOW_TOOL = {
    "name": "find_user",
    "parameters": {"properties": {"email": {"type": "string", "pattern": "^(a+)+$"}}},
}
CIRCULAR_TOOL = {"name": "find_user", "parameters": {"properties": {"email": {"$ref": "#/properties/email"}}}}


def test_call_whose_validation_does_not_end_is_a_fault_of_the_environment() -> None:
    find, slow = ({"name": "find_user", "kwargs": {"email": email}} for email in ("aaa", "a" * 60 + "b"))
    made = source(row({**find, "output": "Mia"}, outputs=["Mia"], tools=[SLOW_TOOL]))
    assert play(made, find, "The user is Mia.").reward == 1.0
    episode = play(made, slow, "The user is Mia.")
    assert (episode.stop_reason, episode.fault, episode.score) == (StopReason.FAULT, "environment", None)


def test_task_whose_schema_refers_to_itself_is_refused() -> None:
    made = source(row(FIND, outputs=["Mia"], tools=[CIRCULAR_TOOL]))
    assert [error.field for error in made.refused] == ["tools"]


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"note": {"type": ["string", "null"]}}, "required": ["note"]}, {"note": None}),
        ({"properties": {"note": {"type": "string"}}, "additionalProperties": True}, {"color": "red"}),
        ({"patternProperties": {"^x_": {"type": "string"}}}, {"x_a": "b"}),
        ({"allOf": [{"properties": {"n": {"type": "integer"}}, "required": ["n"]}]}, {"n": 1}),
    ],
)
def test_schema_decides_which_arguments_a_call_may_have(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    spec = ToolSpec(name="f", description="", parameters={"type": "object", **schema})
    validate_arguments(ToolCall(name="f", arguments=arguments), [spec])
    closed = {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]}
    for wrong in ({"note": None}, {"note": "a", "color": "red"}):
        with pytest.raises(ToolError):
            validate_arguments(ToolCall(name="f", arguments=wrong), [spec.replace(parameters=closed)])
