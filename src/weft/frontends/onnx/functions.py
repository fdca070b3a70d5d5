"""Functions in the place of calls: those that a model defines, and those by which ONNX says what an operator means."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.defs

from weft.errors import ModelError, UnsupportedError
from weft.frontends.onnx.dtypes import NUMBERS
from weft.frontends.onnx.model import Function, Graph, ModelInput, Node, Reference, renamed
from weft.frontends.onnx.read import function_of

TensorType: TypeAlias = tuple[np.dtype, tuple[int, ...]]


def version_of(node: Node, opsets: Mapping[str, int]) -> int:
    """The version of the operator set that a node is of."""
    own = opsets if node.opsets is None else node.opsets
    return own.get(node.domain, opsets.get(node.domain, 1))


def no_converter(node: Node, version: int) -> UnsupportedError:
    return UnsupportedError(
        f"{node}: there is no converter for {node.op} of {node.domain or 'ai.onnx'} {version}",
        hint="the docs list the operators that are supported",
    )


def has_function(node: Node, version: int) -> bool:
    """Whether ONNX says an operator by others, for some types at least."""
    try:
        schema: Any = onnx.defs.get_schema(node.op, version, node.domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def schema_function(
    node: Node, version: int, types: Sequence[TensorType | None], opsets: Mapping[str, int]
) -> Function | None:
    """The function that ONNX gives for an operator; `types` are those of the inputs, None for one that is left out."""
    try:
        schema: Any = onnx.defs.get_schema(node.op, version, node.domain)
    except onnx.defs.SchemaError:
        return None
    data = None
    try:
        if schema.has_function:
            fitting = [each for each in schema.function_opset_versions if each <= version]
            data = schema.get_function_with_opset_version(max(fitting)) if fitting else None
        if data is None and schema.has_context_dependent_function:
            fitting = [each for each in schema.context_dependent_function_opset_versions if each <= version]
            if fitting:
                about = [_type_bytes(each) for each in types]
                data = schema.get_context_dependent_function_with_opset_version(
                    max(fitting), _node_proto(node).SerializeToString(), about
                )
    except (RuntimeError, ValueError, onnx.defs.SchemaError) as error:
        raise ModelError(f"{node} is not as its operator allows: {str(error)[:200]}") from error
    if not data:
        return None
    made = function_of(data, opsets)
    defaults = {
        name: onnx.helper.get_attribute_value(each.default_value)
        for name, each in schema.attributes.items()
        if each.default_value.type
    }
    defaults = {name: tuple(value) if isinstance(value, list) else value for name, value in defaults.items()}
    return replace(made, defaults={**defaults, **made.defaults})


def _type_bytes(about: TensorType | None) -> bytes:
    if about is None:
        return onnx.TypeProto().SerializeToString()
    dtype, shape = about
    return onnx.helper.make_tensor_type_proto(NUMBERS[dtype], shape).SerializeToString()


def _node_proto(node: Node) -> Any:
    """The message of a node."""
    proto = onnx.helper.make_node(node.op, list(node.inputs), list(node.outputs), domain=node.domain)
    for name, value in node.attributes.items():
        if isinstance(value, Reference):
            continue
        message: Any = value
        if isinstance(value, Graph):
            message = _graph_proto(value)
        elif isinstance(value, np.ndarray):
            message = onnx.numpy_helper.from_array(value)
        if isinstance(message, tuple):
            if not message:
                continue
            message = list(message)
        proto.attribute.append(onnx.helper.make_attribute(name, message))
    return proto


def _graph_proto(graph: Graph) -> Any:
    """The message of a graph that is an attribute."""

    def about(value: ModelInput) -> Any:
        if value.type.dtype is None or value.type.kind != "tensor":
            return onnx.helper.make_empty_tensor_value_info(value.name)
        return onnx.helper.make_tensor_value_info(value.name, NUMBERS[value.type.dtype], value.type.shape)

    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in graph.initializers.items()]
    sides = [about(each) for each in graph.inputs], [about(each) for each in graph.outputs]
    return onnx.helper.make_graph([_node_proto(node) for node in graph.nodes], graph.name or "body", *sides, arrays)


def inlined(node: Node, function: Function, fresh: Callable[[str], str]) -> list[Node]:
    """The nodes of a function in the place of a call: with its names, and the values of its attributes."""
    if len(node.inputs) > len(function.inputs) or len(node.outputs) > len(function.outputs):
        raise ModelError(
            f"{node} has {len(node.inputs)} inputs and {len(node.outputs)} outputs, expected at most "
            f"{len(function.inputs)} and {len(function.outputs)}"
        )
    names = {name: "" for name in function.inputs}
    made: list[Node] = []
    # Inputs get new names as well: a graph inside of the function may use the caller's for something else.
    for inner_name, outer in zip(function.inputs, node.inputs, strict=False):
        if outer:
            names[inner_name] = fresh(inner_name)
            made.append(Node("Identity", "", (outer,), (names[inner_name],), name=node.name, opsets=function.opsets))
    inner = {name for each in function.nodes for name in each.outputs if name}
    names.update({name: fresh(name) for name in inner})
    attributes = {**function.defaults, **node.attributes}
    for each in function.nodes:
        bound = renamed(_bound(each, attributes), names)
        made.append(replace(bound, opsets=function.opsets, name=bound.name or node.name))
    for inner_name, outer in zip(function.outputs, node.outputs, strict=False):
        if outer and inner_name not in names:
            raise ModelError(f"{node} wants the output {inner_name!r}, which its function does not make")
        if outer:
            made.append(Node("Identity", "", (names[inner_name],), (outer,), name=node.name, opsets=function.opsets))
    return made


def _bound(node: Node, attributes: Mapping[str, Any]) -> Node:
    """A node of a function's body with the attributes of the call."""
    found: dict[str, Any] = {}
    for name, value in node.attributes.items():
        if isinstance(value, Reference):
            given = attributes.get(value.name)
            if given is not None and not isinstance(given, Reference):
                found[name] = given
        elif isinstance(value, Graph):
            found[name] = replace(value, nodes=tuple(_bound(each, attributes) for each in value.nodes))
        else:
            found[name] = value
    return replace(node, attributes=found)
