"""A run on SkyRL: what the training loop is to other engines. The run's folder is the same, and so is what reads it."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from understudy.certify import Watch, subject_of
from understudy.config import TrainConfig
from understudy.crew import ALONE, Crew
from understudy.domains.mixture import shown
from understudy.engines.base import Engine
from understudy.errors import ConfigError, RolloutError
from understudy.formats import Vocabulary
from understudy.integrations.skyrl.mapping import skyrl_keys
from understudy.integrations.skyrl.policy import Policy
from understudy.integrations.skyrl.sampler import SkyrlSampler
from understudy.integrations.skyrl.settings import VERSION, installed, validated
from understudy.interruption import interruptible
from understudy.preflight import Preflight, gold_episodes
from understudy.run import MODEL, Run
from understudy.trackers import Trackers
from understudy.train.evaluation import Tables, results
from understudy.train.preparation import Prepared, doubts, prepare
from understudy.train.state import Report, Training

LONGEST = "generator.inference_engine.engine_init_kwargs.max_model_len"


def train(config: TrainConfig, run: Run, report: Report, crew: Crew = ALONE) -> Tables:
    """Train to the end, or to Ctrl-C, which writes a checkpoint. Returns the rows of the result tables."""
    if crew.size > 1:
        raise ConfigError("engine.kind = 'skyrl': SkyRL starts processes itself; leave out --processes")
    installed()
    prepared = prepare(config, run.began)
    sampler = SkyrlSampler(lambda: Vocabulary.load(prepared.folder / "tokenizer.json"), _failures())
    policy = Policy(sampler)
    training = made_of(config, run, report, prepared, policy)
    training.resume()
    if training.overspent:
        training.stop(run.step)
    keys = skyrl_keys(config, prepared.folder, run.folder.absolute(), policy.checkpoint)
    sampler.context = int(keys[LONGEST])
    cfg = validated(keys)
    for line in (*doubts(config), _told(cfg)):
        report(line, 0, 0, {})
    with (
        interruptible() as training.interrupted,
        Trackers(config.trackers, config.tracking, run.folder, config.model_dump(mode="json")) as training.trackers,
        _failing(run),
    ):
        _train(cfg, training, policy, sampler, prepared.folder)
        tables = asyncio.run(results(training))
        assert run.last is not None
        with run.model() as folder:
            shutil.copytree(run.last / MODEL, folder, dirs_exist_ok=True)
        for line in training.trackers.close():
            report(line, 0, 0, {})
    return tables


def dry_run(config: TrainConfig, folder: Path) -> Preflight:
    """The plan of a run in `folder`, which SkyRL has checked. Raises ConfigError and TaskError as the run would."""
    installed()
    prepared = prepare(config)
    cfg = validated(skyrl_keys(config, prepared.folder, folder.absolute()))
    gold, notes = gold_episodes(config, prepared), (_told(cfg), *doubts(config))
    taken = f"skyrl {VERSION} takes the config"
    return Preflight(config=config, folder=folder, verdict=taken, gold=gold, notes=notes)


def made_of(config: TrainConfig, run: Run, report: Report, prepared: Prepared, policy: Policy) -> Training:
    """What a run is made of. Of an engine only those verbs are needed that `Policy` has."""
    engine = cast(Engine, policy)
    subject = subject_of(config, prepared.folder, engine, prepared.format)
    watch = Watch(subject, config.certify, lambda domain: shown(prepared.domain, domain), prepared.folder)
    parts = (prepared.domain, engine, prepared.format, report, prepared.users, watch, prepared.exams)
    return Training(config, run, *parts, floor=prepared.floor)


def _train(cfg: Any, training: Training, policy: Policy, sampler: SkyrlSampler, folder: Path) -> None:
    """Train on a cluster, in which nothing is left afterwards."""
    from understudy.integrations.skyrl.cluster import cluster
    from understudy.integrations.skyrl.trainer import CpuExperiment, Experiment, hush

    hush(Path(cfg.trainer.log_path))
    cpu = training.config.skyrl.workers == "cpu"
    with cluster(cfg, cpu):
        (CpuExperiment if cpu else Experiment)(cfg, training, policy, sampler, folder).train()


@contextlib.contextmanager
def _failing(run: Run) -> Iterator[None]:
    """A worker that is gone, one for which there is no place, or tasks that teach nothing are one line."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as e:
        reason = str(e).strip().splitlines()
        text = f"stopped: a worker failed: {reason[-1] if reason else type(e).__name__}"
        raise RolloutError(
            f"{text} (all of it is in {run.folder / 'skyrl'}); go on: {run.how_to_resume}", "engine"
        ) from e
    except RuntimeError as e:
        if "placement group" in str(e):
            raise ConfigError(f"the Ray cluster has no room for skyrl.trainer.placement and the engines: {e}") from e
        if "dynamic sampling limit" in str(e):
            raise RolloutError(f"stopped: {e} To go on: {run.how_to_resume}", "engine") from e
        raise


def _failures() -> tuple[type[Exception], ...]:
    """What an inference client raises where an engine is gone."""
    import aiohttp
    from ray.exceptions import RayError

    return (aiohttp.ClientError, TimeoutError, OSError, RayError)


def _told(cfg: Any) -> str:
    """What a run takes of a cluster, in a line."""
    placement, engine = cfg.trainer.placement, cfg.generator.inference_engine
    parallel = engine.tensor_parallel_size * engine.pipeline_parallel_size * engine.data_parallel_size
    sampled = f"{engine.num_engines} x {parallel}"
    compared = cfg.trainer.algorithm.use_kl_loss or cfg.trainer.algorithm.use_kl_in_reward
    beside = [name for name, there in (("critic", cfg.trainer.critic.model.path), ("reference", compared)) if there]
    return (
        f"{cfg.trainer.strategy}, GPUs: {placement.policy_num_nodes} x {placement.policy_num_gpus_per_node} "
        f"for the policy{''.join(f' and its {name}' for name in beside)}; inference engines: {sampled}"
        f"{', on the same GPUs by turns' if placement.colocate_all else ', on others'}"
    )
