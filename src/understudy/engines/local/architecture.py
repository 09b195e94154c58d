"""Find the models whose rows cannot be packed, when they are loaded. Their rows are padded instead (`padded.py`).

A packed model runs on a flat sequence of several rows, and the engine computes attention itself. This is right only if
nothing but attention mixes tokens, if positions come from `position_ids`, and if every layer calls the attention
interface of transformers with all that its attention does. The config of a model tells a part of this. A probe measures
the rest.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from understudy.engines.local.attention import AttentionShape
from understudy.engines.local.attention_interface import ATTENTION_NAME, attention_spec
from understudy.engines.local.gradient_checkpointing import decoder_layers, model_body

_KINDS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers (`layer_types` of a config) that can run packed."""
_REQUIRED = "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"
"""Config keys that packing needs."""
_OTHER_ARGUMENTS = "position_bias", "alibi"
"""Arguments of the attention interface that change scores and that `AttentionSpec` does not have."""
_PROBE_NAME = f"{ATTENTION_NAME}_probe"
_PROBE_TOKENS = 4
_MAX_PROBE_DIFF = 0.02
"""Maximum difference of results that are equal but for rounding, relative to their norm. A model that the probe
refuses exceeds it many times."""


def config_problem(config: PretrainedConfig) -> str:
    """Return why the rows of models with this config cannot be packed, or an empty string."""
    if kinds := set(getattr(config, "layer_types", None) or ()) - _KINDS:
        return f"it has layers of kind {min(kinds)!r}"
    if missing := [name for name in _REQUIRED if not getattr(config, name, None)]:
        return f"its config has no {missing[0]}"
    return ""


def probe_packing(network: PreTrainedModel) -> tuple[str, frozenset[AttentionShape]]:
    """Run the same short row twice in one flat sequence.

    Return why its rows cannot be packed, or an empty string, and the kinds of its attention. Of layers of one kind only
    the first is run, so this is cheap. Call this while every weight is whole and on its device. Models without weights
    (on device meta) are not probed.
    """
    config = network.config.get_text_config()
    if any(parameter.is_meta for parameter in network.parameters()):
        return "", frozenset()
    layout = _ProbeLayout(config.max_position_embeddings)
    row = torch.arange(_PROBE_TOKENS, device=network.device)
    tokens, positions = ((row + 1) % config.vocab_size).repeat(2)[None], row.repeat(2)[None]
    network.set_attn_implementation(_PROBE_NAME)
    try:
        backbone = model_body(network)
        with torch.inference_mode(), without_repeated_layers(network, config) as layers:
            out = backbone(input_ids=tokens, position_ids=positions, use_cache=False, layout=layout)
        one, two = out.last_hidden_state[0].float().split(_PROBE_TOKENS)
    except torch.OutOfMemoryError:
        raise
    except _NoLayoutError:
        return "its layers do not pass further arguments on to their attention", frozenset()
    # Code of transformers and of models: these are its errors for a missing interface and for arguments that differ.
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.200}"
        return f"a short packed pass ends with {reason}", frozenset()
    finally:
        network.set_attn_implementation(ATTENTION_NAME)
    problem = layout.problem
    if layout.calls != layers:
        problem = "not each of its layers calls transformers' attention interface once"
    elif not problem and not _relative_diff(one, two) <= _MAX_PROBE_DIFF:
        problem = "its result for a row depends on other rows of the same pass"
    return problem, frozenset(layout.shapes)


class _NoLayoutError(TypeError):
    """Attention was called without the layout that the model was called with."""


class _Mask(NamedTuple):
    """What a model asks of its attention mask."""

    size: int
    """The size of its window or of its chunks, or 0 if it is causal only."""
    is_plain: bool
    """Whether it is causal and nothing else but the window or the chunks."""


def _describe_mask(*_: Any, local_size: int | None = None, use_vmap: bool = False, **arguments: Any) -> _Mask:
    """Return the description in place of a mask. Functions of a model's own come with `use_vmap`."""
    return _Mask(local_size or 0, is_plain=not use_vmap and "allow_is_bidirectional_skip" not in arguments)


