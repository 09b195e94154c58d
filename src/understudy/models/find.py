"""From a model name to a local folder.

Names that the package makes itself win over folders of the same name (write `./tiny` for the folder); a local folder
wins over the Hugging Face hub. Hub names carry an owner, `owner/model`: a bare word is a typo far more often than one
of the hub's few names without an owner. Of a hub repository only safetensors, JSON, templates and tokenizer files are
fetched, never pickles.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from understudy.errors import ConfigError, installation, nearest
from understudy.models.embedded import embedded_model
from understudy.models.folder import checked
from understudy.models.tiny import tiny_model

MODELS: Mapping[str, Callable[[], Path]] = MappingProxyType({"smollm2-135m": embedded_model, "tiny": tiny_model})
"""The models that need no network, by name."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
# Second copies of the weights, in their makers' own layouts.
_UNWANTED = ("consolidated*.safetensors", "original/*", "onnx/*")


def find_model(name: str) -> Path:
    """The local folder of a model: config.json, *.safetensors, tokenizer and chat template.

    `name` is one of MODELS, a local folder, or `owner/model` on the Hugging Face hub (downloaded into its own cache).
    Raises ConfigError, one line that says what is allowed and what to do.
    """
    folder = Path(name).expanduser()
    try:
        if name in MODELS:
            return MODELS[name]()
        if folder.is_dir():
            return checked(folder, name)
        if _HUB_NAME.fullmatch(name):
            return checked(_download(name), name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"model {name!r} needs {error.name}; {installation('train')}") from error
    beside = [str(config.parent) for config in folder.parent.glob("*/config.json")]
    known = nearest(str(folder), [*MODELS, *beside])
    raise ConfigError(f"unknown model {known}, any other model folder, owner/model on Hugging Face")


def local_model(name: str) -> Path:
    """The folder of a model as `find_model` gives it, but of a hub's only what is downloaded; nothing is fetched."""
    if name in MODELS or Path(name).expanduser().is_dir() or not _HUB_NAME.fullmatch(name):
        return find_model(name)
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError as error:
        raise ConfigError(f"model {name!r} needs {error.name}; {installation('train')}") from error
    found = try_to_load_from_cache(name, "tokenizer.json")
    if not isinstance(found, str):
        raise ConfigError(f"model {name!r} is not downloaded on this machine")
    return Path(found).parent


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    # OSError and the root of the HTTP client's errors: httpx in huggingface_hub 1, httpx2 in 2.
    network_errors: tuple[type[Exception], ...] = HfHubHTTPError.__bases__
    try:
        return Path(snapshot_download(name, allow_patterns=list(_WANTED), ignore_patterns=list(_UNWANTED)))
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
