"""Tests of an exported model, simulated users and agents with a real vLLM server on the CPU.

The server has SmolLM2-135M with random LoRA adapters, merged by `export`. One test compares it with the local engine.
The others check only what does not depend on the quality of a model: protocol, token counts, cache and faults.
"""

import asyncio
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support import vllm_server
from support.endpoint import KEY
from understudy.clients.chat import ChatModel, EndpointConfig
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.trajectory import StopReason, Trajectory
from understudy.domains.retail import DOMAIN
from understudy.engines.interface import SamplingParams
from understudy.engines.models import find_model
from understudy.envs.users import UserConfig, UserSimulatorFactory
from understudy.envs.users.draft import STOP_TOKEN
from understudy.formats import FormatTokenizer, load_chat_format
from understudy.rollouts.agent import Agent, APIAgent, GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.runs.config import parse_config
from understudy.runs.run import Run
from understudy.runs.weights import export_model, resolve_weights

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(bool(vllm_server.unsupported_reason()), reason=vllm_server.unsupported_reason()),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's, of transformers
]

_TEXT = "[a-zA-Z0-9 ,'.]"
OUTPUT_PATTERNS = {
    "llm": None,
    "react": rf"Thought: {_TEXT}{{5,60}}\nMessage: {_TEXT}{{5,60}}",
    "verify": rf"(Yes|No){_TEXT}{{3,60}}",
    "reflection": rf"(Yes|No){_TEXT}{{3,60}}|Reflection: {_TEXT}{{5,40}}\nMessage: {_TEXT}{{5,40}}",
}
"""Regular expressions that constrain the output of each kind of user; a message and a verdict have the same form."""
TASKS = DOMAIN.tasks("validation")[:2]
LIMITS = EpisodeLimits(max_turns=4, max_retries=0)
HELLO = [Message(role="user", content="Hello, who are you?")]
SEA = "Tell me about the sea."


def save_random_lora_checkpoint(run: Path) -> Any:
    """Save a checkpoint of SmolLM2 with random LoRA adapters and return its engine."""
    import torch

    from understudy.engines.local.engine import LocalEngine

    config = parse_config("", ["engine.finetune=lora", "engine.dtype=float32", "engine.lora.rank=4"])
    engine = LocalEngine(find_model(config.model), config.engine)
    generator = torch.Generator().manual_seed(2)
    for master in engine._optimizer.masters.values():
        master += 0.01 * torch.randn(master.shape, generator=generator)
    engine._optimizer.copy_to_model()
    with Run.create(run, config).write_checkpoint(1) as checkpoint:
        engine.save(checkpoint)
    return engine


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A local engine, and the folder of its exported model."""
    folder = tmp_path_factory.mktemp("exported")
    engine = save_random_lora_checkpoint(folder / "run")
    export_model(resolve_weights(str(folder / "run")), folder / "model")
    return engine, folder / "model"


@pytest.fixture(scope="module")
def url(exported: tuple[Any, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    with vllm_server.serve_vllm(exported[1], "smollm2", log, KEY) as url:
        yield url
    assert KEY not in log.read_text(errors="replace").partition("api_key")[2].partition("}")[2]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)


def test_vllm_matches_the_local_engine_on_an_exported_model(exported: tuple[Any, Path], url: str) -> None:
    import openai

    engine, folder = exported
    format, vocabulary = load_chat_format(folder), FormatTokenizer.load(folder / "tokenizer.json")
    prompt = format.encode([Message(role="user", content=SEA)], (), ())
    ours = asyncio.run(
        engine.sample(prompt, SamplingParams(max_response_tokens=4, temperature=0.0), 0, format.stop_token_ids)
    )
    with openai.OpenAI(base_url=url, api_key=KEY) as api:
        theirs: Any = api.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": SEA}], temperature=0, max_tokens=4, logprobs=True
        )
    assert theirs.usage.prompt_tokens == len(prompt)
    sampled = theirs.choices[0].logprobs.content
    assert [token.token for token in sampled] == [vocabulary.decode([token]) for token in ours.tokens]
    assert [token.logprob for token in sampled] == pytest.approx(ours.logprobs, abs=0.1)


def endpoint(url: str, **more: Any) -> EndpointConfig:
    config = {"base_url": url, "model": "smollm2", "api_key_var": "MY_KEY", "max_tokens": 64, "temperature": 0.7}
    return EndpointConfig(**{**config, **more})


def server_token_counts(url: str) -> tuple[int, int]:
    """Return the prompt and completion tokens in the server's metrics."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as response:
        text = response.read().decode()
    names = ("prompt_tokens_total", "generation_tokens_total")
    values = [re.findall(rf"^vllm:{name}(?:{{.*}})? ([\d.e+]+)$", text, re.MULTILINE) for name in names]
    return int(sum(map(float, values[0]))), int(sum(map(float, values[1])))


