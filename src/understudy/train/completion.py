"""Complete the config of a run: what `epochs`, `auto` and presets leave to the tasks, the model and the machine."""

from understudy.core.errors import ConfigError
from understudy.engines.process_group import ProcessGroup
from understudy.runs.config import TrainConfig
from understudy.runs.epochs import resolve_epochs
from understudy.runs.run import Run
from understudy.train.model_size import RATE_SECTIONS, fit_preset_to_size, resolve_learning_rates
from understudy.train.planning.fitting import FittedRun, fit_to_machine
from understudy.train.token_limits import fit_token_limits


def complete_config(config: TrainConfig) -> tuple[TrainConfig, list[str]]:
    """Return the config with `steps` for `epochs`, numbers for learning rates, and the settings of its presets fitted
    to its model; and lines that name them. A completed config is returned unchanged.

    Commands and the functions that train, plan or check a run all call this. Raise ConfigError if the model or the
    source of tasks cannot be loaded.
    """
    config, length = resolve_epochs(config)
    config, sizes = fit_preset_to_size(config)
    config, rates = resolve_learning_rates(config)
    config, limits = fit_token_limits(config)
    return config.with_presets(()), [*sizes, *(line for line in (length, rates, limits) if line)]


def complete_resumed_config(config: TrainConfig, stored: TrainConfig) -> TrainConfig:
    """Return the completed config of a resumed run, with the stored learning rates where `config` says `auto`."""
    completed, _ = complete_config(config)
    return completed.replace(
        **{
            name: getattr(completed, name).replace(learning_rate=getattr(stored, name).learning_rate)
            for name in RATE_SECTIONS
            if getattr(config, name).learning_rate == "auto"
        }
    )


def complete_run_config(config: TrainConfig, run: Run) -> tuple[TrainConfig, list[str]]:
    """Do the same as `complete_config`, and store the config with its run if anything was completed."""
    completed, lines = complete_config(config)
    if completed != config:
        run.store_config(completed)
    return completed, lines


def fit_run(config: TrainConfig, run: Run, process_group: ProcessGroup) -> FittedRun:
    """Fit a completed config to the memory of rank 0's machine, and store it with its run if anything was fitted.

    All ranks call this. Raise ConfigError if a run without a finished step does not fit.
    """
    fitted = process_group.all_gather(fit_to_machine(config, process_group.world_size))[0]
    if fitted.misfit and not run.step:
        raise ConfigError(fitted.misfit)
    if fitted.config != config:
        run.store_config(fitted.config)
    return fitted
