"""glibc settings for large tensors on Linux: keep freed memory in the heap, in huge pages.

By default glibc returns every large buffer to the kernel when it is freed, and the next one is faulted in page by page.
A training step allocates gigabytes of such buffers, so it takes several times as long without these settings. Without
glibc nothing is changed.
"""

import ctypes
import platform
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # mallopt's parameters, malloc.h
_MADV_HUGEPAGE = 14  # madvise's advice, mman.h
_HUGE = 2 << 20


def configure_malloc(reserve_bytes: int = 0) -> bool:
    """Return freed memory to the kernel once, then keep memory that is freed later. Return True if this is supported.

    The next `reserve_bytes` bytes are backed with huge pages.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.malloc_trim(0)  # return what loading the model has freed
    is_tuned = bool(libc.mallopt(_MMAP_MAX, 0)) and bool(libc.mallopt(_TRIM_THRESHOLD, -1))
    if is_tuned and reserve_bytes:
        _advise_huge(libc, reserve_bytes)
    return is_tuned


def _advise_huge(libc: ctypes.CDLL, size: int) -> None:
    """Grow the heap by `size` untouched bytes and request huge pages for them. Without huge pages it is only slower."""
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.malloc(size)
    if address:
        first = -(-address // _HUGE) * _HUGE
        libc.madvise(first, (address + size - first) // _HUGE * _HUGE, _MADV_HUGEPAGE)
        libc.free(address)
