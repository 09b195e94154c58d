"""Tests of programs that play episodes: what they get, how their episodes are graded, and whose fault a failure is."""

import asyncio
import functools
import json
import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client

from support.replying import Reply, ReplySampler, say
from support.tiny_runs import make_tiny_model
from toy import DOMAIN
from understudy.core.errors import ConfigError, LimitReachedError, RolloutError, TaskError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.interface import Completion, SamplingParams
from understudy.formats import FormatTokenizer
from understudy.rollouts import program_processes
from understudy.rollouts.program import ProgramAgent, ProgramEpisode, validate_program
from understudy.rollouts.program_config import ProgramConfig
from understudy.rollouts.program_reward import RecordedEpisode
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.serve.generation import ServedModel
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

LIMITS = EpisodeLimits(max_retries=0)
COMMAND = """
import json, os, sys, urllib.request
prompt = json.loads(os.environ["UNDERSTUDY_PROMPT"])
def ask(messages):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]
"""
"""The beginning of a program without packages."""


class SumEpisode(ToolEpisode):
    """A question whose tools know the numbers. A user asks again once."""

    def look_up(self, name: str) -> int:
        """Return a number by its name."""
        return {"a": 40, "b": 2}[name]

    def env_response(self, transcript: Sequence[Message]) -> str | None:
        return "Are you sure?" if transcript[-1].content == "maybe" else None

    def reward(self, transcript: Sequence[Message]) -> float:
        return float(transcript[-1].content == "42")


SUMS = ToolDataset("sums", "Be brief.", [ToolExample(prompt="What is a + b?", split="train")], SumEpisode)
TASK = SUMS.tasks("train")[0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def play(
    tiny: Path,
    config: ProgramConfig,
    reply: str | Reply = "42",
    limits: EpisodeLimits = LIMITS,
    source: ToolDataset = SUMS,
) -> Trajectory:
    """Play one episode of the sum. Check that each sampled token is in one mask."""

    async def playing() -> Trajectory:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))  # programs must not need it
        sampler = ReplySampler(tiny, say(reply) if isinstance(reply, str) else reply)
        vocabulary = FormatTokenizer.load(tiny / "tokenizer.json")
        model, sampling = (
            ServedModel("tiny", sampler, sampler.format, vocabulary),
            SamplingParams(max_response_tokens=500),
        )
        agent = ProgramAgent(config, model, sampling)
        episode = await play_episode(source, source.tasks("train")[0], agent, limits, seed=3)
        assert episode.num_sampled_tokens == sum(len(tokens) for _, tokens in sampler.calls)
        return episode

    return asyncio.run(playing())


def run_command(tiny: Path, folder: Path, code: str, **settings: Any) -> Trajectory:
    """Play an episode with a program that begins with COMMAND."""
    (folder / "agent.py").write_text(COMMAND + code)
    limits = settings.pop("limits", LIMITS)
    return play(tiny, ProgramConfig(command=f"{sys.executable} {folder / 'agent.py'}", **settings), limits=limits)


def run_function(
    monkeypatch: pytest.MonkeyPatch,
    tiny: Path,
    function: Callable[[ProgramEpisode], Any],
    reply: str | Reply = "42",
    **settings: Any,
) -> Trajectory:
    """Play an episode with a function."""
    monkeypatch.setattr(sys.modules[__name__], "program", function, raising=False)
    limits, source = settings.pop("limits", LIMITS), settings.pop("source", SUMS)
    return play(tiny, ProgramConfig(function=f"{__name__}:program", **settings), reply, limits, source)


async def ask(given: ProgramEpisode, *messages: Any) -> str:
    """Request a reply, as a client of the OpenAI API does."""
    async with httpx2.AsyncClient(verify=False, trust_env=False, timeout=60) as client:
        answer = await client.post(
            f"{given.base_url}/chat/completions",
            json={"model": "any", "messages": [*given.prompt, *messages]},
            headers={"Authorization": f"Bearer {given.api_key}"},
        )
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def test_last_text_of_a_command_is_its_answer(tiny: Path, tmp_path: Path) -> None:
    episode = run_command(tiny, tmp_path, "print(ask(prompt))")
    assert (episode.reward, episode.stop_reason, episode.num_turns) == (1.0, StopReason.DONE, 1)
    assert [message.role for message in episode.messages] == ["system", "user", "assistant"]
    assert episode.timings["program"] > 0


