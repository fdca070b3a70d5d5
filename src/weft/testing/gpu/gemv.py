"""The suite `gemv`: few rows times a matrix, eight distinct matrices in one CUDA graph, against cuBLAS.

Eight matrices are larger than any L2, so that each is read from memory as a decoding model reads it. `WEIGHTS` names
the forms in which the matrices may lie; each has a row of its own for every shape.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.testing.bench.benchmark import Call, Contender, own_code
from weft.testing.gpu.case import GpuCase, Place, Work
from weft.testing.gpu.narrow import fp4_values, mxfp4, nibbles
from weft.testing.gpu.peers import CUBLAS, eager

MATRICES = 8
ROWS = (1, 2, 4, 8, 16)
SHAPES = ((14336, 4096), (4096, 14336))
_LARGEST_GROUP = 128


@dataclass(frozen=True)
class Weights:
    """A form of weights: how a matrix is made of (out, in), and the function that takes a row and what was made."""

    make: Callable[[Place, int, int], tuple[Tensor, ...]]
    function: Callable[..., Tensor]


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def _bf16(place: Place, outs: int, ins: int) -> tuple[Tensor, ...]:
    return (place.normal(outs, ins, scale=ins**-0.5),)


def _bytes(place: Place, outs: int, ins: int, most: int = 256) -> Tensor:
    return torch.randint(most, (outs, ins), dtype=torch.uint8, device=place.device.name)


def _scales(place: Place, outs: int, ins: int) -> Tensor:
    return place.normal(outs, ins, scale=1e-3)


def _int4(group: int, zeros: bool = False) -> Weights:
    """Two weights in a byte, (code - zero) * scale in groups."""

    def make(place: Place, outs: int, ins: int) -> tuple[Tensor, ...]:
        parts = _bytes(place, outs, ins // 2), _scales(place, outs, ins // group)
        return (*parts, _bytes(place, outs, ins // group, 16)) if zeros else parts

    def function(x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
        numbers = nibbles(codes).to(x.dtype).unflatten(1, (-1, group))
        offset = 8 if zeros is None else zeros.to(x.dtype)[..., None]
        return F.linear(x, ((numbers - offset) * scales[..., None]).flatten(1))

    return Weights(make, function)


def _fp4(group: int) -> Weights:
    """Floats of 4 bits: with powers of two for 32 (mxfp4), or floats of 8 bits for 16 and one for all (nvfp4)."""

    def make(place: Place, outs: int, ins: int) -> tuple[Tensor, ...]:
        codes = _bytes(place, outs, ins // 2)
        if group == 32:
            return codes, _bytes(place, outs, ins // group, 8) + 112
        scales = _scales(place, outs, ins // group).abs() * 1e3
        return codes, scales.to(torch.float8_e4m3fn), torch.full((), 1e-3, device=place.device.name)

    def function(x: Tensor, codes: Tensor, scales: Tensor, whole: Tensor | None = None) -> Tensor:
        if whole is None:
            return F.linear(x, mxfp4(codes, scales, x.dtype))
        values = fp4_values(codes, x.dtype).unflatten(1, (-1, group))
        return (F.linear(x, (values * scales.to(x.dtype)[..., None]).flatten(1)) * whole).to(x.dtype)

    return Weights(make, function)


def _of_8_bits(dtype: torch.dtype) -> Weights:
    """A weight a byte, and a factor a row."""

    def make(place: Place, outs: int, ins: int) -> tuple[Tensor, ...]:
        return (place.normal(outs, ins) * 16).to(dtype), _scales(place, outs, 1)

    def function(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
        return F.linear(x, codes.to(x.dtype) * scales)

    return Weights(make, function)


WEIGHTS = {
    "bf16": Weights(_bf16, linear),
    **{f"int4_{group}": _int4(group) for group in (32, 64, 128)},
    "int4_zeros": _int4(128, zeros=True),
    "mxfp4": _fp4(32),
    "nvfp4": _fp4(16),
    "int8": _of_8_bits(torch.int8),
    "fp8": _of_8_bits(torch.float8_e4m3fn),
}


def _case(rows: int, outs: int, ins: int, form: str) -> GpuCase:
    weights = WEIGHTS[form]

    def build(place: Place) -> Work:
        m, n, k = rows, place.size(outs), -(-place.size(ins) // _LARGEST_GROUP) * _LARGEST_GROUP
        x = place.normal(m, k)
        matrices = [weights.make(place, n, k) for _ in range(MATRICES)]
        plain = [_bf16(place, n, k) for _ in range(MATRICES)] if form != "bf16" else matrices
        read = sum(part.nbytes for matrix in matrices for part in matrix)
        moved = read + MATRICES * (x.nbytes + m * n * x.element_size())

        def start(contender: Contender) -> Call:
            theirs = contender.name == CUBLAS
            function: Callable[..., Any] = contender.compile(own_code(linear if theirs else weights.function))
            given = plain if theirs else matrices
            return lambda: [function(x, *matrix) for matrix in given]

        # cuBLAS reads bf16 whatever Weft reads: results agree only where both do.
        allowed = 2e-2 if form == "bf16" else None
        return Work(start, [eager(CUBLAS)], "TB/s", moved, moved, allowed=allowed, judge=CUBLAS, graph=True)

    return GpuCase("gemv", f"gemv_{rows}x{outs}x{ins}_{form}", build)


def gemv_cases() -> list[GpuCase]:
    """The suite `gemv`."""
    return [_case(rows, outs, ins, form) for form in WEIGHTS for outs, ins in SHAPES for rows in ROWS]
