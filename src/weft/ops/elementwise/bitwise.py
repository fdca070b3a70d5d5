"""Bitwise ops on integers; on booleans they are logic."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from weft.ir.types import boolean
from weft.ops.base import op
from weft.ops.elementwise.pointwise import BIT_KINDS, INTEGERS, Primitive
from weft.ops.samples import binary, unary

BITS = (*INTEGERS, boolean)


class Bitwise(Primitive):
    """An op on the bits of integers or booleans."""

    KINDS: ClassVar[tuple[str, ...]] = BIT_KINDS


@op("bitwise_and", onnx="BitwiseAnd", stablehlo="and", samples=binary(-100, 100, BITS))
class BitwiseAnd(Bitwise):
    """The bits that are set in both."""

    FUNCTION: ClassVar[str] = "and"

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.bitwise_and(a, b)


@op("bitwise_or", onnx="BitwiseOr", stablehlo="or", samples=binary(-100, 100, BITS))
class BitwiseOr(Bitwise):
    """The bits that are set in either."""

    FUNCTION: ClassVar[str] = "or"

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.bitwise_or(a, b)


@op("bitwise_xor", onnx="BitwiseXor", stablehlo="xor", samples=binary(-100, 100, BITS))
class BitwiseXor(Bitwise):
    """The bits that differ."""

    FUNCTION: ClassVar[str] = "xor"

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.bitwise_xor(a, b)


@op(
    "bitwise_not",
    aten="bitwise_not.default",
    onnx="BitwiseNot",
    stablehlo="not",
    samples=unary(-100, 100, BITS),
)
class BitwiseNot(Bitwise):
    """All bits inverted."""

    FUNCTION: ClassVar[str] = "not"

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.invert(x)


class Shift(Primitive):
    """A shift of the bits of an integer; the distance counts as unsigned, so that a negative one shifts all out."""

    KINDS: ClassVar[tuple[str, ...]] = ("int", "uint")


@op("shl", stablehlo="shift_left", samples=binary(-100, 100, INTEGERS, low2=-2))
class Shl(Shift):
    """The bits moved to higher places, 0 by the width or more."""

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.left_shift(a, b)


@op("shr", samples=binary(-100, 100, INTEGERS, low2=-2))
class Shr(Shift):
    """The bits moved to lower places; a signed number fills with its sign, that is all that is left by the width."""

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.right_shift(a, b)
