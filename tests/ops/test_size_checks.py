"""What symbolic sizes leave open is asked again for the sizes of a call, before a kernel reads by it."""

from __future__ import annotations

import numpy as np
import pytest

from weft.config import Config
from weft.errors import ShapeError
from weft.frontends.text import compile_text, read_function
from weft.ops.size_checks import SizeChecks

_X = 'tensor<?xf32, #graph.sizes<["s0"]>>'


def program(op: str, attributes: str, result: str) -> str:
    return f"""
"graph.func"() ({{
^bb0(%x: {_X}):
  %0 = "graph.{op}"(%x) {{{attributes}}} : ({_X}) -> {result}
  %1 = "graph.neg"(%0) : ({result}) -> {result}
  "graph.return"(%1) : ({result}) -> ()
}}) {{sym_name = "part", arg_names = ["x"]}} : () -> ()
"""


SLICE = program("slice", "starts = [3], shape = [4], steps = [1]", "tensor<4xf32>")
BACKWARDS = program("slice", "starts = [6], shape = [3], steps = [-1]", "tensor<3xf32>")
STRIDED = program("as_strided", "shape = [2, 2], strides = [3, 1], offset = 3", "tensor<2x2xf32>")
SHRUNK = program(
    "slice",
    'starts = [0], shape = [#graph.size<"s0 - 7">], steps = [1]',
    'tensor<?xf32, #graph.sizes<["s0 - 7"]>>',
)
REFLECTED = program("pad_mode", 'low = [6], high = [0], mode = "reflect"', 'tensor<?xf32, #graph.sizes<["s0 + 6"]>>')
TOP = (
    program("topk", "k = 7, dim = 0, largest = true, sorted = true", "tensor<7xf32>")
    .replace("-> tensor<7xf32>\n  %1", "-> (tensor<7xf32>, tensor<7xi64>)\n  %1")
    .replace("%0 =", "%0, %9 =")
)


@pytest.mark.parametrize("text", [SLICE, BACKWARDS, STRIDED, SHRUNK, REFLECTED, TOP])
def test_a_size_that_is_too_small_is_refused(text: str) -> None:
    run = compile_text(text, config=Config(cache=False))
    run(np.arange(8, dtype=np.float32))
    with pytest.raises(ShapeError, match="s0 = 5"):
        run(np.arange(5, dtype=np.float32))
    run(np.arange(8, dtype=np.float32))


def test_the_results_are_those_of_the_graph_where_sizes_fit() -> None:
    (found,) = compile_text(SLICE, config=Config(cache=False))(np.arange(7, dtype=np.float32))
    assert found.tolist() == [-3, -4, -5, -6]


def test_strides_that_leave_their_memory_are_refused() -> None:
    text = SLICE.replace('arg_names = ["x"]', 'arg_names = ["x"], result_strides = [[100]]')
    with pytest.raises(ShapeError, match="leaves its memory"):
        SizeChecks(read_function(text)[0])({"s0": 8})
    wide = SLICE.replace('arg_names = ["x"]', 'arg_names = ["x"], arg_strides = [[1, 1]]')
    with pytest.raises(ShapeError, match="2 strides"):
        SizeChecks(read_function(wide)[0])
