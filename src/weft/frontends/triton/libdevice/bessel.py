"""Bessel's functions: by recurrence for small arguments, by their asymptotic series for large ones; in fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import exactly, mapped, where
from weft.frontends.triton.language.casting import converted
from weft.frontends.triton.language.promotion import constant, pair, to_tensor
from weft.frontends.triton.language.values import tensor

_BORDER = 25.0
_HIGHEST = 68
"""The order at which the recurrence starts: at the border, J of it is below 1e-16 of J0."""
_GREATEST_ORDER = 60
_EULER = 0.5772156649015329


def _number(value: float, beside: tensor) -> tensor:
    return constant(value, types.float64, beside.sides)


def _widely(function: Callable[[tensor], tensor]) -> Callable[[Any], tensor]:
    def apply(arg0: Any) -> tensor:
        value = to_tensor(arg0)
        return converted(function(converted(value, types.float64, None)), value.dtype, None)

    return apply


def _small(x: tensor) -> list[tensor]:
    """J0, J1, ... of arguments up to the border: downwards from a high order, scaled so that J0 + 2 J2 + ... is 1."""
    least = _number(1e-30, x)
    safe = mapped("max", mapped("min", x, _number(_BORDER, x)), _number(1e-3, x))
    orders = [_number(0.0, x), least]
    total = _number(0.0, x)
    for order in range(_HIGHEST, 0, -1):
        orders.append(orders[-1] * (2.0 * order) / safe - orders[-2])
        # What grows too large for a double is scaled back together with all that depends on it.
        large = mapped("abs", orders[-1]) > _number(1e200, x)
        factor = where(large, _number(1e-200, x), _number(1.0, x))
        orders = [value * factor for value in orders] if order % 4 == 0 else orders
    series = orders[:0:-1]
    for order in range(2, len(series), 2):
        total = total + series[order]
    scale = series[0] + 2.0 * total
    return [value / scale for value in series]


def _large(x: tensor, order: int) -> tuple[tensor, tensor]:
    """J and Y of arguments beyond the border, by Hankel's expansion."""
    safe = mapped("max", x, _number(_BORDER, x))
    even, odd, term = _number(1.0, x), _number(0.0, x), _number(1.0, x)
    for k in range(1, 26):
        term = term * (4.0 * order * order - (2 * k - 1) ** 2) / (safe * (8.0 * k))
        sign = (-1.0) ** (k // 2)
        if k % 2:
            odd = odd + term * sign
        else:
            even = even + term * sign
    phase = safe - (order / 2 + 0.25) * math.pi
    size = mapped("sqrt", (2 / math.pi) / safe)
    sine, cosine = mapped("sin", phase), mapped("cos", phase)
    return size * (even * cosine - odd * sine), size * (even * sine + odd * cosine)


def _tiny(x: tensor, order: int) -> tensor:
    """The beginning of the power series, for arguments where the recurrence would divide by next to nothing."""
    half = x * 0.5
    power = _number(1.0 / math.factorial(order), x)
    for _ in range(order):
        power = power * half
    return power * (1.0 - half * half / (order + 1.0))


def _first_kind(x: tensor, order: int) -> tensor:
    size = mapped("abs", x)
    result = where(size > _number(_BORDER, x), _large(size, order)[0], _small(size)[order])
    result = where(size < _number(1e-3, x), _tiny(size, order), result)
    return where(x < _number(0.0, x), -result, result) if order % 2 else result


def _second_kind(x: tensor, order: int) -> tensor:
    """Y0, by Neumann's series in J, or its derivative."""
    safe = mapped("max", mapped("abs", x), _number(1e-300, x))
    series = _small(safe)
    tiny = safe < _number(1e-3, x)
    first, second = (where(tiny, _tiny(safe, n), series[n]) for n in (0, 1))
    logarithm = mapped("log", safe * 0.5) + _EULER
    total = _number(0.0, x)
    for k in range(1, (len(series) - 1) // 2):
        value = series[2 * k] if order == 0 else (series[2 * k - 1] - series[2 * k + 1]) * 0.5
        total = total + value * ((-1.0) ** (k + 1) / k)
    total = where(tiny, safe * safe * 0.125 if order == 0 else safe * 0.25, total)
    if order == 0:
        near = (logarithm * first + 2.0 * total) * (2 / math.pi)
    else:
        near = -((first / safe - logarithm * second + 2.0 * total) * (2 / math.pi))
    result = where(safe > _number(_BORDER, x), _large(safe, order)[1], near)
    result = where(x == _number(0.0, x), _number(-math.inf, x), result)
    return where(x < _number(0.0, x), _number(math.nan, x), result)


j0 = _widely(lambda x: _first_kind(x, 0))
j1 = _widely(lambda x: _first_kind(x, 1))
y0 = _widely(lambda x: _second_kind(x, 0))
y1 = _widely(lambda x: _second_kind(x, 1))


def _of_order(arg0: Any, arg1: Any, second_kind: bool) -> tensor:
    value = to_tensor(arg1)
    x, order = pair(converted(value, types.float64, None), converted(to_tensor(arg0), types.float64, None))
    size = mapped("abs", x)
    if second_kind:
        series = [_second_kind(x, 0), _second_kind(x, 1)]
        small = series
    else:
        small = _small(size)
        series = [_large(size, 0)[0], _large(size, 1)[0]]
    safe = mapped("max", size, _number(1e-300, x))
    result = _number(math.nan, x)
    for number in range(_GREATEST_ORDER):
        if number > 1:
            series.append(series[-1] * (2.0 * (number - 1)) / safe - series[-2])
        near = series[number] if second_kind else where(size < _number(1e-3, x), _tiny(size, number), small[number])
        value_here = where(size > _number(_BORDER, x), series[number], near)
        if number % 2 and not second_kind:
            value_here = where(x < _number(0.0, x), -value_here, value_here)
        result = where(order == _number(float(number), x), value_here, result)
    return converted(result, value.dtype, None)


def jn(arg0: Any, arg1: Any) -> tensor:
    """J of an order given as an integer, below 60."""
    return _of_order(arg0, arg1, False)


def yn(arg0: Any, arg1: Any) -> tensor:
    """Y of an order given as an integer, below 60."""
    return _of_order(arg0, arg1, True)


def _modified(x: tensor, order: int) -> tensor:
    """I0 or I1: a mean over a circle, which converges fast; for large arguments the asymptotic series."""
    size = mapped("abs", x)
    safe = mapped("min", size, _number(_BORDER, x))
    points = 48
    total = _number(0.0, x)
    for k in range(points):
        cosine = math.cos(math.pi * (k + 0.5) / points)
        total = total + exactly(mapped("exp", safe * (cosine - 1.0))) * (cosine if order else 1.0)
    near = total / points
    far_size = mapped("max", size, _number(_BORDER, x))
    series, term = _number(1.0, x), _number(1.0, x)
    for k in range(1, 26):
        term = -term * (4.0 * order * order - (2 * k - 1) ** 2) / (far_size * (8.0 * k))
        series = series + term
    far = series / mapped("sqrt", far_size * (2 * math.pi))
    result = exactly(mapped("exp", size)) * where(size > _number(_BORDER, x), far, near)
    return where(x < _number(0.0, x), -result, result) if order else result


i0 = _widely(lambda x: _modified(x, 0))
i1 = _widely(lambda x: _modified(x, 1))
