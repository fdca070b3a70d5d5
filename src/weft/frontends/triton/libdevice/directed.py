"""Arithmetic and conversions that round in a given direction: `_rz` towards zero, `_rd` down, `_ru` up.

The result rounded to nearest is moved to its neighbour where it lies on the wrong side of the exact one. For fp32 the
exact result is computed in fp64; for fp64 its difference from the rounded one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import mapped, where
from weft.frontends.triton.language.casting import converted
from weft.frontends.triton.language.promotion import broadcast_all, constant, pair, to_tensor
from weft.frontends.triton.language.types import dtype
from weft.frontends.triton.language.values import tensor

Function = Callable[..., tensor]
_MODES = ("rz", "rd", "ru")


def _moved(nearest: tensor, error: tensor, mode: str) -> tensor:
    """The rounded result, or its neighbour; `error` is what the exact result is larger by."""
    zero = constant(0.0, error.dtype, error.sides)
    low, high = (constant(bound, nearest.dtype, nearest.sides) for bound in (-math.inf, math.inf))
    below, above = mapped("nextafter", nearest, low), mapped("nextafter", nearest, high)
    down = where(error < zero, below, nearest)
    up = where(error > zero, above, nearest)
    if mode == "rd":
        return down
    if mode == "ru":
        return up
    # Towards zero is down for a positive number.
    return where(nearest > constant(0.0, nearest.dtype, nearest.sides), down, up)


def _split(x: tensor) -> tuple[tensor, tensor]:
    """A double as a sum of two with half as many digits."""
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high


def _product_error(a: tensor, b: tensor, product: tensor) -> tensor:
    """What a * b is larger by than the product rounded to nearest."""
    (ah, al), (bh, bl) = _split(a), _split(b)
    return al * bl - (((product - ah * bh) - al * bh) - ah * bl)


def _sum_error(a: tensor, b: tensor, total: tensor) -> tensor:
    other = total - a
    return (a - (total - other)) + (b - other)


def _difference(name: str, values: list[tensor], nearest: tensor) -> tensor:
    """By how much the exact result of a function is larger than the rounded one: its sign is right."""
    if name == "add":
        return _sum_error(values[0], values[1], nearest)
    if name == "sub":
        return _sum_error(values[0], -values[1], nearest)
    if name == "mul":
        return _product_error(values[0], values[1], nearest)
    if name == "div":
        product = nearest * values[1]
        rest = (values[0] - product) - _product_error(nearest, values[1], product)
        return where(values[1] < 0.0, -rest, rest)
    if name == "sqrt":
        square = nearest * nearest
        return (values[0] - square) - _product_error(nearest, nearest, square)
    product = values[0] * values[1]
    return _sum_error(product, values[2], nearest) + _product_error(values[0], values[1], product)


def _arithmetic(name: str, nearest: Function, mode: str) -> Function:
    def apply(*args: Any) -> tensor:
        values = [to_tensor(arg) for arg in args]
        for i in range(1, len(values)):
            values[0], values[i] = pair(values[0], values[i])
        values = broadcast_all(*values)
        rounded = nearest(*values)
        if rounded.dtype.is_fp32():
            wide = nearest(*(converted(value, types.float64, None) for value in values))
            return _moved(rounded, wide - converted(rounded, types.float64, None), mode)
        return _moved(rounded, _difference(name, values, rounded), mode)

    return apply


def _reciprocal(divide: Function) -> Function:
    def apply(arg0: Any) -> tensor:
        value = to_tensor(arg0)
        return divide(constant(1.0, value.dtype, value.sides), value)

    return apply


_ROUND = {"rn": "round", "rz": "trunc", "rd": "floor", "ru": "ceil"}


def _to_integer(target: dtype, mode: str) -> Function:
    def apply(arg0: Any) -> tensor:
        return converted(mapped(_ROUND[mode], to_tensor(arg0)), target, None)

    return apply


def _narrowed(mode: str) -> Function:
    def apply(arg0: Any) -> tensor:
        value = to_tensor(arg0)
        nearest = converted(value, types.float32, None)
        return nearest if mode == "rn" else _moved(nearest, value - converted(nearest, types.float64, None), mode)

    return apply


def _from_integer(target: dtype, mode: str) -> Function:
    def apply(arg0: Any) -> tensor:
        value = to_tensor(arg0)
        nearest = converted(value, target, None)
        if mode == "rn":
            return nearest
        # Beyond the greatest integer there is no integer to compare with; the float is then too large.
        limit = float(1 << (value.dtype.int_bitwidth - value.dtype.is_int_signed()))
        beyond = nearest >= constant(limit, target, nearest.sides)
        back = converted(where(beyond, constant(0.0, target), nearest), value.dtype, None)
        larger = where(value > back, constant(1.0, types.float64), constant(0.0, types.float64))
        error = where(value < back, constant(-1.0, types.float64), larger)
        return _moved(nearest, where(beyond, constant(-1.0, types.float64), error), mode)

    return apply


def variants(
    add: Function, sub: Function, mul: Function, div: Function, rcp: Function, sqrt: Function, fma: Function
) -> dict[str, Function]:
    """All functions whose name ends in a rounding mode, but for arithmetic to nearest."""
    table: dict[str, Function] = {}
    arithmetic = {"add": add, "sub": sub, "mul": mul, "div": div, "sqrt": sqrt, "fma": fma}
    for mode in _MODES:
        for name, nearest in arithmetic.items():
            table[f"{name}_{mode}"] = _arithmetic(name, nearest, mode)
        table[f"rcp_{mode}"] = _reciprocal(table[f"div_{mode}"])
    integers = {"int": types.int32, "uint": types.uint32, "ll": types.int64, "ull": types.uint64}
    for mode in ("rn", *_MODES):
        table[f"double2float_{mode}"] = _narrowed(mode)
        for name, element in integers.items():
            for source in ("float", "double"):
                table[f"{source}2{name}_{mode}"] = _to_integer(element, mode)
            table[f"{name}2float_{mode}"] = _from_integer(types.float32, mode)
            table[f"{name}2double_{mode}"] = _from_integer(types.float64, mode)
    return table
