"""Model folders in the Hugging Face layout: writing, caching and validation.

A cached folder holds `manifest.json`: size, time and sha256 of every source file and of every file in the folder. If
one of them differs (another wheel, changed code, an interrupted write), the folder is built again. Builds are
deterministic. Files are replaced atomically and the manifest comes last, so two concurrent builds write the same bytes
and need no lock. A file of the size and time in the manifest is not read again: weights have gigabytes.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from understudy.core.errors import ConfigError
from understudy.core.files import digest_file, os_errors_as_config_errors
from understudy.formats.jinja import chat_template_file

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

MANIFEST_FILE = "manifest.json"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"
SHARD_BYTES = 2 << 30
"""Weights are collected in memory up to this size before they are written."""
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
"""Sizes in `config.json` that are positive integers if they are there."""
_MERGE = "merge them into the model first, with understudy export RUN or llamafactory-cli export"


def cache_folder() -> Path:
    """Return `$UNDERSTUDY_CACHE`, `$XDG_CACHE_HOME/understudy` or `~/.cache/understudy`. The folder may not exist
    yet."""
    if cache := os.environ.get("UNDERSTUDY_CACHE"):
        return Path(os.path.expanduser(cache))
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "understudy"


def read_vocab_size(folder: Path) -> int:
    """Return the number of token ids of the model in a folder, from its `config.json`."""
    return read_config_size(folder, "vocab_size")


def read_config_size(folder: Path, name: str) -> int:
    """Return a size from a model's `config.json`, such as "vocab_size", or the default of the model's class.

    Gemma 3 with images leaves out the sizes that equal it.
    """
    config = _read_json(folder / "config.json")
    size = config.get("text_config", config).get(name)
    if size is None:
        from transformers import AutoConfig

        size = getattr(AutoConfig.from_pretrained(folder).get_text_config(), name)
    return int(size)


def build_cached(name: str, sources: Iterable[Path], build: Callable[[Path], object]) -> Path:
    """Return the cache's folder `models/<name>`. If it is missing or damaged, call `build` with an empty folder first.

    `sources` are all files that determine the result. Raise ConfigError if the cache cannot be written.
    """
    folder = cache_folder() / "models" / name
    files = (*sources, Path(__file__))
    if not _intact(folder, files):
        with os_errors_as_config_errors(
            folder, "run the same command again, or set UNDERSTUDY_CACHE to another folder"
        ):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                dir=folder.parent, prefix=f".{name}-", ignore_cleanup_errors=True
            ) as staged:
                build(Path(staged))
                _publish(Path(staged), folder, files)
    return folder


def _intact(folder: Path, sources: Sequence[Path]) -> bool:
    try:
        record = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        return bool(
            record["sources"].keys() == {source.name for source in sources}
            and all(_unchanged(source, record["sources"][source.name]) for source in sources)
            and all(_unchanged(folder / name, entry) for name, entry in record["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # the manifest or a file is missing or damaged


def _unchanged(file: Path, entry: Mapping[str, Any]) -> bool:
    stat = file.stat()
    same = (stat.st_size, stat.st_mtime_ns) == (entry["size"], entry["mtime_ns"])
    return same or sha256(file) == entry["sha256"]  # a copied cache has other times


def _publish(staged: Path, folder: Path, sources: Sequence[Path]) -> None:
    names = sorted(path.name for path in staged.iterdir())
    files = {name: _manifest_entry(staged / name) for name in names}
    _write_json(
        staged / MANIFEST_FILE, {"sources": {file.name: _manifest_entry(file) for file in sources}, "files": files}
    )
    for name in (*names, MANIFEST_FILE):
        os.replace(staged / name, folder / name)


def _manifest_entry(file: Path) -> dict[str, Any]:
    stat = file.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256(file)}


def sha256(path: Path) -> str:
    """Return the digest of a file. An unchanged file is read once."""
    stat = path.stat()
    return _digest(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _digest(path: Path, *identity: int) -> str:
    # `identity` is part of the cache key, so a changed file is read again and an unchanged one is not.
    return digest_file(path)


def write_model(
    folder: Path,
    *,
    config: Mapping[str, Any],
    weights: "Iterable[tuple[str, torch.Tensor]]",
    tokenizer: "Tokenizer",
    special_tokens: Mapping[str, str],
    chat_template: str | Sequence[Mapping[str, str]],
) -> None:
    """Write the files of a model to the existing folder `folder`.

    `config` includes the token ids that `generation_config.json` repeats. `special_tokens` are the texts of `eos_token`
    and others, and `chat_template` is Jinja, or a list of named templates. `weights` has the names of the model's state
    dict, without tied copies. Weights of more than `SHARD_BYTES` are written to several files, one after the other.
    """
    _write_weights(folder, weights)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "config.json", config)
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    _write_json(folder / "generation_config.json", {name: config[name] for name in ids if config[name] is not None})
    _write_json(
        folder / "tokenizer_config.json",
        {
            # With the model family's class, transformers 5 would replace the saved pre-tokenizer by its own.
            "tokenizer_class": "PreTrainedTokenizerFast",
            **special_tokens,
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            **({"chat_template": chat_template} if chat_template else {}),
        },
    )


def _write_weights(folder: Path, weights: "Iterable[tuple[str, torch.Tensor]]") -> None:
    from safetensors.torch import save

    shards: list[list[str]] = []
    shard: dict[str, torch.Tensor] = {}

    def write() -> None:
        # save_file ignores the umask and makes a file that only its owner may read.
        (folder / f"{len(shards)}.safetensors").write_bytes(save(shard, metadata={"format": "pt"}))
        shards.append(list(shard))
        shard.clear()

    for name, weight in weights:
        shard[name] = weight
        if sum(weight.nbytes for weight in shard.values()) > SHARD_BYTES:
            write()
    if shard:
        write()
    if len(shards) == 1:
        (folder / "0.safetensors").rename(folder / "model.safetensors")
        return
    index = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"{number}.safetensors").rename(folder / file)
        index.update(dict.fromkeys(names, file))
    _write_json(folder / WEIGHTS_INDEX_FILE, {"metadata": {}, "weight_map": index})


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def validate_model_folder(folder: Path, name: str) -> Path:
    """Return `folder` if it holds a complete model. `name` is the model that the user asked for.

    Raise ConfigError that names the first missing or incomplete file.
    """
    has_weights = any((folder / file).is_file() for file in ("model.safetensors", WEIGHTS_INDEX_FILE))
    if (folder / "adapter_config.json").is_file():
        if not (has_weights and (folder / "config.json").is_file()):
            raise ConfigError(f"model {name!r}: {folder} holds adapters, not a model; {_MERGE}")
        raise ConfigError(
            f"model {name!r}: {folder} holds a model and adapters, which transformers would add to it; if the model is "
            "merged already, move adapter_config.json to another folder"
        )
    if not (folder / "config.json").is_file():
        file = min(folder.glob("*.gguf"), default=None)
        hint = f"; for the model in {file.name}, set model={file}" if file else ""
        raise ConfigError(f"model {name!r}: {folder} has no config.json, so it is not a model folder{hint}")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"model {name!r}: {folder} has no *.safetensors, the only supported weight format; load it with "
            "transformers, and save it with save_pretrained"
        )
    if not has_weights:
        raise ConfigError(f"model {name!r}: {folder} has no model.safetensors and no {WEIGHTS_INDEX_FILE}; add it")
    if not any(folder.glob("tokenizer*")):
        raise ConfigError(f"model {name!r}: {folder} has no tokenizer.json; save the model's tokenizer beside it")
    if cut := next(_truncated_files(folder), None):
        raise ConfigError(f"model {name!r}: {cut} is incomplete, as after a clone without git-lfs; download it again")
    if damage := next(_damaged_json_files(folder), ""):
        raise ConfigError(f"model {name!r}: {damage}; download or export the model again")
    config = _read_json(folder / "config.json")
    if problem := _unknown_code(config) or _misfit_tokenizer(folder, config.get("text_config", config)):
        raise ConfigError(f"model {name!r}: {folder} {problem}")
    return folder


_OTHER_TASKS = tuple(
    f"For{task}"
    for task in ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
)
"""Ends of the names of classes in `architectures` that are no language models that write text."""
_DEQUANTIZE = {
    name: f"{cls}(dequantize=True)" for name, cls in (("fp8", "FineGrainedFP8Config"), ("mxfp4", "Mxfp4Config"))
}
"""How transformers loads the weights of a method unquantized."""


def validate_trainable(folder: Path) -> None:
    """Raise ConfigError if the model in a folder is none that transformers trains on texts. No weights are read."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = _read_json(folder / "config.json")
    every = config.get("text_config", {}) | config
    if quantization := every.get("quantization_config", every.get("compression_config")):
        method = quantization.get("quant_method", "an unknown method") if isinstance(quantization, dict) else ""
        copy = f", or a copy that transformers wrote with {_DEQUANTIZE[method]}" if method in _DEQUANTIZE else ""
        raise ConfigError(
            f"{folder} has weights that are quantized with {method}, and training needs unquantized ones; give the "
            f"model they were made from{copy} (engine.finetune=qlora quantizes its weights in memory)"
        )
    other = next((name for name in config.get("architectures") or () if str(name).endswith(_OTHER_TASKS)), "")
    if other:
        raise ConfigError(f"{folder} is a {other}, which writes no text; choose a model with an output head for text")
    if config["model_type"] not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        what = "reads images or sounds" if {"vision_config", "audio_config"} & config.keys() else "is no language model"
        raise ConfigError(
            f"{folder}: a model of type {config['model_type']!r} {what}; choose a model that only reads and writes text"
        )


