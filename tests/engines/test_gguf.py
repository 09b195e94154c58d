"""Tests of GGUF files: random models of each architecture, written as llama.cpp's converter writes them, are read back.

Names, head order and rope factors are written here by hand, not with the code under test. llama.cpp itself computed the
same log-probabilities from these files, but for its rounding (a difference of at most 0.08, of 0.01 in most).
"""

import copy
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.engines.models import find_local_model, find_model, find_model_config, gguf_writer
from understudy.engines.models.gguf_tokenizer import build_tokenizer, chat_templates, validate_tokenizer
from understudy.engines.models.gguf_writer import GGUFType
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
    head: GGMLQuantizationType | None = None,
) -> Path:
    """Write a model of transformers as a GGUF file, perhaps with another quantization of its output head."""
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
            kind = head if head is not None and gguf_name == "output.weight" else quantization
            if kind is not None and stored.dim() > 1:
                writer.add_tensor(gguf_name, quantize(stored.numpy(), kind), raw_dtype=kind)
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
            "keys": {
                "rope.dimension_count": 16,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.attn_factor": math.sqrt(1 + math.log(256 / 32) / math.log(32)),
            },
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


def gguf_of_case(file: Path, case: str = "qwen2", **changes: Any) -> Path:
    arch, kind, settings, arguments = CASES[case]
    return write_gguf(file, arch, random_model(kind, **settings), **arguments | changes)


@pytest.mark.parametrize("quantization", ["Q8_0", "Q5_0", "BF16"])
def test_quantized_weights_are_those_of_the_file_in_bfloat16(tmp_path: Path, quantization: str) -> None:
    kind = GGMLQuantizationType[quantization]
    found = read_back(find_model(str(gguf_of_case(tmp_path / "model.gguf", quantization=kind))))
    original = random_model("qwen2").state_dict()
    for name, weight in found.state_dict().items():
        stored = original[name]
        if stored.dim() > 1:
            stored = torch.from_numpy(dequantize(quantize(stored.numpy(), kind), kind).copy())
        assert torch.equal(weight, stored.bfloat16().float()), name


@pytest.mark.parametrize(
    ("embeddings", "head", "changed_row", "tied"),
    [
        ("Q8_0", "Q5_0", False, True),
        ("F32", "F32", True, False),
        ("Q8_0", "Q8_0", True, False),
        ("Q8_0", "Q8_0", False, True),
    ],
)
def test_head_that_is_the_embeddings_but_for_rounding_is_tied(
    tmp_path: Path, embeddings: str, head: str, changed_row: bool, tied: bool
) -> None:
    model = random_model("qwen2")
    model.lm_head.weight.data = model.model.embed_tokens.weight.data.clone()
    model.lm_head.weight.data[257] *= 1 + changed_row
    kinds = {"quantization": GGMLQuantizationType[embeddings], "head": GGMLQuantizationType[head]}
    found = read_back(find_model(str(write_gguf(tmp_path / "model.gguf", "qwen2", model, **kinds))))
    assert found.config.tie_word_embeddings == tied


def test_split_model_is_read_from_any_part_and_needs_all(tmp_path: Path) -> None:
    whole = find_model(str(gguf_of_case(tmp_path / "whole.gguf")))
    split_gguf(tmp_path / "whole.gguf", [tmp_path / f"part-{n:05}-of-00003.gguf" for n in (1, 2, 3)])
    for part in (1, 3):
        folder = find_model(str(tmp_path / f"part-{part:05}-of-00003.gguf"))
        assert folder.name.startswith("part-")
        for file in ("model.safetensors", "config.json", "tokenizer.json"):
            assert (folder / file).read_bytes() == (whole / file).read_bytes()
    (tmp_path / "part-00002-of-00003.gguf").unlink()
    with pytest.raises(ConfigError, match=r"part-00002-of-00003\.gguf"):
        find_model(str(tmp_path / "part-00001-of-00003.gguf"))


