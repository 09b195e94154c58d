"""Low-rank adapters in a network: put there, seeded in what they drop, and merged into the weights."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from understudy.engines.local.config import ALL_LINEAR, Lora
from understudy.engines.local.nf4 import Nf4Linear
from understudy.errors import ConfigError


def adapt(network: PreTrainedModel, lora: Lora) -> Any:
    """The network with adapters put into it; returned is peft's handle on them."""
    import peft

    settings = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=_targets(network, lora)
    )
    with warnings.catch_warnings():  # peft reads a property that transformers has renamed
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return peft.get_peft_model(network, settings, autocast_adapter_dtype=False)


def _targets(network: PreTrainedModel, lora: Lora) -> list[str]:
    head = network.get_output_embeddings()
    linear = [name for name, m in network.named_modules() if isinstance(m, nn.Linear) and m is not head]
    names = sorted({name.rpartition(".")[2] for name in linear})
    if lora.targets == (ALL_LINEAR,):
        return names
    if missing := set(lora.targets) - set(names):
        text = f"no module {min(missing)!r} in this model; it has {names}, which {ALL_LINEAR!r} alone names all"
        raise ConfigError(f"engine.lora.targets: {text}")
    return list(lora.targets)


@contextlib.contextmanager
def dropping(network: nn.Module, device: torch.device, seed: int) -> Iterator[None]:
    """Adapters drop inputs inside the block, chosen by the seed; the process's random numbers stay as they are."""
    named = [module for name, module in network.named_modules() if ".lora_dropout." in name]
    dropouts = [module for module in named if isinstance(module, nn.Dropout)]  # where nothing is dropped, peft has none
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
def merged(network: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights that the network multiplies by, under the names of one without adapters and in its dtype.

    Each adapter's product is added in float32.
    """
    from peft.tuners.lora import LoraLayer

    weights = {name.replace(".base_layer.", "."): p.detach() for name, p in network.state_dict().items()}
    for name, module in network.named_modules():
        if isinstance(module, LoraLayer):
            (adapter,) = module.scaling
            product = module.lora_B[adapter].weight.float() @ module.lora_A[adapter].weight.float()
            weights[f"{name}.weight"] = (module.base_layer.weight.float() + module.scaling[adapter] * product).to(dtype)
        elif isinstance(module, Nf4Linear) and not name.endswith(".base_layer"):
            weights[f"{name}.weight"] = module.weight
    return {name: weight for name, weight in weights.items() if ".lora_" not in name}
