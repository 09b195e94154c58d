"""Test that the tests which SECURITY.md names exist, and that it is linked."""

import ast
import re

import pytest

from support.paths import ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_named_test_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_named_test_is_found_and_pages_link_to_the_policy() -> None:
    assert len(NAMED) == len(set(re.findall(r"tests/[^`]+", PAGE))) >= 20
    assert "](SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    for page in ("mcp_servers", "serving", "viewer"):
        assert "](../SECURITY.md" in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), page
