"""TMA pipelining of skinny GEMM: a producer warp brings weights, other warps multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, UnitAttr, i64
from xdsl.ir import Block, Operation, SSAValue

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.ir.alignment import WIDEST, divisor_of, pointer_dtype
from weft.backends.nvidia.ir.dialect import LAYOUTS, RESIDENT, WARPS, set_integer, set_launch
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused, has_tma
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.mma import AGAIN, AHEAD, PACKED, MmaOp
from weft.backends.nvidia.ir.programmatic_launch import is_fixed
from weft.backends.nvidia.ir.rings import AcquireOp, CommitOp, ReleaseOp, WaitOp
from weft.backends.nvidia.ir.row_streams import ALIGNMENT, WEIGHTS, BulkCopyRowsOp, PieceType, ReadOp, StreamOp
from weft.backends.nvidia.ir.shared_bytes import shared_bytes
from weft.backends.nvidia.ir.warp_specialization import BlockNumberOp
from weft.backends.nvidia.pipeline.pipeline_rows import programs_of
from weft.backends.nvidia.target import SYSTEM_SHARED, NvidiaTarget
from weft.ir.expr import product
from weft.lower.dot.skinny_gemm import LEAST_BROUGHT
from weft.tile import dialect as tile

WARPS_OF_WEIGHTS, _RESIDENT = 8, 2
"""Warps that multiply, and blocks of a multiprocessor: one goes on while the other sums up."""
_LEAST_STAGES, _LEAST_BYTES = 3, 4096
_APART = 64
"""Bytes between rows in a slot: so two rows lie in different banks."""


@dataclass(frozen=True)
class _Weights:
    """The load of weights in a loop along K, and a slot for it."""

    loop: tile.ForOp
    load: tile.LoadOp
    piece: PieceType
    rows: int
    length: int
    pitch: int

    @property
    def bytes(self) -> int:
        """Of a program."""
        lower, upper, step = self.loop.bounds.data
        if not isinstance(lower, int) or not isinstance(upper, int) or not isinstance(step, int):
            return 0
        return -(-(upper - lower) // step) * self.piece.elements * self.piece.dtype.bytes


@dataclass(frozen=True)
class FindWeights(KernelPass):
    """Find the weights of a dot of few rows that TMA can bring in whole pieces, and are worth it.

    %b = tile.load %w[%k, %n] {packed}     →     %b = tile.load %w[%k, %n] {packed, weights}
    """

    name: ClassVar[str] = "find_weights"
    decides: ClassVar[bool] = True

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        weights, programs = _weights(kernel), product(list(kernel.grid.data))
        if not weights:
            return Refused("its weights are not whole pieces of memory that all warps share")
        if not isinstance(programs, int) or programs * sum(w.bytes for w in weights) < LEAST_BROUGHT:
            return Refused("its weights are few: caches hold them")
        return True

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        for each in _weights(kernel):
            each.load.attributes[WEIGHTS] = UnitAttr()


@dataclass(frozen=True)
class PipelineWeights(KernelPass):
    """TMA pipelining of skinny GEMM: a producer warp brings weights, other warps multiply.

    %p = tile.for %k (%acc) {                       nvidia.stream {
      %a = tile.load %x[%k] {packed}                  tile.for %t … { tile.for %k … {
      %b = tile.load %w[%k, %n] {packed}                nvidia.acquire ; nvidia.bulk_copy_rows %w[%k, %t] ;
      nvidia.commit } } tile.yield nvidia.mma %a, %b, %acc }     →    } {
    %c = … tile.reduce sum %p                         tile.for %t … { %p = tile.for %k (%acc) {
    tile.store %y[%n], gelu(%c)                         %a = tile.load … ; nvidia.wait ; %b = nvidia.read
                                                        %r = nvidia.mma %a, %b, %acc ; nvidia.release ; tile.yield %r }
                                                        … ; tile.store … } }

    Such a dot takes as long as it takes to read the weights. Two blocks of a multiprocessor have some 200 KB of
    them on their way at any time, also while they sum up one tile and begin the next: TMA goes on from tile
    to tile. Where no step of the program writes the weights, it starts before the kernel ahead has ended
    (`early_start`).
    """

    name: ClassVar[str] = "pipeline_weights"
    decides: ClassVar[bool] = True

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        return True if _weights(kernel, WEIGHTS) else Refused("no weights were found")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        weights = _weights(kernel, WEIGHTS)
        largest = max(_up(shared_bytes(op)) for op in kernel.walk())
        room = target.shared_per_block // _RESIDENT - SYSTEM_SHARED - 2 * largest - 4 * ALIGNMENT
        stage = sum(each.piece.bytes for each in weights)
        stages = room // (stage + 16)
        if stages < _LEAST_STAGES:
            return Refused(f"{_RESIDENT} blocks of a multiprocessor have no room for {_LEAST_STAGES} stages")
        _split(kernel, weights, stages)
        set_integer(kernel, RESIDENT, _RESIDENT)
        ring = _up(stages * (stage + 16)) + 2 * _up(16)
        set_launch(kernel, Launch(WARP * (WARPS_OF_WEIGHTS + 1), ring, persistent=True))
        return None


def takes_weights_apart(kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
    """Kernels of graphs, of which a block may have as many warps as share K."""
    if not (copies := has_tma(kernel, target)):
        return copies
    free = kernel.serial is None and WARPS not in kernel.attributes
    return True if free else Refused("its author says how many warps a block has, or its programs run one by one")


def _up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _weights(kernel: tile.KernelOp, marked: str = PACKED) -> list[_Weights]:
    """The loads, one for each dot, that TMA brings instead; none if it cannot."""
    products = [op for op in kernel.walk() if isinstance(op, MmaOp)]
    found = [_weights_of(each, marked) for each in products]
    loops = {each.parent_op() for each in products}
    return [each for each in found if each is not None] if None not in found and len(loops) == 1 else []


def _weights_of(multiply: MmaOp, marked: str) -> _Weights | None:
    loop, load = multiply.parent_op(), multiply.b.owner
    if multiply.fragments.warps.k != WARPS_OF_WEIGHTS or not isinstance(loop, tile.ForOp):
        return None
    if not isinstance(load, tile.LoadOp) or marked not in load.attributes:
        return None
    (length, rows), size = tile.tile_type(load.out).sizes, pointer_dtype(load).bytes
    steps = [divisor_of(each, load.indices) * size for each in (load.offset.data[0], load.strides.data[1])]
    whole = load.extents.data[0] == length and load.strides.data[0] == 1 and load.out.has_one_use()
    if not whole or any(step % WIDEST for step in steps) or length * rows * size < _LEAST_BYTES:
        return None
    pitch = length + _APART // size
    piece = PieceType.of(length * rows, length * rows, pitch * rows, pointer_dtype(load))
    return _Weights(loop, load, piece, rows, length, pitch)


def _split(kernel: tile.KernelOp, weights: list[_Weights], stages: int) -> None:
    block = kernel.block
    original = [op for op in block.ops if not isinstance(op, tile.ReturnOp)]
    first, count = (BlockNumberOp.make(kind) for kind in ("number", "count"))
    block.insert_ops_before([first, count], original[0])
    programs, mapping = programs_of(kernel, first.out, count.out)
    needed = _needed(original, weights)  # matrices that are chosen have numbers that both roles read
    for op in needed:
        copy = op.clone(mapping)
        programs.block.add_op(copy)
        mapping.update(zip(op.results, copy.results, strict=True))
    programs.block.add_ops([_bring(weights, mapping), tile.YieldOp.create()])
    producer = Block([programs])
    programs, mapping = programs_of(kernel, first.out, count.out)
    once = _same_for_all(original)
    consumer = Block([op.clone(mapping) for op in once])
    # What comes behind the dot is asked for before it.
    for op in sorted(original, key=lambda op: not isinstance(op, tile.LoadOp)):
        if not isinstance(op, tile.ProgramOp) and op not in once:
            programs.block.add_op(op.clone(mapping))
    programs.block.add_op(tile.YieldOp.create())
    _take(programs.block, weights)
    consumer.add_op(programs)
    stream = StreamOp.make(stages, [each.piece for each in weights], [], 0, producer, consumer)
    if all(is_fixed(kernel, each.load.pointer) for each in weights) and not needed:
        stream.attributes["early"] = UnitAttr()
    for op in reversed(original):
        op.detach()
        op.erase(safe_erase=False)
    block.insert_op_after(stream, count)


def _same_for_all(ops: list[Operation]) -> list[Operation]:
    """The ops that give the same in all programs: what a block finds of whole rows, it finds once."""
    found: list[Operation] = []
    for op in ops:
        simple = isinstance(op, tile.LoadOp | tile.MapOp | tile.ReduceOp | tile.ConstantOp)
        if simple and all(not isinstance(value.owner, Operation) or value.owner in found for value in op.operands):
            found.append(op)
    return found if any(isinstance(op, tile.ReduceOp) for op in found) else []


def _needed(ops: list[Operation], weights: list[_Weights]) -> list[Operation]:
    """The ops, of these, that compute where weights are, apart from a program's numbers."""
    wanted: set[Operation] = set()
    pending = [index for each in weights for index in each.load.indices]
    while pending:
        op = pending.pop().owner
        if isinstance(op, Operation) and op in ops and not isinstance(op, tile.ProgramOp) and op not in wanted:
            wanted.add(op)
            pending.extend(op.operands)
    return [op for op in ops if op in wanted]