def split_gguf(file: Path, parts: list[Path]) -> None:
    """Split a file as llama-gguf-split does: all keys in the first part, the tensors over all."""
    reader = GGUFReader(file)
    for number, part in enumerate(parts):
        writer = GGUFWriter(part, reader.fields["general.architecture"].contents())
        for key, entry in reader.fields.items() if number == 0 else ():
            if not key.startswith("GGUF.") and key != "general.architecture":
                value = entry.contents()
                write_value(writer, key, value)
        write_value(writer, "split.no", number)
        write_value(writer, "split.count", len(parts))
        for tensor in reader.tensors[number :: len(parts)]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def test_converted_folder_is_made_once_and_again_for_another_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = gguf_of_case(tmp_path / "model.gguf")
    first = find_model(str(file))
    assert str(file) in capsys.readouterr().err
    assert find_model(str(file)) == first
    assert find_local_model(str(file)) == find_model_config(str(file)) == first
    assert capsys.readouterr().err == ""
    gguf_of_case(file, "qwen3")
    assert find_model(str(file)) != first
    assert first.is_dir()


def test_unchanged_file_and_its_folder_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = gguf_of_case(tmp_path / "model.gguf")
    first = find_model(str(file))
    read: list[Path] = []
    monkeypatch.setattr("understudy.engines.models.folder.sha256", lambda path: read.append(path) or "")
    assert find_model(str(file)) == first
    assert read == []


def test_file_of_equal_size_and_a_damaged_folder_are_converted_again(tmp_path: Path) -> None:
    file = gguf_of_case(tmp_path / "model.gguf")
    first = find_model(str(file))
    content = bytearray(file.read_bytes())
    content[-100:] = bytes(100)
    file.write_bytes(content)
    second = find_model(str(file))
    weights, expected = (folder / "model.safetensors" for folder in (first, second))
    assert weights.read_bytes() != expected.read_bytes()
    copied = expected.read_bytes()
    expected.write_bytes(bytes(len(copied)))
    assert (find_model(str(file)) / "model.safetensors").read_bytes() == copied


def test_copied_cache_is_not_converted_again(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = gguf_of_case(tmp_path / "model.gguf")
    find_model(str(file))
    shutil.copytree(cache, tmp_path / "copy", copy_function=shutil.copyfile)
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "copy"))
    capsys.readouterr()
    assert (find_model(str(file)) / "config.json").is_file()
    assert capsys.readouterr().err == ""


def test_large_weights_are_written_to_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.engines.models.folder.SHARD_BYTES", 50_000)
    folder = find_model(str(gguf_of_case(tmp_path / "model.gguf")))
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    assert torch.equal(logprobs(read_back(folder)), logprobs(random_model("qwen2")))


def test_disk_that_is_too_small_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = gguf_of_case(tmp_path / "model.gguf")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"model\.gguf.*0\.0 GB left.*UNDERSTUDY_CACHE"):
        find_model(str(file))
    assert not list(tmp_path.rglob("*.safetensors"))


UNLIKE_LLAMA_3 = {"rope_freqs.weight": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"arch": "mamba"}, ["'mamba'", "qwen3moe"]),
        ({"arch": "clip"}, ["'clip'", "llama"]),
        ({"keys": {"expert_count": 8}}, ["qwen2.expert_count = 8"]),
        ({"keys": {"attention.causal": False}}, ["qwen2.attention.causal = False"]),
        ({"keys": {"block_count": None}}, ["qwen2.block_count"]),
        ({"keys": {"feed_forward_length": [96, 48]}}, ["qwen2.feed_forward_length = [96, 48]"]),
        ({"keys": {"attention.head_count": 0}}, ["qwen2.attention.head_count = 0"]),
        ({"keys": {"block_count": 3}}, ["blk.2.attn_k.bias"]),
        ({"keys": {"block_count": 1}}, ["blk.1.attn_k.bias"]),
        ({"keys": {"feed_forward_length": 100}}, ["blk.0.ffn_gate.weight", "(96, 64)", "(100, 64)"]),
        ({"keys": {"rope.dimension_count": 8}}, ["qwen2"]),
        ({"keys": {"rope.scaling.type": "ntk"}}, ["'ntk'", "yarn"]),
        ({"tensors": {"blk.0.attn_sinks.weight": [1.0]}}, ["blk.0.attn_sinks.weight"]),
        ({"tensors": UNLIKE_LLAMA_3}, ["rope_freqs.weight"]),
        ({"tokenizer": {}}, ["tokenizer.ggml.tokens"]),
        ({"tokenizer": TOKENIZER | {"model": "bert"}}, ["tokenizer.ggml.model", "'bert'", "gpt2"]),
        ({"tokenizer": TOKENIZER | {"pre": "viking"}}, ["tokenizer.ggml.pre", "'viking'", "llama-bpe"]),
        ({"tokenizer": TOKENIZER | {"merges": ["a bc"]}}, ["'a bc'"]),
        ({"tokenizer": TOKENIZER | {"eos_token_id": 400}}, ["400", "264"]),
        ({"tokenizer": TOKENIZER | {"tokens": [*TOKENIZER["tokens"], "a", "b"]}}, ["266", "264"]),
    ],
)
def test_file_that_is_not_supported_is_named_in_one_line(
    tmp_path: Path, changes: dict[str, Any], named: list[str]
) -> None:
    file = write_gguf(tmp_path / "model.gguf", changes.pop("arch", "qwen2"), random_model("qwen2"), **changes)
    with pytest.raises(ConfigError) as error:
        find_model(str(file))
    assert all(name in str(error.value) for name in [*named, str(file)])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["text", "half", "start", "empty"])
