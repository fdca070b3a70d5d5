"""Kernel fusion: decide which ops become one kernel.

Elementwise ops and movements join the kernel that makes what they read, those behind a matmul too (epilogue fusion); a
reduction joins the kernel of its operand and later ops over the same rows or the same elements join it in turn, so that
a softmax or a layer norm is one kernel. Views and cheap constants belong to no kernel: whoever needs one computes it on
the fly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp, Movement, Reduction, Scan, Scatter, Structured
from weft.ops.elementwise.arithmetic import Add
from weft.ops.graph import FuncOp, ReturnOp
from weft.ops.reduce import DimensionReduction
from weft.passes.dot.split_dots import share_rows
from weft.passes.grouping.accumulate_products import AccumulateProducts, replaced_arguments
from weft.passes.grouping.build_groups import (
    CLAIM,
    ValueLayouts,
    is_free,
    result_targets,
)
from weft.passes.grouping.epilogue_costs import epilogue_cost
from weft.passes.grouping.fusion_legality import MOST_OPS, FusionLegality
from weft.passes.grouping.kernel_groups import Group
from weft.passes.grouping.rebuild_groups import RebuildGroups
from weft.passes.grouping.sink_epilogue import sink_epilogue
from weft.passes.grouping.sink_to_sums import SinkToSums, is_for, joined_sums
from weft.passes.grouping.spread_rows import SpreadRows


@dataclass(frozen=True)
class GroupIntoKernels(ModulePass):
    """Put every op into a `graph.group`, except what libraries and the framework take.

    %m = graph.max %x            %y = graph.group(%x) {
    %d = graph.sub %x, %m    →     %m = graph.max %x
    %y = graph.exp %d              %d = graph.sub %x, %m ; %y = graph.exp %d ; graph.yield %y }

    %h = graph.dot %x, %w        %y = graph.group(%x, %w, %b) {
    %a = graph.add %h, %b    →     %h = graph.dot %x, %w
    %y = graph.relu %a             %a = graph.add %h, %b ; %y = graph.relu %a ; graph.yield %y }
    """

    name: ClassVar[str] = "group_into_kernels"

    products: int = 1
    """How many matmuls of the same rows a kernel may compute: a GPU's tensor cores have registers for two."""
    updates: bool = False
    """Whether a kernel that puts updates into a tensor computes them, too: on a GPU each of them is read once."""
    column_sums: bool = False
    """Whether a kernel that works row by row sums up columns, too: gradients of weights and biases beside those of
    rows. Programs have many rows each then, and a second kernel adds up their sums."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            # What prepares another function runs once, op by op.
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                _Grouping(function, self.products, self.updates, self.column_sums).run()


class _Grouping:
    """The grouping of one function."""

    def __init__(self, function: FuncOp, products: int, updates: bool, column_sums: bool) -> None:
        self.function = function
        self.products, self.column_sums = products, column_sums
        self.groups: dict[int, Group] = {}
        self.seen_through: dict[SSAValue, tuple[SSAValue, ...]] = {}
        self.group_of: dict[Operation, Group] = {}
        self.consumers: dict[SSAValue, list[Operation]] = {}
        self.order = {op: position for position, op in enumerate(function.block.ops)}
        self.last_alone: Group | None = None
        self.apart: set[Operation] = set()
        self.notes: dict[Operation, str] = {}
        self.targets = result_targets(function)
        self.replaced = replaced_arguments(function)
        self.layouts = ValueLayouts(function, self.targets)
        self.legality = FusionLegality(self._sources, self.consumers, self.apart, updates, column_sums)

    @property
    def accumulation(self) -> AccumulateProducts:
        return AccumulateProducts(self.consumers, self.group_of, self.order, self.replaced, self.targets, self.layouts)

    def run(self) -> None:
        operations = list(self.order)
        for op in operations:
            if not is_free(op):
                for value in self._sources(op.operands):
                    self.consumers.setdefault(value, []).append(op)
        self._place_all(operations)
        if (self.products > 1 and self._close_epilogues()) | (self.column_sums and self._spread_rows()):
            self.groups, self.group_of, self.last_alone = {}, {}, None
            self._place_all(operations)
        if self.column_sums:
            self._join_column_sums()
            for one, other in joined_sums(list(self.groups.values())):
                self._merge(one, other)
        for group in self.groups.values():
            if group.kind == "dot":
                sink_epilogue(group, self.group_of, self.consumers, self.legality.reads_in_place)
            elif self.column_sums and group.kind in ("pointwise", "rows"):
                SinkToSums(self.group_of, self.consumers, self._sources, self.legality.reads_in_place).run(group)
        RebuildGroups(
            self.function,
            list(self.groups.values()),
            self.group_of,
            self.consumers,
            self.order,
            self.notes,
            self.targets,
            self.layouts,
            self._sources,
        ).run()

    def _place_all(self, operations: Sequence[Operation]) -> None:
        for op in operations:
            if not isinstance(op, ReturnOp) and not is_free(op):
                self._place(op)

    def _close_epilogues(self) -> bool:
        """Find out what of epilogues is better computed behind their matmuls; returns whether there is something."""
        for group in self.groups.values():
            cost = epilogue_cost(group, self.group_of, self.consumers) if group.kind == "dot" else None
            if cost is not None:
                ops = [op for op in group.ops if isinstance(op, Elementwise)]
                self.apart.update(ops[cost.kept :])
                self.notes.update((op, str(cost)) for op in group.ops if not isinstance(op, Elementwise))
        return bool(self.apart)

    def _spread_rows(self) -> bool:
        """Find out what is better computed for sums along other dimensions than written by kernels of rows."""
        sources = {op: tuple(self._sources(op.operands)) for op in self.group_of}
        search = SpreadRows(self.group_of, self.consumers, sources)
        found = [op for group in self.groups.values() for op in search.of(group)]
        self.apart.update(found)
        return bool(found)

    def _sources(self, values: Iterable[SSAValue]) -> Iterable[SSAValue]:
        """What values are computed from, seen through views and cheap constants."""
        found: dict[SSAValue, None] = {}
        for value in values:
            if isinstance(value, OpResult) and is_free(value.op):
                known = self.seen_through.get(value)
                if known is None:
                    known = self.seen_through[value] = tuple(self._sources(value.op.operands))
                found.update(dict.fromkeys(known))
            else:
                found[value] = None
        return found

    # -- joining ---------------------------------------------------------------------------------------------------

    def _place(self, op: Operation) -> None:
        producers: dict[Group, None] = {}
        for value in self._sources(op.operands):
            if isinstance(value, OpResult):
                producers[self.group_of[value.op]] = None
        if isinstance(op, Add) and (product := self.accumulation.product_of(op)) is not None:
            self._join(op, adding := self.group_of[product])
            adding.kind = "accumulate"
            self._depend(adding, producers)
            return
        for group in self._latest_product_first(op, producers):
            if isinstance(op, GraphOp) and self.legality.fits(op, group) and self._acyclic(group, producers):
                self._join(op, group)
                self._depend(group, producers)
                for other in producers:
                    if other is not group:
                        self._try_merge(group, other, op)
                return
        if isinstance(op, GraphOp) and (sibling := self._sibling(op, producers)) is not None:
            self._join(op, sibling)
            self._depend(sibling, producers)
            for other in producers:
                self._try_merge(sibling, other, op)
            return
        if not isinstance(op, GraphOp) and self.last_alone is not None:
            producers[self.last_alone] = None
        self._start(op, producers)
        if not isinstance(op, GraphOp):
            # Calls that Weft does not look into keep their order: they may draw random numbers.
            self.last_alone = self.group_of[op]

    def _latest_product_first(self, op: Operation, producers: Iterable[Group]) -> Iterable[Group]:
        """The kernels that make what an op reads; if it adds up matmuls, first that of the last of them.

        The first would have to wait for the others, and all their results be there at once.
        """
        if op.name != "graph.add" or not all(group.kind == "dot" for group in producers):
            return producers
        return sorted(producers, key=lambda group: -min(self.order[each] for each in group.ops))

    def _sibling(self, op: GraphOp, producers: Iterable[Group]) -> Group | None:
        """A kernel that reads the same result of a matmul or a call as the op does, and can compute it, too."""
        if not self.column_sums or not isinstance(op, Elementwise | DimensionReduction):
            return None
        for value in self._sources(op.operands):
            maker = self.group_of.get(value.op) if isinstance(value, OpResult) else None
            if maker is None or maker.kind not in ("dot", "alone"):
                continue
            for user in self.consumers.get(value, ()):
                group = self.group_of.get(user)
                if group is None or group.kind not in ("pointwise", "rows") or not self._acyclic(group, producers):
                    continue
                whole = op.operands[0] if isinstance(op, DimensionReduction) else op.results[0]
                shape = tensor_of(whole.type).shape
                alike = shape == group.shape == tensor_of(value.type).shape and is_for(op, group, self.consumers)
                if alike and self.legality.fits(op, group):
                    return group
        return None

    def _acyclic(self, group: Group, producers: Iterable[Group]) -> bool:
        return all(group.number not in other.before for other in producers if other is not group)

    def _join(self, op: GraphOp, group: Group) -> None:
        if group.finished and any(value in group.finished for value in self._sources(op.operands)):
            group.finished.update(op.results)
        elif self.legality.sums_columns(op):
            assert isinstance(op, DimensionReduction)
            group.shape = tensor_of(op.operands[0].type).shape
            group.summed = op.params["dims"]
            group.finished.update(op.results)
        elif isinstance(op, DimensionReduction):
            group.shape = tensor_of(op.operands[0].type).shape
            group.dims = op.params["dims"]
            group.kind = "rows"
        elif isinstance(op, Scatter):
            group.shape, group.kind = tensor_of(op.results[0].type).shape, "anchor"
        elif not group.takes(tensor_of(op.results[0].type).shape):
            group.shape = tensor_of(op.results[0].type).shape
        group.ops.append(op)
        group.read.update(value for value in self._sources(op.operands) if value not in group.made)
        group.made.update(op.results)
        self.group_of[op] = group

    def _try_merge(self, group: Group, other: Group, op: GraphOp) -> None:
        """Take in another producer of the op, if it walks the same elements and no cycle arises."""
        if not self._sums_alike(group, other, op) or (other.kind == "rows" and op in self.apart):
            return
        together = len(group.ops) + len(other.ops)
        if together > MOST_OPS and not self.legality.is_formula(group, other.ops, other.read):
            return
        piece = self._makes_piece(other, group, op)
        if other.shape != group.shape and not piece and not self._makes_rows(other, group):
            return
        kinds = {group.kind, other.kind}
        if kinds == {"dot"}:
            if not share_rows([*group.ops, *other.ops], self.products):
                return
        elif not kinds <= {"pointwise", "rows"} or (len(kinds) == 1 and other.dims != group.dims):
            return
        if group.number in other.before:
            return
        # What reads rows in another way than the op does needs all of them before: it stays in a kernel behind them.
        reading = [op, *group.ops] if other.kind == "rows" else [] if piece else [op]
        if not all(self.legality.reads_in_place(each, other) for each in reading):
            return
        if any(other.number in g.before and g.number in group.before for g in self.groups.values()):
            return
        self._merge(group, other)

    def _join_column_sums(self) -> None:
        """Let kernels that do nothing but sum up columns be part of one that walks the same rows of an operand."""
        for sums in [sums for group in self.groups.values() if (sums := self._only_sums(group)) is not None]:
            shared = {value for value in sums.read if tensor_of(value.type).shape == sums.shape}
            for group in self.groups.values():
                if group.number != sums.number and shared & group.read and self._walks_with(group, sums):
                    self._merge(group, sums)
                    break

    def _only_sums(self, group: Group) -> Group | None:
        """A kernel of which nobody needs more than sums of columns, and what is made of these."""
        if not group.summed:
            group = self._as_column_sums(group)
        users = [user for value in group.made - group.finished for user in self.consumers.get(value, ())]
        members = set(group.ops)
        alone = group.summed and group.kind == "pointwise" and all(user in members for user in users)
        return group if alone else None

    def _as_column_sums(self, group: Group) -> Group:
        """A kernel that reduces columns to sums, as one that could make them beside what it does for each row."""
        sums = [op for op in group.ops if isinstance(op, DimensionReduction)]
        if group.kind != "rows" or not all(self.legality.sums_columns(op) for op in sums):
            return group
        finished = set[SSAValue]()
        for op in group.ops:
            if op in sums or any(value in finished for value in self._sources(op.operands)):
                finished.update(op.results)
        return replace(group, kind="pointwise", dims=(), summed=group.dims, finished=finished)

    def _walks_with(self, group: Group, sums: Group) -> bool:
        """Whether a kernel can make another's sums of columns: the same rows, and neither waits for the other."""
        if (
            group.kind not in ("pointwise", "rows")
            or group.shape != sums.shape
            or not group.sums_columns(sums.summed, sums)
        ):
            return False
        waits = group.number in sums.before or sums.number in group.before
        return not waits and len(group.ops) + len(sums.ops) <= MOST_OPS

    def _merge(self, group: Group, other: Group) -> None:
        group.ops = self._in_order([*group.ops, *other.ops])
        if other.kind == "rows":
            group.kind, group.dims = other.kind, other.dims
        for member in other.ops:
            self.group_of[member] = group
        group.made |= other.made
        group.read = (group.read | other.read) - group.made
        group.summed, group.finished = group.summed or other.summed, group.finished | other.finished
        del self.groups[other.number]
        group.before |= other.before
        group.before.discard(other.number)
        for g in self.groups.values():
            if other.number in g.before:
                g.before.discard(other.number)
                g.before |= {group.number} | group.before
        group.before.discard(group.number)

    def _makes_rows(self, other: Group, group: Group) -> bool:
        """Whether a kernel makes a number for each row of another, which alone reads it."""
        if not self.column_sums or group.kind != "rows" or other.kind != "pointwise":
            return False
        users = [user for value in other.made for user in self.consumers.get(value, ())]
        members = {*group.ops, *other.ops}
        return other.shape in group.row_shapes and all(user in members for user in users)

    def _makes_piece(self, other: Group, group: Group, op: GraphOp) -> bool:
        """Whether a kernel makes a piece of a concatenation, which alone reads it: each piece has a domain of its own.

        Not if others are to join behind the concatenation: they compute every piece for each of its elements.
        """
        if op.name != "graph.concat" or not group.kind == other.kind == "pointwise":
            return False
        users = self.consumers.get(op.results[0], ())
        joining = any(isinstance(user, Elementwise | Movement | DimensionReduction) for user in users)
        return not joining and self.legality.moves_domain(op, other, ())

    def _sums_alike(self, group: Group, other: Group, op: GraphOp) -> bool:
        """Whether the sums of columns of two kernels can be made in one: nothing in it waits for the other's."""
        if not group.summed and not other.summed:
            return True
        summed = group.summed or other.summed
        if any(value in other.finished for each in (op, *group.ops) for value in self._sources(each.operands)):
            return False
        return group.sums_columns(summed, other) and other.sums_columns(summed, group)

    def _start(self, op: Operation, producers: Iterable[Group]) -> None:
        kind, shape, dims = "alone", (), ()
        if isinstance(op, GraphOp) and CLAIM not in op.attributes:
            shape = tensor_of(op.results[0].type).shape
            match op:
                case DimensionReduction():
                    kind, shape, dims = "rows", tensor_of(op.operands[0].type).shape, op.params["dims"]
                    kind = "rows" if dims else "pointwise"
                case Elementwise() | Movement():
                    kind = "pointwise"
                case Reduction():
                    kind = "window"
                case Structured() if op.name in ("graph.dot", "graph.scaled_dot", "graph.tiled_dot"):
                    kind = "dot"
                case Structured() | Scatter() | Scan():
                    kind = "anchor"
                case _:
                    kind = "alone"
        made, read = set(op.results), set(self._sources(op.operands))
        group = Group(len(self.group_of) + 1, kind, shape, [op], dims, made=made, read=read)  # type: ignore[list-item]
        self.groups[group.number] = group
        self.group_of[op] = group
        self._depend(group, producers)

    def _depend(self, group: Group, producers: Iterable[Group]) -> None:
        """Record that the group runs after its producers, for itself and for all that run after it."""
        new: set[int] = set()
        for producer in producers:
            if producer is not group and producer.number in self.groups:
                new |= {producer.number} | producer.before
        new.discard(group.number)
        if new <= group.before:
            return
        group.before |= new
        for other in self.groups.values():
            if group.number in other.before:
                other.before |= new

    def _in_order(self, ops: Sequence[GraphOp]) -> list[GraphOp]:
        return sorted(ops, key=lambda op: self.order[op])
