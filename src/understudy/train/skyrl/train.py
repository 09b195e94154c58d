"""Training and preflight on SkyRL. The run's folder has the same content as with other engines."""

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from understudy.clients.cost import COST_FILE, CostTracker
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.event_loop import run_async
from understudy.core.imports import import_object
from understudy.core.interruption import interruptible
from understudy.engines.interface import Engine
from understudy.engines.models.folder import read_vocab_size
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.envs.task_source import find_tool_specs
from understudy.evaluation.reports.files import read_run_report
from understudy.evaluation.reports.report import RunReport
from understudy.formats import FormatTokenizer
from understudy.rollouts.rollout import EpisodeCallback
from understudy.runs.config import TrainConfig
from understudy.runs.run import MODEL_FOLDER, Run
from understudy.runs.trackers import TrackerProcesses
from understudy.train.certify import RunCertifier, make_certification_target
from understudy.train.checkpointing import load_checkpoint
from understudy.train.completion import complete_config, complete_run_config
from understudy.train.phases.rl import RLPhase
from understudy.train.planning.preflight import PreflightReport, measure_gold_episodes
from understudy.train.preparation import PreparedRun, config_warnings, prepare_run
from understudy.train.skyrl.engine_adapter import SkyRLEngineAdapter
from understudy.train.skyrl.mapping import require_skyrl_engine_config, to_skyrl_keys
from understudy.train.skyrl.sampler import SkyRLSampler
from understudy.train.skyrl.settings import SKYRL_VERSION, build_skyrl_config, validate_installation
from understudy.train.state import ProgressReporter, TrainingContext

MAX_MODEL_LEN_KEY = "generator.inference_engine.engine_init_kwargs.max_model_len"


