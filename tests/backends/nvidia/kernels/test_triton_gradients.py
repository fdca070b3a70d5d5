"""Kernels of Triton's language with many products: 8-bit operands, and attention's gradients in one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.ir import Operation

import weft.triton as triton
import weft.triton.language as tl
from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.ir.dialect import ConvertOp
from weft.backends.nvidia.ir.warp_specialization import WarpSpecializeOp
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp
from weft.backends.nvidia.pipeline.hoist_dots import HoistDots
from weft.backends.nvidia.transforms.raise_pointers import RaisePointers
from weft.pipelines import annotate
from weft.tile import dialect as tile

from ..ptxas import assemble, needs_ptxas
from ..transforms.test_raise_pointers import (
    RANDOM,
    TARGET,
    compile_like,
    kernel_for,
    kinds,
    matrices,
    product,
    run_on_cpu,
)

# isort: split
from product_kernels import gradients  # on the path since the import above

LOG2_E = 1.4426950408889634


def inputs(heads: int, length: int, width: int) -> tuple[np.ndarray, ...]:
    """Queries, keys (scaled as exponents are), values, gradients; what rows need; and places for results."""
    q, k, v, g = ((RANDOM.standard_normal((heads, length, width)) / 2).astype(np.float16) for _ in range(4))
    scores = q.astype(float) @ k.astype(float).swapaxes(1, 2)
    scores[:, *np.triu_indices(length, 1)] = -np.inf
    sums = np.log2(np.exp2(scores).sum(-1))
    powers = np.exp2(scores - sums[..., None])
    rests = ((powers @ v.astype(float)) * g.astype(float)).sum(-1)
    results = (np.full_like(q, np.nan) for _ in range(3))
    return q, k, v, g, sums.astype(np.float32), rests.astype(np.float32), *results


def wanted(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, ...]:
    q, k, v, g = (x.astype(float) for x in (q, k, v, g))
    scores = q @ k.swapaxes(1, 2)
    scores[:, *np.triu_indices(scores.shape[-1], 1)] = -np.inf
    powers = np.exp2(scores - sums[..., None])
    parts = powers * (g @ v.swapaxes(1, 2) - ((powers @ v) * g).sum(-1, keepdims=True))
    return parts @ k, parts.swapaxes(1, 2) @ q, powers.swapaxes(1, 2) @ g


def test_the_raised_kernel_gives_the_gradients() -> None:
    arrays = inputs(1, 256, 64)
    options = {"D": 64, "BM": 128, "BN": 32}
    kernel = kernel_for(gradients, (*arrays, 256), **options)
    RaisePointers().run(kernel, TARGET, [])
    assert kinds(kernel) == (11, 3, 4, 0)
    run_on_cpu(gradients, (*arrays, 256), 2, **options)
    for found, exact in zip(arrays[6:], wanted(*arrays[:5]), strict=True):
        assert np.linalg.norm(found - exact) < 2e-3 * np.linalg.norm(exact)


@pytest.mark.parametrize("width", [64, 128])
def test_its_roles_share_rings_and_keep_their_protocol(width: int) -> None:
    kernel = kernel_for(gradients, (*inputs(2, 512, width), 512), D=width, BM=128, BN=32)
    annotated, launch = annotate(kernel, TARGET)
    (roles,) = [op for op in annotated.walk() if isinstance(op, WarpSpecializeOp)]
    # What is held of keys and values makes room for queries and gradients, and so do the parts that move.
    assert len(roles.rings.data) == 4
    # Where two blocks fit beside each other, each has one warp group that multiplies.
    assert launch.threads == (256 if width == 64 else 384) and not launch.persistent
    assert not any(isinstance(op, ConvertOp) for op in annotated.walk())
    for block in range(3):
        check(protocol_of(annotated, (1, 2, 4), block=block, blocks=3, scalars={9: 512}), runs=3)


@needs_ptxas
@pytest.mark.parametrize("width", [64, 128])
def test_it_assembles_without_spills(width: int) -> None:
    code = compile_like(gradients, (*inputs(1, 256, width), 256), {"D": width, "BM": 128, "BN": 32}, TARGET.arch)
    found = assemble(code.code.ptx, TARGET.arch)
    assert not found.error and not found.advice and found.kernels[code.name].spilled == 0


def test_products_that_wait_for_nothing_begin_together() -> None:
    kernel = kernel_for(gradients, (*inputs(1, 256, 64), 256), D=64, BM=128, BN=32)
    RaisePointers().run(kernel, TARGET, [])
    HoistDots().run(kernel, TARGET, [])
    for loop in [op for op in kernel.walk() if isinstance(op, tile.ForOp)]:
        order = [op for op in loop.block.ops if isinstance(op, tile.DotOp) or _is_power(op)]
        assert [isinstance(op, tile.DotOp) for op in order[:3]] == [True, True, False]
    annotated, _ = annotate(kernel_for(gradients, (*inputs(1, 256, 64), 256), D=64, BM=128, BN=32), TARGET)
    pending = [op.pending.value.data for op in annotated.walk() if isinstance(op, WgmmaWaitOp)]
    assert pending == [1, 1, 0, 1, 0, 0]


def _is_power(op: Operation) -> bool:
    return isinstance(op, tile.MapOp) and op.function.data == "exp2"


# -- operands of 8 bits ----------------------------------------------------------------------------------------------


@triton.jit
def exact_sums(a, b, c, K, BM: tl.constexpr, BK: tl.constexpr):
    rows, depth = tl.arange(0, BM), tl.arange(0, BK)
    total = tl.zeros((BM, BM), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + (k + depth)[None, :])
        y = tl.load(b + rows[None, :] * K + (k + depth)[:, None])
        total = tl.dot(x, y, total, max_num_imprecise_acc=0)
    tl.store(c + rows[:, None] * BM + rows[None, :], total)


def bytes_like(array: np.ndarray) -> Any:
    import torch

    return torch.zeros(array.shape, dtype=torch.float8_e5m2)


@pytest.mark.parametrize("end", ["wraps", "mask"])
def test_products_of_8_bits_are_taken_as_they_are(end: str) -> None:
    a, b, c = matrices(256, 256, 256, turned=True)
    args = (bytes_like(a), bytes_like(b), c, 256, 256, 256, a.shape[1], b.shape[1], c.shape[1])
    options = {"ta": True, "END": end, "MASKED": True, "BM": 128, "BN": 128, "BK": 128}
    annotated, launch = annotate(kernel_for(product, args, **options), TARGET)
    assert {each.dtype for each in launch.maps[:2]} == {"f8E5M2"}
    assert any(isinstance(op, WgmmaOp) for op in annotated.walk())
    assert "e5m2.e5m2" in compile_like(product, args, options, TARGET.arch).code.ptx


def test_along_rows_they_are_widened() -> None:
    a, b, c = matrices(256, 256, 256)
    args = (bytes_like(a), bytes_like(b), c, 256, 256, 256, a.shape[1], b.shape[1], c.shape[1])
    options = {"ta": False, "END": "mask", "MASKED": True, "BM": 64, "BN": 64, "BK": 64}
    assert "e5m2.e5m2" not in compile_like(product, args, options, TARGET.arch).code.ptx


def test_sums_that_must_be_exact_are_made_of_wider_operands() -> None:
    a = bytes_like(np.zeros((64, 128)))
    args = (a, a, np.zeros((64, 64), np.float32), 128)
    assert "e5m2.e5m2" not in compile_like(exact_sums, args, {"BM": 64, "BK": 64}, TARGET.arch).code.ptx
