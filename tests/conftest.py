"""Fixtures and hooks of all tests: no network, no API keys, and skipped tests fail where all tests have to run."""

import ipaddress
import os
import signal
import socket
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.checkouts import forget_checkouts
from support.machine import ALL_TESTS, ELSEWHERE
from support.sweeps import mark_slow_cases
from understudy.cli import env_file
from understudy.core.event_loop import BACKGROUND_LOOP

# A shell starts a background job with Ctrl-C ignored. Tests that send it need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline and no randomness: no test fails because a machine is slow, or by chance.
settings.register_profile("understudy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("understudy")

ROOT = Path(__file__).parents[1]
EXTRAS = {"torch", "transformers", "tokenizers", "peft", "safetensors", "gguf", "llguidance", "pyarrow", "openai"}
"""Packages that only the extras of pyproject.toml install."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_slow_cases(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return report if item.get_closest_marker("tau") else _fail_if_skipped(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a test module that imports an extra which is not installed."""
    report = yield
    missing = _missing_package(report)
    if missing in EXTRAS:
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, f"Skipped: {missing} is not installed")
    return _fail_if_skipped(report)


def _missing_package(report: pytest.CollectReport) -> str:
    """Return the package whose absence makes the import of a test module fail; empty if there is none."""
    error = report.call.excinfo.value if report.call.excinfo else None  # type: ignore[attr-defined]
    cause = error.__cause__ if error else None
    return (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""


def _fail_if_skipped(report: Any) -> Any:
    """Return the report. If all tests have to run, a test that this machine could run counts as failed if skipped."""
    if ALL_TESTS not in os.environ or not report.skipped or hasattr(report, "wasxfail"):
        return report
    if ELSEWHERE not in report.longrepr[2]:
        report.outcome, report.longrepr = "failed", f"{report.longrepr[2]}, and {ALL_TESTS} is set"
    return report


@pytest.fixture(autouse=True)
def _no_background_sessions() -> Iterator[None]:
    """End the servers that a test has started in the background loop, so that the next test finds none."""
    yield
    BACKGROUND_LOOP.close()


@pytest.fixture(autouse=True)
def _no_checkouts() -> Iterator[None]:
    """Forget the checkout of a benchmark that a test has imported, because a process can load only one."""
    yield
    forget_checkouts()


@pytest.fixture(autouse=True)
def offline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deny network access and remove API keys, except in the suites that install other software."""
    suites = {line.partition(":")[0] for line in request.config.getini("markers") if "run by: make test-" in line}
    if any(mark.name in suites - {"slow"} for mark in request.node.iter_markers()):
        return
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)
    find, load = socket.getaddrinfo, env_file.load_env_file
    own = lambda path=None: load(path) if path or Path.cwd() != ROOT else []  # noqa: E731
    monkeypatch.setattr(env_file, "load_env_file", own)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **most: find(_near(host), *more, **most))


def _near(host: Any) -> Any:
    """Return the host if it is an address or a name of this machine. Otherwise raise gaierror, as without a network."""
    name = host.decode() if isinstance(host, bytes) else host
    if name and name not in ("localhost", socket.gethostname()):
        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise socket.gaierror(socket.EAI_NONAME, f"a test asks for {name}") from None
    return host
