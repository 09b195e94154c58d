"""Faster forward passes for the modules that most decoders share, on a CPU in bf16. Weights and names stay as they are.

Normalization, rotation and gating go through fused kernels; linear layers keep, for sampling, a copy of their weights in
the layout that the matrix unit wants, made anew whenever the weights have changed. Modules of other classes, and other
devices, run as transformers wrote them.
"""

import types
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.engines.local import kernels

_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")


def fuse(body: nn.Module) -> None:
    """Replace the forward of each known module in place."""
    forwards = {
        **{f"{family}RMSNorm": _norm for family in _FAMILIES},
        **{f"{family}MLP": _gated for family in _FAMILIES},
        **{f"{family}Attention": _attention for family in _FAMILIES},
        "Linear": _linear,
    }
    for module in body.modules():
        forward = forwards.get(type(module).__name__)
        if forward and not (forward is _gated and "SiLU" not in type(module.act_fn).__name__):
            module.forward = types.MethodType(forward, module)


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    return kernels.rms_norm(hidden_states, self.weight, self.variance_epsilon)


def _gated(self: Any, x: Tensor) -> Tensor:
    return self.down_proj(kernels.swiglu(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]


def _attention(
    self: Any, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], *, layout: Any, **_: Any
) -> tuple[Tensor, None]:
    """As the layers call it: hidden states [1, N, D], cosines and sines [1, N, d]."""
    count = hidden_states.shape[1]
    q, k, v = (project(hidden_states).view(count, -1, self.head_dim) for project in (self.q_proj, self.k_proj, self.v_proj))
    if hasattr(self, "q_norm"):
        q, k = self.q_norm(q), self.k_norm(k)
    cos, sin = (x[0] for x in position_embeddings)
    out = layout.attend(self.layer_idx, kernels.rope(q, cos, sin), kernels.rope(k, cos, sin), v, self.scaling)
    return self.o_proj(out.reshape(1, count, -1)), None


def _linear(self: Any, x: Tensor) -> Tensor:
    if torch.is_grad_enabled() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return F.linear(x, self.weight, self.bias)
    packed = packed_weight(self, x.shape[:-1].numel())
    return torch.ops.mkldnn._linear_pointwise(x, packed, self.bias, "none", [], "")  # type: ignore[no-any-return]


def packed_weight(owner: Any, rows: int) -> Tensor:
    """The owner's weight in oneDNN's blocked layout, kept until the weight is written to."""
    stamp = (owner.weight._version, owner.weight.data_ptr())
    if getattr(owner, "_packed_stamp", None) != stamp:
        owner._packed = torch.ops.mkldnn._reorder_linear_weight(owner.weight.detach(), rows)
        owner._packed_stamp = stamp
    return owner._packed  # type: ignore[no-any-return]
