"""A transformers model that runs on flat sequences with attention of this package.

Any model that uses transformers' attention interface works, also with peft's LoRA adapters. Each forward pass gets a
layout that defines which tokens attend to which; see `packing` (training) and `sampling.kv_cache`.
"""

import contextlib
import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from understudy.core.errors import ConfigError
from understudy.engines.local.architecture import config_problem, probe_packing
from understudy.engines.local.attention import AttentionShape
from understudy.engines.local.attention_interface import ATTENTION_NAME, AttentionLayout
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.cpu import kernel_library, kernels
from understudy.engines.local.cpu.fuse import fuse_modules, packed_weights
from understudy.engines.local.distributed.distributed import validate_devices
from understudy.engines.local.gradient_checkpointing import decoder_layers, enable_gradient_checkpointing, model_body
from understudy.engines.local.lora import add_lora_adapters, lora_dropout, merged_state_dict
from understudy.engines.local.nf4 import quantize_nf4
from understudy.engines.local.output_head import has_plain_head, own_logits
from understudy.engines.local.padded import PaddedForward
from understudy.engines.local.token_rows import TokenRows
from understudy.engines.models.folder import validate_trainable
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.formats import FormatTokenizer

if TYPE_CHECKING:
    from understudy.engines.local.distributed.fsdp import FSDPShards

