"""The local engine on a pretended GPU: it mixes no devices, computes what the CPU does, and seldom waits."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.pretended_cuda import PretendedCuda, pretended_cuda
from support.random_batches import random_batch
from understudy.algorithms.batch import Batch
from understudy.algorithms.config import CriticConfig, LossConfig
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local.config import LocalEngineConfig, LoraConfig
from understudy.engines.local.cpu import kernels
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.sampling import filters
from understudy.engines.local.sampling.sampler import LocalSampler
from understudy.engines.models import make_tiny_model
from understudy.engines.reference_config import ReferenceConfig

__all__ = ["pretended_cuda"]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers

PROMPT = [*range(40, 64)]
MIXED = (
    SamplingParams(max_response_tokens=3),
    SamplingParams(max_response_tokens=3, temperature=0.0),
    SamplingParams(max_response_tokens=3, min_p=0.3, temperature=1.5),
    SamplingParams(max_response_tokens=3, top_p=0.8),
    SamplingParams(max_response_tokens=3, top_k=5, temperature=0.7, repetition_penalty=1.8),
)
UPDATE_WAITS = 3
"""The metrics, the log-probabilities, and the fingerprint that the ranks compare."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def open_engine(folder: Path, device: str = "cuda", **settings: Any) -> LocalEngine:
    values = {"device": device, "dtype": "float32", "lora": LoraConfig(rank=2, alpha=4.0)} | settings
    return LocalEngine(folder, LocalEngineConfig.model_validate(values))


def run(call: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await call

    return asyncio.run(wait())


def sample_all(engine: LocalEngine, samplings: Sequence[SamplingParams] = MIXED) -> list[Completion]:
    async def together() -> list[Completion]:
        return await asyncio.gather(*(engine.sample([*PROMPT, i], s, i) for i, s in enumerate(samplings)))

    return asyncio.run(together())


def make_batch(rows: int = 4) -> Batch:
    """Return a batch for the policy and for a critic, whose rows have unequal lengths."""
    batch = random_batch([(10, 8 + i) for i in range(rows)])
    values, returns, weights = torch.randn(3, *batch.tokens.shape, generator=torch.Generator().manual_seed(5))
    decisions = batch.mask & (torch.arange(batch.tokens.shape[1]) % 3 == 0)
    return batch.replace(values=values, returns=returns, value_weights=weights.abs() * decisions)


def without_critic(batch: Batch) -> Batch:
    return replace(batch, returns=None)


class EvenTokens:
    """A grammar that allows the even token ids."""

    def allowed_tokens(self) -> bytes:
        return bytes([1, 0] * 132)

    def accept(self, token: int) -> None:
        assert token % 2 == 0


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the numbers of rows of the sampler's passes that sample tokens."""
    found: list[int] = []
    sample_next = LocalSampler._sample_next

    def record(self: LocalSampler, rows: Sequence[Any], *others: Any) -> None:
        found.append(len(rows))
        sample_next(self, rows, *others)

    monkeypatch.setattr(LocalSampler, "_sample_next", record)
    return found


def test_replies_equal_those_on_the_cpu(tiny: Path, pretended_cuda: PretendedCuda) -> None:
    ours, theirs = (sample_all(open_engine(tiny, device)) for device in ("cuda", "cpu"))
    assert [x.tokens for x in ours] == [x.tokens for x in theirs]
    found, expected = ([logprob for x in each for logprob in x.logprobs] for each in (ours, theirs))
    assert found == pytest.approx(expected, abs=1e-4)


def test_each_pass_of_the_sampler_waits_once(tiny: Path, pretended_cuda: PretendedCuda, passes: list[int]) -> None:
    engine, plain = open_engine(tiny), [sampling.replace(keep_sampling_mask=False) for sampling in MIXED]
    with pretended_cuda.record() as waits:
        sample_all(engine, plain)
        sample_all(engine, plain)  # from cached prefixes, with drafts
    assert max(passes) == len(MIXED)
    assert len(waits) == len(passes), waits


def test_sampling_masks_wait_once_more(tiny: Path, pretended_cuda: PretendedCuda, passes: list[int]) -> None:
    engine = open_engine(tiny)
    with pretended_cuda.record() as waits:
        sample_all(engine, [SamplingParams(max_response_tokens=3, min_p=0.3)])
    assert len(waits) == 2 * len(passes), waits


def test_a_constrained_pass_waits_once(tiny: Path, pretended_cuda: PretendedCuda, passes: list[int]) -> None:
    engine, sampling = open_engine(tiny), SamplingParams(max_response_tokens=3, keep_sampling_mask=False)
    with pretended_cuda.record() as waits:
        reply = run(engine.sample_constrained(PROMPT, sampling, 0, EvenTokens()))
    assert not any(token % 2 for token in reply.tokens)
    assert len(waits) == len(passes) == 3, waits


def test_top_p_waits_once_more_only_if_it_keeps_many_tokens(
    tiny: Path, pretended_cuda: PretendedCuda, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    flat, steep = (
        SamplingParams(max_response_tokens=2, top_p=0.9, temperature=t, keep_sampling_mask=False) for t in (5.0, 0.05)
    )
    replies = [sample_all(open_engine(tiny), [sampling]) for sampling in (flat, steep)]
    monkeypatch.setattr(filters, "NUM_CANDIDATES", {"cuda": 16})
    for sampling, expected, waits_per_pass in zip((flat, steep), replies, (2, 1), strict=True):
        engine = open_engine(tiny)
        passes.clear()
        with pretended_cuda.record() as waits:
            assert sample_all(engine, [sampling]) == expected
        assert len(waits) == waits_per_pass * len(passes), waits


def test_a_checkpoint_is_written_without_the_gpu(tiny: Path, pretended_cuda: PretendedCuda, tmp_path: Path) -> None:
    """A thread writes it while the sampler may record a CUDA graph."""
    engine = open_engine(tiny)
    with pretended_cuda.record() as copies:
        write = engine.prepare_save()
    with pretended_cuda.record() as waits:
        write(tmp_path)
    assert copies
    assert waits == []


LOSSES = [LossConfig(), LossConfig(kind="gspo"), LossConfig(kind="cispo"), LossConfig(kind="nll")]
CUSTOM = LossConfig(kind=f"{__name__}:my_loss")


def my_loss(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, ids: Tensor, config: Any) -> Any:
    return -(logprobs * advantages).sum(), {"mine": logprobs.detach().sum(), "tokens": len(logprobs)}


@pytest.mark.parametrize("loss", [*LOSSES, CUSTOM], ids=lambda loss: loss.kind.rpartition(":")[2])
def test_an_update_waits_a_constant_number_of_times(
    tiny: Path, pretended_cuda: PretendedCuda, loss: LossConfig
) -> None:
    engine, batch = open_engine(tiny), without_critic(make_batch())
    for minibatches, max_tokens in (([batch], 4096), ([batch], 25), ([batch.select([0, 1]), batch], 25)):
        engine._config = engine._config.replace(max_tokens_per_microbatch=max_tokens)
        with pretended_cuda.record() as waits:
            run(engine.update(minibatches, loss, 1e-3, lambda *_: None))
        assert len(waits) == UPDATE_WAITS, waits


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"finetune": "lora", "lora": LoraConfig(rank=2, dropout=0.1)}, {"gradient_checkpointing": True}],
    ids=["lora", "gradient_checkpointing"],
)
def test_an_update_of_a_critic_waits_as_often(
    tiny: Path, pretended_cuda: PretendedCuda, settings: dict[str, Any]
) -> None:
    engine = open_engine(tiny, max_tokens_per_microbatch=25, **settings)
    engine.add_critic(CriticConfig())
    batch = run(engine.compute_values(make_batch()))
    with pretended_cuda.record() as waits:
        metrics = run(engine.update([batch], LossConfig(), 1e-3, lambda *_: None))
    assert metrics["value_grad_norm"] > 0
    assert len(waits) == UPDATE_WAITS, waits


