"""Whole runs on a pretended GPU. A tensor on the wrong device ends them."""

import asyncio
from pathlib import Path

import pytest

from support.pretended_cuda import pretended_cuda
from support.tiny_runs import (
    InterruptAtStep,
    distinct_character_rewards,
    equal_values,
    ignore_progress,
    load_checkpoint_files,
    run_episodes,
    step_metrics,
    tiny,
    tiny_config,
    train_tiny_run,
)
from understudy.runs.run import Run
from understudy.train.certify import certify
from understudy.train.loop import train

__all__ = ["distinct_character_rewards", "pretended_cuda", "tiny"]
pytestmark = [
    pytest.mark.usefixtures("distinct_character_rewards", "pretended_cuda"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's, of transformers
]
ON_CUDA = ("engine.device=cuda", "sampling.max_response_tokens=4", "steps=2", "eval.every=0", "save_every=0")
FILTERS = (
    "sampling.min_p=0.02",
    "sampling.top_k=50",
    "sampling.top_p=0.9",
    "sampling.repetition_penalty=1.1",
    "sampling.temperature=0.9",
)
PPO = ("algorithm.advantage_estimator=gae", "algorithm.num_minibatches=2")
LORA = ("engine.finetune=lora", "engine.lora.rank=2", "engine.lora.dropout=0.1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("algorithm.kl_coef=0.1", *FILTERS),
        (*PPO, "engine.gradient_checkpointing=true", "engine.dtype=auto"),
        (*PPO, *LORA, "algorithm.kl_coef=0.1", "algorithm.reference.kind=ema", "engine.max_tokens_per_microbatch=64"),
    ],
    ids=["grpo", "ppo", "ppo_lora"],
)
def test_run_is_complete(tiny: Path, tmp_path: Path, settings: tuple[str, ...]) -> None:
    run = train_tiny_run(tmp_path / "run", tiny, *ON_CUDA, *settings)
    steps = step_metrics(run)
    assert [line["train/grad_norm"] > 0 for line in steps] == [True] * 4  # two of SFT, two of RL
    assert load_checkpoint_files(run)["progress"]
    assert list((run.folder / "model").glob("*.safetensors"))


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_result(tiny: Path, tmp_path: Path) -> None:
    settings = (*ON_CUDA, "algorithm.kl_coef=0.1", "sft.steps=1")
    whole = train_tiny_run(tmp_path / "whole", tiny, *settings)
    with pytest.raises(KeyboardInterrupt):
        train_tiny_run(tmp_path / "parts", tiny, *settings, report=InterruptAtStep("train", 2))
    resumed = Run.resume(tmp_path / "parts")
    assert resumed.step == 2
    train(resumed.config, resumed, ignore_progress)
    assert step_metrics(resumed) == step_metrics(whole)
    assert equal_values(load_checkpoint_files(resumed), load_checkpoint_files(whole))
    assert run_episodes(resumed) == run_episodes(whole)


@pytest.mark.slow
def test_the_model_is_certified(tiny: Path) -> None:
    certificate = asyncio.run(certify(tiny_config(tiny, *ON_CUDA, "engine.dtype=bfloat16")))
    assert {check.name for check in certificate.checks if "log-probabilities agree" in check.name}
    assert [check for check in certificate.checks if not check.passed] == []
