"""Configuration of the local engine. Importing it does not import torch."""

from typing import Literal

from pydantic import Field

from understudy.core.records import Record
from understudy.engines.vllm.config import VllmConfig

ALL_LINEAR = "all-linear"
Finetune = Literal["full", "lora", "qlora"]


class LoraConfig(Record):
    """LoRA adapters (Hu et al. 2021, arXiv:2106.09685), created by peft."""

    rank: int = Field(default=32, ge=1)
    """Rank of the adapters' two matrices."""
    alpha: float = Field(default=64.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout of an adapter's inputs in updates. Sampling and log-probabilities do not use it."""
    target_modules: tuple[str, ...] = (ALL_LINEAR,)
    """Names of the linear modules that get an adapter. `all-linear` means all but the output head and, in a
    mixture of experts, the projections of its MLPs, shared experts included."""


class OptimizerConfig(Record):
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) on float32 master weights."""

    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay: each step multiplies a weight by 1 - learning rate * this."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay rate of the first moment."""
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Decay rate of the second moment."""
    eps: float = Field(default=1e-8, gt=0.0, allow_inf_nan=False)
    """Added to the root of the second moment, by which an update is divided."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Maximum global norm of the gradient. Larger gradients are scaled down to it."""


class TrainedWeightsConfig(Record):
    """Settings of the engines that hold the weights themselves, on this machine or on a cluster."""

    kind: str = ""
    finetune: Finetune = "full"
    """`full` trains all weights, `lora` adapters, and `qlora` adapters of a model with 4-bit weights (needs
    bitsandbytes)."""
    gradient_checkpointing: bool = False
    """Store only the inputs of layers and compute the rest again in the backward pass. Gradients are equal, memory is
    lower, and the update computes a third more. If it is not set, it is fitted to the memory."""
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)
    """Maximum tokens of one forward and backward pass. Lower it if memory runs out. Gradients are accumulated over the
    passes of a step, so it does not change them, except that `lora.dropout` draws other random numbers. If it is not
    set and the default does not fit into the memory, the local engine uses less."""
    max_num_seqs: int = Field(default=64, ge=1)
    """Maximum number of concurrent sequences in the local sampler's cache, and of concurrent episodes in an
    evaluation. Lower it if memory runs out. If it is not set and the default does not fit into the memory, the local
    engine uses less."""
    lora: LoraConfig = LoraConfig()
    optimizer: OptimizerConfig = OptimizerConfig()

    @property
    def uses_lora(self) -> bool:
        """True if adapters are trained and the model's own weights are frozen."""
        return self.finetune != "full"


class LocalEngineConfig(TrainedWeightsConfig):
    """`kind = "local"`: PyTorch on this machine trains. PyTorch or vLLM samples."""

    kind: Literal["local"] = "local"
    """`local`: PyTorch on this machine. `tinker`: a server of the Tinker API. `skyrl`: SkyRL's trainer on a Ray
    cluster (docs/cluster.md). Each kind has its own keys."""
    batching: Literal["auto", "packed", "padded"] = "auto"
    """How rows are computed. `packed`: in one flat sequence in which a common prefix of rows is computed once, which
    needs a model whose layers are all attention. `padded`: with the model's own forward pass, one row beside the other;
    every causal language model of transformers has it. `auto` is `packed` if the model can be packed."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device. `auto` is the first available of cuda, mps and cpu."""
    sampler: Literal["auto", "torch", "vllm"] = "auto"
    """Sampler: PyTorch's in this process, or vLLM. `auto` is vLLM if it is installed and the model fits."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Dtype of the weights. `auto` is bfloat16 if the device multiplies it fast, otherwise float32."""
    train_embeddings: bool = False
    """For `full`: also train the embeddings and the output head."""
    train_control_tokens: Literal["auto", "all", "none"] = "auto"
    """Control tokens of the chat format whose rows in embeddings and output head are trained, with every `finetune`.
    `auto`: those that the model was never trained on, so that it can tell them apart. `all`: all of them. `none`: none.
    Other rows stay as they are unless `train_embeddings` is set. The backward pass then reaches the embeddings, also
    with `trainable_layers`."""
    trainable_layers: int = Field(default=0, ge=0)
    """Number of decoder layers to train, counted from the output. 0 trains all, as does a number above that of the
    model. Earlier layers keep their weights. So the backward pass ends at the first of these layers: an update computes
    less and stores fewer activations, gradients and moments."""
    sharding: Literal["none", "fsdp"] = "none"
    """Sharding of an update over several processes. `none`: each has all layers. `fsdp`: each has a shard of weights,
    gradients, master weights and moments. Results differ only by rounding. A single process ignores it."""
    collective_timeout: float = Field(default=3600.0, gt=0)
    """Seconds that one of several processes waits for the others, which may still be playing their episodes of a step
    or an evaluation. Then the run ends, and can be resumed. TRL has `ddp_timeout`, verl `nccl_timeout`."""
    max_draft_rows: int = Field(default=160, ge=0)
    """N-gram speculation: maximum rows of a decoding pass, including draft tokens. Speculation reduces the number of
    passes and changes no reply. 0 disables it.
    """
    threads: int = Field(default=0, ge=0)
    """Number of CPU threads. 0 is torch's default."""
    vllm: VllmConfig = VllmConfig()

    @property
    def export_engine_config(self) -> "LocalEngineConfig":
        """Return this config: a local engine opens its own exports."""
        return self


def describe_padding(reason: str) -> str:
    """Return a line that says that rows of a model are padded, and why."""
    return f"rows are padded, and what they have in common is computed for each: {reason}"
