"""The trainer's log-probabilities of a stored episode: those of the weights that sampled it, or none."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from toy import DOMAIN
from understudy.agent import EngineAgent, GoldAgent
from understudy.config import TrainConfig
from understudy.engines.base import Sampling
from understudy.engines.local.engine import LocalEngine
from understudy.errors import ConfigError
from understudy.formats import find
from understudy.models import tiny_model
from understudy.rollout import Limits, rollout
from understudy.run import Run
from understudy.trajectory import Stop, Trajectory
from understudy.viewer.trainer import second

CONFIG = TrainConfig.model_validate(
    {"domain": "toy:DOMAIN", "model": "tiny", "engine": {"device": "cpu", "dtype": "float32", "sampler": "torch"}}
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps the checkpoint of step 3."""
    made = Run.create(tmp_path_factory.mktemp("runs") / "run", CONFIG)
    engine = LocalEngine(tiny_model(), CONFIG.engine)
    with made.checkpoint(3) as folder:
        engine.save(folder)
    engine.close()
    return made.folder


@pytest.fixture(scope="module")
def episode() -> Trajectory:
    engine, task = LocalEngine(tiny_model(), CONFIG.engine), DOMAIN.tasks("train")[0]
    agent = EngineAgent(engine, find(tiny_model()), Sampling(max_tokens=12))
    played = asyncio.run(rollout(task, DOMAIN.environment(task), agent, Limits(max_turns=2)))
    engine.close()
    return played


def test_sampler_and_trainer_agree(run: Path, episode: Trajectory) -> None:
    found = second(run, 4, episode)
    assert found.largest <= found.tolerance
    assert found.checkpoint.endswith("step_000003")
    assert [value is not None for value in found.logprobs] == episode.mask
    failed = dataclasses.replace(episode, score=None, stop=Stop.FAULT, fault="engine")
    assert second(run, 4, failed) == found


def test_a_sampler_that_is_wrong_is_seen(run: Path, episode: Trajectory) -> None:
    place = episode.mask.index(True)
    wrong = [logprob - 0.5 * (i == place) for i, logprob in enumerate(episode.logprobs)]
    found = second(run, 4, dataclasses.replace(episode, logprobs=wrong))
    assert found.largest == pytest.approx(0.5, abs=1e-3)


def test_weights_that_are_not_kept(run: Path, episode: Trajectory) -> None:
    with pytest.raises(ConfigError, match="step 9 are not kept any more; they are for episodes of step: 4"):
        second(run, 9, episode)


def test_an_episode_that_no_model_sampled(run: Path) -> None:
    task = DOMAIN.tasks("train")[0]
    gold = asyncio.run(rollout(task, DOMAIN.environment(task), GoldAgent(), Limits()))
    with pytest.raises(ConfigError, match="nothing in this episode was sampled"):
        second(run, 4, gold)
