"""Evaluating a group at an index: what a rule may read, and where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.types import Tensor, f32
from weft.testing.kernels import Trial, group_of, run_interpreted


def padded_exponential(b: Any, x: Any) -> Any:
    return b.pad(b.exp(x), low=(2, 1), high=(0, 3), value=5.0)


def padded_twice(b: Any, x: Any) -> Any:
    inner = b.pad(b.neg(x), low=(1, 0), high=(0, 1), value=1.0)
    return b.pad(b.mul(inner, inner), low=(1, 1), high=(0, 2), value=5.0)


def joined(b: Any, x: Any) -> Any:
    return b.concat(b.exp(x), b.neg(x), b.abs(x), dim=1)


@pytest.mark.parametrize("body", [padded_exponential, padded_twice, joined])
def test_a_computed_operand_is_not_read_outside_its_mask(body: Any) -> None:
    """The interpreter checks every access."""
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    trial = Trial.of(group_of([Tensor(f32, x.shape)], body), "masked")
    (y,) = run_interpreted(trial, [x])
    expected = {
        "padded_exponential": lambda: np.pad(np.exp(x), ((2, 0), (1, 3)), constant_values=5),
        "padded_twice": lambda: np.pad(
            np.pad(-x, ((1, 0), (0, 1)), constant_values=1) ** 2, ((1, 0), (1, 2)), constant_values=5
        ),
        "joined": lambda: np.concatenate([np.exp(x), -x, np.abs(x)], 1),
    }[body.__name__]()
    np.testing.assert_allclose(y, expected, rtol=1e-6)
