"""Code for folds and scans by any function, in order: in a thread's registers, by shuffles in a warp, across warps.

Elements stand in order along the axis (`in_order`): a thread has neighbours, lanes follow one another, then warps. So
what is joined always is a stretch with the one behind it, and the function need not be commutative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32, load_shared, shuffle, store_shared
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.reduce.across_threads import Exchange, Parts, axis_bits, bits_at, reduce_axis
from weft.backends.nvidia.ir.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.ir.layouts import WARP, Layout
from weft.backends.nvidia.ir.op_facts import is_commutative
from weft.backends.nvidia.ir.shared_bytes import register_bytes
from weft.tile import collective_ops
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_Join = Callable[[Parts, Parts], Parts]
"""What stands before, what stands behind it → both."""


@EMITTERS.register(collective_ops.FoldOp)
def emit_fold(codegen: KernelCodegen, op: collective_ops.FoldOp) -> None:
    layout, axis = layout_of(op.values[0]), op.axis.value.data
    line = _Line(codegen, op, layout, axis, reverse=False)
    if is_commutative(op) and not line.flagged:
        parts = list(zip(*(codegen.tiles[value] for value in op.values), strict=True))
        via = Exchange(integer(op, SHARED), line.sizes)
        results = reduce_axis(codegen.b, codegen.threads, layout, axis, parts, line.join, via)
    else:
        results = line.folded()
    for number, out in enumerate(op.results):
        codegen.tiles[out] = [result[number] for result in results]


@EMITTERS.register(collective_ops.ScanOp)
def emit_scan(codegen: KernelCodegen, op: collective_ops.ScanOp) -> None:
    layout, axis = layout_of(op.values[0]), op.axis.value.data
    results = _Line(codegen, op, layout, axis, op.reverse is not None).scanned()
    for number, out in enumerate(op.results):
        codegen.tiles[out] = [result[number] for result in results]


class _Line:
    """The lines of a tile along an axis, in the direction in which they are joined."""

    def __init__(
        self,
        codegen: KernelCodegen,
        op: collective_ops.FoldOp | collective_ops.ScanOp,
        layout: Layout,
        axis: int,
        reverse: bool,
    ) -> None:
        self.codegen, self.b, self.op = codegen, codegen.b, op
        self.layout, self.axis, self.reverse = layout, axis, reverse
        lanes = layout.lanes[0] if layout.lanes and layout.lanes[0].axis == axis else None
        self.width = lanes.size if lanes else 1
        self.warp_bits = axis_bits(layout.warps, axis)
        self.beyond = layout.covered(axis) > layout.shape[axis]
        self.flagged = self.beyond and (reverse or isinstance(op, collective_ops.FoldOp))
        """Whether what is joined may not exist: then it says so itself, in a last part."""
        self.sizes = tuple(register_bytes(tile.tile_type(value).dtype) for value in op.values)
        self.sizes += (1,) if self.flagged else ()

    def join(self, before: Parts, behind: Parts) -> Parts:
        """What the op's block makes of two."""
        codegen, block = self.codegen, self.op.block
        count = len(self.op.values)
        for argument, value in zip(block.args, [*before[:count], *behind[:count]], strict=True):
            codegen.tiles[argument] = [value]
        codegen.block(block)
        joined = tuple(codegen.tiles[value][0] for value in self.op.yielded.operands)
        if not self.flagged:
            return joined
        # Along the axis what exists comes first, so only one of the two may be nothing.
        there, alone = (before[-1], behind) if self.reverse else (behind[-1], before)
        kept = tuple(self.b.select(there, both, one) for both, one in zip(joined, alone[:count], strict=True))
        return (*kept, behind[-1] if self.reverse else before[-1])

    def parts(self) -> list[list[Parts]]:
        """A thread's registers, line by line, in the direction of the joining."""
        b, layout, axis = self.b, self.layout, self.axis
        columns = [self.codegen.tiles[value] for value in self.op.values]
        if self.flagged:
            place = self.codegen.threads.place(layout, axis)
            side = i32(layout.shape[axis])
            columns.append([b.icmp("slt", b.add(place, i32(o[axis])), side) for o in layout.offsets])
        return [[tuple(column[r] for column in columns) for r in line] for line in self.registers()]

    def registers(self) -> list[list[int]]:
        """The numbers of a thread's registers, line by line: the lines as the sliced layout has them."""
        axis, lines = self.axis, {offset: list[int]() for offset in self.layout.sliced(self.axis).offsets}
        for number, offset in enumerate(self.layout.offsets):
            lines[(*offset[:axis], 0, *offset[axis + 1 :])].append(number)
        ordered = [sorted(line, key=lambda r: self.layout.offsets[r][axis]) for line in lines.values()]
        return [line[::-1] for line in ordered] if self.reverse else ordered

    # -- folding -----------------------------------------------------------------------------------------------------

    def folded(self) -> list[Parts]:
        results = [self._within_warp(_joined(line, self.join)) for line in self.parts()]
        if not self.warp_bits:
            return results
        totals = self._exchanged(results)
        return [_joined(list(line), self.join) for line in totals]

    def _within_warp(self, value: Parts) -> Parts:
        b, bit = self.b, 1
        while bit < self.width:
            other = tuple(shuffle(b, part, "bfly", bit, WARP) for part in value)
            second = b.icmp("ne", b.binary("and", self.codegen.threads.lane, i32(bit)), i32(0))
            before = tuple(b.select(second, o, v) for o, v in zip(other, value, strict=True))
            behind = tuple(b.select(second, v, o) for o, v in zip(other, value, strict=True))
            value = self.join(before, behind)
            bit *= 2
        return value

    # -- scanning ----------------------------------------------------------------------------------------------------

    def scanned(self) -> list[Parts]:
        """For each register, all that stands before it and itself, joined."""
        b, layout = self.b, self.layout
        lines, numbers = self.parts(), self.registers()
        inner = [_running(line, self.join) for line in lines]
        carries = [self._lanes(line[-1]) for line in inner]
        earlier: list[tuple[Parts, V] | None] = [before for _, before in carries]
        if self.warp_bits:
            earlier = self._across_warps([whole for whole, _ in carries], earlier)
        results: list[Parts] = [()] * layout.count
        for line, registers, before in zip(inner, numbers, earlier, strict=True):
            for value, register in zip(line, registers, strict=True):
                if before is not None:
                    joined = self.join(before[0], value)
                    value = tuple(b.select(before[1], j, v) for j, v in zip(joined, value, strict=True))
                results[register] = value
        return results

    def _lanes(self, total: Parts) -> tuple[Parts, tuple[Parts, V] | None]:
        """The whole of the lanes of a line, and what the lanes before this one have, with whether there are any."""
        b, width = self.b, self.width
        if width == 1:
            return total, None
        kind, last = ("down", 0) if self.reverse else ("up", width - 1)
        lane = b.binary("and", self.codegen.threads.lane, i32(width - 1))
        digit = b.sub(i32(width - 1), lane) if self.reverse else lane
        distance = 1
        while distance < width:
            before = tuple(shuffle(b, part, kind, distance, width) for part in total)
            joined = self.join(before, total)
            there = b.icmp("sge", digit, i32(distance))
            total = tuple(b.select(there, j, t) for j, t in zip(joined, total, strict=True))
            distance *= 2
        before = tuple(shuffle(b, part, kind, 1, width) for part in total)
        whole = tuple(shuffle(b, part, "idx", last, width) for part in total)
        return whole, (before, b.icmp("sgt", digit, i32(0)))

    def _across_warps(
        self, wholes: list[Parts], earlier: Sequence[tuple[Parts, V] | None]
    ) -> list[tuple[Parts, V] | None]:
        b, count = self.b, 1 << len(self.warp_bits)
        mine = self._warp_digit()
        result: list[tuple[Parts, V] | None] = []
        for totals, before in zip(self._exchanged(wholes), earlier, strict=True):
            sums = totals[0]
            for number, total in enumerate(totals[1:-1], 1):
                joined = self.join(sums, total)
                there = b.icmp("sgt", mine, i32(number))
                sums = tuple(b.select(there, j, s) for j, s in zip(joined, sums, strict=True))
            any_warp = b.icmp("sgt", mine, i32(0))
            if before is None:
                result.append((sums, any_warp))
                continue
            own, any_lane = before
            joined = self.join(sums, own)
            both = tuple(b.select(any_lane, j, s) for j, s in zip(joined, sums, strict=True))
            value = tuple(b.select(any_warp, x, y) for x, y in zip(both, own, strict=True))
            result.append((value, b.binary("or", any_warp, any_lane)))
        assert count > 1
        return result

    def _warp_digit(self) -> V:
        """The number of this warp along the axis, in the direction of the joining."""
        b, total = self.b, i32(0)
        for position, mask in enumerate(self.warp_bits):
            bit = b.binary("and", b.binary("lshr", self.codegen.threads.warp, i32(mask.bit_length() - 1)), i32(1))
            total = b.add(total, b.mul(bit, i32(1 << position)))
        return b.sub(i32((1 << len(self.warp_bits)) - 1), total) if self.reverse else total

    def _exchanged(self, values: list[Parts]) -> list[list[Parts]]:
        """For each line what each warp along the axis has, in the direction of the joining."""
        b, threads, warps = self.b, self.codegen.threads, self.layout.warp_count
        mine = b.add(b.mul(threads.warp, i32(WARP)), threads.lane)
        place = integer(self.op, SHARED)
        starts: list[list[int]] = []
        for value in values:
            starts.append([])
            for part, size in zip(value, self.sizes, strict=True):
                store_shared(b, part, place, mine, size)
                starts[-1].append(place)
                place += size * WARP * warps
        threads.barrier()
        others = b.binary("and", threads.warp, i32(warps - 1 - sum(self.warp_bits)))
        turns = range(1 << len(self.warp_bits))
        result: list[list[Parts]] = []
        for value, line in zip(values, starts, strict=True):
            result.append([])
            for turn in reversed(turns) if self.reverse else turns:
                warp = b.binary("or", others, i32(bits_at(turn, self.warp_bits)))
                index = b.add(b.mul(warp, i32(WARP)), threads.lane)
                parts = zip(value, line, self.sizes, strict=True)
                result[-1].append(tuple(load_shared(b, p.type, start, index, size) for p, start, size in parts))
        return result


def _joined(values: list[Parts], join: _Join) -> Parts:
    """Neighbours first, in order."""
    while len(values) > 1:
        paired = [join(a, c) for a, c in zip(values[::2], values[1::2], strict=False)]
        values = paired + values[len(paired) * 2 :]
    return values[0]


def _running(values: list[Parts], join: _Join) -> list[Parts]:
    result = [values[0]]
    for value in values[1:]:
        result.append(join(result[-1], value))
    return result
