"""What is built and installed: its files, what it requires, and that it works without what is optional."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import skyrl_venv
from test_layers import FILES, TREES, imports
from understudy.errors import installation

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OTHERS = {
    "numpy": "torch",
    "pydantic_core": "pydantic",
    "typing_extensions": "pydantic",
    **dict.fromkeys(("skyrl", "skyrl_gym", "ray", "loguru", "aiohttp", "vllm"), "an environment of its own"),
}
"""What the package imports and does not require by name, and what it comes with."""
COMMANDS = """
    list
    check toy:DOMAIN
    eval toy:DOMAIN --agent gold --tasks 2 --split train --out mine
    compare mine mine
    data synthesize retail --count 3 --out tasks.jsonl
    data stats tasks.jsonl
    data validate tasks.jsonl
    data convert tasks.jsonl rows.jsonl
    data split tasks.jsonl --out parts --ratios 0.5,0.5 --format jsonl
    data collect toy:DOMAIN --out demos.jsonl
    data export trl demos.jsonl --out trl
    train toy:DOMAIN --keys
    train toy:DOMAIN
    doctor
"""
"""Commands in the order in which each finds what it needs; the last two need torch."""
BARE = """
import contextlib, io, json, sys
from understudy.cli import main

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
    """The name in a requirement, as Python imports it."""
    name = re.match(r"[\w.-]+", text)
    assert name
    return {"mlflow-skinny": "mlflow"}.get(name[0], name[0].replace("-", "_"))


CORE = {requirement(text) for text in PROJECT["dependencies"]}
EXTRAS = {requirement(text) for extra in PROJECT["optional-dependencies"].values() for text in extra} - {"understudy"}


def test_what_is_imported_is_required() -> None:
    used = {name.partition(".")[0] for path in FILES for name in imports(TREES[path])}
    assert used - sys.stdlib_module_names - {"understudy"} <= CORE | EXTRAS | OTHERS.keys()
    assert used >= CORE, "required and not imported"


def test_what_needs_no_model_needs_no_extra(tmp_path: Path) -> None:
    commands = [line.strip() for line in COMMANDS.strip().splitlines()]
    without = f"import sys\nsys.modules.update(dict.fromkeys({sorted({*EXTRAS, 'numpy'})}))  # importing one fails"
    source = f"sys.path[:0] = {[str(ROOT / 'src'), str(ROOT / 'tests')]}"
    command = [sys.executable, "-c", f"{without}\n{source}\n{BARE}", "\n".join(commands)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    done = json.loads(ended.stdout)
    wanted = [*((command, 0) for command in commands[:-2]), (commands[-2], 2), (commands[-1], 1)]
    assert [(command, code) for command, code, _ in done] == wanted, done
    assert done[-2][2] == f"understudy: training needs torch; {installation('train')}\n"
    assert "missing  torch" in done[-1][2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of this checkout, beside which a file of keys lies."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "checkout"
    for name in tracked("."):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    (copy / ".env").write_text("OPENAI_API_KEY=sk-0123456789\n")
    (copy / "keys.toml").write_text("key = 'sk-0123456789'\n")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=copy, check=True, capture_output=True)
    return folder


def tracked(folder: str) -> list[str]:
    """The files of the checkout under a folder that git knows."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return listed.splitlines()


def test_the_wheel_is_the_whole_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {name.removeprefix("src/") for name in tracked("src/understudy")}


def test_the_source_distribution_is_the_checkout_and_nothing_else(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names == {*tracked("."), "PKG-INFO"}


def test_a_file_of_keys_is_never_committed() -> None:
    for name in (".env", ".env.local"):
        done = subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT, check=False)
        assert done.returncode == 0


def test_versions_that_pages_name_are_those_that_are_tested() -> None:
    pin = re.compile(r"([\w-]+)(?:\[[\w,]+\])?==(\d[\w.]*)")
    files = [ROOT / "constraints.txt", ROOT / "Makefile", *sorted((ROOT / "tests").glob("*.py"))]
    text = "\n".join((*skyrl_venv.SERVER, *(file.read_text(encoding="utf-8") for file in files)))
    tested = set(pin.findall(text))
    told = {
        (page.name, *found)
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "pyproject.toml")
        for found in pin.findall(page.read_text(encoding="utf-8"))
    }
    assert len(told) > 5
    assert not {each for each in told if each[1:] not in tested}
