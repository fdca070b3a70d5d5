"""Attention of few rows → programs that each have a part of the keys, and a kernel that joins what they found.

    %y = graph.attention %q, %k, %v         @y_parts   part p of the keys that are seen: sums of values and of powers
      (8 x 4 x 128 rows, 8192 keys)    →    @y         their mean, weighted by the sums of powers

Where rows share keys, as heads of queries do that have the same keys, they are one tile. The parts are of what is seen:
if a number in memory says how many keys there are, they get shorter with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from weft.ir.expr import Size, ceildiv, maximum, minimum, product, symbol
from weft.ir.types import Tensor, f32, i32, tensor_of
from weft.lower.attention.flash_attention import FlashLowering
from weft.lower.dispatch import lower
from weft.lower.emit.blocked import BlockedKernel
from weft.lower.emit.kernel import Kernel
from weft.lower.index_space.domain import Run, Variable
from weft.lower.lowered import Argument, KernelCall, Lowered
from weft.lower.machine import Machine
from weft.lower.regroup import new_group
from weft.lower.schedule.schedule import choose_attention_blocks, given_blocks
from weft.ops.body import Value
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.matmul.attention import AnyAttention

_PART, _ROW = "part", "single_row"
_PROGRAM_COST, _JOINING_COST = 1.0, 1.2
"""What a program and joining parts cost beside blocks of keys, in such blocks."""
_ENOUGH_PROGRAMS = 4
"""For each multiprocessor: splitting them would not spread the work much better."""


def parts_of(op: AnyAttention, group: GroupOp, machine: Machine) -> int:
    """Into how many parts keys are best split, for all multiprocessors to have about as much to read."""
    *lead, rows, across = tensor_of(op.results[0].type).shape
    keys, width = tensor_of(op.operands[1].type).shape[-2:]
    chosen = choose_attention_blocks(rows, keys, width, across, machine, masked=bool(op.masks))
    blocks = given_blocks(group, "attention") or chosen
    tiles = ceildiv(rows, blocks.sides[0]) * ceildiv(across, blocks.sides[3])
    programs, turns = product(lead) * tiles, ceildiv(keys, blocks.sides[1])
    plain = len(op.results) == 1 and list(group.yielded) == list(op.results)
    if not plain or not isinstance(programs, int) or not isinstance(turns, int):
        return 1
    if programs >= machine.multiprocessors * _ENOUGH_PROGRAMS:
        return 1
    # Sequences with a mask each may be of any lengths: on average half of the keys are seen, but the longest end last.
    differ = any(size != 1 for mask in op.masks for size in tensor_of(mask.type).shape[:-2])

    def cost(parts: int) -> float:
        waves, longest = math.ceil(programs * parts / machine.multiprocessors), math.ceil(turns / parts) + _PROGRAM_COST
        joining = _JOINING_COST if parts > 1 else 0
        if not differ:
            return waves * longest + joining
        half = programs * (turns / 2 + parts * _PROGRAM_COST) / machine.multiprocessors
        return (waves * longest + max(longest, half)) / 2 + joining

    return min(range(1, turns + 1), key=cost)


@dataclass
class SplitKvLowering(FlashLowering):
    """The kernel of the parts."""

    parts: int = 1

    def lowered(self, inputs: Sequence[StridedLayout]) -> Lowered:
        assert isinstance(self.op, AnyAttention), "tangents have kernels of their own"
        kernel = self._emit(self.lead)
        scratch = self._found()
        given = [Argument("input", number) for number in range(len(inputs))]
        places = [Argument("scratch", number) for number in range(len(scratch))]
        joining = lower(_joining(self.op, scratch), self.name, [*map(contiguous, scratch)], self.outputs, self.machine)
        (call,) = joining.calls
        roles = {"input": places, "output": [Argument("output", n) for n in range(len(self.outputs))]}
        arguments = tuple(roles[argument.role][argument.number] for argument in call.arguments)
        return Lowered((KernelCall(kernel, (*given, *places)), KernelCall(call.kernel, arguments)), scratch)

    def _found(self) -> tuple[Tensor, Tensor]:
        """What the parts find: means of values, and logarithms of sums of powers."""
        *lead, rows, width = tensor_of(self.op.results[0].type).shape
        return Tensor(f32, (*lead, self.parts, rows, width)), Tensor(f32, (*lead, self.parts, rows))

    @property
    def _is_single(self) -> bool:
        return tensor_of(self.op.results[0].type).shape[-2] == 1

    def _q_index(self) -> list[Size]:
        *lead, row, width = super()._q_index()
        return [*lead, symbol(_ROW) if self._is_single else row, width]

    def _emit(self, lead: Sequence[Run]) -> Kernel:
        if self._is_single:  # one row is a tile of rows too, of which TMA brings one
            self.runs["i"] = Run((Variable(_ROW, 1),))
        self.name, whole = f"{self.name}_parts", self.name
        written = [tensor.dtype for tensor in self._found()]
        kernel = BlockedKernel(
            self.group, self.name, self.layouts, self.outputs, self.domain, parts=True, written=written
        )
        self.name = whole
        self._place(kernel, lead)
        self.emit.scalars[_PART] = kernel.frame.program(self.parts)
        self._take_part()
        found = self._quotients(*self._with_sinks(*self._attended()))
        *outer, row, column = self.domain.row_index
        row = symbol(_ROW) if self._is_single else row
        index = (*outer, symbol(_PART), row, column)
        for tensor, value, target in zip(self._found(), found, kernel.targets, strict=True):
            self.emit.store(value, target, contiguous(tensor).address(index[: tensor.rank]))
        return kernel.frame.finish(self.blocks)

    def _sink(self) -> Value:
        """That of the first part counts, once."""
        emit = self.emit
        number = emit.place_tile(symbol(_PART), [0, 0], [1, 1], i32)
        first = emit.math("eq", number, emit.constant(0, i32))
        return emit.where(first, super()._sink(), self._constant(-math.inf))

    def _take_part(self) -> None:
        """Let the program visit its part of the blocks; if none is left for it, one in which no key counts."""
        count = self.visited - self.lowest
        each = ceildiv(count, self.parts)
        before = symbol(_PART) * each
        begin = self.lowest + before
        self.limit = minimum(self.keys, maximum(0, count - before) * self.keys)
        self.lowest = minimum(begin, self.visited - 1)
        self.visited = minimum(begin + each, self.visited)
        self.before = self.before * maximum(0, 1 - symbol(_PART))  # the first part has the first keys, too
        kept = self.masks.kept  # a part may begin, or end, at either edge
        self.masks = replace(self.masks, upper=kept, lower=kept, apart=False)


def _joining(op: AnyAttention, scratch: Sequence[Tensor]) -> GroupOp:
    """The group that joins parts: all its reductions are over them, at the places of the result."""
    result = tensor_of(op.results[0].type)
    along = result.rank - 2

    def body(b: GraphBuilder, means: SSAValue, sums: SSAValue) -> list[SSAValue]:
        shape = b.tensor(means).shape
        sums = b.emit("broadcast", b.reshape(sums, shape=(*b.tensor(sums).shape, 1)), shape=shape)
        greatest = b.max(sums, dims=(along,), keep=True)
        none, zero = b.full_like(sums, -math.inf), b.full_like(sums, 0)
        base = b.where(b.eq(greatest, none), zero, greatest)
        weights = b.exp(b.sub(sums, base))
        total = b.sum(weights, dims=(along,), keep=False)
        joined = b.sum(b.mul(weights, means), dims=(along,), keep=False)
        undefined = op.params.get("undefined", False)
        divisor = total if undefined else b.where(b.eq(total, zero), b.full_like(total, 1), total)
        return [b.cast(b.div(joined, divisor), dtype=result.dtype)]

    return new_group(scratch, body)
