"""Small ONNX models for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.seeds import generator

ML = "ai.onnx.ml"
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


def one(op: str, arrays: list[np.ndarray], outputs: int = 1, version: int = 3, **attributes: Any) -> Any:
    """A model of one node of `ai.onnx.ml`."""
    names = [f"i{place}" for place in range(len(arrays))]
    infos = [
        info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None, *array.shape[1:]])
        for name, array in zip(names, arrays, strict=True)
    ]
    made = [f"o{place}" for place in range(outputs)]
    node = helper.make_node(op, names, made, domain=ML, name="it", **attributes)
    outs = [onnx.ValueInfoProto(name=name) for name in made]
    return model([node], infos, outs, opsets=[helper.make_opsetid(ML, version)])


def rows(count: int = 23, width: int = 5) -> np.ndarray:
    return generator().standard_normal((count, width)).astype(np.float32)


def with_gaps(x: np.ndarray) -> np.ndarray:
    return np.where(generator().random(x.shape) < 0.1, np.float32(np.nan), x)
