"""Runs lowered groups as blocks of threads: annotated for a GPU, on the simulator, beside the interpreter.

trial = Trial.of(group_of([Tensor(f32, (4, 5))], lambda b, x: b.exp(x)), "exp")
(y,) = run_simulated(trial, [x], warps=4)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.backends.nvidia.check.simulator import simulate
from weft.backends.nvidia.ir.dialect import WARPS, set_integer
from weft.backends.nvidia.target import NvidiaTarget, target_named
from weft.pipelines import annotate
from weft.testing.kernels import Symbols, Trial


def run_simulated(
    trial: Trial,
    arrays: Sequence[np.ndarray],
    symbols: Symbols | None = None,
    *,
    warps: int | None = None,
    target: NvidiaTarget | None = None,
) -> list[np.ndarray]:
    """The group's results by its kernels for a GPU, with so many warps a block, or as many as they choose."""
    target = target or target_named("sm_90a")
    buffers = trial.buffers(arrays, symbols or {})
    for call in trial.lowered.calls:
        kernel = call.kernel.op.clone()
        if warps is not None:
            set_integer(kernel, WARPS, warps)
        annotated, launch = annotate(kernel, target)
        simulate(annotated, buffers.of(call), buffers.sizes(call), launch.shared)
    return buffers.results(trial)
