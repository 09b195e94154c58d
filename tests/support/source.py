"""Syntax trees of the package's source, for tests of its structure."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import understudy

ROOT = Path(understudy.__file__).parent
PACKAGES = [
    *("core", "formats", "clients", "envs", "domains", "sources", "algorithms", "engines", "serve"),
    *("rollouts", "runs", "evaluation", "data", "train", "viewer", "cli"),
]
"""The packages, in the order of imports: each imports only from those before it."""


class _Trees(Mapping[Path, ast.Module]):
    """Trees that are parsed when they are first read, so that collecting tests parses none."""

    def __init__(self, paths: list[Path]) -> None:
        self._trees: dict[Path, ast.Module | None] = dict.fromkeys(paths)

    def __getitem__(self, path: Path) -> ast.Module:
        tree = self._trees[path] or ast.parse(path.read_text(encoding="utf-8"))
        self._trees[path] = tree
        return tree

    def __iter__(self) -> Iterator[Path]:
        return iter(self._trees)

    def __len__(self) -> int:
        return len(self._trees)


TREES = _Trees(sorted(ROOT.rglob("*.py")))
"""The tree of each module."""


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a tree imports; `from understudy import x` yields `understudy.x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not allowed"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    """Return the dotted name under which a file is imported."""
    return ".".join(("understudy", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def package(path: Path) -> str:
    """Return the package that a module belongs to."""
    return path.relative_to(ROOT).parts[0]


INSIDE = [path for path in TREES if path.parent != ROOT]
"""The modules inside packages."""
