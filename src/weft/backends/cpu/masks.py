"""Masks that hold from the start of an axis up to some place: what lies before it is read and written without masks.

Kernels that people write compare positions with a size (`offsets < n`) and mask every access by that. Along an axis
such a mask changes once, so the axis is walked in two parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import OpResult, SSAValue

from weft.backends.cpu.clusters import FusedLoop, sink_roots
from weft.backends.cpu.computed import conjuncts
from weft.backends.cpu.memory_order import lazy_closure
from weft.backends.cpu.position import Position
from weft.backends.cpu.views import position_in
from weft.backends.llvm.values import V, i64
from weft.tile import collective_ops
from weft.tile import dialect as tile
from weft.tile.view_axes import axes_of

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen


@dataclass(frozen=True)
class Unmasked:
    """The part of an axis where masks are known to hold: how many elements from its start on, and which masks."""

    count: V
    masks: tuple[SSAValue, ...]


def unmasked_part(codegen: KernelCodegen, cluster: FusedLoop, start: Position, extent: V) -> Unmasked | None:
    """The elements from the start of the inner axis on that no mask hides."""
    inner = start.inner
    counts: dict[SSAValue, V | None] = {}
    for mask in _masks(codegen, cluster, inner):
        counts[mask] = _holds_until(codegen, mask, start, extent)
    limits = [count for count in counts.values() if count is not None]
    if not limits:
        return None
    least, *others = limits
    for other in others:
        least = codegen.b.intrinsic("smin", least, other)
    masks = [mask for mask, count in counts.items() if count is not None]
    parts = [part for mask in masks for part in conjuncts(codegen, mask, inner) or []]
    return Unmasked(least, tuple(dict.fromkeys([*masks, *parts])))


def _masks(codegen: KernelCodegen, cluster: FusedLoop, inner: int) -> list[SSAValue]:
    """The masks of a loop's accesses that change along the axis."""
    values = {v: None for sink in cluster.sinks for root in sink_roots(sink) for v in lazy_closure(root)}
    reads = [v.op for v in values if isinstance(v, OpResult) and v not in codegen.buffers]
    accesses = [op for op in [*reads, *cluster.sinks] if isinstance(op, tile.GatherOp | tile.ScatterOp)]
    masks = dict.fromkeys(op.mask for op in accesses if op.mask is not None)
    return [
        mask
        for mask in masks
        if len(tile.tile_type(mask).sizes) == len(cluster.shape) and not codegen.neighbours.is_still(mask, inner)
    ]


def _holds_until(codegen: KernelCodegen, mask: SSAValue, start: Position, extent: V) -> V | None:
    """How many elements along the axis a mask holds for, from the first on; None if it is not of that kind."""
    b = codegen.b
    parts = conjuncts(codegen, mask, start.inner)
    if parts is None:
        return None
    count = extent
    for part in parts:
        if codegen.neighbours.is_still(part, start.inner):
            count = b.select(codegen.at(part, start.copy()), count, i64(0))
            continue
        limit = _limit(codegen, part, start.copy())
        if limit is None:
            return None
        count = b.intrinsic("smin", count, limit)
    return b.intrinsic("smax", count, i64(0))


def _limit(codegen: KernelCodegen, part: SSAValue, start: Position) -> V | None:
    """The place along the axis from which on a comparison no longer holds."""
    while isinstance(part, OpResult) and isinstance(part.op, collective_ops.ViewOp):
        axes = axes_of(part.op)
        if axes is None:
            return None
        part, start = part.op.value, position_in(axes, start)
    if not isinstance(part, OpResult) or not isinstance(part.op, tile.MapOp):
        return None
    function = part.op.function.data
    low, high = part.op.args if function in ("lt", "le") else reversed(part.op.args)
    steps = [codegen.neighbours.step_along(value, start.inner) for value in (low, high)]
    dtype = tile.tile_type(low).dtype
    if None in steps or steps[0] - steps[1] != 1 or not dtype.is_integer:  # type: ignore[operator]
        return None
    b, extend = codegen.b, "sext" if dtype.kind == "int" else "zext"
    first, last = (b.convert(extend, codegen.at(value, start), "i64") for value in (low, high))
    distance = b.sub(last, first)
    return b.add(distance, i64(1)) if function in ("le", "ge") else distance
