"""A transformers model, run on flat sequences with attention of our own.

Whatever attends through transformers' attention interface works, whole or with LoRA adapters made by peft. Each forward
pass is given a layout, which says what attends to what; see `packing` (training) and `cache` (sampling).
"""

import itertools
import shutil
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from understudy.crew import ALONE, Crew
from understudy.engines.local import compiled
from understudy.engines.local.adapters import adapt, dropping, merged
from understudy.engines.local.checkpointing import checkpoint_layers
from understudy.engines.local.config import LocalConfig
from understudy.engines.local.fuse import fuse
from understudy.engines.local.nf4 import quantize
from understudy.engines.local.ranks import agree_on_device
from understudy.errors import ConfigError
from understudy.formats import Vocabulary

if TYPE_CHECKING:
    from understudy.engines.local.sharded import Shards

ATTENTION = "understudy"
BESIDE_WEIGHTS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)
"""Files of a model folder that training leaves as they are, and that whoever loads the model wants."""

_PLAIN = {
    "final_logit_softcapping": 0.0,
    "attn_logit_softcapping": 0.0,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "lm_head_multiplier": 1.0,
}
"""Keys of a model's config that change its scores or its logits, and the value of each that changes nothing."""


class Layout(Protocol):
    """Where the tokens of a flat sequence belong."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attention of flat queries [N, Hq, d] over flat keys and values [N, H, d] and what the layout remembers."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    *,
    layout: Layout,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: [1, heads, N, d] each, and the result as [1, N, heads, d]."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return layout.attend(int(module.layer_idx), q, k, v, scaling)[None], None  # type: ignore[arg-type]


AttentionInterface.register(ATTENTION, _attention)


class Model:
    """Weights and the two passes over them: tokens to hidden states here, and these to log-probabilities in `head`."""

    def __init__(self, folder: Path, config: LocalConfig, crew: Crew = ALONE) -> None:
        self._folder = folder
        self.device = choose_device(config.device)
        agree_on_device(crew, self.device)
        self.dtype = choose_dtype(config.dtype, self.device)
        transformers_logging.disable_progress_bar()
        self.network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=self.dtype, attn_implementation=ATTENTION
        )
        if config.finetune == "qlora":
            quantize(self.network, self.network.get_output_embeddings(), self.device)
        self.network.to(self.device)
        self.config: PretrainedConfig = self.network.config.get_text_config()
        _refuse_unsupported(self.config, self.network.get_output_embeddings(), folder)
        if self.device.type == "cpu" and compiled.available(self.dtype):
            fuse(self.network)
        self.adapted = adapt(self.network, config.lora) if config.adapters else None
        if config.checkpointing:
            checkpoint_layers(self.network)
        self.body: nn.Module = getattr(self.network, self.network.base_model_prefix)
        self.head: nn.Parameter = self.network.get_output_embeddings().weight
        self.network.eval()
        if config.finetune == "full" and not config.train_embeddings:
            self.network.get_input_embeddings().requires_grad_(False)
            self.head.requires_grad_(False)
        self.shards = _divided(self.body, crew, self.device) if config.sharding == "fsdp" else None
        self._trainable = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        if self.shards:
            self.shards.name(self._trainable)
            self.shards.together()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The model's tokenizer."""
        return Vocabulary.load(self._folder / "tokenizer.json")

    def hidden(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Final hidden states [N, D] of a flat sequence; tokens and positions [1, N]."""
        out = self.body(input_ids=tokens, position_ids=positions, use_cache=False, layout=layout)
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    def dropping(self, seed: int) -> AbstractContextManager[None]:
        """Passes of an update run inside it: adapters drop inputs, chosen by the seed."""
        return dropping(self.network, self.device, seed)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, D], without gradient."""
        return self.network.get_output_embeddings()(hidden)  # type: ignore[no-any-return]

    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that training moves, by name."""
        return self._trainable

    def settle(self) -> None:
        """Have whole weights in place again after they were written to, where layers are divided."""
        if self.shards:
            self.shards.together()

    @property
    def query_heads_per_key(self) -> int:
        """How many query heads share one key head."""
        return self.config.num_attention_heads // self.config.num_key_value_heads  # type: ignore[no-any-return]

    @property
    def context(self) -> int:
        """The longest sequence that the model's positions allow, and that our attention computes as its own would.

        That is no longer than a sliding window, within which attention is whole, and than what LongRoPE began with:
        beyond, the angles of every position depend on how long the longest row beside it is.
        """
        config = self.config
        window = None if getattr(config, "layer_types", None) else getattr(config, "sliding_window", None)
        rope = getattr(config, "rope_parameters", None) or {}
        long = rope.get("rope_type") == "longrope" and rope.get("original_max_position_embeddings")
        return min(int(limit) for limit in (config.max_position_embeddings, window, long) if limit)

    @property
    def weight_bytes(self) -> int:
        """What the weights take, tied ones once."""
        tensors = itertools.chain(self.network.parameters(), self.network.buffers())
        return sum(t.numel() * t.element_size() for t in tensors)

    @property
    def cache_bytes(self) -> int:
        """What the keys and values of one token take."""
        config = self.config
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * config.num_key_value_heads * dim * self.dtype.itemsize)

    def save(self, folder: Path) -> None:
        """Write the weights (or the adapters) as transformers and peft read them, without a tokenizer."""
        network = self.adapted or self.network
        whole = dict(network.named_parameters(remove_duplicate=False)) if self.shards else None
        network.save_pretrained(folder, state_dict=whole)

    def export(self, folder: Path, merged: bool = False) -> None:
        """Write the model as transformers and peft read it, with its tokenizer; of LoRA the adapters, unless `merged`.

        Merging changes nothing in this model: training may go on.
        """
        if self.adapted is not None and merged:
            self._merged().save_pretrained(folder)
        else:
            self.save(folder)
        for pattern in BESIDE_WEIGHTS:
            for path in self._folder.glob(pattern):
                shutil.copy(path, folder)

    def take_adapters(self, folder: Path) -> None:
        """Put the adapters in a folder of peft's in place of those that are there; others do not fit: a ConfigError."""
        import peft

        if self.adapted is None:
            raise ConfigError(f"{folder} holds LoRA adapters; set engine.finetune=lora")
        try:
            weights = peft.load_peft_weights(str(folder), device=str(self.device))
            found = peft.set_peft_model_state_dict(self.adapted, weights)
        except (OSError, ValueError, RuntimeError) as e:
            raise ConfigError(f"{folder}: these adapters do not fit engine.lora: {e}") from e
        own = {name for name in self._trainable if ".lora_" in name}
        if found.unexpected_keys or len(own) != len(weights):
            raise ConfigError(f"{folder} has {len(weights)} adapter weights, and engine.lora makes {len(own)} others")

    @torch.no_grad()
    def _merged(self) -> PreTrainedModel:
        """A copy of the network without adapters."""
        copy = AutoModelForCausalLM.from_config(self.network.config, dtype=self.dtype)
        copy.load_state_dict(merged(self.network, self.dtype))
        copy.generation_config = self.network.generation_config
        return copy


def _divided(body: nn.Module, crew: Crew, device: torch.device) -> "Shards | None":
    if crew.size == 1:
        return None
    from understudy.engines.local.sharded import Shards

    return Shards(body, crew, device)


def _refuse_unsupported(config: PretrainedConfig, head: nn.Module, folder: Path) -> None:
    """What our attention, and our way from hidden states to logits, do not compute must not be computed wrongly."""
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise ConfigError(
            f"{folder}: layers of kind {min(kinds)!r} are not supported by the local engine, only full attention"
        )
    for name, plain in _PLAIN.items():
        if getattr(config, name, None) not in (None, plain):
            raise ConfigError(f"{folder}: {name} is not supported by the local engine")
    if getattr(head, "bias", None) is not None:
        raise ConfigError(f"{folder}: an output head with a bias is not supported by the local engine")


def choose_device(wanted: str) -> torch.device:
    """The device that `engine.device` comes to here. Raises ConfigError for one that is not there."""
    found = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if found[name]))
    if not found[wanted]:
        have = ", ".join(name for name, there in found.items() if there)
        raise ConfigError(f"engine.device: there is no {wanted!r} device here; available: {have}")
    return torch.device(wanted)


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """The dtype that `engine.dtype` comes to on a device."""
    if wanted != "auto":
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}[wanted]
    fast = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if fast else torch.float32
