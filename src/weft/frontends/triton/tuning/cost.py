"""What a config is likely to cost, before anything of it is compiled: read off the kernel's tile IR.

Tiles that lie in memory (carried by loops, multiplied, sorted) should fit into the L2 cache; the bytes and
operations of all programs say how long a launch takes at least, where no loop's length depends on the arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from xdsl.ir import Block, Operation, SSAValue

from weft.frontends.triton.runtime.compiled import build_kernel
from weft.frontends.triton.runtime.compiling import arguments_of, builder_of, name_of
from weft.frontends.triton.runtime.jit import JITFunction
from weft.frontends.triton.runtime.launch import triple
from weft.tile import collective_ops, control_flow
from weft.tile import dialect as tile

_BYTES_PER_NS, _OPERATIONS_PER_NS = 10.0, 20.0
_PROGRAM_NS = 20.0
_LARGE, _SLOW = 4, 8
"""How many times the cache a config's tiles may take, and how many times as long as the best it may seem to take."""
_KEPT_TILES = tile.DotOp | collective_ops.ScanOp | collective_ops.OrderOp | collective_ops.HistogramOp


@dataclass(frozen=True)
class Cost:
    """An estimate for one launch: the tiles of a program that lie in memory, and all that is moved and computed."""

    footprint: int
    bytes: int
    operations: int
    programs: int
    whole: bool
    """Whether all loops are as long as they are whatever the arguments."""

    @property
    def nanoseconds(self) -> float:
        moving, computing = self.bytes / _BYTES_PER_NS, self.operations / _OPERATIONS_PER_NS
        return self.programs * (_PROGRAM_NS + max(moving, computing))


def cost_of(kernel: JITFunction, values: Mapping[str, Any], grid: Any) -> Cost:
    """The estimate for a launch with these arguments."""
    given = {name: value for name, value in values.items() if name in kernel.arg_names}
    described, groups = kernel.launcher.describe((), given)
    op, _ = build_kernel(builder_of(kernel, described), arguments_of(described, groups), name_of(kernel))
    x, y, z = triple(grid(dict(given)) if callable(grid) else grid)
    counted = _block(op.block)
    kept = {value for each in op.walk() for value in _in_memory(each)}
    footprint = sum(_bytes(value) for value in kept)
    return Cost(footprint, counted.bytes, counted.operations, x * y * z, counted.whole)


def prune(costs: Mapping[Any, Cost]) -> dict[Any, str]:
    """The configs that are not worth measuring, with the reason."""
    least = min(cost.footprint for cost in costs.values())
    most = max(_LARGE * second_level_cache(), least)
    pruned = {
        config: f"its tiles take {cost.footprint >> 10} KiB, more than {_LARGE} times the L2 cache"
        for config, cost in costs.items()
        if cost.footprint > most
    }
    left = {config: cost for config, cost in costs.items() if config not in pruned}
    if all(cost.whole for cost in left.values()):
        best = min(cost.nanoseconds for cost in left.values())
        for config, cost in left.items():
            if cost.nanoseconds > _SLOW * best:
                times = cost.nanoseconds / best
                pruned[config] = f"{cost.programs} programs are estimated to take {times:.0f} times as long as the best"
    return pruned


@dataclass
class _Count:
    bytes: int = 0
    operations: int = 0
    whole: bool = True

    def add(self, other: _Count, times: int = 1) -> None:
        self.bytes += times * other.bytes
        self.operations += times * other.operations
        self.whole &= other.whole


def _block(block: Block) -> _Count:
    total = _Count()
    for op in block.ops:
        match op:
            case tile.GatherOp():
                total.bytes += _bytes(op.out)
            case tile.ScatterOp():
                total.bytes += _bytes(op.value)
            case tile.DotOp():
                total.operations += 2 * tile.tile_type(op.a).sizes[-1] * _elements(op.out)
            case tile.ForOp():
                lower, upper, step = op.bounds.data
                known = isinstance(lower, int) and isinstance(upper, int) and isinstance(step, int)
                turns = max(0, -((lower - upper) // step)) if known else 1  # type: ignore[operator]
                total.add(_block(op.block), turns)  # type: ignore[arg-type]
                total.whole &= known
            case _:
                for result in op.results:
                    total.operations += _elements(result)
                for region in op.regions:
                    total.add(_block(region.block))
                total.whole &= not isinstance(op, control_flow.WhileOp)
    return total


def _in_memory(op: Operation) -> Iterator[SSAValue]:
    """The tiles that an op reads from, or keeps in, memory of their own."""
    match op:
        case tile.ForOp():
            yield from op.block.args[1:]
        case control_flow.WhileOp():
            yield from op.body.block.args
        case _ if isinstance(op, _KEPT_TILES):
            yield from op.operands
        case _:
            return


def _elements(value: SSAValue) -> int:
    count = 1 if isinstance(value.type, tile.TileType) else 0
    for size in value.type.sizes if isinstance(value.type, tile.TileType) else ():
        count *= size
    return count


def _bytes(value: SSAValue) -> int:
    return _elements(value) * value.type.dtype.bytes if isinstance(value.type, tile.TileType) else 0


@lru_cache(maxsize=1)
def second_level_cache() -> int:
    """Bytes of the L2 cache; a usual size where the system does not tell."""
    for index in range(4):
        folder = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}")
        try:
            if (folder / "level").read_text().strip() == "2":
                size = (folder / "size").read_text().strip()
                return int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0)
        except (OSError, ValueError):
            continue
    return 1 << 20