def play_episodes(users: UserSimulatorFactory, agent: Agent) -> list[Trajectory]:
    async def play_all() -> Sequence[Trajectory]:
        domain = DOMAIN.with_users(users)
        return await asyncio.gather(
            *(play_episode(domain, task, agent, LIMITS, seed) for seed, task in enumerate(TASKS))
        )

    return list(asyncio.run(play_all()))


@pytest.mark.parametrize("kind", OUTPUT_PATTERNS)
def test_episodes_and_token_counts_with_each_kind_of_user(url: str, kind: str, tmp_path: Path) -> None:
    form = {"structured_outputs": {"regex": OUTPUT_PATTERNS[kind]}} if OUTPUT_PATTERNS[kind] else {}
    config = UserConfig(kind=kind)  # type: ignore[arg-type]
    endpoints = {"default": endpoint(url, cache_dir=str(tmp_path), extra_body=form)}
    before, users = server_token_counts(url), UserSimulatorFactory(config, endpoints)
    played = play_episodes(users, GoldAgent())
    after, used = server_token_counts(url), users.usage
    assert used.requests >= len(TASKS)
    assert (used.prompt_tokens, used.completion_tokens) == (after[0] - before[0], after[1] - before[1])
    for episode in played:
        assert_fault_attributed(episode)
        assert_plain_user_messages(episode)
    if kind == "react":
        assert max(sum(message.role == "user" for message in episode.messages) for episode in played) > 1
    again = UserSimulatorFactory(config, endpoints)
    assert [e.messages for e in play_episodes(again, GoldAgent())] == [e.messages for e in played]
    assert (again.usage.requests, again.usage.cache_hits) == (0, used.requests)
    assert server_token_counts(url) == after


def assert_fault_attributed(episode: Trajectory) -> None:
    if episode.stop_reason is StopReason.FAULT:
        assert (episode.fault, episode.score) == ("user", None)
        assert re.search(r"\b3\b", episode.error)
    else:
        assert episode.score is not None


def assert_plain_user_messages(episode: Trajectory) -> None:
    said = [message.content for message in episode.messages if message.role == "user"]
    assert said[0] == next(task for task in TASKS if task.id == episode.task_id).scenario.opening
    for text in said:
        assert text.strip()
        assert not re.search(
            rf"{STOP_TOKEN}|<\||tool_call|^\s*(thought|message|reflection|agent|assistant)\s*:", text, re.I | re.M
        )


def test_agent_makes_valid_tool_calls(url: str) -> None:
    config = endpoint(url, max_tokens=96, extra_body={"tool_choice": "required"})
    chat = ChatModel(config, "agent")
    played = play_episodes(UserSimulatorFactory(UserConfig()), APIAgent(chat))
    for episode in played:
        assert episode.fault is None, episode.error
        assert (
            episode.event_counts.get("tool_calls", 0)
            + episode.event_counts.get("malformed", 0)
            + episode.event_counts.get("truncated", 0)
            > 0
        )
    calls = [call for episode in played for message in episode.messages for call in message.tool_calls]
    assert {call.name for call in calls} <= {spec.name for spec in DOMAIN.tool_specs}
    assert chat.usage.requests == sum(episode.num_turns for episode in played)


def test_sampling_is_deterministic_for_a_seed(url: str) -> None:
    def sample_text(seed: int) -> str:
        return asyncio.run(ChatModel(endpoint(url, temperature=1.5), "user").generate(HELLO, seed=seed)).message.content

    assert sample_text(1) == sample_text(1) != sample_text(2)


def test_rejected_requests_raise(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(**more: Any) -> None:
        asyncio.run(ChatModel(endpoint(url, **more), "user").generate(HELLO))

    with pytest.raises(ConfigError, match="404"):
        ask(model="gpt-oss")
    with pytest.raises(ConfigError, match=r"\b400\b"):
        ask(max_tokens=1_000_000)
    monkeypatch.setenv("MY_KEY", "sk-wrong")
    with pytest.raises(ConfigError, match="401"):
        ask()
