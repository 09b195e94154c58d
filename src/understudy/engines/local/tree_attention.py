"""Attention over a tree of tokens on a GPU: one kernel, and memory that grows with the number of tokens.

The tokens are in preorder, and the descendants of token j end before position `subtree_end[j]`. So token i sees token j
if j <= i < subtree_end[j], and these are exactly the ancestors of i and i itself. With a window or chunks, the position
of j in its row must not be less than the first one that i sees. A block mask lists, for each block of 128 queries, the
blocks of 128 keys that any of them sees. Other blocks are never computed. It has N²/128² entries.

The kernel is torch's `flex_attention` (Dong et al. 2024, arXiv:2412.05496). For the backward pass it stores q, k, v,
the result and one float32 per query head and token. Variable-length FlashAttention would need a copy of the keys of
each path of the tree, as in TRL's asynchronous trainer, and it has no CPU version that tests could run.

`torch.compile` builds the kernels when they are first used, in tens of seconds: one set for each combination of dtype,
numbers of heads, head size, and passes with or without gradient. The number of tokens and the shape of the tree are
arguments of a kernel, so new ones compile nothing. On a CPU `flex_attention` stores all scores; only tests use that.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from understudy.core.errors import ConfigError
from understudy.engines.local.attention import AttentionShape, AttentionSpec
from understudy.engines.local.transfers import to_device

BLOCK = 128
"""Tokens of a block. The number of tokens is a multiple of it."""
MIN_TOKENS = 2 * BLOCK
"""torch.compile makes kernels of their own for a dimension of size 1, here the number of blocks."""
MAX_KERNEL_SETS = 64
"""Sets of kernels that one process may compile."""
MAX_KERNEL_ERROR = 0.05
"""Relative error above which a kernel is wrong. Rounding to bfloat16 makes at most 0.004."""
_LOG_SUMS: dict[str, Any] = (
    {"return_aux": flex.AuxRequest(lse=True)} if hasattr(flex, "AuxRequest") else {"return_lse": True}
)
"""The argument for which `flex_attention` also returns the logarithm of each sum of its softmax (before torch 2.9, the
second)."""


def tree_mask(subtree_end: Tensor, positions: Tensor, spec: AttentionSpec, device: torch.device) -> BlockMask:
    """Return the mask on a device for `subtree_end` and positions in the rows, both [N] int on the CPU.

    With a window or chunks it may list blocks of which no token sees another. Raise ValueError if N is not a multiple
    of `BLOCK`, or less than `MIN_TOKENS`.
    """
    tokens = len(subtree_end)
    if tokens % BLOCK or tokens < MIN_TOKENS:
        raise ValueError(f"{tokens} tokens: expected a multiple of {BLOCK} that is at least {MIN_TOKENS}")
    ends, places = subtree_end.view(-1, BLOCK), positions.view(-1, BLOCK)
    block = torch.arange(len(ends))
    queries, keys = block[:, None], block[None]
    seen = (keys <= queries) & (queries * BLOCK < ends.amax(1))
    full = (keys < queries) & ((queries + 1) * BLOCK <= ends.amin(1))
    end = to_device(subtree_end, device)
    tensors = [end]
    if spec.window or spec.chunk:
        firsts = spec.first_visible(places)
        seen &= places.amax(1) >= firsts.amin(1, keepdim=True)
        full &= places.amin(1) >= firsts.amax(1, keepdim=True)
        place, first = (to_device(x.flatten().int(), device) for x in (places, firsts))
        tensors += [place, first]

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < end[key]) & (place[key] >= first[query])

    else:

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < end[key])

    partly = seen & ~full
    (part_keys, full_keys, part_queries, full_queries) = (
        _block_lists(each, device) for each in (partly, full, partly.T, full.T)
    )
    for x in (*tensors, *part_keys, *full_keys, *part_queries, *full_queries):
        # Otherwise a dimension that happens to equal the number of heads would be a constant of the kernel.
        torch._dynamo.maybe_mark_dynamic(x, [i for i, size in enumerate(x.shape) if size > 1])
    return BlockMask(
        (tokens, tokens),
        *part_keys,
        *full_keys,
        *part_queries,
        *full_queries,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=sees,
    )


def attend_tree(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, spec: AttentionSpec) -> Tensor:
    """Return attention [N, Hq, dv] of queries [N, Hq, d] over keys [N, H, d] and values [N, H, dv]."""
    attend = _compiled() if q.is_cuda else _eager
    scale, sinks = spec.scale, spec.sinks
    usual = scale == q.shape[-1] ** -0.5  # left out, because torch.compile makes a number that changes an argument
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    score_mod = _capped(spec.softcap) if spec.softcap else None
    sums = {} if sinks is None else _LOG_SUMS
    out: Any = attend(q, k, v, score_mod, mask, None if usual else scale, enable_gqa=True, **sums)
    if sinks is not None:  # of probability 1, the sink takes its share
        out, found = out
        out = out * torch.sigmoid(getattr(found, "lse", found) - sinks[:, None])[..., None].to(out.dtype)
    return out[0].transpose(0, 1)  # type: ignore[no-any-return]


@cache
def _capped(softcap: float) -> Callable[..., Tensor]:
    """Return the function that caps scores. It is the same one each time, so that it is compiled once."""

    def cap(score: Tensor, _batch: Tensor, _head: Tensor, _query: Tensor, _key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap


def validate_kernels(shape: AttentionShape, dtype: torch.dtype, device: torch.device) -> None:
    """Raise ConfigError if the compiled attention or its gradients differ from the formula.

    The kernels depend on the versions of torch, Triton and the driver, and wrong ones train without an error.
    """
    count, (query_heads, key_heads, dim, value_dim, spec, has_sinks) = 4 * BLOCK, shape
    spec = spec._replace(window=min(spec.window, count // 2), chunk=min(spec.chunk, count // 2))
    ends = torch.full((count,), count, dtype=torch.int32)
    ends[BLOCK + 1 : count // 2] = count // 2  # a branch of its own within the block of another
    place = torch.arange(count)
    seen = (place[None] <= place[:, None]) & (place[:, None] < ends[None])
    if spec.window or spec.chunk:
        seen &= place[None] >= spec.first_visible(place)[:, None]
    hidden = to_device(~seen, device)
    draw = torch.Generator().manual_seed(0)
    sizes = [(count, query_heads, dim), (count, key_heads, dim), (count, key_heads, value_dim), (query_heads,)]
    inputs = [
        to_device(torch.randn(size, generator=draw).to(dtype), device).requires_grad_()
        for size in sizes[: 4 if has_sinks else 3]
    ]
    exact = [x.detach().float().requires_grad_() for x in inputs]
    with torch.enable_grad():
        q, k, v, *sinks = inputs
        mask = tree_mask(ends, place, spec, device)
        found = attend_tree(q, k, v, mask, spec._replace(sinks=sinks[0] if sinks else None))
        q, k, v, *sinks = exact
        k, v = (x.repeat_interleave(query_heads // key_heads, 1).transpose(0, 1) for x in (k, v))
        scores = spec.scale * (q.transpose(0, 1) @ k.transpose(1, 2))
        if spec.softcap:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        scores = torch.cat(
            [scores.masked_fill(hidden, -torch.inf), *(x[:, None, None].expand(-1, count, 1) for x in sinks)], -1
        )
        wanted = (scores.softmax(-1)[..., :count] @ v).transpose(0, 1)
        gradients = zip(
            torch.autograd.grad(found.float().sum(), inputs), torch.autograd.grad(wanted.sum(), exact), strict=True
        )
    pairs = [(found.detach(), wanted.detach()), *gradients]
    errors = torch.stack([(mine.float() - other).norm() / other.norm() for mine, other in pairs]).tolist()
    if not max(errors) < MAX_KERNEL_ERROR:
        names = "attention", "gradient of q", "gradient of k", "gradient of v", "gradient of sinks"
        named = zip(names, errors, strict=False)
        raise ConfigError(
            f"torch {torch.__version__} compiled wrong attention kernels for this GPU (relative errors: "
            + ", ".join(f"{name} {error:.1e}" for name, error in named)
            + f"; allowed: {MAX_KERNEL_ERROR}); install another version of torch, or set engine.device=cpu"
        )


_eager: Callable[..., Tensor] = flex_attention


@cache
def _compiled() -> Callable[..., Tensor]:
    """Return the compiled function.

    `fullgraph` makes it an error if torch.compile gives up. Otherwise it would go on without a kernel, with memory that
    grows with the square of the number of tokens. Each dtype, head size and gradient mode is another set of kernels, of
    which torch.compile makes 8 by default and then fails.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_KERNEL_SETS)
    return torch.compile(_eager, dynamic=True, fullgraph=True)


def _block_lists(visible: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the number of visible blocks in each row [1, 1, R], and the columns of all blocks, visible ones first
    [1, 1, R, C].

    They are contiguous, because the kernels take that for granted: lists of a transposed matrix gave wrong gradients.
    """
    numbers = visible[None, None].int().contiguous()
    order = torch.argsort(numbers, dim=-1, descending=True, stable=True)
    return to_device(numbers.sum(-1).int(), device), to_device(order.int(), device)