def _unknown_code(config: Mapping[str, Any]) -> str:
    """Return why the model cannot be built from transformers' own code, "" if it can."""
    if config.get("is_encoder_decoder"):
        return "is an encoder-decoder model; choose a decoder-only model, such as Qwen3 or Llama 3.2"
    if "auto_map" in config:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        if config["model_type"] not in CONFIG_MAPPING_NAMES:
            kind = config["model_type"]
            return (
                f"needs its own Python code ({kind!r} is not in transformers), which is never run; choose another model"
            )
    return ""


def _misfit_tokenizer(folder: Path, config: Mapping[str, Any]) -> str:
    """Return why the tokenizer is not that of the weights, by the number of tokens. "" if it may be."""
    size = config.get("vocab_size")
    if type(size) is not int:
        return ""
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = config.get(key)
        if any(type(token) is int and token >= size for token in (ids if isinstance(ids, list) else [ids])):
            return f"has {key} = {ids} in config.json, and its weights have {size} tokens (vocab_size); correct the id"
    if not (folder / "tokenizer.json").is_file():
        return ""
    tokenizer = _read_json(folder / "tokenizer.json")
    words = tokenizer["model"].get("vocab")
    known = words.values() if isinstance(words, dict) else range(len(words)) if isinstance(words, list) else ()
    try:
        added = {int(token["id"]): str(token["content"]) for token in tokenizer.get("added_tokens", [])}
        ids = set(map(int, known))
    except (KeyError, TypeError, ValueError):
        return ""  # the library `tokenizers` names the fault
    # Gemma 3 1B has an added token for images that its weights lack. No text becomes such a token.
    template = _template_text(folder)
    ids = ids - added.keys() | {token for token, text in added.items() if token < size or text in template}
    advice = "put the tokenizer that was saved with the weights there"
    if (last := max(ids, default=0)) >= size:
        return f"has token {last} in tokenizer.json, and its weights have {size} tokens (vocab_size); {advice}"
    if 2 * (last + 1) < size:
        return f"has {last + 1} tokens in tokenizer.json, and its weights have {size} (vocab_size); {advice}"
    return ""


