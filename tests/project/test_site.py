"""Test the pages generated from code, and that the site's menu has every page once."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import typer

import understudy
from support import pages
from understudy.cli import main as cli
from understudy.core.settings import dump_toml
from understudy.runs.config import TrainConfig
from understudy.sources.references import list_domains, load_domain


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", pages.ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


def test_every_config_key_is_on_its_page(generate: ModuleType) -> None:
    page = generate.configuration().partition("Presets")[0]
    heads = re.findall(r"^### `\[([^\]]*)\]`(?:, `kind = \"(\w+)\"`)?\n\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL)
    sections = {path: table for path, kind, table in heads if kind in ("", "local")}
    section = ""
    for line in dump_toml(TrainConfig()).splitlines():
        if head := re.fullmatch(r"\[(.*)\]", line):
            section = re.sub(r"^endpoints\.\w+$", "endpoints.NAME", head[1])
        elif key := re.match(r"(?:# )?([a-z_]+) =", line):
            documented = sections[section] if section else page.partition("### `[")[0]
            assert f"| `{key[1]}` |" in documented, f"{section}.{key[1]}"


def test_every_config_key_has_a_description(generate: ModuleType) -> None:
    tables = generate.configuration().splitlines()
    silent = [line for line in tables if line.startswith("| `") and line.endswith("|  |")]
    assert silent == []


def test_every_command_and_option_is_on_the_page(generate: ModuleType) -> None:
    page = generate.commands()
    for name, command in iter_commands(typer.main.get_command(cli.app)):
        documented = page.partition(f"## `understudy {name}`")[2].partition("\n## ")[0]
        for option in (option for each in command.params for option in each.opts if option.startswith("--")):
            assert option in documented, f"{name} {option}"


def iter_commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from iter_commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


@pytest.mark.parametrize("name", list_domains())
def test_domain_page_has_families_tools_and_policy(name: str, generate: ModuleType) -> None:
    page, domain = generate.domain_page(name), load_domain(name)
    for documented in (*domain.families, *(spec.name for spec in domain.tool_specs)):
        assert f"`{documented}`" in page
    assert domain.domain_policy.splitlines()[-1] in page
    assert "user: " in page


@pytest.mark.slow
def test_reference_pages_list_every_module(generate: ModuleType) -> None:
    made = generate.reference()
    for page, text in (
        ("understudy.core", "class Trajectory"),
        ("understudy.rollouts", "rollout(task"),
        ("understudy.engines.local", "class LocalEngine"),
        ("understudy.formats", "load_chat_format("),
    ):
        assert text in made[f"modules/{page}.md"]
        assert f"(modules/{page}.md)" in made["reference.md"]
    listed = re.findall(r"\((modules/[^)]*)\)", made["reference.md"])
    assert sorted(["reference.md", *listed]) == sorted(made)
    assert max(map(len, made.values())) < 100_000


def test_api_page_lists_the_public_names(generate: ModuleType) -> None:
    page = generate.api()
    assert [name for name in understudy.__all__ if f"`understudy.{understudy._MODULES[name]}`" not in page] == []
    assert "class Scenario" in page


def test_recipe_files_are_included_verbatim(generate: ModuleType) -> None:
    page = generate.written()["extending.md"]
    assert "<!-- file:" not in page
    assert (pages.ROOT / "examples" / "recipes" / "line_format.py").read_text(encoding="utf-8") in page


def test_tables_of_fields_are_those_of_the_code(generate: ModuleType) -> None:
    page = (pages.ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert generate.update_fields(page) == page, "run python docs/generate.py docs/tasks.md"


@pytest.mark.slow
def test_table_of_families_is_that_of_the_contract_suite(generate: ModuleType) -> None:
    page = (pages.ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert "<!-- families -->" in page
    assert generate.update_families(page) == page, "run python docs/generate.py docs/formats.md"
    assert not re.search(r"^\| `\w+` \|.*\|  \|$", page, re.MULTILINE), "a field has no docstring"


def test_menu_has_every_page_once(generate: ModuleType) -> None:
    menu = (pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = re.findall(r"^ +- .*: (\S+\.md)$", menu, re.MULTILINE)
    made = {f"domains/{name}.md" for name in list_domains()} | {
        "api.md",
        "configuration.md",
        "commands.md",
        "reference.md",
        "strategies.md",
    }
    assert len(listed) == len(set(listed))
    assert set(listed) == made | {name for name in generate.written() if not name.startswith("archive/")}


def test_site_needs_no_server_and_no_network() -> None:
    config = (pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    scripts = re.findall(r"^ +- (javascripts/\S+)$", config, re.MULTILINE)
    assert {"search", "offline"} <= set(re.findall(r"^  - (\w+)$", config.partition("\nplugins:")[2], re.MULTILINE))
    assert any("iframe-worker" in script for script in scripts), "without it the plugin names a script on the web"
    assert all((pages.ROOT / "docs" / script).is_file() for script in scripts)


@pytest.mark.browser
def test_search_works_in_the_folder_opened_as_files(generate: ModuleType) -> None:
    from support.browser import browser, expect
    from support.software import mkdocs_python
    from support.venvs import run_command

    generate.main(pages.ROOT / "build" / "docs")
    run_command(mkdocs_python(), "-m", "mkdocs", "build", "--strict", cwd=pages.ROOT)
    with browser() as chromium:
        page, requested = chromium.new_page(), list[str]()
        page.on("request", lambda request: requested.append(request.url))
        page.goto((pages.ROOT / "build" / "site" / "domains" / "retail.html").as_uri())
        page.locator("input[name=query]").first.click()
        page.keyboard.type("max_fault_rate")
        first = page.locator("a.md-search-result__link").first
        expect(first).to_be_visible()
        first.click()
        expect(page.locator("article")).to_contain_text("max_fault_rate")
        assert [url for url in requested if not url.startswith(("file:", "data:"))] == []
