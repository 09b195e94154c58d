"""Every block of code in the docs: Python runs, configs load, JSON parses, and the program takes each command."""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import click
import pytest
import typer

import pages
from understudy import cli, launch, run
from understudy.config import TrainConfig
from understudy.engines.skyrl import Keys
from understudy.mcp.settings import EnvironmentConfig
from understudy.metrics import SPACES
from understudy.records import Record
from understudy.settings import load, parse

LANGUAGES = {"python", "sh", "toml", "json", "yaml", "text"}
PROGRAMS = {"accelerate", "cd", "echo", "export", "git", "hf", "llamafactory-cli", "make", "pip", "python", "torchrun"}
PROGRAMS |= {"ray", "source", "understudy", "uv", "vllm", "~/skyrl/bin/pip", "~/skyrl/bin/python", "~/vllm/bin/pip"}
UNRUN = {
    "a file of your own": 1,
    "a part of a class": 1,
    "a server": 2,
    "an endpoint": 4,
    "an installation": 1,
    "another package": 10,
    "another trainer": 1,
    "minutes": 6,
    "minutes with a model": 2,
}
"""How many blocks are not run, by the reason that their page gives. A page that adds one is to say so here."""
FILES = {"jsonl", "toml", "py", "json", "md", "txt", "env"}
"""Ends of names that are files, such as `health.jsonl`."""
METHODS = {"engine.update", "engine.sample"}
"""Names that look like settings."""
OWN_TESTS = {"README.md", "data.md"}
"""Pages whose blocks share a folder, and are run by a test of their own."""


def run_together(block: pages.Block) -> bool:
    return block.page.name in OWN_TESTS or bool(block.unrun)


def program(folder: Path) -> dict[str, str]:
    """An environment for a shell in which `understudy` is this checkout."""
    script = folder / "bin" / "understudy"
    script.parent.mkdir()
    source = pages.ROOT / "src"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{source}:$PYTHONPATH" exec {sys.executable} -m understudy "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(("page", "here"), [("index.md", False), ("extending.md", True)])
def test_the_shell_takes_what_a_beginner_is_told(page: str, here: bool, tmp_path: Path) -> None:
    shell, folder = program(tmp_path), pages.ROOT if here else tmp_path
    for block in pages.blocks(pages.ROOT / "docs" / page, language="sh"):
        if not block.unrun:
            command = ["bash", "-euo", "pipefail", "-c", block.text]
            done = subprocess.run(command, cwd=folder, env=shell, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), block
            assert "gold succeeds on 1.000" in done.stdout


def test_every_block_names_a_language_and_hides_no_command() -> None:
    for block in pages.blocks():
        assert block.language in LANGUAGES, f"{block}: {block.language!r}"
        if block.language == "text":
            assert not re.search(r"^(understudy|pip|make|git|import) ", block.text, re.MULTILINE), str(block)
    for page in pages.PAGES:
        outside = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert not re.search(r"\n\n {4}\S", outside), f"{page.name} has an indented block"


def test_what_is_not_run_is_counted() -> None:
    assert Counter(block.unrun for block in pages.blocks() if block.unrun) == UNRUN


