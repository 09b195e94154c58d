"""A model in a GGUF file, the format of llama.cpp, becomes a model folder in the cache.

Quantized weights are dequantized to bfloat16, so they differ from the published ones by their rounding. The names of
tensors are those that the package `gguf` lists for an architecture. What a file states and this module does not know,
a key or a tensor, is an error: a model that lacks a part computes wrong log-probabilities without any sign of it.
"""

import hashlib
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from understudy.core.errors import ConfigError, did_you_mean
from understudy.engines.models import gguf_tokenizer
from understudy.engines.models.folder import build_cached, write_model

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader
    from transformers import PreTrainedModel

KEYS: Mapping[str, str] = MappingProxyType(
    {
        "context_length": "max_position_embeddings",
        "block_count": "num_hidden_layers",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    }
)
"""Keys that every file has, without the architecture before them, and their names in `config.json`."""
OPTIONAL_KEYS: Mapping[str, str] = MappingProxyType(
    {"attention.key_length": "head_dim", "rope.freq_base": "rope_theta"}
)
_READ_ELSEWHERE = ("vocab_size", "rope.dimension_count", "attention.value_length", "tensor_data_layout")
_ROPE_KEYS = ("type", "factor", "original_context_length", "attn_factor", "finetuned")
YARN_KEYS = {"yarn_attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_SOFTCAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_EXPERT_KEYS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_SCALES = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_MAX_HEAD_DIFF = 0.5
"""Maximum difference of an output head from the embeddings, relative to their norm, that is rounding alone. The
difference of an untied head is larger than 1, that of 2-bit weights about 0.3."""


@dataclass(frozen=True, slots=True)
class Family:
    """How llama.cpp stores the models of an architecture."""

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)
    """Further keys of the file, and their names in `config.json`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of `config.json` that llama.cpp has in its code, not in the file."""
    permutes_heads: bool = False
    """True if the rows of a query or key head are in the order of pairs that RoPE rotates."""
    norm_offset: float = 0.0
    """What the file's norm weights have more than those of transformers."""
    partial_rotary: bool = False
    """True if RoPE may rotate a part of each head."""


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family("llama", permutes_heads=True),
        "qwen2": Family("qwen2"),
        "qwen3": Family("qwen3"),
        "qwen3moe": Family("qwen3_moe", _EXPERT_KEYS, {"norm_topk_prob": True}),
        "gemma": Family("gemma", values={"hidden_activation": "gelu_pytorch_tanh"}, norm_offset=1),
        "gemma2": Family("gemma2", {**_SOFTCAPS, **_WINDOW}, norm_offset=1),
        "gemma3": Family(
            "gemma3_text",
            {**_WINDOW, "rope.freq_base_swa": "rope_local_base_freq", **_SOFTCAPS},
            {"rope_local_base_freq": 10000.0},
            norm_offset=1,
        ),
        "phi3": Family("phi3", _WINDOW, partial_rotary=True),
        "smollm3": Family("smollm3", permutes_heads=True),
        "olmo2": Family("olmo2"),
        "granite": Family("granite", _SCALES, permutes_heads=True),
        "lfm2": Family("lfm2", {"shortconv.l_cache": "conv_L_cache"}, {"block_auto_adjust_ff_dim": False}),
        "glm4": Family("glm4", partial_rotary=True),
    }
)
"""By `general.architecture`."""


CODE = (Path(__file__), Path(gguf_tokenizer.__file__))
"""The files whose change converts models again."""


def gguf_model(path: Path) -> Path:
    """Return the model folder of a GGUF file. The first call converts the file, which takes seconds per gigabyte.

    A file is the same as long as its path, its size and its time of modification are.
    `path` may be any part of a model that is split into files. Raise ConfigError if the file is damaged, if its model
    or tokenizer is not supported, or if the disk of the cache is too small.
    """
    files = _find_parts(path)
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    digest = hashlib.sha256(repr(stats).encode()).hexdigest()
    name = f"{_SPLIT.sub('', path.name).removesuffix('.gguf')}-{digest[:12]}"
    return build_cached(name, CODE, lambda folder: convert_gguf(files, folder))


def _find_parts(path: Path) -> list[Path]:
    match = _SPLIT.search(path.name)
    if not match:
        return [path]
    files = [path.with_name(_SPLIT.sub(f"-{n:05}-of-{match[2]}.gguf", path.name)) for n in range(1, int(match[2]) + 1)]
    if missing := next((file for file in files if not file.is_file()), None):
        raise ConfigError(f"{missing} is missing; a split model needs all its {len(files)} parts in one folder")
    return files


