"""What the masks of written-out attention say: which keys count, what is added to scores, and what is causal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from xdsl.ir import SSAValue

from weft.ir.expr import Size
from weft.ir.types import DType, boolean, tensor_of
from weft.ops.base import broadcast_shapes
from weft.ops.graph import GraphBuilder
from weft.passes.attention.diagonal_masks import sees_own_place
from weft.passes.simplify.arithmetic_rules import holds
from weft.passes.simplify.constant_values import array_of, as_held, made_by, number_of

_ABSORBS = -(2.0**100)
"""Added to a score, a number below this gives itself: a row that is masked all over comes out even, as if replaced."""


@dataclass(frozen=True)
class _Mask:
    """Scores get `fill` where the condition fails that `keeps` them, or else holds; as `added` numbers, if there are.

    Without a condition, numbers are added of which nothing is known.
    """

    condition: SSAValue | None
    fill: float
    keeps: bool
    added: SSAValue | None = None


class Combined(NamedTuple):
    """Masks as the op takes them; `hides_rows` if there may be rows without any key, for which softmax gives NaN."""

    operands: tuple[SSAValue, ...]
    causal: bool
    hides_rows: bool


@dataclass
class Masks:
    """The masks on scores of one shape, noted from the one that is applied last to the first.

    `safe` says that a row without any key gives zeros, which is what the op does; softmax gives NaN. `hides` says that
    the lowest numbers do, too.
    """

    shape: tuple[Size, ...]
    safe: bool
    causal: bool = False
    hides: bool = False
    noted: list[_Mask] = field(default_factory=list[_Mask])

    def add(self, mask: SSAValue) -> None:
        """Note a tensor that is added to the scores."""
        mask = _unwidened(unbroadcast(mask))
        narrowed = made_by(mask, "graph.cast")
        choice = made_by(mask if narrowed is None else narrowed.operands[0], "graph.where")
        if choice is not None:
            condition, *values = choice.operands
            yes, no = (_number(value, tensor_of(mask.type).dtype) for value in values)
            for kept, fill, keeps in ((yes, no, True), (no, yes, False)):
                if kept == 0 and fill is not None and fill < _ABSORBS:
                    self.noted.append(_Mask(condition, fill, keeps, mask))
                    return
        if number_of(mask) != 0:
            self.noted.append(_Mask(None, 0.0, True, mask))

    def choose(self, condition: SSAValue, fill: float, keeps: bool) -> bool:
        """Note that scores are kept where the condition is `keeps`, and replaced by a low `fill` elsewhere."""
        if fill < _ABSORBS:
            self.noted.append(_Mask(condition, fill, keeps))
        return fill < _ABSORBS

    def combined(self, b: GraphBuilder, dtype: DType) -> Combined:
        """The mask as operand of the op, if one is left, and whether it is causal."""
        hiding = self._hiding()
        # Lowest numbers that replace scores show again what masks before them hid: these are applied one by one.
        replaces = (n for n, mask in enumerate(self.noted) if not hiding[n] and mask.added is None)
        last = next(replaces, len(self.noted))
        kept: list[SSAValue] = []
        causal, added = self.causal, None
        for n, mask in reversed(list(enumerate(self.noted))):
            if hiding[n] and n < last:
                for condition, keeps in _conditions(mask):
                    if _is_causal(condition, self.shape, hides=not keeps):
                        causal = True
                    else:
                        kept.append(condition if keeps else b.logical_not(condition))
            elif mask.added is not None:
                number = mask.added if tensor_of(mask.added.type).dtype == dtype else b.cast(mask.added, dtype=dtype)
                added = number if added is None else b.add(added, number)
            elif mask.condition is not None:
                others = b.full(value=0, shape=(), dtype=dtype) if added is None else added
                low = b.full(value=mask.fill, shape=(), dtype=dtype)
                added = b.where(mask.condition, *((others, low) if mask.keeps else (low, others)))
        # Where there is no key at all softmax has no element, and sums over it are zero.
        may_hide = self.shape[-1] != 0 and not self.safe
        hides_rows = may_hide and (bool(kept) or (added is not None and _may_hide(added)))
        keep = _joined(b, "bitwise_and", kept)
        if keep is None or added is None:
            mask = keep if added is None else added
            return Combined(() if mask is None else (mask,), causal, hides_rows)
        both = b.where(keep, added, b.full(value=-math.inf, shape=(), dtype=dtype))
        return Combined((both,), causal, hides_rows)

    def fits(self, dtype: DType) -> bool:
        """Whether what is added can be held in the type of the op."""
        left = [mask for mask, hides in zip(self.noted, self._hiding(), strict=True) if not hides]
        held = all(holds(dtype, tensor_of(mask.added.type).dtype) for mask in left if mask.added is not None)
        return held and all(math.isfinite(as_held(mask.fill, dtype)) for mask in left if mask.added is None)

    def _hiding(self) -> list[bool]:
        """Which of the masks hide keys: -∞, and lowest numbers where it is sure that every row sees a key.

        That takes a key which all masks let a row see: the first one of causal masks, or that of the row's own place.
        """
        low = any(-math.inf < mask.fill < 0 for mask in self.noted)
        hides = self.hides or (low and all(mask.condition is not None for mask in self.noted) and self._share_a_key())
        return [mask.condition is not None and (hides or mask.fill == -math.inf) for mask in self.noted]

    def _share_a_key(self) -> bool:
        conditions = [condition for mask in self.noted for condition in _conditions(mask)]
        others = [pair for pair in conditions if not _is_causal(pair[0], self.shape, hides=not pair[1])]
        return all(keeps and sees_own_place(condition, self.shape) for condition, keeps in others)


def _conditions(mask: _Mask) -> list[tuple[SSAValue, bool]]:
    """What must hold for a mask to keep scores, or where that is false, must not."""
    return [] if mask.condition is None else _parts(mask.condition, mask.keeps)


def _parts(condition: SSAValue, keeps: bool) -> list[tuple[SSAValue, bool]]:
    condition = unbroadcast(condition)
    negated = None if keeps else made_by(condition, "graph.logical_not", "graph.bitwise_not")
    if negated is not None:
        return _parts(negated.operands[0], keeps=True)
    both = made_by(condition, "graph.bitwise_and", "graph.logical_and") if keeps else None
    if both is not None and tensor_of(both.operands[0].type).dtype == boolean:
        return [part for operand in both.operands for part in _parts(operand, keeps=True)]
    return [] if keeps and number_of(condition) is True else [(condition, keeps)]


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
