"""What lowering a group gives: kernels that run in order, and the scratch memory they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import OpResult, SSAValue

from weft.ir.expr import product
from weft.ir.types import Tensor, tensor_of
from weft.lower.emit.kernel import Kernel
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.ops.base import GraphOp, Reduction, Scan, Scatter, Structured
from weft.ops.graph import GroupOp
from weft.ops.indexing.scatter import UpdateSlice
from weft.ops.layouts import StridedLayout
from weft.ops.movement import Concat
from weft.ops.reduce import DimensionReduction
from weft.passes.grouping.kernel_groups import is_column_sum
from weft.passes.tensor_slices import updated_slice
from weft.passes.update_in_place import in_place_of


@dataclass(frozen=True)
class Argument:
    """A pointer argument of a kernel: the group's n-th `input` or `output`, or the n-th `scratch` tensor."""

    role: str
    number: int


@dataclass(frozen=True)
class KernelCall:
    """A kernel and what its pointer arguments are; its sizes follow them, as `kernel.symbols` names them."""

    kernel: Kernel
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Lowered:
    """The kernels of a group, in the order in which they run, and the scratch memory they need."""

    calls: tuple[KernelCall, ...]
    scratch: tuple[Tensor, ...] = ()


Lowering: TypeAlias = Callable[
    [GroupOp, str, Sequence[StridedLayout], Sequence[StridedLayout], Machine], Lowered | Refusal
]


def anchors_of(group: GroupOp) -> list[GraphOp]:
    """The structured ops, scatters and scans of a group, each of which would shape its kernel."""
    return [op for op in group.block.ops if isinstance(op, Structured | Scatter | Scan)]


def anchor_of(group: GroupOp) -> GraphOp | None:
    """The op that decides how a group is lowered: the first that would shape its kernel."""
    return next(iter(anchors_of(group)), None)


def clash_of_anchors(group: GroupOp) -> Refusal | None:
    """Why the ops that would shape a group's kernel do not go together: only matmuls of one kind do."""
    anchors = anchors_of(group)
    if len(anchors) < 2 or {op.name for op in anchors} in ({"graph.dot"}, {"graph.tiled_dot"}):
        return None
    return Refusal(f"a group holds {' and '.join(op.name for op in anchors)}: at most one can shape the kernel")


def concat_of(group: GroupOp) -> Concat | None:
    """The concatenation that is all that leaves a group."""
    if len(group.yielded) != 1:
        return None
    (value,) = group.yielded
    return value.op if isinstance(value, OpResult) and isinstance(value.op, Concat) else None


def sums_columns(group: GroupOp) -> bool:
    """Whether a group sums up columns of many rows beside what it does for each row, which needs none of the sums."""
    reductions = [op for op in group.block.ops if isinstance(op, Reduction)]
    sums = [op for op in reductions if isinstance(op, DimensionReduction) and is_column_sum(op)]
    if not sums:
        return False
    shape, dims = tensor_of(sums[0].operands[0].type).shape, sums[0].params["dims"]
    rest = tuple(range(len(dims), len(shape)))
    for op in reductions:
        if not isinstance(op, DimensionReduction) or tensor_of(op.operands[0].type).shape != shape:
            return False
        if op.params["dims"] != (dims if op in sums else rest):
            return False
    columns = product(shape[len(dims) :])
    return all(product(tensor_of(value.type).shape) == columns for value in made_of_sums(group))


def made_of_sums(group: GroupOp) -> set[SSAValue]:
    """The sums of columns of a group, and what is computed of them."""
    found: set[SSAValue] = set()
    for op in group.block.ops:
        if is_column_sum(op) or any(operand in found for operand in op.operands):
            found.update(op.results)
    return found


def slice_written_by(group: GroupOp) -> UpdateSlice | None:
    """The update of a slice that is all that leaves a group, if it is made in the memory of what it updates."""
    in_place, update = in_place_of(group), updated_slice(group)
    if update is None or not in_place:
        return None
    return update if update.operands[0] is group.block.args[in_place[0]] else None


def whole(kernel: Kernel, inputs: int, outputs: int, in_place: Collection[int] = ()) -> Lowered:
    """One kernel that takes all inputs and then all outputs that do not lie in the memory of an input."""
    arguments = [Argument("input", i) for i in range(inputs)]
    arguments += [Argument("output", i) for i in range(outputs) if i not in in_place]
    return Lowered((KernelCall(kernel, tuple(arguments)),))