def train_on_skyrl(
    config: TrainConfig,
    run: Run,
    report: ProgressReporter,
    process_group: ProcessGroup = SINGLE_PROCESS,
    on_episode: EpisodeCallback = lambda episode: None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> RunReport:
    """Train to the end and return the results. On Ctrl-C, write a checkpoint and raise KeyboardInterrupt.

    This is not a coroutine, because SkyRL's trainer starts an event loop of its own.
    """
    if process_group.world_size > 1:
        raise ConfigError("engine.kind = 'skyrl': SkyRL starts processes itself; leave out --num-processes")
    validate_installation()
    config, completed = complete_run_config(config, run)
    tracker = CostTracker(file=run.folder / COST_FILE)
    prepared = run_async(prepare_run(config, run.created_at, cost_tracker=tracker))
    sampler = SkyRLSampler(lambda: FormatTokenizer.load(prepared.model_folder / "tokenizer.json"), _client_errors())
    policy = SkyRLEngineAdapter(sampler)
    progress = load_checkpoint(run, cast(Engine, policy))
    keys = to_skyrl_keys(config, prepared.model_folder, run.folder.absolute(), policy.checkpoint)
    sampler.max_context_tokens = int(keys[MAX_MODEL_LEN_KEY])
    sampler.vocab_size = read_vocab_size(prepared.model_folder)
    cfg = build_skyrl_config(keys)
    for line in (*run.warnings, *completed, *config_warnings(config), _cluster_summary(cfg)):
        report(line, 0, 0, {})
    with (
        interruptible(on_interrupt) as is_interrupted,
        TrackerProcesses(config.trackers, config.tracking, run.folder, config.model_dump(mode="json")) as trackers,
        _worker_errors(run),
    ):
        context = make_context(config, run, prepared, policy, trackers, report, is_interrupted, on_episode)
        if context.over_cost_limit:
            context.raise_stopped(run.step)
        _train(cfg, RLPhase(context, progress), policy, sampler, prepared.model_folder)
        result = read_run_report(run.folder)
        assert run.last_checkpoint is not None
        with run.write_model() as folder:
            shutil.copytree(run.last_checkpoint / MODEL_FOLDER, folder, dirs_exist_ok=True)
        for line in trackers.close():
            report(line, 0, 0, {})
    return result


async def preflight_on_skyrl(config: TrainConfig, folder: Path) -> PreflightReport:
    """Return the plan of a run in `folder`, with a config that SkyRL has validated.

    Raise ConfigError or TaskError as a run would.
    """
    validate_installation()
    config, completed = complete_config(config)
    prepared = await prepare_run(config)
    cfg = _skyrl_config(config, prepared, folder)
    gold = await measure_gold_episodes(config, prepared)
    notes = (*completed, _cluster_summary(cfg), *config_warnings(config))
    taken = f"skyrl {SKYRL_VERSION} accepts the config"
    return PreflightReport(config=config, folder=folder, verdict=taken, gold_sizes=gold, notes=notes)


def _skyrl_config(config: TrainConfig, prepared: PreparedRun, folder: Path) -> Any:
    return build_skyrl_config(to_skyrl_keys(config, prepared.model_folder, folder.absolute()))


def make_context(
    config: TrainConfig,
    run: Run,
    prepared: PreparedRun,
    engine_adapter: SkyRLEngineAdapter,
    trackers: TrackerProcesses,
    report: ProgressReporter,
    is_interrupted: Callable[[], bool],
    on_episode: EpisodeCallback = lambda episode: None,
) -> TrainingContext:
    """Return the context of a run. It uses only those methods of the engine that `SkyRLEngineAdapter` has."""
    engine = cast(Engine, engine_adapter)
    target = make_certification_target(config, prepared.model_folder, engine, prepared.format)
    tools = functools.partial(find_tool_specs, prepared.domain)
    return TrainingContext(
        config=config,
        run=run,
        domain=prepared.domain,
        engine=engine,
        format=prepared.format,
        users=prepared.users,
        eval_sets=prepared.eval_sets,
        certifier=RunCertifier(target, config.certify, tools, prepared.model_folder),
        trackers=trackers,
        report=report,
        on_episode=on_episode,
        is_interrupted=is_interrupted,
        reward_judge=prepared.reward_judge,
        noop_reward=prepared.noop_reward,
        cost_tracker=prepared.cost_tracker,
    )


def _train(cfg: Any, phase: RLPhase, policy: SkyRLEngineAdapter, sampler: SkyRLSampler, folder: Path) -> None:
    """Connect to a cluster, train, and disconnect. Raise ConfigError if `engine.experiment` is invalid."""
    from understudy.train.skyrl.cluster import ray_cluster
    from understudy.train.skyrl.trainer import SkyRLExperiment, redirect_skyrl_log

    named = require_skyrl_engine_config(phase.context.config).experiment
    experiment = import_object(named) if named else SkyRLExperiment
    if not (isinstance(experiment, type) and issubclass(experiment, SkyRLExperiment)):
        raise ConfigError(
            f"engine.experiment = {named!r} is not a subclass of {SkyRLExperiment.__module__}."
            f"{SkyRLExperiment.__name__}; name such a class"
        )
    redirect_skyrl_log(Path(cfg.trainer.log_path))
    with ray_cluster(cfg, experiment.worker_env_vars(cfg), experiment.ray_init_args(cfg)):
        experiment(cfg, phase, policy, sampler, folder).train()


@contextlib.contextmanager
def _worker_errors(run: Run) -> Iterator[None]:
    """Convert errors of Ray and SkyRL inside the block to errors of one line.

    Raise RolloutError if a worker failed or the limit of dynamic sampling was reached. Raise ConfigError if the
    cluster is too small.
    """
    from ray.exceptions import RayError

    try:
        yield
    except RayError as e:
        reason = str(e).strip().splitlines()
        text = f"stopped: a worker failed: {reason[-1] if reason else type(e).__name__}"
        raise RolloutError(
            f"{text} (full log in {run.folder / 'skyrl'}); resume: {run.resume_command}", "engine"
        ) from e
    except RuntimeError as e:
        if "placement group" in str(e):
            raise ConfigError(
                "the Ray cluster is too small for engine.trainer.placement and engine.generator.inference_engine: "
                f"{e}; add machines, or lower the numbers of GPUs there"
            ) from e
        if "dynamic sampling limit" in str(e):
            raise RolloutError(f"stopped: {e} Resume: {run.resume_command}", "engine") from e
        raise


def _client_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that an inference client raises if its engine has died."""
    import aiohttp
    from ray.exceptions import RayError

    return (aiohttp.ClientError, TimeoutError, OSError, RayError)


def _cluster_summary(cfg: Any) -> str:
    """Return a line with the GPUs that a run uses."""
    placement, engine = cfg.trainer.placement, cfg.generator.inference_engine
    parallel = engine.tensor_parallel_size * engine.pipeline_parallel_size * engine.data_parallel_size
    sampled = f"{engine.num_engines} x {parallel}"
    compared = cfg.trainer.algorithm.use_kl_loss or cfg.trainer.algorithm.use_kl_in_reward
    beside = [name for name, there in (("critic", cfg.trainer.critic.model.path), ("reference", compared)) if there]
    return (
        f"{cfg.trainer.strategy}, GPUs: {placement.policy_num_nodes} x {placement.policy_num_gpus_per_node} "
        f"for {', '.join(['policy', *beside])}; inference engines: {sampled} "
        f"{'on the same GPUs' if placement.colocate_all else 'on other GPUs'}"
    )
