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
_MOST_SUMMED, _MOST_BROUGHT, _BROUGHT_UNIT = 24576, 220160, 16
"""Where TMA brings rows, and threads read them again behind reductions: the sums of a program, the bytes of two rows
and of what all have in common, and what TMA moves multiples of."""


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


def sums_between(op: Operation) -> bool:
    """Whether an op sums up neither leading dimensions nor the last: the tokens of each image, say."""
    if not isinstance(op, DimensionReduction) or op.name != "graph.sum":
        return False
    rank, dims = len(tensor_of(op.operands[0].type).shape), op.params["dims"]
    return bool(dims) and 0 not in dims and rank - 1 not in dims


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
        rows = self.kind == "rows" and self.dims == self.rows_beside(dims, 1, others)
        return self.summed in ((), dims) and (alone or rows)

    def rows_beside(self, summed: tuple[int, ...], more: int = 0, others: Group | None = None) -> tuple[int, ...]:
        """The dimensions along which rows may be reduced in a kernel that sums up columns, with `more` sums or those of
        `others`; none if rows are long."""
        columns = product(self.shape[len(summed) :])
        held = isinstance(columns, int) and (columns <= _MOST_HELD or self._holds(columns, more, others))
        return tuple(range(len(summed), len(self.shape))) if held else ()

    def _holds(self, columns: int, more: int, others: Group | None) -> bool:
        """Whether a program has room for the sums of so many columns, and for what is read of them or, if TMA brings
        that, of two rows of it in shared memory."""
        ops, read = self.ops, self.read
        if others is not None:
            ops, read, more = [*ops, *others.ops], read | others.read, 0
        tensors = [tensor_of(value.type) for value in read]
        full = [tensor.dtype.bytes for tensor in tensors if product(tensor.shape) == product(self.shape)]
        once = [tensor.dtype.bytes for tensor in tensors if product(tensor.shape) == columns]
        sums = more + sum(map(is_column_sum, ops))
        if columns * (len(full) + sums) <= _MOST_CARRIED:
            return True
        brought = all(columns * size % _BROUGHT_UNIT == 0 for size in full)
        return brought and columns * sums <= _MOST_SUMMED and columns * (2 * sum(full) + sum(once)) <= _MOST_BROUGHT

    @property
    def row_shapes(self) -> tuple[tuple[Size, ...], ...]:
        keep = tuple(1 if d in self.dims else size for d, size in enumerate(self.shape))
        drop = tuple(size for d, size in enumerate(self.shape) if d not in self.dims)
        return keep, drop

    @property
    def walks_between(self) -> bool:
        """Whether the kernel reduces neither leading dimensions nor the last: it is as quick as it reads little."""
        return self.kind == "rows" and bool(self.dims) and 0 not in self.dims and len(self.shape) - 1 not in self.dims

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