def test_command_may_rewrite_its_history(tiny: Path, tmp_path: Path) -> None:
    code = "ask(prompt); ask([{'role': 'user', 'content': 'Summary: a + b'}])"
    episode = run_command(tiny, tmp_path, code)
    assert (episode.reward, len(episode.sequences), episode.num_turns) == (1.0, 2, 2)


def test_command_gets_no_keys_but_those_that_the_config_names(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_API_KEY", "s3")
    monkeypatch.setenv("BILLING_API_KEY", "b4")
    seen = tmp_path / "seen.json"
    code = f"ask(prompt); json.dump(dict(os.environ), open({str(seen)!r}, 'w'))"
    run_command(tiny, tmp_path, code, variables=("SEARCH_API_KEY",))
    found = json.loads(seen.read_text())
    assert found["SEARCH_API_KEY"] == "s3"
    assert "BILLING_API_KEY" not in found
    assert found["UNDERSTUDY_TASK"] == TASK.id
    assert found["OPENAI_API_KEY"] in found["UNDERSTUDY_MCP_URL"]


@pytest.mark.parametrize(("given", "kept"), [("corp.example", "corp.example,127.0.0.1,localhost"), ("*", "*")])
def test_command_reaches_the_model_without_the_proxy_of_the_environment(
    given: str, kept: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", given)
    monkeypatch.delenv("no_proxy", raising=False)
    seen = tmp_path / "seen.json"
    episode = run_command(tiny, tmp_path, f"ask(prompt); json.dump(dict(os.environ), open({str(seen)!r}, 'w'))")
    assert (episode.reward, episode.error) == (1.0, "")
    found = json.loads(seen.read_text())
    assert (found["no_proxy"], found["NO_PROXY"]) == (kept, kept)


def test_prompt_of_a_command_is_short_json_without_lone_surrogates() -> None:
    given = ProgramEpisode("t", [{"role": "user", "content": "订单 \ud83d"}], "", "", "", "")
    text = given.variables["UNDERSTUDY_PROMPT"]
    assert "订单" in text
    assert json.loads(text) == [{"role": "user", "content": "订单 ?"}]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of one variable is Linux's")
def test_prompt_that_no_variable_can_hold_is_a_fault_with_its_size() -> None:
    given = ProgramEpisode("t", ["x" * 131_072], "", "", "", "")  # type: ignore[list-item]
    with pytest.raises(RolloutError, match=r"131,076.*agent\.function.*agent\.url") as caught:
        asyncio.run(program_processes.run_command(ProgramConfig(command="true"), given))
    assert (caught.value.fault, caught.value.is_repeatable) == ("agent", False)


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("ask(prompt); print('why'); sys.exit(3)", r"status 3: why$"),
        ("ask(prompt); raise KeyError('lost')", r"status 1: .*KeyError: 'lost'$"),
        ("", r"no request.*OPENAI_BASE_URL"),
        ("ask(prompt)\nwhile True: pass", r"agent\.max_seconds"),
        ("ask(prompt); os.kill(os.getpid(), 9)", r"status -9"),
        ("ask(prompt); sys.stdout.write('x\\n' * 3_000_000 + 'end'); sys.exit(1)", r"status 1: (x \| )+end$"),
    ],
)
def test_failure_of_a_program_is_a_fault_of_the_agent(code: str, named: str, tiny: Path, tmp_path: Path) -> None:
    episode = run_command(tiny, tmp_path, code, max_seconds=3 if "while" in code else 60)
    assert (episode.fault, episode.stop_reason, episode.score) == ("agent", StopReason.FAULT, None)
    assert re.search(named, episode.error), episode.error


LOOK_UP = ToolCall(name="look_up", arguments={"name": "a"})


