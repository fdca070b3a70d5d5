"""Tiles of weights that lie in panels: `weft.lower.packing` says how they came there."""

from __future__ import annotations

from xdsl.ir import SSAValue

from weft.ir.expr import Size, ceildiv, floordiv, minimum
from weft.lower.emit.body import KernelEmitter, register_dtype
from weft.lower.index_space.domain import Run
from weft.lower.packing import PackedPanels
from weft.tile import dialect as tile


def packed_tile(
    emit: KernelEmitter,
    weight: SSAValue,
    panels: PackedPanels,
    place: tuple[Size, Size, Size],
    shape: tuple[int, int],
    k_run: Run | None,
) -> SSAValue:
    """The panels of a block of K and N, [panels, BK, NR]; `place` says of which matrix, and from where in N and K."""
    bk, bn = shape
    count, width, together = panels.shape[1], panels.NR, panels.together
    k_size = panels.shape[2] * together
    matrix, n, k = (_start(emit, position) for position in place)
    first = floordiv(n, width)
    k_axis = emit.axes.get(k_run.name) if k_run else None
    offset = (matrix * count + first) * (k_size * width) + k * width
    held = bn // width
    panel_extent = held if count % held == 0 else minimum(held, count - first)
    k_extent = k_axis.extent if k_axis else 1
    strides, extents, sides = (k_size * width, width, 1), (panel_extent, k_extent, width), (held, bk, width)
    if together > 1:
        strides = (k_size * width, width * together, together, 1)
        extents = (panel_extent, ceildiv(k_extent, together), width, together)
        sides = (held, -(-bk // together), width, together)
    (o, s, e), operands = emit.sizes((offset,), strides, extents)
    op = tile.LoadOp.create(
        operands=[emit.pointers[weight], *operands],
        attributes={"offset": o, "strides": s, "extents": e},
        result_types=[tile.TileType.of(sides, register_dtype(panels.dtype))],
    )
    return emit.add(op)


def _start(emit: KernelEmitter, position: Size) -> Size:
    """The index of a tile's first element."""
    affine = emit.affine(emit.resolve(position))
    assert affine is not None
    return affine[0]
