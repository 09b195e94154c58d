"""Weights that a server trained, as files: LoRA adapters for peft, or the merged model."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from understudy.core.errors import ConfigError, RolloutError
from understudy.engines.local.config import LocalEngineConfig, LoraConfig
from understudy.engines.local.model import LocalModel, copy_tokenizer

ADAPTER_FILE = "adapter_model.safetensors"
LoraTensors = Mapping[str, Tensor]
"""Tensors by peft's names, such as base_model.model.model.layers.0.mlp.up_proj.lora_A.weight."""


def read_adapter_archive(archive: bytes) -> dict[str, Tensor]:
    """Return the adapters in a server's tar archive without writing them to disk."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            named = next(member for member in tar if member.isfile() and Path(member.name).name == ADAPTER_FILE)
            file = tar.extractfile(named)
            assert file is not None  # `isfile` is True, so `extractfile` does not return None
            tensors: dict[str, Tensor] = load(file.read())
            return tensors
    except (tarfile.TarError, SafetensorError, StopIteration, OSError) as e:
        raise RolloutError(f"the server's archive holds no adapters ({ADAPTER_FILE}): {e}", "engine") from e


def load_adapters(folder: Path) -> dict[str, Tensor]:
    """Return the adapters in a folder that `save_adapters` wrote."""
    try:
        tensors: dict[str, Tensor] = load_file(folder / ADAPTER_FILE)
    except (SafetensorError, OSError) as e:
        raise ConfigError(f"{folder / ADAPTER_FILE}: cannot be read as LoRA adapters: {e}") from e
    return tensors


def save_adapters(adapters: LoraTensors, lora: LoraConfig, base_folder: Path, folder: Path) -> None:
    """Write adapters of the model in `base_folder` for peft, with the model's tokenizer."""
    import peft

    folder.mkdir(parents=True, exist_ok=True)
    targets = sorted({name.rpartition(".lora_")[0].rpartition(".")[2] for name in adapters})
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=targets,
        base_model_name_or_path=str(base_folder),
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    save_file({name: tensor.contiguous() for name, tensor in adapters.items()}, folder / ADAPTER_FILE, {"format": "pt"})
    config.save_pretrained(str(folder))
    copy_tokenizer(base_folder, folder)


@torch.no_grad()
def save_merged_model(adapters: LoraTensors, lora: LoraConfig, base_folder: Path, folder: Path) -> None:
    """Write the merged model in the dtype of the model in `base_folder`."""
    model = LocalModel(
        base_folder, LocalEngineConfig(finetune="lora", lora=lora, device="cpu", dtype=weights_dtype(base_folder))
    )
    for name, weight in model.trainable_parameters().items():
        weight.copy_(adapters[to_peft_name(name)])
    model.export(folder, merge_adapters=True)


def to_peft_name(name: str) -> str:
    """Return peft's name in files for a weight of an adapted network."""
    return f"base_model.model.{name.replace('.default.', '.')}"


def weights_dtype(base_folder: Path) -> Literal["float32", "bfloat16"]:
    """Return the dtype of a model's weights from its config. Every dtype but float32 is trained as bfloat16."""
    config = json.loads((base_folder / "config.json").read_text(encoding="utf-8"))
    named = config.get("dtype") or config.get("torch_dtype")
    return "float32" if named == "float32" else "bfloat16"
