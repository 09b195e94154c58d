"""Faster forward passes on a CPU for the modules of most decoders. Weights and their names do not change.

Normalization, rotary embedding and gating use fused kernels. Without gradient, linear layers multiply by a packed copy
of their weights, which is renewed when the weights change. Modules of other classes and on other devices run
transformers' own code.

In training, normalized and gated activations are not stored but computed again by the backward pass, which takes little
time (selective recomputation, Korthikanti et al. 2022, arXiv:2205.05198).
"""

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.engines.local.attention_interface import attention_spec
from understudy.engines.local.cpu import kernel_library, kernels

_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")


def fuse_modules(network: nn.Module, recompute: bool = True) -> None:
    """Replace the forward of each known module in place.

    `recompute` is for training without gradient checkpointing, which computes all of a layer again.
    """
    forwards: dict[str, Callable[..., Any]] = {
        **{f"{family}RMSNorm": _norm for family in _FAMILIES},
        **{f"{family}MLP": _gated for family in _FAMILIES},
        **{f"{family}Attention": _attention for family in _FAMILIES},
        **{f"{family}DecoderLayer": _layer for family in _FAMILIES},
        "Linear": _linear,
    }
    modules: Iterator[Any] = network.modules()
    for module in modules:
        forward = forwards.get(type(module).__name__)
        if forward and not (forward is _gated and "SiLU" not in type(module.act_fn).__name__):
            module.forward = types.MethodType(forward, module)
            module._recompute = recompute
            if forward is _attention:
                module._spec = attention_spec(module, module.scaling, {"sliding_window": _window(module)})


def _window(attention: Any) -> int | None:
    """Return the window that transformers' code of an attention module passes on."""
    owner = attention.config if type(attention).__name__ == "MistralAttention" else attention
    return getattr(owner, "sliding_window", None)


def is_fused(module: object) -> bool:
    """Return True if `fuse_modules` has replaced the forward of this module."""
    return hasattr(module, "_recompute")


def invalidate_packed_weights(network: nn.Module) -> None:
    """Renew the packed copies on next use. Needed after writes that do not change a tensor's version."""
    for module in network.modules():
        vars(module).pop("_packed_stamp", None)


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    return kernels.rms_norm(hidden_states, self.weight, self.variance_epsilon)


def _layer(self: Any, hidden_states: Tensor, *, position_embeddings: Any, layout: Any, **_: Any) -> Tensor:
    """Forward of a decoder layer on [1, N, D]. It calls its parts' forward directly, to skip Module.__call__'s
    overhead."""
    normed = self.input_layernorm.forward(hidden_states)
    with _not_stored(self, normed, _norm, self.input_layernorm, hidden_states):
        attended, _none = self.self_attn.forward(normed, position_embeddings=position_embeddings, layout=layout)
    norm = self.post_attention_layernorm
    hidden_states, normed = kernels.add_rms_norm(hidden_states, attended, norm.weight, norm.variance_epsilon)
    with _not_stored(self, normed, _norm, norm, hidden_states):
        return hidden_states + self.mlp.forward(normed)  # type: ignore[no-any-return]


def _gated(self: Any, x: Tensor) -> Tensor:
    gate, up = _projected(self, x, (self.gate_proj, self.up_proj))
    product = kernels.swiglu(gate, up)
    with _not_stored(self, product, kernels.swiglu, gate, up):
        return self.down_proj(product)  # type: ignore[no-any-return]


def _not_stored(owner: Any, x: Tensor, compute: Callable[..., Tensor], *inputs: Any) -> AbstractContextManager[object]:
    """Return a context in which no operation stores x for its backward pass: there, `compute(*inputs)` gives it again.

    The inputs should be stored in any case. They are those of the computation that has returned x.
    """
    if not (owner._recompute and torch.is_grad_enabled()):
        return nullcontext()
    address, size = x.data_ptr(), x.numel()
    inputs = tuple(each.detach() if isinstance(each, Tensor) else each for each in inputs)

    def pack(saved: Tensor) -> Tensor | torch.Size:
        return saved.shape if (saved.data_ptr(), saved.numel()) == (address, size) else saved

    def unpack(saved: Tensor | torch.Size) -> Tensor:
        return saved if isinstance(saved, Tensor) else compute(*inputs).view(saved)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _attention(
    self: Any, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], *, layout: Any, **_: Any
) -> tuple[Tensor, None]:
    """Forward of an attention module on hidden states [1, N, D], with cosines and sines [1, N, d]."""
    count = hidden_states.shape[1]
    projected = _projected(self, hidden_states[0], (self.q_proj, self.k_proj, self.v_proj))
    q, k, v = (x.view(count, -1, self.head_dim) for x in projected)
    if hasattr(self, "q_norm"):
        q, k = self.q_norm(q), self.k_norm(k)
    cos, sin = (x[0] for x in position_embeddings)
    if torch.is_grad_enabled():
        v = v.contiguous()  # a view would keep the joined q and k in memory
    out = layout.attend(self.layer_idx, kernels.rope(q, cos, sin), kernels.rope(k, cos, sin), v, self._spec)
    return self.o_proj(out.reshape(1, count, -1)), None


