"""Tests of the fused CPU kernels and their PyTorch fallbacks against float32 references."""

import ctypes
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.cpu_kernels import NO_COMPILER, needs_kernels
from understudy.engines.interface import SamplingParams
from understudy.engines.local.cpu import kernel_library, kernels
from understudy.engines.local.sampling import filters

BF16 = torch.bfloat16
REAL = BF16
"""The dtype of the running test, set by the fixture `kernel_mode`."""
ROUNDING = {"rtol": 2**-7, "atol": 2**-9}  # two roundings to bf16; values are of order 1
in_all_modes = pytest.mark.usefixtures("kernel_mode")
MODES = (pytest.param("bfloat16", marks=needs_kernels), pytest.param("float32", marks=needs_kernels), "fallback")


def load() -> ctypes.CDLL | str:
    return kernel_library._library.__wrapped__(BF16)


@pytest.fixture(params=MODES)
def kernel_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with the kernels in each dtype and with the fallback."""
    if request.param == "fallback":
        monkeypatch.setattr(kernel_library, "_library", lambda dtype: "switched off")
    else:
        monkeypatch.setattr(sys.modules[__name__], "REAL", getattr(torch, request.param))
        assert kernel_library.kernels_unavailable_reason(REAL) == ""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def random_normal(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape)).to(REAL)


def assert_close(actual: Tensor, expected: Tensor, **tolerance: float) -> None:
    """Assert closeness within bfloat16 tolerances; in float32 they are 2^13 times smaller."""
    exact = 2**-13 if torch.float32 == REAL else 1.0
    allowed = {name: max(exact * value, min(value, 1e-5)) for name, value in (tolerance or ROUNDING).items()}
    torch.testing.assert_close(actual, expected, check_dtype=False, **allowed)


def joint_reference(prefix: Tensor, own: Tensor, limits: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    unseen = torch.arange(own.shape[-1]) >= limits[..., None]
    scores = torch.cat([prefix.float(), own.float().masked_fill(unseen, -torch.inf)], -1)
    probs = (scores * scale).softmax(-1).nan_to_num(0.0)
    return probs[..., : prefix.shape[-1]], probs[..., prefix.shape[-1] :]


@in_all_modes
@pytest.mark.parametrize("length", [1, 7, 300])
def test_gather_and_scatter_heads(length: int) -> None:
    heads, group, rows, dim = 3, 2, 4, 32
    flat = random_normal(rows * length, heads * group + 1, dim)[:, 1:]  # the rows of projections are wider
    index = torch.randperm(rows * length).view(rows, length)
    found = kernels.gather_heads(flat, index, group)
    expected = flat[index].view(rows, length, heads, group, dim).permute(2, 0, 3, 1, 4)
    assert torch.equal(found.view(heads, rows, group, length, dim), expected)
    valid = torch.rand(rows, length) < 0.7
    out = torch.full_like(flat, 7.0).contiguous()
    kernels.scatter_heads_(out, index[valid], found, valid.flatten().nonzero()[:, 0], group)
    assert torch.equal(out[index[valid]], flat[index[valid]])
    assert (out[index[~valid]] == 7).all()


@pytest.mark.sweep
@in_all_modes
@pytest.mark.parametrize("prefix_size", [0, 1, 7, 65, 576])
@pytest.mark.parametrize("own_size", [1, 7, 65, 300])
def test_joint_softmax(prefix_size: int, own_size: int) -> None:
    prefix, own = random_normal(2, 3, 5, prefix_size, scale=9), random_normal(2, 3, 5, own_size, scale=9)
    limits = torch.randint(0, own_size + 1, (3, 5), dtype=torch.int32)
    limits[0, 0], limits[-1, -1] = 0, own_size
    expected = joint_reference(prefix, own, limits, 0.3)
    kernels.joint_softmax_(prefix, own, limits, 0.3)
    assert_close(prefix, expected[0], rtol=2**-8, atol=1e-6)
    assert_close(own, expected[1], rtol=2**-8, atol=1e-6)
    total = prefix.float().sum(-1) + own.float().sum(-1)
    seen = (limits > 0) | torch.tensor(prefix_size > 0)
    assert_close(total, seen.float().expand(2, 3, 5), atol=0.02, rtol=0)


@in_all_modes
def test_joint_softmax_of_extreme_scores_and_without_prefix() -> None:
    own = torch.tensor([80.0, -80.0, 80.0, 1e30]).to(REAL).expand(1, 1, 3, 4).contiguous()
    limits = torch.tensor([[3, 2, 0]], dtype=torch.int32)
    kernels.joint_softmax_(None, own, limits, 1.0)
    assert_close(own[0, 0], torch.tensor([[0.5, 0, 0.5, 0], [1, 0, 0, 0], [0, 0, 0, 0]]))


@in_all_modes
def test_joint_softmax_never_reads_beyond_the_limits() -> None:
    own = torch.full((1, 1, 2, 8), torch.nan, dtype=REAL)
    own[..., :3] = 1
    kernels.joint_softmax_(None, own, torch.full((1, 2), 3, dtype=torch.int32), 1.0)
    assert_close(own[0, 0, 0], torch.tensor([1 / 3] * 3 + [0.0] * 5))


@in_all_modes
@pytest.mark.parametrize("dim", [1, 7, 64, 65])
def test_row_dot(dim: int) -> None:
    a, b = random_normal(3, 5, dim), random_normal(3, 5, dim)
    assert_close(kernels.row_dot(a, b), (a.float() * b.float()).sum(-1), rtol=1e-5, atol=1e-5)
    strided = random_normal(5, 3, dim).transpose(0, 1)
    assert_close(kernels.row_dot(strided, b), (strided.float() * b.float()).sum(-1), rtol=1e-5, atol=1e-5)


LENGTHS = [0, 1, 7, 64, 65, 130]


@pytest.mark.sweep
@in_all_modes
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("dim", "prefix_size"), [(64, 65), (32, 0), (128, 1), (40, 7), (256, 576)])
def test_decode_attention(group: int, dim: int, prefix_size: int) -> None:
    rows, cap = len(LENGTHS), 140
    q, prefix = random_normal(2, rows, group, dim), random_normal(2, rows, group, prefix_size, scale=dim**0.5)
    cache = torch.full((2, 2, rows + 3, cap, dim), torch.nan, dtype=REAL)  # NaN shows any read beyond a row's length
    slots, lengths = torch.randperm(rows + 3)[:rows].int(), torch.tensor(LENGTHS, dtype=torch.int32)
    for slot, length in zip(slots, lengths, strict=True):
        cache[:, :, slot, :length] = random_normal(2, 2, int(length), dim)
    keys, values = cache

    expected, probs = torch.zeros(2, rows, group, dim), torch.zeros(prefix.shape)
    for i, length in enumerate(LENGTHS):
        if length:
            k, v = (x[:, slots[i], :length].float() for x in (keys, values))
            limits = torch.full((1, group), length)
            scores = prefix[:, i : i + 1], (q[:, i].float() @ k.mT)[:, None]
            probs[:, i], own = (x[:, 0] for x in joint_reference(*scores, limits, dim**-0.5))
            expected[:, i] = own @ v
    out = kernels.decode_attention(q, prefix, keys, values, slots, lengths, max(LENGTHS), dim**-0.5)
    assert_close(out, expected, rtol=2**-6, atol=2**-6)
    assert_close(prefix, probs, rtol=2**-5, atol=1e-5)


@in_all_modes
def test_decode_attention_without_prefix_and_with_extreme_scores() -> None:
    q = torch.full((1, 2, 1, 32), 10.0, dtype=REAL)
    keys = torch.full((1, 2, 3, 32), -0.25, dtype=REAL)
    keys[:, :, 1] = 0.25  # scores of -80, 80, -80
    values = random_normal(1, 2, 3, 32)
    arguments = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([3, 1], dtype=torch.int32)
    out = kernels.decode_attention(q, None, keys, values, *arguments, 3, 1.0)
    assert_close(out[0, :, 0], torch.stack([values[0, 0, 1], values[0, 1, 0]]))


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 3, 8, 21])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 2), (48, 576), (131, 66)])
def test_packed_linear(dtype: str, rows: int, outputs: int, inputs: int) -> None:
    real = getattr(torch, dtype)
    x, weight, bias = (torch.randn(*shape).to(real) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    packed = kernels.pack_weights_(None, weight)
    scale = 2**-7 if dtype == "bfloat16" else 1e-5
    for added in (None, bias):
        want = torch.nn.functional.linear(x.double(), weight.double(), None if added is None else added.double())
        found = kernels.packed_linear(x, packed, outputs, added)
        torch.testing.assert_close(found.double(), want, rtol=scale, atol=scale * inputs**0.5)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 21])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 576), (131, 66)])
def test_logits_of_bfloat16_weights_are_not_rounded(rows: int, outputs: int, inputs: int) -> None:
    x, weight = (torch.randn(size, inputs).bfloat16() for size in (rows, outputs))
    found = kernels.packed_logits(x, kernels.pack_weights_(None, weight), torch.full((rows, outputs), torch.nan))
    torch.testing.assert_close(found.double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-5 * inputs**0.5)


def norm_reference(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def swiglu_reference(gate: Tensor, up: Tensor) -> Tensor:
    return gate * torch.sigmoid(gate) * up


def rope_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]


def check_gradients(
    kernel: Callable[..., Any], reference: Callable[..., Any], *inputs: Tensor, rtol: float = 2**-6, atol: float = 2**-6
) -> None:
    """Compare results and gradients of all inputs with the reference in float32."""
    plain = [x.detach().float().requires_grad_() for x in inputs]
    leaves = [x.detach().requires_grad_() for x in inputs]
    got, want = kernel(*leaves), reference(*plain)
    grad = random_normal(*want.shape)
    assert_close(got, want, rtol=rtol, atol=atol)
    with torch.no_grad():
        assert torch.equal(kernel(*inputs), got)
    expected = torch.autograd.grad(want, plain, grad.float())
    for actual, gradient in zip(torch.autograd.grad(got, leaves, grad), expected, strict=True):
        assert_close(actual, gradient, rtol=rtol, atol=atol * max(1.0, float(gradient.abs().max())))


@in_all_modes
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (7, 65), (3, 7), (130, 576)])
def test_rms_norm(rows: int, dim: int) -> None:
    check_gradients(
        lambda x, w: kernels.rms_norm(x, w, 1e-5), norm_reference, random_normal(rows, dim), random_normal(dim)
    )


@in_all_modes
def test_rms_norm_rounds_as_transformers_does() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    module = LlamaRMSNorm(576, 1e-5).to(REAL)
    module.weight.data = random_normal(576)
    x = random_normal(2, 65, 576)
    got, want = kernels.rms_norm(x, module.weight, 1e-5), module(x)
    assert_close(got, want)
    assert torch.float32 == REAL or (got != want).float().mean() < 1e-3  # the order of summation differs


@in_all_modes
@pytest.mark.parametrize(("rows", "dim"), [(1, 7), (130, 65)])
def test_add_rms_norm(rows: int, dim: int) -> None:
    def concatenate(pair: tuple[Tensor, Tensor]) -> Tensor:
        return torch.cat(pair, -1)

    check_gradients(
        lambda r, x, w: concatenate(kernels.add_rms_norm(r, x, w, 1e-5)),
        lambda r, x, w: concatenate((r + x, norm_reference(r + x, w))),
        *(random_normal(rows, dim), random_normal(rows, dim), random_normal(dim)),
        atol=2**-5,
    )


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_attention_are_finite_for_extreme_scores(dtype: str) -> None:
    """Scores that are not visible, and those of padding, may exceed the visible ones by any amount."""
    q, k, v = (torch.zeros(40, 1, 32) for _ in range(3))
    q[..., 0], v[:] = 1.0, torch.randn(40, 1, 32)
    for score in (*range(80, 100), 88.75, 178.0, 356.0, 1e4):
        k[..., 0] = -score
        k[20:, :, 0] = score  # of tokens that the first ones do not see
        inputs = [x.to(getattr(torch, dtype)) for x in (q, k, v)]
        scores = kernels.TreeScores(1.0, torch.full((40,), 40, dtype=torch.int32))
        out, sums = kernels.tree_attention(*inputs, scores)
        gradients = kernels.tree_attention_backward(torch.randn(40, 1, 32).to(out), out, sums, *inputs, scores)[:3]
        assert all(x.isfinite().all() for x in (out, *gradients)), score


@in_all_modes
@pytest.mark.parametrize("size", [7, 16384, 40001])
def test_gradients_are_added_and_weights_rounded(size: int) -> None:
    masters, weights, gradient = torch.randn(size), random_normal(size), random_normal(size)
    total = torch.randn(size)
    expected, new, version = total + gradient, masters.to(REAL), weights._version
    kernels.add_widened_(total, gradient)
    assert torch.equal(total, expected)
    wanted = (new.double() - weights.double()).norm(), new.double().norm()
    for found, norm in zip(kernels.copy_rounded_(weights, masters), wanted, strict=True):
        assert float(found) == pytest.approx(float(norm), rel=1e-3)
    assert torch.equal(weights, new)
    assert weights._version > version, "packed copies of the weights are made again"


@in_all_modes
@pytest.mark.parametrize("shape", [(1, 1), (7, 65), (2, 3, 576)])
def test_swiglu(shape: tuple[int, ...]) -> None:
    check_gradients(kernels.swiglu, swiglu_reference, random_normal(*shape, scale=3), random_normal(*shape))


@in_all_modes
def test_swiglu_of_views_and_extreme_values() -> None:
    wide = random_normal(7, 130)
    wide[0, :4] = torch.tensor([80.0, -80.0, 1e4, -1e4]).to(REAL)
    check_gradients(lambda x: kernels.swiglu(*x.chunk(2, -1)), lambda x: swiglu_reference(*x.chunk(2, -1)), wide)


@in_all_modes
@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (9, 64), (3, 14)])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_rope(heads: int, dim: int, dtype: torch.dtype) -> None:
    angles = torch.randn(7, dim // 2).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    check_gradients(
        lambda x: kernels.rope(x[:, 1:-1], cos, sin),
        lambda x: rope_reference(x[:, 1:-1], cos.float(), sin.float()),
        random_normal(7, heads + 2, dim),
    )


def test_fallbacks_pass_gradcheck() -> None:
    def inputs(*shapes: tuple[int, ...]) -> list[Tensor]:
        return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    angles = torch.randn(3, 4, dtype=torch.float64).repeat(1, 2)
    assert torch.autograd.gradcheck(lambda x, w: kernels.rms_norm(x, w, 1e-5), inputs((3, 7), (7,)))
    assert torch.autograd.gradcheck(lambda r, x, w: kernels.add_rms_norm(r, x, w, 1e-5), inputs((3, 7), (3, 7), (7,)))
    assert torch.autograd.gradcheck(kernels.swiglu, inputs((3, 7), (3, 7)))
    assert torch.autograd.gradcheck(lambda x: kernels.rope(x, angles.cos(), angles.sin()), inputs((3, 2, 8)))


@in_all_modes
@pytest.mark.parametrize("vocabulary", [1, 7, 65, 576, 5000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs(vocabulary: int, temperature: float) -> None:
    logits, targets = random_normal(5, vocabulary, scale=4), torch.randint(0, vocabulary, (5,))
    logits[0, 0], logits[1, -1] = 80, -80
    plain = logits.double().requires_grad_()
    every = (plain / temperature).log_softmax(-1)
    expected = every.gather(-1, targets[:, None])[:, 0]
    logprobs, entropy = kernels.logits_to_logprobs(logits, targets, temperature)
    assert logprobs.dtype == entropy.dtype == torch.float32
    assert_close(logprobs, expected, rtol=1e-6, atol=5e-6)
    assert_close(entropy, -(every.exp() * every).sum(-1), rtol=1e-5, atol=5e-6)

    weights = torch.randn(5)
    (gradient,) = torch.autograd.grad(expected, plain, weights.double())
    again = logits.clone()
    kernels.logits_to_logprobs_backward_(logits, targets, weights, temperature)
    kernels.logits_to_logprobs_backward_(again, targets, weights, temperature, logprobs)
    assert_close(logits, gradient, rtol=2**-7, atol=1e-5)
    assert_close(again, gradient, rtol=2**-7, atol=1e-5)


@in_all_modes
@pytest.mark.parametrize("vocabulary", [1, 7, 65, 5000])
def test_samples_follow_the_inverse_cumulative_distribution(vocabulary: int) -> None:
    logits, uniforms = random_normal(64, vocabulary, scale=3), torch.rand(64)
    tokens, logprobs = kernels.sample_tokens(logits, 0.7, uniforms)
    every = (logits.double() / 0.7).log_softmax(-1)
    sums = every.exp().cumsum(-1).gather(-1, tokens[:, None])[:, 0]
    probs = every.exp().gather(-1, tokens[:, None])[:, 0]
    assert (sums > uniforms - 1e-6).all()
    assert (sums - probs < uniforms + 1e-6).all()
    assert_close(logprobs, probs.log(), rtol=1e-6, atol=5e-6)


@in_all_modes
@pytest.mark.parametrize("vocabulary", [1, 7, 65, 5000])
def test_min_p_sampling_matches_the_filters(vocabulary: int) -> None:
    logits, uniforms, sampling = (
        random_normal(64, vocabulary, scale=3),
        torch.rand(64),
        SamplingParams(temperature=0.7, min_p=0.1),
    )
    tokens, logprobs = kernels.sample_tokens(logits, 0.7, uniforms, 0.1)
    expected = filters.sample_filtered(logits, [sampling] * 64, [torch.empty(0, dtype=torch.int64)] * 64, uniforms)
    assert (tokens == expected[0]).float().mean() > 0.96  # the others are within rounding of a boundary
    scaled = logits.double() / 0.7
    assert (scaled.amax(-1) - scaled.gather(-1, tokens[:, None])[:, 0] <= math.log(10) + 1e-5).all()
    assert_close(logprobs, scaled.log_softmax(-1).gather(-1, tokens[:, None])[:, 0], rtol=1e-6, atol=5e-6)


@in_all_modes
def test_greedy_sampling_takes_the_first_most_likely_token() -> None:
    logits = random_normal(9, 300).clamp(max=2)
    logits[:, [7, 250]] = 3
    tokens, logprobs = kernels.sample_tokens(logits, 0.0, torch.zeros(9))
    assert tokens.tolist() == [7] * 9
    assert_close(logprobs, logits.double().log_softmax(-1)[:, 7], rtol=1e-6, atol=5e-6)


@in_all_modes
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0])  # a float64 just below 1 rounds to 1.0 in float32
def test_impossible_tokens_are_never_sampled(uniform: float) -> None:
    logits = torch.full((1, 4097), -torch.inf, dtype=REAL)
    logits[0, 100], logits[0, 2000] = 1, 1
    (token,), (logprob,) = kernels.sample_tokens(logits, 1.0, torch.tensor([uniform]))
    assert token == (100 if uniform < 0.5 else 2000)
    assert_close(logprob, torch.tensor(0.5).log(), rtol=1e-6, atol=0)


@in_all_modes
def test_sampling_frequencies() -> None:
    count = 20_000
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 1.5]).to(REAL)
    tokens, _ = kernels.sample_tokens(logits.repeat(count, 1), 1.3, torch.rand(count))
    expected = count * (logits.double() / 1.3).softmax(-1)
    chi_square = ((torch.bincount(tokens, minlength=7) - expected) ** 2 / expected).sum()
    assert chi_square < 16.8  # 6 degrees of freedom, p = 0.01; the seed is fixed


@needs_kernels
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    def compute_all() -> list[Tensor]:
        torch.manual_seed(1)
        x, r, g, w = (random_normal(300, 192), random_normal(300, 192), random_normal(300, 192), random_normal(192))
        leaves = [t.requires_grad_() for t in (x, r, g, w)]
        y = kernels.add_rms_norm(r, kernels.swiglu(x, g), w, 1e-5)[1]
        turned = kernels.rope(y.view(300, 3, 64), torch.rand(300, 64), torch.rand(300, 64))
        grads = torch.autograd.grad(turned, leaves, random_normal(*turned.shape))
        prefix, own, limits = (
            random_normal(2, 3, 50, 65),
            random_normal(2, 3, 50, 130),
            torch.randint(0, 131, (3, 50)).int(),
        )
        kernels.joint_softmax_(prefix, own, limits, 0.125)
        cache, lengths = random_normal(2, 2, 30, 90, 64), torch.randint(0, 91, (30,)).int()
        out = kernels.decode_attention(
            random_normal(2, 30, 3, 64), None, *cache, torch.arange(30).int(), lengths, 90, 0.125
        )
        logits = random_normal(20, 5000)
        results = (
            kernels.logits_to_logprobs(logits, torch.arange(20), 1.0),
            kernels.sample_tokens(logits, 1.0, torch.rand(20)),
        )
        gathered = kernels.gather_heads(random_normal(90, 3, 64), torch.randint(0, 90, (4, 300)), 1)
        scattered = torch.zeros(1200, 3, 64).to(REAL)
        kernels.scatter_heads_(scattered, torch.randperm(1200), gathered, torch.arange(1200), 1)
        product = kernels.packed_linear(x.detach(), kernels.pack_weights_(None, random_normal(500, 192)), 500)
        q, k, v, wanted = (random_normal(300, count, 64).detach() for count in (6, 2, 2, 6))
        scores = kernels.TreeScores(0.125, (torch.arange(300) // 50 * 50 + 50).int())
        attended, sums = kernels.tree_attention(q, k, v, scores)
        gradients = kernels.tree_attention_backward(wanted, attended, sums, q, k, v, scores)[:3]
        heads = gathered, scattered, product, attended, sums, *gradients
        return [turned.detach(), *grads, prefix, own, out, *results[0], *results[1], *heads]

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = compute_all()
        torch.set_num_threads(2)
        assert all(torch.equal(a, b) for a, b in zip(alone, compute_all(), strict=True))
    finally:
        torch.set_num_threads(threads)


@needs_kernels
def test_torch_and_kernels_share_one_openmp_runtime() -> None:
    assert kernel_library.kernels_unavailable_reason() == ""
    maps = Path("/proc/self/maps").read_text()
    assert len({line.split()[-1] for line in maps.splitlines() if "libgomp" in line}) == 1
    assert ctypes.CDLL(None).omp_get_max_threads() == torch.get_num_threads()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@needs_kernels
def test_kernels_are_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(load(), ctypes.CDLL)
    (library,) = (cache / "kernels").iterdir()
    monkeypatch.setattr(kernel_library.shutil, "which", lambda name: None)
    assert isinstance(load(), ctypes.CDLL)
    assert list((cache / "kernels").iterdir()) == [library]


@pytest.mark.usefixtures("cache")
def test_fallback_is_used_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_library.shutil, "which", lambda name: None)
    reason = load()
    monkeypatch.setattr(kernel_library, "_library", lambda dtype: reason)
    assert not kernel_library.kernels_available()
    assert kernel_library.kernels_unavailable_reason() == NO_COMPILER
    gate, up = random_normal(3, 7), random_normal(3, 7)
    assert_close(kernels.swiglu(gate, up), swiglu_reference(gate.float(), up.float()))


def test_failing_compiler_is_reported_and_leaves_no_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = cache.parent / "broken-cc"
    compiler.write_text("#!/bin/sh\necho 'kernels.c:1: error: not today' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", f"{compiler} -pipe")
    assert re.match(rf"{compiler}\b.*kernels\.c:1: error: not today$", load())
    assert not list((cache / "kernels").iterdir())


def test_kernels_are_unavailable_on_other_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_library.platform, "machine", lambda: "arm64")
    assert "x86-64" in load()


def test_unwritable_cache_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "file"))
    assert "file" in load()
