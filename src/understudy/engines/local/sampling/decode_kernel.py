"""Triton kernels for one decoding step of attention on a GPU: all rows, each with its own prefix and its own tokens.

A program computes the query heads of one row that share a key head, over one part of the row's tokens: first the keys
of its prefix, then its own. It keeps the running softmax of FlashAttention (Dao et al. 2022, arXiv:2205.14135). A
second kernel joins the parts, as in Flash-Decoding (Dao et al. 2023, https://pytorch.org/blog/flash-decoding/), so that
few rows use the whole GPU too. Rows with the same prefix read the same memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from understudy.engines.local.attention import AttentionSpec

BLOCK_BYTES = 128
"""A program computes the scores of this many keys at once, divided by the bytes of a number: shared memory is small."""
MIN_BLOCK = 16
"""The least number of rows of a matrix product in Triton. Fewer query heads are padded to it."""
PROGRAMS = 512
"""Programs that use a whole GPU. With fewer rows, each row is computed in up to `MAX_PARTS` parts."""
MAX_PARTS = 16


@triton.jit  # type: ignore[untyped-decorator]
def _attend_parts(  # type: ignore[no-untyped-def]
    q,
    keys,
    values,
    sums,
    maxima,
    totals,
    rows,
    prefixes,
    scale,
    num_rows,
    q_row,
    q_head,
    key_head,
    key_slot,
    value_head,
    value_slot,
    group: tl.constexpr,
    dim: tl.constexpr,
    value_dim: tl.constexpr,
    softcap: tl.constexpr,
    window: tl.constexpr,
    chunk: tl.constexpr,
    block_group: tl.constexpr,
    block_dim: tl.constexpr,
    block_value_dim: tl.constexpr,
    block_keys: tl.constexpr,
):
    row, part = tl.program_id(0), tl.program_id(2)
    head = tl.program_id(1).to(tl.int64)  # a large cache has more than 2**31 numbers
    heads, parts = tl.num_programs(1), tl.num_programs(2)
    members, columns = tl.arange(0, block_group), tl.arange(0, block_dim)
    value_columns = tl.arange(0, block_value_dim)
    inside = (members[:, None] < group) & (columns[None, :] < dim)
    x = tl.load(q + row * q_row + (head * group + members[:, None]) * q_head + columns[None, :], mask=inside, other=0.0)
    slot = tl.load(rows + row)
    own_length = tl.load(rows + num_rows + row)
    prefix_length = tl.load(rows + 2 * num_rows + row)
    length = prefix_length + own_length
    unseen = length * 0
    if window:
        unseen = tl.maximum(length - window, 0)
    if chunk:
        unseen = (length - 1) // chunk * chunk
    span = tl.cdiv(tl.cdiv(length - unseen, block_keys), parts) * block_keys
    first = unseen + part * span
    last = first + span
    most = tl.full([block_group], float("-inf"), tl.float32)
    total = tl.zeros([block_group], tl.float32)
    result = tl.zeros([block_group, block_value_dim], tl.float32)
    for source in tl.static_range(2):
        if source == 0:
            start, stop = tl.minimum(first, prefix_length), tl.minimum(last, prefix_length)
            its_keys = tl.load(prefixes + row).to(keys.dtype) + head * prefix_length * dim
            its_values = tl.load(prefixes + num_rows + row).to(values.dtype) + head * prefix_length * value_dim
        else:
            start = tl.minimum(tl.maximum(first - prefix_length, 0), own_length)
            stop = tl.minimum(tl.maximum(last - prefix_length, 0), own_length)
            its_keys = keys + head * key_head + slot * key_slot
            its_values = values + head * value_head + slot * value_slot
        for at in range(start, stop, block_keys):
            places = at + tl.arange(0, block_keys)
            seen = places < stop
            there = seen[:, None] & (columns[None, :] < dim)
            k = tl.load(its_keys + places[:, None] * dim + columns[None, :], mask=there, other=0.0)
            there = seen[:, None] & (value_columns[None, :] < value_dim)
            v = tl.load(its_values + places[:, None] * value_dim + value_columns[None, :], mask=there, other=0.0)
            scores = tl.dot(x, tl.trans(k), input_precision="ieee") * scale
            if softcap:
                scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
            scores = tl.where(seen[None, :], scores, float("-inf"))
            higher = tl.maximum(most, tl.max(scores, 1))
            probs = tl.exp(scores - higher[:, None])
            shrink = tl.exp(most - higher)
            total = total * shrink + tl.sum(probs, 1)
            result = result * shrink[:, None] + tl.dot(probs.to(v.dtype), v, input_precision="ieee")
            most = higher
    to = ((row * heads + head) * group + members) * parts + part
    tl.store(maxima + to, most, mask=members < group)
    tl.store(totals + to, total, mask=members < group)
    inside = (members[:, None] < group) & (value_columns[None, :] < value_dim)
    tl.store(sums + to[:, None] * value_dim + value_columns[None, :], result, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _join_parts(  # type: ignore[no-untyped-def]
    sums,
    maxima,
    totals,
    sinks,
    out,
    dim: tl.constexpr,
    heads: tl.constexpr,
    has_sinks: tl.constexpr,
    block_dim: tl.constexpr,
    parts: tl.constexpr,
):
    query = tl.program_id(0)  # row and query head
    columns = tl.arange(0, block_dim)
    at = query * parts + tl.arange(0, parts)
    each_most = tl.load(maxima + at)
    most = tl.max(each_most, 0)
    weights = tl.exp(each_most - most)
    total = tl.sum(weights * tl.load(totals + at), 0)
    if has_sinks:
        total += tl.exp(tl.load(sinks + query % heads).to(tl.float32) - most)
    inside = columns < dim
    each = tl.load(sums + at[:, None] * dim + columns[None, :], mask=inside[None, :], other=0.0)
    result = tl.sum(weights[:, None] * each, 0) / total
    tl.store(out + query * dim + columns, result.to(out.dtype.element_ty), mask=inside)


def decode_rows(q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, prefixes: Tensor, spec: AttentionSpec) -> Tensor:
    """Return attention [N, Hq, dv] of queries [N, Hq, d] over the prefix and the own tokens of each row.

    Keys and values are one layer of the cache, contiguous [H, S, C, d] and [H, S, C, dv]. `rows` [3, N] (int64) has for
    each row its slot, its number of own tokens (at least 1) and its number of prefix tokens P. `prefixes` [2, N]
    (int64) has the addresses of the prefix's keys and values, contiguous [H, P, d] and [H, P, dv]; without a prefix
    they are not read. Both are contiguous.
    """
    count, query_heads, dim = q.shape
    heads, value_dim = keys.shape[0], values.shape[3]
    group = query_heads // heads
    parts = min(MAX_PARTS, triton.next_power_of_2(triton.cdiv(PROGRAMS, count * heads)))
    q = q if q.stride(2) == 1 else q.contiguous()
    sums = torch.empty(count, query_heads, parts, value_dim, dtype=torch.float32, device=q.device)
    maxima, totals = torch.empty(2, count, query_heads, parts, dtype=torch.float32, device=q.device)
    out = torch.empty(count, query_heads, value_dim, dtype=q.dtype, device=q.device)
    block_dim, block_value_dim = (max(MIN_BLOCK, triton.next_power_of_2(size)) for size in (dim, value_dim))
    _attend_parts[(count, heads, parts)](
        q,
        keys,
        values,
        sums,
        maxima,
        totals,
        rows,
        prefixes,
        spec.scale,
        count,
        q.stride(0),
        q.stride(1),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        group=group,
        dim=dim,
        value_dim=value_dim,
        softcap=spec.softcap,
        window=spec.window,
        chunk=spec.chunk,
        block_group=max(MIN_BLOCK, triton.next_power_of_2(group)),
        block_dim=block_dim,
        block_value_dim=block_value_dim,
        block_keys=BLOCK_BYTES // q.element_size(),
    )
    _join_parts[(count * query_heads,)](
        sums,
        maxima,
        totals,
        spec.sinks,
        out,
        dim=value_dim,
        heads=query_heads,
        has_sinks=spec.sinks is not None,
        block_dim=block_value_dim,
        parts=parts,
    )
    return out
