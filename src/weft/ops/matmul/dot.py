"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError, UnsupportedError
from weft.ir.expr import ceildiv
from weft.ir.types import DType, Tensor, bf16, f8e4m3, f8e5m2, f16, f32, i8, i16, i32, u8
from weft.ops.base import Precision, Structured, op, same_dtype
from weft.ops.elementwise.pointwise import NUMBERS
from weft.ops.graph import GraphBuilder
from weft.ops.numerics import rounded_once
from weft.ops.rules import Gradients, Values, all_batched
from weft.ops.samples import Input, Sample
from weft.ops.shape import Permute
from weft.ops.sharding_rules import ShardingRule, einsum


def transposed(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """The last two dimensions exchanged."""
    rank = b.tensor(x).rank
    return b.permute(x, dims=(*range(rank - 2), rank - 1, rank - 2))


def is_transposed(x: SSAValue) -> bool:
    """Whether a value is another with its last two dimensions exchanged."""
    if not isinstance(x.owner, Permute):
        return False
    dims: tuple[int, ...] = x.owner.params["dims"]
    rank = len(dims)
    return rank > 1 and dims == (*range(rank - 2), rank - 1, rank - 2)


def _product(b: GraphBuilder, x: SSAValue, y: SSAValue, turned: bool) -> SSAValue:
    """The product, as the transpose of that of the transposed where it is the gradient of what was transposed.

    Its transpose and that one cancel: no elements are moved.
    """
    return transposed(b, b.dot(transposed(b, y), transposed(b, x))) if turned else b.dot(x, y)


BYTES_TOGETHER = 4
"""Products of 8-bit integers, neighbours along K, that one instruction of a processor sums up (VNNI, SDOT)."""
_MADE_LATE = "it is made by passes, after differentiation and batching"
_FLOAT8 = (f8e4m3, f8e5m2)
_WIDENED = {i32: {(i8, i8), (u8, i8), (i16, i8)}, f32: {*product(_FLOAT8, _FLOAT8), (f16, f16), (bf16, bf16)}}
"""Types of operands that are summed in a wider one."""


@op(
    "dot",
    aten=("mm.default", "bmm.default"),
    stablehlo="dot_general",
    samples=[
        Sample((Input((3, 5)), Input((5, 4))), {}, NUMBERS),
        Sample((Input((1, 33)), Input((33, 17))), {}, NUMBERS),
        Sample((Input((2, 3, 7, 5)), Input((2, 3, 5, 1))), {}, NUMBERS),
        Sample((Input((3, 0)), Input((0, 4))), {}, NUMBERS),
        Sample((Input((0, 3, 2)), Input((0, 2, 4))), {}, NUMBERS),
        Sample((Input((2, 3), -(2**30), 2**30), Input((3, 2), -(2**30), 2**30)), {}, (i32,)),
        Sample((Input((5, 67), -128, 127), Input((67, 35), -128, 127)), {"dtype": i32}, (i8,)),
        Sample((Input((5, 67), 0, 256, u8), Input((67, 35), -128, 127, i8)), {"dtype": i32}, (i8,)),
        Sample((Input((5, 67)), Input((67, 35))), {"dtype": f32}, (f8e4m3, f8e5m2)),
        Sample((Input((3, 130)), Input((130, 16))), {"dtype": f32, "fast": True}, (f8e4m3,)),
    ],
)
class Dot(Structured):
    """The product of matrices [..., M, K] and [..., K, N] with equal leading dimensions.

    Narrow floats are accumulated in f32 and rounded once; integers wrap around. With `dtype` i32, x of i8, u8
    or i16 and y of i8 are multiplied and summed in that type, and with f32, x and y of 8-bit floats of either kind or
    both of the same 16 bits; with `fast` a machine may sum those of 8 bits in fewer digits.
    """

    AUTOCAST: ClassVar[Precision] = "narrow"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        x, y = tensors
        wide = params.get("dtype")
        if wide is None:
            wide = same_dtype("dot", tensors)
        elif (x.dtype, y.dtype) not in _WIDENED.get(wide, ()):
            raise DTypeError(
                f"dot of {x.dtype} and {y.dtype} has no result of {wide}",
                hint="i8, u8 or i16 and i8 have one of i32, floats of 8 or 16 bits one of f32; cast the operands",
            )
        if x.rank < 2 or x.rank != y.rank or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2]:
            raise ShapeError(
                f"dot: {x} and {y} do not fit",
                hint="it takes [..., M, K] and [..., K, N]; broadcast leading dimensions",
            )
        return Tensor(wide, (*x.shape[:-1], y.shape[-1]))

    @staticmethod
    def contracted(x: Tensor, y: Tensor, **params: Any) -> tuple[tuple[int, ...], ...]:
        return (x.rank - 1,), (y.rank - 2,)

    @staticmethod
    def sharding(x: Tensor, y: Tensor, **params: Any) -> ShardingRule:
        lead = "abcdefgh"[: x.rank - 2]
        return einsum(f"{lead}mk,{lead}kn->{lead}mn", (x, y))

    @staticmethod
    def reference(x: np.ndarray, y: np.ndarray, dtype: DType | None = None, fast: bool = False) -> np.ndarray:
        if dtype is None:
            return rounded_once(np.matmul)(x, y)
        return np.matmul(x.astype(dtype.numpy), y.astype(dtype.numpy))

    @staticmethod
    def vjp(
        b: GraphBuilder,
        grads: Values,
        operands: Values,
        results: Values,
        dtype: DType | None = None,
        fast: bool = False,
    ) -> Gradients:
        if dtype is not None:
            raise UnsupportedError("a product that widens has no gradient", hint="cast the operands first")
        x, y = operands
        return _product(b, grads[0], transposed(b, y), is_transposed(x)), _product(
            b, transposed(b, x), grads[0], is_transposed(y)
        )

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], **params: Any) -> SSAValue:
        x, y = operands
        if not batched[1] and b.tensor(y).rank == 2:
            # One tall product instead of many: the batch joins the rows.
            size, rows, inner = b.tensor(x).shape
            tall = b.dot(b.reshape(x, shape=(size * rows, inner)), y, **params)
            return b.reshape(tall, shape=(size, rows, b.tensor(y).shape[1]))
        is_alike = b.tensor(x).dtype == b.tensor(y).dtype
        if not batched[0] and b.tensor(x).rank == 2 and b.tensor(y).shape[-1] == 1 and is_alike:
            # Vectors that one matrix multiplies are the rows of another; not all types may change sides.
            size, inner, _ = b.tensor(y).shape
            flat = b.dot(b.reshape(y, shape=(size, inner)), transposed(b, x), **params)
            return b.reshape(flat, shape=(size, b.tensor(x).shape[0], 1))
        spread = all_batched(b, operands, batched)
        if b.tensor(x).shape[-1] == 1 and not params:
            return b.mul(*spread)  # outer products: many small ones, in which nothing is summed up
        return b.dot(*spread, **params)


