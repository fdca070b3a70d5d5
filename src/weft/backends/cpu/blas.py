"""Matrix products by the BLAS library that the process has loaded (OpenBLAS or MKL, as torch brings it)."""

from __future__ import annotations

from contextlib import ExitStack

from weft.backends.llvm.builder import Function, V, i64, memory_type
from weft.ir.expr import Size
from weft.ir.types import f32, f64
from weft.lower.plan import DotStep, Place

_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
ROUTINES = {f32: "cblas_sgemm", f64: "cblas_dgemm"}


def blas_layout(place: Place) -> tuple[bool, Size] | None:
    """Whether BLAS sees the last two dimensions transposed, and the leading dimension; None if it cannot take them."""
    rows, columns = place.tensor.shape[-2:]
    row_stride, column_stride = place.layout.strides[-2:]
    if column_stride == 1 or columns == 1:
        if columns == 1 and column_stride != 1 and rows != 1 and row_stride == 1:
            return True, rows
        return False, (columns if rows == 1 else row_stride)
    if row_stride == 1 or rows == 1:
        return True, (rows if columns == 1 else column_stride)
    return None


def emit_blas(b: Function, step: DotStep, table: V, symbols: dict[str, V]) -> None:
    """Call the library once for each matrix of the batch."""
    dtype = step.out.tensor.dtype
    routine, element = ROUTINES[dtype], memory_type(dtype)
    m, n = (b.size(size, symbols) for size in step.out.tensor.shape[-2:])
    k = b.size(step.a.tensor.shape[-1], symbols)
    with ExitStack() as loops:
        # An empty product has nothing to write; one of empty sums is all zeros, which BLAS does with beta 0.
        index = [
            loops.enter_context(b.loop(i64(0), b.size(size, symbols), i64(1))) for size in step.out.tensor.shape[:-2]
        ]
        loops.enter_context(b.when(b.binary("and", b.icmp("sgt", m, i64(0)), b.icmp("sgt", n, i64(0)))))
        operands: list[V] = []
        for place in (step.a, step.b, step.out):
            layout = blas_layout(place)
            assert layout is not None
            transposed, leading = layout
            pointer = b.load("ptr", b.gep(table, i64(place.buffer), "i64"), 8)
            offset = b.size(place.layout.offset, symbols)
            for position, stride in zip(index, place.layout.strides[:-2], strict=True):
                offset = b.add(offset, b.mul(position, b.size(stride, symbols)))
            address = b.gep(pointer, offset, element)
            least = b.intrinsic("smax", b.size(leading, symbols), i64(1))
            operands += [V("i32", str(_TRANSPOSED if transposed else _PLAIN)), address, b.convert("trunc", least, "i32")]
        (ta, pa, la, tb, pb, lb, _, pc, lc) = operands
        sizes = [b.convert("trunc", size, "i32") for size in (m, n, k)]
        one, zero = (V(element, text) for text in ("1.0", "0.0"))
        b.call(routine, "void", V("i32", str(_ROW_MAJOR)), ta, tb, *sizes, one, pa, la, pb, lb, zero, pc, lc)
