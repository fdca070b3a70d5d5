"""Buffers that are filled once, when a program is loaded: frozen weights, and what is computed from them.

The plan only says where each comes from; the arrays live with the loaded program, and code does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from weft.ir.types import DType, bf16, f32, f64, i8, i16, i32, tensor_of
from weft.lower.lowered import anchor_of
from weft.lower.packing import Packing, packable, weight_of
from weft.ops.graph import FuncOp, GroupOp
from weft.ops.layouts import StridedLayout
from weft.ops.matmul.dot import Dot
from weft.passes.grouping.build_groups import TWO_DIGITS

PanelForm = Callable[[DType, DType], tuple[int, int]]
"""The columns of a panel that a target's kernels read, and how many of K lie together, for matmuls computed in a type
with weights that lie in memory in another."""


@dataclass(frozen=True)
class Constant:
    """A buffer, and what it holds: constant number `source`, packed where `packing` says how.

    Constants are the function's constant arguments in order, then the results of the function that prepares it.
    """

    buffer: int
    source: int
    packing: Packing | None = None


def preparing(function: FuncOp) -> FuncOp | None:
    """The function that computes the last of a function's constant arguments from the others."""
    module = function.parent_op()
    if not isinstance(module, ModuleOp):
        return None
    name = function.sym_name
    return next(
        (op for op in module.body.block.ops if isinstance(op, FuncOp) and op.attributes.get("prepares") == name), None
    )


def programs_among(functions: Iterable[FuncOp]) -> list[FuncOp]:
    """The functions that are programs by themselves; what prepares the constants of one is run when that is loaded."""
    return [function for function in functions if "prepares" not in function.attributes]


def packing_of(
    group: GroupOp, fixed: Sequence[bool], form: PanelForm, layouts: Sequence[StridedLayout] | None = None
) -> Packing | None:
    """How a group wants its weights packed, if it does; `fixed` tells which of its operands are constants.

    `layouts` are those of operands that are not row-major.
    """
    dot = anchor_of(group)
    if not isinstance(dot, Dot):
        return None
    dtype = tensor_of(dot.results[0].type).dtype
    weight = tensor_of(weight_of(dot).type).dtype
    if not dtype.is_float and (dtype, weight) != (i32, i8):
        return None
    columns, together = form(f32 if dtype.is_float and dtype != f64 else dtype, weight)
    if tensor_of(dot.operands[0].type).dtype == i16 and TWO_DIGITS not in dot.attributes:
        together = 1
    if weight == bf16 and tensor_of(dot.operands[0].type).dtype != bf16:
        together = 1
    packing = packable(group, columns, together, layouts)
    return packing if packing is not None and fixed[packing.operand] else None
