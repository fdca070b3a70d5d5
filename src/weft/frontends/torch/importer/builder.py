"""The builder that ATen converters are written with: graph ops, and torch's conventions for numbers and types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from xdsl.ir import Operation, SSAValue

from weft.capabilities import PROCESSOR, Capabilities
from weft.errors import UnsupportedError
from weft.frontends.torch.dtypes import FLOAT8, HALF, from_torch, largest_cast
from weft.frontends.torch.importer.sizes import sizes_of
from weft.ir.expr import Expr, Size
from weft.ir.types import DType, Tensor, boolean, f32, i64
from weft.ops.graph import GraphBuilder
from weft.ops.rules import size_value

DEVICES = ("cpu", "cuda")
_PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


def tensor_of_meta(meta: torch.Tensor) -> Tensor:
    """The type of a captured tensor; that of its parts, if it is complex."""
    if meta.layout != torch.strided or meta.is_quantized:
        raise UnsupportedError(f"a tensor with layout {meta.layout}, quantised: {meta.is_quantized}")
    if meta.device.type not in DEVICES:
        raise UnsupportedError(f"a tensor on the device {meta.device}")
    return Tensor(from_torch(_PARTS.get(meta.dtype, meta.dtype)), sizes_of(meta.shape))


def normal_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front; a tensor without dimensions has a dimension 0 and -1."""
    return dim + max(rank, 1) if dim < 0 else dim


