"""Test that only the packages that compute import torch, and that all others work without it."""

import subprocess
import sys

from support.source import INSIDE, TREES, imports, module_name, package

MAY_IMPORT_TORCH = {"algorithms", "engines", "train"}
TORCH = {"torch", "transformers", "peft", "safetensors", "gguf", "numpy"}
NEEDS_OTHERS = {"skyrl_gym", "trackers"}
"""Modules that import a framework from a separate environment."""
TORCH_FREE = (
    "engines.factory",
    "engines.scripted",
    "engines.interface",
    "algorithms.config",
    "train.planning.preflight",
)


def test_only_three_packages_import_torch() -> None:
    roots = {path: {name.partition(".")[0] for name in imports(TREES[path])} for path in INSIDE}
    assert {package(path) for path, names in roots.items() if names & TORCH} <= MAY_IMPORT_TORCH


def test_other_packages_import_without_torch() -> None:
    free = [
        path for path in INSIDE if package(path) not in MAY_IMPORT_TORCH and not NEEDS_OTHERS & {*path.parts, path.stem}
    ]
    names = [*map(module_name, free), *(f"understudy.{name}" for name in TORCH_FREE)]
    code = f"import importlib, sys\nfor n in {names}: importlib.import_module(n)\nsys.exit('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
