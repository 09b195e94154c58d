"""Tests of supervised examples: tokens and mask built from messages equal those of the sampled episode."""

import asyncio
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from tokenizers import AddedToken, Tokenizer

from support.chat_templates import CODER, HEADERS, LLAMA
from support.conversing import TOOLS, conversations
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.trajectory import Trajectory
from understudy.domains.retail import DOMAIN
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.models import make_tiny_model
from understudy.envs.task_source import Slice
from understudy.formats import ChatFormat, FormatTokenizer, load_chat_format
from understudy.formats.jinja import compile_template, read_chat_template
from understudy.rollouts.agent import DemonstrationAgent, EngineAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.rollouts.supervised import build_supervised_example

NO_TOOLS = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def formats(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatFormat]:
    """Return chat formats of several families, with the tokens of the tiny model and those the family needs."""
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in HEADERS])
    folders = {}
    for name, template in {"llama": LLAMA, "coder": CODER, "signatures": NO_TOOLS}.items():
        folders[name] = tmp_path_factory.mktemp(name)
        tokenizer.save(str(folders[name] / "tokenizer.json"))
        (folders[name] / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin|>"}))
        (folders[name] / "chat_template.jinja").write_text(template)
    by_template = {name: load_chat_format(folder) for name, folder in folders.items()}
    by_tool_format = {dialect: load_chat_format(tiny, tool_format=dialect) for dialect in ("json", "react")}
    return {"hermes": load_chat_format(tiny), **by_template, **by_tool_format}


class ReplySampler:
    """A sampler of given replies, encoded by the chat format."""

    def __init__(self, replies: Sequence[Message], format: ChatFormat) -> None:
        self._replies, self._format = iter(replies), format

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        tokens = self._format.encode_reply(next(self._replies))
        return Completion(tokens, [-0.5] * len(tokens), "stop")


def sampled_episode(messages: Sequence[Message], format: ChatFormat) -> Trajectory:
    """Return the episode in which a model samples the replies of a conversation."""
    replies = [message for message in messages if message.role == "assistant"]
    agent, episode, new = (
        EngineAgent(ReplySampler(replies, format), format, SamplingParams()),
        Trajectory("t"),
        list[Message](),
    )
    for message in messages:
        if message.role == "assistant":
            asyncio.run(agent.act(None, episode, new, TOOLS))  # type: ignore[arg-type]  # the task is not used
            new = []
        else:
            new.append(message)
    episode.observe(new)
    return episode


def replies_round_trip(messages: Sequence[Message], name: str, format: ChatFormat) -> bool:
    """Return whether the chat format parses each encoded reply back to the same message."""
    replies = [message for message in messages if message.role == "assistant"]
    if name == "llama" and any(len(reply.tool_calls) > 1 for reply in replies):
        return False
    bare = [r.replace(tool_calls=tuple(c.replace(id="") for c in r.tool_calls)) for r in replies]
    return all(format.parse(format.encode_reply(r), TOOLS).message == r for r in bare)


@pytest.mark.parametrize("name", ["hermes", "llama", "coder", "signatures", "json", "react"])
@settings(max_examples=25)
@given(messages=conversations())
def test_tokens_and_mask_equal_those_of_the_sampled_episode(
    formats: dict[str, ChatFormat], name: str, messages: tuple[Message, ...]
) -> None:
    format = formats[name]
    assume(replies_round_trip(messages, name, format))
    episode = sampled_episode(messages, format)
    again = build_supervised_example(episode.messages, TOOLS, format, "t")
    assert tuple(episode.messages) == messages
    assert (again.tokens, again.mask, again.messages) == (episode.tokens, episode.mask, episode.messages)
    replies = [format.encode_reply(message) for message in messages if message.role == "assistant"]
    assert [again.tokens[start:end] for start, end in again.reply_spans()] == replies


@settings(max_examples=25)
@given(messages=conversations())
def test_tokens_equal_the_rendered_chat_template(
    tiny: Path, formats: dict[str, ChatFormat], messages: tuple[Message, ...]
) -> None:
    last = max(i for i, message in enumerate(messages) if message.role == "assistant")
    rendered = compile_template(tiny, read_chat_template(tiny))(messages[: last + 1], TOOLS, prompt=False)
    decode = FormatTokenizer.load(tiny / "tokenizer.json").decode
    assert decode(build_supervised_example(messages, TOOLS, formats["hermes"]).tokens) + "\n" == rendered


@pytest.mark.parametrize("name", ["hermes", "coder", "signatures", "json", "react"])
def test_gold_episode_is_rebuilt_from_its_messages(formats: dict[str, ChatFormat], name: str) -> None:
    domain = DOMAIN.slice(Slice(domain_policy="brief"))
    for task in domain.sample("train", 6):
        episode = asyncio.run(
            play_episode(domain, task, DemonstrationAgent(formats[name]), EpisodeLimits(max_episode_tokens=10**6), 3)
        )
        assert episode.score is not None
        assert episode.score.reward == 1.0
        again = build_supervised_example(episode.messages, domain.tool_specs, formats[name], task.id)
        assert (again.tokens, again.mask) == (episode.tokens, episode.mask)


def test_whitespace_and_thoughts_are_not_rebuilt(tiny: Path, formats: dict[str, ChatFormat]) -> None:
    encode = FormatTokenizer.load(tiny / "tokenizer.json").encode
    shown = [Message(role="system", content="policy"), Message(role="user", content="hello")]
    replies = {"  spaces around\n": "spaces around", "<think>a thought</think>said": "said"}
    for text, kept in replies.items():
        message = formats["hermes"].parse(encode(text)).message
        assert message.content == kept
        again = build_supervised_example([*shown, message], TOOLS, formats["hermes"])
        (span,) = again.reply_spans()
        assert again.tokens[slice(*span)] == formats["hermes"].encode_reply(Message(role="assistant", content=kept))


def test_unencodable_replies_are_rejected(formats: dict[str, ChatFormat]) -> None:
    shown = [Message(role="system", content="policy"), Message(role="user", content="hello")]
    broken = Message(role="assistant", tool_calls=(ToolCall(name="find", parse_error="not JSON"),))
    with pytest.raises(ConfigError, match=r"\b1\b.*not JSON"):
        build_supervised_example([*shown, broken], TOOLS, formats["hermes"])
    two = Message(role="assistant", tool_calls=(ToolCall(name="find"), ToolCall(name="switch")))
    with pytest.raises(ConfigError, match=r"\b2 calls\b.*\bchat template\b"):
        build_supervised_example([*shown, two], TOOLS, formats["llama"])
