"""Configuration of the vLLM sampler. Torch-free, so that reading a config needs no torch."""

import re

from pydantic import Field, field_validator

from understudy.errors import ConfigError
from understudy.records import Record


class VllmConfig(Record):
    """Where vLLM is, and how much it may take. `engine.sequences` is its `max_num_seqs`; its dtype is the engine's."""

    python: str = ""
    """The Python that vLLM is installed in, where that is another one: vLLM pins versions of many packages."""
    url: str = ""
    """A server that runs already, such as http://127.0.0.1:8000; it sees `folder` under the same path (see docs)."""
    in_process: bool = False
    """Whether vLLM runs inside this process, which has to have it installed, rather than as a server of its own."""
    gpu_memory_utilization: float = Field(default=0.4, gt=0.0, le=1.0)
    """The share of the device's memory that vLLM may take, weights and cache; training needs the rest. On a CPU it is
    the share of the main memory, unless VLLM_CPU_KVCACHE_SPACE says how many GiB the cache has."""
    max_model_len: int = Field(default=0, ge=0)
    """Longest sequence, prompt and reply, of those that the model allows. 0 is what episodes come to at most:
    `limits.max_tokens`, `sampling.max_tokens` and 8,192 for what they get at once. In serving it is all of them."""
    folder: str = ""
    """Where weights and adapters are written for vLLM to read; /dev/shm is fastest. Empty is the temporary folder."""
    arguments: tuple[str, ...] = ()
    """Further arguments of the server as `vllm serve` takes them, such as --tensor-parallel-size,2."""
    start_timeout: float = Field(default=900.0, gt=0.0)
    """Seconds until a server that does not answer yet counts as failed."""
    reply_timeout: float = Field(default=600.0, gt=0.0)
    """Seconds until a reply that does not come counts as a dead server."""
    restarts: int = Field(default=3, ge=0)
    """How often in a row a dead server is started anew before the episodes that wait for it fail."""
    backoff: float = Field(default=1.0, ge=0.0)
    """Seconds to wait before the first of these restarts, doubled for each one more."""

    @field_validator("url")
    @classmethod
    def _plain_url(cls, value: str) -> str:
        if value and not re.fullmatch(r"https?://(?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d{1,5})?/?", value, re.ASCII):
            raise ConfigError(f"engine.vllm.url = {value!r}: it has to be like http://host:port, without a path")
        return value.rstrip("/")
