"""Test the order of the suites in `.ci/run` and how it fails, with a `make` that runs nothing, and the installation of
the software that suites need.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support import software
from support.machine import process_ends
from support.paths import ROOT

MAKE = """#!/usr/bin/env bash
echo "begin $1" >>"$EVENTS"
case " $SLEEP " in *" $1 "*) sleep 600 & echo $! >>"$SLEEPERS"; wait ;; esac
echo "output of $1"
case " $FAIL " in *" $1 "*) while ! grep -q "begin $AFTER" "$EVENTS"; do sleep 0.05; done; exit 2 ;; esac
echo "end $1" >>"$EVENTS"
"""
SUITES = {f"test-{name}" for name in re.findall(r"^test-(\w+): install", (ROOT / "Makefile").read_text(), re.M)}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with `.ci/run` and a program `make` that writes its targets to the file `events`."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    make = tmp_path / "bin" / "make"
    make.parent.mkdir()
    make.write_text(MAKE)
    make.chmod(0o755)
    return tmp_path


def start(checkout: Path, **variables: str) -> subprocess.Popen[str]:
    files = {"EVENTS": str(checkout / "events"), "SLEEPERS": str(checkout / "sleepers")}
    path = {"PATH": f"{checkout / 'bin'}:{os.environ['PATH']}", "SLEEP": "", "FAIL": "", "AFTER": ""}
    return subprocess.Popen(
        [checkout / ".ci" / "run"],
        env=os.environ | path | files | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def events(checkout: Path) -> list[str]:
    return (checkout / "events").read_text().splitlines()


def sleepers_end(checkout: Path) -> bool:
    """Return whether no process of the fake `make` is left."""
    started = checkout / "sleepers"
    return not started.exists() or all(map(process_ends, map(int, started.read_text().split())))


def test_ci_runs_every_suite_once_and_prints_a_table(checkout: Path) -> None:
    process = start(checkout)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    running = set[str]()
    for event, suite in (line.split() for line in events(checkout)):
        running ^= {suite}
        assert event == ("begin" if suite in running else "end")
        assert len(running - {"install-software"}) <= 2
    ended = [line.removeprefix("end ") for line in events(checkout) if line.startswith("end ")]
    assert sorted(ended) == sorted({"install-docs", "install-software", "check", "docs", "test"} | SUITES)
    assert ended[0] == "install-docs"
    table = output.partition("\n\n")[2]
    assert {line.split()[0] for line in table.splitlines()} == {*ended, "all,"} - {"install-software"}


@pytest.mark.parametrize("failing", ["test", "test-inspect", "install-docs"])
def test_ci_ends_at_the_first_failure_and_shows_its_output(checkout: Path, failing: str) -> None:
    process = start(checkout, FAIL=failing, SLEEP="install-software")
    output = process.communicate()[0]
    assert process.returncode == 1
    assert f"{failing} FAILED" in output.splitlines()[-1]
    assert f"\noutput of {failing}\n" in output
    assert f"end {failing}" not in events(checkout)
    assert sleepers_end(checkout)


def test_failure_of_a_suite_ends_the_one_beside_it(checkout: Path) -> None:
    process = start(checkout, FAIL="test", AFTER="check", SLEEP="check install-software")
    output = process.communicate()[0]
    assert (process.returncode, "test FAILED" in output) == (1, True)
    assert "begin check" in events(checkout)
    assert not {"end check", "begin test-slow"} & set(events(checkout))
    assert sleepers_end(checkout)


def test_failed_installation_is_shown_and_fails_nothing(checkout: Path) -> None:
    process = start(checkout, FAIL="install-software")
    output = process.communicate()[0]
    assert process.returncode == 0
    assert "output of install-software" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_ci_leaves_no_process(checkout: Path, number: signal.Signals) -> None:
    process = start(checkout, SLEEP="check docs install-software")
    assert process.stdout is not None
    begun = 0
    while begun < 2:
        begun += bool(re.search(r" (check|docs) begins", process.stdout.readline()))
    while not (checkout / "sleepers").exists() or len((checkout / "sleepers").read_text().split()) < 3:
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == 128 + number
    assert sleepers_end(checkout)


def test_software_of_every_suite_is_installed_in_advance(pytestconfig: pytest.Config) -> None:
    markers = "\n".join(pytestconfig.getini("markers"))
    needed = re.findall(r"which (?:the test installs|it downloads)[^;]*; run by: make test-(\w+)", markers)
    assert len(needed) > 5
    assert sorted(software.installers()) == sorted(needed)


def test_failed_installation_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("no network")

    installed = list[str]()
    names = ("first", "second", "third")
    steps = {name: (lambda name=name: installed.append(name),) for name in names} | {"broken": (fail,)}
    monkeypatch.setattr(software, "installers", lambda: steps)
    assert software.main([]) == 1
    assert sorted(installed) == sorted(names)
    assert "broken: no network\n" in capsys.readouterr().out
    assert software.main(["second"]) == 0
