"""Agents and users at our own server: the same episodes as with the model in this process, with calls and as text."""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from serving import scripted, served, serving, small
from toy import DOMAIN, LampTools, house
from understudy.agent import Agent, EngineAgent, GoldAgent
from understudy.chat import ChatConfig, ChatModel
from understudy.cli import main
from understudy.config import TrainConfig
from understudy.engines.base import Sampling
from understudy.errors import ConfigError
from understudy.evaluate import held_out
from understudy.formats.parse import parsed, render
from understudy.formats.told import spelled
from understudy.messages import Message, ToolCall
from understudy.play import Person
from understudy.play import play as played_by
from understudy.players import named_agent
from understudy.rollout import Limits, play
from understudy.settings import parse
from understudy.tasks import Task
from understudy.trajectory import Stop, Trajectory
from understudy.users import Cast, UserConfig
from understudy.users.language import LanguageUser

pytest.importorskip("torch")

TASKS = held_out(DOMAIN, "test", 6)
LIMITS = Limits(max_turns=6, retries=0)
GREEDY = Sampling(max_tokens=48, temperature=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("small"))


def config(url: str, **chat: Any) -> TrainConfig:
    base = {"base_url": url, "model": "tiny", "temperature": 0.0, "max_tokens": 300, "retries": 0, "timeout": 60.0}
    return TrainConfig(chat=ChatConfig(**{**base, **chat}))


def episodes(agent: Agent, tasks: Sequence[Task] = TASKS) -> list[Trajectory]:
    async def all_of_them() -> list[Trajectory]:
        return await asyncio.gather(*(play(DOMAIN, task, agent, LIMITS, seed) for seed, task in enumerate(tasks)))

    return asyncio.run(all_of_them())


def without_ids(episode: Trajectory) -> list[Message]:
    return [
        m.replace(tool_call_id="", tool_calls=tuple(call.replace(id="") for call in m.tool_calls))
        for m in episode.messages
    ]


