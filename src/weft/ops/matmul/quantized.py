"""Weights of few bits: codes, factors for groups of neighbours, and the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError, ShapeError
from weft.ir.expr import Size, floordiv, mod
from weft.ir.types import DType, Tensor, bf16, f8e4m3, f16, f32, i8, i32, u8
from weft.ops.base import Movement, op
from weft.ops.body import Body, Operand, Value
from weft.ops.graph import GraphBuilder
from weft.ops.rules import Values, all_batched
from weft.ops.samples import Input, Sample


@dataclass(frozen=True)
class Form:
    """How a weight is coded: in so many bits of elements of a type, `offset` above the integer that is meant."""

    bits: int
    dtype: DType
    offset: int = 0

    @property
    def together(self) -> int:
        """The codes of an element, those of the first weights in its low bits."""
        return 8 // self.bits


FORMS = {"int4": Form(4, u8, 8), "e2m1": Form(4, u8), "int8": Form(8, i8), "e4m3": Form(8, f8e4m3)}
SCALES = (f32, f16, bf16, f8e4m3, u8)
"""The types of factors; u8 holds the exponents of powers of two, 127 above the power (e8m0), and 255 for NaN."""


def dequantized(
    codes: np.ndarray, scales: np.ndarray | None, zeros: np.ndarray | None, form: str, group: int
) -> np.ndarray:
    """The numbers [..., K] in f32 that codes stand for, with factors [..., K / group]."""
    how = FORMS[form]
    if how.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
    values = codes.view(ml_dtypes.float4_e2m1fn) if form == "e2m1" else codes
    count = values.shape[-1]

    def spread(each: np.ndarray) -> np.ndarray:
        return np.repeat(each.astype(np.float32), group, -1)[..., :count]

    offset = np.float32(how.offset) if zeros is None else spread(zeros)
    numbers = values.astype(np.float32) - offset
    if scales is None:
        return numbers
    factors = scales.view(ml_dtypes.float8_e8m0fnu) if scales.dtype == np.uint8 else scales
    with np.errstate(all="ignore"):
        return numbers * spread(factors)


def _sample(form: str, ins: int, group: int, scale: DType, zeros: bool = False) -> Sample:
    how = FORMS[form]
    codes = (-3, 3) if how.dtype == f8e4m3 else (-128, 127) if how.dtype == i8 else (0, 256)
    inputs = [Input((5, ins // how.together), *codes, how.dtype)]
    inputs.append(Input((5, ins // group), *((120, 130) if scale == u8 else (0.25, 2)), scale))
    inputs += [Input((5, ins // group), 0, 16, u8)] if zeros else []
    return Sample(tuple(inputs), {"form": form, "dtype": f32})


@op(
    "dequantize",
    samples=[
        _sample("int4", 64, 32, f32),
        _sample("int4", 96, 16, bf16, zeros=True),
        _sample("e2m1", 64, 32, u8),
        _sample("e2m1", 32, 16, f8e4m3),
        _sample("int8", 24, 8, f16),
        _sample("e4m3", 36, 36, f32),
        Sample((Input((3, 8), -128, 127, i8),), {"form": "int8", "dtype": f32}),
    ],
)
class Dequantize(Movement):
    """The weights [..., N, K] that codes [..., N, K * bits / 8] stand for: (code - zero) * scale, rounded once.

    Neighbours along K share a factor and a zero of [..., N, K / group]. Without factors they are 1. Only `int4` (codes
    0 to 15) has zeros, and they are 8 where none are given.
    """

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        codes, *factors = tensors
        form, dtype = FORMS[params["form"]], params["dtype"]
        if codes.dtype != form.dtype or dtype not in (f32, f16, bf16):
            raise DTypeError(f"dequantize: {params['form']} of {codes.dtype} to {dtype}")
        if any(factor.dtype not in SCALES for factor in factors[:1]):
            raise DTypeError(f"dequantize: factors of {factors[0].dtype}", hint=f"use {', '.join(map(str, SCALES))}")
        if any(not factor.dtype.is_integer or not form.offset for factor in factors[1:]):
            raise DTypeError("dequantize: zeros are integers, and of int4")
        ins = codes.shape[-1] * form.together
        if not all(_shares(codes.shape, ins, factor.shape) for factor in factors):
            raise ShapeError(f"dequantize: codes {codes} and factors {', '.join(map(str, factors))} do not fit")
        return Tensor(dtype, (*codes.shape[:-1], ins))

    @staticmethod
    def reference(
        codes: np.ndarray, scales: np.ndarray | None = None, zeros: np.ndarray | None = None, *, form: str, dtype: DType
    ) -> np.ndarray:
        group = 1 if scales is None else codes.shape[-1] * FORMS[form].together // scales.shape[-1]
        return dequantized(codes, scales, zeros, form, group).astype(dtype.numpy)

    @staticmethod
    def pull(
        body: Body,
        index: Sequence[Size],
        codes: Operand,
        scales: Operand | None = None,
        zeros: Operand | None = None,
        *,
        form: str,
        dtype: DType,
    ) -> Value:
        *lead, place = index
        how = FORMS[form]
        value = _number(body, body.at(codes, [*lead, floordiv(place, how.together)]), place, form)

        def shared(operand: Operand) -> Value:
            group = floordiv(codes.tensor.shape[-1] * how.together, operand.tensor.shape[-1])
            return body.at(operand, [*lead, floordiv(place, group)])

        if zeros is not None:
            value = body.math("sub", value, body.cast(shared(zeros), f32))
        elif how.offset:
            value = body.math("sub", value, body.constant(float(how.offset), f32))
        value = value if scales is None else body.math("mul", value, _factor(body, shared(scales)))
        return body.cast(value, dtype)

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool], **params: Any) -> SSAValue:
        return b.dequantize(*all_batched(b, operands, batched), **params)


def _shares(shape: Sequence[Size], ins: Size, factors: Sequence[Size]) -> bool:
    known = isinstance(ins, int) and isinstance(factors[-1], int) if factors else False
    return known and tuple(factors[:-1]) == tuple(shape[:-1]) and factors[-1] > 0 and ins % factors[-1] == 0  # type: ignore[operator]


def _number(body: Body, code: Value, place: Size, form: str) -> Value:
    """The number in f32 that a code stands for, apart from its zero."""
    if FORMS[form].bits == 8:
        return body.cast(code, f32)

    def number(value: int) -> Value:
        return body.constant(value, i32)

    shift = body.math("mul", body.position(mod(place, 2), i32), number(4))
    nibble = body.math("and", body.math("shr", body.cast(code, i32), shift), number(15))
    if form == "int4":
        return body.cast(nibble, f32)
    # 0, 1/2, 1, 3/2, 2 and 3, 4, 6, of either sign.
    size = body.math("and", nibble, number(7))
    wide = body.cast(size, f32)
    large = body.where(body.math("eq", size, number(7)), body.constant(6.0, f32), _plus(body, wide, -2.0))
    small = body.math("mul", wide, body.constant(0.5, f32))
    value = body.where(body.math("lt", size, number(5)), small, large)
    return body.where(body.math("gt", nibble, number(7)), body.math("neg", value), value)


def _plus(body: Body, value: Value, number: float) -> Value:
    return body.math("add", value, body.constant(number, f32))


def _factor(body: Body, scale: Value) -> Value:
    if scale.dtype != u8:
        return body.cast(scale, f32)
    exponent = body.cast(scale, i32)

    def equals(number: int) -> Value:
        return body.math("eq", exponent, body.constant(number, i32))

    bits = body.math("shl", exponent, body.constant(23, i32))
    bits = body.where(equals(0), body.constant(0x00400000, i32), bits)
    bits = body.where(equals(255), body.constant(0x7FC00000, i32), bits)
    return body.bitcast(bits, f32)
