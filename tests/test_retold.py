"""Conversations as tokens: what is rebuilt from messages is what an episode had that was sampled, mask and all."""

import asyncio
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

pytest.importorskip("torch")

from tokenizers import AddedToken, Tokenizer

from conversing import TOOLS, conversations
from test_formats_template import CODER, HEADERS, LLAMA
from understudy.agent import DemonstrationAgent, EngineAgent
from understudy.domains.base import Slice
from understudy.domains.retail import DOMAIN
from understudy.engines.base import Completion, Sampling
from understudy.errors import ConfigError
from understudy.formats import ChatFormat, Vocabulary, find
from understudy.formats.jinja import compiled, source
from understudy.messages import Message, ToolCall
from understudy.models import make_tiny
from understudy.retold import retold
from understudy.rollout import Limits, play
from understudy.trajectory import Trajectory

NO_TOOLS = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def formats(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatFormat]:
    """Formats of several families, all with the tokens of the tiny model and those that the family needs."""
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in HEADERS])
    folders = {}
    for name, template in {"llama": LLAMA, "coder": CODER, "signatures": NO_TOOLS}.items():
        folders[name] = tmp_path_factory.mktemp(name)
        tokenizer.save(str(folders[name] / "tokenizer.json"))
        (folders[name] / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin|>"}))
        (folders[name] / "chat_template.jinja").write_text(template)
    found = {name: find(folder) for name, folder in folders.items()}
    told = {dialect: find(tiny, dialect=dialect) for dialect in ("json", "react")}
    return {"hermes": find(tiny), **found, **told}


class Sampler:
    """A model that samples these replies, each as its format writes it."""

    def __init__(self, replies: Sequence[Message], format: ChatFormat) -> None:
        self._replies, self._format = iter(replies), format

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        tokens = self._format.render(next(self._replies))
        return Completion(tokens, [-0.5] * len(tokens), "stop")


def sampled(messages: Sequence[Message], format: ChatFormat) -> Trajectory:
    """The episode in which a model has sampled the replies of a conversation."""
    replies = [message for message in messages if message.role == "assistant"]
    agent, episode, new = EngineAgent(Sampler(replies, format), format, Sampling()), Trajectory("t"), list[Message]()
    for message in messages:
        if message.role == "assistant":
            asyncio.run(agent.act(None, episode, new, TOOLS))  # type: ignore[arg-type]  # it does not look at the task
            new = []
        else:
            new.append(message)
    episode.observe(new)
    return episode


def writable(messages: Sequence[Message], name: str, format: ChatFormat) -> bool:
    """Whether the format reads each reply as it was written; one that takes a single call at once takes no more."""
    replies = [message for message in messages if message.role == "assistant"]
    if name == "llama" and any(len(reply.tool_calls) > 1 for reply in replies):
        return False
    bare = [r.replace(tool_calls=tuple(c.replace(id="") for c in r.tool_calls)) for r in replies]
    return all(format.parse(format.render(r), TOOLS).message == r for r in bare)


@pytest.mark.parametrize("name", ["hermes", "llama", "coder", "signatures", "json", "react"])
@settings(max_examples=25)
@given(messages=conversations())
def test_tokens_and_mask_are_those_of_the_episode_that_was_sampled(
    formats: dict[str, ChatFormat], name: str, messages: tuple[Message, ...]
) -> None:
    format = formats[name]
    assume(writable(messages, name, format))
    episode = sampled(messages, format)
    again = retold(episode.messages, TOOLS, format, "t")
    assert tuple(episode.messages) == messages
    assert (again.tokens, again.mask, again.messages) == (episode.tokens, episode.mask, episode.messages)
    replies = [format.render(message) for message in messages if message.role == "assistant"]
    assert [again.tokens[start:end] for start, end in again.spans()] == replies


@settings(max_examples=25)
@given(messages=conversations())
def test_tokens_are_those_of_the_models_own_template(
    tiny: Path, formats: dict[str, ChatFormat], messages: tuple[Message, ...]
) -> None:
    last = max(i for i, message in enumerate(messages) if message.role == "assistant")
    rendered = compiled(tiny, source(tiny))(messages[: last + 1], TOOLS, prompt=False)
    decode = Vocabulary.load(tiny / "tokenizer.json").decode
    assert decode(retold(messages, TOOLS, formats["hermes"]).tokens) + "\n" == rendered


@pytest.mark.parametrize("name", ["hermes", "coder", "signatures", "json", "react"])
def test_a_gold_episode_is_rebuilt_from_its_messages(formats: dict[str, ChatFormat], name: str) -> None:
    domain = DOMAIN.slice(Slice(policy="brief"))
    for task in domain.sample("train", 6):
        episode = asyncio.run(play(domain, task, DemonstrationAgent(formats[name]), Limits(max_tokens=10**6), 3))
        assert episode.score is not None
        assert episode.score.reward == 1.0
        again = retold(episode.messages, domain.specs, formats[name], task.id)
        assert (again.tokens, again.mask) == (episode.tokens, episode.mask)


def test_what_a_message_does_not_hold_is_not_rebuilt(tiny: Path, formats: dict[str, ChatFormat]) -> None:
    encode = Vocabulary.load(tiny / "tokenizer.json").encode
    shown = [Message(role="system", content="policy"), Message(role="user", content="hello")]
    replies = {"  spaces around\n": "spaces around", "<think>a thought</think>said": "said"}
    for text, kept in replies.items():
        message = formats["hermes"].parse(encode(text)).message
        assert message.content == kept
        again = retold([*shown, message], TOOLS, formats["hermes"])
        (span,) = again.spans()
        assert again.tokens[slice(*span)] == formats["hermes"].render(Message(role="assistant", content=kept))


def test_what_cannot_be_written_is_refused(formats: dict[str, ChatFormat]) -> None:
    shown = [Message(role="system", content="policy"), Message(role="user", content="hello")]
    broken = Message(role="assistant", tool_calls=(ToolCall(name="find", malformed="not JSON"),))
    with pytest.raises(ConfigError, match=r"reply 1 has a call that could not be read \(not JSON\)"):
        retold([*shown, broken], TOOLS, formats["hermes"])
    two = Message(role="assistant", tool_calls=(ToolCall(name="find"), ToolCall(name="switch")))
    with pytest.raises(ConfigError, match="a reply with 2 calls, where the chat template takes one"):
        retold([*shown, two], TOOLS, formats["llama"])
