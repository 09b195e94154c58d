"""Configuration of the vLLM sampler. Importing it does not import torch."""

import re

from pydantic import Field, field_validator

from understudy.clients.endpoint import require_valid_port
from understudy.core.errors import ConfigError
from understudy.core.records import Record


class VllmConfig(Record):
    """vLLM's location and resources. `max_num_seqs` and dtype are those of the engine."""

    python: str = ""
    """Python in which vLLM is installed. Empty is this Python. vLLM pins versions of many packages."""
    base_url: str = ""
    """Address of a running server, such as http://127.0.0.1:8000. It must see `weight_sync_folder` under the same path.
    See docs/gpus.md."""
    in_process: bool = False
    """Run vLLM in this process instead of as a server. vLLM must be installed in this Python."""
    gpu_memory_utilization: float = Field(default=0.4, gt=0.0, le=1.0)
    """Share of the device's memory for vLLM's weights and cache. Training needs the rest. On a CPU it is the share of
    main memory, unless VLLM_CPU_KVCACHE_SPACE sets the size of the cache in GiB."""
    max_model_len: int = Field(default=0, ge=0)
    """Maximum sequence length, prompt and reply, within the model's context. 0 is the longest possible episode:
    `limits.max_episode_tokens` + `sampling.max_response_tokens` + 8,192 tokens for one observation. When serving, 0 is
    the model's context."""
    weight_sync_folder: str = ""
    """Folder through which vLLM receives weights and adapters. /dev/shm is fastest. Empty is the temporary folder."""
    server_args: tuple[str, ...] = ()
    """More arguments of `vllm serve`, such as --tensor-parallel-size,2."""
    start_timeout: float = Field(default=900.0, gt=0.0)
    """Seconds after which a server that has not started counts as failed."""
    reply_timeout: float = Field(default=600.0, gt=0.0)
    """Seconds after which a server that has not replied counts as dead."""
    max_restarts: int = Field(default=3, ge=0)
    """Maximum consecutive restarts of a dead server. After them, waiting episodes fail."""
    restart_backoff: float = Field(default=1.0, ge=0.0)
    """Seconds to wait before the first restart. The time doubles with each further restart."""

    @field_validator("base_url")
    @classmethod
    def _validate_base_url(cls, value: str) -> str:
        if value and not re.fullmatch(r"https?://(?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d{1,5})?/?", value, re.ASCII):
            raise ConfigError(f"engine.vllm.base_url = {value!r}: expected a URL like http://host:port without a path")
        return require_valid_port(value, "engine.vllm.base_url").rstrip("/")
