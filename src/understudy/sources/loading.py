"""`load_source` returns a task source by its name.

A name is a reference (`references.py`), the path of a file or folder of tasks, `hf:owner/name` for a data set, or
`mix:a,b` for a mixture, which `a,b` and a list of names mean too.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.tasks import Split
from understudy.envs.task_source import TaskSource, list_sources
from understudy.sources.mixture import Mixture, parse_weight
from understudy.sources.references import load_reference
from understudy.sources.task_files.config import NO_DATA, DataConfig
from understudy.sources.task_files.files import is_task_file
from understudy.sources.task_files.opening import GivenFiles, name_files, open_task_files
from understudy.sources.task_files.source import TaskFile


def load_source(name: str | Sequence[str], data: DataConfig = NO_DATA) -> TaskSource:
    """Return the task source called `name`; the module docstring lists the forms of names.

    `data` says which sources the rows of files may name, how prompts are scored, and which files replace splits. All
    files are read together. Raise `ConfigError` for an unknown name, and for an attribute that is no `TaskSource`.
    """
    names = list_names(name)
    is_mixture = len(names) > 1 or (isinstance(name, str) and name.startswith("mix:"))
    weights = [parse_weight(part) if is_mixture else (part, 1.0) for part in names]
    if is_mixture:  # a file of `data.validation` has only validation tasks
        weights = [(part, weight) for part, weight in weights if part not in data.validation]
    references = {part: load_reference(part) for part, _ in weights if not is_task_file(part)}
    files = [part for part, _ in weights if part not in references]
    given, beside = _given_splits(data), tuple(references.values())
    if data.train:
        _validate_played_files(files, given)
        return open_task_files({_join_names(given): given}, data, beside)[0]
    if files and not is_mixture:
        given = given if files[0] in data.validation else [(None, files[0]), *given]
        return open_task_files({_join_names(given): given}, data)[0]
    distinct = _distinct_names(files)
    groups: dict[str, GivenFiles] = {each: [(None, file)] for file, each in distinct.items()}
    validation = _join_names(given)
    validation += " (data.validation)" if validation in groups else ""
    groups |= {validation: given} if given else {}
    opened = dict(zip(groups, open_task_files(groups, data, beside), strict=True)) if groups else {}
    parts = [references.get(part) or opened[distinct[part]] for part, _ in weights]
    base = _mix(parts, [weight for _, weight in weights]) if is_mixture else parts[0]
    return _replace_validation(base, opened[validation]) if given else base


def list_names(name: str | Sequence[str]) -> list[str]:
    """Return the parts of a mixture, with their weights, or the one name."""
    if not isinstance(name, str):
        return [part.strip() for part in name]
    if name.startswith("mix:") or ("," in name and not Path(os.path.expanduser(name)).exists()):
        return [part.strip() for part in name.removeprefix("mix:").split(",")]
    return [name]


def _given_splits(data: DataConfig) -> GivenFiles:
    by_split: Mapping[Split, Sequence[str]] = {"train": data.train, "validation": data.validation}
    return [(split, name) for split, names in by_split.items() for name in names]


def _validate_played_files(files: Sequence[str], given: GivenFiles) -> None:
    """Raise `ConfigError` if `domain` names a file that `data.train` and `data.validation` do not have.

    Its tasks would have no effect.
    """
    known = {Path(os.path.expanduser(name)).absolute() for _, name in given}
    for file in files:
        if Path(os.path.expanduser(file)).absolute() not in known:
            raise ConfigError(
                f"domain names the file {file}, but data.train has the training tasks; leave one of them out, or list "
                "both files in data.train"
            )


def _distinct_names(files: Sequence[str]) -> dict[str, str]:
    """Return a name for the tasks of each file: the file's name, with those of folders if files share it."""
    parts = {file: Path(os.path.expanduser(file)).with_suffix("").parts for file in files}
    names = {file: name_files([file]) for file in files}
    for length in range(2, max(map(len, parts.values()), default=0) + 1):
        names = {
            file: "-".join(parts[file][-length:]) if [*names.values()].count(name) > 1 else name
            for file, name in names.items()
        }
    return names


def _join_names(given: GivenFiles) -> str:
    return name_files([file for _, file in given])


def _mix(parts: Sequence[TaskSource], weights: Sequence[float]) -> Mixture:
    """Return a mixture. Raise `ConfigError` if a source is listed twice, or if two sources that play tasks have the
    same name.
    """
    listed = [part.name for part in parts]
    for name in listed:
        if listed.count(name) > 1:
            raise ConfigError(f"{name} is listed {listed.count(name)} times; list it once with a weight, {name}*2")
    _validate_leaves(parts)
    return Mixture(tuple(parts), tuple(weights))


def _replace_validation(base: TaskSource, validation: TaskFile) -> TaskFile:
    """Return `base` with the tasks of a file as its validation tasks."""
    others = [source for source in validation.mixture.sources if source not in list_sources(base)]
    mixture = Mixture((base, *others), (1.0,) * (1 + len(others)))
    return replace(
        validation, name=base.name, mixture=mixture, split_tasks={"validation": validation.split_tasks["validation"]}
    )


def _validate_leaves(parts: Sequence[TaskSource]) -> None:
    """Raise `ConfigError` if two parts have different sources of the same name."""
    known: dict[str, tuple[TaskSource, TaskSource]] = {}
    for part in parts:
        for leaf in list_sources(part):
            first, same = known.setdefault(leaf.name, (part, leaf))
            if same != leaf:
                raise ConfigError(
                    f"{first.name} and {part.name} both have a source {leaf.name!r}, and the two differ; leave out "
                    "one of them"
                )
