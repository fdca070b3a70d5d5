"""Makes tile IR of what is computed element by element: ops that are folded where integers are known, and made once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, IntegerAttr, LocationAttr, StringAttr, UnitAttr
from xdsl.dialects.builtin import i64 as i64_attr
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue

from weft.frontends.triton.builders.builder import Handle, Shape
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import symbol
from weft.ir.types import DType, boolean, f32, i32
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile
from weft.tile.functions import FUNCTIONS

_EXACT = frozenset(
    ["neg", "abs", "max", "min", "fmax", "fmin", "select", "copysign", "floor", "ceil", "trunc", "round"]
)
"""Functions of narrow floats whose results are narrow floats without rounding."""

_PURE = (
    tile.ConstantOp,
    tile.PositionOp,
    tile.MapOp,
    collective_ops.ViewOp,
    pointer_ops.AddressOp,
    pointer_ops.PointerOp,
)


@dataclass(frozen=True)
class Pointer:
    """Places in memory: so many elements from where `base` points."""

    base: SSAValue
    offsets: SSAValue


def register(dtype: DType) -> DType:
    """The type that a value is held in."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def _is_one_of(number: float, dtype: DType) -> bool:
    """Whether a type of floats has a number."""
    with np.errstate(all="ignore"):
        return float(np.array(number).astype(dtype.numpy)) == number


