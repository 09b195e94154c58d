"""Find the models whose rows cannot be packed, when they are loaded. Their rows are padded instead (`padded.py`).

A packed model runs on a flat sequence of several rows, and the engine computes attention itself. This is right only if
nothing but attention mixes tokens, if positions come from `position_ids`, and if every layer calls the attention
interface of transformers in the plain way. The config of a model tells a part of this. A probe measures the rest.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from understudy.engines.local.gradient_checkpointing import decoder_layers, model_body

_REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
"""Config keys that packing needs."""
_SCORE_ARGUMENTS = ("s_aux", "softcap", "position_bias", "alibi")
"""Arguments of the attention interface that change the scores. `AttentionLayout.attend` has none of them."""
_PROBE_TOKENS = 4
_MAX_PROBE_DIFF = 0.02
"""Maximum difference of results that are equal but for rounding, relative to their norm. A model that the probe
refuses exceeds it many times."""


def config_problem(config: PretrainedConfig) -> str:
    """Return why the rows of models with this config cannot be packed, or an empty string."""
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        return f"it has layers of kind {min(kinds)!r}"
    if getattr(config, "attn_logit_softcapping", None):
        return "it caps attention scores"
    if missing := [name for name in _REQUIRED if not getattr(config, name, None)]:
        return f"its config has no {missing[0]}"
    return ""


def probe_packing(network: PreTrainedModel) -> str:
    """Run the same short row twice in one flat sequence. Return why its rows cannot be packed, or an empty string.

    Of layers that consist of the same modules only the first is run, so this is cheap.
    Call this while every weight is whole and on its device. Models without weights (on device meta) are not probed.
    """
    config = network.config.get_text_config()
    if any(parameter.is_meta for parameter in network.parameters()):
        return ""
    layout = ProbeLayout()
    row = torch.arange(_PROBE_TOKENS, device=network.device)
    tokens, positions = ((row + 1) % config.vocab_size).repeat(2)[None], row.repeat(2)[None]
    try:
        backbone = model_body(network)
        with torch.inference_mode(), _without_repeated_layers(network, config.num_hidden_layers) as layers:
            out = backbone(input_ids=tokens, position_ids=positions, use_cache=False, layout=layout)
        one, two = out.last_hidden_state[0].float().split(_PROBE_TOKENS)
    except torch.OutOfMemoryError:
        raise
    # Code of transformers and of models: these are its errors for a missing interface and for arguments that differ.
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.200}"
        return f"a short packed pass ends with {reason}"
    if layout.calls != layers:
        return "not each of its layers calls transformers' attention interface once"
    if layout.key_heads != {config.num_key_value_heads}:
        return f"it has {max(layout.key_heads)} key heads, and its num_key_value_heads is {config.num_key_value_heads}"
    if layout.problem:
        return layout.problem
    if not _relative_diff(one, two) <= _MAX_PROBE_DIFF:
        return "its result for a row depends on other rows of the same pass"
    return ""


class ProbeLayout:
    """Attention within two rows of equal length, as an `AttentionLayout`. It records how the model calls it."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        """The layer of each call."""
        self.key_heads: set[int] = set()
        """The numbers of key heads of the calls."""
        self.problem = ""
        """What the engine does not implement in the last call that has such a part."""

    def inspect(self, mask: Tensor | None, arguments: Mapping[str, Any]) -> None:
        """Record arguments of the attention interface that `attend` does not get."""
        if mask is not None:
            self.problem = "its attention has a mask of its own"
        for name in _SCORE_ARGUMENTS:
            if arguments.get(name) is not None:
                self.problem = f"its attention has the argument {name}"

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Return causal attention [N, Hq, dv] of queries [N, Hq, d] over keys [N, H, d] and values [N, H, dv]."""
        self.calls.append(layer)
        self.key_heads.add(k.shape[1])
        if k.shape != v.shape:
            self.problem = f"its keys have {k.shape[-1]} numbers per head and its values {v.shape[-1]}"
        dtype = v.dtype
        rows, group = len(q) // 2, q.shape[1] // k.shape[1]
        q, k, v = (
            x.reshape(2, rows, *x.shape[1:]).float()
            for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
        )
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
        future = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(0, 1).to(dtype)


@contextlib.contextmanager
def _without_repeated_layers(network: nn.Module, num_layers: int) -> Iterator[list[int]]:
    """Skip layers that consist of the same modules as the first one. Provide the indices of the others."""
    layers = decoder_layers(network)
    if len(layers) != num_layers:
        yield list(range(num_layers))
        return
    skipped = [layer for layer in layers[1:] if _modules(layer) == _modules(layers[0])]
    outputs: list[Any] = []

    def skip(hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return (hidden_states, *outputs[0][1:]) if isinstance(outputs[0], tuple) else hidden_states

    with layers[0].register_forward_hook(lambda *call: outputs.append(call[-1])):
        for layer in skipped:
            layer.forward = skip
        try:
            yield [index for index, layer in enumerate(layers) if layer not in skipped]
        finally:
            for layer in skipped:
                del layer.forward


def _modules(layer: nn.Module) -> list[tuple[str, type[nn.Module]]]:
    return [(name, type(module)) for name, module in layer.named_modules()]


def _relative_diff(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of a token's values, relative to their norm. NaN gives NaN."""
    return float(((one - other).norm(dim=-1) / one.norm(dim=-1)).max())
