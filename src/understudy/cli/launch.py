"""Start training from the command line: config, folder, processes, live view and result."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.algorithms.presets import algorithm_presets
from understudy.cli.live import LiveView
from understudy.cli.training_end import format_training_end
from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.event_loop import run_async
from understudy.core.foreign_names import explained_arguments
from understudy.core.settings import dump_section, dump_toml
from understudy.engines.local.config import Finetune, LocalEngineConfig
from understudy.engines.models import find_model
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup, RankInfo, init_rank
from understudy.evaluation.reports.files import write_run_report
from understudy.evaluation.reports.report import RunReport
from understudy.evaluation.reports.text import run_report_to_text
from understudy.runs.agents import missing_package_error
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.conversions import describe_other_names
from understudy.runs.run import Run, next_run_folder, read_run_config, validate_new_folder
from understudy.runs.scratch_run import make_scratch_run
from understudy.runs.storage.locking import folder_lock
from understudy.runs.storage.run_log import RunLog
from understudy.runs.storage.status import StatusRecorder
from understudy.runs.targets import detect_target, read_layer, resolve, split_arguments
from understudy.runs.trackers import default_trackers
from understudy.train.completion import complete_config, complete_resumed_config
from understudy.train.planning import bench
from understudy.train.planning.preflight import PreflightReport, run_preflight
from understudy.train.processes import BRIEF_VARIABLE, TEMP_FOLDER_VARIABLE, exit_with_parent, run_processes

if TYPE_CHECKING:
    from understudy.train.planning.gpu import GPUPlan


@explained_arguments(
    positional="list the settings, as in run_training([TARGET, 'key=value'])",
    keyword="write it as a setting, as in run_training([TARGET, '{name}={value}'])",
)
def run_training(
    settings: Sequence[str] = (),
    out: str | Path | None = None,
    resume: str | Path | None = None,
    debug: bool = False,
) -> str:
    """Train in a new folder, or resume a run. Return the result table as text; the folder holds it too.

    A task that the model learned and the commands to continue with follow the table.

    With `debug`, the run's `run.log` has each episode and retry.

    Of several processes only rank 0 prints and writes the run; the others return an empty text.
    """
    given: object = settings
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        shown = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
        raise ConfigError(f"run_training: settings is {shown}; list them, as in run_training([TARGET, 'key=value'])")
    if wrong := [each for each in settings if not isinstance(each, str)]:
        raise ConfigError(f"run_training: the setting {wrong[0]!r:.100} is no text; write 'key=value'")
    out, resume = _to_path("out", out), _to_path("resume", resume)
    rank_info = init_rank()
    exit_with_parent()
    opened = _opened(settings, out, resume) if rank_info.rank == 0 else contextlib.nullcontext()
    with opened as first:
        if first and rank_info.world_size == 1:
            return _train(first, SINGLE_PROCESS, debug)
        return _train_distributed(first, rank_info, debug)


def _to_path(argument: str, value: object) -> Path | None:
    if value is None or isinstance(value, str | Path):
        return None if value is None else Path(value)
    raise ConfigError(
        f"run_training: {argument} is {value!r:.100}; it is the folder of the run; list all settings in the first "
        "argument, as in run_training([TARGET, 'key=value'])"
    )


@contextlib.contextmanager
def _opened(settings: Sequence[str], out: Path | None, resume: Path | None) -> Iterator[Run]:
    """Open a run, and lock its folder until training ends."""
    with contextlib.ExitStack() as stack:
        if resume is not None and resume.is_dir():
            stack.enter_context(folder_lock(resume))  # before `open_run` removes partial lines from the run's files
        run = open_run(settings, out, resume)
        if resume is None:
            stack.enter_context(folder_lock(run.folder))
        yield run


def _train_distributed(opened: Run | None, rank_info: RankInfo, debug: bool) -> str:
    """Train with the other processes. Only rank 0 has opened the run."""
    process_group = _open_process_group(rank_info)
    run = process_group.all_gather(opened)[0]
    assert run is not None
    process_group.set_timeout(run.config.engine.export_engine_config.collective_timeout)
    try:
        return _train(opened, process_group, debug) if opened else _train_worker(run, process_group)
    finally:  # otherwise gloo's threads may abort this process at its end, when another one has ended before
        process_group.close()


def launch_processes(
    processes: int,
    settings: Sequence[str] = (),
    out: Path | None = None,
    resume: Path | None = None,
    debug: bool = False,
) -> int:
    """Train in several processes of this machine. Return the exit status of rank 0."""
    if init_rank().world_size > 1:
        raise ConfigError(
            f"--num-processes {processes}: this is already one of several processes; leave the option out"
        )
    exit_with_parent()
    if resume is None:
        resolve(settings)  # reports a mistake once instead of once per process
    folders = [text for name, path in (("--out", out), ("--resume", resume)) if path for text in (name, str(path))]
    options = [*folders, *(["--debug"] if debug else [])]
    return run_processes([sys.executable, "-m", "understudy", "train", *settings, *options], processes)


def _open_process_group(rank_info: RankInfo) -> ProcessGroup:
    try:
        from understudy.engines.local.distributed.distributed import TorchProcessGroup
    except ModuleNotFoundError as e:
        raise missing_package_error(e, "training") from e
    return TorchProcessGroup(rank_info)


def _train_worker(run: Run, process_group: ProcessGroup) -> str:
    """Train as a rank other than 0. Its files go to a temporary folder."""
    from understudy.train.loop import train as run_all

    with tempfile.TemporaryDirectory(prefix="understudy-", dir=os.environ.get(TEMP_FOLDER_VARIABLE)) as folder:
        try:
            run_all(run.config, make_scratch_run(run, Path(folder, "run")), lambda *_: None, process_group)
        except KeyboardInterrupt:
            sys.exit(130)
    return ""


def _train(run: Run, process_group: ProcessGroup, debug: bool) -> str:
    try:
        with StatusRecorder(run.folder, run.step) as status, RunLog(run.folder, debug) as log:
            run_all = _find_trainer(run.config)
            with LiveView(run) as live:

                def report(activity: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
                    live.report(activity, done, total, metrics)
                    status.report(activity, done, total, metrics)
                    log.report(activity, done, total, metrics)

                result = run_all(run.config, run, report, process_group, live.add_episode, live.interrupt)
            write_run_report(result, run)
    except KeyboardInterrupt as e:
        if str(e):
            raise
        raise KeyboardInterrupt(f"stopped at once, with step {run.step} saved; to resume: {run.resume_command}") from e
    except ModuleNotFoundError as e:
        run.discard()
        raise missing_package_error(e, "training") from e
    except (ConfigError, TaskError) as e:
        if not isinstance(e.__cause__, OSError):  # after a full disk the run can be resumed
            run.discard()
        raise
    except RolloutError:
        run.discard()
        raise
    if BRIEF_VARIABLE in os.environ:
        return run_report_to_text(result, is_brief=True)
    return f"{run_report_to_text(result)}\n\n{format_training_end(run.folder, sys.stdout.isatty())}"


def _find_trainer(config: TrainConfig) -> "Callable[..., RunReport]":
    """Return the function that trains. It is imported here, since it loads torch."""
    if config.engine.kind == "skyrl":
        from understudy.train.skyrl.train import train_on_skyrl as run_on_ray

        return run_on_ray
    from understudy.train.loop import train as run_here

    return run_here


def dry_run(
    settings: Sequence[str] = (), out: Path | None = None, resume: Path | None = None, processes: int = 1
) -> PreflightReport:
    """Check a run and forecast its time and memory. Nothing is written."""
    if resume is not None:
        raise ConfigError(f"--dry-run works for new runs only; leave out --resume, or give {resume} as TARGET")
    resolved = resolve(settings)
    (config, lines), folder = complete_config(resolved.config), out or next_run_folder(resolved.name)
    if out is not None:
        validate_new_folder(out)
    try:
        if config.engine.kind == "skyrl":
            from understudy.train.skyrl.train import preflight_on_skyrl as on_ray

            found = run_async(on_ray(config, folder))
        else:
            found = run_async(run_preflight(config, folder, processes))
        named = describe_other_names(TrainConfig, split_arguments(settings)[1])
        return found.replace(notes=(*(line for line in (named, *lines) if line), *found.notes))
    except ModuleNotFoundError as e:
        raise missing_package_error(e, "training") from e


def plan_for_gpu(settings: Sequence[str], gpu: str, processes: int = 1) -> "GPUPlan":
    """Return the memory plan of a config for GPUs of a kind."""
    try:
        from understudy.train.planning.gpu import plan_for_gpu as plan_config_for_gpu

        return plan_config_for_gpu(resolve(settings).config, gpu, processes)
    except ModuleNotFoundError as e:
        raise missing_package_error(e, "planning") from e


def _model_config(model: str, settings: Sequence[str]) -> TrainConfig:
    """Return the config of further configs and settings with a model, which wins over theirs unless it is empty."""
    names, given = split_arguments(settings)
    named = [f"model={model}"] if model else []
    return parse_config("", [*named, *given], layers=[read_layer(name, model) for name in names])


def run_bench(model: str, settings: Sequence[str] = (), quick: bool = False) -> bench.BenchResult:
    """Measure this machine's speed with a model. The result is saved for forecasts unless `quick`."""
    config = _model_config(model, settings)
    engine, size = config.engine, bench.QUICK_SIZE if quick else bench.BenchSize()
    if not isinstance(engine, LocalEngineConfig):
        raise ConfigError(
            f"engine.kind = {engine.kind!r}: bench measures this machine only; leave it out, or give engine.kind=local"
        )
    ways: tuple[Finetune, ...] = ("qlora",) if engine.finetune == "qlora" else ("full", "lora")
    try:
        speeds = run_async(
            bench.measure_speed(
                find_model(config.model), config.resolved_engine.export_engine_config, size, ways, config.model
            )
        )
    except ModuleNotFoundError as e:
        raise missing_package_error(e, "measuring") from e
    if not quick:
        bench.save_result(speeds, engine)
    return speeds


