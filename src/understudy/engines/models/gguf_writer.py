"""A model folder becomes one GGUF file, which llama.cpp and Ollama load.

A file is written, read back with `gguf_file`, and compared with the folder's config and tokenizer: what the format
cannot store, such as another RoPE, is an error.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.files import atomic_file
from understudy.engines.models import gguf_tokenizer as reader
from understudy.engines.models.gguf_file import FAMILIES, KEYS, OPTIONAL_KEYS, YARN_KEYS, named_tensors, read_gguf
from understudy.formats.jinja import read_chat_template, read_special_tokens

if TYPE_CHECKING:
    import torch
    from gguf import GGMLQuantizationType
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig, PreTrainedModel

GGUFType = Literal["f32", "f16", "bf16", "q8_0"]
"""How the matrices of a file are stored. Vectors are always float32."""
_FILE_TYPES: Mapping[GGUFType, int] = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
"""Values of llama.cpp's enum llama_ftype."""
_ARCHITECTURES = {family.model_type: arch for arch, family in FAMILIES.items()} | {"mistral": "llama"}
_FLOAT32_TENSORS = ("ffn_gate_inp", "shortconv.conv")
"""Matrices that llama.cpp reads in float32 only."""
_PROBE = (
    "It's 12345 O'Brien's  HelloWorld\tcamelCase(x_1, y)\n\n   {\"a\": [1, -2.5e10]};\r\n// don't/WON'T 日本語 한국어 "
    "مرحبا नमस्ते 👩\u200d👧 ½ ¿qué? naïve…   \n\n\n \n<|x|> </tool>\t\t  end "
)
"""A text that the tokenizers of `SPLITTINGS` split differently."""
_COMPUTED = (
    *("hidden_act", "hidden_activation", "rms_norm_eps", "norm_eps", "num_attention_heads", "num_key_value_heads"),
    *("rope_parameters", "no_rope_layers", "layer_types", "sliding_window", "use_bidirectional_attention"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "num_experts_per_tok"),
    *("norm_topk_prob", "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"),
)
"""Names in `config.json` of what a model computes with, and the names and shapes of its tensors do not show."""


def find_architecture(folder: Path) -> str:
    """Return the name of llama.cpp for the architecture of the model in a folder.

    Raise ConfigError if it is not supported.
    """
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    if kind not in _ARCHITECTURES:
        known = did_you_mean(kind, _ARCHITECTURES)
        raise ConfigError(f"{folder}: GGUF files of its model type are not supported: {known}")
    return _ARCHITECTURES[kind]


