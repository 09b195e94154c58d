"""Stock SkyRL: its dataset reads our rows, its generator plays our environments, with a real tokenizer.

The episodes are, token for token, those of our own rollout, and so are the rewards.
"""

import asyncio
import functools
import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("pyarrow")

import families
import skyrl_venv
from data_kit import call
from test_mcp_source import environment
from understudy import formats
from understudy.agent import DemonstrationAgent
from understudy.domains.base import find, names
from understudy.rollout import Limits, rollout
from understudy.tasks import Task
from understudy.trajectory import Trajectory

pytestmark = pytest.mark.skyrl

TESTS = Path(__file__).parent
LIMITS = Limits(max_turns=30, max_tokens=16_384)


@dataclass(frozen=True)
class Played:
    """What SkyRL made of some rows."""

    output: dict[str, Any]

    def __len__(self) -> int:
        return len(self.output["tasks"])

    def tokens(self, number: int) -> list[int]:
        """All of an episode."""
        prompt, response = self.output["prompt_token_ids"][number], self.output["response_ids"][number]
        return [*prompt, *response]


def by_skyrl(script: str, *arguments: object) -> str:
    """What a script prints in SkyRL's environment."""
    paths = [str(TESTS.parent / "src"), str(TESTS)]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(skyrl_venv.install()), str(TESTS / script), *map(str, arguments)]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def play(folder: Path, family: str, replies: str, workers: int, rows: list[Path]) -> Played:
    """SkyRL's generator on rows, in its own environment."""
    out = folder / f"{replies}.json"
    by_skyrl("skyrl_gym_inside.py", out, families.install() / family, replies, workers, *rows)
    return Played(json.loads(out.read_text()))


def converted(folder: Path, source: str, split: str = "test") -> Path:
    """The rows of a source, as `understudy data convert` writes them."""
    path = folder / f"{source.rpartition(':')[2].replace('/', '_')}-{split}.parquet"
    code, _, err = call("convert", source, path, "--split", split)
    assert (code, err) == (0, "")
    return path


@functools.cache
def format_of(family: str) -> formats.ChatFormat:
    return formats.find(families.install() / family)


def ours(reference: str, task: Task, family: str) -> Trajectory:
    """The gold episode that our own rollout makes, with the user whom the environment has."""
    seed = int.from_bytes(hashlib.sha256(f"0/{task.id}".encode()).digest()[:4])
    source, agent = find(reference), DemonstrationAgent(format_of(family))
    return asyncio.run(rollout(task, source.environment(task, seed=seed), agent, LIMITS, seed))


def test_hundreds_of_episodes_of_all_domains_at_once_are_those_of_our_rollout(tmp_path: Path) -> None:
    played = play(tmp_path, "qwen2.5", "gold", 256, [converted(tmp_path, name) for name in names()])
    output = played.output
    assert len(played) == 500
    assert output["finished"] == 500
    assert output["threads"] > 100
    assert set(output["env_classes"]) == {"tau_bench"}
    tasks = {task.id: task for name in names() for task in find(name).tasks("test")}
    for number, name in enumerate(output["tasks"]):
        episode = ours(tasks[name].domain, tasks[name], "qwen2.5")
        mask = [bool(mark) for mark in output["loss_masks"][number]]
        prompt = len(output["prompt_token_ids"][number])
        assert played.tokens(number) == episode.tokens
        assert [False] * prompt + mask == episode.mask
        assert len(output["rollout_logprobs"][number]) == len(mask)
        assert output["rewards"][number] == [0.0] * (len(mask) - 1) + [episode.reward]
        assert episode.reward == 1.0
    for name in names():
        assert output["metrics"][f"environment/{name}/success_rate"] == 1.0
        assert output["metrics"][f"environment/{name}/tool_errors"] == 0.0


def test_servers_and_a_model_that_thinks(tmp_path: Path) -> None:
    source = f"mcp:{environment(tmp_path)}"
    played = play(tmp_path, "qwen3", "gold", 32, [converted(tmp_path, source, "train")])
    assert set(played.output["env_classes"]) == {"MCPToolEnv"}
    tasks = {task.id: task for task in find(source).tasks("train")}
    for number, name in enumerate(played.output["tasks"]):
        prompt = played.output["prompt_token_ids"][number]
        episode = ours(source, tasks[name], "qwen3")
        assert prompt == episode.tokens[: len(prompt)]
        assert sum(played.output["rewards"][number]) == episode.reward == 1.0
    assert played.output["metrics"]["environment/tally/success_rate"] == 1.0


def test_silence_earns_nothing(tmp_path: Path) -> None:
    played = play(tmp_path, "qwen2.5", "silent", 0, [converted(tmp_path, "retail"), converted(tmp_path, "telecom")])
    assert len(played) == 200
    assert {sum(rewards) for rewards in played.output["rewards"]} == {0.0}
    assert played.output["threads"] == 0
    assert played.output["metrics"]["environment/retail/success_rate"] == 0.0


def test_environments_by_themselves() -> None:
    """What is wrong is said before an episode; users are asked side by side, and their faults are no rewards."""
    found = json.loads(by_skyrl("skyrl_gym_alone.py"))
    assert '{"name": "find_user", "arguments": {' in found["prompt"][0]  # the dialect that was set
    assert found["setting"].startswith(
        "ConfigError: the environments have no setting 'dialekt'; did you mean 'dialect'?"
    )
    assert found["value"].startswith("ConfigError: the environments' seed: ")
    assert found["human"].startswith("ConfigError: the environments' user.kind = 'human'")
    assert found["row"].startswith("TaskError: the row has no 'reward_spec'")
    assert found["task"].startswith("TaskError: reward_spec.ground_truth of the row is not a task as JSON")
    assert found["source"].startswith("ConfigError: unknown domain 'retial'; did you mean 'retail'?")
    assert found["early"].startswith(f"TaskError: task {find('retail').tasks('train')[0].id}: step before init")
    assert found["users"]["errors"] == [""]
    assert found["users"]["at_once"] > 4
    assert all(error.startswith("RolloutError: chat model 'm' at http:") for error in found["fault"]["errors"])