@pytest.mark.parametrize(
    ("call", "goes_on", "fault"),
    [
        (LOOK_UP.replace(name="search"), False, None),
        (LOOK_UP.replace(arguments={}), False, None),
        (LOOK_UP.replace(arguments={"name": "a", "limit": 3}), False, None),
        ("<tool_call>{oops</tool_call>", False, None),
        ("word " * 501, False, None),  # longer than a reply may be
        (LOOK_UP, False, "agent"),
        (LOOK_UP.replace(name="note"), False, "agent"),  # whose schema allows any arguments
        (LOOK_UP.replace(name="search"), True, "agent"),  # the program has had an answer to a further request
    ],
)
def test_failure_directly_after_a_wrong_call_is_graded(
    call: ToolCall | str, goes_on: bool, fault: str | None, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = () if isinstance(call, str) else (call,)
    replies = iter(
        [
            Message(role="assistant", content="" if calls else str(call), tool_calls=calls),
            Message(role="assistant", content="42"),
        ]
    )

    async def program(given: ProgramEpisode) -> None:
        await ask_with_tools(given)
        if goes_on:
            await ask_with_tools(given)
        raise KeyError("search")

    episode = run_function(monkeypatch, tiny, program, lambda prompt, seed: next(replies))
    assert (episode.fault, "KeyError: 'search'" in episode.error) == (fault, True)
    assert episode.event_counts.get("program/wrong_call", 0) == int(fault is None)
    if fault is None:
        assert (episode.stop_reason, episode.reward, episode.num_turns) == (StopReason.DONE, 0.0, 1)


def test_what_a_command_leaves_running_is_killed(tiny: Path, tmp_path: Path) -> None:
    code = "ask(prompt); import subprocess; print(subprocess.Popen(['sleep', '600']).pid, file=open('pid', 'w'))"
    code = code.replace("'pid'", repr(str(tmp_path / "pid")))
    assert run_command(tiny, tmp_path, code).reward == 1.0
    process = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{process}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


DIES = """
import socket
host, port = os.environ["OPENAI_BASE_URL"].split("/")[2].split(":")
for _ in range(20):
    body = json.dumps({"model": "any", "messages": prompt, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: {host}\\r\\nContent-Type: application/json\\r\\n"
    head += f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
    sent = socket.create_connection((host, int(port)))
    sent.sendall(head.encode() + body)
    sent.recv(1)
sys.exit(5)
"""
"""Reads one byte of each reply."""


def test_program_that_floods_and_dies_while_replies_arrive_is_a_fault(tiny: Path, tmp_path: Path) -> None:
    episode = run_command(tiny, tmp_path, DIES)
    assert (episode.fault, episode.num_turns) == ("agent", 20)
    assert "status 5" in episode.error
    assert run_command(tiny, tmp_path, "ask(prompt)").reward == 1.0, "the next episode has an endpoint"


def test_flood_of_requests_ends_at_the_limit(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(given: ProgramEpisode) -> None:
        await asyncio.gather(*(ask(given) for _ in range(40)), return_exceptions=True)

    episode = run_function(monkeypatch, tiny, program, limits=EpisodeLimits(max_turns=5, max_retries=0))
    assert (episode.stop_reason, episode.num_turns, episode.fault) == (StopReason.MAX_TURNS, 5, None)
    assert episode.event_counts["program/chat"] == 40


def test_limit_ends_an_episode_without_a_fault(tiny: Path, tmp_path: Path) -> None:
    """The program crashes, because its third request is refused."""
    episode = run_command(tiny, tmp_path, "while True: ask(prompt)", limits=EpisodeLimits(max_turns=2, max_retries=0))
    assert (episode.stop_reason, episode.num_turns, episode.fault) == (StopReason.MAX_TURNS, 2, None)
    assert episode.score == Score(reward=0.0, parts=episode.score.parts if episode.score else {})


class MaskingSampler(ReplySampler):
    """A sampler that records sampling masks."""

    async def sample(self, *arguments: Any, **named: Any) -> Completion:
        completion = await super().sample(*arguments, **named)
        return replace(completion, sampling_masks=[(token, 255) for token in completion.tokens])


def test_episodes_of_programs_have_the_sampling_masks(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ReplySampler", MaskingSampler)

    async def program(given: ProgramEpisode) -> None:
        await ask(given)
        await ask(given, {"role": "user", "content": "Are you sure?"})

    episode = run_function(monkeypatch, tiny, program)
    sampled = [[t for t, m in zip(one.tokens, one.mask, strict=True) if m] for one in episode.sequences]
    assert len(sampled) == 2
    assert [one.sampling_masks for one in episode.sequences] == [[(t, 255) for t in tokens] for tokens in sampled]


def test_invalid_replies_in_a_row_end_the_episode(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses, texts = list[int](), list[str]()

    async def program(given: ProgramEpisode) -> None:
        for _ in range(4):
            try:
                await ask(given)
                statuses.append(200)
            except httpx2.HTTPStatusError as refusal:
                statuses.append(refusal.response.status_code)
                texts.append(refusal.response.text)

    limits = EpisodeLimits(max_invalid_replies=2, max_retries=0)
    monkeypatch.setattr(sys.modules[__name__], "program", program, raising=False)
    episode = play(tiny, ProgramConfig(function=f"{__name__}:program"), "<tool_call>{oops</tool_call>", limits=limits)
    assert statuses == [200, 200, 400, 400]
    assert all("limits.max_invalid_replies = 2" in text for text in texts)
    assert (episode.stop_reason, episode.num_turns, episode.fault) == (StopReason.INVALID_REPLIES, 2, None)
    assert episode.event_counts["malformed"] == 2


def test_function_uses_the_tools_and_the_user_of_the_episode(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def program(given: ProgramEpisode) -> None:
        await ask(given)
        async with Client(given.mcp_url) as client:
            listed = await client.list_tools()
            seen.append([tool.name for tool in listed.tools])
            for name, arguments in (
                ("look_up", {"name": "a"}),
                ("look_up", {"name": "c"}),
                ("send_message", {"text": "maybe"}),
                ("send_message", {"text": "42"}),
                ("look_up", {"name": "a"}),
            ):
                result = await client.call_tool(name, arguments)
                seen.append((bool(result.is_error), getattr(result.content[0], "text", "")))

    episode = run_function(monkeypatch, tiny, program)
    tools, first, unknown, user, end, late = seen
    assert tools == ["look_up", "send_message"]
    assert first == (False, "40")
    assert unknown[0]
    assert "KeyError" in unknown[1]
    assert user == (False, "Are you sure?")
    assert not end[0]
    assert late == (True, "the episode has ended")
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.DONE)
    assert episode.event_counts["tool_exception"] == 1


@pytest.mark.parametrize("error", [ConfigError("no endpoint"), LimitReachedError("too dear"), TaskError("no data")])
def test_error_that_ends_a_run_is_not_hidden_by_a_program_that_goes_on(
    error: Exception, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    async def program(given: ProgramEpisode) -> str:
        await ask(given)
        async with Client(given.mcp_url) as client:
            result = await client.call_tool("send_message", {"text": "maybe"})
            told.append(getattr(result.content[0], "text", ""))
        return "42"

    def fail(self: SumEpisode, transcript: Sequence[Message]) -> str:
        raise error

    monkeypatch.setattr(SumEpisode, "env_response", fail)
    with pytest.raises(type(error), match=str(error)):
        run_function(monkeypatch, tiny, program)
    assert len(told) == 1
    assert str(error) not in told[0]


class ChatEpisode(ToolEpisode):
    """A task whose own tool has the usual name of the user's tool."""

    def send_message(self, receiver: str) -> str:
        """Send a message to a colleague."""
        return f"sent to {receiver}"

    def reward(self, transcript: Sequence[Message]) -> float:
        return float([message.content for message in transcript[-2:]] == ["sent to ada", "done"])


CHAT = ToolDataset("chat", "", [ToolExample(prompt="Greet ada.", split="train")], ChatEpisode)


def test_own_tool_of_a_source_keeps_its_name_beside_the_tool_of_the_user(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []

    async def program(given: ProgramEpisode) -> None:
        await ask(given)
        async with Client(given.mcp_url) as client:
            listed.extend(tool.name for tool in (await client.list_tools()).tools)
            await client.call_tool("send_message", {"receiver": "ada"})
            await client.call_tool("send_message_to_user", {"text": "done"})

    episode = run_function(monkeypatch, tiny, program, source=CHAT)
    assert listed == ["send_message", "send_message_to_user"]
    assert (episode.reward, episode.error) == (1.0, "")


def reward_of_texts(recorded: RecordedEpisode) -> float:
    """A reward of the recorded episode: half for each of two replies, if the answer is the last of them."""
    texts = [s.messages[i].content for s in recorded.episode.sequences for i in s.reply_indices]
    assert recorded.task.id == TASK.id
    return 0.5 * len(texts) if recorded.answer == texts[-1] else 0.0


async def failing_reward(recorded: RecordedEpisode) -> float:
    raise KeyError("key")


def large_reward(recorded: RecordedEpisode) -> float:
    return 7


async def post(given: ProgramEpisode, content: bytes, url: str = "", kind: str = "application/json") -> httpx2.Response:
    """Post a result."""
    async with httpx2.AsyncClient(verify=False, trust_env=False) as client:
        return await client.post(url or given.result_url, content=content, headers={"Content-Type": kind})


@pytest.mark.parametrize(
    ("uses_tools", "function", "posts", "reward"),
    [
        (True, True, True, 0.0),  # of the environment, for which the answer is wrong
        (False, True, True, 1.0),  # of the function
        (False, False, True, 0.25),
        (False, False, False, 0.0),
    ],
)
def test_reward_is_of_the_first_of_its_sources(
    uses_tools: bool, function: bool, posts: bool, reward: float, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(given: ProgramEpisode) -> None:
        await ask(given)
        await ask(given)
        if uses_tools:
            async with Client(given.mcp_url) as client:
                await client.call_tool("look_up", {"name": "a"})
        if posts:
            assert (await post(given, b'{"reward": 0.25, "parts": {"style": 1.0}}')).status_code == 200

    named = f"{__name__}:reward_of_texts" if function else ""
    episode = run_function(monkeypatch, tiny, program, "41", reward=named)
    assert (episode.reward, episode.fault) == (reward, None)
    assert episode.event_counts.get("program/unused_result", 0) == int(posts and (uses_tools or function))
    assert episode.score is not None
    if reward == 0.25:
        assert episode.score.parts == {"style": 1.0}


@pytest.mark.parametrize(("name", "said"), [("failing_reward", "KeyError: 'key'"), ("large_reward", "7")])
def test_failure_of_the_reward_function_is_a_fault_of_the_grader(
    name: str, said: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = run_function(monkeypatch, tiny, ask, reward=f"{__name__}:{name}")
    assert (episode.fault, episode.score) == ("grader", None)
    assert said in episode.error


def test_wrong_result_is_refused_with_its_reason(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[tuple[int, Any]] = []

    async def program(given: ProgramEpisode) -> None:
        await ask(given)
        foreign = given.result_url.partition("=")[0] + "=sk-other"
        for content, url, kind in (
            (b"0.5 points", "", "application/json"),
            (b"[0.5]", "", "application/json"),
            (b'{"reward": 0.5}', "", "text/plain"),
            (b'{"reward": true}', "", "application/json"),
            (b'{"reward": 1.5}', "", "application/json"),
            (b'{"reward": NaN}', "", "application/json"),
            (b'{"score": 1}', "", "application/json"),
            (b'{"reward": 1, "parts": {"a": -1}}', "", "application/json"),
            (b'{"reward": 0.5}', foreign, "application/json"),
            (b'{"reward": 0.5}', "", "application/json"),
            (b'{"reward": 1.0}', "", "application/json"),
        ):
            answer = await post(given, content, url, kind)
            error = answer.json().get("error", {})
            answers.append((answer.status_code, error.get("param") or error.get("code")))
        async with httpx2.AsyncClient(verify=False, trust_env=False) as client:
            url, _, key = given.result_url.partition("?episode=")
            answer = await client.post(url, json={"reward": 1.0}, headers={"Authorization": f"Bearer {key}"})
            answers.append((answer.status_code, answer.json()["error"]["code"]))

    episode = run_function(monkeypatch, tiny, program)
    assert answers == [
        (400, None),
        (400, None),
        (415, "unsupported_media_type"),
        (400, "reward"),
        (400, "reward"),
        (400, None),
        (400, "reward"),
        (400, "parts.a"),
        (401, "invalid_api_key"),
        (200, None),
        (409, "already_posted"),
        (409, "already_posted"),
    ]
    assert episode.reward == 0.5


def call_twice(content: str) -> Reply:
    """A model that makes two calls at once and then answers."""
    calls = tuple(ToolCall(name="look_up", arguments={"name": name}) for name in "ab")
    replies = iter([Message(role="assistant", content=content, tool_calls=calls), *[Message(role="assistant")] * 9])
    return lambda prompt, seed: next(replies)


def test_calls_of_one_reply_are_one_reply_of_the_transcript(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transcripts: list[list[Message]] = []

    async def program(given: ProgramEpisode) -> None:
        await ask_with_tools(given)
        async with Client(given.mcp_url) as client:
            for name in ("a", "b", "a"):
                await client.call_tool("look_up", {"name": name})
            await client.call_tool("send_message", {"text": "42"})

    def reward(self: SumEpisode, transcript: Sequence[Message]) -> float:
        transcripts.append(list(transcript))
        return 1.0

    monkeypatch.setattr(SumEpisode, "reward", reward)
    episode = run_function(monkeypatch, tiny, program, call_twice("I look."))
    assert episode.reward == 1.0
    *_, both, first, second, own, third, last = transcripts[-1]
    assert (both.content, [call.arguments for call in both.tool_calls]) == ("I look.", [{"name": "a"}, {"name": "b"}])
    assert [(m.content, m.tool_call_id) for m in (first, second)] == [
        (text, call.id) for text, call in zip(("40", "2"), both.tool_calls, strict=True)
    ]
    assert (own.content, len(own.tool_calls), third.content, last.content) == ("", 1, "40", "42")
    assert episode.event_counts["program/own_calls"] == 1


async def ask_with_tools(given: ProgramEpisode) -> Any:
    """Request a reply with the tools of the episode. Return its message."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    open_schema = {"type": "object", "additionalProperties": True}
    described = {"look_up": schema, "note": open_schema}
    tools = [{"type": "function", "function": {"name": k, "parameters": v}} for k, v in described.items()]
    async with httpx2.AsyncClient(verify=False, trust_env=False, timeout=60) as client:
        answer = await client.post(
            f"{given.base_url}/chat/completions",
            json={"model": "any", "messages": given.prompt, "tools": tools},
            headers={"Authorization": f"Bearer {given.api_key}"},
        )
    return answer.raise_for_status().json()["choices"][0]["message"]


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_text_that_a_function_returns_is_its_answer(
    is_coroutine: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(given: ProgramEpisode) -> str:
        assert await ask(given) == "41"
        return "42"

    def in_thread(given: ProgramEpisode) -> str:
        return asyncio.run(program(given))

    assert run_function(monkeypatch, tiny, program if is_coroutine else in_thread, "41").reward == 1.0


class CallableAgent:
    """An agent that is an object."""

    async def __call__(self, given: ProgramEpisode) -> str:
        return await ask(given)


def test_callable_that_returns_a_coroutine_is_awaited(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(ask)
    def logged(given: ProgramEpisode) -> Any:
        return ask(given)

    for function in (CallableAgent(), logged):
        episode = run_function(monkeypatch, tiny, function)
        assert (episode.reward, episode.error) == (1.0, "")


def test_hanging_function_does_not_keep_the_loop_from_its_end(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released, ended = threading.Event(), threading.Event()

    def hang(given: ProgramEpisode) -> None:
        released.wait(60)
        ended.set()

    episode = run_function(monkeypatch, tiny, hang, max_seconds=0.5)
    assert not ended.is_set()
    released.set()
    assert episode.fault == "agent"
    assert "agent.max_seconds" in episode.error


def test_wrong_result_and_exception_of_a_function_name_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def returns_number(given: ProgramEpisode) -> Any:
        await ask(given)
        return 42

    async def raises(given: ProgramEpisode) -> None:
        raise ValueError("no plan")

    def finds_nothing(given: ProgramEpisode) -> str:
        return next(iter(()))

    cases = ((returns_number, "42"), (raises, "ValueError: no plan"), (finds_nothing, "StopIteration"))
    for function, named in cases:
        episode = run_function(monkeypatch, tiny, function)
        assert episode.fault == "agent"
        assert named in episode.error


@pytest.mark.parametrize(("answer", "fault"), [("text", None), ("empty", None), ("error", "agent"), ("none", "agent")])
def test_server_plays_an_episode_in_one_request(answer: str, fault: str | None, tiny: Path) -> None:
    """The server answers with the text, or with nothing, or fails, or does not exist."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        text = await ask(ProgramEpisode(**body))
        content = json.dumps({"text": text}).encode() if answer == "text" else b""
        status = "500 Error" if answer == "error" else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode())
        writer.write(content)
        await writer.drain()
        writer.close()

    async def playing() -> Trajectory:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/play"
        if answer == "none":
            server.close()
        sampler = ReplySampler(tiny, say("42"))
        vocabulary = FormatTokenizer.load(tiny / "tokenizer.json")
        model = ServedModel("tiny", sampler, sampler.format, vocabulary)
        async with server:
            agent = ProgramAgent(ProgramConfig(url=address), model, SamplingParams())
            return await play_episode(SUMS, TASK, agent, LIMITS, 3)

    episode = asyncio.run(playing())
    assert episode.fault == fault
    assert episode.score is None if fault else episode.reward == 1.0


def test_failure_of_the_engine_is_no_fault_of_the_program(tiny: Path) -> None:
    async def fail(*arguments: Any, **named: Any) -> Any:
        raise RolloutError("the sampler has stopped", "engine")

    async def playing() -> Trajectory:
        sampler = ReplySampler(tiny, say("42"))
        sampler.sample = fail  # type: ignore[method-assign]
        vocabulary = FormatTokenizer.load(tiny / "tokenizer.json")
        model = ServedModel("tiny", sampler, sampler.format, vocabulary)
        config = ProgramConfig(function=f"{__name__}:ask")
        return await play_episode(SUMS, TASK, ProgramAgent(config, model, SamplingParams()), LIMITS, 3)

    episode = asyncio.run(playing())
    assert (episode.fault, episode.error) == ("engine", "the sampler has stopped")


def test_gold_calls_of_a_domain_earn_the_reward(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program makes the gold calls, and says the gold texts to the user of the domain."""
    task = DOMAIN.tasks("train")[0]

    async def program(given: ProgramEpisode) -> None:
        await ask(given)
        async with Client(given.mcp_url) as client:
            for turn in task.gold_turns:
                for call in turn.tool_calls:
                    await client.call_tool(call.name, call.arguments)
                if not turn.tool_calls:
                    await client.call_tool("send_message", {"text": turn.content})

    async def playing() -> Trajectory:
        monkeypatch.setattr(sys.modules[__name__], "program", program, raising=False)
        sampler = ReplySampler(tiny, say("I help."))
        vocabulary = FormatTokenizer.load(tiny / "tokenizer.json")
        model = ServedModel("tiny", sampler, sampler.format, vocabulary)
        config = ProgramConfig(function=f"{__name__}:program")
        return await play_episode(DOMAIN, task, ProgramAgent(config, model, SamplingParams()), LIMITS, 3)

    episode = asyncio.run(playing())
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.DONE)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"command": "a", "url": "http://127.0.0.1:9"}, r"agent\.command.*agent\.url"),
        ({"url": "http://example.com/play"}, r"agent\.url.*example\.com"),
        ({"url": "127.0.0.1:9"}, r"agent\.url"),
        ({"function": "module"}, r"agent\.function.*module:attribute"),
        ({"function": "json:absent"}, "absent"),
        ({"function": "json:__doc__"}, r"agent\.function"),
        ({"command": "no-such-program x"}, r"agent\.command.*no-such-program"),
        ({"command": "python 'x"}, r"agent\.command"),
        ({"command": "python", "reward": "json"}, r"agent\.reward.*module:attribute"),
        ({"command": "python", "reward": "json:absent"}, "absent"),
        ({"command": "python", "reward": "json:__name__"}, r"agent\.reward.*\bstr\b"),
        ({"command": "python", "reward": f"{__name__}:run_command"}, r"agent\.reward.*RecordedEpisode"),
    ],
)
def test_program_that_cannot_be_played_is_refused(settings: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        validate_program(ProgramConfig(**settings))
