"""What oneDNN keeps of the programs that it writes for each shape is bounded, unless the user says otherwise."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from machine import ELSEWHERE  # noqa: E402
from understudy.engines.local.programs import KEPT, keep_few  # noqa: E402

MULTIPLIED = """
import sys, torch
from understudy.engines.local.programs import keep_few
if sys.argv[1] == "few":
    keep_few()
pages = lambda: int(open("/proc/self/statm").read().split()[1])
x, weight = torch.ones(1600, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16)
for rows in range(1, 600):
    torch.nn.functional.linear(x[:rows], weight)
before = pages()
for rows in range(600, 1600):
    torch.nn.functional.linear(x[:rows], weight)
print(pages() - before)
"""


def test_the_user_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    keep_few()
    assert (os.environ["LRU_CACHE_CAPACITY"], os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) == ("7", str(KEPT))


@pytest.mark.skipif(
    sys.platform != "linux" or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason=f"{ELSEWHERE}a processor without bf16 units, where no programs are written",
)
def test_new_shapes_take_no_more_memory() -> None:
    assert grown("few") < grown("all") / 4


def grown(how: str) -> int:
    """Pages of memory that a thousand shapes take."""
    environment = {name: value for name, value in os.environ.items() if "CAPACITY" not in name}
    return int(subprocess.check_output([sys.executable, "-c", MULTIPLIED, how], env=environment))
