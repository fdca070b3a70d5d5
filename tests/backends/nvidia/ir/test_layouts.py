"""Layouts against brute force: what each register of each thread holds, and what is made of layouts."""

from __future__ import annotations

from collections import Counter
from itertools import permutations, product
from math import prod

import numpy as np
import pytest
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Region

from weft.backends.nvidia.check.simulator import simulate
from weft.backends.nvidia.check.simulator_layouts import CoverageError, holding, picks
from weft.backends.nvidia.ir.dialect import SHARED, WARPS, ConvertOp, set_integer, set_layouts
from weft.backends.nvidia.ir.layouts import WARP, Layout, Mode, blocked
from weft.backends.nvidia.layout.allocate_shared import allocate_shared
from weft.errors import LoweringError
from weft.ir.types import DType, bf16, boolean, element_type, f32, f64, i8, i64
from weft.tile import dialect as tile

SEEDS = range(40)


def random_layout(rng: np.random.Generator, shape: tuple[int, ...] | None = None, warps: int | None = None) -> Layout:
    """A blocked layout, or a slice of one, of some shape."""
    if shape is None:
        shape = tuple(int(n) for n in rng.integers(1, 40, rng.integers(1, 4)))
    orders = list(permutations(range(len(shape))))
    pick = lambda: orders[rng.integers(len(orders))]  # noqa: E731
    warps = warps or int(1 << rng.integers(0, 4))
    return blocked(shape, warps, pick(), int(1 << rng.integers(0, 4)), pick() if rng.integers(2) else None)


