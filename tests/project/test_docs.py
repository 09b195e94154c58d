"""Check every code block of the docs: Python runs, configs load, JSON parses, and commands and settings exist."""

import importlib
import importlib.util
import json
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

import click
import pytest
import typer

from support import pages, skyrl_venv
from support.shell import shell_environment
from support.warm_program import warm_program
from understudy.cli import main as cli
from understudy.cli.seed_runs import split_seeds
from understudy.core.records import Record
from understudy.core.settings import field_records, is_other_name, table_record
from understudy.engines.models import smollm2_model
from understudy.runs import run
from understudy.runs.config import TrainConfig, load_config, parse_config
from understudy.runs.metrics import PREFIXES
from understudy.runs.targets import resolve
from understudy.sources.mcp.config import MCPEnvironmentConfig

LANGUAGES = {"python", "sh", "toml", "json", "yaml", "text"}
PROGRAMS = {"accelerate", "apt-get", "cd", "curl", "echo", "export", "git", "hf", "llamafactory-cli", "make", "pip"}
PROGRAMS |= {
    "benchmarks/gpu.sh",
    "llama-server",
    "printf",
    "python",
    "ray",
    "source",
    "torchrun",
    "understudy",
    "uv",
    "vllm",
    "~/skyrl/bin/pip",
    "~/skyrl/bin/python",
    "~/verifiers/bin/pip",
    "~/verifiers/bin/vf-eval",
    "~/vllm/bin/pip",
}
UNRUN = {
    "a benchmark": 2,
    "a GPU": 2,
    "a file of your own": 1,
    "a part of a class": 1,
    "a server": 8,
    "an endpoint": 7,
    "an installation": 4,
    "another package": 4,
    "another trainer": 3,
    "code of a domain": 1,
    "minutes": 15,
    "minutes with a model": 3,
    "npm": 1,
    "several GPUs": 2,
    "your files": 8,
}
"""Numbers of blocks that are not run as they stand, by the reason on their page. A page that adds one must change its
count. `test_paths.py` runs those of "minutes" on the pages that it follows, with a tiny model."""
FILES = {"jsonl", "toml", "py", "json", "md", "txt", "env"}
"""Suffixes of file names, such as `health.jsonl`."""
METHODS = {"engine.update", "engine.sample"}
"""Methods whose names look like settings."""
OF_OTHERS = {"data.answer"}
"""A column of a row."""
OWN_TESTS = {"README.md", "data.md"}
"""Pages whose blocks share a folder; separate tests run them."""


def has_own_test(block: pages.Block) -> bool:
    return block.page.name in OWN_TESTS or bool(block.unrun)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "in_repository"), [("index.md", False), ("extending.md", True)])
def test_beginner_commands_run_in_a_shell(page: str, in_repository: bool, tmp_path: Path) -> None:
    smollm2_model()  # its conversion says one line on stderr, once
    folder = pages.ROOT if in_repository else tmp_path
    with warm_program(tmp_path / "socket") as understudy:
        run_shell_blocks(page, folder, shell_environment(tmp_path, understudy=f'{understudy} "$@"'))


def run_shell_blocks(page: str, folder: Path, shell: Mapping[str, str]) -> None:
    for block in pages.blocks(pages.ROOT / "docs" / page, language="sh"):
        if not block.unrun and "understudy new" not in block.text:
            command = ["bash", "-euo", "pipefail", "-c", block.text]
            done = subprocess.run(command, cwd=folder, env=shell, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), block
            expected = "the config is valid" if "--dry-run" in block.text else "gold succeeds on 1.000"
            assert expected in done.stdout


def test_every_block_names_a_language_and_text_has_no_commands() -> None:
    for block in pages.blocks():
        assert block.language in LANGUAGES, f"{block}: {block.language!r}"
        if block.language == "text":
            assert not re.search(r"^(understudy|pip|make|git|import) ", block.text, re.MULTILINE), str(block)
    for page in pages.PAGES:
        outside = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert not re.search(r"\n\n {4}\S", outside), f"{page.name} has an indented block"


def test_unrun_blocks_are_counted_by_reason() -> None:
    assert Counter(block.unrun for block in pages.blocks() if block.unrun) == UNRUN


