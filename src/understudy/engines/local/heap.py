"""Large tensors on Linux: keep freed memory in the heap, in huge pages.

glibc gives every large buffer back to the kernel when it is freed, and the next one faults in page by page. A training
step allocates gigabytes of them: without this it takes several times as long. Does nothing where glibc is not.
"""

import ctypes
import platform
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # mallopt's parameters, malloc.h
_MADV_HUGEPAGE = 14  # madvise's advice, mman.h
_HUGE = 2 << 20


def keep_heap(reserve: int = 0) -> bool:
    """Give back what was freed so far, and keep what is freed from now on. True where the platform can.

    The next `reserve` bytes are backed with huge pages.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.malloc_trim(0)  # what was freed until now, in loading, goes back
    kept = bool(libc.mallopt(_MMAP_MAX, 0)) and bool(libc.mallopt(_TRIM_THRESHOLD, -1))
    if kept and reserve:
        _advise_huge(libc, reserve)
    return kept


def _advise_huge(libc: ctypes.CDLL, size: int) -> None:
    """Grow the heap by `size` untouched bytes, and ask for huge pages there; a refusal changes only the speed."""
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.malloc(size)
    if address:
        first = -(-address // _HUGE) * _HUGE
        libc.madvise(first, (address + size - first) // _HUGE * _HUGE, _MADV_HUGEPAGE)
        libc.free(address)
