"""Paddings with a tensor's own elements."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Size, maximum


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(b: ImportBuilder, x: SSAValue, padding: Sequence[Size]) -> SSAValue:
    return _padded(b, x, padding, "reflect")


@aten("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(b: ImportBuilder, x: SSAValue, padding: Sequence[Size]) -> SSAValue:
    return _padded(b, x, padding, "edge")


def _padded(b: ImportBuilder, x: SSAValue, padding: Sequence[Size], mode: str) -> SSAValue:
    """Pairs of paddings from the last dimension on; a negative one cuts off what is there."""
    rank = b.rank(x)
    pairs = [(padding[2 * n], padding[2 * n + 1]) for n in reversed(range(len(padding) // 2))]
    pairs = [(0, 0)] * (rank - len(pairs)) + pairs
    low, high = (tuple(maximum(pair[side], 0) for pair in pairs) for side in (0, 1))
    padded = b.emit("pad_mode", x, low=low, high=high, mode=mode)
    starts = tuple(maximum(-before, 0) for before, _ in pairs)
    return b.emit("slice", padded, starts=starts, shape=b.result.shape, steps=(1,) * rank)
