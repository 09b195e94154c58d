"""Configuration of a Tinker API server. Importing it does not import torch."""

import math
from typing import Literal

from pydantic import Field, field_validator

from understudy.clients.endpoint import validate_url
from understudy.core.records import Record
from understudy.engines.local.config import Finetune, LocalEngineConfig, LoraConfig, OptimizerConfig

API_KEY_VARIABLE = "TINKER_API_KEY"
"""Environment variable with the API key."""
SERVER_LORA_ALPHA = 32.0
"""LoRA alpha of all servers. The API cannot set it."""
ServerKind = Literal["", "skyrl-jax", "skyrl-train", "hosted"]


class TinkerLoraConfig(Record):
    """The LoRA adapters that the server trains. It decides their alpha, dropout and modules itself."""

    rank: int = Field(default=32, ge=1)
    """Rank of the adapters' two matrices."""


class TinkerOptimizerConfig(OptimizerConfig):
    """AdamW on the server. The settings that a request can change depend on `server_kind` (docs/cluster.md)."""

    max_grad_norm: float = Field(default=math.inf, gt=0.0)
    """Maximum global norm of the gradient. Larger gradients are scaled down to it."""


class TinkerEngineConfig(Record):
    """`kind = "tinker"`: a server of the Tinker API holds LoRA adapters of one model, samples from them and trains
    them. The API key is read from TINKER_API_KEY, if the server requires one."""

    kind: Literal["tinker"] = "tinker"
    """`tinker`: a server of the Tinker API (docs/cluster.md)."""
    base_url: str = ""
    """Address of the server, such as http://127.0.0.1:8000."""
    server_kind: ServerKind = ""
    """Kind of server, which determines its features and how it reduces losses: `skyrl-jax` (SkyRL's JAX backend),
    `skyrl-train` (SkyRL with FSDP or Megatron), or `hosted` (a service that sums losses)."""
    model: str = ""
    """The server's name for the model to train. Empty if it has only one. `model` of the run must be a folder of the
    same model, for its config and tokenizer."""
    timeout: float = Field(default=900.0, gt=0.0)
    """Maximum seconds to wait for an answer. Compilation for a new sequence length takes longest."""
    outage_timeout: float = Field(default=30.0, gt=0.0)
    """Seconds after which a server that does not answer counts as dead."""
    max_num_seqs: int = Field(default=64, ge=1)
    """Episodes of an evaluation at once."""
    lora: TinkerLoraConfig = TinkerLoraConfig()
    optimizer: TinkerOptimizerConfig = TinkerOptimizerConfig()

    @field_validator("base_url")
    @classmethod
    def _validate_base_url(cls, value: str) -> str:
        return validate_url(value, "engine.base_url") if value else value

    @property
    def finetune(self) -> Finetune:
        """`lora`, which is all that the API trains."""
        return "lora"

    @property
    def uses_lora(self) -> bool:
        """True: adapters are trained and the model's own weights are frozen."""
        return True

    @property
    def server_lora(self) -> LoraConfig:
        """Return the LoRA config of the server's adapters, including the settings that the server decides."""
        return LoraConfig(rank=self.lora.rank, alpha=SERVER_LORA_ALPHA)

    @property
    def export_engine_config(self) -> LocalEngineConfig:
        """Return the config of a local engine that opens an exported model."""
        return LocalEngineConfig(finetune="lora", lora=self.server_lora, max_num_seqs=self.max_num_seqs)