def test_goal_of_contributing_is_that_of_retail() -> None:
    (block,) = (block for block in pages.blocks(pages.ROOT / "CONTRIBUTING.md") if block.unrun == "code of a domain")
    code = (pages.ROOT / "src/understudy/domains/retail/goals/order_change.py").read_text(encoding="utf-8")
    assert [part for part in block.text.split("\n\n\n") if part.strip() not in code] == []


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in pages.blocks(language="python") if not has_own_test(b)], ids=str)
def test_python_blocks_run(
    block: pages.Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "import torch" in block.text or "algorithms" in block.text:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block), "exec"), {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("block", pages.blocks(language="toml"), ids=str)
def test_toml_blocks_load(block: pages.Block) -> None:
    values = tomllib.loads(block.text)
    if not values.keys() & {"server", "servers", "cassette", "reward", "aliases"}:
        parse_config(block.text)
        return
    whole = {"tasks": "notes.jsonl", "server": {"command": "x"}, **values}
    MCPEnvironmentConfig.model_validate(whole)


@pytest.mark.parametrize("block", pages.blocks(language="json"), ids=str)
def test_json_blocks_parse(block: pages.Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", pages.blocks(language="yaml"), ids=str)
def test_yaml_blocks_parse(block: pages.Block) -> None:
    assert pytest.importorskip("yaml").safe_load(block.text)


@pytest.mark.sweep
@pytest.mark.parametrize("block", pages.blocks(language="sh"), ids=str)
def test_shell_commands_are_valid(block: pages.Block) -> None:
    found = list(pages.commands(block))
    assert found
    for words in found:
        assert words[0] in PROGRAMS or words[0].startswith("$("), words
        if words[0] == "understudy":
            check_command(words[1:])
        elif words[0] == "python" and not words[1].startswith("-") and block.unrun != "another package":
            assert (pages.ROOT / words[1]).is_file(), words
        elif words[0] == "make" and len(words) > 1:
            assert re.search(rf"^{words[1]}:", (pages.ROOT / "Makefile").read_text(), re.MULTILINE), words
        elif words[:2] == ["pip", "install"]:
            check_extras(words[2:])


def test_shell_words_contain_no_glob_patterns() -> None:
    """zsh rejects an unquoted pattern that matches no file."""
    for block in pages.blocks(language="sh"):
        bare = re.sub(r"""'[^']*'|"[^"]*"|(^|\s)#.*""", "", block.text, flags=re.MULTILINE)
        assert not re.search(r"[*?\[]", bare), block


def test_training_commands_follow_the_documented_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check learning rates of finetuning.md and algorithms.md, and that algorithms are not chosen on the test split."""
    monkeypatch.chdir(pages.ROOT)
    chosen = {
        settings: resolve(settings).config for settings in training_commands() if names_algorithm_or_model(settings)
    }
    assert len(chosen) > 5
    for settings, config in chosen.items():
        algorithm, full = config.algorithm, config.engine.finetune == "full"
        if algorithm.preset:
            updates = algorithm.update_epochs * algorithm.num_minibatches
            assert isinstance(algorithm.learning_rate, float), settings
            assert algorithm.learning_rate <= (1e-5 if updates == 1 else 5e-6), settings
            assert config.eval.split == "validation", settings
        else:
            limits = {algorithm.learning_rate: 1e-6 if full else 2e-5, config.sft.learning_rate: 5e-5 if full else 2e-4}
            assert all(rate == "auto" or rate <= limit for rate, limit in limits.items()), settings


def training_commands() -> Iterator[tuple[str, ...]]:
    """Yield the settings of each command that trains."""
    for block in pages.blocks(language="sh"):
        for words in pages.commands(block):
            if words[:2] == ["understudy", "train"] and "--resume" not in words:
                yield tuple(word for word in words[2:] if not word.startswith("-"))


def names_algorithm_or_model(settings: Sequence[str]) -> bool:
    """Return whether settings name an algorithm preset or a model on the hub; a run's config is not available here."""
    named = [word for word in settings if re.match(r"algorithm\.preset=|model=[\w.-]+/[\w.-]+$", word)]
    return bool(named) and not settings[0].startswith("runs/")


def test_no_page_installs_the_other_project_named_understudy() -> None:
    paths = [*(pages.ROOT / "src").rglob("*"), *(pages.ROOT / "examples").rglob("*")]
    text_files = [path for path in paths if path.suffix in {".md", ".py", ".tmpl", ".toml", ".txt", ".yml"}]
    for path in [*pages.PAGES, pages.ROOT / "pyproject.toml", pages.ROOT / "Makefile", *text_files]:
        text = path.read_text(encoding="utf-8")
        assert "understudy[" not in text, path
        assert "understudy @" not in text, path
        assert 'version("understudy")' not in text, path
        assert not re.search(r"pip install (-\S+ )*['\"]?understudy(?!-rl)\b", text), path


def test_metric_prefixes_and_run_files_are_documented() -> None:
    documented = (pages.ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    assert [space for space in PREFIXES if f"`{space}/" not in documented] == []
    files = re.findall(r"^ {6}(\S+)(?: {2}(\S+))?", run.__doc__ or "", re.MULTILINE)
    documented = (pages.ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    assert len(files) > 10
    for name in (name for pair in files for name in pair if "." in name or "/" in name):
        assert re.search(rf"\b{re.escape(name.partition('/')[0])}\b", documented), name


def test_modules_and_functions_in_pages_exist() -> None:
    found = {name for page in pages.PAGES for name in re.findall(r"`(understudy(?:\.\w+)+)", page.read_text("utf-8"))}
    assert len(found) > 20
    for name in found:
        module, _, attribute = name.rpartition(".")
        exists = hasattr(importlib.import_module(module), attribute)
        assert exists or importlib.util.find_spec(name), name


def test_settings_in_pages_exist() -> None:
    sections = {key for key in TrainConfig.model_fields if inner_records(TrainConfig, key)}
    found = 0
    for page in pages.PAGES:
        for name in re.findall(r"`((?:[a-z_]+\.)+[a-z_]+)(?:=[^`]*)?`", page.read_text(encoding="utf-8")):
            section, _, key = name.partition(".")
            is_own = name not in METHODS | OF_OTHERS and not is_other_name(TrainConfig, name)
            if section in sections and key not in FILES and is_own:
                assert has_key(TrainConfig, name.split(".")), f"{page.name} names {name}"
                found += 1
    assert found > 100


def has_key(record: type[Record], path: Sequence[str]) -> bool:
    """Return whether a record, or one of those that its fields may hold, has the key at this path."""
    key, *rest = path
    if key not in record.model_fields:
        return False
    if get_origin(record.model_fields[key].annotation) is dict and not table_record(record, key):
        return True  # the rest of the path is a free name, or a key of SkyRL, which validates it
    if table_record(record, key):
        rest = rest[1:]
    return not rest or any(has_key(inner, rest) for inner in inner_records(record, key))


def inner_records(record: type[Record], key: str) -> list[type[Record]]:
    table = table_record(record, key)
    return [*field_records(record, key), *([table] if table else [])]


def check_command(words: Sequence[str]) -> None:
    """Check that the program has the command, its options and values, and the config its settings."""
    command: Any = typer.main.get_command(cli.app)
    left, name = list(words), "understudy"
    while hasattr(command, "commands"):
        while left[0].startswith("-"):
            assert left[0] in {"--version", "--help"} | ({left.pop(0)} & {"--env-file", "--show-completion"}), words
            if not (left := left[1:]):
                return
        name = left.pop(0)
        assert name in command.commands, f"{words}: no command {name}"
        command = command.commands[name]
    try:
        context = command.make_context(name, left)
    except click.exceptions.Exit:
        return  # --help
    markdown = context.params.get("markdown")
    assert markdown is None or markdown.parent == Path(), f"{words}: nothing says that there is a folder for {markdown}"
    lists = (context.params.get(name) or () for name in ("target", "words", "settings"))
    settings = [word for given in lists if isinstance(given, tuple) for word in given if "=" in word]
    if name == "train":
        settings = [*split_seeds(settings)[0]]
    files = [pages.ROOT / word for word in words if word.endswith(".toml") and (pages.ROOT / word).is_file()]
    load_config(files[0], settings) if files else parse_config("", settings)


def check_extras(packages: Sequence[str]) -> None:
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in packages:
        if found := re.match(r"\.\[(.*)\]", name):
            assert set(found[1].split(",")) <= project["optional-dependencies"].keys(), name


def test_skyrl_install_commands_match_the_tested_environment() -> None:
    shell = [
        command
        for block in pages.blocks(pages.ROOT / "docs" / "cluster.md", language="sh")
        for command in pages.commands(block)
    ]
    page = [set(packages) for packages in map(_installed_packages, shell) if packages]
    server, trainer = skyrl_venv.SERVER, skyrl_venv.TRAINER
    version = f"skyrl=={skyrl_venv.VERSION}"
    assert {skyrl_venv.TORCH} in page
    assert {version, "aiohttp", *trainer} in page, "SkyRL's trainer without a GPU"
    assert {skyrl_venv.TORCH, *server} in page, "a server of the Tinker API"


def _installed_packages(command: list[str]) -> list[str]:
    """Return the packages of an index that a command of pip or uv installs."""
    if "install" not in command:
        return []
    words = command[command.index("install") + 1 :]
    if words[:1] == ["-e"]:
        return []
    return words[: words.index("--index-url")] if "--index-url" in words else words
