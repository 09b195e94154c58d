"""LoRA adapters: adding them to a network, seeded dropout, and merging."""

import contextlib
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from understudy.core.errors import ConfigError
from understudy.engines.local.config import ALL_LINEAR, LoraConfig
from understudy.engines.local.nf4 import Nf4Linear

EXPERT_NAMES = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Names by which peft means the experts of a mixture, which are parameters and no linear modules."""
MAMBA_TYPES = frozenset({"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"})
"""Models in which peft refuses an adapter of `out_proj`, because their kernels read its weight."""


def add_lora_adapters(
    network: PreTrainedModel, lora: LoraConfig, layers: Sequence[int], called: Collection[str] | None = None
) -> Any:
    """Add adapters to these decoder layers of the network in place. Return peft's wrapper.

    `called` are the names of all modules that a pass calls, if some are not called: their adapters would do nothing.
    """
    import peft

    targets = _targets(network, lora, called)
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in network.modules()),
        layers_to_transform=list(layers) if layers[0] else None,
    )
    with warnings.catch_warnings():  # peft reads a property that transformers renamed
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        wrapped = peft.get_peft_model(network, settings, autocast_adapter_dtype=False)
    settings.target_modules = targets  # peft's set would be written in an order that depends on the hash seed
    return wrapped


def _targets(network: PreTrainedModel, lora: LoraConfig, called: Collection[str] | None) -> list[str]:
    head = network.get_output_embeddings()
    linear = [name for name, m in network.named_modules() if _is_linear(m) and m is not head]
    names = {_short_name(name) for name in linear}
    if called is not None:
        names -= {_short_name(name) for name in linear if name not in called}
    if any(name.endswith(".experts") for name, _ in network.named_modules()):
        names -= EXPERT_NAMES
    if network.config.model_type in MAMBA_TYPES:
        names -= {"out_proj"}
    if lora.target_modules == (ALL_LINEAR,):
        return sorted(names)
    if missing := set(lora.target_modules) - names:
        text = f"this model takes no adapter of {min(missing)!r}; it takes {sorted(names)}; {ALL_LINEAR!r} selects all"
        raise ConfigError(f"engine.lora.target_modules: {text}")
    return list(lora.target_modules)


def _short_name(name: str) -> str:
    """Return the last part of a module's name, or the last two for one of a list: peft would take `0` for layer 0."""
    parts = name.split(".")
    return ".".join(parts[-2 if parts[-1].isdigit() else -1 :])


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D) and not type(module).__name__.endswith("Router")


@contextlib.contextmanager
def lora_dropout(network: nn.Module, device: torch.device, seed: int) -> Iterator[None]:
    """Enable the adapters' dropout in the block, with random numbers from `seed`. The global generator is unchanged."""
    named = [module for name, module in network.named_modules() if ".lora_dropout." in name]
    dropouts = [module for module in named if isinstance(module, nn.Dropout)]  # with dropout 0 peft adds nn.Identity
    if not dropouts:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for module in dropouts:
            module.train()
        try:
            yield
        finally:
            for module in dropouts:
                module.eval()


@torch.no_grad()
def merged_state_dict(network: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the merged weights under the names of the network without adapters, in `dtype`.

    Each adapter's product is added in float32.
    """
    from peft.tuners.lora import LoraLayer

    weights = {name.replace(".base_layer.", "."): p.detach() for name, p in network.state_dict().items()}
    for name, module in network.named_modules():
        if isinstance(module, LoraLayer):
            (adapter,) = module.scaling
            product = module.lora_B[adapter].weight.float() @ module.lora_A[adapter].weight.float()
            if isinstance(module.base_layer, Conv1D):
                product = product.T
            weights[f"{name}.weight"] = (module.base_layer.weight.float() + module.scaling[adapter] * product).to(dtype)
        elif isinstance(module, Nf4Linear) and not name.endswith(".base_layer"):
            weights[f"{name}.weight"] = module.weight
    return {name: weight for name, weight in weights.items() if ".lora_" not in name}
