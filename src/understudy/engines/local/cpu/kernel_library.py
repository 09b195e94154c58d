"""Compiles, loads and calls `kernels.c`, once per dtype, with the machine's C compiler.

The library shares torch's OpenMP threads. It is cached in the user's cache folder by source, flags and processor.
"""

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from understudy.engines.models import cache_folder

_SOURCE = Path(__file__).with_name("kernels.c")
_FLAGS = ("-std=c11", "-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-fopenmp", "-fPIC")
_SIGNATURES = {  # p: tensor or None, i: integer, f: float
    "joint_softmax": "pppppiiiiiiff",
    "row_dot": "pppii",
    "gather_heads": "pppiiiiii",
    "scatter_heads": "ppppiiiiii",
    "decode_attention": "pppppppppiiiiiiiiiiff",
    "decode_layers": "pp",
    "tree_attention": "pppppppppiiiiiiiiiff",
    "tree_attention_backward": "ppppppppppppiiiiiiiiiff",
    "linear": "pppppiii",
    "pack": "ppii",
    "rms_norm": "ppppppiif",
    "rms_norm_backward": "pppppppiii",
    "swiglu": "pppiiii",
    "swiglu_backward": "pppppiiii",
    "rope": "ppppiiiiif",
    "add_widened": "ppi",
    "copy_rounded": "pppi",
    "token_logprobs": "ppppiif",
    "token_logprobs_backward": "ppppiif",
    "sample": "ppppiiff",
    "sample_likely": "ppppppiiiff",
}
_DEFINES: dict[torch.dtype, tuple[str, ...]] = {torch.bfloat16: (), torch.float32: ("-DFP32",)}
_CTYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}


class _Unavailable(Exception):
    """The kernels cannot be used on this machine. The message says why."""


def kernels_available(dtype: torch.dtype = torch.bfloat16) -> bool:
    """Return True if the kernels for a dtype are loaded. The first call compiles them."""
    return dtype in _DEFINES and isinstance(_library(dtype), ctypes.CDLL)


def kernels_unavailable_reason(dtype: torch.dtype = torch.bfloat16) -> str:
    """Return why the kernels are not available, in one line, or an empty string."""
    library = _library(dtype)
    return library if isinstance(library, str) else ""


@cache
def _library(dtype: torch.dtype) -> ctypes.CDLL | str:
    """Return the loaded kernels, or why there are none, with a remedy if there is one."""
    try:
        if (sys.platform, platform.machine(), platform.libc_ver()[0]) != ("linux", "x86_64", "glibc"):
            raise _Unavailable("the kernels are for Linux on x86-64 with glibc")
        ctypes.CDLL(_openmp_of_torch(), mode=ctypes.RTLD_GLOBAL)
        may_use_amx = torch.cpu._init_amx()  # Linux lets a process use AMX only after it has asked
        library = ctypes.CDLL(str(_compiled((*_FLAGS, *_DEFINES[dtype], *(() if may_use_amx else ("-DNO_AMX",))))))
    except (_Unavailable, OSError) as error:
        return str(error)
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [_CTYPES[kind] for kind in signature], None
    return library


def _openmp_of_torch() -> str:
    """Return the OpenMP runtime that torch loaded. A second thread pool would compete with torch's for the cores."""
    mapped = {line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    runtimes = [path for path in mapped if re.match(r"lib(gomp|iomp5|omp)\b", Path(path).name)]
    if not runtimes:
        raise _Unavailable("this torch was built without OpenMP")
    beside_torch = str(Path(torch.__file__).parent)
    return min(runtimes, key=lambda path: (not path.startswith(beside_torch), path))


def _compiled(flags: Sequence[str]) -> Path:
    """Return the path of the shared library. Compile it unless it is cached."""
    recipe = (_SOURCE.read_text(encoding="utf-8"), *flags, _processor())
    library = cache_folder() / "kernels" / f"{hashlib.sha256(repr(recipe).encode()).hexdigest()[:20]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent, ignore_cleanup_errors=True) as staging:
            unlinked, linked = f"{staging}/kernels.o", f"{staging}/kernels.so"
            compiler = _compiler()
            _run([*compiler, *flags, "-c", str(_SOURCE), "-o", unlinked])
            # No -fopenmp, since torch has loaded its runtime. No -ffast-math, which would flush denormals process-wide.
            _run([*compiler, "-shared", unlinked, "-o", linked, "-lm"])
            ctypes.CDLL(linked)  # cache only a library that loads
            os.replace(linked, library)
    return library


def _processor() -> str:
    """Return model and instruction set of the first processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return "".join(next((line for line in lines if line.startswith(field)), "") for field in ("model name", "flags"))


def _compiler() -> list[str]:
    for command in (os.environ.get("CC", ""), "gcc", "cc", "clang"):  # gcc first: torch's wheels ship gcc's OpenMP
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    raise _Unavailable("no C compiler was found ($CC, gcc, cc, clang); install gcc or clang")


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if "error" in line] or [f"status {result.returncode}"]
        raise _Unavailable(f"{command[0]} could not compile the kernels: {errors[0]}")


def kernels_accept(*tensors: Tensor) -> bool:
    """Return True if the kernels support these tensors."""
    dtype = tensors[0].dtype
    return all(x.dtype == dtype and x.is_cpu and x.is_contiguous() for x in tensors) and kernels_available(dtype)


def call_kernel(name: str, first: Tensor, *others: object) -> None:
    """Call the kernel for the dtype of the first argument."""
    torch.get_num_threads()  # a thread's first call sets its number of OpenMP threads to torch's
    arguments = (first, *others)
    getattr(_library(first.dtype), name)(*(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments))
