"""Small ONNX models for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, dtype: int = F32, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes: Any, inputs: Any, outputs: Any, arrays: dict[str, np.ndarray] | None = None, **options: Any) -> Any:
    initializers = [numpy_helper.from_array(array, name) for name, array in (arrays or {}).items()]
    graph = helper.make_graph(nodes, options.pop("name", "g"), inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", options.pop("opset", 21)), *options.pop("opsets", ())]
    return helper.make_model(graph, opset_imports=opsets, **options)


def layer(rows: Any = "n") -> Any:
    """`relu(x w + b)` with weights in the file."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((8, 4)).astype(np.float32), "b": rng.standard_normal(4).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Add", ["h", "b"], ["s"], name="sum"),
        helper.make_node("Relu", ["s"], ["y"], name="cut"),
    ]
    return model(nodes, [info("x", F32, [rows, 8])], [info("y", F32, [rows, 4])], arrays)


def arrays_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
