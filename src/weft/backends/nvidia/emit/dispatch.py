"""Code for the ops that kernels are written with: which module makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import Operation

from weft.backends.nvidia.emit.control import emit_branch, emit_while
from weft.backends.nvidia.emit.memory.atomics import emit_atomic
from weft.backends.nvidia.emit.messages import emit_check, emit_print
from weft.backends.nvidia.emit.reduce.bitonic_sort import emit_bitonic_sort
from weft.backends.nvidia.emit.reduce.fold_scan import emit_fold, emit_scan
from weft.backends.nvidia.emit.views import emit_histogram, emit_take, emit_view
from weft.tile import collective_ops, control_flow, pointer_ops

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


def emit_written(codegen: KernelCodegen, op: Operation) -> bool:
    """The code of one op; False if it is none of these."""
    match op:
        case pointer_ops.IndexOp():
            (codegen.scalars[op.out],) = codegen.tiles[op.value]
        case pointer_ops.PointerOp():
            (codegen.pointers[op.out],) = codegen.tiles[op.value]
        case pointer_ops.AddressOp():
            codegen.tiles[op.out] = [codegen.pointers[op.pointer]]
        case collective_ops.ViewOp():
            emit_view(codegen, op)
        case collective_ops.TakeOp():
            emit_take(codegen, op)
        case collective_ops.HistogramOp():
            emit_histogram(codegen, op)
        case collective_ops.FoldOp():
            emit_fold(codegen, op)
        case collective_ops.ScanOp():
            emit_scan(codegen, op)
        case collective_ops.OrderOp():
            emit_bitonic_sort(codegen, op)
        case pointer_ops.AtomicOp():
            emit_atomic(codegen, op)
        case control_flow.IfOp():
            emit_branch(codegen, op)
        case control_flow.WhileOp():
            emit_while(codegen, op)
        case control_flow.CheckOp():
            emit_check(codegen, op)
        case control_flow.PrintOp():
            emit_print(codegen, op)
        case _:
            return False
    return True
