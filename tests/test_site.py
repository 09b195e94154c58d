"""The pages that are read off the code hold all that there is, and the site's menu has every page once."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import typer

import pages
from understudy import cli
from understudy.config import TrainConfig
from understudy.domains.base import find_domain, names
from understudy.settings import dump


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", pages.ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


def test_every_key_is_told_with_its_default(generate: ModuleType) -> None:
    page = generate.configuration().partition("Presets")[0]
    sections = dict(re.findall(r"^### `\[([^\]]*)\]`\n\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL))
    section = ""
    for line in dump(TrainConfig()).splitlines():
        if head := re.fullmatch(r"\[(.*)\]", line):
            section = head[1]
        elif key := re.match(r"(?:# )?([a-z_]+) =", line):
            told = sections[section] if section else page.partition("### `[")[0]
            assert f"| `{key[1]}` |" in told, f"{section}.{key[1]}"


def test_every_key_says_what_it_means(generate: ModuleType) -> None:
    tables = generate.configuration().splitlines()
    silent = [line for line in tables if line.startswith("| `") and line.endswith("|  |")]
    assert silent == []


def test_every_command_is_told(generate: ModuleType) -> None:
    page = generate.commands()
    for name, command in leaves(typer.main.get_command(cli.app)):
        told = page.partition(f"## `understudy {name}`")[2].partition("\n## ")[0]
        for option in (option for each in command.params for option in each.opts if option.startswith("--")):
            assert option in told, f"{name} {option}"


def leaves(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


@pytest.mark.parametrize("name", names())
def test_a_domain_is_told_whole(name: str, generate: ModuleType) -> None:
    page, domain = generate.domain_page(name), find_domain(name)
    for told in (*domain.families, *(spec.name for spec in domain.specs)):
        assert f"`{told}`" in page
    assert domain.policy.splitlines()[-1] in page
    assert "user: " in page


def test_public_names_are_told(generate: ModuleType) -> None:
    pages_ = generate.reference()
    for name, told in (
        ("understudy", "`understudy.rollout`"),
        ("understudy", "class Trajectory"),
        ("understudy", "rollout(task"),
        ("understudy.engines.local", "class LocalEngine"),
        ("understudy.formats", "find("),
    ):
        assert told in pages_[f"modules/{name}.md"]
        assert f"(modules/{name}.md)" in pages_["reference.md"]
    listed = re.findall(r"\((modules/[^)]*)\)", pages_["reference.md"])
    assert sorted(["reference.md", *listed]) == sorted(pages_)
    assert max(map(len, pages_.values())) < 100_000


def test_recipes_are_shown_as_they_are(generate: ModuleType) -> None:
    page = generate.written()["extending.md"]
    assert "<!-- file:" not in page
    assert (pages.ROOT / "examples" / "recipes" / "lines.py").read_text(encoding="utf-8") in page


def test_the_menu_has_every_page_once(generate: ModuleType) -> None:
    menu = (pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = re.findall(r"^ +- .*: (\S+\.md)$", menu, re.MULTILINE)
    made = {f"domains/{name}.md" for name in names()} | {"configuration.md", "commands.md", "reference.md"}
    assert len(listed) == len(set(listed))
    assert set(listed) == made | set(generate.written())
