"""The builder that makes tile IR: a whole kernel, with its arguments, reductions, products and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr, UnitAttr
from xdsl.dialects.builtin import i64 as i64_attr
from xdsl.ir import Attribute, Block, OpResult, Region, SSAValue

from weft.frontends.triton.builders.builder import Combine, Handle, Shape
from weft.frontends.triton.builders.tile_control import ControlEmitter
from weft.frontends.triton.builders.tile_memory import element_of, pointer_type
from weft.frontends.triton.builders.tile_values import Pointer, register
from weft.ir.attributes import to_attribute
from weft.ir.expr import symbol
from weft.ir.types import DType, i32, i64
from weft.tile import collective_ops, control_flow, pointer_ops
from weft.tile import dialect as tile
from weft.tile.axis_facts import DIVISORS
from weft.tile.functions import COMBINERS

GRID = ("grid2", "grid1", "grid0")
"""The sizes of the grid, the axis that varies fastest last."""


@dataclass(frozen=True)
class Argument:
    """What a kernel takes: a scalar, or a pointer to elements of a type.

    Pointers of one `group` may point to the same memory; others never do.
    """

    dtype: DType
    pointer: bool = False
    group: int = 0
    divisor: int = 1
    """The number, or the address, is a multiple of this."""


class TileBuilder(ControlEmitter):
    """Makes one kernel."""

    def __init__(self, name: str, arguments: Sequence[Argument]) -> None:
        types: list[Attribute] = [
            pointer_type(a.dtype) if a.pointer else tile.TileType.of((), register(a.dtype)) for a in arguments
        ]
        block = Block(arg_types=[*types, pointer_type(i64), *[IndexType()] * len(GRID)])
        super().__init__(block)
        self.kernel = tile.KernelOp.create(
            attributes={
                "sym_name": StringAttr(name),
                "grid": tile.Sizes(tuple(map(symbol, GRID))),
                "symbols": ArrayAttr(map(StringAttr, GRID)),
                "groups": pointer_ops.numbers([a.group if a.pointer else -1 for a in arguments]),
            },
            regions=[Region(block)],
        )
        self._divisors = {number: a.divisor for number, a in enumerate(arguments) if a.divisor > 1}
        self._argument_count = len(arguments)
        self.arguments: list[Handle] = [
            Pointer(value, self.constant(0, i64, ())) if argument.pointer else value
            for value, argument in zip(block.args, arguments, strict=False)
        ]
        self._programs = [self.index_as_i32(self._program(axis)) for axis in range(len(GRID))]
        self._grid = [self.index_as_i32(value) for value in reversed(block.args[-len(GRID) :])]

    def _program(self, axis: int) -> SSAValue:
        number = IntegerAttr(len(GRID) - 1 - axis, i64_attr)
        return self.add(tile.ProgramOp.create(attributes={"axis": number}, result_types=[IndexType()]))

    def finish(self) -> tile.KernelOp:
        self.block.add_op(tile.ReturnOp.create())
        divisors = [self._divisors.get(number, 1) for number in range(self._argument_count)]
        self.kernel.attributes[DIVISORS] = pointer_ops.numbers(divisors)
        return self.kernel

    def program_id(self, axis: int) -> SSAValue:
        return self._programs[axis]

    def num_programs(self, axis: int) -> SSAValue:
        return self._grid[axis]

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
            result = reduced if indexed else self.rounded(reduced, dtypes[0])
            return [self.without_axis(result, axis)]
        op = collective_ops.FoldOp.create(
            operands=list(values),
            attributes={"axis": number},
            result_types=[tile.TileType.of(shape, register(dtype)) for dtype in dtypes],
            regions=[Region(self._combining(dtypes, combine))],
        )
        self.add(op)
        return [self.without_axis(result, axis) for result in op.results]

    def scan(
        self, values: Sequence[SSAValue], dtypes: Sequence[DType], axis: int, combine: Combine | str, reverse: bool
    ) -> list[Handle]:
        if isinstance(combine, str):
            function = COMBINERS[combine].function
            return self.scan(values, dtypes, axis, lambda a, b: [self.map(function, [*a, *b], dtypes[0])], reverse)
        attributes: dict[str, Attribute] = {"axis": IntegerAttr(axis, i64_attr)}
        if reverse:
            attributes["reverse"] = UnitAttr()
        op = collective_ops.ScanOp.create(
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
        return self.rounded(product, result)

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
        return self.add(
            collective_ops.OrderOp.create(operands=[value], attributes=attributes, result_types=[value.type])
        )

    def histogram(self, value: SSAValue, dtype: DType, bins: int, mask: SSAValue | None) -> SSAValue:
        operands = [self.cast(value, dtype, i64), *([mask] if mask is not None else [])]
        return self.add(
            collective_ops.HistogramOp.create(operands=operands, result_types=[tile.TileType.of((bins,), i32)])
        )

    # -- what the author knows ---------------------------------------------------------------------------------------

    def hint(self, value: Handle, name: str, numbers: Sequence[int]) -> None:
        if isinstance(value, Pointer):
            if name == "multiple_of":  # of bytes: it is the access that may use it
                self.aligned[value.offsets] = min(numbers)
            return
        if isinstance(value, OpResult):
            value.op.attributes[name] = to_attribute(tuple(numbers))
        elif name == "multiple_of" and value in self.kernel.block.args[: self._argument_count]:
            number = list(self.kernel.block.args).index(value)
            self._divisors[number] = max(self._divisors.get(number, 1), numbers[0])

    def assume(self, condition: Handle) -> None:
        """`x % c == 0` says what x is a multiple of."""
        match condition.op if isinstance(condition, OpResult) else None:
            case tile.MapOp() as op if op.function.data == "eq" and self.number(op.args[1]) == 0:
                rest = op.args[0]
            case _:
                return
        if isinstance(rest, OpResult) and isinstance(rest.op, tile.MapOp):
            value, divisor = rest.op.args[0], self.number(rest.op.args[-1])
            shape = tile.tile_type(value).sizes
            if rest.op.function.data in ("fmod", "remainder") and isinstance(divisor, int) and divisor > 0:
                self.hint(value, "multiple_of", [divisor] * max(1, len(shape)))

    # -- the author's eyes -----------------------------------------------------------------------------------------

    def shape_of(self, value: Handle) -> Shape:
        return tile.tile_type(value.offsets if isinstance(value, Pointer) else value).sizes

    def known(self, value: Handle) -> float | int | bool | None:
        return None

    def show(self, value: Handle) -> str | None:
        return None

    def print_values(self, prefix: str, values: Sequence[Handle], dtypes: Sequence[DType], hexadecimal: bool) -> None:
        plain = [self.pointer_to_int(v, element_of(v)) if isinstance(v, Pointer) else v for v in values]
        attributes: dict[str, Attribute] = {
            "prefix": StringAttr(prefix),
            "dtypes": to_attribute(tuple(str(dtype) for dtype in dtypes)),
        }
        if hexadecimal:
            attributes["hexadecimal"] = UnitAttr()
        self.add(control_flow.PrintOp.create(operands=plain, attributes=attributes))

    def check(self, condition: SSAValue, message: str, location: str, mask: SSAValue | None) -> None:
        self.checks.append((message, location))
        self.add(
            control_flow.CheckOp.create(
                operands=[condition, *([mask] if mask is not None else [])],
                attributes={"number": IntegerAttr(len(self.checks), i64_attr)},
            )
        )