def write_gguf(folder: Path, file: Path, kind: GGUFType) -> None:
    """Write the model in `folder`, with its tokenizer and chat template, to the new file `file`.

    Raise ConfigError if GGUF has no place for something in it.
    """
    from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFWriter
    from gguf.quants import quant_shape_to_byte_shape, quantize
    from transformers import AutoModelForCausalLM

    arch = find_architecture(folder)
    tokenizer = _load_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    # A folder may have a head of its own although its config ties it.
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    model.config.tie_word_embeddings = embeddings.weight is head.weight
    with atomic_file(file) as unfinished:
        writer = GGUFWriter(unfinished, arch)
        writer.add_name(file.stem)
        writer.add_file_type(_FILE_TYPES[kind])
        writer.add_quantization_version(GGML_QUANT_VERSION)
        values = {f"{arch}.{key}": value for key, value in _model_keys(arch, model).items()}
        for key, value in {**values, **_tokenizer_keys(folder, tokenizer, model)}.items():
            _add_value(writer, key, value)
        tensors = {**_rope_factors(model.config), **{name: weight for name, _, weight in named_tensors(arch, model)}}
        types = {name: _type(name, weight, GGMLQuantizationType[kind.upper()]) for name, weight in tensors.items()}
        for name, weight in tensors.items():
            shape = weight.squeeze(1).shape if "shortconv.conv" in name else weight.shape
            size = math.prod(quant_shape_to_byte_shape(shape, types[name]))
            writer.add_tensor_info(name, shape, "float32", size, raw_dtype=types[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, weight in tensors.items():
            writer.write_tensor_data(quantize(_stored(arch, name, weight, model.config).numpy(), types[name]))
        writer.close()
        if problem := next(_differences(unfinished, model, tokenizer), ""):
            raise ConfigError(f"{file}: a GGUF file cannot store the model's {problem}; export it without --gguf")


def _add_value(writer: Any, key: str, value: Any) -> None:
    # The order matters: a bool is an int. llama.cpp reads no signed integers.
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds.get(type(value), writer.add_array)(key, value)


def _type(name: str, weight: "torch.Tensor", wanted: "GGMLQuantizationType") -> "GGMLQuantizationType":
    from gguf import GGMLQuantizationType

    if weight.dim() == 1 or any(part in name for part in _FLOAT32_TENSORS):
        return GGMLQuantizationType.F32
    fits = wanted is not GGMLQuantizationType.Q8_0 or weight.shape[-1] % 32 == 0
    return wanted if fits else GGMLQuantizationType.F16


def _stored(arch: str, name: str, weight: "torch.Tensor", config: "PretrainedConfig") -> "torch.Tensor":
    """Return the values of a tensor as llama.cpp stores them, in float32."""
    family, part, weight = FAMILIES[arch], name.split(".")[-2], weight.float()
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    if family.permutes_heads and part in heads:
        pairs = weight.reshape(heads[part], 2, len(weight) // heads[part] // 2, -1)
        weight = pairs.transpose(1, 2).reshape(weight.shape)
    if name.endswith("norm.weight"):
        weight = weight + family.norm_offset
    return weight.squeeze(1).contiguous() if "shortconv.conv" in name else weight.contiguous()


# ---- keys of the model ----


def _model_keys(arch: str, model: "PreTrainedModel") -> dict[str, Any]:
    """Return the keys of a file that describe the model, without the architecture before them."""
    config = model.config
    names = {**KEYS, **OPTIONAL_KEYS, **FAMILIES[arch].keys}
    found = {key: getattr(config, name, None) for key, name in names.items()}
    rope = _rope(config)
    rotary = rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    found |= dict.fromkeys(("attention.key_length", "attention.value_length"), size)
    found |= {
        "vocab_size": config.vocab_size,
        "rope.dimension_count": int(size * rotary),
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if arch == "phi3":
        found["attention.sliding_window"] = config.sliding_window or 0
    if arch == "gemma3":
        found["rope.freq_base_swa"] = float(config.rope_parameters["sliding_attention"]["rope_theta"])
    if arch == "lfm2":
        found["attention.layer_norm_rms_epsilon"] = config.norm_eps
        found["feed_forward_length"] = len(model.model.layers[0].feed_forward.w1.weight)
        heads = config.num_key_value_heads
        found["attention.head_count_kv"] = [heads * (kind == "full_attention") for kind in config.layer_types]
    if (kind := rope["rope_type"]) in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    found |= {f"rope.scaling.{key}": rope.get(name) for key, name in YARN_KEYS.items() if kind == "yarn"}
    if kind in ("yarn", "longrope"):
        length = rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
        found["rope.scaling.original_context_length"] = length
    if kind == "longrope":
        factor = config.max_position_embeddings / length
        found["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    return {key: value for key, value in found.items() if value is not None}


def _rope(config: "PretrainedConfig") -> dict[str, Any]:
    rope: dict[str, Any] = config.rope_parameters
    return dict(rope.get("full_attention", rope))


def _rope_factors(config: "PretrainedConfig") -> "dict[str, torch.Tensor]":
    """Return the tensors by which llama.cpp divides the frequencies of RoPE."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = _rope(config)
    if rope["rope_type"] == "longrope":
        return {f"rope_factors_{name}.weight": torch.tensor(rope[f"{name}_factor"]) for name in ("long", "short")}
    if rope["rope_type"] == "llama3":
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        plain = rope["rope_theta"] ** -(torch.arange(len(scaled), dtype=torch.float32) / len(scaled))
        return {"rope_freqs.weight": plain / scaled}
    return {}


# ---- keys of the tokenizer ----


def _load_tokenizer(folder: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    return Tokenizer.from_buffer((folder / "tokenizer.json").read_bytes())


def _tokenizer_keys(folder: Path, tokenizer: "Tokenizer", model: "PreTrainedModel") -> dict[str, Any]:
    """Return the keys of a file that describe the tokenizer. Raise ConfigError for one that is not supported."""
    stored = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    texts = {index: text for text, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens = [texts.get(index, f"[PAD{index}]") for index in range(model.config.vocab_size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in stored.get("merges", ())]
    keys: dict[str, Any] = {"tokens": tokens, "token_type": list(_token_types(tokenizer, stored, tokens))}
    if stored["type"] == "BPE" and stored.get("byte_fallback"):
        ranks = {merge.replace(" ", ""): -float(rank) for rank, merge in reversed([*enumerate(merges)])}
        starts_with_space = tokenizer.encode("a", add_special_tokens=False).tokens[0].startswith("▁")
        keys |= {"model": "llama", "pre": "default", "add_space_prefix": starts_with_space}
        keys["scores"] = [ranks.get(token, -float(len(merges))) for token in tokens]
    else:
        keys |= {"model": "gpt2", "pre": _pre_tokenizer(folder, tokenizer), "merges": merges}
    special = {name: tokenizer.token_to_id(text) for name, text in read_special_tokens(folder).items() if text}
    ids = {key: special.get(name) for name, key in reader.SPECIAL_TOKENS.items()}
    given = model.generation_config.eos_token_id
    ends = dict.fromkeys([ids["eos"], *(given if isinstance(given, list) else [given])])
    ids |= zip(("eos", "eot", "eom"), (token for token in ends if token is not None), strict=False)
    keys |= {f"{name}_token_id": token for name, token in ids.items() if token is not None}
    first = tokenizer.encode("a").ids[0]
    keys["add_bos_token"] = first == ids["bos"]
    found = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    with contextlib.suppress(ConfigError):  # a base model has none
        found["tokenizer.chat_template"] = read_chat_template(folder)
    return found


def _token_types(tokenizer: "Tokenizer", stored: Mapping[str, Any], tokens: list[str]) -> Iterator[int]:
    added = tokenizer.get_added_tokens_decoder()
    for index, token in enumerate(tokens):
        if stored.get("byte_fallback") and token == stored.get("unk_token"):
            yield reader.UNKNOWN
        elif index in added:
            yield reader.CONTROL if added[index].special else reader.USER_DEFINED
        elif tokenizer.id_to_token(index) is None:
            yield reader.UNUSED
        elif stored.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", token):
            yield reader.BYTE
        else:
            yield reader.NORMAL


def _pre_tokenizer(folder: Path, tokenizer: "Tokenizer") -> str:
    """Return llama.cpp's name for how a byte-level tokenizer splits a text."""

    def pieces(splitter: Any) -> list[str]:
        return [piece for piece, _ in splitter.pre_tokenize_str(_PROBE)] if splitter else []

    ours = pieces(tokenizer.pre_tokenizer)
    fitting = {n: s for n, s in reader.SPLITTINGS.items() if pieces(reader.build_pre_tokenizer(s)) == ours}
    if not fitting:
        names = ", ".join(reader.SPLITTINGS)
        raise ConfigError(
            "GGUF has no name for how this model's tokenizer splits a text; supported are BPE with byte fallback, "
            f"and byte-level BPE that splits as {names}"
        )
    return min(fitting, key=lambda name: fitting[name].ignores_merges != tokenizer.model.ignore_merges)


# ---- what was written ----


def _differences(file: Path, model: "PreTrainedModel", tokenizer: "Tokenizer") -> Iterator[str]:
    """Yield what a file has otherwise than the folder that it was made of."""
    from transformers import AutoConfig

    written = read_gguf([file])
    again, found = reader.build_tokenizer(written.meta), AutoConfig.for_model(**written.config)
    for name in filter(type(model.config)().to_dict().__contains__, _COMPUTED):
        wanted, stored = getattr(model.config, name), getattr(found, name, None)
        if isinstance(wanted, list) and isinstance(stored, list) and len(wanted) == len(stored):
            pairs = enumerate(zip(wanted, stored, strict=True))
            yield from (f"{name}[{i}] = {one!r} (it would be {other!r})" for i, (one, other) in pairs if one != other)
        elif wanted != stored:
            yield f"{name} = {wanted!r:.80} (it would be {stored!r:.80})"
    if tokenizer.encode(_PROBE).ids != again.encode(_PROBE).ids:
        yield "tokenizer, which splits texts in a way of its own"
