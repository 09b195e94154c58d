"""Measure the memory of a model's layers without its weights: torch's fake tensors have sizes, but no numbers.

This counts tensors. It does not count what a kernel uses inside, and the gaps of a heap.
"""

import contextlib
import logging
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from understudy.engines.local.architecture import first_layers, without_repeated_layers
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.gradient_checkpointing import decoder_layers, model_body
from understudy.engines.local.machine import Machine
from understudy.engines.local.model import without_messages
from understudy.train.planning.memory import LayerMemory, ModelShape


def measure_shape(
    shape: ModelShape, folder: Path, config: LocalEngineConfig, longest: int, machine: Machine
) -> ModelShape:
    """Return the shape with the memory of the layers of a padded model, for rows of `longest` tokens, on a CPU.

    Other models compute with modules and kernels of this package, whose memory is known.
    """
    if machine.device != "cpu" or not shape.is_padded(config):
        return shape
    dtype = torch.bfloat16 if machine.dtype_bytes == 2 else torch.float32
    return shape.replace(measured=measure_layers(folder, longest, dtype))


def measure_layers(folder: Path, tokens: int, dtype: torch.dtype) -> tuple[LayerMemory, ...]:
    """Return the memory of each layer of the model in a folder, on a CPU, for one row of `tokens` tokens.

    Only the first layer of each kind is run. Return an empty tuple if its code does not run without numbers.
    """
    log = logging.getLogger(FakeTensorMode.__module__)
    was_disabled, log.disabled = log.disabled, True  # it prints a traceback
    try:
        if (found := _measure(folder, tokens, dtype)) or dtype == torch.bfloat16:
            return found
        # The product of experts has no fake kernel for float32.
        halves = _measure(folder, tokens, torch.bfloat16)
        return tuple(LayerMemory(**{name: 2 * size for name, size in half.model_dump().items()}) for half in halves)
    finally:
        log.disabled = was_disabled


def _measure(folder: Path, tokens: int, dtype: torch.dtype) -> tuple[LayerMemory, ...]:
    try:
        with without_messages(), FakeTensorMode(), _LiveBytes() as live:
            network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype).eval()
            config, layers = network.config.get_text_config(), decoder_layers(network)
            row = torch.zeros(1, tokens, dtype=torch.int64)
            calls: dict[int, _LayerCall] = {}
            with torch.no_grad(), without_repeated_layers(network, config) as indices:
                for caches in (True, False):
                    with _record_calls(layers, indices, calls, live):
                        model_body(network)(input_ids=row, use_cache=caches)
            found = {i: calls[i].measure(layers[i], live) for i in indices}
            return tuple(found[first] for first in first_layers(network, config))
    # Code of transformers and of models that needs numbers, or an operation that has no fake one.
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return ()


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that were made in the block and are still referenced."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, Tensor):
                self._add(each.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class _LayerCall:
    """The arguments of a layer in a forward pass without a cache, and the memory of a pass with one."""

    def __init__(self) -> None:
        self._before = self.inference = self.cached = 0
        self._args: tuple[Any, ...] = ()
        self._named: dict[str, Any] = {}

    def start(self, live: _LiveBytes, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._args, self._named, self._before, live.peak = args, named, live.now, live.now

    def end(self, live: _LiveBytes, out: Tensor) -> None:
        self.cached = max(self.cached, live.now - self._before - out.untyped_storage().nbytes())
        self.inference = live.peak - self._before

    def measure(self, layer: nn.Module, live: _LiveBytes) -> LayerMemory:
        """Run the layer forward and backward."""
        args, named = list(self._args), dict(self._named)
        hidden = (args.pop(0) if args else named.pop("hidden_states")).detach().requires_grad_()
        for parameter in layer.parameters():  # a gradient is added to that of the optimizer as soon as it is complete
            parameter.register_post_accumulate_grad_hook(lambda each: setattr(each, "grad", None))  # type: ignore[no-untyped-call]
        before = live.now
        out = _first(layer(hidden, *args, **named))
        stored = live.now - before
        live.peak = live.now
        out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]
        backward = live.peak - before - stored
        return LayerMemory(stored=stored, backward=backward, inference=self.inference, cached=self.cached)


@contextlib.contextmanager
def _record_calls(
    layers: Sequence[nn.Module], indices: Sequence[int], calls: dict[int, _LayerCall], live: _LiveBytes
) -> Iterator[None]:
    """Record the calls of some layers in the block."""
    with contextlib.ExitStack() as stack:
        for index in indices:
            call = calls.setdefault(index, _LayerCall())
            before = layers[index].register_forward_pre_hook(
                lambda _, args, named, call=call: call.start(live, args, named), with_kwargs=True
            )
            after = layers[index].register_forward_hook(lambda _, args, out, call=call: call.end(live, _first(out)))
            for hook in (before, after):
                stack.callback(hook.remove)
        yield


def _first(out: Any) -> Tensor:
    found: Tensor = out if isinstance(out, Tensor) else out[0]
    return found
