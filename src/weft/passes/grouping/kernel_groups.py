"""Kernels in the making: which ops one will compute, and over which elements."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from weft.ir.expr import Size, product
from weft.ir.types import tensor_of
from weft.ops.base import GraphOp
from weft.ops.reduce import DimensionReduction

_LEAST_ROWS, _LEAST_COLUMNS = 256, 64
"""Of sums of columns that many programs share: fewer fill no machine."""
_MOST_HELD, _MOST_CARRIED = 8192, 30720
"""Columns whose sums a program holds beside a whole row; and of longer rows the values that it does, sums and what is
read of each column: as many as registers of 16 warps have room for."""


def is_column_sum(op: Operation) -> bool:
    """Whether an op sums up columns along leading dimensions, which many programs can share."""
    if not isinstance(op, DimensionReduction) or op.name != "graph.sum":
        return False
    tensor, dims = tensor_of(op.operands[0].type), op.params["dims"]
    if not tensor.dtype.is_float or not dims or dims != tuple(range(len(dims))):
        return False
    rows, columns = product(tensor.shape[: len(dims)]), product(tensor.shape[len(dims) :])
    many = not isinstance(rows, int) or rows >= _LEAST_ROWS
    return many and isinstance(columns, int) and columns >= _LEAST_COLUMNS


@dataclass(eq=False)
class Group:
    """A kernel in the making."""

    number: int
    kind: str
    shape: tuple[Size, ...]
    ops: list[GraphOp]
    dims: tuple[int, ...] = ()
    before: set[int] = field(default_factory=set[int])
    made: set[SSAValue] = field(default_factory=set[SSAValue])
    read: set[SSAValue] = field(default_factory=set[SSAValue])
    """What its ops read that they do not make."""
    summed: tuple[int, ...] = ()
    """The leading dimensions along which the kernel sums up columns, beside what it does for each row."""
    finished: set[SSAValue] = field(default_factory=set[SSAValue])
    """What is made of these sums: it is known when all rows are done, and nothing of a row may need it."""

    @property
    def of_columns(self) -> Group:
        """What is made of the sums of columns, as a kernel that reduces to them."""
        return Group(self.number, "rows", self.shape, self.ops, self.summed, made=self.finished)

    def sums_columns(self, dims: tuple[int, ...], others: Group | None = None) -> bool:
        """Whether sums along leading dimensions, one more or those of `others`, can be made with what the kernel does
        for each row."""
        alone = self.kind == "pointwise"
        rows = self.kind == "rows" and self.dims == self.rows_beside(dims, self._carried(1, others))
        return self.summed in ((), dims) and (alone or rows)

    def rows_beside(self, summed: tuple[int, ...], carried: int | None = None) -> tuple[int, ...]:
        """The dimensions along which rows may be reduced in a kernel that sums up columns; none if rows are long."""
        columns = product(self.shape[len(summed) :])
        each = self._carried(0) if carried is None else carried
        held = isinstance(columns, int) and (columns <= _MOST_HELD or columns * each <= _MOST_CARRIED)
        return tuple(range(len(summed), len(self.shape))) if held else ()

    def _carried(self, more: int, others: Group | None = None) -> int:
        """Of each column: what is read of it, and its sums with `more`, or with those of `others`."""
        ops, read = self.ops, self.read
        if others is not None:
            ops, read, more = [*ops, *others.ops], read | others.read, 0
        full = [value for value in read if product(tensor_of(value.type).shape) == product(self.shape)]
        return len(full) + more + sum(map(is_column_sum, ops))

    @property
    def row_shapes(self) -> tuple[tuple[Size, ...], ...]:
        keep = tuple(1 if d in self.dims else size for d, size in enumerate(self.shape))
        drop = tuple(size for d, size in enumerate(self.shape) if d not in self.dims)
        return keep, drop

    def takes(self, shape: tuple[Size, ...]) -> bool:
        """Whether an output of this shape fits the group's domain."""
        return shape == self.shape or (self.kind == "rows" and shape in self.row_shapes)

    def keeps_rows(self, op: Operation) -> bool:
        """Whether a view of a row value only adds or drops dimensions that are reduced or of size 1."""
        if self.kind != "rows":
            return False
        operand, result = tensor_of(op.operands[0].type).shape, tensor_of(op.results[0].type).shape
        keep, _ = rows = self.row_shapes
        if op.name == "graph.reshape":
            return operand in rows and (result in rows or (1,) * (len(keep) - len(result)) + result == keep)
        if op.name == "graph.broadcast":
            return operand == keep and result == self.shape
        return False
