"""Which rows make a tile of a matmul where those of its operand lie in several runs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from xdsl.ir import SSAValue

from weft.ir.types import Tensor, bf16
from weft.lower.machine import gpu_machine
from weft.ops.graph import GraphBuilder
from weft.testing.kernels import Trial, group_of, run_interpreted


@pytest.mark.parametrize("images", [1, 16])
def test_rows_at_one_place_of_many_windows_are_a_tile(images: int) -> None:
    """In one image there are no such: rows of a window's row are a tile."""
    rows, width = 196 * images, 64

    def body(b: GraphBuilder, x: SSAValue, w: SSAValue) -> SSAValue:
        windows = b.permute(b.reshape(x, shape=(images, 2, 7, 2, 7, width)), dims=(0, 1, 3, 2, 4, 5))
        return b.dot(b.reshape(windows, shape=(rows, width)), w)

    trial = Trial.of(group_of([Tensor(bf16, (rows, width)), Tensor(bf16, (width, 64))], body), "dot", gpu_machine())
    (call,) = trial.lowered.calls
    side = int(str(call.kernel.op.attributes["schedule"]).split("<")[1].split("x")[0])
    assert (side >= 32) == (images > 1)
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(t.shape).astype(ml_dtypes.bfloat16) for t in trial.inputs)  # type: ignore[arg-type]
    (found,) = run_interpreted(trial, [x, w])
    windows = x.astype(np.float32).reshape(images, 2, 7, 2, 7, width).transpose(0, 1, 3, 2, 4, 5)
    expected = windows.reshape(rows, width) @ w.astype(np.float32)
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=1e-2, atol=0.05)
