"""A tiny model with tokens for calls that it was never trained on."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from understudy.engines.models import make_tiny_model

CALL_TOKENS = {259: "<tool_call>", 260: "</tool_call>"}


def make_model_with_untrained_calls(folder: Path, tied: bool = True) -> Path:
    """Write the tiny model with the tokens of `CALL_TOKENS`. Their rows equal those of the padding, 261 to 263.

    If it is not `tied`, its head has rows of its own, and the rows of unused tokens in the embeddings are small.
    """
    make_tiny_model(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokenizer["added_tokens"] += [{"id": token, "content": text, **plain} for token, text in CALL_TOKENS.items()]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    weights = load_file(folder / "model.safetensors")
    embeddings = weights["model.embed_tokens.weight"]
    embeddings[259:] = embeddings[263]
    if not tied:
        weights["lm_head.weight"] = torch.cat([embeddings[:259].roll(1, 0), embeddings[259:]])
        embeddings[259:] = 1e-3 * torch.randn(5, embeddings.shape[1], generator=torch.Generator().manual_seed(0))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
