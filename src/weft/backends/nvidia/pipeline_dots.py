"""Split a kernel around products into roles: one that copies operands in, others that multiply.

%c = tile.for %k (%acc) {                              nvidia.roles {
  %a = tile.load %x[%m, %k] : 128x64                     … nvidia.acquire ; nvidia.fill 0 [%k, %m] ; nvidia.fill 1 …
  %b = tile.load %w[%k, %n] : 64x256             →     } {
  tile.yield tile.dot %a, %b, %acc }                     … nvidia.wait ; nvidia.wgmma … ; nvidia.release
tile.store %y[%m, %n], gelu(%c)                          tile.store %y[%m, %n], gelu(%c)
                                                       }

The loads of the loop that only products read are what the producer does; all else stays with the consumers. Blocks are
persistent: each walks the programs, in an order that keeps what neighbours share in the second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, OpResult, SSAValue

from weft.backends.nvidia.alignment import pointer_dtype
from weft.backends.nvidia.asynchronous import (
    COORDINATES,
    LINE,
    MAP,
    STAGE_BYTES,
    STAGE_COLUMNS,
    STAGE_ROWS,
    AcquireOp,
    BlockNumberOp,
    CommitOp,
    FillOp,
    IndexOp,
    ReleaseOp,
    RolesOp,
    SlotOp,
    SlotType,
    WaitOp,
    WgmmaOp,
)
from weft.backends.nvidia.code import TensorMap
from weft.backends.nvidia.dialect import SHARED, WARPS, set_integer
from weft.backends.nvidia.target import NvidiaTarget
from weft.backends.nvidia.tensor_parts import part_of
from weft.ir.expr import Size, floordiv, minimum, mod, product, substitute, symbol
from weft.tile import dialect as tile

_MOST_STAGES, _BARRIER_BYTES, _ALIGNMENT = 6, 16, 1024
_GROUP = 16
"""Neighbouring blocks of rows that are walked together, so that they share columns while these are near."""


@dataclass(frozen=True)
class Pipelined:
    """What the launch of a kernel with roles needs."""

    threads: int
    shared: int
    maps: tuple[TensorMap, ...]


@dataclass(frozen=True)
class _Copy:
    """A load as the copy engine does it."""

    load: tile.LoadOp
    map: TensorMap
    slot: SlotType
    coordinates: tuple[Size, ...]


def pipeline_dots(kernel: tile.KernelOp, target: NvidiaTarget, scratch: int = 0) -> Pipelined | None:
    """Rewrite a kernel in place, if it has a loop of products that the tensor cores of Hopper take from slots."""
    if not target.has_wgmma:
        return None
    loops = [op for op in kernel.block.ops if isinstance(op, tile.ForOp)]
    if len(loops) != 1 or any(isinstance(op, tile.DotOp) for op in kernel.block.ops):
        return None
    (loop,) = loops
    dots = [op for op in loop.block.ops if isinstance(op, tile.DotOp)]
    if not dots or any(op.regions for op in loop.block.ops):
        return None
    copies = _copies(kernel, dots)
    if copies is None:
        return None
    consumers = {64: 1, 128: 2, 192: 3, 256: 2}.get(tile.tile_type(dots[0].out).sizes[0])
    if consumers is None or not all(_fits(dot, consumers) for dot in dots):
        return None
    stage = sum(copy.slot.bytes for copy in copies)
    maps = [copy.map for copy in copies]
    engines = _give_stores_to_engine(kernel, maps)
    staging = 4 * consumers * 2 * STAGE_BYTES if engines else 0
    stages = min(_MOST_STAGES, (target.shared_per_block - scratch - staging - _ALIGNMENT) // (stage + _BARRIER_BYTES))
    if stages < 2:
        return None
    ring = -(-stages * (stage + _BARRIER_BYTES) // _ALIGNMENT) * _ALIGNMENT
    for op in engines:
        set_integer(op, SHARED, ring)
    _split(kernel, loop, copies, stages, consumers)
    set_integer(kernel, WARPS, 4 * consumers)
    return Pipelined(128 * (consumers + 1), ring + staging, tuple(maps))


def _give_stores_to_engine(kernel: tile.KernelOp, maps: list[TensorMap]) -> list[tile.StoreOp]:
    """Let the copy engine write results of 16 bits: each warp hands it 16 rows of 64 columns at a time."""
    found: list[tile.StoreOp] = []
    for op in kernel.block.ops:
        if not isinstance(op, tile.StoreOp) or op.spread is not None or pointer_dtype(op).bytes != 2:
            continue
        shape = tile.tile_type(op.value).sizes
        part = part_of(kernel, op, shape)
        if part is not None and part.inner == 1 and shape[0] % 64 == 0 and shape[1] % STAGE_COLUMNS == 0:
            set_integer(op, MAP, len(maps))
            op.attributes[COORDINATES] = tile.Sizes(part.coordinates)
            maps.append(part.map((STAGE_COLUMNS, STAGE_ROWS)))
            found.append(op)
    return found


def _fits(dot: tile.DotOp, consumers: int) -> bool:
    (rows, columns), depth = tile.tile_type(dot.out).sizes, tile.tile_type(dot.a).sizes[1]
    accumulators = rows * columns // (128 * consumers)
    return (
        rows % (64 * consumers) == 0 and columns % 8 == 0 and columns <= 256 and depth % 16 == 0 and accumulators <= 128
    )


def _copies(kernel: tile.KernelOp, dots: list[tile.DotOp]) -> list[_Copy] | None:
    copies: dict[SSAValue, _Copy] = {}
    for dot in dots:
        for value in (dot.a, dot.b):
            if value in copies:
                continue
            if (
                not isinstance(value, OpResult)
                or not isinstance(value.op, tile.LoadOp)
                or value.op.parent is not dot.parent
            ):
                return None
            if any(not isinstance(use.operation, tile.DotOp) for use in value.uses):
                return None
            copy = _as_copy(kernel, value.op)
            if copy is None:
                return None
            copies[value] = copy
    if len({copy.slot.dtype for copy in copies.values()}) != 1:
        return None
    return list(copies.values())


def _as_copy(kernel: tile.KernelOp, op: tile.LoadOp) -> _Copy | None:
    """A load as boxes of a tensor, as wide as a line."""
    shape, dtype = tile.tile_type(op.out).sizes, pointer_dtype(op)
    part = part_of(kernel, op, shape)
    if (
        part is None
        or shape[part.inner] * dtype.bytes % LINE
        or shape[1 - part.inner] > 256
        or shape[1 - part.inner] % 8
    ):
        return None
    box = (LINE // dtype.bytes, shape[1 - part.inner])
    return _Copy(op, part.map(box), SlotType.of(shape, part.inner, dtype), part.coordinates)


def _split(kernel: tile.KernelOp, loop: tile.ForOp, copies: list[_Copy], stages: int, consumers: int) -> None:
    block = kernel.block
    original = [op for op in block.ops if not isinstance(op, tile.ReturnOp)]
    first, count = BlockNumberOp.make("number"), BlockNumberOp.make("count")
    block.insert_ops_before([first, count], original[0])
    roles: list[Block] = []
    for is_producer in (True, False):
        programs, mapping = _programs(kernel, first.out, count.out)
        roles.append(Block([programs]))
        for op in original:
            if op is loop:
                (_produce if is_producer else _consume)(programs.block, loop, mapping, copies)
            elif not is_producer and not isinstance(op, tile.ProgramOp):
                programs.block.add_op(op.clone(mapping))
        programs.block.add_op(tile.YieldOp.create())
    for op in reversed(original):
        op.detach()
        op.erase(safe_erase=False)
    block.insert_op_after(RolesOp.make(stages, consumers, [copy.slot for copy in copies], *roles), count)


def _programs(kernel: tile.KernelOp, first: SSAValue, count: SSAValue) -> tuple[tile.ForOp, dict[SSAValue, SSAValue]]:
    """A loop over this block's programs, and what stands in it for the program's numbers."""
    sizes = list(kernel.block.args[len(kernel.block.args) - len(kernel.size_names) :])
    renamed: dict[str, Size] = {name: symbol(f"d{i + 2}") for i, name in enumerate(kernel.size_names)}
    grid = [substitute(size, renamed) for size in kernel.grid.data]
    bounds = tile.Sizes((symbol("d0"), product(grid), symbol("d1")))
    programs = tile.ForOp.make(bounds, [first, count, *sizes], [])
    number = programs.block.args[0]
    numbers = [IndexOp.make(tile.Sizes((value,)), [number, number, *sizes]) for value in _numbers(grid)]
    programs.block.add_ops(numbers)
    found = [op for op in kernel.block.ops if isinstance(op, tile.ProgramOp)]
    return programs, {op.out: numbers[op.axis.value.data].out for op in found}


def _numbers(grid: list[Size]) -> list[Size]:
    """Each axis's number of a program in terms of the program's, d0.

    The last two axes are walked in groups of `_GROUP` along the last one, through all of the other.
    """
    numbers: list[Size] = []
    rest: Size = symbol("d0")
    for position in range(len(grid) - 2):
        below = product(grid[position + 1 :])
        numbers.append(floordiv(rest, below))
        rest = mod(rest, below)
    if len(grid) < 2:
        return [rest] * len(grid)
    columns, rows = grid[-2:]
    top = floordiv(rest, columns * _GROUP) * _GROUP
    inside = mod(rest, columns * _GROUP)
    height = minimum(_GROUP, rows - top)
    return [*numbers, floordiv(inside, height), top + mod(inside, height)]


def _produce(block: Block, loop: tile.ForOp, mapping: dict[SSAValue, SSAValue], copies: list[_Copy]) -> None:
    turns = tile.ForOp.make(loop.bounds, [mapping.get(i, i) for i in loop.indices], [])
    block.add_op(turns)
    mapping = mapping | {loop.block.args[0]: turns.block.args[0]}
    turns.block.add_op(AcquireOp.create())
    for number, copy in enumerate(copies):
        attributes = {
            "slot": IntegerAttr(number, i64),
            "map": IntegerAttr(number, i64),
            "coordinates": tile.Sizes(copy.coordinates),
        }
        indices = [mapping.get(i, i) for i in copy.load.indices]
        turns.block.add_op(FillOp.create(operands=indices, attributes=attributes))
    turns.block.add_ops([CommitOp.create(), tile.YieldOp.create()])


def _consume(block: Block, loop: tile.ForOp, mapping: dict[SSAValue, SSAValue], copies: list[_Copy]) -> None:
    indices = [mapping.get(i, i) for i in loop.indices]
    turns = tile.ForOp.make(loop.bounds, indices, [mapping.get(v, v) for v in loop.initial])
    block.add_op(turns)
    inside = mapping | dict(zip(loop.block.args, turns.block.args, strict=True))
    turns.block.add_op(WaitOp.create())
    for number, copy in enumerate(copies):
        taken = SlotOp.create(attributes={"slot": IntegerAttr(number, i64)}, result_types=[copy.slot])
        turns.block.add_op(taken)
        inside[copy.load.out] = taken.out
    copied = {copy.load for copy in copies}
    for op in loop.block.ops:
        match op:
            case tile.DotOp():
                product_ = WgmmaOp.create(operands=[inside.get(o, o) for o in op.operands], result_types=[op.out.type])
                turns.block.add_op(product_)
                inside[op.out] = product_.out
            case tile.YieldOp():
                turns.block.add_ops([ReleaseOp.create(), op.clone(inside)])
            case tile.LoadOp() if op in copied:
                pass
            case _:
                turns.block.add_op(op.clone(inside))
    mapping.update(zip(loop.results, turns.results, strict=True))
