"""Complete runs in seconds: a random model of 115 thousand parameters, a domain with one lamp, and readers of a
run's files.

A module that imports this one needs torch; `tiny` and `distinct_character_rewards` are fixtures.
"""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.run_evaluations import run_results
from toy import LampTools, build_house, make_task
from understudy.core.errors import RolloutError
from understudy.core.messages import Message
from understudy.core.tasks import Difficulty, Score, Split, Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.models import make_tiny_model
from understudy.envs.domain import Domain
from understudy.envs.environment import ConsentGate, ToolEnvironment
from understudy.envs.rewards import extract_numbers, product_score, state_match, states_fact
from understudy.envs.state import State
from understudy.envs.task_generation import interleave_families
from understudy.envs.users import OpeningOnlyUser, User
from understudy.evaluation.result import EvalResult
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.run import Run, list_run_evaluations, read_metrics
from understudy.runs.storage.episode_store import EPISODES_FILE
from understudy.train.loop import train
from understudy.train.state import ProgressReporter


class OneLamp(Domain):
    """A domain with one lamp and a user with fixed texts."""

    def tasks(self, split: Split) -> list[Task]:
        """Return no frozen tasks."""
        return []

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        return super().environment(task, FaultyUser() if USER_FAULTS and USER_FAULTS.pop() else user, 0)


class FaultyUser:
    """A user that always fails."""

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        raise RolloutError("the user cannot be reached", "user")


USER_FAULTS: list[bool] = []
"""Whether the user of each of the next episodes fails. The last entry is the next episode."""


