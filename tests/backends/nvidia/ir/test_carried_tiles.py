"""Tiles that loops carry: an old element stays only where an iteration may lack it and somebody may read it."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Block, Region, SSAValue

from weft.backends.nvidia.ir.carried_tiles import kept_axes
from weft.backends.nvidia.ir.extents import ConvertedLimits
from weft.ir.expr import Size, minimum, symbol
from weft.ir.types import element_type, f32
from weft.tile import dialect as tile

ROWS, COLUMNS, D0, D1 = 128, 64, symbol("d0"), symbol("d1")
LEFT = minimum(ROWS, 1000 - ROWS * D0)
"""How many rows the tile of a program has: the last program's are fewer."""


def mapped(function: str, *args: SSAValue) -> tile.MapOp:
    type_ = tile.TileType.of([ROWS, COLUMNS], f32)
    return tile.MapOp.create(operands=args, attributes={"function": StringAttr(function)}, result_types=[type_])


def load(pointer: SSAValue, indices: list[SSAValue], extents: tuple[Size, Size]) -> tile.LoadOp:
    return tile.LoadOp.create(
        operands=[pointer, *indices],
        attributes={
            "offset": tile.Sizes((0,)),
            "strides": tile.Sizes((COLUMNS, 1)),
            "extents": tile.Sizes(extents),
        },
        result_types=[tile.TileType.of([ROWS, COLUMNS], f32)],
    )


def store(value: SSAValue, pointer: SSAValue, index: SSAValue, rows: Size) -> tile.StoreOp:
    attributes = {
        "offset": tile.Sizes((0,)),
        "strides": tile.Sizes((COLUMNS, 1)),
        "extents": tile.Sizes((rows, tile.tile_type(value).sizes[1])),
    }
    return tile.StoreOp.create(operands=[value, pointer, index], attributes=attributes)


def accumulating(
    extents: tuple[Size, Size], *, stored: Size = LEFT, bounds: tuple[Size, Size, Size] = (0, 10, 1), reduced: int = -1
) -> tile.ForOp:
    """A loop that adds up tiles, whose extents are over the program (d0) and the iteration (d1)."""
    block = Block(arg_types=[tile.PointerType(element_type(f32))] * 2)
    program = tile.ProgramOp.create(attributes={"axis": IntegerAttr(0, i64)}, result_types=[tile.IndexType()])
    zero = tile.ConstantOp.make(0.0, tile.TileType.of([ROWS, COLUMNS], f32))
    loop = tile.ForOp.make(tile.Sizes(bounds), [], [zero.out])
    turn, carried = loop.block.args
    brought = load(block.args[0], [program.out, turn], extents)
    total = mapped("add", carried, brought.out)
    loop.block.add_ops([brought, total, tile.YieldOp.create(operands=[total.out])])
    last: SSAValue = mapped("exp", loop.results[0]).out
    ops = [program, zero, loop, last.owner]
    if reduced >= 0:
        sizes = [1 if axis == reduced else side for axis, side in enumerate((ROWS, COLUMNS))]
        attributes = {"kind": StringAttr("sum"), "axis": IntegerAttr(reduced, i64)}
        reduce = tile.ReduceOp.create(
            operands=[last], attributes=attributes, result_types=[tile.TileType.of(sizes, f32)]
        )
        last, ops = reduce.out, [*ops, reduce]
    block.add_ops(
        [*ops, store(last, block.args[1], program.out, 1 if reduced == 0 else stored), tile.ReturnOp.create()]
    )
    tile.KernelOp.create(
        attributes={"sym_name": StringAttr("carried"), "grid": tile.Sizes((8,))}, regions=[Region(block)]
    ).verify()
    return loop


def kept(loop: tile.ForOp) -> set[int]:
    return kept_axes(loop, 0, ConvertedLimits())


def test_rows_that_no_iteration_has_and_nobody_reads_are_not_kept() -> None:
    assert kept(accumulating((LEFT, COLUMNS))) == set()


