"""A lowered group as a kernel, and the sizes that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from weft.ir.expr import Expr
from weft.ir.types import tensor_of
from weft.lower.index_space.evaluate import StridedLayout
from weft.lower.schedule.schedule import Blocks, Schedule
from weft.ops.base import GraphOp
from weft.ops.graph import GroupOp
from weft.tile import dialect as tile


@dataclass(frozen=True)
class Kernel:
    """A lowered group: the tile kernel, the sizes it takes after its pointers, and the schedule it was given."""

    op: tile.KernelOp
    symbols: tuple[str, ...]
    schedule: Schedule | Blocks


def group_symbols(group: GroupOp, layouts: Sequence[StridedLayout]) -> tuple[str, ...]:
    """The symbolic sizes that a kernel made of the group may need."""
    names: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, tuple):
            for item in cast("tuple[Any, ...]", value):
                collect(item)
        elif isinstance(value, Expr):
            names.update(value.symbols)

    for value in (*group.block.args, *group.yielded):
        collect(tensor_of(value.type).shape)
    for op in group.block.ops:
        for result in op.results:
            collect(tensor_of(result.type).shape)
        if isinstance(op, GraphOp):
            collect(tuple(op.params.values()))
    for layout in layouts:
        collect((*layout.strides, layout.offset))
    return tuple(sorted(names))
