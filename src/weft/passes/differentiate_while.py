"""Reverse-mode gradients of while loops: how many turns there are is known only after they ran.

    %y = graph.loop while … { f }    →    %n = graph.loop while … { f, counted }
                                          %s = graph.loop slots { n / slots turns of f, with the states before stacked }
                                          %gx = graph.loop slots, backwards { the gradients of a slot's turns }

Up to as many turns as there are slots, every state is kept. Beyond, states are checkpoints: a slot stands for several
turns, and each of these begins by computing again those before it in its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.ir.locations import line_of
from weft.ir.types import i64, is_float, tensor_of
from weft.ops.control import UNBOUNDED, LoopOp, loop
from weft.ops.graph import GraphBuilder
from weft.ops.rules import size_value, zeros
from weft.passes.differentiate_regions import Gradients, again, captured_floats, taken_back

_SLOTS = range(16, 129)
"""How many states are kept, at least and at most."""
_KEPT_BYTES = 32 << 20
"""What they may take, where they are more than the least."""


def propagate_while(
    tape: Gradients, op: LoopOp, grads: Mapping[SSAValue, SSAValue], make: Callable[[GraphBuilder], Gradients]
) -> None:
    """Take the gradients of what such a loop carried to what it began with, and to what it captured."""
    if op.trip_count != UNBOUNDED:
        raise UnsupportedError(
            "a loop with a condition and a number of turns has no gradient",
            location=line_of(op.location),
            hint="let it have one of them",
        )
    b, turns, slots = tape.b, _Turns(op), _slots(op)
    states = [n for n, value in enumerate(op.starts) if is_float(value)]
    captures = captured_floats(op)
    one = b.full(value=1, shape=(), dtype=i64)
    number = turns.counted(b)
    rest = b.full(value=slots - 1, shape=(), dtype=i64)
    each = b.maximum(b.floordiv(b.add(number, rest), b.full(value=slots, shape=(), dtype=i64)), one)

    def slot(b: GraphBuilder, index: SSAValue, before: Sequence[SSAValue], slices: Sequence[SSAValue]) -> _Slot:
        first = b.mul(index, each)
        return turns.run(b, before, first, b.minimum(b.add(first, each), number)), list(before)

    _, history = loop(b, slot, list(op.starts), trip_count=slots)

    def back(b: GraphBuilder, index: SSAValue, grads: Sequence[SSAValue], kept: Sequence[SSAValue]) -> _Slot:
        first = b.mul(b.sub(size_value(b, slots - 1, i64), index), each)
        last = b.minimum(b.add(first, each), number)

        def turn(
            b: GraphBuilder, _: SSAValue, carried: Sequence[SSAValue], slices: Sequence[SSAValue]
        ) -> tuple[list[SSAValue], list[SSAValue], SSAValue]:
            here = b.sub(carried[0], one)
            before = turns.run(b, kept, first, here)
            seeds, sums = carried[1 : 1 + len(states)], carried[1 + len(states) :]
            found = turns.pulled(b, here, before, dict(zip(states, seeds, strict=True)), captures, make)
            totals = [b.add(total, new) for total, new in zip(sums, found[len(states) :], strict=True)]
            return [here, *found[: len(states)], *totals], [], b.gt(here, first)

        finals, _ = loop(b, turn, [last, *grads], condition=b.gt(last, first))
        return list(finals[1:]), []

    seeds = [*(grads[op.finals[n]] for n in states), *(zeros(b, op.captures[n]) for n in captures)]
    found, _ = loop(b, back, seeds, history, trip_count=slots, reverse=True)
    for place, gradient in zip(states, found[: len(states)], strict=True):
        tape.add(op.starts[place], gradient)
    for place, gradient in zip(captures, found[len(states) :], strict=True):
        tape.add(op.captures[place], gradient)


_Slot = tuple[list[SSAValue], list[SSAValue]]


@dataclass(frozen=True)
class _Turns:
    """Turns of a loop's region, in other loops."""

    op: LoopOp

    def counted(self, b: GraphBuilder) -> SSAValue:
        """How many turns the loop has."""

        def turn(
            b: GraphBuilder, index: SSAValue, before: Sequence[SSAValue], slices: Sequence[SSAValue]
        ) -> tuple[list[SSAValue], list[SSAValue], SSAValue]:
            going, *after = self._yielded(b, before[0], before[1:])
            return [b.add(before[0], b.full(value=1, shape=(), dtype=i64)), *after], [], going

        start = b.full(value=0, shape=(), dtype=i64)
        finals, _ = loop(b, turn, [start, *self.op.starts], condition=self.op.condition)
        return finals[0]

    def run(self, b: GraphBuilder, states: Sequence[SSAValue], first: SSAValue, end: SSAValue) -> list[SSAValue]:
        """The states after the turns from `first` on, before `end`."""

        def turn(
            b: GraphBuilder, index: SSAValue, before: Sequence[SSAValue], slices: Sequence[SSAValue]
        ) -> tuple[list[SSAValue], list[SSAValue], SSAValue]:
            number = b.add(before[0], b.full(value=1, shape=(), dtype=i64))
            return [number, *self._yielded(b, before[0], before[1:])[1:]], [], b.lt(number, end)

        finals, _ = loop(b, turn, [first, *states], condition=b.lt(first, end))
        return list(finals[1:])

    def pulled(
        self,
        b: GraphBuilder,
        number: SSAValue,
        before: Sequence[SSAValue],
        seeds: Mapping[int, SSAValue],
        captures: Sequence[int],
        make: Callable[[GraphBuilder], Gradients],
    ) -> list[SSAValue]:
        """The gradients of one turn: of the states that have seeds, then of captures."""
        last = b.block.last_op
        block = self.op.bodies[0].block
        arguments = [number, *before, *self.op.captures]
        yielded, inner = again(b, block, dict(zip(block.args, arguments, strict=True)), make)
        for place, seed in seeds.items():
            inner.add(yielded[1 + place], seed)
        sources = [*(before[n] for n in seeds), *(self.op.captures[n] for n in captures)]
        return taken_back(b, inner, sources, after=last)

    def _yielded(self, b: GraphBuilder, number: SSAValue, before: Sequence[SSAValue]) -> list[SSAValue]:
        """What the region yields: whether there is another turn, and the states."""
        block = self.op.bodies[0].block
        values: dict[SSAValue, SSAValue] = dict(zip(block.args, [number, *before, *self.op.captures], strict=True))
        *ops, last = block.ops
        for op in ops:
            values.update(zip(op.results, b.insert(op.clone(value_mapper=values)).results, strict=True))
        return [values[operand] for operand in last.operands]


def _slots(op: LoopOp) -> int:
    """How many states are kept: many small ones, or few large ones."""
    size = 0
    for tensor in (tensor_of(value.type) for value in op.starts):
        if not all(isinstance(each, int) for each in tensor.shape):
            return _SLOTS.start
        size += prod(each for each in tensor.shape if isinstance(each, int)) * max(1, tensor.dtype.bits // 8)
    return min(max(_KEPT_BYTES // max(size, 1), _SLOTS.start), _SLOTS.stop - 1)
