"""Products of a GPU with what surrounds them in a graph: what has no room beside copies ahead of time compiles all the
same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import pytest

from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.ir.rings import RingToRegistersOp
from weft.backends.nvidia.ir.tma_store import TmaStoreOp, TruncatePackOp
from weft.backends.nvidia.ir.wgmma import WgmmaOp
from weft.backends.nvidia.target import target_named
from weft.ir.types import DType, Tensor, bf16, f8e4m3, f8e5m2, f32, i8, i32
from weft.lower.dot import dot_runs
from weft.lower.machine import gpu_machine
from weft.lower.schedule.dot_model import estimate
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.tile.dialect import KernelOp, tile_type

from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
SIDE = 4096


def kernels(
    shapes: Sequence[tuple[int, ...]], body: Callable[..., object], types: Sequence[DType] = ()
) -> dict[str, KernelOp]:
    tensors = [Tensor(dtype, shape) for dtype, shape in zip(types or [bf16] * len(shapes), shapes, strict=True)]
    trial = Trial.of(group_of(tensors, body), "product", gpu_machine())
    return {call.kernel.op.sym_name.data: call.kernel.op for call in trial.lowered.calls}


def test_a_residual_that_lies_the_other_way_is_read_as_the_product_is_held() -> None:
    square = (SIDE, SIDE)
    found = kernels([square, square, square], lambda b, x, w, r: b.add(b.dot(x, w), b.permute(r, dims=(1, 0))))
    (kernel,) = found.values()
    text = str(annotate(kernel, TARGET)[0])
    assert "nvidia.wgmma" in text and "nvidia.convert" not in text
    assert "wgmma.mma_async" in compile_kernels(found, TARGET).ptx


@pytest.mark.parametrize("rows", [0, 1, 16])
def test_few_rows_and_none(rows: int) -> None:
    found = kernels([(rows, 256), (256, 256)], lambda b, x, w: b.dot(x, b.permute(w, dims=(1, 0))))
    assert compile_kernels(found, TARGET).launches.keys() == found.keys()


# -- operands of 8 bits ----------------------------------------------------------------------------------------------

BYTES = {
    "e4m3": (f8e4m3, f8e4m3, False, "k32.f32.e4m3.e4m3"),
    "fast": (f8e4m3, f8e4m3, True, "k32.f32.e4m3.e4m3"),
    "mixed": (f8e5m2, f8e4m3, False, "k32.f32.e5m2.e4m3"),
    "int8": (i8, i8, False, "k32.s32.s8.s8"),
}


def scaled(a: DType, b: DType, fast: bool, along: bool = True) -> dict[str, KernelOp]:
    """A product of 8-bit operands with a factor for each row; b lies along K, or not."""

    def body(build, x, w, s):  # type: ignore[no-untyped-def]
        right = build.permute(w, dims=(1, 0)) if along else w
        if a == i8:
            return build.dot(x, right, dtype=i32)
        return build.cast(build.mul(build.dot(x, right, dtype=f32, fast=fast), s), dtype=bf16)

    return kernels([(1000, SIDE), (SIDE, SIDE), (1000, 1)], body, [a, b, f32])


@needs_ptxas
@pytest.mark.parametrize("case", BYTES)
def test_products_of_bytes_assemble(case: str) -> None:
    *types, instruction = BYTES[case]
    code = compile_kernels(scaled(*types), TARGET)
    found = assemble(code.ptx, "sm_90a")
    assert instruction in code.ptx and not found.error and not found.advice
    assert not any(kernel.spilled for kernel in found.kernels.values())


@needs_ptxas
@pytest.mark.parametrize("factors", [((1000, 32), (32, 32)), ((8, 32), (32, SIDE))], ids=["rows", "columns"])
def test_products_with_a_factor_for_each_block_assemble(factors: Sequence[tuple[int, int]]) -> None:
    def body(build, x, w, s, t):  # type: ignore[no-untyped-def]
        return build.cast(build.scaled_dot(x, build.permute(w, dims=(1, 0)), s, t), dtype=bf16)

    types = [f8e4m3, f8e4m3, f32, f32]
    code = compile_kernels(kernels([(1000, SIDE), (SIDE, SIDE), *factors], body, types), TARGET)
    found = assemble(code.ptx, "sm_90a")
    assert "e4m3.e4m3" in code.ptx and not found.error and not found.advice
    assert not any(kernel.spilled for kernel in found.kernels.values())


def test_sums_of_8_bit_floats_are_made_in_parts_unless_they_may_be_fast() -> None:
    for fast in (False, True):
        (kernel,) = scaled(f8e4m3, f8e4m3, fast).values()
        products = [op for op in annotate(kernel, TARGET)[0].walk() if isinstance(op, WgmmaOp)]
        assert (products[-1].accumulator is not None) is fast


@pytest.mark.parametrize(("m", "n", "k"), [(70, 384, 160), (130, 300, 144)])
def test_wide_tiles_are_summed_half_by_half(m: int, n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dot_runs, "estimates", lambda products, machine: [estimate(products, (128, 256), machine)])
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(f8e4m3.numpy) for shape in ((m, k), (n, k)))
    s = rng.random((1, n)).astype(np.float32)

    def body(b, x, w, s):  # type: ignore[no-untyped-def]
        return b.mul(b.dot(x, b.permute(w, dims=(1, 0)), dtype=f32), s)

    tensors = [Tensor(f8e4m3, (m, k)), Tensor(f8e4m3, (n, k)), Tensor(f32, (1, n))]
    (found,) = run_interpreted(Trial.of(group_of(tensors, body), "halves", gpu_machine()), [x, w, s])
    np.testing.assert_allclose(found, x.astype(float) @ w.astype(float).T * s, rtol=1e-4, atol=1e-4)


def test_bytes_that_do_not_lie_along_k_are_multiplied_otherwise() -> None:
    assert "wgmma" not in compile_kernels(scaled(f8e4m3, f8e4m3, False, along=False), TARGET).ptx


# -- the order of programs -------------------------------------------------------------------------------------------


def product(m: int, n: int, k: int) -> KernelOp:
    (kernel,) = kernels([(m, k), (n, k)], lambda b, x, w: b.dot(x, b.permute(w, dims=(1, 0)))).values()
    return annotate(kernel, TARGET)[0]


@pytest.mark.parametrize("blocks", [3, 132])
def test_a_tile_is_written_while_the_next_is_multiplied(blocks: int) -> None:
    kernel = product(640, 512, 384)
    ops = list(kernel.walk())
    pieces = sum(isinstance(op, TmaStoreOp) for op in ops)
    assert any(isinstance(op, TruncatePackOp) for op in ops) and pieces % 2 == 0
    for block in (0, blocks - 1):
        check(protocol_of(kernel, block=block, blocks=blocks), runs=3)


def test_a_short_sum_has_no_turns_to_write_in() -> None:
    assert not any(isinstance(op, TmaStoreOp) for op in product(SIDE, SIDE, 128).walk())


# -- what is added to a product ---------------------------------------------------------------------------------------


def residual(b, x, w, r):  # type: ignore[no-untyped-def]
    return b.add(b.dot(x, b.permute(w, dims=(1, 0))), r)


@needs_ptxas
@pytest.mark.parametrize(("m", "n"), [(640, 512), (512, 768), (320, 192)])
def test_a_residual_comes_through_the_ring(m: int, n: int) -> None:
    found = kernels([(m, 512), (n, 512), (m, n)], residual)
    (kernel,) = found.values()
    annotated = annotate(kernel, TARGET)[0]
    (lift,) = [op for op in annotated.walk() if isinstance(op, RingToRegistersOp)]
    assert lift.part.bytes * lift.parts == 2 * prod(tile_type(lift.out).sizes)
    for block in (0, 2):
        check(protocol_of(annotated, block=block, blocks=3), runs=3)
    assembly = assemble(compile_kernels(found, TARGET).ptx, "sm_90a")
    assert not assembly.error and not any(each.spilled for each in assembly.kernels.values())


def test_rows_that_the_copy_engine_cannot_bring_are_read_by_threads() -> None:
    (kernel,) = kernels([(512, 512), (300, 512), (512, 300)], residual).values()
    text = str(annotate(kernel, TARGET)[0])
    assert "nvidia.wgmma" in text and "nvidia.ring_to_registers" not in text


# -- two products of the same rows -----------------------------------------------------------------------------------


def gated(b, x, w, v):  # type: ignore[no-untyped-def]
    return b.mul(b.silu(b.dot(x, b.permute(w, dims=(1, 0)))), b.dot(x, b.permute(v, dims=(1, 0))))


@needs_ptxas
def test_two_products_share_a_kernel_and_its_rows() -> None:
    found = kernels([(SIDE, SIDE)] * 3, gated)
    (kernel,) = found.values()
    annotated, launch = annotate(kernel, TARGET)
    assert len(launch.maps) == 4 and str(annotated).count("nvidia.tma_load") == 3
    assembly = assemble(compile_kernels(found, TARGET).ptx, "sm_90a")
    assert not assembly.error and not assembly.advice
    assert not any(each.spilled for each in assembly.kernels.values())


def test_two_products_compute_what_they_should() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(bf16.numpy) for shape in ((70, 40), (130, 40), (130, 40))]
    trial = Trial.of(group_of([Tensor(bf16, a.shape) for a in arrays], gated), "gated", gpu_machine())
    x, w, v = (a.astype(np.float64) for a in arrays)
    gate = x @ w.T
    exact = gate / (1 + np.exp(-gate)) * (x @ v.T)
    (found,) = run_interpreted(trial, arrays)
    assert np.linalg.norm(found.astype(np.float64) - exact) < 4e-3 * np.linalg.norm(exact)
