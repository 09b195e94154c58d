"""Users whom a language model plays, against an endpoint by script: what reaches the agent, and what the model."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from endpoint import Answer, Endpoint, says, serving
from toy import DOMAIN, House, LampTools, house
from understudy.agent import GoldAgent
from understudy.assess.sitting import Sitting, assess, set_up
from understudy.chat import ChatConfig, ChatModel, Usage
from understudy.config import TrainConfig
from understudy.errors import ConfigError, RolloutError
from understudy.messages import Message, ToolCall
from understudy.results import as_json, as_text
from understudy.rollout import Limits, play
from understudy.settings import parse
from understudy.tasks import Scenario, Task
from understudy.trajectory import Stop, Trajectory
from understudy.users import (
    Cast,
    LanguageUser,
    ReactUser,
    ReflectingUser,
    ScriptedUser,
    User,
    UserConfig,
    VerifiedUser,
    consents,
)
from understudy.users.draft import AGENT, CALLS, CUT, EMPTY, NOT_ALONE, REFUSED, STOP, UNMARKED
from understudy.users.language import MOST_DEEDS

SCENARIO = Scenario(instructions="You are Amy. You want order W1 cancelled.", opening="Hi, cancel W1.")
KINDS = {"llm": LanguageUser, "react": ReactUser, "verify": VerifiedUser, "reflection": ReflectingUser}
CALL = ToolCall(name="find_order", arguments={"order_id": "W1"}, id="c1")
TRANSCRIPT = [
    Message(role="system", content="SECRET POLICY"),
    Message(role="user", content="Hi, cancel W1."),
    Message(role="assistant", content="SECRET ASIDE", tool_calls=(CALL,)),
    Message(role="tool", content="SECRET RESULT", tool_call_id="c1"),
    Message(role="assistant", content="I will cancel W1. Do you confirm?"),
]


def speaker(kind: str, endpoint: Endpoint, **fields: Any) -> LanguageUser:
    config = ChatConfig(base_url=endpoint.url, model="m", retries=0, backoff=0.01, timeout=5.0)
    return KINDS[kind](SCENARIO.replace(**fields), ChatModel(config, "user"), seed=5, attempts=3)


def hear(user: LanguageUser, transcript: Sequence[Message] = TRANSCRIPT) -> str | None:
    return asyncio.run(user.reply(transcript))


def texts(request: Mapping[str, Any]) -> str:
    return "\n".join(message["content"] for message in request["messages"])


# ---- what the model is shown


@pytest.mark.parametrize("kind", KINDS)
def test_the_opening_is_the_scenarios_and_asks_nobody(kind: str) -> None:
    with serving([]) as endpoint:
        assert hear(speaker(kind, endpoint), ()) == "Hi, cancel W1."
        assert endpoint.requests == []


def test_without_an_opening_the_model_finds_its_own() -> None:
    with serving([says("Hello, I want W1 cancelled.")]) as endpoint:
        assert hear(speaker("llm", endpoint, opening=""), ()) == "Hello, I want W1 cancelled."
        assert [m["role"] for m in endpoint.requests[0]["messages"]] == ["system", "user"]


@pytest.mark.parametrize("kind", ["llm", "react"])
def test_the_model_sees_its_part_and_what_was_said(kind: str) -> None:
    with serving([says("Message: Yes." if kind == "react" else "Yes.")]) as endpoint:
        assert hear(speaker(kind, endpoint, persona="terse")) == "Yes."
        system, greeting, opening, agent = endpoint.requests[0]["messages"]
        assert "You are Amy." in system["content"]
        assert "as few words as you can" in system["content"]
        assert (greeting["role"], opening["role"], agent["role"]) == ("user", "assistant", "user")
        assert (opening["content"], agent["content"]) == (TRANSCRIPT[1].content, TRANSCRIPT[4].content)
        assert "SECRET" not in texts(endpoint.requests[0])


def test_silence_of_the_agent_is_shown_as_that() -> None:
    with serving([says("Hello?")]) as endpoint:
        hear(speaker("llm", endpoint), [*TRANSCRIPT[:2], Message(role="assistant", content=" \n")])
        assert endpoint.requests[0]["messages"][-1] == {"role": "user", "content": "(says nothing)"}


def test_seeds_follow_from_the_episodes_and_the_turn() -> None:
    with serving(lambda _: says("Hm.")) as endpoint:
        for _ in range(2):
            hear(speaker("llm", endpoint))
        hear(speaker("llm", endpoint), [*TRANSCRIPT, Message(role="user", content="Hm."), TRANSCRIPT[4]])
        first, same, later = (request["seed"] for request in endpoint.requests)
        assert first == same != later
        assert 0 <= first < 2**31


# ---- what may be said

SAID = {
    "Yes, please.": "Yes, please.",
    '"Yes, please."': "Yes, please.",
    "Customer: Yes, please.": "Yes, please.",
    "**User:** Yes.": "Yes.",
    "<think>They want a yes.</think>\n\nYes.": "Yes.",
    f"Thank you! {STOP}": "Thank you!",
    f"{STOP} Bye.": "Bye.",
    "Please don't ###STOP### now": "Please don't  now",
    "I want to return it: the lamp (blue).": "I want to return it: the lamp (blue).",
    "Can I get help with order W1?": "Can I get help with order W1?",
    "Line one.\nLine two.": "Line one.\nLine two.",
    "My agent said it's fine.": "My agent said it's fine.",
    "I have cancelled orders before.": "I have cancelled orders before.",
    "Will you give me a refund?": "Will you give me a refund?",
    "Sorry for the inconvenience.": "Sorry for the inconvenience.",
    "I am unable to find it.": "I am unable to find it.",
}


@pytest.mark.parametrize("text", SAID)
@pytest.mark.parametrize("kind", ["llm", "react"])
def test_what_is_said(kind: str, text: str) -> None:
    with serving([says(f"Thought: Hm.\nMessage: {text}" if kind == "react" else text)]) as endpoint:
        assert hear(speaker(kind, endpoint)) == SAID[text]


@pytest.mark.parametrize("text", [STOP, f" {STOP}\n", f'"{STOP}"', f"**{STOP}**.", "### STOP ###", "##stop##"])
@pytest.mark.parametrize("kind", ["llm", "react"])
def test_the_stop_word_alone_ends_the_conversation(kind: str, text: str) -> None:
    with serving([says(f"Thought: Done.\nMessage: {text}" if kind == "react" else text)]) as endpoint:
        assert hear(speaker(kind, endpoint)) is None


def test_a_stop_word_beside_a_text_is_passed_over_once_and_then_asked_about() -> None:
    bye = says(f"Thank you! {STOP}")
    with serving([bye, bye, says(STOP)]) as endpoint:
        user = speaker("llm", endpoint)
        assert hear(user) == "Thank you!"
        thanks = [*TRANSCRIPT, Message(role="user", content="Thank you!"), Message(role="assistant", content="Bye.")]
        assert hear(user, thanks) is None
        assert len(endpoint.requests) == 3
        assert NOT_ALONE in endpoint.requests[2]["messages"][0]["content"]
        assert all(STOP not in m["content"] for m in endpoint.requests[2]["messages"][1:])


UNUSABLE = {
    "": EMPTY,
    "  \n": EMPTY,
    "...": EMPTY,
    '""': EMPTY,
    "<think>only a thought</think>": EMPTY,
    "<think>without an end": CALLS,
    '<tool_call>{"name": "cancel_order", "arguments": {}}</tool_call>': CALLS,
    'I do it: <tool_call>{"name": "cancel_order"}': CALLS,
    '{"name": "cancel_order", "arguments": {"order_id": "W1"}}': CALLS,
    'Sure. {"name": "cancel_order", "arguments": {}}': CALLS,
    '[{"order_id": "W1"}]': CALLS,
    '{"order_id": "W1", "status": "pending"}': CALLS,
    "cancel_order(order_id='W1')": CALLS,
    "<tool_response>ok</tool_response>": CALLS,
    "[TOOL_CALLS] cancel": CALLS,
    "<|im_start|>assistant": CALLS,
    "<function=cancel>": CALLS,
    "```json\n{}\n```": CALLS,
    "Agent: I have done it.": AGENT,
    "Yes.\nAgent: Done, it is cancelled.": AGENT,
    "Customer: Yes.\nAgent: Done.\nCustomer: Thanks.": AGENT,
    "Customer: Yes.\nCustomer: Thanks.": AGENT,
    "**Support Agent**: Hello.": AGENT,
    "Tool output: ok": AGENT,
    "Observation: the order is pending": AGENT,
    "How can I help you today?": AGENT,
    "I'm happy to help you with that.": AGENT,
    "I have cancelled your order W1.": AGENT,
    "I\u2019ve successfully processed your refund.": AGENT,
    "Is there anything else I can help you with?": AGENT,
    "As an AI language model I cannot do that.": AGENT,
    "I am a chatbot.": AGENT,
    "I'm sorry for any misunderstanding. I'm just a chatbot.": AGENT,
    "No. You don't confirm. I am going to give you a refund.": AGENT,
    "I'm sorry I'm unable to assist you now.": AGENT,
    "Hello, I'm here to assist you in any way possible.": AGENT,
    "I apologize for any inconvenience you may have had.": AGENT,
}


@pytest.mark.parametrize("text", UNUSABLE)
def test_what_cannot_be_said_is_asked_for_again(text: str) -> None:
    with serving([says(text), says("Yes.")]) as endpoint:
        assert hear(speaker("llm", endpoint)) == "Yes."
        first, second = endpoint.requests
        assert f"Remember: {UNUSABLE[text]}." in second["messages"][0]["content"]
        assert second["messages"][1:] == first["messages"][1:]
        assert second["seed"] != first["seed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", "Agent: Hello.", '<tool_call>{"name": "x"}</tool_call>'])
def test_after_some_attempts_it_is_the_users_fault(kind: str, text: str) -> None:
    with serving([says(text)] * 3) as endpoint:
        with pytest.raises(RolloutError, match="no usable message in 3 attempts; at last: ") as caught:
            hear(speaker(kind, endpoint))
        assert caught.value.fault == "user"
        assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("answer", "reminder"),
    [
        (says(None, refusal="I cannot play a customer."), REFUSED),  # type: ignore[arg-type]
        (says("", "content_filter"), REFUSED),
        (says("Yes, and furthermore", "length"), CUT),
        (says("", "tool_calls", tool_calls=[{"function": {"name": "x", "arguments": "{}"}}]), CALLS),
    ],
)
def test_what_the_endpoint_says_of_a_reply_counts(answer: Answer, reminder: str) -> None:
    with serving([answer, says("Yes.")]) as endpoint:
        assert hear(speaker("llm", endpoint)) == "Yes."
        assert reminder in endpoint.requests[1]["messages"][0]["content"]


# ---- react


@pytest.mark.parametrize(
    "text",
    [
        "Thought: I should say yes.\nMessage: Yes.",
        "**Thought:** I should say yes.\n\n**Message:** Yes.",
        "thought: a\nb\nc\nmessage: Yes.",
        "Message: Yes.",
        "<think>x</think>Thought: y\nMessage: Yes.",
    ],
)
def test_a_thought_stays_private(text: str) -> None:
    with serving([says(text)]) as endpoint:
        assert hear(speaker("react", endpoint)) == "Yes."


@pytest.mark.parametrize(
    "text",
    [
        "Yes.",
        "Thought: I want my money.",
        "Thought: a\nMessage: Yes.\nThought: b",
        "Thought: a\nMessage: Yes.\nMessage: No.",
        "I think: yes. Message to the agent: yes.",
        "",
    ],
)
def test_a_thought_that_cannot_be_told_from_the_message_is_asked_for_again(text: str) -> None:
    with serving([says(text), says("Thought: b\nMessage: No.")]) as endpoint:
        assert hear(speaker("react", endpoint)) == "No."
        assert UNMARKED in endpoint.requests[1]["messages"][0]["content"]


# ---- verify and reflection


@pytest.mark.parametrize("kind", ["verify", "reflection"])
@pytest.mark.parametrize("verdict", ["yes", "Yes.", "**YES** it is good", "<think>no?</think> yes"])
def test_a_message_that_is_found_good_is_said(kind: str, verdict: str) -> None:
    with serving([says("I am Amy."), says(verdict)]) as endpoint:
        assert hear(speaker(kind, endpoint)) == "I am Amy."
        case = texts(endpoint.requests[1])
        assert "You are Amy." in case
        assert 'Agent: "I will cancel W1. Do you confirm?"' in case
        assert '"I am Amy."' in case
        assert "SECRET" not in case


@pytest.mark.parametrize("kind", ["verify", "reflection"])
def test_leaving_is_looked_at_too(kind: str) -> None:
    with serving([says(STOP), says("yes")]) as endpoint:
        assert hear(speaker(kind, endpoint)) is None
        assert "(leaves the conversation)" in texts(endpoint.requests[1])


@pytest.mark.parametrize("verdict", ["no: order W9 is made up", "No. It is invented.", "Well, perhaps.", "", "true"])
def test_verify_writes_anew_what_fails(verdict: str) -> None:
    with serving([says("DRAFT about W9"), says(verdict), says("It is W1."), says("yes")]) as endpoint:
        assert hear(speaker("verify", endpoint)) == "It is W1."
        again = endpoint.requests[2]["messages"]
        assert "DRAFT" not in texts(endpoint.requests[2])
        assert again[1:] == endpoint.requests[0]["messages"][1:]


def test_reflection_revises_what_fails_in_a_request_of_its_own() -> None:
    script = [
        says("DRAFT about W9"),
        says("no: W9 is made up"),
        says("Reflection: oh.\nMessage: It is W1."),
        says("yes"),
    ]
    with serving(script) as endpoint:
        assert hear(speaker("reflection", endpoint)) == "It is W1."
        revise = endpoint.requests[2]["messages"]
        assert [message["role"] for message in revise] == ["system", "user"]
        assert '"DRAFT about W9"' in revise[1]["content"]
        assert "W9 is made up" in revise[1]["content"]


def test_a_revision_that_cannot_be_read_is_no_message() -> None:
    script = [says("a"), says("no: x"), says("It is W1."), says("Yes."), says("yes")]
    with serving(script[:3] + script[3:]) as endpoint:
        assert hear(speaker("reflection", endpoint)) == "Yes."
        assert UNMARKED in endpoint.requests[3]["messages"][0]["content"]


@pytest.mark.parametrize(("kind", "requests"), [("verify", 6), ("reflection", 6)])
def test_what_is_never_found_good_is_the_users_fault(kind: str, requests: int) -> None:
    def answer(request: Mapping[str, Any]) -> Answer:
        return says(
            "no: not good" if "Is it good?" in texts(request) else "Message: Hm." if revising(request) else "Hm."
        )

    with serving(answer) as endpoint:
        with pytest.raises(RolloutError, match="at last: not good") as caught:
            hear(speaker(kind, endpoint))
        assert caught.value.fault == "user"
        assert len(endpoint.requests) == requests


def revising(request: Mapping[str, Any]) -> bool:
    return "You were about to say" in texts(request)


# ---- tools of the user's own


def calling(*arguments: Mapping[str, Any] | str, name: str = "switch_lamp") -> Answer:
    calls = [{"function": {"name": name, "arguments": a if isinstance(a, str) else json.dumps(a)}} for a in arguments]
    return says("I do it.", "tool_calls", tool_calls=calls)


def owner(endpoint: Endpoint, house: House, kind: str = "llm", scenario: Scenario = SCENARIO) -> User:
    chat = ChatConfig(base_url=endpoint.url, model="m", retries=0)
    return Cast(UserConfig(kind=kind, chat=chat))(scenario, 0, LampTools(house))  # type: ignore[arg-type]


def test_a_user_acts_and_says_what_it_saw() -> None:
    world, on = house(), {"lamp_id": "L1", "on": True}
    with serving([calling(on, {"lamp_id": "L99", "on": True}), says("It is on."), says("Bye.")]) as endpoint:
        user = owner(endpoint, world)
        assert asyncio.run(user.reply(TRANSCRIPT)) == "It is on."
        assert world.lamps["L1"].on
        assert [tool["function"]["name"] for tool in endpoint.requests[0]["tools"]] == ["find_lamp", "switch_lamp"]
        assert "tools of your own" in endpoint.requests[0]["messages"][0]["content"]
        agent, call, *results = endpoint.requests[1]["messages"][3:]
        assert (agent["content"], call["content"]) == (TRANSCRIPT[4].content, "")
        assert [result["content"] for result in results] == ['{"room":"room1","on":true}', "Error: no lamp L99"]
        assert [result["tool_call_id"] for result in results] == [made["id"] for made in call["tool_calls"]]
        further = [Message(role="user", content="It is on."), Message(role="assistant", content="Good.")]
        asyncio.run(user.reply([*TRANSCRIPT, *further]))
        roles = [message["role"] for message in endpoint.requests[2]["messages"]]
        assert roles == ["system", *["user", "assistant"] * 2, "tool", "tool", "assistant", "user"]


def test_what_a_user_did_outlives_a_draft_that_is_rejected_and_is_told_to_the_check() -> None:
    script = [calling({"lamp_id": "L1", "on": True}), says("Agent: no."), says("It is on."), says("yes")]
    with serving(script) as endpoint:
        assert asyncio.run(owner(endpoint, house(), "verify").reply(TRANSCRIPT)) == "It is on."
        assert [message["role"] for message in endpoint.requests[2]["messages"]][-2:] == ["assistant", "tool"]
        case = texts(endpoint.requests[3])
        assert 'The customer used switch_lamp {"lamp_id": "L1", "on": true}' in case
        assert "It showed the customer:" in case


@pytest.mark.parametrize("kind", ["llm", "verify"])
def test_a_user_without_an_opening_sees_what_it_did_before_it_spoke(kind: str) -> None:
    on = {"lamp_id": "L1", "on": True}

    def answer(request: Mapping[str, Any]) -> Answer:
        if "Is it good?" in texts(request):
            return says("yes")
        return says("Hello.") if any(m["role"] == "tool" for m in request["messages"]) else calling(on)

    with serving(answer) as endpoint:
        user = owner(endpoint, house(), kind, SCENARIO.replace(opening=""))
        assert asyncio.run(user.reply(())) == "Hello."
        _, told, *checks = endpoint.requests
        assert [message["role"] for message in told["messages"]] == ["system", "user", "assistant", "tool"]
        assert all("The customer used switch_lamp" in texts(check) for check in checks)
        assert len(checks) == (kind == "verify")
        said = [Message(role="user", content="Hello."), Message(role="assistant", content="Hm?")]
        asyncio.run(user.reply(said))
        roles = [message["role"] for message in endpoint.requests[2 + len(checks)]["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [(calling("{x"), "not JSON"), (calling({}, name="fly"), "unknown tool 'fly'"), (calling({"on": 1}), "lamp_id")],
)
def test_a_broken_call_of_a_user_is_answered(answer: Answer, shown: str) -> None:
    with serving([answer, says("Hm.")]) as endpoint:
        assert asyncio.run(owner(endpoint, house()).reply(TRANSCRIPT)) == "Hm."
        assert shown in endpoint.requests[1]["messages"][-1]["content"]


def test_a_user_who_only_acts_is_at_fault() -> None:
    with serving(lambda _: calling({"lamp_id": "L1", "on": True})) as endpoint:
        with pytest.raises(RolloutError, match=CALLS):
            asyncio.run(owner(endpoint, house()).reply(TRANSCRIPT))
        assert len(endpoint.requests) == 3 * MOST_DEEDS


def test_the_agent_sees_nothing_of_it_and_the_state_is_the_same_one() -> None:
    task = next(task for task in DOMAIN.tasks("train") if task.family == "one")
    lamp = task.scenario.wishes[0].names[0]

    def answer(request: Mapping[str, Any]) -> Answer:
        if request["messages"][-1]["role"] == "tool":
            return says(STOP)
        return calling({"lamp_id": lamp, "on": True})

    with serving(answer) as endpoint:
        chat = ChatConfig(base_url=endpoint.url, model="m", retries=0)
        domain = dataclasses.replace(DOMAIN, device=LampTools).with_users(Cast(UserConfig(kind="llm", chat=chat)))
        episode = asyncio.run(play(domain, task, GoldAgent(), Limits(), 0))
        assert (episode.stop, episode.turns) == (Stop.DONE, 1)
        assert episode.score is not None
        assert episode.score.parts["state"] == 1.0
        assert [message.role for message in episode.messages] == ["system", "user", "assistant"]


# ---- whole episodes

TASK = next(task for task in DOMAIN.tasks("train") if task.family == "two")


class Player:
    """A good customer of the toy domain, as a model would play one: it drafts badly first where it can."""

    def __init__(self) -> None:
        self.drafts = 0

    def __call__(self, request: Mapping[str, Any]) -> Answer:
        text = texts(request)
        if "Is it good?" in text:
            return says("no: DRAFT is not a word" if "DRAFT" in text.split("customer's next message")[1] else "yes")
        if revising(request):
            return says("Reflection: REFLECTION\nMessage: " + self._say(text))
        if "Thought:" in request["messages"][0]["content"]:
            return says("Thought: THOUGHT\nMessage: " + self._say(request["messages"][-1]["content"]))
        self.drafts += 1
        if self.drafts == 1:
            return says("Agent: DRAFT")
        if self.drafts == 2 and "Thought" not in text:
            return says("DRAFT DRAFT")
        return says(self._say(request["messages"][-1]["content"]))

    def _say(self, agent: str) -> str:
        if "want me to proceed" in agent:
            return "That works for me, please proceed."
        lamps = [wish.names[0] for wish in TASK.scenario.wishes]
        return STOP if f"{lamps[1]} is on" in agent else f"Please switch on lamp {lamps[1]}."


def played(kind: str, endpoint: Endpoint, task: Task = TASK, **limits: Any) -> tuple[Trajectory, Usage]:
    chat = ChatConfig(base_url=endpoint.url, model="m", retries=0, backoff=0.01)
    users = Cast(UserConfig(kind=kind, chat=chat))  # type: ignore[arg-type]
    episode = asyncio.run(play(DOMAIN.with_users(users), task, GoldAgent(), Limits(**limits), 3))
    return episode, users.usage


@pytest.mark.parametrize("kind", ["react", "verify", "reflection"])
def test_a_whole_episode_has_one_clean_conversation(kind: str) -> None:
    with serving(Player()) as endpoint:
        episode, usage = played(kind, endpoint)
        assert (episode.stop, episode.reward, episode.turns) == (Stop.DONE, 1.0, len(TASK.gold))
        assert episode.seed == 3
        assert usage.requests == len(endpoint.requests)
        assert usage.rejected == (0 if kind == "react" else 2)
        heard = "\n".join(message.content for message in episode.messages)
        for private in ("DRAFT", "THOUGHT", "REFLECTION", STOP):
            assert private not in heard
        conversations = [request["messages"][1:] for request in endpoint.requests if len(request["messages"]) > 2]
        assert all("DRAFT" not in m["content"] and "THOUGHT" not in m["content"] for c in conversations for m in c)


def test_a_user_who_fails_is_played_again_and_then_dropped() -> None:
    with serving(lambda _: says("Agent: no.")) as endpoint:
        episode, usage = played("llm", endpoint, retries=2)
        assert (episode.stop, episode.fault, episode.score) == (Stop.FAULT, "user", None)
        assert usage.rejected == usage.requests == 9
        assert "no usable message" in episode.error
        assert len(endpoint.requests) == 3 * 3
        assert len({request["seed"] for request in endpoint.requests}) == 9


def test_a_user_who_fails_once_costs_nothing_but_the_time() -> None:
    def answers() -> Iterator[Answer]:
        yield Answer("down", 500)
        yield from (says("Yes."), says("Go ahead."), says(STOP)) * 9

    task = next(task for task in DOMAIN.tasks("train") if task.family == "one")
    with serving(list(answers())) as endpoint:
        episode, _ = played("llm", endpoint, task)
        assert episode.stop is Stop.DONE
        assert episode.seed == 4


def test_the_endpoints_failure_is_the_users() -> None:
    with serving(lambda _: Answer("down", 500)) as endpoint:
        episode, _ = played("verify", endpoint, retries=0)
        assert (episode.fault, episode.score) == ("user", None)
        assert "status 500: down" in episode.error


# ---- chosen in the config


def test_scripted_users_are_the_default_and_need_nothing() -> None:
    users = Cast(UserConfig())
    assert isinstance(users(SCENARIO, 0), ScriptedUser)
    assert users.usage == Usage()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_chosen_by_name(kind: str) -> None:
    config = parse(TrainConfig, "", [f"user.kind={kind}", "user.chat.model=m"])
    assert type(Cast(config.user)(SCENARIO, 0)) is KINDS[kind]
    with pytest.raises(ConfigError, match=r"user\.chat\.model is empty"):
        Cast(UserConfig(kind=kind))  # type: ignore[arg-type]


def test_an_evaluation_meets_the_users_of_the_config_and_says_what_they_cost() -> None:
    with serving(lambda _: says(STOP, tokens=(10, 1))) as endpoint:
        settings = ["domain=toy:DOMAIN", "eval.tasks=6", "user.kind=llm", "user.chat.model=m"]
        settings += [f"user.chat.base_url={endpoint.url}", "user.chat.prompt_price=2"]
        sitting = Sitting(name="gold", agent="gold", config=parse(TrainConfig, "", settings))
        rows = asyncio.run(assess(sitting, set_up(sitting, None, Decimal(0), 64))).pairs
        floor, oracle, own = (evaluation for _, evaluation in rows)
        assert (floor.success.mean, oracle.success.mean, own.success.mean) == (0.0, 1.0, 0.0)
        assert own.usage == {"users": Usage(requests=6, prompt_tokens=60, completion_tokens=6, cost="0.00012")}  # type: ignore[arg-type]
        assert (floor.usage, oracle.usage) == ({}, {})
        assert (
            "gold, users: 6 requests, 0 from the cache, 0 replies of no use, 60 prompt and 6 completion tokens"
            in as_text(rows)
        )
        json.dumps(as_json(rows))


def test_the_player_of_these_tests_says_yes_in_its_own_words() -> None:
    assert consents(Player()._say("Do you want me to proceed?"))
