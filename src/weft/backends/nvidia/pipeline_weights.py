"""Split a product of few rows into roles: one that brings weights, others that multiply.

%p = tile.for %k (%acc) {                       nvidia.stream {
  %a = tile.load %x[%k] {packed}                  tile.for %t … { tile.for %k … {
  %b = tile.load %w[%k, %n] {packed}                nvidia.acquire ; nvidia.copy_rows %w[%k, %t] ; nvidia.commit } }
  tile.yield nvidia.mma %a, %b, %acc }     →    } {
%c = … tile.reduce sum %p                         tile.for %t … { %p = tile.for %k (%acc) {
tile.store %y[%n], gelu(%c)                         %a = tile.load … ; nvidia.wait ; %b = nvidia.read
                                                    %r = nvidia.mma %a, %b, %acc ; nvidia.release ; tile.yield %r }
                                                    … ; tile.store … } }

Such a product takes as long as it takes to read the weights. Two blocks of a multiprocessor have some 200 KB of them on
their way at any time, also while they sum up one tile and begin the next: the copy engine goes on from tile to tile.
Where no step of the program writes the weights, it starts before the kernel ahead has ended (`early_start`).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, UnitAttr, i64
from xdsl.ir import Block, Operation, SSAValue

from weft.backends.nvidia.alignment import WIDEST, divisor_of, pointer_dtype
from weft.backends.nvidia.assign_layouts import assign_layouts
from weft.backends.nvidia.asynchronous import AcquireOp, BlockNumberOp, CommitOp, ReleaseOp, WaitOp
from weft.backends.nvidia.dialect import LAYOUTS, RESIDENT, WARPS, integer, set_integer
from weft.backends.nvidia.early_start import is_fixed
from weft.backends.nvidia.fold_views import fold_views
from weft.backends.nvidia.layouts import WARP
from weft.backends.nvidia.mma import AHEAD, PACKED, RAW, MmaOp
from weft.backends.nvidia.pipeline_rows import Streamed, programs_of
from weft.backends.nvidia.shared_memory import shared_bytes
from weft.backends.nvidia.streaming import ALIGNMENT, CopyRowsOp, PieceType, ReadOp, StreamOp
from weft.backends.nvidia.target import NvidiaTarget
from weft.backends.nvidia.use_tensor_cores import use_tensor_cores
from weft.ir.expr import product
from weft.lower.few_rows import LEAST_BROUGHT
from weft.tile import dialect as tile

_RESIDENT = 2
"""Blocks of a multiprocessor: one brings and multiplies while the other sums up."""
_RESERVED = 1024
"""Shared memory of a block that the system takes."""
_LEAST_STAGES, _LEAST_BYTES = 3, 4096
_APART = 64
"""Bytes between rows in a slot: so two rows lie in different banks."""


@dataclass(frozen=True)
class _Brought:
    """A load of weights, of codes or of their factors, in a loop along K, and a slot for it."""

    load: tile.LoadOp
    slot: int
    piece: PieceType
    rows: int
    length: int
    pitch: int


@dataclass(frozen=True)
class _Weights:
    """What the copy engine brings for a product in a loop along K."""

    loop: tile.ForOp
    multiply: MmaOp
    brought: tuple[_Brought, ...]

    @property
    def count(self) -> int:
        """The weights of a program."""
        lower, upper, step = self.loop.bounds.data
        known = isinstance(lower, int) and isinstance(upper, int) and isinstance(step, int)
        k, n = tile.tile_type(self.multiply.b).sizes
        return -(-(upper - lower) // step) * k * n if known else 0  # pyright: ignore[reportReturnType, reportOperatorIssue]

    @property
    def bytes(self) -> int:
        """Of a stage."""
        return sum(each.piece.bytes for each in self.brought)


def pipeline_weights(kernel: tile.KernelOp, target: NvidiaTarget) -> Streamed | None:
    """A kernel with layouts and roles, if it is a product of few rows whose weights come in whole pieces."""
    if target.capability < 90 or kernel.serial is not None or WARPS in kernel.attributes:
        return None
    copy = kernel.clone()
    fold_views(copy)
    use_tensor_cores(copy)
    weights = _weights(copy)
    programs = product(list(kernel.grid.data))
    if weights is None or not isinstance(programs, int) or programs * weights.count < LEAST_BROUGHT:
        return None
    assign_layouts(copy)
    largest = max(_up(shared_bytes(op)) for op in copy.walk())
    room = target.shared_per_block // _RESIDENT - _RESERVED - 2 * largest - 4 * ALIGNMENT
    stages = room // (weights.bytes + 16)
    if stages < _LEAST_STAGES:
        return None
    threads = WARP * (integer(copy, WARPS) + 1)
    _split(copy, weights, stages)
    set_integer(copy, RESIDENT, _RESIDENT)
    ring = _up(stages * (weights.bytes + 16)) + 2 * _up(16)
    return Streamed(copy, threads, ring, 1)


def _up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _weights(kernel: tile.KernelOp) -> _Weights | None:
    """What the copy engine brings instead of threads, if it can."""
    products = [op for op in kernel.walk() if isinstance(op, MmaOp)]
    if len(products) != 1 or RESIDENT not in kernel.attributes:
        return None
    loop, made = products[0].parent_op(), products[0].b.owner
    if not isinstance(loop, tile.ForOp):
        return None
    loads = [operand.owner for operand in made.operands] if isinstance(made, tile.DequantizeOp) else [made]
    found: list[_Brought] = []
    for load in loads:
        brought = _brought(load, len(found)) if isinstance(load, tile.LoadOp) else None
        if brought is not None:
            found.append(brought)
        elif load is loads[0]:
            return None
    return _Weights(loop, products[0], tuple(found)) if found[0].piece.bytes >= _LEAST_BYTES else None


def _brought(load: tile.LoadOp, slot: int) -> _Brought | None:
    """A load that the copy engine can make row by row: factors that it cannot, threads read."""
    (length, rows), size = tile.tile_type(load.out).sizes, pointer_dtype(load).bytes
    steps = [divisor_of(each, load.indices) * size for each in (load.offset.data[0], load.strides.data[1])]
    whole = load.extents.data[0] == length and load.strides.data[0] == 1 and load.out.has_one_use()
    if not (PACKED in load.attributes or RAW in load.attributes) or not whole:
        return None
    if any(step % WIDEST for step in [*steps, length * size]):
        return None
    # So that rows lie in different banks: two of them where lanes read 16 bytes, else eight.
    pitch = length + (_APART if PACKED in load.attributes else WIDEST) // size
    return _Brought(
        load, slot, PieceType.of(length * rows, length * rows, pitch * rows, pointer_dtype(load)), rows, length, pitch
    )


def _split(kernel: tile.KernelOp, weights: _Weights, stages: int) -> None:
    block = kernel.block
    original = [op for op in block.ops if not isinstance(op, tile.ReturnOp)]
    first, count = (BlockNumberOp.make(kind) for kind in ("number", "count"))
    block.insert_ops_before([first, count], original[0])
    programs, mapping = programs_of(kernel, first.out, count.out)
    for op in _needed(original, weights):  # matrices that are chosen have numbers that both roles read
        copy = op.clone(mapping)
        programs.block.add_op(copy)
        mapping.update(zip(op.results, copy.results, strict=True))
    programs.block.add_ops([_bring(weights, mapping), tile.YieldOp.create()])
    producer = Block([programs])
    programs, mapping = programs_of(kernel, first.out, count.out)
    # What comes behind the product is asked for before it.
    for op in sorted(original, key=lambda op: not isinstance(op, tile.LoadOp)):
        if not isinstance(op, tile.ProgramOp):
            programs.block.add_op(op.clone(mapping))
    programs.block.add_op(tile.YieldOp.create())
    _take(programs.block, weights)
    pieces = [each.piece for each in weights.brought]
    stream = StreamOp.make(stages, pieces, [], 0, producer, Block([programs]))
    if all(is_fixed(kernel, each.load.pointer) for each in weights.brought) and not _needed(original, weights):
        stream.attributes["early"] = UnitAttr()
    for op in reversed(original):
        op.detach()
        op.erase(safe_erase=False)
    block.insert_op_after(stream, count)


def _needed(ops: list[Operation], weights: _Weights) -> list[Operation]:
    """The ops, of these, that compute where weights are, apart from a program's numbers."""
    wanted: set[Operation] = set()
    pending = [index for each in weights.brought for index in each.load.indices]
    while pending:
        op = pending.pop().owner
        if isinstance(op, Operation) and op in ops and not isinstance(op, tile.ProgramOp) and op not in wanted:
            wanted.add(op)
            pending.extend(op.operands)
    return [op for op in ops if op in wanted]


