"""The suites `gemm_sweep` and `attention_sweep`: shapes drawn at random that nobody has tuned for.

Sides of products are log-uniform, in all four layouts of the operands; attention draws lengths, depths of heads, and
how many heads share keys and values. Weft's own kernels run beside those it chooses.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.testing.bench.benchmark import Call, Contender, own_code
from weft.testing.gpu.case import GpuCase, Place, Work
from weft.testing.gpu.peers import CUBLAS, CUDNN, attention_libraries, eager
from weft.testing.gpu.repeated_backward import repeated_backward

SEED = 20
PRODUCTS, ATTENTIONS = 200, 60
SIDES = (16, 16384)
LENGTHS = (197, 256, 384, 512, 1000, 1024, 2048, 3000, 4096, 8192, 16384)
DEPTHS = (64, 96, 128, 192, 256)
GROUPS = (1, 2, 4, 8)
_ELEMENTS = 1 << 25
"""How many elements a query has, about: the batch follows from it."""


def _product(layout: str, m: int, n: int, k: int) -> GpuCase:
    """A product of bf16; a letter of the layout is t where the operand lies transposed in memory."""

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return (a.t() if layout[0] == "t" else a) @ (b.t() if layout[1] == "t" else b)

    def build(place: Place) -> Work:
        rows, columns, depth = (max(2, each // place.shrink) for each in (m, n, k))
        a = place.normal(*((depth, rows) if layout[0] == "t" else (rows, depth)))
        b = place.normal(*((columns, depth) if layout[1] == "t" else (depth, columns)), scale=depth**-0.5)
        moved, flops = 2 * (rows * depth + depth * columns + rows * columns), 2 * rows * columns * depth

        def start(contender: Contender) -> Call:
            run = contender.compile(own_code(multiply))
            return lambda: run(a, b)

        return Work(start, [eager(CUBLAS)], "TFLOP/s", flops, moved, flops, judge=CUBLAS, own=True)

    return GpuCase("gemm_sweep", f"{layout}_{m}x{n}x{k}", build)


def gemm_sweep_cases() -> list[GpuCase]:
    """The suite `gemm_sweep`."""
    drawn = random.Random(SEED)
    low, high = SIDES

    def side() -> int:
        return round(low * (high / low) ** drawn.random())

    return [_product(drawn.choice("nt") + drawn.choice("nt"), side(), side(), side()) for _ in range(PRODUCTS)]


def _attention(length: int, depth: int, heads: int, shared: int, masked: bool, training: bool) -> GpuCase:
    """Self-attention whose query heads share keys and values; with `training`, its backward alone."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=masked, enable_gqa=shared > 1)

    def build(place: Place) -> Work:
        rows = place.rows(length)
        batch = max(1, min(64, _ELEMENTS // (heads * length * depth)))
        query = place.normal(batch, heads, rows, depth)
        key, value = (place.normal(batch, heads // shared, rows, depth) for _ in range(2))
        flops = 4 * batch * heads * rows * rows * depth // (2 if masked else 1)
        flops = flops * 5 // 2 if training else flops
        moved = (2 * query.nbytes + 2 * key.nbytes) * (2 if training else 1)
        cotangent = torch.randn_like(query)

        def start(contender: Contender) -> Call:
            run: Callable[..., Any] = contender.compile(own_code(attend))
            if not training:
                return lambda: run(query, key, value)
            return repeated_backward(run, (query, key, value), lambda _: cotangent)

        return Work(start, attention_libraries(place), "TFLOP/s", flops, moved, flops, judge=CUDNN, own=True)

    kind = f"{'backward' if training else 'forward'}_{'causal' if masked else 'full'}"
    return GpuCase("attention_sweep", f"{kind}_{heads}x{length}x{depth}_shared_by_{shared}", build, training)


def attention_sweep_cases() -> list[GpuCase]:
    """The suite `attention_sweep`: no shape twice."""
    drawn = random.Random(SEED)
    found: dict[str, GpuCase] = {}
    while len(found) < ATTENTIONS:
        length, depth, shared = drawn.choice(LENGTHS), drawn.choice(DEPTHS), drawn.choice(GROUPS)
        heads = shared * drawn.choice((1, 2, 3, 4))
        case = _attention(length, depth, heads, shared, drawn.random() < 0.5, len(found) % 2 == 1)
        found.setdefault(case.name, case)
    return list(found.values())
