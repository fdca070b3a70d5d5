"""The loops of a cluster: one nest over its shape, vectors along the innermost axis, all sinks at each position.

Where masks are known along a part of the innermost axis, that part has code of its own in which nothing is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from math import prod
from typing import TYPE_CHECKING, TypeGuard

from xdsl.ir import OpResult, SSAValue

from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.clusters import Fill, FusedLoop, Sink, cost_of, origin_of, sink_roots, sink_value
from weft.backends.cpu.computed import all_of, rows_ahead
from weft.backends.cpu.extrema import PlaceAccumulator
from weft.backends.cpu.mask_ranges import stretches
from weft.backends.cpu.masks import unmasked_part
from weft.backends.cpu.memory_order import lazy_closure, same_place_closure
from weft.backends.cpu.position import UNROLLED_STEPS, Position, lanes_for, walk, walk_rest, walk_steps
from weft.backends.cpu.reductions import Accumulator, accumulator_of
from weft.backends.cpu.transposed import emit_transposed, transposed_axes
from weft.backends.cpu.written import store_unordered
from weft.backends.llvm.math import emit_function
from weft.backends.llvm.math_division import Divisor, can_divide
from weft.backends.llvm.values import V, const, i64, scalar_type
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_UNROLLED_COST = 80
_DIVIDED = 32
"""Quotients with one divisor from which on its reciprocal is worth making."""
_LEAST_COMPARED = 64
"""Elements of a line from which on each lane looks for an extremum of its own: these are compared at the end."""
_FEW_MASKED = 4
"""Masked reads from which on code without masks, for where they hold, is worth its length."""


class LoopNest:
    """Makes the loops of one cluster."""

    def __init__(self, codegen: KernelCodegen, cluster: FusedLoop) -> None:
        self.codegen = codegen
        self.cluster = cluster
        self.b = codegen.b
        shape = cluster.shape
        self.inner = max((axis for axis, size in enumerate(shape) if size > 1), default=len(shape) - 1)
        self.roots = [root for sink in cluster.sinks for root in sink_roots(sink)]
        self.index = [i64(0)] * len(shape)
        self.accumulators: dict[tile.ReduceOp, Accumulator | PlaceAccumulator] = {}
        self.known: dict[SSAValue, V] = {}
        """Masks of which the code being made knows what they are."""

    def emit(self) -> None:
        codegen, cluster, b, inner = self.codegen, self.cluster, self.b, self.inner
        codegen.prepare(self.roots, cluster.sinks)
        keeps = self._keeps()
        self.kept = set(keeps)
        # What a write needs beside its value is computed as it writes: kept values have to be there by then.
        self.keeping = [r for r in self.roots if self.kept and any(v in self.kept for v in lazy_closure(r))]
        for value in keeps:
            self._allocate(value)
        self.extents = self._extents()
        turned = None if codegen.written else transposed_axes(codegen, cluster)
        if turned is not None:
            emit_transposed(codegen, cluster, self.extents, *turned)
            return
        sums = [sink for sink in cluster.sinks if isinstance(sink, tile.ReduceOp)]
        for sink in sums:
            self._allocate(sink.out)
            if sink.axis.value.data != inner:
                self._start_outer(sink)
        with ExitStack() as loops:
            for axis, size in enumerate(cluster.shape):
                if axis != inner and size > 1:
                    self.index[axis] = loops.enter_context(b.loop(i64(0), self.extents[axis], i64(1)))
            lanes = self._lanes(self.extents[inner])
            self.accumulators = {
                sink: accumulator_of(sink).start(codegen, sink, lanes) for sink in sums if sink.axis.value.data == inner
            }
            self._line()
            place = [i64(0) if axis == inner else v for axis, v in enumerate(self.index)]
            for sink, accumulator in self.accumulators.items():
                codegen.buffers[sink.out].write(b, accumulator.finish(), place)
        codegen.divisors = {}

    def _allocate(self, value: SSAValue) -> None:
        type_ = tile.tile_type(value)
        self.codegen.buffers[value] = Buffer.allocate(self.b, type_.sizes, type_.dtype)

    def _keeps(self) -> list[SSAValue]:
        """The values that the loop writes to buffers for others: those it computes at every position."""
        if not self.cluster.keeps:
            return []
        here = {v: None for root in self.roots for v in same_place_closure(root)}
        is_still = self.codegen.neighbours.is_still
        return [
            value
            for value in self.cluster.keeps
            if value in here and value not in self.codegen.buffers and not is_still(value, self.inner)
        ]

    # -- the innermost axis ----------------------------------------------------------------------------------------

    def _line(self) -> None:
        """Walk the innermost axis."""
        codegen, inner = self.codegen, self.inner
        self.steady = self._steady()
        self.ahead = [] if codegen.written else rows_ahead(codegen, self.cluster, self.extents, self.index, inner)
        # Long code gains nothing from being laid out several times, and LLVM takes long over it.
        cost = sum(cost_of(sink_value(sink)) for sink in self.cluster.sinks)
        self.unrolled = min(UNROLLED_STEPS, _UNROLLED_COST // max(1, cost))
        self.pause = self._folding()
        if codegen.written:
            self._up_to_masks()
        elif not self._in_stretches():
            self._masked_or_not()

    def _whole(self) -> None:
        extent = self.extents[self.inner]
        walk(self.b, extent, self._lanes(extent), self._turn, self.unrolled, self.pause)

    def _up_to_masks(self) -> None:
        """As far as no mask hides anything without masks, and the rest with them."""
        codegen, b, extent = self.codegen, self.b, self.extents[self.inner]
        lanes = self._lanes(extent)
        part = unmasked_part(codegen, self.cluster, self.steady, extent)
        if part is None or lanes == 1:
            self._whole()
            return
        stop = b.binary("and", part.count, i64(-lanes))
        with self._knowing(part.masks):
            walk_steps(b, i64(0), stop, lanes, self._turn, self.pause)
        walk_rest(b, stop, int(extent.name), lanes, self._turn)

    def _in_stretches(self) -> bool:
        """Stretches along which masks are known, each with code of its own; False if it is one line."""
        extent = self.extents[self.inner]
        if extent.name.startswith("%"):
            return False
        values = [sink_value(sink) for sink in self.cluster.sinks]
        pieces = stretches(values, self.inner, int(extent.name))
        for piece in pieces:

            def step(i: V, lanes: int, start: int = piece.start) -> None:
                self._turn(self.b.add(i64(start), i), lanes)

            length = i64(piece.stop - piece.start)
            held = [mask for mask, holds in piece.known.items() if holds]
            with self._knowing(held, [mask for mask in piece.known if mask not in held]):
                walk(self.b, length, self._lanes(length), step, self.unrolled, self.pause)
        return bool(pieces)

    @contextmanager
    def _knowing(self, true: Iterable[SSAValue], false: Iterable[SSAValue] = ()) -> Generator[None]:
        """Make code for positions at which masks hold, or do not."""
        self.known = {mask: const(holds, "i1") for masks, holds in ((true, True), (false, False)) for mask in masks}
        yield
        self.known = {}

    def _masked_or_not(self) -> None:
        """Mostly nothing is masked, as inside an image: then no address has to be chosen."""
        codegen, b = self.codegen, self.b
        masked = [] if self.accumulators else self._masked_at_once()
        if len(masked) < _FEW_MASKED:
            self._whole()
            return
        masks = {op.mask: None for op in masked if op.mask is not None}
        every = all_of(b, [codegen.at(mask, self.steady.copy()) for mask in masks])
        with b.when(every), self._knowing(masks):
            self._whole()
        with b.when(b.binary("xor", every, const(True, "i1"))):
            self._whole()

    def _masked_at_once(self) -> list[tile.GatherOp]:
        """The reads that are masked all along the inner axis or not at all."""
        values = {v: None for sink in self.cluster.sinks for v in lazy_closure(sink_value(sink))}
        reads = [v.op for v in values if isinstance(v, OpResult) and v not in self.codegen.buffers]
        return [
            op
            for op in reads
            if isinstance(op, tile.GatherOp)
            and op.mask is not None
            and tile.tile_type(op.mask).sizes[self.inner] == 1
            and tile.tile_type(op.offsets).sizes[self.inner] != 1
        ]

    def _folding(self) -> Callable[[], None] | None:
        """What long sums do now and then: errors grow with the number of additions to one place."""
        sums = [accumulator for accumulator in self.accumulators.values() if accumulator.total is not None]

        def fold() -> None:
            for accumulator in sums:
                accumulator.fold()

        return fold if sums else None

    def _steady(self) -> Position:
        """A position that knows the values that do not move along the inner axis: computed once before its loop."""
        codegen, inner, shape = self.codegen, self.inner, self.cluster.shape
        here = Position(tuple(self.index), inner, 1)
        made = {sink.out for sink in self.cluster.sinks if isinstance(sink, tile.ReduceOp)}
        for value in {v: None for root in self.roots for v in lazy_closure(root)}:
            if len(tile.tile_type(value).sizes) != len(shape) or value in made:
                continue
            if shape[inner] > 1 and codegen.neighbours.is_still(value, inner):
                codegen.at(value, here)
            if shape[inner] >= _DIVIDED and self._divides(value):
                codegen.divisors[value] = Divisor.of(self.b, codegen.at(value.op.operands[1], here))
        return here

    def _divides(self, value: SSAValue) -> TypeGuard[OpResult]:
        """Whether a value is a quotient whose divisor is the same all along the inner axis."""
        if not (isinstance(value, OpResult) and isinstance(value.op, tile.MapOp)) or value in self.codegen.buffers:
            return False
        if value.op.function.data != "div" or not can_divide(self.b, scalar_type(tile.tile_type(value).dtype)):
            return False
        still = [self.codegen.neighbours.is_still(arg, self.inner) for arg in value.op.args]
        return still == [False, True]

    # -- sizes -----------------------------------------------------------------------------------------------------

    def _extents(self) -> list[V]:
        codegen, result = self.codegen, list[V]()
        for axis, size in enumerate(self.cluster.shape):
            candidates = [
                codegen.extents(sink_value(sink))[axis]
                for sink in self.cluster.sinks
                if tile.tile_type(sink_value(sink)).sizes[axis] != 1
            ]
            for sink in self.cluster.sinks:
                if isinstance(sink, tile.StoreOp) and size != 1:
                    candidates.append(codegen.size(sink.extents.data[axis], sink.indices))
            result.append(codegen.least(candidates, size) if size != 1 else i64(1))
        return result

    def _lanes(self, extent: V) -> int:
        sinks = self.cluster.sinks
        if self.cluster.shape[self.inner] < _LEAST_COMPARED and any(
            isinstance(sink, tile.ReduceOp) and COMBINERS[sink.kind.data].indexed for sink in sinks
        ):
            return 1
        widest = max((tile.tile_type(sink_value(sink)).dtype.bits for sink in sinks), default=32)
        return lanes_for(self.codegen.target, widest, extent)

    # -- one position ----------------------------------------------------------------------------------------------

    def _turn(self, start: V, lanes: int) -> None:
        """Compute all sinks at a position, and then write them."""
        place = tuple(start if axis == self.inner else v for axis, v in enumerate(self.index))
        here = self.steady.known_at(place, lanes, self.codegen.neighbours.is_still)
        here.values.update(self.known)
        if lanes == self.codegen.target.lanes:
            for row in self.ahead:
                row.prefetch(self.b, start)
        for root in self.keeping:
            self.codegen.at(root, here, self.kept)
        results = [(sink, self.codegen.at(sink_value(sink), here, self.kept)) for sink in self.cluster.sinks]
        for sink, value in results:
            outer = self.b.made_for(origin_of(sink))
            self._put(sink, value, here)
            self.b.made_for(outer)

    def _put(self, sink: Sink, value: V, here: Position) -> None:
        b, codegen = self.b, self.codegen
        if isinstance(sink, tile.StoreOp):
            codegen.store(sink, value, here)
        elif isinstance(sink, Fill):
            codegen.write(sink.buffer, value, here)
        elif isinstance(sink, tile.ScatterOp):
            store_unordered(codegen, sink, value, here)
        elif sink in self.accumulators:
            self.accumulators[sink].add(value, here.index[here.inner], here.lanes)
        else:
            buffer = codegen.buffers[sink.out]
            index = [i64(0) if axis == sink.axis.value.data else v for axis, v in enumerate(here.index)]
            value = b.splat(value, here.lanes if buffer.shape[here.inner] != 1 else 1)
            old = buffer.read(b, index, value.lanes)
            function = COMBINERS[sink.kind.data].function
            buffer.write(b, emit_function(b, function, [old, value], buffer.dtype), index)

    def _start_outer(self, sink: tile.ReduceOp) -> None:
        """Set the result of a reduction along an outer axis to the identity."""
        b, type_, buffer = self.b, tile.tile_type(sink.out), self.codegen.buffers[sink.out]
        identity = COMBINERS[sink.kind.data].identity(type_.dtype)
        count = prod(type_.sizes)
        flat = Buffer(buffer.pointer, (count,), buffer.dtype)
        with b.loop(i64(0), i64(count), i64(1)) as i:
            flat.write(b, const(identity, scalar_type(type_.dtype)), [i])
