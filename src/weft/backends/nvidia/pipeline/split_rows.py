"""Rows split over the cluster: each block of it walks a part of a row.

tile.for %c = 0 to 128256 by 8192 (%s) {              %k = nvidia.block rank
  %x = tile.load %a[%p * 128256 + %c]                 tile.for %c = 0 to 32064 by 8192 (%s) {
       : min(8192, 128256 - %c) … }              →      %x = tile.load %a[%p * 128256 + %c + %k * 32064]
%m = tile.reduce max %s                                      : min(8192, 32064 - %c) … }
                                                      %m = tile.reduce max %s {nvidia.crosses}

What the loops carry is combined by sending, as `pipeline_rows` does it.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from weft.backends.nvidia.ir.alignment import WIDEST, pointer_dtype
from weft.backends.nvidia.ir.dialect import set_integer
from weft.backends.nvidia.ir.row_streams import CROSSES
from weft.backends.nvidia.ir.warp_specialization import BlockNumberOp
from weft.ir.expr import Size, minimum, substitute, symbol
from weft.tile import dialect as tile

_FIRST: dict[type[Operation], int] = {tile.LoadOp: 1, tile.StoreOp: 2, tile.PositionOp: 0}
"""The operand that d0 stands for."""


def split_rows_over_cluster(kernel: tile.KernelOp, blocks: int) -> bool:
    """Let so many blocks share what the loops of a kernel walk, in place; False if they cannot."""
    loops = [op for op in kernel.block.ops if isinstance(op, tile.ForOp)]
    if not _may_share(kernel, loops) or not all(_has_parts(loop, blocks) for loop in loops):
        return False
    rank = BlockNumberOp.make("rank")
    kernel.block.insert_op_before(rank, next(iter(kernel.block.ops)))
    for loop in loops:
        _, upper, step = (int(size) for size in loop.bounds.data if isinstance(size, int))
        part = upper // blocks
        loop.attributes["bounds"] = tile.Sizes((0, part, step))
        for op in loop.block.ops:
            if loop.block.args[0] in op.operands:
                _move(op, loop.block.args[0], rank.out, part, step)
    for op in kernel.block.ops:
        if isinstance(op, tile.ReduceOp):
            set_integer(op, CROSSES, 1)
    return True


def _may_share(kernel: tile.KernelOp, loops: Sequence[tile.ForOp]) -> bool:
    """Whether nothing is reduced but what loops carry, and what they do says where by accesses alone."""
    carried: set[SSAValue] = {result for loop in loops for result in loop.results}
    for op in kernel.block.ops:
        if isinstance(op, tile.MapOp | tile.ReduceOp) and carried & set(op.operands):
            carried |= set(op.results)
        elif isinstance(op, tile.ReduceOp):
            return False
    users = [use.operation for loop in loops for use in loop.block.args[0].uses]
    return all(type(user) in _FIRST and _is_line(user) for user in users)


def _is_line(op: Operation) -> bool:
    extents = op.attributes.get("extents")
    return isinstance(extents, tile.Sizes) and len(extents.data) == 1


def _has_parts(loop: tile.ForOp, blocks: int) -> bool:
    """Whether what a loop walks has so many equal parts, which begin where TMA can."""
    bounds = [size for size in loop.bounds.data if isinstance(size, int)]
    if len(bounds) != 3 or bounds[0] != 0 or bounds[1] % blocks or bounds[1] // blocks < bounds[2]:
        return False
    accesses = [op for op in loop.block.ops if isinstance(op, tile.LoadOp | tile.StoreOp)]
    return all(bounds[1] // blocks * pointer_dtype(op).bytes % WIDEST == 0 for op in accesses)


def _move(op: Operation, variable: SSAValue, rank: SSAValue, part: int, step: int) -> None:
    """Let an access be a part further on for each block before this one; what exists ends with the part."""
    given = op.operands[_FIRST[type(op)] :]
    (place,) = [number for number, operand in enumerate(given) if operand is variable]
    here, further = symbol(f"d{place}"), symbol(f"d{len(given)}")
    op.operands = [*op.operands, rank]
    for key, attribute in op.attributes.items():
        if key == "extents":
            op.attributes[key] = tile.Sizes((minimum(step, part - here),))
        elif isinstance(attribute, tile.Sizes):
            moved: dict[str, Size] = {f"d{place}": here + part * further}
            op.attributes[key] = tile.Sizes(tuple(substitute(size, moved) for size in attribute.data))
