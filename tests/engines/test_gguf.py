"""Tests of GGUF files: random models of each architecture, written as llama.cpp's converter writes them, are read back.

Names, head order and rope factors are written here by hand, not with the code under test.
"""

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from understudy.core.errors import ConfigError
from understudy.engines.models import find_model, gguf_file
from understudy.engines.models.tiny import TINY_CHAT_TEMPLATE, make_tiny_model
from understudy.formats import load_chat_format

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
    "max_position_embeddings": 256,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": 256,
    "rope_theta": 50000.0,
    "rms_norm_eps": 1e-5,
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
FUSED = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
GLM = {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}
LFM = {
    "operator_norm": "attn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
}
BYTE_LETTERS = [chr(b) if 33 <= b < 127 or 161 <= b < 173 or b >= 174 else "" for b in range(256)]
for place, byte in enumerate(b for b in range(256) if not BYTE_LETTERS[b]):
    BYTE_LETTERS[byte] = chr(256 + place)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
UNUSED = [f"[PAD{index}]" for index in range(260, 264)]
TOKENIZER: dict[str, Any] = {
    "model": "gpt2",
    "pre": "qwen2",
    "tokens": [*BYTE_LETTERS, *SPECIALS, "ĠĠ", *UNUSED],
    "token_type": [1] * 256 + [3] * 3 + [1] + [5] * 4,
    "merges": ["Ġ Ġ"],
    "bos_token_id": 256,
    "eos_token_id": 258,
    "padding_token_id": 256,
}