def assert_same(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> None:
    for here, there in zip(ours, theirs, strict=True):
        assert (there.fault, there.error) == (None, "")
        assert without_ids(here) == without_ids(there)
        assert (here.reward, here.stop) == (there.reward, there.stop)


def test_a_served_model_plays_the_same_episodes(folder: Path) -> None:
    model = served(folder, concurrency=4)
    here = episodes(EngineAgent(model.sampler, model.format, GREEDY))
    prompts = []
    with serving(model) as url:
        there = episodes(named_agent("native", config(url, max_tokens=48)))
        prompts = list(model.memory._kept.values())
    assert_same(here, there)
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
"""Text, a call that cannot be read, two calls of which one is of no tool, a repaired one, one cut off, a stray tag."""


def test_every_kind_of_reply_comes_through(folder: Path) -> None:
    def reply(prompt: str) -> str:
        return REPLIES[prompt.count("<|im_start|>assistant") - 1]

    model, script = scripted(folder, reply)
    long = Sampling(max_tokens=140, temperature=0.0)
    here = episodes(EngineAgent(script, model.format, long))
    prompts, script.prompts = script.prompts, []
    with serving(model) as url:
        there = episodes(named_agent("chat", config(url, max_tokens=140)))
    assert_same(here, there)
    assert sorted(prompts) == sorted(script.prompts)
    malformed = [call.malformed for m in there[0].messages for call in m.tool_calls if call.malformed]
    assert len(malformed) == 3
    assert "oops" in malformed[0]


def lamps(dialect: str) -> Any:
    """What finds the lamp that is wanted in the prompt, asks, switches it on with a call in a dialect, and says so."""

    def reply(prompt: str) -> str:
        name = re.findall(r"switch on lamp (L\d+)", prompt)[-1]
        last = prompt.rpartition("<|im_start|>user")[2]
        if re.search("Observation|<tool_response>", last):
            return f"Lamp {name} is on."
        call = ToolCall(name="switch_lamp", arguments={"lamp_id": name, "on": True})
        asked = f"I will switch on lamp {name}. Do you want me to proceed?"
        return render("", (call,), dialect) if last.strip().startswith("Yes") else asked

    return reply


@pytest.mark.parametrize("tools", ["native", "hermes", "json", "react", "qwen3_coder"])
def test_tools_by_calls_and_by_text(folder: Path, tools: str) -> None:
    model, script = scripted(folder, lamps("hermes" if tools == "native" else tools))
    with serving(model) as url:
        done = episodes(named_agent("chat", config(url, tools=tools)), TASKS[:2])
    for episode in done:
        assert (episode.reward, episode.stop, episode.error) == (1.0, Stop.DONE, "")
        assert episode.counts["calls"] > 0
        assert "repaired" not in episode.counts
    shown = model.vocabulary.decode(script.prompts[-1])
    assert "find_lamp" in shown
    assert ("# Tools\nfind_lamp(" in shown) == (tools != "native")


def test_what_text_makes_of_calls_and_results() -> None:
    call, broken = ToolCall(name="f", arguments={"a": 1}, id="x"), ToolCall(name="", malformed="no JSON", id="y")
    talk = [
        Message(role="user", content="go"),
        Message(role="assistant", content="So:", tool_calls=(call, broken)),
        Message(role="tool", content="one", tool_call_id="x"),
        Message(role="tool", content="two", tool_call_id="y"),
    ]
    told = spelled(talk, DOMAIN.specs, "json")
    assert [m.role for m in told] == ["system", "user", "assistant", "user"]
    assert not any(m.tool_calls or m.tool_call_id for m in told)
    assert told[2].content == 'So:\n{"name": "f", "arguments": {"a": 1}}\n{"name": "unknown", "arguments": {}}'
    assert told[3].content == "<tool_response>\none\n</tool_response>\n\n<tool_response>\ntwo\n</tool_response>"
    assert told[0].content.count("switch_lamp") == 1
    assert '{"name": "find_lamp", "arguments": {"room": "..."}}' in told[0].content
    assert spelled([Message(role="system", content="policy"), talk[0]], (), "json")[0].content == "policy"
    read = parsed('Action: find_lamp\nAction Input: {"room": "a",}', "react", DOMAIN.specs)
    assert (read.message.tool_calls[0].arguments, read.repairs) == ({"room": "a"}, {"commas": 1})


def test_a_call_in_text_that_is_cut_off_is_not_run(folder: Path) -> None:
    written = '{"name": "find_lamp", "arguments": {"room": "a"'
    model, _ = scripted(folder, lambda _: written + ', "more": 1}}')
    with serving(model) as url:
        chat = ChatModel(config(url, tools="json", max_tokens=len(written)).chat, "agent")
        reply = asyncio.run(chat.reply([Message(role="user", content="go")], DOMAIN.specs))
    (call,) = reply.message.tool_calls
    assert call.name == "find_lamp"
    assert call.malformed.startswith("the call is cut off")
    assert (reply.finish, reply.repairs["truncated"]) == ("length", 1)


@pytest.mark.parametrize(
    ("agent", "tools", "said"),
    [
        ("native", "hermes", "agent native uses the endpoint's own tool calls, and chat.tools is 'hermes'"),
        ("chat", "hermse", "tools: unknown dialect 'hermse'; did you mean 'hermes'?"),
    ],
)
def test_agents_and_dialects_that_are_not_there(agent: str, tools: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        named_agent(agent, parse(TrainConfig, "", ["chat.model=m", f"chat.tools={tools}"]))


def test_a_served_model_plays_the_user(folder: Path) -> None:
    def reply(prompt: str) -> str:
        said = prompt.rpartition("<|im_start|>user\n")[2]
        return "Yes, please." if "Do you want me to proceed?" in said else "###STOP###"

    model, _ = scripted(folder, reply)
    with serving(model) as url:
        users = Cast(UserConfig(kind="llm", chat=config(url).chat))
        domain = DOMAIN.with_users(users)
        episode = asyncio.run(play(domain, TASKS[0], GoldAgent(), LIMITS, 1))
    assert (episode.reward, episode.error) == (1.0, "")
    assert users.usage.requests == 2


def test_a_user_with_tools_of_their_own_writes_calls_as_text(folder: Path) -> None:
    def reply(prompt: str) -> str:
        shown = prompt.rpartition("<|im_start|>user\n")[2].startswith("<tool_response>\nL61")
        return "It is L61." if shown else '{"name": "find_lamp", "arguments": {"room": "room61"}}'

    model, script = scripted(folder, reply)
    said = [Message(role="user", content="Hello."), Message(role="assistant", content="Which lamp is in room61?")]
    with serving(model) as url:
        chat = ChatModel(config(url, tools="json", max_tokens=80).chat, "user")
        user = LanguageUser(TASKS[0].scenario, chat, device=LampTools(house()))
        assert asyncio.run(user.reply(said)) == "It is L61."
    assert len(script.prompts) == 2


def test_a_person_meets_a_served_model(folder: Path) -> None:
    model, _ = scripted(folder, lamps("hermes"))
    typed = iter(["Please switch on lamp L61.", "Yes."])
    shown: list[str] = []

    def ask(_: str) -> str:
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    with serving(model) as url:
        played_by(DOMAIN, TASKS[0], "user", named_agent("native", config(url)), person=Person(ask, shown.append))
    assert any("Lamp L61 is on." in text for text in shown)


def test_evaluation_from_the_command_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def rows(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["understudy", "eval", "toy:DOMAIN", *arguments, "--tasks", "4", "--json"])
        with pytest.raises(SystemExit):
            main()
        found = json.loads(capsys.readouterr().out)["rows"][2]["evaluation"]
        return [(r["task"], r["rewards"]) for r in found["results"]], found["parts"], found["stops"], found["turns"]

    ours = rows(f"model={folder}", "engine.dtype=float32", "limits.max_turns=3", "sampling.max_tokens=24")
    with serving(served(folder)) as url:
        there = [f"chat.base_url={url}", "chat.model=tiny", "chat.max_tokens=24", "chat.temperature=0"]
        theirs = rows("--agent", "chat", *there, "limits.max_turns=3")
    assert ours == theirs
