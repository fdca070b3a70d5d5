"""The suites `gemm` and `moe`: dense products with and without what follows them, and mixtures of experts.

Sides are M×N×K, with B stored as [N, K]. A row counts as generated only where its `claims` are empty.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.testing.bench.benchmark import EAGER, Call, Contender, own_code
from weft.testing.gpu.case import GpuCase, Place, Work
from weft.testing.gpu.memory import bytes_of
from weft.testing.gpu.narrow import mxfp4
from weft.testing.gpu.peers import CUBLAS, eager, inductors

SIDES = (
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (4096, 14336, 4096),
    (4096, 4096, 14336),
    (16384, 1280, 8192),
    (512, 4096, 4096),
    (64, 14336, 4096),
    (16, 14336, 4096),
)
FP8_SIDES = (4096, 8192)
_GROUP = 32


def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.t()


def gelu_product(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(a @ b.t() + bias, approximate="tanh")


def scaled_product(a: Tensor, b: Tensor, one: Tensor) -> Tensor:
    return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)


def _gemm(
    name: str,
    function: Callable[..., Tensor],
    make: Callable[[Place], Sequence[Tensor]],
    *,
    library: str = CUBLAS,
    compilers: bool = False,
) -> GpuCase:
    def build(place: Place) -> Work:
        inputs = make(place)
        (m, k), n = inputs[0].shape, inputs[1].shape[0]
        moved, flops = bytes_of(list(inputs)) + 2 * m * n, 2 * m * n * k

        def start(contender: Contender) -> Call:
            run = contender.compile(own_code(function))
            return lambda: run(*inputs)

        peers = [eager(library), *(inductors(place) if compilers else [])]
        speed = 2 / inputs[0].element_size()
        return Work(start, peers, "TFLOP/s", flops, moved, flops, speed, judge=library, own=True)

    return GpuCase("gemm", name, build)


def _sides(m: int, n: int, k: int) -> Callable[[Place], list[Tensor]]:
    def make(place: Place) -> list[Tensor]:
        rows, columns, depth = place.size(m), place.size(n), place.size(k)
        return [place.normal(rows, depth), place.normal(columns, depth, scale=depth**-0.5)]

    return make


def _with_bias(place: Place) -> list[Tensor]:
    a, b = _sides(8192, 8192, 4096)(place)
    return [a, b, place.normal(b.shape[0])]


def _fp8(side: int) -> Callable[[Place], list[Tensor]]:
    def make(place: Place) -> list[Tensor]:
        tensors = [tensor.to(torch.float8_e4m3fn) for tensor in _sides(side, side, side)(place)]
        return [*tensors, torch.ones((), device=place.device.name)]

    return make


def gemm_cases() -> list[GpuCase]:
    """The suite `gemm`."""
    return [
        *(_gemm(f"gemm_{m}x{n}x{k}_bf16", product, _sides(m, n, k), compilers=m >= 4096) for m, n, k in SIDES),
        _gemm("gelu_gemm_8192x8192x4096_bf16", gelu_product, _with_bias, library=EAGER, compilers=True),
        *(_gemm(f"gemm_{side}x{side}x{side}_fp8", scaled_product, _fp8(side)) for side in FP8_SIDES),
    ]


def expert_layer(x: Tensor, router: Tensor, gates_and_ups: Tensor, downs: Tensor, *, chosen: int) -> Tensor:
    """A layer of experts as torch writes it: route, sort rows by expert, two grouped products, gather by weight."""
    experts = router.shape[0]
    weights, indices = torch.topk(torch.softmax((x @ router.t()).float(), -1), chosen, dim=-1)
    weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
    flat = indices.flatten()
    order = torch.argsort(flat, stable=True)
    rows = order // chosen
    counts = (flat[:, None] == torch.arange(experts, device=x.device)).sum(0)
    ends = counts.cumsum(0).to(torch.int32)
    both = torch._grouped_mm(x[rows], gates_and_ups.transpose(-2, -1), offs=ends)
    gate, up = both.chunk(2, dim=-1)
    done = torch._grouped_mm(F.silu(gate) * up, downs.transpose(-2, -1), offs=ends)
    scaled = done * weights.flatten()[order][:, None]
    return torch.zeros_like(x).index_add(0, rows, scaled)


def _experts(name: str, tokens: int, width: int, inner: int, experts: int, chosen: int) -> GpuCase:
    def layer(x: Tensor, router: Tensor, gates_and_ups: Tensor, downs: Tensor) -> Tensor:
        return expert_layer(x, router, gates_and_ups, downs, chosen=chosen)

    def build(place: Place) -> Work:
        d, f, t = place.size(width), place.size(inner), place.rows(tokens)
        x, router = place.normal(t, d), place.normal(experts, d, scale=d**-0.5)
        weights = place.normal(experts, 2 * f, d, scale=d**-0.5), place.normal(experts, d, f, scale=f**-0.5)
        used = min(experts, t * chosen)
        moved = 2 * x.nbytes + used * sum(w[0].nbytes for w in weights)
        flops = 2 * t * chosen * 3 * d * f

        def start(contender: Contender) -> Call:
            run: Any = contender.compile(own_code(layer))
            return lambda: run(x, router, *weights)

        peers = [eager(), *inductors(place)]
        return Work(start, peers, "TFLOP/s", flops, moved, flops, allowed=5e-2)

    return GpuCase("moe", f"{name}_{tokens}_bf16", build)


def _widened(parts: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The two tensors of weights that codes and exponents stand for."""
    first, its_powers, second, powers = parts
    return mxfp4(first, its_powers, dtype), mxfp4(second, powers, dtype)


