"""An endpoint that is set up wrongly says so at its first request; once something was answered, failures are faults."""

import asyncio
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from endpoint import Answer, says, serving
from understudy.chat import ChatConfig, ChatModel
from understudy.config import TrainConfig
from understudy.errors import ConfigError, Fault, RolloutError
from understudy.messages import Message
from understudy.replies import Reply
from understudy.settings import parse

HELLO = [Message(role="user", content="Hello.")]


def model(url: str, fault: Fault = "user", **settings: Any) -> ChatModel:
    return ChatModel(ChatConfig(base_url=url, model="m", retries=2, **{"backoff": 0.01, **settings}), fault)


def ask(chat: ChatModel, seed: int = 0) -> Reply:
    return asyncio.run(chat.reply(HELLO, seed=seed))


def nowhere() -> str:
    """An address that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


@pytest.mark.parametrize(("fault", "section"), [("user", "user.chat"), ("agent", "chat"), ("grader", "judge")])
def test_nobody_there_is_told_without_waiting(fault: Fault, section: str) -> None:
    url = nowhere()
    with pytest.raises(
        ConfigError, match=rf"at {url} has no connection \(ConnectError: .+; start it, or set {section}\."
    ):
        ask(model(url, fault, backoff=100.0))


def test_a_server_that_has_answered_may_come_back(tmp_path: Path) -> None:
    with serving([says("Hi.")]) as endpoint:
        chat = model(endpoint.url, cache=str(tmp_path))
        ask(chat)
    with pytest.raises(RolloutError, match=r"no connection \(ConnectError\) \(attempts: 3\)"):
        ask(chat, seed=1)
    again = model(endpoint.url, cache=str(tmp_path), backoff=100.0)
    ask(again)
    with pytest.raises(ConfigError, match="has no connection"):  # what the cache says, nobody said now
        ask(again, seed=1)


@pytest.mark.parametrize("status", [400, 402, 403, 413, 422, 301])
def test_a_first_request_that_is_refused_is_a_mistake_in_the_setup(status: int) -> None:
    with serving([Answer("no such field", status), says("Hi."), Answer("too long", status)]) as endpoint:
        chat = model(endpoint.url)
        said = rf"refuses the first request: status {status}: no such field; see user\.chat\.max_tokens, "
        with pytest.raises(ConfigError, match=said):
            ask(chat)
        ask(chat)
        with pytest.raises(RolloutError, match=f"status {status}: too long"):
            ask(chat)


def test_a_request_after_replies_from_the_cache_is_not_the_first(tmp_path: Path) -> None:
    """An evaluation that is gone on with may meet a conversation that is too long before anything else."""
    with serving([says("Hi."), Answer("too long", 400)]) as endpoint:
        ask(model(endpoint.url, cache=str(tmp_path)))
        again = model(endpoint.url, cache=str(tmp_path))
        ask(again)
        with pytest.raises(RolloutError, match="too long"):
            ask(again, seed=1)


def test_a_judge_may_be_shown_too_much_at_first() -> None:
    with serving([Answer("too long", 400)]) as endpoint, pytest.raises(RolloutError, match="too long"):
        ask(model(endpoint.url, "grader"))


UNSUPPORTED = "Unsupported parameter: 'max_tokens' is not supported with this model."
REFUSALS = {
    f"{UNSUPPORTED} Use 'max_completion_tokens' instead.": (
        "set chat.max_tokens=0 and chat.parameters='{max_completion_tokens = 4096}'"
    ),
    "Unrecognized request argument supplied: seed": "set chat.send_seed=false",
    "auto tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set": (
        "start vllm serve with both (such as hermes), or take --agent chat chat.tools=hermes"
    ),
}


@pytest.mark.parametrize("said", REFUSALS)
def test_what_is_refused_most_has_a_remedy(said: str) -> None:
    with serving([Answer({"error": {"message": said, "code": 400}}, 400)]) as endpoint:
        with pytest.raises(ConfigError) as caught:
            ask(model(endpoint.url, "agent"))
        assert said in str(caught.value)
        assert str(caught.value).endswith(f"; {REFUSALS[said]}")


def test_the_remedies_are_settings_that_send_what_is_wanted() -> None:
    with serving([says("Hi.")]) as endpoint:
        given = [word for remedy in REFUSALS.values() for word in shlex.split(remedy) if word.startswith("chat.")]
        config = parse(TrainConfig, "", [f"chat.base_url={endpoint.url}", "chat.model=m", *given])
        assert config.chat.tools == "hermes"
        ask(ChatModel(config.chat, "agent"))
        assert endpoint.requests[0].keys() == {"model", "messages", "max_completion_tokens"}
        assert endpoint.requests[0]["max_completion_tokens"] == 4096