def llama3_factors(theta: float, size: int, factor: float) -> list[float]:
    """Return what llama.cpp multiplies each wavelength with: Llama 3.1's rule for 8192 tokens."""
    factors = []
    for pair in range(size // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / size)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(factor)
        else:
            share = (8192 / wavelength - 1) / 3
            factors.append(1 / ((1 - share) / factor + share))
    return factors


def pairs_first(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of each head x0 x1 ... y0 y1 ... to x0 y0 x1 y1 ..."""
    size = len(weight) // heads
    order = [
        head * size + half * size // 2 + pair for head in range(heads) for pair in range(size // 2) for half in (0, 1)
    ]
    return weight[order]


def random_model(kind: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **copy.deepcopy(SIZES | settings))  # a config changes its rope_scaling
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float(name.endswith("norm.weight")), std=0.2)
    return model.eval()


def write_value(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        add: Mapping[type, Callable[..., None]] = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        add[type(value)](key, value)


def write_gguf(
    file: Path,
    arch: str,
    model: Any,
    *,
    names: Mapping[str, str] = {},
    permuted: bool = False,
    offset: float = 0.0,
    keys: Mapping[str, Any] = {},
    tensors: Mapping[str, list[float]] = {},
    tokenizer: Mapping[str, Any] = TOKENIZER,
    quantization: GGMLQuantizationType | None = None,
) -> Path:
    """Write a model of transformers as a GGUF file."""
    config = model.config
    writer = GGUFWriter(file, arch)
    shape = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 50000.0,
    }
    for key, value in {**shape, **keys}.items():
        if value is not None:
            write_value(writer, f"{arch}.{key}", value)
    for key, value in tokenizer.items():
        write_value(writer, f"tokenizer.ggml.{key}", value)
    writer.add_chat_template(TINY_CHAT_TEMPLATE)
    for name, values in tensors.items():
        writer.add_tensor(name, torch.tensor(values).numpy())
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for gguf_name, stored in gguf_tensors(name, weight, {**LAYER, **names}):
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
            part = gguf_name.split(".")[-2]
            if permuted and part in heads:
                stored = pairs_first(stored, heads[part])
            if gguf_name.endswith("norm.weight"):
                stored = stored + offset
            if quantization is not None and stored.dim() > 1:
                writer.add_tensor(gguf_name, quantize(stored.numpy(), quantization), raw_dtype=quantization)
            else:
                writer.add_tensor(gguf_name, stored.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def gguf_tensors(name: str, weight: torch.Tensor, names: Mapping[str, str]) -> list[tuple[str, torch.Tensor]]:
    part, _, kind = name.rpartition(".")
    if part in {**TOP, "model.embedding_norm": ""}:
        return [(f"{TOP.get(part, 'token_embd_norm')}.{kind}", weight)]
    _, _, layer, inner = name.split(".", 3)
    if inner == "mlp.experts.gate_up_proj":
        gate, up = weight.chunk(2, dim=1)
        return [(f"blk.{layer}.ffn_gate_exps.weight", gate), (f"blk.{layer}.ffn_up_exps.weight", up)]
    if inner == "mlp.experts.down_proj":
        return [(f"blk.{layer}.ffn_down_exps.weight", weight)]
    if inner == "conv.conv.weight":
        weight = weight.squeeze(1)
    return [(f"blk.{layer}.{names[inner.rpartition('.')[0]]}.{kind}", weight)]


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
LINEAR_KEYS = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
LONG, SHORT = [float(n) for n in range(2, 10)], [1.0 + n / 8 for n in range(8)]
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
MOE_KEYS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
GRANITE = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
GRANITE_KEYS = {"attention.scale": 0.3, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0}
HEADS_OF_32 = {"attention.key_length": 32, "attention.value_length": 32}
SOFTCAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", {}, {"permuted": True, "keys": {"rope.dimension_count": 16, "vocab_size": 264}}),
    "llama with biases, tied": (
        "llama",
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        {"permuted": True},
    ),
    "llama 3": (
        "llama",
        "llama",
        {"rope_scaling": LLAMA3},
        {"permuted": True, "tensors": {"rope_freqs.weight": llama3_factors(50000.0, 16, 8.0)}},
    ),
    "mistral": ("llama", "mistral", {"head_dim": 32, "sliding_window": None}, {"permuted": True, "keys": HEADS_OF_32}),
    "llama, linear": (
        "llama",
        "llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"permuted": True, "keys": LINEAR_KEYS},
    ),
    "qwen2": ("qwen2", "qwen2", {}, {}),
    "qwen2, yarn": ("qwen2", "qwen2", {"rope_scaling": YARN}, {"keys": YARN_KEYS}),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 32, "tie_word_embeddings": True}, {"keys": HEADS_OF_32}),
    "qwen3moe": (
        "qwen3moe",
        "qwen3_moe",
        {"head_dim": 16, **MOE},
        {"names": {"mlp.gate": "ffn_gate_inp"}, "keys": {"attention.key_length": 16, **MOE_KEYS}},
    ),
    "gemma": (
        "gemma",
        "gemma",
        {"head_dim": 32, "rope_theta": 10000.0, "tie_word_embeddings": True},
        {"offset": 1, "keys": {**HEADS_OF_32, "rope.freq_base": None}},
    ),
    "gemma2": (
        "gemma2",
        "gemma2",
        {
            "head_dim": 32,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "sliding_window": 8,
            "query_pre_attn_scalar": 32,
            **SOFTCAPS,
        },
        {
            "names": GEMMA,
            "offset": 1,
            "keys": {**HEADS_OF_32, "rope.freq_base": None, "attention.sliding_window": 8, **SOFTCAPS},
        },
    ),
    "gemma3": (
        "gemma3",
        "gemma3_text",
        {
            "head_dim": 32,
            "num_hidden_layers": 7,
            "tie_word_embeddings": True,
            "sliding_window": 8,
            "query_pre_attn_scalar": 32,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {"names": GEMMA, "offset": 1, "keys": {**HEADS_OF_32, "attention.sliding_window": 8, **LINEAR_KEYS}},
    ),
    "phi3": ("phi3", "phi3", {}, {"names": FUSED, "keys": {"attention.sliding_window": 0, "rope.dimension_count": 16}}),
    "phi3, long, partial": (
        "phi3",
        "phi3",
        {
            "max_position_embeddings": 256,
            "original_max_position_embeddings": 32,
            "partial_rotary_factor": 0.5,
            "num_attention_heads": 2,
            "rope_scaling": {"rope_type": "longrope", "long_factor": LONG, "short_factor": SHORT},
        },
        {
            "names": FUSED,
            "keys": {"rope.dimension_count": 16, "rope.scaling.original_context_length": 32},
            "tensors": {"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT},
        },
    ),
    "smollm3": (
        "smollm3",
        "smollm3",
        {"num_hidden_layers": 5, "tie_word_embeddings": True},
        {"permuted": True, "keys": {"rope.dimension_count": 16}},
    ),
    "olmo2": (
        "olmo2",
        "olmo2",
        {},
        {"names": {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}},
    ),
    "granite": ("granite", "granite", GRANITE, {"permuted": True, "keys": GRANITE_KEYS}),
    "lfm2": (
        "lfm2",
        "lfm2",
        {
            "norm_eps": 1e-5,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": True,
        },
        {"names": LFM, "keys": {"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3}},
    ),
    "glm4": (
        "glm4",
        "glm4",
        {"head_dim": 32, "partial_rotary_factor": 0.5, "attention_bias": True},
        {"names": {**GLM, **FUSED}, "keys": {**HEADS_OF_32, "rope.dimension_count": 16}},
    ),
}
"""Name: architecture of the GGUF file, model type of transformers, settings of its config, arguments of
`write_gguf`."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def logprobs(model: Any) -> torch.Tensor:
    tokens = torch.randint(0, 256, (2, 48), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens).logits.log_softmax(-1)


def read_back(folder: Path) -> Any:
    model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(loading.values()), loading
    return model.eval()


@pytest.mark.parametrize("case", CASES)
def test_model_in_a_gguf_file_has_the_log_probabilities_of_the_original(tmp_path: Path, case: str) -> None:
    arch, kind, settings, arguments = CASES[case]
    model = random_model(kind, **settings)
    file = write_gguf(tmp_path / "model.gguf", arch, model, **arguments)
    found = read_back(find_model(str(file)))
    difference = (logprobs(found) - logprobs(model)).abs().max()
    assert difference < 1e-5
    assert model.config.tie_word_embeddings == found.config.tie_word_embeddings
    assert (logprobs(found) - logprobs(random_model(kind, **settings | {"rope_theta": 7.0}))).abs().max() > 1e-3
