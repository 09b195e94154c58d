"""The examples of the patterns: below a comment `# such as: TEXT` stands a pattern that matches TEXT at its start."""

import ast
import importlib
import re
import tokenize
from pathlib import Path
from typing import Any

import pytest

import understudy

ROOT = Path(understudy.__file__).parent
FILES = sorted([*(ROOT / "formats").rglob("*.py"), *(ROOT / "envs" / "compliance").glob("*.py")])
PREFIX = "# such as: "


def read_examples(path: Path) -> dict[int, str]:
    """Return the examples of a file by the line below them. In an example, a newline is written as backslash and n."""
    with tokenize.open(path) as file:
        comments = [t for t in tokenize.generate_tokens(file.readline) if t.type == tokenize.COMMENT]
    return {t.start[0] + 1: t.line.strip().removeprefix(PREFIX) for t in comments if t.string.startswith(PREFIX)}


def find_patterns(path: Path) -> dict[int, re.Pattern[str]]:
    """Return the patterns that a module assigns, and those of its openings, by their first line."""
    module = importlib.import_module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
    patterns: dict[int, re.Pattern[str]] = {}

    def add(node: ast.AST, value: Any) -> None:
        if isinstance(value, re.Pattern):
            patterns[node.lineno] = value
        elif isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value):
            patterns[node.lineno] = re.compile(f"{value[0]}(?:{value[1]})")
        elif isinstance(node, ast.Tuple):
            for child, element in zip(node.elts, value, strict=False):
                add(child, element)
        elif isinstance(node, ast.Dict) and isinstance(value, dict):
            for key, element in zip(node.keys, value.values(), strict=False):
                add(key, element)

    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if isinstance(target, ast.Name):
            add(statement.value, getattr(module, target.id, None))
    return patterns


@pytest.mark.parametrize("path", [p for p in FILES if read_examples(p)], ids=lambda p: p.stem)
def test_each_pattern_matches_the_example_above_it(path: Path) -> None:
    patterns = find_patterns(path)
    for line, example in read_examples(path).items():
        assert line in patterns, f"{path.name}:{line}: an example must stand directly above a pattern"
        found = patterns[line].match(example.replace(r"\n", "\n"))
        assert found is not None, f"{path.name}:{line}: {patterns[line].pattern!r} does not match {example!r}"


def test_every_dialect_shows_an_example() -> None:
    dialects = [p for p in FILES if p.parent.name == "tool_parsers" and "re.compile(" in p.read_text(encoding="utf-8")]
    assert len(dialects) > 12
    assert [p.name for p in dialects if not read_examples(p)] == []
