"""Tests of the SkyRL environment in unmodified SkyRL, with a real tokenizer.

SkyRL's episodes have the same tokens and rewards as those of the project's own rollout.
"""

import asyncio
import functools
import hashlib
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from support import families, skyrl_venv
from support.data_kit import run_data_command
from support.mcp_environment import write_environment
from support.paths import TESTS
from understudy import formats
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.rollouts.agent import DemonstrationAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.loading import load_source
from understudy.sources.references import list_domains

pytestmark = pytest.mark.skyrl

NUM_ROWS = 25
"""Number of rows of a source that are played."""
LIMITS = EpisodeLimits(max_turns=30, max_episode_tokens=16_384)


@dataclass(frozen=True)
class SkyRLOutput:
    """The output of SkyRL's generator for some rows."""

    output: dict[str, Any]

    def __len__(self) -> int:
        return len(self.output["tasks"])

    def tokens(self, number: int) -> list[int]:
        """Return the prompt and response tokens of an episode."""
        prompt, response = self.output["prompt_token_ids"][number], self.output["response_ids"][number]
        return [*prompt, *response]


def run_in_skyrl(script: str, *arguments: object) -> str:
    """Run a script in SkyRL's virtual environment and return its output."""
    paths = [str(TESTS.parent / "src"), str(TESTS)]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(skyrl_venv.install()), str(TESTS / "support" / script), *map(str, arguments)]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def play_in_skyrl(folder: Path, family: str, replies: str, workers: int, rows: list[Path]) -> SkyRLOutput:
    """Run SkyRL's generator on files of rows and return its output."""
    out = folder / f"{replies}.json"
    run_in_skyrl("skyrl_gym_inside.py", out, families.install() / family, replies, workers, *rows)
    return SkyRLOutput(json.loads(out.read_text()))


def convert_rows(folder: Path, source: str, split: str = "test") -> Path:
    """Write the rows of a source with `understudy data convert` and return their path."""
    path = folder / f"{source.rpartition(':')[2].replace('/', '_')}-{split}.parquet"
    code, _, err = run_data_command("convert", source, path, "--split", split)
    assert (code, err) == (0, "")
    pq.write_table(pq.read_table(path).slice(0, NUM_ROWS), path)
    return path


@functools.cache
def load_format(family: str) -> formats.ChatFormat:
    return formats.load_chat_format(families.install() / family)


def play_in_own_rollout(reference: str, task: Task, family: str) -> Trajectory:
    """Return the gold episode of the project's own rollout, with the seed of the user that SkyRL's environment has."""
    seed = int.from_bytes(hashlib.sha256(f"0/{task.id}".encode()).digest()[:4])
    source, agent = load_source(reference), DemonstrationAgent(load_format(family))
    return asyncio.run(rollout(task, source.environment(task, seed=seed), agent, LIMITS, seed))


def test_skyrl_episodes_equal_own_rollout_for_all_domains(tmp_path: Path) -> None:
    played = play_in_skyrl(tmp_path, "qwen2.5", "gold", 256, [convert_rows(tmp_path, name) for name in list_domains()])
    output = played.output
    assert len(played) == output["finished"] == NUM_ROWS * len(list_domains())
    assert output["threads"] > NUM_ROWS
    assert set(output["env_classes"]) == {"tau_bench"}
    tasks = {task.id: task for name in list_domains() for task in load_source(name).tasks("test")}
    for number, name in enumerate(output["tasks"]):
        episode = play_in_own_rollout(tasks[name].domain, tasks[name], "qwen2.5")
        mask = [bool(mark) for mark in output["loss_masks"][number]]
        prompt = len(output["prompt_token_ids"][number])
        assert played.tokens(number) == episode.tokens
        assert [False] * prompt + mask == episode.mask
        assert len(output["rollout_logprobs"][number]) == len(mask)
        assert output["rewards"][number] == [0.0] * (len(mask) - 1) + [episode.reward]
        assert episode.reward == 1.0
    for name in list_domains():
        assert output["metrics"][f"environment/{name}/success_rate"] == 1.0
        assert output["metrics"][f"environment/{name}/tool_errors"] == 0.0


def test_mcp_episodes_of_reasoning_model_equal_own_rollout(tmp_path: Path) -> None:
    source = f"mcp:{write_environment(tmp_path)}"
    played = play_in_skyrl(tmp_path, "qwen3", "gold", 32, [convert_rows(tmp_path, source, "train")])
    assert set(played.output["env_classes"]) == {"MCPToolEnv"}
    tasks = {task.id: task for task in load_source(source).tasks("train")}
    for number, name in enumerate(played.output["tasks"]):
        prompt = played.output["prompt_token_ids"][number]
        episode = play_in_own_rollout(source, tasks[name], "qwen3")
        assert prompt == episode.tokens[: len(prompt)]
        assert sum(played.output["rewards"][number]) == episode.reward == 1.0
    assert played.output["metrics"]["environment/tally/success_rate"] == 1.0


def test_noop_replies_earn_zero_reward(tmp_path: Path) -> None:
    played = play_in_skyrl(
        tmp_path, "qwen2.5", "noop", 0, [convert_rows(tmp_path, "retail"), convert_rows(tmp_path, "telecom")]
    )
    assert len(played) == 2 * NUM_ROWS
    assert {sum(rewards) for rewards in played.output["rewards"]} == {0.0}
    assert played.output["threads"] == 0
    assert played.output["metrics"]["environment/retail/success_rate"] == 0.0


def test_environment_reports_errors_and_user_faults() -> None:
    """Invalid settings raise before an episode. Users are asked concurrently, and their faults raise errors."""
    found = json.loads(run_in_skyrl("skyrl_gym_alone.py"))
    assert '{"name": "find_user", "arguments": {' in found["prompt"][0]  # the tool format that was set
    for case, said in {
        "setting": "ConfigError: .*'tool_fromat'.*'tool_format'",
        "value": r"ConfigError: .*\bseed: ",
        "human": r"ConfigError: .*\buser\.kind = 'human'",
        "row": "TaskError: .*'reward_spec'",
        "task": r"TaskError: .*reward_spec\.ground_truth",
        "source": "ConfigError: .*'retial'.*'retail'",
        "early": f"TaskError: .*{load_source('retail').tasks('train')[0].id}: ",
    }.items():
        assert re.match(said, found[case]), case
    assert found["users"]["errors"] == [""]
    assert found["users"]["at_once"] > 4
    assert all(re.match("RolloutError: .*'m'.*http:", error) for error in found["fault"]["errors"])
