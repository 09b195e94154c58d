"""What several processes do together in tests/test_parallel.py: `python crew_script.py FOLDER MODEL`; one is enough."""

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

from test_train import SMALL, Stopper, rewarded, silent
from understudy.algorithms.options import Critic, Loss
from understudy.batch import Batch
from understudy.config import TrainConfig
from understudy.crew import Crew, take_place
from understudy.domains import base
from understudy.engines.base import Sampling
from understudy.engines.local.config import LocalConfig, Lora, Optimizer
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.ranks import Ranks
from understudy.processes import leash
from understudy.run import Run
from understudy.settings import parse
from understudy.shadow import shadow
from understudy.train import Report, train

COMMON: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "lora": Lora(rank=4, alpha=8.0),
    "optimizer": Optimizer(max_grad_norm=1e9),
    "tokens_per_microbatch": 48,
}
ENGINES: dict[str, dict[str, Any]] = {
    "full": {"train_embeddings": True},
    "lora": {"finetune": "lora"},
    "full, divided": {"train_embeddings": True, "sharding": "fsdp"},
    "lora, divided": {"finetune": "lora", "sharding": "fsdp"},
    "valued, divided": {"sharding": "fsdp"},
    "bfloat16, divided": {"dtype": "bfloat16", "sharding": "fsdp"},
}
RUN = ("engine.threads=1", "algorithm.kl_coefficient=0.05", "eval.tasks=3", "certify.every=2")
RUNS: dict[str, tuple[str, ...]] = {
    "whole": (),
    "divided": ("engine.sharding=fsdp", "sft.steps=1", "steps=2", "certify.every=0"),
}


def batch(rows: int, seed: int) -> Batch:
    """Rows of which some begin alike, with advantages."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 256, (rows, 40), generator=draw)
    tokens[1:] = torch.where(torch.arange(40) < 12, tokens[0], tokens[1:])
    lengths = torch.tensor([40 - 5 * (i % 4) for i in range(rows)])
    mask = (torch.arange(40) >= 14) & (torch.arange(40) < lengths[:, None])
    advantages = torch.randn(tokens.shape, generator=draw) / 10 * mask
    return Batch(tokens, lengths, mask, -3.0 * mask, torch.zeros(rows), torch.arange(rows), advantages=advantages)


def valued(batch: Batch) -> Batch:
    """The batch with something for a critic to learn."""
    weights = batch.mask / batch.mask.sum()
    return batch.with_(values=0.0 * weights, returns=0.5 * batch.mask, value_weights=weights)


def use(folder: Path, model: Path, name: str, crew: Crew, resumed: Path | None = None) -> None:
    """Everything that an engine computes on the batches, written down; of a checkpoint's weights, if one is given."""
    engine = LocalEngine(model, LocalConfig.model_validate(COMMON | ENGINES[name]), 0, crew)
    engine.keep_reference()
    if "valued" in name:
        engine.add_critic(Critic())
    if resumed:
        engine.load(resumed)
    many, single, prompt = batch(7, 1), batch(1, 2), batch(1, 3)
    if "valued" in name:  # with the policy, then alone
        many, single = valued(many), dataclasses.replace(valued(single), advantages=None)
    to = folder / name if crew.rank == 0 else folder / f"{name} {crew.rank}"
    for path in (to / "first", to / "model"):
        path.mkdir(parents=True)
    before = run(engine.forward(many)).logprobs
    metrics = [run(engine.update([many], Loss(), 1e-2))]
    engine.save(to / "first")
    metrics.append(run(engine.update([single], Loss(), 1e-3)))
    reference = run(engine.reference(many)).ref_logprobs
    after = run(engine.forward(many)).logprobs
    ids = prompt.tokens[0].tolist()
    reply = run(engine.sample(ids, Sampling(max_tokens=8), seed=5))
    said = torch.tensor([ids + reply.tokens])
    mask = torch.arange(said.shape[1])[None] >= len(ids)
    spoken = Batch(
        said, torch.tensor([said.shape[1]]), mask, 0.0 * mask, torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    )
    read = run(engine.forward(spoken)).logprobs[mask]
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


def opened(folder: Path, model: Path, name: str) -> Run:
    """A new run."""
    return Run.create(folder, parse(TrainConfig, "", (f"model={model}", *SMALL, *RUN, *RUNS[name])))


def play(open: Callable[[], Run], crew: Crew, report: Report = silent) -> None:
    """A tiny run, or the rest of one."""
    run = crew.gather(open() if crew.rank == 0 else None)[0]
    assert run is not None
    mine = shadow(run, run.folder.with_name(f"{run.folder.name} {crew.rank}")) if crew.rank else run
    train(run.config, mine, report, crew)


def stopped(folder: Path, model: Path, crew: Crew) -> None:
    """A run in which the first process is pressed Ctrl-C upon, after step 3."""
    report = Stopper("train", 3) if crew.rank == 0 else silent
    with pytest.raises(KeyboardInterrupt, match="stopped after step 3"):
        play(lambda: opened(folder / "stopped", model, "whole"), crew, report)


def run(call: Any) -> Any:
    return asyncio.run(call)


def main(folder: Path, model: Path) -> None:
    leash()
    place = take_place()
    torch.set_num_threads(1)
    with contextlib.closing(Ranks(place)) as crew:
        for name in ENGINES:
            use(folder, model, name, crew)
        use(folder / "resumed", model, "full, divided", crew, folder / "alone" / "full")
        base.score = rewarded
        for name in RUNS:
            play(lambda name=name: opened(folder / name, model, name), crew)  # type: ignore[misc]
        stopped(folder, model, crew)
        play(lambda: Run.resume(folder / "alone" / "begun"), crew)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
