"""What every test can rely on."""

import ipaddress
import os
import signal
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from machine import ELSEWHERE
from understudy import envfile

# A shell's background job begins with Ctrl-C ignored; tests that press it need Python's own handler, as at a prompt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test fails because a machine is slow, or by chance.
settings.register_profile("understudy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("understudy")

ALL = "UNDERSTUDY_ALL_TESTS"
"""The variable that says, as in CI, that whatever a test needs is there: one that is left out has failed."""
ROOT = Path(__file__).parents[1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return report if item.get_closest_marker("tau") else wanted(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return wanted((yield))


def wanted(report: Any) -> Any:
    """The report; of what was left out though all is wanted, and this machine could do it, the report of a failure."""
    if ALL in os.environ and report.skipped and not hasattr(report, "wasxfail") and ELSEWHERE not in report.longrepr[2]:
        report.outcome, report.longrepr = "failed", f"{report.longrepr[2]}, and {ALL} is set"
    return report


@pytest.fixture(autouse=True)
def offline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test asks no machine but this one, and has nobody's keys; those that `make test` leaves out may."""
    online = {line.partition(":")[0] for line in request.config.getini("markers") if "run by: make test-" in line}
    if any(mark.name in online for mark in request.node.iter_markers()):
        return
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)
    find, load = socket.getaddrinfo, envfile.load
    own = lambda path=None: load(path) if path or Path.cwd() != ROOT else []  # noqa: E731
    monkeypatch.setattr(envfile, "load", own)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **most: find(_near(host), *more, **most))


def _near(host: Any) -> Any:
    """The host, which is this machine or an address; a name that somebody else has to be asked for is not known."""
    name = host.decode() if isinstance(host, bytes) else host
    if name and name not in ("localhost", socket.gethostname()):
        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise socket.gaierror(socket.EAI_NONAME, f"a test asks for {name}") from None
    return host
