"""Split-K: matmuls of too few tiles to fill a GPU → programs that each sum up a part of K, and a kernel that adds them.

    %0 = graph.dot(%x, %w)        64 x 14336 times 14336 x 4096      @y_parts   sums over part p of K, in f32
    %1 = graph.add(%0, %c)                                      →    @y         what they add up to, and all that
    graph.yield %1                                                              follows the matmul

A part is a number of whole blocks of K; the last one has what is left of it, which may end anywhere. The parts are
added in the same order in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from weft.ir.expr import Size, minimum, symbol
from weft.ir.types import Tensor, f32, tensor_of, tensor_type
from weft.lower.dispatch import try_lower
from weft.lower.dot.dot_kernel import DotLowering
from weft.lower.emit.blocked import BlockedKernel
from weft.lower.emit.body import TileValue
from weft.lower.lowered import Argument, KernelCall, Lowered
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.regroup import regroup
from weft.lower.schedule.dot_model import Matmuls, Split
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.matmul.dot import Dot
from weft.passes.grouping.build_groups import IN_PLACE

_PART = "part"


def lower_split_k(
    group: GroupOp,
    name: str,
    inputs: Sequence[StridedLayout],
    outputs: Sequence[StridedLayout],
    split: Split,
    machine: Machine,
) -> Lowered | Refusal:
    """Lower a group around matmuls, of which K is cut into parts."""
    sums = regroup(group, lambda b, made: [b.dot(*dot.operands, dtype=f32) for dot in _dots(made)])
    sums.attributes.pop(IN_PLACE, None)  # what follows the sums alone reads what it writes over
    tensors = [tensor_of(value.type) for value in sums.yielded]
    scratch = [replace(tensor, shape=(split.count, *tensor.shape)) for tensor in tensors]
    layouts: dict[SSAValue, StridedLayout] = dict(zip(sums.block.args, inputs, strict=True))
    made = _PartLowering(sums, f"{name}_parts", layouts, [*map(contiguous, tensors)], _dots(sums), machine, split)
    if (refused := made.prepare()) is not None:
        return refused
    rest = regroup(group, lambda b, made: _added(b, made, scratch))
    lowered = try_lower(rest, name, [*inputs, *map(contiguous, scratch)], outputs, machine)
    if isinstance(lowered, Refusal):
        return lowered
    given = [Argument("input", number) for number in range(len(inputs))]
    places = [Argument("scratch", number) for number in range(len(scratch))]
    roles = {
        "input": [*given, *places],
        "output": [Argument("output", number) for number in range(len(outputs))],
        "scratch": [Argument("scratch", len(scratch) + number) for number in range(len(lowered.scratch))],
    }
    calls = [KernelCall(made.kernel(), (*given, *places))]
    for call in lowered.calls:
        calls.append(KernelCall(call.kernel, tuple(roles[each.role][each.number] for each in call.arguments)))
    return Lowered(tuple(calls), (*scratch, *lowered.scratch))


@dataclass
class _PartLowering(DotLowering):
    """The kernel of the sums, whose grid has an axis more than that of a whole matmul: the part."""

    cut: Split

    def _matmuls(self) -> Matmuls:
        whole = super()._matmuls()
        return replace(whole, k=self.cut.depth, batch=whole.batch * self.cut.count)

    def _take_part(self, kernel: BlockedKernel) -> None:
        self.emit.scalars[_PART] = kernel.frame.program(self.cut.count)
        assert self.k_run is not None
        lower: Size = symbol(_PART) * self.cut.depth
        one = self.cut.depth <= self.blocks.sides[2]  # block, which ends where K does by itself
        self.bounds = lower, lower + self.cut.depth if one else minimum(lower + self.cut.depth, self.k_run.size)

    def _store(self, kernel: BlockedKernel, products: Mapping[SSAValue, TileValue]) -> None:
        index = (symbol(_PART), *self.domain.row_index)
        for value, target in zip(products.values(), kernel.targets, strict=True):
            shape = (self.cut.count, *self.result.shape)
            self.emit.store(value, target, contiguous(Tensor(f32, shape)).address(index))


def _dots(group: GroupOp) -> list[Dot]:
    return [op for op in group.block.ops if isinstance(op, Dot)]


def _added(b: GraphBuilder, made: GroupOp, sums: Sequence[Tensor]) -> list[SSAValue]:
    """What a group yields, with the sums of its matmuls in place of them."""
    values = list(made.yielded)
    for dot, tensor in zip(_dots(made), sums, strict=True):
        parts = made.block.insert_arg(tensor_type(tensor), len(made.block.args))
        before, old = GraphBuilder(made.block, before=dot), dot.results[0]
        total = before.cast(before.sum(parts, dims=(0,), keep=False), dtype=tensor_of(old.type).dtype)
        values = [total if value is old else value for value in values]
        old.replace_all_uses_with(total)
    return values