def test_damaged_file_is_named_in_one_line(tmp_path: Path, damage: str) -> None:
    file = gguf_of_case(tmp_path / "model.gguf")
    content = file.read_bytes()
    file.write_bytes(
        {"text": b"weights", "half": content[: len(content) // 2], "start": content[:300], "empty": b""}[damage]
    )
    with pytest.raises(ConfigError, match=r"model\.gguf") as error:
        find_model(str(file))
    assert "\n" not in str(error.value)


def test_missing_gguf_file_and_folder_with_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.gguf"):
        find_model("no.gguf")
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ConfigError, match=r"model=.*a\.gguf"):
        find_model(str(tmp_path))


# --- the tokenizer


def tokenizer_of(meta: Mapping[str, Any], arch: str = "llama") -> Any:
    full = {f"tokenizer.ggml.{key}": value for key, value in meta.items()} | {"general.architecture": arch}
    validate_tokenizer(full, "model.gguf", 300)
    return build_tokenizer(full)


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "ab 123  x\n", "ab Ġ123 Ġ Ġx Ċ"),
        ("smollm", "ab 123  x\n", "ab Ġ 1 2 3 Ġ Ġx Ċ"),
        ("qwen2", "it'S 12e\u0301\n\n  x", "it 'S Ġ 1 2 Ã© ĊĊ Ġ Ġx"),
        ("llama-bpe", "it'S 1234(x)\n", "it 'S Ġ 123 4 (x )Ċ"),
        ("tekken", "HelloWorld 12's/\n", "Hello World Ġ 1 2 's /Ċ"),
        ("gpt-4o", "HelloWorld's 1234/\n", "Hello World's Ġ 123 4 /Ċ"),
    ],
)
def test_pre_tokenizer_splits_as_the_one_of_its_name(pre: str, text: str, pieces: str) -> None:
    tokenizer = tokenizer_of(TOKENIZER | {"pre": pre})
    normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)] == pieces.split(" ")


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁a", "<|x|>"]
SENTENCEPIECE: dict[str, Any] = {
    "model": "llama",
    "tokens": PIECES,
    "token_type": [2, 3, 3, *[6] * 256, *[1] * 5, 4],
    "scores": [0.0] * 259 + [-5.0, -6.0, -7.0, -2.0, -1.0, 0.0],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "unknown_token_id": 0,
}


@pytest.mark.parametrize(
    ("prefix", "text", "pieces"),
    [
        (True, "ab a", "<s> ▁a b ▁a"),  # ▁a has a better score than ab
        (False, "ab a", "<s> ab ▁a"),
        (False, "é<|x|>a", "<s> <0xC3> <0xA9> <|x|> a"),
        (False, "a</s>", "<s> a </s>"),
    ],
)
def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(prefix: bool, text: str, pieces: str) -> None:
    tokenizer = tokenizer_of(SENTENCEPIECE | {"add_space_prefix": prefix})
    encoded = tokenizer.encode(text)
    assert encoded.tokens == pieces.split(" ")
    assert tokenizer.decode(encoded.ids[1:], skip_special_tokens=False) == text


def test_control_tokens_of_phi3_absorb_the_space_after_them() -> None:
    tokenizer = tokenizer_of(SENTENCEPIECE | {"add_space_prefix": False}, "phi3")
    assert tokenizer.encode("</s> a").ids == [1, 2, PIECES.index("a")]


