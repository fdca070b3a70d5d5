"""Tiles that have fewer elements than places: what reductions count, and what loops carry on."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Block, Region

from weft.backends.nvidia.check.simulator import simulate
from weft.backends.nvidia.compile import emit_llvm
from weft.backends.nvidia.ir.dialect import WARPS, ConvertOp, set_integer
from weft.backends.nvidia.ir.extents import ConvertedLimits
from weft.backends.nvidia.ir.layouts import blocked
from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.backends.nvidia.target import target_named
from weft.backends.reference.tile import run_kernel
from weft.ir.expr import minimum, symbol
from weft.ir.types import element_type, f32
from weft.pipelines import annotate
from weft.tile import dialect as tile
from weft.tile.extents import Limits

SIDE = 256


def sum_of_exponentials(length: int) -> tile.KernelOp:
    """Adds up chunks of a line in a tile, and that in the end: the last chunk is short."""
    d0 = symbol("d0")
    block = Block(arg_types=[tile.PointerType(element_type(f32))] * 2)
    zero = tile.ConstantOp.make(0.0, tile.TileType.of([SIDE], f32))
    loop = tile.ForOp.make(tile.Sizes((0, length, SIDE)), [], [zero.out])
    load = tile.LoadOp.create(
        operands=[block.args[0], loop.block.args[0]],
        attributes={
            "offset": tile.Sizes((d0,)),
            "strides": tile.Sizes((1,)),
            "extents": tile.Sizes((minimum(SIDE, length - d0) if length % SIDE else SIDE,)),
        },
        result_types=[tile.TileType.of([SIDE], f32)],
    )
    exponential = tile.MapOp.create(
        operands=[load.out], attributes={"function": StringAttr("exp")}, result_types=[load.out.type]
    )
    total = tile.MapOp.create(
        operands=[loop.block.args[1], exponential.out],
        attributes={"function": StringAttr("add")},
        result_types=[load.out.type],
    )
    loop.block.add_ops([load, exponential, total, tile.YieldOp.create(operands=[total.out])])
    reduce = tile.ReduceOp.create(
        operands=[loop.results[0]],
        attributes={"kind": StringAttr("sum"), "axis": IntegerAttr(0, i64)},
        result_types=[tile.TileType.of([1], f32)],
    )
    store = tile.StoreOp.create(
        operands=[reduce.out, block.args[1]],
        attributes={"offset": tile.Sizes((0,)), "strides": tile.Sizes((0,)), "extents": tile.Sizes((1,))},
    )
    block.add_ops([zero, loop, reduce, store, tile.ReturnOp.create()])
    return tile.KernelOp.create(
        attributes={"sym_name": StringAttr("carried"), "grid": tile.Sizes((1,))}, regions=[Region(block)]
    )


@pytest.mark.parametrize("length", [1, 255, 256, 257, 1000])
@pytest.mark.parametrize("warps", [1, 4])
def test_what_a_short_chunk_lacks_stays_as_it_was(length: int, warps: int) -> None:
    kernel = sum_of_exponentials(length)
    x = np.random.default_rng(0).standard_normal(length).astype(np.float32)
    expected, actual = np.zeros(1, np.float32), np.zeros(1, np.float32)
    run_kernel(kernel, [x, expected], [])
    set_integer(kernel, WARPS, warps)
    annotated, launch = annotate(kernel, target_named("sm_90a"))
    simulate(annotated, [x, actual], [], launch.shared)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_allclose(actual, np.exp(x.astype(np.float64)).sum(), rtol=1e-6)


def test_the_code_of_a_loop_chooses_between_new_and_old() -> None:
    """Nothing is chosen where all chunks are whole."""
    target = target_named("sm_90a")
    short, whole = (emit_llvm(sum_of_exponentials(n), target, nvidia_kernel_passes())[0] for n in (1000, 1024))
    assert short.count(" select ") == whole.count(" select ") + SIDE // 32


def test_a_converted_tile_has_as_many_elements_as_before() -> None:
    kernel = sum_of_exponentials(1000)
    load = next(op for op in kernel.walk() if isinstance(op, tile.LoadOp))
    convert = ConvertOp.make(load.out, blocked([SIDE], 1, [0]))
    assert ConvertedLimits().of(convert.out, 0) == Limits().of(load.out, 0) != ()
