"""Sorts and top-k → copy the lines to scratch memory, sort them there, and copy out what is wanted.

    %v, %i = graph.topk %x k=5 dim=0          @in    keys[c, r] = x[r, c]                        : transposed by tiles
                                        →     @sort  tile.sort keys[c, :], positions[c, :] first 5   : grid [columns]
                                              @out   v[r, c], i[r, c] = keys[c, r], positions[c, r]

A sort along a last dimension that lies row by row in the output happens there, without copying out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from weft.ir.attributes import to_attribute
from weft.ir.expr import Size, product, substitute, symbol
from weft.ir.types import Tensor, i64, tensor_of
from weft.lower.emit.frame import KernelFrame
from weft.lower.emit.kernel import Kernel, group_symbols
from weft.lower.groups.kernels import lower_group, try_lower_group
from weft.lower.lowered import Argument, KernelCall, Lowered, anchor_of
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.regroup import new_group, regroup
from weft.lower.schedule.schedule import Schedule
from weft.ops.base import GraphOp
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.tile import dialect as tile


@dataclass
class _Sorting:
    """A group with a sort or a top-k, and where its pieces are."""

    group: GroupOp
    sort: GraphOp
    outputs: Sequence[StridedLayout]
    scratch: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def operand(self) -> Tensor:
        return tensor_of(self.sort.operands[0].type)

    @property
    def dim(self) -> int:
        return self.sort.params["dim"]

    @property
    def first(self) -> Size:
        return self.sort.params.get("k", self.operand.shape[self.dim])

    @property
    def descending(self) -> bool:
        params = self.sort.params
        return params["largest"] if "largest" in params else params["descending"]

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions of a line-by-line copy: the sorted one last."""
        return (*(d for d in range(self.operand.rank) if d != self.dim), self.dim)

    @property
    def lines(self) -> tuple[Size, ...]:
        """The shape of that copy."""
        return tuple(self.operand.shape[d] for d in self.order)

    def take(self, tensor: Tensor) -> Argument:
        self.scratch.append(tensor)
        return Argument("scratch", len(self.scratch) - 1)

    def place(self, result: int, tensor: Tensor) -> Argument:
        """Where a result is sorted: in the output itself, if that is laid out line by line, or in scratch memory."""
        for number, (value, layout) in enumerate(zip(self.group.yielded, self.outputs, strict=True)):
            whole = tensor_of(value.type) == tensor and layout == contiguous(tensor)
            if value is self.sort.results[result] and self.dim == self.operand.rank - 1 and whole:
                return Argument("output", number)
        return self.take(tensor)


def lower_sort(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group with a sort or a top-k, with what is computed from its operand before it."""
    sort = anchor_of(group)
    assert sort is not None
    if any(value not in sort.results for value in group.yielded):
        return Refusal(f"nothing can be computed after {sort.name} in its kernel")
    problem = _Sorting(group, sort, outputs)
    keys, positions = Tensor(problem.operand.dtype, problem.lines), Tensor(i64, problem.lines)
    held = [problem.place(0, keys), problem.place(1, positions)]
    arguments = (*held, problem.take(keys), problem.take(positions))

    copied = try_lower_group(_copy_in(problem), f"{name}_in", inputs, [contiguous(keys)], machine=machine)
    if isinstance(copied, Refusal):
        return copied
    reads = [Argument("input", number) for number in range(len(inputs))]
    calls = [KernelCall(copied, (*reads, held[0])), KernelCall(_sort_kernel(problem, f"{name}_sort"), arguments)]
    # A result that was not sorted in its output is copied there.
    moved = [
        (Argument("output", number), layout, *((held[0], keys) if value is sort.results[0] else (held[1], positions)))
        for number, (value, layout) in enumerate(zip(group.yielded, outputs, strict=True))
    ]
    moved = [row for row in moved if row[0] != row[2]]
    if moved:
        made = _copy_out(problem, [tensor for *_, tensor in moved])
        layouts = [contiguous(tensor) for *_, tensor in moved]
        kernel = lower_group(made, f"{name}_out", layouts, [layout for _, layout, *_ in moved], machine=machine)
        calls.append(KernelCall(kernel, (*(source for _, _, source, _ in moved), *(target for target, *_ in moved))))
    return Lowered(tuple(calls), tuple(problem.scratch))


def _copy_in(problem: _Sorting) -> GroupOp:
    """A group that gives the operand with the sorted dimension last."""

    def lines(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
        sort = anchor_of(made)
        assert sort is not None
        return [b.permute(sort.operands[0], dims=problem.order)]

    return regroup(problem.group, lines)


def _copy_out(problem: _Sorting, tensors: Sequence[Tensor]) -> GroupOp:
    """A group that gives the first elements of every line, with the dimensions back in place."""
    rank = problem.operand.rank
    shape = (*problem.lines[:-1], problem.first)
    back = tuple(problem.order.index(d) for d in range(rank))

    def shown(b: GraphBuilder, *values: SSAValue) -> list[SSAValue]:
        first = [b.slice(value, starts=(0,) * rank, shape=shape, steps=(1,) * rank) for value in values]
        return [b.permute(value, dims=back) for value in first]

    return new_group(tensors, shown)


def _sort_kernel(problem: _Sorting, name: str) -> Kernel:
    dtype = problem.operand.dtype
    frame = KernelFrame.of(name, [dtype, i64, dtype, i64], group_symbols(problem.group, problem.outputs))
    *rows, count = problem.lines
    line = frame.program(product(rows))
    names = sorted(frame.scalars)
    renamed: dict[str, Size] = {symbolic: symbol(f"d{i + 1}") for i, symbolic in enumerate(names)}
    sizes = [tile.Sizes((substitute(size, renamed),)) for size in (symbol("d0") * count, count, problem.first)]
    op = tile.SortOp.create(
        operands=[*frame.pointers, line, *(frame.scalars[symbolic] for symbolic in names)],
        attributes={
            **dict(zip(("offset", "count", "first"), sizes, strict=True)),
            "descending": to_attribute(problem.descending),
        },
    )
    frame.block.add_op(op)
    return frame.finish(Schedule("sort", "", 1))
