"""The builder that makes tile IR: each primitive becomes one op or a few, folded where integers are known.

A pointer is an argument of the kernel (or an address made from a number) and a tile of offsets from it, so that later
stages see what memory is meant and how neighbouring elements lie. Loops carry the offsets only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import FileLineColLoc, IndexType, IntAttr, IntegerAttr, LocationAttr, StringAttr, UnitAttr
from xdsl.dialects.builtin import i64 as i64_attr
from xdsl.ir import Attribute, Block, Operation, OpResult, Region, SSAValue

from weft.frontends.triton.builder import Combine, Handle, Shape
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import symbol
from weft.ir.types import DType, boolean, f32, i32, i64
from weft.tile import dialect as tile
from weft.tile import written
from weft.tile.functions import FUNCTIONS

GRID = ("grid2", "grid1", "grid0")
"""The sizes of the grid, the axis that varies fastest last."""

_EXACT = frozenset(
    ["neg", "abs", "max", "min", "fmax", "fmin", "select", "copysign", "floor", "ceil", "trunc", "round"]
)
"""Functions of narrow floats whose results are narrow floats without rounding."""

_PURE = (tile.ConstantOp, tile.PositionOp, tile.MapOp, written.ViewOp, written.AddressOp, written.PointerOp)


@dataclass(frozen=True)
class Pointer:
    """Places in memory: so many elements from where `base` points."""

    base: SSAValue
    offsets: SSAValue


@dataclass(frozen=True)
class Argument:
    """What a kernel takes: a scalar, or a pointer to elements of a type.

    Pointers of one `group` may point to the same memory; others never do.
    """

    dtype: DType
    pointer: bool = False
    group: int = 0


def register(dtype: DType) -> DType:
    """The type that a value is held in."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


