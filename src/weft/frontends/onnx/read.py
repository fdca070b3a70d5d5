"""Reads model files: hostile until checked. What passes is a `Model` of plain values; all else is a `ModelError`."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from weft.errors import ModelError, UnsupportedError
from weft.frontends.onnx.external_data import ExternalFiles
from weft.frontends.onnx.file_identity import FileIdentity
from weft.frontends.onnx.metadata import ModelMetadata
from weft.frontends.onnx.model import Dimension, Function, Graph, Model, ModelInput, Node, Reference, ValueType
from weft.frontends.onnx.rewrite import INTERNAL
from weft.frontends.onnx.stored_weights import DeferredWeights, take_weights
from weft.frontends.onnx.tensors import Limits as Limits
from weft.frontends.onnx.tensors import TensorReader, element_dtype


def read_model(
    source: str | Path | bytes | Any,
    folder: str | Path | None = None,
    limits: Limits | None = None,
    *,
    defer: bool = False,
) -> Model:
    """A model from a path, from bytes or from a `ModelProto`; `folder` is where external data may lie.

    Elements of weights whose reading is deferred are there after `Model.read_weights`.
    """
    limits = limits or Limits()
    weights: Mapping[int, np.ndarray] = {}
    identity: FileIdentity | None = None
    deferred: DeferredWeights | None = None
    if isinstance(source, str | Path):
        path = Path(source)
        try:
            if path.stat().st_size > limits.file:
                raise ModelError(f"{path} has over {limits.file} bytes", hint="larger models keep their weights beside")
            with path.open("rb") as file:
                identity = FileIdentity.of(path, os.fstat(file.fileno()))
                deferred = DeferredWeights(file.fileno()) if defer else None
                rest, weights = _content(file, deferred)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # a NUL in it
            raise ModelError(f"{str(path)!r} is not a path: {error}") from error
        folder, proto = folder or path.parent, _message(rest)
    elif isinstance(source, bytes | bytearray | memoryview):
        rest, weights = take_weights(memoryview(source).cast("B"))
        proto = _message(rest)
    elif isinstance(source, onnx.ModelProto):
        proto = source
    else:
        raise ModelError(
            f"a {type(source).__name__} is not an ONNX model", hint="give a path, the bytes of a file, or a ModelProto"
        )
    files = ExternalFiles(None if folder is None else Path(folder))
    model = _Reader(files, limits, weights, deferred).model(proto)
    return replace(model, files=(identity, *files.identities) if identity else (), deferred=deferred)


def _message(data: bytes | memoryview) -> Any:
    proto: Any = onnx.ModelProto()
    try:
        proto.ParseFromString(bytes(data))
    except DecodeError as error:
        raise ModelError(f"the file is not an ONNX model: {error}", hint="it may be cut off or damaged") from error
    return proto


def _content(file: BinaryIO, deferred: DeferredWeights | None) -> tuple[bytes | memoryview, Mapping[int, np.ndarray]]:
    """A file's message and its weights; it is mapped while it is read, and what is kept of it is copied."""
    about = os.fstat(file.fileno())
    if stat.S_ISREG(about.st_mode) and about.st_size >= _MAPPED:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return take_weights(mapped, file.fileno(), deferred)
    return take_weights(memoryview(file.read()))


_MAPPED = 1 << 20
"""Bytes from which a file is mapped."""


@dataclass(frozen=True)
class _Scope:
    """The names that are known at a place: those of a graph so far, and those of the graphs around it."""

    outer: _Scope | None
    own: set[str] = field(default_factory=set[str])

    def __contains__(self, name: str) -> bool:
        return not name or name in self.own or (self.outer is not None and name in self.outer)


FunctionKey: TypeAlias = tuple[str, str, str]


