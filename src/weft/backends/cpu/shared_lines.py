"""Values along the vector axis that are the same for every line of a loop: computed once, before it.

for r in 0..16:                                        for n in 0..256:
  for n in 0..256:                                 →     buffer[n] = round(%p[n]) * 48 + ...
    %y[r, n] = %x[r*2304 + round(%p[n]) * 48 + ...]    for r in 0..16:
                                                         for n in 0..256:
                                                           %y[r, n] = %x[r*2304 + buffer[n]]

What is read at even distances is left as it is: its place is computed once a line anyway.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from xdsl.ir import OpResult, SSAValue

from weft.backends.cpu.clusters import KEEP_ABOVE, FusedLoop, cost_of, sink_roots
from weft.backends.cpu.loop_nest import LoopNest
from weft.backends.cpu.memory_order import LAZY
from weft.ir.types import i64
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_LEAST_LINES = 4
"""Lines that have to share a value for it to be worth writing and reading."""
_KEEP_PLACES_ABOVE = 3
"""The cost from which on places are kept: integers of 64 bits, of which a register holds few."""


def emit_loops(codegen: KernelCodegen, cluster: FusedLoop) -> None:
    """The loops of a cluster, behind those that compute what its lines share."""
    lines = _shared_by_lines(codegen, cluster)
    for value in lines:
        codegen.materialise(value)
    LoopNest(codegen, cluster).emit()
    for value in lines:
        del codegen.buffers[value]  # another loop may be reached on a way on which this one is not


def _shared_by_lines(codegen: KernelCodegen, cluster: FusedLoop) -> list[SSAValue]:
    """The values that are worth a buffer of one line, none of them computed from another."""
    shape = cluster.shape
    inner = max((axis for axis, size in enumerate(shape) if size > 1), default=0)
    lines = prod(size for axis, size in enumerate(shape) if axis != inner)
    if codegen.written or lines < _LEAST_LINES:
        return []
    found: dict[SSAValue, None] = {}
    seen, pending = set[SSAValue](), [root for sink in cluster.sinks for root in sink_roots(sink)]
    while pending:
        value = pending.pop()
        if value in seen or value in codegen.buffers:
            continue
        seen.add(value)
        if not (isinstance(value, OpResult) and isinstance(value.op, LAZY)):
            continue
        sizes = tile.tile_type(value).sizes
        is_line = len(sizes) == len(shape) and sizes[inner] > 1 and prod(sizes) == sizes[inner]
        if is_line and _is_worth_keeping(codegen, value, inner):
            found[value] = None
            continue
        pending.extend(v for v in value.op.operands if isinstance(v.type, tile.TileType))
    return list(found)


def _is_worth_keeping(codegen: KernelCodegen, value: OpResult, inner: int) -> bool:
    """Whether a value takes longer to compute than to read, element by element."""
    if not isinstance(value.op, tile.MapOp | tile.GatherOp) or codegen.neighbours.step_along(value, inner) is not None:
        return False
    return cost_of(value) > (_KEEP_PLACES_ABOVE if tile.tile_type(value).dtype == i64 else KEEP_ABOVE)
