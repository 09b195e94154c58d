"""Measure steps of TRL's GRPOTrainer, or of Unsloth's, on texts with random rewards. This runs in the peer's Python.

Unsloth and TRL with vLLM were never run here, because both need a GPU.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer import python_of

VLLM_SHARE = 0.4
"""vLLM's share of the GPU's memory, as in `engine.vllm.gpu_memory_utilization`."""


def measured(peer: str = "trl", **arguments: Any) -> dict[str, Any]:
    """Return the result of `steps` for these arguments, computed in a process of the peer's Python. `scratch` is added
    here.
    """
    with tempfile.TemporaryDirectory() as scratch:
        given = json.dumps(arguments | {"peer": peer, "scratch": scratch}, default=str)
        done = subprocess.run([python_of(peer), __file__], input=given, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_bytes(device: str) -> int:
    """Return the peak memory in bytes, of the process on a CPU and of its tensors on a GPU, as this package does."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024


def settings(
    *,
    peer: str,
    groups: int,
    group: int,
    reply: int,
    longest: int,
    count: int,
    dtype: str,
    device: str,
    checkpointing: bool,
    scratch: str,
) -> dict[str, Any]:
    """Return GRPOConfig's arguments. Each group is its own pass, because all rows in one pass need too much memory."""
    vllm = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": VLLM_SHARE,
        "vllm_max_model_length": longest,
    }
    return (vllm if peer != "trl" else {}) | {
        "output_dir": scratch,
        "use_cpu": device == "cpu",
        "bf16": dtype == "bfloat16",
        "per_device_train_batch_size": group,
        "gradient_accumulation_steps": groups,
        "generation_batch_size": groups * group,
        "num_generations": group,
        "max_completion_length": reply,
        "generation_kwargs": {"min_new_tokens" if peer == "trl" else "min_tokens": reply},
        "max_steps": count,
        "learning_rate": 1e-6,
        "beta": 0.0,
        "temperature": 1.0,
        "gradient_checkpointing": checkpointing,
        "shuffle_dataset": False,
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": 1000,
        "disable_tqdm": True,
    }


def steps(
    *, model: str, tokenizer: str, texts: Sequence[str], lora: dict[str, Any] | None, **wanted: Any
) -> dict[str, Any]:
    """Return the seconds of each of `count` steps, the seconds of its sampling, and the peak memory in bytes.

    The weights have `dtype`, and so have the moments without `lora`, the arguments of peft's LoraConfig.
    """
    if wanted["peer"] == "unsloth":
        import unsloth  # noqa: F401  (it replaces parts of the packages below, so it comes first)
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    whole: list[float] = []
    sampling: list[float] = []

    def now() -> float:
        if wanted["device"] == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            self.started = now()

        def on_step_end(self, *_: object, **__: object) -> None:
            whole.append(now() - self.started)

    class Timed(GRPOTrainer):
        def _generate(self, prompts: list[Any]) -> Any:
            started = now()
            try:
                return super()._generate(prompts)
            finally:
                sampling.append(now() - started)

    weights = load_with_unsloth if wanted["peer"] == "unsloth" else load
    rng = random.Random(0)
    trainer = Timed(
        **weights(model, lora, wanted),
        reward_funcs=lambda completions, **_: [float(rng.random() < 0.5) for _ in completions],
        args=GRPOConfig(**settings(groups=len(texts), **wanted)),
        train_dataset=Dataset.from_dict({"prompt": [*texts] * wanted["count"]}),
        processing_class=AutoTokenizer.from_pretrained(tokenizer),
        callbacks=[Clock()],
    )
    trainer.train()
    return {"steps": whole, "sampling": sampling, "peak": peak_bytes(wanted["device"])}


def load(model: str, lora: dict[str, Any] | None, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of GRPOTrainer that give it the model, and the adapters of `lora`."""
    import torch
    from transformers import AutoModelForCausalLM

    adapters = {}
    if lora:
        from peft import LoraConfig

        adapters = {"peft_config": LoraConfig(task_type="CAUSAL_LM", **lora)}
    return {"model": AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, wanted["dtype"])), **adapters}


def load_with_unsloth(model: str, lora: dict[str, Any] | None, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the same with Unsloth's model, which has the adapters already and samples with vLLM."""
    import torch
    from unsloth import FastLanguageModel

    if lora is None:
        raise ValueError("Unsloth is compared with LoRA only")
    net, _ = FastLanguageModel.from_pretrained(
        model,
        max_seq_length=wanted["longest"],
        dtype=getattr(torch, wanted["dtype"]),
        load_in_4bit=False,
        fast_inference=True,
        max_lora_rank=lora["r"],
        gpu_memory_utilization=VLLM_SHARE,
    )
    checkpointing = "unsloth" if wanted["checkpointing"] else False
    return {"model": FastLanguageModel.get_peft_model(net, use_gradient_checkpointing=checkpointing, **lora)}


if __name__ == "__main__":
    print(json.dumps(steps(**json.load(sys.stdin))))
