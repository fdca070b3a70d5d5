"""Kernels of products: with pointers, block pointers and descriptors, in loops of their own, and of matrices whose
addresses are in memory.
"""

# Kernels have no types.

from __future__ import annotations

import weft.triton as triton
import weft.triton.language as tl


@triton.jit
def product(
    a, b, c, M, N, K, sa, sb, sc, ta: tl.constexpr, END: tl.constexpr, MASKED: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    tiles = tl.cdiv(N, BN)
    top, left = tl.program_id(0) // tiles * BM, tl.program_id(0) % tiles * BN
    rows, columns, depth = top + tl.arange(0, BM), left + tl.arange(0, BN), tl.arange(0, BK)
    if END == "wraps":
        m, n = rows % M, columns % N
    elif END == "zero":
        m, n = tl.where(rows < M, rows, 0), tl.where(columns < N, columns, 0)
    else:
        m, n = rows, columns
    at_a = a + m[:, None] * sa + depth[None, :]
    at_b = b + (n[None, :] * sb + depth[:, None] if ta else depth[:, None] * sb + n[None, :])
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        left_mask, right_mask = depth[None, :] < K - k * BK, depth[:, None] < K - k * BK
        if END == "mask":
            left_mask, right_mask = left_mask & (rows[:, None] < M), right_mask & (columns[None, :] < N)
        total += tl.dot(tl.load(at_a, mask=left_mask, other=0.0), tl.load(at_b, mask=right_mask, other=0.0))
        at_a += BK
        at_b += BK if ta else BK * sb
    places = c + rows[:, None] * sc + columns[None, :]
    if MASKED:
        tl.store(places, total.to(tl.float16), mask=(rows[:, None] < M) & (columns[None, :] < N))
    else:
        tl.store(places, total.to(tl.float16))


@triton.jit
def by_blocks(a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles = tl.cdiv(N, BN)
    top, left = tl.program_id(0) // tiles * BM, tl.program_id(0) % tiles * BN
    at_a = tl.make_block_ptr(a, (M, K), (sa, 1), (top, 0), (BM, BK), (1, 0))
    at_b = tl.make_tensor_descriptor(b, [K, N], [sb, 1], [BK, BN])
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(tl.load(at_a, boundary_check=(0, 1), padding_option="zero"), at_b.load([k, left]), total)
        at_a = tl.advance(at_a, (0, BK))
    tl.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN]).store([top, left], total.to(tl.float16))


@triton.jit
def persistent(a, b, c, M, N, K, sa, sb, sc, COUNT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles = tl.cdiv(N, BN)
    for number in range(tl.program_id(0), tl.cdiv(M, BM) * tiles, COUNT):
        rows = number // tiles * BM + tl.arange(0, BM)
        columns = number % tiles * BN + tl.arange(0, BN)
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            depth = k + tl.arange(0, BK)
            x = tl.load(a + (rows % M)[:, None] * sa + depth[None, :], mask=depth[None, :] < K, other=0.0)
            y = tl.load(b + depth[:, None] * sb + (columns % N)[None, :], mask=depth[:, None] < K, other=0.0)
            total = tl.dot(x, y, total)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        tl.store(c + rows[:, None] * sc + columns[None, :], total.to(tl.float16), mask=inside)


@triton.jit
def one_way(total, sums, most, q, k, v, first, start, stop, scale, rows, MASKED: tl.constexpr, BN: tl.constexpr):
    for at in range(start, stop, BN):
        scores = tl.dot(q, k.load([first + at, 0]).T) * scale
        if MASKED:
            scores = tl.where(rows[:, None] >= at + tl.arange(0, BN)[None, :], scores, -1.0e6)
        greater = tl.maximum(most, tl.max(scores, 1))
        powers, shrink = tl.exp2(scores - greater[:, None]), tl.exp2(most - greater)
        values = v.load([first + at, 0])
        sums = tl.dot(powers.to(tl.float16), values, sums * shrink[:, None])
        total = total * shrink + tl.sum(powers, 1)
        most = greater
    return total, sums, most


@triton.jit
def attention(q, k, v, out, scale, L, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """Of one head after the other, the blocks before the diagonal and then those on it."""
    blocks = L // BM
    first, row = tl.program_id(0) // blocks * L, tl.program_id(0) % blocks * BM
    rows = row + tl.arange(0, BM)
    K = tl.make_tensor_descriptor(k, [tl.num_programs(0) * BM, D], [D, 1], [BN, D])
    V = tl.make_tensor_descriptor(v, [tl.num_programs(0) * BM, D], [D, 1], [BN, D])
    queries = tl.load(q + (first + rows)[:, None] * D + tl.arange(0, D)[None, :])
    most, total = tl.full([BM], -float("inf"), tl.float32), tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, D], tl.float32)
    if CAUSAL:
        total, sums, most = one_way(total, sums, most, queries, K, V, first, 0, row, scale, rows, False, BN)
        total, sums, most = one_way(total, sums, most, queries, K, V, first, row, row + BM, scale, rows, True, BN)
    else:
        total, sums, most = one_way(total, sums, most, queries, K, V, first, 0, L, scale, rows, False, BN)
    result = (sums / total[:, None]).to(tl.float16)
    tl.store(out + (first + rows)[:, None] * D + tl.arange(0, D)[None, :], result)