def places(layout: Layout) -> Counter[tuple[int, ...]]:
    """How often each element is held, by the definition of a place."""
    threads = product(range(WARP), range(layout.warp_count), range(layout.count))
    return Counter(layout.place(lane, warp, register) for lane, warp, register in threads)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_element_is_held_as_often_as_every_other(seed: int) -> None:
    layout = random_layout(np.random.default_rng(seed))
    held = places(layout)
    inside = {
        place: count for place, count in held.items() if all(i < n for i, n in zip(place, layout.shape, strict=True))
    }
    repetitions = prod(m.size for m in (*layout.lanes, *layout.warps) if m.axis is None)
    assert len(inside) == prod(layout.shape)
    assert set(inside.values()) == {repetitions}
    assert layout.has_repetition() == (repetitions > 1)
    assert layout.threads == WARP * layout.warp_count
    assert [max(place[a] for place in held) + 1 for a in range(layout.rank)] == list(
        map(layout.covered, range(layout.rank))
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_text_says_all_of_a_layout(seed: int) -> None:
    layout = random_layout(np.random.default_rng(seed))
    assert Layout.parse(str(layout)) == layout
    for axis in range(layout.rank):
        assert Layout.parse(str(layout.sliced(axis))) == layout.sliced(axis)


def test_text_of_a_layout_without_axes() -> None:
    layout = Layout((), (), (Mode(32, None),), (Mode(4, None),))
    assert Layout.parse(str(layout)) == layout


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_hold_what_their_places_say(seed: int) -> None:
    """The simulator reads layouts by itself: all of it against the definition."""
    layout = random_layout(np.random.default_rng(seed))
    held = holding(layout)
    for thread in range(layout.threads):
        for register in range(layout.count):
            place = layout.place(thread % WARP, thread // WARP, register)
            assert tuple(held.index[:, thread, register]) == place
            assert held.inside[thread, register] == all(i < n for i, n in zip(place, layout.shape, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slice_holds_what_is_left_of_an_axis(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = random_layout(rng)
    axis = int(rng.integers(layout.rank))
    sliced = layout.sliced(axis)
    for thread in rng.integers(layout.threads, size=20):
        lane, warp = int(thread) % WARP, int(thread) // WARP
        left = {_without(layout.place(lane, warp, r), axis) for r in range(layout.count)}
        assert {sliced.place(lane, warp, r) for r in range(sliced.count)} == left
        assert sliced.count == len(left)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broadcast_operand_is_where_it_is_needed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = random_layout(rng)
    narrow = layout.narrowed([1 if rng.integers(2) else n for n in layout.shape])
    for axis, side in enumerate(narrow.shape):
        assert side in (1, layout.shape[axis])
    picked = picks(layout, narrow)  # raises where a thread lacks an element
    for thread, register in zip(
        rng.integers(layout.threads, size=50), rng.integers(layout.count, size=50), strict=True
    ):
        lane, warp = int(thread) % WARP, int(thread) // WARP
        place = layout.place(lane, warp, int(register))
        wanted = tuple(0 if narrow.shape[a] == 1 else i for a, i in enumerate(place))
        if picked[thread, register] >= 0:
            assert narrow.place(lane, warp, int(picked[thread, register])) == wanted


def test_what_is_not_broadcast_has_no_slice() -> None:
    with pytest.raises(LoweringError, match="not broadcast"):
        blocked((4, 8), 1, (1, 0)).narrowed((2, 8))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_transposed_layout_holds_the_transposed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = random_layout(rng)
    to = rng.permutation(layout.rank)
    shape = [0] * layout.rank
    for axis, target in enumerate(to):
        shape[target] = layout.shape[axis]
    moved = layout.moved(shape, lambda axis: int(to[axis]))
    for thread, register in zip(
        rng.integers(layout.threads, size=50), rng.integers(layout.count, size=50), strict=True
    ):
        spot = (int(thread) % WARP, int(thread) // WARP, int(register))
        assert tuple(moved.place(*spot)[target] for target in to) == layout.place(*spot)


@pytest.mark.parametrize(
    "text",
    [
        "8: registers 1, lanes 4@0 8@-, warps 1",  # half is missing
        "8: registers 2@0, lanes 8@0 4@-, warps 1",  # twice in one thread's registers
        "64: registers 2@0*16, lanes 32@0, warps 1",  # overlapping, and the end is missing
        "8: registers 1, lanes 8@0, warps 1",  # eight lanes
    ],
)
def test_layouts_that_do_not_cover_a_tile_once_are_found(text: str) -> None:
    with pytest.raises(CoverageError):
        holding(Layout.parse(text))


@pytest.mark.parametrize("seed", range(60))
def test_conversions_keep_values(seed: int) -> None:
    """A tile is loaded in one layout, converted to others and stored in the last."""
    rng = np.random.default_rng(seed)
    layouts = [random_layout(rng)]
    for _ in range(rng.integers(1, 4)):
        layouts.append(random_layout(rng, layouts[0].shape, layouts[0].warp_count))
    dtype = [f32, bf16, f64, i64, i8, boolean][rng.integers(6)]
    kernel = copying(layouts, dtype)
    shared = allocate_shared(kernel, 1 << 20)
    assert isinstance(shared, int)
    source = rng.integers(0, 2 if dtype == boolean else 100, prod(layouts[0].shape)).astype(dtype.numpy)
    target = np.zeros_like(source)
    simulate(kernel, [source, target], [], shared)
    np.testing.assert_array_equal(target, source)


def copying(layouts: list[Layout], dtype: DType) -> tile.KernelOp:
    """A kernel that copies a tile through layouts."""
    shape = layouts[0].shape
    block = Block(arg_types=[tile.PointerType(element_type(dtype))] * 2)
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    access = {
        "offset": tile.Sizes((0,)),
        "strides": tile.Sizes(tuple(strides)),
        "extents": tile.Sizes(shape),
    }
    load = tile.LoadOp.create(
        operands=[block.args[0]], attributes=dict(access), result_types=[tile.TileType.of(shape, dtype)]
    )
    set_layouts(load, layouts[:1])
    block.add_op(load)
    value = load.out
    for layout in layouts[1:]:
        convert = ConvertOp.make(value, layout)
        set_integer(convert, SHARED, 0)
        block.add_op(convert)
        value = convert.out
    store = tile.StoreOp.create(operands=[value, block.args[1]], attributes=dict(access))
    set_layouts(store, layouts[-1:])
    block.add_ops([store, tile.ReturnOp.create()])
    kernel = tile.KernelOp.create(
        attributes={"sym_name": StringAttr("copy"), "grid": tile.Sizes((1,))}, regions=[Region(block)]
    )
    set_integer(kernel, WARPS, layouts[0].warp_count)
    return kernel


def _without(place: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*place[:axis], 0, *place[axis + 1 :])
