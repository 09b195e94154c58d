"""The fused kernels and their fallbacks in torch, both against plain float32 mathematics."""

import ctypes
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from machine import ELSEWHERE  # noqa: E402
from understudy.engines.base import Sampling  # noqa: E402
from understudy.engines.local import compiled, filters, kernels  # noqa: E402

BF16 = torch.bfloat16
REAL = BF16
"""The dtype of the test at hand."""
ROUNDING = {"rtol": 2**-7, "atol": 2**-9}  # two roundings to bf16; values are of order 1

OTHER_SYSTEM = "the kernels are for Linux on x86-64 with glibc"
NO_COMPILER = "no C compiler was found ($CC, gcc, cc, clang)"
NO_OPENMP = "this torch was built without OpenMP"
"""The reasons for which a machine may be without kernels: that they do not compile is none of them."""
needs_kernels = pytest.mark.skipif(
    compiled.why() in (OTHER_SYSTEM, NO_COMPILER, NO_OPENMP),
    reason=f"{ELSEWHERE if compiled.why() == OTHER_SYSTEM else ''}{compiled.why()}",
)
both_ways = pytest.mark.usefixtures("way")
WAYS = (pytest.param("bfloat16", marks=needs_kernels), pytest.param("float32", marks=needs_kernels), "fallback")


