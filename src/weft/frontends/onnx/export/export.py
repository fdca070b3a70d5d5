"""`weft.onnx.export`: a graph as an ONNX model, where each of its ops can be said there."""

# onnx's messages have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from weft.errors import ShapeError, UnsupportedError
from weft.frontends.onnx.dtypes import NUMBERS
from weft.frontends.onnx.export import elementwise as elementwise  # these fill the table of writers
from weft.frontends.onnx.export import movement as movement
from weft.frontends.onnx.export import structured as structured
from weft.frontends.onnx.export.writer import Writer, write_op
from weft.frontends.text import read_function
from weft.ir.expr import Expr, Size
from weft.ir.types import Tensor, tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp, ReturnOp
from weft.tile.text import print_program

OPSET, _IR_VERSION = 21, 10
"""What models are written in: ONNX 1.16, which runtimes have read since 2024."""


def export(graph: str | FuncOp | Any, constants: Mapping[str, Any] | None = None, *, name: str = "model") -> Any:
    """A `ModelProto` that computes what a graph does, checked by ONNX's own checker.

    The graph is text, a function of it, or a program of `torch.export`, which brings its weights. `constants` are the
    arguments, by name, that become initializers. Symbolic sizes stay open. An op that ONNX has no operator for is an
    `UnsupportedError` that names it.
    """
    if not isinstance(graph, str | FuncOp):
        text, constants = _exported_by_torch(graph, name)
    else:
        text = graph if isinstance(graph, str) else print_program(graph)
    function, signature = read_function(text)
    arrays = {key: np.asarray(value) for key, value in (constants or {}).items()}
    if unknown := [key for key in arrays if key not in signature.names]:
        raise UnsupportedError(f"the graph has no argument {unknown[0]!r}", hint=f"it has {', '.join(signature.names)}")
    return _Export(function, dict(zip(function.block.args, signature.names, strict=True)), arrays, name).model()


def _exported_by_torch(program: Any, name: str) -> tuple[str, Mapping[str, np.ndarray]]:
    if type(program).__module__.partition(".")[0] != "torch":
        raise UnsupportedError(
            f"a {type(program).__name__} is no graph", hint="give graph text, or a program of torch.export"
        )
    from weft.frontends.torch.exported import graph_of

    text, arrays, mistakes = graph_of(program, name)
    if mistakes:
        raise UnsupportedError("the program raises errors that depend on its data", hint="ONNX has no such operator")
    return text, arrays


class _Export:
    def __init__(self, function: FuncOp, names: Mapping[Any, str], arrays: Mapping[str, np.ndarray], name: str) -> None:
        self.function = function
        self.arguments = names
        self.arrays = arrays
        self.name = name
        self.w = Writer()

    def model(self) -> Any:
        w = self.w
        inputs = list(self._inputs())
        for op in self.function.block.ops:
            if isinstance(op, ReturnOp):
                break
            if not isinstance(op, GraphOp):
                raise UnsupportedError(f"ONNX has no operator for {op.name}")
            write_op(w, op)
        outputs = [self._output(n, value) for n, value in enumerate(self.function.returned.operands)]
        graph = helper.make_graph(w.nodes, self.name, inputs, outputs, w.initializers)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION, producer_name="weft"
        )
        if model.ByteSize() <= onnx.checker.MAXIMUM_PROTOBUF:
            _check(model)
        return model

    def _inputs(self) -> Iterator[Any]:
        for value, name in self.arguments.items():
            tensor = tensor_of(value.type)
            own = self.w.fresh(name)
            self.w.names[value] = own
            if name in self.arrays:
                array = self.arrays[name]
                if tuple(array.shape) != tuple(tensor.shape) or array.dtype != tensor.dtype.numpy:
                    raise ShapeError(f"the constant {name} is {array.dtype}{list(array.shape)}, expected {tensor}")
                self.w.initializers.append(onnx.numpy_helper.from_array(np.asarray(array, order="C"), own))
                continue
            for dim, size in enumerate(tensor.shape):
                if isinstance(size, Expr) and str(size).isidentifier():
                    self.w.sources.setdefault(str(size), (own, dim))
            yield self._info(own, tensor)

    def _output(self, number: int, value: Any) -> Any:
        name = self.w.fresh(f"output{number}")
        self.w.nodes.append(helper.make_node("Identity", [self.w.names[value]], [name], name=f"Output_{number}"))
        return self._info(name, tensor_of(value.type))

    def _info(self, name: str, tensor: Tensor) -> Any:
        if tensor.dtype.numpy not in NUMBERS:
            raise UnsupportedError(f"{name} is {tensor}, and ONNX has no elements of {tensor.dtype}")
        return helper.make_tensor_value_info(name, NUMBERS[tensor.dtype.numpy], [_dimension(s) for s in tensor.shape])


def _check(model: Any) -> None:
    """Refuse what ONNX does not allow: an operator with elements of a type that it does not take."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise UnsupportedError(f"ONNX {OPSET} does not allow the model: {str(error)[:400]}") from error


def _dimension(size: Size) -> int | str:
    return size if isinstance(size, int) else str(size)
