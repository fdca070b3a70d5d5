"""Pointers and masks raised to parts of tensors: what is raised, that it means the same (run as code for a CPU, which
takes both forms), and that the roles made of it keep their protocol and assemble."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.triton as triton
import weft.triton.language as tl
from weft.backends.cpu.compile import emit_kernels
from weft.backends.cpu.target import compile_object, host_target
from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.ir.dialect import RESIDENT, WARPS, integer, set_integer
from weft.backends.nvidia.ir.warp_specialization import WarpSpecializeOp
from weft.backends.nvidia.ir.wgmma import WgmmaWaitOp
from weft.backends.nvidia.pipeline.software_pipeline_dots import SoftwarePipelineDots
from weft.backends.nvidia.target import target_named
from weft.backends.nvidia.transforms.raise_pointers import RaisePointers
from weft.frontends.triton.runtime.compiled import CompiledKernel, KernelCode, build_kernel
from weft.frontends.triton.runtime.compiling import arguments_of, builder_of, name_of
from weft.frontends.triton.target import Cuda, compiled_for
from weft.pipelines import annotate
from weft.tile import dialect as tile

from ..ptxas import assemble, needs_ptxas

sys.path[:0] = [str(Path(__file__).parents[1])]
from emulation import compile_like, emulate  # noqa: E402
from product_kernels import attention, by_blocks, of_many, persistent, product  # noqa: E402
from ptx_machine import Memory  # noqa: E402

from ..ptx_products import run_products  # noqa: E402

TARGET = target_named("sm_90a")
RANDOM = np.random.default_rng(3)


def kernel_for(function: Any, args: Sequence[Any], **keywords: Any) -> tile.KernelOp:
    described, groups = function.launcher.describe(args, keywords)
    token = compiled_for.set(Cuda(TARGET.capability))
    try:
        kernel, _ = build_kernel(builder_of(function, described), arguments_of(described, groups), name_of(function))
    finally:
        compiled_for.reset(token)
    set_integer(kernel, WARPS, 8)
    return kernel


def raised(function: Any, args: Sequence[Any], **keywords: Any) -> tile.KernelOp:
    kernel = kernel_for(function, args, **keywords)
    RaisePointers().run(kernel, TARGET, [])
    return kernel


def kinds(kernel: tile.KernelOp) -> tuple[int, int, int, int]:
    """How many loads, stores, gathers of tiles and scatters a kernel has."""
    ops = list(kernel.walk())
    gathers = [op for op in ops if isinstance(op, tile.GatherOp) and tile.tile_type(op.out).sizes]
    loads, stores, scatters = (
        [op for op in ops if isinstance(op, kind)] for kind in (tile.LoadOp, tile.StoreOp, tile.ScatterOp)
    )
    return len(loads), len(stores), len(gathers), len(scatters)


def run_on_cpu(function: Any, args: Sequence[Any], grid: int, delays: bool = False, **keywords: Any) -> None:
    """Run the raised kernel."""
    kernel, name, target = raised(function, args, **keywords), name_of(function), host_target()
    if delays:
        SoftwarePipelineDots().run(kernel, TARGET, [])
    described, groups = function.launcher.describe(args, keywords)
    _, words, _, _ = function.launcher._classify(*args, **keywords)
    code = compile_object(emit_kernels({name: kernel}, target), target)
    CompiledKernel(KernelCode(name, tuple(arguments_of(described, groups)), (), code)).launch((grid, 1, 1), words)


def matrices(m: int, n: int, k: int, turned: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of rows that are a multiple of 16 bytes apart, with what must not be read behind them."""
    pads = [(m, k), (n, k) if turned else (k, n), (m, n)]
    a, b, c = (np.full((rows, -(-columns // 16) * 16 + 16), np.nan, np.float16) for rows, columns in pads)
    for array, (_, columns) in zip((a, b), pads[:2], strict=True):
        array[:, :columns] = RANDOM.standard_normal((array.shape[0], columns)) / 4
    return a, b, c


BLOCKS = {"BM": 64, "BN": 64, "BK": 64}


@pytest.mark.parametrize("end", ["wraps", "zero", "mask"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(64, 64, 64), (100, 70, 90), (130, 64, 200)])
def test_a_product_written_with_pointers(end: str, turned: bool, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c = matrices(m, n, k, turned)
    args = (a, b, c, m, n, k, a.shape[1], b.shape[1], c.shape[1])
    options = {"ta": turned, "END": end, "MASKED": True, **BLOCKS}
    assert kinds(raised(product, args, **options)) == (2, 1, 0, 0)
    run_on_cpu(product, args, -(-m // 64) * -(-n // 64), **options)
    right = b[:, :k].T if turned else b[:, :n]
    np.testing.assert_allclose(c[:, :n], a[:, :k].astype(float) @ right.astype(float), rtol=2e-3, atol=2e-3)
    assert np.isnan(c[:, n:]).all()


def test_rows_from_elsewhere_stay_where_they_are_written() -> None:
    a, b, c = matrices(128, 128, 128)
    args = (a, b, c, 128, 128, 128, a.shape[1], b.shape[1], c.shape[1])
    kernel = raised(product, args, ta=False, END="wraps", MASKED=False, **BLOCKS)
    assert kinds(kernel) == (0, 1, 2, 0)


def test_memory_that_is_written_too_is_not_brought_ahead() -> None:
    a, b, _ = matrices(128, 128, 128)
    args = (a, b, a, 128, 128, 128, a.shape[1], b.shape[1], a.shape[1])
    assert kinds(raised(product, args, ta=False, END="mask", MASKED=True, **BLOCKS)) == (1, 0, 1, 1)


def test_rows_that_the_copy_engine_cannot_step_over_stay() -> None:
    a, b, c = np.zeros((64, 65), np.float16), np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
    args = (a, b, c, 64, 64, 64, 65, 64, 64)
    assert kinds(raised(product, args, ta=False, END="mask", MASKED=True, **BLOCKS)) == (1, 1, 1, 0)
    apart = np.zeros(64 * 64 + 1, np.float16)[1:].reshape(64, 64)  # memory that begins anywhere
    args = (apart, b, c, 64, 64, 64, 64, 64, 64)
    assert kinds(raised(product, args, ta=False, END="mask", MASKED=True, **BLOCKS)) == (1, 1, 1, 0)


@pytest.mark.parametrize(("arch", "turned"), [("sm_80", False), ("sm_90a", True)])
def test_products_of_rows_anywhere_use_the_tensor_cores(arch: str, turned: bool) -> None:
    m, n, k = 40, 35, 37
    a, b, c = (
        RANDOM.standard_normal(shape).astype(np.float16) for shape in ((m, k), (n, k) if turned else (k, n), (m, n))
    )
    options = {"ta": turned, "END": "mask", "MASKED": True, "BM": 32, "BN": 32, "BK": 32}
    args = (a, b, c, m, n, k, a.shape[1], b.shape[1], c.shape[1])
    assert "mma.sync" in compile_like(product, args, options, arch).code.ptx
    emulate(product, *args, grid=(4,), arch=arch, **options)
    np.testing.assert_allclose(c, a.astype(float) @ (b.T if turned else b).astype(float), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("shape", [(64, 64, 64), (100, 70, 90)])
def test_block_pointers_and_descriptors(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c = matrices(m, n, k)
    args = (a, b, c, m, n, k, a.shape[1], b.shape[1], c.shape[1])
    assert kinds(raised(by_blocks, args, **BLOCKS)) == (2, 1, 0, 0)
    run_on_cpu(by_blocks, args, -(-m // 64) * -(-n // 64), **BLOCKS)
    np.testing.assert_allclose(c[:, :n], a[:, :k].astype(float) @ b[:, :n].astype(float), rtol=2e-3, atol=2e-3)


@triton.jit
def in_front(a, b, c, BACK: tl.constexpr, N: tl.constexpr):
    places = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    total = tl.zeros((N, N), tl.float32)
    for k in range(3):
        total = tl.dot(tl.load(a + places + (k - BACK) * N), tl.load(b + places + k * N), total)
    tl.store(c + places, total.to(tl.float16))


def test_memory_in_front_of_a_pointer_stays_where_it_is() -> None:
    a, b, c = (np.zeros((4 * 64, 64), np.float16) for _ in range(3))
    assert kinds(raised(in_front, (a, b, c), BACK=0, N=64)) == (2, 1, 0, 0)
    assert kinds(raised(in_front, (a, b, c), BACK=1, N=64)) == (1, 1, 1, 0)


@triton.jit
def up_to(a, b, c, counts, K, BM: tl.constexpr, BK: tl.constexpr):
    rows, depth = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BK)
    inside = rows[:, None] < tl.load(counts)
    total = tl.zeros((BM, BM), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + (k + depth)[None, :], mask=inside, other=0.0)
        total = tl.dot(x, tl.load(b + (k + depth)[:, None] * BM + tl.arange(0, BM)[None, :]), total)
    tl.store(c + rows[:, None] * BM + tl.arange(0, BM)[None, :], total, mask=inside)


def test_a_size_that_was_read_leaves_its_access_as_it_is() -> None:
    a, b, c = np.zeros((128, 64), np.float16), np.zeros((64, 64), np.float16), np.zeros((128, 64), np.float16)
    kernel = raised(up_to, (a, b, c, np.array([70], np.int32), 64), BM=64, BK=64)
    assert kinds(kernel) == (1, 0, 1, 1)


def test_roles_of_a_written_kernel_keep_their_protocol() -> None:
    a, b, c = matrices(300, 300, 300)
    strides = (a.shape[1], b.shape[1], c.shape[1])
    sizes = (300, 300, 300, *strides)
    for function, extra in ((product, {"ta": False, "END": "wraps", "MASKED": True}), (persistent, {"COUNT": 2})):
        kernel, launch = annotate(kernel_for(function, (a, b, c, *sizes), **extra, BM=128, BN=128, BK=64), TARGET)
        assert launch.persistent == (function is product)  # others walk tiles of their own
        assert any(isinstance(op, WarpSpecializeOp) for op in kernel.walk())
        for block in range(2):
            known = dict(enumerate(sizes, 3))
            check(protocol_of(kernel, (1, 1, 9), block=block, blocks=2, scalars=known), runs=3)


@needs_ptxas
@pytest.mark.parametrize("blocks", [(128, 256, 64), (64, 256, 64), (256, 128, 64), (128, 128, 128)])
def test_products_assemble_without_spills(blocks: tuple[int, int, int]) -> None:
    sides = dict(zip(("BM", "BN", "BK"), blocks, strict=True))
    args = (*matrices(512, 512, 512), 512, 512, 512, 528, 528, 528)
    options = {"ta": False, "END": "wraps", "MASKED": True, **sides}
    code = compile_like(product, args, options, TARGET.arch)
    found = assemble(code.code.ptx, TARGET.arch)
    assert not found.error and not found.advice
    assert found.kernels[code.name].spilled == 0
    assert "wgmma" in code.code.ptx and len(code.code.launches[code.name].maps) == 3


def heads(count: int, length: int, width: int) -> tuple[np.ndarray, ...]:
    return tuple(RANDOM.standard_normal((count, length, width)).astype(np.float16) for _ in range(4))


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    scores = q.astype(float) @ k.astype(float).swapaxes(1, 2) * q.shape[-1] ** -0.5
    if causal:
        scores[:, *np.triu_indices(scores.shape[-1], 1)] = -np.inf
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v.astype(float)


@pytest.mark.parametrize("causal", [False, True])
def test_products_that_wait_a_turn(causal: bool) -> None:
    q, k, v, out = heads(2, 128, 64)
    if not causal:
        v[0, 3, 5] = np.inf  # a weight of nothing must not meet it
    args = (q, k, v, out, 64**-0.5 * 1.4426950408889634, 128)
    run_on_cpu(attention, args, 4, delays=True, D=64, BM=64, BN=32, CAUSAL=causal)
    np.testing.assert_allclose(out, attended(q, k, v, causal), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_a_product_runs_while_powers_are_raised(causal: bool) -> None:
    tensors = heads(2, 512, 128)
    kernel = kernel_for(attention, (*tensors, 0.18, 512), D=128, BM=128, BN=64, CAUSAL=causal)
    kernel, _ = annotate(kernel, TARGET)
    pending = [op.pending.value.data for op in kernel.walk() if isinstance(op, WgmmaWaitOp)]
    assert pending == [1, 0, 0] * (2 if causal else 1)
    for block in range(3):
        check(protocol_of(kernel, (1, 1, 8), block=block, blocks=3, scalars={5: 512}), runs=3)


@needs_ptxas
@pytest.mark.parametrize(("width", "blocks"), [(64, (128, 64)), (128, (128, 64)), (128, (128, 128))])
def test_attention_assembles_without_spills(width: int, blocks: tuple[int, int]) -> None:
    args = (*heads(2, 512, width), 0.18, 512)
    for causal in (False, True):
        options = {"D": width, "BM": blocks[0], "BN": blocks[1], "CAUSAL": causal}
        code = compile_like(attention, args, options, TARGET.arch)
        found = assemble(code.code.ptx, TARGET.arch)
        assert not found.error and not found.advice
        assert found.kernels[code.name].spilled == 0 and len(code.code.launches[code.name].maps) == 4


def test_two_blocks_are_beside_each_other_where_tiles_are_small() -> None:
    args = (*heads(2, 512, 64), 0.18, 512)
    kernel, launch = annotate(kernel_for(attention, args, D=64, BM=128, BN=64, CAUSAL=True), TARGET)
    assert integer(kernel, RESIDENT) == 2 and 2 * (launch.shared + 1024) <= TARGET.shared_per_block + 1024
    assert not launch.persistent  # programs are of unequal length
    for block in range(2):
        check(protocol_of(kernel, (1, 1, 8), block=block, blocks=2, scalars={5: 512}), runs=3)


# -- operands at addresses out of memory -----------------------------------------------------------------------------


def run_of_many(matrices: list[np.ndarray], n: int, programs: int, **options: Any) -> str:
    """Launch it on a machine with the tensor cores of Hopper; gives its PTX."""
    memory = Memory()
    places = [memory.add(matrix) for matrix in matrices]
    addresses, sizes = np.array(places, np.int64), np.full(len(matrices) // 3, n, np.int32)
    code = compile_like(of_many, (addresses, sizes, len(sizes)), options, TARGET.arch)
    given = [memory.add(addresses), memory.add(sizes), len(sizes), memory.add(np.zeros(1, np.int64)), 1, 1, programs]
    launch = code.code.launches[code.name]
    run_products(code.code.ptx, code.name, launch.threads, launch.shared, memory, given, programs)
    for matrix, place in zip(matrices, places, strict=True):
        matrix[...] = memory.read(place, matrix)
    return code.code.ptx


@pytest.mark.parametrize(
    ("blocks", "warps"),
    [
        ((64, 64, 64), 4),
        pytest.param((128, 64, 64), 8, marks=pytest.mark.slow),
        pytest.param((128, 128, 64), 4, marks=pytest.mark.slow),
    ],
)
def test_operands_at_addresses_out_of_memory_are_copied_ahead(blocks: tuple[int, int, int], warps: int) -> None:
    n = 384
    matrices = [(RANDOM.standard_normal((n, n)) / 8).astype(np.float16) for _ in range(6)]
    sides = dict(zip(("BM", "BN", "BK"), blocks, strict=True))
    ptx = run_of_many(matrices, n, 5, TILES=5, **sides, num_warps=warps)
    assert "cp.async.cg" in ptx and "wgmma" in ptx
    for a, b, c in (matrices[:3], matrices[3:]):
        np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=3e-3, atol=3e-3)


@needs_ptxas
@pytest.mark.parametrize("warps", [4, 8])
def test_copies_of_threads_assemble(warps: int) -> None:
    args = (np.zeros(6, np.int64), np.zeros(2, np.int32), 2)
    options = {"TILES": 4, "BM": 128, "BN": 128, "BK": 64, "num_warps": warps}
    code = compile_like(of_many, args, options, TARGET.arch)
    found = assemble(code.code.ptx, TARGET.arch)
    assert not found.error and not found.advice


@triton.jit
def by_twos(a, b, c, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, columns, depth = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    at_a, at_b = a + rows[:, None] * sa + depth[None, :], b + depth[:, None] * sb + columns[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, 2 * BK):
        first, second = tl.load(at_a), tl.load(at_a + BK)
        total = tl.dot(first, tl.load(at_b), total)
        total = tl.dot(second, tl.load(at_b + BK * sb), total)
        at_a += 2 * BK
        at_b += 2 * BK * sb
    tl.store(c + rows[:, None] * sc + columns[None, :], total.to(tl.float16))


def test_two_products_of_a_turn_have_rings_of_their_own() -> None:
    a, b, c = (np.zeros((512, 512), np.float16) for _ in range(3))
    kernel = kernel_for(by_twos, (a, b, c, 512, 512, 512, 512), BM=128, BN=128, BK=64)
    annotated, _ = annotate(kernel, TARGET)
    (roles,) = [op for op in annotated.walk() if isinstance(op, WarpSpecializeOp)]
    assert len(roles.rings.data) == 2
    check(protocol_of(annotated, (1, 1, 1), scalars={3: 512}), runs=3)


@pytest.mark.parametrize(("columns", "by_engine"), [(512, True), (300, False)])
def test_rows_that_end_within_a_chunk_are_not_the_engines_to_write(columns: int, by_engine: bool) -> None:
    """It writes whole chunks of 16 bytes, whatever the sides of a tensor are."""
    a, b, c = matrices(256, columns, 256)
    args = (a, b, c, 256, columns, 256, a.shape[1], b.shape[1], c.shape[1])
    kernel = kernel_for(product, args, ta=False, END="mask", MASKED=True, BM=128, BN=128, BK=64)
    annotated, launch = annotate(kernel, TARGET)
    assert any(isinstance(op, WarpSpecializeOp) for op in annotated.walk())
    assert len(launch.maps) == (3 if by_engine else 2)
