"""Booleans that are wanted as tensor cores hold results: read in whole chunks, and exchanged as bits."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Block, Region

from weft.backends.llvm.builder import Module
from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.emit.codegen import KernelCodegen
from weft.backends.nvidia.ir.accesses import is_of_rows
from weft.backends.nvidia.ir.dialect import WARPS, set_integer, set_layouts
from weft.backends.nvidia.ir.layouts import WARP, Layout
from weft.backends.nvidia.target import TRIPLE, llvm_to_ptx, target_named
from weft.ir.types import boolean, element_type
from weft.tile import dialect as tile

from ..ptx_machine import Memory, run_blocks


def copied(layout: Layout, stride: int, start: int) -> tuple[tile.KernelOp, tile.LoadOp]:
    """A kernel that copies a tile of booleans."""
    pointer = tile.PointerType(element_type(boolean))
    block = Block(arg_types=[pointer, pointer])
    shape = layout.shape
    attributes = {"offset": tile.Sizes((start,)), "strides": tile.Sizes((stride, 1)), "extents": tile.Sizes(shape)}
    load = tile.LoadOp.create(
        operands=[block.args[0]], attributes=attributes, result_types=[tile.TileType.of(shape, boolean)]
    )
    attributes |= {"offset": tile.Sizes((0,)), "strides": tile.Sizes((shape[1], 1))}
    store = tile.StoreOp.create(operands=[load.out, block.args[1]], attributes=attributes)
    for op in (load, store):
        set_layouts(op, [layout])
    block.add_ops([load, store, tile.ReturnOp.create()])
    given = {"sym_name": StringAttr("copied"), "grid": tile.Sizes((1,)), "symbols": ArrayAttr[StringAttr]([])}
    kernel = tile.KernelOp.create(attributes=given, regions=[Region(block)])
    set_integer(kernel, WARPS, layout.warp_count)
    return kernel, load


@pytest.mark.parametrize(("columns", "stride", "start"), [(128, 4096, 128), (128, 144, 0), (64, 80, 16)])
def test_booleans_come_to_their_columns(columns: int, stride: int, start: int) -> None:
    layout = Layout.parse(
        f"128x{columns}: registers 2@1 2@0*8 {columns // 8}@1*8, lanes 4@1*2 8@0, warps 4@0*16 2@0*64"
    )
    kernel, load = copied(layout, stride, start)
    assert is_of_rows(load, layout)
    launch = Launch(WARP * layout.warp_count, 0)
    module = Module(TRIPLE)
    KernelCodegen(module, kernel, launch).emit()
    module.declarations["#1"] = "attributes #1 = { convergent nounwind }"
    ptx = llvm_to_ptx(str(module), target_named("sm_90a"))
    assert "ld.global.v4" in ptx and "ld.global.b16" not in ptx
    source = np.random.default_rng(3).random(128 * stride + start) < 0.5
    memory, result = Memory(), np.zeros((128, columns), np.bool_)
    words = [memory.add(source), memory.add(result)]
    run_blocks(ptx, "copied", launch.threads, 0, memory, words, 1)
    expected = source[start : start + 128 * stride].reshape(128, stride)[:, :columns]
    np.testing.assert_array_equal(memory.read(words[1], result), expected)


@pytest.mark.parametrize(("stride", "start"), [(4097, 0), (4096, 8)])
def test_rows_that_begin_anywhere_are_read_as_they_are_wanted(stride: int, start: int) -> None:
    layout = Layout.parse("128x128: registers 2@1 2@0*8 16@1*8, lanes 4@1*2 8@0, warps 4@0*16 2@0*64")
    _, load = copied(layout, stride, start)
    assert not is_of_rows(load, layout)
