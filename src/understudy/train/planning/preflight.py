"""Check everything that a run needs, and forecast its memory, disk space and time. Nothing is written.

The sizes of episodes come from the gold episodes of a few tasks. The machine's speed comes from a stored result of
`understudy bench`, or from a measurement of a second or two.
"""

import contextlib
import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.errors import ConfigError, TaskError
from understudy.core.records import Record
from understudy.engines.local.config import describe_padding
from understudy.engines.local.machine import detect_machine
from understudy.engines.tinker.client import TinkerClient
from understudy.engines.tinker.config import TinkerEngineConfig
from understudy.engines.vllm.client import VllmHttpClient
from understudy.evaluation.evaluate import NUM_SIZED_TASKS, GoldCutOffError, play_demonstrations, play_prompt
from understudy.formats import FormatTokenizer
from understudy.runs.config import TrainConfig
from understudy.runs.phases import has_checkpoint_after
from understudy.train.completion import complete_config
from understudy.train.planning import bench, forecast, memory
from understudy.train.planning.bench import BenchResult
from understudy.train.planning.fitting import fit_to_memory
from understudy.train.planning.forecast import EpisodeSizes, RunForecast
from understudy.train.planning.memory import GIB, MemoryPlan

if TYPE_CHECKING:
    from understudy.train.preparation import PreparedRun


class DiskPlan(Record):
    """Disk space, in bytes."""

    required_bytes: int
    """Bytes of the checkpoints and the model. Episodes and metrics are small in comparison and not counted."""
    num_checkpoints: int
    free_bytes: int


class PreflightReport(Record):
    """The plan of a run. Its text is the full report."""

    config: TrainConfig
    folder: Path
    """The folder of the run."""
    verdict: str
    """The result of the checks, as text."""
    gold_sizes: EpisodeSizes
    forecast: RunForecast | None = None
    """None if a server has the weights: then time, memory and disk are not forecast."""
    speed_source: str = ""
    """How the machine's speed was measured, as text."""
    memory: MemoryPlan | None = None
    misfit: str = ""
    """A line that says why the run does not fit into the memory, or nothing."""
    disk: DiskPlan | None = None
    notes: tuple[str, ...] = ()
    """Further lines of the report."""

    def __str__(self) -> str:
        head = f"{self.config.model} on {self.config.domain_text}: {self.verdict}; folder of the run: {self.folder}"
        lines = [*([self.misfit] if self.misfit else []), head, _sizes(self.gold_sizes, self.config)]
        if self.forecast:
            lines += [
                forecast.format_forecast(self.forecast, self.config),
                f"  (for episodes of this length; speed measured {self.speed_source})",
            ]
        lines += [memory.format_memory_plan(self.memory)] if self.memory else []
        lines += [_room(self.disk)] if self.disk else []
        return "\n".join([*lines, *self.notes])


async def run_preflight(config: TrainConfig, folder: Path, processes: int = 1) -> PreflightReport:
    """Return the plan of a run in `folder`. Raise ConfigError or TaskError as a run would."""
    from understudy.engines.local.model import read_context_length
    from understudy.train.eval_sets import base_eval_sets
    from understudy.train.preparation import (  # imports torch, and errors of the config should not wait for it
        config_warnings,
        context_warnings,
        prepare_run,
    )

    config, completed = complete_config(config)
    prepared = await prepare_run(config)
    sound, notes = "the config is valid", (*completed, *config_warnings(config), *prepared.notes)
    if isinstance(config.engine, TinkerEngineConfig):
        gold, served = await measure_gold_episodes(config, prepared), _served(config.engine)
        return PreflightReport(config=config, folder=folder, verdict=sound, gold_sizes=gold, notes=(served, *notes))
    await _validate_vllm_server(config)
    machine = detect_machine(config.engine.export_engine_config)
    fitted = fit_to_memory(config, prepared.model_folder, machine, processes)
    config = fitted.config
    gold = await measure_gold_episodes(config, prepared)
    speeds, source = await measured_speeds(config, prepared.model_folder)
    evaluated = [
        config.eval.trials * sum(len(eval_set.tasks) for eval_set in sets)
        for sets in (prepared.eval_sets, base_eval_sets(config, prepared.eval_sets))
    ]
    return PreflightReport(
        config=config,
        folder=folder,
        verdict=sound,
        gold_sizes=gold,
        forecast=forecast.forecast_run(config, gold, speeds, *evaluated),
        speed_source=f"{source}; with one process" if processes > 1 else source,
        memory=fitted.plan,
        misfit=fitted.misfit,
        disk=_disk(config, memory.read_model_shape(prepared.model_folder), machine.dtype_bytes, folder),
        notes=(
            *([fitted.changes] if fitted.changes else []),
            *([describe_padding(speeds.padding_reason)] if speeds.padding_reason else []),
            *machine.warnings,
            *context_warnings(config, read_context_length(prepared.model_folder)),
            *notes,
        ),
    )


def preflight_to_dict(report: PreflightReport) -> dict[str, Any]:
    """Return the plan as JSON values, with the totals of its parts."""
    plain = report.model_dump(mode="json")
    if report.forecast:
        plain["forecast"]["seconds"] = report.forecast.seconds
    if report.memory:
        plain["memory"] |= {"peak_bytes": report.memory.peak_bytes, "fits": report.memory.fits}
    return plain


async def _validate_vllm_server(config: TrainConfig) -> None:
    """Raise ConfigError if the vLLM server of the config does not answer. A run would wait for it."""
    vllm = config.engine.export_engine_config.vllm
    if vllm.base_url and not await VllmHttpClient(vllm, vllm.base_url).is_healthy():
        raise ConfigError(
            f"engine.vllm.base_url = {vllm.base_url!r}: no vLLM server answers there; start it, or set another URL"
        )


