"""Test the layers: packages import only from earlier ones, and no files import each other in a circle."""

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support.source import INSIDE, PACKAGES, ROOT, TREES, imports, module_name, package

FILES = {module_name(path): path for path in TREES}
"""The files, by the names under which they are imported."""


def imported_packages(path: Path) -> set[str]:
    """Return the other packages that a module imports from."""
    names = (name.split(".") for name in imports(TREES[path]))
    return {name[1] for name in names if name[0] == "understudy" and len(name) > 1} - {package(path)}


def test_all_modules_are_in_listed_packages() -> None:
    assert {path.name for path in ROOT.iterdir() if path.is_file()} == {"__init__.py", "__main__.py", "py.typed"}
    assert {package(path) for path in INSIDE} == set(PACKAGES)


def test_packages_import_only_from_earlier_packages() -> None:
    allowed = {name: set(PACKAGES[:rank]) for rank, name in enumerate(PACKAGES)}
    allowed["envs"] = {"core", "formats", "clients"}
    found = {module_name(path): other for path in INSIDE if (other := imported_packages(path) - allowed[package(path)])}
    assert found == {}


def imported_files(path: Path) -> Iterator[Path]:
    """Yield the files of the package that a file imports, also in a function or under TYPE_CHECKING."""
    for name in imports(TREES[path]):
        if found := FILES.get(name) or FILES.get(name.rpartition(".")[0]):  # a module, or a name in a module
            yield found


def find_circle(graph: Mapping[Path, set[Path]]) -> list[str]:
    """Return the modules of a circle of imports, in order, the first one also last; an empty list if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return [module_name(path) for path in e.args[1]]
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert find_circle({path: {*imported_files(path)} - {path} for path in TREES}) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [("sources/loading.py", "sources/task_files/opening.py"), ("runs/config.py", "envs/task_source.py")],
)
def test_an_import_in_the_other_direction_is_a_circle(first: str, second: str) -> None:
    graph = {path: {*imported_files(path)} - {path} for path in TREES}
    assert ROOT / second in graph[ROOT / first]
    graph[ROOT / second].add(ROOT / first)
    circle = find_circle(graph)
    assert circle[0] == circle[-1]
    assert {module_name(ROOT / first), module_name(ROOT / second)} <= {*circle}


def test_engines_do_not_import_messages_tasks_or_trajectories() -> None:
    hidden = {f"understudy.core.{name}" for name in ("messages", "tasks", "trajectory")}
    engines = [path for path in INSIDE if package(path) == "engines"]
    found = {
        module_name(path): {name for name in imports(TREES[path]) if name.rpartition(".")[0] in hidden}
        for path in engines
    }
    assert {name for name, seen in found.items() if seen} == set()
