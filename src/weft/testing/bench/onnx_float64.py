"""An ONNX model in float64: what results are judged by, those of Weft and of its peer alike.

The rule is that of `testing/comparison.py`: the error against float64 is at most the larger of twice the peer's and 2
ulp. Errors are the largest difference as a share of the largest value of a tensor.
"""

# NumPy leaves the types of arrays open that come in by narrowing.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.config import Config
from weft.frontends.onnx.load import OnnxFunction
from weft.frontends.onnx.model import Function, Graph, Model, ModelInput, Node, ValueType
from weft.frontends.onnx.read import read_model
from weft.testing.bench.onnx_difference import difference

_FLOAT, _DOUBLE = 1, 11
_NAMES_TYPES = {"to", "dtype", "stash_type", "output_dtype"}
"""Attributes that state an element type by its number."""


def run_in_float64(path: Path, arrays: Mapping[str, Any], threads: int) -> list[Any]:
    """The results of a model whose float32 numbers are all float64."""
    model = widened(read_model(path))
    function = OnnxFunction(model, Config(cache=False), threads=threads)
    given = {name: _wide(np.asarray(array)) for name, array in arrays.items()}
    return function.run((), given)


def error_to(exact: Sequence[Any], results: Sequence[Any]) -> float:
    """How far results are from those in float64."""
    found = [
        _as(array, wide) if isinstance(wide, np.ndarray) else array for array, wide in zip(results, exact, strict=True)
    ]
    return difference(found, exact)


def _as(array: Any, wide: np.ndarray) -> np.ndarray:
    """A float32 array as float64, to be compared; others have the type that they have."""
    return np.asarray(array, wide.dtype) if np.asarray(array).dtype == np.float32 else np.asarray(array)


def widened(model: Model) -> Model:
    """A model with float64 in the place of float32."""
    functions = {key: _function(each) for key, each in model.functions.items()}
    return replace(model, graph=_graph(model.graph), functions=functions)


def _graph(graph: Graph) -> Graph:
    return replace(
        graph,
        nodes=tuple(map(_node, graph.nodes)),
        inputs=tuple(map(_value, graph.inputs)),
        outputs=tuple(map(_value, graph.outputs)),
        initializers={name: _wide(array) for name, array in graph.initializers.items()},
    )


def _function(function: Function) -> Function:
    defaults = {name: _attribute(name, each) for name, each in function.defaults.items()}
    return replace(function, nodes=tuple(map(_node, function.nodes)), defaults=defaults)


def _node(node: Node) -> Node:
    attributes = {name: _attribute(name, each) for name, each in node.attributes.items()}
    if node.op == "Constant" and not node.domain:  # numbers that stand in attributes are float32
        for name in ("value_float", "value_floats"):
            if name in attributes:
                attributes["value"] = np.array(attributes.pop(name), np.float64)
    if node.op == "ConstantOfShape" and not node.domain:
        attributes.setdefault("value", np.zeros(1, np.float64))
    return replace(node, attributes=attributes)


def _attribute(name: str, value: Any) -> Any:
    if isinstance(value, Graph):
        return _graph(value)
    if isinstance(value, np.ndarray):
        return _wide(value)
    return _DOUBLE if name in _NAMES_TYPES and value == _FLOAT else value


def _value(given: ModelInput) -> ModelInput:
    return replace(given, type=_type(given.type))


def _type(type_: ValueType) -> ValueType:
    if type_.element is not None:
        return replace(type_, element=_type(type_.element))
    return replace(type_, dtype=np.dtype(np.float64)) if type_.dtype == np.float32 else type_


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype == np.float32 else array
