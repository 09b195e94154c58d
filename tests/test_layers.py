"""The architecture, held: who may import whom, where torch may be, how long things may get, and what is exported."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

import understudy

# A module imports only from lines above its own, and from its own package.
LAYERS = """
    errors records
    imported values
    crew endpoint sandbox metrics health provenance envfile hold disk interruption
    trackers
    messages state
    formats names edits
    replies
    tools tasks chat prompt
    purse
    rewards
    deeds
    users trajectory
    environment
    presets domains
    integrations
    models
    batch algorithms
    engines
    retold
    agent
    rollout curriculum replay
    shaping failures
    similar statistics settings config
    memory
    bench doctor
    forecast
    check
    data
    mcp
    checkpoints resumption
    run
    kept shadow
    players evaluation
    evaluate
    weights
    collect
    serve
    results
    noise
    outcome
    certify
    train view
    preflight fork
    integrations/skyrl
    live play available readings processes
    assess
    viewer
    launch
    cli
    __main__
"""
RANK = {name: rank for rank, line in enumerate(LAYERS.splitlines()) for name in line.split()}
TORCH = {"torch", "transformers", "peft", "safetensors", "gguf", "numpy"}
MAY_IMPORT_TORCH = {"batch", "algorithms", "engines", "certify", "train", "integrations/skyrl"}
MAY_IMPORT_TORCH_LATE = {*MAY_IMPORT_TORCH, "models"}

ROOT = Path(understudy.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
NAME = lambda path: str(path.relative_to(ROOT))  # noqa: E731
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def layer(path: Path) -> str:
    return named(path.relative_to(ROOT).with_suffix("").parts)


def named(parts: Sequence[str]) -> str:
    """The layer of a module: its package's, unless the package within that has one of its own."""
    return "/".join(parts[:2]) if "/".join(parts[:2]) in RANK else parts[0]


def imports(tree: ast.AST) -> Iterator[str]:
    """What a tree imports, with dots; `from understudy import x` is `understudy.x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def others(path: Path) -> Iterator[str]:
    """The other layers that a module imports from."""
    for name in imports(TREES[path]):
        package, _, rest = name.partition(".")
        other = named(rest.split("."))
        if package == "understudy" and other not in ("", "__version__", layer(path)):
            yield other


@pytest.mark.parametrize("path", FILES, ids=NAME)
def test_a_module_imports_only_from_layers_above(path: Path) -> None:
    for other in others(path):
        assert RANK[other] < RANK[layer(path)], f"{layer(path)} may not import {other}"


def test_the_page_tells_all_layers_and_an_order_that_holds() -> None:
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = page.partition("| modules |")[2].partition("\n\n")[0].splitlines()[2:]
    told = [re.findall(r"`([\w/]+?)/?`", line.split("|")[1]) for line in lines]
    assert sorted(name for names in told for name in names) == sorted(RANK.keys() - {"__main__"})
    row = {name: number for number, names in enumerate(told) for name in names}
    below = {(layer(p), other) for p in FILES if layer(p) in row for other in others(p) if row[other] > row[layer(p)]}
    assert not below


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("path", FILES, ids=NAME)
def test_torch_is_confined(path: Path) -> None:
    functions = [node for node in ast.walk(TREES[path]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = {name for function in functions for name in imports(function)}
    late |= {name for block in ast.walk(TREES[path]) if _for_types_only(block) for name in imports(block)}
    found = {name for name in imports(TREES[path]) if name.partition(".")[0] in TORCH}
    assert not found or layer(path) in (MAY_IMPORT_TORCH_LATE if found <= late else MAY_IMPORT_TORCH)


def test_nothing_outside_those_modules_loads_torch() -> None:
    names = [f"understudy.{name}" for name in RANK if name not in {*MAY_IMPORT_TORCH, "presets", "__main__"}]
    names += ["understudy.engines.local.config", "understudy.engines.scripted", "understudy.algorithms.options"]
    names += [f"understudy.engines.tinker.{name}" for name in ("config", "refusals", "server")]
    names += ["understudy.engines.opening"]
    names += [f"understudy.engines.vllm.{name}" for name in ("endpoint", "inside", "sampler", "server", "weights")]
    code = f"import importlib, sys\nfor n in {names}: importlib.import_module(n)\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", FILES, ids=NAME)
def test_files_and_functions_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 450
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 70, f"{node.name} is too long"


@pytest.mark.parametrize("path", FILES, ids=NAME)
def test_nothing_catches_everything_or_executes_text(path: Path) -> None:
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None
            caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
            assert not caught & {"Exception", "BaseException"}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec", "compile", "__import__"}


def test_half_of_the_functions_are_at_most_ten_lines() -> None:
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[len(lengths) * 9 // 10] <= 35


@pytest.mark.parametrize("path", [p for p in FILES if p.name == "__init__.py"], ids=lambda p: p.parent.name)
def test_a_package_exports_exactly_what_it_says(path: Path) -> None:
    name = ".".join(("understudy", *path.parent.relative_to(ROOT).parts))
    package = importlib.import_module(name)
    named = {key for key, value in vars(package).items() if key[0] != "_" and not isinstance(value, ModuleType)}
    if not hasattr(package, "__all__"):
        assert "from understudy" not in path.read_text() or "DOMAIN" in named, (
            f"{name} imports names and has no __all__"
        )
        return
    assert sorted(package.__all__) == sorted(named)


def test_every_module_has_a_layer() -> None:
    assert {layer(path) for path in FILES} <= RANK.keys()


def test_the_version_is_told_once() -> None:
    project = Path(__file__).parent.parent / "pyproject.toml"
    assert tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"] == understudy.__version__
