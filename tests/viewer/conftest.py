"""Fixtures of the browser tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.browser import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """Return a page of Chromium; the test fails on an error, a warning, or a request to another origin."""
    with chromium.new_context(viewport={"width": 1300, "height": 800}) as context:
        opened, problems = context.new_page(), list[str]()
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
        opened.on("request", lambda request: problems.append(request.url) if not _is_local(request.url) else None)
        opened.set_default_timeout(120_000)
        yield opened
        assert problems == []


def _is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:"))
