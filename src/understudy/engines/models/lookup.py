"""From a model name to a local folder.

The names in `MODELS` take precedence over folders of the same name (write `./tiny` for a folder). Local folders and
GGUF files take precedence over the Hugging Face hub. Names on the hub must have an owner, `owner/model`: a bare word is
more often a typo than one of the few hub names without an owner. Only safetensors, JSON, templates and tokenizer files
are downloaded, never pickles.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from understudy.core.errors import ConfigError, did_you_mean, install_hint, no_such_path
from understudy.engines.models.folder import validate_model_folder
from understudy.engines.models.gguf_file import gguf_model
from understudy.engines.models.smollm2 import smollm2_model
from understudy.engines.models.tiny import tiny_model

MODELS: Mapping[str, Callable[[], Path]] = MappingProxyType({"smollm2-135m": smollm2_model, "tiny": tiny_model})
"""Models that need no network, by name."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
# Further copies of the weights in other layouts.
_UNWANTED = ("consolidated*.safetensors", "original/*", "onnx/*")


def find_model(name: str) -> Path:
    """Return the local folder of a model, with config.json, *.safetensors, tokenizer and chat template.

    `name` is one of MODELS, a local folder, a local GGUF file, which is converted to a folder in the cache, or
    `owner/model` on the Hugging Face hub, which is downloaded to the hub's cache. Raise ConfigError if
    there is no such model.
    """
    folder = Path(os.path.expanduser(name))
    try:
        if name in MODELS:
            return MODELS[name]()
        if folder.is_dir():
            return validate_model_folder(folder, name)
        if folder.suffix == ".gguf" and folder.is_file():
            return validate_model_folder(gguf_model(folder), name)
        if _is_path(name, folder):
            raise ConfigError(f"model: {no_such_path(name)}")
        if _HUB_NAME.fullmatch(name):
            return validate_model_folder(_download(name), name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"model {name!r} needs {error.name}; {install_hint('train')}") from error
    beside = [str(config.parent) for config in folder.parent.glob("*/config.json")]
    known = did_you_mean(name, [*MODELS, *beside])
    raise ConfigError(f"unknown model {known}; or give a model folder, a GGUF file, or owner/model on Hugging Face")


def _is_path(name: str, folder: Path) -> bool:
    """Return whether a name that is no folder means one, such as `./a`, `runs/a`, or `mine/a` beside a folder `mine`.

    If the folder holds models, such as `Qwen`, `Qwen/a` is a model on the hub.
    """
    if name.startswith((".", "/", "~", "runs/", "evals/")) or name.endswith(".gguf") or name.count("/") > 1:
        return True
    parent = folder.parent
    return "/" in name and parent.is_dir() and not any(parent.glob("*/config.json"))


def find_local_model(name: str) -> Path:
    """Return the folder of a model like `find_model`, but download nothing. A hub model must be in the hub's cache."""
    if name in MODELS or Path(os.path.expanduser(name)).exists() or not _HUB_NAME.fullmatch(name):
        return find_model(name)
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ModuleNotFoundError as error:
        raise ConfigError(f"model {name!r} needs {error.name}; {install_hint('train')}") from error
    try:
        cached = try_to_load_from_cache(name, "tokenizer.json")
    except HFValidationError as error:
        raise _invalid_name(name, error) from error
    if not isinstance(cached, str):
        raise ConfigError(f"model {name!r} is not downloaded on this machine")
    return Path(cached).parent


def find_model_config(name: str) -> Path:
    """Return a folder with a model's config.json. `name` is that of `find_model`. Weights are not needed.

    Of a model on the hub, only config.json is downloaded. Raise ConfigError if there is none.
    """
    folder = Path(os.path.expanduser(name))
    if name not in MODELS and (folder / "config.json").is_file():
        return folder
    if name in MODELS or folder.is_dir() or _is_path(name, folder) or not _HUB_NAME.fullmatch(name):
        return find_model(name)
    try:
        return _download(name, ("config.json",))
    except ModuleNotFoundError as error:
        raise ConfigError(f"model {name!r} needs {error.name}; {install_hint('train')}") from error


def _download(name: str, wanted: Sequence[str] = _WANTED) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    # OSError and the base class of the HTTP client's errors: httpx in huggingface_hub 1, httpx2 in 2.
    network_errors: tuple[type[Exception], ...] = HfHubHTTPError.__bases__
    try:
        return Path(snapshot_download(name, allow_patterns=list(wanted), ignore_patterns=list(_UNWANTED)))
    except HFValidationError as error:
        raise _invalid_name(name, error) from error
    except GatedRepoError as error:
        raise ConfigError(f"model {name!r} is gated: accept its terms on huggingface.co, then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        text = f"model {name!r} is neither a local folder nor on Hugging Face; check the name, or set HF_TOKEN"
        raise ConfigError(f"{text} if it is private") from error
    except LocalEntryNotFoundError as error:
        text = f"model {name!r} is neither a local folder nor downloaded yet, and Hugging Face cannot be reached"
        raise ConfigError(f"{text}; go online once, or use {' or '.join(MODELS)}") from error
    except network_errors as error:
        reason = str(error).partition("\n")[0]
        text = f"model {name!r} is not a local folder, and its download failed ({type(error).__name__}: {reason})"
        raise ConfigError(f"{text}; try again, or use {' or '.join(MODELS)}") from error


def _invalid_name(name: str, error: ValueError) -> ConfigError:
    return ConfigError(f"model {name!r} is no name on Hugging Face: {str(error).rstrip('.')}")
