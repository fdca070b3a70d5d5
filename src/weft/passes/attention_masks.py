"""What the masks of written-out attention say: which keys count, what is added to scores, and what is causal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import SSAValue

from weft.ir.expr import Size
from weft.ir.types import DType, boolean, tensor_of
from weft.ops.base import broadcast_shapes
from weft.ops.graph import GraphBuilder
from weft.passes.arithmetic_rules import holds
from weft.passes.constant_values import array_of, as_held, made_by, number_of

_ABSORBS = -(2.0**100)
"""Added to a score, a number below this gives itself: a row that is masked all over comes out even, as if replaced."""


@dataclass
class Masks:
    """The masks on scores of one shape.

    `safe` says that a row without any key gives zeros, which is what the op does; softmax gives NaN. `hides` says that
    the lowest numbers do, too.
    """

    shape: tuple[Size, ...]
    safe: bool
    causal: bool = False
    hides: bool = False
    kept: list[SSAValue] = field(default_factory=list[SSAValue])
    added: list[SSAValue] = field(default_factory=list[SSAValue])
    negated: list[SSAValue] = field(default_factory=list[SSAValue])
    filled: list[tuple[SSAValue, float, bool]] = field(default_factory=list[tuple[SSAValue, float, bool]])

    def add(self, mask: SSAValue) -> bool:
        """Note a tensor that is added to the scores; says whether that can be done."""
        mask = _unwidened(unbroadcast(mask))
        narrowed = made_by(mask, "graph.cast")
        choice = made_by(mask if narrowed is None else narrowed.operands[0], "graph.where")
        if choice is not None:
            condition, *values = choice.operands
            yes, no = (_number(value, tensor_of(mask.type).dtype) for value in values)
            numbers = [self._hidden(yes, condition, keeps=False), self._hidden(no, condition, keeps=True)]
            if numbers == [0, -math.inf]:
                return self.keep(condition)
            if numbers == [-math.inf, 0]:
                return self._keep_where_not(condition)
        if number_of(mask) != 0:
            self.added.append(mask)
        return True

    def _hidden(self, number: float | None, condition: SSAValue, *, keeps: bool) -> float | None:
        """A number that scores get where a condition that `keeps` them fails, or else holds; -inf if it hides them so.

        Lowest numbers do so in rows that see a key, as all do where the condition is causal.
        """
        if number is None or number >= _ABSORBS:
            return number
        sees = _is_causal(unbroadcast(condition), self.shape, hides=not keeps)
        return -math.inf if self.hides or sees else number

    def choose(self, condition: SSAValue, fill: float, keeps: bool) -> bool:
        """Note that scores are kept where the condition is `keeps`, and replaced by `fill` elsewhere."""
        if self._hidden(fill, condition, keeps=keeps) == -math.inf:
            return self.keep(condition) if keeps else self._keep_where_not(condition)
        if not fill < _ABSORBS:
            return False
        self.filled.append((condition, fill, keeps))
        return True

    def keep(self, condition: SSAValue) -> bool:
        """Note that keys count only where the condition holds."""
        condition = unbroadcast(condition)
        both = made_by(condition, "graph.bitwise_and", "graph.logical_and")
        if both is not None and tensor_of(both.operands[0].type).dtype == boolean:
            return all([self.keep(operand) for operand in both.operands])
        if _is_causal(condition, self.shape):
            self.causal = True
        elif number_of(condition) is not True:
            self.kept.append(condition)
        return True

    def _keep_where_not(self, condition: SSAValue) -> bool:
        condition = unbroadcast(condition)
        negated = made_by(condition, "graph.logical_not", "graph.bitwise_not")
        if negated is not None:
            return self.keep(negated.operands[0])
        if _is_causal(condition, self.shape, hides=True):
            self.causal = True
            return True
        self.negated.append(condition)
        return True

    def combined(self, b: GraphBuilder, dtype: DType) -> tuple[tuple[SSAValue, ...], bool]:
        """The mask as operand of the op, if one is left, and whether it is causal."""
        self.kept += [b.logical_not(condition) for condition in self.negated]
        self.negated.clear()
        for condition, fill, keeps in self.filled:
            zero, low = (b.full(value=number, shape=(), dtype=dtype) for number in (0, fill))
            self.added.append(b.where(condition, zero, low) if keeps else b.where(condition, low, zero))
        self.filled.clear()
        keep = _joined(b, "bitwise_and", self.kept)
        added = _joined(
            b, "add", [x if tensor_of(x.type).dtype == dtype else b.cast(x, dtype=dtype) for x in self.added]
        )
        if keep is None or added is None:
            mask = keep if added is None else added
            return (() if mask is None else (mask,)), self.causal
        return (b.where(keep, added, b.full(value=-math.inf, shape=(), dtype=dtype)),), self.causal

    def fits(self, dtype: DType) -> bool:
        """Whether what is added can be held in the type of the op."""
        held = all(holds(dtype, tensor_of(mask.type).dtype) for mask in self.added)
        return held and all(math.isfinite(as_held(fill, dtype)) for _, fill, _ in self.filled)

    @property
    def may_hide_rows(self) -> bool:
        """Whether rows that no key counts for are NaN, and there may be such."""
        hidden = [*self.kept, *(x for x in self.added if _may_hide(x))]
        return not self.safe and bool(hidden)


def _number(value: SSAValue, dtype: DType) -> float | None:
    """The number that a value is, as a type holds it."""
    number = number_of(value)
    return None if number is None else as_held(number, dtype)


def _joined(b: GraphBuilder, name: str, values: list[SSAValue]) -> SSAValue | None:
    if not values:
        return None
    total = values[0]
    for value in values[1:]:
        total = b.emit(name, total, value)
    return total


def unbroadcast(value: SSAValue) -> SSAValue:
    """The mask before it was repeated, or got dimensions of 1 in front: the op repeats it itself."""
    while (view := made_by(value, "graph.broadcast", "graph.reshape")) is not None:
        source, shape = (tensor_of(each.type).shape for each in (view.operands[0], value))
        if view.name == "graph.reshape" and _without_ones(source) != _without_ones(shape):
            return value
        value = view.operands[0]
    return value


def _without_ones(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """A shape without the dimensions of 1 that it begins with."""
    first = next((d for d, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def _unwidened(mask: SSAValue) -> SSAValue:
    """The mask before it was cast to a type that holds all its values."""
    cast = made_by(mask, "graph.cast")
    if cast is None or not holds(tensor_of(mask.type).dtype, tensor_of(cast.operands[0].type).dtype):
        return mask
    return unbroadcast(cast.operands[0])


def _may_hide(mask: SSAValue, dtype: DType | None = None) -> bool:
    """Whether what is added, as a type holds it, may be -∞."""
    dtype = dtype or tensor_of(mask.type).dtype
    if (number := _number(mask, dtype)) is not None:
        return number == -math.inf
    if (choice := made_by(mask, "graph.where")) is not None:
        return any(_may_hide(value, dtype) for value in choice.operands[1:])
    if (source := made_by(mask, "graph.cast", "graph.broadcast", "graph.reshape")) is not None:
        return _may_hide(source.operands[0], dtype)
    return True


def _is_causal(condition: SSAValue, shape: tuple[Size, ...], *, hides: bool = False) -> bool:
    """Whether row i keeps the keys 0 to i and no others; or hides all others, and not these."""
    own = tensor_of(condition.type).shape
    if own[-2:] != shape[-2:] or any(size != 1 for size in own[:-2]) or broadcast_shapes(own, shape) != shape:
        return False
    comparison = made_by(condition, *(("graph.lt", "graph.gt") if hides else ("graph.ge", "graph.le")))
    if comparison is not None:
        in_order = comparison.name in ("graph.ge", "graph.lt")
        row, column = comparison.operands if in_order else reversed(comparison.operands)
        if _counts(row, -2) and _counts(column, -1):
            return True
    array = array_of(condition)
    if array is None:
        return False
    return bool((array == (np.tri(*array.shape[-2:], dtype=bool) != hides)).all())


def _counts(value: SSAValue, along: int) -> bool:
    """Whether a value is 0, 1, 2 … along a dimension, counted from the last, and the same along all others."""
    shape = tensor_of(value.type).shape
    if -along > len(shape) or any(size != 1 for d, size in enumerate(shape, -len(shape)) if d != along):
        return False
    while (view := made_by(value, "graph.reshape", "graph.broadcast")) is not None:
        value = view.operands[0]
    line = made_by(value, "graph.iota")
    if line is None or (line.params.get("start", 0), line.params.get("step", 1)) != (0, 1):
        return False
    sizes = [size for size in tensor_of(value.type).shape if size != 1]
    dim: int = line.params["dim"]
    return sizes == [shape[along]] and tensor_of(value.type).shape[dim] == shape[along]
