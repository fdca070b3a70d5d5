"""Rows that are walked in blocks are brought ahead; what is left behind the last whole block has its own size."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from weft.backends.nvidia.check.simulator import simulate
from weft.backends.nvidia.ir.rings import AcquireOp, ReleaseOp, WaitOp
from weft.backends.nvidia.ir.row_streams import BulkCopyOp, ReadOp, StreamOp
from weft.backends.nvidia.target import target_named
from weft.backends.nvidia.transforms.peel_loops import peel_loops
from weft.pipelines import annotate, compile_kernels
from weft.tile import dialect as tile

from ..ptxas import assemble, needs_ptxas
from ..row_kernels import row_kernel

TARGET = target_named("sm_90a")


def log_sum(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x, -1)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def stream_of(kernel: tile.KernelOp) -> StreamOp:
    (found,) = [op for op in kernel.block.ops if isinstance(op, StreamOp)]
    return found


def test_whole_blocks_and_the_rest_are_brought_by_the_copy_engine() -> None:
    kernel, launch = annotate(row_kernel(log_sum, (8192, 128256)), TARGET)
    assert launch.persistent and launch.cluster == 1
    stream = stream_of(kernel)
    copies = [op for op in stream.producer.walk() if isinstance(op, BulkCopyOp)]
    whole, rest = 8192, 128256 % 8192
    assert [op.elements.value.data for op in copies if op.elements] == [whole, rest]
    assert [op.bytes.value.data for op in stream.producer.walk() if isinstance(op, AcquireOp) and op.bytes] == [
        2 * whole,
        2 * rest,
    ]
    reads = [op for op in stream.consumer.walk() if isinstance(op, ReadOp)]
    assert [op.extents.data for op in reads if op.extents] == [(whole,), (rest,)]
    for kind in (WaitOp, ReleaseOp):
        assert sum(isinstance(op, kind) for op in stream.consumer.walk()) == 2


def test_a_pass_that_writes_reads_the_row_again() -> None:
    kernel, _ = annotate(row_kernel(softmax, (8192, 1 << 20)), TARGET)
    assert sum(isinstance(op, BulkCopyOp) for op in stream_of(kernel).producer.walk()) == 2


@pytest.mark.parametrize("shape", [(8192, 50257), (600, 128256)], ids=["unaligned", "few"])
def test_rows_that_the_engine_cannot_bring_or_that_are_few_are_loaded(shape: tuple[int, int]) -> None:
    kernel, launch = annotate(row_kernel(log_sum, shape), TARGET)
    assert not launch.persistent and not any(isinstance(op, StreamOp) for op in kernel.block.ops)


def test_loops_of_whole_blocks_have_no_rest() -> None:
    kernel = row_kernel(log_sum, (8192, 131072)).clone()
    loops = peel_loops(kernel)
    assert loops is not None and [loop.bounds.data for loop in loops] == [(0, 131072, 8192)]


def test_a_rest_that_lacks_elements_keeps_what_was_summed_before() -> None:
    kernel = row_kernel(lambda x: x.float().sum(-1), (8192, 128256)).clone()
    loops = peel_loops(kernel)
    assert loops is not None and [loop.bounds.data for loop in loops] == [(0, 122880, 8192), (122880, 128256, 8192)]
    assert list(loops[1].initial) == list(loops[0].results)
    x = np.random.default_rng(0).standard_normal((1, 128256)).astype(ml_dtypes.bfloat16)
    kernel.attributes["grid"] = tile.Sizes((1,))
    total = np.zeros(1, np.float32)
    annotated, launch = annotate(kernel, TARGET)
    simulate(annotated, [x.reshape(-1), total], [], launch.shared)
    np.testing.assert_allclose(total, x.astype(np.float64).sum(1), rtol=1e-4)


@needs_ptxas
@pytest.mark.parametrize("columns", [128256, 32000, 50257, 131072])
def test_streams_assemble_without_spills(columns: int) -> None:
    kernel = row_kernel(log_sum, (8192, columns))
    found = assemble(compile_kernels({kernel.sym_name.data: kernel}, TARGET).ptx, "sm_90a")
    assert not found.error and all(not each.spilled for each in found.kernels.values())
