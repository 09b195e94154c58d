"""Who samples an engine's replies: PyTorch in this process, or vLLM; and why."""

import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from understudy.engines.local.config import LocalConfig
from understudy.engines.local.model import Model
from understudy.engines.vllm.endpoint import Endpoint, Vllm
from understudy.engines.vllm.inside import Inside
from understudy.engines.vllm.sampler import VllmSampler
from understudy.engines.vllm.server import RANKS, Server, installed, options
from understudy.engines.vllm.weights import Weights
from understudy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Choice:
    """A sampler, and why it was chosen."""

    sampler: Literal["torch", "vllm"]
    why: str

    def __str__(self) -> str:
        return f"replies are sampled by {'vLLM' if self.sampler == 'vllm' else 'PyTorch'}: {self.why}"


def choose(model: Model, config: LocalConfig, processes: int = 1) -> Choice:
    """What `engine.sampler` comes to here; a `ConfigError` where it asks for a vLLM that cannot be used."""
    if config.sampler == "torch":
        return Choice("torch", "engine.sampler asks for it")
    hindrance = _hindrance(model, config, processes)
    if config.sampler == "vllm":
        if hindrance:
            raise ConfigError(f"engine.sampler = 'vllm': {hindrance}; engine.sampler=torch goes without")
        return Choice("vllm", "engine.sampler asks for it")
    if hindrance:
        return Choice("torch", hindrance)
    return Choice("vllm", "engine.vllm.url names one" if config.vllm.url else "it is installed, and the model fits")


def vllm_context(model: Model, config: LocalConfig) -> int:
    """Tokens of the longest sequence that vLLM is to take: the model's context, or less where the config says so."""
    return min(config.vllm.max_model_len or model.context, model.context)


def vllm_sampler(model: Model, folder: Path, config: LocalConfig) -> VllmSampler:
    """A sampler from the model's weights through the vLLM that the config describes; it starts with the first reply."""
    own = Path(tempfile.mkdtemp(prefix="understudy-vllm-"))  # only this user can enter it
    shared = Path(config.vllm.folder or own.parent).expanduser().resolve() / own.name
    shared.mkdir(parents=True, exist_ok=True)
    vllm = _vllm(model, folder, config, own)
    weights = Weights(model.save, shared, lora=model.adapted is not None)
    sampler = VllmSampler(vllm, weights, config.vllm, lambda: model.vocabulary, config.sequences)
    weakref.finalize(sampler, _end, vllm, {own, shared})
    return sampler


def _vllm(model: Model, folder: Path, config: LocalConfig, own: Path) -> Vllm:
    settings, length = config.vllm, vllm_context(model, config)
    if settings.url:
        return Endpoint(settings, settings.url)
    asked = options(
        settings.replace(max_model_len=length if length < model.context else 0),  # of a whole one vLLM has its own idea
        dtype=str(model.dtype).removeprefix("torch."),
        sequences=config.sequences,
        rank=config.lora.rank if config.adapters else 0,
        cpu=model.device.type == "cpu",
    )
    return Inside(folder, asked, settings) if settings.in_process else Server(folder, asked, settings, own)


def _end(vllm: Vllm, folders: set[Path]) -> None:
    """End vLLM with its sampler, or with the process. The log of one that never came up stays."""
    vllm.stop()
    for folder in folders:
        if vllm.context or not any(folder.glob("*.log")):
            shutil.rmtree(folder, ignore_errors=True)


def _hindrance(model: Model, config: LocalConfig, processes: int) -> str:
    """Why vLLM cannot sample for this model here; empty where it can."""
    device, settings = model.device.type, config.vllm
    if processes > 1 and (settings.url or settings.in_process):
        return f"{processes} processes each start a server of their own; engine.vllm.url and in_process are for one"
    if not settings.url and not installed(settings.python):
        return f"vLLM is not installed in {settings.python or 'this Python'} (engine.vllm.python can name another)"
    if settings.in_process and settings.python:
        return "engine.vllm.in_process needs vLLM in this Python, and engine.vllm.python names another"
    if device == "mps":
        return "vLLM does not run on mps"
    if config.finetune == "qlora":
        return "its weights are not those in 4 bits that adapters are trained beside (engine.finetune = 'qlora')"
    if config.adapters and config.lora.rank > RANKS[-1]:
        return f"vLLM takes adapters of rank {RANKS[-1]} at most, and engine.lora.rank is {config.lora.rank}"
    tied = bool(model.config.tie_word_embeddings)
    if device == "cpu" and tied and config.train_embeddings and config.finetune == "full":
        return "on a CPU vLLM 0.32 keeps a copy of a tied output head when weights are reloaded (train_embeddings)"
    return "" if settings.url else _too_large(model, config)


def _too_large(model: Model, config: LocalConfig) -> str:
    """How vLLM's share of the memory is too small for the weights and one sequence; empty where it isn't."""
    free, total = _memory(model.device)
    share = config.vllm.gpu_memory_utilization * total
    length = vllm_context(model, config)
    needed = model.weight_bytes + length * model.cache_bytes
    gib = 1 << 30
    if needed > share:
        return (
            f"the model and one sequence of {length} tokens need {needed / gib:.1f} GiB, and "
            f"engine.vllm.gpu_memory_utilization allows {share / gib:.1f}; raise that, or lower "
            "engine.vllm.max_model_len"
        )
    if free < share:
        return (
            f"{free / gib:.1f} GiB of the {share / gib:.1f} for vLLM are free; "
            "engine.vllm.gpu_memory_utilization can ask for less"
        )
    return ""


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes that are free, and all; of a CPU's memory vLLM looks itself what is free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total, total