def _linear(self: Any, x: Tensor) -> Tensor:
    return _multiplied(self, x, (self,)) if _uses_packed(x, (self,)) else F.linear(x, self.weight, self.bias)


def _projected(owner: Any, x: Tensor, linears: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Return the outputs of several linear layers for one input, with one product if they are plain layers."""
    bases = tuple(base_linear(linear) for linear in linears)
    if torch.is_grad_enabled() and bases == linears:
        joined = F.linear(x, *_concatenated(linears))
    elif all(bases) and _uses_packed(x, bases):
        joined = _multiplied(owner, x, bases)
    else:
        return tuple(linear(x) for linear in linears)
    parts = torch.split(joined, [base.out_features for base in bases if base], -1)
    return tuple(
        part if linear is base else _with_adapter(linear, x, part)
        for linear, base, part in zip(linears, bases, parts, strict=True)
    )


def base_linear(linear: Any) -> nn.Linear | None:
    """Return a plain linear layer itself, and the base of one with a plain LoRA adapter. Return None for others."""
    if type(linear) is nn.Linear:
        return linear
    if type(linear).__name__ != "Linear" or len(getattr(linear, "lora_A", ())) != 1:
        return None
    if linear.lora_variant or linear.merged or any(linear.lora_bias.values()):
        return None
    return linear.base_layer if type(linear.base_layer) is nn.Linear else None


def _with_adapter(linear: Any, x: Tensor, out: Tensor) -> Tensor:
    """Return the output of a layer with a LoRA adapter, given that of its base."""
    if linear.disable_adapters:
        return out
    (name,) = linear.lora_A
    return out + linear.lora_B[name](linear.lora_A[name](x)) * linear.scaling[name]  # type: ignore[no-any-return]


def _uses_packed(x: Tensor, linears: tuple[Any, ...]) -> bool:
    """Return True if x is multiplied by packed weights. Pairs of inputs are packed."""
    if torch.is_grad_enabled() or not should_pack_weights(x.dtype) or x.shape[-1] % 2:
        return False
    return all(linear.weight.dtype == x.dtype for linear in linears)


@functools.cache
def should_pack_weights(dtype: torch.dtype) -> bool:
    """Return True if linear layers keep packed weights."""
    return kernel_library.kernels_available(dtype)


def _multiplied(owner: Any, x: Tensor, linears: tuple[Any, ...]) -> Tensor:
    """Return x times the concatenated weights."""
    weight, bias = packed_weights(owner, linears)
    return kernels.packed_linear(x, weight, sum(linear.out_features for linear in linears), bias)


def packed_weights(owner: Any, linears: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """Return the concatenated weights, packed, and biases, cached on `owner` until a weight changes.

    The packed weights stay at the same address.
    """
    stamp = tuple((linear.weight._version, linear.weight.data_ptr()) for linear in linears)
    if getattr(owner, "_packed_stamp", None) != stamp:
        with torch.no_grad():
            weight, bias = _concatenated(linears)
        packed = kernels.pack_weights_(owner._packed[0] if hasattr(owner, "_packed") else None, weight)
        owner._packed_stamp, owner._packed = stamp, (packed, bias)
    return owner._packed  # type: ignore[no-any-return]


def _concatenated(linears: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """Return the concatenated weights and biases of several layers."""
    if len(linears) == 1:
        return linears[0].weight, linears[0].bias
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return torch.cat([linear.weight for linear in linears]), bias
