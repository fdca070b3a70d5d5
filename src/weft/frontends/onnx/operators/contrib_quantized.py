"""Quantized operators of `com.microsoft`, and operators with an activation behind them, by the standard ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import ModelError
from weft.frontends.onnx.call import Call
from weft.frontends.onnx.model import Node
from weft.frontends.onnx.operators.table import onnx_op
from weft.frontends.onnx.rewrite import Rewrite

_DOMAIN = "com.microsoft"
_OPSETS = {"": 21}
"""What the nodes that are made here are written in, whatever the model is."""


class _Nodes:
    """Standard nodes in the place of one, whose names are its own."""

    def __init__(self, c: Call) -> None:
        self.c = c
        self.nodes: list[Node] = []

    def add(self, op: str, inputs: Sequence[str], output: str = "", attributes: Mapping[str, Any] | None = None) -> str:
        name = output or self.c.scope.fresh(op)
        self.nodes.append(
            Node(op, "", tuple(inputs), (name,), dict(attributes or {}), self.c.node.name, opsets=_OPSETS)
        )
        return name

    def given(self, place: int) -> str:
        return self.c.node.inputs[place] if place < len(self.c.node.inputs) else ""

    def number(self, first: int) -> str:
        """The numbers that codes at a place stand for; their factor and zero are the next inputs."""
        inputs = [self.given(place) for place in range(first, first + 3)]
        return self.add("DequantizeLinear", inputs if inputs[2] else inputs[:2])

    def quantized(self, value: str, scale: int) -> Rewrite:
        """The result, in codes whose factor and zero are inputs."""
        inputs = [value, self.given(scale), self.given(scale + 1)]
        self.add("QuantizeLinear", inputs if inputs[2] else inputs[:2], self.c.node.outputs[0])
        return Rewrite(self.nodes)

    def kept(self, *names: str) -> dict[str, Any]:
        return {name: value for name, value in self.c.node.attributes.items() if name in names}


@onnx_op("QLinearAdd", "QLinearMul", domain=_DOMAIN)
def qlinear_binary(c: Call) -> Any:
    made = _Nodes(c)
    return made.quantized(made.add(c.node.op.removeprefix("QLinear"), [made.number(0), made.number(3)]), 6)


@onnx_op("QLinearSigmoid", "QLinearLeakyRelu", "QLinearReduceMean", domain=_DOMAIN)
def qlinear_unary(c: Call) -> Any:
    made = _Nodes(c)
    attributes = made.kept("alpha", "keepdims")
    inputs = [made.number(0)]
    if c.node.op == "QLinearReduceMean" and c.given("axes"):
        inputs.append(made.add("Constant", [], attributes={"value_ints": c.ints("axes")}))
    return made.quantized(made.add(c.node.op.removeprefix("QLinear"), inputs, attributes=attributes), 3)


@onnx_op("QLinearAveragePool", "QLinearGlobalAveragePool", domain=_DOMAIN)
def qlinear_pool(c: Call) -> Any:
    made = _Nodes(c)
    rank = c.rank(0)
    x, last = made.number(0), c.flag("channels_last")
    if last:
        x = made.add("Transpose", [x], attributes={"perm": (0, rank - 1, *range(1, rank - 1))})
    kept = made.kept("kernel_shape", "pads", "strides", "ceil_mode", "auto_pad", "count_include_pad")
    y = made.add(c.node.op.removeprefix("QLinear"), [x], attributes=kept)
    if last:
        y = made.add("Transpose", [y], attributes={"perm": (0, *range(2, rank), 1)})
    return made.quantized(y, 3)


@onnx_op("QLinearSoftmax", domain=_DOMAIN)
def qlinear_softmax(c: Call) -> Any:
    made = _Nodes(c)
    if c.int("opset", 13) < 13 and c.axis(c.int("axis", 1), c.rank(0)) != c.rank(0) - 1:
        raise c.unsupported("a softmax over several dimensions of codes is not supported")
    return made.quantized(made.add("Softmax", [made.number(0)], attributes={"axis": c.int("axis", -1)}), 3)


@onnx_op("QLinearConcat", domain=_DOMAIN)
def qlinear_concat(c: Call) -> Any:
    made = _Nodes(c)
    if (len(c.inputs) - 2) % 3 or len(c.inputs) < 5:
        raise ModelError(f"{c.node} has {len(c.inputs)} inputs, expected two and three for each part")
    parts = [made.number(place) for place in range(2, len(c.inputs), 3)]
    return made.quantized(made.add("Concat", parts, attributes=made.kept("axis")), 0)


@onnx_op("QLinearWhere", domain=_DOMAIN)
def qlinear_where(c: Call) -> Any:
    made = _Nodes(c)
    return made.quantized(made.add("Where", [made.given(0), made.number(1), made.number(4)]), 7)


@onnx_op("QGemm", domain=_DOMAIN)
def qgemm(c: Call) -> Any:
    """A product of codes; the bias is in whole numbers of both factors' product."""
    made = _Nodes(c)
    a, b = made.given(0), made.given(3)
    if c.flag("transA"):
        a = made.add("Transpose", [a], attributes={"perm": (1, 0)})
    if c.flag("transB"):
        b = made.add("Transpose", [b], attributes={"perm": (1, 0)})
    total = made.add("MatMulInteger", [a, b, made.given(2), made.given(5)])
    if c.has(6):
        total = made.add("Add", [total, made.given(6)])
    factor = made.add("Mul", [made.given(1), made.given(4)])
    y = made.add("Mul", [made.add("Cast", [total], attributes={"to": 1}), factor])
    if (alpha := c.float("alpha", 1.0)) != 1:
        y = made.add("Mul", [y, made.add("Constant", [], attributes={"value_float": alpha})])
    if c.has(7):
        return made.quantized(y, 7)
    made.add("Identity", [y], c.node.outputs[0])
    return Rewrite(made.nodes)


