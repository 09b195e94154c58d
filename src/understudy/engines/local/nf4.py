"""Linear layers with 4-bit weights: NF4 with double quantization (Dettmers et al. 2023, arXiv:2305.14314).

bitsandbytes quantizes the weights and dequantizes them for each product, forward and backward. So sampler and trainer
multiply by the same numbers, in the model's dtype. bitsandbytes' own layer uses other code for single rows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.core.errors import ConfigError, install_hint

BLOCK_SIZE = 64  # weights per scale
DEVICES = ("cuda", "cpu")


class Nf4Linear(nn.Linear):
    """A frozen linear layer with 4-bit weights. `weight` dequantizes them on each access."""

    def __init__(self, linear: nn.Linear, functional: Any) -> None:
        """`functional` is the module bitsandbytes.functional."""
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self._functional = functional
        packed, self._state = functional.quantize_4bit(
            linear.weight.detach().contiguous(), blocksize=BLOCK_SIZE, compress_statistics=True, quant_type="nf4"
        )
        del self._parameters["weight"]
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)
        self.register_buffer("packed", packed, persistent=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Dequantized weights [out, in] in the model's dtype, without gradient."""
        return self._functional.dequantize_4bit(self.packed, self._state)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [..., out] for x [..., in]."""
        if torch.is_grad_enabled() and x.requires_grad:
            return _Product.apply(x, self)  # type: ignore[no-any-return, no-untyped-call]
        return F.linear(x, self.weight, self.bias)


class _Product(torch.autograd.Function):
    """x times the weights. The backward pass dequantizes them again instead of storing them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Nf4Linear) -> Tensor:
        ctx.linear = linear
        return F.linear(x, linear.weight, linear.bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] @ ctx.linear.weight, None


def quantize_nf4(network: nn.Module, lm_head: nn.Module | None, device: torch.device) -> None:
    """Replace every linear layer but the head by 4-bit ones, one at a time, on the device.

    Raise ConfigError if bitsandbytes is missing or does not support the device.
    """
    functional = _bitsandbytes(device)
    for name, module in list(network.named_modules()):
        if type(module) is nn.Linear and module is not lm_head:
            owner, _, own = name.rpartition(".")
            setattr(network.get_submodule(owner), own, Nf4Linear(module.to(device), functional))


def _bitsandbytes(device: torch.device) -> Any:
    if device.type not in DEVICES:
        raise ConfigError(f"engine.finetune = 'qlora' runs on {' or '.join(DEVICES)}, not on {device.type}; use lora")
    try:
        from bitsandbytes import functional
    except ModuleNotFoundError as e:
        text = f"engine.finetune = 'qlora' needs {e.name}; {install_hint('qlora')}, or use lora"
        raise ConfigError(text) from e
    return functional
