"""Test the README's Python blocks, and the tables and links of all pages."""

import re
from pathlib import Path
from typing import Any

import pytest

from understudy import check

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_tasks_of_the_readme_are_sound() -> None:
    (block,) = BLOCKS
    names: dict[str, Any] = {"__name__": "sums"}
    exec(compile(block, str(README), "exec"), names)  # noqa: S102
    report = check(names["SUMS"])
    assert (report.problems, sum(split.tasks for split in report.splits)) == ((), 48)


ROOT = README.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_valid_tables_and_links(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"^(<{7}|={7}|>{7})( |$)", text, re.MULTILINE), "a merge was left unfinished"
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
        assert re.match(r"\|.*\n\|[-:| ]+\|\n", table), f"rows without a head, as after an empty line: {table}"
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (page.parent / link).exists(), link


def test_readme_activates_the_venv_before_using_the_program() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.index(".venv/bin/activate") < text.index("\nunderstudy ")


def test_readme_has_at_most_120_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120
