"""Tests of agents behind a chat API: episodes with tool calls, errors, and evaluation from the command line."""

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from support.endpoint import KEY, Answer, Endpoint, lamp_agent, make_completion, serve_answers
from toy import DOMAIN
from understudy.cli.main import main
from understudy.clients.chat import ChatModel, EndpointConfig
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.rollouts.agent import APIAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.runs.agents import make_agent
from understudy.runs.config import TrainConfig

TASK = DOMAIN.tasks("test")[0]
LAMP = TASK.scenario.goals[0].required_terms[0]


def play_with_endpoint(endpoint: Endpoint, task: Task = TASK, **limits: Any) -> Trajectory:
    agent = APIAgent(ChatModel(EndpointConfig(base_url=endpoint.url, model="m", max_retries=0, backoff=0.01), "agent"))
    return asyncio.run(play_episode(DOMAIN, task, agent, EpisodeLimits(**limits), seed=2**32 - 1))


def test_episode_with_native_tool_calls_succeeds() -> None:
    with serve_answers(lamp_agent) as endpoint:
        episode = play_with_endpoint(endpoint)
        assert (episode.reward, episode.stop_reason, episode.num_turns) == (1.0, StopReason.DONE, 3)
        assert episode.event_counts == {"text": 2, "tool_calls": 1}
        assert (episode.tokens, episode.logprobs) == ([], [])
        last = endpoint.requests[-1]
        assert [m["role"] for m in last["messages"]] == ["system", "user", "assistant", "user", "assistant", "tool"]
        assert [tool["function"]["name"] for tool in last["tools"]] == ["find_lamp", "switch_lamp"]
        assert last["messages"][-1]["tool_call_id"] == last["messages"][-2]["tool_calls"][0]["id"] == "call_x"
        seeds = [request["seed"] for request in endpoint.requests]
        assert len(set(seeds)) == 3
        assert all(0 <= seed < 2**31 for seed in seeds)


def test_tool_calls_without_id_get_one() -> None:
    call = {"type": "function", "function": {"name": "find_lamp", "arguments": "{}"}}
    with serve_answers(
        [
            make_completion("", tool_calls=[call, call]),
            make_completion("Hm."),
            make_completion("Hm."),
            make_completion("Hm."),
        ]
    ) as endpoint:
        episode = play_with_endpoint(endpoint, max_turns=2)
        assert [message.tool_call_id for message in episode.messages if message.role == "tool"] == [
            "call_0_0",
            "call_0_1",
        ]
        assert episode.event_counts["invalid_arguments"] == 2


@pytest.mark.parametrize(
    ("answer", "count", "said"),
    [
        (make_completion(""), "empty", ""),
        (make_completion("Hm"), "text", "Hm"),
        (make_completion("Hm", "length"), "truncated", "Hm"),
        (make_completion(None, refusal="I will not."), "text", "I will not."),  # type: ignore[arg-type]
        (
            make_completion("", tool_calls=[{"id": "a", "function": {"name": "find_lamp", "arguments": "{x"}}]),
            "malformed",
            "",
        ),
    ],
)
def test_reply_kinds_are_counted(answer: Answer, count: str, said: str) -> None:
    with serve_answers([answer]) as endpoint:
        episode = play_with_endpoint(endpoint, max_turns=1)
        assert count in episode.event_counts
        assert [m.content for m in episode.messages if m.role == "assistant"] == [said]


@pytest.mark.parametrize("answer", [make_completion("I wi", "content_filter"), make_completion(None)])  # type: ignore[arg-type]
def test_filtered_or_missing_reply_is_an_agent_fault_without_a_reward(answer: Answer) -> None:
    with serve_answers(lambda _: answer) as endpoint:
        episode = play_with_endpoint(endpoint, max_retries=1)
        assert (episode.stop_reason, episode.fault, episode.score) == (StopReason.FAULT, "agent", None)
        assert len(endpoint.requests) == 2


def test_failing_endpoint_is_an_agent_fault() -> None:
    with serve_answers(lambda _: Answer("down", 503)) as endpoint:
        episode = play_with_endpoint(endpoint, max_retries=1)
        assert (episode.stop_reason, episode.fault, episode.score) == (StopReason.FAULT, "agent", None)
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    ("refusal", "attempts"),
    [
        (Answer({"error": {"message": "insufficient balance"}}, 402), 1),
        (Answer({"error": {"message": "unknown field"}}, 400), 1),
        (Answer({"error": {"message": "the prompt triggers the content management policy"}}, 400), 3),
    ],
)
def test_refusal_that_no_new_attempt_helps_is_not_repeated(refusal: Answer, attempts: int) -> None:
    answers = [make_completion("Hi."), refusal]
    with serve_answers(lambda request: answers[len(request["messages"]) > 3]) as endpoint:
        episode = play_with_endpoint(endpoint, max_retries=2)
    assert (episode.stop_reason, episode.fault) == (StopReason.FAULT, "agent")
    assert len(endpoint.requests) == 2 * attempts


