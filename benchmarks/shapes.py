"""Models with random weights in the shapes of published ones, made from a config without a download.

    python benchmarks/shapes.py 7b FOLDER                  # 15 GB of bfloat16 weights, and a small tokenizer
    python benchmarks/shapes.py 7b FOLDER --device cuda    # the same, drawn on a GPU, which is faster

Speed and memory depend on the shape, not on the values of weights.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.engines.models import find_model, make_tiny_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

QWEN = {"num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": True}
SHAPES = {
    "0.5b": QWEN | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "3b": QWEN | {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16},
    "7b": QWEN
    | {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    | {"num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
}
"""The sizes in config.json of Qwen2.5-0.5B-Instruct, Qwen2.5-3B-Instruct and Qwen2.5-7B-Instruct."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def build(shape: str, device: str) -> "PreTrainedModel":
    """Return a model with random bfloat16 weights, drawn on `device`; on `meta` it has no weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **SHAPES[shape]), dtype=torch.bfloat16)


def write_model(folder: Path, shape: str, device: str = "cpu") -> Path:
    """Write a model with random weights, drawn on `device`. `tiny` is the tiny model of the tests.

    The tokenizer is that of SmolLM2, whose ids are a part of the vocabulary. Other trainers and vLLM need one.
    """
    if shape == "tiny":
        return make_tiny_model(folder)
    build(shape, device).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy(find_model("smollm2-135m") / name, folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=[*SHAPES, "tiny"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where weights are drawn")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps({"folder": str(write_model(arguments.folder, arguments.shape, arguments.device))}))


if __name__ == "__main__":
    main()