class ValueEmitter:
    """Adds ops to a block."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.checks: list[tuple[str, str]] = []
        """The message and the place of each `device_assert`."""
        self._location: LocationAttr | None = None
        self._known_ops: list[dict[Any, SSAValue]] = [{}]

    def add(self, op: Operation) -> SSAValue:
        """Add an op, unless there is one already that gives the same."""
        if self._location is not None:
            op.location = self._location
        if isinstance(op, _PURE):
            key = (type(op), tuple(map(id, op.operands)), tuple(op.attributes.items()), op.results[0].type)
            for known in self._known_ops:
                if key in known:
                    op.erase()
                    return known[key]
            self._known_ops[-1][key] = op.results[0]
        self.block.add_op(op)
        return op.results[0] if op.results else None  # type: ignore[return-value]

    def at(self, location: str) -> None:
        file, line, column = location.rsplit(":", 2)
        self._location = FileLineColLoc(StringAttr(file), IntAttr(int(line)), IntAttr(int(column)))

    @contextmanager
    def inside(self, block: Block) -> Generator[None]:
        """Add ops to another block."""
        outer, self.block = self.block, block
        self._known_ops.append({})
        try:
            yield
        finally:
            self.block = outer
            self._known_ops.pop()

    def index_as_i32(self, index: SSAValue) -> SSAValue:
        """An index as an i32 scalar."""
        return self.positions((symbol("d0"),), (), (), [index], i32)

    def positions(self, offset: Any, strides: Any, shape: Shape, indices: Sequence[SSAValue], dtype: DType) -> SSAValue:
        return self.add(
            tile.PositionOp.create(
                operands=list(indices),
                attributes={"offset": tile.Sizes(offset), "strides": tile.Sizes(strides), "extents": tile.Sizes(shape)},
                result_types=[tile.TileType.of(shape, dtype)],
            )
        )

    def number(self, value: Handle) -> int | float | bool | None:
        """The number that a tile is full of, where that is known."""
        if isinstance(value, OpResult) and isinstance(value.op, tile.ConstantOp):
            return from_attribute(value.op.value)  # type: ignore[return-value]
        if isinstance(value, OpResult) and isinstance(value.op, collective_ops.ViewOp):
            return self.number(value.op.value)
        return None

    def constant(self, value: float | int | bool, dtype: DType, shape: Shape) -> SSAValue:
        number = float(value) if dtype.is_float else bool(value) if dtype == boolean else int(value)
        return self.add(tile.ConstantOp.make(number, tile.TileType.of(shape, register(dtype))))

    def arange(self, start: int, stop: int) -> SSAValue:
        return self.positions((start,), (1,), (stop - start,), [], i32)

    def map(self, function: str, args: Sequence[SSAValue], dtype: DType) -> SSAValue:
        result = boolean if FUNCTIONS[function].result == "bool" else dtype
        folded = self._folded(function, args, dtype, result)
        if folded is not None:
            return folded
        value = self.apply(function, args, register(result))
        if register(result) == result or function in _EXACT:
            return value
        return self.convert(value, f32, result, implied=True)

    def apply(self, function: str, args: Sequence[SSAValue], dtype: DType, **attributes: Attribute) -> SSAValue:
        type_ = tile.TileType.of(tile.tile_type(args[0]).sizes, dtype)
        attributes["function"] = StringAttr(function)
        return self.add(tile.MapOp.create(operands=list(args), attributes=attributes, result_types=[type_]))

    def _folded(self, function: str, args: Sequence[SSAValue], dtype: DType, result: DType) -> SSAValue | None:
        """The result of integer arithmetic that is known, or that changes nothing; of floats, which one is greater."""
        known = [self.number(arg) for arg in args]
        if (dtype.is_float and function not in ("max", "min")) or function == "select":
            return None
        if all(number is not None for number in known):
            if function in ("floordiv", "truncdiv", "remainder", "fmod") and known[1] == 0:
                return None
            with np.errstate(all="ignore"):
                value = FUNCTIONS[function].numpy(*(np.array(number).astype(dtype.numpy) for number in known))
            return self.constant(np.asarray(value).item(), result, tile.tile_type(args[0]).sizes)
        match function, known:
            case ("add" | "or" | "xor" | "sub" | "shl" | "shr", [None, 0]) | (
                "mul" | "floordiv" | "truncdiv",
                [None, 1],
            ):
                return args[0]
            case ("add" | "or" | "xor", [0, None]) | ("mul", [1, None]):
                return args[1]
            case ("and", [None, True]) if dtype == boolean:
                return args[0]
            case ("and", [True, None]) if dtype == boolean:
                return args[1]
            case ("mul", [0, None] | [None, 0]):
                return self.constant(0, dtype, tile.tile_type(args[0]).sizes)
            case _:
                return None

    def cast(self, value: SSAValue, source: DType, target: DType, rounding: str | None = None) -> SSAValue:
        if source == target or target == register(source):
            return value
        known = self.number(value)
        integers = not source.is_float and not target.is_float
        if known is not None and rounding is None and (integers or (target.is_float and _is_one_of(known, target))):
            number = np.array(known).astype(source.numpy).astype(target.numpy).item() if integers else known
            return self.constant(number, target, tile.tile_type(value).sizes)
        return self.convert(value, source, target, rounding)

    def convert(
        self, value: SSAValue, source: DType, target: DType, rounding: str | None = None, *, implied: bool = False
    ) -> SSAValue:
        extra: dict[str, Attribute] = {"source": to_attribute(source), "target": to_attribute(target)}
        if implied:
            extra[tile.IMPLIED] = UnitAttr()
        if rounding is not None:
            extra["rounding"] = StringAttr(rounding)
        return self.apply("cast", [value], register(target), **extra)

    def bitcast(self, value: SSAValue, source: DType, target: DType) -> SSAValue:
        if source == target:
            return value
        return self.apply(
            "bitcast", [value], register(target), source=to_attribute(source), target=to_attribute(target)
        )

    def view(self, value: Handle, shape: Shape, offset: int, strides: Sequence[int]) -> Handle:
        if isinstance(value, Pointer):
            return Pointer(value.base, self.view(value.offsets, shape, offset, strides))
        type_ = tile.tile_type(value)
        if (
            type_.sizes == shape
            and offset == 0
            and all(
                size == 1 or a == b for size, a, b in zip(shape, strides, collective_ops.row_major(shape), strict=True)
            )
        ):
            return value
        known = self.number(value)
        if known is not None:
            return self.add(tile.ConstantOp.make(known, tile.TileType.of(shape, type_.dtype)))
        return self.add(collective_ops.ViewOp.make(value, shape, offset, strides))

    def take(self, value: Handle, indices: SSAValue, axis: int) -> Handle:
        if isinstance(value, Pointer):
            return Pointer(value.base, self.take(value.offsets, indices, axis))
        type_ = tile.TileType.of(tile.tile_type(indices).sizes, tile.tile_type(value).dtype)
        return self.add(
            collective_ops.TakeOp.create(
                operands=[value, indices], attributes={"axis": IntegerAttr(axis, i64_attr)}, result_types=[type_]
            )
        )

    def without_axis(self, value: SSAValue, axis: int) -> SSAValue:
        """A tile without an axis of size 1."""
        shape = tile.tile_type(value).sizes
        left = tuple(size for a, size in enumerate(shape) if a != axis)
        strides = [stride for a, stride in enumerate(collective_ops.row_major(shape)) if a != axis]
        return self.view(value, left, 0, strides)

    def rounded(self, value: SSAValue, dtype: DType) -> SSAValue:
        return value if register(dtype) == dtype else self.convert(value, f32, dtype)