def run_certify(model: str, settings: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """Return the certificate of a model, as a dict and as text."""
    config = _model_config(model, settings)
    try:
        from understudy.train import certify as proof
    except ModuleNotFoundError as e:
        raise missing_package_error(e, "certification") from e
    certificate = run_async(proof.certify(config))
    return proof.certificate_to_dict(certificate), proof.format_certificate(certificate)


def open_run(settings: Sequence[str], out: Path | None, resume: Path | None) -> Run:
    """Create a run, or open one to resume, with the settings that may change on resuming."""
    if resume is None:
        resolved = resolve(settings)
        config, lines = complete_config(resolved.config)
        config, tracked = _with_default_trackers(config)
        run = Run.create(out or next_run_folder(resolved.name), config)
        named = describe_other_names(TrainConfig, split_arguments(settings)[1])
        run.warnings += [line for line in (named, *lines, tracked) if line]
        return run
    if out is not None:
        raise ConfigError("--resume and --out exclude each other; give one of them")
    return Run.resume(resume, _resumed_config(settings, resume) if settings else None)


def _resumed_config(settings: Sequence[str], folder: Path) -> TrainConfig:
    """Return the config of a run that is resumed with further settings."""
    stored = read_run_config(folder)
    names, overrides = split_arguments(settings)
    config = resolve(settings).config if names else parse_config(dump_toml(stored), overrides)
    return complete_resumed_config(config, stored)


def _with_default_trackers(config: TrainConfig) -> tuple[TrainConfig, str]:
    """Return the config with the default trackers unless it sets `trackers`, and a line that says which they are."""
    names = () if "trackers" in config.model_fields_set else default_trackers()
    if not names:
        return config, ""
    said = f"the metrics are sent to {', '.join(names)}, whose key is set; trackers=[] turns this off"
    return config.replace(trackers=names), said


def format_config(settings: Sequence[str]) -> str:
    """Return the config with every key and its documentation."""
    return dump_toml(resolve(settings).config)


def format_keys(arguments: Sequence[str]) -> str:
    """Return the config, or only the section that one of the arguments names.

    A name that is no target, no algorithm and no setting is a section. Raise ConfigError, which lists the sections, if
    there is none of this name.
    """
    names, _ = split_arguments(arguments)
    sections = [name for name in names if name not in algorithm_presets() and detect_target(name) is None]
    config = resolve([each for each in arguments if each not in sections]).config
    return "\n".join(dump_section(config, section) for section in sections) if sections else dump_toml(config)
