"""Where a server of the Tinker API is, and of which kind it is. Torch-free, so that reading a config needs no torch."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from understudy.endpoint import plain_url
from understudy.records import Record

KEY = "TINKER_API_KEY"
"""The environment variable that holds the key."""
ALPHA = 32.0
"""What servers scale adapters by, over their rank; the API has no word for it."""
SERVED: Mapping[str, Any] = {
    "finetune": "lora",
    "lora": {"alpha": ALPHA},
    "optimizer": {"max_grad_norm": math.inf},
}
"""Keys of `engine` that are otherwise by default where a server does the work."""

ServerKind = Literal["", "skyrl-jax", "skyrl-train", "hosted"]


class TinkerConfig(Record):
    """A server of the Tinker API. Its key, where it wants one, is read from TINKER_API_KEY."""

    base_url: str = ""
    """Where it is, such as http://127.0.0.1:8000."""
    server: ServerKind = ""
    """What it is, which decides what it can do and what a loss means to it: SkyRL with its JAX backend (`skyrl-jax`),
    with FSDP or Megatron (`skyrl-train`), or a hosted service that sums losses (`hosted`)."""
    model: str = ""
    """What it calls the model that is trained; empty is the only one that it has. The run's own `model` is the same one
    in a folder, for its config and tokenizer."""
    timeout: float = Field(default=900.0, gt=0.0)
    """Seconds until an answer that does not come counts as lost; compiling for a new length takes the longest."""
    patience: float = Field(default=30.0, gt=0.0)
    """Seconds for which a server may be out of reach before it counts as dead."""

    @field_validator("base_url")
    @classmethod
    def _plain(cls, value: str) -> str:
        return plain_url(value, "engine.tinker.base_url") if value else value