class _ProbeLayout:
    """Attention within two rows of equal length. It records how the model calls it."""

    def __init__(self, context_length: int) -> None:
        self._context_length = context_length
        self.calls: list[int] = []
        """The layer of each call."""
        self.shapes: set[AttentionShape] = set()
        self.problem = ""
        """What the engine does not implement in the last call that has such a part."""

    def record(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, arguments: dict[str, Any]) -> None:
        """Record a call, and what of it attention over a packed layout would not compute."""
        spec = attention_spec(module, arguments["scaling"], arguments)
        self.calls.append(int(module.layer_idx))  # type: ignore[arg-type]
        sizes = q.shape[1], k.shape[1], k.shape[3], v.shape[3]
        self.shapes.add(AttentionShape(*sizes, spec._replace(sinks=None), spec.sinks is not None))
        if not isinstance(mask, _Mask) or not mask.is_plain:
            self.problem = "its attention has a mask of its own"
        elif self._reach(mask.size) != self._reach(spec.window or spec.chunk):
            self.problem = f"its attention does not get its window of {mask.size} tokens"
        for name in _OTHER_ARGUMENTS:
            if arguments.get(name) is not None:
                self.problem = f"its attention has the argument {name}"

    def _reach(self, size: int) -> int:
        """Return the number of tokens that a token sees at most, for a window of this size."""
        return min(size or self._context_length, self._context_length)


def _probe_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float,
    *,
    layout: _ProbeLayout | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Return causal attention within each half, without windows and the like: both are treated alike."""
    if layout is None:
        raise _NoLayoutError
    layout.record(module, query, key, value, attention_mask, arguments | {"scaling": scaling})
    group, rows = query.shape[1] // key.shape[1], query.shape[2] // 2
    q, k, v = (
        x[0].reshape(-1, 2, rows, x.shape[3]).float()
        for x in (query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1))
    )
    scores = torch.einsum("hrqd,hrkd->hrqk", q, k) * scaling
    future = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
    out = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
    return out.flatten(1, 2).transpose(0, 1)[None].to(value.dtype), None


AttentionInterface.register(_PROBE_NAME, _probe_attention)
AttentionMaskInterface.register(_PROBE_NAME, _describe_mask)


@contextlib.contextmanager
def without_repeated_layers(network: nn.Module, config: PretrainedConfig) -> Iterator[list[int]]:
    """Skip layers of the same kind as an earlier one. Provide the indices of the others."""
    layers, firsts = decoder_layers(network), first_layers(network, config)
    if len(layers) != len(firsts):
        yield firsts
        return
    skipped = [layer for i, layer in enumerate(layers) if firsts[i] != i]
    outputs: list[Any] = []

    def skip(hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return (hidden_states, *outputs[0][1:]) if isinstance(outputs[0], tuple) else hidden_states

    with layers[0].register_forward_hook(lambda *call: outputs.append(call[-1])):
        for layer in skipped:
            layer.forward = skip
        try:
            yield sorted(set(firsts))
        finally:
            for layer in skipped:
                del layer.forward


def first_layers(network: PreTrainedModel, config: PretrainedConfig) -> list[int]:
    """Return for each layer the index of the first one of its kind.

    It is the layer itself in models whose layers use the keys of an earlier one, and if not all layers are known.
    """
    layers = decoder_layers(network)
    if len(layers) != config.num_hidden_layers or getattr(config, "num_kv_shared_layers", 0):
        return list(range(config.num_hidden_layers))
    names = getattr(config, "layer_types", None) or [""] * len(layers)
    kinds = [(name, _modules(layer)) for name, layer in zip(names, layers, strict=True)]
    return [kinds.index(kind) for kind in kinds]


def _modules(layer: nn.Module) -> list[tuple[str, type[nn.Module], list[torch.Size]]]:
    return [
        (name, type(module), [parameter.shape for parameter in module.parameters(recurse=False)])
        for name, module in layer.named_modules()
    ]


def _relative_diff(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of a token's values, relative to their norm. NaN gives NaN."""
    return float(((one - other).norm(dim=-1) / one.norm(dim=-1)).max())
