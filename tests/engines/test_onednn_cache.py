"""Tests of the limit on oneDNN's primitive cache, which user settings override."""

import os
import subprocess
import sys

import pytest
import torch

from support.machine import ELSEWHERE
from understudy.engines.local.cpu.onednn_cache import (
    MAX_CACHED_PRIMITIVES,
    limit_onednn_cache,
    max_cached_primitives,
)

SCRIPT = """
import sys, torch
from understudy.engines.local.cpu.onednn_cache import limit_onednn_cache
if sys.argv[1] == "few":
    limit_onednn_cache()
pages = lambda: int(open("/proc/self/statm").read().split()[1])
x, weight = torch.ones(1600, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16)
for rows in range(1, 600):
    torch.nn.functional.linear(x[:rows], weight)
before = pages()
for rows in range(600, 1600):
    torch.nn.functional.linear(x[:rows], weight)
print(pages() - before)
"""


def test_environment_variable_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    limit_onednn_cache()
    assert (os.environ["LRU_CACHE_CAPACITY"], os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) == (
        "7",
        str(MAX_CACHED_PRIMITIVES),
    )
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "48")
    assert max_cached_primitives() == 48


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason=f"{ELSEWHERE}a processor without bf16 units, where no programs are written",
)
def test_limited_cache_uses_less_memory_for_new_shapes() -> None:
    assert memory_growth("few") < memory_growth("all") / 4


def memory_growth(how: str) -> int:
    """Return the memory pages that a thousand new shapes take."""
    environment = {name: value for name, value in os.environ.items() if "CAPACITY" not in name}
    return int(subprocess.check_output([sys.executable, "-c", SCRIPT, how], env=environment))