UNLIMITED_CONTEXT = 1 << 20
"""The context of models without positions, in tokens."""
_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates/*",
)
_ROWS_KEY = "base_model.model.{}.token_adapter.trainable_tokens_delta"
"""peft's name of the trained rows of a table, which is named like its module."""


class LocalModel:
    """A model's weights and forward pass from tokens to hidden states. `token_logprobs` computes log-probabilities."""

    def __init__(
        self,
        folder: Path,
        config: LocalEngineConfig,
        process_group: ProcessGroup = SINGLE_PROCESS,
        trained_tokens: Sequence[int] = (),
    ) -> None:
        """The rows of `trained_tokens` in embeddings and head are trained too, if these are frozen."""
        self.folder = folder
        self.device = choose_device(config.device)
        validate_devices(process_group, self.device)
        self.dtype = choose_dtype(config.dtype, self.device)
        transformers_logging.disable_progress_bar()
        self.attention_shapes: frozenset[AttentionShape] = frozenset()
        """The kinds of attention of a packed model."""
        self.network, self.padding_reason = self._load(config)
        """Why rows are padded, or an empty string if they are packed."""
        self.config: PretrainedConfig = self.network.config.get_text_config()
        self.backbone: nn.Module = model_body(self.network)
        self.padded: PaddedForward | None = None
        if self.padding_reason:
            self.padded = PaddedForward(self.backbone)
            # On a CPU, transformers advises to install kernels that need a GPU.
            with without_messages() if self.device.type == "cpu" else contextlib.nullcontext():
                self.padded.probe(self.config.vocab_size, self.device, folder)
        self.has_plain_head = has_plain_head(self.network)
        """Whether logits are the product of hidden states and `lm_head`, and nothing else."""
        is_fused = self.device.type == "cpu" and not self.padded and kernel_library.kernels_available(self.dtype)
        if is_fused:
            fuse_modules(self.network, recompute=not config.gradient_checkpointing)
        layers = decoder_layers(self.network)
        early = max(len(layers) - config.trainable_layers, 0) if config.trainable_layers else 0
        self.peft_model = None
        if config.uses_lora:
            called = None
            if self.padded:
                called = self.padded.called_modules(self.network, self.config.vocab_size, self.device)
            self.peft_model = add_lora_adapters(self.network, config.lora, range(early, len(layers)), called)
        if config.gradient_checkpointing:
            enable_gradient_checkpointing(self.network)
        self.lm_head: nn.Parameter = self.network.get_output_embeddings().weight
        self.network.eval()
        for layer in layers[:early]:
            layer.requires_grad_(False)
        if config.finetune == "full" and not config.train_embeddings:
            self.network.get_input_embeddings().requires_grad_(False)
            self.lm_head.requires_grad_(False)
        frozen = not self.lm_head.requires_grad
        self.token_rows = TokenRows(self.network, trained_tokens) if trained_tokens and frozen else None
        if self.peft_model is not None and self.token_rows:
            indices = {table: list(trained_tokens) for table in self.token_rows.tables}
            self.peft_model.peft_config["default"].trainable_token_indices = indices
        self.fsdp_shards = _shard(self.backbone, process_group, self.device) if config.sharding == "fsdp" else None
        is_packable = self.has_plain_head and self.lm_head.shape[1] % 2 == 0 and not self.fsdp_shards
        self.has_float32_logits = is_fused and is_packable and self.dtype == torch.bfloat16
        """Whether the kernels compute logits in float32 from `packed_head`."""
        self._trainable = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self._trainable |= self.token_rows.parameters if self.token_rows else {}
        if self.fsdp_shards:
            self.fsdp_shards.register(self._trainable)
            self.fsdp_shards.unshard()

    def _load(self, config: LocalEngineConfig) -> tuple[PreTrainedModel, str]:
        """Return the network on its device, and why its rows must be padded, or an empty string."""
        reason = "set by engine.batching" if config.batching == "padded" else _config_problem(self.folder)
        if not reason:
            network = self._load_with(ATTENTION_NAME, config)
            reason = "it does not use transformers' attention interface"
            if network:
                reason, self.attention_shapes = probe_packing(network)
            if network and not reason:
                return network, ""
        if config.batching == "packed":
            raise ConfigError(
                f"engine.batching = 'packed': rows of the model in {self.folder} cannot be packed, because {reason}; "
                "leave it out, or set engine.batching=padded"
            )
        network = self._load_with(None, config)
        assert network is not None
        return network, reason

    def _load_with(self, attention: str | None, config: LocalEngineConfig) -> PreTrainedModel | None:
        """Return the network with an implementation of attention, on its device. Return None if it does not take it."""
        network = _load_network(self.folder, self.dtype, attention)
        if network is None:
            return None
        if network.get_output_embeddings() is None:
            raise ConfigError(f"{self.folder}: the model has no output head; choose a causal language model")
        if config.finetune == "qlora":
            quantize_nf4(network, network.get_output_embeddings(), self.device)
        return network.to(self.device)

    @cached_property
    def vocabulary(self) -> FormatTokenizer:
        """The model's tokenizer."""
        return FormatTokenizer.load(self.folder / "tokenizer.json")

    def hidden_states(self, tokens: Tensor, positions: Tensor, layout: AttentionLayout) -> Tensor:
        """Return final hidden states [N, D] of a flat sequence. `tokens` and `positions` are [1, N]."""
        out = self.backbone(input_ids=tokens, position_ids=positions, use_cache=False, layout=layout)
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    def lora_dropout(self, seed: int) -> AbstractContextManager[None]:
        """Enable LoRA dropout in the block, with random numbers from `seed`."""
        return lora_dropout(self.network, self.device, seed)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [N, V] of hidden states [N, D]. Those that the kernels compute in float32 have no gradient."""
        if (packed := self.packed_head()) is not None:
            out = hidden.new_empty(len(hidden), len(self.lm_head), dtype=torch.float32)
            return kernels.packed_logits(hidden, packed, out)
        if self.has_plain_head:
            return self.network.get_output_embeddings()(hidden)  # type: ignore[no-any-return]
        return own_logits(self.network, hidden)

    def packed_head(self) -> Tensor | None:
        """Return the output weights as `kernels.packed_logits` takes them, or None if logits have the model's dtype."""
        head = self.network.get_output_embeddings()
        return packed_weights(head, (head,))[0] if self.has_float32_logits else None

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name."""
        return self._trainable

    def gather_weights(self) -> None:
        """Gather the full weights again after a write to sharded ones."""
        if self.fsdp_shards:
            self.fsdp_shards.unshard()

    @property
    def context_length(self) -> int:
        """Longest sequence for which our results equal the model's own, in tokens."""
        return context_length(self.config)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights. Tied weights count once."""
        tensors = itertools.chain(self.network.parameters(), self.network.buffers())
        return sum(t.numel() * t.element_size() for t in tensors)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token."""
        heads = (_num_heads(layer, "num_key_value_heads", "num_attention_heads") for layer in self._layer_configs)
        sizes = map(_head_dim, self._layer_configs)
        return sum(2 * count * size for count, size in zip(heads, sizes, strict=True)) * self.dtype.itemsize

    @property
    def head_dim(self) -> int:
        """The size of an attention head, the largest one if layers differ, or 0 for models without attention."""
        return max(map(_head_dim, self._layer_configs))

    @property
    def _layer_configs(self) -> Sequence[Any]:
        """The config of each layer. Only in families such as Gemma 4 they differ."""
        config = self.config
        return list(getattr(config, "per_layer_config", None) or [config] * config.num_hidden_layers)

    def save(self, folder: Path) -> None:
        """Write the weights for transformers, or the adapters for peft, without a tokenizer."""
        network = self.peft_model or self.network
        _tie_as_in_weights(self.network)
        network.save_pretrained(folder, state_dict=dict(_whole_weights(network)) if self.fsdp_shards else None)
        if self.peft_model is not None and self.token_rows:
            self._save_rows(folder / "adapter_model.safetensors")

    def save_merged(self, folder: Path) -> None:
        """Write the weights with merged adapters for transformers, without a tokenizer."""
        self._merged().save_pretrained(folder)

    def export(self, folder: Path, merge_adapters: bool = False) -> None:
        """Write model and tokenizer for transformers, or LoRA adapters for peft unless `merge_adapters` is set.

        Merging works on a copy, so training can continue.
        """
        if self.peft_model is not None and merge_adapters:
            self.save_merged(folder)
        else:
            self.save(folder)
        copy_tokenizer(self.folder, folder)

    def load_adapters(self, folder: Path) -> None:
        """Load adapters from a folder that peft wrote. Raise ConfigError if they do not fit."""
        import peft

        if self.peft_model is None:
            raise ConfigError(f"{folder} holds LoRA adapters; set engine.finetune=lora")
        try:
            weights = peft.load_peft_weights(str(folder), device=str(self.device))
            if self.token_rows:
                with torch.no_grad():
                    for table, rows in self.token_rows.tables.items():
                        for row, value in zip(rows, weights.pop(_ROWS_KEY.format(table)), strict=True):
                            row.copy_(value)
            result = peft.set_peft_model_state_dict(self.peft_model, weights)
        except (OSError, KeyError, ValueError, RuntimeError) as e:
            raise ConfigError(f"{folder}: the adapters do not fit engine.lora: {e}") from e
        adapter_names = {name for name in self._trainable if ".lora_" in name}
        if result.unexpected_keys or len(adapter_names) != len(weights):
            raise ConfigError(
                f"{folder}: its {len(weights)} adapter weights do not match the {len(adapter_names)} of engine.lora"
            )

    def _save_rows(self, file: Path) -> None:
        """Add the trained rows to a file of adapters, where peft reads them (`trainable_token_indices`)."""
        assert self.token_rows is not None
        tables = self.token_rows.tables.items()
        rows = {_ROWS_KEY.format(name): torch.stack([row.detach() for row in table]) for name, table in tables}
        save_file(load_file(file) | rows, file, metadata={"format": "pt"})

    @torch.no_grad()
    def _merged(self) -> PreTrainedModel:
        """Return a copy of the network with merged adapters.

        Its embeddings and output head are tied only if they are equal: a folder may have a head of its own although its
        config ties them, and adapters may change one of the two.
        """
        weights = merged_state_dict(self.network, self.dtype)
        config = deepcopy(self.network.config)
        modules = {module: name for name, module in self.network.named_modules()}
        ends = self.network.get_input_embeddings(), self.network.get_output_embeddings()
        embeddings, head = (weights[f"{modules[module]}.weight"] for module in ends)
        if not torch.equal(embeddings, head):
            config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False
        copy = AutoModelForCausalLM.from_config(config, dtype=self.dtype)
        copy.load_state_dict(weights)
        copy.generation_config = self.network.generation_config
        return copy


def _tie_as_in_weights(network: PreTrainedModel) -> None:
    """Let the config say whether the output head is tied: a folder may have a head of its own although its config ties
    it.
    """
    if network.get_input_embeddings().weight is not network.get_output_embeddings().weight:
        network.config.tie_word_embeddings = network.config.get_text_config().tie_word_embeddings = False


def _whole_weights(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and persistent buffers, whose values are not sharded at this time."""
    yield from network.named_parameters(remove_duplicate=False)
    for name, module in network.named_modules():
        for buffer in module._buffers.keys() - module._non_persistent_buffers_set:
            if (value := module._buffers[buffer]) is not None:
                yield f"{name}.{buffer}".lstrip("."), value


def _shard(body: nn.Module, process_group: ProcessGroup, device: torch.device) -> "FSDPShards | None":
    if process_group.world_size == 1:
        return None
    from understudy.engines.local.distributed.fsdp import FSDPShards

    return FSDPShards(body, process_group, device)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the files of a model folder that training does not change: tokenizer and chat templates."""
    for path in (path for pattern in _TOKENIZER_FILES for path in source.glob(pattern) if path.is_file()):
        copy = folder / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)


def _config_problem(folder: Path) -> str:
    return config_problem(_read_config(folder).get_text_config())


@contextlib.contextmanager
def without_messages() -> Iterator[None]:
    """Hide the messages of transformers, also those that it shows only once."""
    shown = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(shown)


_CONFIG_ERRORS = (AttributeError, KeyError, OSError, TypeError, ValueError, StrictDataclassError)
"""What transformers raises for values in config.json that it does not know."""


def _load_network(folder: Path, dtype: torch.dtype, attention: str | None) -> PreTrainedModel | None:
    """Return a folder's model, or None if it does not take this implementation of attention.

    Raise ConfigError if config and weights do not make a model.
    """
    validate_trainable(folder)
    try:
        with without_messages():  # it prints a table of keys, beside the error
            network, loading = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=attention,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, with the sizes
            )
    except torch.OutOfMemoryError:
        raise
    except (*_CONFIG_ERRORS, RuntimeError, SafetensorError) as error:
        if isinstance(error, KeyError) and error.args == (ATTENTION_NAME,):
            return None
        raise ConfigError(
            f"transformers cannot load the model in {folder}: {_reason(error)}; its config.json must be that of its "
            "weights"
        ) from error
    if mismatched := min(loading["mismatched_keys"], default=None):
        name, stored, expected = mismatched
        raise ConfigError(
            f"{folder} has weights {name} of {list(stored)}, and its config.json asks for {list(expected)}; put the "
            "config.json there that was saved with the weights"
        )
    if missing := min(loading["missing_keys"], default=""):  # transformers makes random weights of them
        raise ConfigError(
            f"{folder} has no weights {missing}, which its config.json asks for; download the model again"
        )
    return network


def _read_config(folder: Path) -> PretrainedConfig:
    validate_trainable(folder)
    try:
        return AutoConfig.from_pretrained(folder)
    except _CONFIG_ERRORS as error:
        raise ConfigError(f"transformers cannot read {folder / 'config.json'}: {_reason(error)}") from error


def read_context_length(folder: Path) -> int:
    """Return the `LocalModel.context_length` of the model in a folder, without its weights.

    Raise ConfigError for a config that transformers cannot read.
    """
    return context_length(_read_config(folder).get_text_config())


def _reason(error: Exception) -> str:
    """Return what an error of transformers says, in one line. An invalid field's value is in the second one."""
    lines = str(error).splitlines()
    return " ".join(line.strip() for line in lines[: 1 + isinstance(error, StrictDataclassError)])


def context_length(config: PretrainedConfig) -> int:
    """Return the longest sequence for which our results equal those of a model with this config, in tokens.

    It is at most the original length of LongRoPE: beyond that, the angles of all positions depend on the longest row of
    a batch. Models of linear attention alone have no limit of their own.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    long = rope.get("rope_type") == "longrope" and rope.get("original_max_position_embeddings")
    limits = getattr(config, "max_position_embeddings", None), long
    return min((int(limit) for limit in limits if limit), default=UNLIMITED_CONTEXT)


def choose_device(device: str) -> torch.device:
    """Return the device for a value of `engine.device`. Raise ConfigError if it is not available."""
    is_available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if is_available[name]))
    if not is_available[device]:
        have = ", ".join(name for name, there in is_available.items() if there)
        why = "no GPU was found" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
        raise ConfigError(
            f"engine.device = {device!r} is not available{f': {why}' if device == 'cuda' else ''}; available: {have}; "
            "see understudy doctor"
        )
    return torch.device(device)


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Return the dtype for a value of `engine.dtype` on a device.

    Raise ConfigError for bfloat16 on a GPU that has no instructions for it. Emulated, it is slower than float32.
    """
    if dtype == "float32":
        return torch.float32
    gpu_lacks_it = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    if dtype == "bfloat16":
        if gpu_lacks_it:
            raise ConfigError(
                f"engine.dtype = 'bfloat16': {torch.cuda.get_device_name()} does not support it (GPUs from Ampere on "
                "do, such as A10, A100 and RTX 30xx); set engine.dtype=float32"
            )
        return torch.bfloat16
    cpu_lacks_it = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.float32 if gpu_lacks_it or cpu_lacks_it else torch.bfloat16


def _num_heads(config: Any, *names: str) -> int:
    return int(next((count for name in names if (count := getattr(config, name, None))), 0))


def _head_dim(config: Any) -> int:
    heads = _num_heads(config, "num_attention_heads")
    return int(getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0))
