"""A pretended CUDA device, for tests without a GPU.

A tensor on it says `cuda:0`, and is computed on the CPU. Like CUDA, the device refuses an operation whose tensors are
on several devices, NumPy, and the package's CPU kernels. It records where the host waits for the device: the places
that `torch.cuda.set_sync_debug_mode` reports on a GPU.

What it cannot show: rounding, speed and the memory of a GPU, CUDA's random numbers, and pointers that foreign code
reads. Only the thread that opened the device can create tensors on it.

    def test_something(pretended_cuda: PretendedCuda) -> None:
        engine = LocalEngine(folder, LocalEngineConfig(device="cuda"))
        with pretended_cuda.record() as synchronizations: ...
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from understudy.engines.local import tree_attention
from understudy.engines.local.cpu import kernels
from understudy.engines.local.sampling import passes

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
TOTAL_MEMORY = 80 << 30
USED_MEMORY = 1 << 30
_STAND_IN = torch.device("meta")
"""The device of the tensors for torch's C++ code, whose backward pass then runs on the calling thread."""


class CudaTensor(torch.Tensor):
    """A tensor on the pretended device. `raw` holds its numbers."""

    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: Tensor) -> "CudaTensor":
        found = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=_STAND_IN,
            requires_grad=False,
        )
        found.raw = raw
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _device().compute(func, args, kwargs or {})

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        moved = device is not None and device.type == "cpu"
        more = {} if memory_format is None else {"memory_format": memory_format}
        target = {"device": CPU} if moved else {}
        return super().to(dtype=dtype or self.dtype, non_blocking=non_blocking, copy=copy, **target, **more)

    def cuda(self, *args: Any, **kwargs: Any) -> Tensor:
        return self

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor first.")

    __array__ = numpy

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()

    def __repr__(self, **_: Any) -> str:
        return f"CudaTensor({self.raw!r})"


class PretendedCuda:
    """The device. It exists inside a `with` block."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._operations, self._functions = _Operations(self), _Functions(self)
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> "PretendedCuda":
        _OPEN.append(self)
        self._exits.callback(_OPEN.remove, self)
        self._exits.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=) makes a tensor on the CPU first
        self._exits.enter_context(self._functions)
        self._exits.enter_context(self._operations)
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.close()

    @contextlib.contextmanager
    def record(self) -> Iterator[list[str]]:
        """Give the list of the synchronizations in the block: what waited, and the line of the package that did."""
        before, self._found = self._found, []
        try:
            yield self._found
        finally:
            self._found = before

    def synchronize(self, what: str) -> None:
        """Record that the host waits for the device."""
        self._found.append(f"{what} at {_caller()}")

    def compute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation on the CPU and return its results on the device where CUDA's would be."""
        if _is_composite(func):  # inference mode gives these to Python before it takes them apart
            with self._operations:
                return func.decompose(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_cuda = [x for x in tensors if isinstance(x, CudaTensor)]
        target = kwargs.get("device") or (CUDA if on_cuda else CPU)
        target = CPU if target.type == "cpu" else CUDA  # torch's C++ code asks for the stand-in
        if func is torch.ops.aten.copy_.default:
            target = args[0].device
        if len(on_cuda) < len(tensors):
            _validate_devices(func, args, on_cuda, [x for x in tensors if not isinstance(x, CudaTensor)])
        if on_cuda or target.type == "cuda":
            self._record_wait(func, args, kwargs, target)
        raw_args, raw_kwargs = tree_map(_raw, (args, dict(kwargs)))
        with _disable_current_modes():
            result = func(*raw_args, **raw_kwargs)
        given = {id(x.raw): x for x in on_cuda}  # an operation in place returns the tensor that it was given

        def wrap(found: Any) -> Any:
            if not isinstance(found, Tensor):
                return found
            if (same := given.get(id(found))) is not None:
                return same
            if target.type == "cpu":
                return found
            with torch.inference_mode(found.is_inference()):  # a view in inference mode of a tensor from outside
                return CudaTensor(found)

        return tree_map(wrap, result)

    def _record_wait(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], target: torch.device) -> None:
        source = next((x for x in (args[1:] if func is torch.ops.aten.copy_.default else args)), None)
        if func in _COPIES and isinstance(source, Tensor) and source.device != target:
            is_async = kwargs.get("non_blocking", False) or (len(args) > 2 and args[2] is True)
            if not (is_async and _is_pinned(source)):
                self.synchronize("copy to the host" if source.is_cuda else "copy of memory that is not pinned")
        elif func in _INDEXED:
            indices = [x for x in args[1] if x is not None]
            if any(x.dtype in (torch.bool, torch.uint8) for x in indices):
                self.synchronize("index with a mask")
            elif not all(isinstance(x, CudaTensor) for x in indices):
                self.synchronize("copy of an index")
        elif torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags:
            self.synchronize(str(func))


