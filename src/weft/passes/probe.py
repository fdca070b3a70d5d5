"""Evaluates ops at one place of their result, for many values of what they read: by their own lowering rules."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.ir import OpResult, SSAValue

from weft.errors import LoweringError
from weft.ir.expr import Size, evaluate
from weft.ir.types import DType, Tensor, dtype_of_numpy, tensor_of
from weft.ops.base import Elementwise, GraphOp, Movement
from weft.tile.functions import FUNCTIONS

_MOVES = frozenset(f"graph.{name}" for name in ("broadcast", "concat", "full", "permute", "reshape"))
"""Movements that read what their parameters say, whatever the data are."""


def is_placewise(value: SSAValue, known: Container[SSAValue]) -> bool:
    """Whether each element of a value is computed of some elements of known tensors, at places that no data decide."""
    ahead, seen = [value], set[SSAValue]()
    while ahead:
        each = ahead.pop()
        if each in known or each in seen:
            continue
        seen.add(each)
        if not isinstance(each, OpResult) or not tensor_of(each.type).is_static:
            return False
        if not isinstance(each.op, Elementwise) and each.op.name not in _MOVES:
            return False
        ahead += each.op.operands
    return True


@dataclass(frozen=True)
class Sampled:
    """Values of one element, one for each of what was read."""

    array: np.ndarray

    @property
    def dtype(self) -> DType:
        return dtype_of_numpy(self.array.dtype)


@dataclass(frozen=True)
class _Read:
    value: SSAValue
    tensor: Tensor


@dataclass
class Probe:
    """A `Body` of numbers. `known` has what leaves hold, wherever they are read; `places` notes where that was.

    It evaluates what `is_placewise` of the leaves, and nothing else.
    """

    known: Mapping[SSAValue, np.ndarray]
    places: dict[SSAValue, set[int]] = field(default_factory=dict[SSAValue, set[int]])

    def value(self, value: SSAValue, index: Sequence[int]) -> np.ndarray:
        """A tensor's element at an index."""
        with np.errstate(all="ignore"):
            return self.at(_Read(value, tensor_of(value.type)), index).array

    def at(self, operand: Any, index: Sequence[Size], mask: Any = None, other: float = 0) -> Sampled:
        value: SSAValue = operand.value
        shape = [int(size) for size in operand.tensor.shape]  # type: ignore[arg-type]
        place = [evaluate(position, {}) for position in index]
        if mask is not None and not mask.array.all():
            return self.constant(other, operand.tensor.dtype)
        if value in self.known:
            flat = int(np.ravel_multi_index(place, shape)) if shape else 0
            self.places.setdefault(value, set()).add(flat)
            return Sampled(self.known[value])
        if not isinstance(value, OpResult) or not isinstance(value.op, GraphOp):
            raise LoweringError("a tensor that is not known")
        op, rule = value.op, type(value.op)
        reads = [_Read(each, tensor_of(each.type)) for each in op.operands]
        if isinstance(op, Elementwise):
            values = [self.at(r, _broadcast(place, [int(s) for s in r.tensor.shape])) for r in reads]  # type: ignore[arg-type]
            return rule.tile(self, *values, **op.params)  # type: ignore[attr-defined]
        if isinstance(op, Movement):
            return rule.pull(self, place, *reads, **op.params)  # type: ignore[attr-defined]
        raise LoweringError(f"{op.name} has no single places")

    def constant(self, value: float, dtype: DType) -> Sampled:
        return Sampled(np.asarray(value).astype(dtype.numpy))

    def math(self, function: str, *values: Sampled) -> Sampled:
        return Sampled(np.asarray(FUNCTIONS[function].numpy(*(value.array for value in values))))

    def cast(self, value: Sampled, dtype: DType) -> Sampled:
        return Sampled(np.asarray(FUNCTIONS["cast"].numpy(value.array, dtype.numpy)))

    def bitcast(self, value: Sampled, dtype: DType) -> Sampled:
        return Sampled(np.asarray(FUNCTIONS["bitcast"].numpy(value.array, dtype.numpy)))

    def rounded(self, value: Sampled, dtype: DType) -> Sampled:
        return value

    def where(self, condition: Sampled, yes: Sampled, no: Sampled) -> Sampled:
        return self.math("select", condition, yes, no)

    def position(self, index: Size, dtype: DType) -> Sampled:
        return self.constant(evaluate(index, {}), dtype)

    def inside(self, index: Size, size: Size) -> Sampled | None:
        return Sampled(np.asarray(0 <= evaluate(index, {}) < evaluate(size, {})))

    def both(self, a: Sampled | None, b: Sampled | None) -> Sampled | None:
        return a or b if a is None or b is None else self.math("and", a, b)

    def index(self, value: Sampled, size: Size) -> Any:
        raise LoweringError("a place that is computed")


def _broadcast(index: Sequence[int], shape: Sequence[int]) -> list[int]:
    offset = len(index) - len(shape)
    return [0 if size == 1 else index[offset + d] for d, size in enumerate(shape)]
