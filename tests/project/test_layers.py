"""Test the layers: packages import only from earlier ones."""

from pathlib import Path

from support.source import INSIDE, PACKAGES, ROOT, TREES, imports, module_name, package


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


def test_engines_do_not_import_messages_tasks_or_trajectories() -> None:
    hidden = {f"understudy.core.{name}" for name in ("messages", "tasks", "trajectory")}
    engines = [path for path in INSIDE if package(path) == "engines"]
    found = {
        module_name(path): {name for name in imports(TREES[path]) if name.rpartition(".")[0] in hidden}
        for path in engines
    }
    assert {name for name, seen in found.items() if seen} == set()
