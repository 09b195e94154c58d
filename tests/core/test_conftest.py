"""Test the hooks in conftest.py: failing on skipped tests if all tests are required, and blocking the network."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.machine import ALL_TESTS, ELSEWHERE
from support.paths import TESTS

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
SKIPPED_MODULE = "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): ...\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "skipped", "required"),
    [(SKIPPED_TEST, 0, 1), (ALLOWED_SKIPS, 0, 0), (SKIPPED_MODULE, 5, 2)],
    ids=["test", "others", "module"],
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


def test_network_access_outside_this_machine_is_blocked() -> None:
    for near in ("localhost", b"localhost", "127.0.0.1", "::1", None, socket.gethostname()):
        assert socket.getaddrinfo(near, 80)
    with pytest.raises(socket.gaierror, match=r"a test asks for huggingface\.co"):
        socket.create_connection(("huggingface.co", 443))