@pytest.mark.parametrize("block", [b for b in pages.blocks(language="python") if not run_together(b)], ids=str)
def test_python_runs(
    block: pages.Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "import torch" in block.text or "algorithms" in block.text:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block), "exec"), {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("block", pages.blocks(language="toml"), ids=str)
def test_configs_load(block: pages.Block) -> None:
    values = tomllib.loads(block.text)
    if not values.keys() & {"server", "servers", "cassette", "reward"}:
        parse(TrainConfig, block.text)
        return
    whole = {"tasks": "notes.jsonl", "server": {"command": "x"}, **values}
    EnvironmentConfig.model_validate(whole)


@pytest.mark.parametrize("block", pages.blocks(language="json"), ids=str)
def test_json_parses(block: pages.Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", pages.blocks(language="yaml"), ids=str)
def test_yaml_parses(block: pages.Block) -> None:
    assert pytest.importorskip("yaml").safe_load(block.text)


@pytest.mark.parametrize("block", pages.blocks(language="sh"), ids=str)
def test_commands_are_taken(block: pages.Block) -> None:
    found = list(pages.commands(block))
    assert found
    for words in found:
        assert words[0] in PROGRAMS or words[0].startswith("$("), words
        if words[0] == "understudy":
            taken(words[1:])
        elif words[0] == "python" and not words[1].startswith("-") and block.unrun != "another package":
            assert (pages.ROOT / words[1]).is_file(), words
        elif words[0] == "make" and len(words) > 1:
            assert re.search(rf"^{words[1]}:", (pages.ROOT / "Makefile").read_text(), re.MULTILINE), words
        elif words[:2] == ["pip", "install"]:
            extras(words[2:])


def test_no_shell_reads_a_word_as_a_pattern() -> None:
    """zsh refuses a word with such a sign that matches no file."""
    for block in pages.blocks(language="sh"):
        bare = re.sub(r"""'[^']*'|"[^"]*"|(^|\s)#.*""", "", block.text, flags=re.MULTILINE)
        assert not re.search(r"[*?\[]", bare), block


def test_commands_that_train_keep_to_what_pages_advise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning rates of finetuning.md and algorithms.md; algorithms are not chosen on the test split."""
    monkeypatch.chdir(pages.ROOT)
    chosen = {settings: launch.read(settings)[1] for settings in trained() if advised(settings)}
    assert len(chosen) > 5
    for settings, config in chosen.items():
        algorithm, full = config.algorithm, config.engine.finetune == "full"
        if algorithm.preset:
            updates = algorithm.epochs * algorithm.updates_per_step
            assert algorithm.learning_rate <= (1e-5 if updates == 1 else 5e-6), settings
            assert config.eval.split == "validation", settings
        else:
            assert algorithm.learning_rate <= (1e-6 if full else 2e-5), settings
            assert config.sft.steps == 0 or config.sft.learning_rate <= (5e-5 if full else 2e-4), settings


def trained() -> Iterator[tuple[str, ...]]:
    """The settings of each command that trains."""
    for block in pages.blocks(language="sh"):
        for words in pages.commands(block):
            if words[:2] == ["understudy", "train"] and "--resume" not in words:
                yield tuple(word for word in words[2:] if not word.startswith("-"))


def advised(settings: Sequence[str]) -> bool:
    """Whether an algorithm is chosen by its name, or a model on the hub; of a run the config is not here."""
    named = [word for word in settings if re.match(r"algorithm\.preset=|model=[\w.-]+/[\w.-]+$", word)]
    return bool(named) and not settings[0].startswith("runs/")


def test_nobody_is_sent_to_another_package_of_this_name() -> None:
    for path in [*pages.PAGES, *(pages.ROOT / "src").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        assert "understudy[" not in text, path
        assert not re.search(r"pip install (-\S+ )*['\"]?understudy\b", text), path


def test_every_space_of_metrics_and_every_file_of_a_run_is_told() -> None:
    told = (pages.ROOT / "docs" / "trackers.md").read_text(encoding="utf-8")
    assert [space for space in SPACES if f"`{space}/" not in told] == []
    files = re.findall(r"^ {6}(\S+)(?: {2}(\S+))?", run.__doc__ or "", re.MULTILINE)
    told = (pages.ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    assert len(files) > 10
    for name in (name for pair in files for name in pair if "." in name or "/" in name):
        assert re.search(rf"\b{re.escape(name.partition('/')[0])}\b", told), name


def test_modules_and_functions_that_pages_name_are_there() -> None:
    found = {name for page in pages.PAGES for name in re.findall(r"`(understudy(?:\.\w+)+)", page.read_text("utf-8"))}
    assert len(found) > 20
    for name in found:
        module, _, attribute = name.rpartition(".")
        there = hasattr(importlib.import_module(module), attribute)
        assert there or importlib.util.find_spec(name), name


def test_settings_that_pages_name_are_there() -> None:
    sections = {key for key, field in TrainConfig.model_fields.items() if is_record(field.annotation)}
    found = 0
    for page in pages.PAGES:
        for name in re.findall(r"`((?:[a-z_]+\.)+[a-z_]+)(?:=[^`]*)?`", page.read_text(encoding="utf-8")):
            section, _, key = name.partition(".")
            if section in sections and key not in FILES and name not in METHODS:
                assert field_at(name) is not None, f"{page.name} names {name}"
                found += 1
    assert found > 100


def field_at(name: str) -> Any:
    kind: Any = TrainConfig
    for key in name.split("."):
        if kind == get_args(Keys)[0]:
            return kind  # from here on they are SkyRL's own, which it looks through itself
        if not is_record(kind) or key not in kind.model_fields:
            return None
        kind = kind.model_fields[key].annotation
    return kind


def is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Record)


def taken(words: Sequence[str]) -> None:
    """The program knows the command, its options and their values, and the config its settings."""
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
    settings = [word for word in context.params.get("settings") or () if "=" in word]
    files = [pages.ROOT / word for word in left if word.endswith(".toml") and (pages.ROOT / word).is_file()]
    load(TrainConfig, files[0], settings) if files else parse(TrainConfig, "", settings)


def extras(packages: Sequence[str]) -> None:
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in packages:
        if found := re.match(r"\.\[(.*)\]", name):
            assert set(found[1].split(",")) <= project["optional-dependencies"].keys(), name
