"""Decoding passes on a CPU by one call of `cpu/kernels.c` for all layers of a decoder.

The structures mirror those of `kernels.c`, which describes them. Other models use `layouts.DecodeLayout`.
"""

import ctypes
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from understudy.engines.local.cpu import kernels
from understudy.engines.local.cpu.fuse import base_linear, is_fused, packed_weights, should_pack_weights
from understudy.engines.local.cpu.kernel_library import call_kernel
from understudy.engines.local.gradient_checkpointing import decoder_layers
from understudy.engines.local.model import LocalModel
from understudy.engines.local.sampling.kv_cache import KVCache
from understudy.engines.local.sampling.layouts import SlotGroup, group_by_prefix
from understudy.engines.local.sampling.sequence_cache import CacheSlot

_DIMS = range(32, 257, 32)
"""Sizes of attention heads that the kernel supports."""


def _fields(pointers: str = "", integers: str = "", doubles: str = "") -> list[tuple[str, Any]]:
    kinds = (pointers, ctypes.c_void_p), (integers, ctypes.c_int64), (doubles, ctypes.c_double)
    return [(name, kind) for names, kind in kinds for name in names.split()]


class _Linear(ctypes.Structure):
    _fields_ = _fields("weight bias down up", "inputs outputs rank", "scale")


class _Layer(ctypes.Structure):
    _fields_ = [
        *_fields("norm query_norm key_norm mlp_norm"),
        *((name, _Linear) for name in ("qkv", "out", "gate_up", "down")),
        *_fields("keys values", "window", "scale eps"),
    ]


class _Group(ctypes.Structure):
    _fields_ = [*_fields("", "start stop length"), *_fields("prefix")]


class _Pass(ctypes.Structure):
    _fields_ = _fields(
        "layers groups cosine sine slots columns",
        "num_layers num_groups rows width intermediate heads group dim num_slots capacity",
    )


def supports_fused_decoding(model: LocalModel) -> bool:
    """Return True if `kernels.c` can compute all layers of the model: they are those of Llama and the like."""
    if model.device.type != "cpu" or model.padded or model.fsdp_shards:
        return False
    if not should_pack_weights(model.dtype) or model.head_dim not in _DIMS:
        return False
    layers = decoder_layers(model.network)
    names = "self_attn", "mlp", "input_layernorm", "post_attention_layernorm"
    parts = [getattr(layer, name, None) for layer in layers for name in names]
    if not all(map(is_fused, [*layers, *parts, getattr(model.backbone, "norm", None)])):
        return False
    return all(map(_is_joinable, chain.from_iterable(map(_linear_layers, layers))))


def _linear_layers(layer: Any) -> list[tuple[Any, ...]]:
    """Return the linear layers of a decoder layer in their order, those with the same input together."""
    attention, mlp = layer.self_attn, layer.mlp
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    return [projections, (attention.o_proj,), (mlp.gate_proj, mlp.up_proj), (mlp.down_proj,)]


def _is_joinable(linears: tuple[Any, ...]) -> bool:
    """Return True if these layers, with or without adapters, can be one product."""
    bases = [base_linear(linear) for linear in linears]
    if not all(base is not None and base.in_features % 2 == 0 for base in bases):
        return False
    scales = {scale for linear in linears for scale in getattr(linear, "scaling", {}).values()}
    return len({base.bias is None for base in bases if base}) == 1 and len(scales) <= 1


