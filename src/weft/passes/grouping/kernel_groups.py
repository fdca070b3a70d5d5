"""Kernels in the making: which ops one will compute, and over which elements."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from weft.ir.expr import Size
from weft.ir.types import tensor_of
from weft.ops.base import GraphOp


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
