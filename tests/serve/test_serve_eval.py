"""Test agents and users at the server: episodes equal those of the model in this process."""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.serving import load_tiny_served_model, make_scripted_model, make_short_context_model, serve_on_loopback
from toy import DOMAIN, LampTools, build_house
from understudy.cli.main import main
from understudy.cli.play import TerminalPlayer
from understudy.cli.play import play_interactively as played_by
from understudy.clients.chat import ChatModel, EndpointConfig
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.interface import SamplingParams
from understudy.envs.users import UserConfig, UserSimulatorFactory
from understudy.envs.users.consent import gives_consent
from understudy.envs.users.llm import LLMUser
from understudy.evaluation.evaluate import select_tasks
from understudy.formats.parsing.parse import parse_message, render_reply
from understudy.formats.prompted_tools import render_as_text
from understudy.rollouts.agent import Agent, EngineAgent, GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.runs.agents import make_agent
from understudy.runs.config import TrainConfig, parse_config

TASKS = select_tasks(DOMAIN, "test", 6)
LIMITS = EpisodeLimits(max_turns=6, max_retries=0)
GREEDY = SamplingParams(max_response_tokens=48, temperature=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_short_context_model(tmp_path_factory.mktemp("small"))


def make_config(url: str, **settings: Any) -> TrainConfig:
    base = {"base_url": url, "model": "tiny", "temperature": 0.0, "max_tokens": 300, "max_retries": 0, "timeout": 60.0}
    return TrainConfig(endpoints={"default": EndpointConfig(**{**base, **settings})})


def play_all(agent: Agent, tasks: Sequence[Task] = TASKS) -> list[Trajectory]:
    async def play_concurrently() -> list[Trajectory]:
        return await asyncio.gather(
            *(play_episode(DOMAIN, task, agent, LIMITS, seed) for seed, task in enumerate(tasks))
        )

    return asyncio.run(play_concurrently())


def without_ids(episode: Trajectory) -> list[Message]:
    return [
        m.replace(tool_call_id="", tool_calls=tuple(call.replace(id="") for call in m.tool_calls))
        for m in episode.messages
    ]


def assert_same_episodes(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> None:
    for here, there in zip(ours, theirs, strict=True):
        assert (there.fault, there.error) == (None, "")
        assert without_ids(here) == without_ids(there)
        assert (here.reward, here.stop_reason) == (there.reward, there.stop_reason)


def test_served_model_plays_the_same_episodes(folder: Path) -> None:
    model = load_tiny_served_model(folder, concurrency=4)
    here = play_all(EngineAgent(model.sampler, model.format, GREEDY))
    prompts = []
    with serve_on_loopback(model) as url:
        there = play_all(make_agent("api", make_config(url, max_tokens=48)))
        prompts = list(model.cache._entries.values())
    assert_same_episodes(here, there)
    assert {tuple(episode.tokens) for episode in here} <= {tuple(tokens) for tokens in prompts}


REPLIES = [
    "I will see. Do you want me to proceed?",
    '<tool_call>{"name": "switch_lamp", "arguments": {"lamp_id": oops}}</tool_call>',
    'Wait.\n<tool_call>{"name": "find_lamp", "arguments": {"room": "room61"}}</tool_call>\n'
    '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>',
    "<tool_call>{'name': 'find_lamp', 'arguments': {'room': 'room62'}}</tool_call>",
    '<tool_call>{"name": "find_lamp", "arguments": {"room": "a room whose name is far too l',
    "</tool_call>",
]
"""Text, a malformed call, two calls of which one has an unknown tool, a repaired call, a truncated call, a tag."""


def test_every_kind_of_reply_gives_the_same_episode(folder: Path) -> None:
    def reply(prompt: str) -> str:
        return REPLIES[prompt.count("<|im_start|>assistant") - 1]

    model, script = make_scripted_model(folder, reply)
    long = SamplingParams(max_response_tokens=140, temperature=0.0)
    here = play_all(EngineAgent(script, model.format, long))
    prompts, script.prompts = script.prompts, []
    with serve_on_loopback(model) as url:
        there = play_all(make_agent("api", make_config(url, max_tokens=140)))
    assert_same_episodes(here, there)
    assert sorted(prompts) == sorted(script.prompts)
    malformed = [call.parse_error for m in there[0].messages for call in m.tool_calls if call.parse_error]
    assert len(malformed) == 3
    assert "oops" in malformed[0]


def lamp_agent_reply(tool_format: str) -> Any:
    """Return a script that asks for consent, switches the user's lamp on by a call, and confirms."""

    def reply(prompt: str) -> str:
        name = re.findall(r"switch on lamp (L\d+)", prompt)[-1]
        last = prompt.rpartition("<|im_start|>user")[2]
        if re.search("Observation|<tool_response>", last):
            return f"Lamp {name} is on."
        call = ToolCall(name="switch_lamp", arguments={"lamp_id": name, "on": True})
        asked = f"I will switch on lamp {name}. Do you want me to proceed?"
        return render_reply("", (call,), tool_format) if gives_consent(last) else asked

    return reply


@pytest.mark.parametrize("tool_format", ["native", "hermes", "json", "react", "qwen3_coder"])
def test_agent_solves_tasks_in_every_tool_format(folder: Path, tool_format: str) -> None:
    model, script = make_scripted_model(folder, lamp_agent_reply("hermes" if tool_format == "native" else tool_format))
    with serve_on_loopback(model) as url:
        done = play_all(make_agent("api", make_config(url, tool_format=tool_format)), TASKS[:2])
    for episode in done:
        assert (episode.reward, episode.stop_reason, episode.error) == (1.0, StopReason.DONE, "")
        assert episode.event_counts["tool_calls"] > 0
        assert "repaired" not in episode.event_counts
    shown = model.vocabulary.decode(script.prompts[-1])
    assert "find_lamp" in shown
    assert ("# Tools\nfind_lamp(" in shown) == (tool_format != "native")


def test_render_as_text_converts_calls_and_results() -> None:
    call, broken = ToolCall(name="f", arguments={"a": 1}, id="x"), ToolCall(name="", parse_error="no JSON", id="y")
    talk = [
        Message(role="user", content="go"),
        Message(role="assistant", content="So:", tool_calls=(call, broken)),
        Message(role="tool", content="one", tool_call_id="x"),
        Message(role="tool", content="two", tool_call_id="y"),
    ]
    rendered = render_as_text(talk, DOMAIN.tool_specs, "json")
    assert [m.role for m in rendered] == ["system", "user", "assistant", "user"]
    assert not any(m.tool_calls or m.tool_call_id for m in rendered)
    assert rendered[2].content == 'So:\n{"name": "f", "arguments": {"a": 1}}\n{"name": "unknown", "arguments": {}}'
    assert rendered[3].content == "<tool_response>\none\n</tool_response>\n\n<tool_response>\ntwo\n</tool_response>"
    assert rendered[0].content.count("switch_lamp") == 1
    assert '{"name": "find_lamp", "arguments": {"room": "..."}}' in rendered[0].content
    assert render_as_text([Message(role="system", content="policy"), talk[0]], (), "json")[0].content == "policy"
    read = parse_message('Action: find_lamp\nAction Input: {"room": "a",}', "react", DOMAIN.tool_specs)
    assert (read.message.tool_calls[0].arguments, read.repairs) == ({"room": "a"}, {"commas": 1})


def test_truncated_call_in_text_is_malformed(folder: Path) -> None:
    written = '{"name": "find_lamp", "arguments": {"room": "a"'
    model, _ = make_scripted_model(folder, lambda _: written + ', "more": 1}}')
    with serve_on_loopback(model) as url:
        chat = ChatModel(make_config(url, tool_format="json", max_tokens=len(written)).endpoints["default"], "agent")
        reply = asyncio.run(chat.generate([Message(role="user", content="go")], DOMAIN.tool_specs))
    (call,) = reply.message.tool_calls
    assert call.name == "find_lamp"
    assert call.parse_error
    assert (reply.finish_reason, reply.repairs["truncated"]) == ("length", 1)


@pytest.mark.parametrize(
    ("agent", "tool_format", "said"),
    [
        ("native", "hermes", r"'native'.*\bapi\b"),
        ("api", "hermse", r"\btool_format: .*'hermse'.*'hermes'"),
    ],
)
def test_unknown_agent_or_tool_format_raises_config_error(agent: str, tool_format: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_agent(
            agent, parse_config("", ["endpoints.default.model=m", f"endpoints.default.tool_format={tool_format}"])
        )


def test_served_model_simulates_the_user(folder: Path) -> None:
    def reply(prompt: str) -> str:
        said = prompt.rpartition("<|im_start|>user\n")[2]
        return "Yes, please." if "Do you want me to proceed?" in said else "###STOP###"

    model, _ = make_scripted_model(folder, reply)
    with serve_on_loopback(model) as url:
        users = UserSimulatorFactory(UserConfig(kind="llm"), make_config(url).endpoints)
        domain = DOMAIN.with_users(users)
        episode = asyncio.run(play_episode(domain, TASKS[0], GoldAgent(), LIMITS, 1))
    assert (episode.reward, episode.error) == (1.0, "")
    assert users.usage.requests == 2


def test_user_simulator_with_tools_calls_them_in_text(folder: Path) -> None:
    def reply(prompt: str) -> str:
        shown = prompt.rpartition("<|im_start|>user\n")[2].startswith("<tool_response>\nL61")
        return "It is L61." if shown else '{"name": "find_lamp", "arguments": {"room": "room61"}}'

    model, script = make_scripted_model(folder, reply)
    said = [Message(role="user", content="Hello."), Message(role="assistant", content="Which lamp is in room61?")]
    with serve_on_loopback(model) as url:
        chat = ChatModel(make_config(url, tool_format="json", max_tokens=80).endpoints["default"], "user")
        user = LLMUser(TASKS[0].scenario, chat, user_tools=LampTools(build_house()))
        assert asyncio.run(user.reply(said)) == "It is L61."
    assert len(script.prompts) == 2


def test_human_user_talks_to_a_served_model(folder: Path) -> None:
    model, _ = make_scripted_model(folder, lamp_agent_reply("hermes"))
    typed = iter(["Please switch on lamp L61.", "Yes."])
    shown: list[str] = []

    def ask(_: str) -> str:
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    with serve_on_loopback(model) as url:
        played_by(
            DOMAIN, TASKS[0], "user", make_agent("api", make_config(url)), person=TerminalPlayer(ask, shown.append)
        )
    assert any("Lamp L61 is on." in text for text in shown)


def test_eval_command_gives_the_same_result_at_the_server(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def eval_result(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["understudy", "eval", "toy:DOMAIN", *arguments, "--tasks", "4", "--json"])
        with pytest.raises(SystemExit):
            main()
        found = json.loads(capsys.readouterr().out)["rows"][2]["result"]
        rewards = [(r["task"], r["rewards"]) for r in found["task_results"]]
        return rewards, found["mean_parts"], found["stop_counts"], found["mean_turns"]

    ours = eval_result(
        f"model={folder}", "engine.dtype=float32", "limits.max_turns=3", "sampling.max_response_tokens=24"
    )
    with serve_on_loopback(load_tiny_served_model(folder)) as url:
        there = [
            f"endpoints.default.base_url={url}",
            "endpoints.default.model=tiny",
            "endpoints.default.max_tokens=24",
            "endpoints.default.temperature=0",
        ]
        theirs = eval_result("--agent", "api", *there, "limits.max_turns=3")
    assert ours == theirs
