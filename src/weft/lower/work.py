"""An estimate of how long a program of a kernel takes, from its tile ops: enough to decide on threads."""

from __future__ import annotations

from xdsl.ir import Block

from weft.tile import dialect as tile

_CHEAP_NS, _HEAVY_NS, _MEMORY_NS, _GATHER_NS = 0.05, 0.8, 0.2, 1.0
_HEAVY = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "tanh",
        "erf",
        "erfc",
        "sin",
        "cos",
        "tan",
        "pow",
        "sigmoid",
        "atan2",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "lgamma",
        "digamma",
        "erfinv",
        "fmod",
        "remainder",
        "floordiv",
    ]
)
_UNKNOWN_TURNS = 64


def work_of(kernel: tile.KernelOp) -> int:
    """Nanoseconds a program takes, roughly."""
    return max(1, int(_block(kernel.block)))


def _block(block: Block) -> float:
    total = 0.0
    for op in block.ops:
        match op:
            case tile.LoadOp():
                total += _MEMORY_NS * _elements(tile.tile_type(op.out))
            case tile.StoreOp():
                total += _MEMORY_NS * _elements(tile.tile_type(op.value))
            case tile.GatherOp() | tile.ScatterOp():
                total += _GATHER_NS * _elements(tile.tile_type(op.operands[-1]))
            case tile.MapOp():
                cost = _HEAVY_NS if op.function.data in _HEAVY else _CHEAP_NS
                total += cost * _elements(tile.tile_type(op.out))
            case tile.ReduceOp():
                total += _CHEAP_NS * _elements(tile.tile_type(op.value))
            case tile.DotOp():
                m, k = tile.tile_type(op.a).sizes
                total += 0.05 * m * k * tile.tile_type(op.out).sizes[1]
            case tile.SortOp():
                total += 10_000
            case tile.ForOp():
                lower, upper, step = op.bounds.data
                known = isinstance(lower, int) and isinstance(upper, int) and isinstance(step, int)
                turns = max(1, (upper - lower) // step) if known else _UNKNOWN_TURNS  # type: ignore[operator]
                total += turns * _block(op.block)  # type: ignore[operator]
            case _:
                pass
    return total


def _elements(type_: tile.TileType) -> int:
    count = 1
    for size in type_.sizes:
        count *= size
    return count