class _Reader:
    """Turns messages into values, and counts on the way."""

    def __init__(
        self,
        files: ExternalFiles,
        limits: Limits,
        weights: Mapping[int, np.ndarray] = MappingProxyType({}),
        deferred: DeferredWeights | None = None,
    ) -> None:
        self._limits = limits
        self._weights = weights
        """The bytes of the model's initializers that were taken out of its message, by their numbers."""
        self._tensors = TensorReader(files, limits, deferred)
        self._nodes = 0
        self._initializers = 0

    def model(self, proto: Any) -> Model:
        if not proto.HasField("graph"):
            raise ModelError("the file has no graph", hint="it is empty, cut off, or not an ONNX model")
        opsets = self._opsets(proto.opset_import)
        if not opsets and proto.ir_version >= 3:
            raise ModelError("the model states no operator set, expected at least one")
        opsets.setdefault("", 1)
        newest = onnx.defs.onnx_opset_version()
        if opsets[""] > newest or opsets[""] < 1:
            raise UnsupportedError(
                f"the model is written in operator set {opsets['']}; this onnx knows 1 to {newest}",
                hint="install a newer onnx",
            )
        functions = [(self._name(each.domain), each) for each in proto.functions]
        found: dict[FunctionKey, Function] = {}
        for domain, each in functions:
            key = _domain(domain), self._name(each.name), self._name(each.overload)
            if key in found:
                raise ModelError(f"the model defines the function {key} twice")
            found[key] = self.function(each, opsets)
        graph = self._graph(proto.graph, 0, _Scope(None))
        self._check_expansion(graph, found)
        return Model(graph, opsets, found, metadata=ModelMetadata.of(proto))

    def _check_expansion(self, graph: Graph, functions: Mapping[FunctionKey, Function]) -> None:
        """Refuse functions that call one another for ever, or that are more than the limit once put in place."""
        sizes: dict[FunctionKey, int] = {}

        def expanded(nodes: Iterable[Node], within: tuple[FunctionKey, ...]) -> int:
            total = 0
            for node in nodes:
                key = (*node.key, node.overload)
                total += 1
                total += sum(
                    expanded(each.nodes, within) for each in node.attributes.values() if isinstance(each, Graph)
                )
                if key in functions:
                    if key in within:
                        raise ModelError(f"{node} calls the function that it is part of")
                    if len(within) > self._limits.depth:
                        raise ModelError(f"{node}: functions call one another over {self._limits.depth} deep")
                    if key not in sizes:
                        sizes[key] = expanded(functions[key].nodes, (*within, key))
                    total += sizes[key]
                if total > self._limits.nodes:
                    raise ModelError(f"the model has over {self._limits.nodes} nodes once functions are in place")
            return total

        expanded(graph.nodes, ())

    def function(self, proto: Any, opsets: Mapping[str, int], partial: bool = False) -> Function:
        """A function; its nodes may refer to the attributes of a call. If `partial`, outputs may be missing."""
        inputs = tuple(self._name(name) for name in proto.input)
        scope = _Scope(None, set(inputs))
        nodes = self._ordered(proto.node, scope, 0, f"function {proto.name!r}")
        missing = [name for name in proto.output if not name or name not in scope]
        if missing and not partial:
            raise ModelError(f"function {proto.name!r} has no node that makes its output {missing[0]!r}")
        own = {**opsets, **self._opsets(proto.opset_import)}
        defaults = {each.name: self._attribute(each, 0, _Scope(None), proto.name) for each in proto.attribute_proto}
        return Function(proto.name, inputs, tuple(proto.output), nodes, own, defaults)

    def _opsets(self, protos: Iterable[Any]) -> dict[str, int]:
        found: dict[str, int] = {}
        for each in protos:
            if not 0 <= each.version < 1 << 31:
                raise ModelError(
                    f"the operator set of {self._name(each.domain) or 'ai.onnx'!r} has the version {each.version}, "
                    f"expected a number from 0 to {(1 << 31) - 1}"
                )
            found[_domain(self._name(each.domain))] = int(each.version)
        return found

    def _name(self, text: str | bytes) -> str:
        if isinstance(text, bytes):  # as which protobuf gives what it cannot decode
            raise ModelError(f"a name is {text[:40]!r}, expected UTF-8")
        if len(text) > self._limits.names:
            raise ModelError(
                f"a name has {len(text)} characters, expected at most {self._limits.names}: {text[:40]!r}…"
            )
        return text

    def _graph(self, proto: Any, depth: int, outer: _Scope) -> Graph:
        if depth > self._limits.depth:
            raise ModelError(f"graphs lie {depth} deep in one another, expected at most {self._limits.depth}")
        self._initializers += len(proto.initializer) + len(proto.sparse_initializer)
        if self._initializers > self._limits.initializers:
            raise ModelError(f"the model has over {self._limits.initializers} initializers")
        taken = self._weights if depth == 0 else {}
        initializers = {
            self._name(each.name): self._tensors.tensor(each, each.name, taken.get(number))
            for number, each in enumerate(proto.initializer)
        }
        for each in proto.sparse_initializer:
            initializers[self._name(each.values.name)] = self._tensors.sparse(each, each.values.name)
        if len(initializers) != len(proto.initializer) + len(proto.sparse_initializer):
            raise ModelError(f"graph {proto.name!r} has two initializers of one name")
        inputs = tuple(self._value(each) for each in proto.input)
        names = [each.name for each in inputs]
        if "" in names:
            raise ModelError(f"graph {proto.name!r} has an input without a name")
        if len(set(names)) != len(names):
            raise ModelError(f"graph {proto.name!r} has two inputs of one name")
        scope = _Scope(outer, {*names, *initializers})
        nodes = self._ordered(proto.node, scope, depth, f"graph {proto.name!r}")
        outputs = tuple(self._value(each) for each in proto.output)
        if missing := [each.name for each in outputs if not each.name or each.name not in scope]:
            raise ModelError(f"graph {proto.name!r} has no node that makes its output {missing[0]!r}")
        return Graph(proto.name, nodes, inputs, outputs, initializers)

    def _ordered(self, protos: Sequence[Any], scope: _Scope, depth: int, where: str) -> tuple[Node, ...]:
        """The nodes of a graph, each of which reads only what stands before it."""
        self._nodes += len(protos)
        if self._nodes > self._limits.nodes:
            raise ModelError(f"the model has over {self._limits.nodes} nodes")
        nodes: list[Node] = []
        for proto in protos:
            node = self._node(proto, depth, scope)
            for name in node.inputs:
                if name not in scope:
                    raise ModelError(
                        f"{node} reads {name!r}, which nothing before it in {where} makes",
                        hint="nodes must be in order; a cycle has none",
                    )
            for name in node.outputs:
                if name and name in scope:
                    raise ModelError(f"{node} makes {name!r}, which is there already")
            scope.own.update(node.outputs)
            nodes.append(node)
        return tuple(nodes)

    def _node(self, proto: Any, depth: int, outer: _Scope) -> Node:
        attributes: dict[str, Any] = {}
        for each in proto.attribute:
            if each.name in attributes:
                raise ModelError(f"node {proto.name!r} ({proto.op_type}) has two attributes called {each.name!r}")
            attributes[self._name(each.name)] = self._attribute(each, depth, outer, proto.name or proto.op_type)
        return Node(
            self._name(proto.op_type),
            _domain(self._name(proto.domain)),
            tuple(self._name(name) for name in proto.input),
            tuple(self._name(name) for name in proto.output),
            attributes,
            self._name(proto.name),
            self._name(proto.overload),
        )

    def _attribute(self, proto: Any, depth: int, outer: _Scope, where: str) -> Any:
        if proto.ref_attr_name:
            return Reference(self._name(proto.ref_attr_name))
        kind = onnx.AttributeProto.AttributeType.Name(proto.type) if 0 <= proto.type <= 14 else str(proto.type)
        # Files of the first versions state no type.
        if kind == "UNDEFINED":
            fields = {field.name for field, _ in proto.ListFields()} - {"name", "doc_string", "type"}
            kind = _KINDS.get(fields.pop(), "") if len(fields) == 1 else ""
        match kind:
            case "FLOAT":
                return float(proto.f)
            case "INT":
                return int(proto.i)
            case "STRING":
                return bytes(proto.s)
            case "TENSOR":
                return self._tensors.tensor(proto.t, f"{where}.{proto.name}")
            case "SPARSE_TENSOR":
                return self._tensors.sparse(proto.sparse_tensor, f"{where}.{proto.name}")
            case "GRAPH":
                return self._graph(proto.g, depth + 1, outer)
            case "FLOATS":
                return tuple(float(each) for each in proto.floats)
            case "INTS":
                return tuple(int(each) for each in proto.ints)
            case "STRINGS":
                return tuple(bytes(each) for each in proto.strings)
            case "TENSORS":
                return tuple(self._tensors.tensor(each, f"{where}.{proto.name}") for each in proto.tensors)
            case "TYPE_PROTO":
                return self._type(proto.tp)
            case _:
                raise ModelError(
                    f"node {where!r}: attribute {proto.name!r} has type {kind or proto.type}, expected a number, "
                    f"string, tensor or graph"
                )

    def _value(self, proto: Any) -> ModelInput:
        return ModelInput(self._name(proto.name), self._type(proto.type))

    def _type(self, proto: Any, depth: int = 0) -> ValueType:
        kind = proto.WhichOneof("value")
        if depth > 8:
            raise ModelError("a type holds another over 8 deep")
        if kind in ("sequence_type", "optional_type"):
            return ValueType(kind.removesuffix("_type"), element=self._type(getattr(proto, kind).elem_type, depth + 1))
        if kind == "map_type":
            # A map is a dictionary, which only the host makes.
            return ValueType("map", element=self._type(proto.map_type.value_type, depth + 1))
        if kind == "tensor_type":
            tensor = proto.tensor_type
            dtype = None if tensor.elem_type == 0 else element_dtype(tensor.elem_type, "a value")
            shape = self._dims(tensor.shape) if tensor.HasField("shape") else None
            return ValueType("tensor", dtype, shape)
        if kind is None:
            return ValueType("tensor")
        raise UnsupportedError(f"values of {kind.removesuffix('_type')} type are not supported")

    def _dims(self, proto: Any) -> tuple[Dimension, ...]:
        if len(proto.dim) > self._limits.rank:
            raise ModelError(f"a shape has {len(proto.dim)} dimensions, expected at most {self._limits.rank}")
        found: list[Dimension] = []
        for dim in proto.dim:
            which = dim.WhichOneof("value")
            if which == "dim_value":
                # Exporters write -1 for a size that they do not know. 0 is a size: tensors without elements exist.
                found.append(int(dim.dim_value) if dim.dim_value >= 0 else None)
                if dim.dim_value > self._limits.size:
                    raise ModelError(f"a shape has the size {dim.dim_value}, expected at most {self._limits.size}")
            else:
                # Some exporters write `?` or `-1` for a size without a name: two of them are two sizes.
                name = self._name(dim.dim_param) if which else ""
                found.append(name if any(each.isalpha() for each in name) else None)
        return tuple(found)


_KINDS = {
    "f": "FLOAT", "i": "INT", "s": "STRING", "t": "TENSOR", "g": "GRAPH", "floats": "FLOATS", "ints": "INTS",
    "strings": "STRINGS", "tensors": "TENSORS", "tp": "TYPE_PROTO", "sparse_tensor": "SPARSE_TENSOR",
}  # fmt: skip


def function_of(data: bytes, opsets: Mapping[str, int]) -> Function:
    """A function that onnx itself defines, from its message."""
    proto: Any = onnx.FunctionProto()
    proto.ParseFromString(data)
    return _Reader(ExternalFiles(None), Limits()).function(proto, opsets, partial=True)


def _domain(name: str) -> str:
    if name == INTERNAL:
        raise ModelError(f"the domain {name!r} is not one that files may use")
    return "" if name == "ai.onnx" else name
