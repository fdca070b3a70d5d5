"""Online softmax: maxima and the sums of exponentials below them, in one pass over the columns.

%m = graph.max(%x)                       in one loop, pairs of a running maximum and of the sum of what is below it
%d = graph.sub(%x, %b)    (%b of %m)  →  %m, %s = tile.add_exponentials %m, %s, %x
%e = graph.exp(%d)                       behind it, combined and seen from %b:
%s = graph.sum(%e)                       %s * exp(%m - %b)

Softmax, logsumexp and cross-entropy so read a row that is not held once to know both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from weft.ir.types import f32, tensor_of
from weft.lower.emit.body import KernelEmitter, TileValue
from weft.lower.schedule.schedule import Schedule
from weft.ops.base import Reduction
from weft.ops.graph import GroupOp
from weft.ops.reduce import DimensionReduction
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS

_ELEMENTS_OF_PAIR = 32
"""Elements of a block of columns for each of the running pairs."""
_BLOCKS = (1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True)
class OnlinePair:
    """The maximum of a value and the sum of the exponentials of what it is above a `base`, which the maximum makes."""

    largest: Reduction
    total: Reduction
    base: SSAValue


def online_pairs(group: GroupOp) -> list[OnlinePair]:
    """The pairs of a group; a maximum is part of one at most."""
    reductions = [op for op in group.block.ops if isinstance(op, DimensionReduction)]
    stages = stages_of(group)
    found: dict[Reduction, OnlinePair] = {}
    for total in reductions:
        if total.KIND != "sum" or tensor_of(total.results[0].type).dtype != f32:
            continue
        power = total.operands[0].owner
        shift = power.operands[0].owner if isinstance(power, Operation) and power.name == "graph.exp" else None
        if not isinstance(shift, Operation) or shift.name != "graph.sub":
            continue
        value, base = shift.operands
        for largest in reductions:
            same = largest.operands[0] is value and largest.params["dims"] == total.params["dims"]
            if largest.KIND != "max" or not same or tensor_of(value.type).dtype != f32 or largest in found:
                continue
            shape = tensor_of(base.type).shape
            dims: tuple[int, ...] = largest.params["dims"]
            of_rows = len(shape) == len(tensor_of(value.type).shape) and all(shape[d] == 1 for d in dims)
            if of_rows and stages[base] == stages[largest.results[0]]:
                found[largest] = OnlinePair(largest, total, base)
                break
    return list(found.values())


def stages_of(group: GroupOp, pairs: Sequence[OnlinePair] = ()) -> dict[SSAValue, int]:
    """How many reductions come one after the other before a value is there; those of a pair come together."""
    with_: Mapping[Operation, Reduction] = {pair.total: pair.largest for pair in pairs}
    stages: dict[SSAValue, int] = dict.fromkeys(group.block.args, 0)
    for op in group.block.ops:
        if op in with_:
            stages[op.results[0]] = stages[with_[op].results[0]]
            continue
        needed = max((stages[value] for value in op.operands), default=0)
        stages.update(dict.fromkeys(op.results, needed + isinstance(op, Reduction)))
    return stages


def may_run(schedule: Schedule) -> bool:
    """Whether blocks of columns are such that the threads of whole warps have a pair each."""
    blocks = schedule.mode == "stream" and schedule.outer is None and schedule.split is None
    return blocks and schedule.capacity in _BLOCKS


def start_pair(emit: KernelEmitter, capacity: int) -> list[TileValue]:
    """The running pairs before the first column."""
    type_ = tile.TileType.of([capacity // _ELEMENTS_OF_PAIR], f32)
    values = (float(COMBINERS["max"].identity(f32)), 0.0)
    return [TileValue(emit.add(tile.ConstantOp.make(value, type_)), f32) for value in values]


def with_more(emit: KernelEmitter, state: Sequence[TileValue], value: TileValue) -> list[TileValue]:
    """The pairs with another block of columns."""
    operands = [*(each.ssa for each in state), value.ssa]
    op = tile.AddExponentialsOp.create(operands=operands, result_types=[each.ssa.type for each in state])
    emit.add(op)
    return [TileValue(out, f32) for out in op.results]


def combined(emit: KernelEmitter, state: Sequence[TileValue]) -> tuple[TileValue, TileValue, TileValue]:
    """The maximum of all pairs, what the sum is seen from (0 where that is no number), and the sum."""
    largest, total = state
    whole = emit.reduce_axis(largest, "max", 0, f32)
    base = emit.where(emit.math("isinf", whole), emit.constant(0.0, f32), whole)
    scale = emit.math("exp", emit.math("sub", largest, base))
    scaled = emit.math("mul", total, scale)
    assert isinstance(base, TileValue)
    return whole, base, emit.reduce_axis(scaled, "sum", 0, f32)