@pytest.mark.parametrize("kind", ["frozen", "ema", "model"])
def test_reading_a_batch_waits_once(tiny: Path, pretended_cuda: PretendedCuda, kind: str) -> None:
    engine, batch = open_engine(tiny, max_tokens_per_microbatch=25), make_batch()
    engine.add_critic(CriticConfig())
    engine.set_reference(ReferenceConfig(kind=kind, model=str(tiny) if kind == "model" else ""))  # type: ignore[arg-type]
    run(engine.compute_ref_logprobs(batch))  # loads the other model
    engine.update_reference()
    calls: list[Callable[[Batch], Awaitable[Batch]]] = [
        engine.compute_logprobs,
        engine.compute_ref_logprobs,
        engine.compute_values,
    ]
    for call in calls:
        with pretended_cuda.record() as waits:
            run(call(batch))
        assert len(waits) == 1, waits


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_updates_equal_those_on_the_cpu(tiny: Path, pretended_cuda: PretendedCuda, loss: LossConfig) -> None:
    batch, found = make_batch(), []
    for device in ("cuda", "cpu"):
        engine = open_engine(tiny, device, max_tokens_per_microbatch=45, train_embeddings=True)
        engine.add_critic(CriticConfig())
        metrics = run(engine.update([batch], loss, 1e-3))
        found.append((metrics, run(engine.compute_logprobs(batch)).logprobs, run(engine.compute_values(batch)).values))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-3, abs=1e-4)
    for ours, theirs in zip(found[0][1:], found[1][1:], strict=True):
        assert torch.allclose(ours, theirs, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_checkpoints_and_exports_move_between_devices(
    tiny: Path, pretended_cuda: PretendedCuda, tmp_path: Path, finetune: str
) -> None:
    batch = make_batch()

    def open_with_parts(device: str) -> LocalEngine:
        engine = open_engine(tiny, device, finetune=finetune)
        engine.add_critic(CriticConfig())
        return engine

    def read(engine: LocalEngine) -> Tensor:
        return run(engine.compute_logprobs(batch)).logprobs

    engine = open_with_parts("cuda")
    engine.set_reference()
    run(engine.update([batch], LossConfig(), 1e-2))
    engine.save(tmp_path)
    saved = read(engine)
    metrics = run(engine.update([batch], LossConfig(), 1e-2))
    resumed, on_cpu = open_with_parts("cuda"), open_with_parts("cpu")
    for each in (resumed, on_cpu):
        each.load(tmp_path)
    assert torch.equal(read(resumed), saved)
    assert torch.allclose(read(on_cpu), saved, atol=1e-4)
    reference, expected = (run(each.compute_ref_logprobs(batch)).ref_logprobs for each in (resumed, engine))
    assert torch.equal(reference, expected)
    assert run(resumed.update([batch], LossConfig(), 1e-2)) == metrics
    engine.export(tmp_path / "export", merge_adapters=True)
    assert torch.allclose(read(open_engine(tmp_path / "export", "cpu")), read(engine), atol=1e-4)


def test_the_default_dtype_is_bfloat16(tiny: Path, pretended_cuda: PretendedCuda) -> None:
    engine, batch = open_engine(tiny, dtype="auto"), without_critic(make_batch(2))
    assert (engine.device, engine.dtype) == ("cuda", "bfloat16")
    sample_all(engine)
    assert run(engine.update([batch], LossConfig(), 1e-2))["relative_weight_change"] > 0


def test_the_device_refuses_what_cuda_refuses(pretended_cuda: PretendedCuda) -> None:
    there, here = torch.ones(3, 3, device="cuda"), torch.ones(3, 3)
    calls: list[Callable[[], Any]] = [
        lambda: there + here,
        lambda: there @ here,
        lambda: torch.cat([there, here]),
        lambda: there.gather(0, here.long()),
        lambda: here[there.long()],
        lambda: there.index_add_(0, torch.tensor([0]), there[:1]),
        lambda: torch.nn.functional.linear(there, here),
        lambda: there.masked_fill(here > 0, 0.0),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="same device"):
            call()
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    with pytest.raises(RuntimeError, match="row_dot"):
        kernels.call_kernel("row_dot", there, there, here, 3, 3)
    assert (there + torch.tensor(1.0)).cpu().tolist() == [[2.0] * 3] * 3  # CUDA takes a CPU scalar
    assert there.to("cuda") is there
    assert here.to("cuda").device == torch.zeros(1, device="cuda").device == torch.device("cuda:0")


@torch.inference_mode()
def test_the_device_records_what_makes_the_host_wait(pretended_cuda: PretendedCuda) -> None:
    there, here, index = torch.arange(3.0, device="cuda"), torch.arange(3.0), torch.arange(2, device="cuda")
    waits: list[Callable[[], Any]] = [
        lambda: there[0].item(),
        lambda: float(there.sum()),
        there.tolist,
        there.cpu,
        lambda: bool(there.any()),
        there.nonzero,
        lambda: there[there > 1],
        lambda: there.__setitem__(there > 1, there[:1]),
        lambda: there.__setitem__(index, 0.0),
        lambda: there[[0, 1]],
        lambda: there[torch.tensor([0, 1])],
        lambda: torch.unique(there),
        lambda: torch.equal(there, there),
        lambda: index.repeat_interleave(index),
        lambda: here.to("cuda"),
        lambda: here.to("cuda", non_blocking=True),
        lambda: there.copy_(here),
        lambda: torch.tensor([1, 2], device="cuda"),
        torch.cuda.synchronize,
    ]
    goes_on: list[Callable[[], Any]] = [
        lambda: there + 1,
        lambda: there[index],
        lambda: there[1:],
        lambda: there.__setitem__(index, there[:2] + 1),
        lambda: there.__setitem__(slice(1), 0.0),
        lambda: there.masked_fill_(there > 1, 0.0),
        lambda: torch.where(there > 1, there, 0.0),
        lambda: there.topk(2).values.sort().values.cumsum(0),
        lambda: here.pin_memory().to("cuda", non_blocking=True),
        lambda: torch.zeros(3, device="cuda"),
    ]
    for count, call in itertools.chain(zip(itertools.repeat(1), waits), zip(itertools.repeat(0), goes_on)):
        with pretended_cuda.record() as found:
            call()
        assert len(found) == count, (call, found)
