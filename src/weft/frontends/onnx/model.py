"""An ONNX model as plain values: what is left of a file once it has been read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from weft.frontends.onnx.file_identity import FileIdentity
from weft.frontends.onnx.metadata import ModelMetadata
from weft.frontends.onnx.stored_weights import DeferredWeights

Dimension: TypeAlias = int | str | None
"""A size that is known, one that has a name, or neither."""


@dataclass(frozen=True)
class ValueType:
    """The type of an input or output: a tensor's element type and shape, or what a sequence or optional holds.

    `shape` is None where even the rank is open; `dtype` is None where the model leaves it open, or for strings
    NumPy's object type.
    """

    kind: str
    dtype: np.dtype | None = None
    shape: tuple[Dimension, ...] | None = None
    element: ValueType | None = None

    def __str__(self) -> str:
        if self.kind != "tensor":
            return f"{self.kind}({self.element})"
        name = "any" if self.dtype is None else "string" if self.dtype == object else self.dtype.name
        if self.shape is None:
            return f"{name}[...]"
        return f"{name}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


@dataclass(frozen=True)
class ModelInput:
    """An input or output by its name."""

    name: str
    type: ValueType


@dataclass(frozen=True)
class Reference:
    """An attribute of a function's body that takes its value from the attribute of the call."""

    name: str


@dataclass(frozen=True)
class Node:
    """A call of an operator. An input that is left out has the empty name.

    Attributes are numbers, strings, arrays, `Graph`s, tuples of these, or a `Reference`.
    """

    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str = ""
    overload: str = ""
    opsets: Mapping[str, int] | None = None
    """The versions that hold inside a function, where they are not the model's."""

    def __str__(self) -> str:
        kind = f"{self.domain}.{self.op}" if self.domain else self.op
        return f"node {self.name!r} ({kind})" if self.name else f"a {kind} node, whose outputs are {self.outputs}"

    @property
    def key(self) -> tuple[str, str]:
        return self.domain, self.op


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can run, with the arrays that the file brings."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[ModelInput, ...]
    outputs: tuple[ModelInput, ...]
    initializers: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])


@dataclass(frozen=True)
class Function:
    """A function that a model, or ONNX itself, defines by other nodes."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    opsets: Mapping[str, int]
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Model:
    """A graph, the versions of the operator sets that it is written in, and its own functions."""

    graph: Graph
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], Function] = field(default_factory=dict[tuple[str, str, str], Function])
    files: tuple[FileIdentity, ...] = ()
    """What it was read from; none, where any of it was given as bytes."""
    deferred: DeferredWeights | None = None
    """Weights whose elements are not read yet."""
    metadata: ModelMetadata = field(default_factory=ModelMetadata)

    def read_weights(self) -> None:
        """Read the elements of all weights, which until then are not there."""
        if self.deferred is not None:
            self.deferred.read()


def free_names(node: Node) -> set[str]:
    """The names that a node reads: its inputs, and what its graphs take from outside."""
    found = {name for name in node.inputs if name}
    for value in node.attributes.values():
        if isinstance(value, Graph):
            found |= graph_free_names(value)
    return found


def graph_free_names(graph: Graph) -> set[str]:
    """What a graph reads that it does not define."""
    own = {each.name for each in graph.inputs} | set(graph.initializers)
    found: set[str] = set()
    for node in graph.nodes:
        found |= free_names(node) - own
        own |= set(node.outputs)
    return found | ({each.name for each in graph.outputs} - own)


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """A node with other names for what it reads and writes, in its graphs as well."""
    attributes = {
        key: _renamed_graph(value, names) if isinstance(value, Graph) else value
        for key, value in node.attributes.items()
    }
    return replace(
        node,
        inputs=tuple(names.get(name, name) for name in node.inputs),
        outputs=tuple(names.get(name, name) for name in node.outputs),
        attributes=attributes,
    )


def _renamed_graph(graph: Graph, names: Mapping[str, str]) -> Graph:
    own = {each.name for each in graph.inputs} | set(graph.initializers)
    own |= {name for node in graph.nodes for name in node.outputs}
    outer = {old: new for old, new in names.items() if old not in own}
    outputs = tuple(ModelInput(outer.get(each.name, each.name), each.type) for each in graph.outputs)
    return replace(graph, nodes=tuple(renamed(node, outer) for node in graph.nodes), outputs=outputs)
