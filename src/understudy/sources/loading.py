"""`load_source` returns a task source by its name.

A name is a reference (`references.py`), the path of a file or folder of tasks, `hf:owner/name` for a data set, or
`mix:a,b` for a mixture, which a list of names means too.
"""

from collections.abc import Sequence

from understudy.core.errors import ConfigError
from understudy.envs.task_source import TaskSource, list_sources
from understudy.sources.mixture import Mixture, parse_weight
from understudy.sources.references import load_reference
from understudy.sources.task_files.config import NO_DATA, DataConfig
from understudy.sources.task_files.files import is_task_file
from understudy.sources.task_files.opening import open_data, open_task_file


def load_source(name: str | Sequence[str], data: DataConfig = NO_DATA) -> TaskSource:
    """Return the task source called `name`; the module docstring lists the forms of names.

    `data` says which sources the rows of files may name, how prompts are scored, and which files replace splits. Raise
    `ConfigError` for an unknown name, and for an attribute that is no `TaskSource`.
    """
    if data.train or data.validation:
        return open_data(load_source(name, data.replace(train=(), validation=())), data)
    if not isinstance(name, str):
        return open_mixture(name, data) if len(name) > 1 else load_source(name[0], data)
    if name.startswith("mix:"):
        return open_mixture(name.removeprefix("mix:").split(","), data)
    return open_task_file(name, data) if is_task_file(name) else load_reference(name)


def open_mixture(names: Sequence[str], data: DataConfig = NO_DATA) -> Mixture:
    """Return the mixture of `NAME` or `NAME*WEIGHT` (the weight is 1 if not given).

    Rows of files may also name the other sources of the mixture. Raise `ConfigError` if a weight is not positive, if a
    source is listed twice, or if two sources that play tasks have the same name.
    """
    named = [parse_weight(each.strip()) for each in names]
    opened = {name: load_source(name) for name, _ in named if not is_task_file(name)}
    known = tuple(opened.values())
    parts = tuple(opened.get(name) or open_task_file(name, data, known) for name, _ in named)
    listed = [part.name for part in parts]
    for name in listed:
        if listed.count(name) > 1:
            raise ConfigError(
                f"{', '.join(names)}: {name} is listed {listed.count(name)} times; list it once with a weight, {name}*2"
            )
    _validate_leaves(parts)
    return Mixture(parts, tuple(weight for _, weight in named))


def _validate_leaves(parts: Sequence[TaskSource]) -> None:
    """Raise `ConfigError` if two parts have different sources of the same name."""
    known: dict[str, tuple[TaskSource, TaskSource]] = {}
    for part in parts:
        for leaf in list_sources(part):
            first, same = known.setdefault(leaf.name, (part, leaf))
            if same != leaf:
                raise ConfigError(
                    f"{first.name} and {part.name} both have a source {leaf.name!r}, and the two differ; put the files "
                    "into one folder, and name the folder"
                )
