"""A Triton kernel for one decoding step of attention on a GPU: all rows, each with its own prefix and its own tokens.

Each program computes the query heads of one row that share a key head. It goes through the keys of the row's prefix and
then through the row's own keys, with the running softmax of FlashAttention (Dao et al. 2022, arXiv:2205.14135). Rows
with the same prefix read the same memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_BYTES = 128
"""A program computes the scores of this many keys at once, divided by the bytes of a number: shared memory is small."""
MIN_BLOCK = 16
"""The least number of rows of a matrix product in Triton. Fewer query heads are padded to it."""


@triton.jit  # type: ignore[untyped-decorator]
def _decode(  # type: ignore[no-untyped-def]
    q,
    keys,
    values,
    out,
    rows,
    prefixes,
    scale,
    num_rows,
    q_row,
    q_head,
    cache_head,
    cache_slot,
    group: tl.constexpr,
    dim: tl.constexpr,
    block_group: tl.constexpr,
    block_dim: tl.constexpr,
    block_keys: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)  # a large cache has more than 2**31 numbers
    heads = tl.num_programs(1)
    members, columns = tl.arange(0, block_group), tl.arange(0, block_dim)
    inside = (members[:, None] < group) & (columns[None, :] < dim)
    x = tl.load(q + row * q_row + (head * group + members[:, None]) * q_head + columns[None, :], mask=inside, other=0.0)
    slot = tl.load(rows + row)
    own_length = tl.load(rows + num_rows + row)
    prefix_length = tl.load(rows + 2 * num_rows + row)
    most = tl.full([block_group], float("-inf"), tl.float32)
    total = tl.zeros([block_group], tl.float32)
    result = tl.zeros([block_group, block_dim], tl.float32)
    for part in tl.static_range(2):
        if part == 0:
            length = prefix_length
            part_keys = tl.load(prefixes + row).to(keys.dtype) + head * prefix_length * dim
            part_values = tl.load(prefixes + num_rows + row).to(values.dtype) + head * prefix_length * dim
        else:
            length = own_length
            part_keys = keys + head * cache_head + slot * cache_slot
            part_values = values + head * cache_head + slot * cache_slot
        for start in range(0, length, block_keys):
            places = start + tl.arange(0, block_keys)
            seen = places < length
            offsets = places[:, None] * dim + columns[None, :]
            there = seen[:, None] & (columns[None, :] < dim)
            k = tl.load(part_keys + offsets, mask=there, other=0.0)
            v = tl.load(part_values + offsets, mask=there, other=0.0)
            scores = tl.dot(x, tl.trans(k), input_precision="ieee") * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            higher = tl.maximum(most, tl.max(scores, 1))
            probs = tl.exp(scores - higher[:, None])
            shrink = tl.exp(most - higher)
            total = total * shrink + tl.sum(probs, 1)
            result = result * shrink[:, None] + tl.dot(probs.to(v.dtype), v, input_precision="ieee")
            most = higher
    to = out + ((row * heads + head) * group + members[:, None]) * dim + columns[None, :]
    tl.store(to, (result / total[:, None]).to(out.dtype.element_ty), mask=inside)


def decode_rows(q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, prefixes: Tensor, scale: float) -> Tensor:
    """Return attention [N, Hq, d] of queries [N, Hq, d] over the prefix and the own tokens of each row.

    Keys and values are one layer of the cache, contiguous [H, S, C, d]. `rows` [3, N] (int64) has for each row its slot,
    its number of own tokens (at least 1) and its number of prefix tokens P. `prefixes` [2, N] (int64) has the addresses
    of the prefix's keys and values, each contiguous [H, P, d]; without a prefix they are not read. Both are contiguous.
    """
    count, query_heads, dim = q.shape
    heads = keys.shape[0]
    group = query_heads // heads
    q = q if q.stride(2) == 1 else q.contiguous()
    out = torch.empty(count, query_heads, dim, dtype=q.dtype, device=q.device)
    _decode[(count, heads)](
        q,
        keys,
        values,
        out,
        rows,
        prefixes,
        scale,
        count,
        q.stride(0),
        q.stride(1),
        keys.stride(0),
        keys.stride(1),
        group=group,
        dim=dim,
        block_group=max(MIN_BLOCK, triton.next_power_of_2(group)),
        block_dim=max(MIN_BLOCK, triton.next_power_of_2(dim)),
        block_keys=BLOCK_BYTES // q.element_size(),
    )
    return out