class _Operations(TorchDispatchMode):
    """Gives every operation to the device."""

    def __init__(self, device: PretendedCuda) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._device.compute(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Completes the device name `cuda`, and does what torch's C++ code would do on a CUDA tensor before dispatch."""

    def __init__(self, device: PretendedCuda) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tuple(map(_with_index, args)), {key: _with_index(x) for key, x in (kwargs or {}).items()}
        if str(kwargs.get("device")) == "meta":  # of the caller, not a stand-in
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func is torch.Tensor.pin_memory or kwargs.pop("pin_memory", False):
            found = args[0].clone() if func is torch.Tensor.pin_memory else func(*args, **kwargs)
            found.pretended_pinned = True
            return found
        if func is torch.Tensor.is_pinned:
            return _is_pinned(args[0])
        if func is torch.Tensor.cuda:
            return args[0].to(CUDA, non_blocking=kwargs.get("non_blocking", False))
        if func in (torch.tensor, torch.as_tensor) and "device" in kwargs:
            device = kwargs.pop("device")
            found = args[0] if isinstance(args[0], Tensor) else func(*args, **kwargs)
            return found if device is None else found.to(device, kwargs.get("dtype") or found.dtype)
        if func is torch.Tensor.__setitem__ and isinstance(args[0], CudaTensor) and not isinstance(args[2], Tensor):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(x, list) or (isinstance(x, Tensor) and x.dtype != torch.bool) for x in index):
                self._device.synchronize("copy of the number to set at an index")
        return func(*args, **kwargs)


_OPEN: list[PretendedCuda] = []
_ATEN = torch.ops.aten
_COPIES = {_ATEN._to_copy.default, _ATEN.copy_.default}
_INDEXED = {_ATEN.index.Tensor, _ATEN.index_put_.default, _ATEN.index_put.default, _ATEN._index_put_impl_.default}
_TAKE_CPU_SCALARS = {_ATEN.where.self, _ATEN.masked_fill.Tensor, _ATEN.masked_fill_.Tensor, _ATEN.fill_.Tensor}
_ANY_DEVICE = {*_COPIES, _ATEN.set_.source_Tensor}


def _device() -> PretendedCuda:
    if not _OPEN:
        raise RuntimeError("the pretended device is closed, but a tensor on it is still in use")
    return _OPEN[-1]


def _validate_devices(func: Any, args: Sequence[Any], on_cuda: Sequence[Tensor], on_cpu: Sequence[Tensor]) -> None:
    """Raise RuntimeError as torch does if an operation mixes devices. CUDA takes CPU scalars in pointwise operations,
    and copies indices from the CPU."""
    if not on_cuda or func in _ANY_DEVICE:
        return
    pointwise = torch.Tag.pointwise in func.tags or func in _TAKE_CPU_SCALARS
    allowed = [x for x in on_cpu if pointwise and not x.dim()]
    if func in _INDEXED and isinstance(args[0], CudaTensor):
        allowed = [x for x in args[1] if x is not None] + [x for x in args[2:3] if not x.dim()]
    refused = [tuple(x.shape) for x in on_cpu if not any(x is y for y in allowed)]
    if refused:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"({func}, at {_caller()}; shapes on the CPU {refused})"
        )


@functools.cache
def _is_composite(func: Any) -> bool:
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


def _raw(x: Any) -> Any:
    if isinstance(x, CudaTensor):
        return x.raw
    return CPU if isinstance(x, torch.device) else x


def _with_index(x: Any) -> Any:
    names_cuda = isinstance(x, str | torch.device) and str(x) == "cuda"
    return CUDA if names_cuda else x


def _is_pinned(x: Tensor) -> bool:
    return getattr(x, "pretended_pinned", False)


def _caller() -> str:
    """Return the innermost line of the package, or of the test."""
    frame = sys._getframe(1)
    first = ""
    while frame := frame.f_back:  # type: ignore[assignment]
        path = frame.f_code.co_filename
        place = f"{path}:{frame.f_lineno}"
        if "/src/understudy/" in path:
            return place.partition("/src/")[2]
        if not first and "/torch/" not in path and path != __file__:
            first = place
    return first


def _attend(
    q: Tensor, k: Tensor, v: Tensor, score_mod: None, block_mask: Any, scale: float | None, *, enable_gqa: bool
) -> Tensor:
    """Compute what `flex_attention` does without `score_mod`, which torch.compile builds for a real GPU only."""
    assert score_mod is None
    place = torch.arange(q.shape[2], device=q.device)
    seen = block_mask.mask_mod(place, place, place[:, None], place[None])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)


def _refuse_cuda(call: Callable[..., None]) -> Callable[..., None]:
    def checked(name: str, *arguments: Any) -> None:
        if any(isinstance(x, CudaTensor) for x in arguments):
            raise RuntimeError(f"the CPU kernel {name} got a tensor on cuda:0")
        call(name, *arguments)

    return checked


@pytest.fixture
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedCuda]:
    """Open the device for a test."""
    device = PretendedCuda()
    answers: dict[str, Any] = {
        "_lazy_init": None,
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "mem_get_info": (TOTAL_MEMORY - USED_MEMORY, TOTAL_MEMORY),
        "max_memory_allocated": USED_MEMORY,
        "memory_allocated": USED_MEMORY,
        "reset_peak_memory_stats": None,
        "empty_cache": None,
        "manual_seed_all": None,
        "get_device_capability": (9, 0),
        "is_bf16_supported": True,
        "get_device_name": "a pretended GPU",
        "_is_in_bad_fork": False,
        "get_rng_state": torch.empty(0, dtype=torch.uint8),
        "set_rng_state": None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: device.synchronize("torch.cuda.synchronize"))
    monkeypatch.setattr(kernels, "call_kernel", _refuse_cuda(kernels.call_kernel))
    monkeypatch.setattr(tree_attention, "_compiled", lambda: _attend)
    monkeypatch.setattr(passes, "supports_graphs", lambda _: False)
    # A module that moves keeps its parameters, and so its tied weights, as on CUDA.
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    with device:
        yield device