@pytest.mark.parametrize(
    "said",
    [
        '{"error": {"message": "the model\'s context is 64 tokens, and", "code": "context_length_exceeded"}}',
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
        "prompt is too long: 200251 tokens > 200000 maximum",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575).",
        "the request exceeds the available context size, try increasing it",
    ],
)
def test_full_context_ends_the_episode_with_a_score(said: str) -> None:
    with serve_answers([make_completion("Hi."), Answer(said, 400)]) as endpoint:
        episode = play_with_endpoint(endpoint)
        assert (episode.stop_reason, episode.num_turns, episode.fault, episode.reward) == (
            StopReason.MAX_TOKENS,
            1,
            None,
            0.0,
        )
        assert [message.role for message in episode.messages] == ["system", "user", "assistant", "user"]
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize(("said", "first"), [("unknown parameter 'seed'", "Hi."), ("the context length is 9", "")])
def test_other_rejections_and_a_too_long_first_prompt_are_faults(said: str, first: str) -> None:
    model = ChatModel(EndpointConfig(model="m", max_retries=0, backoff=0.01), "agent")
    with serve_answers(
        [make_completion("Hi."), *([make_completion(first)] if first else []), Answer(said, 400)]
    ) as endpoint:
        model.config = model.config.replace(base_url=endpoint.url)
        for turns, stop in ((1, StopReason.MAX_TURNS), (2, StopReason.FAULT)):
            episode = asyncio.run(
                play_episode(DOMAIN, TASK, APIAgent(model), EpisodeLimits(max_turns=turns, max_retries=0), seed=1)
            )
            assert episode.stop_reason is stop
        assert (episode.fault, episode.score, said in episode.error) == ("agent", None, True)


HERMES = '<tool_call>\n{"name": "switch_lamp", "arguments": {"lamp_id": "%s", "on": true}}\n</tool_call>'
CALL_SYNTAX = {
    "hermes": HERMES,
    "llama3": '{"name": "switch_lamp", "parameters": {"lamp_id": "%s", "on": true}}',
    "pythonic": '[switch_lamp(lamp_id="%s", on=True)]',
    "harmony": '<|channel|>commentary to=functions.switch_lamp<|message|>{"lamp_id": "%s", "on": true}<|call|>',
}
THOUGHT = "<think>Of 10, 20, 30, 40, 50 and 60 it is none. Should I ask?</think>\n"


def server_without_parser(written: str) -> Callable[[Mapping[str, Any]], Answer]:
    """Return a handler of a server without a tool parser: thoughts and calls stay in the text."""

    def answer(request: Mapping[str, Any]) -> Answer:
        body: Any = lamp_agent(request).body
        message = body["choices"][0]["message"]
        called = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        return make_completion(THOUGHT + (written % called[0]["lamp_id"] if called else message["content"]))

    return answer


@pytest.mark.parametrize("dialect", CALL_SYNTAX)
def test_calls_and_thoughts_in_the_text_never_reach_the_user(dialect: str) -> None:
    with serve_answers(server_without_parser(CALL_SYNTAX[dialect])) as endpoint:
        episode = play_with_endpoint(endpoint)
        assert (episode.reward, episode.stop_reason, episode.num_turns) == (1.0, StopReason.DONE, 3)
        assert episode.event_counts == {"text": 2, "repaired": 1, "repaired/tool_format": 1}
        said = [message.content for message in episode.messages if message.role == "assistant"]
        assert said == [f"I will switch on lamp {LAMP}. Do you want me to proceed?", "", f"Lamp {LAMP} is on."]
        again = endpoint.requests[-1]["messages"][-2:]
        assert again[0]["tool_calls"][0]["function"]["name"] == "switch_lamp"
        assert again[1]["tool_call_id"] == again[0]["tool_calls"][0]["id"]


