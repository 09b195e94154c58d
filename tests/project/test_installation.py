"""Test the wheel in fresh virtual environments: of this Python, and of the newest on this machine.

The requirements of the core are installed from a registry. PyTorch is large, so it is not installed again: its folder
is added to the import path.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import torch

from support.cpu_kernels import REASON
from support.machine import ELSEWHERE
from support.paths import ROOT
from support.venvs import run_command
from understudy.engines.local.model import choose_dtype

pytestmark = pytest.mark.installation
NEWER = tuple(version for version in ("3.14", "3.13", "3.12") if version != sysconfig.get_python_version())
CORE_TESTS = (
    *(f"core/test_{name}.py" for name in ("event_loop", "messages", "records", "tasks")),
    *(f"envs/test_{name}.py" for name in ("rewards", "schemas", "state", "tools")),
    "formats/test_tool_names.py",
)
"""Tests that need neither torch nor an extra, for Pythons that no torch is installed for."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run_command(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def install_wheel(folder: Path, python: str, wheel: Path, *more: str) -> Path:
    """Return the folder of programs of a new virtual environment with the wheel and its requirements."""
    run_command(python, "-m", "venv", str(folder))
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--no-compile")
    run_command(*pip, "-c", str(ROOT / "constraints.txt"), str(wheel), *more)
    return folder / "bin"


def run_in(folder: Path, program: Path, *arguments: str) -> tuple[int, str]:
    """Return exit code and output of a program in a folder that is not the checkout, with a cache of its own."""
    done = subprocess.run([program, *arguments], cwd=folder, env=environment(folder), **PIPED)
    return done.returncode, done.stdout


PIPED: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "UNDERSTUDY_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}


def success_rates(report: str) -> dict[str, float]:
    """Return the success rate of each agent of a report in JSON."""
    return {row["name"]: row["success"]["mean"] for row in json.JSONDecoder().raw_decode(report)[0]["rows"]}


@contextmanager
def serving(folder: Path, program: Path, *arguments: str) -> Iterator[str]:
    """Start a server on a free port, yield its address and stop it with Ctrl-C. It must end without an error."""
    started = subprocess.Popen([program, *arguments, "--port", "0"], cwd=folder, env=environment(folder), **PIPED)
    assert started.stdout
    try:
        lines = []
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", lines[-1] if lines else "")):
            lines.append(started.stdout.readline())
            assert lines[-1], lines
        yield found[0]
    finally:
        started.send_signal(signal.SIGINT)
        rest, _ = started.communicate()
    assert (started.returncode, rest) == (0, "")


def test_installed_wheel_evaluates_trains_views_and_serves(wheel: Path, tmp_path: Path) -> None:
    programs = install_wheel(tmp_path / "venv", sys.executable, wheel)
    understudy = programs / "understudy"
    evaluation = ("eval", "retail", "--tasks", "2", "--split", "test", "--json")
    code, said = run_in(tmp_path, understudy, *evaluation, "--agent", "gold", "--out", "gold")
    assert (code, success_rates(said)) == (0, {"noop": 0.0, "gold": 1.0}), said
    with serving(tmp_path, understudy, "view", "gold", "--no-open") as address:
        assert "<title>" in httpx2.get(address).text
    code, said = run_in(tmp_path, understudy, "train", "smoke")
    assert code == 2
    (command,) = re.findall(r"pip (install 'understudy-rl\[train\]')", said)

    (extra,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (extra / "torch.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    # pip reads the extra's requirements from the installed wheel, whether or not an index has it
    code, said = run_in(tmp_path, programs / "pip", *command.replace("'", "").split())
    assert code == 0, said
    code, said = run_in(tmp_path, understudy, "train", "smoke", "--out", "run")
    assert code == 0, said
    in_bfloat16 = choose_dtype("auto", torch.device("cpu")) is torch.bfloat16
    kernels = list((tmp_path / "cache" / "kernels").glob("*.so"))
    assert REASON or len(kernels) == 1 + in_bfloat16, "those of float32 also compute the logits of bfloat16"
    code, said = run_in(tmp_path, understudy, "eval", "run", "--tasks", "2", "--json", "--out", "trained")
    assert (code, success_rates(said)["gold"], len(success_rates(said))) == (0, 1.0, 3), said
    with serving(tmp_path, understudy, "serve", "run") as address:
        asked = {"model": "run", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = httpx2.post(f"{address}/v1/chat/completions", json=asked, timeout=60.0).json()
    assert answer["usage"]["completion_tokens"] <= 4
    code, said = run_in(tmp_path, understudy, "doctor")
    assert (code, "missing" in said) == (0, False), said


def find_python(version: str) -> str:
    """Return a Python of this version, on the path or of pyenv, or an empty string."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, pyenv)):
        if (
            candidate
            and subprocess.run([candidate, "-m", "venv", "-h"], capture_output=True, check=False).returncode == 0
        ):
            return candidate
    return ""


def test_core_works_on_the_newest_python(wheel: Path, tmp_path: Path) -> None:
    python = next(filter(None, map(find_python, NEWER)), "")
    if not python:
        pytest.skip(f"{ELSEWHERE}there is no other Python of {', '.join(NEWER)}")
    programs = install_wheel(tmp_path / "venv", python, wheel, "pytest", "hypothesis", "psutil")
    code, said = run_in(
        tmp_path, programs / "understudy", "eval", "retail", "--agent", "gold", "--tasks", "2", "--json"
    )
    assert (code, success_rates(said)) == (0, {"noop": 0.0, "gold": 1.0}), said
    tests = [str(ROOT / "tests" / name) for name in CORE_TESTS]
    settings = ("-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
    code, said = run_in(tmp_path, programs / "python", "-m", "pytest", *settings, *tests)
    assert code == 0, said


def test_pip_of_an_older_python_says_which_python_is_needed(wheel: Path, tmp_path: Path) -> None:
    python = find_python("3.10")
    if not python:
        pytest.skip(f"{ELSEWHERE}there is no Python 3.10")
    code, said = run_in(tmp_path, Path(python), "-m", "pip", "install", "--dry-run", str(wheel))
    assert code == 1
    assert re.search(r"understudy-rl.* requires a different Python.*3\.10.*>=3\.11", said)
