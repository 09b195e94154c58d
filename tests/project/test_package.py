"""Test the built package: its files, its requirements, and commands without optional dependencies."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from support import skyrl_venv
from support.source import TREES, imports
from understudy.core.errors import install_hint
from understudy.engines.models import smollm2_model

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INDIRECT_REQUIREMENTS = {
    "h11": "uvicorn",
    "numpy": "torch",
    "pydantic_core": "pydantic",
    "pynvml": "nvidia-ml-py, which is optional",
    "triton": "torch with CUDA",
    "typing_extensions": "pydantic",
    "yaml": "transformers",
    **dict.fromkeys(
        ("skyrl", "skyrl_gym", "ray", "loguru", "aiohttp", "vllm", "verifiers"), "an environment of its own"
    ),
}
"""Imported modules that are not named in the requirements, and the requirement that provides them."""
COMMANDS = """
    list
    check toy:DOMAIN
    eval toy:DOMAIN --agent gold --tasks 2 --split train --out mine
    eval toy:DOMAIN --agent noop --tasks 2 --split train --out other
    compare mine other
    data synthesize retail --count 3 --out tasks.jsonl
    data stats tasks.jsonl
    data validate tasks.jsonl
    data convert tasks.jsonl rows.jsonl
    data split tasks.jsonl --out parts --ratios 0.5,0.5 --format jsonl
    data collect toy:DOMAIN --sft demos.jsonl
    data export trl demos.jsonl --out trl
    train toy:DOMAIN --print-config
    train toy:DOMAIN
    doctor
"""
"""Commands in order, as later ones read the files of earlier ones; the last two need torch."""
RUN_COMMANDS = """
import contextlib, io, json, sys
from understudy.cli.main import main

done = []
for line in sys.argv[1].split("\\n"):
    sys.argv = ["understudy", *line.split()]
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    done.append((line, code, said.getvalue()))
print(json.dumps(done))
"""


def requirement(text: str) -> str:
    """Return the import name of a requirement."""
    name = re.match(r"[\w.-]+", text)
    assert name
    return {"mlflow-skinny": "mlflow", "python-dotenv": "dotenv"}.get(name[0], name[0].replace("-", "_"))


CORE = {requirement(text) for text in PROJECT["dependencies"]}
EXTRA_REQUIREMENTS = [text for extra in PROJECT["optional-dependencies"].values() for text in extra]
EXTRAS = {requirement(text) for text in EXTRA_REQUIREMENTS} - {"understudy_rl"}


def test_imports_are_in_the_requirements() -> None:
    used = {name.partition(".")[0] for tree in TREES.values() for name in imports(tree)}
    assert used - sys.stdlib_module_names - {"understudy"} <= CORE | EXTRAS | INDIRECT_REQUIREMENTS.keys()
    assert used >= CORE, "required and not imported"


def test_commands_without_a_model_need_no_extra(tmp_path: Path) -> None:
    smollm2_model()  # so that nothing but PyTorch is missed
    commands = [line.strip() for line in COMMANDS.strip().splitlines()]
    without = f"import sys\nsys.modules.update(dict.fromkeys({sorted({*EXTRAS, 'numpy'})}))  # importing one fails"
    source = f"sys.path[:0] = {[str(ROOT / 'src'), str(ROOT / 'tests')]}"
    command = [sys.executable, "-c", f"{without}\n{source}\n{RUN_COMMANDS}", "\n".join(commands)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    done = json.loads(ended.stdout)
    expected = [*((command, 0) for command in commands[:-2]), (commands[-2], 2), (commands[-1], 1)]
    assert [(command, code) for command, code, _ in done] == expected, done
    assert "torch" in done[-2][2]
    assert done[-2][2].endswith(f"{install_hint('train')}\n")
    assert "missing  torch" in done[-1][2]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the source distribution of this checkout, beside a file of keys."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "checkout"
    for name in tracked_files("."):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    (copy / ".env").write_text("OPENAI_API_KEY=sk-0123456789\n")
    (copy / "keys.toml").write_text("key = 'sk-0123456789'\n")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=copy, check=True, capture_output=True)
    return folder


def tracked_files(folder: str) -> list[str]:
    """Return the files under a folder that git tracks."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return listed.splitlines()


def test_wheel_contains_exactly_the_package(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {name.removeprefix("src/") for name in tracked_files("src/understudy")}


def test_wheel_is_under_8_mb(distributions: Path) -> None:
    (wheel,) = distributions.glob("understudy_rl-*.whl")
    assert wheel.stat().st_size < 8_000_000


def test_source_distribution_contains_exactly_the_tracked_files(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names == {*tracked_files("."), "PKG-INFO"}


def test_env_files_are_ignored_by_git() -> None:
    for name in (".env", ".env.local"):
        done = subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT, check=False)
        assert done.returncode == 0


def test_documented_versions_are_the_tested_ones() -> None:
    pin = re.compile(r"([\w-]+)(?:\[[\w,]+\])?==(\d[\w.]*)")
    files = [ROOT / "constraints.txt", ROOT / "Makefile", *sorted((ROOT / "tests").rglob("*.py"))]
    text = "\n".join((*skyrl_venv.SERVER, *(file.read_text(encoding="utf-8") for file in files)))
    tested = set(pin.findall(text))
    documented = {
        (page.name, *found)
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "pyproject.toml")
        for found in pin.findall(page.read_text(encoding="utf-8"))
    }
    assert len(documented) > 5
    assert not {each for each in documented if each[1:] not in tested}