@onnx_op("MatMulIntegerToFloat", domain=_DOMAIN)
def matmul_integer_to_float(c: Call) -> Any:
    made = _Nodes(c)
    zeros = [made.given(4), made.given(5)]
    total = made.add("MatMulInteger", [made.given(0), made.given(1), *zeros])
    return _scaled(made, total, made.add("Mul", [made.given(2), made.given(3)]), 6)


@onnx_op("DynamicQuantizeMatMul", domain=_DOMAIN)
def dynamic_quantize_matmul(c: Call) -> Any:
    made = _Nodes(c)
    codes, scale, zero = (c.scope.fresh(name) for name in ("codes", "scale", "zero"))
    made.nodes.append(
        Node("DynamicQuantizeLinear", "", (made.given(0),), (codes, scale, zero), {}, c.node.name, opsets=_OPSETS)
    )
    total = made.add("MatMulInteger", [codes, made.given(1), zero, made.given(3)])
    return _scaled(made, total, made.add("Mul", [scale, made.given(2)]), 4)


def _scaled(made: _Nodes, total: str, factor: str, bias: int) -> Rewrite:
    y = made.add("Mul", [made.add("Cast", [total], attributes={"to": 1}), factor])
    if made.given(bias):
        y = made.add("Add", [y, made.given(bias)])
    made.add("Identity", [y], made.c.node.outputs[0])
    return Rewrite(made.nodes)


@onnx_op("QuantizeLinear", "DequantizeLinear", domain=_DOMAIN)
def linear(c: Call) -> Any:
    made = _Nodes(c)
    made.add(c.node.op, c.node.inputs, c.node.outputs[0], made.kept("axis"))
    return Rewrite(made.nodes)


_PARAMETERS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max")}


def _activated(made: _Nodes, value: str, name: str, numbers: Sequence[float]) -> Rewrite:
    if name == "Clip":
        bounds = [made.add("Constant", [], attributes={"value_float": float(each)}) for each in numbers]
        made.add("Clip", [value, *bounds], made.c.node.outputs[0])
    elif name in ("", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid", "Elu", "Selu", "Softplus", "HardSwish"):
        names = _PARAMETERS.get(name, ("alpha",) if name == "Elu" else ())
        attributes = dict(zip(names, map(float, numbers), strict=False))
        made.add(name or "Identity", [value], made.c.node.outputs[0], attributes)
    else:
        raise made.c.unsupported(f"the activation {name[:40]!r} is not supported")
    return Rewrite(made.nodes)


@onnx_op("FusedConv", domain=_DOMAIN)
def fused_conv(c: Call) -> Any:
    made = _Nodes(c)
    kept = made.kept("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    y = made.add("Conv", [made.given(0), made.given(1), made.given(2)], attributes=kept)
    if c.has(3):
        y = made.add("Add", [y, made.given(3)])
    return _activated(made, y, c.string("activation", ""), c.floats("activation_params", ()))


@onnx_op("FusedGemm", domain=_DOMAIN)
def fused_gemm(c: Call) -> Any:
    made = _Nodes(c)
    kept = made.kept("alpha", "beta", "transA", "transB")
    y = made.add("Gemm", [made.given(0), made.given(1), made.given(2)], attributes=kept)
    numbers = [c.float(name) for name in ("activation_alpha", "activation_beta") if c.given(name)]
    return _activated(made, y, c.string("activation", ""), numbers)
