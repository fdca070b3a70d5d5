"""Products in an x86's matrix tiles: the code that is made for them, and what it computes where there are such."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import UnitAttr

import weft.ops  # noqa: F401  (fills the registry)
from tests.seeds import generator
from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.microkernel import panel_form
from weft.backends.cpu.target import CpuTarget, compile_assembly, host_target
from weft.backends.llvm.builder import Module
from weft.ir.types import DType, Tensor, bf16, contiguous_strides, f32, i8, i16, i32, tensor_of
from weft.lower.dispatch import lower
from weft.lower.machine import Machine
from weft.lower.packing import PackedLayout, packable
from weft.ops.layouts import StridedLayout
from weft.passes.grouping.build_groups import TWO_DIGITS, WIDENS
from weft.testing.kernels import CpuModule, Trial, group_of, run_interpreted

X86 = "x86_64-unknown-linux-gnu"
SAPPHIRE = CpuTarget(X86, "sapphirerapids", "")
SIZES = [(1, 1, 2), (1, 768, 100), (3, 7, 33), (16, 64, 32), (31, 64, 64), (33, 130, 65), (70, 2500, 40), (100, 67, 20)]
needs_tiles = pytest.mark.skipif(not host_target().has_matrix_tiles, reason="this processor has no matrix tiles")


def plain(b: Any, x: Any, w: Any) -> Any:
    return b.dot(x, w) if b.tensor(x).dtype == bf16 else b.dot(x, w, dtype=i32)


def of_computed(b: Any, x: Any, w: Any) -> Any:
    return b.dot(b.add(x, x), w)


def packed(m: int, k: int, n: int, dtype: DType, body: Any = plain, left: DType | None = None) -> tuple[Trial, Any]:
    """A product with its weights in panels for matrix tiles, and what packs them."""
    group = group_of([Tensor(left or dtype, (m, k)), Tensor(dtype, (k, n))], body)
    packing = packable(group, *panel_form(SAPPHIRE, f32 if dtype == bf16 else i32, dtype))
    assert packing is not None
    inputs = [tensor_of(value.type) for value in group.block.args]
    outputs = [tensor_of(value.type) for value in group.yielded]
    layouts = [StridedLayout(contiguous_strides(inputs[0].shape)), PackedLayout.of(packing.panels)]
    results = [StridedLayout(contiguous_strides(t.shape)) for t in outputs]
    lowered = lower(group, "product", layouts, results, Machine(product_rows=12))
    inputs[1] = Tensor(dtype, packing.panels.shape)
    return Trial(lowered, tuple(inputs), tuple(outputs)), packing


def of_integers(b: Any, x: Any, w: Any) -> Any:
    total = b.dot(x, w, dtype=i32)
    total.owner.attributes[TWO_DIGITS] = UnitAttr()
    return total


def of_widened(b: Any, x: Any, w: Any) -> Any:
    cast = b.cast(w, dtype=f32)
    cast.owner.attributes[WIDENS] = UnitAttr()
    return b.dot(x, cast)


def digits(m: int, k: int, n: int, left: DType) -> tuple[Trial, Any]:
    """A product of rows that are split into digits with weights of 8 bits."""
    return packed(m, k, n, i8, of_widened if left == f32 else of_integers, left)


def operands(m: int, k: int, n: int, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    rng = generator()
    if dtype == i8:
        return rng.integers(-128, 128, (m, k)).astype(np.int8), rng.integers(-128, 128, (k, n)).astype(np.int8)
    made = [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (k, n))]
    return made[0], made[1]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [bf16, i8], ids=str)
def test_panels_for_tiles_mean_the_product(size: tuple[int, int, int], dtype: DType) -> None:
    x, w = operands(*size, dtype)
    trial, packing = packed(*size, dtype)
    assert packing.panels.shape[2] * packing.panels.together * dtype.bytes % 64 == 0
    (y,) = run_interpreted(trial, [x, packing.pack(w)])
    wide = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(y.astype(np.float64) - wide).max() <= (2**-8 * np.abs(wide).max() if dtype == bf16 else 0)


@pytest.mark.parametrize(("dtype", "instruction"), [(bf16, "tdpbf16ps"), (i8, "tdpbssd")], ids=str)
def test_tiles_multiply_where_the_processor_has_them(dtype: DType, instruction: str) -> None:
    trial, _ = packed(70, 128, 64, dtype)
    module = Module(X86)
    emit_kernel(module, trial.lowered.calls[0].kernel.op, SAPPHIRE)
    text = compile_assembly(str(module), SAPPHIRE)
    assert instruction in text
    assert text.count("ldtilecfg") == text.count("tilerelease") > 0


def test_processors_without_tiles_pack_bf16_as_ever() -> None:
    assert panel_form(CpuTarget(X86, "cascadelake", ""), f32, bf16) == (32, 1)
    assert panel_form(SAPPHIRE, f32, bf16) == (32, 2)


def test_a_system_that_does_not_permit_tiles_gets_none() -> None:
    assert SAPPHIRE.has_matrix_tiles
    assert not CpuTarget(X86, "sapphirerapids", "-amx-tile,-amx-bf16,-amx-int8").has_matrix_tiles
    assert not CpuTarget(X86, "cascadelake", "").has_matrix_tiles
    assert CpuTarget(X86, "cascadelake", "+amx-tile,+amx-bf16,+amx-int8").has_matrix_tiles


@needs_tiles
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [bf16, i8], ids=str)
def test_tiles_compute_the_product(size: tuple[int, int, int], dtype: DType) -> None:
    x, w = operands(*size, dtype)
    trial, packing = packed(*size, dtype)
    (y,) = CpuModule([trial]).run(trial, [x, packing.pack(w)])
    wide = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(y.astype(np.float64) - wide).max() <= (2**-8 * np.abs(wide).max() if dtype == bf16 else 0)


@pytest.mark.parametrize("left", [i16, f32], ids=str)
def test_rows_of_digits_are_multiplied_in_tiles(left: DType) -> None:
    trial, _ = digits(33, 130, 65, left)
    module = Module(X86)
    emit_kernel(module, trial.lowered.calls[0].kernel.op, SAPPHIRE)
    assert "tdpbssd" in compile_assembly(str(module), SAPPHIRE)


@needs_tiles
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("left", [i16, f32], ids=str)
def test_digits_in_tiles_give_the_product(size: tuple[int, int, int], left: DType) -> None:
    m, k, n = size
    rng = generator()
    rows = rng.integers(-127 * 257, 127 * 257 + 1, (m, k)).astype(np.int16)
    x = rows if left == i16 else rng.standard_normal((m, k)).astype(np.float32)
    w = rng.integers(-128, 128, (k, n)).astype(np.int8)
    trial, packing = digits(*size, left)
    (y,) = CpuModule([trial]).run(trial, [x, packing.pack(w)])
    wide = x.astype(np.float64) @ w.astype(np.float64)
    if left == i16:
        wide = wide.astype(np.int64).astype(np.int32).astype(np.float64)
    allowed = 0 if left == i16 else 16 * 2**-23 * np.abs(wide).max()
    assert np.abs(y.astype(np.float64) - wide).max() <= allowed


@needs_tiles
def test_rows_that_are_computed_are_rounded_first() -> None:
    x, w = operands(37, 100, 50, bf16)
    trial, packing = packed(37, 100, 50, bf16, of_computed)
    (y,) = CpuModule([trial]).run(trial, [x, packing.pack(w)])
    wide = 2 * x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(y.astype(np.float64) - wide).max() <= 2**-8 * np.abs(wide).max()
