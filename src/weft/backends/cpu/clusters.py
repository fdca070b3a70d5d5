"""Which tile ops of a block share a loop, and which values are kept between loops.

Sinks (stores, reductions and fills of loop-carried buffers) need loops; everything else is computed where a sink needs
it. Neighbouring sinks of one shape share a loop unless one needs a reduction that the loop is only making. A value that
several loops need is computed again in each if it is cheap, and kept in a buffer if it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.memory_order import LAZY, MemoryOrder, lazy_closure
from weft.tile import collective_ops
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS

_CHEAP_FUNCTIONS = frozenset(
    [
        "add",
        "sub",
        "mul",
        "neg",
        "abs",
        "max",
        "min",
        "select",
        "and",
        "or",
        "xor",
        "not",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "cast",
        "isnan",
        "isinf",
        "copysign",
        "shl",
        "shr",
        "floor",
    ]
)
KEEP_ABOVE = 14


@dataclass(frozen=True, eq=False)
class Fill:
    """Write a value to a buffer, for all its positions."""

    value: SSAValue
    buffer: Buffer


Sink: TypeAlias = "tile.StoreOp | tile.ScatterOp | tile.ReduceOp | Fill"


@dataclass(eq=False)
class FusedLoop:
    """Sinks that share one loop nest over `shape`."""

    shape: tuple[int, ...]
    sinks: list[Sink] = field(default_factory=list[Sink])
    keeps: list[SSAValue] = field(default_factory=list[SSAValue])


Step: TypeAlias = "FusedLoop | Operation"


def sink_value(sink: Sink) -> SSAValue:
    return sink.value


def origin_of(step: Step | Sink) -> LocationAttr | None:
    """Where in the user's program a step comes from: the first of what shares a loop stands for all."""
    match step:
        case FusedLoop():
            return next((origin_of(sink) for sink in step.sinks), None)
        case Fill():
            return step.value.owner.location if isinstance(step.value, OpResult) else None
        case _:
            return step.location


def sink_roots(sink: Sink) -> list[SSAValue]:
    """All that has to be computed at a position for a sink: the value, and where it goes."""
    if isinstance(sink, tile.ScatterOp):
        return [sink.value, sink.offsets, *([sink.mask] if sink.mask is not None else [])]
    return [sink.value]


def is_scalar(op: Operation | Fill) -> bool:
    """Whether an op gives a tile without axes: it is computed where it stands."""
    return isinstance(op, LAZY) and not tile.tile_type(op.results[0]).sizes


def form_steps(operations: Iterable[Operation | Fill], order: MemoryOrder) -> list[Step]:
    """Cut a block into loops and single ops, in order, and decide what is kept between them."""
    steps: list[Step] = []
    for op in operations:
        if is_scalar(op):
            assert isinstance(op, Operation)
            _place_scalar(op, steps)
            continue
        if isinstance(op, tile.GatherOp) and op.out in order.early:
            steps.append(op)
            continue
        if isinstance(op, (*LAZY, tile.ProgramOp, tile.YieldOp, tile.ReturnOp)):
            continue
        if not isinstance(op, tile.StoreOp | tile.ScatterOp | tile.ReduceOp | Fill) or _is_alone(op):
            assert isinstance(op, Operation)
            steps.append(op)
            continue
        shape = tile.tile_type(sink_value(op)).sizes
        if isinstance(op, tile.StoreOp):
            shape = _store_shape(op)
        last = steps[-1] if steps else None
        if not isinstance(last, FusedLoop) or last.shape != shape:
            steps.append(FusedLoop(shape, [op]))
        elif _may_join(op, last, order):
            last.sinks.append(op)
        else:
            # Fills of one shape may read each other's old values: none is done before all can be.
            fills = [sink for sink in last.sinks if isinstance(sink, Fill)] if isinstance(op, Fill) else []
            last.sinks = [sink for sink in last.sinks if sink not in fills]
            steps.append(FusedLoop(shape, [*fills, op]))
    _choose_kept(steps)
    return steps


def _store_shape(op: tile.StoreOp) -> tuple[int, ...]:
    """A store may spread a value over axes along which the value has size 1."""
    sizes = tile.tile_type(op.value).sizes
    if op.spread is None:
        return sizes
    return tuple(max(size, int(str(wide))) for size, wide in zip(sizes, op.spread.data, strict=True))


def _is_alone(op: Sink) -> bool:
    """Whether a sink is not part of a loop over positions.

    So it is with a write that has an order of its own or is but one element, and with the place of an extremum along an
    axis across the vectors, or of one element.
    """
    if isinstance(op, tile.ScatterOp):
        return op.unordered is None or not tile.tile_type(op.value).sizes
    if not isinstance(op, tile.ReduceOp) or not COMBINERS[op.kind.data].indexed:
        return False
    _, *across = sizes = tile.tile_type(op.value).sizes[op.axis.value.data :]
    return sizes[0] == 1 or any(size > 1 for size in across)


