"""Tiles that a loop carries: each turn computes all of them from those of the turn before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr
from xdsl.dialects.builtin import i64 as i64_attr
from xdsl.ir import Block, Operation, Region, SSAValue

from tests.seeds import generator
from weft.ir.types import Tensor, element_type, f32
from weft.lower.emit.kernel import Kernel
from weft.lower.lowered import Argument, KernelCall, Lowered
from weft.lower.schedule.schedule import Schedule
from weft.testing.kernels import CpuModule, Trial, run_interpreted
from weft.tile import dialect as tile

ROWS, COLUMNS, TURNS = 4, 8, 3
WIDE, NARROW = (ROWS, COLUMNS), (ROWS, 1)
Body = Callable[["Writer", SSAValue, Sequence[SSAValue]], Sequence[SSAValue]]


class Writer:
    """Appends tile ops to a block."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def constant(self, value: float, shape: Sequence[int]) -> SSAValue:
        return self.add(tile.ConstantOp.make(value, tile.TileType.of(shape, f32)))

    def map(self, function: str, *args: SSAValue) -> SSAValue:
        shape = [max(sizes) for sizes in zip(*(tile.tile_type(arg).sizes for arg in args), strict=True)]
        attributes = {"function": StringAttr(function)}
        return self.add(
            tile.MapOp.create(operands=args, attributes=attributes, result_types=[tile.TileType.of(shape, f32)])
        )

    def sum(self, value: SSAValue) -> SSAValue:
        attributes = {"kind": StringAttr("sum"), "axis": IntegerAttr(1, i64_attr)}
        return self.add(
            tile.ReduceOp.create(
                operands=[value], attributes=attributes, result_types=[tile.TileType.of((ROWS, 1), f32)]
            )
        )


def access(shape: Sequence[int]) -> dict[str, tile.Sizes]:
    strides = (shape[1], 1)
    return {"offset": tile.Sizes((0,)), "strides": tile.Sizes(strides), "extents": tile.Sizes(tuple(shape))}


def looped(shapes: Sequence[tuple[int, int]], body: Body) -> Trial:
    """A kernel that starts from tiles full of 1, 2, ..., and runs `body(writer, input, carried)` some times."""
    pointer = tile.PointerType(element_type(f32))
    block = Block(arg_types=[pointer] * (1 + len(shapes)))
    w = Writer(block)
    x = w.add(
        tile.LoadOp.create(
            operands=[block.args[0]], attributes=access(WIDE), result_types=[tile.TileType.of(WIDE, f32)]
        )
    )
    initial = [w.constant(float(n + 1), shape) for n, shape in enumerate(shapes)]
    loop = tile.ForOp.make(tile.Sizes((0, TURNS, 1)), [], initial)
    block.add_op(loop)
    made = body(Writer(loop.block), x, loop.block.args[1:])
    loop.block.add_op(tile.YieldOp.create(operands=made))
    for result, target, shape in zip(loop.results, block.args[1:], shapes, strict=True):
        block.add_op(tile.StoreOp.create(operands=[result, target], attributes=access(shape)))
    block.add_op(tile.ReturnOp.create())
    attributes = {"sym_name": StringAttr("k"), "grid": tile.Sizes((1,)), "symbols": ArrayAttr[StringAttr]([])}
    kernel = tile.KernelOp.create(attributes=attributes, regions=[Region(block)])
    kernel.verify()
    arguments = (Argument("input", 0), *(Argument("output", n) for n in range(len(shapes))))
    call = KernelCall(Kernel(kernel, (), Schedule("pointwise", "r0", COLUMNS)), arguments)
    return Trial(Lowered((call,)), (Tensor(f32, WIDE),), tuple(Tensor(f32, shape) for shape in shapes))


def narrow_ones_stay_until_wide_ones_are_made(w: Writer, x: SSAValue, carried: Sequence[SSAValue]) -> list[SSAValue]:
    kept, narrow, wide = carried
    return [kept, w.map("add", narrow, w.constant(1.0, NARROW)), w.map("add", wide, w.map("mul", x, narrow))]


def a_sum_between_two_of_one_shape(w: Writer, x: SSAValue, carried: Sequence[SSAValue]) -> list[SSAValue]:
    first, second = carried
    total = w.sum(x)
    return [w.map("add", first, x), w.map("add", second, w.map("mul", first, total))]


def two_that_change_places(w: Writer, x: SSAValue, carried: Sequence[SSAValue]) -> list[SSAValue]:
    first, second = carried
    return [second, w.map("add", first, x)]


@pytest.mark.parametrize(
    ("shapes", "body"),
    [
        ([WIDE, NARROW, WIDE], narrow_ones_stay_until_wide_ones_are_made),
        ([WIDE, WIDE], a_sum_between_two_of_one_shape),
        ([WIDE, WIDE], two_that_change_places),
    ],
)
def test_a_turn_reads_what_the_one_before_left(shapes: list[tuple[int, int]], body: Body) -> None:
    x = generator().standard_normal(WIDE).astype(np.float32)
    trial = looped(shapes, body)
    for found, wanted in zip(CpuModule([trial]).run(trial, [x]), run_interpreted(trial, [x]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)  # sums of either sign may be near 0
