"""Tests of LLM user simulators with a scripted endpoint: messages to the agent and requests to the model."""

import asyncio
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from support.endpoint import Answer, Endpoint, make_completion, serve_answers
from toy import DOMAIN, House, LampTools, build_house
from understudy.clients.chat import ChatModel, EndpointConfig, ModelUsage
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Scenario, Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.envs.users import (
    LLMUser,
    ReactUser,
    ReflectionUser,
    ScriptedUser,
    User,
    UserConfig,
    UserSimulatorFactory,
    VerifyUser,
    gives_consent,
)
from understudy.envs.users.draft import (
    PROBLEM_AGENT_SPEECH,
    PROBLEM_EMPTY,
    PROBLEM_REFUSAL,
    PROBLEM_STRAY_STOP,
    PROBLEM_TOOL_CALL,
    PROBLEM_TRUNCATED,
    PROBLEM_WRONG_FORMAT,
    STOP_TOKEN,
)
from understudy.envs.users.llm import MAX_TOOL_ROUNDS
from understudy.evaluation.reports.as_json import report_to_dict
from understudy.evaluation.reports.text import report_to_text
from understudy.evaluation.runner import prepare_eval, run_eval
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.runs.config import parse_config
from understudy.runs.eval_spec import EvalSpec

SCENARIO = Scenario(instructions="You are Amy. You want order W1 cancelled.", opening="Hi, cancel W1.")
KINDS = {"llm": LLMUser, "react": ReactUser, "verify": VerifyUser, "reflection": ReflectionUser}
CALL = ToolCall(name="find_order", arguments={"order_id": "W1"}, id="c1")
TRANSCRIPT = [
    Message(role="system", content="SECRET POLICY"),
    Message(role="user", content="Hi, cancel W1."),
    Message(role="assistant", content="SECRET ASIDE", tool_calls=(CALL,)),
    Message(role="tool", content="SECRET RESULT", tool_call_id="c1"),
    Message(role="assistant", content="I will cancel W1. Do you confirm?"),
]


def make_llm_user(kind: str, endpoint: Endpoint, **fields: Any) -> LLMUser:
    config = EndpointConfig(base_url=endpoint.url, model="m", max_retries=0, backoff=0.01, timeout=60.0)
    return KINDS[kind](SCENARIO.replace(**fields), ChatModel(config, "user"), seed=5, attempts=3)


def get_reply(user: LLMUser, transcript: Sequence[Message] = TRANSCRIPT) -> str | None:
    return asyncio.run(user.reply(transcript))


def request_text(request: Mapping[str, Any]) -> str:
    return "\n".join(message["content"] for message in request["messages"])


@pytest.mark.parametrize("kind", KINDS)
def test_opening_comes_from_scenario_without_request(kind: str) -> None:
    with serve_answers([]) as endpoint:
        assert get_reply(make_llm_user(kind, endpoint), ()) == "Hi, cancel W1."
        assert endpoint.requests == []


def test_model_writes_opening_when_scenario_has_none() -> None:
    with serve_answers([make_completion("Hello, I want W1 cancelled.")]) as endpoint:
        assert get_reply(make_llm_user("llm", endpoint, opening=""), ()) == "Hello, I want W1 cancelled."
        assert [m["role"] for m in endpoint.requests[0]["messages"]] == ["system", "user"]


@pytest.mark.parametrize("kind", ["llm", "react"])
def test_model_sees_only_instructions_and_conversation(kind: str) -> None:
    with serve_answers([make_completion("Message: Yes." if kind == "react" else "Yes.")]) as endpoint:
        assert get_reply(make_llm_user(kind, endpoint, persona="terse")) == "Yes."
        system, greeting, opening, agent = endpoint.requests[0]["messages"]
        assert "You are Amy." in system["content"]
        assert "as few words as possible" in system["content"]
        assert (greeting["role"], opening["role"], agent["role"]) == ("user", "assistant", "user")
        assert (opening["content"], agent["content"]) == (TRANSCRIPT[1].content, TRANSCRIPT[4].content)
        assert "SECRET" not in request_text(endpoint.requests[0])


