"""Makes tile ops from a group: the `Body` whose values are tiles.

An iteration variable is a scalar (a program number or a loop variable) or an axis of the tiles; `Axis` says from
where, how many at most and how many there are. An address that is affine in the axes becomes a strided load, any other
a gather.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.dialects.builtin import IndexType, IntegerAttr, StringAttr, UnitAttr
from xdsl.dialects.builtin import i64 as i64_attr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from weft.ir.attributes import to_attribute
from weft.ir.expr import Expr, Size, coefficient_of, minimum, simplify, substitute, symbol, symbols_of
from weft.ir.types import DType, boolean, f32, i64, tensor_of
from weft.lower.index_space.domain import Domain
from weft.lower.index_space.evaluate import Evaluator
from weft.ops.body import Value
from weft.tile import dialect as tile
from weft.tile import pointer_ops
from weft.tile.functions import FUNCTIONS


@dataclass(frozen=True)
class TileValue:
    """A tile in registers. Narrow floats are held as f32; `dtype` is the type the program gave the value."""

    ssa: SSAValue
    dtype: DType


@dataclass(frozen=True)
class Axis:
    """A run of the domain as an axis of the tiles: of `side` elements base .. base+extent, at most `capacity`."""

    name: str
    position: int
    base: Size
    capacity: int
    extent: Size
    side: Size


def register_dtype(dtype: DType) -> DType:
    """The type a value is computed in."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


