"""The pages of the documentation, and the blocks of code in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"(?:^<!-- not run: ([^>]*) -->\n)?^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INCLUDED = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)
"""Stands for the text of a file of the repository."""


@dataclass(frozen=True)
class Block:
    """A fenced code block: its location, its language, and the reason given on the page for not running it, if any."""

    page: Path
    line: int
    language: str
    text: str
    unrun: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(*pages: Path, language: str = "") -> list[Block]:
    """Return the blocks in a language, of the given pages or of all."""
    found = []
    for page in pages or PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start(3))
            found.append(Block(page, line, match[2], match[3], match[1] or ""))
    return [block for block in found if language in ("", block.language)]


def section(page: Path, heading: str) -> str:
    """Return the text of a section of a page, up to the next heading of its level. Fail if there is no such section."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} has no section {heading!r}"
    return found[1]


def commands(block: Block) -> Iterator[list[str]]:
    """Return the commands of a shell block as words, without comments, variable assignments and redirections."""
    for line in block.text.replace("\\\n", " ").splitlines():
        command: list[str] = []
        for word in [*shlex.split(line, comments=True), "|"]:
            if word in ("|", "&&"):
                while command and re.match(r"[A-Z_0-9]+=", command[0]):
                    del command[0]
                if command:
                    yield command[: command.index("<")] if "<" in command else command
                command = []
            else:
                command.append(word)
