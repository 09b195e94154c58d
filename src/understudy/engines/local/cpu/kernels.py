"""Fused CPU kernels for bfloat16 and float32, among them products with packed weights, and attention.

Each function also has a torch implementation, for other dtypes, devices and memory layouts and for machines where
`kernels.c` cannot be compiled. Both agree within the dtype's rounding. The kernels' results do not depend on the number
of threads. Functions whose names end in `_` overwrite their arguments. They are not differentiable, nor are
`gather_heads`, `row_dot`, `packed_linear`, `packed_logits`, `tree_attention` and `decode_attention`. The callers of
products with packed weights and of `tree_attention` ask first whether the kernels fit, because these have no other
implementation here.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from understudy.engines.local.cpu import kernel_library
from understudy.engines.local.cpu.kernel_library import call_kernel, kernels_accept
from understudy.engines.local.kept_tokens import KeptTokens, keep_tokens

_MOST_DIM = 256  # maximum head dimension
_MOST_KEPT = 1024  # tokens of a row that the kernel `sample_likely` lists
_PANEL = 96  # a multiple of the rows of a panel of packed weights
_SPAN = 1 << 14  # elements of a part of `copy_rounded`


def _apply(function: type[Function], *arguments: Any) -> Any:
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def joint_softmax_(
    prefix_scores: Tensor | None,
    own_scores: Tensor,
    limits: Tensor,
    scale: float,
    starts: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> None:
    """Apply softmax to scores over [prefix | own | sink], in place.

    Scores are [H, b, G * L, P] (P may be 0) and [H, b, G * L, K], and are multiplied with `scale`. If `softcap` is not
    0, a scaled score s becomes softcap * tanh(s / softcap). `sinks` [H, b, G, L] fp32 are scores that stay as they are.
    Query l of row b sees the columns of [prefix | own] except the first starts[b, l], and only the first limits[b, l]
    of own (both int32 [b, L]). Other columns get probability 0. If a query sees no column at all, all of its
    probabilities are 0.
    """
    prefix = own_scores[..., :0].contiguous() if prefix_scores is None else prefix_scores
    heads, rows, queries, own = own_scores.shape
    length = limits.shape[1]
    if kernels_accept(prefix, own_scores) and len(limits) == rows and prefix.shape[:3] == own_scores.shape[:3]:
        limits, starts = limits.int().contiguous(), None if starts is None else starts.int().contiguous()
        sizes = (heads, rows, queries // length, length, prefix.shape[-1], own)
        call_kernel("joint_softmax", prefix, own_scores, sinks, starts, limits, *sizes, scale, softcap)
        return
    size = prefix.shape[-1]
    column = torch.arange(size + own, device=limits.device)
    hidden = column >= size + limits[..., None]  # [b, L, P + K]
    if starts is not None:
        hidden |= column < starts[..., None]
    hidden = hidden.repeat(1, queries // length, 1)
    scores = scale * torch.cat([_wide(prefix), _wide(own_scores)], -1)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(heads, rows, queries, 1)], -1)
    probs = scores.softmax(-1)
    prefix.copy_(probs[..., :size].masked_fill(hidden[..., :size], 0))
    own_scores.copy_(probs[..., size : size + own].masked_fill(hidden[..., size:], 0))
    if sinks is not None:
        sinks.copy_(probs[..., -1].view_as(sinks))


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of a * b over the last dimension, in fp32."""
    a, b = a.contiguous(), b.contiguous()
    if not (kernels_accept(a, b) and a.shape == b.shape):
        return (_wide(a) * _wide(b)).sum(-1)
    out = a.new_empty(a.shape[:-1], dtype=torch.float32)
    call_kernel("row_dot", a, b, out, out.numel(), a.shape[-1])
    return out