def test_round_trip_of_a_reply_and_the_end_of_turn(tmp_path: Path) -> None:
    tokenizer = TOKENIZER | {"eos_token_id": 256, "eot_token_id": 258}
    folder = find_model(str(gguf_of_case(tmp_path / "model.gguf", tokenizer=tokenizer)))
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [256, 258]
    format = load_chat_format(folder)
    reply = Message(role="assistant", content="Søren  42", tool_calls=(ToolCall(name="f", arguments={"x": "é"}),))
    parsed = format.parse(format.encode_reply(reply)).message
    assert (parsed.content, parsed.tool_calls[0].arguments) == (reply.content, {"x": "é"})
    tiny = load_chat_format(make_tiny_model(tmp_path / "tiny"))
    assert format.encode([Message(role="user", content="hi")], (), ()) == tiny.encode(
        [Message(role="user", content="hi")], (), ()
    )


def test_named_chat_templates_are_kept(tmp_path: Path) -> None:
    templates = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"}
    assert chat_templates(templates) == [
        {"name": "default", "template": "a"},
        {"name": "tool_use", "template": "b"},
    ]
    assert chat_templates({}) == ""


# --- export


def export(folder: Path, file: Path, kind: GGUFType = "f32") -> GGUFReader:
    gguf_writer.write_gguf(folder, file, kind)
    return GGUFReader(file)


def contents(reader: GGUFReader) -> dict[str, Any]:
    return {key: entry.contents() for key, entry in reader.fields.items() if not key.startswith("GGUF.")}


@pytest.mark.parametrize("case", CASES)
def test_exported_file_is_the_one_that_was_imported(tmp_path: Path, case: str) -> None:
    arch, kind, settings, arguments = CASES[case]
    model = random_model(kind, **settings)
    original = GGUFReader(write_gguf(tmp_path / "model.gguf", arch, model, **arguments))
    folder = find_model(str(tmp_path / "model.gguf"))
    exported = export(folder, tmp_path / "exported.gguf")
    for key, value in contents(original).items():
        assert contents(exported)[key] == pytest.approx(value), key
    ours, theirs = ({tensor.name: tensor.data for tensor in reader.tensors} for reader in (exported, original))
    assert ours.keys() == theirs.keys()
    for name, data in theirs.items():
        assert ours[name] == pytest.approx(data, rel=1e-6), name
    (tmp_path / "theirs").mkdir()
    model.save_pretrained(tmp_path / "theirs")  # its config has the names of transformers
    for path in folder.glob("tokenizer*"):
        shutil.copy(path, tmp_path / "theirs")
    export(tmp_path / "theirs", tmp_path / "again.gguf")
    difference = logprobs(read_back(find_model(str(tmp_path / "again.gguf")))) - logprobs(model)
    assert difference.abs().max() < 1e-5


def test_head_of_its_own_is_exported_although_the_config_ties_it(tmp_path: Path) -> None:
    folder = find_model(str(gguf_of_case(tmp_path / "model.gguf", "qwen3")))
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].roll(1, 0).clone()
    own = shutil.copytree(folder, tmp_path / "own")
    save_file(weights, own / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((own / "config.json").read_text()) | {"tie_word_embeddings": True}
    (own / "config.json").write_text(json.dumps(config))
    export(own, tmp_path / "own.gguf")
    assert (logprobs(read_back(find_model(str(tmp_path / "own.gguf")))) - logprobs(read_back(own))).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_matrices_are_rounded_to_the_type_of_the_file(tmp_path: Path, kind: GGUFType) -> None:
    model = random_model("qwen2")
    folder = find_model(str(write_gguf(tmp_path / "model.gguf", "qwen2", model)))
    exported = export(folder, tmp_path / "exported.gguf", kind)
    wanted, weights = GGMLQuantizationType[kind.upper()], load_file(folder / "model.safetensors")
    for tensor in exported.tensors:
        if tensor.name.startswith("blk.0.ffn_down"):
            original = weights["model.layers.0.mlp.down_proj.weight"].numpy()
            assert tensor.tensor_type == wanted
            assert np.array_equal(dequantize(tensor.data, wanted), dequantize(quantize(original, wanted), wanted))
        is_vector = len(tensor.shape) == 1
        assert tensor.tensor_type == (GGMLQuantizationType.F32 if is_vector else wanted)
    found = read_back(find_model(str(tmp_path / "exported.gguf")))
    assert 0 < (logprobs(found) - logprobs(model)).abs().max() < 1.5


def test_rows_that_blocks_of_32_do_not_divide_are_f16(tmp_path: Path) -> None:
    model = random_model("qwen2", intermediate_size=100)
    folder = find_model(str(write_gguf(tmp_path / "model.gguf", "qwen2", model, keys={"feed_forward_length": 100})))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in export(folder, tmp_path / "a.gguf", "q8_0").tensors}
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe", "dbrx", "tekken", "gpt-4o"])
def test_exported_tokenizer_has_the_pre_tokenizer_that_splits_alike(tmp_path: Path, pre: str) -> None:
    tokenizer = TOKENIZER | {"pre": pre, "eos_token_id": 256, "eot_token_id": 258}
    folder = find_model(str(gguf_of_case(tmp_path / "model.gguf", tokenizer=tokenizer)))
    keys = contents(export(folder, tmp_path / "exported.gguf"))
    assert {key: keys[f"tokenizer.ggml.{key}"] for key in tokenizer} == tokenizer
    assert keys["tokenizer.ggml.add_bos_token"] == (pre in ("llama-bpe", "tekken"))
    assert keys["tokenizer.chat_template"] == TINY_CHAT_TEMPLATE


