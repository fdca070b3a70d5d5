"""Products with weights of 8 bits: exact for integers, as exact as f32 for floats; and code for other machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import UnitAttr

import weft.ops  # noqa: F401  (fills the registry)
from tests.seeds import generator
from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.microkernel import panel_form
from weft.backends.cpu.target import CpuTarget, compile_assembly, host_target, target_for
from weft.backends.llvm.builder import Module
from weft.ir.types import DType, Tensor, contiguous_strides, f32, i8, i16, i32, tensor_of, u8
from weft.lower.constants import packing_of
from weft.lower.dispatch import lower
from weft.lower.packing import PackedLayout, PackedPanels, packable
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.passes.grouping.build_groups import TWO_DIGITS, WIDENS
from weft.testing.emulated import EmulatedModule, missing_for
from weft.testing.kernels import CpuModule, Trial, group_of, plainer_processors, run_interpreted

SIZES = [(1, 1, 2), (1, 768, 100), (3, 7, 33), (5, 66, 64), (8, 64, 17), (33, 130, 65), (130, 1601, 40), (300, 67, 20)]
PAIRED_SIZES = [(1, 1, 2), (3, 7, 33), (33, 130, 65), (130, 201, 40)]
LARGEST = 127 * 257
X86 = "x86_64-unknown-linux-gnu"


def of_integers(b: Any, x: Any, w: Any) -> Any:
    total = b.dot(x, w, dtype=i32)
    if b.tensor(x).dtype == i16:
        total.owner.attributes[TWO_DIGITS] = UnitAttr()
    return total


def of_widened(b: Any, x: Any, w: Any) -> Any:
    cast = b.cast(w, dtype=f32)
    cast.owner.attributes[WIDENS] = UnitAttr()
    return b.dot(x, cast)


def group(m: int, k: int, n: int, left: DType) -> GroupOp:
    body = of_widened if left == f32 else of_integers
    return group_of([Tensor(left, (m, k)), Tensor(i8, (k, n))], body)


def packed(product: GroupOp, together: int, columns: int = 16, name: str = "product") -> tuple[Trial, Any]:
    """The product with its weights in panels, and what packs them."""
    packing = packable(product, columns, together)
    assert packing is not None
    inputs = [tensor_of(value.type) for value in product.block.args]
    outputs = [tensor_of(value.type) for value in product.yielded]
    layouts = [StridedLayout(contiguous_strides(inputs[0].shape)), PackedLayout.of(packing.panels)]
    lowered = lower(product, name, layouts, [StridedLayout(contiguous_strides(t.shape)) for t in outputs])
    inputs[1] = Tensor(i8, packing.panels.shape)
    return Trial(lowered, tuple(inputs), tuple(outputs)), packing


def integers(*shape: int) -> np.ndarray:
    array = generator().integers(-128, 128, shape).astype(np.int8)
    array.flat[0] = -128
    return array


def rows_of_two_digits(*shape: int) -> np.ndarray:
    array = generator().integers(-LARGEST, LARGEST + 1, shape).astype(np.int16)
    array.flat[0] = -LARGEST
    return array


def forms() -> list[int]:
    return [1, 4] if host_target().packs_bytes else [1]


@pytest.mark.parametrize("together", forms())
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_products_of_integers_are_exact(m: int, k: int, n: int, together: int) -> None:
    x, w = integers(m, k), integers(k, n)
    x[m // 2] = w[:, n // 2] = -128
    trial, packing = packed(group(m, k, n, i8), together)
    (y,) = CpuModule([trial]).run(trial, [x, packing.pack(w)])
    np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32))


@pytest.mark.parametrize("together", forms())
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_products_of_rows_of_two_digits_are_exact(m: int, k: int, n: int, together: int) -> None:
    x, w = rows_of_two_digits(m, k), integers(k, n)
    # The borders of digits, and sums that wrap around.
    x[:, 0], x[m // 2], x[-1] = 127, LARGEST, 128
    w[:, n // 2] = -128
    trial, packing = packed(group(m, k, n, i16), together)
    (y,) = CpuModule([trial]).run(trial, [x, packing.pack(w)])
    np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32))


def test_all_of_i16_without_a_promise_about_digits() -> None:
    product = group_of([Tensor(i16, (5, 67)), Tensor(i8, (67, 35))], lambda b, x, w: b.dot(x, w, dtype=i32))
    packing = packing_of(product, [False, True], lambda dtype, memory: (16, 4))
    assert packing is not None and packing.panels.together == 1
    x, w = rows_of_two_digits(5, 67), integers(67, 35)
    x[0], x[1] = 32767, -32768
    trial, packing = packed(product, 1)
    (y,) = CpuModule([trial]).run(trial, [x, packing.pack(w)])
    np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32))


@pytest.mark.parametrize("left", [i8, u8, i16], ids=str)
@pytest.mark.parametrize("cpu", plainer_processors())
def test_products_are_exact_without_an_instruction_for_four(cpu: str, left: DType) -> None:
    """Bytes are multiplied as pairs of 16 bits; the largest of them, of either sign, fill whole rows and columns."""
    target = target_for(cpu)
    columns, together = panel_form(target, i32, i8)
    assert target.multiplies_pairs and together == 4
    trials = [packed(group(m, k, n, left), together, columns, f"product{m}") for m, k, n in PAIRED_SIZES]
    module = CpuModule([trial for trial, _ in trials], target=target)
    about = np.iinfo(left.numpy)
    low, high = (-LARGEST, LARGEST) if left == i16 else (about.min, about.max)
    for (trial, packing), (m, k, n) in zip(trials, PAIRED_SIZES, strict=True):
        x, w = np.random.default_rng(m).integers(low, high + 1, (m, k)).astype(left.numpy), integers(k, n)
        x[0], x[m // 2], w[:, n // 2], w[:, -1] = high, low, -128, 127
        (y,) = module.run(trial, [x, packing.pack(w)])
        np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32))


@pytest.mark.parametrize("together", forms())
@pytest.mark.parametrize("left", [i8, i16, f32], ids=str)
def test_the_kernel_means_what_it_computes(left: DType, together: int) -> None:
    x, w = integers(5, 66).astype(left.numpy), integers(66, 35)
    trial, packing = packed(group(5, 66, 35, left), together)
    (y,) = run_interpreted(trial, [x, packing.pack(w)])
    np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32))


def test_products_of_integers_that_are_not_packed() -> None:
    x, w = integers(5, 67), integers(67, 35)
    trial = Trial.of(group(5, 67, 35, i8), "product")
    for run in (run_interpreted, CpuModule([trial]).run):
        (y,) = run(trial, [x, w])
        np.testing.assert_array_equal(y, x.astype(np.int32) @ w.astype(np.int32))


@pytest.mark.parametrize("together", forms())
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_products_of_floats_lose_as_little_as_in_f32(m: int, k: int, n: int, together: int) -> None:
    rng = generator()
    x = (rng.standard_normal((m, k)) * 10.0 ** rng.integers(-6, 6, (m, 1))).astype(np.float32)
    w = integers(k, n)
    trial, packing = packed(group(m, k, n, f32), together)
    (y,) = CpuModule([trial]).run(trial, [x, packing.pack(w)])
    # A rounding of each element to 24 bits of the largest of its row, and those of the sum.
    bound = np.abs(x).max(1, keepdims=True) * np.abs(w.astype(np.float64)).sum(0) * 2.0**-22
    assert (np.abs(y - x.astype(np.float64) @ w.astype(np.float64)) <= bound).all()


@pytest.mark.parametrize("together", forms())
def test_rows_of_zeros_and_of_very_small_and_very_large_numbers(together: int) -> None:
    x, w = np.zeros((5, 70), np.float32), integers(70, 64) // 4 + 1
    x[1], x[2, 3], x[3] = 1e-42, 3e36, 1e-30
    trial, packing = packed(group(5, 70, 64, f32), together)
    (y,) = CpuModule([trial]).run(trial, [x, packing.pack(w)])
    expected = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_array_equal(y[[0, 4]], 0)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-34)


@pytest.mark.parametrize("together", forms())
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_none_and_in_its_row(value: float, together: int) -> None:
    x, w = np.ones((3, 70), np.float32), integers(70, 64) // 4
    x[1, 68] = value
    w[68] = 5
    trial, packing = packed(group(3, 70, 64, f32), together)
    (y,) = CpuModule([trial]).run(trial, [x, packing.pack(w)])
    assert not np.isfinite(y[1]).any()
    assert np.isfinite(y[[0, 2]]).all()


def test_panels_hold_four_of_k_together() -> None:
    matrix = np.arange(6 * 5, dtype=np.int8).reshape(6, 5)
    panels = PackedPanels(6, 5, 4, i8, together=4)
    found = panels.pack(matrix)
    assert found.shape == panels.shape == (1, 2, 2, 4, 4)
    whole = np.pad(matrix, ((0, 2), (0, 3)))
    for p, k, n in np.ndindex(2, 8, 4):
        assert found[0, p, k // 4, n, k % 4] == whole[k, p * 4 + n]


# -- other machines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("triple", "cpu", "instruction"),
    [
        (X86, "cascadelake", "vpdpbusd"),
        (X86, "alderlake", "vpdpbusd"),
        (X86, "skylake-avx512", "pmaddwd"),
        (X86, "haswell", "pmaddwd"),
        (X86, "x86-64", "pmaddwd"),
        (X86, "knl", None),
        ("aarch64-unknown-linux-gnu", "neoverse-n1", "sdot"),
        ("aarch64-unknown-linux-gnu", "cortex-a72", None),
    ],
)
@pytest.mark.parametrize("left", [i8, i16, f32], ids=str)
def test_the_instructions_of_other_machines(triple: str, cpu: str, instruction: str | None, left: DType) -> None:
    target = CpuTarget(triple, cpu, "")
    assert target.multiplies_bytes == (instruction in ("vpdpbusd", "sdot"))
    assert target.packs_bytes == (instruction is not None)
    columns, together = panel_form(target, f32 if left == f32 else i32, i8)
    instruction = None if left == f32 and not target.multiplies_bytes else instruction
    assert together == (4 if instruction else 1)
    trial, _ = packed(group(33, 130, 65, left), together, columns)
    module = Module(target.triple, target.lacks)
    for call in trial.lowered.calls:
        emit_kernel(module, call.kernel.op, target)
    text = compile_assembly(str(module), target)
    assert instruction is None or instruction in text


@pytest.mark.parametrize(
    ("triple", "cpu", "instruction", "plain", "turned"),
    [("aarch64-unknown-linux-gnu", "neoverse-n1", "sdot", i8, u8), (X86, "cascadelake", "vpdpbusd", u8, i8)],
)
def test_rows_of_the_other_sign_cost_one_pass_over_a_panel(
    triple: str, cpu: str, instruction: str, plain: DType, turned: DType
) -> None:
    """What 128 in every place of a row gives is multiplied once for a panel, not with every block of rows."""
    target = CpuTarget(triple, cpu, "")
    columns, together = panel_form(target, i32, i8)
    counts: list[int] = []
    for left in (plain, turned):
        trial, _ = packed(group(64, 128, 64, left), together, columns)
        module = Module(target.triple, target.lacks)
        for call in trial.lowered.calls:
            emit_kernel(module, call.kernel.op, target)
        counts.append(compile_assembly(str(module), target).count(instruction))
    assert counts[0] < counts[1] <= counts[0] + columns * 32 // target.vector_bits


@pytest.mark.parametrize("left", [i8, u8, i16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("cpu", ["haswell", "x86-64-v2"])
def test_products_of_bytes_are_exact_on_processors_without_byte_instructions(cpu: str, left: DType) -> None:
    target = CpuTarget(X86, cpu, "")
    if (missing := missing_for(target)) is not None:
        pytest.skip(missing)
    columns, together = panel_form(target, i32, i8)
    cases, meant = [], []
    for m, k, n in PAIRED_SIZES:
        x = rows_of_two_digits(m, k) if left == i16 else integers(m, k).view(np.int8 if left == i8 else np.uint8)
        w = integers(k, n)
        trial, packing = packed(group(m, k, n, left), together, columns, f"product_{m}")
        cases.append((trial, [x, packing.pack(w)]))
        meant.append(x.astype(np.int64) @ w.astype(np.int64))
    for (found,), exact in zip(EmulatedModule([trial for trial, _ in cases], target).run(cases), meant, strict=True):
        np.testing.assert_array_equal(found, exact)