class GGUFModel(NamedTuple):
    """What a GGUF file holds."""

    meta: Mapping[str, Any]
    """The keys of the file."""
    tensors: Mapping[str, Any]
    """The `ReaderTensor` of each name."""
    config: dict[str, Any]
    """The content of `config.json`."""
    parameters: Mapping[str, tuple[str, tuple[int, ...]]]
    """Name and shape of each tensor's parameter."""


def read_gguf(files: Sequence[Path]) -> GGUFModel:
    """Read the keys of the parts `files` of a GGUF file, and the places of its tensors.

    Raise ConfigError for a file that is damaged or not supported.
    """
    readers = [_open(file) for file in files]
    # GGUF stores 1e-05 as the float32 9.999999747378752e-06.
    meta = {name: _shortest(entry.contents()) for name, entry in readers[0].fields.items()}
    tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
    name = str(files[0])
    if meta.get("general.type", "model") != "model":
        raise ConfigError(f"{name} holds a {meta['general.type']}, not a model; give the file of the language model")
    family = FAMILIES.get(arch := meta.get("general.architecture", ""))
    if family is None:
        raise ConfigError(f"{name} has an architecture that is not supported: {did_you_mean(str(arch), FAMILIES)}")
    if "token_embd.weight" not in tensors:
        raise ConfigError(f"{name} has no tensor token_embd.weight; give the file of a whole model")
    gguf_tokenizer.validate_tokenizer(meta, name, int(tensors["token_embd.weight"].shape[-1]))
    config = _config(name, meta, tensors, family)
    return GGUFModel(meta, tensors, config, _parameters(name, arch, tensors, config))


def convert_gguf(files: Sequence[Path], folder: Path) -> None:
    """Write the model in the parts `files` of a GGUF file to the existing folder `folder`.

    Raise ConfigError as `gguf_model` does.
    """
    model = read_gguf(files)
    itemsize = 4 if model.config["dtype"] == "float32" else 2
    size = sum(int(model.tensors[part].n_elements) for part in model.parameters) * itemsize
    _report(str(files[0]), folder, size)
    write_model(
        folder,
        config=model.config,
        weights=_weights(model),
        tokenizer=gguf_tokenizer.build_tokenizer(model.meta),
        special_tokens=gguf_tokenizer.special_tokens(model.meta),
        chat_template=gguf_tokenizer.chat_templates(model.meta),
    )


def _open(file: Path) -> "GGUFReader":
    from gguf import GGUFReader

    with file.open("rb") as start:
        if start.read(4) != b"GGUF":
            raise ConfigError(f"{file} is no GGUF file; give a model folder or a GGUF file")
    try:
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError) as error:  # what the reader raises for a damaged or cut file
        raise ConfigError(f"{file} is damaged or has an unknown quantization ({error}); download it again") from error


def _shortest(value: Any) -> Any:
    import numpy as np

    return float(str(np.float32(value))) if isinstance(value, float) else value