def gather_heads(x: Tensor, index: Tensor, group: int) -> Tensor:
    """Return flat x [N, H * G, d] at positions [b, L] (int64, from 0 to N - 1), as [H, b, G * L, d]. `group` is G."""
    rows, length = index.shape
    heads, dim = x.shape[1] // group, x.shape[2]
    if _heads_are_dense(x) and kernel_library.kernels_available(x.dtype):
        out = torch.empty(heads, rows, group * length, dim, dtype=x.dtype)
        sizes = (heads, rows, length, group, dim, x.stride(0))
        call_kernel("gather_heads", x, index.long().contiguous(), out, *sizes)
        return out
    taken = x[index].view(rows, length, heads, group, dim)
    return taken.permute(2, 0, 3, 1, 4).reshape(heads, rows, group * length, dim)


def scatter_heads_(out: Tensor, positions: Tensor, x: Tensor, places: Tensor, group: int) -> None:
    """Write x [H, b, G * L, d] to flat out [N, H * G, d]: the token at places [n] of [b * L] to positions [n].

    Positions and places are int64 and in range, and no position repeats.
    """
    heads = x.shape[0]
    rows = x.shape[1]
    length = x.shape[2] // group
    dim = x.shape[3]
    if kernels_accept(x, out) and out.shape[1:] == (heads * group, dim):
        positions, places = positions.long().contiguous(), places.long().contiguous()
        sizes = (len(places), heads, rows, length, group, dim)
        call_kernel("scatter_heads", x, positions, places, out, *sizes)
        return
    tokens = x.view(heads, rows, group, length, dim).permute(1, 3, 0, 2, 4)
    out[positions] = tokens.reshape(rows * length, heads * group, dim)[places]


def _heads_are_dense(x: Tensor) -> bool:
    return x.is_cpu and x.stride(2) == 1 and (x.shape[1] == 1 or x.stride(1) == x.shape[2])


def fits_tree_attention(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return True if the kernels compute attention of these flat tensors."""
    dims = q.shape[2], v.shape[2]
    if not all(dim % 2 == 0 and dim <= _MOST_DIM for dim in dims) or len({x.dtype for x in (q, k, v)}) > 1:
        return False
    return all(map(_heads_are_dense, (q, k, v))) and kernel_library.kernels_available(q.dtype)


class TreeScores(NamedTuple):
    """Which scores `tree_attention` computes, for the last M of N tokens in preorder of a tree."""

    scale: float
    ends: Tensor
    """int32 [N] each token is seen only by tokens before this one."""
    window: tuple[Tensor, Tensor] | None = None
    """int32 the positions of all tokens in their rows [N], and the first position that each query sees [M]."""
    softcap: float = 0.0
    """As in `joint_softmax_`."""

    def arrays(self) -> list[Tensor | None]:
        """Return ends, positions and first positions for the kernels."""
        window = self.window or (None, None)
        return [None if x is None else x.int().contiguous() for x in (self.ends, *window)]


def tree_attention(
    q: Tensor, k: Tensor, v: Tensor, scores: TreeScores, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return attention of the last M of N tokens in preorder of a tree, [M, Hq, dv], and its normalizers [M, Hq] fp32.

    q is [M, Hq, d], k [N, H, d] and v [N, H, dv]; `fits_tree_attention` accepts them. Query i is token N - M + i, and
    sees tokens up to itself. `sinks` [Hq] are scores of one more token, whose value is 0. A normalizer is the logarithm
    to base 2 of the sum of a softmax.
    """
    out, lse = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2], dtype=torch.float32)
    sinks = None if sinks is None else sinks.detach().float().contiguous()
    rest = *_tree_sizes(q, k, v), scores.scale, scores.softcap
    call_kernel("tree_attention", q, k, v, *scores.arrays(), sinks, out, lse, *rest)
    return out, lse


