"""Results of products whose rows begin anywhere: the PTX that writes their lines, run on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import SHARED_SYMBOL, Threads, do, i32
from weft.backends.nvidia.emit.memory.unaligned_store import Lines, write_lines
from weft.backends.nvidia.ir.rings import LINE
from weft.backends.nvidia.ir.tma_store import LINES, MAP, STAGE_BYTES, STAGE_COLUMNS, STAGE_ROWS, TmaStoreOp
from weft.backends.nvidia.target import TRIPLE, llvm_to_ptx, target_named
from weft.pipelines import annotate, compile_kernels
from weft.tile.dialect import KernelOp, StoreOp

from ..kernels.test_dots_in_graphs import kernels
from ..ptx_machine import Memory, run_blocks
from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")


def writer(even: bool) -> str:
    """A kernel of one warp: what lies in memory goes to shared memory as `stmatrix` lays it there, and from there to
    lines; its arguments are both, the bytes from line to line, and how many columns and rows there are."""
    module = Module(TRIPLE)
    module.globals[SHARED_SYMBOL] = f"@{SHARED_SYMBOL} = external addrspace(3) global [0 x i8], align 1024"
    attributes = 'nounwind "nvvm.reqntid"="32"'
    params = [("i64", name) for name in ("source", "target", "pitch", "columns", "rows")]
    b = Function(module, "lines", params, "void", attributes, "ptx_kernel")
    source, target, pitch, columns, rows = b.args
    lane = Threads.of_block(b, 1).lane
    slot = b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32")
    for line in range(STAGE_ROWS):
        place = b.add(b.mul(lane, i32(4)), i32(line * LINE))
        word = b.emit("i32", f"load i32, ptr addrspace(1) {_pointer(b, source, place)}, align 4")
        mixed = b.binary("xor", place, i32(line % 8 * 16))
        do(b, "st.shared.b32 [$0], $1;", "r,r", b.add(slot, mixed), word)
    do(b, "bar.warp.sync -1;", "")
    exist = (b.convert("trunc", each, "i32") for each in (columns, rows))
    write_lines(b, lane, slot, Lines(target, pitch, *exist, even=even))
    b.finish()
    module.declarations["#1"] = "attributes #1 = { convergent nounwind }"
    return llvm_to_ptx(str(module), TARGET)


def _pointer(b: Function, base: V, offset: V) -> str:
    address = b.add(base, b.convert("zext", offset, "i64"))
    return b.emit("ptr addrspace(1)", f"inttoptr {address} to ptr addrspace(1)").name


@pytest.mark.parametrize("even", [False, True])
def test_lines_are_written_wherever_they_begin(even: bool) -> None:
    ptx = writer(even)
    step = 2 if even else 1
    rng = np.random.default_rng(0)
    for pitch, start, columns, rows in ((150, 0, 64, 16), (151, 1, 64, 16), (151, 3, 100, 9), (70, 2, 37, 30)):
        pitch, start = pitch // step * step, start // step * step
        for width in (columns, 1, 2, 0, -5):
            source = rng.integers(1, 1 << 16, (STAGE_ROWS, STAGE_COLUMNS), np.uint16)
            target = np.zeros(start + pitch * 17, np.uint16)
            memory = Memory()
            given, address = memory.add(source), memory.add(target)
            words = [given, address + 2 * start, 2 * pitch, width & (1 << 64) - 1, rows]
            run_blocks(ptx, "lines", 32, STAGE_BYTES, memory, words, 1)
            for line in range(min(rows, STAGE_ROWS)):
                exist = slice(0, max(0, min(width, STAGE_COLUMNS)))
                target[start + line * pitch :][exist] = source[line][exist]
            np.testing.assert_array_equal(memory.read(address, target), target)


def stores(kernel: KernelOp) -> list[str]:
    found = [op for op in annotate(kernel, TARGET)[0].walk() if isinstance(op, StoreOp | TmaStoreOp)]
    return [name for op in found for name in (MAP, LINES) if name in op.attributes]


@pytest.mark.parametrize("columns", [4097, 4098, 4100, 4104])
def test_the_copy_engine_writes_rows_that_end_with_its_chunks_and_warps_all_others(columns: int) -> None:
    (kernel,) = kernels([(1024, 512), (columns, 512)], lambda b, x, w: b.dot(x, b.permute(w, dims=(1, 0)))).values()
    assert set(stores(kernel)) == {MAP if columns % 8 == 0 else LINES}


@needs_ptxas
def test_lines_are_written_without_spilling() -> None:
    def body(b, x, w, c):  # type: ignore[no-untyped-def]
        return b.gelu(b.add(b.dot(x, b.permute(w, dims=(1, 0))), c))

    code = compile_kernels(kernels([(1000, 768), (50257, 768), (1, 50257)], body), TARGET)
    found = assemble(code.ptx, "sm_90a")
    assert not found.error and not found.advice
    assert not any(kernel.spilled for kernel in found.kernels.values())