def _config(file: str, meta: Mapping[str, Any], tensors: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Return the content of `config.json`. Raise ConfigError for keys that are missing or unknown."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    arch = meta["general.architecture"]
    own = {key.removeprefix(f"{arch}."): value for key, value in meta.items() if key.startswith(f"{arch}.")}
    if missing := next((key for key in KEYS if key not in own), ""):
        raise ConfigError(f"{file} has no {arch}.{missing}; convert the model to GGUF again")
    keys = {**KEYS, **OPTIONAL_KEYS, **family.keys}
    rope_keys = [f"rope.scaling.{key}" for key in (*_ROPE_KEYS, *YARN_KEYS)]
    for key, value in own.items():
        if key not in (*keys, *_READ_ELSEWHERE, *rope_keys) and (value is False or value not in (0, "none")):
            raise ConfigError(f"{file} has the key {arch}.{key} = {value!r:.60}, which is not supported for {arch}")
    config = {**family.values, **{keys[key]: value for key, value in own.items() if key in keys}}
    if family.model_type == "lfm2" and isinstance(kv_heads := config["num_key_value_heads"], list):
        config["layer_types"] = ["full_attention" if heads else "conv" for heads in kv_heads]
        config |= {"num_key_value_heads": max(kv_heads), "norm_eps": config.pop("rms_norm_eps")}
    for key, name in KEYS.items():
        size = config.get(name, 1)
        if name != "rms_norm_eps" and (type(size) is not int or size < 1):
            raise ConfigError(f"{file} has {arch}.{key} = {size!r:.60}; for {arch}, a positive integer is supported")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.setdefault("head_dim", hidden // heads)
    rotary = own.get("rope.dimension_count", head_dim)
    if own.get("attention.value_length", head_dim) != head_dim or (rotary != head_dim and not family.partial_rotary):
        raise ConfigError(f"{file} has heads of several sizes, which is not supported for {arch}")
    if rotary != head_dim:
        config["partial_rotary_factor"] = rotary / head_dim
    # llama.cpp tells the two models of 27B, whose scores have another scale, by their number of layers.
    if (arch, config["num_hidden_layers"]) in (("gemma2", 46), ("gemma3", 62)):
        config["query_pre_attn_scalar"] = hidden // heads
    elif arch in ("gemma2", "gemma3"):
        config["query_pre_attn_scalar"] = head_dim
    config.setdefault("rope_theta", 10000.0)
    if config.get("sliding_window") == 0:
        del config["sliding_window"]
    if arch == "phi3" and (length := own.get("rope.scaling.original_context_length")):
        config["original_max_position_embeddings"] = length
    if scaling := _rope_scaling(file, own, tensors, config):
        config["rope_scaling"] = scaling
    ids = {name: meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "eom", "padding")}
    ends = list(dict.fromkeys(ids[name] for name in ("eos", "eot", "eom") if ids[name] is not None))
    return {
        "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family.model_type]],
        "model_type": family.model_type,
        **config,
        "vocab_size": int(tensors["token_embd.weight"].shape[-1]),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "tie_word_embeddings": _is_tied(tensors),
        "bos_token_id": ids["bos"],
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": ids["padding"],
        "dtype": "float32" if tensors["token_embd.weight"].tensor_type.name == "F32" else "bfloat16",
    }


def _rope_scaling(
    file: str, own: Mapping[str, Any], tensors: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `rope_scaling` of `config.json`, {} for none. Raise ConfigError for a kind that is unknown."""
    given = {key: own.get(f"rope.scaling.{key}") for key in (*_ROPE_KEYS, *YARN_KEYS)}
    kind, length = given["type"] or "none", {"original_max_position_embeddings": given["original_context_length"]}
    if "rope_factors_long.weight" in tensors:
        long, short = (_values(tensors[f"rope_factors_{name}.weight"]).tolist() for name in ("long", "short"))
        return {"rope_type": "longrope", "long_factor": long, "short_factor": short, **length}
    if "rope_freqs.weight" in tensors:
        return _llama3_scaling(file, _values(tensors["rope_freqs.weight"]), config)
    if kind == "linear":
        return {"rope_type": "linear", "factor": given["factor"]}
    if kind == "yarn":
        optional = {name: given[key] for key, name in YARN_KEYS.items() if given[key] is not None}
        return {"rope_type": "yarn", "factor": given["factor"], **length, **optional}
    if kind != "none":
        raise ConfigError(f"{file}: rope.scaling.type is unknown: {did_you_mean(kind, ('none', 'linear', 'yarn'))}")
    return {}


def _llama3_scaling(file: str, factors: "torch.Tensor", config: Mapping[str, Any]) -> dict[str, Any]:
    """Return Llama 3's `rope_scaling`. The file has only its result, the factor of each wavelength."""
    import torch

    factor, low, high, length = round(float(factors.max()), 3), 1.0, 4.0, 8192
    exponents = torch.arange(len(factors)) / len(factors)
    wavelengths = 2 * torch.pi * config["rope_theta"] ** exponents
    smooth = ((length / wavelengths - low) / (high - low)).clamp(0, 1)
    if not torch.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=1e-3):
        raise ConfigError(
            f"{file}: the factors in rope_freqs.weight are not those of Llama 3, so they are not supported"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": length,
    }


def _is_tied(tensors: Mapping[str, Any]) -> bool:
    """Return True if the output head is that of the embeddings. Files of tied models may have both, rounded
    differently."""
    head, embeddings = tensors.get("output.weight"), tensors["token_embd.weight"]
    if head is None:
        return True
    kinds = {tensor.tensor_type.name for tensor in (head, embeddings)}
    if len(kinds) == 1 and kinds <= {"F32", "F16", "BF16", "Q8_0"}:  # equal values are rounded equally
        return bool((head.data == embeddings.data).all())
    one, other = (_values(tensor, max(len(tensor.data) // 1024, 1)) for tensor in (head, embeddings))
    diff = float((one - other).norm() / other.norm())
    return diff == 0 if kinds <= {"F32", "F16", "BF16"} else diff < _MAX_HEAD_DIFF


def _values(tensor: Any, step: int = 1) -> "torch.Tensor":
    """Return every `step`-th row of a tensor in float32."""
    import torch
    from gguf.quants import dequantize

    return torch.from_numpy(dequantize(tensor.data[::step], tensor.tensor_type).copy()).float()


def _parameters(
    file: str, arch: str, tensors: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return name and shape of each tensor's parameter. Raise ConfigError if tensors and parameters do not match.

    The name of the experts' parameters has a place for the number of the expert.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    found = {name: (parameter, tuple(weight.shape)) for name, parameter, weight in named_tensors(arch, model)}
    kept = tensors.keys() - {*_ROPE_TENSORS, *(["output.weight"] if config["tie_word_embeddings"] else [])}
    if unknown := min(kept - found.keys(), default=""):
        raise ConfigError(f"{file} has the tensor {unknown}, which is not supported for {arch}")
    if missing := min(found.keys() - kept, default=""):
        raise ConfigError(f"{file} has no tensor {missing}, which models of {arch} have; download it again")
    for name, (_, shape) in found.items():
        given = tuple(map(int, reversed(tensors[name].shape)))
        if [size for size in given if size > 1] != [size for size in shape if size > 1]:
            raise ConfigError(f"{file}: the tensor {name} has the shape {given}; by the file's keys it is {shape}")
    return found


def named_tensors(arch: str, model: "PreTrainedModel") -> "Iterator[tuple[str, str, torch.Tensor]]":
    """Yield each tensor of a model: its name in a GGUF file, its name in `model.safetensors`, and its values.

    The second name of the experts' tensors has a place for the number of the expert.
    """
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    number = next(number for number, name in MODEL_ARCH_NAMES.items() if name == arch)
    names = get_tensor_name_map(number, model.config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        layer, _, fused = name.partition(".mlp.experts.")
        if fused:
            parts = {"gate": 0, "up": 1} if fused == "gate_up_proj" else {"down": 0}
            for part, place in parts.items():
                gguf_name = f"{layer.replace('model.layers', 'blk')}.ffn_{part}_exps.weight"
                yield gguf_name, f"{layer}.mlp.experts.{{}}.{part}_proj.weight", weight.chunk(len(parts), 1)[place]
        elif name != "lm_head.weight" or not model.config.tie_word_embeddings:
            yield names.get_name(name, (".weight", ".bias")) or name, name, weight


def _report(file: str, folder: Path, needed: int) -> None:
    """Print that the file is converted. Raise ConfigError if the disk has not the bytes that are needed."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"{file} becomes {needed / 1e9:.1f} GB of weights, and {folder.parent} has {free / 1e9:.1f} GB left; "
            "free some space, or set UNDERSTUDY_CACHE to a folder on another disk"
        )
    print(f"converting {file} to a model folder of {needed / 1e9:.1f} GB in {folder.parent}, once", file=sys.stderr)


def _weights(model: GGUFModel) -> "Iterator[tuple[str, torch.Tensor]]":
    import torch

    tensors, config, family = model.tensors, model.config, FAMILIES[model.meta["general.architecture"]]
    dtype = getattr(torch, config["dtype"])
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, (parameter, shape) in model.parameters.items():
        tensor, part = tensors[name], name.split(".")[-2]
        if name == "token_embd.weight" and config["tie_word_embeddings"]:
            copies = [tensor, *([tensors["output.weight"]] if "output.weight" in tensors else [])]
            tensor = max(copies, key=lambda copy: copy.n_bytes)  # the one with finer rounding
        weight = _values(tensor)
        if family.permutes_heads and part in heads:
            weight = _unpermuted(weight, heads[part])
        if name.endswith("norm.weight"):
            weight = weight - family.norm_offset
        weight = weight.reshape(shape).to(dtype)
        if "{}" in parameter:
            yield from ((parameter.format(expert), one.clone()) for expert, one in enumerate(weight))
        else:
            yield parameter, weight.contiguous()


def _unpermuted(weight: "torch.Tensor", heads: int) -> "torch.Tensor":
    # RoPE rotates pairs (x, y) of rows. llama.cpp orders a head x0 y0 x1 y1 ..., transformers x0 x1 ... y0 y1 ...
    pairs = weight.reshape(heads, len(weight) // heads // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(weight.shape)
