"""Kernels and the engine on a real NVIDIA GPU, against float64 and against the CPU. Elsewhere there is nothing to test.

python -m pytest tests/engines/test_on_a_gpu.py
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.machine import ELSEWHERE
from support.random_batches import random_batch
from understudy.algorithms.config import LossConfig
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local.attention import AttentionShape, AttentionSpec
from understudy.engines.local.config import LocalEngineConfig, LoraConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.sampling import sampler
from understudy.engines.local.tree_attention import attend_tree, tree_mask, validate_kernels
from understudy.engines.models import make_tiny_model

if not (torch.cuda.is_available() and torch.version.cuda):
    pytest.skip(f"{ELSEWHERE}PyTorch finds no NVIDIA GPU", allow_module_level=True)

GPU = torch.device("cuda")
SHAPES = [(9, 3, 64), (14, 2, 64), (28, 4, 128)]
"""Query heads, key heads and head size of SmolLM2-135M, Qwen2.5-0.5B and Qwen2.5-7B."""
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Largest relative error of a result."""


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted).norm() / wanted.norm())


def two_branches(count: int) -> Tensor:
    """Return where the subtree of each token ends: a prompt, and two branches of different lengths."""
    ends = torch.full((count,), count, dtype=torch.int32)
    ends[count // 3 : count // 2] = count // 2
    return ends


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("query_heads", "key_heads", "dim"), SHAPES)
def test_tree_attention_and_its_gradients(query_heads: int, key_heads: int, dim: int, dtype: torch.dtype) -> None:
    for count in (512, 1408):
        ends = two_branches(count)
        place = torch.arange(count)
        seen = ((place[None] <= place[:, None]) & (place[:, None] < ends[None])).to(GPU)
        inputs = [
            torch.randn(count, heads, dim, device=GPU, dtype=dtype) for heads in (query_heads, key_heads, key_heads)
        ]
        gradient = torch.randn(count, query_heads, dim, device=GPU, dtype=dtype)
        ours = [x.clone().requires_grad_() for x in inputs]
        spec = AttentionSpec(dim**-0.5)
        found = attend_tree(*ours, tree_mask(ends, place, spec, GPU), spec)
        exact = [x.double().requires_grad_() for x in inputs]
        q, k, v = exact[0], *(x.repeat_interleave(query_heads // key_heads, 1) for x in exact[1:])
        scores = dim**-0.5 * torch.einsum("mhd,nhd->hmn", q, k)
        wanted = torch.einsum("hmn,nhd->mhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)
        assert relative_error(found, wanted) < TOLERANCE[dtype]
        gradients = torch.autograd.grad(found, ours, gradient), torch.autograd.grad(wanted, exact, gradient.double())
        for mine, theirs in zip(*gradients, strict=True):
            assert relative_error(mine, theirs) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape",
    [
        AttentionShape(9, 3, 64, 64, AttentionSpec(0.125), False),
        AttentionShape(8, 4, 128, 128, AttentionSpec(0.0625, softcap=50.0, window=200), False),
        AttentionShape(8, 2, 64, 64, AttentionSpec(0.125, window=128), True),
        AttentionShape(4, 4, 192, 128, AttentionSpec(0.07), False),
    ],
)
def test_kernels_are_valid(shape: AttentionShape, dtype: torch.dtype) -> None:
    """Those of SmolLM2, and kinds of attention like those of Gemma 2, gpt-oss and DeepSeek V3."""
    validate_kernels(shape, dtype, GPU)


SPECS = (
    AttentionSpec(0.125),
    AttentionSpec(0.125, window=70),
    AttentionSpec(0.125, chunk=64),
    AttentionSpec(0.125, softcap=2.0, window=150),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("query_heads", "key_heads", "dim", "value_dim"),
    [*((*shape, shape[2]) for shape in SHAPES), (1, 1, 80, 80), (4, 2, 16, 24)],
)
def test_decoding_reads_the_prefix_and_the_own_tokens_of_each_row(
    query_heads: int, key_heads: int, dim: int, value_dim: int, spec: AttentionSpec, has_sinks: bool, dtype: torch.dtype
) -> None:
    from understudy.engines.local.sampling.decode_kernel import decode_rows

    sinks = torch.randn(query_heads, device=GPU, dtype=dtype) if has_sinks else None
    sizes = dim, value_dim
    cache = [torch.randn(key_heads, 6, 200, size, device=GPU, dtype=dtype) for size in sizes]
    prefixes = [[torch.randn(key_heads, n, size, device=GPU, dtype=dtype) for size in sizes] for n in (130, 64)]
    cases: list[tuple[int, int, int | None]] = [(4, 100, 0), (2, 1, 0), (0, 65, None), (0, 66, None), (5, 199, 1)]
    used = [prefixes[prefix] if prefix is not None else None for _, _, prefix in cases]
    rows = torch.tensor(
        [[slot, own, each[0].shape[1] if each else 0] for (slot, own, _), each in zip(cases, used, strict=True)]
    ).T
    addresses = torch.tensor([[x.data_ptr() for x in each] if each else [0, 0] for each in used]).T
    q = torch.randn(query_heads, len(cases), dim, device=GPU, dtype=dtype).transpose(0, 1)
    table = rows.contiguous().to(GPU), addresses.contiguous().to(GPU)
    found = decode_rows(q, *cache, *table, spec._replace(sinks=sinks))
    for i, ((slot, own, _), prefix) in enumerate(zip(cases, used, strict=True)):
        parts = [torch.cat([*([prefix[j]] if prefix else []), cache[j][:, slot, :own]], 1).double() for j in range(2)]
        k, v = (x.repeat_interleave(query_heads // key_heads, 0) for x in parts)
        scores = spec.scale * (q[i].double()[:, None] @ k.transpose(1, 2))
        if spec.softcap:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        scores[..., : max(0, spec.first_visible(k.shape[1] - 1))] = -torch.inf
        if sinks is not None:
            scores = torch.cat([scores, sinks.double()[:, None, None]], -1)
        wanted = (scores.softmax(-1)[..., : k.shape[1]] @ v)[:, 0]
        assert relative_error(found[i], wanted) < TOLERANCE[dtype]


def open_engine(folder: Path, **settings: Any) -> LocalEngine:
    values = {"device": "cuda", "dtype": "float32", "lora": LoraConfig(rank=2, alpha=4.0)} | settings
    return LocalEngine(folder, LocalEngineConfig.model_validate(values))


def replies(engine: LocalEngine, tokens: int = 40) -> list[Completion]:
    """Return replies of two groups with a common prompt each, and of a row of its own."""
    prompts = [[*range(40, 100)]] * 4 + [[*range(30, 90)]] * 3 + [[7, 8, 9]]
    sampling = SamplingParams(max_response_tokens=tokens)

    async def together() -> list[Completion]:
        return await asyncio.gather(*(engine.sample(prompt, sampling, i) for i, prompt in enumerate(prompts)))

    return asyncio.run(together())


def test_recorded_passes_sample_what_other_passes_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_model(tmp_path)
    recorded = open_engine(folder)
    first = replies(recorded)
    again = replies(recorded)  # from cached prefixes, with drafts
    monkeypatch.setattr(sampler, "supports_graphs", lambda _: False)
    plain = replies(open_engine(folder))
    for found in (first, again):
        assert [x.tokens for x in found] == [x.tokens for x in plain]
        for mine, theirs in zip(found, plain, strict=True):
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_an_update_is_that_of_the_cpu_and_reaches_recorded_passes(tmp_path: Path, finetune: str) -> None:
    folder = make_tiny_model(tmp_path)
    engines = [open_engine(folder, device=device, finetune=finetune) for device in ("cuda", "cpu")]
    batch = random_batch([(300, 200), (150, 90), (10, 8)])
    before = replies(engines[0])
    for _ in range(2):
        losses = [asyncio.run(engine.update([batch], LossConfig(kind="nll"), 1e-2)) for engine in engines]
        assert losses[0]["loss"] == pytest.approx(losses[1]["loss"], rel=1e-3)
        assert losses[0]["grad_norm"] == pytest.approx(losses[1]["grad_norm"], rel=1e-3)
    ours, theirs = (replies(engine) for engine in engines)
    assert [x.tokens for x in ours] != [x.tokens for x in before]
    same = [mine.tokens == other.tokens for mine, other in zip(ours, theirs, strict=True)]
    assert sum(same) >= len(same) - 1, "rounding may change a token"
