"""Functions of a domain's definition: its problems, its files, the splits of its rows, and users who do not confirm."""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from understudy.core.records import Record
from understudy.core.tasks import Scenario, Split
from understudy.envs.state import Table

MIN_ROWS = 3
"""Smallest number of rows that is divided among the splits."""
MAX_NAME_LENGTH = 200
"""A longer policy is not looked for as a file."""


def find_policy_problem(policy: object) -> str:
    """Return why a policy is the name of a file and not a text, and what to write; else an empty text."""
    if not isinstance(policy, str | PurePath):
        return ""
    name = str(policy).strip()
    is_name = name.endswith((".md", ".txt")) and len(name.split()) == 1
    if isinstance(policy, PurePath) or is_name or (0 < len(name) < MAX_NAME_LENGTH and Path(name).is_file()):
        return (
            f"{name!r} is the name of a file: pass its text, after `from pathlib import Path`: "
            f"Path(__file__).with_name({Path(name).name!r}).read_text()"
        )
    return ""


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


def find_domain_folder(module_name: str, own_name: str = "") -> DomainFolder | None:
    """Return the files of the domain that an imported module defines, or None if no such module defines one.

    A domain with an `own_name` has its own folder of tasks.
    """
    module = sys.modules.get(module_name)
    if module is None or not module.__file__:
        return None
    if all(getattr(value, "module_name", None) != module_name for value in vars(module).values()):
        return None
    folder = Path(module.__file__).parent
    if hasattr(module, "__path__"):
        return DomainFolder(folder / (f"{own_name}_tasks" if own_name else "tasks"), folder)
    return DomainFolder(folder / f"{own_name or module_name.rpartition('.')[2]}_tasks", None)


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
