"""Configuration of an engine, most of it of the local one. Torch-free, so that reading a config needs no torch."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from understudy.algorithms.presets import laid_over
from understudy.engines.tinker.config import SERVED, TinkerConfig
from understudy.engines.vllm.config import VllmConfig
from understudy.records import Record

ALL_LINEAR = "all-linear"
Finetune = Literal["full", "lora", "qlora"]


class Lora(Record):
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685), made by peft."""

    rank: int = Field(default=32, ge=1)
    """Of the two matrices of each adapter."""
    alpha: float = Field(default=64.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The share of an adapter's inputs that an update drops. Sampling and log-probabilities are without it."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear modules that get an adapter; `all-linear` are all of them but the output head."""


class Optimizer(Record):
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) on float32 master weights."""

    weight_decay: float = Field(default=0.0, ge=0.0)
    """Share of itself, times the learning rate, that each step takes off a weight."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """How much of the mean of gradients stays at each step."""
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)
    """The same of the mean of their squares."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """The gradient's global norm is scaled down to this."""


class LocalConfig(Record):
    """What has the weights. Unless `kind` says otherwise: PyTorch in this process, which trains, and samples with the
    same modules or through vLLM."""

    kind: Literal["local", "tinker", "skyrl"] = "local"
    """PyTorch in this process, a server of the Tinker API (docs/tinker.md says what of this section then counts), or
    SkyRL's own trainer on a Ray cluster (docs/cluster.md)."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """What computes; `auto` is the first that is here of cuda, mps and cpu."""
    sampler: Literal["auto", "torch", "vllm"] = "auto"
    """Who samples: PyTorch in this process, or vLLM; `auto` is vLLM where it is installed and the model fits."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """`auto` is bfloat16 where the device multiplies it fast, else float32."""
    finetune: Finetune = "full"
    """What is trained: all weights, adapters beside them (`lora`), or adapters beside weights that are kept in 4 bits
    (`qlora`, which needs bitsandbytes)."""
    train_embeddings: bool = False
    """Whether `full` also trains the embeddings and the output head."""
    checkpointing: bool = False
    """Keep of each layer only what goes into it, and compute the rest again in the backward pass: the same gradients,
    with less memory and a third more work."""
    lora: Lora = Lora()
    optimizer: Optimizer = Optimizer()
    sharding: Literal["none", "fsdp"] = "none"
    """What several processes each have of the layers while they are updated: all (`none`), or a share (`fsdp`) of
    weights, gradients, masters and moments. It changes numbers by rounding alone; to one process it means nothing."""
    tokens_per_microbatch: int = Field(default=4096, ge=1)
    """Tokens of one forward and backward pass; lower it when memory runs out. Gradients are accumulated over the passes
    of a step, so that it cannot change one (with `lora.dropout` it draws others)."""
    sequences: int = Field(default=64, ge=1)
    """Live sequences in the sampler's cache; lower it when memory runs out."""
    rows: int = Field(default=160, ge=0)
    """Rows of a decoding pass that may be filled with guesses at what the replies go on with, so that fewer passes are
    needed; 0 goes without. It changes no reply."""
    threads: int = Field(default=0, ge=0)
    """CPU threads; 0 leaves torch's choice."""
    vllm: VllmConfig = VllmConfig()
    tinker: TinkerConfig = TinkerConfig()

    @model_validator(mode="before")
    @classmethod
    def _as_a_server_has_it(cls, given: Any) -> Any:
        served = isinstance(given, Mapping) and given.get("kind") == "tinker"
        return laid_over(SERVED, given) if served else given

    @property
    def adapters(self) -> bool:
        """Whether adapters are trained, and the model's own weights stay as they are."""
        return self.finetune != "full"
