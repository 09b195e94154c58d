"""Functions of a domain's definition: its problems, its files, the splits of its rows, and users who do not confirm."""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.errors import did_you_mean
from understudy.core.records import Record
from understudy.core.tasks import Scenario, Split
from understudy.core.user_code import task_code
from understudy.envs.state import State, Table
from understudy.envs.tools import Toolkit

if TYPE_CHECKING:
    from understudy.envs.domains.base import Domain

MIN_ROWS = 3
"""Smallest number of rows that is divided among the splits."""


@dataclass(frozen=True)
class DomainFolder:
    """The files of a domain, beside the module or in the package that defines it."""

    tasks: Path
    """The folder of the frozen tasks. It need not exist."""
    package: Path | None
    """The folder of the package; None if the domain is a single module."""

    def read_policy(self, name: str) -> str | None:
        """Return the text of `policy.md` or `policy_brief.md` in the package, or None if there is no such file."""
        path = self.package / name if self.package else None
        return path.read_text(encoding="utf-8") if path and path.is_file() else None


def find_domain_folder(module_name: str) -> DomainFolder | None:
    """Return the files of the domain that an imported module defines, or None if no such module defines one."""
    module = sys.modules.get(module_name)
    if module is None or not module.__file__:
        return None
    if all(getattr(value, "package", None) != module_name for value in vars(module).values()):
        return None
    folder = Path(module.__file__).parent
    if hasattr(module, "__path__"):
        return DomainFolder(folder / "tasks", folder)
    return DomainFolder(folder / f"{module_name.rpartition('.')[2]}_tasks", None)


def find_definition_problems(domain: "Domain", state: object) -> Iterator[str]:
    """Yield each thing that a domain's definition lacks or has wrong, and what to do. `state` is its initial state."""
    if not domain.name or any(sign in domain.name for sign in "/+:*, "):
        yield f"the name {domain.name!r} is empty or has one of the signs / + : * , and space: use Domain(__name__, …)"
    if not isinstance(state, State):
        yield f"build_world returned a {type(state).__name__}: return an instance of your subclass of State"
    elif not state.tables():
        yield f"{type(state).__name__} has no tables: annotate at least one, such as `users: Table[User]`"
    else:
        for name in sorted(set(domain.shared_tables) - state.tables().keys()):
            yield f"shared_tables names no table {did_you_mean(name, state.tables())}"
        yield from _find_tool_problems(domain, state)
    yield from _find_task_problems(domain)


def _find_tool_problems(domain: "Domain", state: State) -> Iterator[str]:
    for field, make in (("toolkit", domain.toolkit), ("user_tools", domain.user_tools)):
        if make is None:
            continue
        with task_code(f"{field} of {domain.name}"):
            tools: object = make(state.fork())
        if not isinstance(tools, Toolkit):
            yield f"{field} makes a {type(tools).__name__}: pass your subclass of Toolkit"
            continue
        if not tools.specs():
            yield f"{type(tools).__name__} has no tools: add public methods with docstrings"
        for spec in tools.specs():
            if not spec.description:
                yield f"the tool {spec.name} has no docstring: describe it for the model in a docstring"


def _find_task_problems(domain: "Domain") -> Iterator[str]:
    if domain.generate is None and not domain.task_list:
        yield "there are no tasks: pass generate={'FAMILY': function} or task_list=[Task(…), …]"
    elif domain.generate is not None and domain.task_list:
        yield "it has both generate and task_list: pass one of them"
    elif not domain.families:
        yield "it has no families: name them with families=(…), or pass a function for each as generate={…}"
    known = domain.generate if isinstance(domain.generate, Mapping) else {task.family for task in domain.task_list}
    if known:
        for family in sorted(set(domain.families) - set(known)):
            yield f"no task has the family {did_you_mean(family, known)}: remove it from families"
        for family in sorted(set(known) - set(domain.families)):
            yield f"families lacks {family!r}, which tasks have: add it, or leave families out"
    if isinstance(domain.generate, Mapping):
        for family in sorted(name for name, function in domain.generate.items() if not callable(function)):
            yield f"the family {family!r} has no function: pass a function that takes an rng and returns a Task"
    for task in domain.task_list:
        if task.domain not in ("", domain.name):
            yield f"the listed task {task.id!r} is of the domain {task.domain!r}: leave out its domain"


def assign_row_splits(tables: Mapping[str, Table[Any]]) -> dict[tuple[str, str], Split]:
    """Return the split of each row `(table, id)`: 70% train, 10% validation, 20% test, and at least one row of each.

    With fewer than `MIN_ROWS` rows all are of the training split.
    A row that holds the id of a row of an earlier table belongs to the same split as that row. So a customer's orders
    follow the customer if the table of customers comes first. Other rows are assigned by the order of their hashes.
    """
    splits: dict[tuple[str, str], Split] = {}
    owners: dict[str, Split] = {}
    for name, rows in tables.items():
        owned = {key: _find_owner(row, owners) for key, row in rows.items()}
        free = sorted((key for key, split in owned.items() if not split), key=lambda key: _digest(name, key))
        validation = max(1, len(free) // 10) if len(free) >= MIN_ROWS else 0
        test = validation + max(1, len(free) // 5) if len(free) >= MIN_ROWS else 0
        for place, key in enumerate(free):
            owned[key] = "validation" if place < validation else "test" if place < test else "train"
        found = {key: split for key, split in owned.items() if split}
        splits |= {(name, key): split for key, split in found.items()}
        owners |= found
    return splits


def _find_owner(row: Record, owners: Mapping[str, Split]) -> Split | None:
    """Return the split of the first earlier row whose id is a value of `row`."""
    values = (
        value for field in row.model_dump().values() for value in (field if isinstance(field, tuple) else [field])
    )
    return next((owners[value] for value in values if isinstance(value, str) and value in owners), None)


def _digest(table: str, key: str) -> bytes:
    return hashlib.sha256(f"{table}/{key}".encode()).digest()


def without_confirmations(scenario: Scenario) -> Scenario:
    """Return the scenario for a user who need not confirm actions: a report of an action settles its goal.

    If the agent asks for confirmation all the same, the user still agrees to a correct proposal.
    """
    goals = (goal.replace(kind="text") if goal.kind == "action" else goal for goal in scenario.goals)
    return scenario.replace(goals=tuple(goals))
