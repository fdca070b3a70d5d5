"""Kernels of whole rows stream them: the next programs' rows come while the last ones are computed."""

from __future__ import annotations

import pytest
import torch

from weft.backends.nvidia.ir.dialect import RESIDENT, integer
from weft.backends.nvidia.ir.layouts import blocked
from weft.backends.nvidia.ir.row_streams import CROSSES, BulkCopyOp, PieceType, ReadOp, StreamOp
from weft.backends.nvidia.target import target_named
from weft.lower.schedule import gpu_schedule
from weft.pipelines import annotate, compile_kernels
from weft.tile import dialect as tile

from ..ptxas import assemble, needs_ptxas
from ..row_kernels import row_kernel

TARGET = target_named("sm_90a")


@pytest.fixture(autouse=True)
def held_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rows are that TMA cannot bring in blocks, or that are read with what others need."""
    monkeypatch.setattr(gpu_schedule, "_held", lambda *_: None)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def stream_of(kernel: tile.KernelOp) -> StreamOp:
    (found,) = [op for op in kernel.block.ops if isinstance(op, StreamOp)]
    return found


def test_rows_of_many_programs_are_streamed() -> None:
    kernel, launch = annotate(row_kernel(softmax, (4096, 32768)), TARGET)
    assert launch.persistent and launch.cluster == 2
    (slot,) = stream_of(kernel).slots
    assert isinstance(slot, PieceType) and (slot.elements, slot.share, slot.bytes) == (32768, 16384, 32768)


def test_short_rows_are_not() -> None:
    _, launch = annotate(row_kernel(softmax, (8192, 8192)), TARGET)
    assert not launch.persistent


def test_few_programs_are_not() -> None:
    _, launch = annotate(row_kernel(softmax, (64, 32768)), TARGET)
    assert not launch.persistent


def test_rows_that_begin_anywhere_come_with_what_lies_beside_them() -> None:
    kernel, launch = annotate(row_kernel(softmax, (8192, 32767)), TARGET)
    assert launch.persistent
    (slot,) = stream_of(kernel).slots
    assert slot.beside == 16
    (copy,) = [op for op in stream_of(kernel).walk() if isinstance(op, BulkCopyOp)]
    assert copy.end is not None and copy.end.value.data == 8192 * 32767


def test_long_rows_are_shared_by_a_cluster_whose_blocks_send_each_other_results() -> None:
    kernel, launch = annotate(row_kernel(softmax, (2048, 128256)), TARGET)
    assert launch.cluster == launch.blocks_per_program == 8
    (slot,) = stream_of(kernel).slots
    assert slot.share == 16384 and slot.elements == 128256  # the last block has less
    assert all(CROSSES in op.attributes for op in kernel.walk() if isinstance(op, tile.ReduceOp))


def test_weights_are_kept_in_shared_memory() -> None:
    def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (x.shape[-1],), w, b)

    kernel, _ = annotate(row_kernel(norm, (4096, 32768), (32768,), (32768,)), TARGET)
    stream = stream_of(kernel)
    assert [len(stream.slots), len(stream.kept)] == [1, 2]
    assert sum(op.kept is not None for op in stream.walk() if isinstance(op, ReadOp)) == 2


def test_blocks_of_a_cluster_have_a_part_each_in_one_piece() -> None:
    layout = blocked((32768,), 8, [0], vector=8, blocks=4)
    for block in range(4):
        places = {
            layout.place(lane, warp, register, block)[0]
            for lane in range(32)
            for warp in range(8)
            for register in range(layout.count)
        }
        assert places == set(range(8192 * block, 8192 * (block + 1)))


@needs_ptxas
@pytest.mark.parametrize("shape", [(16384, 4096), (8192, 8192), (4096, 32768), (2048, 131072), (2048, 100008)])
def test_streamed_kernels_assemble_without_spills(shape: tuple[int, int]) -> None:
    kernel = row_kernel(softmax, shape)
    found = assemble(compile_kernels({kernel.sym_name.data: kernel}, TARGET).ptx, "sm_90a")
    assert not found.error and all(not each.spilled for each in found.kernels.values())


def norm_of(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), w)


@pytest.mark.parametrize(("columns", "blocks"), [(4096, 1), (8192, 4), (16384, 2)])
def test_blocks_of_many_threads_leave_registers_for_others(columns: int, blocks: int) -> None:
    kernel, launch = annotate(row_kernel(norm_of, (8192, columns), (columns,)), TARGET)
    assert integer(kernel, RESIDENT, 1) == blocks and (blocks == 1 or launch.threads * blocks == 1024)


def test_threads_that_hold_two_rows_need_their_registers() -> None:
    def norm(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x + r, (x.shape[-1],))

    kernel, _ = annotate(row_kernel(norm, (8192, 8192), (8192, 8192)), TARGET)
    assert integer(kernel, RESIDENT, 1) == 1


@pytest.mark.parametrize(("columns", "threads"), [(5120, 128), (6144, 256), (8192, 256)])
def test_threads_are_as_many_as_have_something(columns: int, threads: int) -> None:
    assert annotate(row_kernel(softmax, (8192, columns)), TARGET)[1].threads == threads


def test_clusters_of_four_have_more_warps() -> None:
    _, launch = annotate(row_kernel(softmax, (4096, 65536)), TARGET)
    assert (launch.cluster, launch.threads) == (4, 17 * 32)
