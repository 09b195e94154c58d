"""What the suite does with tests that are left out, and with those that ask somebody else."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ALL
from machine import ELSEWHERE

LACKING = """
import pytest
def test_lacks(): pytest.skip("no node")
"""
OTHERS = f"""
import pytest
@pytest.mark.skipif(True, reason={ELSEWHERE + "no AVX2"!r})
def test_elsewhere(): ...
@pytest.mark.tau
def test_checkout(): pytest.skip("no checkout")
@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""
MODULE = "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): ...\n"


@pytest.mark.parametrize(
    ("code", "left_out", "wanted"), [(LACKING, 0, 1), (OTHERS, 0, 0), (MODULE, 5, 2)], ids=["test", "others", "module"]
)
def test_where_all_is_wanted_what_is_left_out_has_failed(tmp_path: Path, code: str, left_out: int, wanted: int) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(code)
    bare = {name: value for name, value in os.environ.items() if name != ALL}
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", str(file)]
    for variables, code_of_pytest in (({}, left_out), ({ALL: "1"}, wanted)):
        environment = {**bare, **variables, "PYTHONPATH": path}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code_of_pytest, done.stdout + done.stderr
        assert (f"and {ALL} is set" in done.stdout) == bool(variables and wanted)


def test_a_test_asks_no_machine_but_this_one() -> None:
    for near in ("localhost", b"localhost", "127.0.0.1", "::1", None, socket.gethostname()):
        assert socket.getaddrinfo(near, 80)
    with pytest.raises(socket.gaierror, match=r"a test asks for huggingface\.co"):
        socket.create_connection(("huggingface.co", 443))
