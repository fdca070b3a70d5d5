"""Matmuls of few rows add up short sums: waiting for memory, they have the time for it."""

from __future__ import annotations

import numpy as np
import pytest

from weft.config import Config
from weft.frontends.text import compile_function
from weft.ir.types import Tensor, f32
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.tile.text import print_program


@pytest.mark.parametrize(("rows", "depth"), [(1, 500), (4, 387), (16, 512)])
def test_errors_are_those_of_sums_of_sums(rows: int, depth: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(0, 1, shape).astype(np.float32) for shape in ((rows, depth), (depth, 128)))
    function = FuncOp.make("f", {"x": Tensor(f32, x.shape), "w": Tensor(f32, w.shape)})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([b.dot(*function.block.args)]))
    made = compile_function(
        function, text=print_program(function), config=Config(cache=False, strict=True, freeze=True), threads=1
    )
    exact = x.astype(np.float64) @ w
    chain = np.zeros(exact.shape, np.float32)
    for k in range(depth):  # a product of two f32 is exact in f64, so that this rounds once a term, as one chain does
        chain = (chain + x[:, k : k + 1].astype(np.float64) * w[k]).astype(np.float32)
    found = np.abs(made(x, w)[0] - exact).mean()
    assert found < 0.7 * np.abs(chain - exact).mean()
