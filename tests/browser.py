"""A real Chromium, driven by Playwright: both are set up here, where they are not there yet.

Chromium is the machine's own (Debian's and Ubuntu's package, which root may install); Playwright and axe, which finds
what keeps people out, are from PyPI, in an environment of their own in the user's cache.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine import program
from venvs import environment, told

PACKAGES = ("playwright==1.65.2", "axe-playwright-python==0.1.8")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def chromium() -> str:
    """Where Chromium is."""
    return program(*NAMES, package="chromium")


def packages() -> Path:
    """The folder that Playwright and axe are imported from."""
    folder = environment("browser-1", *PACKAGES)
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(told(str(folder / "bin" / "python"), "-c", asked).strip())


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium without a window, as Playwright's `Browser`."""
    executable, place = chromium(), str(packages())
    if place not in sys.path:
        sys.path.append(place)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])  # root has none
        try:
            yield running
        finally:
            running.close()


def expect(found: Any) -> Any:
    """What a locator finds, asserted once it holds: a page draws after it heard of a key."""
    from playwright.sync_api import expect as asserted

    asserted.set_options(timeout=30_000)
    return asserted(found)


def accessibility(page: Any) -> list[str]:
    """What axe finds on a page that keeps people out, in a line each."""
    source = (packages() / "axe_playwright_python" / "axe.min.js").read_text(encoding="utf-8")
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(source)
    found = page.evaluate("rules => axe.run({ runOnly: rules })", RULES)
    return [
        f"{each['id']}: {each['help']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


if __name__ == "__main__":
    print(
        subprocess.run([chromium(), "--version"], check=True, capture_output=True, text=True).stdout.strip(), packages()
    )