def _bring(weights: list[_Weights], mapping: dict[SSAValue, SSAValue]) -> tile.ForOp:
    """The producer's loop along K."""
    loop = weights[0].loop
    turns = tile.ForOp.make(loop.bounds, [mapping.get(i, i) for i in loop.indices], [])
    known = {**mapping, loop.block.args[0]: turns.block.args[0]}
    copies = [_copy(each, slot, known) for slot, each in enumerate(weights)]
    turns.block.add_ops([AcquireOp.of(), *copies, CommitOp.of(), tile.YieldOp.create()])
    return turns


def _copy(weights: _Weights, slot: int, known: dict[SSAValue, SSAValue]) -> BulkCopyRowsOp:
    load = weights.load
    return BulkCopyRowsOp.create(
        operands=[load.pointer, *(known.get(i, i) for i in load.indices)],
        attributes={
            "slot": IntegerAttr(slot, i64),
            "offset": load.offset,
            "apart": tile.Sizes((load.strides.data[1],)),
            "extent": tile.Sizes((load.extents.data[1],)),
            "rows": IntegerAttr(weights.rows, i64),
            "length": IntegerAttr(weights.length, i64),
            "pitch": IntegerAttr(weights.pitch, i64),
        },
    )


def _take(programs: Block, weights: list[_Weights]) -> None:
    """In the consumers' copy of the loop along K, read slots instead of memory, and the other operand an iteration
    ahead.
    """
    products = [op for op in programs.walk() if isinstance(op, MmaOp)]
    for slot, (multiply, each) in enumerate(zip(products, weights, strict=True)):
        load = multiply.b.owner
        assert isinstance(load, tile.LoadOp) and load.parent is not None
        read = ReadOp.make(slot, tile.Sizes((1, each.pitch)), load.out.type)
        read.attributes |= {LAYOUTS: load.attributes[LAYOUTS], PACKED: UnitAttr()}
        load.parent.insert_ops_before([read] if slot else [WaitOp.of(), read], load)
        if multiply is products[-1]:
            load.parent.insert_op_after(ReleaseOp.of(), multiply)
        rows = multiply.a.owner
        if isinstance(rows, tile.LoadOp) and rows.parent is load.parent:
            rows.attributes |= {AHEAD: UnitAttr(), AGAIN: UnitAttr()}
        load.out.replace_all_uses_with(read.out)
        load.detach()
        load.erase()
