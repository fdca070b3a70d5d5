"""Distances between rows."""

from __future__ import annotations

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.reduction import vector_norm
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Size
from weft.ir.types import i64


@aten("_cdist_forward")
def cdist(b: ImportBuilder, x: SSAValue, y: SSAValue, p: float, _mode: int | None) -> SSAValue:
    """The p-norms of the differences between all rows of `x` and all rows of `y`."""
    batch = b.result.shape[:-2]
    x = b.expand(x, (*batch, *b.shape(x)[-2:]))
    y = b.expand(y, (*batch, *b.shape(y)[-2:]))
    rank = b.rank(x)
    difference = b.emit("sub", b.unsqueeze(x, rank - 1), b.unsqueeze(y, rank - 2))
    return vector_norm(b, difference, p, [rank])


@aten("_pdist_forward")
def pdist(b: ImportBuilder, x: SSAValue, p: float = 2) -> SSAValue:
    """The p-norms of the differences between each row and every later one."""
    left, right = (b.emit("take", x, row, dim=0) for row in row_pairs(b, x, b.result.shape[0]))
    return vector_norm(b, b.emit("sub", left, right), p, [1])


def row_pairs(b: ImportBuilder, x: SSAValue, count: Size) -> tuple[SSAValue, SSAValue]:
    """The `count` pairs of rows of `x`, the first before the second, in order."""
    rows = b.shape(x)[0]
    if not isinstance(rows, int):
        raise UnsupportedError("pairs of a symbolic number of rows")
    pairs = b.iota_of(rows * rows)
    width = b.number(rows, i64)
    first = b.emit("floordiv", pairs, width)
    second = b.emit("remainder", pairs, width)
    # Pairs whose first is before their second come first, in order, when sorted stably by whether that is not so.
    late = b.to(b.emit("ge", first, second), i64)
    _, order = b.emit("sort", late, dim=0, descending=False, stable=True)
    chosen = b.emit("slice", order, starts=(0,), shape=(count,), steps=(1,))
    return b.emit("take", first, chosen, dim=0), b.emit("take", second, chosen, dim=0)
