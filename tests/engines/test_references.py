"""Tests of the reference models: base model, stored adapters, EMA and teacher, and their checkpoints."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.local.config import LocalEngineConfig, LoraConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.reference import BaseModelReference, TeacherReference
from understudy.engines.models import make_tiny_model
from understudy.engines.reference_config import ReferenceConfig
from understudy.formats.tokenizer import first_token_difference

EMA = ReferenceConfig(kind="ema", ema_decay=0.25)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("other"), seed=3, architecture="qwen3", hidden_size=96)


def open_engine(folder: Path, finetune: str = "full", dtype: str = "float32") -> LocalEngine:
    values: dict[str, Any] = {
        "device": "cpu",
        "dtype": dtype,
        "finetune": finetune,
        "lora": LoraConfig(rank=4, alpha=8.0),
    }
    return LocalEngine(folder, LocalEngineConfig.model_validate(values))


def batch() -> Batch:
    episodes = []
    for text in ("a lamp", "a room"):
        episode = Trajectory("t", score=Score(reward=1.0))
        episode.observe([], list(text.encode()))
        episode.act(Message(role="assistant"), [120, 121, 122], [0.0] * 3)
        episodes.append(episode)
    whole = collate(episodes)
    return whole.replace(advantages=whole.mask * torch.tensor([[0.5], [-0.2]]))


def train(engine: LocalEngine) -> None:
    asyncio.run(engine.update([batch()], LossConfig(kind="nll"), 1e-2))


def policy_logprobs(engine: LocalEngine) -> Tensor:
    return asyncio.run(engine.compute_logprobs(batch())).logprobs


def reference_logprobs(engine: LocalEngine) -> Tensor:
    found = asyncio.run(engine.compute_ref_logprobs(batch())).ref_logprobs
    assert found is not None
    return found


def master_weights(engine: LocalEngine) -> dict[str, Tensor]:
    return {name: master.clone() for name, master in engine._optimizer.masters.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reference_set_before_lora_training_is_the_base_model(tiny: Path, dtype: str, tmp_path: Path) -> None:
    engine, plain = open_engine(tiny, "lora", dtype), open_engine(tiny, "lora", dtype)
    base = policy_logprobs(engine)
    engine.set_reference()
    assert isinstance(engine._reference, BaseModelReference)
    for _ in range(2):
        train(engine)
        train(plain)
        assert torch.equal(reference_logprobs(engine), base), (
            "before the adapters moved, without them it is what it was"
        )
        assert not torch.equal(policy_logprobs(engine), base)
        assert torch.equal(policy_logprobs(engine), policy_logprobs(plain)), "and to look at it changes nothing"
    engine.save(tmp_path)
    resumed = open_engine(tiny, "lora", dtype)
    resumed.load(tmp_path)
    assert torch.equal(reference_logprobs(resumed), base)
    train(engine)
    train(resumed)
    assert torch.equal(policy_logprobs(resumed), policy_logprobs(engine))


def test_reference_set_after_lora_training_stores_the_adapters(tiny: Path) -> None:
    engine = open_engine(tiny, "lora")
    train(engine)
    warm = policy_logprobs(engine)
    engine.set_reference()
    assert engine._reference is not None
    assert {name.split(".")[-3] for name in engine._reference.state_dict()} == {"lora_A", "lora_B"}
    train(engine)
    assert torch.equal(reference_logprobs(engine), warm)


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_ema_reference_matches_the_formula_and_resumes(tiny: Path, tmp_path: Path, finetune: str) -> None:
    engine = open_engine(tiny, finetune)
    train(engine)
    first, at_first = master_weights(engine), policy_logprobs(engine)
    engine.set_reference(EMA)
    train(engine)
    assert torch.equal(reference_logprobs(engine), at_first), "it stays until it is moved"
    engine.update_reference()
    assert engine._reference is not None
    second = master_weights(engine)
    for name, weight in engine._reference.state_dict().items():
        torch.testing.assert_close(weight, 0.25 * first[name] + 0.75 * second[name])
    current, average = policy_logprobs(engine), reference_logprobs(engine)
    assert torch.equal(policy_logprobs(engine), current), "the policy is what it was"
    assert not torch.equal(average, current)
    engine.save(tmp_path)
    resumed = open_engine(tiny, finetune)
    resumed.load(tmp_path)
    for each in (engine, resumed):
        train(each)
        each.update_reference()
    assert torch.equal(reference_logprobs(resumed), reference_logprobs(engine))


def test_ema_reference_of_a_bfloat16_model_tracks_small_updates(tiny: Path) -> None:
    """A hundredth of an update is lost in bfloat16, so the average is stored in float32."""
    engine = open_engine(tiny, dtype="bfloat16")
    engine.set_reference(ReferenceConfig(kind="ema", ema_decay=0.99))
    before = master_weights(engine)
    train(engine)
    engine.update_reference()
    assert engine._reference is not None
    moved = [name for name, weight in engine._reference.state_dict().items() if not torch.equal(weight, before[name])]
    assert len(moved) == len(before)


def test_teacher_reference_is_constant_and_resumes(tiny: Path, other_model: Path, tmp_path: Path) -> None:
    expected = policy_logprobs(open_engine(other_model))
    engine = open_engine(tiny, "lora")
    engine.set_reference(ReferenceConfig(kind="model", model=str(other_model)))
    own = policy_logprobs(engine)
    torch.testing.assert_close(reference_logprobs(engine), expected)
    train(engine)
    assert torch.equal(reference_logprobs(engine), reference_logprobs(engine))
    torch.testing.assert_close(reference_logprobs(engine), expected)
    assert not torch.equal(policy_logprobs(engine), own)
    engine.save(tmp_path)
    resumed = open_engine(tiny, "lora")
    resumed.load(tmp_path)
    assert isinstance(resumed._reference, TeacherReference)
    assert resumed._reference._model is None, "it is read when it is first asked"
    assert torch.equal(reference_logprobs(resumed), reference_logprobs(engine))


def test_teacher_refuses_rows_beyond_its_context(tiny: Path, other_model: Path, tmp_path: Path) -> None:
    short = shutil.copytree(other_model, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 9}))
    engine = open_engine(tiny)
    engine.set_reference(ReferenceConfig(kind="model", model=str(short)))
    assert reference_logprobs(engine).any()  # rows of 9 tokens
    longer = Batch.from_rows([[*range(5, 15)]], [[False, *[True] * 9]])
    with pytest.raises(ConfigError, match=r"10 tokens.*context of 9.*short.*limits\.max_episode_tokens"):
        asyncio.run(engine.compute_ref_logprobs(longer))
    assert asyncio.run(engine.compute_logprobs(longer)).logprobs.any()


def test_dropped_reference_is_not_saved(tiny: Path, tmp_path: Path) -> None:
    engine = open_engine(tiny)
    engine.set_reference()
    engine.drop_reference()
    engine.save(tmp_path)
    resumed = open_engine(tiny)
    resumed.set_reference()
    resumed.load(tmp_path)
    with pytest.raises(ValueError, match="set_reference"):
        reference_logprobs(resumed)
    with pytest.raises(ValueError, match="set_reference"):
        resumed.update_reference()


@pytest.mark.parametrize("values", [{"kind": "model"}, {"kind": "ema", "model": "x"}, {"model": "x"}])
def test_reference_config_requires_a_model_exactly_for_kind_model(values: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"kind.*'model'"):
        ReferenceConfig.model_validate(values)


def test_first_token_difference_of_two_tokenizers(tiny: Path, other_model: Path, tmp_path: Path) -> None:
    ours = tiny / "tokenizer.json"
    assert first_token_difference(ours, other_model / "tokenizer.json") == ""
    theirs = tmp_path / "tokenizer.json"
    theirs.write_text(ours.read_text(encoding="utf-8").replace("<|im_end|>", "<|over|>"), encoding="utf-8")
    assert "'<|im_end|>' in" in (found := first_token_difference(ours, theirs))
    assert "and '<|over|>' in" in found
