"""Graphs on a GPU in a process without torch: through the driver alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

_SCRIPT = """
import sys
from weft.testing.without_torch import Blocker
sys.meta_path.insert(0, Blocker())
import numpy as np
from weft.config import Config
from weft.frontends.text import compile_text

ROWS, RESULT = 'tensor<?x64xf32, #graph.sizes<["s0", "64"]>>', 'tensor<?x48xf32, #graph.sizes<["s0", "48"]>>'
TEXT = f'''
"graph.func"() ({{
^bb0(%x: {ROWS}, %w: tensor<64x48xf32>):
  %0 = "graph.dot"(%x, %w) : ({ROWS}, tensor<64x48xf32>) -> {RESULT}
  %1 = "graph.tanh"(%0) : ({RESULT}) -> {RESULT}
  "graph.return"(%1) : ({RESULT}) -> ()
}}) {{sym_name = "f", arg_names = ["x", "w"]}} : () -> ()
'''
generator = np.random.default_rng(0)
w = generator.standard_normal((64, 48)).astype(np.float32)
for constants in (None, {"w": w}):
    function = compile_text(TEXT, config=Config(cache=False), device="cuda", constants=constants)
    for rows in (1, 7, 300):
        x = generator.standard_normal((rows, 64)).astype(np.float32)
        given = (x, w) if constants is None else (x,)
        (found,) = function(*given)
        np.testing.assert_allclose(found.numpy(), np.tanh(x.astype(np.float64) @ w), rtol=1e-4, atol=1e-5)
        there = function.executor.memory.from_host(x)
        (again,) = function(there, *given[1:])
        np.testing.assert_array_equal(found.numpy(), again.numpy())
assert "torch" not in sys.modules
"""


def test_a_graph_runs_through_the_driver_alone() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
