"""What rows are reduced to is spread over their elements by the kernel that sums these along other dimensions."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.context import Context
from xdsl.ir import SSAValue

from weft.ir.types import Tensor, bf16, boolean, f32, i64
from weft.ops.graph import GraphBuilder, GroupOp
from weft.passes.grouping.group_into_kernels import GroupIntoKernels


def share_of_greatest(b: GraphBuilder, mask: SSAValue, grad: SSAValue, x: SSAValue) -> tuple[SSAValue, ...]:
    """The gradient of `amax` in each row, and what a batch norm before it needs: its sums and those with `x`."""
    shape = b.tensor(mask).shape
    chosen = b.cast(mask, dtype=f32)
    count = b.cast(b.sum(b.cast(mask, dtype=i64), dims=(2,), keep=True), dtype=f32)
    share = b.mul(chosen, b.broadcast(b.div(grad, count), shape=shape))
    product = b.mul(share, b.cast(x, dtype=f32))
    first, second = b.sum(share, dims=(0, 2), keep=True), b.sum(product, dims=(0, 2), keep=True)
    centred = b.sub(share, b.broadcast(b.add(first, second), shape=shape))
    return b.cast(centred, dtype=bf16), second


def grouped(passes: Any, shape: tuple[int, ...], **options: Any) -> list[list[str]]:
    rows = (*shape[:2], 1)
    module = passes.built(
        {"mask": Tensor(boolean, shape), "grad": Tensor(f32, rows), "x": Tensor(bf16, shape)}, share_of_greatest
    )
    GroupIntoKernels(**options).apply(Context(), module)
    groups = [op for op in passes.function(module).block.ops if isinstance(op, GroupOp)]
    return [[str(value.type) for value in group.yielded] for group in groups]


def test_nothing_as_long_as_rows_is_written_between_kernels(passes: Any) -> None:
    first, second = grouped(passes, (16, 64, 2048), column_sums=True)
    assert first == ["tensor<16x64x1xf32>"]
    assert "tensor<16x64x2048xbf16>" in second and len(second) == 2


@pytest.mark.parametrize(("shape", "options"), [((2, 8, 64), {"column_sums": True}), ((16, 64, 2048), {})])
def test_few_bytes_and_processors_stay_as_they_are(passes: Any, shape: tuple[int, ...], options: Any) -> None:
    first, _ = grouped(passes, shape, **options)
    assert any("x".join(map(str, shape)) in text for text in first)
