"""Test the public names of `understudy` and the `__all__` of its packages."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import understudy
from support.source import PACKAGES, ROOT, TREES, imports, module_name

PROJECT = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_public_name_loads_from_its_module() -> None:
    pytest.importorskip("torch")
    assert sorted(understudy.__all__) == sorted(understudy._MODULES)
    assert len(understudy.__all__) <= 25
    for name, module in understudy._MODULES.items():
        assert getattr(understudy, name) is getattr(importlib.import_module(f"understudy.{module}"), name)


def test_type_checking_imports_equal_the_public_names() -> None:
    tree = TREES[ROOT / "__init__.py"]
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {name.rpartition(".")[2]: name.rpartition(".")[0] for name in imports(block)}
    assert typed == {name: f"understudy.{module}" for name, module in understudy._MODULES.items()}


def test_unknown_attribute_suggests_the_nearest_name() -> None:
    with pytest.raises(AttributeError, match=r"'lod'.*load"):
        understudy.lod  # noqa: B018


def test_import_loads_no_dependency() -> None:
    code = "import sys, understudy; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "understudy" in loaded
    assert not {"torch", "pydantic", "typer", "numpy"} & set(loaded)


def _catches_all_or_executes_text(node: ast.AST) -> bool:
    """Return whether a node catches every exception or executes text."""
    if isinstance(node, ast.ExceptHandler):
        names = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {"Exception"}
        return bool(names & {"Exception", "BaseException"})
    called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    return called in {"eval", "exec", "compile", "__import__"}


@pytest.mark.parametrize(
    ("code", "broad"),
    [
        ("try: f()\nexcept: pass", True),
        ("try: f()\nexcept (OSError, Exception): pass", True),
        ("try: f()\nexcept OSError: pass", False),
        ("eval('1')", True),
        ("f('1')", False),
    ],
)
def test_detection_of_broad_except_and_exec(code: str, broad: bool) -> None:
    assert any(map(_catches_all_or_executes_text, ast.walk(ast.parse(code)))) == broad


def test_source_has_broad_except_only_where_user_code_is_called_and_no_exec() -> None:
    found = {
        module_name(path) for path, tree in TREES.items() if any(map(_catches_all_or_executes_text, ast.walk(tree)))
    }
    assert found == {"understudy.core.imports", "understudy.core.user_code"}


LISTING = [
    path for path in TREES if path.name == "__init__.py" and path.parent != ROOT and "__all__" in path.read_text()
]


@pytest.mark.parametrize("path", LISTING, ids=module_name)
def test_package_exports_equal_its_all(path: Path) -> None:
    package = importlib.import_module(module_name(path))
    named = {key for key, value in vars(package).items() if key[0] != "_" and not isinstance(value, ModuleType)}
    assert sorted(package.__all__) == sorted(named)


def test_version_equals_pyproject() -> None:
    assert PROJECT["version"] == understudy.__version__


def test_architecture_page_lists_the_packages_in_order() -> None:
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("| package |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == PACKAGES
