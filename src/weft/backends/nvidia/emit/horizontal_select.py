"""Which tensors a program of horizontally fused kernels has, as LLVM code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm.values import V, i64
from weft.backends.nvidia.emit.emitters import EMITTERS

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen
from weft.backends.nvidia.ir.horizontal_select import HorizontalSelectOp


@EMITTERS.register(HorizontalSelectOp)
def emit_horizontal_select(codegen: KernelCodegen, op: HorizontalSelectOp) -> None:
    b, program = codegen.b, codegen.scalars[op.program]
    starts = [start for start in op.starts.data if isinstance(start, int)]
    count, end = len(op.picked), b.label("picked")
    leaves: list[tuple[str, list[V]]] = []

    def choose(first: int, last: int) -> None:
        """Between the stretches from one to another."""
        if first == last:
            given = [codegen.pointers[pointer] for pointer in op.pointers[first * count : (first + 1) * count]]
            leaves.append((b.block, [i64(starts[first]), *given]))
            b.branch(end)
            return
        middle = (first + last + 1) // 2
        below, above = b.label("below"), b.label("above")
        b.branch_if(b.icmp("slt", program, i64(starts[middle])), below, above)
        for label, part in ((below, (first, middle - 1)), (above, (middle, last))):
            b.start(label)
            choose(*part)

    choose(0, len(starts) - 1)
    b.start(end)
    start, *picked = [
        b.emit("i64", "phi i64 " + ", ".join(f"[ {values[place].name}, %{label} ]" for label, values in leaves))
        for place in range(1 + count)
    ]
    codegen.scalars[op.number] = b.sub(program, start)
    codegen.pointers.update(zip(op.picked, picked, strict=True))
