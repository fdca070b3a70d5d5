"""Epilogue overlap: a dot's tile is written while the next one is multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, SSAValue

from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.dialect import SHARED
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.ir.op_facts import narrowed_to
from weft.backends.nvidia.ir.tma_store import (
    COORDINATES,
    LIMIT,
    LINES,
    MAP,
    POINTER,
    STAGE_COLUMNS,
    TmaStoreOp,
    TruncatePackOp,
    is_staged,
    packed_type,
)
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp, WarpSpecializeOp
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp
from weft.backends.nvidia.pipeline.tile_scheduler import TileScheduler
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.attributes import from_attribute
from weft.ir.expr import symbol
from weft.tile import dialect as tile

_THREADS = 128
"""Of a warp group: a piece is 64 rows of it."""
_MOST_HELD = {1: 200, 2: 200, 3: 120}
"""Registers that a thread may hold of dots and of what is still to be written, by the number of consumers."""


@dataclass(frozen=True)
class OverlapEpilogue(KernelPass):
    """Epilogue overlap: a dot's tile is written while the next one is multiplied.

    tile.for %t {                              %l = tile.for %t (%w) {
      %c = tile.for %k { … wgmma … }             wgmma … ; nvidia.tma_store %w piece 0 at the place of %t - 1 ; finish …
      tile.store %y[…], gelu(%c)        →        wgmma … ; nvidia.tma_store %w piece 1 … ; finish …
    }                                            %c = tile.for %k … { … wgmma … }
                                                 tile.yield nvidia.truncate_pack gelu(%c) }
                                               nvidia.tma_store %l piece 0 … ; nvidia.tma_store %l piece 1 …

    Narrowed to 16 bits a tile takes half the registers of its accumulators, and there is room for both. The first
    iterations of the loop over K are laid out one after the other, with a piece of the tile before in each.
    """

    name: ClassVar[str] = "overlap_epilogue"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        if kernel.counter is not None:
            return Refused("its programs are drawn: which one was before is not known")
        found = _deferral(kernel)
        return found if isinstance(found, Refused) else True

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        found = _deferral(kernel)
        assert not isinstance(found, Refused)
        found.rewrite()


def _deferral(kernel: tile.KernelOp) -> _Deferral | Refused:
    """The store of consumers that can wait, if their loop ends in one piece by piece and K is long enough."""
    roles = next((op for op in kernel.block.ops if isinstance(op, WarpSpecializeOp)), None)
    programs = roles and next((op for op in roles.consumer.block.ops if isinstance(op, tile.ForOp)), None)
    found = _found(programs.block) if programs is not None else None
    if roles is None or programs is None or found is None:
        return Refused("its programs do not end in one loop of dots and one store in pieces")
    loop, store = found
    consumers = roles.consumers.value.data
    rows, columns = tile.tile_type(store.value).sizes
    pieces = rows * columns // (64 * STAGE_COLUMNS * consumers)
    lower, upper, step = loop.bounds.data
    if not isinstance(lower, int) or not isinstance(upper, int) or not isinstance(step, int):
        return Refused("how often its loop turns is not known")
    sums = [value for op in loop.block.ops if isinstance(op, WgmmaOp) for value in (op.out, op.accumulator)]
    held = sum(_registers(v, consumers) for v in {*loop.block.args[1:], *sums} if v is not None and not _is_sum(v))
    if (upper - lower) // step < pieces:
        return Refused(f"its loop has fewer turns than a tile has pieces, {pieces}")
    if held + _registers(store.value, consumers) // 2 > _MOST_HELD[consumers]:
        return Refused("a thread has no registers for the tile before")
    return _Deferral(TileScheduler.walked_by(kernel, programs, roles.cluster.value.data), loop, store, pieces)


def _found(block: Block) -> tuple[tile.ForOp, tile.StoreOp] | None:
    """The one loop of dots of a block and the store in pieces that it ends with, if it has just these."""
    loops = [op for op in block.ops if isinstance(op, tile.ForOp)]
    stores = [op for op in block.ops if is_staged(op)]
    last = block.last_op.prev_op if block.last_op is not None else None
    if len(loops) != 1 or len(stores) != 1 or stores[0] is not last or not isinstance(last, tile.StoreOp):
        return None
    finishes = [op for op in loops[0].block.ops if isinstance(op, WgmmaWaitOp)]
    return (loops[0], last) if len(finishes) == 1 else None


def _registers(value: SSAValue, consumers: int) -> int:
    rows, columns = tile.tile_type(value).sizes
    return rows * columns // (_THREADS * consumers)


def _is_sum(value: SSAValue) -> bool:
    """Whether a dot is made in the registers of what it is added to."""
    return isinstance(value.owner, WgmmaOp) and value.owner.accumulator is not None


class _Deferral:
    def __init__(self, programs: TileScheduler, loop: tile.ForOp, store: tile.StoreOp, pieces: int) -> None:
        self.programs, self.loop, self.store, self.pieces = programs, loop, store, pieces

    def rewrite(self) -> None:
        old, dtype = self.programs.loop, pointer_dtype(self.store)
        outer = old.parent_block()
        assert outer is not None
        empty = tile.ConstantOp.make(0, packed_type(self.store.value))
        new = tile.ForOp.make(old.bounds, list(old.indices), [empty.out])
        mapping: dict[SSAValue, SSAValue] = {old.block.args[0]: new.block.args[0]}
        for op in old.block.ops:
            if op is self.loop:
                self._multiply(new.block, mapping)
            elif op is self.store:
                value = mapping[_exact(self.store)]
                narrow = TruncatePackOp.make(value, dtype)
                new.block.add_ops([narrow, tile.YieldOp.create(operands=[narrow.out])])
            elif not isinstance(op, tile.YieldOp):
                new.block.add_op(op.clone(mapping))
        end = self.programs.end()
        found, indices = self._places(end.out)
        sent = [self._send(new.results[0], indices, piece) for piece in range(self.pieces)]
        outer.insert_ops_before([empty, new, end, *found, *sent], old)
        old.detach()
        old.erase(safe_erase=False)

    def _multiply(self, block: Block, mapping: dict[SSAValue, SSAValue]) -> None:
        """The first iterations one by one, the others in a loop."""
        loop = self.loop
        lower, upper, step = (int(size) for size in loop.bounds.data if isinstance(size, int))
        carried = [mapping.get(value, value) for value in loop.initial]
        number, words = block.args
        found, indices = self._places(number)
        for piece in range(self.pieces):
            while_multiplying = [*(() if piece else found), self._send(words, indices, piece)]
            self._turn(block, mapping, lower + piece * step, carried, while_multiplying)
        bounds = tile.Sizes((lower + self.pieces * step, upper, step))
        rest = tile.ForOp.make(bounds, [mapping.get(v, v) for v in loop.indices], carried)
        inner = mapping | dict(zip(loop.block.args, rest.block.args, strict=True))
        for op in loop.block.ops:
            rest.block.add_op(op.clone(inner))
        block.add_op(rest)
        mapping.update(zip(loop.results, rest.results, strict=True))

    def _turn(
        self,
        block: Block,
        mapping: dict[SSAValue, SSAValue],
        place: int,
        carried: list[SSAValue],
        while_multiplying: Sequence[Operation],
    ) -> None:
        """One turn of the loop; replaces what is carried."""
        at = AffineApplyOp.make(tile.Sizes((place,)), [])
        block.add_op(at)
        inner = mapping | dict(zip(self.loop.block.args, (at.out, *carried), strict=True))
        for op in self.loop.block.ops:
            if isinstance(op, WgmmaWaitOp):
                block.add_ops(while_multiplying)
            if isinstance(op, tile.YieldOp):
                carried[:] = [inner[value] for value in op.operands]
            elif isinstance(op, WgmmaOp) and op.accumulator is not None and _is_zero(inner[op.accumulator]):
                begun = WgmmaOp.create(operands=[inner[op.a], inner[op.b]], result_types=[op.out.type])
                block.add_op(begun)
                inner[op.out] = begun.out
            else:
                block.add_op(op.clone(inner))

    def _places(self, number: SSAValue) -> tuple[list[Operation], list[SSAValue]]:
        """The indices of the store in the program before one, and one more that leads outside if there is none."""
        found, places, outside = self.programs.before(number)
        read: list[Operation] = []
        for index in self.store.indices:  # what is in memory is read again, for that program
            if isinstance(index.owner, tile.NumberOp):
                again = index.owner.clone(places)
                read.append(again)
                places[index] = again.results[0]
        return [*found, *read], [*(places.get(index, index) for index in self.store.indices), outside]

    def _send(self, words: SSAValue, indices: Sequence[SSAValue], piece: int) -> TmaStoreOp:
        store = self.store
        coordinates = store.attributes[COORDINATES]
        assert isinstance(coordinates, tile.Sizes)
        first, *others = coordinates.data
        away = symbol(f"d{len(store.indices)}")
        op = TmaStoreOp.create(operands=[words, *indices], attributes={"piece": IntegerAttr(piece, i64)})
        op.attributes |= {
            name: store.attributes[name] for name in (MAP, LINES, POINTER, SHARED) if name in store.attributes
        }
        op.attributes[COORDINATES] = tile.Sizes((first + away, *others))
        limit = store.attributes.get(LIMIT)
        if isinstance(limit, tile.Sizes):
            op.attributes[LIMIT] = tile.Sizes((limit.data[0] - away,))
        return op


def _is_zero(value: SSAValue) -> bool:
    return isinstance(value.owner, tile.ConstantOp) and from_attribute(value.owner.value) == 0


def _exact(store: tile.StoreOp) -> SSAValue:
    """What is written, before it is rounded to the type of memory."""
    made = store.value.owner
    return made.args[0] if isinstance(made, tile.MapOp) and narrowed_to(made) == pointer_dtype(store) else store.value
