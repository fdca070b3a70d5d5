"""What an op's lowering rule may say: the `Body` that `lower/` hands to it.

A rule describes one element of the op's result (or, read in parallel, a tile of them): elementwise rules map values to
a value, movement rules say which element of the operand is meant, reductions say what is combined over which ranges.
Indices are `Size` expressions over iteration variables; `lower/` decides loops, tiles and vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weft.ir.expr import Expr, Size
from weft.ir.types import DType, Tensor


class Value(Protocol):
    """One element (a tile of elements) of a known type."""

    @property
    def dtype(self) -> DType: ...


class Operand(Protocol):
    """A tensor that a rule reads from."""

    @property
    def tensor(self) -> Tensor: ...


class Body(Protocol):
    """Builds the code of one element."""

    def at(
        self, operand: Operand, index: Sequence[Size], mask: Value | None = None, other: float | int | bool = 0
    ) -> Value:
        """The operand's element at `index`; where `mask` is false nothing is read and the value is `other`."""
        ...

    def constant(self, value: float | int | bool, dtype: DType) -> Value: ...

    def math(self, function: str, *values: Value) -> Value:
        """Apply a function of `weft.tile.functions` elementwise. Comparisons give booleans."""
        ...

    def cast(self, value: Value, dtype: DType) -> Value: ...

    def bitcast(self, value: Value, dtype: DType) -> Value: ...

    def rounded(self, value: Value, dtype: DType) -> Value:
        """The value as memory would hold it: narrow floats are wider while they are computed with."""
        ...

    def where(self, condition: Value, yes: Value, no: Value) -> Value: ...

    def position(self, index: Size, dtype: DType) -> Value:
        """An index expression as a value (i64 in kernels of indices, any type for iota)."""
        ...

    def index(self, value: Value, size: Size) -> Expr:
        """An integer value as an index expression; the value must lie in [0, size)."""
        ...

    def inside(self, index: Size, size: Size) -> Value | None:
        """The boolean `0 <= index < size`, or None when that always holds."""
        ...

    def both(self, a: Value | None, b: Value | None) -> Value | None:
        """The conjunction of two masks, where None stands for true."""
        ...