def _place_scalar(op: Operation, steps: list[Step]) -> None:
    """A scalar that the last loop has nothing to do with is computed before it, so that the loop may grow."""
    last, closure = steps[-1] if steps else None, lazy_closure(op.results[0])
    reads = any(isinstance(v, OpResult) and isinstance(v.op, tile.GatherOp) for v in closure)
    if isinstance(last, FusedLoop) and not reads:
        made = {sink.out for sink in last.sinks if isinstance(sink, tile.ReduceOp)}
        if not any(v in made for v in closure):
            steps.insert(-1, op)
            return
    steps.append(op)


def _may_join(sink: Sink, cluster: FusedLoop, order: MemoryOrder) -> bool:
    """Whether a sink may be computed position by position along with others.

    Not if it needs a reduction that they make, and not if memory would be read or written in another order.
    """
    made = {each.out for each in cluster.sinks if isinstance(each, tile.ReduceOp)}
    closure = {v: None for root in sink_roots(sink) for v in lazy_closure(root)}
    if any(v in made for v in closure):
        return False
    stores = [each for each in cluster.sinks if isinstance(each, tile.ScatterOp)]
    if any(order.reads(store, closure) for store in stores):
        return False
    if not isinstance(sink, tile.ScatterOp):
        return True
    before = {v: None for each in cluster.sinks for root in sink_roots(each) for v in lazy_closure(root)}
    return not order.reads(sink, before) and not any(order.meet(sink.pointer, store.pointer) for store in stores)


def _choose_kept(steps: Sequence[Step]) -> None:
    """Mark expensive values that several steps need as kept by the first of them."""
    if len(steps) < 2:
        return
    kept: set[SSAValue] = set()
    roots = [_roots(step) for step in steps]
    needed = [{v: None for root in values for v in lazy_closure(root)} for values in roots]
    shared = Counter(v for values in needed for v in values)
    candidates = [v for v, count in shared.items() if count > 1 and _is_kept_candidate(v)]
    # From the outermost value inwards: what a kept value is made of is needed only where that is made.
    candidates.sort(key=lambda v: -len(lazy_closure(v)))
    for value in candidates:
        users = [position for position, values in enumerate(roots) if any(_reaches(r, value, kept) for r in values)]
        if len(users) > 1 and cost_of(value) > KEEP_ABOVE:
            first = steps[users[0]]
            if isinstance(first, FusedLoop) and first.shape == tile.tile_type(value).sizes:
                kept.add(value)
                first.keeps.append(value)


def _roots(step: Step) -> list[SSAValue]:
    if isinstance(step, FusedLoop):
        return [root for sink in step.sinks for root in sink_roots(sink)]
    values = [v for v in step.operands if isinstance(v.type, tile.TileType)]
    for region in step.regions:
        for block in region.blocks:
            values += _outer_values(block)
    return values


def _outer_values(block: Block) -> list[SSAValue]:
    values: list[SSAValue] = []
    for op in block.walk():
        values += [v for v in op.operands if isinstance(v.type, tile.TileType) and v.owner is not block]
    return values


def _reaches(root: SSAValue, value: SSAValue, kept: set[SSAValue]) -> bool:
    """Whether computing `root` computes `value`, without passing through a value that is kept."""
    seen: set[SSAValue] = set()
    pending = [root]
    while pending:
        current = pending.pop()
        if current is value:
            return True
        if current in seen or current in kept:
            continue
        seen.add(current)
        if isinstance(current, OpResult) and isinstance(current.op, LAZY):
            pending.extend(v for v in current.op.operands if isinstance(v.type, tile.TileType))
    return False


def _is_kept_candidate(value: SSAValue) -> bool:
    if not (isinstance(value, OpResult) and isinstance(value.op, tile.MapOp | tile.GatherOp)):
        return False
    return any(size > 1 for size in tile.tile_type(value).sizes)


def cost_of(value: SSAValue) -> int:
    """About how many instructions an element of a value takes, with all that it is lazily computed from."""
    total = 0
    for v in lazy_closure(value):
        if not isinstance(v, OpResult):
            continue
        match v.op:
            case tile.GatherOp():
                total += 10
            case tile.MapOp():
                total += 1 if v.op.function.data in _CHEAP_FUNCTIONS else 20
            case tile.LoadOp() | collective_ops.TakeOp():
                total += 1
            case _:
                pass
    return total