@pytest.mark.parametrize("prefix", [True, False])
def test_exported_sentencepiece_merges_alike(tmp_path: Path, prefix: bool) -> None:
    tokenizer = SENTENCEPIECE | {"add_space_prefix": prefix}
    model = random_model("llama", vocab_size=len(PIECES), pad_token_id=None)
    folder = find_model(str(write_gguf(tmp_path / "model.gguf", "llama", model, permuted=True, tokenizer=tokenizer)))
    keys = contents(export(folder, tmp_path / "exported.gguf"))
    for key in ("model", "tokens", "token_type", "add_space_prefix", "bos_token_id", "unknown_token_id"):
        assert keys[f"tokenizer.ggml.{key}"] == tokenizer[key], key
    one, other = (
        Tokenizer.from_file(str(find_model(str(file)) / "tokenizer.json")) for file in tmp_path.glob("*.gguf")
    )
    for text in ("ab a", "é<|x|>a", "a</s>aab b"):
        assert one.encode(text).ids == other.encode(text).ids


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        ("gpt2", {}, ["'gpt2'", "qwen3_moe", "folder"]),
        ("mistral", {"sliding_window": 8}, ["sliding_window = 8", "--gguf", "exported.gguf"]),
        ("llama", {"hidden_act": "gelu"}, ["hidden_act = 'gelu'", "--gguf"]),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ["rope_parameters", "dynamic"]),
        (
            "gemma3_text",
            {"layer_types": ["full_attention", "sliding_attention"]},
            ["layer_types[0] = 'full_attention'"],
        ),
    ],
)
def test_model_that_gguf_cannot_store_is_named_in_one_line(
    tmp_path: Path, kind: str, settings: dict[str, Any], named: list[str]
) -> None:
    tokenizer = find_model(str(gguf_of_case(tmp_path / "model.gguf")))
    random_model(kind, **settings).save_pretrained(tmp_path / "folder")
    for path in tokenizer.glob("tokenizer*"):
        shutil.copy(path, tmp_path / "folder")
    with pytest.raises(ConfigError) as error:
        export(tmp_path / "folder", tmp_path / "exported.gguf")
    assert all(name in str(error.value) for name in named)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("exported*"))


def test_tokenizer_that_gguf_cannot_name_is_named_in_one_line(tmp_path: Path) -> None:
    folder = find_model(str(gguf_of_case(tmp_path / "model.gguf")))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), tokenizer.pre_tokenizer])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"tokenizer.*qwen2") as error:
        export(folder, tmp_path / "exported.gguf")
    assert "\n" not in str(error.value)


if "QWEN_GGUF" in os.environ:  # a file of 0.5 GB, and the folder QWEN_FOLDER that other code made of it

    def test_real_file_equals_a_folder_made_by_other_code() -> None:
        ours, theirs = find_model(os.environ["QWEN_GGUF"]), Path(os.environ["QWEN_FOLDER"])
        weights, expected = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in weights)
        one, other = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (ours, theirs))
        for text in (
            "It's 12345",
            "e\u0301 ½ 日本 🎉\r\n\t x",
            "<|im_start|>user\n<tool_call>{}",
            Path(__file__).read_text(),
        ):
            assert one.encode(text).ids == other.encode(text).ids
        name = "chat_template"
        configs = [json.loads((folder / "tokenizer_config.json").read_text())[name] for folder in (ours, theirs)]
        assert configs[0] == configs[1]