def _template_text(folder: Path) -> str:
    config, file = folder / "tokenizer_config.json", chat_template_file(folder)
    text = str(_read_json(config).get("chat_template", "")) if config.is_file() else ""
    return text + (file.read_text(encoding="utf-8", errors="replace") if file else "")


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _damaged_json_files(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the files of JSON: not an object, a key that loading needs, or a value of a wrong
    type."""
    for file, key, kind in (
        ("config.json", "model_type", str),
        ("tokenizer.json", "model", dict),
        ("tokenizer_config.json", "", dict),
        ("generation_config.json", "", dict),
        (WEIGHTS_INDEX_FILE, "weight_map", dict),
    ):
        path = folder / file
        if not path.is_file():
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_reject_constant)
        except (ValueError, RecursionError) as error:
            yield f"{path} is not valid JSON ({error!s:.80})"
            continue
        if not isinstance(value, dict):
            yield f"{path} is not an object of JSON"
        elif key and not isinstance(value.get(key), kind):
            yield f"{path} has no valid {key!r}"
        elif wrong := next(_wrong_values(file, value), ""):
            yield f"{path} has {wrong}"
        elif file == WEIGHTS_INDEX_FILE:
            shards = sorted(set(map(str, value[key].values())))
            yield from (
                f"{folder / shard} is missing, but {file} names it"
                for shard in shards
                if not (folder / shard).is_file()
            )


def _wrong_values(file: str, value: Mapping[str, Any]) -> Iterator[str]:
    """Yield each value in a file of JSON that has a wrong type, with what is allowed."""
    if file == "config.json":
        sizes = value.get("text_config", value)
        if not isinstance(sizes, dict):
            yield "a text_config that is no object"
            return
        for name in _SIZES:
            size = sizes.get(name)
            # A few families have one number for each layer.
            numbers = size if isinstance(size, list) else [] if size is None else [size]
            if not all(type(number) is int and number > 0 for number in numbers):
                yield f"{name} = {size!r:.40}; a positive integer is needed"
    elif file == "generation_config.json":
        ids = value.get("eos_token_id")
        if not all(type(token) is int for token in (ids if isinstance(ids, list) else [ids]) if ids is not None):
            yield f"eos_token_id = {ids!r:.40}; a token id or a list of them is needed"
    elif file == "tokenizer_config.json":
        for name in ("bos_token", "eos_token"):
            token = value.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if not isinstance(text, str) and token is not None:
                yield f"{name} = {token!r:.40}; a text, or an object with its content, is needed"
        template = value.get("chat_template")
        if isinstance(template, list) and not all(
            isinstance(t, dict) and {"name", "template"} <= t.keys() for t in template
        ):
            yield "a chat_template whose entries have no name and template"


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _truncated_files(folder: Path) -> Iterator[Path]:
    """Yield files that are partly downloaded or that are git-lfs pointers."""
    tokenizer = folder / "tokenizer.json"
    if tokenizer.is_file():
        text = tokenizer.read_bytes().strip()
        if not (text.startswith(b"{") and text.endswith(b"}")):
            yield tokenizer
    yield from (file for file in sorted(folder.glob("*.safetensors")) if not _has_all_tensors(file))


def _has_all_tensors(file: Path) -> bool:
    """Return True if a safetensors file is long enough: 8 bytes of header length, the JSON header, the tensors."""
    with file.open("rb") as f:
        length = int.from_bytes(f.read(8), "little")
        room = file.stat().st_size - 8 - length
        if room < 0:
            return False
        try:
            tensors = [tensor for name, tensor in json.loads(f.read(length)).items() if name != "__metadata__"]
            return max((tensor["data_offsets"][1] for tensor in tensors), default=0) <= room
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return False
