"""Programs that stay and sum up columns: TMA brings their next rows while they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.backends.nvidia.ir.rings import ReleaseOp
from weft.backends.nvidia.ir.row_streams import BulkCopyOp, BulkCopyRowsOp, ReadOp, StreamOp
from weft.backends.nvidia.target import NvidiaTarget, target_named
from weft.passes.grouping import kernel_groups
from weft.pipelines import annotate
from weft.tile import dialect as tile

from .. import emulated_graphs
from ..emulated_graphs import emulated
from ..row_kernels import planned

TARGET = target_named("sm_90a")


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def activation(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x * weight + bias)


def sums(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x + bias * weight


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU so small that programs have several turns, the last of which has fewer rows."""

    def named(arch: str) -> NvidiaTarget:
        return replace(target_named(arch), multiprocessors=1)

    monkeypatch.setattr(emulated_graphs, "target_named", named)
    monkeypatch.setattr(kernel_groups, "_LEAST_ROWS", 8)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("function", "dtype", "rows", "columns"),
    [
        (norm, torch.bfloat16, 35, 520),
        (norm, torch.float32, 29, 768),
        (norm, torch.bfloat16, 37, 768),
        (sums, torch.bfloat16, 61, 768),
        (norm, torch.bfloat16, 9, 8704),
    ],
)
def test_gradients_are_right_over_many_turns(
    function: Callable[[Tensor, Tensor, Tensor], Tensor],
    dtype: torch.dtype,
    rows: int,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran, run = list[int](), emulated_graphs.run_streams
    monkeypatch.setattr(emulated_graphs, "run_streams", lambda *given: (ran.append(1), run(*given)))
    torch.manual_seed(rows)
    tensors = [torch.randn(rows, columns), torch.randn(columns), torch.randn(columns)]
    tensors = [each.to(dtype) for each in tensors]
    seed = torch.randn(rows, columns).to(dtype)

    def gradients(run: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in given]
        return list(torch.autograd.grad(run(*leaves), leaves, seed.to(given[0].dtype)))

    exact = gradients(function, [tensor.double() for tensor in tensors])
    usual = gradients(function, tensors)
    for found, eager, wanted in zip(gradients(emulated(function), tensors), usual, exact, strict=True):
        allowed = (eager.double() - wanted).norm()
        assert (found.double() - wanted).norm() <= 2 * allowed + 1e-5 * wanted.norm()
    assert ran


def gradient(dy: Tensor, x: Tensor, mean: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    scaled, x = dy.float() * weight, x.float() - mean
    dx = scaled - scaled.mean(-1, keepdim=True) - x * (scaled * x).mean(-1, keepdim=True)
    return dx.bfloat16(), (dy.float() * x).sum(0), dy.float().sum(0)


def rms_gradient(dy: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    wide, x = dy.float(), x.float() * scale
    scaled = wide * weight
    return ((scaled - x * (scaled * x).mean(-1, keepdim=True)) * scale).bfloat16(), (wide * x).sum(0)


def gate_gradient(dy: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    wide = dy.float() * torch.sigmoid(x.float()) * scale
    return wide.bfloat16(), wide.sum(0) * weight


def bias_gradient(dy: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (dy.float().sum(0) * weight,)


def stream_of(rows: int, columns: int, function: Callable[..., tuple[Tensor, ...]] = gradient) -> StreamOp | None:
    plan = planned(function, (rows, columns), (rows, columns), (rows, 1), (columns,))
    (kernel,) = [kernel for name, kernel in plan.kernels.items() if name.endswith("_rows")]
    annotated, _ = annotate(kernel, TARGET)
    return next((op for op in annotated.walk() if isinstance(op, StreamOp)), None)


def test_rows_come_by_tma_and_weights_stay() -> None:
    stream = stream_of(8192, 4096)
    assert stream is not None
    assert (len(stream.slots), len(stream.kept)) == (2, 1)
    assert sum(isinstance(op, BulkCopyOp) for op in stream.walk()) == 3


def test_what_there_is_of_each_row_is_no_row_where_there_are_as_many_rows_as_columns() -> None:
    """Rows take so much of shared memory that there is room for the weight beside them, but not for all scales."""

    def scaled(dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return rms_gradient(dy, x - mean, scale, weight)

    rows, each = (8192, 8192), (8192, 1)
    plan = planned(scaled, rows, rows, each, each, (8192,), dtype=torch.float32)
    (kernel,) = [kernel for name, kernel in plan.kernels.items() if name.endswith("_rows")]
    assert kernel.prefetched is not None


def test_long_rows_are_read_again_behind_their_reductions_before_their_stage_is_free() -> None:
    stream = stream_of(8192, 9216)
    assert stream is not None
    (loop,) = (op for op in stream.consumer.block.ops if isinstance(op, tile.ForOp))
    order = [type(op) for op in loop.block.ops if isinstance(op, ReadOp | ReleaseOp | tile.ReduceOp)]
    behind = order[len(order) - order[::-1].index(tile.ReduceOp) :]
    assert order.count(ReadOp) == 6
    assert behind == [ReadOp, ReadOp, ReadOp, ReleaseOp]


def test_rows_of_which_the_last_turn_has_fewer_come_one_by_one() -> None:
    stream = stream_of(8191, 768)
    assert stream is not None
    assert sum(isinstance(op, BulkCopyRowsOp) for op in stream.walk()) == 2


@pytest.mark.parametrize(
    ("rows", "columns", "function"),
    [(1483, 9864, rms_gradient), (1483, 10240, rms_gradient), (1483, 8192, gradient), (16384, 4096, bias_gradient)],
)
def test_long_rows_and_sums_of_one_operand_come_by_tma(
    rows: int, columns: int, function: Callable[..., tuple[Tensor, ...]]
) -> None:
    assert stream_of(rows, columns, function) is not None


@pytest.mark.parametrize(
    ("rows", "columns", "function"),
    [
        pytest.param(8192, 770, gradient, id="begin anywhere"),
        pytest.param(8192, 96, gradient, id="short"),
        pytest.param(264, 4096, gradient, id="two turns"),
        pytest.param(8192, 4096, gate_gradient, id="enough in flight without"),
        pytest.param(8192, 2072, bias_gradient, id="parts of different lengths"),
    ],
)
def test_rows_that_gain_nothing_are_loaded_by_threads(
    rows: int, columns: int, function: Callable[..., tuple[Tensor, ...]]
) -> None:
    assert stream_of(rows, columns, function) is None


@pytest.mark.parametrize(
    ("columns", "function", "programs"),
    [
        pytest.param(8192, gradient, 1, id="a row takes memory as long as a turn"),
        pytest.param(4096, gradient, 2, id="two rows do"),
        pytest.param(768, gradient, 2, id="short rows: each has two of eight warps"),
        pytest.param(4096, bias_gradient, 2, id="nothing to wait for"),
    ],
)
def test_a_multiprocessor_has_no_more_programs_than_keep_up_with_memory(
    columns: int, function: Callable[..., tuple[Tensor, ...]], programs: int
) -> None:
    rows = (16384, columns)
    plan = planned(function, rows, rows, (16384, 1), (columns,))
    (kernel,) = [kernel for name, kernel in plan.kernels.items() if name.endswith("_rows")]
    assert prod(size for size in kernel.grid.data if isinstance(size, int)) == 132 * programs


def test_short_rows_have_warps_by_themselves_and_half_the_programs() -> None:
    plan = planned(gradient, (8192, 768), (8192, 768), (8192, 1), (768,))
    (kernel,) = [kernel for name, kernel in plan.kernels.items() if name.endswith("_rows")]
    assert kernel.persistent is not None and kernel.row_warps is not None
    assert (kernel.persistent.value.data, kernel.row_warps.value.data) == (8, 4)
    assert kernel.grid.data == (2 * 132,)
