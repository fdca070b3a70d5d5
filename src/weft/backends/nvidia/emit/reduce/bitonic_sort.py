"""Bitonic sort along an axis: a network over registers, then lanes, then warps.

Keys are integers whose order is that of the values: the bits of a float with the negative ones turned round, NaN the
greatest. What the network has beyond the tile's side sorts to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32, load_shared, shuffle, store_shared
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.reduce.across_threads import axis_bits
from weft.backends.nvidia.ir.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.ir.layouts import WARP
from weft.ir.types import DType
from weft.tile import collective_ops
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(collective_ops.OrderOp)
def emit_bitonic_sort(codegen: KernelCodegen, op: collective_ops.OrderOp) -> None:
    type_, layout = tile.tile_type(op.value), layout_of(op.value)
    axis, descending = len(type_.sizes) - 1, op.descending is not None
    b, place = codegen.b, codegen.threads.place(layout, axis)
    keys: list[V] = []
    for offset, value in zip(layout.offsets, codegen.tiles[op.value], strict=True):
        key = _key(codegen, value, type_.dtype)
        key = b.binary("xor", key, V(key.type, "-1")) if descending else key
        if layout.covered(axis) > type_.sizes[axis]:
            there = b.icmp("slt", b.add(place, i32(offset[axis])), i32(type_.sizes[axis]))
            key = b.select(there, key, V(key.type, _greatest(key, type_.dtype)))
        keys.append(key)
    keys = _Network(codegen, op, axis, "u" if type_.dtype.kind in ("uint", "bool") else "s").sorted(keys)
    if descending:
        keys = [b.binary("xor", key, V(key.type, "-1")) for key in keys]
    codegen.tiles[op.out] = [_value(codegen, key, type_.dtype) for key in keys]


def _greatest(key: V, dtype: DType) -> str:
    return "-1" if dtype.kind in ("uint", "bool") else str((1 << (int(key.type[1:]) - 1)) - 1)


def _key(codegen: KernelCodegen, value: V, dtype: DType) -> V:
    b = codegen.b
    if not dtype.is_float:
        if dtype.bits >= 32:
            return value
        return b.convert("sext" if dtype.kind == "int" else "zext", value, "i32")
    type_ = "i64" if value.type == "double" else "i32"
    turned = _turned(codegen, b.bitcast(value, type_))
    return b.select(b.fcmp("uno", value, value), V(type_, _greatest(turned, dtype)), turned)


def _value(codegen: KernelCodegen, key: V, dtype: DType) -> V:
    b = codegen.b
    if not dtype.is_float:
        return key if dtype.bits >= 32 else b.convert("trunc", key, f"i{dtype.bits}")
    return b.bitcast(_turned(codegen, key), "double" if key.type == "i64" else "float")


def _turned(codegen: KernelCodegen, bits: V) -> V:
    """The bits of negative floats with all but the sign turned round: its own inverse."""
    b, width = codegen.b, int(bits.type[1:])
    sign = b.binary("ashr", bits, V(bits.type, str(width - 1)))
    return b.binary("xor", bits, b.binary("and", sign, V(bits.type, str((1 << (width - 1)) - 1))))


class _Network:
    """Stretches of 2, 4, 8, … are sorted, every other one backwards, by exchanges over half their length and less."""

    def __init__(self, codegen: KernelCodegen, op: collective_ops.OrderOp, axis: int, sign: str) -> None:
        self.codegen, self.b, self.sign = codegen, codegen.b, sign
        self.layout = layout = layout_of(op.value)
        self.place, self.shared = codegen.threads.place(layout, axis), integer(op, SHARED)
        first = layout.registers[0] if layout.registers else None
        self.registers = first.size if first is not None and first.axis == axis else 1
        lanes = layout.lanes[0] if layout.lanes else None
        self.lanes = lanes.size if lanes is not None and lanes.axis == axis else 1
        self.warp_bits = axis_bits(layout.warps, axis)

    def sorted(self, keys: list[V]) -> list[V]:
        size = self.registers * self.lanes << len(self.warp_bits)
        stretch = 2
        while stretch <= size:
            distance = stretch // 2
            while distance:
                keys = self._exchange(keys, distance, stretch if stretch < size else 0)
                distance //= 2
            stretch *= 2
        return keys

    def _exchange(self, keys: list[V], distance: int, stretch: int) -> list[V]:
        if distance < self.registers:
            return self._among_registers(keys, distance, stretch)
        others = (
            self._of_lanes(keys, distance) if distance < self.registers * self.lanes else self._of_warps(keys, distance)
        )
        b = self.b
        second = self._bit(distance)
        smaller = b.binary("xor", second, self._forward(stretch))
        pairs = [(self._extreme("min", k, o), self._extreme("max", k, o)) for k, o in zip(keys, others, strict=True)]
        return [b.select(smaller, low, high) for low, high in pairs]

    def _among_registers(self, keys: list[V], distance: int, stretch: int) -> list[V]:
        b, result = self.b, list(keys)
        for number, key in enumerate(keys):
            if number & distance:
                continue
            partner = number | distance
            low, high = (self._extreme(kind, key, keys[partner]) for kind in ("min", "max"))
            if 0 < stretch < self.registers:
                low, high = (high, low) if number & stretch else (low, high)
            elif stretch:
                forward = self._forward(stretch)
                low, high = b.select(forward, low, high), b.select(forward, high, low)
            result[number], result[partner] = low, high
        return result

    def _of_lanes(self, keys: list[V], distance: int) -> list[V]:
        return [shuffle(self.b, key, "bfly", distance // self.registers, WARP) for key in keys]

    def _of_warps(self, keys: list[V], distance: int) -> list[V]:
        b, threads = self.b, self.codegen.threads
        bit = (distance // (self.registers * self.lanes)).bit_length() - 1
        size, count = int(keys[0].type[1:]) // 8, self.layout.threads
        mine = b.add(b.mul(threads.warp, i32(WARP)), threads.lane)
        theirs = b.binary("xor", mine, i32(self.warp_bits[bit] * WARP))
        for number, key in enumerate(keys):
            store_shared(b, key, self.shared + number * count * size, mine, size)
        threads.barrier()
        start = self.shared
        others = [load_shared(b, k.type, start + n * count * size, theirs, size) for n, k in enumerate(keys)]
        threads.barrier()
        return others

    def _bit(self, mask: int) -> V:
        """Whether a thread's places have a bit; it is none of those that tell its registers apart."""
        return self.b.icmp("ne", self.b.binary("and", self.place, i32(mask)), i32(0))

    def _forward(self, stretch: int) -> V:
        """Whether the stretch that a thread is in is sorted forwards; the last one, of all, is."""
        if not stretch:
            return V("i1", "true")
        return self.b.icmp("eq", self.b.binary("and", self.place, i32(stretch)), i32(0))

    def _extreme(self, kind: str, x: V, y: V) -> V:
        return self.b.intrinsic(f"{self.sign}{kind}", x, y)