def normal_dims(dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Dimensions to reduce, ascending; none given means all."""
    if dims is None or dims == []:
        return tuple(range(rank))
    given = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(normal_dim(d, rank) for d in given)) if rank else ()


@dataclass
class ImportBuilder(GraphBuilder):
    """Appends the ops that stand for one node of a captured graph.

    `node` is that node, `results` are the types of its results; `strict` says that nothing may be left to torch,
    `checked` that data which makes a call fail is looked for, and `capabilities` what the target can do.
    """

    node: Any = None
    source: str = ""
    """The name of the captured graph's node, of which `node` may be a part."""
    strict: bool = False
    checked: bool = True
    capabilities: Capabilities = PROCESSOR
    results: tuple[Tensor | None, ...] = ()
    has_complex_result: bool = False
    checks: list[tuple[SSAValue, Any]] = field(default_factory=list[tuple[SSAValue, Any]])
    """Conditions on data under which a call fails, and what they mean."""
    _numbers: dict[tuple[str, DType], SSAValue] = field(default_factory=dict[tuple[str, DType], SSAValue])

    @property
    def meta(self) -> Any:
        """What tracing recorded of the node's result: a fake tensor, or several."""
        return self.node.meta["val"]

    def meta_of(self, position: int) -> Any:
        """What tracing recorded of the node's argument."""
        return self.node.args[position].meta["val"]

    def enter(self, node: Any) -> None:
        """Go on with a node of the captured graph."""
        self.node = node
        meta = node.meta.get("val")  # a check that returns nothing has none
        # Most nodes have one result; walking a tree for it would take a tenth of the import.
        leaves = [meta] if isinstance(meta, torch.Tensor) else pytree.tree_leaves(meta)
        self.results = tuple(tensor_of_meta(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves)
        self.has_complex_result = any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in leaves)

    @property
    def result(self) -> Tensor:
        """The type of the node's result (of its first one, where there are several)."""
        first = self.results[0]
        if first is None:
            raise UnsupportedError("a result that is no tensor")
        return first

    def is_used(self, position: int) -> bool:
        """Whether anyone reads result number `position` of the node."""
        return any(user.args[1] == position and user.users for user in self.node.users if len(user.args) == 2)

    def exists(self, value: SSAValue) -> bool:
        """Whether a value is still part of the function: ops are taken back where a converter gives up."""
        return not isinstance(value.owner, Operation) or value.owner.parent is not None

    def number(self, value: bool | int | float | Expr, dtype: DType) -> SSAValue:
        """A number as a 0-d tensor."""
        if isinstance(value, Expr):
            return self.to(size_value(self, value, i64), dtype)
        if dtype == boolean:
            value = bool(value)
        elif dtype.is_float:
            value = float(value)
        elif dtype.is_integer:
            if isinstance(value, float) and not math.isfinite(value):
                raise UnsupportedError(f"{value} as {dtype}")
            value = _wrapped(int(value), dtype)
        else:
            raise UnsupportedError(f"a number of type {dtype}")
        key = (repr(value), dtype)
        known = self._numbers.get(key)
        if known is None or not self.exists(known):
            known = self._numbers[key] = self.emit("full", value=value, shape=(), dtype=dtype)
        return known

    def to(self, value: SSAValue, dtype: DType) -> SSAValue:
        """The value in another element type; itself where it has it."""
        source = self.dtype(value)
        if source == dtype:
            return value
        if dtype in FLOAT8 and source not in (f32, *HALF, boolean):
            value = self.to(value, f32)  # as torch does, which rounds f64 twice
        largest = largest_cast(dtype)
        if largest is not None and source != boolean:
            value = self.emit("clamp", value, low=-largest, high=largest)
        return self.emit("cast", value, dtype=dtype)

    def operand(self, value: SSAValue | bool | int | float | Expr, dtype: DType) -> SSAValue:
        """A tensor or a number, in the type an op computes in."""
        return self.to(value, dtype) if isinstance(value, SSAValue) else self.number(value, dtype)

    def dtype(self, value: SSAValue) -> DType:
        return self.tensor(value).dtype

    def shape(self, value: SSAValue) -> tuple[Size, ...]:
        return self.tensor(value).shape

    def rank(self, value: SSAValue) -> int:
        return self.tensor(value).rank

    def view(self, value: SSAValue, shape: Sequence[Size]) -> SSAValue:
        """The elements in another shape."""
        return value if self.shape(value) == tuple(shape) else self.emit("reshape", value, shape=tuple(shape))

    def expand(self, value: SSAValue, shape: Sequence[Size]) -> SSAValue:
        """The tensor broadcast to a shape."""
        return value if self.shape(value) == tuple(shape) else self.emit("broadcast", value, shape=tuple(shape))

    def transpose(self, value: SSAValue, dims: Sequence[int]) -> SSAValue:
        """The tensor with its dimensions reordered."""
        return value if list(dims) == list(range(len(dims))) else self.emit("permute", value, dims=tuple(dims))

    def unsqueeze(self, value: SSAValue, *dims: int) -> SSAValue:
        """The tensor with dimensions of size 1 at these places of the result."""
        shape = list(self.shape(value))
        for d in sorted(dims):
            shape.insert(d, 1)
        return self.view(value, shape)

    def zeros(self, tensor: Tensor) -> SSAValue:
        return self.emit("full", value=_zero(tensor.dtype), shape=tensor.shape, dtype=tensor.dtype)

    def iota_of(self, size: Size, dtype: DType = i64) -> SSAValue:
        """0, 1, … size - 1."""
        return self.emit("iota", shape=(size,), dim=0, dtype=dtype, start=0, step=1)

    def wide(self, value: SSAValue) -> SSAValue:
        """A float in a type that sums of many may be kept in: half floats become f32."""
        dtype = self.dtype(value)
        return self.to(value, f32) if dtype.is_float and dtype.bits < 32 else value

    def count(self, shape: Sequence[Size], dims: Sequence[int], dtype: DType) -> SSAValue:
        """The number of elements in some dimensions, as a 0-d tensor."""
        total: Size = 1
        for d in dims:
            total = total * shape[d]
        return self.number(total, dtype)


def _zero(dtype: DType) -> bool | int | float:
    return False if dtype == boolean else 0.0 if dtype.is_float else 0


def _wrapped(value: int, dtype: DType) -> int:
    """The integer that the type's bits hold."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value
