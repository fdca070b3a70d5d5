"""The model that is being written: nodes, names, and constants; sizes that are symbolic are computed by nodes."""

# onnx's messages have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.onnx.dtypes import NUMBERS
from weft.ir.expr import Atom, Expr, Size
from weft.ir.types import DType, Tensor, tensor_of
from weft.ops.base import GraphOp

Written = Callable[["Writer", GraphOp], str | Sequence[str]]
"""Writes an op as nodes, and gives the names of its results."""

WRITERS: dict[str, Written] = {}
"""By the name of the op."""

_ARITHMETIC = {"//": "Div", "%": "Mod", "max": "Max", "min": "Min"}
"""What an operation on sizes, which are not negative, is in ONNX."""


def writes(*names: str) -> Callable[[Written], Written]:
    """Register the writer of ops."""

    def decorate(function: Written) -> Written:
        for name in names:
            WRITERS[f"graph.{name}"] = function
        return function

    return decorate


class Writer:
    """Collects the nodes of a model. `names` says what values of the graph are called there."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.names: dict[SSAValue, str] = {}
        self.sources: dict[str, tuple[str, int]] = {}
        """Where a symbolic size is seen: an input, and which of its dimensions."""
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._sizes: dict[Size, str] = {}
        self._taken: set[str] = set()

    def fresh(self, hint: str) -> str:
        """A name that nothing has yet."""
        name, number = hint, 0
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one result."""
        return self.several(op, 1, *inputs, **attributes)[0]

    def several(self, op: str, count: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """A node with so many results; attributes that are None are left out."""
        outputs = tuple(self.fresh(op.lower()) for _ in range(count))
        given = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(op, inputs, outputs, name=self.fresh(f"{op}_node"), **given))
        return outputs

    def x(self, op: GraphOp, place: int = 0) -> str:
        """The name of an operand."""
        return self.names[op.operands[place]]

    def tensor(self, op: GraphOp, place: int = 0) -> Tensor:
        return tensor_of(op.operands[place].type)

    def result(self, op: GraphOp, place: int = 0) -> Tensor:
        return tensor_of(op.results[place].type)

    # -- constants -------------------------------------------------------------------------------------------------

    def constant(self, value: Any, dtype: DType | np.dtype | type) -> str:
        """An initializer with these elements; equal ones are one."""
        array = np.asarray(value, dtype.numpy if isinstance(dtype, DType) else dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.stored(array, "constant")
        return self._constants[key]

    def stored(self, array: np.ndarray, hint: str) -> str:
        name = self.fresh(hint)
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def ints(self, values: Sequence[int]) -> str:
        return self.constant(list(values), np.int64)

    def element_type(self, dtype: DType, op: GraphOp) -> int:
        """ONNX's number of an element type."""
        if dtype.numpy not in NUMBERS:
            raise UnsupportedError(f"{op.name}: ONNX has no elements of {dtype}")
        return NUMBERS[dtype.numpy]

    # -- sizes -----------------------------------------------------------------------------------------------------

    def shape(self, sizes: Sequence[Size]) -> str:
        """A vector of sizes; those that are symbolic are computed."""
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) == len(sizes):
            return self.ints(known)
        return self.add("Concat", *(self.size(size) for size in sizes), axis=0)

    def size(self, size: Size) -> str:
        """A vector of one size."""
        if isinstance(size, int):
            return self.ints([size])
        if size not in self._sizes:
            self._sizes[size] = self._sum(size)
        return self._sizes[size]

    def _sum(self, size: Expr) -> str:
        total = ""
        for factors, count in size.terms:
            term = self.ints([count]) if count != 1 or not factors else ""
            for atom in factors:
                made = self._atom(atom)
                term = self.add("Mul", term, made) if term else made
            total = self.add("Add", total, term) if total else term
        return total

    def _atom(self, atom: Atom) -> str:
        if atom.kind != "symbol":
            return self.add(_ARITHMETIC[atom.kind], *(self.size(each) for each in atom.args))
        if atom.name not in self.sources:
            raise UnsupportedError(f"no input states the size {atom.name}", hint="an input has to have it as it is")
        name, dim = self.sources[atom.name]
        return self.add("Shape", name, start=dim, end=dim + 1)


def write_op(writer: Writer, op: GraphOp) -> None:
    """Write an op; its operands have been."""
    function = WRITERS.get(op.name)
    if function is None:
        raise UnsupportedError(f"ONNX has no operator for {op.name}", hint="the docs list what a model may consist of")
    made = function(writer, op)
    for result, name in zip(op.results, [made] if isinstance(made, str) else made, strict=True):
        writer.names[result] = name


def require(op: GraphOp, holds: bool, what: str) -> None:
    """Refuse an op whose parameters ONNX's operator does not have."""
    if not holds:
        raise UnsupportedError(f"ONNX has no operator for {op.name} {what}")
