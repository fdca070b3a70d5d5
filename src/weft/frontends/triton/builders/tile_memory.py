"""Makes tile IR of pointers, reads and writes.

A pointer is an argument of the kernel (or an address made from a number) and a tile of offsets from it, so that later
stages see what memory is meant and how neighbouring elements lie.
"""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnitAttr
from xdsl.dialects.builtin import i64 as i64_attr
from xdsl.ir import Attribute, Block, SSAValue

from weft.frontends.triton.builders.tile_values import Pointer, ValueEmitter, register
from weft.ir.attributes import to_attribute
from weft.ir.types import DType, boolean, i64
from weft.tile import dialect as tile
from weft.tile import pointer_ops
from weft.tile.axis_facts import ALIGNED


def pointer_type(element: DType) -> tile.PointerType:
    return tile.PointerType(tile.TileType.of((), element).element)


class MemoryEmitter(ValueEmitter):
    """Adds what touches memory."""

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self._start = block
        self._null: dict[DType, SSAValue] = {}
        self.aligned: dict[SSAValue, int] = {}
        """What the author knows addresses to be multiples of, by their offsets."""

    def advance(self, pointer: Pointer, offset: SSAValue, offset_dtype: DType, element: DType) -> Pointer:
        return Pointer(pointer.base, self.map("add", [pointer.offsets, self.cast(offset, offset_dtype, i64)], i64))

    def pointer_to_int(self, pointer: Pointer, element: DType) -> SSAValue:
        shape = tile.tile_type(pointer.offsets).sizes
        type_ = tile.TileType.of((), i64)
        base = self.add(pointer_ops.AddressOp.create(operands=[pointer.base], result_types=[type_]))
        size = self.constant(element.bytes, i64, shape)
        distance = self.map("mul", [pointer.offsets, size], i64)
        return self.map("add", [self.view(base, shape, 0, (0,) * len(shape)), distance], i64)

    def int_to_pointer(self, address: SSAValue, element: DType) -> Pointer:
        shape = tile.tile_type(address).sizes
        if not shape:
            type_ = pointer_type(element)
            base = self.add(pointer_ops.PointerOp.create(operands=[address], result_types=[type_]))
            return Pointer(base, self.constant(0, i64, ()))
        size = self.constant(element.bytes, i64, shape)
        return Pointer(self._nowhere(element), self.map("floordiv", [address, size], i64))

    def _nowhere(self, element: DType) -> SSAValue:
        """The address 0, made at the kernel's start."""
        if element not in self._null:
            type_ = pointer_type(element)
            zero = tile.ConstantOp.make(0, tile.TileType.of((), i64))
            pointer = pointer_ops.PointerOp.create(operands=[zero.out], result_types=[type_])
            first = self._start.first_op
            assert first is not None
            self._start.insert_ops_before([zero, pointer], first)
            self._null[element] = pointer.out
        return self._null[element]

    def select_pointer(self, condition: SSAValue, yes: Pointer, no: Pointer, element: DType) -> Pointer:
        if yes.base is not no.base:
            yes, no = self.absolute(yes, element), self.absolute(no, element)
        return Pointer(yes.base, self.map("select", [condition, yes.offsets, no.offsets], i64))

    def absolute(self, pointer: Pointer, element: DType) -> Pointer:
        if pointer.base is self._null.get(element):
            return pointer
        size = self.constant(element.bytes, i64, tile.tile_type(pointer.offsets).sizes)
        return Pointer(self._nowhere(element), self.map("floordiv", [self.pointer_to_int(pointer, element), size], i64))

    def _pointing_to(self, pointer: Pointer, element: DType) -> Pointer:
        """A pointer to elements of a type, which it may have been told to point to by a cast."""
        found = element_of(pointer)
        if found == element:
            return pointer
        address = self.pointer_to_int(Pointer(pointer.base, self.constant(0, i64, ())), found)
        offsets, sizes = pointer.offsets, (found.bytes, element.bytes)
        if len(set(sizes)) > 1:
            old, new = (self.constant(size, i64, tile.tile_type(offsets).sizes) for size in sizes)
            offsets = self.map("floordiv", [self.map("mul", [offsets, old], i64), new], i64)
        return Pointer(self.int_to_pointer(address, element).base, offsets)

    def load(self, pointer: Pointer, mask: SSAValue | None, other: SSAValue | None, element: DType) -> SSAValue:
        pointer = self._pointing_to(pointer, element)
        shape = tile.tile_type(pointer.offsets).sizes
        known = self.number(other) if other is not None else 0
        if mask is not None and self.number(mask) is True:
            mask = None
        number = known if known is not None else 0
        number = float(number) if element.is_float else bool(number) if element == boolean else int(number)
        operands = [pointer.base, pointer.offsets, *([mask] if mask is not None else [])]
        gathered = self.add(
            tile.GatherOp.create(
                operands=operands,
                attributes={"other": to_attribute(number), **self._told(pointer)},
                result_types=[tile.TileType.of(shape, register(element))],
            )
        )
        if mask is None or other is None or known is not None:
            return gathered
        return self.apply("select", [mask, gathered, other], register(element))

    def _told(self, pointer: Pointer) -> dict[str, Attribute]:
        bytes_ = self.aligned.get(pointer.offsets)
        return {} if bytes_ is None else {ALIGNED: IntegerAttr(bytes_ & -bytes_, i64_attr)}

    def store(self, pointer: Pointer, value: SSAValue, mask: SSAValue | None, element: DType) -> None:
        pointer = self._pointing_to(pointer, element)
        if mask is not None and self.number(mask) is True:
            mask = None
        operands = [value, pointer.base, pointer.offsets, *([mask] if mask is not None else [])]
        attributes: dict[str, Attribute] = {
            "kind": StringAttr("assign"),
            "unordered": UnitAttr(),
            **self._told(pointer),
        }
        self.add(tile.ScatterOp.create(operands=operands, attributes=attributes))

    def atomic(
        self,
        kind: str,
        pointer: Pointer,
        value: SSAValue,
        mask: SSAValue | None,
        element: DType,
        expected: SSAValue | None = None,
        relaxed: bool = False,
    ) -> SSAValue:
        pointer = self._pointing_to(pointer, element)
        attributes: dict[str, Attribute] = {"kind": StringAttr(kind), **({"relaxed": UnitAttr()} if relaxed else {})}
        return self.add(
            pointer_ops.AtomicOp.build(
                operands=[pointer.base, pointer.offsets, value, mask, expected],
                attributes=attributes,
                result_types=[tile.TileType.of(tile.tile_type(value).sizes, register(element))],
            )
        )


def element_of(pointer: Pointer) -> DType:
    assert isinstance(pointer.base.type, tile.PointerType)
    return pointer.base.type.dtype
