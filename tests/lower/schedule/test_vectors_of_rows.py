"""Which way a reduction's kernel walks: along what is read one element after the other, of what is most of it."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.types import Tensor, f32
from weft.testing.kernels import CpuModule, Trial, group_of

RNG = np.random.default_rng(6)


@pytest.mark.parametrize(("turned", "mode"), [(True, "#lanes<r0 by "), (False, "#rows<c0 by ")])
def test_a_vector_that_all_rows_share_does_not_say_which_way_to_walk(turned: bool, mode: str) -> None:
    tensors = [Tensor(f32, (70, 90) if turned else (90, 70)), Tensor(f32, (70,))]
    trial = Trial.of(
        group_of(
            tensors,
            lambda b, x, y: b.sum(b.mul(b.permute(x, dims=(1, 0)) if turned else x, y), dims=(1,), keep=False),
        ),
        "product",
    )
    (call,) = trial.lowered.calls
    assert str(call.kernel.schedule).startswith(mode)
    x, y = (RNG.standard_normal(tensor.shape).astype(np.float32) for tensor in tensors)
    (got,) = CpuModule([trial]).run(trial, [x, y])
    exact = (x.T if turned else x).astype(np.float64) @ y
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
