"""Faster forward passes for the modules that most decoders share, on a CPU. Weights and names stay as they are.

Normalization, rotation and gating go through fused kernels. In bfloat16, linear layers keep for sampling a copy of
their weights in the layout that the matrix unit wants, made anew whenever the weights have changed. Modules of other
classes, and other devices, run as transformers wrote them.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.engines.local import kernels

_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")


def fuse(network: nn.Module) -> None:
    """Replace the forward of each known module in place."""
    forwards: dict[str, Callable[..., Any]] = {
        **{f"{family}RMSNorm": _norm for family in _FAMILIES},
        **{f"{family}MLP": _gated for family in _FAMILIES},
        **{f"{family}Attention": _attention for family in _FAMILIES},
        **{f"{family}DecoderLayer": _layer for family in _FAMILIES},
        "Linear": _linear,
    }
    for module in network.modules():
        forward = forwards.get(type(module).__name__)
        if forward and not (forward is _gated and "SiLU" not in type(module.act_fn).__name__):
            module.forward = types.MethodType(forward, module)


def forget_packed(network: nn.Module) -> None:
    """Make the copies of the weights anew: they were written to in a way that leaves no mark on them."""
    for module in network.modules():
        vars(module).pop("_packed_stamp", None)


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    return kernels.rms_norm(hidden_states, self.weight, self.variance_epsilon)


def _layer(self: Any, hidden_states: Tensor, *, position_embeddings: Any, layout: Any, **_: Any) -> Tensor:
    """A decoder layer [1, N, D]. Calls its parts' forward directly: on a short sequence the way there takes longer."""
    attended, _none = self.self_attn.forward(
        self.input_layernorm.forward(hidden_states), position_embeddings=position_embeddings, layout=layout
    )
    norm = self.post_attention_layernorm
    hidden_states, normed = kernels.add_rms_norm(hidden_states, attended, norm.weight, norm.variance_epsilon)
    return hidden_states + self.mlp.forward(normed)  # type: ignore[no-any-return]


def _gated(self: Any, x: Tensor) -> Tensor:
    gate, up = _projected(self, x, (self.gate_proj, self.up_proj))
    return self.down_proj(kernels.swiglu(gate, up))  # type: ignore[no-any-return]


def _attention(
    self: Any, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], *, layout: Any, **_: Any
) -> tuple[Tensor, None]:
    """As the layers call it: hidden states [1, N, D], cosines and sines [1, N, d]."""
    count = hidden_states.shape[1]
    projected = _projected(self, hidden_states[0], (self.q_proj, self.k_proj, self.v_proj))
    q, k, v = (x.view(count, -1, self.head_dim) for x in projected)
    if hasattr(self, "q_norm"):
        q, k = self.q_norm(q), self.k_norm(k)
    cos, sin = (x[0] for x in position_embeddings)
    out = layout.attend(self.layer_idx, kernels.rope(q, cos, sin), kernels.rope(k, cos, sin), v, self.scaling)
    return self.o_proj(out.reshape(1, count, -1)), None


def _linear(self: Any, x: Tensor) -> Tensor:
    if torch.is_grad_enabled() or not packs(x.dtype):
        return F.linear(x, self.weight, self.bias)
    return _multiplied(self, x, (self,))


def _projected(owner: Any, x: Tensor, linears: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """What several linear layers make of one input: by one product, where they are plain layers."""
    plain = all(type(linear) is nn.Linear for linear in linears)
    if plain and torch.is_grad_enabled():
        joined = F.linear(x, *_joined(linears))
    elif plain and packs(x.dtype):
        joined = _multiplied(owner, x, linears)
    else:
        return tuple(linear(x) for linear in linears)
    return torch.split(joined, [linear.out_features for linear in linears], -1)


@functools.cache
def packs(dtype: torch.dtype) -> bool:
    """Whether weights in a layout of their own are faster: in bfloat16, where the processor multiplies that."""
    known = dtype == torch.bfloat16 and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return known and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _multiplied(owner: Any, x: Tensor, linears: tuple[Any, ...]) -> Tensor:
    """x times the joined weights in oneDNN's blocked layout, kept with the owner until a weight is written to."""
    stamp = tuple((linear.weight._version, linear.weight.data_ptr()) for linear in linears)
    if getattr(owner, "_packed_stamp", None) != stamp:
        owner._packed_stamp, owner._packed = stamp, _packed(linears, x.shape[:-1].numel())
    weight, bias = owner._packed
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def _packed(linears: tuple[Any, ...], rows: int) -> tuple[Tensor, Tensor | None]:
    with torch.no_grad():
        weight, bias = _joined(linears)
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows), bias


def _joined(linears: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """The weights and biases of several layers as those of one."""
    if len(linears) == 1:
        return linears[0].weight, linears[0].bias
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return torch.cat([linear.weight for linear in linears]), bias
