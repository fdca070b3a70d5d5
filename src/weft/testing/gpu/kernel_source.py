"""Kernels in Triton's language for the suite `kernels`, and how they are launched on a GPU.

This file is loaded twice, with `triton` as Triton itself and as Weft: it names neither.
"""

# Kernels have no types, and Triton may not be installed.
# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    tl.store(out_ptr + places, tl.load(x_ptr + places, mask=mask) + tl.load(y_ptr + places, mask=mask), mask=mask)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    places = tl.arange(0, BLOCK)
    mask = places < columns
    x = tl.load(x_ptr + row + places, mask=mask, other=-float("inf")).to(tl.float32)
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row + places, powers / tl.sum(powers, axis=0), mask=mask)


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    places = tl.arange(0, BLOCK)
    mask = places < columns
    x = tl.load(x_ptr + row + places, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / columns
    away = tl.where(mask, x - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(away * away, axis=0) / columns + eps)
    weight = tl.load(weight_ptr + places, mask=mask).to(tl.float32)
    bias = tl.load(bias_ptr + places, mask=mask).to(tl.float32)
    tl.store(out_ptr + row + places, away * scale * weight + bias, mask=mask)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    # Programs that run together share panels of A and B: a band of GROUP tiles is walked column by column.
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    band = program // (GROUP * tiles_n)
    first = band * GROUP
    height = min(tiles_m - first, GROUP)
    inside = program % (GROUP * tiles_n)
    rows = (first + inside % height) * BM + tl.arange(0, BM)
    columns = inside // height * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * K + depth[None, :]
    b_ptrs = b_ptr + depth[:, None] * N + columns[None, :]
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (depth[None, :] < K - k * BK), other=0.0)
        b = tl.load(b_ptrs, mask=(depth[:, None] < K - k * BK) & (columns[None, :] < N), other=0.0)
        sums = tl.dot(a, b, sums)
        a_ptrs += BK
        b_ptrs += BK * N
    places = c_ptr + rows[:, None] * N + columns[None, :]
    tl.store(places, sums.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def attend(q, k_ptr, v_ptr, rows, depth, most, total, sums, by, first, last, MASKED: tl.constexpr, BN: tl.constexpr):
    columns = tl.arange(0, BN)
    for start in range(first, last, BN):
        places = (start + columns)[:, None] * q.shape[1] + depth[None, :]
        scores = tl.dot(q, tl.trans(tl.load(k_ptr + places))) * by
        if MASKED:
            scores = tl.where(rows[:, None] >= (start + columns)[None, :], scores, -1.0e6)
        greater = tl.maximum(most, tl.max(scores, 1))
        powers = tl.exp2(scores - greater[:, None])
        shrink = tl.exp2(most - greater)
        total = total * shrink + tl.sum(powers, 1)
        v = tl.load(v_ptr + places)
        sums = tl.dot(powers.to(v.dtype), v, sums * shrink[:, None])
        most = greater
    return most, total, sums


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, scale, length, D: tl.constexpr, CAUSAL: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64) * length * D
    k_ptr += head
    v_ptr += head
    rows, depth = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(q_ptr + head + rows[:, None] * D + depth[None, :])
    most = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, D], tl.float32)
    by = scale * 1.4426950408889634
    # Keys that all rows see, and then those on the diagonal.
    seen = tl.program_id(0) * BM if CAUSAL else length
    most, total, sums = attend(q, k_ptr, v_ptr, rows, depth, most, total, sums, by, 0, seen, False, BN)
    if CAUSAL:
        most, total, sums = attend(q, k_ptr, v_ptr, rows, depth, most, total, sums, by, seen, seen + BM, True, BN)
    result = (sums / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + head + rows[:, None] * D + depth[None, :], result)


def add(x, y, out, BLOCK, **launch):
    add_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, out, x.numel(), BLOCK=BLOCK, **launch)


def softmax(x, out, **launch):
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns), **launch)


def layer_norm(x, weight, bias, out, **launch):
    rows, columns = x.shape
    BLOCK = triton.next_power_of_2(columns)
    layer_norm_kernel[(rows,)](x, weight, bias, out, columns, 1e-5, BLOCK=BLOCK, **launch)


def matmul(a, b, out, BM, BN, BK, **launch):
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, BM) * triton.cdiv(n, BN),)
    matmul_kernel[grid](a, b, out, m, n, k, BM=BM, BN=BN, BK=BK, GROUP=8, **launch)


def attention(q, k, v, out, BM, BN, causal=False, **launch):
    batch, heads, length, depth = q.shape
    grid = (length // BM, batch * heads)
    attention_kernel[grid](q, k, v, out, depth**-0.5, length, D=depth, CAUSAL=causal, BM=BM, BN=BN, **launch)


def causal_attention(q, k, v, out, **launch):
    attention(q, k, v, out, causal=True, **launch)
