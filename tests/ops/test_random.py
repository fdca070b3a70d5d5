"""Random numbers of kernels: as Philox says, alike whatever runs them, and evenly spread."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from weft.ir.types import Tensor, bf16, f32, i64
from weft.lower.machine import gpu_machine
from weft.ops.graph import GraphBuilder
from weft.ops.random import Uniform
from weft.testing.kernels import Trial, group_of, run_interpreted
from weft.testing.simulated import run_simulated


def test_words_are_those_of_philox() -> None:
    # The words of counter and key 0, as the authors of Philox print them.
    words = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    found = Uniform.reference(np.zeros(1, np.int64), (4,))
    np.testing.assert_array_equal(found, [np.float32(word >> 8) * 2.0**-24 for word in words])


def test_numbers_are_spread_evenly_and_change_with_the_seed() -> None:
    first, second = (Uniform.reference(np.array([seed]), (1 << 16,)) for seed in (1, 2))
    assert abs(first.mean() - 0.5) < 0.005 and abs(first.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02 and abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.02


def test_kernels_draw_what_the_reference_draws() -> None:
    def dropped(b: GraphBuilder, seed: SSAValue, x: SSAValue) -> SSAValue:
        kept = b.lt(b.uniform(seed, shape=(37, 264)), b.full(value=0.75, shape=(), dtype=f32))
        return b.where(kept, x, b.full(value=0.0, shape=(), dtype=bf16))

    seed = np.array([-123456789012345678])
    x = np.ones((37, 264), bf16.numpy)
    trial = Trial.of(group_of([Tensor(i64, (1,)), Tensor(bf16, (37, 264))], dropped), "dropped", gpu_machine())
    expected = Uniform.reference(seed, (37, 264)) < 0.75
    for run in (run_interpreted, run_simulated):
        (found,) = run(trial, [seed, x])
        np.testing.assert_array_equal(found.astype(bool), expected)