@dataclass
class KernelEmitter(Evaluator):
    """Appends tile ops to a kernel's block."""

    domain: Domain = field(default_factory=lambda: Domain((), ()))
    block: Block = field(default_factory=Block)
    pointers: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    scalars: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    axes: dict[str, Axis] = field(default_factory=dict[str, Axis])
    rank: int = 1
    parts: bool = False
    """Whether loads say of what whole they are a part: engines that copy tiles need to know."""

    def add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def bounds(self) -> dict[str, Size]:
        return self.domain.bounds | {name: size for name, (_, size) in self.dynamic.items()}

    def program(self, axis: int) -> SSAValue:
        """This program's number along an axis of the grid."""
        attributes = {"axis": IntegerAttr(axis, i64_attr)}
        return self.add(tile.ProgramOp.create(attributes=attributes, result_types=[IndexType()]))

    # -- index expressions -----------------------------------------------------------------------------------------

    def sizes(self, *expressions: Sequence[Size]) -> tuple[list[tile.Sizes], list[SSAValue]]:
        """Expressions over named scalars as attributes over d0, d1, ..., and the operands these stand for."""
        names = sorted({name for group in expressions for size in group for name in symbols_of(size)})
        renamed: dict[str, Size] = {name: symbol(f"d{i}") for i, name in enumerate(names)}
        attributes = [tile.Sizes(tuple(substitute(size, renamed) for size in group)) for group in expressions]
        return attributes, [self.scalars[name] for name in names]

    def affine(self, address: Size) -> tuple[Size, list[Size]] | None:
        """The offset and the stride along each axis, or None where the address is not affine in the axes."""
        strides: list[Size] = [0] * self.rank
        offset = address
        for axis in self.axes.values():
            split = coefficient_of(offset, axis.name)
            if split is None:
                return None
            stride, rest = split
            strides[axis.position] = stride
            offset = rest + stride * axis.base
        if symbols_of(offset) & self.dynamic.keys() or any(symbols_of(s) & self.dynamic.keys() for s in strides):
            return None
        if any(symbols_of(s) & self.axes.keys() for s in strides):
            return None
        return offset, strides

    def access(self, offset: Size, strides: Sequence[Size]) -> tuple[dict[str, Attribute], list[SSAValue], list[int]]:
        """Attributes, index operands and shape of a strided access; axes it does not move along have size 1."""
        shape = [1] * self.rank
        extents, sides, starts = list[Size](shape), list[Size](shape), list[Size]([0] * self.rank)
        for axis in self.axes.values():
            if strides[axis.position] != 0:
                shape[axis.position] = axis.capacity
                extents[axis.position] = axis.extent
                sides[axis.position], starts[axis.position] = axis.side, axis.base
        whole = {"sides": sides, "starts": starts} if self.parts else {}
        expressions = {"offset": (offset,), "strides": strides, "extents": extents, **whole}
        attributes, operands = self.sizes(*expressions.values())
        return dict(zip(expressions, attributes, strict=True)), operands, shape

    def resolve(self, address: Size) -> Size:
        """An address over the domain's variables in terms of runs, simplified."""
        return simplify(self.domain.in_runs(simplify(address, self.bounds())), self.domain.run_bounds)

    # -- memory ----------------------------------------------------------------------------------------------------

    def load(
        self, value: SSAValue, address: Size, mask: Value | None, other: float | int | bool, inside: bool
    ) -> Value:
        dtype = tensor_of(value.type).dtype
        address = self.resolve(address)
        affine = self.affine(address)
        if affine is None or mask is not None:
            return self._gather(value, dtype, address, mask, other, inside)
        attributes, operands, shape = self.access(*affine)
        type_ = tile.TileType.of(shape, register_dtype(dtype))
        op = tile.LoadOp.create(operands=[self.pointers[value], *operands], attributes=attributes, result_types=[type_])
        return TileValue(self.add(op), dtype)

    def _gather(
        self, value: SSAValue, dtype: DType, address: Size, mask: Value | None, other: float | int | bool, inside: bool
    ) -> Value:
        offsets = self.index_tile(address)
        shape = tile.tile_type(offsets.ssa).sizes
        operands = [self.pointers[value], offsets.ssa]
        if mask is not None:
            assert isinstance(mask, TileValue)
            operands.append(mask.ssa)
            shape = _broadcast(shape, tile.tile_type(mask.ssa).sizes)
        op = tile.GatherOp.create(
            operands=operands,
            attributes={"other": to_attribute(other), **({"inside": UnitAttr()} if inside else {})},
            result_types=[tile.TileType.of(shape, register_dtype(dtype))],
        )
        return TileValue(self.add(op), dtype)

    def store(self, value: Value, target: SSAValue, address: Size) -> None:
        """Write a value to one of the group's outputs."""
        assert isinstance(value, TileValue)
        affine = self.affine(self.resolve(address))
        if affine is None:
            self.scatter(value, target, self.index_tile(self.resolve(address)), None, "assign", unordered=True)
            return
        attributes, operands, shape = self.access(*affine)
        if shape != list(tile.tile_type(value.ssa).sizes):
            attributes["spread"] = tile.Sizes(tuple(shape))
        op = tile.StoreOp.create(operands=[value.ssa, self.pointers[target], *operands], attributes=attributes)
        self.block.add_op(op)

    def scatter(
        self,
        value: TileValue,
        target: SSAValue,
        offsets: TileValue,
        mask: Value | None,
        kind: str,
        unordered: bool = False,
    ) -> None:
        operands = [value.ssa, self.pointers[target], offsets.ssa]
        if isinstance(mask, TileValue):
            operands.append(mask.ssa)
        attributes: dict[str, Attribute] = {"kind": StringAttr(kind)}
        if unordered:
            attributes["unordered"] = UnitAttr()
        self.block.add_op(tile.ScatterOp.create(operands=operands, attributes=attributes))

    def index_tile(self, address: Size) -> TileValue:
        """An index expression (over runs) as a tile of integers."""
        affine = self.affine(address)
        if affine is not None:
            attributes, operands, shape = self.access(*affine)
            type_ = tile.TileType.of(shape, i64)
            op = tile.PositionOp.create(operands=operands, attributes=attributes, result_types=[type_])
            return TileValue(self.add(op), i64)
        assert isinstance(address, Expr)
        simple: Size = 0
        total: TileValue | None = None
        for monomial, coefficient in address.terms:
            term = Expr(((monomial, coefficient),)) if monomial else coefficient
            if self.affine(term) is not None:
                simple = simple + term
                continue
            product: TileValue | None = None
            for atom in monomial:
                if atom.kind != "symbol":
                    function = {"//": "floordiv", "%": "remainder", "max": "max", "min": "min"}[atom.kind]
                    factor = self._typed(self.math(function, *(self.index_tile(arg) for arg in atom.args)))
                elif atom.name in self.dynamic:
                    factor = self._typed(self.cast(self.dynamic[atom.name][0], i64))
                else:
                    factor = self.index_tile(symbol(atom.name))
                product = factor if product is None else self._typed(self.math("mul", product, factor))
            assert product is not None
            if coefficient != 1:
                product = self._typed(self.math("mul", product, self.constant(coefficient, i64)))
            total = product if total is None else self._typed(self.math("add", total, product))
        assert total is not None
        return total if simple == 0 else self._typed(self.math("add", total, self.index_tile(simple)))

    def _typed(self, value: Value) -> TileValue:
        assert isinstance(value, TileValue)
        return value

    # -- what rules may say ----------------------------------------------------------------------------------------

    def constant(self, value: float | int | bool, dtype: DType) -> Value:
        type_ = tile.TileType.of([1] * self.rank, register_dtype(dtype))
        number = float(value) if dtype.is_float else bool(value) if dtype == boolean else int(value)
        return TileValue(self.add(tile.ConstantOp.make(number, type_)), dtype)

    def math(self, function: str, *values: Value) -> Value:
        dtype = boolean if FUNCTIONS[function].result == "bool" else values[-1].dtype
        return self.map(function, values, dtype)

    def map(self, function: str, values: Sequence[Value], dtype: DType, **extra: Attribute) -> TileValue:
        """A function of tiles, with attributes that say more of it."""
        operands = [self._typed(value).ssa for value in values]
        shape = tile.tile_type(operands[0]).sizes
        for operand in operands[1:]:
            shape = _broadcast(shape, tile.tile_type(operand).sizes)
        type_ = tile.TileType.of(shape, register_dtype(dtype))
        attributes = {"function": StringAttr(function), **extra}
        return TileValue(
            self.add(tile.MapOp.create(operands=operands, attributes=attributes, result_types=[type_])), dtype
        )

    def cast(self, value: Value, dtype: DType) -> Value:
        source = self._typed(value)
        if source.dtype == dtype or (dtype == register_dtype(source.dtype)):
            return TileValue(source.ssa, dtype)
        return self.map("cast", [value], dtype, source=to_attribute(source.dtype), target=to_attribute(dtype))

    def rounded(self, value: Value, dtype: DType) -> Value:
        """A value that was computed as memory would hold it; what was loaded is so already."""
        if register_dtype(dtype) == dtype or isinstance(self._typed(value).ssa.owner, tile.LoadOp):
            return value
        wide = TileValue(self._typed(value).ssa, register_dtype(dtype))
        return self.map("cast", [wide], dtype, source=to_attribute(wide.dtype), target=to_attribute(dtype))

    def bitcast(self, value: Value, dtype: DType) -> Value:
        return self.map("bitcast", [value], dtype, source=to_attribute(value.dtype), target=to_attribute(dtype))

    def position(self, index: Size, dtype: DType) -> Value:
        return self.cast(self.index_tile(self.resolve(index)), dtype)

    def fused(self, a: Value, b: Value, c: Value) -> TileValue:
        """`a * b + c`, which a machine may round once."""
        product = self.map("mul", [a, b], a.dtype, **{tile.CONTRACTS: UnitAttr()})
        return self._typed(self.math("add", product, c))

    def place_tile(self, offset: Size, strides: Sequence[Size], shape: Sequence[int], dtype: DType) -> TileValue:
        """The integers `offset + sum(strides[a] * i_a)`, for all places of a tile."""
        (o, s, e), operands = self.sizes((offset,), strides, tuple(shape))
        attributes = {"offset": o, "strides": s, "extents": e}
        type_ = tile.TileType.of(shape, dtype)
        op = tile.PositionOp.create(operands=operands, attributes=attributes, result_types=[type_])
        return TileValue(self.add(op), dtype)

    def scalar(self, number: Size) -> SSAValue:
        """A number over scalars as a scalar of its own."""
        place = self.place_tile(number, [], [], i64)
        return self.add(pointer_ops.IndexOp.create(operands=[place.ssa], result_types=[IndexType()]))

    # -- structure -------------------------------------------------------------------------------------------------

    def reduce_axis(self, value: Value, kind: str, axis: int, dtype: DType) -> TileValue:
        """Combine a tile along one axis."""
        source = self._typed(value)
        shape = list(tile.tile_type(source.ssa).sizes)
        shape[axis] = 1
        op = tile.ReduceOp.create(
            operands=[source.ssa],
            attributes={"kind": StringAttr(kind), "axis": IntegerAttr(axis, i64_attr)},
            result_types=[tile.TileType.of(shape, register_dtype(dtype))],
        )
        return TileValue(self.add(op), dtype)

    @contextmanager
    def loop(
        self, name: str, upper: Size, step: int, carried: list[TileValue], lower: Size = 0
    ) -> Generator[list[TileValue], None, None]:
        """A loop whose variable is the scalar `name`. The list it yields holds the carried tiles: replace them."""
        (bounds,), operands = self.sizes((lower, upper, step))
        op = tile.ForOp.make(bounds, operands, [value.ssa for value in carried])
        self.block.add_op(op)
        outer, self.block = self.block, op.block
        self.scalars[name] = op.block.args[0]
        self.scopes.append({})
        state = [TileValue(arg, value.dtype) for arg, value in zip(op.block.args[1:], carried, strict=True)]
        yield state
        self.block.add_op(tile.YieldOp.create(operands=[value.ssa for value in state]))
        self.scopes.pop()
        del self.scalars[name]
        self.block = outer
        carried[:] = [TileValue(out, value.dtype) for out, value in zip(op.results, carried, strict=True)]

    def repeated(self, value: Value, shape: Sequence[int]) -> TileValue:
        """A tile of the full shape of the axes: where it lacks one, it is chosen at every place from itself."""
        result = self._typed(value)
        for axis, size in enumerate(shape):
            if tile.tile_type(result.ssa).sizes[axis] != size:
                run = next(name for name, place in self.axes.items() if place.position == axis)
                place = self.index_tile(symbol(run))
                result = self._typed(self.where(self.math("lt", place, self.constant(0, i64)), result, result))
        return result

    def tile_axis(self, name: str, size: Size, position: int, base: Size, capacity: int, pieces: int = 1) -> None:
        """Make a run an axis of the tiles; a program may have several pieces of it."""
        whole = isinstance(size, int) and size % (capacity * pieces) == 0
        extent = capacity if whole else minimum(capacity, size - base)
        self.axes[name] = Axis(name, position, base, capacity, extent, size)


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))
