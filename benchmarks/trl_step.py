"""Measure steps of TRL's GRPOTrainer on texts with random rewards. This runs in the Python that has TRL."""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer import python_of_trl


def measured(**arguments: Any) -> dict[str, Any]:
    """Return the result of `steps` for these arguments, computed in a process of that Python. `scratch` is added
    here.
    """
    with tempfile.TemporaryDirectory() as scratch:
        given = json.dumps(arguments | {"scratch": scratch}, default=str)
        done = subprocess.run([python_of_trl(), __file__], input=given, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_bytes(device: str) -> int:
    """Return the peak memory in bytes, of the process on a CPU and of its tensors on a GPU, as this package does."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024


def settings(
    *, groups: int, group: int, reply: int, count: int, dtype: str, device: str, checkpointing: bool, scratch: str
) -> dict[str, Any]:
    """Return GRPOConfig's arguments. Each group is its own pass, because all rows in one pass need too much memory."""
    return {
        "output_dir": scratch,
        "use_cpu": device == "cpu",
        "bf16": dtype == "bfloat16",
        "per_device_train_batch_size": group,
        "gradient_accumulation_steps": groups,
        "generation_batch_size": groups * group,
        "num_generations": group,
        "max_completion_length": reply,
        "generation_kwargs": {"min_new_tokens": reply},
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
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
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

    adapters = {}
    if lora:
        from peft import LoraConfig

        adapters = {"peft_config": LoraConfig(task_type="CAUSAL_LM", **lora)}
    rng = random.Random(0)
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, wanted["dtype"])),
        reward_funcs=lambda completions, **_: [float(rng.random() < 0.5) for _ in completions],
        args=GRPOConfig(**settings(groups=len(texts), **wanted)),
        train_dataset=Dataset.from_dict({"prompt": [*texts] * wanted["count"]}),
        processing_class=AutoTokenizer.from_pretrained(tokenizer),
        callbacks=[Clock()],
        **adapters,
    )
    trainer.train()
    return {"steps": whole, "sampling": sampling, "peak": peak_bytes(wanted["device"])}


if __name__ == "__main__":
    print(json.dumps(steps(**json.load(sys.stdin))))
