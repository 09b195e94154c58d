"""Whether this machine supports the fused kernels."""

import pytest

from support.machine import ELSEWHERE
from understudy.engines.local.cpu.kernel_library import kernels_unavailable_reason

OTHER_SYSTEM = "the kernels are for Linux on x86-64 with glibc"
NO_COMPILER = "no C compiler was found ($CC, gcc, cc, clang); install gcc or clang"
NO_OPENMP = "this torch was built without OpenMP"
"""Accepted reasons for missing kernels. A failed compilation is not one of them."""
REASON = kernels_unavailable_reason()
needs_kernels = pytest.mark.skipif(
    REASON in (OTHER_SYSTEM, NO_COMPILER, NO_OPENMP),
    reason=(ELSEWHERE if REASON == OTHER_SYSTEM else "") + REASON,
)