def _served(engine: TinkerEngineConfig) -> str:
    """Connect to a server and return a line with its model.

    Raise ConfigError if the server cannot be reached or does not have the model.
    """
    with contextlib.closing(TinkerClient(engine)) as server:
        return f"{server} ({engine.server_kind}) has the model {server.connect()}; its speed is not measured"


async def measure_gold_episodes(config: TrainConfig, prepared: "PreparedRun") -> EpisodeSizes:
    """Return the sizes of the gold episodes of the first training tasks.

    If one of them fails and the run needs no demonstrations, each episode is assumed to have one reply of
    `sampling.max_response_tokens`. Raise TaskError if it needs some, if a limit cuts off gold episodes, or if an
    episode has no prompt.
    """
    domain = prepared.domain
    tasks = list(itertools.islice(domain.stream("train", config.seed), NUM_SIZED_TASKS))
    vocabulary = FormatTokenizer.load(prepared.model_folder / "tokenizer.json")
    try:
        played = await play_demonstrations(domain, tasks, prepared.format, config.limits, config.seed)
        return forecast.measure_episodes(played, vocabulary)
    except GoldCutOffError:
        every = itertools.islice(domain.stream("train", config.seed), config.sft.num_gold_episodes)
        await play_demonstrations(domain, every, prepared.format, config.limits, config.seed)  # names a limit for all
        raise
    except TaskError as e:
        if config.sft.num_gold_episodes:
            raise
        problem = str(e)
    played = [await play_prompt(domain, task, prepared.format, config.limits, config.seed) for task in tasks]
    if failed := next((episode for episode in played if episode.fault), None):
        raise TaskError(f"the episode of task {failed.task_id} has no prompt: {failed.error}")
    sizes = forecast.measure_episodes(played, vocabulary).with_one_reply(config.sampling.max_response_tokens)
    return sizes.replace(gold_problem=problem)


def _sizes(episodes: EpisodeSizes, config: TrainConfig) -> str:
    """Return a line with the sizes of episodes. It warns if the longest leaves too little room for a reply, and if
    `sampling.max_response_tokens` cuts off gold replies.
    """
    reply = episodes.assumed_reply_tokens
    longest = episodes.max_tokens + (0 if reply else config.sampling.max_response_tokens)
    room = (
        f"; limits.max_episode_tokens = {config.limits.max_episode_tokens} leaves no room for one more reply; raise it"
        if longest > config.limits.max_episode_tokens
        else ""
    )
    if reply:
        return (
            f"episodes: prompts of {episodes.mean_tokens - reply:,.0f} tokens on average, and one reply of {reply:,}, "
            f"which is assumed{room}. RL needs no gold episodes, but: {episodes.gold_problem}"
        )
    most = config.sampling.max_response_tokens
    cut_off = (
        f"\ngold replies have up to {episodes.max_reply_tokens:,} tokens, but sampling.max_response_tokens = {most}: "
        "the model cannot write them; raise it"
        if episodes.max_reply_tokens > most
        else ""
    )
    return (
        f"gold episodes: {episodes.mean_tokens:,.0f} tokens on average "
        f"({episodes.common_prefix_tokens:,} of them common to all), "
        f"{episodes.mean_sampled_tokens:,.0f} of them sampled in {episodes.mean_turns:.1f} replies; "
        f"the longest has {episodes.max_tokens:,}{room}{cut_off}"
    )


async def measured_speeds(config: TrainConfig, folder: Path) -> tuple[BenchResult, str]:
    """Return the machine's speed and its source."""
    local = config.engine.export_engine_config
    if speeds := bench.load_result(config.model, local):
        return speeds, "by `understudy bench`"
    engine = local.replace(sampler="torch") if local.sampler == "auto" else local
    speeds = await bench.measure_speed(folder, engine, bench.QUICK_SIZE, [local.finetune], config.model)
    slower = engine != local and not memory.max_pass_sizes(config).samples_locally
    how = " with PyTorch, while the run samples with vLLM, which is faster" if slower else ""
    return speeds, f"just now{how}; for a better measurement: understudy bench {config.model}"


def _disk(config: TrainConfig, shape: memory.ModelShape, item: int, folder: Path) -> DiskPlan:
    """Return the disk space of the checkpoints and the model, with `item` bytes for each number of `engine.dtype`.

    Raise ConfigError if the disk has too little free space.
    """
    saved = sum(has_checkpoint_after(config, step) for step in range(1, config.total_steps + 1))
    count = (
        min(saved, config.keep_checkpoints + 2) if config.keep_checkpoints else saved
    )  # 2 more: the best one, and the one that is being written
    needed = count * memory.checkpoint_bytes(shape, config, item) + shape.parameters * 4
    there = next(path for path in folder.absolute().parents if path.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise ConfigError(
            f"{count} checkpoints and the model need {needed / GIB:.1f} GiB, but {there} has {free / GIB:.1f} GiB "
            f"free; {'lower' if config.keep_checkpoints else 'set'} keep_checkpoints, raise save_every, or name a "
            "folder on another disk with --out"
        )
    return DiskPlan(required_bytes=needed, num_checkpoints=count, free_bytes=free)


def _room(disk: DiskPlan) -> str:
    needed, free = disk.required_bytes / GIB, disk.free_bytes / GIB
    return f"disk: {needed:.2f} GiB for {disk.num_checkpoints} checkpoints and the model; {free:.1f} GiB are free"