PLAIN = (
    "  Here is what I found:\nUser: Yusuf Rossi\n**Action:** Cancel order #W1\n\n",
    'It stands there as {"name": "Yusuf", "id": 4}.',
    "Please run `find_lamp(room=1)` yourself:\n```python\nprint(1)\n```",
)


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_is_not_parsed_as_a_call(text: str) -> None:
    with serve_answers([make_completion(text)]) as endpoint:
        episode = play_with_endpoint(endpoint, max_turns=1)
        assert episode.messages[2].content == text
        assert episode.event_counts == {"text": 1}


@pytest.mark.parametrize(
    ("answer", "count", "why"),
    [
        (make_completion('<tool_call>{"name": "switch_lamp", "arguments": {"on": tru'), "malformed", "is not JSON"),
        (make_completion(HERMES.partition(", ")[0], "length"), "truncated", "the call"),
        (
            make_completion('<tool_call>{"name": "switch", "arguments": {}}</tool_call>'),
            "repaired",
            "unknown tool 'switch'",
        ),
    ],
)
def test_unparsable_call_in_the_text_returns_an_error_to_the_model(answer: Answer, count: str, why: str) -> None:
    with serve_answers([answer, make_completion("Hm.")]) as endpoint:
        episode = play_with_endpoint(endpoint, max_turns=2)
        assert count in episode.event_counts
        assert [message.role for message in episode.messages[2:4]] == ["assistant", "tool"]
        assert why in episode.messages[3].content


def test_calls_are_parsed_from_agent_text_without_native_calls_only() -> None:
    spec = ToolSpec(name="lamp.find", description="", parameters={"type": "object", "properties": {}})
    text = '<tool_call>{"name": "lamp_find", "arguments": {}}</tool_call>'
    call = {"id": "a", "type": "function", "function": {"name": "lamp_find", "arguments": "{}"}}
    found: list[tuple[str, list[str]]] = []
    with serve_answers(
        [make_completion(text), make_completion(text), make_completion(text, tool_calls=[call]), make_completion(text)]
    ) as endpoint:
        config = EndpointConfig(base_url=endpoint.url, model="m")
        for fault, tools in (("agent", [spec]), ("user", [spec]), ("agent", [spec]), ("agent", [])):
            model = ChatModel(config, fault)  # type: ignore[arg-type]
            reply = asyncio.run(model.generate([Message(role="user", content="Hello.")], tools))
            found.append((reply.message.content, [each.name for each in reply.message.tool_calls]))
    assert found == [("", ["lamp.find"]), (text, []), (text, ["lamp.find"]), (text, [])]


def test_api_agent_requires_an_endpoint_model() -> None:
    assert isinstance(make_agent("api", TrainConfig(endpoints={"default": EndpointConfig(model="m")})), APIAgent)
    with pytest.raises(ConfigError, match=r"endpoints\.default\.model\b"):
        make_agent("api", TrainConfig())


def run_cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["understudy", *arguments])
    try:
        main()
        code = 0
    except SystemExit as e:
        code = int(e.code or 0)
    return (code, *capsys.readouterr())


def test_eval_command_reports_usage_and_hides_the_api_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    with serve_answers(lamp_agent) as endpoint:
        settings = [
            f"endpoints.default.base_url={endpoint.url}",
            "endpoints.default.model=m",
            "endpoints.default.api_key_var=MY_KEY",
            "endpoints.default.prompt_price=5",
        ]
        command = ["eval", "toy:DOMAIN", "slice.families=one", *settings, "--agent", "api", "--tasks", "8"]
        code, text, err = run_cli(monkeypatch, capsys, *command)
        assert code == 0
        assert re.search(r"^m .*\b1\.000\b", text, re.MULTILINE)
        assert re.search(r"\b24\b.*\b2,400\b.*\b240\b", text)
        assert "completion tokens, cost 0.0120" in text
        _, found, _ = run_cli(monkeypatch, capsys, *command, "--json")
        assert Decimal(json.loads(found)["rows"][2]["result"]["usage"]["agent"]["cost"]) == Decimal("0.012")
        assert KEY not in text + err + found
        assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--agent", "api"], "endpoints.default.model"),
        (["--agent", "api", "endpoints.default.model=m", "endpoints.default.api_key_var=NOT_THERE"], "NOT_THERE"),
        (["--agent", "gold", "user.kind=llm"], "endpoints.default.model"),
        (["--agent", "gold", "user.kind=lmm"], "'llm'"),
        (["--agent", "api", "endpoints.default.base_url=x"], "base_url"),
    ],
)
def test_eval_command_reports_a_missing_setting_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: list[str], said: str
) -> None:
    code, _, err = run_cli(monkeypatch, capsys, "eval", "toy:DOMAIN", *settings)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