def _experts_of_4_bits(name: str, tokens: int, width: int, inner: int, experts: int, chosen: int) -> GpuCase:
    """The same with weights in mxfp4; eager reads them as bf16, which it is given."""

    def layer(x: Tensor, router: Tensor, *parts: Tensor) -> Tensor:
        return expert_layer(x, router, *_widened(parts, x.dtype), chosen=chosen)

    def build(place: Place) -> Work:
        d, f = (-(-place.size(side) // _GROUP) * _GROUP for side in (width, inner))
        t = place.rows(tokens)
        x, router = place.normal(t, d), place.normal(experts, d, scale=d**-0.5)
        parts: list[Tensor] = []
        for sides in ((2 * f, d), (d, f)):
            low, high = 0, 256
            for ins in (sides[1] // 2, sides[1] // 32):
                shape = experts, sides[0], ins
                parts.append(torch.randint(low, high, shape, dtype=torch.uint8, device=place.device.name))
                low, high = 115, 118
        plain = _widened(parts, x.dtype)
        used = min(experts, t * chosen)
        moved = 2 * x.nbytes + used * sum(part[0].nbytes for part in parts)
        flops = 2 * t * chosen * 3 * d * f

        def start(contender: Contender) -> Call:
            if contender.name == EAGER:
                return lambda: expert_layer(x, router, *plain, chosen=chosen)
            run: Any = contender.compile(own_code(layer))
            return lambda: run(x, router, *parts)

        return Work(start, [eager()], "TFLOP/s", flops, moved, flops, allowed=5e-2)

    return GpuCase("moe", f"{name}_{tokens}_mxfp4", build)


def moe_cases() -> list[GpuCase]:
    """The suite `moe`: Mixtral's layer and gpt-oss's, for a prompt and for few tokens."""
    return [
        *(_experts("mixtral", tokens, 4096, 14336, 8, 2) for tokens in (4096, 512, 16, 4, 1)),
        *(_experts("gpt_oss", tokens, 2880, 2880, 32, 4) for tokens in (4096, 512, 16, 4, 1)),
        *(_experts_of_4_bits("mixtral", tokens, 4096, 14336, 8, 2) for tokens in (16, 4, 1)),
        *(_experts_of_4_bits("gpt_oss", tokens, 2880, 2880, 32, 4) for tokens in (16, 4, 1)),
    ]
