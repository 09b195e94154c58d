"""Eval sets: the tasks on which a model is evaluated during and after training."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from understudy.core.errors import ConfigError
from understudy.core.tasks import Split, Task
from understudy.envs.task_source import Slice, TaskSource, list_sources, validate_names, with_reward_policy
from understudy.evaluation.evaluate import eval_tasks, select_tasks
from understudy.evaluation.result import ResultRow
from understudy.runs.config import TrainConfig
from understudy.runs.resumption import OOD_SET
from understudy.sources.loading import load_source
from understudy.sources.mixture import Mixture, list_domain_names, select_domains
from understudy.sources.task_files.config import DataConfig
from understudy.sources.task_files.source import TaskFile

_SET_NAME = re.compile(r"[\w.-]*[^\W\d][\w.-]*")


@dataclass
class EvalSet:
    """Tasks that are played at each evaluation."""

    source: TaskSource
    tasks: Sequence[Task]
    config: TrainConfig
    """The config whose domain and eval settings select `tasks` from `source`. It is stored with each evaluation."""
    name: str = ""
    """`ood` for the tasks of `eval.ood_domains`, the name of a test set of `data.tests`, empty for held-out tasks."""
    baselines: tuple[ResultRow, ...] = ()
    """The results of noop and gold; empty until they are played."""


def make_eval_sets(config: TrainConfig, domain: TaskSource) -> list[EvalSet]:
    """Return the eval set of held-out tasks, that of `eval.ood_domains` if this is set, and those of `data.tests`.

    Raise ConfigError if `eval.split`, one of `eval.ood_domains` or a test set has no tasks, and TaskError if the source
    of an eval set cannot play them.
    """
    eval_sets = [EvalSet(domain, eval_tasks(domain, config.eval), config)]
    if config.eval.ood_domains:
        ood = ood_source(config, domain)
        tasks = [task for part in ood.sources for task in _ood_tasks(config, part)]
        eval_sets.append(EvalSet(ood, tasks, _ood_config(config, ood, len(tasks)), OOD_SET))
    test_sets = [_test_set(config, name) for name in config.data.tests]
    for test_set in test_sets:
        _validate_held_out(config, domain, test_set)
    _validate_ood_domains(config, [*eval_sets[1:], *test_sets])
    for eval_set in (*eval_sets, *test_sets):
        for task in {task.domain: task for task in eval_set.tasks}.values():
            eval_set.source.environment(task)
    return [*eval_sets, *test_sets]


def base_eval_sets(config: TrainConfig, eval_sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Return the eval sets of the evaluation before training, with `num_base_tasks` of the held-out tasks."""
    if config.num_base_tasks == config.eval.tasks:
        return list(eval_sets)
    held_out, *others = eval_sets
    fewer = held_out.config.replace(eval=config.eval.replace(tasks=config.num_base_tasks))
    return [EvalSet(held_out.source, eval_tasks(held_out.source, fewer.eval), fewer), *others]


def _validate_ood_domains(config: TrainConfig, eval_sets: Sequence[EvalSet]) -> None:
    """Raise ConfigError if `ood_slice.domains` names a domain that no eval set besides the held-out tasks has."""
    known = {name for eval_set in eval_sets for name in list_domain_names(eval_set.source)}
    validate_names("ood_slice: no eval set", "domain", config.ood_slice.domains if eval_sets else (), known)


def _validate_held_out(config: TrainConfig, domain: TaskSource, test_set: EvalSet) -> None:
    """Raise ConfigError if a test set has test tasks of the domain, and the run is validated on other tasks of it.

    They would be seen at every evaluation, and could guide choices that only validation tasks may guide.
    """
    if config.eval.split == "test":
        return
    held_out = {(task.domain, task.id) for task in domain.tasks("test")}
    if shared := [task for task in test_set.tasks if (task.domain, task.id) in held_out]:
        raise ConfigError(
            f"data.tests.{test_set.name} has {len(shared)} test tasks of {domain.name}, such as {shared[0].id}, and "
            f"eval.split = {config.eval.split!r}; name tasks of another source, or set eval.split=test at the end"
        )


def _test_set(config: TrainConfig, name: str) -> EvalSet:
    """Return a test set of `data.tests`: its test tasks, or all tasks if none of them is a test task.

    It has all domains, or those that `ood_slice.domains` selects of them.
    """
    if not _SET_NAME.fullmatch(name) or (name == OOD_SET and config.eval.ood_domains):
        raise ConfigError(
            f"data.tests: the name {name!r} cannot be used; allowed are letters, digits, '.', '-' and '_', but not "
            f"{OOD_SET!r} beside eval.ood_domains"
        )
    data = _data_beside(config)
    loaded = load_source(config.data.tests[name], data)
    if isinstance(loaded, TaskFile) and loaded.shares_rows:  # its rows name no split, so all of them are played
        data = data.replace(validation=(config.data.tests[name],))
        loaded = load_source(config.data.tests[name], data)
    loaded = with_reward_policy(loaded, config.reward)
    tools = {spec.name for spec in loaded.tool_specs}
    part = Slice(
        domains=select_domains(loaded, config.ood_slice.domains),
        tools=tuple(tool for tool in config.slice.tools if tool in tools),
        domain_policy=config.slice.domain_policy if loaded.has_brief_policy else "full",
    )
    test_config, source = config.replace(domain=config.data.tests[name], data=data, slice=part), loaded.slice(part)
    split: Split = next((split for split in ("test", "validation", "train") if source.tasks(split)), "test")
    tasks = source.tasks(split)
    if not tasks:
        raise ConfigError(f"data.tests.{name} = {config.data.tests[name]!r} has no tasks; name another file")
    return EvalSet(
        source, tasks, test_config.replace(eval=config.eval.replace(split=split, tasks=len(tasks))), name=name
    )


def _data_beside(config: TrainConfig) -> DataConfig:
    """Return what may play rows of eval sets: what may play the training rows, and the training sources."""
    sources = (*config.data.sources, *config.source_references)
    return config.data.replace(train=(), validation=(), tests={}, sources=sources)


def _ood_config(config: TrainConfig, ood: Mixture, num_tasks: int) -> TrainConfig:
    """Return the config with `eval.ood_domains` in place of the training domains."""
    return config.replace(
        domain=f"mix:{','.join(config.eval.ood_domains)}",
        data=_data_beside(config),
        slice=config.ood_slice.replace(domains=select_domains(ood, config.ood_slice.domains)),
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
    data = _data_beside(config)
    parts = tuple(with_reward_policy(load_source(name, data), config.reward) for name in config.eval.ood_domains)
    trained = {part.name for part in list_sources(domain)}
    for part in parts:
        if part.name in trained:
            raise ConfigError(
                f"eval.ood_domains: {part.name} is one of the training domains; remove it here, and set "
                "eval.split=test to evaluate on its test tasks"
            )
    ood = Mixture(parts, (1.0,) * len(parts))
    return ood.slice(config.ood_slice.replace(domains=select_domains(ood, config.ood_slice.domains)))
