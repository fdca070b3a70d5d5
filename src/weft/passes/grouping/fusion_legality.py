"""Fusion legality: whether an op can be computed in the kernel that a group of ops becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from xdsl.ir import Operation, OpResult, SSAValue

from weft.ir.expr import Size, product
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp, Movement, Scatter, View
from weft.ops.reduce import DimensionReduction
from weft.passes.grouping.build_groups import CLAIM, is_free
from weft.passes.grouping.kernel_groups import Group, is_column_sum

MOST_OPS = 48
"""How many ops a kernel computes: compilers take long over larger ones."""
LONGEST_FORMULA = 1024
"""How many ops of one elementwise formula a kernel computes: a series of many terms takes no more registers than one of
few, and parts of it in kernels of their own write out all that the next one needs."""
MOST_READ = 4
"""How many tensors such a formula may read: each is held in registers until its last use."""


@dataclass(frozen=True)
class FusionLegality:
    """What may join what in one function; `GroupIntoKernels` asks, and keeps the groups."""

    sources: Callable[[Iterable[SSAValue]], Iterable[SSAValue]]
    """What values are computed from, seen through views and cheap constants."""
    consumers: Mapping[SSAValue, Sequence[Operation]]
    apart: AbstractSet[Operation]
    """What is better computed behind the matmul whose epilogue it could be, or the kernel of rows it spreads."""
    updates: bool
    column_sums: bool

    def fits(self, op: GraphOp, group: Group) -> bool:
        """Whether the op can be computed in the group's kernel."""
        if CLAIM in op.attributes or (group.kind in ("dot", "rows") and op in self.apart):
            return False
        if len(group.ops) >= MOST_OPS and not self.is_formula(group, [op], set(self.sources(op.operands))):
            return False
        if group.finished and any(value in group.finished for value in self.sources(op.operands)):
            return self._follows_sums(op, group)
        if isinstance(op, Elementwise | Movement):
            shape = tensor_of(op.results[0].type).shape
            if group.kind == "window" and self._widens_for_sums(op, group):
                return False
            if group.kind in ("pointwise", "rows", "dot", "window"):
                if group.takes(shape) and self.reads_in_place(op, group):
                    return True
                return group.kind == "pointwise" and self.moves_domain(op, group, shape)
            return False
        if isinstance(op, DimensionReduction) and group.kind in ("pointwise", "rows"):
            shape = tensor_of(op.operands[0].type).shape
            dims = op.params["dims"]
            if not dims:
                return False
            if self.sums_columns(op):
                if group.sums_columns(dims) and shape == group.shape and self.reads_in_place(op, group):
                    return True
                return group.kind == "pointwise" and self.moves_domain(op, group, shape)
            if group.summed and dims != group.rows_beside(group.summed):
                return False
            if group.kind == "rows":
                return shape == group.shape and dims == group.dims and self.reads_in_place(op, group)
            if shape == group.shape and self.reads_in_place(op, group):
                return True
            return self.moves_domain(op, group, shape)
        return isinstance(op, Scatter) and self.updates and self._makes_updates(op, group)

    def _widens_for_sums(self, op: GraphOp, group: Group) -> bool:
        """Whether an op makes wider what windows give, for sums: these read the narrow one, and widen it themselves."""
        made = [tensor_of(value.type).dtype.bytes for value in self.sources(op.operands) if value in group.made]
        if not made or tensor_of(op.results[0].type).dtype.bytes <= max(made):
            return False
        waiting, seen = list(op.results), set[SSAValue]()
        while waiting:
            value = waiting.pop()
            for user in () if value in seen else self.consumers.get(value, ()):
                if isinstance(user, DimensionReduction):
                    return True
                waiting += user.results if isinstance(user, Elementwise) else ()
            seen.add(value)
        return False

    def is_formula(self, group: Group, joining: Sequence[GraphOp], reading: AbstractSet[SSAValue]) -> bool:
        """Whether a group and what joins it are one formula of few tensors: its length is no reason to cut it."""
        ops = [*group.ops, *joining]
        if len(ops) > LONGEST_FORMULA or not all(isinstance(op, Elementwise) for op in ops):
            return False
        read = (group.read | reading) - group.made
        return len(read.difference(*(op.results for op in joining))) <= MOST_READ

    def sums_columns(self, op: GraphOp) -> bool:
        """Whether an op sums up columns of many rows, and nothing of a row needs the sums."""
        if not self.column_sums or not is_column_sum(op):
            return False
        columns = tensor_of(op.results[0].type).shape
        waiting = list(op.results)
        while waiting:
            for user in self.consumers.get(waiting.pop(), []):
                if not isinstance(user, Elementwise | Movement):
                    continue
                if product(tensor_of(user.results[0].type).shape) != product(columns):
                    return False
                waiting += user.results
        return True

    def _follows_sums(self, op: GraphOp, group: Group) -> bool:
        """Whether an op can be computed with the last kernel's sums of columns, and needs nothing else of the group."""
        if not isinstance(op, Elementwise):
            return False
        own = [value for value in self.sources(op.operands) if value in group.made]
        columns = group.of_columns
        takes = tensor_of(op.results[0].type).shape in columns.row_shapes
        return takes and all(value in group.finished for value in own) and self.reads_in_place(op, columns)

    def _makes_updates(self, op: Scatter, group: Group) -> bool:
        """Whether a group makes what is put into a tensor, and nothing else: not the tensor, nor the places."""
        if op.name != "graph.index_put" or op.params["accumulate"] or group.kind != "pointwise":
            return False
        *others, updates = op.operands
        elsewhere = any(value in group.made for value in self.sources(others))
        return not elsewhere and self.moves_domain(op, group, tensor_of(updates.type).shape)

    def reads_in_place(self, op: GraphOp, group: Group) -> bool:
        """Whether the op reads the group's values at its own index: not through views or by computed indices."""
        made = group.made
        if isinstance(op, Movement):
            # Of a row one element can be picked: it is computed again, from the row's own reductions.
            picks = op.name == "graph.gather" and group.kind == "rows" and group.dims == (op.params["dim"],)
            whole = picks and op.operands[0] in made and tensor_of(op.operands[0].type).shape == group.shape
            return not any(v in made for v in self.sources(op.operands[1:] if whole else op.operands))
        leading = group.dims == tuple(range(len(group.dims)))
        shape = tensor_of(op.results[0].type).shape
        for value in op.operands:
            if value in made:
                rows = group.kind == "rows" and tensor_of(value.type).shape == group.row_shapes[1] != group.shape
                if rows and not leading and shape == group.shape:
                    # Broadcasting would align the rows with the columns.
                    return False
                continue
            view = value.op if isinstance(value, OpResult) and is_free(value.op) else None
            if view and any(v in made for v in self.sources([value])) and not group.keeps_rows(view):
                return False
        return True

    def moves_domain(self, op: GraphOp, group: Group, shape: tuple[Size, ...]) -> bool:
        """Whether the op can draw the whole group into its own index space: nobody else needs the group's values.

        A concatenation or padding reads each of its operands' elements once, so that nothing is computed twice.
        """
        once = op.name in ("graph.concat", "graph.pad")
        if isinstance(op, Movement) and not isinstance(op, View) and not once:
            return False
        if group.summed:
            return False
        members = set(group.ops)
        for value in group.made:
            users = self.consumers.get(value, [])
            if any(user is not op and user not in members for user in users):
                return False
        return once or product(shape) == product(group.shape)
