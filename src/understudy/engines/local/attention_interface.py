"""Attention of this package as an implementation of transformers' attention interface."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from understudy.engines.local.attention import AttentionSpec

ATTENTION_NAME = "understudy"


class AttentionLayout(Protocol):
    """Position and attention pattern of the tokens of a flat sequence."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Return attention [N, Hq, dv] of queries [N, Hq, d] over flat and cached keys [N, H, d] and values
        [N, H, dv]."""


def attention_spec(module: nn.Module, scaling: float, arguments: Mapping[str, Any]) -> AttentionSpec:
    """Return what a layer's attention computes, from the arguments of its call of the interface.

    Windows are an argument, as FlashAttention needs them. Chunks are only in the mask and in the config.
    """
    config: Any = module.config
    kinds = getattr(config, "layer_types", None)
    in_chunks = kinds and kinds[module.layer_idx] == "chunked_attention"
    return AttentionSpec(
        scaling,
        softcap=arguments.get("softcap") or 0.0,
        window=arguments.get("sliding_window") or 0,
        chunk=config.attention_chunk_size if in_chunks else 0,
        sinks=arguments.get("s_aux"),
    )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    *,
    layout: AttentionLayout,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Take inputs [1, heads, N, d] and return [1, N, heads, dv]."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    spec = attention_spec(module, scaling, arguments)
    return layout.attend(int(module.layer_idx), q, k, v, spec)[None], None  # type: ignore[arg-type]


AttentionInterface.register(ATTENTION_NAME, _attention)
