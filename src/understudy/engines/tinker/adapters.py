"""What a server has trained, as files: its LoRA adapters as peft reads them, or the whole model with them in it."""

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

from understudy.engines.local.config import LocalConfig, Lora
from understudy.engines.local.model import BESIDE_WEIGHTS, Model
from understudy.errors import ConfigError, RolloutError

WEIGHTS = "adapter_model.safetensors"
Adapters = Mapping[str, Tensor]
"""By peft's names, such as base_model.model.model.layers.0.mlp.up_proj.lora_A.weight."""


def unpacked(archive: bytes) -> dict[str, Tensor]:
    """The adapters in an archive as servers give it; nothing of it is written anywhere."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            named = next(member for member in tar if member.isfile() and Path(member.name).name == WEIGHTS)
            file = tar.extractfile(named)
            assert file is not None  # it is a file
            tensors: dict[str, Tensor] = load(file.read())
            return tensors
    except (tarfile.TarError, SafetensorError, StopIteration, OSError) as e:
        raise RolloutError(f"the server's archive holds no adapters ({WEIGHTS}): {e}", "engine") from e


def kept(folder: Path) -> dict[str, Tensor]:
    """The adapters in a folder that `save` has written."""
    try:
        tensors: dict[str, Tensor] = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as e:
        raise ConfigError(f"{folder / WEIGHTS}: no adapters of a Tinker server: {e}") from e
    return tensors


def save(adapters: Adapters, lora: Lora, base: Path, folder: Path) -> None:
    """Write adapters of the model in `base` as peft reads them, with the model's tokenizer."""
    import peft

    folder.mkdir(parents=True, exist_ok=True)
    targets = sorted({name.rpartition(".lora_")[0].rpartition(".")[2] for name in adapters})
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=targets,
        base_model_name_or_path=str(base),
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    save_file({name: tensor.contiguous() for name, tensor in adapters.items()}, folder / WEIGHTS, {"format": "pt"})
    config.save_pretrained(str(folder))
    _copy_tokenizer(base, folder)


@torch.no_grad()
def save_merged(adapters: Adapters, lora: Lora, base: Path, folder: Path) -> None:
    """Write the whole model, in the dtype that it has in `base`, with the adapters in its weights."""
    model = Model(base, LocalConfig(finetune="lora", lora=lora, device="cpu", dtype=dtype(base)))
    for name, weight in model.trainable().items():
        weight.copy_(adapters[peft_name(name)])
    model.export(folder, merged=True)


def peft_name(name: str) -> str:
    """What peft's files call a weight of an adapted network."""
    return f"base_model.model.{name.replace('.default.', '.')}"


def dtype(base: Path) -> Literal["float32", "bfloat16"]:
    """The dtype of a model's weights as its config says; those of less precision are bfloat16."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    named = config.get("dtype") or config.get("torch_dtype")
    return "float32" if named == "float32" else "bfloat16"


def _copy_tokenizer(base: Path, folder: Path) -> None:
    for pattern in BESIDE_WEIGHTS:
        for path in base.glob(pattern):
            (folder / path.name).write_bytes(path.read_bytes())
