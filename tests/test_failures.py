"""Why episodes failed: each cause from an episode that was played to have it, and its evidence in the right message."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from script import Script
from toy import DOMAIN
from understudy.agent import Agent, GoldAgent, HastyAgent, RefusingAgent, SilentAgent
from understudy.domains import retail
from understudy.domains.base import Domain, find, names
from understudy.errors import RolloutError
from understudy.failures.case import lay_open
from understudy.failures.causes import MEANING, Failure
from understudy.failures.find import failures
from understudy.failures.rules import explain
from understudy.messages import Message, ToolCall
from understudy.replay import Replay, replay
from understudy.rollout import Limits, rollout
from understudy.tasks import Fact, Task
from understudy.trajectory import Stop, Trajectory

ONE = next(task for task in DOMAIN.tasks("train") if task.family == "one")
LAMP = ONE.actions[0].arguments["lamp_id"]
OTHER = "L1" if LAMP != "L1" else "L2"
ASK = f"I will switch on lamp {LAMP}. Do you want me to proceed?"


def says(text: str) -> Message:
    return Message(role="assistant", content=text)


def calls(name: str = "switch_lamp", malformed: str = "", **arguments: object) -> Message:
    call = ToolCall(name=name, arguments=arguments, malformed=malformed, id=f"{name}{len(arguments)}")
    return Message(role="assistant", tool_calls=(call,))


RIGHT = calls(lamp_id=LAMP, on=True)
WRONG = calls(lamp_id=OTHER, on=True)


def played(agent: Agent, task: Task = ONE, domain: Domain = DOMAIN, turns: int = 12) -> Trajectory:
    return asyncio.run(rollout(task, domain.environment(task), agent, Limits(max_turns=turns)))


def why(episode: Trajectory, task: Task = ONE, domain: Domain = DOMAIN, scripted: bool = True) -> Failure:
    found = asyncio.run(failures(domain, {task.id: task}, [episode], scripted))
    assert len(found) == 1
    for finding in (found[0].cause, *found[0].also):
        assert 0 <= finding.message < max(1, len(episode.messages))
    return found[0]


@pytest.mark.parametrize(
    ("what", "turns"),
    [
        ("wrong_argument", [says(ASK), WRONG, says("Done.")]),
        ("wrong_argument", [says(ASK), calls(lamp_id=LAMP), says("Done.")]),
        ("wrong_argument", [says(ASK), calls(lamp_id="lamp", on=True), says("Done.")]),
        ("extra_write", [says(ASK), RIGHT, says(ASK), WRONG, says("Done.")]),
        ("unconfirmed", [RIGHT, says("Done.")]),
        ("wrong_tool", [says(ASK), calls("turn_on", lamp_id=LAMP), says("Done.")]),
        ("wrong_tool", [says(ASK), calls("find_lamp", room="room1"), says("Done.")]),
        ("refused", [says("Unfortunately I cannot switch on any lamp.")]),
        ("gave_up", [says("I will transfer you to a human agent.")]),
        ("gave_up", []),
        ("malformed", [says(ASK), calls(malformed="the call is not JSON"), says("Done.")]),
        ("missed_write", [says(ASK), says("Done.")]),
        ("wrong_proposal", [says(f"I will switch on lamp {OTHER}. Do you want me to proceed?")] * 4),
    ],
)
def test_the_cause_of_an_episode(what: str, turns: Sequence[Message]) -> None:
    episode = played(Script(*turns))
    failure = why(episode)
    assert failure.cause.what == what
    assert (failure.cause.who, failure.task, failure.seed) == ("agent", ONE.id, episode.seed)
    shown = episode.messages[failure.cause.message]
    assert shown.role == "assistant" or what == "missed_write"


def test_evidence_names_what_differs_from_gold() -> None:
    cause = why(played(Script(says(ASK), WRONG, says("Done.")))).cause
    assert cause.evidence == f"switch_lamp: lamp_id='{OTHER}', gold '{LAMP}'"
    assert cause.message == 4  # policy, opening, question, yes, call


def test_what_was_made_good_is_no_cause() -> None:
    tries = [calls(lamp_id="lamp", on=True), calls(malformed="not JSON"), calls("turn_on"), RIGHT, says(ASK), WRONG]
    failure = why(played(Script(says(ASK), *tries)))
    assert failure.cause.what == "extra_write"
    assert not {finding.what for finding in failure.also} & {"malformed", "wrong_tool"}


def test_limits_are_the_cause_where_nothing_else_is_wrong() -> None:
    episode = played(Script(says(ASK), RIGHT, says(ASK), says(ASK)), turns=3)
    assert episode.stop is Stop.MAX_TURNS
    assert why(episode).cause.what == "out_of_turns"
    episode.stop = Stop.MAX_TOKENS
    assert why(episode).cause.what == "out_of_tokens"


@pytest.mark.parametrize(
    ("fault", "what", "who"),
    [
        ("engine", "engine_fault", "engine"),
        ("agent", "agent_fault", "agent"),
        ("user", "user_fault", "user"),
        ("mcp", "environment_fault", "environment"),
        ("tool", "environment_fault", "environment"),
        ("grader", "environment_fault", "environment"),
    ],
)
def test_faults_of_the_machinery_are_whose_they_are(fault: str, what: str, who: str) -> None:
    class Broken(GoldAgent):
        async def act(self, *_: object) -> Message:
            raise RolloutError("it is gone", fault)  # type: ignore[arg-type]

    cause = why(played(Broken())).cause
    assert (cause.what, cause.who, cause.evidence) == (what, who, "it is gone")


PRICE = next(task for task in retail.DOMAIN.tasks("train") if task.family == "price" and task.difficulty == "easy")


@pytest.mark.parametrize(
    ("what", "last"),
    [
        ("wrong_fact", "It was 1.23."),
        ("refused", "Unfortunately I cannot tell you what it was."),
        ("untold_fact", "Do you want anything else?"),
    ],
)
def test_facts(what: str, last: str) -> None:
    turns = [*PRICE.turns[:-1], says(last), *[says("")] * 5]
    assert why(played(Script(*turns), PRICE, retail.DOMAIN), PRICE, retail.DOMAIN).cause.what in (what, "gave_up")
    episode = played(Script(*PRICE.turns[:-1], says(last)), PRICE, retail.DOMAIN, turns=len(PRICE.turns))
    assert why(episode, PRICE, retail.DOMAIN).cause.what == ("out_of_turns" if what == "untold_fact" else what)


def test_an_unreadable_replay_falls_back_on_the_words_of_results() -> None:
    for what, turns in (
        ("unconfirmed", [RIGHT, says("Done.")]),
        ("wrong_tool", [says(ASK), calls("turn_on", lamp_id=LAMP), says("Done.")]),
        ("wrong_argument", [says(ASK), calls(lamp_id=LAMP), says("Done.")]),
        ("malformed", [says(ASK), calls(malformed="the call is not JSON"), says("Done.")]),
    ):
        episode = played(Script(*turns))
        case = lay_open(DOMAIN, ONE, episode, Replay((), None, "another world"), scripted=True)
        assert not case.stateful
        assert explain(case).cause.what == what


def test_a_call_that_was_refused_when_its_turns_were_over_is_known_to_be() -> None:
    episode = played(Script(calls("find_lamp", room="x")), turns=1)
    case = lay_open(DOMAIN, ONE, episode, Replay((), None, "another world"), scripted=True)
    assert [(made.error, made.result) for made in case.made] == [("refused", "Error: no lamp in room x")]
    assert asyncio.run(replay(DOMAIN, ONE, episode)).score == episode.score


def test_users_whom_a_model_plays_can_be_at_fault() -> None:
    asked = played(Script(says("Which lamp do you mean?")))
    asked.messages[-1:] = [says("Which lamp do you mean?")]
    asked.stop = Stop.DONE
    episode = replace(asked, messages=asked.messages[:3])
    assert why(episode, scripted=False).cause.what == "ended_early"
    invented = replace(asked, messages=[*asked.messages[:2], says("Hello?"), user("My order is W99."), says("Bye.")])
    cause = why(invented, scripted=False).cause
    assert (cause.what, cause.who, cause.message, cause.evidence[:5]) == ("contradicted_scenario", "user", 3, "'W99'")
    known = ONE.replace(scenario=ONE.scenario.replace(facts=(Fact(says="My order is W99.", cues=("order",)),)))
    assert why(invented, known, scripted=False).cause.what != "contradicted_scenario"
    assert why(invented).cause.what != "contradicted_scenario"  # scripted users say what their scenario holds


def user(text: str) -> Message:
    return Message(role="user", content=text)


@pytest.mark.parametrize("name", names())
def test_agents_without_a_model_fail_for_their_own_reasons(name: str) -> None:
    domain = find(name)
    assert isinstance(domain, Domain)
    causes: dict[str, set[str]] = {}
    for agent in (SilentAgent(), RefusingAgent(), HastyAgent()):
        for task in domain.tasks("test")[:12]:
            episode = played(agent, task, domain, turns=30)
            assert episode.score is not None
            if episode.score.reward < 1.0:
                causes.setdefault(type(agent).__name__, set()).add(why(episode, task, domain).cause.what)
    assert causes["SilentAgent"] == {"gave_up"}
    assert causes["RefusingAgent"] <= {"refused", "wrong_fact", "untold_fact", "missed_write"}
    assert causes["HastyAgent"] & {"unconfirmed"}


def test_every_cause_has_somebody_and_a_meaning() -> None:
    assert all(who in ("agent", "user", "environment", "engine", "nobody") and text for who, text in MEANING.values())


@pytest.mark.parametrize("name", names())
def test_replays_come_to_what_was_recorded(name: str) -> None:
    domain = find(name)
    assert isinstance(domain, Domain)
    for agent in (GoldAgent(), SilentAgent(), HastyAgent()):
        for task in domain.tasks("validation")[:8]:
            episode = asyncio.run(rollout(task, domain.environment(task, seed=5), agent, Limits(max_turns=9), 5))
            again = asyncio.run(replay(domain, task, episode))
            assert (again.diverged, again.score) == ("", episode.score)
            if not task.scenario.deeds:
                assert asyncio.run(replay(domain, task, episode, scripted=False)).score == episode.score
            else:
                assert "tools of their own" in asyncio.run(replay(domain, task, episode, scripted=False)).diverged


def test_what_comes_out_otherwise_is_a_divergence() -> None:
    episode = played(GoldAgent())
    place = next(i for i, message in enumerate(episode.messages) if message.role == "tool")
    changed = [*episode.messages]
    changed[place] = changed[place].replace(content="another world")
    again = asyncio.run(replay(DOMAIN, ONE, replace(episode, messages=changed)))
    assert again.score is None
    assert again.diverged.startswith(f"message {place + 1} (tool) was 'another world', and is ")
    longer = replace(episode, messages=[*episode.messages, says("And?")])
    assert "it ends before message" in asyncio.run(replay(DOMAIN, ONE, longer)).diverged
    open_end = replace(episode, messages=episode.messages[:5])
    assert asyncio.run(replay(DOMAIN, ONE, open_end)).diverged == "it goes on where it ended then"
