"""Functions of complex numbers by their real and imaginary parts, for functions that are going to be differentiated.

Graphs have real numbers alone: in terms of them, a derivative is that of a function of two numbers, which is torch's
convention for complex gradients and tangents. At 0, where a magnitude has no slope, it is 0, as torch takes it; it is 0
too where a slope has no bound (roots at 0, inverse functions at their branch points). The sign of a zero chooses the
side of a branch cut. Derivatives are of the same side, where torch's of asin, acos and asinh may be of the other.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from weft.frontends.torch.capture.stop_gradients import stopped

_ops: Any = torch.ops.aten
_MOST_FACTORS = 16
"""Up to which exponent a power is a product, which keeps more digits than logarithms."""


def _parts(z: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.view_as_real(z)
    return both.select(-1, 0), both.select(-1, 1)


def _away_from_zero(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where a number is 0, and its parts, of which the real one is 1 there."""
    x, y = _parts(z)
    none = (x == 0) & (y == 0)
    return none, torch.where(none, 1, x), y


def _abs(z: Tensor) -> Tensor:
    none, x, y = _away_from_zero(z)
    return torch.where(none, 0, torch.hypot(x, y))


def _angle(z: Tensor) -> Tensor:
    none, x, y = _away_from_zero(z)
    return torch.where(none, stopped(torch.atan2(*reversed(_parts(z)))), torch.atan2(y, x))


def _sgn(z: Tensor) -> Tensor:
    none, x, y = _away_from_zero(z)
    size = torch.hypot(x, y)
    return torch.complex(torch.where(none, 0, x / size), torch.where(none, 0, y / size))


def _log(z: Tensor) -> Tensor:
    x, y = _parts(z)
    return torch.complex(torch.log(torch.hypot(x, y)), torch.atan2(y, x))


def _log1p(z: Tensor) -> Tensor:
    """Near 0 by what is added to 1, elsewhere by the sum, in which nothing cancels."""
    x, y = _parts(z)
    near = (x.abs() < 0.5) & (y.abs() < 0.5)
    a, b = torch.where(near, x, 0), torch.where(near, y, 0)
    size = torch.hypot(torch.where(near, 1, 1 + x), torch.where(near, 0, y))
    real = torch.where(near, 0.5 * torch.log1p(a * (2 + a) + b * b), torch.log(size))
    return torch.complex(real, torch.atan2(y, 1 + x))


def _expm1(z: Tensor) -> Tensor:
    x, y = _parts(z)
    half = torch.sin(0.5 * y)
    return torch.complex(torch.expm1(x) * torch.cos(y) - 2 * half * half, torch.exp(x) * torch.sin(y))


def _sqrt(z: Tensor) -> Tensor:
    """By the root of the larger part, which is a sum, and not of a difference that nearly cancels."""
    none, x, y = _away_from_zero(z)
    right, below = x >= 0, torch.signbit(y)
    larger = torch.sqrt(0.5 * torch.hypot(x, y) + 0.5 * torch.where(right, x, -x))
    smaller = 0.5 * y / larger
    real = torch.where(right, larger, torch.where(below, -smaller, smaller))
    imag = torch.where(right, smaller, torch.where(below, -larger, larger))
    return torch.complex(torch.where(none, 0, real), torch.where(none, stopped(y), imag))


def _sin(z: Tensor) -> Tensor:
    x, y = _parts(z)
    return torch.complex(torch.sin(x) * torch.cosh(y), torch.cos(x) * torch.sinh(y))


def _cos(z: Tensor) -> Tensor:
    x, y = _parts(z)
    return torch.complex(torch.cos(x) * torch.cosh(y), -torch.sin(x) * torch.sinh(y))


def _sinh(z: Tensor) -> Tensor:
    x, y = _parts(z)
    return torch.complex(torch.sinh(x) * torch.cos(y), torch.cosh(x) * torch.sin(y))


def _cosh(z: Tensor) -> Tensor:
    x, y = _parts(z)
    return torch.complex(torch.cosh(x) * torch.cos(y), torch.sinh(x) * torch.sin(y))


