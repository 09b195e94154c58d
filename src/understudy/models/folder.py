"""A model folder in the Hugging Face layout: how it is written, how it is kept in the cache, what it must hold.

A cached folder carries `made_from.json`: the sha256 of every file that it was made from, and of every file in it. Where
the record and the bytes disagree (another wheel, other code, a write cut off half way, a flipped bit), the folder is
built again. Builds are deterministic and published file by file with an atomic replace, the record last: two processes
that build at the same time write the same bytes, and no lock is needed.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

RECORD = "made_from.json"
_MERGE = "merge them into it first: a run's by understudy export RUN, LLaMA-Factory's by llamafactory-cli export"


def cache_folder() -> Path:
    """`$UNDERSTUDY_CACHE`, else `$XDG_CACHE_HOME/understudy`, else `~/.cache/understudy`; it need not exist."""
    if own := os.environ.get("UNDERSTUDY_CACHE"):
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "understudy"


def cached(name: str, sources: Iterable[Path], build: Callable[[Path], object]) -> Path:
    """The folder `models/<name>` of the cache, made by `build(empty folder)` unless an intact one is there.

    `sources` are all files that decide the result. Raises ConfigError if the cache cannot be written.
    """
    folder = cache_folder() / "models" / name
    made_from = {source.name: _sha256(source) for source in (*sources, Path(__file__))}
    if not _intact(folder, made_from):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            staging = tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-", ignore_cleanup_errors=True)
        except OSError as error:
            raise ConfigError(f"cannot write to {folder} ({error}); set UNDERSTUDY_CACHE to another folder") from error
        with staging as staged:
            build(Path(staged))
            _publish(Path(staged), folder, made_from)
    return folder


def _intact(folder: Path, made_from: Mapping[str, str]) -> bool:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return bool(
            record["made_from"] == made_from
            and all(_sha256(folder / name) == digest for name, digest in record["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # no record, one that is not ours, or a file that is gone


def _publish(staged: Path, folder: Path, made_from: Mapping[str, str]) -> None:
    names = sorted(path.name for path in staged.iterdir())
    files = {name: _sha256(staged / name) for name in names}
    _write_json(staged / RECORD, {"made_from": made_from, "files": files})
    for name in (*names, RECORD):
        os.replace(staged / name, folder / name)


def _sha256(path: Path) -> str:
    stat = path.stat()
    return _digest(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _digest(path: Path, *identity: int) -> str:
    # `identity` makes a new key out of a changed file; without it each lookup would read the weights again.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_model(
    folder: Path,
    *,
    config: Mapping[str, Any],
    weights: "Mapping[str, torch.Tensor]",
    tokenizer: "Tokenizer",
    specials: Mapping[str, str],
    template: str,
) -> None:
    """Write the five files of a model into `folder`, which exists.

    `config` holds the ids that `generation_config.json` repeats, `specials` the texts of `eos_token` and its like,
    `template` the Jinja chat template. `weights` are named as in the model's state dict, without tied copies.
    """
    from safetensors.torch import save

    # save_file would make a file that only its owner may read, whatever the umask says.
    (folder / "model.safetensors").write_bytes(save(dict(weights), metadata={"format": "pt"}))
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "config.json", config)
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    _write_json(folder / "generation_config.json", {name: config[name] for name in ids if config[name] is not None})
    _write_json(
        folder / "tokenizer_config.json",
        {
            # Not the model family's class: transformers 5 would put its own pre-tokenizer in place of the one saved.
            "tokenizer_class": "PreTrainedTokenizerFast",
            **specials,
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": template,
        },
    )


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def checked(folder: Path, name: str) -> Path:
    """`folder`, if it holds a model; `name` is what was asked.

    Raises ConfigError that names the first file that is missing, or not whole.
    """
    if not (folder / "config.json").is_file() and (folder / "adapter_config.json").is_file():
        raise ConfigError(f"model {name!r}: {folder} holds adapters, not a model; {_MERGE}")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model {name!r}: {folder} has no config.json, so it is not a model folder")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"model {name!r}: {folder} has no *.safetensors; other weight formats are not read")
    if not any(folder.glob("tokenizer*")):
        raise ConfigError(f"model {name!r}: {folder} has no tokenizer.json; save the model's tokenizer beside it")
    if cut := next(_cut_off(folder), None):
        raise ConfigError(f"model {name!r}: {cut} is not whole, as after a clone without git-lfs; download it again")
    return folder


def _cut_off(folder: Path) -> Iterator[Path]:
    """Files that are half downloaded, or only git-lfs's pointers to what they are."""
    tokenizer = folder / "tokenizer.json"
    if tokenizer.is_file():
        text = tokenizer.read_bytes().strip()
        if not (text.startswith(b"{") and text.endswith(b"}")):
            yield tokenizer
    yield from (file for file in sorted(folder.glob("*.safetensors")) if not _has_all_tensors(file))


def _has_all_tensors(file: Path) -> bool:
    """Whether safetensors are as long as they say: 8 bytes with the header's length, the header (JSON), the tensors."""
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