def tree_attention_backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scores: TreeScores,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v and `sinks` for a gradient of the result `out` of `tree_attention`."""
    grad = grad.contiguous()
    delta = row_dot(grad, out)
    grads = [torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v)]
    rest = *_tree_sizes(q, k, v), scores.scale, scores.softcap
    call_kernel("tree_attention_backward", grad, q, k, v, *scores.arrays(), lse, delta, *grads, *rest)
    if sinks is None:
        return *grads, None  # type: ignore[return-value]
    shares = torch.exp2(sinks.detach().float() / math.log(2) - lse)
    return *grads, -(shares * delta).sum(0).to(sinks.dtype)  # type: ignore[return-value]


def _tree_sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    heads = k.shape[1]
    group = q.shape[1] // heads
    return len(q), len(k), heads, group, q.shape[2], v.shape[2], q.stride(0), k.stride(0), v.stride(0)


def decode_attention(
    q: Tensor,
    prefix_scores: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    lengths: Tensor,
    max_length: int,
    scale: float,
    starts: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return one decoding step of attention: G queries of each sequence over its own keys, beside a shared prefix.

    q is [H, S, G, d]. Keys [H, slots, cap, d] and values [H, slots, cap, dv] are the cache; sequence s reads only the
    first lengths[s] tokens of slots[s] (int32 [S]), and no length exceeds `max_length`. Of [prefix | these] it does not
    see the first starts[s]. `softcap` and `sinks` [H * G] fp32 are those of `joint_softmax_`. `prefix_scores` [H, S, G,
    P], the unscaled products of queries and prefix keys, are overwritten with their probabilities. The result [H, S, G,
    dv] is the own part; the caller adds probabilities @ prefix values. A sequence of length 0 is idle and gets zeros.
    """
    prefix = q.new_empty(*q.shape[:-1], 0) if prefix_scores is None else prefix_scores
    heads, rows, group, dim = q.shape
    q = q.contiguous()
    if not (kernels_accept(q, prefix) and all(_cache_fits(x, q.dtype) for x in (keys, values))):
        return _decode_attention(q, prefix, keys, values, slots, lengths, max_length, scale, starts, softcap, sinks)
    out = q.new_empty(heads, rows, group, values.shape[-1])
    held = [None if x is None else x.int().contiguous() for x in (slots, starts, lengths)]
    strides = (x.stride(axis) for x in (keys, values) for axis in (0, 1))
    sizes = (heads, rows, group, dim, values.shape[-1], prefix.shape[-1], *strides)
    call_kernel("decode_attention", q, prefix, keys, values, *held, sinks, out, *sizes, scale, softcap)
    return out


def _cache_fits(x: Tensor, dtype: torch.dtype) -> bool:
    dim = x.shape[3]
    return x.is_cpu and x.dtype == dtype and x.stride()[2:] == (dim, 1) and dim % 32 == 0 and dim <= _MOST_DIM