class TileBuilder:
    """Makes one kernel."""

    def __init__(self, name: str, arguments: Sequence[Argument]) -> None:
        types: list[Attribute] = [
            tile.PointerType(tile.TileType.of((), a.dtype).element)
            if a.pointer
            else tile.TileType.of((), register(a.dtype))
            for a in arguments
        ]
        status = tile.PointerType(tile.TileType.of((), i64).element)
        self.block = block = Block(arg_types=[*types, status, *[IndexType()] * len(GRID)])
        self.kernel = tile.KernelOp.create(
            attributes={
                "sym_name": StringAttr(name),
                "grid": tile.Sizes(tuple(map(symbol, GRID))),
                "symbols": tile.ArrayAttr(map(StringAttr, GRID)),
                "groups": written.numbers([a.group if a.pointer else -1 for a in arguments]),
            },
            regions=[Region(block)],
        )
        self.checks: list[tuple[str, str]] = []
        """The message and the place of each `device_assert`."""
        self._location: LocationAttr | None = None
        self._known_ops: list[dict[Any, SSAValue]] = [{}]
        self._null: dict[DType, SSAValue] = {}
        self.arguments: list[Handle] = [
            Pointer(value, self.constant(0, i64, ())) if argument.pointer else value
            for value, argument in zip(block.args, arguments, strict=False)
        ]
        self._programs = [
            self._scalar(
                self.add(
                    tile.ProgramOp.create(
                        attributes={"axis": IntegerAttr(2 - axis, i64_attr)}, result_types=[IndexType()]
                    )
                )
            )
            for axis in range(3)
        ]
        self._grid = [self._scalar(value) for value in reversed(block.args[-len(GRID) :])]

    def finish(self) -> tile.KernelOp:
        self.block.add_op(tile.ReturnOp.create())
        return self.kernel

    # -- ops -------------------------------------------------------------------------------------------------------

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

    @contextmanager
    def speculate(self) -> Generator[None]:
        """What is made inside vanishes."""
        block, checks = Block(), len(self.checks)
        try:
            with self.inside(block):
                yield
        finally:
            _drop(block)
            del self.checks[checks:]

    def _scalar(self, index: SSAValue) -> SSAValue:
        """An index as an i32 scalar."""
        return self._position((symbol("d0"),), (), (), [index], i32)

    def _position(self, offset: Any, strides: Any, shape: Shape, indices: Sequence[SSAValue], dtype: DType) -> SSAValue:
        return self.add(
            tile.PositionOp.create(
                operands=list(indices),
                attributes={"offset": tile.Sizes(offset), "strides": tile.Sizes(strides), "extents": tile.Sizes(shape)},
                result_types=[tile.TileType.of(shape, dtype)],
            )
        )

    def _known(self, value: Handle) -> int | float | bool | None:
        """The number that a tile is full of, where that is known."""
        if isinstance(value, OpResult) and isinstance(value.op, tile.ConstantOp):
            return from_attribute(value.op.value)  # type: ignore[return-value]
        if isinstance(value, OpResult) and isinstance(value.op, written.ViewOp):
            return self._known(value.op.value)
        return None

    # -- making values ---------------------------------------------------------------------------------------------

    def constant(self, value: float | int | bool, dtype: DType, shape: Shape) -> SSAValue:
        number = float(value) if dtype.is_float else bool(value) if dtype == boolean else int(value)
        return self.add(tile.ConstantOp.make(number, tile.TileType.of(shape, register(dtype))))

    def program_id(self, axis: int) -> SSAValue:
        return self._programs[axis]

    def num_programs(self, axis: int) -> SSAValue:
        return self._grid[axis]

    def arange(self, start: int, stop: int) -> SSAValue:
        return self._position((start,), (1,), (stop - start,), [], i32)

    # -- elementwise -----------------------------------------------------------------------------------------------

    def map(self, function: str, args: Sequence[SSAValue], dtype: DType) -> SSAValue:
        result = boolean if FUNCTIONS[function].result == "bool" else dtype
        folded = self._folded(function, args, dtype, result)
        if folded is not None:
            return folded
        value = self._map(function, args, register(result))
        if register(result) == result or function in _EXACT:
            return value
        return self._cast(value, f32, result)

    def _map(self, function: str, args: Sequence[SSAValue], dtype: DType, **attributes: Attribute) -> SSAValue:
        type_ = tile.TileType.of(tile.tile_type(args[0]).sizes, dtype)
        attributes["function"] = StringAttr(function)
        return self.add(tile.MapOp.create(operands=list(args), attributes=attributes, result_types=[type_]))

    def _folded(self, function: str, args: Sequence[SSAValue], dtype: DType, result: DType) -> SSAValue | None:
        """The result of integer arithmetic that is known, or that changes nothing."""
        known = [self._known(arg) for arg in args]
        if dtype.is_float or function == "select":
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
        known = self._known(value)
        if known is not None and not source.is_float and not target.is_float:
            number = np.array(known).astype(source.numpy).astype(target.numpy).item()
            return self.constant(number, target, tile.tile_type(value).sizes)
        return self._cast(value, source, target, rounding)

    def _cast(self, value: SSAValue, source: DType, target: DType, rounding: str | None = None) -> SSAValue:
        extra: dict[str, Attribute] = {"source": to_attribute(source), "target": to_attribute(target)}
        if rounding is not None:
            extra["rounding"] = StringAttr(rounding)
        return self._map("cast", [value], register(target), **extra)

    def bitcast(self, value: SSAValue, source: DType, target: DType) -> SSAValue:
        if source == target:
            return value
        return self._map("bitcast", [value], register(target), source=to_attribute(source), target=to_attribute(target))

    # -- shape -----------------------------------------------------------------------------------------------------

    def view(self, value: Handle, shape: Shape, offset: int, strides: Sequence[int]) -> Handle:
        if isinstance(value, Pointer):
            return Pointer(value.base, self.view(value.offsets, shape, offset, strides))
        type_ = tile.tile_type(value)
        if (
            type_.sizes == shape
            and offset == 0
            and all(size == 1 or a == b for size, a, b in zip(shape, strides, written.row_major(shape), strict=True))
        ):
            return value
        known = self._known(value)
        if known is not None:
            return self.add(tile.ConstantOp.make(known, tile.TileType.of(shape, type_.dtype)))
        return self.add(written.ViewOp.make(value, shape, offset, strides))

    def take(self, value: Handle, indices: SSAValue, axis: int) -> Handle:
        if isinstance(value, Pointer):
            return Pointer(value.base, self.take(value.offsets, indices, axis))
        type_ = tile.TileType.of(tile.tile_type(indices).sizes, tile.tile_type(value).dtype)
        return self.add(
            written.TakeOp.create(
                operands=[value, indices], attributes={"axis": IntegerAttr(axis, i64_attr)}, result_types=[type_]
            )
        )

    def _without(self, value: SSAValue, axis: int) -> SSAValue:
        """A tile without an axis of size 1."""
        shape = tile.tile_type(value).sizes
        left = tuple(size for a, size in enumerate(shape) if a != axis)
        strides = [stride for a, stride in enumerate(written.row_major(shape)) if a != axis]
        return self.view(value, left, 0, strides)

    # -- structured ------------------------------------------------------------------------------------------------

    def reduce(
        self, values: Sequence[SSAValue], dtypes: Sequence[DType], axis: int, combine: Combine | str
    ) -> list[Handle]:
        shape = list(tile.tile_type(values[0]).sizes)
        shape[axis] = 1
        number = IntegerAttr(axis, i64_attr)
        if isinstance(combine, str):
            indexed = combine.startswith("arg")
            type_ = tile.TileType.of(shape, i64 if indexed else register(dtypes[0]))
            reduced = self.add(
                tile.ReduceOp.create(
                    operands=list(values),
                    attributes={"kind": StringAttr(combine), "axis": number},
                    result_types=[type_],
                )
            )
            result = self.cast(reduced, i64, i32) if indexed else self._rounded(reduced, dtypes[0])
            return [self._without(result, axis)]
        op = written.FoldOp.create(
            operands=list(values),
            attributes={"axis": number},
            result_types=[tile.TileType.of(shape, register(dtype)) for dtype in dtypes],
            regions=[Region(self._combining(dtypes, combine))],
        )
        self.add(op)
        return [self._without(result, axis) for result in op.results]

    def scan(
        self, values: Sequence[SSAValue], dtypes: Sequence[DType], axis: int, combine: Combine, reverse: bool
    ) -> list[Handle]:
        attributes: dict[str, Attribute] = {"axis": IntegerAttr(axis, i64_attr)}
        if reverse:
            attributes["reverse"] = UnitAttr()
        op = written.ScanOp.create(
            operands=list(values),
            attributes=attributes,
            result_types=[value.type for value in values],
            regions=[Region(self._combining(dtypes, combine))],
        )
        self.add(op)
        return list(op.results)

    def _combining(self, dtypes: Sequence[DType], combine: Combine) -> Block:
        types = [tile.TileType.of((), register(dtype)) for dtype in dtypes]
        block = Block(arg_types=[*types, *types])
        with self.inside(block):
            results = combine(block.args[: len(types)], block.args[len(types) :])
            self.add(tile.YieldOp.create(operands=list(results)))
        return block

    def _rounded(self, value: SSAValue, dtype: DType) -> SSAValue:
        return value if register(dtype) == dtype else self._cast(value, f32, dtype)

    def dot(self, a: SSAValue, b: SSAValue, accumulator: SSAValue | None, operand: DType, result: DType) -> SSAValue:
        (*batch, m, k), n = tile.tile_type(a).sizes, tile.tile_type(b).sizes[-1]
        if batch:
            return self._batched(a, b, accumulator, operand, result)
        wide = register(result)
        a, b = self.cast(a, register(operand), wide), self.cast(b, register(operand), wide)
        if not wide.is_float:
            across = self.map(
                "mul", [self.view(a, (m, k, n), 0, (k, 1, 0)), self.view(b, (m, k, n), 0, (0, n, 1))], wide
            )
            (product,) = self.reduce([across], [wide], 1, "sum")
            return product if accumulator is None else self.map("add", [product, accumulator], wide)
        operands = [a, b] if accumulator is None else [a, b, accumulator]
        product = self.add(tile.DotOp.create(operands=operands, result_types=[tile.TileType.of((m, n), wide)]))
        return self._rounded(product, result)

    def _batched(
        self, a: SSAValue, b: SSAValue, accumulator: SSAValue | None, operand: DType, result: DType
    ) -> SSAValue:
        """One product after the other, each put in its place."""
        (count, m, k), n = tile.tile_type(a).sizes, tile.tile_type(b).sizes[-1]
        shape = (count, m, n)
        numbers = self.view(self.arange(0, count), shape, 0, (1, 0, 0))
        total = self.constant(0, result, shape)
        for position in range(count):
            added = None if accumulator is None else self.view(accumulator, (m, n), position * m * n, (n, 1))
            product = self.dot(
                self.view(a, (m, k), position * m * k, (k, 1)),
                self.view(b, (k, n), position * k * n, (n, 1)),
                added,
                operand,
                result,
            )
            here = self.map("eq", [numbers, self.constant(position, i32, shape)], i32)
            total = self.map("select", [here, self.view(product, shape, 0, (0, n, 1)), total], result)
        return total

    def sort(self, value: SSAValue, dtype: DType, descending: bool) -> SSAValue:
        attributes: dict[str, Attribute] = {"descending": UnitAttr()} if descending else {}
        return self.add(written.OrderOp.create(operands=[value], attributes=attributes, result_types=[value.type]))

    def histogram(self, value: SSAValue, dtype: DType, bins: int, mask: SSAValue | None) -> SSAValue:
        operands = [self.cast(value, dtype, i64), *([mask] if mask is not None else [])]
        return self.add(written.HistogramOp.create(operands=operands, result_types=[tile.TileType.of((bins,), i32)]))

    # -- memory ----------------------------------------------------------------------------------------------------

    def advance(self, pointer: Pointer, offset: SSAValue, offset_dtype: DType, element: DType) -> Pointer:
        return Pointer(pointer.base, self.map("add", [pointer.offsets, self.cast(offset, offset_dtype, i64)], i64))

    def pointer_to_int(self, pointer: Pointer, element: DType) -> SSAValue:
        shape = tile.tile_type(pointer.offsets).sizes
        type_ = tile.TileType.of((), i64)
        base = self.add(written.AddressOp.create(operands=[pointer.base], result_types=[type_]))
        size = self.constant(element.bytes, i64, shape)
        distance = self.map("mul", [pointer.offsets, size], i64)
        return self.map("add", [self.view(base, shape, 0, (0,) * len(shape)), distance], i64)

    def int_to_pointer(self, address: SSAValue, element: DType) -> Pointer:
        shape = tile.tile_type(address).sizes
        if not shape:
            type_ = tile.PointerType(tile.TileType.of((), element).element)
            base = self.add(written.PointerOp.create(operands=[address], result_types=[type_]))
            return Pointer(base, self.constant(0, i64, ()))
        size = self.constant(element.bytes, i64, shape)
        return Pointer(self._nowhere(element), self.map("floordiv", [address, size], i64))

    def _nowhere(self, element: DType) -> SSAValue:
        """The address 0, made at the kernel's start."""
        if element not in self._null:
            type_ = tile.PointerType(tile.TileType.of((), element).element)
            zero = tile.ConstantOp.make(0, tile.TileType.of((), i64))
            pointer = written.PointerOp.create(operands=[zero.out], result_types=[type_])
            first = self.kernel.block.first_op
            assert first is not None
            self.kernel.block.insert_ops_before([zero, pointer], first)
            self._null[element] = pointer.out
        return self._null[element]

    def select_pointer(self, condition: SSAValue, yes: Pointer, no: Pointer, element: DType) -> Pointer:
        if yes.base is not no.base:
            yes, no = self._absolute(yes, element), self._absolute(no, element)
        return Pointer(yes.base, self.map("select", [condition, yes.offsets, no.offsets], i64))

    def _absolute(self, pointer: Pointer, element: DType) -> Pointer:
        if pointer.base is self._null.get(element):
            return pointer
        size = self.constant(element.bytes, i64, tile.tile_type(pointer.offsets).sizes)
        return Pointer(self._nowhere(element), self.map("floordiv", [self.pointer_to_int(pointer, element), size], i64))

    def load(self, pointer: Pointer, mask: SSAValue | None, other: SSAValue | None, element: DType) -> SSAValue:
        shape = tile.tile_type(pointer.offsets).sizes
        known = self._known(other) if other is not None else 0
        if mask is not None and self._known(mask) is True:
            mask = None
        number = known if known is not None else 0
        number = float(number) if element.is_float else bool(number) if element == boolean else int(number)
        operands = [pointer.base, pointer.offsets, *([mask] if mask is not None else [])]
        gathered = self.add(
            tile.GatherOp.create(
                operands=operands,
                attributes={"other": to_attribute(number)},
                result_types=[tile.TileType.of(shape, register(element))],
            )
        )
        if mask is None or other is None or known is not None:
            return gathered
        return self._map("select", [mask, gathered, other], register(element))

    def store(self, pointer: Pointer, value: SSAValue, mask: SSAValue | None, element: DType) -> None:
        if mask is not None and self._known(mask) is True:
            mask = None
        operands = [value, pointer.base, pointer.offsets, *([mask] if mask is not None else [])]
        attributes: dict[str, Attribute] = {"kind": StringAttr("assign"), "unordered": UnitAttr()}
        self.add(tile.ScatterOp.create(operands=operands, attributes=attributes))

    def atomic(
        self,
        kind: str,
        pointer: Pointer,
        value: SSAValue,
        mask: SSAValue | None,
        element: DType,
        expected: SSAValue | None = None,
    ) -> SSAValue:
        return self.add(
            written.AtomicOp.build(
                operands=[pointer.base, pointer.offsets, value, mask, expected],
                attributes={"kind": StringAttr(kind)},
                result_types=[tile.TileType.of(tile.tile_type(value).sizes, register(element))],
            )
        )

    # -- control flow ----------------------------------------------------------------------------------------------

    def for_loop(
        self,
        lower: SSAValue,
        upper: SSAValue,
        step: SSAValue,
        dtype: DType,
        carried: Sequence[Handle],
        body: Callable[[Handle, list[Handle]], Sequence[Handle]],
    ) -> list[Handle]:
        known = self._known(step)
        backwards = isinstance(known, int) and known < 0
        if backwards:
            lower, upper, step = upper, lower, self.map("neg", [step], dtype)
        first, last = self._index(lower, dtype), self._index(upper, dtype)
        bounds = [first, last, self._index(step, dtype)]
        attribute = tile.Sizes((symbol("d0"), symbol("d1"), symbol("d2")))

        def turn(block: Block) -> list[Handle]:
            counter = [block.args[0], first, last] if backwards else [block.args[0]]
            place = symbol("d1") + symbol("d2") - symbol("d0") if backwards else symbol("d0")
            index = self.cast(self._position((place,), (), (), counter, i64), i64, dtype)
            return list(body(index, self._handles(block.args[1:], carried)))

        return self._loop(carried, lambda initial: tile.ForOp.make(attribute, bounds, initial), turn)

    def _index(self, value: SSAValue, dtype: DType) -> SSAValue:
        wide = self.cast(value, dtype, i64)
        return self.add(written.IndexOp.create(operands=[wide], result_types=[IndexType()]))

    def while_loop(
        self,
        carried: Sequence[Handle],
        condition: Callable[[list[Handle]], Handle],
        body: Callable[[list[Handle]], Sequence[Handle]],
    ) -> list[Handle]:
        def turn(block: Block) -> list[Handle]:
            head = written_parent(block).condition.block
            with self.inside(head):
                holds = condition(self._handles(head.args, carried))
                self.add(tile.YieldOp.create(operands=[holds]))
            return list(body(self._handles(block.args, carried)))

        return self._loop(carried, written.WhileOp.make, turn)

    def _loop(
        self,
        carried: Sequence[Handle],
        make: Callable[[list[SSAValue]], tile.ForOp | written.WhileOp],
        turn: Callable[[Block], list[Handle]],
    ) -> list[Handle]:
        """Add a loop. A pointer that a turn takes elsewhere is carried as a number: then the body is made again."""
        carried = list(carried)
        for _ in range(2):
            op = make(_plain(carried))
            checks = len(self.checks)
            with self.inside(op.body.block):
                results = turn(op.body.block)
                moved = [
                    i
                    for i, (old, new) in enumerate(zip(carried, results, strict=True))
                    if isinstance(old, Pointer) and old.base is not new.base
                ]
                if not moved:
                    self.add(tile.YieldOp.create(operands=_plain(results)))
            if not moved:
                self.add(op)
                return self._handles(op.results, carried)
            op.erase(safe_erase=False)
            del self.checks[checks:]
            for i in moved:
                carried[i] = self._absolute(carried[i], _element(carried[i]))
        raise AssertionError("a loop carries a pointer that is not a number")

    def branch(
        self, condition: SSAValue, then: Callable[[], Sequence[Handle]], otherwise: Callable[[], Sequence[Handle]]
    ) -> list[Handle]:
        blocks, results = (Block(), Block()), []
        for block, make in zip(blocks, (then, otherwise), strict=True):
            with self.inside(block):
                results.append(list(make()))
        for i, (yes, no) in enumerate(zip(*results, strict=True)):
            if isinstance(yes, Pointer) and yes.base is not no.base:
                for block, given in zip(blocks, results, strict=True):
                    with self.inside(block):
                        given[i] = self._absolute(given[i], _element(given[i]))
        for block, given in zip(blocks, results, strict=True):
            with self.inside(block):
                self.add(tile.YieldOp.create(operands=_plain(given)))
        op = written.IfOp.create(
            operands=[condition],
            result_types=[value.type for value in _plain(results[0])],
            regions=[Region(block) for block in blocks],
        )
        self.add(op)
        return self._handles(op.results, results[0])

    def _handles(self, values: Sequence[SSAValue], like: Sequence[Handle]) -> list[Handle]:
        """Values that a loop or a branch gives, as handles such as went in."""
        return [
            Pointer(old.base, value) if isinstance(old, Pointer) else value
            for value, old in zip(values, like, strict=True)
        ]

    # -- the author's eyes -----------------------------------------------------------------------------------------

    def print_values(self, prefix: str, values: Sequence[Handle], dtypes: Sequence[DType], hexadecimal: bool) -> None:
        plain = [self.pointer_to_int(v, _element(v)) if isinstance(v, Pointer) else v for v in values]
        attributes: dict[str, Attribute] = {
            "prefix": StringAttr(prefix),
            "dtypes": to_attribute(tuple(str(dtype) for dtype in dtypes)),
        }
        if hexadecimal:
            attributes["hexadecimal"] = UnitAttr()
        self.add(written.PrintOp.create(operands=plain, attributes=attributes))

    def check(self, condition: SSAValue, message: str, location: str, mask: SSAValue | None) -> None:
        self.checks.append((message, location))
        self.add(
            written.CheckOp.create(
                operands=[condition, *([mask] if mask is not None else [])],
                attributes={"number": IntegerAttr(len(self.checks), i64_attr)},
            )
        )


def written_parent(block: Block) -> written.WhileOp:
    op = block.parent_op()
    assert isinstance(op, written.WhileOp)
    return op


def _element(pointer: Pointer) -> DType:
    assert isinstance(pointer.base.type, tile.PointerType)
    return pointer.base.type.dtype


def _plain(handles: Sequence[Handle]) -> list[SSAValue]:
    """What is carried of handles: of pointers, the offsets."""
    return [handle.offsets if isinstance(handle, Pointer) else handle for handle in handles]


def _drop(block: Block) -> None:
    """Take back ops that nothing else uses."""
    for op in list(block.ops)[::-1]:
        op.detach()
        op.erase(safe_erase=False)