class FusedDecoding:
    """Decoding passes of a model with its current weights."""

    def __init__(self, model: LocalModel, cache: KVCache) -> None:
        self._model, self._cache, self._version = model, cache, -1
        self._tensors: list[Tensor] = []
        """Tensors whose addresses are in the structures."""
        self._packed: list[tuple[Any, tuple[Any, ...]]] = []
        """The layers with packed weights, each with the linear layers in them."""
        layers: list[Any] = decoder_layers(model.network)
        self._attention = layers[0].self_attn
        self._layers = (_Layer * len(layers))(*map(self._describe, layers))

    def hidden_states(self, slots: Sequence[CacheSlot], new: Sequence[Sequence[int]]) -> Tensor:
        """Return the hidden states [N, D] of the new tokens of each slot, in order, and store their keys and values.

        Slots with the same prefix are adjacent.
        """
        for owner, bases in self._packed:  # a reference's pass may have packed its own weights at these addresses
            packed_weights(owner, bases)
        if self._version != self._cache.version:
            for i, layer in enumerate(self._layers):
                layer.keys, layer.values = self._cache.keys[i].data_ptr(), self._cache.values[i].data_ptr()
            self._version = self._cache.version
        rows = [(slot, i, token) for slot, tokens in zip(slots, new, strict=True) for i, token in enumerate(tokens)]
        table = [(slot.index, slot.own_length + i, len(slot.tokens) + i, token) for slot, i, token in rows]
        indices, columns, positions, tokens = torch.tensor(table).T.contiguous().unbind()
        backbone: Any = self._model.backbone
        hidden = self._model.network.get_input_embeddings()(tokens).contiguous()
        cosine, sine = (x[0].contiguous() for x in backbone.rotary_emb(hidden[None], positions[None]))
        groups = group_by_prefix([slot for slot, *_ in rows])
        prefixes = [_prefix_addresses(group) for group in groups]
        described = (_Group * len(groups))()
        for place, (group, prefix) in enumerate(zip(groups, prefixes, strict=True)):
            described[place] = _Group(group.start, group.stop, group.prefix_length, ctypes.addressof(prefix))
        key_heads = self._cache.keys[0].shape[0]
        sizes = len(self._layers), len(groups), *hidden.shape, self._layers[0].down.inputs, key_heads
        inputs = [x.data_ptr() for x in (cosine, sine, indices, columns)]
        heads = self._layers[0].out.inputs // self._attention.head_dim // key_heads, self._attention.head_dim
        cache = len(self._cache.slots), self._cache.capacity
        addresses = ctypes.addressof(self._layers), ctypes.addressof(described)
        call_kernel("decode_layers", hidden, ctypes.byref(_Pass(*addresses, *inputs, *sizes, *heads, *cache)))
        return backbone.norm(hidden)  # type: ignore[no-any-return]

    def _describe(self, layer: Any) -> _Layer:
        attention = layer.self_attn
        norms = [layer.input_layernorm, getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)]
        weights = [self._address(norm and norm.weight) for norm in (*norms, layer.post_attention_layernorm)]
        owners = attention, None, layer.mlp, None
        linears = [self._linear(*pair) for pair in zip(owners, _linear_layers(layer), strict=True)]
        spec = attention._spec
        eps = layer.input_layernorm.variance_epsilon
        return _Layer(*weights, *linears, None, None, spec.window, spec.scale, eps)

    def _linear(self, owner: Any, linears: tuple[Any, ...]) -> _Linear:
        """Describe linear layers with the same input. `owner` has their packed weights, or a single layer itself."""
        bases = [base for linear in linears if (base := base_linear(linear))]
        self._packed.append((owner or bases[0], tuple(bases)))
        weight, bias = packed_weights(*self._packed[-1])
        sizes = bases[0].in_features, sum(base.out_features for base in bases)
        down, up, scale = _adapters(linears, bases)
        rank = 0 if down is None else len(down)
        packed = [None if x is None else kernels.pack_weights_(None, x) for x in (down, up)]
        return _Linear(*map(self._address, (weight, bias, *packed)), *sizes, rank, scale)

    def _address(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._tensors.append(tensor)
        return tensor.data_ptr()


def _adapters(linears: Sequence[Any], bases: Sequence[Any]) -> tuple[Tensor | None, Tensor | None, float]:
    """Return the adapters of layers with the same input as one, of the sum of their ranks: its factors and scale."""
    adapted = [(linear, base) for linear, base in zip(linears, bases, strict=True) if linear is not base]
    if not adapted:
        return None, None, 0.0
    downs = [next(iter(linear.lora_A.values())).weight for linear, _ in adapted]
    rank = sum(map(len, downs))
    padded = rank + rank % 2  # pairs are packed
    down, up = downs[0].new_zeros(padded, downs[0].shape[1]), []
    down[:rank] = torch.cat(downs)
    start = 0
    for linear, base in zip(linears, bases, strict=True):
        part = down.new_zeros(base.out_features, padded)
        if linear is not base:
            own = next(iter(linear.lora_B.values())).weight
            part[:, start : start + own.shape[1]] = own
            start += own.shape[1]
        up.append(part)
    return down, torch.cat(up), next(iter(adapted[0][0].scaling.values()))


def _prefix_addresses(group: SlotGroup) -> "ctypes.Array[ctypes.c_void_p]":
    """Return the addresses of the keys and values of a group's prefix, layer by layer."""
    pairs = zip(group.prefix.keys, group.prefix.values, strict=True) if group.prefix else ()
    addresses = [x.data_ptr() for pair in pairs for x in pair]
    return (ctypes.c_void_p * len(addresses))(*addresses)
