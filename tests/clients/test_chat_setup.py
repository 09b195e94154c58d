"""Test that a misconfigured endpoint fails at its first request, and that later failures are faults of episodes."""

import asyncio
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from support.endpoint import Answer, make_completion, serve_answers
from understudy.clients.chat import ChatModel, EndpointConfig
from understudy.clients.completions import ChatCompletion
from understudy.core.errors import ConfigError, Fault, RolloutError
from understudy.core.messages import Message
from understudy.runs.config import parse_config

HELLO = [Message(role="user", content="Hello.")]


def make_chat_model(url: str, fault: Fault = "user", **settings: Any) -> ChatModel:
    return ChatModel(EndpointConfig(base_url=url, model="m", max_retries=2, **{"backoff": 0.01, **settings}), fault)


def send(chat: ChatModel, seed: int = 0) -> ChatCompletion:
    return asyncio.run(chat.generate(HELLO, seed=seed))


def unused_url() -> str:
    """Return a URL at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


@pytest.mark.parametrize("fault", ["user", "agent", "grader"])
def test_unreachable_endpoint_raises_without_retries(fault: Fault) -> None:
    url = unused_url()
    with pytest.raises(ConfigError, match=rf"{url} .*ConnectError.*endpoints\.default\.base_url"):
        send(make_chat_model(url, fault, backoff=100.0))


def test_lost_endpoint_is_retried_after_a_reply(tmp_path: Path) -> None:
    with serve_answers([make_completion("Hi.")]) as endpoint:
        chat = make_chat_model(endpoint.url, cache_dir=str(tmp_path))
        send(chat)
    with pytest.raises(RolloutError, match=r"ConnectError.*\b3\b"):
        send(chat, seed=1)
    again = make_chat_model(endpoint.url, cache_dir=str(tmp_path), backoff=100.0)
    send(again)
    with pytest.raises(ConfigError, match="ConnectError"):  # a cached reply is no reply of the endpoint
        send(again, seed=1)


@pytest.mark.parametrize("status", [400, 402, 403, 413, 422, 301])
def test_rejected_first_request_raises_config_error(status: int) -> None:
    with serve_answers(
        [Answer("no such field", status), make_completion("Hi."), Answer("too long", status)]
    ) as endpoint:
        chat = make_chat_model(endpoint.url)
        said = rf"{status}\b.*no such field.*endpoints\.default\.max_tokens"
        with pytest.raises(ConfigError, match=said):
            send(chat)
        send(chat)
        with pytest.raises(RolloutError, match=rf"{status}\b.*too long"):
            send(chat)


def test_rejection_after_a_cached_reply_is_a_fault(tmp_path: Path) -> None:
    """In a resumed evaluation the first uncached request may be a conversation that is too long."""
    with serve_answers([make_completion("Hi."), Answer("too long", 400)]) as endpoint:
        send(make_chat_model(endpoint.url, cache_dir=str(tmp_path)))
        again = make_chat_model(endpoint.url, cache_dir=str(tmp_path))
        send(again)
        with pytest.raises(RolloutError, match="too long"):
            send(again, seed=1)


def test_rejected_first_request_of_a_judge_is_a_fault() -> None:
    with serve_answers([Answer("too long", 400)]) as endpoint, pytest.raises(RolloutError, match="too long"):
        send(make_chat_model(endpoint.url, "grader"))


UNSUPPORTED = "Unsupported parameter: 'max_tokens' is not supported with this model."
REFUSALS = {
    f"{UNSUPPORTED} Use 'max_completion_tokens' instead.": (
        "endpoints.default.max_tokens=0 and endpoints.default.extra_body='{max_completion_tokens = 4096}'"
    ),
    "Unrecognized request argument supplied: seed": "endpoints.default.send_seed=false",
    "auto tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set": (
        "set endpoints.default.tool_format=hermes"
    ),
}


@pytest.mark.parametrize("said", REFUSALS)
def test_common_rejections_name_the_setting_to_change(said: str) -> None:
    with serve_answers([Answer({"error": {"message": said, "code": 400}}, 400)]) as endpoint:
        with pytest.raises(ConfigError) as caught:
            send(make_chat_model(endpoint.url, "agent"))
        assert said in str(caught.value)
        assert str(caught.value).endswith(REFUSALS[said])


def test_suggested_settings_change_the_request() -> None:
    with serve_answers([make_completion("Hi.")]) as endpoint:
        suggested = [
            word
            for remedy in REFUSALS.values()
            for word in shlex.split(remedy)
            if word.startswith("endpoints.default.")
        ]
        config = parse_config(
            "", [f"endpoints.default.base_url={endpoint.url}", "endpoints.default.model=m", *suggested]
        )
        assert config.endpoints["default"].tool_format == "hermes"
        send(ChatModel(config.endpoints["default"], "agent"))
        assert endpoint.requests[0].keys() == {"model", "messages", "max_completion_tokens"}
        assert endpoint.requests[0]["max_completion_tokens"] == 4096
