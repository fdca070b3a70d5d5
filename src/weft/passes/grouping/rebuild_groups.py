"""A function whose ops have been placed in groups → the same with one `graph.group` for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, OpResult, Region, SSAValue

from weft.ir.attributes import to_attribute
from weft.ir.types import tensor_of
from weft.ops.base import GraphOp, View, viewed
from weft.ops.control import ControlOp
from weft.ops.graph import FuncOp, GroupOp, ReturnOp, YieldOp
from weft.ops.layouts import StridedLayout, blas_takes, contiguous, goes_forward, source_layout
from weft.passes.grouping.build_groups import (
    CLAIM,
    EPILOGUE,
    Target,
    ValueLayouts,
    emit_group,
    fitting_calls,
    strides_of,
)
from weft.passes.grouping.copy_early import copy_early
from weft.passes.grouping.kernel_groups import Group


@dataclass(frozen=True)
class RebuildGroups:
    """What was decided of a function's ops, and how it becomes the function."""

    function: FuncOp
    groups: Sequence[Group]
    group_of: Mapping[Operation, Group]
    consumers: Mapping[SSAValue, list[Operation]]
    order: Mapping[Operation, int]
    """The places of all ops of the function."""
    notes: Mapping[Operation, str]
    """What is said of the epilogue behind a matmul."""
    targets: Mapping[SSAValue, Target]
    layouts: ValueLayouts
    sources: Callable[[Iterable[SSAValue]], Iterable[SSAValue]]
    """What is read of values that belong to no group."""

    def run(self) -> None:
        """Replace every group's ops by one `graph.group`, in an order in which each runs after what it needs."""
        block = self.function.block
        returned = self.function.returned
        needed = self._needed_outside(returned)
        values: dict[SSAValue, SSAValue] = {arg: arg for arg in block.args}
        shown = self._shown_by_products(returned)
        for group in self._sorted():
            if group.kind == "alone":
                (member,) = group.ops
                self._emit_operands(member, values, returned)
                member.detach()
                block.insert_op_before(member, returned)
                for position, operand in enumerate(list(member.operands)):
                    member.operands[position] = values[operand]
                values.update({result: result for result in member.results})
                continue
            if group.kind == "accumulate":
                self._emit_accumulation(group, values, returned)
                continue
            made = [
                shown.get(r, r)
                for member in sorted(group.ops, key=self.order.__getitem__)
                for r in member.results
                if r in needed
            ]
            if made:
                emitted = emit_group(block, group.ops, made, values, returned)
                said = next((self.notes[op] for op in group.ops if op in self.notes), None)
                if said is not None:
                    emitted.attributes[EPILOGUE] = StringAttr(said)
        written = {target.result for target in self.targets.values()}
        called = fitting_calls(self.function)
        given: set[SSAValue] = set()
        copies: list[GroupOp] = []
        for position, operand in enumerate(list(returned.operands)):
            if operand in given or not (operand in written or position in called or operand in shown.values()):
                copies.append(emit_group(block, [], [operand], values, returned))
            elif operand in written:
                self._emit_chain(operand, values, returned)
            given.add(operand)
            returned.operands[position] = values[operand]
        for op in reversed(list(self.order)):
            if op.parent is block and op is not returned and self.group_of.get(op, _NO_GROUP).kind != "alone":
                op.detach()
                op.erase(safe_erase=False)
        copy_early(block, copies)

    def _shown_by_products(self, returned: ReturnOp) -> dict[SSAValue, SSAValue]:
        """Results that are views of a matmul nobody else reads, for which it is written as they lie."""
        written = {target.result for target in self.targets.values()}
        shown: dict[SSAValue, SSAValue] = {}
        for operand in returned.operands:
            root = operand
            while isinstance(root, OpResult) and root.op.name in ("graph.permute", "graph.reshape"):
                root = root.op.operands[0] if root.has_one_use() else operand
                if root is operand:
                    break
            product = self.group_of.get(root.op) if isinstance(root, OpResult) else None
            if operand in written or root is operand or product is None or product.kind != "dot":
                continue
            if root not in self.targets and root.has_one_use():
                shown[root] = operand
        return shown

    def _needed_outside(self, returned: ReturnOp) -> set[SSAValue]:
        needed = set(self.sources(returned.operands))
        for op, group in self.group_of.items():
            for value in self.sources(op.operands):
                if not isinstance(value, OpResult) or self.group_of[value.op] is not group:
                    needed.add(value)
        return needed

    def _sorted(self) -> list[Group]:
        """The groups in the order of their last ops; what one still lacks comes just before it.

        What merely could run must not overtake it: values that are computed again where they are read would all be
        there at once.
        """
        known = {group.number: group for group in self.groups}
        done, ordered = set[int](), list[Group]()
        for group in sorted(self.groups, key=lambda g: self.order[g.ops[-1]]):
            if group.number in done:
                continue
            # What is before one of them is before the group, too: with fewer before it, it comes first.
            lacking = sorted(group.before - done, key=lambda n: (len(known[n].before), n))
            done.update(lacking, (group.number,))
            ordered += [*(known[n] for n in lacking), group]
        return ordered

    def _emit_accumulation(self, group: Group, values: dict[SSAValue, SSAValue], before: Operation) -> None:
        """Make a group of a library's matmul and the addition behind it, which reads what it adds to where it lies."""
        product, addition = sorted(group.ops, key=self.order.__getitem__)
        self._emit_operands(product, values, before)
        addend = next(value for value in addition.operands if value is not product.results[0])
        inputs = [addend, *product.operands]
        body = Block(arg_types=[value.type for value in inputs])
        kept, *factors = body.args
        for op in (product, addition):
            op.detach()
            body.add_op(op)
        for position, factor in enumerate(factors):
            product.operands[position] = factor
        addition.operands[list(addition.operands).index(addend)] = kept
        body.add_op(YieldOp.create(operands=addition.results))
        made = GroupOp.create(
            operands=[values[value] for value in inputs],
            result_types=[addition.results[0].type],
            attributes={"claim": product.attributes[CLAIM]},
            regions=[Region(body)],
            location=product.location,
        )
        self.function.block.insert_op_before(made, before)
        values[addition.results[0]] = made.results[0]

    def _emit_operands(self, op: Operation, values: dict[SSAValue, SSAValue], before: Operation) -> None:
        """Make what an op outside of groups reads: by views where strides can say it and it takes them, or a copy."""
        for value in op.operands:
            layout = self.layouts.of(value)
            if (layout is not None and _takes(op, value, layout)) or self._write_for(value, op, values):
                self._emit_chain(value, values, before)
            else:
                emit_group(self.function.block, [], [value], values, before)
                self.layouts.known[value] = contiguous(tensor_of(value.type))

    def _write_for(self, value: SSAValue, op: Operation, values: dict[SSAValue, SSAValue]) -> bool:
        """Let the group that makes what a value is a view of write it as the op wants to read the value, if it can.

        It cannot where the op reads it in two ways, or where it has been read in another one before.
        """
        root, layout = value, contiguous(tensor_of(value.type))
        chain: list[SSAValue] = []
        while isinstance(root, OpResult) and isinstance(root.op, View):
            below = source_layout(root.op, layout)
            if below is None:
                return False
            chain.append(root)
            root, layout = root.op.operands[0], below
        made = values.get(root)
        if self.consumers.get(root) != [op] or root in self.targets or not isinstance(made, OpResult):
            return False
        if [viewed(operand) for operand in op.operands].count(root) > 1 or made.uses.get_length() > 0:
            return False
        if not isinstance(group := made.op, GroupOp) or group.claim is not None:
            return False  # a library writes rows
        strides = [None if other is not made else layout.strides for other in group.results]
        known = strides_of(group, "result_strides", len(strides))
        group.attributes["result_strides"] = to_attribute(tuple(a or b for a, b in zip(strides, known, strict=True)))
        for each in chain:
            self.layouts.known.pop(each, None)
        self.layouts.known[root] = layout
        return True

    def _emit_chain(self, value: SSAValue, values: dict[SSAValue, SSAValue], before: Operation) -> None:
        """Make a value by views of what there is."""
        if value in values or not isinstance(value, OpResult):
            return
        for operand in value.op.operands:
            self._emit_chain(operand, values, before)
        copy = value.op.clone(value_mapper=values)
        self.function.block.insert_op_before(copy, before)
        values.update(zip(value.op.results, copy.results, strict=True))


def _takes(op: Operation, value: SSAValue, layout: StridedLayout) -> bool:
    """Whether an op outside of groups reads a value that lies so."""
    if isinstance(op, ControlOp):
        return layout == contiguous(tensor_of(value.type))
    return blas_takes(tensor_of(value.type), layout) if isinstance(op, GraphOp) else goes_forward(layout)


_NO_GROUP = Group(0, "free", (), [])