def _bring(weights: _Weights, mapping: dict[SSAValue, SSAValue]) -> tile.ForOp:
    """The producer's loop along K."""
    loop = weights.loop
    turns = tile.ForOp.make(loop.bounds, [mapping.get(i, i) for i in loop.indices], [])
    known = {**mapping, loop.block.args[0]: turns.block.args[0]}
    turns.block.add_op(AcquireOp.of())
    for each in weights.brought:
        load = each.load
        rows = CopyRowsOp.create(
            operands=[load.pointer, *(known.get(i, i) for i in load.indices)],
            attributes={
                "slot": IntegerAttr(each.slot, i64),
                "offset": load.offset,
                "apart": tile.Sizes((load.strides.data[1],)),
                "extent": tile.Sizes((load.extents.data[1],)),
                "rows": IntegerAttr(each.rows, i64),
                "length": IntegerAttr(each.length, i64),
                "pitch": IntegerAttr(each.pitch, i64),
            },
        )
        turns.block.add_op(rows)
    turns.block.add_ops([CommitOp.of(), tile.YieldOp.create()])
    return turns


def _take(programs: Block, weights: _Weights) -> None:
    """In the consumers' copy of the loop along K, read slots instead of memory."""
    (multiply,) = [op for op in programs.walk() if isinstance(op, MmaOp)]
    made = multiply.b.owner
    block = multiply.parent_block()
    assert block is not None and isinstance(made, Operation)
    coded = isinstance(made, tile.DequantizeOp)
    loads = [operand.owner for operand in made.operands] if coded else [made]
    before = made if coded else multiply
    block.insert_op_before(WaitOp.of(), before)
    taken: dict[Operation | Block, _Brought] = {each.load: each for each in weights.brought}
    for load, original in zip(loads, _loads(weights), strict=True):
        assert isinstance(load, tile.LoadOp)
        load.attributes.pop(AHEAD, None)
        if (each := taken.get(original)) is None:
            continue
        read = ReadOp.make(each.slot, tile.Sizes((1, each.pitch)), load.out.type)
        kept = {name: load.attributes[name] for name in (LAYOUTS, PACKED, RAW) if name in load.attributes}
        read.attributes |= kept
        block.insert_op_before(read, before)
        load.out.replace_all_uses_with(read.out)
        load.detach()
        load.erase()
    block.insert_op_after(ReleaseOp.of(), multiply)


def _loads(weights: _Weights) -> list[Operation | Block]:
    made = weights.multiply.b.owner
    return [operand.owner for operand in made.operands] if isinstance(made, tile.DequantizeOp) else [made]
