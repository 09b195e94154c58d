"""Chromium, driven by Playwright. Missing programs are installed.

Chromium is the machine's own, or Debian's and Ubuntu's package, which root may install. Playwright and axe, a checker
of accessibility, come from PyPI and are installed in an environment in the user's cache.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from support.machine import find_program
from support.venvs import make_venv, run_command

PACKAGES = ("playwright==1.65.2", "axe-playwright-python==0.1.8")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
FIND_VIOLATIONS = """async rules => {
  const found = await axe.run({ runOnly: rules, resultTypes: ["violations"] });
  return found.violations.map(({ id, help, nodes }) => (
    { id, help, nodes: nodes.map(({ html, failureSummary }) => ({ html, failureSummary })) }
  ));
}"""
"""The other results of axe are megabytes, which take longer to send than the check takes."""


def chromium_path() -> str:
    """Return the path of Chromium."""
    return find_program(*NAMES, package="chromium")


@cache
def playwright_packages() -> Path:
    """Return the folder from which Playwright and axe are imported."""
    folder = make_venv("browser-1", *PACKAGES)
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(run_command(str(folder / "bin" / "python"), "-c", asked).strip())


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a headless Chromium as Playwright's `Browser`."""
    executable, place = chromium_path(), str(playwright_packages())
    if place not in sys.path:
        sys.path.append(place)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox"]
        )  # its sandbox fails as root
        try:
            yield running
        finally:
            running.close()


def expect(found: Any) -> Any:
    """Return Playwright's assertions for a locator. They wait until they hold, because a page is drawn after it has
    handled a key.
    """
    from playwright.sync_api import expect as asserted

    asserted.set_options(timeout=120_000)
    return asserted(found)


def switch_theme(page: Any, theme: str) -> None:
    """Switch a loaded page to the theme "light" or "dark", as the system does. Colors change at once."""
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)


def accessibility_problems(page: Any) -> list[str]:
    """Return the accessibility problems that axe finds on a page, one line each."""
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate((playwright_packages() / "axe_playwright_python" / "axe.min.js").read_text(encoding="utf-8"))
    violations = page.evaluate(FIND_VIOLATIONS, RULES)
    return [
        f"{each['id']}: {each['help']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for each in violations
        for node in each["nodes"]
    ]


if __name__ == "__main__":
    print(
        subprocess.run([chromium_path(), "--version"], check=True, capture_output=True, text=True).stdout.strip(),
        playwright_packages(),
    )
