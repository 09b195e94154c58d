"""Eval sets: the tasks on which a model is evaluated during and after training."""

from collections.abc import Sequence
from dataclasses import dataclass

from understudy.core.errors import ConfigError
from understudy.core.tasks import Task
from understudy.envs.domains.mixture import Mixture
from understudy.envs.sources import load_source
from understudy.envs.task_source import TaskSource, list_sources
from understudy.evaluation.evaluate import eval_tasks, select_tasks
from understudy.evaluation.result import ResultRow
from understudy.runs.config import TrainConfig


@dataclass
class EvalSet:
    """Tasks that are played at each evaluation."""

    source: TaskSource
    tasks: Sequence[Task]
    config: TrainConfig
    """The config whose domain and eval settings select `tasks` from `source`. It is stored with each evaluation."""
    is_ood: bool = False
    """True if the tasks are those of `eval.ood_domains`."""
    baselines: tuple[ResultRow, ...] = ()
    """The results of noop and gold; empty until they are played."""


def make_eval_sets(config: TrainConfig, domain: TaskSource) -> list[EvalSet]:
    """Return the eval set of held-out tasks, and that of `eval.ood_domains` if this is set.

    Raise ConfigError if `eval.split` or one of `eval.ood_domains` has no tasks.
    """
    found = [EvalSet(domain, eval_tasks(domain, config.eval), config)]
    if config.eval.ood_domains:
        ood = ood_source(config, domain)
        tasks = [task for part in ood.sources for task in _ood_tasks(config, part)]
        found.append(EvalSet(ood, tasks, _ood_config(config, len(tasks)), is_ood=True))
    return found


def _ood_config(config: TrainConfig, num_tasks: int) -> TrainConfig:
    """Return the config with `eval.ood_domains` in place of the training domains."""
    return config.replace(
        domain=f"mix:{','.join(config.eval.ood_domains)}",
        slice=config.ood_slice,
        eval=config.eval.replace(split="test", tasks=num_tasks),
    )


def _ood_tasks(config: TrainConfig, part: TaskSource) -> list[Task]:
    tasks = select_tasks(part, "test", config.eval.ood_tasks, config.eval.seed)
    if not tasks:
        raise ConfigError(
            f"eval.ood_domains: {part.name} has no test tasks in ood_slice; leave it out, or widen the slice"
        )
    return tasks


def ood_source(config: TrainConfig, domain: TaskSource) -> Mixture:
    """Return the mixture of `eval.ood_domains`. Raise ConfigError if one of them is a training domain."""
    parts = tuple(load_source(name) for name in config.eval.ood_domains)
    trained = {part.name for part in list_sources(domain)}
    for part in parts:
        if part.name in trained:
            raise ConfigError(
                f"eval.ood_domains: {part.name} is one of the training domains; remove it here, and set "
                "eval.split=test to evaluate on its test tasks"
            )
    return Mixture(parts, (1.0,) * len(parts)).slice(config.ood_slice)
