"""`split_extrema`: extrema of large tensors, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.onnx
from tests.seeds import generator
from weft.config import Config
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, i32
from weft.lower.steps import KernelStep
from weft.ops.dialect import parse_module
from weft.passes.split_extrema import SplitExtrema
from weft.runtime.record import recording


def names(passes: Any, module: Any) -> list[str]:
    return [op.name.removeprefix("graph.") for op in passes.function(module).block.ops]


def test_as_text(passes: Any) -> None:
    module = passes.built({"x": Tensor(f32, (300, 100))}, lambda b, x: b.max(x, dims=(0, 1), keep=False))
    found = passes.apply(SplitExtrema(), module)
    expected = parse_module("""
        "graph.func"() ({
        ^bb0(%x: tensor<300x100xf32>):
          %0 = "graph.max"(%x) {dims = [1], keep = false} : (tensor<300x100xf32>) -> tensor<300xf32>
          %1 = "graph.max"(%0) {dims = [0], keep = false} : (tensor<300xf32>) -> tensor<f32>
          "graph.return"(%1) : (tensor<f32>) -> ()
        }) {sym_name = "f", arg_names = ["x"]} : () -> ()
        """)
    assert found.is_structurally_equivalent(expected), str(found)


def test_rows_are_those_of_memory_and_sizes_of_1_stay(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        image = b.permute(b.reshape(x, shape=(1, 30, 20, 40)), dims=(0, 3, 1, 2))
        return b.min(image, dims=(0, 1, 2, 3), keep=True)

    found = passes.apply(SplitExtrema(), passes.built({"x": Tensor(i32, (600, 40))}, body))
    function = passes.function(found)
    assert next(op for op in function.block.ops if op.name == "graph.min").operands[0] is function.block.args[0]
    assert names(passes, found)[-4:] == ["min", "min", "reshape", "return"]


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((30, 40), (0, 1)),  # few elements
        ((300, 100), (1,)),  # rows are programs already
        ((1, 40000), (0, 1)),  # a single row
        ((40000, 1), (0, 1)),  # nothing in a row
        ((40000,), (0,)),
        ((symbol("s0"), 512), (0, 1)),
    ],
)
def test_what_is_left_as_it_is(passes: Any, shape: tuple[Any, ...], dims: tuple[int, ...]) -> None:
    module = passes.built({"x": Tensor(f32, shape)}, lambda b, x: b.max(x, dims=dims, keep=False))
    assert names(passes, passes.apply(SplitExtrema(), module, s0=3)) == ["max", "return"]


def test_a_large_tensor_is_quantized_by_many_programs_and_nan_is_kept() -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper, proto = onnx.helper, onnx.TensorProto
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"]),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
    ]
    outputs = [info("y", proto.UINT8, [300, 100]), info("scale", proto.FLOAT, []), info("zero", proto.UINT8, [])]
    outputs.append(info("most", proto.FLOAT, []))
    graph = helper.make_graph(nodes, "g", [info("x", proto.FLOAT, [300, 100])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with recording() as records:
        function = weft.onnx.load(model, config=Config(cache=False))
    plan = records[0].plan
    assert plan is not None
    kernels: list[Any] = [step for step in plan.steps if isinstance(step, KernelStep)]
    assert max(kernels, key=lambda step: step.grid * step.work).grid > 1
    x = generator().standard_normal((300, 100)).astype(np.float32)
    y, scale, zero, most = function(x)
    step = (max(x.max(), 0) - min(x.min(), 0)).astype(np.float32) / np.float32(255)
    assert scale == step
    assert zero == np.clip(np.rint(-min(x.min(), 0) / step), 0, 255)
    assert np.abs(y.astype(np.float64) - zero - x / np.float64(step)).max() <= 0.5001
    assert most == x.max()
    x[170, 3] = np.nan
    assert np.isnan(function(x)[3])
