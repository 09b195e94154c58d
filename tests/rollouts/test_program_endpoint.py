"""Tests of programs on a model behind an API: what is asked, recorded, paid and refused."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from test_program import SUMS

from support.endpoint import KEY, Answer, Endpoint, make_completion, serve_answers
from support.program_client import ask
from understudy.clients.cost import CostTracker
from understudy.core.errors import ConfigError, LimitReachedError
from understudy.core.trajectory import Trajectory
from understudy.evaluation.runner import prepare_eval, run_eval
from understudy.rollouts.program import ProgramAgent, ProgramEpisode
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.runs.agents import make_player
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.storage.episode_store import read_episodes

__all__ = ["SUMS"]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
SIGNATURE = {"google": {"thought_signature": "s1"}}


async def agent(given: ProgramEpisode) -> None:
    """Run calls until there are none, and ask a helper meanwhile."""
    messages: list[Any] = list(given.prompt)
    while calls := (await ask(given, messages, tools=[TOOL], temperature=0.1)).get("tool_calls"):
        for call in calls:
            async with Client(given.mcp_url) as client:
                result = await client.call_tool("look_up", json.loads(call["function"]["arguments"]))
            text = getattr(result.content[0], "text", "")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
            await ask(given, [{"role": "user", "content": "Help."}])


def model(request: Any) -> Answer:
    """Look both numbers up one after the other, then answer."""
    if request["messages"][-1]["content"] == "Help.":
        return make_completion("No.")
    names = "ab"[sum(message["role"] == "tool" for message in request["messages"]) :][:1]
    if not names:
        return make_completion("42")
    function = {"name": "look_up", "arguments": json.dumps({"name": names})}
    call = {"id": f"call_{names}", "type": "function", "function": function, "extra_content": SIGNATURE}
    return make_completion("I look.", "tool_calls", tool_calls=[call])


def config(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, *settings: str, name: str = "agent") -> TrainConfig:
    monkeypatch.setenv("PAID_API_KEY", KEY)
    address = (f"endpoints.default.base_url={endpoint.url}", "endpoints.default.api_key_var=PAID_API_KEY")
    more = ("endpoints.default.model=m", "endpoints.default.max_retries=0", "endpoints.default.prompt_price=1000")
    which = (f"domain={__name__}:SUMS", f"agent.function={__name__}:{name}", "slice.tools=", "slice.domain_policy=full")
    return parse_config("", [*address, *more, *which, "eval.split=train", *settings])


def play(settings: TrainConfig, tracker: CostTracker | None = None) -> Trajectory:
    player = make_player("api", settings, budget=(tracker or CostTracker()).budget_for("agent"))
    assert isinstance(player, ProgramAgent)
    task = SUMS.tasks("train")[0]
    return asyncio.run(play_episode(SUMS, task, player, EpisodeLimits(max_retries=0), seed=3))


def test_program_plays_with_the_model_of_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_answers(model) as endpoint:
        tracker = CostTracker()
        episode = play(config(endpoint, monkeypatch), tracker)
    assert (episode.reward, episode.num_tokens, episode.fault) == (1.0, 0, None)
    first, *helpers = episode.sequences
    assert [message.role for message in first.messages] == ["system", "user", *["assistant", "tool"] * 2, "assistant"]
    assert [[m.content for m in helper.messages] for helper in helpers] == [["Help.", "No."]] * 2
    assert episode.event_counts["program/overridden/temperature"] == 3
    assert (tracker.usage_by_role["agent"].requests, tracker.usage_by_role["agent"].cost) == (5, Decimal("0.5"))
    sent = [request for request in endpoint.requests if request["messages"][-1]["content"] != "Help."]
    assert len({request["seed"] for request in sent}) == 3
    assert all("temperature" not in request for request in sent)
    called = [m for m in sent[-1]["messages"] if m["role"] == "assistant"]
    assert [m["tool_calls"][0]["extra_content"] for m in called] == [SIGNATURE] * 2, (
        "what only the endpoint understands"
    )


def test_evaluation_stores_the_episodes_and_the_cost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serve_answers(model) as endpoint:
        spec = EvalSpec(name="m", agent="api", config=config(endpoint, monkeypatch))
        context = prepare_eval(spec, tmp_path / "eval", Decimal(0), 2)
        report = asyncio.run(run_eval(spec, context, tmp_path / "eval"))
    (row,) = report.agent_rows
    assert row.result.success_rate.mean == 1.0
    (stored,) = read_episodes(tmp_path / "eval" / "episodes.jsonl")
    assert len(stored.branches) == 2
    assert len((tmp_path / "eval" / "cost.jsonl").read_text().splitlines()) == 5


def test_cost_limit_ends_the_evaluation_and_not_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_answers(model) as endpoint, pytest.raises(LimitReachedError, match=r"\b0\.2\b"):
        play(config(endpoint, monkeypatch), CostTracker(Decimal("0.2")))
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        ([Answer("busy", status=500)], r"\b500\b"),
        ([make_completion("Hi."), Answer("prompt is too long", status=400)], None),
    ],
)
def test_failure_of_the_endpoint_is_its_fault_and_a_full_context_none(
    answers: list[Answer], named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_answers(answers) as endpoint:
        episode = play(config(endpoint, monkeypatch, name="asks_twice"))
    assert (episode.fault, episode.stop_reason) == (("agent", "fault") if named else (None, "max_tokens"))
    assert named is None or "500" in episode.error


async def asks_twice(given: ProgramEpisode) -> None:
    messages: list[Any] = list(given.prompt)
    for _ in range(2):
        await ask(given, messages)
        messages.append({"role": "user", "content": "Sure?"})


def test_wrong_setup_of_the_endpoint_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_answers([Answer("no", status=401)]) as endpoint, pytest.raises(ConfigError, match=r"401.*key"):
        play(config(endpoint, monkeypatch))


async def stops_and_streams(given: ProgramEpisode) -> str:
    """A request with a stop string, one with several replies, and one for log-probabilities."""
    cut = await ask(given, list(given.prompt), stop=["tw"], max_tokens=5)
    assert cut["content"] == "one "
    async with httpx2.AsyncClient(verify=False, trust_env=False, timeout=60) as client:
        headers = {"Authorization": f"Bearer {given.api_key}"}
        url = f"{given.base_url}/chat/completions"
        body = {"model": "any", "messages": given.prompt}
        several = await client.post(url, json=body | {"n": 2}, headers=headers)
        assert [choice["index"] for choice in several.json()["choices"]] == [0, 1]
        assert several.json()["usage"] == {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        refused = await client.post(url, json=body | {"logprobs": True}, headers=headers)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprobs")
        streamed = await client.post(url, json=body | {"stream": True}, headers=headers)
        assert '"content": "one two"' in streamed.text
        response = await client.post(f"{given.base_url}/responses", json={"model": "m", "input": "Hi"}, headers=headers)
        assert response.json()["output"][0]["content"][0]["text"] == "one two"
    return "42"


def test_other_forms_of_requests_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_answers(lambda request: make_completion("one two")) as endpoint:
        episode = play(config(endpoint, monkeypatch, name="stops_and_streams"))
    assert (episode.reward, len(episode.sequences), episode.event_counts["program/overridden/max_tokens"]) == (
        1.0,
        5,
        1,
    )
