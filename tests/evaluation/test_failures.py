"""Test failure causes: each kind from an episode that was built for it, with evidence at the right message."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from support.lamp_turns import ASK, LAMP, ONE, OTHER, RIGHT, WRONG, call_reply, text_reply
from support.script import Script
from toy import DOMAIN
from understudy.core.errors import RolloutError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Fact, Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.domains import doordash, retail
from understudy.envs.domain import Domain
from understudy.envs.rewards import missing_facts
from understudy.evaluation.failures.case import build_case
from understudy.evaluation.failures.causes import FAILURE_KINDS, EpisodeFailure
from understudy.evaluation.failures.explain import find_failures
from understudy.evaluation.failures.judge import judge_failures, parse_verdict
from understudy.evaluation.failures.rules import explain_failure
from understudy.rollouts.agent import Agent, GoldAgent, GoldCallsFirstAgent, NoopAgent, RefusingAgent
from understudy.rollouts.replay import ReplayResult, replay_episode
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.loading import load_source
from understudy.sources.references import list_domains
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample


def play_episode(agent: Agent, task: Task = ONE, domain: Domain = DOMAIN, turns: int = 12) -> Trajectory:
    return asyncio.run(rollout(task, domain.environment(task), agent, EpisodeLimits(max_turns=turns)))


def find_failure(
    episode: Trajectory, task: Task = ONE, domain: Domain = DOMAIN, scripted: bool = True
) -> EpisodeFailure:
    found = asyncio.run(find_failures(domain, {task.id: task}, [episode], scripted))
    assert len(found) == 1
    for finding in (found[0].cause, *found[0].other_causes):
        assert 0 <= finding.message_index < max(1, len(episode.messages))
    return found[0]


@pytest.mark.parametrize(
    ("kind", "turns"),
    [
        ("wrong_argument", [text_reply(ASK), WRONG, text_reply("Done.")]),
        ("wrong_argument", [text_reply(ASK), call_reply(lamp_id=LAMP), text_reply("Done.")]),
        ("wrong_argument", [text_reply(ASK), call_reply(lamp_id="lamp", on=True), text_reply("Done.")]),
        ("extra_write", [text_reply(ASK), RIGHT, text_reply(ASK), WRONG, text_reply("Done.")]),
        ("unconfirmed", [RIGHT, text_reply("Done.")]),
        ("wrong_tool", [text_reply(ASK), call_reply("turn_on", lamp_id=LAMP), text_reply("Done.")]),
        ("wrong_tool", [text_reply(ASK), call_reply("find_lamp", room="room1"), text_reply("Done.")]),
        ("wrong_refusal", [text_reply("Unfortunately I cannot switch on any lamp.")]),
        ("gave_up", [text_reply("I will transfer you to a human agent.")]),
        ("gave_up", []),
        ("malformed", [text_reply(ASK), call_reply(malformed="the call is not JSON"), text_reply("Done.")]),
        ("missing_write", [text_reply(ASK), text_reply("Done.")]),
        ("wrong_proposal", [text_reply(f"I will switch on lamp {OTHER}. Do you want me to proceed?")] * 4),
    ],
)
def test_cause_of_a_failed_episode(kind: str, turns: Sequence[Message]) -> None:
    episode = play_episode(Script(*turns))
    failure = find_failure(episode)
    assert failure.cause.kind == kind
    assert (failure.cause.component, failure.task, failure.seed) == ("agent", ONE.id, episode.seed)
    shown = episode.messages[failure.cause.message_index]
    assert shown.role == "assistant" or kind == "missing_write"


def test_evidence_names_what_differs_from_gold() -> None:
    cause = find_failure(play_episode(Script(text_reply(ASK), WRONG, text_reply("Done.")))).cause
    assert cause.evidence == f"switch_lamp: lamp_id='{OTHER}', gold '{LAMP}'"
    assert cause.message_index == 4  # policy, opening, question, yes, call


def test_corrected_errors_are_no_cause() -> None:
    tries = [
        call_reply(lamp_id="lamp", on=True),
        call_reply(malformed="not JSON"),
        call_reply("turn_on"),
        RIGHT,
        text_reply(ASK),
        WRONG,
    ]
    failure = find_failure(play_episode(Script(text_reply(ASK), *tries)))
    assert failure.cause.kind == "extra_write"
    assert not {finding.kind for finding in failure.other_causes} & {"malformed", "wrong_tool"}


def test_limit_is_the_cause_if_nothing_else_is_wrong() -> None:
    episode = play_episode(Script(text_reply(ASK), RIGHT, text_reply(ASK), text_reply(ASK)), turns=3)
    assert episode.stop_reason is StopReason.MAX_TURNS
    assert find_failure(episode).cause.kind == "out_of_turns"
    episode.stop_reason = StopReason.MAX_TOKENS
    assert find_failure(episode).cause.kind == "out_of_tokens"
    episode.stop_reason = StopReason.INVALID_REPLIES
    assert find_failure(episode).cause.kind == "invalid_replies"


@pytest.mark.parametrize(
    ("fault", "kind", "component"),
    [
        ("engine", "engine_fault", "engine"),
        ("agent", "agent_fault", "agent"),
        ("user", "user_fault", "user"),
        ("mcp", "environment_fault", "environment"),
        ("tool", "environment_fault", "environment"),
        ("grader", "environment_fault", "environment"),
    ],
)
def test_fault_is_attributed_to_its_component(fault: str, kind: str, component: str) -> None:
    class FailingAgent(GoldAgent):
        async def act(self, *_: object) -> Message:
            raise RolloutError("it is gone", fault)  # type: ignore[arg-type]

    cause = find_failure(play_episode(FailingAgent())).cause
    assert (cause.kind, cause.component, cause.evidence) == (kind, component, "it is gone")


PRICE = next(task for task in retail.DOMAIN.tasks("train") if task.family == "price" and task.difficulty == "easy")


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ("wrong_fact", "It was 1.23."),
        ("wrong_refusal", "Unfortunately I cannot tell you what it was."),
        ("missing_fact", "Do you want anything else?"),
    ],
)
def test_wrong_or_missing_fact_is_the_cause(kind: str, last: str) -> None:
    turns = [*PRICE.gold_turns[:-1], text_reply(last), *[text_reply("")] * 5]
    assert find_failure(play_episode(Script(*turns), PRICE, retail.DOMAIN), PRICE, retail.DOMAIN).cause.kind in (
        kind,
        "gave_up",
    )
    episode = play_episode(
        Script(*PRICE.gold_turns[:-1], text_reply(last)), PRICE, retail.DOMAIN, turns=len(PRICE.gold_turns)
    )
    assert find_failure(episode, PRICE, retail.DOMAIN).cause.kind == (
        "out_of_turns" if kind == "missing_fact" else kind
    )


def test_facts_are_judged_by_the_rules_of_the_reward() -> None:
    late = next(task for task in doordash.DOMAIN.tasks("test") if task.family == "late")
    told = play_episode(GoldAgent(), late, doordash.DOMAIN, turns=30)
    assert missing_facts(told.messages, late.outputs)  # its agent knows a number from the domain policy
    silent = replace(told, messages=[message for message in told.messages if message.role != "assistant"])
    for episode, missing in ((told, ()), (silent, late.outputs)):
        unscored = replace(episode, score=None)
        case = build_case(doordash.DOMAIN, late, unscored, ReplayResult((), None, "not replayed"), scripted_user=True)
        assert case.missing_facts == missing


def test_failed_replay_falls_back_on_the_text_of_results() -> None:
    for kind, turns in (
        ("unconfirmed", [RIGHT, text_reply("Done.")]),
        ("wrong_tool", [text_reply(ASK), call_reply("turn_on", lamp_id=LAMP), text_reply("Done.")]),
        ("wrong_argument", [text_reply(ASK), call_reply(lamp_id=LAMP), text_reply("Done.")]),
        ("malformed", [text_reply(ASK), call_reply(malformed="the call is not JSON"), text_reply("Done.")]),
    ):
        episode = play_episode(Script(*turns))
        case = build_case(DOMAIN, ONE, episode, ReplayResult((), None, "another world"), scripted_user=True)
        assert not case.has_state
        assert explain_failure(case).cause.kind == kind


def test_refused_call_in_the_last_turn_is_classified() -> None:
    episode = play_episode(Script(call_reply("find_lamp", room="x")), turns=1)
    case = build_case(DOMAIN, ONE, episode, ReplayResult((), None, "another world"), scripted_user=True)
    assert [(made.error_kind, made.result) for made in case.calls] == [("refused", "Error: no lamp in room x")]
    assert asyncio.run(replay_episode(DOMAIN, ONE, episode)).score == episode.score


def test_calls_match_the_next_result_if_ids_repeat() -> None:
    episode = play_episode(Script(text_reply(ASK), WRONG, RIGHT, call_reply("lamp"), text_reply("Done.")))
    ids = {WRONG.tool_calls[0].id: "0", "lamp0": "0"}
    bare = [
        message.replace(
            tool_calls=tuple(call.replace(id="0") for call in message.tool_calls),
            tool_call_id=ids.get(message.tool_call_id, ""),
        )
        for message in episode.messages
    ]
    results = [message.content for message in bare if message.role == "tool"]
    made = build_case(DOMAIN, ONE, replace(episode, messages=bare), ReplayResult((), None, "another world"), True).calls
    assert [each.result for each in made] == results
    assert [bool(each.error_kind) for each in made] == [text.startswith("Error: ") for text in results]
    assert len(set(results)) == 3


def test_simulated_user_can_be_the_cause() -> None:
    asked = play_episode(Script(text_reply("Which lamp do you mean?")))
    asked.messages[-1:] = [text_reply("Which lamp do you mean?")]
    asked.stop_reason = StopReason.DONE
    episode = replace(asked, messages=asked.messages[:3])
    assert find_failure(episode, scripted=False).cause.kind == "user_left_early"
    invented = replace(
        asked,
        messages=[*asked.messages[:2], text_reply("Hello?"), user_message("My order is W99."), text_reply("Bye.")],
    )
    cause = find_failure(invented, scripted=False).cause
    assert (cause.kind, cause.component, cause.message_index, cause.evidence[:5]) == (
        "contradicted_scenario",
        "user",
        3,
        "'W99'",
    )
    known = ONE.replace(scenario=ONE.scenario.replace(facts=(Fact(text="My order is W99.", keywords=("order",)),)))
    assert find_failure(invented, known, scripted=False).cause.kind != "contradicted_scenario"
    assert (
        find_failure(invented).cause.kind != "contradicted_scenario"
    )  # a scripted user only says what its scenario contains


def user_message(text: str) -> Message:
    return Message(role="user", content=text)


@pytest.mark.parametrize("name", list_domains())
def test_baseline_agents_fail_with_their_expected_causes(name: str) -> None:
    domain = load_source(name)
    assert isinstance(domain, Domain)
    causes: dict[str, set[str]] = {}
    for agent in (NoopAgent(), RefusingAgent(), GoldCallsFirstAgent()):
        for task in domain.tasks("test")[:12]:
            episode = play_episode(agent, task, domain, turns=30)
            assert episode.score is not None
            if episode.score.reward < 1.0:
                causes.setdefault(type(agent).__name__, set()).add(find_failure(episode, task, domain).cause.kind)
    assert causes["NoopAgent"] == {"gave_up"}
    assert causes["RefusingAgent"] <= {"wrong_refusal", "wrong_fact", "missing_fact", "missing_write"}
    assert causes["GoldCallsFirstAgent"] & {"unconfirmed"}


def test_every_failure_kind_has_a_component_and_a_description() -> None:
    assert all(
        component in ("agent", "user", "environment", "engine", "unknown") and text
        for component, text in FAILURE_KINDS.values()
    )


@pytest.mark.parametrize("name", list_domains())
def test_replayed_episode_has_the_recorded_score(name: str) -> None:
    domain = load_source(name)
    assert isinstance(domain, Domain)
    for agent in (GoldAgent(), NoopAgent(), GoldCallsFirstAgent()):
        for task in domain.tasks("validation")[:8]:
            episode = asyncio.run(rollout(task, domain.environment(task, seed=5), agent, EpisodeLimits(max_turns=9), 5))
            again = asyncio.run(replay_episode(domain, task, episode))
            assert (again.divergence, again.score) == ("", episode.score)
            if not task.scenario.user_actions:
                assert asyncio.run(replay_episode(domain, task, episode, scripted_user=False)).score == episode.score
            else:
                assert asyncio.run(replay_episode(domain, task, episode, scripted_user=False)).divergence


def test_changed_episode_replays_with_a_divergence() -> None:
    episode = play_episode(GoldAgent())
    place = next(i for i, message in enumerate(episode.messages) if message.role == "tool")
    changed = [*episode.messages]
    changed[place] = changed[place].replace(content="another world")
    again = asyncio.run(replay_episode(DOMAIN, ONE, replace(episode, messages=changed)))
    assert again.score is None
    assert re.match(rf"message {place + 1} \(tool\) .*'another world'", again.divergence)
    longer = replace(episode, messages=[*episode.messages, text_reply("And?")])
    assert str(len(longer.messages)) in asyncio.run(replay_episode(DOMAIN, ONE, longer)).divergence
    open_end = replace(episode, messages=episode.messages[:5])
    assert asyncio.run(replay_episode(DOMAIN, ONE, open_end)).divergence


@pytest.mark.parametrize("message", ["9" * 5000, "1e999", "NaN", "[" * 5000 + "]" * 5000])
def test_verdict_with_an_absurd_number_is_unknown(message: str) -> None:
    verdict = f'{{"kind": "wrong_refusal", "message": {message}, "evidence": "it says no"}}'
    assert parse_verdict(verdict, play_episode(RefusingAgent())).kind == "unknown"


def test_error_of_the_judge_cancels_its_other_requests() -> None:
    episode, ended = play_episode(RefusingAgent()), list[str]()
    failure = find_failure(episode)

    async def generate(messages: Sequence[Message], seed: int) -> Message:
        if ended:
            raise ZeroDivisionError
        ended.append("asked")
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")
        raise AssertionError

    model: Any = SimpleNamespace(config=SimpleNamespace(max_concurrency=2), generate=generate)

    async def judge() -> None:
        with pytest.raises(ZeroDivisionError):
            await judge_failures(model, {ONE.id: ONE}, [episode], [failure] * 2)
        assert ended == ["asked", "cancelled"], "before the error was raised"

    asyncio.run(judge())


@pytest.mark.parametrize(("said", "kind"), [("77", "wrong_answer"), ("14", "unknown"), (" 14 ", "unknown")])
def test_a_wrong_answer_of_a_data_set_shows_both_answers(said: str, kind: str) -> None:
    source = ToolDataset("sums", "Answer.", [ToolExample(prompt="What is 7 + 7?", answer="14")], _Refuses)
    task = source.tasks("train")[0]
    agent = Script(Message(role="assistant", content=said))
    episode = asyncio.run(rollout(task, source.environment(task), agent, EpisodeLimits(max_turns=3)))
    (found,) = asyncio.run(find_failures(source, {task.id: task}, [episode]))
    assert found.cause.kind == kind
    assert found.cause.message_index == len(episode.messages) - 1
    assert found.cause.evidence == ("said 77, expected 14" if kind == "wrong_answer" else "")


def test_a_read_that_was_never_called_is_no_missing_write() -> None:
    gold = (ToolCall(name="get_item", arguments={"key": "a"}), ToolCall(name="add_days", arguments={"days": 1}))
    for calls, kind in ((gold[:1], "missing_read"), (gold, "missing_write")):
        example = ToolExample(prompt="When?", answer="14", gold_calls=calls)
        source = ToolDataset("days", "Answer.", [example], _Refuses)
        task = source.tasks("train")[0]
        agent = Script(Message(role="assistant", content="77"))
        episode = asyncio.run(rollout(task, source.environment(task), agent, EpisodeLimits(max_turns=3)))
        (found,) = asyncio.run(find_failures(source, {task.id: task}, [episode]))
        assert [found.cause.kind, *(each.kind for each in found.other_causes)] == [kind, "wrong_answer"]
        assert found.cause.evidence.partition("(")[0].split()[-1] == calls[-1].name


def test_diverged_replay_of_a_domain_has_neither_a_wrong_answer_nor_a_missing_read() -> None:
    episode = play_episode(Script(text_reply(ASK), RIGHT, text_reply("Done.")))
    assert episode.score is not None
    place = next(i for i, message in enumerate(episode.messages) if message.role == "tool")
    episode.messages[place] = episode.messages[place].replace(content="another world")
    episode.score = episode.score.replace(reward=0.0)
    failure = find_failure(episode, ONE.replace(outputs=()))
    assert [failure.cause.kind, *(each.kind for each in failure.other_causes)] == ["unknown"]


class _Refuses(ToolEpisode):
    """An episode that earns nothing."""

    def get_item(self, key: str) -> str:
        """Return an item."""
        return key

    def add_days(self, days: int) -> int:
        """Add days."""
        return days

    def reward(self, transcript: Sequence[Message]) -> float:
        return 0.0
