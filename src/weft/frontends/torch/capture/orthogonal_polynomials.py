"""Orthogonal polynomials of torch, of a degree for each element: by their recurrence, which runs to the highest degree.

`decompositions` traces them where a graph has one. A degree that is a number is written out while it is low; degrees
that are data make a loop. As in eager, Chebyshev polynomials of higher degrees are waves of an angle inside of (-1, 1).
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.frontends.torch.capture.data_loops import by_parts, repeat_while
from weft.frontends.torch.capture.series import float_operands, together

Step: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""The polynomial of degree k, of x, k and those of degrees k - 2 and k - 1."""
Wave: TypeAlias = Callable[[Any, Any], Any]
"""A polynomial of a degree n, of the angle whose cosine is x."""

_WRITTEN_OUT = 16
"""The highest degree that is written out: beyond, a loop is compiled sooner."""
_HIGHEST = {torch.float32: 128, torch.float64: 512}
"""Degrees beyond which torch gives NaN for Hermite's polynomials."""


def _twice(x: Any, k: Any, before: Any, last: Any) -> Any:
    return (x + x) * last - before


def _chebyshev(
    slope: float, offset: float, wave: Wave, waves_from: int, *, shifted: bool = False
) -> Callable[..., Tensor]:
    """A kind of Chebyshev's polynomials: that of degree 1, and those of high degrees inside of (-1, 1)."""

    def polynomial(x: Any, n: Any) -> Tensor:
        x, n, degree = _place_and_degree(x, n)
        place = x + x - 1 if shifted else x
        by_wave = (n > waves_from) & (place.abs() < 1)
        found = _recurred(place, n, degree, slope * place + offset, _twice, ~by_wave)
        angle = torch.acos(torch.where(by_wave, place, 0.0))
        return torch.where(by_wave, wave(n.to(x.dtype), angle), found)

    return polynomial


def _second(n: Any, angle: Any) -> Any:
    sine = torch.sin(angle)
    flat = (n + 1) * torch.cos((n + 1) * angle) / torch.cos(angle)
    return torch.where(sine == 0, flat, torch.sin((n + 1) * angle) / sine)


_KINDS: dict[str, tuple[float, float, Wave]] = {
    "t": (1.0, 0.0, lambda n, angle: torch.cos(n * angle)),
    "u": (2.0, 0.0, _second),
    "v": (2.0, -1.0, lambda n, angle: torch.cos((n + 0.5) * angle) / torch.cos(angle / 2)),
    "w": (2.0, 1.0, lambda n, angle: torch.sin((n + 0.5) * angle) / torch.sin(angle / 2)),
}
_WAVES_FROM = {"t": 6, "u": 8, "v": 8, "w": 8}
_SHIFTED_WAVES_FROM = {"t": 6, "u": 6, "v": 6, "w": 4}


def _hermite(factor: int) -> Callable[..., Tensor]:
    """Hermite's polynomials, as physicists (2) or as probabilists (1) scale them."""

    def polynomial(x: Any, n: Any) -> Tensor:
        x, n, degree = _place_and_degree(x, n)
        if x.dtype not in _HIGHEST:
            raise NotImplementedError(f"Hermite's polynomials of {x.dtype}")
        known = n <= _HIGHEST[x.dtype]
        step: Step = lambda x, k, before, last: factor * (x * last - (k - 1) * before)  # noqa: E731
        found = _recurred(x, n, degree, factor * x, step, known)
        return torch.where(known, found, math.nan)

    return polynomial


def laguerre(x: Any, n: Any) -> Tensor:
    """Laguerre's polynomial."""
    x, n, degree = _place_and_degree(x, n)
    step: Step = lambda x, k, before, last: ((2 * k - 1 - x) * last - (k - 1) * before) / k  # noqa: E731
    found = _recurred(x, n, degree, 1 - x, step, x != 0)
    return torch.where((x == 0) & (n >= 0), 1.0, found)


def legendre(x: Any, n: Any) -> Tensor:
    """Legendre's polynomial."""
    x, n, degree = _place_and_degree(x, n)
    step: Step = lambda x, k, before, last: ((2 * k - 1) * x * last - (k - 1) * before) / k  # noqa: E731
    found = _recurred(x, n, degree, x, step, x.abs() != 1)
    ends = torch.where((x > 0) | (n % 2 == 0), 1.0, -1.0)
    return torch.where((x.abs() == 1) & (n >= 0), ends, found)


def _place_and_degree(x: Any, n: Any) -> tuple[Tensor, Tensor, int | None]:
    """Floats, degrees of the same shape, and the degree where it is one number; what is no degree is below 0."""
    degree = None if isinstance(n, Tensor) else int(n) if math.isfinite(n) else -1
    _, x, n = float_operands(x, n)
    return x, torch.where(torch.isfinite(n), n, -1.0).to(torch.int64), degree


def _recurred(x: Tensor, n: Tensor, degree: int | None, first: Tensor, step: Step, wanted: Tensor) -> Tensor:
    """The polynomials of degrees n where these are wanted: 0 below 0, then 1, `first`, and by steps."""
    last = torch.where(wanted, n, 0)
    before, now = torch.ones_like(x), first
    if degree is not None and degree <= _WRITTEN_OUT:
        for k in range(2, degree + 1):
            before, now = now, step(x, k, before, now)
    else:
        one = torch.full((), 2, dtype=torch.int64, device=x.device)

        def turn(k: Tensor, before: Tensor, now: Tensor, x: Tensor, last: Tensor) -> tuple[Tensor, ...]:
            going = _going(k, before, now, x, last)
            new = torch.where(going, step(x, k.to(x.dtype), before, now), now)
            return k + 1, torch.where(going, now, before), new

        _, _, now = repeat_while(lambda *values: _going(*values).any(), turn, (one, before, now), (x, last))
    return torch.where(n < 0, 0.0, torch.where(n == 0, 1.0, now)).to(x.dtype)


def _going(k: Tensor, before: Tensor, now: Tensor, x: Tensor, last: Tensor) -> Tensor:
    return (k <= last) & ~torch.isnan(now)


def _by_parts(polynomial: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same, part by part where degrees are data, because that makes a loop."""

    def parted(x: Any, n: Any) -> Tensor:
        if not isinstance(n, Tensor):
            return polynomial(x, n)
        kind, x, n = together(x, n)

        def part(x: Tensor, n: Tensor) -> Tensor:
            return polynomial(x, n).to(kind)

        return by_parts(part, x, n)

    return parted


_WHOLE: dict[str, Callable[..., Tensor]] = {
    **{f"chebyshev_polynomial_{kind}": _chebyshev(*made, _WAVES_FROM[kind]) for kind, made in _KINDS.items()},
    **{
        f"shifted_chebyshev_polynomial_{kind}": _chebyshev(*made, _SHIFTED_WAVES_FROM[kind], shifted=True)
        for kind, made in _KINDS.items()
    },
    "hermite_polynomial_h": _hermite(2),
    "hermite_polynomial_he": _hermite(1),
    "laguerre_polynomial_l": laguerre,
    "legendre_polynomial_p": legendre,
}
POLYNOMIALS = {name: _by_parts(polynomial) for name, polynomial in _WHOLE.items()}
"""By what torch calls them in `torch.special`."""
