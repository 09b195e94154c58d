"""Test the hooks in conftest.py: failing on skipped tests if all tests are required, and blocking the network."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.machine import ALL_TESTS, ELSEWHERE
from support.paths import TESTS
from support.sweeps import mark_slow_cases

SKIPPED_TEST = """
import pytest
def test_lacks(): pytest.skip("no node")
"""
ALLOWED_SKIPS = f"""
import pytest
@pytest.mark.skipif(True, reason={ELSEWHERE + "no AVX2"!r})
def test_elsewhere(): ...
@pytest.mark.tau
def test_checkout(): pytest.skip("no checkout")
@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""
MISSING_EXTRA = "import sys\nsys.modules['torch'] = None\nimport torch\ndef test_it(): ...\n"
SKIPPED_MODULE = "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): ...\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "skipped", "required"),
    [(SKIPPED_TEST, 0, 1), (ALLOWED_SKIPS, 0, 0), (SKIPPED_MODULE, 5, 2), (MISSING_EXTRA, 5, 2)],
    ids=["test", "others", "module", "extra"],
)
def test_skipped_test_fails_if_all_tests_are_required(tmp_path: Path, code: str, skipped: int, required: int) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(code)
    bare = {name: value for name, value in os.environ.items() if name != ALL_TESTS}
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", str(file)]
    for variables, code_of_pytest in (({}, skipped), ({ALL_TESTS: "1"}, required)):
        environment = {**bare, **variables, "PYTHONPATH": path}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code_of_pytest, done.stdout + done.stderr
        assert (f"and {ALL_TESTS} is set" in done.stdout) == bool(variables and required)


class Case:
    """A collected case, as far as `mark_slow_cases` needs it."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.marks = nodeid, {*marks}

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, name: str) -> None:
        self.marks.add(name)


@pytest.mark.parametrize(("long", "short"), [(118, 1), (14, 4), (15, 5), (25, 3), (20, 3)])
def test_sample_of_a_sweep_has_each_value_and_the_rest_is_slow(long: int, short: int) -> None:
    cases = [Case(f"test_a.py::test_a[{i}-{j}]", "sweep") for i in range(long) for j in range(short)]
    others = [Case("test_a.py::test_b[0-0]"), Case("test_a.py::test_c", "sweep")]
    mark_slow_cases([*cases, *others])  # type: ignore[list-item]
    assert not any("slow" in case.marks for case in others)
    fast = [case.nodeid.partition("[")[2][:-1].split("-") for case in cases if "slow" not in case.marks]
    assert len(fast) == pytest.approx(len(cases) / 4, abs=3)
    if short > 1:
        assert len({i for i, _ in fast}) > long / 2
    assert {j for _, j in fast} == {str(j) for j in range(short)}


def test_network_access_outside_this_machine_is_blocked() -> None:
    for near in ("localhost", b"localhost", "127.0.0.1", "::1", None, socket.gethostname()):
        assert socket.getaddrinfo(near, 80)
    with pytest.raises(socket.gaierror, match=r"a test asks for huggingface\.co"):
        socket.create_connection(("huggingface.co", 443))
