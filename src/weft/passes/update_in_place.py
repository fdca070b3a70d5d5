"""Let kernels write new values over old ones that nobody reads any more: optimizer steps, caches, temporaries.

It runs on grouped functions, after layouts are chosen; planning and lowering read what it decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp, Movement, Scan, Scatter
from weft.ops.graph import FuncOp, GroupOp, YieldOp
from weft.ops.indexing.scatter import UpdateSlice
from weft.ops.layouts import StridedLayout, contiguous, lies_apart, same_places, slice_layout, view_layout
from weft.ops.matmul.dot import Dot
from weft.passes.check_first import check_first, verdict_of
from weft.passes.grouping.build_groups import CLAIM, IN_PLACE, is_free, result_targets, strides_of
from weft.passes.tensor_slices import TensorSlice, part_written, reads_of, updated_slice, views_from


@dataclass(frozen=True)
class UpdateInPlace(ModulePass):
    """A group writes a result into the memory of an operand.

    graph.func @step(%p, %g)  {replaced = [[0, 0]]} {          %1 = graph.group(%p, %g) {in_place = [[0, 0]]} {
      %1 = graph.group(%p, %g) { yield p - 0.1 * g }     →         yield p - 0.1 * g }
      graph.return %1

    The operand is an argument that the result replaces, or a temporary, and nothing reads it afterwards; the kernel
    reads each of its elements only to compute the one that takes its place, or is a scatter into it. A scatter may also
    write into a slice of the argument, where an update of that slice would only copy its result. A matmul that adds to
    a temporary does so there, even where the sum is a result of the function: the temporary is made in its memory.
    Arguments that the caller has `donated` are as temporaries, and results of the function may be made in them, too.
    """

    name: ClassVar[str] = "update_in_place"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                if _replaced(function):
                    check_first(function)
                _Updates(function).mark()


def in_place_of(group: GroupOp) -> Mapping[int, int]:
    """Which results a group writes into the memory of which operands."""
    attribute = group.attributes.get(IN_PLACE)
    return {} if attribute is None else dict(cast("Any", from_attribute(attribute)))


def _replaced(function: FuncOp) -> list[tuple[int, int]]:
    """The arguments and the results that replace them and are nothing else."""
    attribute = function.attributes.get("replaced")
    return [] if attribute is None else list(cast("Any", from_attribute(attribute)))


def donated_of(function: FuncOp) -> list[int]:
    """The arguments whose memory the caller gives away."""
    attribute = function.attributes.get("donated")
    return [] if attribute is None else list(cast("Any", from_attribute(attribute)))


class _Updates:
    def __init__(self, function: FuncOp) -> None:
        self.function = function
        self.donated: set[SSAValue] = {function.block.args[place] for place in donated_of(function)}
        self.order = {op: place for place, op in enumerate(function.block.ops)}
        self.targets = result_targets(function)
        given = strides_of(function, "arg_strides", len(function.block.args))
        self.strides: dict[SSAValue, Any] = dict(zip(function.block.args, given, strict=True))
        self.chosen: dict[GroupOp, dict[int, int]] = {}
        self.taken: set[SSAValue] = set()
        verdict = verdict_of(function)
        self.decided = -1 if verdict is None else self.order.get(cast("Operation", verdict.owner), len(self.order))
        """The place of the op after which it is known whether the data is right: arguments stay as they are so long."""

    def mark(self) -> None:
        returned = list(self.function.returned.operands)
        for argument, result in _replaced(self.function):
            if returned.count(returned[result]) == 1:
                self._follow(returned[result], self.function.block.args[argument])
        for group in self.order:
            if isinstance(group, GroupOp):
                for result in group.results:
                    self._reuse(group, result)
        for group, pairs in self.chosen.items():
            group.attributes[IN_PLACE] = to_attribute(tuple(sorted(pairs.items())))

    def _follow(self, value: SSAValue, argument: SSAValue) -> None:
        """Find the groups that, one after the other, turn an argument into the value that replaces it."""
        chain: list[tuple[GroupOp, int, int]] = []
        while value is not argument:
            if not isinstance(value, OpResult) or not isinstance(group := value.op, GroupOp):
                return
            operand = self._best(group, value, argument) if self.order[group] > self.decided else None
            if operand is None:
                return
            chain.append((group, value.index, operand))
            value = group.operands[operand]
        older: list[SSAValue] = []
        for group, _, operand in reversed(chain):
            if not all(self._is_unread(each, group, _part_changed(group)) for each in older):
                return
            older.append(group.operands[operand])
        for group, result, operand in chain:
            self._choose(group, result, operand)
        for group, _, operand in chain:
            if (update := updated_slice(group)) is not None:
                part = part_written(update)
                others = [updated_slice(other) for other, *_ in chain if other is not group]
                if all(other is not None and part.is_apart_from(part_written(other)) for other in others):
                    self._scatter_there(group, update, operand)

    def _scatter_there(self, group: GroupOp, update: UpdateSlice, operand: int) -> None:
        """Let a scatter into a copy of a slice, which the slice is then replaced by, write into the slice."""
        old, (given, views) = group.operands[operand], views_from(update.operands[1])
        made = group.operands[given.index] if isinstance(given, BlockArgument) else given
        maker = made.owner
        if not isinstance(maker, GroupOp) or len(maker.results) != 1 or maker in self.chosen or made in self.targets:
            return
        if self.order[maker] <= self.decided:
            return
        number = scattered_over(maker)
        if number is None or maker.operands[number] is not old or not maker.block.args[number].has_one_use():
            return
        layout = self._layout(old)
        there = layout_through(views, layout_over(maker, number, layout))
        part = part_written(update)
        if there is None or not same_places(part.shape, there, slice_layout(layout, part.starts, part.steps)):
            return
        if not self._is_unread(old, maker, part, (maker, group)):
            return
        if not all(self._is_unread(each, maker, part) for each in self._written_over(old)):
            return
        self.chosen[maker] = {0: number}
        self.taken.add(made)  # its memory is the argument's, to stay

    def _best(self, group: GroupOp, value: OpResult, argument: SSAValue) -> int | None:
        candidates = [n for n, operand in enumerate(group.operands) if self._fits(group, value, n, operand, argument)]
        own = [n for n in candidates if group.operands[n] is argument]
        return next(iter(own or candidates), None)

    def _reuse(self, group: GroupOp, result: OpResult) -> None:
        if result.index in self.chosen.get(group, {}):
            return
        for number, operand in enumerate(group.operands):
            if self._may_hold(group, operand, result) and self._fits(group, result, number, operand, None):
                self._choose(group, result.index, number)
                return

    def _may_hold(self, group: GroupOp, operand: SSAValue, result: OpResult) -> bool:
        """Whether a result, which may be the function's, could lie in the memory of an operand."""
        if result not in self.targets:
            return True
        is_donated = any(value in self.donated for value in (operand, *self._written_over(operand)))
        if self._accumulates(group, result):
            return not is_donated  # its temporaries are made in the memory of the result
        return is_donated and self._is_plain(result)

    def _accumulates(self, group: GroupOp, result: OpResult) -> bool:
        """Whether a result of the function is a sum to which a matmul adds: the temporary is made in its memory."""
        return self._is_plain(result) and len(group.results) == 1 and any(isinstance(op, Dot) for op in group.block.ops)

    def _is_plain(self, result: OpResult) -> bool:
        """Whether a result of the function is what a group makes, row by row."""
        target = self.targets[result]
        return target.result is result and target.layout == contiguous(tensor_of(result.type))

    def _choose(self, group: GroupOp, result: int, operand: int) -> None:
        self.chosen.setdefault(group, {})[result] = operand
        self.taken.add(group.operands[operand])

    def _fits(
        self, group: GroupOp, result: OpResult, number: int, operand: SSAValue, argument: SSAValue | None
    ) -> bool:
        """Whether a group may write a result into the memory of an operand: the argument, or a temporary."""
        if operand.type != result.type or operand in self.taken or list(group.operands).count(operand) > 1:
            return False
        is_temporary = is_made_here(operand) and operand not in self.targets
        is_spare = is_temporary or (operand in self.donated and self.order[group] > self.decided)
        if operand is not argument and not is_spare:
            return False
        layout = self._layout(operand)
        if layout != self._layout(result) or not lies_apart(tensor_of(operand.type), layout):
            return False
        return _overwrites(group, number) and self._is_last_reader(group, operand)

    def _layout(self, value: SSAValue) -> StridedLayout:
        if value in self.targets:
            return self.targets[value].layout
        strides = self.strides.get(value)
        if isinstance(value, OpResult) and isinstance(value.op, GroupOp):
            strides = strides_of(value.op, "result_strides", len(value.op.results))[value.index]
        return StridedLayout(strides) if strides else contiguous(tensor_of(value.type))

    def _is_last_reader(self, group: GroupOp, value: SSAValue) -> bool:
        """Whether nobody else reads a value's memory, or what the group changes of it, when the group has begun."""
        changed = _part_changed(group)
        older = self._written_over(value)
        return self._is_unread(value, group, changed, (group,)) and all(
            self._is_unread(each, group, changed) for each in older
        )

    def _written_over(self, value: SSAValue) -> list[SSAValue]:
        """The older values in whose memory a value is made, parts of which may still be read there."""
        older: list[SSAValue] = []
        while isinstance(value, OpResult) and isinstance(group := value.op, GroupOp):
            operand = self.chosen.get(group, {}).get(value.index)
            if operand is None:
                break
            value = group.operands[operand]
            older.append(value)
        return older

    def _is_unread(
        self, value: SSAValue, since: GroupOp, part: TensorSlice | None, but_by: tuple[GroupOp, ...] = ()
    ) -> bool:
        """Whether nobody reads a part of a value, or any of it, from when a group begins."""
        return not any(
            reader not in but_by
            and self.order.get(reader, len(self.order)) >= self.order[since]
            and not (part and read and part.is_apart_from(read))
            for reader, read in reads_of(value)
        )


def is_made_here(value: SSAValue) -> bool:
    """Whether a kernel or a library's matmul makes a value, in memory of the program's own."""
    return isinstance(value.owner, GroupOp) or (isinstance(value.owner, Dot) and CLAIM in value.owner.attributes)


def _part_changed(group: GroupOp) -> TensorSlice | None:
    """The part that a group changes of what it writes over; None for all of it."""
    update = updated_slice(group)
    return None if update is None else part_written(update)


def scattered_over(group: GroupOp) -> int | None:
    """The operand that a group scatters into, or into a view of it."""
    scatter = group.yielded[0].owner
    if not isinstance(scatter, Scatter):
        return None
    source, _ = views_from(scatter.operands[0])
    return source.index if isinstance(source, BlockArgument) else None


def layout_over(group: GroupOp, operand: int, layout: StridedLayout) -> StridedLayout | None:
    """How a result lies that is made in the memory of an operand which has the given layout."""
    if scattered_over(group) != operand:
        return layout
    _, views = views_from(cast("Scatter", group.yielded[0].owner).operands[0])
    return layout_through(views, layout)


def layout_through(views: Iterable[GraphOp], layout: StridedLayout | None) -> StridedLayout | None:
    """The layout of the last of views of each other; None where it takes a copy."""
    for view in views:
        layout = None if layout is None else view_layout(view, layout)
    return layout


def _overwrites(group: GroupOp, number: int) -> bool:
    """Whether the kernel of a group is done with an element of an operand when it writes the result's.

    A scan alone in its group reads each element once, before it writes there. A matmul's is if the operand is read
    behind the matmul alone: by the program that has summed up the element.
    """
    old = group.block.args[number]
    shape = tensor_of(old.type).shape
    computing = [op for op in group.block.ops if not isinstance(op, YieldOp)]
    if len(computing) == 1 and isinstance(computing[0], Scan):
        return computing[0].operands[0] is old and old.has_one_use()
    if any(isinstance(op, Scatter) for op in computing):
        scatter = group.yielded[0].owner
        return isinstance(scatter, Scatter) and scatter.operands[0] is old and old.has_one_use()
    if not all(isinstance(op, Elementwise | Movement | Dot) or is_free(op) for op in computing):
        return False
    if any(tensor_of(value.type).shape != shape for value in group.yielded):
        return False
    touched: set[SSAValue] = {old}
    for op in computing:
        if not any(operand in touched for operand in op.operands):
            continue
        if not _keeps_places(op, touched) or any(tensor_of(result.type).shape != shape for result in op.results):
            return False
        touched.update(op.results)
    return True


def _keeps_places(op: Operation, touched: Set[SSAValue]) -> bool:
    """Whether an op reads these values at the places of its own elements."""
    return isinstance(op, Elementwise) or (isinstance(op, UpdateSlice) and op.operands[1] not in touched)