def test_empty_agent_reply_is_shown_as_silence() -> None:
    with serve_answers([make_completion("Hello?")]) as endpoint:
        get_reply(make_llm_user("llm", endpoint), [*TRANSCRIPT[:2], Message(role="assistant", content=" \n")])
        assert endpoint.requests[0]["messages"][-1] == {"role": "user", "content": "(says nothing)"}


def test_request_seed_depends_on_episode_and_turn() -> None:
    with serve_answers(lambda _: make_completion("Hm.")) as endpoint:
        for _ in range(2):
            get_reply(make_llm_user("llm", endpoint))
        get_reply(make_llm_user("llm", endpoint), [*TRANSCRIPT, Message(role="user", content="Hm."), TRANSCRIPT[4]])
        first, same, later = (request["seed"] for request in endpoint.requests)
        assert first == same != later
        assert 0 <= first < 2**31


CLEANED_REPLIES = {
    "Yes, please.": "Yes, please.",
    '"Yes, please."': "Yes, please.",
    "Customer: Yes, please.": "Yes, please.",
    "**User:** Yes.": "Yes.",
    "<think>They want a yes.</think>\n\nYes.": "Yes.",
    f"Thank you! {STOP_TOKEN}": "Thank you!",
    f"{STOP_TOKEN} Bye.": "Bye.",
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


@pytest.mark.parametrize("text", CLEANED_REPLIES)
@pytest.mark.parametrize("kind", ["llm", "react"])
def test_reply_is_stripped_of_labels_thoughts_and_stop_token(kind: str, text: str) -> None:
    with serve_answers([make_completion(f"Thought: Hm.\nMessage: {text}" if kind == "react" else text)]) as endpoint:
        assert get_reply(make_llm_user(kind, endpoint)) == CLEANED_REPLIES[text]


@pytest.mark.parametrize(
    "text", [STOP_TOKEN, f" {STOP_TOKEN}\n", f'"{STOP_TOKEN}"', f"**{STOP_TOKEN}**.", "### STOP ###", "##stop##"]
)
@pytest.mark.parametrize("kind", ["llm", "react"])
def test_stop_token_alone_ends_conversation(kind: str, text: str) -> None:
    with serve_answers([make_completion(f"Thought: Done.\nMessage: {text}" if kind == "react" else text)]) as endpoint:
        assert get_reply(make_llm_user(kind, endpoint)) is None


def test_stop_token_beside_text_is_ignored_once_then_retried() -> None:
    bye = make_completion(f"Thank you! {STOP_TOKEN}")
    with serve_answers([bye, bye, make_completion(STOP_TOKEN)]) as endpoint:
        user = make_llm_user("llm", endpoint)
        assert get_reply(user) == "Thank you!"
        thanks = [*TRANSCRIPT, Message(role="user", content="Thank you!"), Message(role="assistant", content="Bye.")]
        assert get_reply(user, thanks) is None
        assert len(endpoint.requests) == 3
        assert PROBLEM_STRAY_STOP in endpoint.requests[2]["messages"][0]["content"]
        assert all(STOP_TOKEN not in m["content"] for m in endpoint.requests[2]["messages"][1:])


UNUSABLE_REPLIES = {
    "": PROBLEM_EMPTY,
    "  \n": PROBLEM_EMPTY,
    "...": PROBLEM_EMPTY,
    '""': PROBLEM_EMPTY,
    "<think>only a thought</think>": PROBLEM_EMPTY,
    "<think>without an end": PROBLEM_TOOL_CALL,
    '<tool_call>{"name": "cancel_order", "arguments": {}}</tool_call>': PROBLEM_TOOL_CALL,
    'I do it: <tool_call>{"name": "cancel_order"}': PROBLEM_TOOL_CALL,
    '{"name": "cancel_order", "arguments": {"order_id": "W1"}}': PROBLEM_TOOL_CALL,
    'Sure. {"name": "cancel_order", "arguments": {}}': PROBLEM_TOOL_CALL,
    '[{"order_id": "W1"}]': PROBLEM_TOOL_CALL,
    '{"order_id": "W1", "status": "pending"}': PROBLEM_TOOL_CALL,
    "cancel_order(order_id='W1')": PROBLEM_TOOL_CALL,
    "<tool_response>ok</tool_response>": PROBLEM_TOOL_CALL,
    "[TOOL_CALLS] cancel": PROBLEM_TOOL_CALL,
    "<|im_start|>assistant": PROBLEM_TOOL_CALL,
    "<function=cancel>": PROBLEM_TOOL_CALL,
    "```json\n{}\n```": PROBLEM_TOOL_CALL,
    "Agent: I have done it.": PROBLEM_AGENT_SPEECH,
    "Yes.\nAgent: Done, it is cancelled.": PROBLEM_AGENT_SPEECH,
    "Customer: Yes.\nAgent: Done.\nCustomer: Thanks.": PROBLEM_AGENT_SPEECH,
    "Customer: Yes.\nCustomer: Thanks.": PROBLEM_AGENT_SPEECH,
    "**Support Agent**: Hello.": PROBLEM_AGENT_SPEECH,
    "Tool output: ok": PROBLEM_AGENT_SPEECH,
    "Observation: the order is pending": PROBLEM_AGENT_SPEECH,
    "How can I help you today?": PROBLEM_AGENT_SPEECH,
    "I'm happy to help you with that.": PROBLEM_AGENT_SPEECH,
    "I have cancelled your order W1.": PROBLEM_AGENT_SPEECH,
    "I\u2019ve successfully processed your refund.": PROBLEM_AGENT_SPEECH,
    "Is there anything else I can help you with?": PROBLEM_AGENT_SPEECH,
    "As an AI language model I cannot do that.": PROBLEM_AGENT_SPEECH,
    "I am a chatbot.": PROBLEM_AGENT_SPEECH,
    "I'm sorry for any misunderstanding. I'm just a chatbot.": PROBLEM_AGENT_SPEECH,
    "No. You don't confirm. I am going to give you a refund.": PROBLEM_AGENT_SPEECH,
    "I'm sorry I'm unable to assist you now.": PROBLEM_AGENT_SPEECH,
    "Hello, I'm here to assist you in any way possible.": PROBLEM_AGENT_SPEECH,
    "I apologize for any inconvenience you may have had.": PROBLEM_AGENT_SPEECH,
}


@pytest.mark.parametrize("text", UNUSABLE_REPLIES)
def test_unusable_reply_is_requested_again(text: str) -> None:
    with serve_answers([make_completion(text), make_completion("Yes.")]) as endpoint:
        assert get_reply(make_llm_user("llm", endpoint)) == "Yes."
        first, second = endpoint.requests
        assert f"Remember: {UNUSABLE_REPLIES[text]}." in second["messages"][0]["content"]
        assert second["messages"][1:] == first["messages"][1:]
        assert second["seed"] != first["seed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", "Agent: Hello.", '<tool_call>{"name": "x"}</tool_call>'])
