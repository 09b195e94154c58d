"""Test the README's Python blocks, and the tables and links of all pages."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_block_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, str(README), "exec"), {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.strip()


ROOT = README.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_has_valid_tables_and_links(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"^(<{7}|={7}|>{7})( |$)", text, re.MULTILINE), "a merge was left unfinished"
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (page.parent / link).exists(), link


def test_readme_activates_the_venv_before_using_the_program() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.index(".venv/bin/activate") < text.index("\nunderstudy ")
