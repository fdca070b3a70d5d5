"""Small ONNX models, one of each kind of thing that a file can hold: what mutated and hostile files are made of."""

# onnx's messages have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

F32, I64, BOOL = int(TensorProto.FLOAT), int(TensorProto.INT64), int(TensorProto.BOOL)


def info(name: str, shape: Sequence[int | str] | None = None, dtype: int = F32) -> Any:
    """A value's name and type."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    arrays: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """A model of nodes, with arrays as initializers."""
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in (arrays or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored, sparse_initializer=more.pop("sparse", None))
    opsets = [helper.make_opsetid("", more.pop("opset", 21)), *more.pop("opsets", ())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def layer() -> Any:
    """A product, a bias and an activation."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Add", ["h", "b"], ["s"], name="sum"),
        helper.make_node("Relu", ["s"], ["y"], name="cut"),
    ]
    return model(nodes, [info("x", (2, 8))], [info("y", (2, 4))], {"w": _numbers(8, 4), "b": _numbers(4)})


def image() -> Any:
    """Convolution, pooling, and a shape that is computed."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="pool"),
        helper.make_node("Shape", ["p"], ["s"], name="shape"),
        helper.make_node("Gather", ["s", "i"], ["n"], name="first"),
        helper.make_node("Unsqueeze", ["n", "zero"], ["n1"], name="row"),
        helper.make_node("Concat", ["n1", "rest"], ["to"], axis=0, name="shape2"),
        helper.make_node("Reshape", ["p", "to"], ["y"], name="flat"),
    ]
    arrays = {"w": _numbers(3, 2, 3, 3), "i": np.array(0), "zero": np.array([0]), "rest": np.array([-1])}
    return model(nodes, [info("x", (1, 2, 6, 6))], [info("y")], arrays)


def branch() -> Any:
    """A condition that data decide."""
    sides = [
        helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [info(name)])
        for op, name in (("Neg", "no"), ("Exp", "yes"))
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0, name="sum"),
        helper.make_node("Greater", ["s", "zero"], ["c"], name="compare"),
        helper.make_node("If", ["c"], ["y"], then_branch=sides[1], else_branch=sides[0], name="if"),
    ]
    return model(nodes, [info("x", (3,))], [info("y")], {"zero": np.array(0, np.float32)})


def loop() -> Any:
    """Turns that carry a value and stack another."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "x"], ["w"]),
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node("Mul", ["w", "w"], ["sq"]),
        ],
        "body",
        [info("i", (), I64), info("c", (), BOOL), info("v", (2,))],
        [info("d", (), BOOL), info("w", (2,)), info("sq", (2,))],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "all"], body=body, name="loop")
    return model([node], [info("x", (2,))], [info("y"), info("all")], {"n": np.array(3)})


def scan() -> Any:
    """A running sum."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body",
        [info("s", (2,)), info("e", (2,))],
        [info("t", (2,)), info("o", (2,))],
    )
    node = helper.make_node("Scan", ["z", "x"], ["last", "y"], body=body, num_scan_inputs=1, name="scan")
    return model([node], [info("x", (3, 2))], [info("y")], {"z": np.zeros(2, np.float32)})


def recurrent() -> Any:
    """An LSTM."""
    arrays = {"w": _numbers(1, 12, 4), "r": _numbers(1, 12, 3), "b": _numbers(1, 24)}
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h"], hidden_size=3, name="lstm")
    return model([node], [info("x", (5, 1, 4))], [info("y"), info("h")], arrays)


def quantized() -> Any:
    """Codes, their factors, and a product of them."""
    arrays = {
        **{"s": np.float32(0.05), "z": np.uint8(7), "t": np.float32(0.1), "o": np.int8(0)},
        "w": np.arange(24, dtype=np.int8).reshape(6, 4),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dequantize"),
        helper.make_node("DequantizeLinear", ["w", "t", "o"], ["e"], name="weights"),
        helper.make_node("MatMul", ["d", "e"], ["y"], name="product"),
    ]
    return model(nodes, [info("x", (2, 6))], [info("y")], arrays)


def function() -> Any:
    """A function of the model's own, with an attribute."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    leaky = helper.make_node("LeakyRelu", ["v"], ["l"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    nodes = [leaky, helper.make_node("Softmax", ["l"], ["r"], axis=-1)]
    made = helper.make_function("own", "head", ["v"], ["r"], nodes, opsets, attributes=["slope"])
    call = helper.make_node("head", ["x"], ["y"], domain="own", slope=0.25, name="call")
    return model([call], [info("x", (2, 3))], [info("y")], opsets=opsets[1:], functions=[made])


def sequence() -> Any:
    """Parts in a sequence, one of which is taken."""
    nodes = [
        helper.make_node("SplitToSequence", ["x", "n"], ["parts"], axis=0, name="split"),
        helper.make_node("SequenceAt", ["parts", "at"], ["y"], name="at"),
    ]
    return model(nodes, [info("x", (6, 2))], [info("y")], {"n": np.array(2), "at": np.array(1)})


def sparse() -> Any:
    """A sparse initializer."""
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    places = numpy_helper.from_array(np.array([1, 5]), "places")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    held = [helper.make_sparse_tensor(values, places, [3, 2])]
    return model([node], [info("x", (2, 3))], [info("y")], sparse=held)


def selection() -> Any:
    """Places that data decide, text, and indices."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], name="nonzero"),
        helper.make_node("Slice", ["x", "a", "b"], ["part"], name="slice"),
        helper.make_node("TopK", ["part", "k"], ["top", "where"], name="topk"),
        helper.make_node("Pad", ["top", "pads"], ["y"], mode="reflect", name="pad"),
        helper.make_node("GatherElements", ["x", "where"], ["e"], name="gather"),
        helper.make_node("ScatterElements", ["x", "where", "top"], ["sc"], name="scatter"),
        helper.make_node("Identity", ["words"], ["text"], name="text"),
    ]
    arrays = {
        **{"a": np.array([1]), "b": np.array([6]), "k": np.array([3]), "pads": np.array([1, 1])},
        "words": np.array(["one", "two"], object),
    }
    outputs = [info("n", None, I64), info("y"), info("e"), info("sc"), info("text", None, int(TensorProto.STRING))]
    return model(nodes, [info("x", (7,))], outputs, arrays)


def attention() -> Any:
    """A fused operator of another domain."""
    arrays = {"w": _numbers(8, 24), "b": _numbers(24)}
    node = helper.make_node("Attention", ["x", "w", "b"], ["y"], domain="com.microsoft", num_heads=2, name="attention")
    return model([node], [info("x", (1, 4, 8))], [info("y")], arrays, opsets=[helper.make_opsetid("com.microsoft", 1)])


MODELS: tuple[Callable[[], Any], ...] = (
    *(layer, image, branch, loop, scan, recurrent, quantized),
    *(function, sequence, sparse, selection, attention),
)
