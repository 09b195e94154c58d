"""Users and agents against a real server: SmolLM2-135M-Instruct behind vLLM's OpenAI-compatible API, on the CPU.

So small a model is a poor customer, and keeps to no form unless the server makes it. What is held is all that does not
depend on how good it is: the protocol, the totals (against the server's own), the cache, who is at fault, and that
nothing but what was said reaches the agent.
"""

import asyncio
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import vllm_server
from endpoint import KEY
from understudy.agent import Agent, ChatAgent, GoldAgent
from understudy.chat import ChatConfig, ChatModel
from understudy.domains.retail import DOMAIN
from understudy.errors import ConfigError
from understudy.messages import Message
from understudy.models import find_model
from understudy.rollout import Limits, play
from understudy.trajectory import Stop, Trajectory
from understudy.users import Cast, UserConfig
from understudy.users.draft import STOP

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(bool(vllm_server.unsupported()), reason=vllm_server.unsupported())]

_WORDS = "[a-zA-Z0-9 ,'.]"
FORMS = {
    "llm": None,
    "react": rf"Thought: {_WORDS}{{5,60}}\nMessage: {_WORDS}{{5,60}}",
    "verify": rf"(Yes|No){_WORDS}{{3,60}}",
    "reflection": rf"(Yes|No){_WORDS}{{3,60}}|Reflection: {_WORDS}{{5,40}}\nMessage: {_WORDS}{{5,40}}",
}
"""What the server lets the model write: a message and a verdict are alike."""
TASKS = DOMAIN.tasks("validation")[:2]
LIMITS = Limits(max_turns=4, retries=0)
HELLO = [Message(role="user", content="Hello, who are you?")]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    with vllm_server.serving(find_model("smollm2-135m"), "smollm2", log, KEY) as url:
        yield url
    assert KEY not in log.read_text(errors="replace").partition("api_key")[2].partition("}")[2]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)


def endpoint(url: str, **more: Any) -> ChatConfig:
    config = {"base_url": url, "model": "smollm2", "key_variable": "MY_KEY", "max_tokens": 64, "temperature": 0.7}
    return ChatConfig(**{**config, **more})


def counted(url: str) -> tuple[int, int]:
    """The prompt and completion tokens that the server has counted."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as response:
        text = response.read().decode()
    names = ("prompt_tokens_total", "generation_tokens_total")
    values = [re.findall(rf"^vllm:{name}(?:{{.*}})? ([\d.e+]+)$", text, re.MULTILINE) for name in names]
    return int(sum(map(float, values[0]))), int(sum(map(float, values[1])))


def episodes(users: Cast, agent: Agent) -> list[Trajectory]:
    async def all_of_them() -> Sequence[Trajectory]:
        domain = DOMAIN.with_users(users)
        return await asyncio.gather(*(play(domain, task, agent, LIMITS, seed) for seed, task in enumerate(TASKS)))

    return list(asyncio.run(all_of_them()))


@pytest.mark.parametrize("kind", FORMS)
def test_whole_episodes_with_each_kind_of_user(url: str, kind: str, tmp_path: Path) -> None:
    form = {"structured_outputs": {"regex": FORMS[kind]}} if FORMS[kind] else {}
    config = UserConfig(kind=kind, chat=endpoint(url, cache=str(tmp_path), parameters=form))  # type: ignore[arg-type]
    before, users = counted(url), Cast(config)
    played = episodes(users, GoldAgent())
    after, used = counted(url), users.usage
    assert used.requests >= len(TASKS)
    assert (used.prompt_tokens, used.completion_tokens) == (after[0] - before[0], after[1] - before[1])
    for episode in played:
        assert_attributed(episode)
        assert_only_words(episode)
    if kind == "react":
        assert max(sum(message.role == "user" for message in episode.messages) for episode in played) > 1
    again = Cast(config)
    assert [e.messages for e in episodes(again, GoldAgent())] == [e.messages for e in played]
    assert (again.usage.requests, again.usage.cached) == (0, used.requests)
    assert counted(url) == after


def assert_attributed(episode: Trajectory) -> None:
    if episode.stop is Stop.FAULT:
        assert (episode.fault, episode.score) == ("user", None)
        assert "gave no usable message in 3 attempts" in episode.error
    else:
        assert episode.score is not None


def assert_only_words(episode: Trajectory) -> None:
    said = [message.content for message in episode.messages if message.role == "user"]
    assert said[0] == next(task for task in TASKS if task.id == episode.task).scenario.opening
    for text in said:
        assert text.strip()
        assert not re.search(
            rf"{STOP}|<\||tool_call|^\s*(thought|message|reflection|agent|assistant)\s*:", text, re.I | re.M
        )


def test_an_agent_makes_real_calls(url: str) -> None:
    config = endpoint(url, max_tokens=96, parameters={"tool_choice": "required"})
    chat = ChatModel(config, "agent")
    played = episodes(Cast(UserConfig()), ChatAgent(chat))
    for episode in played:
        assert episode.fault is None, episode.error
        assert episode.counts.get("calls", 0) + episode.counts.get("malformed", 0) + episode.counts.get("cut", 0) > 0
    calls = [call for episode in played for message in episode.messages for call in message.tool_calls]
    assert {call.name for call in calls} <= {spec.name for spec in DOMAIN.specs}
    assert chat.usage.requests == sum(episode.turns for episode in played)


def test_seeds_decide_what_is_sampled(url: str) -> None:
    def said(seed: int) -> str:
        return asyncio.run(ChatModel(endpoint(url, temperature=1.5), "user").reply(HELLO, seed=seed)).message.content

    assert said(1) == said(1) != said(2)


def test_what_a_server_refuses(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(**more: Any) -> None:
        asyncio.run(ChatModel(endpoint(url, **more), "user").reply(HELLO))

    with pytest.raises(ConfigError, match="404: it has no such path or model"):
        ask(model="gpt-oss")
    with pytest.raises(ConfigError, match="status 400: "):
        ask(max_tokens=1_000_000)
    monkeypatch.setenv("MY_KEY", "sk-wrong")
    with pytest.raises(ConfigError, match="401: it does not accept the key"):
        ask()
