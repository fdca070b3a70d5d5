"""The launcher: every program of a kernel runs once, whatever the number of threads."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from tests.seeds import generator
from weft.backends.cpu.launcher import launcher_module
from weft.config import Config
from weft.ir.types import Tensor, f32
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.pipelines import compile_cpu
from weft.runtime.arrays import run_arrays
from weft.runtime.executable import Executable


@pytest.mark.parametrize("threads", [1, 2, 5, 8])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_fewer_programs_than_threads(rows: int, threads: int) -> None:
    function = FuncOp.make("f", {"x": Tensor(f32, (rows, 9000))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([b.sum(b.exp(function.block.args[0]), dims=(1,), keep=False)]))
    compiled = compile_cpu(function, Config(cache=False))
    x = generator().standard_normal((rows, 9000)).astype(np.float32)
    (y,) = run_arrays(Executable(compiled.plan, compiled.code, compiled.prepare), [x], threads=threads)
    np.testing.assert_allclose(y, np.exp(x.astype(np.float64)).sum(1), rtol=1e-5)


def test_teams_are_never_smaller_than_asked_for() -> None:
    # GNU's pool ends threads that a smaller team has no use for, and makes them anew for the next: tens of µs each.
    text = launcher_module("x86_64-unknown-linux-gnu")
    assert "GOMP_parallel" in text and "smin" not in text