def _tanh(z: Tensor) -> Tensor:
    x, y = _parts(z)
    t, u = torch.tanh(x), torch.tan(y)
    below = 1 + t * t * (u * u)
    return torch.complex(t * (1 + u * u) / below, u * (1 - t * t) / below)


def _times_i(z: Tensor) -> Tensor:
    x, y = _parts(z)
    return torch.complex(-y, x)


def _roots(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The parts of the roots of 1 - z and of 1 + z, each on the side of its cut that the sign of a zero says."""
    x, y = _parts(z)
    return *_parts(_sqrt(torch.complex(1 - x, -y))), *_parts(_sqrt(torch.complex(1 + x, y)))


def _asin(z: Tensor) -> Tensor:
    """By functions of real numbers (Kahan, 1987), without a square that has no bound or a sum that cancels."""
    a, b, c, d = _roots(z)
    return torch.complex(torch.atan2(_parts(z)[0], a * c - b * d), torch.asinh(a * d - b * c))


def _acos(z: Tensor) -> Tensor:
    a, b, c, d = _roots(z)
    return torch.complex(2 * torch.atan2(a, c), torch.asinh(c * b - d * a))


def _acosh(z: Tensor) -> Tensor:
    x, y = _parts(z)
    a, b = _parts(_sqrt(torch.complex(x - 1, y)))
    c, d = _parts(_sqrt(torch.complex(x + 1, y)))
    return torch.complex(torch.asinh(a * c + b * d), 2 * torch.atan2(b, c))


def _atanh(z: Tensor) -> Tensor:
    return 0.5 * (torch.log1p(z) - torch.log1p(-z))


def _sigmoid(z: Tensor) -> Tensor:
    """By a power of at most 1."""
    right = z.real >= 0
    power = torch.exp(torch.where(right, -z, z))
    return torch.where(right, 1, power) / (1 + power)


def _pow_scalar(z: Tensor, exponent: Any) -> Any:
    if exponent == 0.5:
        return _sqrt(z)
    if isinstance(exponent, float) and math.isinf(exponent):
        return _limit_of_powers(_abs(z), exponent)
    if isinstance(exponent, complex) or not float(exponent).is_integer() or abs(exponent) > _MOST_FACTORS:
        return _pow(z, torch.full_like(z, exponent))
    result, square, rest = torch.ones_like(z), z, abs(int(exponent))
    while rest:
        result = result * square if rest % 2 else result
        square, rest = square * square, rest // 2
    return torch.reciprocal(result) if exponent < 0 else result


def _limit_of_powers(size: Tensor, exponent: float) -> Tensor:
    """What a number of a magnitude comes to, by an infinite exponent; its direction is known of 0 alone."""
    real = torch.where(size == 1, math.nan, size**exponent)
    return torch.complex(real, torch.where(real == 0, 0, math.nan).to(size.dtype))


def _pow(z: Tensor, exponent: Tensor) -> Tensor:
    kind = torch.result_type(z, exponent)
    z, exponent = z.to(kind), exponent.to(kind)
    none = z == 0
    found = torch.exp(exponent * torch.log(torch.where(none, 1, z)))
    of_zero = torch.where(exponent == 1, z, _power_of_zero(exponent))
    return torch.where(none, of_zero, found)


def _power_of_zero(exponent: Tensor) -> Tensor:
    x = exponent.real
    real = torch.where(x > 0, 0, torch.where(x < 0, math.inf, torch.where(exponent == 0, 1, math.nan)))
    return torch.complex(real.to(x.dtype), torch.where((x > 0) | (exponent == 0), 0, math.nan).to(x.dtype))


def _vector_norm(z: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    size = _abs(z if dtype is None else z.to(dtype))
    return torch.linalg.vector_norm(size, order, dim, keepdim)


def _var(z: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    x, y = _parts(z)
    return sum(torch.var(part, dim, correction=correction, keepdim=keepdim) for part in (x, y))  # pyright: ignore[reportReturnType]


def _std(*args: Any, **named: Any) -> Tensor:
    found = _var(*args, **named)
    none = found == 0
    return torch.where(none, 0, torch.sqrt(torch.where(none, 1, found)))


def _prod(z: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """By halves, so that no number is divided by."""
    z = z.to(dtype or z.dtype)
    if z.dim() == 0:
        return z.clone()
    z = z.movedim(dim, 0)
    if z.shape[0] == 0:
        z = torch.ones_like(z.new_empty((1, *z.shape[1:])))
    while (count := z.shape[0]) > 1:
        half = count // 2
        z = torch.cat([z[:half] * z[half : 2 * half], z[2 * half :]])
    return z.movedim(0, dim) if keepdim else z[0]


def _prod_of_all(z: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _prod(z.reshape(-1), 0, dtype=dtype)


def _cumprod(z: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """By doubled strides: what each number is multiplied with is twice as many before it."""
    z = z.to(dtype or z.dtype)
    if z.dim() == 0:
        return z.clone()
    z, step = z.movedim(dim, 0), 1
    while step < z.shape[0]:
        z = torch.cat([z[:step], z[step:] * z[:-step]])
        step *= 2
    return z.movedim(0, dim)


def _addmv(x: Tensor, matrix: Tensor, vector: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return beta * x + alpha * _mv(matrix, vector)


def _mv(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.mm(matrix, vector.unsqueeze(1)).squeeze(1)


FORMS: Mapping[Any, Callable[..., Any]] = {
    _ops.abs.default: _abs,
    _ops.angle.default: _angle,
    _ops.sgn.default: _sgn,
    _ops.log.default: _log,
    _ops.log2.default: lambda z: _log(z) * (1 / math.log(2)),
    _ops.log10.default: lambda z: _log(z) * (1 / math.log(10)),
    _ops.log1p.default: _log1p,
    _ops.expm1.default: _expm1,
    _ops.exp2.default: lambda z: torch.exp(z * math.log(2)),
    _ops.sqrt.default: _sqrt,
    _ops.rsqrt.default: lambda z: torch.reciprocal(_sqrt(z)),
    _ops.sin.default: _sin,
    _ops.cos.default: _cos,
    _ops.tan.default: lambda z: -_times_i(_tanh(_times_i(z))),
    _ops.sinh.default: _sinh,
    _ops.cosh.default: _cosh,
    _ops.tanh.default: _tanh,
    _ops.asinh.default: lambda z: -_times_i(_asin(_times_i(z))),
    _ops.atanh.default: _atanh,
    _ops.acosh.default: _acosh,
    _ops.asin.default: _asin,
    _ops.acos.default: _acos,
    _ops.atan.default: lambda z: -_times_i(_atanh(_times_i(z))),
    _ops.sigmoid.default: _sigmoid,
    _ops.pow.Tensor_Scalar: _pow_scalar,
    _ops.pow.Tensor_Tensor: _pow,
    _ops.pow.Scalar: lambda base, exponent: _pow(torch.full_like(exponent, base), exponent),
    _ops.linalg_vector_norm.default: _vector_norm,
    _ops.var.correction: _var,
    _ops.std.correction: _std,
    _ops.prod.default: _prod_of_all,
    _ops.prod.dim_int: _prod,
    _ops.cumprod.default: _cumprod,
    _ops.mv.default: _mv,
    _ops.addmv.default: _addmv,
    _ops.dot.default: lambda a, b: (a * b).sum(),
    _ops.vdot.default: lambda a, b: (a.conj() * b).sum(),
}


def with_complex_forms(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """A table of what operators are taken apart into, with the forms of those that are called on complex tensors."""
    return {**table, **{target: _chosen(form, table.get(target)) for target, form in FORMS.items()}}


def _chosen(form: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def choose(*args: Any, **named: Any) -> Any:
        if any(isinstance(each, Tensor) and each.is_complex() for each in args):
            return form(*args, **named)
        return NotImplemented if otherwise is None else otherwise(*args, **named)

    return choose
