"""Rows in groups, in tiles: which tiles there are, their products interpreted and as PTX, and their roles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.context import Context
from xdsl.dialects.builtin import UnitAttr

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.ir.tma_store import LIMIT, TmaStoreOp
from weft.backends.nvidia.ir.wgmma import WgmmaOp
from weft.backends.nvidia.target import target_named
from weft.backends.reference.graph import run
from weft.config import Config
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.importer.import_graph import import_graph
from weft.ir.types import Tensor, bf16, dtype_of_numpy, i32, u8
from weft.lower.machine import gpu_machine
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.ops.matmul.dot import TiledDot
from weft.ops.matmul.quantized import dequantized
from weft.passes.dot.tile_grouped_gemm import IN_ORDER, TileGroupedGemm, expected_groups, rows_of_tile, tiles
from weft.pipelines import annotate, compile_kernels, compile_nvidia
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.tile import dialect as tile

from ..layout.test_tensor_cores import agree, run_as_ptx
from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
ENDS = [[130, 130, 131, 260, 300], [0, 0, 300, 300, 300], [1, 2, 3, 4, 300], [300] * 5, [7, 70, 134, 135, 263]]


def table(ends: list[int], rows: int, height: int) -> list[np.ndarray]:
    function = FuncOp.make("main", {"ends": Tensor(i32, (len(ends),))})
    b = GraphBuilder(function.block)
    function.block.add_op(ReturnOp.make(tiles(b, function.block.args[0], rows, height)))
    return run(function, [np.array(ends, np.int32)])


@pytest.mark.parametrize("height", [8, 64, 128])
@pytest.mark.parametrize("ends", [*ENDS, [0] * 5, [-5, 50, 100, 100, 300], [-9, -5, 20, 299, 5000]])
def test_tiles_cover_every_row_of_every_group_once(ends: list[int], height: int) -> None:
    matrices, firsts, stops, count = table(ends, 300, height)
    found = [
        (row, matrix)
        for matrix, first, stop in list(zip(matrices, firsts, stops, strict=True))[: count[0]]
        for row in range(first, min(first + height, stop))
    ]
    groups = np.searchsorted(ends, np.arange(min(ends[-1], 300)), side="right")
    assert sorted(found) == list(enumerate(groups))
    assert 1 <= count[0] <= len(count)


@pytest.mark.parametrize("ends", [[300, 0] * 8, [2**31 - 1, -(2**31)] * 4, [200, 50, 100, 300]])
def test_tiles_lie_within_the_rows_whatever_the_ends_are(ends: list[int]) -> None:
    matrices, firsts, stops, count = table(ends, 300, 64)
    assert 1 <= count[0] <= len(count)
    assert min(matrices) >= 0 and max(matrices) < len(ends)
    assert min(firsts) >= 0 and max(firsts) < 300 and min(stops) >= 0 and max(stops) <= 300


@pytest.mark.parametrize("in_order", [False, True])
def test_only_groups_that_end_in_order_become_tiles(in_order: bool) -> None:
    shapes = Tensor(bf16, (256, 1, 128)), Tensor(bf16, (4, 96, 128)), Tensor(i32, (4,))
    function = FuncOp.make("main", dict(zip("xwt", shapes, strict=True)))
    b = GraphBuilder(function.block)
    x, w, t = function.block.args
    ended = b.le(b.reshape(t, shape=(1, 4)), b.iota(shape=(256, 1), dim=0, dtype=i32))
    groups = b.sum(b.cast(ended, dtype=i32), dims=(1,), keep=False)
    if in_order:
        groups.op.attributes[IN_ORDER] = UnitAttr()
    function.block.add_op(ReturnOp.make([b.dot(x, b.permute(b.take(w, groups, dim=0), dims=(0, 2, 1)))]))
    TileGroupedGemm().apply(Context(), module_of(function))
    assert any(isinstance(op, TiledDot) for op in function.block.ops) == in_order


def arrays_of(ends: list[int], n: int, k: int, height: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n + k)
    x, w = (rng.standard_normal(shape).astype(bf16.numpy) for shape in ((300, k), (5, n, k)))
    return [x, w, *table(ends, 300, height)]


def trial_of(arrays: list[np.ndarray], body: Any) -> Trial:
    tensors = [Tensor(dtype_of_numpy(a.dtype), a.shape) for a in arrays]
    return Trial.of(group_of(tensors, body), "tiled", gpu_machine())


def exact(x: np.ndarray, w: np.ndarray, ends: list[int]) -> np.ndarray:
    groups = np.minimum(np.searchsorted(ends, np.arange(len(x)), side="right"), len(w) - 1)
    return np.einsum("rk,rnk->rn", x.astype(np.float64), w.astype(np.float64)[groups])


@pytest.mark.parametrize("height", [64, 128])
@pytest.mark.parametrize("ends", ENDS)
def test_rows_are_multiplied_with_the_matrix_of_their_group(ends: list[int], height: int) -> None:
    arrays = arrays_of(ends, 160, 96, height)
    trial = trial_of(arrays, lambda b, *a: b.tiled_dot(*a, rows=height))
    (found,) = run_interpreted(trial, arrays)
    agree(found[: ends[-1]], exact(*arrays[:2], ends)[: ends[-1]])


def gated(b: Any, x: Any, w: Any, scale: Any, *table: Any, height: int) -> Any:
    groups, columns, depth = b.tensor(w).shape
    half = columns // 2
    halves = [b.slice(w, starts=(0, s, 0), shape=(groups, half, depth), steps=(1, 1, 1)) for s in (0, half)]
    gate, up = (b.tiled_dot(x, half, *table, rows=height) for half in halves)
    return b.mul(b.mul(b.silu(gate), up), scale)


@pytest.mark.parametrize("height", [64, 128])
def test_a_gate_and_what_it_opens_are_one_kernel_of_tiles(height: int) -> None:
    x, w, *found = arrays_of(ENDS[0], 320, 96, height)
    scale = np.random.default_rng(1).random((300, 1)).astype(bf16.numpy)
    trial = trial_of([x, w, scale, *found], lambda b, *a: gated(b, *a, height=height))
    (actual,) = run_interpreted(trial, [x, w, scale, *found])
    gate, up = np.split(exact(x, w, ENDS[0]), 2, axis=1)
    agree(actual, gate / (1 + np.exp(-gate)) * up * scale)


@pytest.mark.parametrize("ends", ENDS[:2])
def test_codes_are_widened_for_all_rows_of_a_tile(ends: list[int]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 128)).astype(bf16.numpy)
    codes = rng.integers(0, 256, (5, 48, 64)).astype(np.uint8)
    powers = rng.integers(118, 124, (5, 48, 4)).astype(np.uint8)
    arrays = [x, codes, powers, *table(ends, 300, 8)]

    def body(b: Any, x: Any, codes: Any, powers: Any, *found: Any) -> Any:
        return b.tiled_dot(x, b.dequantize(codes, powers, form="e2m1", dtype=bf16), *found, rows=8)

    assert dtype_of_numpy(codes.dtype) == u8
    trial, weights = trial_of(arrays, body), dequantized(codes, powers, None, "e2m1", 32).astype(bf16.numpy)
    agree(run_interpreted(trial, arrays)[0], exact(x, weights, ends))
    agree(run_as_ptx(trial, arrays, "sm_90a"), exact(x, weights, ends))


def kernel_of(n: int, k: int, height: int, *, gates: bool = False) -> tile.KernelOp:
    arrays = arrays_of(ENDS[0], n, k, height)
    if gates:
        arrays.insert(2, np.ones((300, 1), bf16.numpy))
        trial = trial_of(arrays, lambda b, *a: gated(b, *a, height=height))
    else:
        trial = trial_of(arrays, lambda b, *a: b.tiled_dot(*a, rows=height))
    (call,) = trial.lowered.calls
    return call.kernel.op


@pytest.mark.parametrize("height", [64, 128])
@pytest.mark.parametrize("count", [1, 7])
def test_roles_agree_on_how_many_tiles_there_are(height: int, count: int) -> None:
    kernel, launch = annotate(kernel_of(256, 320, height), TARGET)
    assert launch.persistent and any(isinstance(op, WgmmaOp) for op in kernel.walk())
    for block, blocks in ((0, 2), (2, 3)):
        check(protocol_of(kernel, block=block, blocks=blocks, number=count - tile.NumberOp.LEAST), runs=2)


@needs_ptxas
@pytest.mark.parametrize(
    ("n", "k", "gates"), [(512, 640, False), (320, 96, True), (2880, 2880, False), (2880, 2880, True)]
)
@pytest.mark.parametrize("height", [64, 128])
def test_tiles_assemble_and_are_written_by_the_copy_engine(height: int, n: int, k: int, gates: bool) -> None:
    kernel = kernel_of(n, k, height, gates=gates)
    written = [op for op in annotate(kernel, TARGET)[0].walk() if LIMIT in op.attributes]
    assert written
    code = compile_kernels({"tiled": kernel}, TARGET)
    found = assemble(code.ptx, "sm_90a")
    assert not found.error and not found.advice and not any(each.spilled for each in found.kernels.values())
    assert n != 512 or any(isinstance(op, TmaStoreOp) for op in written)


def test_tiles_are_as_high_as_groups_are_large() -> None:
    assert expected_groups(64, 32) == pytest.approx(27.8, abs=0.1)
    assert rows_of_tile(4, 32, coded=False) == 0
    assert rows_of_tile(16, 32, coded=False) == 64
    assert rows_of_tile(64, 32, coded=True) == 8
    assert rows_of_tile(16384, 32, coded=True) == 128


@pytest.mark.parametrize(("rows", "groups"), [(64, 32), (32, 8), (7, 7), (700, 8)])
def test_one_kernel_finds_the_tiles(rows: int, groups: int) -> None:
    def call(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> list[torch.Tensor]:
        return [torch._grouped_mm(x, w.transpose(1, 2), offs=ends)]

    with FakeTensorMode():
        x, w = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in ((rows, 512), (groups, 640, 512)))
        ends = torch.empty(groups, dtype=torch.int32, device="cuda")
        traced = make_fx(call, decomposition_table=decompositions())(x, w, ends)
    function = import_graph(
        traced, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities
    ).function
    names = [getattr(step, "function", "") for step in compile_nvidia(function, Config(cache=False), TARGET).plan.steps]
    assert len(names) == 2 and names[-1].startswith("tiled_dot")