def _decode_attention(
    q: Tensor,
    prefix: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    lengths: Tensor,
    max_length: int,
    scale: float,
    starts: Tensor | None,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    heads, rows, group, _ = q.shape
    unseen = torch.arange(max_length, device=q.device) >= lengths[:, None]  # [S, max_length]
    keys, values = (x[:, slots, :max_length].masked_fill(unseen[..., None], 0) for x in (keys, values))
    own = q @ keys.transpose(2, 3)
    each = None if sinks is None else sinks.view(heads, 1, group, 1).repeat(1, rows, 1, 1)
    joint_softmax_(prefix, own, lengths[:, None], scale, None if starts is None else starts[:, None], softcap, each)
    prefix.masked_fill_((lengths == 0)[:, None, None], 0)
    return own @ values


def pack_weights_(packed: Tensor | None, weight: Tensor) -> Tensor:
    """Pack weights [n, k] (k even) for `packed_linear`, into `packed` if it is given. The kernels must be available."""
    weight = weight.detach().contiguous()
    if packed is None:
        packed = weight.new_zeros(-(-len(weight) // _PANEL) * _PANEL * weight.shape[1])
    call_kernel("pack", weight, packed, *weight.shape)
    return packed


def packed_linear(x: Tensor, packed: Tensor, outputs: int, bias: Tensor | None = None) -> Tensor:
    """Return x [..., k] times the packed weights [n, k], plus bias. `outputs` is n. It is not differentiable."""
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-1], outputs)
    call_kernel("linear", x, packed, bias, out, None, x.shape[:-1].numel(), outputs, x.shape[-1])
    return out


def packed_logits(hidden: Tensor, packed: Tensor, out: Tensor) -> Tensor:
    """Write the logits of hidden states [M, D] to `out` [M, V], float32, and return it. They are not rounded.

    `packed` are the output weights [V, D].
    """
    call_kernel("linear", hidden.contiguous(), packed, None, None, out, *out.shape, hidden.shape[1])
    return out


def add_widened_(total: Tensor, x: Tensor) -> None:
    """Add x to a float32 tensor of the same shape, in place."""
    if kernels_accept(x) and _is_plain_float(total) and x.shape == total.shape:
        call_kernel("add_widened", x, total, x.numel())
    else:
        total += x


def copy_rounded_(weights: Tensor, masters: Tensor) -> tuple[Tensor, Tensor]:
    """Round float32 masters into weights. Return the norms of the change and of the new weights."""
    if kernels_accept(weights) and _is_plain_float(masters) and weights.shape == masters.shape:
        sums = torch.empty(-(-weights.numel() // _SPAN), 2)
        call_kernel("copy_rounded", weights, masters, sums, weights.numel())
        torch.autograd.graph.increment_version(weights)
        change, size = sums.sum(0, dtype=torch.float64).sqrt().float()
        return change, size
    new = masters.to(weights.dtype)
    change, size = (torch.linalg.vector_norm(x, dtype=torch.float32) for x in (new - weights, new))
    weights.copy_(new)
    return change, size


def _is_plain_float(x: Tensor) -> bool:
    return x.is_cpu and x.dtype == torch.float32 and x.is_contiguous()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight * x / rms(x) over the last dimension. Statistics are fp32, rounded like transformers'
    LlamaRMSNorm."""
    x = x.contiguous()
    if kernels_accept(x, weight) and weight.shape == x.shape[-1:]:
        return _apply(_RMSNorm, x, None, weight, eps) if torch.is_grad_enabled() else _rms_norm(x, None, weight, eps)[1]
    wide = _wide(x)
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the sum of residual and x, and its `rms_norm`."""
    residual, x = residual.contiguous(), x.contiguous()
    if kernels_accept(residual, x, weight) and residual.shape == x.shape and weight.shape == x.shape[-1:]:
        grad = torch.is_grad_enabled()
        return _apply(_RMSNorm, x, residual, weight, eps) if grad else _rms_norm(x, residual, weight, eps)[:2]
    total = residual + x
    return total, rms_norm(total, weight, eps)


def _rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum (x itself without a residual), its norm, and 1 / rms of each row."""
    y, rstd = torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)
    total = x if residual is None else torch.empty_like(x)
    call_kernel("rms_norm", x, residual, total, weight, y, rstd, rstd.numel(), x.shape[-1], eps)
    return total, y, rstd


class _RMSNorm(Function):
    PARTS = 64  # parts of the rows, each summed in order, for the weight's gradient

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Any:
        total, y, rstd = _rms_norm(x, residual, weight, eps)
        ctx.save_for_backward(total, weight, rstd)
        return y if residual is None else (total, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        total, weight, rstd = ctx.saved_tensors
        rows, dim = rstd.numel(), total.shape[-1]
        through = grads[0].contiguous() if len(grads) == 2 else None
        parts = total.new_zeros(_RMSNorm.PARTS, dim, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        dx = torch.empty_like(total)
        sizes = (rows if parts is None else len(parts), rows, dim)
        call_kernel("rms_norm_backward", grads[-1].contiguous(), through, total, weight, rstd, dx, parts, *sizes)
        dweight = None if parts is None else parts.sum(0).to(weight.dtype)
        return dx, None if through is None else dx, dweight, None


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up. Both may be views of a wider tensor if their last dimension is contiguous."""
    alike = gate.shape == up.shape and gate.dtype == up.dtype
    if not (alike and _rows_fit(gate) and _rows_fit(up) and kernel_library.kernels_available(gate.dtype)):
        return F.silu(gate) * up
    return _apply(_SwiGLU, gate, up) if torch.is_grad_enabled() else _swiglu(gate, up)


def _rows_fit(x: Tensor) -> bool:
    """Return True if the rows of a tensor have a constant stride."""
    leading = range(x.dim() - 2)
    regular = all(x.shape[i] == 1 or x.stride(i) == x.stride(i + 1) * x.shape[i + 1] for i in leading)
    return regular and x.is_cpu and x.dim() > 1 and x.stride(-1) == 1


def _rows(x: Tensor, *others: Tensor) -> tuple[int, ...]:
    """Return number and length of the rows of x, and the row strides of each tensor."""
    return x.numel() // x.shape[-1], x.shape[-1], x.stride(-2), *(y.stride(-2) for y in others)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    y = torch.empty(gate.shape, dtype=gate.dtype)
    call_kernel("swiglu", gate, up, y, *_rows(gate, up))
    return y


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _swiglu(gate, up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        dgate, dup = torch.empty(gate.shape, dtype=gate.dtype), torch.empty(gate.shape, dtype=gate.dtype)
        call_kernel("swiglu_backward", grad.contiguous(), gate, up, dgate, dup, *_rows(gate, up))
        return dgate, dup


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x [N, H, d] with each head rotated by its position's angles, like transformers' Llama.

    cos and sin are [N, d] with equal halves. The rows of x may be views of wider ones.
    """
    if _heads_fit(x) and cos.shape == sin.shape == (len(x), x.shape[2]) and kernel_library.kernels_available(x.dtype):
        cos = (cos if cos.dtype == x.dtype else cos.float()).contiguous()
        sin = sin.to(cos.dtype).contiguous()
        return _apply(_Rope, x, cos, sin) if torch.is_grad_enabled() else _rotated(x, cos, sin, 1.0)
    first, second = x.chunk(2, -1)
    return x * cos[:, None].to(x.dtype) + torch.cat((-second, first), -1) * sin[:, None].to(x.dtype)


def _heads_fit(x: Tensor) -> bool:
    return _heads_are_dense(x) and x.shape[2] % 2 == 0 and x.shape[2] <= _MOST_DIM


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    """Rotate, or with sign -1 invert the rotation."""
    y = torch.empty(x.shape, dtype=x.dtype)
    call_kernel("rope", x, cos, sin, y, *x.shape, x.stride(0), cos.dtype == torch.float32, sign)
    return y


class _Rope(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return _rotated(grad.contiguous(), cos, sin, -1.0), None, None


def logits_to_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of targets [M] under logits [M, V] / temperature, and entropies, both [M] fp32."""
    if kernels_accept(logits):
        logprobs, entropy = torch.empty(2, len(logits)).unbind()
        call_kernel(
            "token_logprobs", logits, targets.long().contiguous(), logprobs, entropy, *logits.shape, temperature
        )
        return logprobs, entropy
    every = (_wide(logits) / temperature).log_softmax(-1)
    return every.gather(-1, targets[:, None])[:, 0], -(every.exp() * every).sum(-1)


def logits_to_logprobs_backward_(
    logits: Tensor, targets: Tensor, grad: Tensor, temperature: float, logprobs: Tensor | None = None
) -> None:
    """Overwrite logits with their gradient, given the gradient [M] of the targets' log-probabilities.

    `logprobs` is the result of `logits_to_logprobs` for the same logits. Without it, it is computed again.
    """
    if kernels_accept(logits):
        if logprobs is None:
            logprobs, _ = logits_to_logprobs(logits, targets, temperature)
        vectors = (x.contiguous() for x in (targets.long(), logprobs, grad.float()))
        call_kernel("token_logprobs_backward", logits, *vectors, *logits.shape, temperature)
        return
    slope = (grad / temperature)[:, None].to(torch.promote_types(logits.dtype, torch.float32))
    probs = (_wide(logits) / temperature).softmax(-1)
    logits.copy_((-slope * probs).scatter_add(-1, targets[:, None], slope))


def sample_tokens(logits: Tensor, temperature: float, uniforms: Tensor, min_p: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return one token for each row of logits [S, V] and its log-probability: int64 and fp32 [S].

    Tokens less than `min_p` times as likely as the most likely one are excluded. The token is the inverse of the
    cumulative distribution of the rest, in the vocabulary's order, at uniforms [S] in [0, 1). Its log-probability is
    that of the whole softmax. Temperature 0 takes the first most likely token, with its log-probability at temperature
    1. A row with NaN gets any token, with the log-probability NaN.
    """
    if kernels_accept(logits):
        tokens, logprobs = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits))
        call_kernel(
            "sample", logits, uniforms.float().contiguous(), tokens, logprobs, *logits.shape, temperature, min_p
        )
        return tokens, logprobs
    every = (logits.double() / (temperature or 1.0)).log_softmax(-1)
    if temperature:
        probs = every.exp()
        sums = probs.where(probs >= min_p * probs.amax(-1, keepdim=True), 0.0).cumsum(-1)
        below_one = uniforms.double().clamp(max=1 - 2**-24)[:, None]
        tokens = torch.searchsorted(sums, below_one * sums[:, -1:], right=True).clamp_(max=logits.shape[-1] - 1)
    else:
        tokens = every.argmax(-1, keepdim=True)
    return tokens[:, 0], every.gather(-1, tokens)[:, 0].float()


def sample_likely_tokens(
    logits: Tensor, temperature: float, uniforms: Tensor, min_p: float
) -> tuple[Tensor, Tensor, KeptTokens]:
    """Sample like `sample_tokens`, at a temperature above 0, with log-probabilities over the tokens that `min_p` keeps.

    Return these tokens too. Tokens whose logit is minus infinity are never kept, even if `min_p` is 0.
    """
    if not kernels_accept(logits):
        every = (logits.double() / temperature).log_softmax(-1)
        probs = every.exp()
        kept = (probs >= min_p * probs.amax(-1, keepdim=True)) & (every > -torch.inf)
        sums = probs.where(kept, 0.0).cumsum(-1)
        below_one = uniforms.double().clamp(max=1 - 2**-24)[:, None]
        tokens = torch.searchsorted(sums, below_one * sums[:, -1:], right=True).clamp_(max=logits.shape[-1] - 1)[:, 0]
        return tokens, *keep_tokens(logits, kept, tokens, temperature)
    rows, tokens, logprobs = len(logits), torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits))
    counts, first = torch.empty_like(tokens), torch.empty(len(logits), _MOST_KEPT, dtype=torch.int32)
    sizes = (*logits.shape, _MOST_KEPT, temperature, min_p)
    call_kernel("sample_likely", logits, uniforms.float().contiguous(), tokens, logprobs, counts, first, *sizes)
    if rows and int(counts.max()) > _MOST_KEPT:
        lowest = logits.amax(-1, keepdim=True).float() + temperature * (math.log(min_p) if min_p else -math.inf)
        return tokens, *keep_tokens(logits, (logits >= lowest) & (logits > -torch.inf), tokens, temperature)
    return tokens, logprobs, KeptTokens(counts, first[torch.arange(_MOST_KEPT) < counts[:, None]].long())
