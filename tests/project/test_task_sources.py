"""Test that no code asks for the class of a task source: it asks for the capability that it needs."""

import ast

from support.source import INSIDE, TREES, module_name

SOURCES = {"Domain": "domain", "Mixture": "mixture", "ToolDataset": "tool_dataset", "MCPTaskSource": "source"}
"""Classes of task sources and their modules."""
LOADER = "references"
"""The module that opens sources by name. It validates a `Domain`."""


def test_isinstance_of_a_task_source_only_in_its_own_module() -> None:
    found = {}
    for path in INSIDE:
        checks = [
            node.args[1]
            for node in ast.walk(TREES[path])
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        ]
        names = {name.id for check in checks for name in ast.walk(check) if isinstance(name, ast.Name)}
        if checked := {name for name in names & SOURCES.keys() if path.stem not in (SOURCES[name], LOADER)}:
            found[module_name(path)] = checked
    assert found == {}
