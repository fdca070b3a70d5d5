"""The suite `gemv`: few rows times a matrix, eight distinct matrices in one CUDA graph, against cuBLAS.

Eight matrices are larger than any L2, so that each is read from memory as a decoding model reads it. `WEIGHTS` names
the forms in which the matrices may lie; each has a row of its own for every shape.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from weft.testing.benchmark import Call, Contender, own_code
from weft.testing.gpu.case import GpuCase, Place, Work
from weft.testing.gpu.peers import CUBLAS, eager

MATRICES = 8
ROWS = (1, 2, 4, 8, 16)
SHAPES = ((14336, 4096), (4096, 14336))


@dataclass(frozen=True)
class Weights:
    """A form of weights: how a matrix is made of (out, in), and the function that takes a row and what was made."""

    make: Callable[[Place, int, int], tuple[Tensor, ...]]
    function: Callable[..., Tensor]


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def _bf16(place: Place, outs: int, ins: int) -> tuple[Tensor, ...]:
    return (place.normal(outs, ins, scale=ins**-0.5),)


WEIGHTS = {"bf16": Weights(_bf16, linear)}


def _case(rows: int, outs: int, ins: int, form: str) -> GpuCase:
    weights = WEIGHTS[form]

    def build(place: Place) -> Work:
        m, n, k = rows, place.size(outs), place.size(ins)
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
