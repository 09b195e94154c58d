"""A model's own forward pass over padded rows, for models that cannot run on a flat sequence of rows.

Every causal language model of transformers has one: with windows, linear attention, convolutions or mixtures of
experts. Rows share nothing, so what they have in common is computed for each of them.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import cache_utils

from understudy.algorithms.batch import Batch
from understudy.core.errors import ConfigError

JOINABLE_LAYERS = tuple(
    getattr(cache_utils, name)
    for name in (
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
        "LinearAttentionLayer",
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
        "DummyLayer",
    )
    # Older versions of transformers lack some.
    if hasattr(cache_utils, name)
)
"""Layers of caches whose tensors `sampling.padded_passes` knows. With others, rows are decoded one after the other."""
_PROBE_ROW, _PROBE_SPLIT, _PROBE_LAST = 12, 7, 11
_MAX_PROBE_DIFF = {torch.float32: 1e-3, torch.bfloat16: 0.05}
"""Maximum difference of hidden states that are equal but for rounding, relative to their norm, by dtype."""


class PaddedForward:
    """The forward pass of a model's body, with and without transformers' cache."""

    def __init__(self, backbone: nn.Module) -> None:
        self._backbone = backbone
        arguments = inspect.signature(backbone.forward).parameters
        self._cache_name = "cache_params" if "cache_params" in arguments else "past_key_values"
        self._takes_positions = "position_ids" in arguments
        self.continues_in_chunks = True
        """Whether a pass with a cache may compute several tokens. Otherwise it computes one after the other."""
        self.joins_rows = True
        """Whether the caches of several rows can be joined to one."""

    def hidden_states(self, tokens: Tensor) -> Tensor:
        """Return final hidden states [R, T, D] of rows [R, T], padded on the right.

        No token sees a later one, so the padding needs no mask.
        """
        return self._backbone(input_ids=tokens, use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    @torch.inference_mode()
    def called_modules(self, network: nn.Module, vocabulary: int, device: torch.device) -> set[str]:
        """Return the names of the modules that a pass calls. Some read the weights of others instead."""
        called: set[str] = set()
        hooks = [
            module.register_forward_hook(lambda *_, name=name: called.add(name))
            for name, module in network.named_modules()
        ]
        self.hidden_states(torch.arange(_PROBE_ROW, device=device).remainder(vocabulary)[None])
        for hook in hooks:
            hook.remove()
        return called

    def continue_rows(self, tokens: Tensor, cache: Any, lengths: Sequence[int]) -> tuple[Tensor, Any]:
        """Return hidden states [R, q, D] of new tokens [R, q], and the cache with them.

        `lengths` are the numbers of cached tokens. Shorter rows are padded on the left. The cache is changed in place.
        """
        if cache is not None and tokens.shape[1] > 1 and not self.continues_in_chunks:
            states = []
            for column in range(tokens.shape[1]):
                now = [length + column for length in lengths]
                hidden, cache = self.continue_rows(tokens[:, column : column + 1], cache, now)
                states.append(hidden)
            return torch.cat(states, 1), cache
        before = torch.tensor(lengths, device=tokens.device)[:, None]
        arguments: dict[str, Any] = {self._cache_name: cache}
        if self._takes_positions:
            arguments["position_ids"] = before + torch.arange(tokens.shape[1], device=tokens.device)
        if min(lengths) < max(lengths) and has_keys(cache):
            place = torch.arange(max(lengths) + tokens.shape[1], device=tokens.device)[None]
            arguments["attention_mask"] = (place >= max(lengths) - before).long()
        out = self._backbone(input_ids=tokens, use_cache=True, **arguments)
        return out.last_hidden_state, getattr(out, self._cache_name)

    @torch.inference_mode()
    def probe(self, vocabulary: int, device: torch.device, folder: Path) -> None:
        """Find out how the model continues rows.

        Raise ConfigError if a token sees later ones, if the model's cache gives other results, or if results are not
        finite.
        """
        try:
            self._probe(vocabulary, device, folder)
        except torch.OutOfMemoryError:
            raise
        # Code of transformers: these are its errors for models whose caches have an interface of their own.
        except (
            AttributeError,
            IndexError,
            KeyError,
            NotImplementedError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.200}"
            raise ConfigError(
                f"{folder}: the local engine cannot run this model, because a short pass with transformers' cache ends "
                f"with {reason}; choose another model"
            ) from error

    def _probe(self, vocabulary: int, device: torch.device, folder: Path) -> None:
        row = (torch.arange(_PROBE_ROW, device=device) * 7 + 1).remainder(vocabulary)[None]
        whole = self.hidden_states(row)
        if not bool(whole.isfinite().all()):
            raise ConfigError(
                f"{folder}: a short pass gives values that are not finite: its weights are damaged, or too large for "
                "their dtype; download the model again, or set engine.dtype=float32"
            )
        first, cache = self.continue_rows(row[:, :_PROBE_SPLIT], None, [0])
        self.joins_rows = type(cache) is cache_utils.DynamicCache and all(
            type(layer) in JOINABLE_LAYERS for layer in cache.layers
        )
        if not _is_equal(first, whole[:, :_PROBE_SPLIT]):
            raise ConfigError(
                f"{folder}: in this model a token's result depends on later tokens; choose a causal language model"
            )
        if _is_equal(self._continue_probe(row, cache), whole[:, _PROBE_SPLIT:]):
            return
        self.continues_in_chunks = False
        _, cache = self.continue_rows(row[:, :_PROBE_SPLIT], None, [0])
        if not _is_equal(self._continue_probe(row, cache), whole[:, _PROBE_SPLIT:]):
            raise ConfigError(
                f"{folder}: transformers computes other results for this model with its cache than without, so replies "
                "would not be those of the model that is trained; set engine.sampler=vllm, or choose another model"
            )

    def _continue_probe(self, row: Tensor, cache: Any) -> Tensor:
        """Return hidden states of the rest of the row: of several tokens at once, then of one, as in decoding."""
        several, cache = self.continue_rows(row[:, _PROBE_SPLIT:_PROBE_LAST], cache, [_PROBE_SPLIT])
        one, _ = self.continue_rows(row[:, _PROBE_LAST:], cache, [_PROBE_LAST])
        return torch.cat([several, one], 1)


class PaddedRows:
    """The tokens of a microbatch as rows that are padded to the longest. It has the parts of a `PlainTree`."""

    def __init__(self, batch: Batch, rows: Sequence[int], device: torch.device) -> None:
        longest = int(batch.lengths[rows].max())
        self.tokens = batch.tokens[rows, :longest].to(device)
        self.places = torch.arange(len(rows) * longest).view(len(rows), longest)
        self.num_tokens = self.tokens.numel()


def plan_padded_microbatches(batch: Batch, max_tokens: int) -> list[list[int]]:
    """Return microbatches of at most `max_tokens` tokens with padding, each a list of row indices, longest rows first.

    A row longer than `max_tokens` is a microbatch of its own.
    """
    parts: list[list[int]] = []
    for row in sorted(range(len(batch)), key=lambda row: (-int(batch.lengths[row]), row)):
        if not parts or (len(parts[-1]) + 1) * int(batch.lengths[parts[-1][0]]) > max_tokens:
            parts.append([])
        parts[-1].append(row)
    return parts


def has_keys(cache: Any) -> bool:
    """Return whether a cache of transformers holds keys. Otherwise nothing in it is padded."""
    return any(getattr(layer, "keys", None) is not None for layer in getattr(cache, "layers", ()))


def _is_equal(one: Tensor, other: Tensor) -> bool:
    difference = (one.float() - other.float()).norm(dim=-1) / other.float().norm(dim=-1)
    return bool((difference <= _MAX_PROBE_DIFF[one.dtype]).all())