def lamp_tasks(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    for family, difficulty, index in interleave_families(families, difficulties):
        yield make_task(f"{split}/{seed}/{family}/{difficulty}/{index}", split, family, difficulty, ["L7"])


def watts_tasks(split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[Task]:
    """Yield tasks whose answer has a few letters, so that the tiny model can learn them in seconds."""
    for each in lamp_tasks(split, seed, families, difficulties):
        scenario = each.scenario.replace(opening="How much does a lamp draw?", goals=())
        yield each.replace(scenario=scenario, gold=(Message(role="assistant", content="71 W"),), outputs=("71",))


def grade_watts(
    task: Task,
    state: State,
    gold_changes: Mapping[str, Any],
    gate: ConsentGate,
    transcript: Sequence[Message],
    ended: bool,
) -> Score:
    """Return 1.0 if an answer has the right number among at most three. A random model writes no sentences."""
    texts = [message.content for message in transcript if message.role == "assistant" and not message.tool_calls]
    told = any(states_fact(task.outputs[0], text) and len(extract_numbers(text)) <= 3 for text in texts)
    unchanged = state_match(state, gold_changes)
    score = product_score({"state_match": unchanged, "facts_told": float(told), "within_limits": float(ended)})
    return score.replace(progress=float(told))


class Watts(OneLamp):
    """A domain whose user leaves after one answer."""

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        return super().environment(task, user or OpeningOnlyUser(task.scenario.opening), 0)


ONE_LAMP = OneLamp("toy", build_house, LampTools, lamp_tasks, ("one",))
WATTS = Watts("toy", build_house, LampTools, watts_tasks, ("one", "two"), grade=grade_watts, reward_policy="off")
SMALL = (
    "domain=support.tiny_runs:ONE_LAMP",
    "slice.domain_policy=brief",
    "slice.tools=switch_lamp",
    "engine.device=cpu",
    "engine.dtype=float32",
    "engine.train_embeddings=true",
    "sampling.max_response_tokens=12",
    "limits.max_turns=2",
    "eval.tasks=2",
    "eval.temperature=1.0",
    "sft.steps=2",
    "sft.batch_size=2",
    "sft.num_demonstrations=3",
    "steps=3",
    "save_every=1",
    "keep_checkpoints=0",
    "algorithm.groups_per_batch=2",
    "algorithm.group_size=3",
    "algorithm.max_resampled_groups=1",
    "algorithm.learning_rate=1e-3",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def distinct_character_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score episodes by their number of distinct characters, so that the rewards of an untrained model vary."""
    monkeypatch.setattr("understudy.envs.domain.score_episode", score_distinct_characters)


def score_distinct_characters(
    task: Task, state: Any, goal: Any, gate: Any, transcript: Sequence[Message], ended: bool
) -> Score:
    """Return 1 for the gold answer, else the number of distinct characters in the agent's texts, divided by 25."""
    said = "".join(m.content for m in transcript if m.role == "assistant")
    gold = any(m.content == task.gold[0].content for m in transcript)
    return Score(reward=1.0 if gold else min(1.0, len(set(said)) / 25))


def tiny_config(model: Path, *settings: str) -> TrainConfig:
    """Return the config of a tiny run on the CPU, with `settings` applied last."""
    return parse_config("", [f"model={model}", *SMALL, *settings])


def ignore_progress(phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
    pass


def train_tiny_run(folder: Path, model: Path, *settings: str, report: ProgressReporter = ignore_progress) -> Run:
    """Train a new tiny run to its end."""
    run = Run.create(folder, tiny_config(model, *settings))
    train(run.config, run, report)
    return run


def step_metrics(run: Run) -> list[dict[str, Any]]:
    """Return the metrics of all steps but step 0, the evaluation of the base model, without times and memory."""
    return [line for line in all_metrics(run) if line["step"]]


def all_metrics(run: Run) -> list[dict[str, Any]]:
    """Return all records of `metrics.jsonl` without times and memory."""
    lines = read_metrics(run.folder)
    measured = ("time/", "time/certify_seconds", "train/peak_memory_gib")
    return [{k: v for k, v in line.items() if not k.startswith(measured)} for line in lines]


def load_checkpoint_files(run: Run, step: int | None = None) -> dict[str, Any]:
    """Return the optimizer's tensors and the progress in the checkpoint of a step, by default of the last one."""
    folder = run.folder / "checkpoints" / f"step_{run.step if step is None else step:06}"
    progress = json.loads((folder / "progress.json").read_text())
    return load_file(folder / "optimizer.safetensors") | {"progress": progress}


def equal_values(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two mappings have equal keys, tensors and values."""
    equal = (torch.equal(one[k], other[k]) if isinstance(one[k], torch.Tensor) else one[k] == other[k] for k in one)
    return one.keys() == other.keys() and all(equal)


def run_episodes(run: Run) -> list[str]:
    """Return all episodes of a run without times."""
    return [line for file in sorted((run.folder / "trajectories").iterdir()) for line in _untimed(file)]


def evaluations(run: Run) -> dict[str, EvalResult]:
    """Return the results of a run on held-out tasks, by the names of their folders."""
    return run_results(run.folder)


def evaluation_episodes(run: Run) -> dict[str, list[str]]:
    """Return the episodes of a run's evaluations without times, by the names of their folders."""
    return {each.name: _untimed(each.folder / EPISODES_FILE) for each in list_run_evaluations(run.folder)}


def _untimed(file: Path) -> list[str]:
    lines = map(json.loads, file.read_text().splitlines())
    return [json.dumps({key: value for key, value in line.items() if key != "timings"}) for line in lines]


def make_episodes(*rewards: float | None, tokens: int = 2) -> list[Trajectory]:
    """Return one episode per reward; None is an episode that the user's failure ended."""
    found = []
    for i, reward in enumerate(rewards):
        score = None if reward is None else Score(reward=reward)
        stop = StopReason.DONE if score else StopReason.FAULT
        episode = Trajectory(
            "t", score=score, stop_reason=stop, fault=None if score else "user", event_counts={"text": 1}
        )
        episode.observe([], [1])
        episode.act(Message(role="assistant", content="x"), [2] * (tokens + i), [-1.0] * (tokens + i))
        found.append(episode)
    return found


class InterruptAtStep:
    """A progress report that sends Ctrl-C when a phase has reached a step."""

    def __init__(self, phase: str, done: int) -> None:
        self._at = (phase, done)

    def __call__(self, phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
        if (phase, done) == self._at:
            os.kill(os.getpid(), signal.SIGINT)
