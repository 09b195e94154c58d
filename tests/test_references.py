"""References: each kind computes as it says, leaves the policy alone, and comes back from a checkpoint to the bit."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from pydantic import ValidationError  # noqa: E402
from torch import Tensor  # noqa: E402

from understudy.algorithms.options import Loss  # noqa: E402
from understudy.batch import Batch, collate  # noqa: E402
from understudy.engines.local.config import LocalConfig, Lora  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.engines.local.reference import Other, Untouched  # noqa: E402
from understudy.engines.reference import ReferenceConfig  # noqa: E402
from understudy.formats.vocabulary import differing  # noqa: E402
from understudy.messages import Message  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.tasks import Score  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402

EMA = ReferenceConfig(kind="ema", decay=0.25)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("other"), seed=3, architecture="qwen3", hidden=96)


def opened(folder: Path, finetune: str = "full", dtype: str = "float32") -> LocalEngine:
    values: dict[str, Any] = {"device": "cpu", "dtype": dtype, "finetune": finetune, "lora": Lora(rank=4, alpha=8.0)}
    return LocalEngine(folder, LocalConfig.model_validate(values))


def batch() -> Batch:
    episodes = []
    for text in ("a lamp", "a room"):
        episode = Trajectory("t", score=Score(reward=1.0))
        episode.observe([], list(text.encode()))
        episode.act(Message(role="assistant"), [120, 121, 122], [0.0] * 3)
        episodes.append(episode)
    whole = collate(episodes)
    return whole.with_(advantages=whole.mask * torch.tensor([[0.5], [-0.2]]))


def train(engine: LocalEngine) -> None:
    asyncio.run(engine.update([batch()], Loss(kind="nll"), 1e-2))


def read(engine: LocalEngine) -> Tensor:
    return asyncio.run(engine.forward(batch())).logprobs


def compared(engine: LocalEngine) -> Tensor:
    found = asyncio.run(engine.reference(batch())).ref_logprobs
    assert found is not None
    return found


def masters(engine: LocalEngine) -> dict[str, Tensor]:
    return {name: master.clone() for name, master in engine._optimizer.masters.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_before_lora_moves_its_reference_is_the_model_without_adapters(tiny: Path, dtype: str, tmp_path: Path) -> None:
    engine, plain = opened(tiny, "lora", dtype), opened(tiny, "lora", dtype)
    base = read(engine)
    engine.keep_reference()
    assert isinstance(engine._reference, Untouched)
    for _ in range(2):
        train(engine)
        train(plain)
        assert torch.equal(compared(engine), base), "before the adapters moved, without them it is what it was"
        assert not torch.equal(read(engine), base)
        assert torch.equal(read(engine), read(plain)), "and to look at it changes nothing"
    engine.save(tmp_path)
    resumed = opened(tiny, "lora", dtype)
    resumed.load(tmp_path)
    assert torch.equal(compared(resumed), base)
    train(engine)
    train(resumed)
    assert torch.equal(read(resumed), read(engine))


def test_after_lora_has_moved_its_adapters_are_kept(tiny: Path) -> None:
    engine = opened(tiny, "lora")
    train(engine)
    warm = read(engine)
    engine.keep_reference()
    assert engine._reference is not None
    assert {name.split(".")[-3] for name in engine._reference.state()} == {"lora_A", "lora_B"}
    train(engine)
    assert torch.equal(compared(engine), warm)


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_an_average_follows_by_hand_and_comes_back(tiny: Path, tmp_path: Path, finetune: str) -> None:
    engine = opened(tiny, finetune)
    train(engine)
    first, at_first = masters(engine), read(engine)
    engine.keep_reference(EMA)
    train(engine)
    assert torch.equal(compared(engine), at_first), "it stays until it is moved"
    engine.move_reference()
    assert engine._reference is not None
    second = masters(engine)
    for name, weight in engine._reference.state().items():
        torch.testing.assert_close(weight, 0.25 * first[name] + 0.75 * second[name])
    current, average = read(engine), compared(engine)
    assert torch.equal(read(engine), current), "the policy is what it was"
    assert not torch.equal(average, current)
    engine.save(tmp_path)
    resumed = opened(tiny, finetune)
    resumed.load(tmp_path)
    for each in (engine, resumed):
        train(each)
        each.move_reference()
    assert torch.equal(compared(resumed), compared(engine))


def test_an_average_in_bfloat16_hears_of_small_moves(tiny: Path) -> None:
    """A 100th of a step is lost in bfloat16, so the average is held in float32."""
    engine = opened(tiny, dtype="bfloat16")
    engine.keep_reference(ReferenceConfig(kind="ema", decay=0.99))
    before = masters(engine)
    train(engine)
    engine.move_reference()
    assert engine._reference is not None
    moved = [name for name, weight in engine._reference.state().items() if not torch.equal(weight, before[name])]
    assert len(moved) == len(before)


def test_another_model_teaches_without_being_moved(tiny: Path, other: Path, tmp_path: Path) -> None:
    expected = read(opened(other))
    engine = opened(tiny, "lora")
    engine.keep_reference(ReferenceConfig(kind="model", model=str(other)))
    own = read(engine)
    torch.testing.assert_close(compared(engine), expected)
    train(engine)
    assert torch.equal(compared(engine), compared(engine))
    torch.testing.assert_close(compared(engine), expected)
    assert not torch.equal(read(engine), own)
    engine.save(tmp_path)
    resumed = opened(tiny, "lora")
    resumed.load(tmp_path)
    assert isinstance(resumed._reference, Other)
    assert resumed._reference._model is None, "it is read when it is first asked"
    assert torch.equal(compared(resumed), compared(engine))


def test_a_reference_that_was_forgotten_is_in_no_checkpoint(tiny: Path, tmp_path: Path) -> None:
    engine = opened(tiny)
    engine.keep_reference()
    engine.forget_reference()
    engine.save(tmp_path)
    resumed = opened(tiny)
    resumed.keep_reference()
    resumed.load(tmp_path)
    with pytest.raises(ValueError, match="keep_reference first"):
        compared(resumed)
    with pytest.raises(ValueError, match="keep_reference first"):
        resumed.move_reference()


@pytest.mark.parametrize("values", [{"kind": "model"}, {"kind": "ema", "model": "x"}, {"model": "x"}])
def test_a_model_is_named_where_one_is_meant(values: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="a model is named where kind is 'model', and only there"):
        ReferenceConfig.model_validate(values)


def test_vocabularies_are_compared_token_by_token(tiny: Path, other: Path, tmp_path: Path) -> None:
    ours = tiny / "tokenizer.json"
    assert differing(ours, other / "tokenizer.json") == ""
    theirs = tmp_path / "tokenizer.json"
    theirs.write_text(ours.read_text(encoding="utf-8").replace("<|im_end|>", "<|over|>"), encoding="utf-8")
    assert "'<|im_end|>' in" in (found := differing(ours, theirs))
    assert "and '<|over|>' in" in found
