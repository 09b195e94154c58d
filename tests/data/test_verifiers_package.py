"""Test sources of tasks as environments of verifiers: the server of episodes, and the package in verifiers itself."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.replying import ReplySampler
from support.software import verifiers_python
from support.tiny_runs import make_tiny_model
from toy import DOMAIN
from understudy.core.errors import ConfigError
from understudy.core.event_loop import run_async
from understudy.core.messages import message_to_openai
from understudy.core.tasks import SPLITS
from understudy.core.trajectory import StopReason, Trajectory
from understudy.data.verifiers_package import write_verifiers_package
from understudy.engines.interface import SamplingParams
from understudy.formats import FormatTokenizer
from understudy.rollouts.episode_server import EpisodeServer
from understudy.rollouts.program import ProgramAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.runs.config import parse_config
from understudy.runs.targets import load
from understudy.serve.generation import ServedModel

TESTS = Path(__file__).parents[1]


async def ask(client: httpx2.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    return answer.json() if answer.is_success else answer.status_code


def test_the_server_plays_gold() -> None:
    async def playing() -> None:
        transport = httpx2.ASGITransport(EpisodeServer(DOMAIN, "k").app)
        headers = {"Authorization": "Bearer k"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            task = DOMAIN.tasks("train")[0]
            listed = (await client.get("/tasks?split=train")).json()
            assert (listed[0]["id"], listed[0]["opening"]) == (task.id, task.scenario.opening)
            step = await ask(client, "/start", task=task.id, seed=0)
            assert [message["role"] for message in step["messages"]] == ["system", "user"]
            assert {tool["function"]["name"] for tool in step["tools"]} == {spec.name for spec in DOMAIN.tool_specs}
            episode, rewards = step["episode"], list[Any]()
            for turn in task.gold_turns:
                step = await ask(client, "/step", episode=episode, message=message_to_openai(turn))
                rewards.append(step["reward"])
            assert rewards == [None] * (len(rewards) - 1) + [1.0]
            await ask(client, "/close", episode=episode)
            assert await ask(client, "/step", episode=episode, message={}) == 404
            other = (await ask(client, "/start", task=task.id, seed=0))["episode"]
            assert await ask(client, "/grade", episode=other) == {"reward": 0.0}
            assert (await client.get("/tasks?split=train", headers={"Authorization": "Bearer x"})).status_code == 401

    asyncio.run(playing())


@pytest.mark.parametrize(("source", "name", "key"), [("retial", "shop", "retial"), ("retail", "9x", "9x")])
def test_wrong_names_are_refused(tmp_path: Path, source: str, name: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        write_verifiers_package(source, tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.environments
def test_verifiers_plays_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed in the Python of verifiers, and played by it with our sampler, gold earns 1 as it does here."""
    monkeypatch.chdir(TESTS)  # where the process of the package finds toy
    write_verifiers_package("toy:DOMAIN", tmp_path / "toy-shop")
    pip = (sys.executable, "-m", "pip", "--python", str(verifiers_python()))
    into = ("install", "-q", "--no-deps", "--target", str(tmp_path / "lib"))
    subprocess.run([*pip, *into, str(tmp_path / "toy-shop")], check=True)
    monkeypatch.chdir(tmp_path / "lib")
    target = f"verifiers:{verifiers_python()}#toy-shop"
    source, config = load(target), parse_config(f'domain = "{target}"', []).agent
    tasks = [task for split in SPLITS for task in source.tasks(split)]
    ours = {task.scenario.opening: task for task in DOMAIN.tasks("train")}
    assert {task.scenario.opening for task in tasks} == {*ours}
    tiny = make_tiny_model(tmp_path)

    async def play(task: Any, turns: list[Any], limits: EpisodeLimits) -> Trajectory:
        waiting = iter(turns)
        sampler = ReplySampler(tiny, lambda prompt, seed: next(waiting))
        model = ServedModel("tiny", sampler, sampler.format, FormatTokenizer.load(tiny / "tokenizer.json"))
        return await play_episode(source, task, ProgramAgent(config, model, SamplingParams()), limits, seed=3)

    task = tasks[0]
    gold = list(ours[task.scenario.opening].gold_turns)
    limits = EpisodeLimits(max_retries=0)

    async def both() -> list[Trajectory]:
        return [await play(task, gold, limits), await play(task, gold, limits.replace(max_turns=1))]

    whole, cut = run_async(both())
    assert (whole.error, whole.reward, len(whole.sequences)) == ("", 1.0, 1)
    assert [turn.content for turn in whole.messages if turn.role == "assistant"] == [turn.content for turn in gold]
    assert (cut.stop_reason, cut.reward) == (StopReason.MAX_TURNS, 0.0)
