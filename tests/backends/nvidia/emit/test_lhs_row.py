"""Rows that are walked more than once are brought once, where rings of blocks of threads have room for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest
import torch

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.ir.rings import ReleaseOp, RewindOp, WaitOp
from weft.backends.nvidia.ir.row_streams import CROSSES, BulkCopyOp, StreamOp
from weft.backends.nvidia.target import target_named
from weft.lower.machine import gpu_machine
from weft.pipelines import annotate, compile_kernels
from weft.tile import dialect as tile

from .. import row_kernels
from ..ptx_clusters import run_clusters
from ..ptx_machine import Memory
from ..ptx_streams import run_streams
from ..ptxas import assemble, needs_ptxas
from ..row_kernels import row_kernel

BF16 = ml_dtypes.bfloat16
TARGET = target_named("sm_90a")


def at_least_f32(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def weighted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) * w


def shifted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + y, -1)


def normalized(x: torch.Tensor) -> torch.Tensor:
    wide = at_least_f32(x)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True))).to(x.dtype)


def stream_of(kernel: tile.KernelOp) -> StreamOp:
    (found,) = [op for op in kernel.block.ops if isinstance(op, StreamOp)]
    return found


@pytest.mark.parametrize(("columns", "turns"), [(32768, 4), (20480, 3), (16392, 3)])
def test_a_row_that_a_block_has_room_for_is_brought_once(columns: int, turns: int) -> None:
    kernel, launch = annotate(row_kernel(softmax, (4096, columns)), TARGET)
    stream = stream_of(kernel)
    loops = 1 + (columns % 8192 > 0)
    assert not launch.persistent and launch.cluster == 1 and stream.stages.value.data == turns
    assert sum(isinstance(op, BulkCopyOp) for op in stream.producer.walk()) == loops
    assert [op.stages.value.data for op in stream.consumer.walk() if isinstance(op, RewindOp)] == [turns]
    counts = [sum(isinstance(op, kind) for op in stream.consumer.walk()) for kind in (WaitOp, ReleaseOp)]
    assert counts == [2 * loops, loops]


@pytest.mark.parametrize(("columns", "blocks", "rest"), [(50304, 2, 576), (40960, 2, 4096), (262144, 8, 0)])
def test_blocks_share_a_row_that_is_longer(columns: int, blocks: int, rest: int) -> None:
    kernel, launch = annotate(row_kernel(softmax, (4096, columns)), TARGET)
    part = columns // blocks
    assert launch.cluster == launch.blocks_per_program == blocks
    copies = [op for op in stream_of(kernel).producer.walk() if isinstance(op, BulkCopyOp)]
    assert [op.elements.value.data for op in copies if op.elements] == [8192, *([rest] if rest else [])]
    assert str(copies[0].offset.data[0]) == f"d0 + d1*{columns} + d2*{part}"
    assert all(CROSSES in op.attributes for op in kernel.walk() if isinstance(op, tile.ReduceOp))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (softmax, [(4096, 32770)]),
        (softmax, [(64, 32768)]),
        (softmax, [(4096, 65536)]),
        (weighted, [(4096, 32768), (4096, 32768)]),
        (shifted, [(4096, 32768), (4096, 32768)]),
    ],
    ids=["unaligned", "few", "fits registers of clusters", "read once", "two operands"],
)
def test_others_are_held_in_registers(function: Callable[..., torch.Tensor], shapes: list[tuple[int, int]]) -> None:
    kernel, _ = annotate(row_kernel(function, *shapes), TARGET)
    assert not any(isinstance(op, RewindOp) for op in kernel.walk())


def checked(function: Callable[..., torch.Tensor], *arrays: np.ndarray, seed: int) -> Launch:
    """Run a kernel on the CPU, compare it with float64, and say how it is launched."""
    kernel, target = row_kernel(function, *(x.shape for x in arrays)), replace(TARGET, multiprocessors=1)
    name, code = kernel.sym_name.data, compile_kernels({kernel.sym_name.data: kernel}, target)
    annotated, launch = annotate(kernel, target)
    assert any(isinstance(op, RewindOp) for op in annotated.walk())
    memory, result = Memory(), np.full(arrays[0].shape, 777, BF16)
    words = [memory.add(array.view(np.uint16)) for array in (*arrays, result)]
    given, programs = (code.ptx, name, launch.threads, launch.shared, memory, words), len(result)
    if launch.cluster > 1:
        run_clusters(*given, launch.cluster, programs, seed)
    else:
        run_streams(*given, programs, seed)
    found = memory.read(words[-1], result.view(np.uint16)).view(BF16).astype(np.float64)
    expected = function(*(torch.from_numpy(x.astype(np.float64)) for x in arrays)).numpy()
    assert np.linalg.norm(found - expected) < 4e-3 * np.linalg.norm(expected)
    return launch


@pytest.fixture
def one_multiprocessor(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows are many."""
    monkeypatch.setattr(row_kernels, "gpu_machine", partial(gpu_machine, 1))


def numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


@pytest.mark.parametrize("function", [softmax, normalized])
@pytest.mark.parametrize(("columns", "seed"), [(20480, 0), (20008, 1)])
@pytest.mark.usefixtures("one_multiprocessor")
def test_results_of_a_block(function: Callable[..., torch.Tensor], columns: int, seed: int) -> None:
    x = numbers(3, columns, seed=seed)
    x[1, 5:9000] = float("-inf") if function is softmax else 0
    assert checked(function, x, seed=seed).cluster == 1


@pytest.mark.parametrize(("columns", "seed"), [(40960, 0), (33008, 1), (50304, 2)])
@pytest.mark.usefixtures("one_multiprocessor")
def test_results_of_blocks_that_share_a_row(columns: int, seed: int) -> None:
    x = numbers(2, columns, seed=seed)
    x[1, : columns // 2] = float("-inf")
    assert checked(softmax, x, seed=seed).cluster == 2


@needs_ptxas
@pytest.mark.parametrize("columns", [32768, 50304, 262144])
def test_held_rows_assemble_without_spills(columns: int) -> None:
    kernel = row_kernel(softmax, (4096, columns))
    found = assemble(compile_kernels({kernel.sym_name.data: kernel}, TARGET).ptx, "sm_90a")
    assert not found.error and all(not each.spilled for each in found.kernels.values())
