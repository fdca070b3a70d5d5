"""Products by the tensor cores from registers: simulated, as PTX on a machine of NumPy, and assembled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.nvidia.ir.mma import Fragments, MmaOp, Warps
from weft.backends.nvidia.target import target_named
from weft.ir.types import DType, Tensor, bf16, dtype_of_numpy, f16
from weft.lower.dot.skinny_gemm import choose_streaming_tiles
from weft.lower.machine import gpu_machine
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.testing.simulated import run_simulated

from ..ptx_machine import Memory, run_blocks
from ..ptxas import assemble, needs_ptxas

GPU = gpu_machine()
SHAPES = [(1, 16, 64), (1, 1, 16), (2, 20, 256), (3, 17, 301), (4, 33, 1032), (5, 40, 1000), (8, 16, 513), (9, 8, 2048)]
SHAPES += [(13, 9, 48), (16, 24, 1024), (16, 8, 16), (1, 3, 5), (3, 12, 5000)]
TALL = [(32, 48, 64), (64, 70, 100), (20, 64, 33)]
"""Of more rows than a product of few has: by tiles of 64 x 64, where there is no TMA."""


def linear(b: Any, x: Any, w: Any, c: Any) -> Any:
    return b.silu(b.add(b.dot(x, b.permute(w, dims=(1, 0))), c))


def plain(b: Any, x: Any, w: Any, c: Any) -> Any:
    return b.silu(b.add(b.dot(x, w), c))


def computed(b: Any, x: Any, w: Any, c: Any) -> Any:
    return b.silu(b.add(b.dot(b.neg(x), b.permute(w, dims=(1, 0))), c))


def operands(m: int, n: int, k: int, body: Callable[..., Any], dtype: DType) -> list[np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    shapes = (m, k), (k, n) if body is plain else (n, k), (n,)
    return [rng.standard_normal(shape).astype(dtype.numpy) for shape in shapes]


def expected(arrays: Sequence[np.ndarray], body: Callable[..., Any]) -> np.ndarray:
    x, w, c = (array.astype(np.float64) for array in arrays)
    y = (-x if body is computed else x) @ (w if body is plain else w.T) + c
    return y / (1 + np.exp(-y))


def trial_of(arrays: Sequence[np.ndarray], body: Callable[..., Any]) -> Trial:
    return Trial.of(group_of([Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays], body), "product", GPU)


def agree(actual: np.ndarray, exact: np.ndarray) -> None:
    epsilon = float(ml_dtypes.finfo(actual.dtype).eps)
    error = np.linalg.norm(actual.astype(np.float64) - exact) / np.linalg.norm(exact)
    assert error < epsilon, error


def run_as_ptx(trial: Trial, arrays: Sequence[np.ndarray], arch: str) -> np.ndarray:
    """The one result of a trial by the code that a GPU would get."""
    (call,) = trial.lowered.calls
    code = compile_kernels({call.kernel.op.sym_name.data: call.kernel.op}, target_named(arch))
    (launch,) = code.launches.values()
    memory = Memory()
    out = np.full(trial.outputs[0].shape, np.nan, arrays[0].dtype)  # type: ignore[arg-type]
    addresses = [memory.add(array) for array in (*arrays, out)]
    grid = prod(call.kernel.op.grid.data)  # type: ignore[arg-type]
    run_blocks(code.ptx, call.kernel.op.sym_name.data, launch.threads, launch.shared, memory, addresses, grid)
    return memory.read(addresses[-1], out)


@pytest.mark.parametrize(
    ("shape", "body"),
    [*((shape, linear) for shape in SHAPES), *((shape, body) for shape in SHAPES[2:5] for body in (plain, computed))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_few_rows(shape: tuple[int, int, int], body: Callable[..., Any]) -> None:
    arrays = operands(*shape, body, bf16)
    trial, exact = trial_of(arrays, body), expected(arrays, body)
    agree(run_interpreted(trial, arrays)[0], exact)
    agree(run_simulated(trial, arrays)[0], exact)


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_few_rows_as_ptx(shape: tuple[int, int, int], dtype: DType) -> None:
    arrays = operands(*shape, linear, dtype)
    agree(run_as_ptx(trial_of(arrays, linear), arrays, "sm_90a"), expected(arrays, linear))


@pytest.mark.parametrize("warps", [1, 2, 8, 32])
def test_warps_share_what_there_is(warps: int) -> None:
    arrays = operands(4, 33, 1024, linear, bf16)
    agree(run_simulated(trial_of(arrays, linear), arrays, warps=warps)[0], expected(arrays, linear))


@pytest.mark.parametrize("body", [linear, plain, computed])
@pytest.mark.parametrize("shape", TALL, ids=str)
def test_tiles_without_a_copy_engine(shape: tuple[int, int, int], body: Callable[..., Any]) -> None:
    arrays = operands(*shape, body, bf16)
    trial, exact = trial_of(arrays, body), expected(arrays, body)
    agree(run_simulated(trial, arrays, target=target_named("sm_80"))[0], exact)
    agree(run_as_ptx(trial, arrays, "sm_80"), exact)


def test_weights_are_read_ahead_and_straight_from_memory() -> None:
    arrays = operands(1, 64, 4096, linear, bf16)
    kernel, _ = annotate(trial_of(arrays, linear).lowered.calls[0].kernel.op, target_named("sm_90a"))
    text = str(kernel)
    assert "nvidia.ahead" in text and "nvidia.convert" not in text and "nvidia.pack" not in text.replace("packed", "")
    assert len([op for op in kernel.walk() if isinstance(op, MmaOp)]) == 1


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("rows", [1, 4, 8, 16])
def test_registers_are_enough(rows: int, arch: str) -> None:
    for n, k in ((14336, 4096), (4096, 14336), (6144, 4096), (1024, 4096), (28672, 4096)):
        tensors = [Tensor(bf16, shape) for shape in ((rows, k), (n, k), (n,))]
        kernel = Trial.of(group_of(tensors, linear), "product", GPU).lowered.calls[0].kernel.op
        found = assemble(compile_kernels({"product": kernel}, target_named(arch)).ptx, arch)
        assert not found.error
        assert all(not each.spilled and each.registers <= 96 for each in found.kernels.values()), (n, k, found.kernels)


@pytest.mark.parametrize(("n", "k"), [(14336, 4096), (4096, 14336), (4096, 4096), (6144, 4096), (1024, 4096)])
def test_all_multiprocessors_have_as_much_to_read(n: int, k: int) -> None:
    _, columns, _ = choose_streaming_tiles(1, n, k, 1, GPU)
    programs = -(-n // columns)
    busiest = -(-programs // GPU.multiprocessors)
    assert programs / (busiest * GPU.multiprocessors) > 0.9


@pytest.mark.parametrize("warps", [Warps(), Warps(k=4), Warps(m=2, n=2), Warps(n=2, k=2, same=2)])
def test_fragments_cover_every_element(warps: Warps) -> None:
    fragments = Fragments(32 if warps.m > 1 else 13, 32, 128, warps)
    for layout in (fragments.left(), fragments.right(), fragments.product()):
        assert layout.warp_count == warps.count
        places = {
            layout.place(lane, warp, register)
            for lane in range(32)
            for warp in range(layout.warp_count)
            for register in range(layout.count)
        }
        assert {place for place in np.ndindex(*layout.shape)} <= places
