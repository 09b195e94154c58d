"""Agents behind an API: whole episodes with native tool calls, and their evaluation from the command line."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from endpoint import KEY, Answer, Endpoint, says, serving
from toy import DOMAIN
from understudy.agent import ChatAgent
from understudy.chat import ChatConfig, ChatModel
from understudy.cli import main
from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.messages import Message, ToolSpec
from understudy.players import named_agent
from understudy.rollout import Limits, play
from understudy.tasks import Task
from understudy.trajectory import Stop, Trajectory

TASK = DOMAIN.tasks("test")[0]
LAMP = TASK.scenario.wishes[0].names[0]


def lamp(request: Mapping[str, Any]) -> Answer:
    """An agent that finds the lamp in what the user wants, asks, switches it on, and says so."""
    messages = request["messages"]
    last = messages[-1]
    wanted = [m["content"] for m in messages if m["role"] == "user" and "switch on lamp" in m["content"]][-1]
    name = wanted.split("switch on lamp ")[1].rstrip(".")
    if last["role"] == "tool":
        return says(f"Lamp {name} is on.")
    if last["content"].startswith("Yes"):
        arguments = json.dumps({"lamp_id": name, "on": True})
        call = {"id": "call_x", "type": "function", "function": {"name": "switch_lamp", "arguments": arguments}}
        return says(None, "tool_calls", tool_calls=[call])  # type: ignore[arg-type]
    return says(f"I will switch on lamp {name}. Do you want me to proceed?")


def episode_of(endpoint: Endpoint, task: Task = TASK, **limits: Any) -> Trajectory:
    agent = ChatAgent(ChatModel(ChatConfig(base_url=endpoint.url, model="m", retries=0, backoff=0.01), "agent"))
    return asyncio.run(play(DOMAIN, task, agent, Limits(**limits), seed=2**32 - 1))


def test_an_episode_with_native_tool_calls() -> None:
    with serving(lamp) as endpoint:
        episode = episode_of(endpoint)
        assert (episode.reward, episode.stop, episode.turns) == (1.0, Stop.DONE, 3)
        assert episode.counts == {"text": 2, "calls": 1}
        assert (episode.tokens, episode.logprobs) == ([], [])
        last = endpoint.requests[-1]
        assert [m["role"] for m in last["messages"]] == ["system", "user", "assistant", "user", "assistant", "tool"]
        assert [tool["function"]["name"] for tool in last["tools"]] == ["find_lamp", "switch_lamp"]
        assert last["messages"][-1]["tool_call_id"] == last["messages"][-2]["tool_calls"][0]["id"] == "call_x"
        seeds = [request["seed"] for request in endpoint.requests]
        assert len(set(seeds)) == 3
        assert all(0 <= seed < 2**31 for seed in seeds)


def test_calls_without_ids_get_them() -> None:
    call = {"type": "function", "function": {"name": "find_lamp", "arguments": "{}"}}
    with serving([says("", tool_calls=[call, call]), says("Hm."), says("Hm."), says("Hm.")]) as endpoint:
        episode = episode_of(endpoint, max_turns=2)
        assert [message.tool_call_id for message in episode.messages if message.role == "tool"] == [
            "call_0_0",
            "call_0_1",
        ]
        assert episode.counts["bad_arguments"] == 2


@pytest.mark.parametrize(
    ("answer", "count", "said"),
    [
        (says(""), "empty", ""),
        (says("Hm"), "text", "Hm"),
        (says("Hm", "length"), "cut", "Hm"),
        (says(None, refusal="I will not."), "text", "I will not."),  # type: ignore[arg-type]
        (says("", tool_calls=[{"id": "a", "function": {"name": "find_lamp", "arguments": "{x"}}]), "malformed", ""),
    ],
)
def test_what_replies_count_as(answer: Answer, count: str, said: str) -> None:
    with serving([answer]) as endpoint:
        episode = episode_of(endpoint, max_turns=1)
        assert count in episode.counts
        assert [m.content for m in episode.messages if m.role == "assistant"] == [said]


def test_a_failing_endpoint_is_the_agents_fault() -> None:
    with serving(lambda _: Answer("down", 503)) as endpoint:
        episode = episode_of(endpoint, retries=1)
        assert (episode.stop, episode.fault, episode.score) == (Stop.FAULT, "agent", None)
        assert len(endpoint.requests) == 2


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
def test_a_context_that_is_full_ends_the_episode_with_a_score(said: str) -> None:
    with serving([says("Hi."), Answer(said, 400)]) as endpoint:
        episode = episode_of(endpoint)
        assert (episode.stop, episode.turns, episode.fault, episode.reward) == (Stop.MAX_TOKENS, 1, None, 0.0)
        assert [message.role for message in episode.messages] == ["system", "user", "assistant", "user"]
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize(("said", "first"), [("unknown parameter 'seed'", "Hi."), ("the context length is 9", "")])
def test_what_else_is_refused_and_an_opening_that_is_too_long_are_faults(said: str, first: str) -> None:
    model = ChatModel(ChatConfig(model="m", retries=0, backoff=0.01), "agent")
    with serving([says("Hi."), *([says(first)] if first else []), Answer(said, 400)]) as endpoint:
        model.config = model.config.replace(base_url=endpoint.url)
        for turns, stop in ((1, Stop.MAX_TURNS), (2, Stop.FAULT)):
            episode = asyncio.run(play(DOMAIN, TASK, ChatAgent(model), Limits(max_turns=turns, retries=0), seed=1))
            assert episode.stop is stop
        assert (episode.fault, episode.score, said in episode.error) == ("agent", None, True)


HERMES = '<tool_call>\n{"name": "switch_lamp", "arguments": {"lamp_id": "%s", "on": true}}\n</tool_call>'
WRITTEN = {
    "hermes": HERMES,
    "llama3": '{"name": "switch_lamp", "parameters": {"lamp_id": "%s", "on": true}}',
    "pythonic": '[switch_lamp(lamp_id="%s", on=True)]',
    "harmony": '<|channel|>commentary to=functions.switch_lamp<|message|>{"lamp_id": "%s", "on": true}<|call|>',
}
THOUGHT = "<think>Of 10, 20, 30, 40, 50 and 60 it is none. Should I ask?</think>\n"


def unread(written: str) -> Callable[[Mapping[str, Any]], Answer]:
    """The agent behind a server without a parser: what it thinks and calls stands in the text."""

    def answer(request: Mapping[str, Any]) -> Answer:
        body: Any = lamp(request).body
        message = body["choices"][0]["message"]
        called = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        return says(THOUGHT + (written % called[0]["lamp_id"] if called else message["content"]))

    return answer


@pytest.mark.parametrize("dialect", WRITTEN)
def test_calls_and_thoughts_that_are_left_in_the_text_never_reach_the_user(dialect: str) -> None:
    with serving(unread(WRITTEN[dialect])) as endpoint:
        episode = episode_of(endpoint)
        assert (episode.reward, episode.stop, episode.turns) == (1.0, Stop.DONE, 3)
        assert episode.counts == {"text": 2, "repaired": 1, "repaired/dialect": 1}
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
def test_plain_words_stay_as_they_are(text: str) -> None:
    with serving([says(text)]) as endpoint:
        episode = episode_of(endpoint, max_turns=1)
        assert episode.messages[2].content == text
        assert episode.counts == {"text": 1}


@pytest.mark.parametrize(
    ("answer", "count", "why"),
    [
        (says('<tool_call>{"name": "switch_lamp", "arguments": {"on": tru'), "malformed", "is not JSON"),
        (says(HERMES.partition(", ")[0], "length"), "cut", "the call"),
        (says('<tool_call>{"name": "switch", "arguments": {}}</tool_call>'), "repaired", "unknown tool 'switch'"),
    ],
)
def test_what_cannot_be_read_in_the_text_goes_back_to_the_model(answer: Answer, count: str, why: str) -> None:
    with serving([answer, says("Hm.")]) as endpoint:
        episode = episode_of(endpoint, max_turns=2)
        assert count in episode.counts
        assert [message.role for message in episode.messages[2:4]] == ["assistant", "tool"]
        assert why in episode.messages[3].content


def test_only_an_agents_text_is_read_and_not_beside_calls_of_its_own() -> None:
    spec = ToolSpec(name="lamp.find", description="", parameters={"type": "object", "properties": {}})
    text = '<tool_call>{"name": "lamp_find", "arguments": {}}</tool_call>'
    call = {"id": "a", "type": "function", "function": {"name": "lamp_find", "arguments": "{}"}}
    found: list[tuple[str, list[str]]] = []
    with serving([says(text), says(text), says(text, tool_calls=[call]), says(text)]) as endpoint:
        config = ChatConfig(base_url=endpoint.url, model="m")
        for fault, tools in (("agent", [spec]), ("user", [spec]), ("agent", [spec]), ("agent", [])):
            model = ChatModel(config, fault)  # type: ignore[arg-type]
            reply = asyncio.run(model.reply([Message(role="user", content="Hello.")], tools))
            found.append((reply.message.content, [each.name for each in reply.message.tool_calls]))
    assert found == [("", ["lamp.find"]), (text, []), (text, ["lamp.find"]), (text, [])]


def test_an_agent_is_named_by_its_endpoint() -> None:
    assert isinstance(named_agent("chat", TrainConfig(chat=ChatConfig(model="m"))), ChatAgent)
    with pytest.raises(ConfigError, match=r"chat\.model is empty"):
        named_agent("chat", TrainConfig())


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["understudy", *arguments])
    try:
        main()
        code = 0
    except SystemExit as e:
        code = int(e.code or 0)
    return (code, *capsys.readouterr())


def test_evaluation_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    with serving(lamp) as endpoint:
        settings = [f"chat.base_url={endpoint.url}", "chat.model=m", "chat.key_variable=MY_KEY", "chat.prompt_price=5"]
        command = ["eval", "toy:DOMAIN", "slice.families=one", *settings, "--agent", "chat", "--tasks", "8"]
        code, text, err = run(monkeypatch, capsys, *command)
        assert code == 0
        assert "m succeeds on 1.000" in text
        assert "m, agent: 24 requests, 0 from the cache, 0 replies of no use, 2,400 prompt and 240 " in text
        assert "completion tokens, cost 0.0120" in text
        _, found, _ = run(monkeypatch, capsys, *command, "--json")
        assert Decimal(json.loads(found)["rows"][2]["evaluation"]["usage"]["agent"]["cost"]) == Decimal("0.012")
        assert KEY not in text + err + found
        assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--agent", "chat"], "chat.model is empty; name a model"),
        (["--agent", "chat", "chat.model=m", "chat.key_variable=NOT_THERE"], "NOT_THERE, which key_variable names"),
        (["--agent", "gold", "user.kind=llm"], "user.chat.model is empty"),
        (["--agent", "gold", "user.kind=lmm"], "did you mean 'llm'?"),
        (["--agent", "chat", "chat.base_url=x"], "base_url has to be like"),
    ],
)
def test_what_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: list[str], said: str
) -> None:
    code, _, err = run(monkeypatch, capsys, "eval", "toy:DOMAIN", *settings)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
