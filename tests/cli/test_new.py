"""Test `understudy new`: each project passes its own test, `check`, `eval` and two steps of training."""

import json
import os
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from support.paths import ROOT
from tests.faults.program import run_in_fork, run_module
from understudy.algorithms.presets import algorithm_preset_text
from understudy.cli.new import NewConfigOptions, config, write_project
from understudy.core.errors import ConfigError
from understudy.runs.config import load_config
from understudy.runs.presets import preset_names, preset_text

KINDS = ("environment", "database", "dataset", "mcp", "reward", "user", "algorithm")
MAX_LINES = {"environment": 80, "database": 150}
"""The largest number of lines of Python, tests included."""


def run(*words: str, cwd: Path, **env: str) -> None:
    """Run a command. Fail with its output if its exit code is not 0."""
    found = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=1800, env=os.environ | env)
    assert found.returncode == 0, found.stdout + found.stderr


def run_forked(folder: Path, *words: str) -> None:
    """Run `python -m WORDS` in a folder. Fail with its output if its exit code is not 0."""
    result = run_in_fork(partial(run_module, *words), folder)
    assert result.exit_code == 0, result.output


def readme_commands(folder: Path) -> list[list[str]]:
    """Return the words of each command of the project's README."""
    block = (folder / "README.md").read_text().partition("```sh\n")[2].partition("```")[0]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_project_runs_as_its_readme_says(kind: str, tmp_path: Path) -> None:
    folder = write_project(kind, "my_shop", tmp_path)
    run_forked(folder, "pytest", "-q", "-p", "no:cacheprovider")
    commands = readme_commands(folder)
    assert [command[1] for command in commands] == ["check", "eval", "train"]
    for command in commands:
        run_forked(folder, *command)
    (result,) = folder.glob("runs/*/result.json")
    assert result.is_file()
    if kind == "algorithm":
        steps = [json.loads(line) for line in (result.parent / "metrics.jsonl").read_text().splitlines()]
        assert sum("train/ratio" in step for step in steps) == 2  # the metric of the project's loss


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["environment", "database", "dataset", "mcp"])
def test_no_strategy_is_rewarded_in_a_project(kind: str, tmp_path: Path) -> None:
    folder = write_project(kind, "my_shop", tmp_path)
    target = readme_commands(folder)[0][2]
    run_forked(folder, "understudy", "check", target, "--adversarial", "--tasks", "8")


@pytest.mark.slow
def test_projects_are_well_formatted_and_typed(tmp_path: Path) -> None:
    folders = [write_project(kind, f"my_{kind}", tmp_path) for kind in KINDS]
    settings = ("--isolated", "--line-length", "120")
    for folder in folders:
        run(sys.executable, "-m", "ruff", "check", "--select", "E,F,I,B,UP", *settings, ".", cwd=folder)
        run(sys.executable, "-m", "ruff", "format", "--check", *settings, ".", cwd=folder)
    modules = [str(path) for folder in folders for path in sorted(folder.glob("*.py"))]
    # in the repository, whose strict settings and cache it uses
    mypy = (sys.executable, "-m", "mypy", "--explicit-package-bases", *modules)
    run(*mypy, cwd=ROOT, MYPYPATH=":".join(map(str, folders)))


@pytest.mark.parametrize("kind", KINDS)
def test_project_has_the_name_and_is_short(kind: str, tmp_path: Path) -> None:
    folder = write_project(kind, "my_shop", tmp_path)
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert not [name for name, text in texts.items() if "template" in name + text or name.endswith(".tmpl")]
    assert {"README.md", "test_my_shop.py"} <= texts.keys()
    num_lines = sum(text.count("\n") for name, text in texts.items() if name.endswith(".py"))
    assert num_lines <= MAX_LINES.get(kind, 80)


@pytest.mark.parametrize("name", ["3x", "my-shop", "class", "json", "a/b", "", "größe"])
def test_name_that_cannot_be_a_new_module_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=repr(name) if name else "exists"):
        write_project("environment", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "my_shop").mkdir()
    with pytest.raises(ConfigError, match="my_shop"):
        write_project("environment", "my_shop", tmp_path)
    assert list((tmp_path / "my_shop").iterdir()) == []


def test_config_is_a_copy_of_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(sys.executable, "-m", "understudy", "new", "config", "mine", "smoke", cwd=tmp_path)
    assert load_config(tmp_path / "mine.toml") == load_config("smoke")
    monkeypatch.chdir(tmp_path)
    for preset in preset_names():
        config(NewConfigOptions(name=f"my_{preset}", preset=preset))
        assert load_config(tmp_path / f"my_{preset}.toml") == load_config(preset), preset


@pytest.mark.parametrize(("name", "text"), [("dapo", algorithm_preset_text("dapo")), ("smoke", preset_text("smoke"))])
def test_config_named_like_a_preset_is_a_copy_of_it(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config(NewConfigOptions(name=name))
    assert (tmp_path / f"{name}.toml").read_text(encoding="utf-8") == text