SCALED_BLOCK = 128
"""The side of the blocks that have a factor each."""
_BY_ROW = (Input((5, 200)), Input((200, 35)), Input((5, 2), 0.5, 2.0, f32), Input((2, 1), 0.5, 2.0, f32))
_BY_BLOCK = (Input((130, 128)), Input((128, 300)), Input((2, 1), 0.5, 2.0, f32), Input((1, 300), 0.5, 2.0, f32))


@op("scaled_dot", samples=[Sample(_BY_ROW, {}, (f8e4m3, f8e5m2)), Sample(_BY_BLOCK, {}, (f8e4m3,))])
class ScaledDot(Structured):
    """The product in f32 of matrices [M, K] and [K, N] of 8-bit floats with a factor for each 128 of K.

    The factors of x are [M, K / 128], or [M / 128, K / 128] for blocks of rows, and those of y [K / 128, N] or
    [K / 128, N / 128]; the last block may be short.
    """

    NO_RULE: ClassVar[Mapping[str, str]] = {"vjp": _MADE_LATE, "batch": _MADE_LATE}

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        x, y, s, t = tensors
        if x.dtype not in _FLOAT8 or y.dtype not in _FLOAT8 or (s.dtype, t.dtype) != (f32, f32):
            raise DTypeError(f"scaled_dot of {x}, {y}, {s} and {t}", hint="it takes 8-bit floats, and factors of f32")
        if any(each.rank != 2 for each in tensors) or x.shape[1] != y.shape[0]:
            raise ShapeError(f"scaled_dot: {x} and {y} do not fit", hint="it takes [M, K] and [K, N]")
        (m, k), n, size = x.shape, y.shape[1], partial(ceildiv, b=SCALED_BLOCK)
        if s.shape not in ((m, size(k)), (size(m), size(k))) or t.shape not in ((size(k), n), (size(k), size(n))):
            raise ShapeError(f"scaled_dot: factors {s} and {t} are not those of {x} and {y}", hint="one for 128 of K")
        return Tensor(f32, (m, n))

    @staticmethod
    def reference(x: np.ndarray, y: np.ndarray, s: np.ndarray, t: np.ndarray) -> np.ndarray:
        def repeated(factors: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
            for axis, size in enumerate(shape):
                if factors.shape[axis] != size:
                    factors = np.repeat(factors, SCALED_BLOCK, axis).take(range(size), axis)
            return factors

        wide_x, wide_y = x.astype(np.float32), y.astype(np.float32)
        return np.matmul(wide_x * repeated(s, x.shape), wide_y * repeated(t, y.shape))


_ONE_TILE = (Input((3, 5)), Input((2, 4, 5)), *(Input((1,), n, n + 1, i32) for n in (1, 0, 3, 1)))


@op("tiled_dot", samples=[Sample(_ONE_TILE, {"rows": 8}, (f32, bf16, f16))])
class TiledDot(Structured):
    """Rows [R, K] in tiles, each times the transpose of one of the matrices [E, N, K].

    A tile has a matrix, its first row and the one behind its last: of [S] numbers each, and has at most `rows`. Of the
    tiles there are `count`, the first of [S] equal numbers, and at least one. What is in no tile is left as it is.
    """

    NO_RULE: ClassVar[Mapping[str, str]] = {"vjp": _MADE_LATE, "batch": _MADE_LATE}

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        x, w, *tiles = tensors
        same_dtype("tiled_dot", (x, w))
        if x.rank != 2 or w.rank != 3 or x.shape[1] != w.shape[2]:
            raise ShapeError(f"tiled_dot: {x} and {w} do not fit", hint="it takes [R, K] and [E, N, K]")
        if len(tiles) != 4 or any(each.dtype != i32 or each.shape != tiles[0].shape for each in tiles):
            raise ShapeError("tiled_dot: a tile is four numbers", hint="give matrices, first rows, ends and the count")
        return Tensor(x.dtype, (x.shape[0], w.shape[1]))

    @staticmethod
    def reference(
        x: np.ndarray,
        w: np.ndarray,
        matrices: np.ndarray,
        firsts: np.ndarray,
        ends: np.ndarray,
        count: np.ndarray,
        rows: int,
    ) -> np.ndarray:
        result = np.zeros((x.shape[0], w.shape[1]), x.dtype)
        for matrix, first, end in zip(matrices[: count[0]], firsts, ends, strict=False):
            part = slice(first, min(first + rows, end))
            result[part] = rounded_once(np.matmul)(x[part], w[matrix].T)
        return result