def load() -> ctypes.CDLL | str:
    return compiled._library.__wrapped__(BF16)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs with the kernels for either dtype and without."""
    if request.param == "fallback":
        monkeypatch.setattr(compiled, "_library", lambda dtype: "switched off")
    else:
        monkeypatch.setattr(sys.modules[__name__], "REAL", getattr(torch, request.param))
        assert compiled.why(REAL) == ""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape)).to(REAL)


def close(actual: Tensor, expected: Tensor, **tolerance: float) -> None:
    """Tolerances are those of bfloat16; in float32 nothing is off by more than 2^-13 of them."""
    exact = 2**-13 if torch.float32 == REAL else 1.0
    allowed = {name: max(exact * value, min(value, 1e-5)) for name, value in (tolerance or ROUNDING).items()}
    torch.testing.assert_close(actual, expected, check_dtype=False, **allowed)


# ---- attention ----


def joint_reference(prefix: Tensor, own: Tensor, limits: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    unseen = torch.arange(own.shape[-1]) >= limits[..., None]
    scores = torch.cat([prefix.float(), own.float().masked_fill(unseen, -torch.inf)], -1)
    probs = (scores * scale).softmax(-1).nan_to_num(0.0)
    return probs[..., : prefix.shape[-1]], probs[..., prefix.shape[-1] :]


@both_ways
@pytest.mark.parametrize("prefix_size", [0, 1, 7, 65, 576])
@pytest.mark.parametrize("own_size", [1, 7, 65, 300])
def test_joint_softmax(prefix_size: int, own_size: int) -> None:
    prefix, own = normal(2, 3, 5, prefix_size, scale=9), normal(2, 3, 5, own_size, scale=9)
    limits = torch.randint(0, own_size + 1, (3, 5), dtype=torch.int32)
    limits[0, 0], limits[-1, -1] = 0, own_size
    expected = joint_reference(prefix, own, limits, 0.3)
    kernels.joint_softmax_(prefix, own, limits, 0.3)
    close(prefix, expected[0], rtol=2**-8, atol=1e-6)
    close(own, expected[1], rtol=2**-8, atol=1e-6)
    total = prefix.float().sum(-1) + own.float().sum(-1)
    seen = (limits > 0) | torch.tensor(prefix_size > 0)
    close(total, seen.float().expand(2, 3, 5), atol=0.02, rtol=0)


@both_ways
def test_joint_softmax_of_extreme_scores_and_without_prefix() -> None:
    own = torch.tensor([80.0, -80.0, 80.0, 1e30]).to(REAL).expand(1, 1, 3, 4).contiguous()
    limits = torch.tensor([[3, 2, 0]], dtype=torch.int32)
    kernels.joint_softmax_(None, own, limits, 1.0)
    close(own[0, 0], torch.tensor([[0.5, 0, 0.5, 0], [1, 0, 0, 0], [0, 0, 0, 0]]))


@both_ways
def test_joint_softmax_never_reads_what_is_unseen() -> None:
    own = torch.full((1, 1, 2, 8), torch.nan, dtype=REAL)
    own[..., :3] = 1
    kernels.joint_softmax_(None, own, torch.full((1, 2), 3, dtype=torch.int32), 1.0)
    close(own[0, 0, 0], torch.tensor([1 / 3] * 3 + [0.0] * 5))


@both_ways
@pytest.mark.parametrize(("prefix_size", "own_size"), [(0, 7), (65, 1), (576, 300)])
def test_gradients_of_the_joint_softmax(prefix_size: int, own_size: int) -> None:
    prefix, own = normal(2, 3, 5, prefix_size), normal(2, 3, 5, own_size)
    values, limits = torch.randn(prefix_size + own_size, 64), torch.randint(0, own_size + 1, (3, 5), dtype=torch.int32)
    scores = [prefix.float().requires_grad_(), own.float().requires_grad_()]
    unseen = torch.arange(own_size) >= limits[..., None]
    probs = (torch.cat([scores[0], scores[1].masked_fill(unseen, -1e9)], -1) * 0.5).softmax(-1)
    out = torch.cat([probs[..., :prefix_size], probs[..., prefix_size:] * ~unseen], -1) @ values
    grad = normal(*out.shape)
    expected = torch.autograd.grad(out, scores, grad.float())

    kernels.joint_softmax_(prefix, own, limits, 0.5)
    delta = kernels.row_dot(grad, out.detach().to(REAL))
    prefix_grad, own_grad = (grad.float() @ values.T).to(REAL).split([prefix_size, own_size], -1)
    prefix_grad, own_grad = prefix_grad.contiguous(), own_grad.contiguous()
    kernels.joint_softmax_backward_(prefix_grad, own_grad, prefix, own, delta, 0.5)
    seen = (limits > 0)[..., None]  # a query that sees nothing has no gradient; the reference has a uniform row there
    for got, want in zip((prefix_grad, own_grad), expected, strict=True):
        close(got, want if prefix_size else want * seen, rtol=0.05, atol=0.02 * float(expected[1].abs().max()))


@both_ways
@pytest.mark.parametrize("dim", [1, 7, 64, 65])
def test_row_dot(dim: int) -> None:
    a, b = normal(3, 5, dim), normal(3, 5, dim)
    close(kernels.row_dot(a, b), (a.float() * b.float()).sum(-1), rtol=1e-5, atol=1e-5)
    strided = normal(5, 3, dim).transpose(0, 1)
    close(kernels.row_dot(strided, b), (strided.float() * b.float()).sum(-1), rtol=1e-5, atol=1e-5)


LENGTHS = [0, 1, 7, 64, 65, 130]


@both_ways
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("dim", "prefix_size"), [(64, 65), (32, 0), (128, 1), (40, 7), (256, 576)])
def test_decode_attention(group: int, dim: int, prefix_size: int) -> None:
    rows, cap = len(LENGTHS), 140
    q, prefix = normal(2, rows, group, dim), normal(2, rows, group, prefix_size, scale=dim**0.5)
    cache = torch.full((2, 2, rows + 3, cap, dim), torch.nan, dtype=REAL)  # nothing unseen is read
    slots, lengths = torch.randperm(rows + 3)[:rows].int(), torch.tensor(LENGTHS, dtype=torch.int32)
    for slot, length in zip(slots, lengths, strict=True):
        cache[:, :, slot, :length] = normal(2, 2, int(length), dim)
    keys, values = cache

    expected, probs = torch.zeros(2, rows, group, dim), torch.zeros(prefix.shape)
    for i, length in enumerate(LENGTHS):
        if length:
            k, v = (x[:, slots[i], :length].float() for x in (keys, values))
            limits = torch.full((1, group), length)
            scores = prefix[:, i : i + 1], (q[:, i].float() @ k.mT)[:, None]
            probs[:, i], own = (x[:, 0] for x in joint_reference(*scores, limits, dim**-0.5))
            expected[:, i] = own @ v
    out = kernels.decode_attention(q, prefix, keys, values, slots, lengths, dim**-0.5)
    close(out, expected, rtol=2**-6, atol=2**-6)
    close(prefix, probs, rtol=2**-5, atol=1e-5)


@both_ways
def test_decode_attention_without_prefix_and_with_extreme_scores() -> None:
    q = torch.full((1, 2, 1, 32), 10.0, dtype=REAL)
    keys = torch.full((1, 2, 3, 32), -0.25, dtype=REAL)
    keys[:, :, 1] = 0.25  # scores of -80, 80, -80
    values = normal(1, 2, 3, 32)
    arguments = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([3, 1], dtype=torch.int32)
    out = kernels.decode_attention(q, None, keys, values, *arguments, 1.0)
    close(out[0, :, 0], torch.stack([values[0, 0, 1], values[0, 1, 0]]))


# ---- pointwise, with gradients ----


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
    """Results and gradients of all inputs, against the reference in float32."""
    plain = [x.detach().float().requires_grad_() for x in inputs]
    leaves = [x.detach().requires_grad_() for x in inputs]
    got, want = kernel(*leaves), reference(*plain)
    grad = normal(*want.shape)
    close(got, want, rtol=rtol, atol=atol)
    with torch.no_grad():
        assert torch.equal(kernel(*inputs), got)
    expected = torch.autograd.grad(want, plain, grad.float())
    for actual, gradient in zip(torch.autograd.grad(got, leaves, grad), expected, strict=True):
        close(actual, gradient, rtol=rtol, atol=atol * max(1.0, float(gradient.abs().max())))


@both_ways
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (7, 65), (3, 7), (130, 576)])
def test_rms_norm(rows: int, dim: int) -> None:
    check_gradients(lambda x, w: kernels.rms_norm(x, w, 1e-5), norm_reference, normal(rows, dim), normal(dim))


@both_ways
def test_rms_norm_rounds_as_transformers_does() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    module = LlamaRMSNorm(576, 1e-5).to(REAL)
    module.weight.data = normal(576)
    x = normal(2, 65, 576)
    got, want = kernels.rms_norm(x, module.weight, 1e-5), module(x)
    close(got, want)
    assert torch.float32 == REAL or (got != want).float().mean() < 1e-3  # the sums' order


@both_ways
@pytest.mark.parametrize(("rows", "dim"), [(1, 7), (130, 65)])
def test_add_rms_norm(rows: int, dim: int) -> None:
    def both(pair: tuple[Tensor, Tensor]) -> Tensor:
        return torch.cat(pair, -1)

    check_gradients(
        lambda r, x, w: both(kernels.add_rms_norm(r, x, w, 1e-5)),
        lambda r, x, w: both((r + x, norm_reference(r + x, w))),
        *(normal(rows, dim), normal(rows, dim), normal(dim)),
        atol=2**-5,
    )


@both_ways
@pytest.mark.parametrize("shape", [(1, 1), (7, 65), (2, 3, 576)])
def test_swiglu(shape: tuple[int, ...]) -> None:
    check_gradients(kernels.swiglu, swiglu_reference, normal(*shape, scale=3), normal(*shape))


@both_ways
def test_swiglu_of_views_and_of_extreme_values() -> None:
    wide = normal(7, 130)
    wide[0, :4] = torch.tensor([80.0, -80.0, 1e4, -1e4]).to(REAL)
    check_gradients(lambda x: kernels.swiglu(*x.chunk(2, -1)), lambda x: swiglu_reference(*x.chunk(2, -1)), wide)


@both_ways
@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (9, 64), (3, 14)])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_rope(heads: int, dim: int, dtype: torch.dtype) -> None:
    angles = torch.randn(7, dim // 2).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    check_gradients(
        lambda x: kernels.rope(x[:, 1:-1], cos, sin),
        lambda x: rope_reference(x[:, 1:-1], cos.float(), sin.float()),
        normal(7, heads + 2, dim),
    )


def test_gradcheck_of_the_fallbacks() -> None:
    def inputs(*shapes: tuple[int, ...]) -> list[Tensor]:
        return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    angles = torch.randn(3, 4, dtype=torch.float64).repeat(1, 2)
    assert torch.autograd.gradcheck(lambda x, w: kernels.rms_norm(x, w, 1e-5), inputs((3, 7), (7,)))
    assert torch.autograd.gradcheck(lambda r, x, w: kernels.add_rms_norm(r, x, w, 1e-5), inputs((3, 7), (3, 7), (7,)))
    assert torch.autograd.gradcheck(kernels.swiglu, inputs((3, 7), (3, 7)))
    assert torch.autograd.gradcheck(lambda x: kernels.rope(x, angles.cos(), angles.sin()), inputs((3, 2, 8)))


# ---- log-probabilities and sampling ----


@both_ways
@pytest.mark.parametrize("vocabulary", [1, 7, 65, 576, 5000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs(vocabulary: int, temperature: float) -> None:
    logits, targets = normal(5, vocabulary, scale=4), torch.randint(0, vocabulary, (5,))
    logits[0, 0], logits[1, -1] = 80, -80
    plain = logits.double().requires_grad_()
    every = (plain / temperature).log_softmax(-1)
    expected = every.gather(-1, targets[:, None])[:, 0]
    logprobs, entropy = kernels.token_logprobs(logits, targets, temperature)
    assert logprobs.dtype == entropy.dtype == torch.float32
    close(logprobs, expected, rtol=1e-6, atol=5e-6)
    close(entropy, -(every.exp() * every).sum(-1), rtol=1e-5, atol=5e-6)

    weights = torch.randn(5)
    (gradient,) = torch.autograd.grad(expected, plain, weights.double())
    again = logits.clone()
    kernels.token_logprobs_backward_(logits, targets, weights, temperature)
    kernels.token_logprobs_backward_(again, targets, weights, temperature, logprobs)
    close(logits, gradient, rtol=2**-7, atol=1e-5)
    close(again, gradient, rtol=2**-7, atol=1e-5)


@both_ways
@pytest.mark.parametrize("vocabulary", [1, 7, 65, 5000])
def test_samples_are_inverse_cumulative_probabilities(vocabulary: int) -> None:
    logits, uniforms = normal(64, vocabulary, scale=3), torch.rand(64)
    tokens, logprobs = kernels.sample(logits, 0.7, uniforms)
    every = (logits.double() / 0.7).log_softmax(-1)
    sums = every.exp().cumsum(-1).gather(-1, tokens[:, None])[:, 0]
    probs = every.exp().gather(-1, tokens[:, None])[:, 0]
    assert (sums > uniforms - 1e-6).all()
    assert (sums - probs < uniforms + 1e-6).all()
    close(logprobs, probs.log(), rtol=1e-6, atol=5e-6)


@both_ways
@pytest.mark.parametrize("vocabulary", [1, 7, 65, 5000])
def test_samples_of_the_likely_tokens_are_what_filters_leave(vocabulary: int) -> None:
    logits, uniforms, sampling = normal(64, vocabulary, scale=3), torch.rand(64), Sampling(temperature=0.7, min_p=0.1)
    tokens, logprobs = kernels.sample(logits, 0.7, uniforms, 0.1)
    expected = filters.sample(logits, [sampling] * 64, [torch.empty(0, dtype=torch.int64)] * 64, uniforms)
    assert (tokens == expected[0]).float().mean() > 0.96  # the others are at a boundary, within rounding
    scaled = logits.double() / 0.7
    assert (scaled.amax(-1) - scaled.gather(-1, tokens[:, None])[:, 0] <= math.log(10) + 1e-5).all()
    close(logprobs, scaled.log_softmax(-1).gather(-1, tokens[:, None])[:, 0], rtol=1e-6, atol=5e-6)


@both_ways
def test_greedy_takes_the_first_most_likely_token() -> None:
    logits = normal(9, 300).clamp(max=2)
    logits[:, [7, 250]] = 3
    tokens, logprobs = kernels.sample(logits, 0.0, torch.zeros(9))
    assert tokens.tolist() == [7] * 9
    close(logprobs, logits.double().log_softmax(-1)[:, 7], rtol=1e-6, atol=5e-6)


@both_ways
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0])  # 1.0 is what a float64 just below it rounds to
def test_impossible_tokens_are_never_sampled(uniform: float) -> None:
    logits = torch.full((1, 4097), -torch.inf, dtype=REAL)
    logits[0, 100], logits[0, 2000] = 1, 1
    (token,), (logprob,) = kernels.sample(logits, 1.0, torch.tensor([uniform]))
    assert token == (100 if uniform < 0.5 else 2000)
    close(logprob, torch.tensor(0.5).log(), rtol=1e-6, atol=0)


@both_ways
def test_sampling_frequencies() -> None:
    count = 20_000
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 1.5]).to(REAL)
    tokens, _ = kernels.sample(logits.repeat(count, 1), 1.3, torch.rand(count))
    expected = count * (logits.double() / 1.3).softmax(-1)
    chi_square = ((torch.bincount(tokens, minlength=7) - expected) ** 2 / expected).sum()
    assert chi_square < 16.8  # 6 degrees of freedom, p = 0.01; the seed is fixed


# ---- the library ----


@needs_kernels
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    def everything() -> list[Tensor]:
        torch.manual_seed(1)
        x, r, g, w = (normal(300, 192), normal(300, 192), normal(300, 192), normal(192))
        leaves = [t.requires_grad_() for t in (x, r, g, w)]
        y = kernels.add_rms_norm(r, kernels.swiglu(x, g), w, 1e-5)[1]
        turned = kernels.rope(y.view(300, 3, 64), torch.rand(300, 64), torch.rand(300, 64))
        grads = torch.autograd.grad(turned, leaves, normal(*turned.shape))
        prefix, own, limits = normal(2, 3, 50, 65), normal(2, 3, 50, 130), torch.randint(0, 131, (3, 50)).int()
        kernels.joint_softmax_(prefix, own, limits, 0.125)
        cache, lengths = normal(2, 2, 30, 90, 64), torch.randint(0, 91, (30,)).int()
        out = kernels.decode_attention(normal(2, 30, 3, 64), None, *cache, torch.arange(30).int(), lengths, 0.125)
        logits = normal(20, 5000)
        results = kernels.token_logprobs(logits, torch.arange(20), 1.0), kernels.sample(logits, 1.0, torch.rand(20))
        return [turned.detach(), *grads, prefix, own, out, *results[0], *results[1]]

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = everything()
        torch.set_num_threads(2)
        assert all(torch.equal(a, b) for a, b in zip(alone, everything(), strict=True))
    finally:
        torch.set_num_threads(threads)


@needs_kernels
def test_one_openmp_runtime_serves_torch_and_the_kernels() -> None:
    assert compiled.why() == ""
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
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    assert isinstance(load(), ctypes.CDLL)
    assert list((cache / "kernels").iterdir()) == [library]


@pytest.mark.usefixtures("cache")
def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    reason = load()
    monkeypatch.setattr(compiled, "_library", lambda dtype: reason)
    assert not compiled.available()
    assert compiled.why() == NO_COMPILER
    gate, up = normal(3, 7), normal(3, 7)
    close(kernels.swiglu(gate, up), swiglu_reference(gate.float(), up.float()))


def test_a_failing_compiler_is_a_reason_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = cache.parent / "broken-cc"
    compiler.write_text("#!/bin/sh\necho 'kernels.c:1: error: not today' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", f"{compiler} -pipe")
    assert load() == f"{compiler} could not compile the kernels: kernels.c:1: error: not today"
    assert not list((cache / "kernels").iterdir())


def test_other_machines_have_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.platform, "machine", lambda: "arm64")
    assert load() == "the kernels are for Linux on x86-64 with glibc"


def test_a_cache_that_cannot_be_written_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "file"))
    assert "file" in load()
