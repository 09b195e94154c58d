"""Test the log of the server: what was asked and sampled, and its use as conversations for SFT."""

import json
from pathlib import Path

import openai
import pytest

from support.serving import (
    TOOLS,
    make_scripted_model,
    make_short_context_model,
    request_completion,
    serve_on_loopback,
    stream_chunks,
)
from understudy.core.errors import ConfigError
from understudy.core.items import Item
from understudy.data.conversations.conversations import read_conversations
from understudy.data.conversations.examples import Demonstration
from understudy.formats import FormatTokenizer
from understudy.serve.request_log import RequestLog

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_short_context_model(tmp_path_factory.mktemp("small"))


def test_requests_are_logged_with_their_tokens(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    model, script = make_scripted_model(folder, lambda prompt: "Done." if "ok" in prompt else CALL)
    with serve_on_loopback(model, log=log) as url:
        said = request_completion(url, tools=TOOLS, n=2, max_tokens=99).choices[0].message
        messages = [{"role": "user", "content": "Hello, who are you?"}, said.model_dump(exclude_none=True)]
        messages.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "ok"})
        stream_chunks(url, messages=messages, tools=TOOLS)
        with pytest.raises(openai.BadRequestError):
            request_completion(url, messages=[])
    first, second = map(json.loads, log.read_text().splitlines())
    assert [choice["index"] for choice in first["choices"]] == [0, 1]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["f", "g"]
    vocabulary = FormatTokenizer.load(folder / "tokenizer.json")
    for row, prompt in zip((first, second), script.prompts[::2], strict=True):
        assert row["prompt_token_ids"] == prompt
        for choice in row["choices"]:
            assert len(choice["token_ids"]) == len(choice["token_logprobs"])
    assert "Done." in vocabulary.decode(second["choices"][0]["token_ids"])
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]


def test_log_is_a_file_of_conversations(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    model, _ = make_scripted_model(folder, lambda prompt: "Done.")
    with serve_on_loopback(model, log=log) as url:
        request_completion(url)
    (row,) = read_conversations(log, "sft")
    assert isinstance(row, Item)
    assert isinstance(row.value, Demonstration)
    assert [(message.role, message.content) for message in row.value.messages] == [
        ("user", "Hello, who are you?"),
        ("assistant", "Done."),
    ]


def test_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.*--log"):
        RequestLog(tmp_path / "absent" / "log.jsonl")