def test_repeated_unusable_replies_raise_user_fault(kind: str, text: str) -> None:
    with serve_answers([make_completion(text)] * 3) as endpoint:
        with pytest.raises(RolloutError, match=r"\b3\b.*: ") as caught:
            get_reply(make_llm_user(kind, endpoint))
        assert caught.value.fault == "user"
        assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("answer", "reminder"),
    [
        (make_completion(None, refusal="I cannot play a customer."), PROBLEM_REFUSAL),  # type: ignore[arg-type]
        (make_completion("Yes, and furthermore", "length"), PROBLEM_TRUNCATED),
        (
            make_completion("", "tool_calls", tool_calls=[{"function": {"name": "x", "arguments": "{}"}}]),
            PROBLEM_TOOL_CALL,
        ),
    ],
)
def test_refused_or_truncated_response_is_requested_again(answer: Answer, reminder: str) -> None:
    with serve_answers([answer, make_completion("Yes.")]) as endpoint:
        assert get_reply(make_llm_user("llm", endpoint)) == "Yes."
        assert reminder in endpoint.requests[1]["messages"][0]["content"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", [make_completion("I wa", "content_filter"), make_completion(None)])  # type: ignore[arg-type]
def test_filtered_or_missing_reply_is_a_fault_of_the_user(kind: str, answer: Answer) -> None:
    with serve_answers([answer]) as endpoint, pytest.raises(RolloutError) as caught:
        get_reply(make_llm_user(kind, endpoint))
    assert caught.value.fault == "user"


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
def test_react_thought_is_hidden_from_agent(text: str) -> None:
    with serve_answers([make_completion(text)]) as endpoint:
        assert get_reply(make_llm_user("react", endpoint)) == "Yes."


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
def test_react_reply_without_one_message_is_requested_again(text: str) -> None:
    with serve_answers([make_completion(text), make_completion("Thought: b\nMessage: No.")]) as endpoint:
        assert get_reply(make_llm_user("react", endpoint)) == "No."
        assert PROBLEM_WRONG_FORMAT in endpoint.requests[1]["messages"][0]["content"]


@pytest.mark.parametrize("kind", ["verify", "reflection"])
@pytest.mark.parametrize("verdict", ["yes", "Yes.", "**YES** it is good", "<think>no?</think> yes"])
def test_approved_draft_is_sent(kind: str, verdict: str) -> None:
    with serve_answers([make_completion("I am Amy."), make_completion(verdict)]) as endpoint:
        assert get_reply(make_llm_user(kind, endpoint)) == "I am Amy."
        case = request_text(endpoint.requests[1])
        assert "You are Amy." in case
        assert 'Agent: "I will cancel W1. Do you confirm?"' in case
        assert '"I am Amy."' in case
        assert "SECRET" not in case


@pytest.mark.parametrize("kind", ["verify", "reflection"])
def test_stop_token_is_verified_too(kind: str) -> None:
    with serve_answers([make_completion(STOP_TOKEN), make_completion("yes")]) as endpoint:
        assert get_reply(make_llm_user(kind, endpoint)) is None
        assert "(leaves the conversation)" in request_text(endpoint.requests[1])


@pytest.mark.parametrize("verdict", ["no: order W9 is made up", "No. It is invented.", "Well, perhaps.", "", "true"])
def test_verify_rewrites_rejected_draft(verdict: str) -> None:
    with serve_answers(
        [
            make_completion("DRAFT about W9"),
            make_completion(verdict),
            make_completion("It is W1."),
            make_completion("yes"),
        ]
    ) as endpoint:
        assert get_reply(make_llm_user("verify", endpoint)) == "It is W1."
        again = endpoint.requests[2]["messages"]
        assert "DRAFT" not in request_text(endpoint.requests[2])
        assert again[1:] == endpoint.requests[0]["messages"][1:]


def test_reflection_revises_rejected_draft_in_separate_request() -> None:
    script = [
        make_completion("DRAFT about W9"),
        make_completion("no: W9 is made up"),
        make_completion("Reflection: oh.\nMessage: It is W1."),
        make_completion("yes"),
    ]
    with serve_answers(script) as endpoint:
        assert get_reply(make_llm_user("reflection", endpoint)) == "It is W1."
        revise = endpoint.requests[2]["messages"]
        assert [message["role"] for message in revise] == ["system", "user"]
        assert '"DRAFT about W9"' in revise[1]["content"]
        assert "W9 is made up" in revise[1]["content"]


def test_unparsable_revision_is_requested_again() -> None:
    script = [
        make_completion("a"),
        make_completion("no: x"),
        make_completion("It is W1."),
        make_completion("Yes."),
        make_completion("yes"),
    ]
    with serve_answers(script[:3] + script[3:]) as endpoint:
        assert get_reply(make_llm_user("reflection", endpoint)) == "Yes."
        assert PROBLEM_WRONG_FORMAT in endpoint.requests[3]["messages"][0]["content"]


@pytest.mark.parametrize(("kind", "requests"), [("verify", 6), ("reflection", 6)])
def test_never_approved_drafts_raise_user_fault(kind: str, requests: int) -> None:
    def answer(request: Mapping[str, Any]) -> Answer:
        return make_completion(
            "no: not good"
            if "Is it good?" in request_text(request)
            else "Message: Hm."
            if is_revision_request(request)
            else "Hm."
        )

    with serve_answers(answer) as endpoint:
        with pytest.raises(RolloutError, match="not good") as caught:
            get_reply(make_llm_user(kind, endpoint))
        assert caught.value.fault == "user"
        assert len(endpoint.requests) == requests


def is_revision_request(request: Mapping[str, Any]) -> bool:
    return "You were about to say" in request_text(request)


def tool_call_answer(*arguments: Mapping[str, Any] | str, name: str = "switch_lamp") -> Answer:
    calls = [{"function": {"name": name, "arguments": a if isinstance(a, str) else json.dumps(a)}} for a in arguments]
    return make_completion("I do it.", "tool_calls", tool_calls=calls)


def make_user_with_tools(endpoint: Endpoint, house: House, kind: str = "llm", scenario: Scenario = SCENARIO) -> User:
    chat = EndpointConfig(base_url=endpoint.url, model="m", max_retries=0)
    return UserSimulatorFactory(UserConfig(kind=kind), {"default": chat})(scenario, 0, LampTools(house))  # type: ignore[arg-type]


def test_user_calls_tools_and_reports_results() -> None:
    world, on = build_house(), {"lamp_id": "L1", "on": True}
    with serve_answers(
        [tool_call_answer(on, {"lamp_id": "L99", "on": True}), make_completion("It is on."), make_completion("Bye.")]
    ) as endpoint:
        user = make_user_with_tools(endpoint, world)
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


def test_tool_calls_outlive_rejected_draft_and_reach_verifier() -> None:
    script = [
        tool_call_answer({"lamp_id": "L1", "on": True}),
        make_completion("Agent: no."),
        make_completion("It is on."),
        make_completion("yes"),
    ]
    with serve_answers(script) as endpoint:
        assert asyncio.run(make_user_with_tools(endpoint, build_house(), "verify").reply(TRANSCRIPT)) == "It is on."
        assert [message["role"] for message in endpoint.requests[2]["messages"]][-2:] == ["assistant", "tool"]
        case = request_text(endpoint.requests[3])
        assert 'The customer used switch_lamp {"lamp_id": "L1", "on": true}' in case
        assert "It showed the customer:" in case


@pytest.mark.parametrize("kind", ["llm", "verify"])
def test_tool_calls_before_opening_stay_in_history(kind: str) -> None:
    on = {"lamp_id": "L1", "on": True}

    def answer(request: Mapping[str, Any]) -> Answer:
        if "Is it good?" in request_text(request):
            return make_completion("yes")
        return (
            make_completion("Hello.") if any(m["role"] == "tool" for m in request["messages"]) else tool_call_answer(on)
        )

    with serve_answers(answer) as endpoint:
        user = make_user_with_tools(endpoint, build_house(), kind, SCENARIO.replace(opening=""))
        assert asyncio.run(user.reply(())) == "Hello."
        _, told, *checks = endpoint.requests
        assert [message["role"] for message in told["messages"]] == ["system", "user", "assistant", "tool"]
        assert all("The customer used switch_lamp" in request_text(check) for check in checks)
        assert len(checks) == (kind == "verify")
        said = [Message(role="user", content="Hello."), Message(role="assistant", content="Hm?")]
        asyncio.run(user.reply(said))
        roles = [message["role"] for message in endpoint.requests[2 + len(checks)]["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (tool_call_answer("{x"), "not JSON"),
        (tool_call_answer({}, name="fly"), "unknown tool 'fly'"),
        (tool_call_answer({"on": 1}), "lamp_id"),
    ],
)
def test_invalid_user_call_returns_error_result(answer: Answer, shown: str) -> None:
    with serve_answers([answer, make_completion("Hm.")]) as endpoint:
        assert asyncio.run(make_user_with_tools(endpoint, build_house()).reply(TRANSCRIPT)) == "Hm."
        assert shown in endpoint.requests[1]["messages"][-1]["content"]


def test_endless_user_tool_calls_raise_user_fault() -> None:
    with serve_answers(lambda _: tool_call_answer({"lamp_id": "L1", "on": True})) as endpoint:
        with pytest.raises(RolloutError, match=PROBLEM_TOOL_CALL):
            asyncio.run(make_user_with_tools(endpoint, build_house()).reply(TRANSCRIPT))
        assert len(endpoint.requests) == 3 * MAX_TOOL_ROUNDS


def test_user_calls_are_hidden_from_agent_and_change_state() -> None:
    task = next(task for task in DOMAIN.tasks("train") if task.family == "one")
    lamp = task.scenario.goals[0].required_terms[0]

    def answer(request: Mapping[str, Any]) -> Answer:
        if request["messages"][-1]["role"] == "tool":
            return make_completion(STOP_TOKEN)
        return tool_call_answer({"lamp_id": lamp, "on": True})

    with serve_answers(answer) as endpoint:
        chat = EndpointConfig(base_url=endpoint.url, model="m", max_retries=0)
        domain = dataclasses.replace(DOMAIN, user_tools=LampTools).with_users(
            UserSimulatorFactory(UserConfig(kind="llm"), {"default": chat})
        )
        episode = asyncio.run(play_episode(domain, task, GoldAgent(), EpisodeLimits(), 0))
        assert (episode.stop_reason, episode.num_turns) == (StopReason.DONE, 1)
        assert episode.score is not None
        assert episode.score.parts["state_match"] == 1.0
        assert [message.role for message in episode.messages] == ["system", "user", "assistant"]


TASK = next(task for task in DOMAIN.tasks("train") if task.family == "two")


class ScriptedCustomerModel:
    """Scripted answers of a model that plays a correct toy customer. Its first two drafts are unusable."""

    def __init__(self) -> None:
        self.drafts = 0

    def __call__(self, request: Mapping[str, Any]) -> Answer:
        text = request_text(request)
        if "Is it good?" in text:
            return make_completion(
                "no: DRAFT is not a word" if "DRAFT" in text.split("customer's next message")[1] else "yes"
            )
        if is_revision_request(request):
            return make_completion("Reflection: REFLECTION\nMessage: " + self._reply_to(text))
        if "Thought:" in request["messages"][0]["content"]:
            return make_completion("Thought: THOUGHT\nMessage: " + self._reply_to(request["messages"][-1]["content"]))
        self.drafts += 1
        if self.drafts == 1:
            return make_completion("Agent: DRAFT")
        if self.drafts == 2 and "Thought" not in text:
            return make_completion("DRAFT DRAFT")
        return make_completion(self._reply_to(request["messages"][-1]["content"]))

    def _reply_to(self, agent: str) -> str:
        if "want me to proceed" in agent:
            return "That works for me, please proceed."
        lamps = [goal.required_terms[0] for goal in TASK.scenario.goals]
        return STOP_TOKEN if f"{lamps[1]} is on" in agent else f"Please switch on lamp {lamps[1]}."


def play_with_users(kind: str, endpoint: Endpoint, task: Task = TASK, **limits: Any) -> tuple[Trajectory, ModelUsage]:
    chat = EndpointConfig(base_url=endpoint.url, model="m", max_retries=0, backoff=0.01)
    users = UserSimulatorFactory(UserConfig(kind=kind), {"default": chat})  # type: ignore[arg-type]
    episode = asyncio.run(play_episode(DOMAIN.with_users(users), task, GoldAgent(), EpisodeLimits(**limits), 3))
    return episode, users.usage


@pytest.mark.parametrize("kind", ["react", "verify", "reflection"])
def test_episode_hides_drafts_thoughts_and_stop_token(kind: str) -> None:
    with serve_answers(ScriptedCustomerModel()) as endpoint:
        episode, usage = play_with_users(kind, endpoint)
        assert (episode.stop_reason, episode.reward, episode.num_turns) == (StopReason.DONE, 1.0, len(TASK.gold))
        assert episode.seed == 3
        assert usage.requests == len(endpoint.requests)
        assert usage.rejected_replies == (0 if kind == "react" else 2)
        heard = "\n".join(message.content for message in episode.messages)
        for private in ("DRAFT", "THOUGHT", "REFLECTION", STOP_TOKEN):
            assert private not in heard
        conversations = [request["messages"][1:] for request in endpoint.requests if len(request["messages"]) > 2]
        assert all("DRAFT" not in m["content"] and "THOUGHT" not in m["content"] for c in conversations for m in c)


def test_failing_user_is_retried_until_episode_is_fault() -> None:
    with serve_answers(lambda _: make_completion("Agent: no.")) as endpoint:
        episode, usage = play_with_users("llm", endpoint, max_retries=2)
        assert (episode.stop_reason, episode.fault, episode.score) == (StopReason.FAULT, "user", None)
        assert usage.rejected_replies == usage.requests == 9
        assert re.search(r"\b3\b", episode.error)
        assert len(endpoint.requests) == 3 * 3
        assert len({request["seed"] for request in endpoint.requests}) == 9


def test_single_user_failure_is_retried_with_next_seed() -> None:
    def answers() -> Iterator[Answer]:
        yield Answer("down", 500)
        yield from (make_completion("Yes."), make_completion("Go ahead."), make_completion(STOP_TOKEN)) * 9

    task = next(task for task in DOMAIN.tasks("train") if task.family == "one")
    with serve_answers(list(answers())) as endpoint:
        episode, _ = play_with_users("llm", endpoint, task)
        assert episode.stop_reason is StopReason.DONE
        assert episode.seed == 4


def test_endpoint_failure_is_user_fault() -> None:
    with serve_answers(lambda _: Answer("down", 500)) as endpoint:
        episode, _ = play_with_users("verify", endpoint, max_retries=0)
        assert (episode.fault, episode.score) == ("user", None)
        assert re.search(r"\b500\b.*down", episode.error)


def test_scripted_user_is_default_and_needs_no_endpoint() -> None:
    users = UserSimulatorFactory(UserConfig())
    assert isinstance(users(SCENARIO, 0), ScriptedUser)
    assert users.usage == ModelUsage()


@pytest.mark.parametrize("kind", KINDS)
def test_user_kind_is_selected_by_config(kind: str) -> None:
    config = parse_config("", [f"user.kind={kind}", "endpoints.default.model=m"])
    assert type(UserSimulatorFactory(config.user, config.endpoints)(SCENARIO, 0)) is KINDS[kind]
    with pytest.raises(ConfigError, match=r"endpoints\.default\.model\b"):
        UserSimulatorFactory(UserConfig(kind=kind), {"default": EndpointConfig()})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_task_selects_its_user_if_a_model_may_play(kind: Any) -> None:
    config = parse_config("", ["user.kind=llm", "endpoints.default.model=m"])
    users = UserSimulatorFactory(config.user, config.endpoints)
    assert type(users(SCENARIO.replace(user_kind=kind), 0)) is KINDS[kind]
    assert type(users(SCENARIO.replace(user_kind="scripted"), 0)) is ScriptedUser
    assert type(UserSimulatorFactory(UserConfig())(SCENARIO.replace(user_kind=kind), 0)) is ScriptedUser


def test_eval_uses_configured_user_and_reports_its_cost() -> None:
    with serve_answers(lambda _: make_completion(STOP_TOKEN, tokens=(10, 1))) as endpoint:
        settings = ["domain=toy:DOMAIN", "eval.tasks=6", "user.kind=llm", "endpoints.default.model=m"]
        settings += [f"endpoints.default.base_url={endpoint.url}", "endpoints.default.prompt_price=2"]
        spec = EvalSpec(name="gold with an LLM user", agent="gold", config=parse_config("", settings))
        report = asyncio.run(run_eval(spec, prepare_eval(spec, None, Decimal(0), 64)))
        floor, oracle, own = (row.result for row in report.rows)
        assert (floor.success_rate.mean, oracle.success_rate.mean, own.success_rate.mean) == (0.0, 1.0, 0.0)
        assert own.usage == {"users": ModelUsage(requests=6, prompt_tokens=60, completion_tokens=6, cost="0.00012")}  # type: ignore[arg-type]
        assert (floor.usage, oracle.usage) == ({}, {})
        assert re.search(r"\b6\b.*\b0\b.*\b60\b.*\b6\b", report_to_text(report))
        json.dumps(report_to_dict(report))


def test_scripted_customer_model_consents_in_free_wording() -> None:
    assert gives_consent(ScriptedCustomerModel()._reply_to("Do you want me to proceed?"))
