"""Let a library take the ops that it does better than a generated kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import bf16, f16, f32, f64, tensor_of
from weft.ops.base import viewed
from weft.ops.dot import Dot
from weft.ops.graph import FuncOp
from weft.ops.layouts import BLAS_LARGEST
from weft.passes.build_groups import CLAIM, WIDENS
from weft.passes.constant_values import constant_arguments
from weft.passes.convolve_by_products import ROWS_OF_WINDOWS

_FEW_ROWS = 128
"""With at most so many rows, packed weights and what follows in one kernel beat a library; with more they do not."""
_SMALL_SIDE = 64
"""Neither side of weights larger than this: a product is over before a library has set out."""


@dataclass(frozen=True)
class ClaimLibraries(ModulePass):
    """%y = graph.dot %a, %b   →   %y = graph.dot %a, %b {weft.claim = "blas"}

    Products with few rows, or of unknown number, or with small weights, and those that convolutions were made into keep
    a kernel of their own if their weights are constants: these can be packed, once. So do all whose weights lie in a
    type that no library multiplies.
    """

    name: ClassVar[str] = "claim_libraries"

    enabled: bool = True
    all_floats: bool = False
    """Whether the library takes products of all floats, whatever their weights are: a GPU's does."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not self.enabled:
            return
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                constants: set[SSAValue] = set(constant_arguments(function))
                for candidate in function.block.ops:
                    if isinstance(candidate, Dot) and self._is_taken(candidate, constants):
                        candidate.attributes[CLAIM] = StringAttr("blas")

    def _is_taken(self, dot: Dot, constants: set[SSAValue]) -> bool:
        if self.all_floats:
            return tensor_of(dot.results[0].type).dtype in (f16, bf16, f32, f64)
        return _is_for_blas(dot, constants)


def _is_for_blas(dot: Dot, constants: set[SSAValue]) -> bool:
    weight = dot.operands[1]
    if isinstance(weight, OpResult) and WIDENS in weight.op.attributes:
        return False
    result = tensor_of(dot.results[0].type)
    rows = result.shape[-2]
    sizes = (*result.shape[-2:], tensor_of(dot.operands[0].type).shape[-1])
    if any(isinstance(size, int) and size > BLAS_LARGEST for size in sizes):
        return False
    small = all(isinstance(size, int) and size <= _SMALL_SIDE for size in sizes[1:])
    few = small or not isinstance(rows, int) or rows <= _FEW_ROWS or ROWS_OF_WINDOWS in dot.attributes
    return result.dtype in (f32, f64) and not (few and viewed(dot.operands[1]) in constants)
