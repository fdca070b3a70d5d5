"""The suite `kernels`: kernels in Triton's language on the CPU, against eager's operators for the same work in f32."""

# torch leaves some of its arguments without types, and kernels have none.
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import weft.triton as triton
import weft.triton.language as tl
from weft.testing.bench.benchmark import EAGER, WEFT, Call, Contender
from weft.testing.bench.benchmark_case import Case, Start


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    tl.store(out_ptr + places, tl.load(x_ptr + places, mask=mask) + tl.load(y_ptr + places, mask=mask), mask=mask)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    places = tl.arange(0, BLOCK)
    mask = places < columns
    x = tl.load(x_ptr + row + places, mask=mask, other=-float("inf"))
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row + places, powers / tl.sum(powers, axis=0), mask=mask)


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    places = tl.arange(0, BLOCK)
    mask = places < columns
    x = tl.load(x_ptr + row + places, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0) / columns
    away = tl.where(mask, x - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(away * away, axis=0) / columns + eps)
    weight, bias = tl.load(weight_ptr + places, mask=mask), tl.load(bias_ptr + places, mask=mask)
    tl.store(out_ptr + row + places, away * scale * weight + bias, mask=mask)


@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, out_ptr, scale, length, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    head = tl.program_id(1) * length * D
    rows, columns, depth = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    q = tl.load(q_ptr + head + rows[:, None] * D + depth[None, :]) * (scale * 1.4426950408889634)
    most = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, D], tl.float32)
    for start in range(0, length, BN):
        places = head + (start + columns)[:, None] * D + depth[None, :]
        scores = tl.dot(q, tl.trans(tl.load(k_ptr + places)))
        greater = tl.maximum(most, tl.max(scores, 1))
        powers = tl.exp2(scores - greater[:, None])
        shrink = tl.exp2(most - greater)
        total = total * shrink + tl.sum(powers, 1)
        sums = tl.dot(powers, tl.load(v_ptr + places), sums * shrink[:, None])
        most = greater
    tl.store(out_ptr + head + rows[:, None] * D + depth[None, :], sums / total[:, None])


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
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
    tl.store(places, sums, mask=(rows[:, None] < M) & (columns[None, :] < N))


def _add(x: Tensor, y: Tensor, out: Tensor) -> None:
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)


def _softmax(x: Tensor, out: Tensor) -> None:
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    rows, columns = x.shape
    layer_norm_kernel[(rows,)](x, weight, bias, out, columns, 1e-5, BLOCK=triton.next_power_of_2(columns))


def _attention(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
    _, heads, length, depth = q.shape
    attention_kernel[(length // 128, heads)](q, k, v, out, depth**-0.5, length, D=depth, BM=128, BN=64)


def _matmul(a: Tensor, b: Tensor, out: Tensor) -> None:
    (m, k), n = a.shape, b.shape[1]
    matmul_kernel[(triton.cdiv(n, 128), triton.cdiv(m, 128))](a, b, out, m, n, k, BM=128, BN=128, BK=64)


def kernel_cases() -> list[Case]:
    """Every kernel writes to memory that is there; so does eager, where its operator can be told to."""
    return [
        _case("add_2e24", _add, lambda x, y, out: torch.add(x, y, out=out), [(1 << 24,), (1 << 24,)], (1 << 24,)),
        _case("softmax_4096x1024", _softmax, lambda x, out: torch.softmax(x, 1), [(4096, 1024)], (4096, 1024)),
        _case(
            "layer_norm_4096x1024",
            _layer_norm,
            lambda x, weight, bias, out: F.layer_norm(x, (1024,), weight, bias),
            [(4096, 1024), (1024,), (1024,)],
            (4096, 1024),
        ),
        _case(
            "attention_8x1024x64",
            _attention,
            lambda q, k, v, out: F.scaled_dot_product_attention(q, k, v),
            [(1, 8, 1024, 64)] * 3,
            (1, 8, 1024, 64),
        ),
        _case("matmul_1024", _matmul, lambda a, b, out: torch.mm(a, b, out=out), [(1024, 1024)] * 2, (1024, 1024)),
    ]


def _case(
    name: str,
    launch: Callable[..., None],
    operator: Callable[..., Tensor],
    shapes: Sequence[tuple[int, ...]],
    result: tuple[int, ...],
) -> Case:
    def build() -> Start:
        generator = torch.Generator().manual_seed(0)
        inputs: list[Any] = [torch.randn(shape, generator=generator) for shape in shapes]
        out = torch.empty(result)

        def start(contender: Contender) -> Call:
            if contender.name != WEFT:
                run = contender.compile(operator)
                return lambda: run(*inputs, out)

            def call() -> Tensor:
                launch(*inputs, out)
                return out

            return call

        return start

    return Case("kernels", name, build, peers=(EAGER,))
