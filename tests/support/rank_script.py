"""The work of the ranks in test_parallel.py: `python -m support.rank_script FOLDER MODEL`. One rank is enough."""

import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from support.tiny_runs import SMALL, InterruptAtStep, ignore_progress, score_distinct_characters
from understudy.algorithms.batch import Batch
from understudy.algorithms.config import CriticConfig, LossConfig
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig, LoraConfig, OptimizerConfig
from understudy.engines.local.distributed.distributed import TorchProcessGroup
from understudy.engines.local.engine import LocalEngine
from understudy.engines.process_group import ProcessGroup, init_rank
from understudy.envs import domain as domain_module
from understudy.runs.config import parse_config
from understudy.runs.run import Run
from understudy.runs.scratch_run import make_scratch_run
from understudy.train.loop import train
from understudy.train.processes import exit_with_parent
from understudy.train.state import ProgressReporter

COMMON: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "lora": LoraConfig(rank=4, alpha=8.0),
    "optimizer": OptimizerConfig(max_grad_norm=1e9),
    "max_tokens_per_microbatch": 48,
}
ENGINES: dict[str, dict[str, Any]] = {
    "full": {"train_embeddings": True},
    "lora": {"finetune": "lora"},
    "full, divided": {"train_embeddings": True, "sharding": "fsdp"},
    "lora, divided": {"finetune": "lora", "sharding": "fsdp"},
    "valued, divided": {"sharding": "fsdp"},
    "padded, divided": {"batching": "padded", "sharding": "fsdp"},
    "bfloat16, divided": {"dtype": "bfloat16", "sharding": "fsdp"},
}
RUN = ("engine.threads=1", "algorithm.kl_coef=0.05", "eval.tasks=3", "certify.every=2")
RUNS: dict[str, tuple[str, ...]] = {
    "whole": (),
    "divided": ("engine.sharding=fsdp", "sft.steps=1", "steps=2", "certify.every=0"),
}


def make_batch(rows: int, seed: int) -> Batch:
    """Return rows with advantages, some of which share a prefix."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 256, (rows, 40), generator=draw)
    tokens[1:] = torch.where(torch.arange(40) < 12, tokens[0], tokens[1:])
    lengths = torch.tensor([40 - 5 * (i % 4) for i in range(rows)])
    mask = (torch.arange(40) >= 14) & (torch.arange(40) < lengths[:, None])
    advantages = torch.randn(tokens.shape, generator=draw) / 10 * mask
    numbers = torch.arange(rows)
    return Batch(tokens, lengths, mask, -3.0 * mask, torch.zeros(rows), numbers, numbers, advantages=advantages)


def add_value_targets(batch: Batch) -> Batch:
    """Return the batch with returns and value weights for a critic."""
    weights = batch.mask / batch.mask.sum()
    return batch.replace(values=0.0 * weights, returns=0.5 * batch.mask, value_weights=weights)


def write_engine_results(
    folder: Path, model: Path, name: str, group: ProcessGroup, resumed: Path | None = None
) -> None:
    """Write all results that an engine computes on the batches, with the weights of a checkpoint if one is given."""
    engine = LocalEngine(model, LocalEngineConfig.model_validate(COMMON | ENGINES[name]), 0, group)
    engine.set_reference()
    if "valued" in name:
        engine.add_critic(CriticConfig())
    if resumed:
        engine.load(resumed)
    many, single, prompt = make_batch(7, 1), make_batch(1, 2), make_batch(1, 3)
    if "valued" in name:  # one batch trains policy and critic, the other only the critic
        many, single = add_value_targets(many), dataclasses.replace(add_value_targets(single), advantages=None)
    to = folder / name if group.rank == 0 else folder / f"{name} {group.rank}"
    for path in (to / "first", to / "model"):
        path.mkdir(parents=True)
    before = run_async(engine.compute_logprobs(many)).logprobs
    metrics = [run_async(engine.update([many], LossConfig(), 1e-2))]
    engine.save(to / "first")
    metrics.append(run_async(engine.update([single], LossConfig(), 1e-3)))
    reference = run_async(engine.compute_ref_logprobs(many)).ref_logprobs
    after = run_async(engine.compute_logprobs(many)).logprobs
    ids = prompt.tokens[0].tolist()
    reply = run_async(engine.sample(ids, SamplingParams(max_response_tokens=8), seed=5))
    said = torch.tensor([ids + reply.tokens])
    mask = torch.arange(said.shape[1])[None] >= len(ids)
    number = torch.zeros(1, dtype=torch.int64)
    sampled_rows = Batch(said, torch.tensor([said.shape[1]]), mask, 0.0 * mask, torch.zeros(1), number, number)
    read = run_async(engine.compute_logprobs(sampled_rows)).logprobs[mask]
    found = {
        "before": before,
        "reference": reference,
        "after": after,
        "read": read,
        "said": torch.tensor(reply.logprobs),
    }
    save_file({key: value.contiguous() for key, value in found.items()}, to / "found.safetensors")
    (to / "metrics.json").write_text(json.dumps(metrics))
    engine.save(to)
    engine.export(to / "model")


def create_run(folder: Path, model: Path, name: str) -> Run:
    """Create a run in `folder`."""
    return Run.create(folder, parse_config("", (f"model={model}", *SMALL, *RUN, *RUNS[name])))


def train_on_ranks(open: Callable[[], Run], group: ProcessGroup, report: ProgressReporter = ignore_progress) -> None:
    """Train a tiny run, or resume it."""
    run = group.all_gather(open() if group.rank == 0 else None)[0]
    assert run is not None
    own_run = make_scratch_run(run, run.folder.with_name(f"{run.folder.name} {group.rank}")) if group.rank else run
    train(run.config, own_run, report, group)


def train_until_interrupt(folder: Path, model: Path, group: ProcessGroup) -> None:
    """Train a run whose first process receives Ctrl-C after step 3."""
    report = InterruptAtStep("train", 3) if group.rank == 0 else ignore_progress
    with pytest.raises(KeyboardInterrupt, match=r"\bstep 3\b"):
        train_on_ranks(lambda: create_run(folder / "stopped", model, "whole"), group, report)


def run_async(call: Any) -> Any:
    return asyncio.run(call)


def main(folder: Path, model: Path) -> None:
    exit_with_parent()
    rank_info = init_rank()
    torch.set_num_threads(1)
    with contextlib.closing(TorchProcessGroup(rank_info)) as group:
        for name in ENGINES:
            write_engine_results(folder, model, name, group)
        write_engine_results(folder / "resumed", model, "full, divided", group, folder / "alone" / "full")
        domain_module.score_episode = score_distinct_characters
        for name in RUNS:
            train_on_ranks(lambda name=name: create_run(folder / name, model, name), group)  # type: ignore[misc]
        train_until_interrupt(folder, model, group)
        train_on_ranks(lambda: Run.resume(folder / "alone" / "begun"), group)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