def test_fewer_rows_may_be_read_but_not_more() -> None:
    assert kept(accumulating((LEFT, COLUMNS), stored=LEFT - 1)) == set()
    assert kept(accumulating((LEFT, COLUMNS), stored=LEFT + 1)) == {0}
    assert kept(accumulating((LEFT, COLUMNS), stored=ROWS)) == {0}


@pytest.mark.parametrize("short", [minimum(COLUMNS, 1000 - COLUMNS * D1), minimum(COLUMNS, D1)])
def test_what_the_last_iterations_lack_is_kept(short: Size) -> None:
    assert kept(accumulating((LEFT, short))) == {1}


def test_iterations_that_are_whole_from_the_lower_bound_on_are_told_apart() -> None:
    counted_down = minimum(COLUMNS, COLUMNS * D1 + 10)
    assert kept(accumulating((LEFT, counted_down), bounds=(1, 10, 1))) == set()
    assert kept(accumulating((LEFT, counted_down), bounds=(0, 10, 1))) == {1}


def test_a_sum_over_the_rows_reads_them_all() -> None:
    assert kept(accumulating((LEFT, COLUMNS), reduced=0)) == {0}
    assert kept(accumulating((LEFT, COLUMNS), reduced=1)) == set()


def test_a_limit_is_known_by_the_values_it_is_made_of() -> None:
    """The same expression over another index is another limit."""
    loop = accumulating((LEFT, COLUMNS))
    (write,) = (op for op in loop.parent_op().walk() if isinstance(op, tile.StoreOp))  # type: ignore[union-attr]
    other = tile.ProgramOp.create(attributes={"axis": IntegerAttr(1, i64)}, result_types=[tile.IndexType()])
    loop.parent.insert_op_before(other, loop)  # type: ignore[union-attr]
    write.operands = [*write.operands[:2], other.out]
    assert kept(loop) == {0}


def test_through_another_loop() -> None:
    """What a second loop carries on is read as far as its result is."""
    for rows, expected in ((LEFT, set()), (ROWS, {0})):
        first = accumulating((LEFT, COLUMNS), stored=rows)
        second = tile.ForOp.make(tile.Sizes((0, 3, 1)), [], [first.results[0]])
        doubled = mapped("add", second.block.args[1], second.block.args[1])
        second.block.add_ops([doubled, tile.YieldOp.create(operands=[doubled.out])])
        (used,) = (use for use in first.results[0].uses if use.operation is not second)
        first.parent.insert_op_after(second, first)  # type: ignore[union-attr]
        used.operation.operands[used.index] = second.results[0]
        assert kept(first) == expected


def test_the_next_iteration_of_a_loop_around_it_may_have_more() -> None:
    """The same limit over the number of an outer loop is another one in its next iteration."""
    type_ = tile.TileType.of([ROWS, COLUMNS], f32)
    for rows, read, expected in ((LEFT, LEFT, set()), (16 * D1 + 16, 16, {0})):
        block = Block(arg_types=[tile.PointerType(element_type(f32))] * 2)
        program = tile.ProgramOp.create(attributes={"axis": IntegerAttr(0, i64)}, result_types=[tile.IndexType()])
        zero = tile.ConstantOp.make(0.0, type_)
        outer = tile.ForOp.make(tile.Sizes((0, 8, 1)), [], [zero.out])
        turn, around = outer.block.args
        inner = tile.ForOp.make(tile.Sizes((0, 10, 1)), [], [around])
        brought = load(block.args[0], [program.out, turn], (rows, COLUMNS))
        total = mapped("add", inner.block.args[1], brought.out)
        inner.block.add_ops([brought, total, tile.YieldOp.create(operands=[total.out])])
        outer.block.add_ops([inner, tile.YieldOp.create(operands=[inner.results[0]])])
        written = store(outer.results[0], block.args[1], program.out, read)
        block.add_ops([program, zero, outer, written, tile.ReturnOp.create()])
        kernel = {"sym_name": StringAttr("carried"), "grid": tile.Sizes((8,))}
        tile.KernelOp.create(attributes=kernel, regions=[Region(block)]).verify()
        assert kept(inner) == expected