@triton.jit
def of_many(addresses, sizes, count, TILES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Products of matrices whose addresses and sizes are in memory, one after the other."""
    tile, passed = tl.program_id(0), 0
    for which in range(count):
        n = tl.load(sizes + which)
        a = tl.load(addresses + 3 * which).to(tl.pointer_type(tl.float16))
        b = tl.load(addresses + 3 * which + 1).to(tl.pointer_type(tl.float16))
        c = tl.load(addresses + 3 * which + 2).to(tl.pointer_type(tl.float16))
        here = tl.cdiv(n, BM) * tl.cdiv(n, BN)
        while tile < passed + here:
            rows = (tile - passed) // tl.cdiv(n, BN) * BM + tl.arange(0, BM)
            columns = (tile - passed) % tl.cdiv(n, BN) * BN + tl.arange(0, BN)
            at_a = a + rows[:, None] * n + tl.arange(0, BK)[None, :]
            at_b = b + tl.arange(0, BK)[:, None] * n + columns[None, :]
            total = tl.zeros((BM, BN), tl.float32)
            for _ in range(0, tl.cdiv(n, BK)):
                tl.multiple_of(at_a, [16, 16])
                tl.multiple_of(at_b, [16, 16])
                total += tl.dot(tl.load(at_a), tl.load(at_b))
                at_a += BK
                at_b += BK * n
            tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))
            tile += TILES
        passed += here


@triton.jit
def gradients(q, k, v, g, sums, rests, dq, dk, dv, L, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Of attention: those of a block of keys and values, and then those of the queries at the same places."""
    head = tl.program_id(1) * L * D
    sums, rests = sums + tl.program_id(1) * L, rests + tl.program_id(1) * L
    first = tl.program_id(0) * BM
    depth, own, part = tl.arange(0, D), first + tl.arange(0, BM), tl.arange(0, BN)
    held = head + own[:, None] * D + depth[None, :]
    keys, values = tl.load(k + held), tl.load(v + held)
    to_keys, to_values = tl.zeros([BM, D], tl.float32), tl.zeros([BM, D], tl.float32)
    for turn in range((L - first) // BN):
        rows = first + turn * BN + part
        turned = tl.load(q + head + rows[None, :] * D + depth[:, None])
        powers = tl.exp2(tl.dot(keys, turned) - tl.load(sums + rows)[None, :])
        powers = tl.where(rows[None, :] >= own[:, None], powers, 0.0)
        given = tl.load(g + head + rows[:, None] * D + depth[None, :])
        to_values += tl.dot(powers.to(tl.float16), given)
        away = tl.dot(values, tl.trans(given)) - tl.load(rests + rows)[None, :]
        to_keys += tl.dot((powers * away).to(tl.float16), tl.trans(turned))
    tl.store(dv + held, to_values.to(tl.float16))
    tl.store(dk + held, to_keys.to(tl.float16))
    queries, own_given = tl.load(q + held), tl.load(g + held)
    most, rest = tl.load(sums + own)[:, None], tl.load(rests + own)[:, None]
    to_queries = tl.zeros([BM, D], tl.float32)
    end = first + BM
    steps = end // BN
    for turn in range(steps):
        columns = end - steps * BN + turn * BN + part
        places = head + columns[None, :] * D + depth[:, None]
        block, other = tl.load(k + places), tl.load(v + places)
        powers = tl.exp2(tl.dot(queries, block) - most)
        powers = tl.where(own[:, None] >= columns[None, :], powers, 0.0)
        away = tl.dot(own_given, other) - rest
        to_queries += tl.dot((powers * away).to(tl.float16), tl.trans(block))
    tl.store(dq + held, to_queries.to(tl.float16))
