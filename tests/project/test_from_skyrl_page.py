"""The page for users of three kinds of projects: its tables agree with the code, and its moves are short."""

import re
from collections.abc import Iterator

import pytest

from support import pages
from understudy.core.settings import find_field, is_known_name
from understudy.runs.config import TrainConfig
from understudy.runs.conversions import CONVERSIONS

PAGE = pages.ROOT / "docs" / "from_skyrl_and_mcp.md"
SECTIONS = [
    "A. Customer service on tau-bench with SkyRL",
    "B. GRPO on MCP tools",
    "C. MCP research agent on SkyRL",
]


def rows(text: str, head: str = "") -> Iterator[tuple[str, str]]:
    """Yield the cells of the rows of all tables, or of those whose first column has this head."""
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        first, _, *lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
        if head in ("", first[0].strip()):
            yield from ((left.strip(), right.strip()) for left, right in lines)


@pytest.mark.parametrize("section", SECTIONS)
def test_section_has_one_short_move_before_its_tables(section: str) -> None:
    text = pages.section(PAGE, section)
    (block,) = (block for block in pages.blocks(PAGE, language="sh") if block.text in text)
    commands = [words for words in pages.commands(block) if words[0] != "export"]
    assert 5 <= len(commands) <= 15
    assert {"check", "train", "eval"} <= {words[1] for words in commands if words[0] == "understudy"}
    assert text.index(block.text) < text.index("| here |")
    assert len([*rows(text, "setting")]) > 10


def test_word_without_a_counterpart_has_a_reason() -> None:
    found = [right for _, right in rows(PAGE.read_text(encoding="utf-8"))]
    assert len(found) > 150
    for text in found:
        assert text
        assert not text.startswith("none") or re.match("none( in the local engine)?(, because|, on purpose|;)", text), (
            text
        )


@pytest.mark.parametrize("section", SECTIONS)
def test_each_setting_is_in_the_tables_of_the_code(section: str) -> None:
    """A name that the program takes or explains, or a key, and the row has the key that the name becomes."""
    for left, right in rows(pages.section(PAGE, section), "setting"):
        for name in re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)*)(?:=[^`]*)?`", left):
            if name in ("auto", "vllm", "hf", "llm", "react", "verify", "reflection", "python_code", "code"):
                continue
            key, field = find_field(TrainConfig, name)
            assert field or is_known_name(TrainConfig, name), name
            if field and name not in CONVERSIONS and not right.startswith("none"):
                assert f"`{key}" in right, (name, key)
