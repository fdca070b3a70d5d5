"""Products of a GPU with what surrounds them in a graph: what has no room beside copies ahead of time compiles all the
same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from weft.backends.nvidia.compile import annotate, compile_kernels
from weft.backends.nvidia.target import target_named
from weft.ir.types import Tensor, bf16
from weft.lower.machine import gpu_machine
from weft.testing.kernels import Trial, group_of
from weft.tile.dialect import KernelOp

TARGET = target_named("sm_90a")
SIDE = 4096


def kernels(shapes: Sequence[tuple[int, ...]], body: Callable[..., object]) -> dict[str, KernelOp]:
    tensors = [Tensor(bf16, shape) for shape in shapes]
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
