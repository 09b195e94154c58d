"""Chooses the sampler of an engine: PyTorch in this process, or vLLM."""

import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from understudy.core.errors import ConfigError
from understudy.engines.local.config import LocalEngineConfig, describe_padding
from understudy.engines.local.model import LocalModel
from understudy.engines.vllm.client import VllmBackend, VllmHttpClient
from understudy.engines.vllm.in_process import InProcessVllm
from understudy.engines.vllm.sampler import VllmSampler
from understudy.engines.vllm.server import LORA_RANKS, VllmServer, server_args, vllm_installed
from understudy.engines.vllm.weight_sync import WeightSync

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""The sizes of attention heads that vLLM supports on a CPU: `CPUAttentionBackend.get_supported_head_sizes` of 0.32."""


@dataclass(frozen=True, slots=True)
class SamplerChoice:
    """A sampler and the reason for the choice."""

    sampler: Literal["torch", "vllm"]
    reason: str
    padding_reason: str = ""
    """Why rows are padded, or an empty string if they are packed."""

    def __str__(self) -> str:
        line = f"replies are sampled by {'vLLM' if self.sampler == 'vllm' else 'PyTorch'}: {self.reason}"
        if not self.padding_reason:
            return line
        return f"{line}; {describe_padding(self.padding_reason)}"


def choose_sampler(model: LocalModel, config: LocalEngineConfig, num_processes: int = 1) -> SamplerChoice:
    """Return the sampler for `engine.sampler`. Raise ConfigError if it is vLLM and vLLM cannot be used."""
    if config.sampler == "torch":
        return SamplerChoice("torch", "set by engine.sampler")
    hindrance = _vllm_problem(model, config, num_processes)
    if config.sampler == "vllm":
        if hindrance:
            raise ConfigError(f"engine.sampler = 'vllm': {hindrance}; fix this or set engine.sampler=torch")
        return SamplerChoice("vllm", "set by engine.sampler")
    if hindrance:
        return SamplerChoice("torch", hindrance)
    return SamplerChoice(
        "vllm", "set by engine.vllm.base_url" if config.vllm.base_url else "it is installed and the model fits"
    )


def vllm_context_length(model: LocalModel, config: LocalEngineConfig) -> int:
    """Return the longest sequence that vLLM takes: the model's context, or less if the config says so."""
    return min(config.vllm.max_model_len or model.context_length, model.context_length)


def make_vllm_sampler(model: LocalModel, folder: Path, config: LocalEngineConfig) -> VllmSampler:
    """Return a sampler that uses the model's weights in vLLM as the config describes. vLLM starts with the first
    reply."""
    private = Path(tempfile.mkdtemp(prefix="understudy-vllm-"))  # accessible only to this user
    shared = Path(os.path.expanduser(config.vllm.weight_sync_folder or private.parent)).resolve() / private.name
    shared.mkdir(parents=True, exist_ok=True)
    vllm = _make_vllm(model, folder, config, private)
    sends_adapters = _sends_adapters(model)
    weights = WeightSync(
        model.save if sends_adapters or model.peft_model is None else model.save_merged, shared, lora=sends_adapters
    )
    sampler = VllmSampler(
        vllm,
        weights,
        config.vllm,
        lambda: model.vocabulary,
        config.max_num_seqs,
        vocab_size=int(model.config.vocab_size),
    )
    weakref.finalize(sampler, _stop_vllm, vllm, {private, shared})
    return sampler


def _sends_adapters(model: LocalModel) -> bool:
    """Return True if vLLM gets LoRA adapters alone. It cannot load rows of embeddings with them."""
    return model.peft_model is not None and model.token_rows is None


def _make_vllm(model: LocalModel, folder: Path, config: LocalEngineConfig, private: Path) -> VllmBackend:
    settings, length = config.vllm, vllm_context_length(model, config)
    if settings.base_url:
        return VllmHttpClient(settings, settings.base_url)
    arguments = server_args(
        settings.replace(
            max_model_len=length if length < model.context_length else 0  # 0: vLLM takes the model's context
        ),
        dtype=str(model.dtype).removeprefix("torch."),
        max_num_seqs=config.max_num_seqs,
        lora_rank=config.lora.rank if _sends_adapters(model) else 0,
        on_cpu=model.device.type == "cpu",
    )
    if settings.in_process:
        return InProcessVllm(folder, arguments, settings)
    return VllmServer(folder, arguments, settings, private)


def _stop_vllm(vllm: VllmBackend, folders: set[Path]) -> None:
    """Stop vLLM and remove its folders.

    This runs when the sampler is garbage collected or the process ends. The folder of the log is not removed if vLLM
    never started.
    """
    vllm.stop()
    for folder in folders:
        if vllm.context_length or not any(folder.glob("*.log")):
            shutil.rmtree(folder, ignore_errors=True)


def _vllm_problem(model: LocalModel, config: LocalEngineConfig, processes: int) -> str:
    """Return why vLLM cannot sample from this model, or an empty string."""
    device, settings = model.device.type, config.vllm
    if processes > 1 and (settings.base_url or settings.in_process):
        return f"{processes} processes cannot share one vLLM; leave out engine.vllm.base_url and engine.vllm.in_process"
    if not settings.base_url and not vllm_installed(settings.python):
        return f"vLLM is not installed in {settings.python or 'this Python'} (engine.vllm.python can name another)"
    if settings.in_process and settings.python:
        return "engine.vllm.in_process uses this Python, but engine.vllm.python names another"
    if device == "mps":
        return "vLLM does not run on mps"
    if config.finetune == "qlora":
        return "vLLM would not sample from the 4-bit weights of engine.finetune = 'qlora'"
    if _sends_adapters(model) and config.lora.rank > LORA_RANKS[-1]:
        return f"vLLM supports ranks up to {LORA_RANKS[-1]}, and engine.lora.rank is {config.lora.rank}"
    tied = bool(model.config.tie_word_embeddings)
    trained = "train_control_tokens" if model.token_rows else "train_embeddings"
    if device == "cpu" and tied and (model.token_rows or (config.train_embeddings and config.finetune == "full")):
        return f"on a CPU vLLM 0.32 does not reload a tied output head (engine.{trained})"
    if device == "cpu" and not settings.base_url and model.head_dim not in (0, *CPU_HEAD_DIMS):
        sizes = ", ".join(map(str, CPU_HEAD_DIMS))
        return f"on a CPU vLLM 0.32 supports a head_dim of {sizes}, and the model's head_dim is {model.head_dim}"
    return "" if settings.base_url else _too_large(model, config)


def _too_large(model: LocalModel, config: LocalEngineConfig) -> str:
    """Return why vLLM's share of the memory cannot hold the weights and one sequence, or an empty string."""
    free, total = _memory(model.device)
    share = config.vllm.gpu_memory_utilization * total
    length = vllm_context_length(model, config)
    needed = model.weight_bytes + length * model.kv_bytes_per_token
    gib = 1 << 30
    if needed > share:
        return (
            f"the model and one sequence of {length} tokens need {needed / gib:.1f} GiB, but "
            f"engine.vllm.gpu_memory_utilization allows {share / gib:.1f} GiB; raise it, or lower "
            "engine.vllm.max_model_len"
        )
    if free < share:
        return (
            f"vLLM would take {share / gib:.1f} GiB, but {free / gib:.1f} GiB are free; "
            "lower engine.vllm.gpu_memory_utilization"
        )
    return ""


def _memory(device: torch.device) -> tuple[int, int]:
    """Return free and total memory in bytes. On a CPU both are the total, since vLLM checks the free memory itself."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total, total
